//! Locks that let one actor act at a time: on the whole machine, and for each journal.
//!
//! The machine's lock is a file in /run, which does not depend on where a journal is; a process that may not write there
//! (not root) can change its own threads only, and does without this lock. A journal's lock is beside the journal, for such
//! processes, and for programs that share a directory and not /run.
//!
//! A lock is a file that stays: were it removed, a process that opened it before and locks it after that would have a lock
//! beside another process's. It names its holder; that is believed only while it is locked, and of a process that lives.

use super::error::Error;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{self, Path, PathBuf};

/// Also the directory of sockets of metrics (packaging/homenode-affinity.service).
const DIRECTORY: &str = "/run/homenode-affinity";
const NAME: &str = "lock";
const BESIDE: &str = ".lock";

/// Locked until it is dropped, or the process dies.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the machine's lock; `None` where this process may not write the lock's file.
    pub(super) fn of_machine(journal: &Path) -> Result<Option<Self>, Error> {
        match Self::in_directory(Path::new(DIRECTORY), journal) {
            Err(Error::Machine { source, .. }) if is_forbidden(&source) => Ok(None),
            taken => taken.map(Some),
        }
    }

    fn in_directory(directory: &Path, journal: &Path) -> Result<Self, Error> {
        let path = directory.join(NAME);
        let failed = |source| Error::Machine {
            path: path.clone(),
            source,
        };
        fs::create_dir_all(directory).map_err(failed)?;
        Self::take(&path, journal, failed)
    }

    /// `has_machine`: then nobody else is at work, and a journal whose directory cannot be written any more can still be
    /// reverted.
    pub(super) fn of_journal(journal: &Path, has_machine: bool) -> Result<Option<Self>, Error> {
        let path = super::store::beside(journal, BESIDE);
        let failed = |source| Error::Journal {
            what: "lock",
            path: path.clone(),
            source,
        };
        match Self::take(&path, journal, failed) {
            Err(Error::Journal { source, .. }) if has_machine && (is_forbidden(&source) || is_full(&source)) => {
                Ok(None)
            }
            taken => taken.map(Some),
        }
    }

    fn take(path: &Path, journal: &Path, failed: impl Fn(io::Error) -> Error) -> Result<Self, Error> {
        let mut options = OpenOptions::new();
        // Whoever can open it can lock it.
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // The directory may be one that others can write.
        options.custom_flags(libc::O_NOFOLLOW);
        let mut file = options.open(path).map_err(&failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(held(&mut file)),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        // On a full disk nobody learns who has it: no reason to leave undone what is to be reverted.
        let _ = file.set_len(0);
        // Whoever reads it may be in another directory.
        let journal = path::absolute(journal).unwrap_or_else(|_| journal.to_path_buf());
        let line = format!("{} {}\n", std::process::id(), journal.display());
        let _ = file.write_all(line.as_bytes());
        Ok(Self { _file: file })
    }
}

/// The journal of the program that acted on this machine last, while none does; none where that is not known. It need not
/// be there any more.
///
/// # Errors
/// A program acts now.
pub fn last_journal() -> Result<Option<PathBuf>, Error> {
    last_in(Path::new(DIRECTORY))
}

fn last_in(directory: &Path) -> Result<Option<PathBuf>, Error> {
    let Ok(mut file) = File::open(directory.join(NAME)) else {
        return Ok(None);
    };
    // Shared, so that two that ask do not take each other for one that acts.
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Err(held(&mut file)),
        _ => Ok(holder(&mut file).map(|(_, journal)| journal)),
    }
}

/// Who has it.
fn held(file: &mut File) -> Error {
    let lives = |(process, _): &(u32, PathBuf)| Path::new(&format!("/proc/{process}")).exists();
    Error::Locked {
        holder: holder(file).filter(lives),
    }
}

/// Who took it last. What cannot be read is not known.
fn holder(file: &mut File) -> Option<(u32, PathBuf)> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let (process, journal) = text.trim_end().split_once(' ')?;
    Some((process.parse().ok()?, PathBuf::from(journal)))
}

/// Who is not root: its own threads are all that it can change.
fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS))
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn all_journals_share_one_lock_and_its_file_stays() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("not-yet-there");
        let first = Lock::in_directory(&directory, Path::new("/a b/journal")).unwrap();
        let mode = fs::metadata(directory.join(NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "nobody else can hold the lock");
        let told = Lock::in_directory(&directory, Path::new("/c")).unwrap_err().to_string();
        let expected = format!(
            "process {} moves interrupts and threads already, with the journal /a b/journal: ",
            std::process::id()
        );
        assert!(told.starts_with(&expected), "{told}");
        drop(first);
        let _second = Lock::in_directory(&directory, Path::new("/c")).unwrap();
        let line = fs::read_to_string(directory.join(NAME)).unwrap();
        assert_eq!(line, format!("{} /c\n", std::process::id()));
    }

    #[test]
    fn the_last_journal_is_known_without_an_actor() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(last_in(directory.path()).unwrap(), None);
        let lock = Lock::in_directory(directory.path(), Path::new("journal")).unwrap();
        assert!(matches!(
            last_in(directory.path()),
            Err(Error::Locked { holder: Some(_) })
        ));
        drop(lock);
        let here = std::env::current_dir().unwrap().join("journal");
        assert_eq!(last_in(directory.path()).unwrap(), Some(here));
    }

    /// The lock is held by a process that has just taken it, over the line that a killed process left.
    #[test]
    fn a_dead_process_does_not_hold_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(NAME);
        fs::write(&path, format!("{} /a\n", u32::MAX)).unwrap();
        let holder = File::open(&path).unwrap();
        holder.lock().unwrap();
        let told = Lock::in_directory(directory.path(), Path::new("/b"))
            .unwrap_err()
            .to_string();
        assert!(
            told.starts_with("another process moves interrupts and threads already: "),
            "{told}"
        );
        drop(holder);
        Lock::in_directory(directory.path(), Path::new("/b")).unwrap();
    }

    #[test]
    fn only_unprivileged_users_skip_the_machine_lock() {
        let error = io::Error::from_raw_os_error;
        assert!(
            [libc::EACCES, libc::EPERM, libc::EROFS]
                .iter()
                .all(|errno| is_forbidden(&error(*errno)))
        );
        assert!(
            ![libc::ENOSPC, libc::EDQUOT, libc::ENOTDIR]
                .iter()
                .any(|errno| is_forbidden(&error(*errno)))
        );
    }

    #[test]
    fn an_obstacle_at_the_machine_lock_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let in_the_way = directory.path().join("file");
        fs::write(&in_the_way, "").unwrap();
        let told = Lock::in_directory(&in_the_way, Path::new("/a"))
            .unwrap_err()
            .to_string();
        let remedy = format!("make {} a writable directory, or remove it", in_the_way.display());
        assert!(
            told.contains("the lock of this machine") && told.ends_with(&remedy),
            "{told}"
        );
        assert!(!told.contains("journal"), "{told}");
        let full = Error::Machine {
            path: in_the_way.join(NAME),
            source: io::Error::from_raw_os_error(libc::ENOSPC),
        };
        let full = full.to_string();
        assert!(
            full.ends_with(&format!("make room in {}", in_the_way.display())),
            "{full}"
        );
    }
}
