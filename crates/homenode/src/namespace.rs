//! The names in a pool: making, finding, moving and removing files, directories and links by path.

use crate::metadata::{TYPE_DIRECTORY, TYPE_MASK, epoch_ns};
use crate::path::{Last, Place, gone_is_not_found};
use crate::pool::{Pool, bytes_of};
use crate::{Error, Metadata, PathProblem};
use homenode_engine::fs::{Error as FsError, Inode, RenameMode, SetAttr, SetTime, StatFs, XattrMode};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

const PERMISSIONS_MASK: u32 = 0o7777;

/// Paths start at the pool's root, with or without a leading slash. Permissions are kept, not checked: a pool is its
/// process's own.
impl Pool {
    /// Returns the attributes of the file that `path` leads to.
    ///
    /// # Errors
    /// As stat(2).
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        let path = path.as_ref();
        self.on("look up", path, Last::Follow, |pool, inode| {
            Ok(Metadata(pool.inner.fs.attr(inode)))
        })
    }

    /// Returns the attributes of the file that `path` names; a symbolic link is not followed.
    ///
    /// # Errors
    /// As lstat(2).
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        let path = path.as_ref();
        self.on("look up", path, Last::Keep, |pool, inode| {
            Ok(Metadata(pool.inner.fs.attr(inode)))
        })
    }

    /// Makes a directory, permission bits 0755.
    ///
    /// # Errors
    /// As mkdir(2).
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        self.at("make the directory", path, FsError::Exists.into(), |pool, place| {
            let new = pool.inner.new_inode(TYPE_DIRECTORY | 0o755);
            pool.inner.fs.create(&place.directory, &place.name, new).map(drop)
        })
    }

    /// Makes a directory and those above it that are missing. One that is there already is fine.
    ///
    /// # Errors
    /// As mkdir(2).
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let mut so_far = PathBuf::new();
        for component in path.components() {
            so_far.push(component);
            match self.create_dir(&so_far) {
                Err(error) if error.errno() != FsError::Exists.errno() => return Err(error),
                Err(_) | Ok(()) => {}
            }
        }
        self.on("make the directory", path, Last::Follow, |_, inode| {
            if inode.is_directory() {
                Ok(())
            } else {
                Err(FsError::Exists)
            }
        })
    }

    /// Removes a name. The file goes with its last name and its last opener.
    ///
    /// # Errors
    /// As unlink(2).
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        self.at("remove", path, FsError::IsDirectory.into(), |pool, place| {
            if place.slash && !pool.inner.fs.lookup(&place.directory, &place.name)?.is_directory() {
                return Err(FsError::NotDirectory);
            }
            pool.inner.fs.unlink(&place.directory, &place.name)
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As rmdir(2).
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        self.at("remove the directory", path, FsError::Invalid.into(), |pool, place| {
            pool.inner.fs.rmdir(&place.directory, &place.name)
        })
    }

    /// Renames; what `to` named before is replaced.
    ///
    /// # Errors
    /// As rename(2).
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        self.rename_as(from.as_ref(), to.as_ref(), RenameMode::Replace)
    }

    /// Renames, and fails with EEXIST where `to` names something.
    ///
    /// # Errors
    /// As renameat2(2) with RENAME_NOREPLACE.
    pub fn rename_new(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        self.rename_as(from.as_ref(), to.as_ref(), RenameMode::NoReplace)
    }

    /// Exchanges what the two paths name.
    ///
    /// # Errors
    /// As renameat2(2) with RENAME_EXCHANGE.
    pub fn exchange(&self, one: impl AsRef<Path>, other: impl AsRef<Path>) -> Result<(), Error> {
        self.rename_as(one.as_ref(), other.as_ref(), RenameMode::Exchange)
    }

    fn rename_as(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<(), Error> {
        self.at("rename", from, PathProblem::Root, |pool, source| {
            let inode = pool.inner.fs.lookup(&source.directory, &source.name)?;
            if source.slash && !inode.is_directory() {
                Err(FsError::NotDirectory)
            } else {
                Ok(())
            }
        })?;
        let source = self
            .inner
            .place(bytes_of(from), PathProblem::Root)
            .map_err(|e| Error::path("rename", from, e))?;
        self.at("rename to", to, PathProblem::Root, |pool, target| {
            let fs = &pool.inner.fs;
            if target.slash && !fs.lookup(&source.directory, &source.name)?.is_directory() {
                return Err(FsError::NotDirectory);
            }
            fs.rename(&source.directory, &source.name, &target.directory, &target.name, mode)
        })
    }

    /// Makes a symbolic link at `link` that says `target`.
    ///
    /// # Errors
    /// As symlink(2).
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<(), Error> {
        let (target, link) = (target.as_ref(), link.as_ref());
        self.at("make the symbolic link", link, FsError::Exists.into(), |pool, place| {
            if place.slash {
                return Err(FsError::NotFound);
            }
            let owner = pool.inner.owner;
            let made = pool
                .inner
                .fs
                .symlink(&place.directory, &place.name, bytes_of(target), owner.uid, owner.gid);
            made.map(drop)
        })
    }

    /// Gives what `existing` names (a symbolic link itself) a second name.
    ///
    /// # Errors
    /// As link(2).
    pub fn hard_link(&self, existing: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<(), Error> {
        let (existing, link) = (existing.as_ref(), link.as_ref());
        let inode = self.on("link", existing, Last::Keep, |_, inode| Ok(Arc::clone(inode)))?;
        self.at("make the link", link, FsError::Exists.into(), |pool, place| {
            if place.slash {
                return Err(FsError::NotFound);
            }
            pool.inner.fs.link(&inode, &place.directory, &place.name)
        })
    }

    /// Returns the target of the symbolic link `path`.
    ///
    /// # Errors
    /// As readlink(2).
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf, Error> {
        let path = path.as_ref();
        let target = self.on("read the link", path, Last::Keep, |pool, inode| {
            pool.inner.fs.readlink(inode)
        })?;
        Ok(PathBuf::from(OsString::from_vec(target.into_vec())))
    }

    /// Sets the permission bits of what `path` leads to.
    ///
    /// # Errors
    /// As chmod(2).
    pub fn set_permissions(&self, path: impl AsRef<Path>, mode: u32) -> Result<(), Error> {
        let path = path.as_ref();
        self.on("change the mode of", path, Last::Follow, |pool, inode| {
            let mode = inode.mode() & TYPE_MASK | mode & PERMISSIONS_MASK;
            pool.set(
                inode,
                &SetAttr {
                    mode: Some(mode),
                    ..SetAttr::default()
                },
            )
        })
    }

    /// Sets owner and group of what `path` names (a symbolic link itself); `None` leaves it.
    ///
    /// # Errors
    /// As lchown(2).
    pub fn set_owner(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<(), Error> {
        let path = path.as_ref();
        self.on("change the owner of", path, Last::Keep, |pool, inode| {
            pool.set(
                inode,
                &SetAttr {
                    uid,
                    gid,
                    ..SetAttr::default()
                },
            )
        })
    }

    /// Sets the times of what `path` leads to; `None` leaves one.
    ///
    /// # Errors
    /// As utimensat(2).
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        accessed: Option<SystemTime>,
        modified: Option<SystemTime>,
    ) -> Result<(), Error> {
        let path = path.as_ref();
        let at = |time: Option<SystemTime>| time.map(|time| SetTime::At(epoch_ns(time)));
        let set = SetAttr {
            atime: at(accessed),
            mtime: at(modified),
            ..SetAttr::default()
        };
        self.on("change the times of", path, Last::Follow, |pool, inode| {
            pool.set(inode, &set)
        })
    }

    /// The value of an extended attribute. `user.homenode.map` tells the bytes per node, `user.homenode.policy` the
    /// placement policy.
    ///
    /// # Errors
    /// As getxattr(2).
    pub fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Vec<u8>, Error> {
        let (path, name) = (path.as_ref(), name.as_ref());
        self.on("read an attribute of", path, Last::Follow, |pool, inode| {
            pool.inner.fs.xattr(inode, name.as_bytes())
        })
    }

    /// Sets an extended attribute, whether it is there or not.
    ///
    /// # Errors
    /// As setxattr(2).
    pub fn set_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>, value: &[u8]) -> Result<(), Error> {
        let (path, name) = (path.as_ref(), name.as_ref());
        self.on("set an attribute of", path, Last::Follow, |pool, inode| {
            pool.inner
                .fs
                .set_xattr(inode, name.as_bytes(), value, XattrMode::Either, false)
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As removexattr(2).
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<(), Error> {
        let (path, name) = (path.as_ref(), name.as_ref());
        self.on("remove an attribute of", path, Last::Follow, |pool, inode| {
            pool.inner.fs.remove_xattr(inode, name.as_bytes())
        })
    }

    /// Names of the extended attributes.
    ///
    /// # Errors
    /// As listxattr(2).
    pub fn xattr_names(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>, Error> {
        let path = path.as_ref();
        let names = self.on("list the attributes of", path, Last::Follow, |pool, inode| {
            Ok(pool.inner.fs.xattr_names(inode))
        })?;
        let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| OsStr::from_bytes(name).to_owned()).collect())
    }

    /// Space and inodes of the pool.
    #[must_use]
    pub fn statfs(&self) -> StatFs {
        self.inner.fs.statfs()
    }

    fn set(&self, inode: &Arc<Inode>, set: &SetAttr) -> Result<(), FsError> {
        self.inner.fs.set_attr(inode, set).map(drop)
    }

    /// Does something with the inode a path names.
    pub(crate) fn on<R>(
        &self,
        operation: &'static str,
        path: &Path,
        last: Last,
        act: impl FnOnce(&Self, &Arc<Inode>) -> Result<R, FsError>,
    ) -> Result<R, Error> {
        let found = self.inner.resolve(bytes_of(path), last);
        let done = found.and_then(|inode| Ok(act(self, &inode).map_err(gone_is_not_found)?));
        done.map_err(|source| Error::path(operation, path, source))
    }

    /// Does something at the place a path names.
    fn at<R>(
        &self,
        operation: &'static str,
        path: &Path,
        unnamed: PathProblem,
        act: impl FnOnce(&Self, &Place) -> Result<R, FsError>,
    ) -> Result<R, Error> {
        let found = self.inner.place(bytes_of(path), unnamed);
        let done = found.and_then(|place| act(self, &place).map_err(|e| PathProblem::from(gone_is_not_found(e))));
        done.map_err(|source| Error::path(operation, path, source))
    }
}
