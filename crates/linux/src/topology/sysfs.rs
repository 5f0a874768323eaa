//! Small reads below a root directory: `/` for the machine itself, any other for a recorded one.
//!
//! A file that is missing or does not parse reads as `None`: sysfs differs between kernels, and what one of them does
//! not tell is simply not known.

use super::copy::{Copy, Recorded};
use homenode_policy::topology::CPUS_MAX;
use homenode_policy::{CpuId, NodeId};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The tree below a root directory.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    /// Where everything that is read is copied to.
    copy: Option<Copy>,
    /// Modes of a recording's files, and errors of reading them.
    recorded: Option<Recorded>,
    /// The path of the file read last, kept for its memory.
    scratch: RefCell<PathBuf>,
}

impl Tree {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
            copy: None,
            recorded: None,
            scratch: RefCell::default(),
        }
    }

    /// A tree that copies all that is read from it.
    pub(crate) fn copied(root: &Path, copy: Copy) -> Self {
        Self {
            copy: Some(copy),
            ..Self::new(root)
        }
    }

    /// A tree that was copied.
    pub(crate) fn recorded(root: &Path, recorded: Recorded) -> Self {
        Self {
            recorded: Some(recorded),
            ..Self::new(root)
        }
    }

    /// The copy that was made, if one was.
    pub(crate) fn into_copy(self) -> Option<Copy> {
        self.copy
    }

    /// Whether this is the machine we run on.
    pub(crate) fn is_live(&self) -> bool {
        self.root == Path::new("/") && self.recorded.is_none()
    }

    /// Whether this is a recording.
    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded.is_some()
    }

    /// Puts what was not read from a file into the copy, as if it had been.
    pub(crate) fn keep(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        if let Some(copy) = &self.copy {
            copy.file(&self.root, path.as_ref(), Ok(bytes));
        }
    }

    /// Where `path` (relative, such as `sys/block`) is for the kernel we run on.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        let found = self.path(&path).exists();
        if let Some(copy) = self.copy.as_ref().filter(|_| found) {
            copy.stub(&self.root, path.as_ref());
        }
        found
    }

    /// The whole of a file, in memory that is used again.
    pub(crate) fn read(&self, path: impl AsRef<Path>, bytes: &mut Vec<u8>) -> io::Result<()> {
        let path = path.as_ref();
        let mut full = self.scratch.borrow_mut();
        full.as_mut_os_string().clear();
        full.push(&self.root);
        full.push(path);
        let result = match &self.recorded {
            None => File::open(&*full).and_then(|file| read_whole(file, bytes)),
            Some(recorded) => match recorded.error(path) {
                Some(error) => Err(error),
                None => open_recorded(&self.root, path).and_then(|file| read_whole(file, bytes)),
            },
        };
        if let Some(copy) = &self.copy {
            copy.file(&self.root, path, result.as_ref().map(|()| &bytes[..]));
        }
        result
    }

    /// The whole of a file that need not be text.
    pub(crate) fn bytes(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read(path, &mut bytes).ok()?;
        Some(bytes)
    }

    /// The text of a file without white space around it.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        self.try_text(path).ok()
    }

    /// Returns the text of a file as [`Tree::text`] does, or the reason why there is none.
    pub(crate) fn try_text(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let mut bytes = Vec::new();
        self.read(path, &mut bytes)?;
        let text = String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(text.trim().to_owned())
    }

    /// Returns facts that no file of the machine tells. For the running machine `ask` tells these facts; for any other
    /// machine the recording has put these facts into the file `path`.
    pub(crate) fn told(&self, path: impl AsRef<Path>, ask: impl FnOnce() -> String) -> String {
        let path = path.as_ref();
        if self.root != Path::new("/") {
            return self.text(path).unwrap_or_default();
        }
        let told = ask();
        if let Some(copy) = &self.copy {
            copy.file(&self.root, path, Ok(told.as_bytes()));
        }
        told
    }

    pub(crate) fn number<T: FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// A list of CPUs or nodes such as `0-3,8`.
    pub(crate) fn list(&self, path: impl AsRef<Path>) -> Option<Vec<u32>> {
        parse_list(&self.text(path)?)
    }

    /// The names in a directory, those with numbers in the order of the numbers. None when there is no such directory.
    pub(crate) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(&path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_by_cached_key(|name| (prefix(name).to_owned(), number_after(name, prefix(name)), name.clone()));
        if let Some(copy) = &self.copy {
            for name in &names {
                copy.stub(&self.root, &path.as_ref().join(name));
            }
        }
        names
    }

    /// The names in a directory that are numbers, ascending, such as the processes in `proc`.
    pub(crate) fn numbers(&self, path: impl AsRef<Path>, numbers: &mut Vec<u32>) -> io::Result<()> {
        self.some_numbers(path, numbers, usize::MAX)
    }

    /// [`Self::numbers`] of the first `most` entries: the kernel takes a microsecond or two for each.
    pub(crate) fn some_numbers(&self, path: impl AsRef<Path>, numbers: &mut Vec<u32>, most: usize) -> io::Result<()> {
        numbers.clear();
        for entry in fs::read_dir(self.path(&path))?.take(most) {
            // An end before the end: the process has vanished meanwhile.
            let Ok(entry) = entry else { break };
            numbers.extend(entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
        numbers.sort_unstable();
        if let Some(copy) = &self.copy {
            for number in &*numbers {
                copy.stub(&self.root, &path.as_ref().join(number.to_string()));
            }
        }
        Ok(())
    }

    /// Whether a file can be written by nobody, not even its owner.
    pub(crate) fn is_read_only(&self, path: impl AsRef<Path>) -> bool {
        const WRITE_BITS: u32 = 0o222;
        let path = path.as_ref();
        let mode = match &self.recorded {
            Some(recorded) => recorded.mode(path),
            None => fs::metadata(self.path(path)).ok().map(|file| file.permissions().mode()),
        };
        mode.is_some_and(|mode| mode & WRITE_BITS == 0)
    }

    /// The last part of where a link points, such as the driver's name of `…/driver`.
    pub(crate) fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.path(&path)).ok()?;
        if let Some(copy) = &self.copy {
            copy.stub(&self.root, path.as_ref());
        }
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// A directory and all above it up to the root, links resolved, the nearest first.
    pub(crate) fn above(&self, path: impl AsRef<Path>) -> Vec<PathBuf> {
        let real = |path: &Path| fs::canonicalize(path).ok();
        let (Some(root), Some(directory)) = (real(&self.root), real(&self.path(&path))) else {
            return Vec::new();
        };
        if let Some(copy) = &self.copy {
            copy.stub(&self.root, path.as_ref());
        }
        let below = directory.ancestors().map_while(|above| above.strip_prefix(&root).ok());
        below.map(Path::to_path_buf).collect()
    }

    /// The home of a device: the node of the nearest device above it that has one. Virtio disks and cards, for example,
    /// have none of their own, but the PCI function they sit on has. The kernel's -1 means that the firmware did not say.
    pub(crate) fn home(&self, device: impl AsRef<Path>) -> Option<NodeId> {
        let above = self.above(device);
        above
            .iter()
            .find_map(|path| self.number(path.join("numa_node")))
            .map(NodeId)
    }
}

/// Times that a file of a recording is looked up.
const AGAIN_MAX: usize = 1000;

/// Opens a file of a recording, which somebody else may have made: links do not lead out of it, and what would be read without an end, a pipe or a
/// device, is refused.
fn open_recorded(root: &Path, path: &Path) -> io::Result<File> {
    let root = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let open = |flags| {
        let once = || rustix::fs::openat2(&root, path, flags | OFlags::CLOEXEC, Mode::empty(), within).map(File::from);
        // The kernel gives up at `..` when anybody renames anything meanwhile.
        let mut tries = (0..AGAIN_MAX).map(|_| once());
        tries
            .find(|opened| !matches!(opened, Err(Errno::AGAIN)))
            .unwrap_or(Err(Errno::AGAIN))
    };
    let found = open(OFlags::PATH)?.metadata()?;
    match found.is_file() || found.is_dir() {
        true => Ok(open(OFlags::RDONLY)?),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Reads to the end without asking for a size first: files of the kernel have none.
fn read_whole(mut file: File, bytes: &mut Vec<u8>) -> io::Result<()> {
    /// Bytes of one read. The kernel gives at most a page at once of most of its files.
    const STEP: usize = 4096;
    let mut filled = 0;
    loop {
        if bytes.len() < filled + STEP {
            bytes.resize(filled + STEP, 0);
        }
        match file.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(())
}

/// `name` up to its first digit.
fn prefix(name: &str) -> &str {
    name.split(|c: char| c.is_ascii_digit()).next().unwrap_or(name)
}

/// The number that follows `prefix` in `name` up to the end or the next letter.
pub(crate) fn number_after(name: &str, prefix: &str) -> Option<u32> {
    let rest = name.strip_prefix(prefix)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// Reads `0-3,8` and also what some kernels write: `0, 1, 2`. Returns `None` for other text.
#[must_use]
pub fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last >= CPUS_MAX {
            return None;
        }
        numbers.extend(first..=last);
        // A recording may name them again and again.
        if numbers.len() > CPUS_MAX as usize {
            return None;
        }
    }
    Some(numbers)
}

/// Reads a mask such as `ff,00000001`: words of 32 bits, the highest first.
pub(crate) fn parse_mask(text: &str) -> Option<Vec<CpuId>> {
    let mut cpus = Vec::new();
    for (index, word) in text.trim().rsplit(',').enumerate() {
        let word = u32::from_str_radix(word, 16).ok()?;
        let first = u32::try_from(index).ok()? * 32;
        cpus.extend((0..32).filter(|bit| word >> bit & 1 == 1).map(|bit| CpuId(first + bit)));
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(parse_list("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("0, 1, 5"), Some(vec![0, 1, 5]));
        assert_eq!(parse_list(""), Some(vec![]));
        assert_eq!(parse_list("3-1"), None);
        assert_eq!(parse_list("0-4294967295"), None);
        assert_eq!(parse_list("x"), None);
        let all = format!("0-{}", CPUS_MAX - 1);
        assert_eq!(parse_list(&all).map(|cpus| cpus.len()), Some(CPUS_MAX as usize));
        assert_eq!(parse_list(&format!("{all},0")), None);
    }

    #[test]
    fn masks() {
        let cpus = |numbers: &[u32]| Some(numbers.iter().copied().map(CpuId).collect::<Vec<_>>());
        assert_eq!(parse_mask("3"), cpus(&[0, 1]));
        assert_eq!(parse_mask("80000000,00000001"), cpus(&[0, 63]));
        assert_eq!(parse_mask("0"), cpus(&[]));
        assert_eq!(parse_mask("zz"), None);
    }

    #[test]
    fn names_are_sorted_by_their_numbers() {
        let root = tempfile::tempdir().unwrap();
        for name in ["rx-10", "rx-2", "tx-0", "rx-1"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        assert_eq!(Tree::new(root.path()).names("."), ["rx-1", "rx-2", "rx-10", "tx-0"]);
        assert!(Tree::new(root.path()).names("missing").is_empty());
    }
}
