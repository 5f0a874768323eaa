//! The files of a tmpfs: their policies, and where they lie.

use crate::mountinfo::shown;
use homenode::mover::Files;
use homenode::{NodeId, Placement};
use homenode_linux::{memory, steer};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, fgetxattr, fstat, fstatvfs, open, openat2, stat, statat,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Most files and directories that a scan looks at.
pub(super) const FILES_MAX: usize = 1_000_000;
/// Most bytes of all their names.
const NAME_BYTES_MAX: usize = 256 << 20;
/// Part of both that each owner but root gets once there were too many: one user's files do not keep those of the others from being looked at.
pub(super) const SHARE: usize = 4;
/// Most names that a scan meets, for each file that it may look at.
const NAMES_PER_FILE: usize = 16;
/// Most directories below each other.
const DEPTH_MAX: usize = 64;
/// Time that a scan counts bytes for: one user's files do not keep policies of the others waiting.
const COUNT_TIME: Duration = Duration::from_millis(100);
const POLICY_XATTR: &str = "user.homenode.policy";

/// Files below a directory, as the last scan found them.
#[derive(Debug)]
pub(super) struct Tree {
    name: PathBuf,
    root: OwnedFd,
    device: u64,
    files: BTreeMap<u64, File>,
    /// Bytes of all files, once they were counted.
    by_node: Option<BTreeMap<NodeId, u64>>,
    counting: Counting,
    is_cut: bool,
    files_max: usize,
    /// There were too many for one scan.
    shares: bool,
}

/// A count of all files' bytes that several scans bring forward: one file alone may take minutes.
#[derive(Debug, Default)]
struct Counting {
    /// Number of the file that comes next, and the byte in it.
    next: (u64, u64),
    by_node: BTreeMap<NodeId, u64>,
}

#[derive(Debug)]
struct File {
    /// From the root on.
    path: PathBuf,
    /// Placement that the kernel was told.
    placed: Option<Placement>,
}

/// Opens below `root`: through no symbolic link, and to no other filesystem, whatever users change meanwhile.
fn open_below(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    openat2(
        root,
        path,
        flags | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
        resolve,
    )
}

/// Opens so that what follows is no access to the file: many remove files that nobody has accessed for some days. Root alone may, and the owner.
fn open_unnoticed(open: impl Fn(OFlags) -> rustix::io::Result<OwnedFd>) -> rustix::io::Result<OwnedFd> {
    match open(OFlags::NOATIME) {
        Err(Errno::PERM) => open(OFlags::empty()),
        opened => opened,
    }
}

impl Tree {
    /// The tree below `root`, an open directory that messages call `name`.
    pub(super) fn new(name: PathBuf, root: OwnedFd) -> io::Result<Self> {
        let device = fstat(&root)?.st_dev;
        Ok(Self {
            name,
            root,
            device,
            files: BTreeMap::new(),
            by_node: None,
            counting: Counting::default(),
            is_cut: false,
            files_max: FILES_MAX,
            shares: false,
        })
    }

    /// Device number of the tmpfs.
    pub(super) fn device(&self) -> u64 {
        self.device
    }

    /// Whether its path leads to its filesystem still. One that was unmounted keeps its memory for as long as the tree is open.
    pub(super) fn is_in_place(&self) -> bool {
        stat(&self.name).is_ok_and(|found| found.st_dev == self.device)
    }

    /// Looks at all files anew, and tells the kernel policies that changed; then counts some of their bytes. Until `is_over`.
    pub(super) fn scan(&mut self, is_over: &AtomicBool) {
        self.look(is_over);
        let start = Instant::now();
        while !is_over.load(Ordering::Relaxed) && self.count_part() && start.elapsed() < COUNT_TIME {}
    }

    /// Counts a part of a file; false when all files are counted.
    fn count_part(&mut self) -> bool {
        let (number, from) = self.counting.next;
        let Some(number) = self.files.range(number..).next().map(|(number, _)| *number) else {
            let counted = std::mem::take(&mut self.counting);
            self.by_node = Some(counted.by_node);
            return false;
        };
        let from = if number == self.counting.next.0 { from } else { 0 };
        let next = self.open_known(number).and_then(|file| {
            let end = fstat(&file).map_or(0, |status| u64::try_from(status.st_size).unwrap_or(0));
            let is_within = from < end;
            let map_part = || steer::map_part(file.as_fd(), from, &mut self.counting.by_node).unwrap_or_default();
            is_within.then(map_part).flatten().filter(|next| *next < end)
        });
        self.counting.next = next.map_or((number + 1, 0), |next| (number, next));
        true
    }

    fn look(&mut self, is_over: &AtomicBool) {
        let before = std::mem::take(&mut self.files);
        self.shares &= std::mem::take(&mut self.is_cut);
        let (mut names, mut files, mut bytes) = (0, 0, 0);
        let mut shares: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
        let mut directories = vec![(PathBuf::from("."), None, 0)];
        while let Some((path, inherited, depth)) = directories.pop() {
            // One that is gone has no files.
            let opened = open_unnoticed(|flags| {
                open_below(self.root.as_fd(), &path, OFlags::RDONLY | OFlags::DIRECTORY | flags)
            });
            let Ok(directory) = opened else {
                continue;
            };
            let policy = policy_of(directory.as_fd()).or(inherited);
            let Ok(entries) = Dir::read_from(&directory) else {
                continue;
            };
            for entry in entries.flatten() {
                let name = entry.file_name();
                if [&b"."[..], b".."].contains(&name.to_bytes()) {
                    continue;
                }
                names += 1;
                let is_full =
                    files >= self.files_max || bytes >= NAME_BYTES_MAX || names > self.files_max * NAMES_PER_FILE;
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                if is_full {
                    (self.is_cut, self.shares) = (true, true);
                    return;
                }
                let Ok(found) = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
                    continue;
                };
                let below = path.join(OsStr::from_bytes(name.to_bytes()));
                let share = shares.entry(found.st_uid).or_default();
                if self.shares
                    && found.st_uid != 0
                    && (share.0 >= self.files_max / SHARE || share.1 >= NAME_BYTES_MAX / SHARE)
                {
                    self.is_cut = true;
                    continue;
                }
                let name_bytes = below.as_os_str().len();
                *share = (share.0 + 1, share.1 + name_bytes);
                (files, bytes) = (files + 1, bytes + name_bytes);
                match FileType::from_raw_mode(found.st_mode) {
                    FileType::Directory if depth < DEPTH_MAX => directories.push((below, policy, depth + 1)),
                    FileType::RegularFile => {
                        let placed = before.get(&found.st_ino).and_then(|file| file.placed);
                        self.look_at(found.st_ino, below, policy, placed);
                    }
                    _ => {}
                }
            }
        }
    }

    fn look_at(&mut self, number: u64, path: PathBuf, inherited: Option<Placement>, placed: Option<Placement>) {
        // A second name of a file.
        if self.files.contains_key(&number) {
            return;
        }
        let Some(file) = self.open(&path) else { return };
        let wanted = policy_of(file.as_fd()).or(inherited);
        let mut now = placed;
        if wanted != placed {
            match steer::place(file.as_fd(), wanted.unwrap_or_default(), None) {
                Ok(()) => now = wanted,
                Err(error) => tracing::debug!("cannot place {}: {error}", shown(&path)),
            }
        }
        self.files.insert(number, File { path, placed: now });
    }

    /// Opens a regular file of the tmpfs; `None` for anything else that a user has put in its place. Opening a device or a FIFO could do
    /// something, so it is looked at first.
    fn open(&self, path: &Path) -> Option<OwnedFd> {
        let found = open_below(self.root.as_fd(), path, OFlags::PATH).ok()?;
        let status = fstat(&found).ok()?;
        let is_file = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
        if !is_file || status.st_dev != self.device {
            return None;
        }
        // NONBLOCK: who has a lease on the file would be waited for.
        let itself = format!("/proc/self/fd/{}", found.as_raw_fd());
        open_unnoticed(|flags| {
            open(
                &itself,
                OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | flags,
                Mode::empty(),
            )
        })
        .ok()
    }

    /// Opens a file that the last scan found; `None` if its name is another file's now.
    fn open_known(&self, file: u64) -> Option<OwnedFd> {
        let opened = self.open(&self.files.get(&file)?.path)?;
        (fstat(&opened).ok()?.st_ino == file).then_some(opened)
    }

    /// Bytes of all files on each node, or of those that were counted so far.
    pub(super) fn by_node(&self) -> &BTreeMap<NodeId, u64> {
        self.by_node.as_ref().unwrap_or(&self.counting.by_node)
    }

    /// Whether all files were counted once.
    pub(super) fn is_counted(&self) -> bool {
        self.by_node.is_some()
    }

    /// Files, and those of them with a policy.
    pub(super) fn counts(&self) -> (usize, usize) {
        let placed = self.files.values().filter(|file| file.placed.is_some());
        (self.files.len(), placed.count())
    }

    /// Whether there were more files than are looked at.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Path of a file that the last scan found.
    pub(super) fn path(&self, file: u64) -> Option<PathBuf> {
        let below = &self.files.get(&file)?.path;
        Some(self.name.join(below.strip_prefix(".").unwrap_or(below)))
    }
}

/// Bytes that the tmpfs of an open directory still takes.
pub(super) fn free_bytes(directory: BorrowedFd<'_>) -> u64 {
    let free = |space: rustix::fs::StatVfs| match space.f_blocks {
        // Without a limit.
        0 => u64::MAX,
        _ => space.f_bavail.saturating_mul(space.f_frsize),
    };
    fstatvfs(directory).map_or(0, free)
}

impl Files for Tree {
    fn map(&self, file: u64) -> Option<Vec<(NodeId, u64)>> {
        let known = self.files.get(&file)?;
        let is_local = known.placed.unwrap_or_default() == Placement::Local;
        let file = self.open_known(file).filter(|_| is_local)?;
        steer::map(file.as_fd()).ok()
    }

    fn move_to(&self, file: u64, node: NodeId) -> Result<u64, String> {
        let file = self.open_known(file).ok_or("it is gone")?;
        steer::move_pages(file.as_fd(), None, node, &mut |_, _| {}).map_err(|error| error.to_string())
    }

    fn room(&self, node: NodeId) -> u64 {
        memory::free_bytes(node).unwrap_or(0)
    }
}

/// Policy that a file or directory has itself.
fn policy_of(file: BorrowedFd<'_>) -> Option<Placement> {
    let mut value = [0; 64];
    let bytes = fgetxattr(file, POLICY_XATTR, &mut value[..]).ok()?;
    std::str::from_utf8(&value[..bytes]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::{self, Write};
    use std::os::unix::fs::{FileExt, MetadataExt, chown};

    /// Says so past the test harness's capture.
    fn skip(why: &str) {
        let _ = writeln!(io::stderr(), "SKIPPED: {why}");
    }

    fn tree_of(directory: &Path) -> Tree {
        Tree::new(directory.into(), fs::File::open(directory).unwrap().into()).unwrap()
    }

    #[test]
    fn file_that_takes_the_name_of_another_is_not_taken_for_it() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let [one, other] = ["one", "other"].map(|name| directory.path().join(name));
        fs::write(&one, "content").unwrap();
        fs::write(&other, "content").unwrap();
        let number = fs::metadata(&one).unwrap().ino();
        let mut tree = tree_of(directory.path());
        tree.scan(&AtomicBool::new(false));
        let Some(node) = tree.map(number).and_then(|map| Some(map.first()?.0)) else {
            return skip("this kernel does not tell where a file lies");
        };
        assert_eq!(tree.move_to(number, node), Ok(0), "it is there");
        fs::rename(&other, &one).unwrap();
        assert_eq!(tree.map(number), None);
        assert!(tree.move_to(number, node).is_err());
    }

    /// Many remove files from a tmpfs that nobody has accessed for days.
    #[test]
    fn scan_is_no_access_to_a_file() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = directory.path().join("old");
        fs::write(&path, "content").unwrap();
        let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(9 * 86_400);
        let times = fs::FileTimes::new().set_accessed(long_ago);
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_times(times).unwrap();
        let mut tree = tree_of(directory.path());
        tree.scan(&AtomicBool::new(false));
        let _ = tree.map(file.metadata().unwrap().ino());
        assert_eq!(file.metadata().unwrap().accessed().unwrap(), long_ago);
    }

    #[test]
    fn many_files_of_one_user_leave_room_for_those_of_others() {
        if !rustix::process::geteuid().is_root() {
            return skip("only root gives files away");
        }
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let make = |name: &str, owner: u32| {
            let path = directory.path().join(name);
            fs::write(&path, "content").unwrap();
            chown(&path, Some(owner), None).unwrap();
            fs::metadata(path).unwrap().ino()
        };
        (0..100).for_each(|nth| _ = make(&nth.to_string(), 65534));
        let (other, own) = (make("other", 1000), make("own", 0));
        let mut tree = tree_of(directory.path());
        tree.files_max = 16;
        tree.scan(&AtomicBool::new(false));
        assert_eq!(tree.counts().0, 16, "files of any user");
        tree.scan(&AtomicBool::new(false));
        assert!(tree.path(other).is_some() && tree.path(own).is_some());
        assert_eq!(tree.counts().0, 4 + 2);
        assert!(tree.is_cut());
    }

    #[test]
    fn count_of_a_file_of_many_parts_goes_on_with_the_next_scan() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let sparse = fs::File::create(directory.path().join("sparse")).unwrap();
        for nth in 0..10 {
            sparse.write_all_at(b"content", nth << 30).unwrap();
        }
        let bytes = sparse.metadata().unwrap().blocks() * 512;
        let mut tree = tree_of(directory.path());
        tree.look(&AtomicBool::new(false));
        assert_eq!(tree.counts().0, 1);
        let mut parts = 0;
        while tree.count_part() {
            assert!(!tree.is_counted());
            parts += 1;
        }
        if tree.by_node().is_empty() {
            return skip("this kernel does not tell where a file lies");
        }
        assert!(parts > 1 && tree.is_counted());
        assert_eq!(tree.by_node().values().sum::<u64>(), bytes);
        tree.scan(&AtomicBool::new(false));
        assert_eq!(tree.by_node().values().sum::<u64>(), bytes);
    }
}
