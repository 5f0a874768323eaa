//! Where a journal's bytes are: a file that only one program has at a time (`lock`).

use super::error::Error;
use super::lock::Lock;
use rustix::process::geteuid;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

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
    /// They cannot be written. A part of them may be there, though that is tried to be taken back.
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

/// A file, and beside it `FILE.lock`, which stays.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    _lock: Option<Lock>,
    _machine: Option<Lock>,
}

impl Disk {
    /// Takes a file, which need not be there; its directory is made.
    ///
    /// # Errors
    /// Another program has it, or the lock cannot be made.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::locked(path, None)
    }

    /// Takes a file as [`Disk::open`] does, for the only program that acts on this machine.
    ///
    /// # Errors
    /// Another program acts on this machine, also with another file; or the lock cannot be made.
    pub fn open_alone(path: &Path) -> Result<Self, Error> {
        Self::locked(path, Lock::of_machine(path)?)
    }

    fn locked(path: &Path, machine: Option<Lock>) -> Result<Self, Error> {
        let error = |source| Error::Journal {
            what: "lock",
            path: path.to_path_buf(),
            source,
        };
        // A link neither: who can write to the directory could point it anywhere.
        if fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
            return Err(error(io::Error::other("it is no regular file")));
        }
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent).map_err(error)?;
        }
        Ok(Self {
            path: path.to_path_buf(),
            _lock: Lock::of_journal(path, machine.is_some())?,
            _machine: machine,
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
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            let mut options = OpenOptions::new();
            let mut file = options.read(true).custom_flags(libc::O_NOFOLLOW).open(&self.path)?;
            check_owner(&file)?;
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("read")(error)),
        }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let write = || {
            let mut options = OpenOptions::new();
            let mut file = options.append(true).custom_flags(libc::O_NOFOLLOW).open(&self.path)?;
            check_owner(&file)?;
            let before = file.metadata()?.len();
            let written = file.write_all(bytes).and_then(|()| file.sync_data());
            // What was not written whole is not done, and a part of it would look like a kill.
            written.inspect_err(|_| drop(file.set_len(before)))
        };
        write().map_err(self.failed("write"))
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let new = beside(&self.path, NEW);
        let write = || {
            // Never through a link: the directory may be one that others can write.
            if let Err(error) = fs::remove_file(&new)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(error);
            }
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&new, &self.path)?;
            self.sync_directory()
        };
        write().map_err(|error| {
            // A part of it, which takes up room.
            let _ = fs::remove_file(&new);
            self.failed("write")(error)
        })
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

/// Refuses a journal of another user: its writer chose the values that are restored, and the files in /sys that they are written to.
fn check_owner(file: &File) -> io::Result<()> {
    match [0, geteuid().as_raw()].contains(&file.metadata()?.uid()) {
        true => Ok(()),
        false => Err(io::Error::other("it belongs to another user: name another file")),
    }
}

pub(super) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}
