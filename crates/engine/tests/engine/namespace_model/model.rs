//! A tree of names as rename(2), link(2), unlink(2) and rmdir(2) describe it.

use homenode_engine::fs::{Error, RenameMode, Result};
use std::collections::BTreeMap;

/// An inode's place in the model's list; 0 is the root.
pub(crate) type Id = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    File,
    Symlink,
    Fifo,
    Whiteout,
}

pub(crate) struct Model {
    inodes: Vec<Inode>,
}

struct Inode {
    /// Entries, if the inode is a directory.
    entries: Option<BTreeMap<Vec<u8>, Id>>,
    parent: Id,
    links: u32,
    pins: u32,
    gone: bool,
}

impl Default for Model {
    fn default() -> Self {
        let mut root = Inode::new(Kind::Directory, 0);
        root.links = 2;
        Self { inodes: vec![root] }
    }
}

impl Inode {
    fn new(kind: Kind, parent: Id) -> Self {
        let is_directory = kind == Kind::Directory;
        Self {
            entries: is_directory.then(BTreeMap::new),
            parent,
            links: if is_directory { 2 } else { 1 },
            pins: 0,
            gone: false,
        }
    }

    fn is_directory(&self) -> bool {
        self.entries.is_some()
    }
}

impl Model {
    pub(crate) fn directories(&self) -> Vec<Id> {
        (0..self.inodes.len())
            .filter(|id| self.inodes[*id].is_directory())
            .collect()
    }

    pub(crate) fn entries(&self, id: Id) -> Option<&BTreeMap<Vec<u8>, Id>> {
        self.inodes[id].entries.as_ref()
    }

    pub(crate) fn links(&self, id: Id) -> u32 {
        self.inodes[id].links
    }

    pub(crate) fn lives(&self, id: Id) -> bool {
        !self.inodes[id].gone
    }

    pub(crate) fn create(&mut self, dir: Id, name: &[u8], kind: Kind) -> Result<Id> {
        check_name(name)?;
        self.check_free(dir, name)?;
        let id = self.inodes.len();
        self.inodes.push(Inode::new(kind, dir));
        self.insert(dir, name, id);
        Ok(id)
    }

    pub(crate) fn tmpfile(&mut self, dir: Id) -> Result<Id> {
        self.entries(dir).ok_or(Error::NotDirectory)?;
        let mut file = Inode::new(Kind::File, dir);
        (file.links, file.pins) = (0, 1);
        self.inodes.push(file);
        Ok(self.inodes.len() - 1)
    }

    pub(crate) fn link(&mut self, id: Id, dir: Id, name: &[u8]) -> Result<()> {
        check_name(name)?;
        if self.inodes[id].is_directory() {
            return Err(Error::NotPermitted);
        }
        self.check_free(dir, name)?;
        if self.inodes[id].gone {
            return Err(Error::NotFound);
        }
        self.inodes[id].links += 1;
        self.insert(dir, name, id);
        Ok(())
    }

    pub(crate) fn lookup(&self, dir: Id, name: &[u8]) -> Result<Id> {
        let entries = self.entries(dir).ok_or(Error::NotDirectory)?;
        match name {
            b"." => Ok(dir),
            b".." => Some(self.inodes[dir].parent)
                .filter(|up| self.lives(*up))
                .ok_or(Error::NotFound),
            _ if name.len() > 255 => Err(Error::NameTooLong),
            _ => entries.get(name).copied().ok_or(Error::NotFound),
        }
    }

    pub(crate) fn unlink(&mut self, dir: Id, name: &[u8]) -> Result<()> {
        let id = self.entry(dir, name)?;
        if self.inodes[id].is_directory() {
            return Err(Error::IsDirectory);
        }
        self.remove(dir, name);
        self.inodes[id].links -= 1;
        self.forget(id);
        Ok(())
    }

    pub(crate) fn rmdir(&mut self, dir: Id, name: &[u8]) -> Result<()> {
        match name {
            b"." => return Err(Error::Invalid),
            b".." => return Err(Error::NotEmpty),
            _ => {}
        }
        let id = self.entry(dir, name)?;
        if !self.entries(id).ok_or(Error::NotDirectory)?.is_empty() {
            return Err(Error::NotEmpty);
        }
        self.remove(dir, name);
        self.inodes[id].links = 0;
        self.forget(id);
        Ok(())
    }

    /// Gives the whiteout that is left, if one is.
    pub(crate) fn rename(
        &mut self,
        (from, name): (Id, &[u8]),
        (to, new): (Id, &[u8]),
        mode: RenameMode,
        whiteout: bool,
    ) -> Result<Option<Id>> {
        if whiteout {
            if mode == RenameMode::Exchange {
                return Err(Error::Invalid);
            }
            self.entries(from).ok_or(Error::NotDirectory)?;
        }
        check_name(new)?;
        self.entries(from).ok_or(Error::NotDirectory)?;
        self.entries(to).ok_or(Error::NotDirectory)?;
        if self.is_removed(from) || self.is_removed(to) {
            return Err(Error::NotFound);
        }
        let id = self.entry(from, name)?;
        let met = self.entry(to, new).ok();
        if self.is_within(to, id) {
            return Err(Error::Invalid);
        }
        match (met, mode) {
            (None, RenameMode::Exchange) => return Err(Error::NotFound),
            (Some(_), RenameMode::NoReplace) => return Err(Error::Exists),
            (Some(met), _) if met == id => return Ok(None),
            (Some(met), RenameMode::Exchange) => {
                if self.is_within(from, met) {
                    return Err(Error::Invalid);
                }
                self.remove(from, name);
                self.remove(to, new);
                self.insert(from, name, met);
                self.insert(to, new, id);
                return Ok(None);
            }
            (Some(met), RenameMode::Replace) => self.replace(id, from, to, new, met)?,
            (None, _) => {}
        }
        self.remove(from, name);
        self.insert(to, new, id);
        if !whiteout {
            return Ok(None);
        }
        let left = self.inodes.len();
        self.inodes.push(Inode::new(Kind::Whiteout, from));
        self.insert(from, name, left);
        Ok(Some(left))
    }

    /// Makes room for `id` where `met` is.
    fn replace(&mut self, id: Id, from: Id, to: Id, new: &[u8], met: Id) -> Result<()> {
        if self.is_within(from, met) {
            return Err(Error::NotEmpty);
        }
        match (self.inodes[id].is_directory(), self.inodes[met].is_directory()) {
            (true, true) => self.rmdir(to, new),
            (true, false) => Err(Error::NotDirectory),
            (false, true) => Err(Error::IsDirectory),
            (false, false) => self.unlink(to, new),
        }
    }

    pub(crate) fn pin(&mut self, id: Id) -> Result<()> {
        if self.inodes[id].gone {
            return Err(Error::Stale);
        }
        self.inodes[id].pins += 1;
        Ok(())
    }

    /// Whether there was a pin to take back.
    pub(crate) fn unpin(&mut self, id: Id) -> bool {
        if self.inodes[id].pins == 0 {
            return false;
        }
        self.inodes[id].pins -= 1;
        self.forget(id);
        true
    }

    fn entry(&self, dir: Id, name: &[u8]) -> Result<Id> {
        let entries = self.entries(dir).ok_or(Error::NotDirectory)?;
        entries.get(name).copied().ok_or(Error::NotFound)
    }

    fn check_free(&self, dir: Id, name: &[u8]) -> Result<()> {
        match self.entry(dir, name) {
            Ok(_) => Err(Error::Exists),
            Err(Error::NotFound) if !self.is_removed(dir) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn is_removed(&self, dir: Id) -> bool {
        self.inodes[dir].links == 0
    }

    /// Whether `above` is `dir` or above it.
    fn is_within(&self, dir: Id, above: Id) -> bool {
        let mut at = dir;
        while at != above && at != 0 {
            at = self.inodes[at].parent;
        }
        at == above
    }

    /// An entry, and for a directory its `..`, which is a link to `dir`.
    fn insert(&mut self, dir: Id, name: &[u8], id: Id) {
        let entries = self.inodes[dir].entries.as_mut().expect("the inode is a directory");
        assert!(entries.insert(name.to_vec(), id).is_none());
        if self.inodes[id].is_directory() {
            self.inodes[id].parent = dir;
            self.inodes[dir].links += 1;
        }
    }

    fn remove(&mut self, dir: Id, name: &[u8]) {
        let entries = self.inodes[dir].entries.as_mut().expect("the inode is a directory");
        let id = entries.remove(name).expect("the name exists");
        if self.inodes[id].is_directory() {
            self.inodes[dir].links -= 1;
        }
    }

    /// The inode goes when nothing keeps it.
    fn forget(&mut self, id: Id) {
        let inode = &mut self.inodes[id];
        inode.gone |= inode.links == 0 && inode.pins == 0;
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    match name {
        _ if name.len() > 255 => Err(Error::NameTooLong),
        b"" => Err(Error::NotFound),
        b"." | b".." => Err(Error::Exists),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Error::Invalid),
        _ => Ok(()),
    }
}
