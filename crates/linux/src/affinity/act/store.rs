//! Where a journal's bytes are: a file that only one program has at a time.

use super::error::Error;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const LOCK: &str = ".lock";
const NEW: &str = ".new";

/// Bytes that are durable when a call returns.
pub trait Store {
    /// For messages.
    fn path(&self) -> &Path;

    /// All bytes; none when there are none.
    ///
    /// # Errors
    /// They cannot be read.
    fn load(&mut self) -> Result<Option<Vec<u8>>, Error>;

    /// Puts bytes behind those that are there. Of what was cut, a part is there.
    ///
    /// # Errors
    /// They cannot be written; a part of them may be there.
    fn append(&mut self, bytes: &[u8]) -> Result<(), Error>;

    /// Puts these bytes in the place of all others, or leaves the others.
    ///
    /// # Errors
    /// They cannot be written.
    fn replace(&mut self, bytes: &[u8]) -> Result<(), Error>;

    /// Leaves none.
    ///
    /// # Errors
    /// They cannot be removed.
    fn remove(&mut self) -> Result<(), Error>;
}

/// A file, and beside it `FILE.lock`, which says who has it and stays.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    /// Unlocked when it is closed, also when the process dies.
    _lock: File,
}

impl Disk {
    /// Takes a file, which need not be there; its directory is made.
    ///
    /// # Errors
    /// Another program has it, or the lock cannot be made.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let error = |source| Error::Journal {
            what: "lock",
            path: path.to_path_buf(),
            source,
        };
        if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            return Err(error(io::Error::other("it is no regular file")));
        }
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent).map_err(error)?;
        }
        let mut options = OpenOptions::new();
        // Whoever can open it can lock it.
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut lock = options.open(beside(path, LOCK)).map_err(error)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut process = String::new();
                let read = lock.read_to_string(&mut process);
                let told = read.is_ok() && !process.trim().is_empty();
                return Err(Error::Locked {
                    path: path.to_path_buf(),
                    process: if told { process.trim() } else { "(unknown)" }.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(error(source)),
        }
        lock.set_len(0).map_err(error)?;
        writeln!(lock, "{}", std::process::id()).map_err(error)?;
        Ok(Self {
            path: path.to_path_buf(),
            _lock: lock,
        })
    }

    fn failed(&self, what: &'static str) -> impl Fn(io::Error) -> Error {
        let path = self.path.clone();
        move |source| Error::Journal {
            what,
            path: path.clone(),
            source,
        }
    }

    /// Makes names in its directory durable.
    fn sync_directory(&self) -> io::Result<()> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Store for Disk {
    fn path(&self) -> &Path {
        &self.path
    }

    fn load(&mut self) -> Result<Option<Vec<u8>>, Error> {
        match fs::read(&self.path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("read")(error)),
        }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let write = || {
            let mut file = OpenOptions::new().append(true).open(&self.path)?;
            file.write_all(bytes)?;
            file.sync_data()
        };
        write().map_err(self.failed("write"))
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let new = beside(&self.path, NEW);
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&new, &self.path)?;
            self.sync_directory()
        };
        write().map_err(self.failed("write"))
    }

    fn remove(&mut self) -> Result<(), Error> {
        let remove = |path: &Path| match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            removed => removed.map(|()| true),
        };
        let remove_all = || {
            let had = remove(&self.path)?;
            // One that was being written when a program was killed.
            let had_new = remove(&beside(&self.path, NEW))?;
            if had || had_new { self.sync_directory() } else { Ok(()) }
        };
        remove_all().map_err(self.failed("remove"))
    }
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}
