//! Files of contestants: in a pool of this process, or in a directory.

use crate::error::{During, Error};
use homenode::{OpenOptions, Pool};
use rustix::fs::{Advice, fadvise};
use rustix::io::{pread, pwrite};
use std::path::PathBuf;
use std::{fs, io};

/// Place of a contestant's files.
#[derive(Debug)]
pub(crate) enum Place {
    Pool(Pool),
    Directory(PathBuf),
}

/// A file of a contestant's, open for reading and writing.
#[derive(Debug)]
pub(crate) enum Open {
    Pool(homenode::File),
    Directory(fs::File),
}

impl Place {
    /// Makes a file anew, in place of one of this name.
    pub(crate) fn create(&self, name: &str) -> Result<Open, Error> {
        self.open_or_create(name, true)
    }

    /// Opens a file that is there.
    pub(crate) fn open(&self, name: &str) -> Result<Open, Error> {
        self.open_or_create(name, false)
    }

    fn open_or_create(&self, name: &str, is_new: bool) -> Result<Open, Error> {
        match self {
            Self::Pool(pool) => {
                let options = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(is_new)
                    .truncate(is_new);
                let file = pool.open(name, &options).map(Open::Pool);
                file.map_err(Error::library("opening a file"))
            }
            Self::Directory(directory) => {
                let path = directory.join(name);
                let mut options = fs::File::options();
                let file = options
                    .read(true)
                    .write(true)
                    .create(is_new)
                    .truncate(is_new)
                    .open(&path);
                file.map(Open::Directory)
                    .during(format_args!("opening {}", path.display()))
            }
        }
    }

    /// Gives a file another name, in place of one that has it.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        match self {
            Self::Pool(pool) => pool.rename(from, to).map_err(Error::library("renaming a file")),
            Self::Directory(directory) => fs::rename(directory.join(from), directory.join(to))
                .during(format_args!("renaming in {}", directory.display())),
        }
    }
}

impl Open {
    /// Fills `to`.
    #[inline(always)]
    pub(crate) fn read(&self, to: &mut [u8], offset: u64) -> Result<(), Error> {
        let wanted = to.len();
        let done = match self {
            Self::Pool(file) => file.read_at(to, offset).map_err(Error::library("reading"))?,
            Self::Directory(file) => pread(file, to, offset).during("reading")?,
        };
        whole(done, wanted).during("reading")
    }

    /// Writes all of `bytes`.
    #[inline(always)]
    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        let done = match self {
            Self::Pool(file) => file.write_at(bytes, offset).map_err(Error::library("writing"))?,
            Self::Directory(file) => pwrite(file, bytes, offset).during("writing")?,
        };
        whole(done, bytes.len()).during("writing")
    }

    /// Writes `bytes` bytes, all of them `byte`, 1 MiB at a time.
    pub(crate) fn fill(&self, byte: u8, bytes: usize) -> Result<(), Error> {
        let piece = vec![byte; 1 << 20];
        (0..bytes)
            .step_by(piece.len())
            .try_for_each(|at| self.write(&piece, at as u64))
    }

    /// Cuts or extends the file.
    pub(crate) fn set_len(&self, bytes: u64) -> Result<(), Error> {
        match self {
            Self::Pool(file) => file.set_len(bytes).map_err(Error::library("setting a length")),
            Self::Directory(file) => file.set_len(bytes).during("setting a length"),
        }
    }

    /// Empties the page cache of a file of the kernel's; `reads_randomly` turns its reading ahead off.
    pub(crate) fn make_cold(&self, reads_randomly: bool) -> Result<(), Error> {
        let Self::Directory(file) = self else { return Ok(()) };
        let advice = if reads_randomly { Advice::Random } else { Advice::Normal };
        fadvise(file, 0, None, Advice::DontNeed)
            .and_then(|()| fadvise(file, 0, None, advice))
            .during("emptying the page cache")
    }

    /// fdatasync(2).
    pub(crate) fn sync_data(&self) -> Result<(), Error> {
        match self {
            Self::Pool(_) => self.sync(),
            Self::Directory(file) => file.sync_data().during("writing back a file"),
        }
    }

    /// fsync(2).
    pub(crate) fn sync(&self) -> Result<(), Error> {
        match self {
            Self::Pool(file) => file.sync().map_err(Error::library("making a file durable")),
            Self::Directory(file) => file.sync_all().during("making a file durable"),
        }
    }
}

/// A transfer that stopped early would make the next figure look good.
#[inline]
pub(crate) fn whole(done: usize, wanted: usize) -> io::Result<()> {
    if done == wanted {
        Ok(())
    } else {
        Err(stopped_early(done, wanted))
    }
}

/// Apart, so that [`whole`] costs no contestant anything.
#[cold]
fn stopped_early(done: usize, wanted: usize) -> io::Error {
    io::Error::other(format!("only {done} of {wanted} bytes were transferred"))
}
