//! Names: lookup, create, link, unlink, rename, readdir.

use super::attr::{DIRECTORY, PERMISSIONS, REGULAR, SET_GID, SYMLINK, TYPE_MASK};
use super::block_file::BlockFile;
use super::directory::{Directory, check_name};
use super::inode::Body;
use super::{Error, Fs, Ino, Inode, NewInode, Result};
use crate::{Clock, Memory};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A directory entry while reading.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// What it names.
    pub inode: &'a Arc<Inode>,
    /// Offset to go on from.
    pub next: u64,
}

/// Longest target of a symbolic link, in bytes (PATH_MAX less the NUL).
const TARGET_BYTES_MAX: usize = 4095;
/// Links an inode can have.
const LINKS_MAX: u32 = i32::MAX.unsigned_abs();

impl<M: Memory, C: Clock> Fs<M, C> {
    /// The entry `name` of `dir`; `.` and `..` too. Not pinned.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NameTooLong`].
    pub fn lookup(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Arc<Inode>> {
        let directory = dir.directory()?;
        match name {
            b"." => Ok(Arc::clone(dir)),
            b".." => self.table.find(directory.parent()).ok_or(Error::NotFound),
            _ if name.len() > super::directory::NAME_BYTES_MAX => Err(Error::NameTooLong),
            _ => directory.entries.read().find(name).cloned().ok_or(Error::NotFound),
        }
    }

    /// Makes anything but a symbolic link. Not pinned.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotFound`] when `dir` is removed, or the name is not one.
    pub fn create(&self, dir: &Arc<Inode>, name: &[u8], new: NewInode) -> Result<Arc<Inode>> {
        let body = match new.mode & TYPE_MASK {
            REGULAR | 0 => Body::File(BlockFile::default()),
            DIRECTORY => Body::Directory(Box::new(Directory::new(dir.ino))),
            SYMLINK => return Err(Error::Invalid),
            _ => Body::Special,
        };
        check_name(name)?;
        // Before an inode is made for nothing.
        if dir.directory()?.entries.read().find(name).is_some() {
            return Err(Error::Exists);
        }
        let inode = self.make(dir, new, body)?;
        self.enter_name(dir, name, &inode)?;
        Ok(inode)
    }

    /// Makes a symbolic link to `target`. Not pinned.
    ///
    /// # Errors
    /// As [`Fs::create`]; [`Error::NameTooLong`] for the target.
    pub fn symlink(&self, dir: &Arc<Inode>, name: &[u8], target: &[u8], uid: u32, gid: u32) -> Result<Arc<Inode>> {
        check_name(name)?;
        if target.len() > TARGET_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        let new = NewInode {
            mode: SYMLINK | 0o777,
            umask: 0,
            uid,
            gid,
            rdev: 0,
        };
        let inode = self.make(dir, new, Body::Symlink(target.into()))?;
        self.enter_name(dir, name, &inode)?;
        Ok(inode)
    }

    /// Makes an unnamed file (O_TMPFILE), pinned once.
    ///
    /// # Errors
    /// [`Error::NotDirectory`].
    pub fn tmpfile(&self, dir: &Arc<Inode>, new: NewInode) -> Result<Arc<Inode>> {
        dir.directory()?;
        let inode = self.make(dir, new, Body::File(BlockFile::default()))?;
        self.change_life(&inode, |life| {
            life.links = 0;
            life.pins = 1;
        });
        Ok(inode)
    }

    /// Another name for `inode`.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for a directory, [`Error::Exists`], [`Error::TooManyLinks`], [`Error::NotFound`] when it is
    /// gone.
    pub fn link(&self, inode: &Arc<Inode>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        check_name(name)?;
        if inode.is_directory() {
            return Err(Error::NotPermitted);
        }
        let mut entries = dir.directory()?.entries.write();
        if entries.removed {
            return Err(Error::NotFound);
        }
        if entries.find(name).is_some() {
            return Err(Error::Exists);
        }
        self.change_life(inode, |life| {
            if life.evicted {
                return Err(Error::NotFound);
            }
            if life.links >= LINKS_MAX {
                return Err(Error::TooManyLinks);
            }
            entries.insert(name, Arc::clone(inode))?;
            life.links += 1;
            Ok(())
        })?;
        drop(entries);
        let now_ns = self.now_ns();
        inode.touch_changed(now_ns);
        dir.touch_modified(now_ns);
        Ok(())
    }

    /// Removes a name that is not a directory's.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`].
    pub fn unlink(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        let inode = {
            let mut entries = dir.directory()?.entries.write();
            if entries.find(name).ok_or(Error::NotFound)?.is_directory() {
                return Err(Error::IsDirectory);
            }
            entries.remove(name).expect("found under the same lock")
        };
        let now_ns = self.now_ns();
        dir.touch_modified(now_ns);
        inode.touch_changed(now_ns);
        self.change_life(&inode, |life| life.links -= 1);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NotEmpty`], [`Error::Invalid`] for `.`.
    pub fn rmdir(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        match name {
            b"." => return Err(Error::Invalid),
            b".." => return Err(Error::NotEmpty),
            _ => {}
        }
        let inode = {
            let mut entries = dir.directory()?.entries.write();
            mark_removed(entries.find(name).ok_or(Error::NotFound)?)?;
            entries.remove(name).expect("found under the same lock")
        };
        self.directory_gone(dir, &inode);
        Ok(())
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is none.
    pub fn readlink(&self, inode: &Inode) -> Result<Box<[u8]>> {
        match &inode.body {
            Body::Symlink(target) => {
                inode.touch_accessed(true, || self.now_ns());
                Ok(target.clone())
            }
            _ => Err(Error::Invalid),
        }
    }

    /// Calls `each` for the entries from offset `from` on (0: the start; `.` and `..` included) until it returns false (that
    /// entry counts as not taken) or the end. Offsets stay valid while entries come and go.
    ///
    /// # Errors
    /// [`Error::NotDirectory`].
    pub fn readdir(&self, dir: &Arc<Inode>, from: u64, each: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let directory = dir.directory()?;
        dir.touch_accessed(true, || self.now_ns());
        if from == 0
            && !each(DirEntry {
                name: b".",
                inode: dir,
                next: 1,
            })
        {
            return Ok(());
        }
        if from <= 1 {
            let parent = self.table.find(directory.parent()).unwrap_or_else(|| Arc::clone(dir));
            if !each(DirEntry {
                name: b"..",
                inode: &parent,
                next: 2,
            }) {
                return Ok(());
            }
        }
        let entries = directory.entries.read();
        let mut entries = entries.from(from.max(2));
        // Stops at the first entry that is not taken.
        let _ = entries.all(|(entry, next)| {
            each(DirEntry {
                name: &entry.name,
                inode: &entry.inode,
                next,
            })
        });
        Ok(())
    }

    /// A new inode that inherits what `dir` hands down.
    fn make(&self, dir: &Inode, new: NewInode, body: Body) -> Result<Arc<Inode>> {
        let kind = if new.mode & TYPE_MASK == 0 {
            REGULAR
        } else {
            new.mode & TYPE_MASK
        };
        let default = if kind == SYMLINK { None } else { Self::default_list(dir) };
        let (access, mode) = match &default {
            Some(default) => {
                let (access, mode) = default.inherit(new.mode & PERMISSIONS);
                (Some(access), mode)
            }
            None => (None, new.mode & PERMISSIONS & !new.umask),
        };
        let (mut mode, mut gid) = (kind | mode, new.gid);
        if dir.mode() & SET_GID != 0 {
            gid = dir.gid.load(Ordering::Relaxed);
            if kind == DIRECTORY {
                mode |= SET_GID;
            }
        }
        let inode = self.table.add(NewInode { mode, gid, ..new }, body, self.now_ns())?;
        // Others have no data, and may have no `user.` attributes: it would be listed and could not be read.
        if matches!(kind, REGULAR | DIRECTORY) {
            inode.policy.store(dir.policy.load());
        }
        if kind == DIRECTORY {
            inode.life.lock().links = 2;
        }
        if let Some(access) = access {
            Self::put_inherited(&inode, &access, default.as_ref().filter(|_| kind == DIRECTORY))?;
        }
        Ok(inode)
    }

    /// Puts a new inode's first name into `dir`; evicts it again when that fails.
    fn enter_name(&self, dir: &Arc<Inode>, name: &[u8], inode: &Arc<Inode>) -> Result<()> {
        let entered = dir.directory().and_then(|directory| {
            let mut entries = directory.entries.write();
            if entries.removed {
                Err(Error::NotFound)
            } else if entries.find(name).is_some() {
                Err(Error::Exists)
            } else {
                entries.insert(name, Arc::clone(inode))
            }
        });
        if let Err(error) = entered {
            self.change_life(inode, |life| life.links = 0);
            return Err(error);
        }
        if inode.is_directory() {
            dir.life.lock().links += 1;
        }
        dir.touch_modified(self.now_ns());
        Ok(())
    }

    /// After a directory's only name is gone from `dir`.
    pub(super) fn directory_gone(&self, dir: &Inode, inode: &Inode) {
        let now_ns = self.now_ns();
        dir.life.lock().links -= 1;
        dir.touch_modified(now_ns);
        inode.touch_changed(now_ns);
        self.change_life(inode, |life| life.links = 0);
    }

    /// Whether `inode` is `dir` or above it. With the rename lock held: the tree keeps its shape.
    pub(super) fn is_within(&self, dir: &Arc<Inode>, inode: &Inode) -> bool {
        let mut at = Arc::clone(dir);
        loop {
            if at.ino == inode.ino {
                return true;
            }
            if at.ino == Ino::ROOT {
                return false;
            }
            let Some(parent) = at
                .directory()
                .ok()
                .and_then(|directory| self.table.find(directory.parent()))
            else {
                return false;
            };
            at = parent;
        }
    }
}

/// Marks an empty directory as removed, so that nothing is made in it any more.
pub(super) fn mark_removed(inode: &Inode) -> Result<()> {
    let mut entries = inode.directory()?.entries.write();
    if !entries.is_empty() {
        return Err(Error::NotEmpty);
    }
    entries.removed = true;
    Ok(())
}
