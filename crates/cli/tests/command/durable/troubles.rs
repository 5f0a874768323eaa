//! Durable pools whose files, disks and servers fail, or whose commands are interrupted, and what is said of it.

use super::*;
use rustix::process::Pid;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Child, Output, Stdio};

/// Makes each write to a member fail from now on.
fn forbid_writes(mount: &Path) {
    let pid = server_pid(mount).unwrap().as_raw_nonzero().to_string();
    let limited = Command::new("prlimit").args(["--fsize=0", "--pid", &pid]).status();
    assert!(limited.unwrap().success());
}

/// The line of a pool in `homenode pool list`.
pub(super) fn line_of(pools: &Pools, name: &str) -> String {
    let listed = pools.run("pool list");
    let line = listed.lines().find(|line| line.starts_with(name));
    line.unwrap_or_else(|| panic!("{name} is not in: {listed}")).to_owned()
}

#[test]
fn a_pool_that_lost_its_disk_is_read_only_until_reopened() {
    let (pools, mount) = need_pools!("unwritable");
    pools.run("pool create butt a --size 32M");
    pools.run("up butt mount");
    fs::write(mount.join("before"), "kept").unwrap();
    File::open(mount.join("before")).unwrap().sync_all().unwrap();
    assert_eq!(status(&mount)["durable"]["access"], "read_write");
    forbid_writes(&mount);
    // The log cannot be written, and then nothing can.
    let failed = fs::write(mount.join("later"), "lost").and_then(|()| File::open(mount.join("later"))?.sync_all());
    failed.unwrap_err();
    let remedies = ["READ ONLY", "could not be written", "homenode down", "homenode up butt"];
    for told in [pools.run("status mount"), pools.run("doctor --period 0.2")] {
        assert!(remedies.iter().all(|part| told.contains(part)), "{told}");
    }
    assert_eq!(status(&mount)["durable"]["access"], "failed");
    assert!(line_of(&pools, "butt").contains("READ ONLY"));
    pools.refused(
        "down mount",
        &["is unmounted", "could not be closed", "cannot make the pool durable"],
    );
    assert_nothing_mounted(pools.0.path());
    pools.run("up butt mount");
    assert_eq!(fs::read_to_string(mount.join("before")).unwrap(), "kept");
    assert!(!pools.run("status mount").contains("READ ONLY"));
    down(&mount);
}

#[test]
fn a_mounted_pool_whose_file_lost_its_name_is_not_exported() {
    let (pools, mount) = need_pools!("lost-name");
    pools.run("pool create tank a --size 32M");
    pools.run("up tank mount");
    fs::remove_file(pools.path("a")).unwrap();
    for export in ["pool export tank", "pool export tank --force"] {
        let place = format!("mounted on {0}: `homenode down {0}` first", mount.display());
        pools.refused(export, &["No such file", &place]);
    }
    assert_eq!(pools.listed().len(), 1);
    pools.run("down mount --force");
    pools.run("pool export tank --force");
}

/// A disk that the machine denies to root, as an immutable file is.
#[test]
fn a_file_denied_to_root_is_told_without_sudo() {
    need_mounts!();
    let pools = Pools::new("denied");
    pools.run("pool create tank a --size 32M");
    let change = |flag: &str| Command::new("chattr").arg(flag).arg(pools.path("a")).status();
    if !change("+i").is_ok_and(|status| status.success()) {
        return skipped("needs a filesystem with immutable files");
    }
    let output = pools.homenode("fsck --repair a").output();
    let _ = change("-i");
    let message = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(!message.contains("sudo"), "{message}");
    says(&message, &["denied to root too"]);
}

#[test]
fn pool_list_tells_apart_pools_that_share_a_name() {
    need_mounts!();
    let pools = Pools::new("listed");
    let (mount, place) = (pools.0.dir("mount"), pools.path("mount"));
    pools.run("pool create firkin a --size 32M");
    pools.run("up firkin mount");
    // Another pool takes the name.
    pools.run("pool import a --name pipe --force");
    let mut mkfs = pools.command("mkfs.homenode");
    succeed(mkfs.args(["-L", "firkin", "--size", "32M", "b"]));
    pools.run("pool import b --force");
    let state = |name: &str| {
        let listed = pools.listed();
        let pool = listed.into_iter().find(|pool| pool["name"] == name).unwrap();
        (pool["mounted_on"][0].clone(), pool["dead_on"][0].clone())
    };
    assert_eq!(state("pipe"), (place.to_str().into(), Value::Null));
    assert_eq!(state("firkin"), (Value::Null, Value::Null));
    pools.run("pool import a --name firkin --force");
    end_server(&mount, Signal::KILL);
    assert_eq!(state("firkin"), (Value::Null, place.to_str().into()));
    assert!(line_of(&pools, "firkin").contains("its server on"));
    let told = pools.run("status");
    assert!(told.contains("the pool firkin keeps all written data"), "{told}");
    let cleared = warned(&mut pools.homenode("down mount"));
    says(&cleared, &["the pool firkin keeps all written data"]);
    // Its size is not known without its file.
    fs::remove_file(pools.path("a")).unwrap();
    let line = line_of(&pools, "firkin");
    assert!(line.contains(" ?  ") && line.contains("No such file"), "{line}");
    assert_eq!(pools.listed()[0]["bytes"], Value::Null);
}

fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn interrupt(child: Child, by: Signal) -> Output {
    signal(Pid::from_child(&child), by);
    child.wait_with_output().unwrap()
}

fn sectors(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.blocks())
}

#[test]
fn an_interrupted_pool_create_leaves_files_unchanged() {
    const BYTES: u64 = 4 << 30;
    let pools = Pools::new("interrupted-create");
    let (old, new) = (pools.path("old"), pools.path("new"));
    File::create(&old).unwrap().set_len(BYTES).unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o600)).unwrap();
    for (by, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let create = start(&mut pools.homenode(&format!("pool create tank old new --size {BYTES}")));
        wait_until("it takes room", || sectors(&old) > 0);
        let output = interrupt(create, by);
        let said = describe(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        says(&said, &["interrupted: no pool was made", "new is removed"]);
        assert!(!new.exists());
        assert_eq!((sectors(&old), fs::metadata(&old).unwrap().len()), (0, BYTES));
        assert!(pools.listed().is_empty());
    }
}

/// The command is started as by nohup(1).
#[test]
fn an_ignored_hangup_does_not_interrupt_pool_create() {
    let pools = Pools::new("hangup-create");
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh", BINARY]);
    shell.args(["pool", "create", "tank", "new", "--size", "1G"]);
    shell
        .env("HOMENODE_POOLS", pools.path("known"))
        .current_dir(pools.0.path());
    let create = start(&mut shell);
    wait_until("it takes room", || sectors(&pools.path("new")) > 0);
    let output = interrupt(create, Signal::HUP);
    assert_eq!(output.status.code(), Some(0), "{}", describe(&output));
}

#[test]
fn adding_a_file_continues_after_the_command_ends() {
    let (pools, mount) = need_pools!("interrupted-add");
    pools.run("pool create keeve a --size 32M");
    pools.run("up keeve mount");
    let add = start(&mut pools.homenode("pool add mount large --size 1G"));
    wait_until("it takes room", || sectors(&pools.path("large")) > 0);
    let output = interrupt(add, Signal::INT);
    let said = describe(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("the server finishes the request"), "{said}");
    pools.run("pool add mount small --size 32M");
    wait_until("both are members", || {
        status(&mount)["members"].as_array().unwrap().len() == 3
    });
    // What the pool is known by has them all.
    let members = || pools.listed()[0]["members"].as_array().unwrap().len();
    wait_until("it is known", || members() == 3);
    let usage = fail(2, &mut pools.homenode("pool add mount"));
    assert!(usage.contains("the pool is durable: give PATH"), "{usage}");
    end_server(&mount, Signal::KILL);
    down(&mount);
    pools.run("up keeve mount");
    down(&mount);
}

#[test]
fn unsuitable_member_files_are_refused_with_the_reason() {
    let pools = Pools::new("unfit");
    let disk = rustix::fs::statvfs(pools.0.path()).unwrap();
    let far_too_large = disk.f_blocks * disk.f_frsize + (1 << 30);
    File::create(pools.path("large"))
        .unwrap()
        .set_len(far_too_large)
        .unwrap();
    let told = fail(1, &mut pools.homenode("pool create tank large"));
    says(&told, &["no room on the disk for all of", "are free"]);
    assert_eq!(sectors(&pools.path("large")), 0);
    fs::remove_file(pools.path("large")).unwrap();
    let twice = ["pool create tank a a --size 32M", "pool create tank a ./a --size 32M"];
    for command in twice {
        pools.refused(command, &["a was given twice"]);
        assert!(!pools.path("a").exists());
    }
    File::create(pools.path("empty")).unwrap();
    pools.refused(
        "pool import empty",
        &["it has no bytes, as a loop device without a file"],
    );
    pools.run("pool create tank a b --size 32M");
    let file = File::open(pools.path("a")).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let own = format!("({})", std::process::id());
    let used = fail(8, &mut pools.homenode("fsck tank"));
    assert!(used.contains("locked by") && used.contains(&own), "{used}");
    drop(file);
    fs::set_permissions(pools.path("b"), fs::Permissions::from_mode(0o640)).unwrap();
    let told = pools.run("doctor --period 0.2");
    let is_told = told.contains("by a lock") && told.contains(pools.path("b").to_str().unwrap());
    assert!(is_told && !told.contains(pools.path("a").to_str().unwrap()), "{told}");
    // Nothing there opens a pool degraded.
    let missing = fail(1, &mut pools.homenode("pool import a"));
    assert!(!missing.contains("degraded"), "{missing}");
    says(&missing, &["member 1"]);
    let checked = pools.run("fsck a b known/tank.toml");
    assert!(checked.contains("tank.toml is no member of the pool"), "{checked}");
}

#[test]
fn incomplete_members_are_reported_while_the_pool_is_up() {
    let (pools, mount) = need_pools!("unwhole");
    pools.run("pool create cade a b --size 32M");
    fs::rename(pools.path("b"), pools.path("away")).unwrap();
    let hint = fail(1, &mut pools.homenode("up cade mount"));
    assert!(hint.contains("--degraded"), "{hint}");
    pools.run("up --degraded cade mount");
    let told = status(&mount);
    assert_eq!(told["members"][1]["state"], "missing");
    assert_eq!(told["durable"]["access"], "read_only");
    assert_eq!(told["members"][0]["problem"], Value::Null);
    down(&mount);
    fs::rename(pools.path("away"), pools.path("b")).unwrap();
    pools.run("up cade mount");
    fs::rename(pools.path("a"), pools.path("away")).unwrap();
    File::options()
        .write(true)
        .open(pools.path("b"))
        .unwrap()
        .set_len(0)
        .unwrap();
    let lost = ["member 0", "has lost its file's name", "member 1", "was cut off"];
    for told in [pools.run("status mount"), pools.run("doctor --period 0.2")] {
        assert!(lost.iter().all(|part| told.contains(part)), "{told}");
    }
}

#[test]
fn two_pools_on_one_new_file_leave_it_to_the_one_that_was_made() {
    let pools = Pools::new("both");
    let mut all_made = 0;
    for round in 0..20 {
        let creating = ["one", "two"].map(|name| {
            let mut command = pools.homenode(&format!("pool create {name} file --size 32M --unwritten"));
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        });
        let ended = creating.map(|child| child.wait_with_output().unwrap());
        let made = ended.iter().filter(|output| output.status.success()).count();
        assert!(made <= 1, "round {round}: {ended:?}");
        assert_eq!(pools.listed().len(), made);
        all_made += made;
        for pool in pools.listed() {
            assert_eq!(pool["problem"], Value::Null, "round {round}: {ended:?}");
            let name = pool["name"].as_str().unwrap();
            assert!(pools.run(&format!("fsck {name}")).contains("sound"));
            pools.run(&format!("pool export {name}"));
        }
        let _ = fs::remove_file(pools.path("file"));
    }
    assert!(all_made > 0);
}

#[test]
fn of_two_new_pools_of_one_name_the_first_one_keeps_it() {
    let pools = Pools::new("name");
    for round in 0..20 {
        let creating = ["a", "b"].map(|file| {
            let mut command = pools.homenode(&format!("pool create tank {file} --size 32M --unwritten"));
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        });
        let ended = creating.map(|child| child.wait_with_output().unwrap());
        let made = ["a", "b"]
            .into_iter()
            .zip(&ended)
            .filter(|(_, output)| output.status.success());
        let made = made.map(|(file, _)| pools.path(file)).collect::<Vec<_>>();
        let listed = pools.listed();
        assert_eq!(made.len(), 1, "round {round}: {ended:?}");
        assert_eq!(
            listed[0]["members"][0].as_str(),
            made[0].to_str(),
            "round {round}: {ended:?}"
        );
        let left = ["a", "b"]
            .map(|file| pools.path(file))
            .into_iter()
            .filter(|path| path.exists());
        assert_eq!(left.collect::<Vec<_>>(), made, "round {round}: {ended:?}");
        succeed(&mut pools.homenode("pool export tank"));
        fs::remove_file(&made[0]).unwrap();
    }
}

#[test]
fn a_pool_that_cannot_be_recorded_is_not_made() {
    let pools = Pools::new("unrecorded");
    let mut command = pools.homenode("pool create cask --size 32M");
    let told = fail(1, command.arg(OsStr::from_bytes(b"bad\xff")));
    assert!(told.contains("bad\\xff is not UTF-8"), "{told}");
    fs::set_permissions(pools.0.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::create_dir(pools.path("known")).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", BINARY]);
    let known = pools.path("known");
    command
        .args(["pool", "create", "cask", "a", "--size=32M"])
        .env("HOMENODE_POOLS", &known);
    let told = fail(1, command.current_dir(pools.0.path()));
    says(&told, &[&format!("cannot be recorded in {}: ", known.display())]);
    let left = fs::read_dir(pools.0.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let left = left.filter(|name| name != "known").collect::<Vec<_>>();
    assert!(left.is_empty(), "{left:?}");
}
