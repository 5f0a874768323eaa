//! How a mount begins and ends: busy, lazily, by force, by the death of its server; and what a panic does.

use crate::support::{Mounted, PANIC, TestHost, eventually, filesystem, new_dir, options};
use homenode_fuse::wire::Opcode;
use homenode_fuse::{Error, Server, Transport};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn mount_line(dir: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    mounts
        .lines()
        .find(|line| line.split(' ').nth(1) == dir.to_str())
        .map(str::to_owned)
}

#[test]
fn the_mount_table_names_homenode() {
    let Some(mounted) = Mounted::new() else { return };
    let line = mount_line(&mounted.dir).unwrap();
    let fields: Vec<_> = line.split(' ').collect();
    assert_eq!((fields[0], fields[2]), ("homenode", "fuse.homenode"));
    let has = |option| fields[3].split(',').any(|one| one == option);
    assert!(
        has("allow_other") && has("default_permissions") && !has("nosuid") && !has("nodev"),
        "{line}"
    );
    assert!(!fields[3].contains("max_read"), "{line}");
    mounted.finish();
}

#[test]
fn a_busy_mount_is_unmounted_only_by_force() {
    let Some(mounted) = Mounted::new() else { return };
    let mut file = File::create(mounted.path("open")).unwrap();
    let error = mounted.server.unmount(false).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EBUSY));
    assert!(error.to_string().contains("fuser"), "{error}");
    mounted.server.unmount(true).unwrap();
    assert_eq!(mount_line(&mounted.dir), None);
    file.write_all(b"still here").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10);
    drop(file);
    mounted.server.wait().unwrap();
}

#[test]
fn a_directory_that_another_has_replaced_is_not_mounted_on() {
    let place = new_dir();
    let (dir, moved) = (place.join("pool"), place.join("moved"));
    fs::create_dir(&dir).unwrap();
    let found = dir.metadata().unwrap();
    let mut options = options();
    options.directory = Some((found.dev(), found.ino()));
    fs::rename(&dir, &moved).unwrap();
    for replace in [
        |dir: &Path| fs::create_dir(dir),
        |dir: &Path| std::os::unix::fs::symlink("/etc", dir),
    ] {
        replace(&dir).unwrap();
        let error = Server::mount(filesystem(), Arc::new(TestHost), &dir, &options).unwrap_err();
        assert!(error.to_string().contains("has taken its place"), "{error}");
        fs::remove_dir(&dir).or_else(|_| fs::remove_file(&dir)).unwrap();
    }
    assert!(mount_line(Path::new("/etc")).is_none());
    [&moved, &place].iter().for_each(|dir| fs::remove_dir(dir).unwrap());
}

#[test]
fn a_mount_whose_parent_was_renamed_is_found_and_no_other() {
    let place = new_dir();
    let [parent, moved, other] = ["parent", "moved", "other"].map(|name| place.join(name));
    [&parent, &other]
        .iter()
        .for_each(|dir| fs::create_dir_all(dir.join("pool")).unwrap());
    let mount =
        |parent: &Path| Server::mount(filesystem(), Arc::new(TestHost), &parent.join("pool"), &options()).unwrap();
    let (server, bystander) = (mount(&parent), mount(&other));
    // Its owner may: what leads to the mount is another one's now.
    fs::rename(&parent, &moved).unwrap();
    std::os::unix::fs::symlink(&other, &parent).unwrap();
    assert_eq!(server.device(), fs::metadata(moved.join("pool")).unwrap().dev());
    server.stop().unwrap();
    assert_eq!(mount_line(&moved.join("pool")), None);
    assert!(mount_line(&other.join("pool")).is_some());
    fs::write(other.join("pool/file"), "bytes").unwrap();
    bystander.stop().unwrap();
    assert_eq!(mount_line(&other.join("pool")), None);
    fs::remove_dir_all(&place).unwrap();
}

#[test]
fn a_server_whose_mount_has_gone_leaves_the_filesystem_below_it() {
    let below = new_dir();
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&below));
    let pool = below.join("pool");
    fs::create_dir(&pool).unwrap();
    let server = Server::mount(filesystem(), Arc::new(TestHost), &pool, &options()).unwrap();
    run(Command::new("umount").arg(&pool));
    server.wait().unwrap();
    // A child that another test starts has its descriptors until it runs its program.
    let is_unmounted = || Command::new("umount").arg(&below).status().unwrap().success();
    eventually("nothing uses the filesystem below", is_unmounted);
    assert_eq!(server.unmount(false).unwrap_err().errno(), Some(libc::EINVAL));
    fs::remove_dir(&below).unwrap();
}

#[test]
fn the_kernel_keeps_no_file_after_the_end_of_a_mount() {
    let Some(mounted) = Mounted::new() else { return };
    for nth in 0..20 {
        fs::write(mounted.path(&nth.to_string()), "bytes").unwrap();
    }
    // Later, the kernel tells of no close any more.
    eventually("all closes were told", || mounted.fs.open_count() == 0);
    // A child that another test starts has its descriptors until it runs its program.
    eventually("nothing uses the mount", || mounted.server.unmount(false).is_ok());
    mounted.server.wait().unwrap();
    let root = mounted.fs.root();
    for nth in 0..20 {
        mounted.fs.unlink(&root, nth.to_string().as_bytes()).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while mounted.fs.has_unlinked() || mounted.fs.statfs().free < mounted.fs.statfs().blocks {
        assert!(
            Instant::now() < deadline,
            "{:?}, {:?}",
            mounted.fs.unlinked(),
            mounted.fs.statfs()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn stop_ends_a_busy_mount() {
    let Some(mounted) = Mounted::new() else { return };
    let mut file = File::create(mounted.path("open")).unwrap();
    mounted.server.stop().unwrap();
    mounted.server.wait().unwrap();
    assert_eq!(mount_line(&mounted.dir), None);
    // Bytes of the kernel's own outlive the server.
    assert_eq!(file.write_all(b"too late").is_ok(), mounted.is_kernel());
    assert!(file.metadata().is_err());
    mounted.server.stop().unwrap();
    assert_eq!(mounted.server.unmount(false).unwrap_err().errno(), Some(libc::EINVAL));
}

#[test]
fn many_mounts_of_one_process_are_independent() {
    let (Some(one), Some(two)) = (Mounted::new(), Mounted::new()) else {
        return;
    };
    fs::write(one.path("file"), b"one").unwrap();
    fs::write(two.path("file"), b"two").unwrap();
    drop(one);
    assert_eq!(fs::read(two.path("file")).unwrap(), b"two");
    two.finish();
}

#[test]
fn a_panic_costs_one_request() {
    let Some(mounted) = Mounted::new() else { return };
    if mounted.is_kernel() {
        return; // The memory that panics is the pool's.
    }
    fs::write(mounted.path("before"), b"before").unwrap();
    let error = fs::write(mounted.path("unlucky"), PANIC).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let statistics = mounted.server.statistics();
    assert_eq!((statistics.panics, statistics.errors), (1, 1), "{statistics:?}");
    assert!(
        statistics
            .requests
            .iter()
            .any(|&(opcode, count)| opcode == Opcode::Write && count >= 2)
    );
    assert_eq!(fs::read(mounted.path("before")).unwrap(), b"before");
    fs::write(mounted.path("unlucky"), b"not any more").unwrap();
    assert_eq!(fs::read(mounted.path("unlucky")).unwrap(), b"not any more");
    mounted.server.unmount(true).unwrap();
    mounted.server.wait().unwrap();
}

#[test]
fn ring_threads_do_not_preempt_callers_with_kernel_data() {
    // SAFETY: takes a number; 0 names the calling thread.
    if unsafe { libc::sched_getscheduler(0) } != libc::SCHED_OTHER {
        crate::support::skip("this policy is kept");
        return;
    }
    let Some(mounted) = Mounted::new() else { return };
    let is_batch = |stat: &str| {
        let (name, fields) = stat.rsplit_once(')').unwrap();
        let policy: i32 = fields.split_whitespace().nth(38).unwrap().parse().unwrap();
        name.contains("(fuse-ring") && policy == libc::SCHED_BATCH
    };
    let tasks = fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|task| task.unwrap().path());
    // Threads of other tests come and go.
    let stats = tasks.filter_map(|task| fs::read_to_string(task.join("stat")).ok());
    let has_rings = mounted.server.transport().transport == Transport::Uring;
    assert_eq!(
        stats.filter(|stat| is_batch(stat)).count() > 0,
        has_rings && mounted.is_kernel()
    );
    mounted.finish();
}

#[test]
fn bad_mount_points_are_named() {
    if crate::support::skipped() {
        return;
    }
    let mount = |dir: &Path| Server::mount(crate::support::filesystem(), Arc::new(TestHost), dir, &options());
    let missing = Path::new("/nowhere/at all");
    let Err(error @ Error::Mount { .. }) = mount(missing) else {
        panic!("{missing:?} must not be mounted on")
    };
    assert!(
        error.to_string().contains("/nowhere/at all") && error.to_string().contains("create the directory"),
        "{error}"
    );
    let file = crate::support::new_dir().join("file");
    fs::write(&file, b"").unwrap();
    let error = mount(&file).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOTDIR), "{error}");
    fs::remove_dir_all(file.parent().unwrap()).unwrap();
}

/// The files of the kernel's FUSE connections, mounted for the test, since not every machine has them mounted.
struct Connections(PathBuf);

impl Connections {
    fn new() -> Self {
        let dir = crate::support::new_dir();
        run(Command::new("mount").args(["-t", "fusectl", "none"]).arg(&dir));
        Self(dir)
    }

    /// Cuts the connection of a mount with this device number.
    fn abort(&self, device: u64) {
        fs::write(self.0.join(libc::minor(device).to_string()).join("abort"), "1").unwrap();
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        run(Command::new("umount").arg(&self.0));
        fs::remove_dir(&self.0).unwrap();
    }
}

fn device_of(mounted: &Mounted) -> u64 {
    fs::metadata(&mounted.dir).unwrap().dev()
}

fn run(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

#[test]
fn an_aborted_connection_is_cleaned_up() {
    let Some(mounted) = Mounted::new() else { return };
    Connections::new().abort(device_of(&mounted));
    mounted.server.wait().unwrap();
    assert!(mount_line(&mounted.dir).is_some(), "dead, but there");
    mounted.server.stop().unwrap();
    assert_eq!(mount_line(&mounted.dir), None);
    assert_eq!(mounted.server.unmount(false).unwrap_err().errno(), Some(libc::EINVAL));
}

#[test]
fn a_filesystem_on_top_of_the_mount_is_left_alone() {
    let Some(mounted) = Mounted::new() else { return };
    let connections = Connections::new();
    let device = device_of(&mounted);
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&mounted.dir));
    fs::write(mounted.path("on top"), b"of it").unwrap();
    assert_eq!(mounted.server.unmount(false).unwrap_err().errno(), Some(libc::EBUSY));
    connections.abort(device);
    mounted.server.wait().unwrap();
    assert_eq!(
        mounted.server.stop().unwrap_err().errno(),
        Some(libc::EBUSY),
        "dead, hidden, but there"
    );
    assert_eq!(fs::read(mounted.path("on top")).unwrap(), b"of it");
    run(Command::new("umount").arg(&mounted.dir));
    mounted.server.stop().unwrap();
    assert_eq!(mount_line(&mounted.dir), None);
}

/// Set for the process that is killed: where it shall mount.
const CHILD_DIR: &str = "HOMENODE_TEST_MOUNT_AND_WAIT";

#[test]
fn the_mount_point_of_a_killed_server_can_be_cleared() {
    if let Some(dir) = std::env::var_os(CHILD_DIR) {
        let server = Server::mount(
            crate::support::filesystem(),
            Arc::new(TestHost),
            &PathBuf::from(dir),
            &options(),
        )
        .unwrap();
        println!("\nmounted");
        server.wait().unwrap();
        return;
    }
    if crate::support::skipped() {
        return;
    }
    let dir = crate::support::new_dir();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--nocapture",
            "life::the_mount_point_of_a_killed_server_can_be_cleared",
        ])
        .env(CHILD_DIR, &dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert!(lines.map_while(Result::ok).any(|line| line == "mounted"));
    fs::write(dir.join("file"), b"volatile").unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // Rings go a moment after their process.
    let start = Instant::now();
    loop {
        let errno = fs::metadata(&dir).unwrap_err().raw_os_error().unwrap();
        if errno == libc::ENOTCONN {
            break;
        }
        assert!([libc::ECANCELED, libc::ECONNABORTED].contains(&errno), "{errno}");
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "the kernel still waits for the server"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    run(Command::new("umount").arg(&dir));
    assert_eq!(mount_line(&dir), None);
    fs::remove_dir(&dir).unwrap();
}
