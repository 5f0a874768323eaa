//! Operations of a contestant of the metadata bench, and their implementation by the library.

use crate::error::Error;
use homenode::{OpenOptions, Pool, PoolOptions, Size};

/// A directory with files numbered from 0. A file is created under its first name and renamed to its second.
pub(super) trait Namespace {
    /// Name in tables and JSON.
    fn name(&self) -> &'static str;
    /// Creates the file, which does not exist, under its first name and closes it.
    fn create(&mut self, file: usize) -> Result<(), Error>;
    /// Reads the attributes of the file under its first name.
    fn stat(&mut self, file: usize) -> Result<(), Error>;
    /// Gives the file its second name.
    fn rename(&mut self, file: usize) -> Result<(), Error>;
    /// Lists the directory; gives the number of entries besides `.` and `..`.
    fn readdir(&mut self) -> Result<usize, Error>;
    /// Removes the file under its second name.
    fn unlink(&mut self, file: usize) -> Result<(), Error>;
}

/// The first names of all files, `prefix` before each, then the second names. Both are eight bytes.
pub(super) fn names(files: usize, prefix: &str) -> [Vec<String>; 2] {
    ["f", "g"].map(|letter| (0..files).map(|file| format!("{prefix}{letter}{file:07}")).collect())
}

/// A pool of this process.
#[derive(Debug)]
pub(super) struct Library {
    pool: Pool,
    names: [Vec<String>; 2],
}

impl Library {
    pub(super) fn new(files: usize) -> Result<Self, Error> {
        Ok(Self {
            pool: small_pool(files)?,
            names: names(files, "/"),
        })
    }
}

/// A pool for so many files without data: little for bytes, and what they may need for names and attributes.
pub(super) fn small_pool(files: usize) -> Result<Pool, Error> {
    let options = PoolOptions::new()
        .size_per_node(Size::Bytes(64 << 20))
        .metadata(Size::Bytes(2048 * files as u64));
    Pool::create(&options).map_err(Error::library("creating a pool"))
}

impl Namespace for Library {
    fn name(&self) -> &'static str {
        crate::report::HOMENODE
    }

    fn create(&mut self, file: usize) -> Result<(), Error> {
        let new = OpenOptions::new().write(true).create_new(true);
        self.pool
            .open(&self.names[0][file], &new)
            .map(drop)
            .map_err(Error::library("creating a file"))
    }

    fn stat(&mut self, file: usize) -> Result<(), Error> {
        let metadata = self
            .pool
            .symlink_metadata(&self.names[0][file])
            .map_err(Error::library("examining a file"))?;
        std::hint::black_box(metadata);
        Ok(())
    }

    fn rename(&mut self, file: usize) -> Result<(), Error> {
        self.pool
            .rename(&self.names[0][file], &self.names[1][file])
            .map_err(Error::library("renaming a file"))
    }

    fn readdir(&mut self) -> Result<usize, Error> {
        let mut listed = 0;
        for entry in self.pool.read_dir("/").map_err(Error::library("listing a directory"))? {
            std::hint::black_box(entry.map_err(Error::library("listing a directory"))?);
            listed += 1;
        }
        Ok(listed)
    }

    fn unlink(&mut self, file: usize) -> Result<(), Error> {
        self.pool
            .remove_file(&self.names[1][file])
            .map_err(Error::library("removing a file"))
    }
}
