//! One actor at a time: on the whole machine, and for each journal.
//!
//! The machine's lock is a file in /run, which does not depend on where a journal is; who may not write there (not root)
//! can change its own threads only, and does without it. The journal's is beside it, for those, and for programs that
//! share a directory and not /run.
//!
//! A lock is a file that is locked, and is removed before it is unlocked: who opened it before and locks it after that
//! finds that the path does not lead to it any more, and begins anew. One that a killed program leaves behind is taken
//! by the next. It says who has it; that is believed only while it is locked, and of a process that lives.

use super::error::Error;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Also the directory of sockets of metrics (packaging/homenode-affinity.service).
const DIRECTORY: &str = "/run/homenode-affinity";
const NAME: &str = "lock";
const BESIDE: &str = ".lock";
/// Each time somebody else has just ended.
const TRIES_MAX: usize = 100;

/// Locked until it is dropped, or the process dies.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// None where this process may write nothing that others would find.
    pub(super) fn of_machine(journal: &Path) -> Result<Option<Self>, Error> {
        match Self::in_directory(Path::new(DIRECTORY), journal) {
            Err(Error::Journal { source, .. }) if is_nowhere(&source) => Ok(None),
            taken => taken.map(Some),
        }
    }

    fn in_directory(directory: &Path, journal: &Path) -> Result<Self, Error> {
        let path = directory.join(NAME);
        match Self::take(&path, journal) {
            Err(Error::Journal { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(directory).map_err(failed(&path))?;
                Self::take(&path, journal)
            }
            taken => taken,
        }
    }

    /// `has_machine`: then nobody else is at work, and a journal whose directory cannot be written any more can still be
    /// reverted.
    pub(super) fn of_journal(journal: &Path, has_machine: bool) -> Result<Option<Self>, Error> {
        match Self::take(&super::store::beside(journal, BESIDE), journal) {
            Err(Error::Journal { source, .. }) if has_machine && is_nowhere(&source) => Ok(None),
            taken => taken.map(Some),
        }
    }

    fn take(path: &Path, journal: &Path) -> Result<Self, Error> {
        for _ in 0..TRIES_MAX {
            let mut options = OpenOptions::new();
            // Whoever can open it can lock it.
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let mut file = options.open(path).map_err(failed(path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(held(&mut file)),
                Err(TryLockError::Error(source)) => return Err(failed(path)(source)),
            }
            if is_at(&file, path).map_err(failed(path))? {
                // On a full disk nobody learns who has it: no reason to leave undone what is to be reverted.
                let _ = file.set_len(0);
                let _ = writeln!(file, "{} {}", std::process::id(), journal.display());
                return Ok(Self {
                    path: path.to_path_buf(),
                    _file: file,
                });
            }
        }
        Err(failed(path)(io::ErrorKind::ResourceBusy.into()))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Left behind, it is taken by the next.
        let _ = fs::remove_file(&self.path);
    }
}

/// Who has it.
fn held(file: &mut File) -> Error {
    let mut text = String::new();
    // What cannot be read is not known.
    let _ = file.read_to_string(&mut text);
    let holder = text.trim_end().split_once(' ').and_then(|(process, journal)| {
        let process: u32 = process.parse().ok()?;
        let lives = Path::new(&format!("/proc/{process}")).exists();
        lives.then(|| (process, PathBuf::from(journal)))
    });
    Error::Locked { holder }
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// It may not be written there, or there is no room.
fn is_nowhere(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::ENOSPC | libc::EDQUOT)
    )
}

fn failed(path: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::Journal {
        what: "lock",
        path: path.to_path_buf(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    #[test]
    fn a_lock_is_one_for_all_journals_and_leaves_no_file() {
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
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        Lock::in_directory(&directory, Path::new("/c")).unwrap();
    }

    /// As by one that has just taken it, over what a killed one left.
    #[test]
    fn a_process_that_does_not_live_does_not_have_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(NAME);
        fs::write(&path, format!("{} /a\n", u32::MAX)).unwrap();
        let holder = File::open(&path).unwrap();
        holder.lock().unwrap();
        let told = Lock::take(&path, Path::new("/b")).unwrap_err().to_string();
        assert!(
            told.starts_with("another process moves interrupts and threads already: "),
            "{told}"
        );
        drop(holder);
        Lock::take(&path, Path::new("/b")).unwrap();
    }

    #[test]
    fn while_it_is_removed_and_made_only_one_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(NAME);
        let (inside, taken) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let Ok(lock) = Lock::take(&path, Path::new("/a")) else {
                            continue;
                        };
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        taken.fetch_add(1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
        assert!(taken.into_inner() > 0);
    }
}
