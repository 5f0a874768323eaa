//! Listing a directory.

use crate::path::Last;
use crate::pool::{Inner, Pool};
use crate::{Error, FileType, PathProblem};
use homenode_engine::fs::{Error as FsError, Inode};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Entries taken in one visit of the directory: its lock is held that long.
const BATCH_ENTRIES: usize = 256;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    name: OsString,
    ino: u64,
    file_type: FileType,
}

impl DirEntry {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// The inode number of what it names.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// Returns the kind of the file that the entry names.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.file_type
    }
}

/// The entries of a directory, without `.` and `..`. An entry that is there all the time is given exactly once, whatever
/// comes and goes beside it.
pub struct ReadDir {
    pool: Arc<Inner>,
    directory: Arc<Inode>,
    path: PathBuf,
    batch: VecDeque<DirEntry>,
    next: u64,
    end: bool,
}

impl Pool {
    /// Lists a directory.
    ///
    /// # Errors
    /// As opendir(3); an entry is an error only when the directory cannot be read on.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir, Error> {
        let path = path.as_ref();
        let directory = self.on("list", path, Last::Follow, |pool, inode| {
            if !inode.is_directory() {
                return Err(FsError::NotDirectory);
            }
            pool.inner.fs.keep(inode)?;
            Ok(Arc::clone(inode))
        })?;
        let pool = Arc::clone(&self.inner);
        Ok(ReadDir {
            pool,
            directory,
            path: path.to_owned(),
            batch: VecDeque::new(),
            next: 0,
            end: false,
        })
    }
}

impl ReadDir {
    fn fill(&mut self) -> Result<(), FsError> {
        let (batch, next) = (&mut self.batch, &mut self.next);
        let mut taken = 0;
        let mut end = true;
        self.pool.fs.readdir(&self.directory, *next, &mut |entry| {
            if taken == BATCH_ENTRIES {
                end = false;
                return false;
            }
            taken += 1;
            *next = entry.next;
            if entry.name != b"." && entry.name != b".." {
                let name = OsStr::from_bytes(entry.name).to_owned();
                let file_type = FileType::of_mode(entry.inode.mode());
                batch.push_back(DirEntry {
                    name,
                    ino: entry.inode.ino().0,
                    file_type,
                });
            }
            true
        })?;
        self.end = end;
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.batch.is_empty() && !self.end {
            if let Err(error) = self.fill() {
                self.end = true;
                return Some(Err(Error::path("list", &self.path, PathProblem::Filesystem(error))));
            }
        }
        self.batch.pop_front().map(Ok)
    }
}

impl Drop for ReadDir {
    fn drop(&mut self) {
        self.pool.fs.unkeep(&self.directory);
    }
}

impl std::fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadDir")
            .field("path", &self.path)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}
