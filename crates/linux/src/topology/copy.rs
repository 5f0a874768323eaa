//! Copies of the files that were read, so that another machine can read the same.
//!
//! A copy has the files where they were, behind the same links (absolute ones lead within the copy), and directories and files that were only looked at as
//! empty ones. What files cannot carry (modes do not survive every archive, and a file that could not be read has no text)
//! is in a list beside them: a line a file, `MODE BYTES PATH` or `error ERRNO PATH`, the paths as they were asked for and the
//! size of what the file has, and `end` as the last line. Reading a copy begins with that list, and a file that has gone missing or
//! was cut is an error then, not something that the machine did not have.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

/// Permission bits, without the kind of file.
const MODE_BITS: u32 = 0o7777;
/// Last line of a list.
const END: &str = "end\n";
/// Links that are followed for one path; the kernel's own bound.
const LINKS_MAX: usize = 40;

/// A copy that is being made.
#[derive(Debug)]
pub(crate) struct Copy {
    to: PathBuf,
    entries: RefCell<BTreeMap<PathBuf, Entry>>,
    /// The first thing that could not be written: reading goes on, and whoever ends the copy is told.
    failed: RefCell<Option<(PathBuf, io::Error)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    File { mode: u32 },
    Error(i32),
}

impl Copy {
    pub(crate) fn new(to: &Path) -> Self {
        Self {
            to: to.to_path_buf(),
            entries: RefCell::default(),
            failed: RefCell::default(),
        }
    }

    /// A file was read, or could not be. One that is not there leaves nothing.
    pub(super) fn file(&self, root: &Path, path: &Path, read: Result<&[u8], &io::Error>) {
        let entry = match read {
            Ok(bytes) => {
                let real = self.mirror(root, path);
                self.keep(&real, fs::write(&real, bytes));
                let mode = fs::metadata(root.join(path)).map_or(0o644, |file| file.permissions().mode());
                Entry::File { mode: mode & MODE_BITS }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => Entry::Error(error.raw_os_error().unwrap_or(0)),
        };
        self.entries.borrow_mut().insert(path.to_path_buf(), entry);
    }

    /// Something was looked at: its place is kept.
    pub(super) fn stub(&self, root: &Path, path: &Path) {
        let real = self.mirror(root, path);
        if real.symlink_metadata().is_ok() {
            return;
        }
        match fs::metadata(root.join(path)) {
            Ok(found) if found.is_dir() => self.keep(&real, fs::create_dir_all(&real)),
            Ok(_) => self.keep(&real, fs::write(&real, "")),
            // It has vanished meanwhile, or the link leads nowhere.
            Err(_) => {}
        }
    }

    /// Writes the list.
    ///
    /// # Errors
    /// The first thing of the whole copy that could not be written.
    pub(crate) fn finish(self, list: &Path) -> Result<(), (PathBuf, io::Error)> {
        let mut text = String::new();
        for (path, entry) in self.entries.borrow().iter() {
            let shown = path.display();
            match entry {
                Entry::File { mode } => {
                    // Of the copy: several paths may lead to one file, which has what was read last.
                    let full = self.to.join(path);
                    let bytes = fs::metadata(&full).map(|file| file.len());
                    let length = *bytes.as_ref().unwrap_or(&0);
                    self.keep(&full, bytes.map(drop));
                    writeln!(text, "{mode:04o} {length} {shown}")
                }
                Entry::Error(errno) => writeln!(text, "error {errno} {shown}"),
            }
            .expect("writing to a string cannot fail");
        }
        self.keep(list, fs::write(list, text + END));
        self.failed.into_inner().map_or(Ok(()), Err)
    }

    fn keep(&self, path: &Path, result: io::Result<()>) {
        if let Err(error) = result {
            self.failed.borrow_mut().get_or_insert((path.to_path_buf(), error));
        }
    }

    /// Where a path belongs in the copy, with the directories above it and the links on the way made.
    fn mirror(&self, root: &Path, path: &Path) -> PathBuf {
        let parts = |path: &Path| -> Vec<OsString> {
            let named = path.components().filter(|part| *part != Component::RootDir);
            named.map(|part| part.as_os_str().to_owned()).collect()
        };
        let mut real = PathBuf::new();
        let mut rest: VecDeque<OsString> = parts(path).into();
        let mut links = 0;
        while let Some(part) = rest.pop_front() {
            if part == ".." {
                real.pop();
                continue;
            }
            let next = real.join(&part);
            let Some(target) = fs::read_link(root.join(&next)).ok().filter(|_| links < LINKS_MAX) else {
                real = next;
                continue;
            };
            links += 1;
            self.link(&next, &target);
            if target.is_absolute() {
                real = PathBuf::new();
            }
            for part in parts(&target).into_iter().rev() {
                rest.push_front(part);
            }
        }
        let at = self.to.join(real);
        if let Some(parent) = at.parent() {
            self.keep(parent, fs::create_dir_all(parent));
        }
        at
    }

    /// An absolute target becomes one within the copy.
    fn link(&self, at: &Path, target: &Path) {
        let to_root: PathBuf = at.components().skip(1).map(|_| "..").collect();
        let target = target
            .strip_prefix("/")
            .map_or(target.into(), |below| to_root.join(below));
        let target = if target.as_os_str().is_empty() {
            ".".into()
        } else {
            target
        };
        let at = self.to.join(at);
        if at.symlink_metadata().is_err() {
            let made = at.parent().map_or(Ok(()), fs::create_dir_all);
            self.keep(&at, made.and_then(|()| symlink(target, &at)));
        }
    }
}

/// List of a copy: the mode of each file, or the error of reading the file.
#[derive(Debug)]
pub(crate) struct Recorded(BTreeMap<PathBuf, Entry>);

/// Why a copy cannot be used.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The list cannot be read, or a line of it cannot be understood.
    List(io::Error),
    /// A file is not there.
    Missing(PathBuf),
    /// A file is not as long as it was copied.
    Cut(PathBuf),
}

impl Recorded {
    /// Reads the list of the copy in `root`, and looks that all is there.
    pub(crate) fn open(root: &Path, list: &Path) -> Result<Self, Broken> {
        let text = fs::read_to_string(list).map_err(Broken::List)?;
        let invalid = |problem: String| Broken::List(io::Error::new(io::ErrorKind::InvalidData, problem));
        let lines = text
            .strip_suffix(END)
            .filter(|lines| lines.is_empty() || lines.ends_with('\n'));
        let lines = lines.ok_or_else(|| invalid("it is cut short".to_owned()))?;
        let mut entries = BTreeMap::new();
        for line in lines.lines() {
            let (path, entry, copied) = parse(line).ok_or_else(|| invalid(format!("\"{line}\" is no line of it")))?;
            if let Some(copied) = copied {
                let full = root.join(path);
                match fs::metadata(&full) {
                    Ok(found) if found.len() == copied => {}
                    Ok(_) => return Err(Broken::Cut(full)),
                    Err(_) => return Err(Broken::Missing(full)),
                }
            }
            entries.insert(PathBuf::from(path), entry);
        }
        Ok(Self(entries))
    }

    /// The error that reading this file gave.
    pub(super) fn error(&self, path: &Path) -> Option<io::Error> {
        match self.0.get(path)? {
            Entry::Error(errno) => Some(io::Error::from_raw_os_error(*errno)),
            Entry::File { .. } => None,
        }
    }

    pub(super) fn mode(&self, path: &Path) -> Option<u32> {
        match self.0.get(path)? {
            Entry::File { mode } => Some(*mode),
            Entry::Error(_) => None,
        }
    }
}

/// With the size of a file.
fn parse(line: &str) -> Option<(&str, Entry, Option<u64>)> {
    let mut words = line.splitn(3, ' ');
    let (kind, number, path) = (words.next()?, words.next()?, words.next()?);
    Some(match kind {
        "error" => (path, Entry::Error(number.parse().ok()?), None),
        mode => {
            let mode = u32::from_str_radix(mode, 8).ok()?;
            (path, Entry::File { mode }, Some(number.parse().ok()?))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::made::Made;
    use crate::topology::sysfs::Tree;

    /// A disk behind a link, as sysfs has it, and a file that nobody may write.
    fn machine() -> Made {
        let machine = Made::of(&[
            ("sys/devices/function/vda/mq/0/cpu_list", "0-1\n"),
            ("sys/devices/function/numa_node", "1\n"),
            ("sys/devices/function/vda/never_read", "x"),
            ("fixed", "7"),
        ]);
        machine.link("sys/block/vda", "../devices/function/vda");
        fs::set_permissions(machine.root().join("fixed"), fs::Permissions::from_mode(0o444)).unwrap();
        machine
    }

    fn read(tree: &Tree) -> impl PartialEq + std::fmt::Debug + use<> {
        (
            tree.home("sys/block/vda"),
            tree.names("sys/block/vda/mq"),
            tree.list("sys/block/vda/mq/0/cpu_list"),
            (tree.number::<u8>("fixed"), tree.is_read_only("fixed")),
            tree.try_text("sys/block").map_err(|error| error.raw_os_error()),
            (tree.text("missing"), tree.exists("missing")),
        )
    }

    fn copy(to: &Path) -> (Made, PathBuf) {
        let machine = machine();
        let copied = Tree::copied(machine.root(), Copy::new(&to.join("tree")));
        let seen = read(&copied);
        assert_eq!(seen, read(&machine.tree()));
        let list = to.join("list");
        copied.into_copy().unwrap().finish(&list).unwrap();
        (machine, list)
    }

    #[test]
    fn a_copy_reads_the_same() {
        let to = tempfile::tempdir().unwrap();
        let (machine, list) = copy(to.path());
        let copied = to.path().join("tree");
        // Modes that an archive lost are in the list.
        fs::set_permissions(copied.join("fixed"), fs::Permissions::from_mode(0o644)).unwrap();
        let again = Tree::recorded(&copied, Recorded::open(&copied, &list).unwrap());
        assert_eq!(read(&again), read(&machine.tree()));
        assert!(!copied.join("sys/devices/function/vda/never_read").exists());
    }

    /// Control groups are seen from a network namespace through such a link, `proc/1/root`.
    #[test]
    fn a_copy_behind_an_absolute_link_needs_the_machine_no_more() {
        let to = tempfile::tempdir().unwrap();
        let fact = to.path().join("fact");
        fs::write(&fact, "7").unwrap();
        let path = Path::new("proc/self/root").join(fact.strip_prefix("/").unwrap());
        let (copied, list) = (to.path().join("tree"), to.path().join("list"));
        let tree = Tree::copied(Path::new("/"), Copy::new(&copied));
        assert_eq!(tree.number(&path), Some(7));
        fs::remove_file(&fact).unwrap();
        tree.into_copy().unwrap().finish(&list).unwrap();
        let again = Tree::recorded(&copied, Recorded::open(&copied, &list).unwrap());
        assert_eq!(again.number(&path), Some(7));
    }

    /// Somebody else may have made the recording.
    #[test]
    fn a_pipe_in_a_copy_is_not_waited_for() {
        let to = tempfile::tempdir().unwrap();
        let (_machine, list) = copy(to.path());
        let copied = to.path().join("tree");
        let (cwd, kind) = (rustix::fs::CWD, rustix::fs::FileType::Fifo);
        rustix::fs::mknodat(cwd, copied.join("pipe"), kind, 0o600.into(), 0).unwrap();
        let (told, tell) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let tree = Tree::recorded(&copied, Recorded::open(&copied, &list).unwrap());
            told.send(tree.text("pipe"))
        });
        assert_eq!(tell.recv_timeout(std::time::Duration::from_secs(10)), Ok(None));
    }

    /// It could bring any file of this machine into a report.
    #[test]
    fn links_do_not_lead_out_of_a_copy() {
        let to = tempfile::tempdir().unwrap();
        let (_machine, list) = copy(to.path());
        let copied = to.path().join("tree");
        fs::write(to.path().join("secret"), "7").unwrap();
        fs::write(copied.join("own"), "8").unwrap();
        let targets = [&to.path().join("secret"), Path::new("../secret"), Path::new("/own")];
        for (nth, target) in targets.iter().enumerate() {
            symlink(target, copied.join(nth.to_string())).unwrap();
        }
        let tree = Tree::recorded(&copied, Recorded::open(&copied, &list).unwrap());
        let told = ["0", "1", "2"].map(|link| tree.number::<u32>(link));
        assert_eq!(told, [None, None, Some(8)]);
    }

    #[test]
    fn a_missing_or_cut_file_is_named() {
        let to = tempfile::tempdir().unwrap();
        let (_machine, list) = copy(to.path());
        let copied = to.path().join("tree");
        let queue = copied.join("sys/block/vda/mq/0/cpu_list");
        fs::write(&queue, "0").unwrap();
        assert!(matches!(Recorded::open(&copied, &list), Err(Broken::Cut(file)) if file == queue));
        fs::remove_file(&queue).unwrap();
        assert!(matches!(Recorded::open(&copied, &list), Err(Broken::Missing(file)) if file == queue));
        fs::write(&list, "nonsense\n").unwrap();
        assert!(matches!(Recorded::open(&copied, &list), Err(Broken::List(_))));
        assert!(matches!(
            Recorded::open(&copied, &to.path().join("none")),
            Err(Broken::List(_))
        ));
    }

    #[test]
    fn an_unwritable_copy_is_reported() {
        let to = tempfile::tempdir().unwrap();
        fs::write(to.path().join("tree"), "a file in the way").unwrap();
        let machine = machine();
        let tree = Tree::copied(machine.root(), Copy::new(&to.path().join("tree")));
        assert_eq!(tree.number("fixed"), Some(7));
        assert!(tree.into_copy().unwrap().finish(&to.path().join("list")).is_err());
    }
}
