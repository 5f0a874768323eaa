//! How a file is opened.

use crate::file::{APPEND, READ, WRITE};
use crate::metadata::TYPE_FILE;
use crate::path::{Last, gone_is_not_found};
use crate::pool::{Inner, Pool, bytes_of};
use crate::{Error, File, FileType, PathProblem};
use homenode_engine::fs::{Error as FsError, Ino, Inode, SetAttr};
use std::path::Path;
use std::sync::Arc;

/// How [`Pool::open`] opens a file; the flags mean what they mean in [`std::fs::OpenOptions`].
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Nothing set; permission bits 0644 for a file it makes.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o644,
        }
    }

    /// Opens for reading.
    #[must_use]
    pub const fn read(mut self, yes: bool) -> Self {
        self.read = yes;
        self
    }

    /// Opens for writing.
    #[must_use]
    pub const fn write(mut self, yes: bool) -> Self {
        self.write = yes;
        self
    }

    /// Opens for writing at the end only: the offset of a write is ignored.
    #[must_use]
    pub const fn append(mut self, yes: bool) -> Self {
        self.append = yes;
        self
    }

    /// Cuts the file to no bytes.
    #[must_use]
    pub const fn truncate(mut self, yes: bool) -> Self {
        self.truncate = yes;
        self
    }

    /// Makes the file where it is missing.
    #[must_use]
    pub const fn create(mut self, yes: bool) -> Self {
        self.create = yes;
        self
    }

    /// Makes the file, and fails with EEXIST where the name is taken.
    #[must_use]
    pub const fn create_new(mut self, yes: bool) -> Self {
        self.create_new = yes;
        self
    }

    /// Permission bits of a file it makes.
    #[must_use]
    pub const fn mode(mut self, mode: u32) -> Self {
        self.mode = mode & 0o7777;
        self
    }

    /// The access asked for; `Invalid` where the flags contradict each other, as in the standard library.
    fn access(self) -> Result<u8, FsError> {
        let makes = self.create || self.create_new;
        let writes = self.write || self.append;
        let nothing = !self.read && !writes;
        let reader_that_changes = !writes && (makes || self.truncate);
        if nothing || reader_that_changes || (self.append && self.truncate) {
            return Err(FsError::Invalid);
        }
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        Ok(bit(self.read, READ) | bit(writes, WRITE) | bit(self.append, APPEND))
    }
}

/// Times an open is tried anew because the name changed hands between its steps.
const RACES_MAX: usize = 64;

impl Pool {
    /// Opens a file.
    ///
    /// # Errors
    /// As open(2): ENOENT, EEXIST, ENOTDIR, EISDIR, ELOOP, ENAMETOOLONG; EINVAL for flags that contradict each other;
    /// EOPNOTSUPP for what is no file or directory.
    pub fn open(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File, Error> {
        let path = path.as_ref();
        self.inner
            .open(bytes_of(path), *options)
            .map_err(|source| Error::path("open", path, source))
    }

    /// Makes or empties a file and opens it for reading and writing.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn create_file(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        self.open(
            path,
            &OpenOptions::new().read(true).write(true).create(true).truncate(true),
        )
    }
}

impl Pool {
    /// Opens the file of that inode number for reading and writing, whatever names it has.
    ///
    /// # Errors
    /// ESTALE when there is no such inode (any more), EOPNOTSUPP when it is no file.
    pub fn open_inode(&self, ino: u64) -> Result<File, Error> {
        let failed = |source| Error::File {
            operation: "open",
            inode: ino,
            source,
        };
        let inode = self.inner.fs.inode(Ino(ino)).ok_or_else(|| failed(FsError::Stale))?;
        if !inode.is_file() {
            return Err(failed(FsError::NotSupported));
        }
        File::open(Arc::clone(&self.inner), inode, READ | WRITE).map_err(failed)
    }
}

impl Inner {
    fn open(self: &Arc<Self>, path: &[u8], options: OpenOptions) -> Result<File, PathProblem> {
        let access = options.access()?;
        for _ in 0..RACES_MAX {
            let (inode, made) = match self.open_once(path, options) {
                Err(PathProblem::Filesystem(FsError::Exists)) if !options.create_new => continue,
                found => found?,
            };
            let kind = FileType::of_mode(inode.mode());
            if inode.is_directory() && access & WRITE != 0 {
                return Err(FsError::IsDirectory.into());
            }
            if !matches!(kind, FileType::File | FileType::Directory) {
                return Err(FsError::NotSupported.into());
            }
            // Gone since it was found: whoever removed it may have put another in its place.
            let Ok(file) = File::open(Arc::clone(self), Arc::clone(&inode), access) else {
                continue;
            };
            if options.truncate && !made {
                let set = SetAttr {
                    size: Some(0),
                    ..SetAttr::default()
                };
                self.fs.set_attr(&inode, &set)?;
            }
            return Ok(file);
        }
        Err(FsError::NotFound.into())
    }

    /// Finds or makes the inode; true when it was made.
    fn open_once(&self, path: &[u8], options: OpenOptions) -> Result<(Arc<Inode>, bool), PathProblem> {
        let place = if options.create_new {
            self.place(path, FsError::Exists.into())?
        } else {
            match self.resolve(path, Last::Follow) {
                Err(PathProblem::Filesystem(FsError::NotFound)) if options.create => {
                    self.place_through_links(path, FsError::NotFound.into())?
                }
                found => return Ok((found?, false)),
            }
        };
        if place.slash {
            return Err(FsError::IsDirectory.into());
        }
        let new = self.new_inode(TYPE_FILE | options.mode);
        let inode = self
            .fs
            .create(&place.directory, &place.name, new)
            .map_err(gone_is_not_found)?;
        Ok((inode, true))
    }
}
