//! A disk below a mounted pool that dies, and pools and files that are gone. A file on a mount of another pool plays the disk: the server of that is killed,
//! and loses nothing of what it was given.

use super::*;
use rustix::process::kill_process;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Time in which a call ends when the disk is dead.
const BOUND: Duration = Duration::from_secs(20);

struct Lost {
    pools: Pools,
    below: PathBuf,
    mount: PathBuf,
}

impl Lost {
    fn new(test: &str) -> Self {
        let pools = Pools::new(test);
        let (below, mount) = (pools.0.dir("below"), pools.0.dir("mount"));
        pools.run("pool create below a --size 160M");
        pools.run("up below below");
        pools.run("pool create tank below/disk --size 96M --direct --cache 8M");
        pools.run("up tank mount");
        Self { pools, below, mount }
    }
}

/// homenode's own test of a lost disk has calls of a mount under load.
#[test]
fn a_dead_disk_is_reported_by_status_and_to_down() {
    need_mounts!();
    let lost = Lost::new("dead-disk");
    let mut file = File::create(lost.mount.join("file")).unwrap();
    file.write_all(&[1; 5000]).unwrap();
    file.sync_all().unwrap();
    end_server(&lost.below, Signal::KILL);
    let start = Instant::now();
    let written = file.write_all(&vec![2; 3 << 20]).and_then(|()| file.sync_all());
    assert!(written.is_err() && start.elapsed() < BOUND, "{written:?}");
    drop(file);
    assert!(status(&lost.mount)["members"][0]["errors"].as_u64().unwrap() > 0);
    let start = Instant::now();
    lost.pools
        .refused("down mount", &["is unmounted", "could not be closed"]);
    assert!(start.elapsed() < BOUND, "down took {:?}", start.elapsed());
    down(&lost.below);
    lost.pools.run("up below below");
    lost.pools.run("up tank mount");
    assert_eq!(fs::read(lost.mount.join("file")).unwrap()[..5000], [1; 5000]);
    fs::write(lost.mount.join("again"), "it works").unwrap();
    down(&lost.mount);
    assert!(lost.pools.run("fsck tank").contains("sound"));
    down(&lost.below);
}

/// umount(8) does not wait for the server.
#[test]
fn a_pool_is_mounted_again_and_checked_right_after_it_is_unmounted() {
    let (pools, mount) = need_pools!("again");
    pools.run("pool create tank a --size 32M");
    for round in 0..2 {
        pools.run("up tank mount");
        fs::write(mount.join("file"), [round; 5000]).unwrap();
        let server = server_pid(&mount).unwrap().as_raw_nonzero();
        let slow = "--inject=msync,fdatasync,fsync:delay_enter=700000";
        let mut tracer = Command::new("strace")
            .args([
                "--follow-forks",
                "--output=/dev/null",
                "--trace=msync,fdatasync,fsync",
                slow,
            ])
            .arg(format!("--attach={server}"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("all threads are traced", || {
            let tasks = fs::read_dir(format!("/proc/{server}/task")).unwrap();
            let is_traced = |task: io::Result<fs::DirEntry>| {
                let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default();
                status
                    .lines()
                    .any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
            };
            tasks.into_iter().all(is_traced)
        });
        assert!(Command::new("umount").arg(&mount).status().unwrap().success());
        if round == 1 {
            assert!(pools.run("fsck tank").contains("sound"));
        } else {
            pools.run("up tank mount");
            assert_eq!(fs::read(mount.join("file")).unwrap(), [round; 5000]);
            down(&mount);
        }
        tracer.wait().unwrap();
    }
}

#[test]
fn down_reports_a_server_that_is_killed_while_it_puts_the_pool_away() {
    const ATTEMPTS: usize = 10;
    need_mounts!();
    let lost = Lost::new("put-away");
    // As a service's, the second server has no terminal of its own to leave.
    let bring_up = |in_foreground: bool| {
        if !in_foreground {
            lost.pools.run("up tank mount");
            return None;
        }
        let mut command = lost.pools.homenode("up tank mount --foreground");
        let server = command.stderr(Stdio::null()).spawn().unwrap();
        wait_until("it is up", || server_pid(&lost.mount).is_some());
        Some(server)
    };
    let is_told = |in_foreground: bool| {
        let child = bring_up(in_foreground);
        fs::write(lost.mount.join("file"), vec![1; 16 << 20]).unwrap();
        let server = server_pid(&lost.mount).unwrap();
        let mut command = lost.pools.homenode("down mount");
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("it is unmounted", || mounts_below(&lost.mount).is_empty());
        let _ = kill_process(server, Signal::KILL);
        let told = command.wait_with_output().unwrap();
        let errors = String::from_utf8(told.stderr).unwrap();
        let is_told = errors.contains("killed before it had put the pool away");
        assert_eq!(told.status.code(), Some(i32::from(is_told)), "{errors}");
        child.map(|mut child| child.wait().unwrap());
        is_told
    };
    down(&lost.mount);
    for in_foreground in [false, true] {
        // A server that has put the pool away is not there to be killed.
        assert!(
            (0..ATTEMPTS).any(|_| is_told(in_foreground)),
            "no server was killed in time"
        );
    }
    down(&lost.below);
}

#[test]
fn down_does_not_end_a_pool_whose_file_has_no_name() {
    // A name of its own: of a mount that has just come its name is all that others know.
    let (pools, mount) = need_pools!("unnamed");
    pools.run("pool create nameless a --size 32M");
    pools.run("up nameless mount");
    fs::write(mount.join("file"), "precious").unwrap();
    fs::remove_file(pools.path("a")).unwrap();
    pools.refused("down mount", &["member 0", "no longer at", "copy", "--force"]);
    assert_eq!(fs::read(mount.join("file")).unwrap(), b"precious");
    pools.run("down mount --force");
    assert_nothing_mounted(pools.0.path());
    // Nothing is promised of a pool whose file is gone.
    let forgot = pools.run("pool export nameless --force");
    says(&forgot, &["forgot the name nameless", "needs the files"]);
}

/// The kernel tells the server the process number 0 for commands, which are root's all the same.
#[test]
fn a_pool_of_a_server_in_another_pid_namespace_is_taken_down() {
    let (pools, mount) = need_pools!("elsewhere");
    pools.run("pool create tank a --size 32M");
    let mut command = Command::new("unshare");
    command.args([
        "--pid",
        "--fork",
        "--kill-child",
        BINARY,
        "up",
        "tank",
        "mount",
        "--foreground",
    ]);
    command
        .env("HOMENODE_POOLS", pools.path("known"))
        .current_dir(pools.0.path());
    let mut server = command.stderr(Stdio::null()).spawn().unwrap();
    // Its server listens a moment after the mount is there.
    let answers = || homenode(["status"]).arg(&mount).output().unwrap().status.success();
    wait_until("it answers", answers);
    let member = status(&mount)["members"][0].clone();
    assert_eq!(member["backing"].as_str(), pools.path("a").to_str());
    pools.run("down mount");
    assert!(server.wait().unwrap().success());
    assert_nothing_mounted(pools.0.path());
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    need_mounts!();
    let pools = Pools::new("sizes");
    fs::File::create(pools.path("a")).unwrap().set_len(32 << 20).unwrap();
    let told = fail(1, &mut pools.homenode("pool create tank a --size 64M"));
    assert!(told.contains("has 32 MiB, where --size asks for 64 MiB"), "{told}");
    pools.run("pool create tank a --size 32M");
    let mount = pools.0.dir("mount");
    pools.run("up tank mount");
    fs::File::create(pools.path("b")).unwrap().set_len(32 << 20).unwrap();
    let told = fail(1, &mut pools.homenode("pool add mount b --size 64M"));
    assert!(told.contains("has 32 MiB, where --size asks for 64 MiB"), "{told}");
    pools.run("pool add mount b --size 32M");
    down(&mount);
}

#[test]
fn an_exported_pool_of_a_killed_server_is_no_pool_of_memory() {
    let (pools, mount) = need_pools!("exported");
    pools.run("pool create tank a --size 32M");
    pools.run("up tank mount");
    end_server(&mount, Signal::KILL);
    pools.run("pool export tank");
    let output = pools.homenode("down mount").output().unwrap();
    let said = describe(&output);
    assert!(!said.contains("memory are lost"), "{said}");
    says(&said, &["durable pool tank", "keep all written data"]);
    pools.run("pool import a");
}

/// The name may go while `up` waits for who has the members.
#[test]
fn a_pool_exported_meanwhile_does_not_come_up() {
    let (pools, mount) = need_pools!("exported-meanwhile");
    pools.run("pool create tank a --size 32M");
    // As a server that puts its pool away.
    let named = pools.path("homenode");
    fs::copy("/usr/bin/sleep", &named).unwrap();
    let mut holder = Command::new("flock");
    holder
        .args(["--no-fork", "a"])
        .arg(&named)
        .arg("60")
        .current_dir(pools.0.path());
    let mut holder = holder.spawn().unwrap();
    let comm = format!("/proc/{}/comm", holder.id());
    wait_until("the member is locked", || {
        fs::read_to_string(&comm).unwrap() == "homenode\n"
    });
    let mut waiter = pools.homenode("up tank mount").stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(waiter.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("waiting for") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it does not wait");
    }
    fs::remove_file(pools.path("known/tank.toml")).unwrap();
    holder.kill().unwrap();
    holder.wait().unwrap();
    said.read_to_string(&mut line).unwrap();
    assert!(
        !waiter.wait().unwrap().success() && line.contains("was exported"),
        "{line}"
    );
    assert_nothing_mounted(&mount);
}

/// Programs that go on have errors until the pool is there again, and do not write to the disk below.
#[test]
fn a_dead_mount_stays_until_its_pool_is_open() {
    let (pools, mount) = need_pools!("guard");
    pools.run("pool create tank a --size 32M");
    pools.run("up tank mount");
    fs::write(mount.join("file"), "kept").unwrap();
    end_server(&mount, Signal::KILL);
    let error = || fs::write(mount.join("other"), "lost").unwrap_err().raw_os_error();
    // A ring that has just ended gives another error.
    wait_until("the mount is dead", || error() == Some(libc::ENOTCONN));
    let (member, away) = (mount.with_file_name("a"), mount.with_file_name("away"));
    fs::rename(&member, &away).unwrap();
    pools.refused("up tank mount", &["mount the disk that it is on"]);
    assert_eq!(error(), Some(libc::ENOTCONN));
    fs::rename(&away, &member).unwrap();
    pools.refused("up --data kernel tank mount", &["leave --data out"]);
    assert_eq!(error(), Some(libc::ENOTCONN));
    // A server whose command has ended meanwhile, as by SIGKILL.
    let mut command = pools.homenode("up --detached tank mount");
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(server.stdout.take());
    assert_eq!(server.wait().unwrap().code(), Some(1));
    assert_eq!(error(), Some(libc::ENOTCONN));
    // One that a server left that was killed before it had taken the other one off.
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0",
        std::os::fd::AsRawFd::as_raw_fd(&device)
    );
    let (flags, data) = (
        rustix::mount::MountFlags::empty(),
        std::ffi::CString::new(data).unwrap(),
    );
    rustix::mount::mount("tank", &mount, "fuse.homenode", flags, &*data).unwrap();
    drop(device);
    assert_eq!(error(), Some(libc::ENOTCONN));
    let is_up = AtomicBool::new(false);
    thread::scope(|scope| {
        let write_all_the_while = || {
            while !is_up.load(Ordering::Relaxed) {
                let _ = fs::write(mount.join("other"), "kept or refused");
            }
        };
        scope.spawn(write_all_the_while);
        scope.spawn(write_all_the_while);
        let output = pools.homenode("up tank mount").output().unwrap();
        is_up.store(true, Ordering::Relaxed);
        assert!(output.status.success(), "{}", describe(&output));
    });
    assert_eq!(fs::read(mount.join("file")).unwrap(), b"kept");
    down(&mount);
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let version = release.split('.').map_while(|part| part.parse::<u32>().ok());
    if version.collect::<Vec<_>>() < vec![6, 5] {
        let _ = writeln!(io::stderr(), "SKIPPED: this Linux mounts beneath nothing");
        return;
    }
    assert_eq!(
        fs::read_dir(&mount).unwrap().count(),
        0,
        "something lies below the mount"
    );
}
