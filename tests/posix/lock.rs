//! Locks: of a process (fcntl), of an open file (OFD) and of a whole file (flock), between processes.

mod open_file;

use crate::actor::{Actor, refusal};
use crate::stage::{Stage, edit, eventually, last_errno, open, stage};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

/// Which lock, and whether to take it, wait for it or ask who is in the way.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Process,
    ProcessWait,
    ProcessTest,
    File,
    FileTest,
}

impl Call {
    pub(crate) fn parse(word: &str) -> Self {
        match word {
            "process" => Self::Process,
            "process-wait" => Self::ProcessWait,
            "process-test" => Self::ProcessTest,
            "file" => Self::File,
            _ => panic!("no such lock: {word}"),
        }
    }

    fn command(self) -> i32 {
        match self {
            Self::Process => libc::F_SETLK,
            Self::ProcessWait => libc::F_SETLKW,
            Self::ProcessTest => libc::F_GETLK,
            Self::File => libc::F_OFD_SETLK,
            Self::FileTest => libc::F_OFD_GETLK,
        }
    }
}

/// `length` bytes from `start`; a length of 0 is all there may ever be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    kind: i32,
    start: i64,
    length: i64,
}

/// A lock in somebody's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    range: Range,
    process: i32,
}

impl Range {
    pub(crate) fn parse(kind: &str, start: &str, length: &str) -> Self {
        let kind = match kind {
            "read" => libc::F_RDLCK,
            "write" => libc::F_WRLCK,
            _ => libc::F_UNLCK,
        };
        let [start, length] = [start, length].map(|number| number.parse().expect("a number"));
        Self { kind, start, length }
    }

    fn of(kind: i32, start: i64, length: i64) -> Self {
        Self { kind, start, length }
    }

    fn write(start: i64, length: i64) -> Self {
        Self::of(libc::F_WRLCK, start, length)
    }

    fn read(start: i64, length: i64) -> Self {
        Self::of(libc::F_RDLCK, start, length)
    }

    fn unlock(start: i64, length: i64) -> Self {
        Self::of(libc::F_UNLCK, start, length)
    }

    /// Makes the call; a test returns the lock that is in the way.
    pub(crate) fn request(self, file: &OwnedFd, call: Call) -> Result<Option<Found>, Errno> {
        let mut lock = libc::flock {
            l_type: i16::try_from(self.kind).expect("a small number"),
            l_whence: i16::try_from(libc::SEEK_SET).expect("a small number"),
            l_start: self.start,
            l_len: self.length,
            l_pid: 0,
        };
        // SAFETY: the commands of `Call` read and write one `flock`, which lives until the call returns.
        let result = unsafe { libc::fcntl(file.as_raw_fd(), call.command(), &raw mut lock) };
        if result != 0 {
            return Err(last_errno());
        }
        let kind = i32::from(lock.l_type);
        let tested = matches!(call, Call::ProcessTest | Call::FileTest);
        let range = Self::of(kind, lock.l_start, lock.l_len);
        let process = lock.l_pid;
        Ok((tested && kind != libc::F_UNLCK).then_some(Found { range, process }))
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { kind, start, length } = self.range;
        let kind = if kind == libc::F_RDLCK { "read" } else { "write" };
        write!(f, "{kind} {start} {length} {}", self.process)
    }
}

fn busy() -> String {
    refusal(Errno::AGAIN)
}

/// A file that this process has open, and so has a rival.
struct Scene {
    path: PathBuf,
    file: OwnedFd,
    rival: Actor,
    // Removed last.
    _stage: Stage,
}

impl Scene {
    fn new(stage: Stage) -> Self {
        let path = stage.file("f", []);
        let mut rival = Actor::start();
        assert_eq!(rival.ask(&format!("open {}", path.display())), "ok");
        Self {
            file: edit(&path),
            rival,
            path,
            _stage: stage,
        }
    }

    /// Has the rival make a call on the file, and returns the answer.
    fn ask(&mut self, call: &str) -> String {
        self.tell(call);
        self.rival.answer()
    }

    fn tell(&mut self, call: &str) {
        self.rival.tell(&format!("{call} {}", self.path.display()));
    }

    /// Makes a call on the file in this process.
    fn own(&self, range: Range, call: Call) -> Result<Option<Found>, Errno> {
        range.request(&self.file, call)
    }
}

#[test]
fn write_locks_of_two_processes_conflict_where_they_overlap() {
    let mut scene = Scene::new(stage!());
    scene.own(Range::write(10, 20), Call::Process).unwrap();
    assert_eq!(scene.ask("lock process write 29 1"), busy());
    assert_eq!(scene.ask("lock process read 0 11"), busy());
    assert_eq!(scene.ask("lock process write 30 10"), "ok");
    assert_eq!(scene.ask("lock process write 0 10"), "ok");
    let me = std::process::id();
    assert_eq!(scene.ask("lock process-test write 0 0"), format!("write 10 20 {me}"));
    let found = scene.own(Range::write(25, 0), Call::ProcessTest).unwrap().unwrap();
    assert_eq!((found.range, found.process), (Range::write(30, 10), scene.rival.id()));
}

#[test]
fn read_locks_are_shared_and_keep_writers_out() {
    let mut scene = Scene::new(stage!());
    scene.own(Range::read(0, 0), Call::Process).unwrap();
    assert_eq!(scene.ask("lock process read 0 0"), "ok");
    assert_eq!(scene.ask("lock process write 5 1"), busy());
    assert_eq!(scene.own(Range::write(5, 1), Call::Process), Err(Errno::AGAIN));
    assert_eq!(scene.ask("lock process unlock 0 0"), "ok");
    scene.own(Range::write(5, 1), Call::Process).unwrap();
}

#[test]
fn unlocking_the_middle_splits_a_lock() {
    let mut scene = Scene::new(stage!());
    scene.own(Range::write(0, 100), Call::Process).unwrap();
    scene.own(Range::unlock(40, 20), Call::Process).unwrap();
    assert_eq!(scene.ask("lock process write 40 20"), "ok");
    assert_eq!(scene.ask("lock process write 39 1"), busy());
    assert_eq!(scene.ask("lock process write 60 1"), busy());
}

#[test]
fn closing_any_descriptor_drops_the_process_lock() {
    let mut scene = Scene::new(stage!());
    let other = edit(&scene.path);
    scene.own(Range::write(0, 0), Call::Process).unwrap();
    assert_eq!(scene.ask("lock process write 0 0"), busy());
    drop(other);
    assert_eq!(scene.ask("lock process write 0 0"), "ok");
}

#[test]
fn death_releases_locks() {
    let mut scene = Scene::new(stage!());
    assert_eq!(scene.ask("lock process write 0 50"), "ok");
    assert_eq!(scene.ask("lock file write 50 50"), "ok");
    assert_eq!(scene.own(Range::write(0, 1), Call::Process), Err(Errno::AGAIN));
    assert_eq!(scene.own(Range::write(99, 1), Call::Process), Err(Errno::AGAIN));
    scene.rival.kill();
    Range::write(0, 100).request(&scene.file, Call::Process).unwrap();
}

#[test]
fn a_waiter_gets_the_lock_when_it_is_free() {
    let mut scene = Scene::new(stage!());
    scene.own(Range::write(0, 10), Call::Process).unwrap();
    scene.tell("lock process-wait write 0 10");
    std::thread::sleep(Duration::from_millis(50));
    scene.own(Range::unlock(0, 10), Call::Process).unwrap();
    assert_eq!(scene.rival.answer(), "ok");
    let found = scene.own(Range::write(0, 10), Call::ProcessTest).unwrap().unwrap();
    assert_eq!(found.process, scene.rival.id());
}

#[test]
fn a_deadlock_is_refused() {
    let mut scene = Scene::new(stage!());
    scene.own(Range::write(0, 1), Call::Process).unwrap();
    assert_eq!(scene.ask("lock process write 1 1"), "ok");
    scene.tell("lock process-wait write 0 1");
    let rivals = format!(" {} ", scene.rival.id());
    let waits = |line: &str| line.contains("->") && line.contains(&rivals);
    eventually("the rival waits", || {
        std::fs::read_to_string("/proc/locks").unwrap().lines().any(waits)
    });
    assert_eq!(scene.own(Range::write(1, 1), Call::ProcessWait), Err(Errno::DEADLK));
    scene.own(Range::unlock(0, 1), Call::Process).unwrap();
    assert_eq!(scene.rival.answer(), "ok");
}

#[test]
fn a_lock_needs_a_fitting_descriptor_and_range() {
    let stage = stage!();
    let path = stage.file("f", []);
    let read_only = open(&path, OFlags::RDONLY).unwrap();
    let write_only = open(&path, OFlags::WRONLY).unwrap();
    assert_eq!(Range::write(0, 1).request(&read_only, Call::Process), Err(Errno::BADF));
    assert_eq!(Range::read(0, 1).request(&write_only, Call::Process), Err(Errno::BADF));
    assert_eq!(
        Range::write(-1, 1).request(&write_only, Call::Process),
        Err(Errno::INVAL)
    );
    Range::read(0, 1).request(&read_only, Call::Process).unwrap();
}
