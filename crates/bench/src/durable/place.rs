//! Contestants of the durable bench: a pool of this process, or a directory.

use crate::error::Error;
use homenode::{OpenOptions, Pool};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::{fs, io};

/// A contestant.
#[derive(Debug)]
pub(crate) enum Place {
    Pool(Pool),
    Directory(PathBuf),
}

/// A file of a contestant's, open for writing.
#[derive(Debug)]
pub(crate) enum Open {
    Pool(homenode::File),
    Directory(fs::File),
}

impl Place {
    /// Makes a file anew, in place of one of this name.
    pub(crate) fn create(&self, name: &str) -> Result<Open, Error> {
        match self {
            Self::Pool(pool) => {
                let options = OpenOptions::new().read(true).write(true).create(true).truncate(true);
                pool.open(name, &options)
                    .map(Open::Pool)
                    .map_err(Error::library("creating a file"))
            }
            Self::Directory(directory) => {
                let path = directory.join(name);
                let file = fs::File::options()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .open(&path);
                file.map(Open::Directory)
                    .map_err(|error| Error::system(format!("creating {}", path.display()), error))
            }
        }
    }

    /// Opens a file that is there.
    pub(crate) fn open(&self, name: &str) -> Result<Open, Error> {
        match self {
            Self::Pool(pool) => {
                let options = OpenOptions::new().read(true).write(true);
                pool.open(name, &options)
                    .map(Open::Pool)
                    .map_err(Error::library("opening a file"))
            }
            Self::Directory(directory) => {
                let path = directory.join(name);
                let file = fs::File::options().read(true).write(true).open(&path);
                file.map(Open::Directory)
                    .map_err(|error| Error::system(format!("opening {}", path.display()), error))
            }
        }
    }

    /// Gives a file another name, in place of one that has it.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        match self {
            Self::Pool(pool) => pool.rename(from, to).map_err(Error::library("renaming a file")),
            Self::Directory(directory) => fs::rename(directory.join(from), directory.join(to))
                .map_err(|error| Error::system(format!("renaming in {}", directory.display()), error)),
        }
    }
}

impl Open {
    /// Fills `to`.
    #[inline(always)]
    pub(crate) fn read(&self, to: &mut [u8], offset: u64) -> Result<(), Error> {
        match self {
            Self::Pool(file) => match file.read_at(to, offset).map_err(Error::library("reading"))? {
                bytes if bytes == to.len() => Ok(()),
                bytes => Err(Error::system(
                    "reading",
                    io::Error::other(format!("only {bytes} bytes")),
                )),
            },
            Self::Directory(file) => file
                .read_exact_at(to, offset)
                .map_err(|error| Error::system("reading", error)),
        }
    }

    #[inline(always)]
    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        match self {
            Self::Pool(file) => match file.write_at(bytes, offset).map_err(Error::library("writing"))? {
                written if written == bytes.len() => Ok(()),
                written => Err(Error::system(
                    "writing",
                    io::Error::other(format!("only {written} bytes")),
                )),
            },
            Self::Directory(file) => file
                .write_all_at(bytes, offset)
                .map_err(|error| Error::system("writing", error)),
        }
    }

    /// fsync(2).
    pub(crate) fn sync(&self) -> Result<(), Error> {
        match self {
            Self::Pool(file) => file.sync().map_err(Error::library("making a file durable")),
            Self::Directory(file) => file
                .sync_all()
                .map_err(|error| Error::system("making a file durable", error)),
        }
    }
}
