//! Directories, processes and mounts that clean up after themselves.

#[path = "../support/command.rs"]
mod support;

use homenode_shared::{MountLine, unescaped};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::thread;
use std::time::{Duration, Instant};
pub(crate) use support::{BINARY, describe, fail, homenode, says, skipped};

/// Small, so that many tests can run at once.
pub(crate) const SIZE: &str = "--size-per-node=16M";
/// A test that makes a mount namespace copies the mounts of all others into it, and keeps them there.
pub(crate) static NAMESPACES: RwLock<()> = RwLock::new(());
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether mounts are possible here; says why not, past the test harness's capture.
pub(crate) fn can_mount() -> bool {
    let missing = if !rustix::process::geteuid().is_root() {
        "root"
    } else if !Path::new("/dev/fuse").exists() {
        "/dev/fuse"
    } else {
        return true;
    };
    skipped(&format!("needs {missing}"));
    false
}

/// Returns from the test where mounts are not possible. With `alone` no other test of this binary runs meanwhile; with a test's name it gives a
/// [`Scratch`] and a new directory in it.
macro_rules! need_mounts {
    () => {
        if !$crate::command::harness::can_mount() {
            return;
        }
        let _among_others = $crate::command::harness::NAMESPACES.read();
    };
    (alone) => {
        if !$crate::command::harness::can_mount() {
            return;
        }
        let _alone = $crate::command::harness::NAMESPACES.write();
    };
    ($test:literal) => {{
        let Some(scratch) = $crate::command::harness::Scratch::for_mounts($test) else {
            return;
        };
        let dir = scratch.dir("pool");
        (scratch, dir)
    }};
}
pub(crate) use need_mounts;

/// `need_mounts`, with a small pool mounted on the directory.
macro_rules! need_pool {
    ($test:literal) => {{
        let (scratch, dir) = $crate::command::harness::need_mounts!($test);
        $crate::command::harness::up(&dir);
        (scratch, dir)
    }};
}
pub(crate) use need_pool;

/// A directory for one test. What is mounted below it goes with it.
pub(crate) struct Scratch {
    path: PathBuf,
    /// Dropped behind the mounts.
    _among_others: Option<RwLockReadGuard<'static, ()>>,
}

impl Scratch {
    /// `None`, and a word about it, where mounts are not possible.
    pub(crate) fn for_mounts(test: &str) -> Option<Self> {
        let among_others = || NAMESPACES.read().unwrap_or_else(PoisonError::into_inner);
        can_mount().then(|| Self::with(test, Some(among_others())))
    }

    pub(crate) fn new(test: &str) -> Self {
        Self::with(test, None)
    }

    fn with(test: &str, among_others: Option<RwLockReadGuard<'static, ()>>) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("homenode-{test}-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self {
            // As mountinfo will tell it.
            path: fs::canonicalize(path).unwrap(),
            _among_others: among_others,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Runs the command in it, and expects a failure as [`refused`] does.
    pub(crate) fn refused(&self, arguments: &str, parts: &[&str]) {
        refused(homenode(arguments.split_whitespace()).current_dir(&self.path), parts);
    }

    /// A new directory in it.
    pub(crate) fn dir(&self, name: impl AsRef<OsStr>) -> PathBuf {
        let path = self.path.join(Path::new(name.as_ref()));
        fs::create_dir(&path).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for (mount_point, _) in mounts_below(&self.path) {
            let pid = server_pid(&mount_point);
            let _ = rustix::mount::unmount(&mount_point, rustix::mount::UnmountFlags::DETACH);
            if let Some(pid) = pid {
                // Gone already, perhaps.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Mount points and types below a directory, by the kernel's table.
pub(crate) fn mounts_below(directory: &Path) -> Vec<(PathBuf, String)> {
    // Bytes, not text, and no panic: it also cleans up after tests that failed.
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mount = |line: MountLine<'_>| {
        let point = PathBuf::from(OsString::from_vec(unescaped(line.mount_point).collect()));
        (point, String::from_utf8_lossy(line.filesystem_type).into_owned())
    };
    let mounts = MountLine::all(&table).map(mount);
    mounts.filter(|(point, _)| point.starts_with(directory)).collect()
}

/// Runs a command that must succeed; gives what it printed on standard output.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", describe(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must succeed; gives what it printed on standard error.
pub(crate) fn warned(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", describe(&output));
    String::from_utf8(output.stderr).unwrap()
}

/// Expects a failure as [`refused_with`] does, with code 1.
pub(crate) fn refused(command: &mut Command, parts: &[&str]) {
    refused_with(1, command, parts);
}

/// Expects a failure as [`fail`] does, with one line that names everything in `parts`.
pub(crate) fn refused_with(code: i32, command: &mut Command, parts: &[&str]) {
    let message = fail(code, command);
    assert_eq!(message.trim_end().lines().count(), 1, "one message: {message}");
    says(&message, parts);
}

pub(crate) fn up(directory: &Path) {
    succeed(homenode(["up", SIZE]).arg(directory));
}

pub(crate) fn down(directory: &Path) {
    succeed(homenode(["down"]).arg(directory));
}

pub(crate) fn status(directory: &Path) -> Value {
    let mut status: Value = serde_json::from_str(&succeed(homenode(["status", "--json"]).arg(directory))).unwrap();
    status["pools"][0].take()
}

/// The server of a mount, if it answers.
pub(crate) fn server_pid(directory: &Path) -> Option<Pid> {
    let output = homenode(["status", "--json"]).arg(directory).output().ok()?;
    let status: Value = serde_json::from_slice(&output.stdout).ok()?;
    Pid::from_raw(status["pools"][0]["pid"].as_u64()?.try_into().ok()?)
}

pub(crate) fn signal(pid: Pid, signal: Signal) {
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Ends the server of a mount by a signal, and waits until it is gone.
pub(crate) fn end_server(mount: &Path, sent: Signal) {
    let pid = server_pid(mount).unwrap();
    signal(pid, sent);
    wait_for_end(pid);
}

/// A process that SIGSTOP has stopped, until this is dropped.
#[derive(Debug)]
pub(crate) struct Stopped(Pid);

impl Stopped {
    pub(crate) fn new(pid: Pid) -> Self {
        signal(pid, Signal::STOP);
        let stopped = Self(pid);
        // A thread that has not come to it yet may answer a request.
        let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
        let is_stopped = |task: io::Result<fs::DirEntry>| {
            let stat = task.and_then(|task| fs::read_to_string(task.path().join("stat")));
            stat.is_ok_and(|stat| stat.contains(") T "))
        };
        wait_until("the server stops", || fs::read_dir(&tasks).unwrap().all(is_stopped));
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, Signal::CONT);
    }
}

/// Waits until a process is gone, a zombie at most.
pub(crate) fn wait_for_end(pid: Pid) {
    let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    // The first thread is a zombie as long as others are still ending.
    let alone = || fs::read_dir(&tasks).map_or(true, |tasks| tasks.count() <= 1);
    let ended = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ") && alone());
    wait_until("the server ends", ended);
}

pub(crate) fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited too long until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Where the server of a mount writes its log.
pub(crate) fn log_of(directory: &Path) -> PathBuf {
    let device = rustix::fs::stat(directory).unwrap().st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    Path::new("/run/homenode").join(format!("{major}-{minor}.log"))
}

/// Waits until a server that was stopped has dropped such a request.
pub(crate) fn wait_until_dropped(log: &Path, request: &str) {
    let is_told = |line: &str| line.contains("its command has ended") && line.contains(request);
    let is_dropped = || fs::read_to_string(log).unwrap().lines().any(is_told);
    wait_until("the server drops it", is_dropped);
}

/// Waits until a command waits for its server: it is connected, and each of its threads sleeps.
pub(crate) fn wait_until_it_waits(pid: Pid) {
    let process = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    wait_until("it waits for the server", || is_connected(&process) && sleeps(&process));
}

fn is_connected(process: &Path) -> bool {
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    // Num: RefCount Protocol Flags Type St Inode
    let connected: Vec<&str> = table
        .lines()
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields[5] == "03")
        .map(|fields| fields[6])
        .collect();
    let opened_here = |number: &OsStr| number.to_str().unwrap().parse::<u32>().unwrap() > 2;
    fs::read_dir(process.join("fd")).unwrap().any(|entry| {
        let entry = entry.unwrap();
        let target = fs::read_link(entry.path()).unwrap_or_default();
        let inode = target
            .to_str()
            .and_then(|target| target.strip_prefix("socket:[")?.strip_suffix(']'));
        opened_here(&entry.file_name()) && inode.is_some_and(|inode| connected.contains(&inode))
    })
}

fn sleeps(process: &Path) -> bool {
    fs::read_dir(process.join("task")).unwrap().all(|task| {
        let stat = fs::read_to_string(task.unwrap().path().join("stat"));
        stat.is_ok_and(|stat| stat.rsplit_once(") ").unwrap().1.starts_with('S'))
    })
}

pub(crate) fn assert_nothing_mounted(directory: &Path) {
    assert_eq!(mounts_below(directory), [], "nothing is mounted");
}

/// Cuts a mount's connection, through the files of the kernel's FUSE connections, mounted for the test.
pub(crate) fn abort_connection(scratch: &Scratch, dir: &Path) {
    let device = rustix::fs::stat(dir).unwrap().st_dev;
    let connections = scratch.dir("connections");
    let mounted = Command::new("mount")
        .args(["-t", "fusectl", "none"])
        .arg(&connections)
        .status();
    assert!(mounted.unwrap().success());
    let connection = connections.join(rustix::fs::minor(device).to_string());
    fs::write(connection.join("abort"), "1").unwrap();
    rustix::mount::unmount(&connections, rustix::mount::UnmountFlags::DETACH).unwrap();
}

/// A memory control group, version 1 or 2. Dropping it removes it.
pub(crate) struct ControlGroup {
    directory: PathBuf,
    pub(crate) limit: &'static str,
    pub(crate) usage: &'static str,
    /// Tells how often the limit was met.
    met: &'static str,
}

impl ControlGroup {
    /// `None`, and a word about it, where there is none to be had.
    pub(crate) fn of_memory() -> Option<Self> {
        let told = |error: io::Error| skipped(&format!("there is no memory control group to be had: {error}"));
        Self::new().map_err(told).ok()
    }

    fn new() -> io::Result<Self> {
        let name = format!("homenode-test-{}", std::process::id());
        let (first, second) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let group = if first.exists() {
            Self {
                directory: first.join(name),
                limit: "memory.limit_in_bytes",
                usage: "memory.usage_in_bytes",
                met: "memory.failcnt",
            }
        } else {
            fs::write(second.join("cgroup.subtree_control"), "+memory")?;
            Self {
                directory: second.join(name),
                limit: "memory.max",
                usage: "memory.current",
                met: "memory.events",
            }
        };
        fs::create_dir(&group.directory)?;
        Ok(group)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.directory.join(name)).unwrap()
    }

    pub(crate) fn write(&self, name: &str, value: &str) -> io::Result<()> {
        fs::write(self.directory.join(name), value)
    }

    pub(crate) fn times_met(&self) -> u64 {
        let text = self.read(self.met);
        let line = text.lines().find(|line| line.starts_with("max ")).unwrap_or(&text);
        line.trim_start_matches("max ").trim().parse().unwrap()
    }

    /// The command, in the group from its start.
    pub(crate) fn run(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        let script = r#"echo $$ >"$0/cgroup.procs" && exec "$@""#;
        inside.args(["-c", script]).arg(&self.directory);
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            inside.env(name, value.unwrap());
        }
        command.get_current_dir().map(|directory| inside.current_dir(directory));
        inside
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // A process that was killed just now is in it for a moment.
        let removed = (0..200).any(|_| {
            thread::sleep(Duration::from_millis(10));
            fs::remove_dir(&self.directory).is_ok()
        });
        assert!(removed || thread::panicking(), "{} stays", self.directory.display());
    }
}
