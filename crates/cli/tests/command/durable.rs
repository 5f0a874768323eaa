//! Durable pools: made, mounted, killed, put away and taken up again.

/// [`Pools::to_mount`]; returns from the test where that is not possible.
macro_rules! need_pools {
    ($test:literal) => {
        match $crate::command::durable::Pools::to_mount($test) {
            Some(pools) => pools,
            None => return,
        }
    };
}

mod disks;
mod lost;
mod squeezed;
mod troubles;

use super::harness::*;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Pools of a test, known to nobody else.
struct Pools(Scratch);

impl Pools {
    fn new(test: &str) -> Self {
        Self(Scratch::new(test))
    }

    /// With a directory to mount on; `None` where that is not possible.
    fn to_mount(test: &str) -> Option<(Self, PathBuf)> {
        let scratch = Scratch::for_mounts(test)?;
        let mount = scratch.dir("mount");
        Some((Self(scratch), mount))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The command, or a helper that is the command under another name.
    fn command(&self, called: &str) -> Command {
        let mut command = Command::new(BINARY);
        command.arg0(called).env("HOMENODE_POOLS", self.path("known"));
        command.current_dir(self.0.path());
        command
    }

    fn homenode(&self, arguments: &str) -> Command {
        let mut command = self.command("homenode");
        command.args(arguments.split_whitespace());
        command
    }

    /// Runs a command that must succeed; gives what it printed.
    fn run(&self, arguments: &str) -> String {
        succeed(&mut self.homenode(arguments))
    }

    /// Expects a failure that names everything in `parts`.
    fn refused(&self, arguments: &str, parts: &[&str]) {
        refused(&mut self.homenode(arguments), parts);
    }

    fn listed(&self) -> Vec<Value> {
        let listed = succeed(&mut self.homenode("pool list --json"));
        serde_json::from_str(&listed).unwrap()
    }
}

#[test]
fn a_relative_directory_of_known_pools_is_one_for_the_server_too() {
    let (pools, mount) = need_pools!("relative");
    for words in ["pool create tank a --size 32M", "up tank mount"] {
        succeed(pools.homenode(words).env("HOMENODE_POOLS", "known"));
    }
    assert!(pools.run("pool list").contains("mounted on"));
    down(&mount);
}

/// Parents that made daemons of themselves leave it so.
#[test]
fn with_an_umask_of_0_nobody_else_may_change_what_root_records() {
    let pools = Pools::new("umask");
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 0; exec \"$0\" pool create tank a --size 32M", BINARY]);
    shell.env("HOMENODE_POOLS", pools.path("known"));
    succeed(shell.current_dir(pools.0.path()));
    for path in ["known", "known/tank.toml", "a"] {
        let mode = fs::metadata(pools.path(path)).unwrap().permissions().mode();
        assert_eq!(mode & 0o022, 0, "{path}: {mode:o}");
    }
}

#[test]
fn a_pool_on_a_tmpfs_warns_that_it_lasts_until_reboot() {
    let pools = Pools::new("memory");
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    let place = shm.path().join("a");
    let output = pools
        .homenode("pool create tank --size 64M")
        .arg(&place)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let memory = format!("{} is memory: this pool lasts until reboot", place.display());
    assert!(output.status.success() && told.contains(&memory), "{output:?}");
    // All that tell the size tell the same.
    let made = String::from_utf8_lossy(&output.stdout);
    assert!(made.contains("made pool tank of 64 MiB"), "{made}");
    let listed = pools.run("pool list");
    assert!(listed.contains(" 64 MiB "), "{listed}");
}

#[test]
fn options_in_the_file_of_a_pool_are_those_of_up() {
    let (pools, mount) = need_pools!("options");
    pools.run("pool create tank a --size 32M");
    let known = pools.path("known/tank.toml");
    let text = fs::read_to_string(&known).unwrap();
    let write = |options: &str| fs::write(&known, format!("{text}options = [{options}]\n")).unwrap();
    for (options, problem) in [
        (r#""--no-such""#, "unexpected argument '--no-such' found"),
        (r#""noatime""#, "\"noatime\" is no option"),
        (r#""--", "elsewhere""#, "\"--\" is no option"),
        (r#""--commit=0""#, "--commit"),
        (r#""--mover""#, "a value is required for '--mover"),
        (r#""--transport=classic", "--spin-us=1""#, "is for rings"),
        (r#""--foreground""#, "belongs on a command line"),
        (r#""--pool=other""#, "belongs on a command line"),
    ] {
        write(options);
        pools.refused("up tank mount", &[problem]);
    }
    write(r#""--noatime", "--commit=7", "--mover=off""#);
    for (nth, seconds) in [(0, 7), (1, 2)] {
        let up = ["up tank mount", "up tank mount --nosuid --commit 2 --mover plan"][nth];
        succeed(&mut pools.homenode(up));
        let status = succeed(&mut pools.homenode("status mount --json"));
        let status: Value = serde_json::from_str(&status).unwrap();
        let options = status["pools"][0]["options"].to_string();
        assert!(options.contains(&format!("\"commit={seconds}\"")), "{options}");
        // A default outranks the file as well, where it is asked for.
        let mover = ["\"mover=off\"", "\"mover=plan\""][nth];
        assert!(options.contains(mover), "{options}");
        assert_eq!(options.matches("commit=").count(), 1, "{options}");
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let line = mounts.lines().find(|line| line.contains(mount.to_str().unwrap()));
        let line = line.unwrap();
        assert!(line.contains("nosuid") == (nth == 1), "{line}");
        says(line, &["noatime"]);
        // What changes the file keeps them.
        let member = format!("pool add mount member-{nth}");
        succeed(pools.homenode(&member).args(["--size", "32M"]));
        assert!(fs::read_to_string(&known).unwrap().contains("--commit=7"));
        down(&mount);
    }
    pools.run("pool import --force a member-0 member-1");
    let text = fs::read_to_string(&known).unwrap();
    assert!(text.contains("--noatime"));
    // As far as a file with a mistake in it can be read.
    pools.run("pool create other x --size 32M");
    fs::write(&known, format!("option = [\"--nosuid\"]\n{text}")).unwrap();
    let advice = "`homenode pool import --force --name tank PATH...`";
    pools.refused(
        "up tank mount",
        &["cannot understand line 1 of", "`option`", "correct the line", advice],
    );
    assert!(pools.run("pool import x").contains("pool other is known"));
    let import = || warned(&mut pools.homenode("pool import --force --name tank a member-0 member-1"));
    let said = import();
    assert!(said.contains("written anew without option = [\"--nosuid\"]"), "{said}");
    assert!(fs::read_to_string(&known).unwrap().contains("--noatime"));
    fs::write(&known, format!("{text}cache_bytes = \n")).unwrap();
    let said = import();
    says(&said, &["without the line options = ", "--noatime"]);
    assert!(!fs::read_to_string(&known).unwrap().contains("--noatime"));
}

#[test]
fn a_pool_mounted_by_name_keeps_its_contents() {
    let (pools, mount) = need_pools!("durable");
    let made = pools.run("pool create tank a b --size 32M");
    assert!(made.contains("made pool tank"), "{made}");
    let used = fs::metadata(pools.path("a")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&used) & 0o777, 0o600);
    for round in 0..4 {
        pools.run("up tank mount --commit 2");
        let names = fs::read_dir(&mount).unwrap().count();
        assert_eq!(names, round);
        fs::write(mount.join(format!("{round}")), format!("in round {round}")).unwrap();
        assert_eq!(pools.listed()[0]["mounted_on"][0], mount.to_str().unwrap());
        pools.refused("pool export tank", &["is in use"]);
        pools.refused("pool export tank --force", &["is in use"]);
        if round == 0 {
            let told = pools.run("doctor --period 0.2");
            let notice = format!("do not reach the pool tank at {}", mount.display());
            assert!(told.contains(&notice), "{told}");
        }
        match round {
            1 => end_server(&mount, Signal::KILL),
            // As faults of mapped members come, but sent by somebody.
            2 => end_server(&mount, Signal::BUS),
            _ => down(&mount),
        }
    }
    // By mount(8), under another name, from where somebody else has put the files.
    pools.run("pool export tank");
    assert!(pools.listed().is_empty());
    pools.refused("up tank mount", &["no pool tank is known here"]);
    let moved = pools.0.dir("moved");
    for name in ["a", "b"] {
        fs::rename(pools.path(name), moved.join(name)).unwrap();
    }
    fs::write(moved.join("other"), "no member").unwrap();
    pools.refused("pool import moved/b", &["member 0", "is missing"]);
    let found = pools.run("pool import moved --name tonk");
    assert!(found.contains("pool tonk is known"), "{found}");
    let mut helper = pools.command("mount.homenode");
    helper.args(["tonk", "mount", "-o", "rw,nosuid,commit=300"]);
    succeed(&mut helper);
    assert_eq!(fs::read_to_string(mount.join("1")).unwrap(), "in round 1");
    let status = pools.run("status mount");
    assert!(status.contains("moved/a") && status.contains("file"), "{status}");
    down(&mount);
    let mut helper = pools.command("mount.homenode");
    let unknown = fail(1, helper.args(["tank", "mount"]));
    assert!(unknown.contains("no pool tank is known here"), "{unknown}");
    let mut check = pools.command("fsck.homenode");
    let checked = succeed(check.args(["-a", "tonk"]));
    says(&checked, &["pool tonk (made as tank)", "sound; 5 inodes"]);
}

#[test]
fn a_pool_with_more_metadata_than_the_default_limit_is_exported() {
    const FILES: usize = 320;
    let (pools, mount) = need_pools!("export-metadata");
    // In all files more than 16 MiB, the limit of a pool of 64 MiB.
    let value = vec![b'x'; 60_000];
    pools.run("pool create tank a --size 64M");
    pools.run("up tank mount --metadata 64M");
    for file in 0..FILES {
        let path = mount.join(file.to_string());
        fs::write(&path, "").unwrap();
        rustix::fs::setxattr(&path, "user.large", &value, rustix::fs::XattrFlags::empty()).unwrap();
    }
    down(&mount);
    pools.refused("up tank mount", &["but the limit is 16777216", "--metadata"]);
    assert!(pools.run("pool export tank").contains("exported pool tank"));
    assert!(pools.listed().is_empty());
    pools.run("pool import a");
    pools.run("up tank mount --metadata 64M");
    assert_eq!(fs::read_dir(&mount).unwrap().count(), FILES);
    down(&mount);
}

#[test]
fn up_with_only_the_name_of_a_durable_pool_is_refused() {
    need_mounts!();
    let pools = Pools::new("lone-name");
    pools.run("pool create tank a --size 32M");
    for is_directory in [false, true] {
        if is_directory {
            pools.0.dir("tank");
        }
        pools.refused(
            "up tank --size-per-node 16M",
            &["tank is a durable pool", "homenode up tank DIR", "./tank"],
        );
    }
    // The other way round.
    pools.refused("up mount tank", &["no pool mount is known", "`homenode up tank mount`"]);
    pools.run("up ./tank --size-per-node 16M");
    down(&pools.path("tank"));
    pools.run("pool export tank");
}

#[test]
fn an_existing_file_keeps_its_size_and_create_says_so() {
    let pools = Pools::new("kept-size");
    let file = fs::File::create(pools.path("a")).unwrap();
    file.set_len(64 << 20).unwrap();
    for (size, is_told) in [("32M", true), ("64M", false)] {
        let said = warned(&mut pools.homenode(&format!("pool create tank a --force --size {size}")));
        assert_eq!(said.contains("a exists and keeps its 64 MiB"), is_told, "{said}");
        assert_eq!(file.metadata().unwrap().len(), 64 << 20);
        pools.run("pool export tank");
    }
}

#[test]
fn a_refused_pool_create_leaves_nothing() {
    let pools = Pools::new("refused-pools");
    pools.refused("pool create tankard a", &["a does not exist", "--size"]);
    pools.refused("pool create none a --size 32M", &["none", "memory"]);
    pools.refused(
        "pool create tankard a b --size 2M",
        &["--size asks for 2097152 B", "needs at least 16777216 B"],
    );
    pools.refused(
        "pool create tankard none/a --size 32M",
        &["the directory none does not exist: create it first"],
    );
    pools.refused(
        "pool create tankard a --size 8388607T",
        &["a: its filesystem has no files of", "smaller --size"],
    );
    pools.refused("pool create tankard .", &["is no regular file"]);
    fail(2, &mut pools.homenode("pool create ../x a"));
    fail(2, &mut pools.homenode("up tankard mount --size-per-node 1G"));
    fail(2, &mut pools.homenode("up tankard mount --commit 301"));
    let apart = fail(2, &mut pools.homenode("up tankard --noatime mount"));
    says(&apart, &["'mount' found: give NAME and DIR next to each other"]);
    pools.refused("up mount --commit 5", &["--commit is for durable pools"]);
    let left: Vec<_> = fs::read_dir(pools.0.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let data = pools.path("data");
    fs::write(&data, "something").unwrap();
    fs::File::options()
        .write(true)
        .open(&data)
        .unwrap()
        .set_len(32 << 20)
        .unwrap();
    let holds = fail(1, &mut pools.homenode("pool create tankard data"));
    assert!(holds.contains("holds data") && !holds.contains("chmod 600"), "{holds}");
    let made = pools.homenode("pool create tankard data --force").output().unwrap();
    assert!(made.status.success());
    says(&String::from_utf8_lossy(&made.stderr), &["chmod 600"]);
    pools.refused("pool create tankard other --size 32M", &["known here already"]);
    // By mkfs(8): made, and not known.
    let mut mkfs = pools.command("mkfs.homenode");
    succeed(mkfs.args(["-L", "tankard", "--size", "32M", "other"]));
    assert_eq!(pools.listed().len(), 1);
    pools.refused("pool import .", &["several pools", "tankard"]);
    pools.refused("pool import other", &["another pool is known as tankard"]);
    pools.run("pool import other --name tunk");
    fs::copy(pools.path("other"), pools.path("copy")).unwrap();
    pools.refused("pool import other copy", &["are both member 0"]);
    // One name a pool.
    pools.refused("pool import other --name tonk", &["known as tunk", "--force"]);
    assert!(pools.run("pool import other").contains("pool tunk is known"));
    let renamed = pools.run("pool import other --name tonk --force");
    says(&renamed, &["pool tonk is known, and no longer as tunk"]);
    pools.run("pool import other --name tunk --force");
    assert_eq!(pools.listed().len(), 2);
    fs::remove_file(pools.path("other")).unwrap();
    pools.refused("pool export tunk", &["No such file", "--force"]);
    fs::rename(pools.path("copy"), &data).unwrap();
    pools.refused("pool export tankard", &["no longer a member of pool tankard"]);
    let listed = pools.listed();
    assert!(
        listed[1]["problem"].as_str().unwrap().contains("No such file"),
        "{listed:?}"
    );
    pools.run("pool export tunk --force");
    pools.run("pool export -f tankard");
    assert!(pools.listed().is_empty());
}

/// Flips bits of a byte of a file.
fn flip(path: &std::path::Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn a_damaged_pool_is_repaired_with_the_option() {
    let pools = Pools::new("repair");
    let (member, untouched) = (pools.path("a"), |path: &std::path::Path| fs::read(path).unwrap());
    pools.run("pool create tank a --size 32M");
    pools.run("fsck --repair tank");
    for at in [100, (32 << 20) - 4000] {
        flip(&member, at);
        let before = untouched(&member);
        let mut check = pools.homenode("fsck tank");
        let output = check.output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(4), "{told}");
        says(&told, &["superblock at the", "--repair mends it"]);
        // By fsck(8): -n wins.
        let mut helper = pools.command("fsck.homenode");
        assert_eq!(helper.args(["-n", "-y", "a"]).output().unwrap().status.code(), Some(4));
        assert!(untouched(&member) == before, "the member was written");
        let mut helper = pools.command("fsck.homenode");
        let output = helper.args(["-a", "tank"]).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        says(&told, &["written again", "1 fault repaired"]);
        pools.run("fsck tank");
    }
    // Where e2fsck would show its progress.
    for way in [&["-C0"][..], &["-C", "0"]] {
        let mut helper = pools.command("fsck.homenode");
        assert_eq!(
            helper.args(way).arg("tank").output().unwrap().status.code(),
            Some(0),
            "{way:?}"
        );
    }
    // Both: nobody knows what pool it is.
    flip(&member, 100);
    flip(&member, (32 << 20) - 4000);
    fail(8, &mut pools.homenode("fsck --repair tank"));
    let mut helper = pools.command("fsck.homenode");
    assert_eq!(helper.arg("--no-such").output().unwrap().status.code(), Some(16));
}

#[test]
fn a_careful_repair_loses_nothing() {
    need_mounts!();
    let pools = Pools::new("careful");
    let (mount, member) = (pools.0.dir("mount"), pools.path("a"));
    pools.run("pool create tank a --size 32M");
    pools.run("up tank mount");
    fs::write(mount.join("a-name-to-damage"), "kept").unwrap();
    down(&mount);
    let bytes = fs::read(&member).unwrap();
    let mut names = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"a-name-to-damage"));
    names.by_ref().for_each(|at| flip(&member, at as u64));
    let before = fs::read(&member).unwrap();
    for way in ["-p", "-a"] {
        let mut helper = pools.command("fsck.homenode");
        let told = helper.args([way, "tank"]).output().unwrap();
        let text = String::from_utf8(told.stderr).unwrap();
        assert_eq!(told.status.code(), Some(4), "{text}");
        assert!(text.contains("nothing is repaired") && text.contains("-y"), "{text}");
        assert!(fs::read(&member).unwrap() == before, "the member was written");
    }
    let mut helper = pools.command("fsck.homenode");
    assert_eq!(
        helper.args(["-p", "-y", "tank"]).output().unwrap().status.code(),
        Some(1)
    );
    pools.run("fsck tank");
}

#[test]
fn a_read_only_or_degraded_pool_can_be_read() {
    need_mounts!();
    let pools = Pools::new("reading");
    let (mount, other) = (pools.0.dir("mount"), pools.0.dir("other"));
    pools.run("pool create cask a b --size 32M");
    pools.run("up cask mount");
    fs::write(mount.join("small"), "kept").unwrap();
    fs::write(mount.join("large"), vec![7; 40 << 20]).unwrap();
    down(&mount);
    let before = [pools.path("a"), pools.path("b")].map(|path| fs::read(path).unwrap());
    pools.refused("up --degraded mount", &["durable pools"]);
    // Twice beside each other, the second time by mount(8).
    pools.run("up --read-only cask mount");
    for changes in [
        "volume create mount/disk --size 1M",
        "pool add mount more --size 32M",
        "pool drain mount 1",
        "pool remove mount 1",
    ] {
        pools.refused(changes, &["the pool is mounted read-only", "without --read-only"]);
    }
    let mut helper = pools.command("mount.homenode");
    succeed(helper.args(["cask", "other", "-o", "rw,ro"]));
    let used = fail(8, &mut pools.homenode("fsck --repair cask"));
    assert!(used.contains("in use"), "{used}");
    pools.run("fsck cask");
    pools.0.dir("third");
    pools.refused("up cask third", &["in use"]);
    for mount in [&mount, &other] {
        assert_eq!(fs::read_to_string(mount.join("small")).unwrap(), "kept");
        let error = fs::write(mount.join("new"), "").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
        // The kernel lets it through, and the server does not.
        let remounted = std::process::Command::new("mount")
            .args(["-i", "-o", "remount,rw"])
            .arg(mount)
            .status();
        assert!(remounted.unwrap().success());
        let error = fs::write(mount.join("new"), "").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
        down(mount);
    }
    for (path, bytes) in ["a", "b"].iter().zip(&before) {
        assert!(fs::read(pools.path(path)).unwrap() == *bytes, "{path} was written to");
    }
    fs::rename(pools.path("b"), pools.path("away")).unwrap();
    pools.refused("up cask mount", &["No such file", "pool import"]);
    let mut helper = pools.command("mount.homenode");
    succeed(helper.args(["cask", "mount", "-o", "degraded"]));
    assert_eq!(fs::read_to_string(mount.join("small")).unwrap(), "kept");
    assert_eq!(fs::metadata(mount.join("large")).unwrap().len(), 40 << 20);
    let error = fs::read(mount.join("large")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    let mut start = vec![0; 1 << 20];
    std::io::Read::read_exact(&mut fs::File::open(mount.join("large")).unwrap(), &mut start).unwrap();
    assert!(start == vec![7; 1 << 20]);
    down(&mount);
    fs::rename(pools.path("away"), pools.path("b")).unwrap();
    fs::rename(pools.path("a"), pools.path("away")).unwrap();
    let without_log = fail(1, &mut pools.homenode("up --degraded cask mount"));
    let is_told = without_log.contains("without member 0") && without_log.contains("its log lies on that member");
    assert!(is_told, "{without_log}");
}

#[test]
fn members_are_added_and_removed_while_the_pool_is_mounted() {
    let (pools, mount) = need_pools!("durable-members");
    pools.run("pool create keg a --size 32M");
    pools.run("up keg mount");
    let content: Vec<u8> = (0..9_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(mount.join("still"), &content).unwrap();
    pools.refused("pool add mount b", &["b does not exist", "--size"]);
    pools.refused("pool add mount b --size 2M", &["needs"]);
    pools.refused("pool add mount b --size 25%", &["bytes"]);
    pools.refused("pool add mount a", &["is in use"]);
    pools.refused("pool add mount mount/inner --size 32M", &["lies in the pool itself"]);
    pools.refused("pool add mount --node 0 --size 8M", &["is durable", "PATH"]);
    pools.refused("pool remove mount 0", &["member 0", "drain"]);
    pools.refused("pool drain mount 0", &["member 0", "last"]);
    fail(2, &mut pools.homenode("pool add mount"));
    fs::write(pools.path("data"), vec![1; 32 << 20]).unwrap();
    let holds = fail(1, &mut pools.homenode("pool add mount data"));
    assert!(holds.contains("holds data"), "{holds}");
    assert!(!pools.path("b").exists(), "a refused command left a file");
    assert_eq!(pools.listed()[0]["members"].as_array().unwrap().len(), 1);
    // Too small for all that is there.
    let added = pools.run("pool add mount small --size 16M");
    assert!(added.contains("added member 1") && added.contains("small"), "{added}");
    let file = fs::File::create(mount.join("large")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &content, 0).unwrap();
    pools.refused("pool drain mount 0", &["no room", "member 0"]);
    let before = status(&mount);
    assert!(before["members"][0]["state"] != "draining", "{before}");
    pools.run("pool add mount data --force");
    pools.run("pool drain mount 0");
    assert_eq!(status(&mount)["members"][0]["state"], "drained");
    pools.run("pool remove mount 0");
    let files: Vec<PathBuf> = serde_json::from_value(pools.listed()[0]["members"].clone()).unwrap();
    assert_eq!(files, [pools.path("small"), pools.path("data")]);
    drop(file);
    down(&mount);
    // The file that went is free.
    pools.run("pool create other a --force");
    pools.run("up keg mount");
    assert!(fs::read(mount.join("still")).unwrap() == content);
    assert!(fs::read(mount.join("large")).unwrap() == content);
    down(&mount);
    let checked = pools.run("fsck keg");
    assert!(checked.contains("sound"), "{checked}");
}

#[test]
fn a_member_of_another_pool_is_added_once_its_ends_are_zeros() {
    use std::os::unix::fs::FileExt;
    const BYTES: u64 = 32 << 20;
    let (pools, mount) = need_pools!("zeroed-member");
    pools.run("pool create tank a --size 32M");
    pools.run("pool create other b --size 32M");
    pools.run("pool export other");
    pools.run("up tank mount");
    let remedies = ["is a member of pool other (", "`homenode pool add --force` takes it"];
    for add in ["pool add mount b", "pool add mount b --force"] {
        pools.refused(add, &remedies);
    }
    let file = fs::File::options().write(true).open(pools.path("b")).unwrap();
    for at in [0, BYTES - 4096] {
        file.write_all_at(&[0; 4096], at).unwrap();
    }
    drop(file);
    pools.run("pool add mount b --force");
    down(&mount);
    assert!(pools.run("fsck tank").contains("sound"));
}

#[test]
fn a_server_killed_during_a_drain_loses_nothing() {
    let (pools, mount) = need_pools!("killed-drain");
    pools.run("pool create vat a b --size 128M");
    pools.run("up vat mount");
    let still: Vec<u8> = (0..90_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(mount.join("still"), &still).unwrap();
    let append_until_killed = |mut file: fs::File| {
        let mut count = 0_u32;
        while std::io::Write::write_all(&mut file, &[count.to_le_bytes()[0]; 1000]).is_ok() {
            count += 1;
        }
        count
    };
    let mut cut_short = 0;
    for round in 0..5_u64 {
        let name = format!("appended-{round}");
        let members = status(&mount)["members"].as_array().unwrap().clone();
        let fullest = members
            .iter()
            .max_by_key(|member| member["used_bytes"].as_u64().unwrap());
        let member = fullest.unwrap()["member"].as_u64().unwrap();
        let mut options = fs::File::options();
        options.append(true).create_new(true);
        let file = options.open(mount.join(&name)).unwrap();
        let written = std::thread::scope(|scope| {
            let writer = scope.spawn(|| append_until_killed(file));
            let mut drain = pools.homenode(&format!("pool drain mount {member}"));
            let mut drain = drain.stderr(std::process::Stdio::null()).spawn().unwrap();
            let at = usize::try_from(member).unwrap();
            wait_until("it drains", || {
                status(&mount)["members"][at]["state"]
                    .as_str()
                    .unwrap()
                    .starts_with("drain")
            });
            std::thread::sleep(Duration::from_millis(10 * round));
            end_server(&mount, Signal::KILL);
            cut_short += u32::from(!drain.wait().unwrap().success());
            writer.join().unwrap()
        });
        down(&mount);
        pools.run("up vat mount");
        let read = fs::read(mount.join(&name)).unwrap();
        assert!(
            read.len() >= written as usize * 1000,
            "round {round}: {written} written, {} are there",
            read.len()
        );
        for (nth, record) in (0_u32..).zip(read.chunks_exact(1000)) {
            assert!(
                record.iter().all(|byte| *byte == nth.to_le_bytes()[0]),
                "round {round}: record {nth} is another"
            );
        }
        assert!(fs::read(mount.join("still")).unwrap() == still, "round {round}");
        fs::remove_file(mount.join(&name)).unwrap();
    }
    assert!(cut_short > 0, "no drain was cut short");
    // A crash between its file being known and its joining the pool.
    let known = pools.path("known/vat.toml");
    let text = fs::read_to_string(&known).unwrap();
    fs::write(pools.path("c"), vec![0; 32 << 20]).unwrap();
    let named = format!("\"{}\"", pools.path("b").display());
    assert!(text.contains(&named), "{text}");
    let with_c = format!("{named}, \"{}\"", pools.path("c").display());
    down(&mount);
    fs::write(&known, text.replace(&named, &with_c)).unwrap();
    let up = pools.homenode("up vat mount").output().unwrap();
    assert!(up.status.success(), "{}", describe(&up));
    let told = describe(&up);
    assert!(told.contains("is not a member of the pool, and is removed"), "{told}");
    assert!(!told.contains("WARN"), "{told}");
    assert_eq!(pools.listed()[0]["members"].as_array().unwrap().len(), 2);
    pools.run("pool add mount c");
    pools.run("pool drain mount 0");
    pools.run("pool remove mount 0");
    end_server(&mount, Signal::KILL);
    down(&mount);
    pools.run("up vat mount");
    assert!(fs::read(mount.join("still")).unwrap() == still);
    down(&mount);
}
