//! What stat(2) shows, and which times an operation moves.

use rustix::fs::{AtFlags, OFlags, Stat};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// lstat(2).
pub(crate) fn look(path: impl AsRef<Path>) -> Stat {
    rustix::fs::lstat(path.as_ref()).expect("the object exists")
}

/// Permission bits with set-uid, set-gid and sticky.
pub(crate) fn permissions(path: impl AsRef<Path>) -> u32 {
    look(path).st_mode & 0o7777
}

pub(crate) fn links(path: impl AsRef<Path>) -> u64 {
    look(path).st_nlink
}

pub(crate) fn size(path: impl AsRef<Path>) -> u64 {
    u64::try_from(look(path).st_size).expect("a size is not negative")
}

/// st_blocks: units of 512 bytes.
pub(crate) fn sectors(path: impl AsRef<Path>) -> u64 {
    u64::try_from(look(path).st_blocks).expect("a count is not negative")
}

/// Names in a directory, sorted, without `.` and `..`.
pub(crate) fn names(dir: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("the directory can be listed");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("listed").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The three times of an object in ns since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) access_ns: i128,
    pub(crate) modify_ns: i128,
    pub(crate) change_ns: i128,
}

impl Times {
    pub(crate) fn of(path: impl AsRef<Path>) -> Self {
        Self::from(look(path))
    }
}

impl From<Stat> for Times {
    fn from(stat: Stat) -> Self {
        let ns = |seconds: i64, ns: u64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        Self {
            access_ns: ns(stat.st_atime, stat.st_atime_nsec),
            modify_ns: ns(stat.st_mtime, stat.st_mtime_nsec),
            change_ns: ns(stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

/// The kernel's coarse clock, which stamps files, ticks every 1 to 10 ms; later where a virtual CPU is kept from running ([`tick`]).
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// Waits until the clock that stamps files has moved on.
pub(crate) fn tick() {
    let before = coarse_ns();
    while coarse_ns() <= before {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn coarse_ns() -> i128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

/// Which times of each object `act` moved: a subset of the letters `amc` for access, modification and change. The objects are
/// held by descriptor, so they may be renamed or unlinked by `act`. A time that moved must have moved to now.
pub(crate) fn moved<const N: usize>(objects: [&Path; N], act: impl FnOnce()) -> [String; N] {
    let held = objects.map(hold);
    tick();
    let before = held.each_ref().map(times_of);
    let start_ns = coarse_ns() - i128::try_from(TICK.as_nanos()).expect("a tick is short");
    act();
    let end_ns = now_ns();
    let after = held.each_ref().map(times_of);
    let now = start_ns..=end_ns;
    std::array::from_fn(|index| {
        let (before, after) = (before[index], after[index]);
        let all = [
            ('a', before.access_ns, after.access_ns),
            ('m', before.modify_ns, after.modify_ns),
            ('c', before.change_ns, after.change_ns),
        ];
        let moved = all.into_iter().filter(|(_, before, after)| before != after);
        moved
            .map(|(letter, _, after)| {
                let path = objects[index].display();
                assert!(
                    now.contains(&after),
                    "time {letter} of {path} moved to {after}, not to now: {now:?}"
                );
                letter
            })
            .collect()
    })
}

fn hold(path: &Path) -> OwnedFd {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty()).expect("the object exists")
}

fn times_of(held: &OwnedFd) -> Times {
    Times::from(rustix::fs::statat(held, "", AtFlags::EMPTY_PATH).expect("a held object can be looked at"))
}

/// The wall clock, ns since the epoch.
pub(crate) fn now_ns() -> i128 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("the clock is past 1970");
    i128::try_from(since.as_nanos()).expect("128 bits hold any time")
}
