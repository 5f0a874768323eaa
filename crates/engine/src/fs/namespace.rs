//! Names: lookup, create, link, unlink, rename, readdir.

use super::acl::{ACCESS, Acl, DEFAULT};
use super::attr::{DIRECTORY, PERMISSIONS, REGULAR, SET_GID, SYMLINK, TYPE_MASK};
use super::commit::{Changes, Held};
use super::directory::{Directory, Place, check_new_name};
use super::inode::Body;
use super::kernel_file::PreparedFile;
use super::metadata::ROOT;
use super::unlinked::Standing;
use super::xattr::{RESERVE_VALUE, RESERVE_XATTR};
use super::{Error, Fs, Ino, Inode, NewInode, Result};
use crate::log::{Attributes, Change, Effect};
use crate::{Clock, Memory};
use std::sync::Arc;

/// A directory entry while reading.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Inode that the entry names.
    pub inode: &'a Arc<Inode>,
    /// Offset to go on from.
    pub next: u64,
}

/// Longest target of a symbolic link, in bytes (PATH_MAX less the NUL).
pub(crate) const TARGET_BYTES_MAX: usize = 4095;
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
        self.create_with(dir, name, new, None)
    }

    /// [`Fs::create`]; a regular file gets the body that was prepared, if there is one.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotFound`] when `dir` is removed, or the name is not one.
    pub fn create_with(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        new: NewInode,
        prepared: Option<PreparedFile>,
    ) -> Result<Arc<Inode>> {
        check_new_name(name)?;
        let body = match new.mode & TYPE_MASK {
            REGULAR | 0 => self.new_file(prepared)?,
            DIRECTORY => Body::Directory(Box::new(Directory::new(dir.ino))),
            SYMLINK => return Err(Error::Invalid),
            _ => Body::Special,
        };
        self.make(dir, Some(name), new, body)
    }

    /// Makes a symbolic link to `target`. Not pinned.
    ///
    /// # Errors
    /// As [`Fs::create`]; [`Error::NameTooLong`] for the target.
    pub fn symlink(&self, dir: &Arc<Inode>, name: &[u8], target: &[u8], uid: u32, gid: u32) -> Result<Arc<Inode>> {
        check_new_name(name)?;
        if target.len() > TARGET_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        let new = NewInode {
            uid,
            gid,
            ..NewInode::of_root(SYMLINK | 0o777)
        };
        self.make(dir, Some(name), new, Body::Symlink(target.into()))
    }

    /// Makes an unnamed file (O_TMPFILE), pinned once.
    ///
    /// # Errors
    /// [`Error::NotDirectory`].
    pub fn tmpfile(&self, dir: &Arc<Inode>, new: NewInode) -> Result<Arc<Inode>> {
        dir.directory()?;
        self.make(dir, None, new, self.new_file(None)?)
    }

    /// Another name for `inode`.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for a directory, [`Error::Exists`], [`Error::TooManyLinks`], [`Error::NotFound`] when it is
    /// gone.
    pub fn link(&self, inode: &Arc<Inode>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        self.link_as(ROOT, inode, dir, name)
    }

    /// [`Fs::link`] asked for by `user`.
    ///
    /// # Errors
    /// [`Error::NoMetadata`] too, when the inode is another's and half of the limit is taken.
    pub fn link_as(&self, user: u32, inode: &Arc<Inode>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        let _room = self.admit(true)?;
        check_new_name(name)?;
        if inode.is_directory() || inode.words_reader().is_some() {
            return Err(Error::NotPermitted);
        }
        let mut held = self.hold_new_name(dir, name)?;
        held.set_targets([Some(inode), None]);
        held.set_asker(inode.asker(Some(user)));
        held.lock_states([Some(&**dir), Some(&**inode)]);
        let state = held.state(inode.ino);
        if state.evicted {
            return Err(Error::NotFound);
        }
        if state.links >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        let (dir, ino) = (dir.ino, inode.ino);
        self.commit(held, self.now_ns(), &[Change::Name { dir, name, ino }])?;
        if let Some(file) = inode.kernel_file() {
            file.take_back_ahead(&self.pool, ino);
        }
        Ok(())
    }

    /// Removes a name that is not a directory's.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`].
    pub fn unlink(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        self.remove_name(dir, name, |inode| {
            if inode.is_directory() {
                Err(Error::IsDirectory)
            } else {
                Ok(())
            }
        })
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
        self.remove_name(dir, name, mark_removed)
    }

    /// Removes a name when `check` lets what it names go.
    fn remove_name(&self, dir: &Inode, name: &[u8], check: impl FnOnce(&Inode) -> Result<()>) -> Result<()> {
        let _room = self.admit(false)?;
        let entries = dir.directory()?.entries.write();
        let (key, inode) = entries.find_with_key(name).ok_or(Error::NotFound)?;
        let inode = Arc::clone(inode);
        check(&inode)?;
        let mut held = Held::default();
        held.set_old_key(key);
        held.hold_directory(dir.ino, entries);
        held.lock_states([Some(dir), Some(&*inode)]);
        let dir = dir.ino;
        self.commit(held, self.now_ns(), &[Change::NoName { dir, name }])
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is none.
    pub fn readlink(&self, inode: &Inode) -> Result<Box<[u8]>> {
        match &inode.body {
            Body::Symlink(target) => {
                self.touch_accessed(inode, true);
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
        self.touch_accessed(dir, true);
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

    /// Makes an inode that inherits what `dir` hands down, and its first name; without one, it is pinned once.
    pub(super) fn make(&self, dir: &Arc<Inode>, name: Option<&[u8]>, new: NewInode, body: Body) -> Result<Arc<Inode>> {
        let kind = match new.mode & TYPE_MASK {
            0 => REGULAR,
            kind => kind,
        };
        let (attributes, default, reserves) = inherit(dir, kind, &new);
        let lists = default.as_ref().map_or(0, |list| 2 * list.to_bytes().len());
        let reserve: Option<Box<[u8]>> = reserves.then(|| RESERVE_VALUE.into());
        let lists = lists + reserve.as_ref().map_or(0, |value| value.len());
        let target = if let Body::Symlink(target) = &body {
            target.len()
        } else {
            0
        };
        let _room = self.admit_bytes(Effect::Adds, (lists + target) as u64)?;
        let access = default
            .as_ref()
            .map(|default| default.inherit(new.mode & PERMISSIONS).0);
        let ino = self.table.reserve().ok_or_else(|| self.metadata.refuse_inode())?;
        let now_ns = self.now_ns();
        let inode = Arc::new(Inode::new(ino, kind, new.rdev, body, now_ns));
        let mut held = match name.map_or(Ok(Held::default()), |name| self.hold_new_name(dir, name)) {
            Ok(held) => held,
            Err(error) => {
                self.table.give_up();
                return Err(error);
            }
        };
        held.set_targets([Some(&inode), None]);
        held.lock_states([name.map(|_| &**dir), Some(&*inode)]);
        held.state(ino).pins = u64::from(name.is_none());
        self.table.put(Arc::clone(&inode));
        // Permission bits say the same as a minimal list.
        let access = access.filter(|list| !list.is_minimal()).map(|list| list.to_bytes());
        let default = default.filter(|_| kind == DIRECTORY).map(|list| list.to_bytes());
        let mut changes = Changes::of(Change::Inode { ino, attributes });
        for (name, value) in [(ACCESS, &access), (DEFAULT, &default), (RESERVE_XATTR, &reserve)] {
            if let Some(value) = value {
                changes.add(Change::Xattr { ino, name, value });
            }
        }
        if let Body::Symlink(target) = &inode.body {
            changes.add(Change::Target { ino, target });
        }
        if let Some(name) = name {
            changes.add(Change::Name {
                dir: dir.ino,
                name,
                ino,
            });
        }
        if let Err(error) = self.commit(held, now_ns, changes.as_slice()) {
            self.table.remove(ino);
            return Err(error);
        }
        if name.is_none() {
            self.unlinked.moved(Standing::Named, Standing::Closed);
        }
        if let (Some(file), Some(_)) = (inode.kernel_file(), attributes.placement) {
            self.place(&inode, file);
        }
        Ok(inode)
    }

    /// Locks `dir`, which has no `name` yet and takes one.
    fn hold_new_name<'a>(&self, dir: &'a Inode, name: &[u8]) -> Result<Held<'a>> {
        let entries = dir.directory()?.entries.write();
        if entries.removed {
            return Err(Error::NotFound);
        }
        let key = match entries.place(name) {
            Place::Free(key) => key,
            Place::Taken(..) => return Err(Error::Exists),
            Place::Full => return Err(Error::NoSpace),
        };
        let mut held = Held::default();
        held.set_new_key(key);
        held.hold_directory(dir.ino, entries);
        Ok(held)
    }

    /// Whether `inode` is `dir` or above it. With the rename lock held: the tree keeps its shape.
    pub(super) fn is_within(&self, dir: &Arc<Inode>, inode: &Inode) -> bool {
        const LINKS_OF_A_LEAF: u32 = 2;
        if dir.ino != inode.ino && inode.state.lock().links <= LINKS_OF_A_LEAF {
            return false;
        }
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

/// Attributes of a new inode in `dir`, the default list it inherits, and whether it inherits [`RESERVE_XATTR`].
fn inherit(dir: &Inode, kind: u32, new: &NewInode) -> (Attributes, Option<Acl>, bool) {
    let state = dir.state.lock();
    let stored = state.xattr(DEFAULT).filter(|_| kind != SYMLINK);
    let default = stored.and_then(|bytes| Acl::parse(bytes).ok().flatten());
    let mut mode = match &default {
        Some(default) => default.inherit(new.mode & PERMISSIONS).1,
        None => new.mode & PERMISSIONS & !new.umask,
    };
    let mut gid = new.gid;
    if dir.mode() & SET_GID != 0 {
        gid = state.gid;
        if kind == DIRECTORY {
            mode |= SET_GID;
        }
    }
    // Others have no data, and may have no `user.` attributes: it would be listed and could not be read.
    let inherits_placement = matches!(kind, REGULAR | DIRECTORY);
    let attributes = Attributes {
        mode: kind | mode,
        uid: new.uid,
        gid,
        rdev: new.rdev,
        placement: dir.policy.load().filter(|_| inherits_placement),
    };
    let reserves = inherits_placement && state.xattr(RESERVE_XATTR).is_some();
    (attributes, default, reserves)
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
