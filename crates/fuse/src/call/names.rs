//! LOOKUP and the operations that make, move and remove names.
//!
//! Every answer with an entry gives the kernel one lookup of the inode, which is one pin; FORGET takes them back.

use super::{Call, Errno};
use crate::host::Host;
use crate::wire::{CreateIn, LinkIn, MkDirIn, MkNodIn, Rename2In, Reply};
use homenode_engine::fs::{Error, Ino, Inode, NewInode, RenameMode, WORDS_NAME};
use homenode_engine::{Clock, Memory};
use std::sync::Arc;

const PERMISSION_BITS: u32 = 0o7777;

impl<M: Memory, C: Clock, H: Host> Call<'_, M, C, H> {
    pub(super) fn lookup(&self, name: &[u8], reply: &mut Reply<'_>) -> Result<(), Errno> {
        if let Some(user) = name.strip_prefix(WORDS_NAME)
            && self.header.nodeid == Ino::ROOT.0
        {
            return self.look_up_words(user, reply);
        }
        match self.fs().lookup(&self.inode()?, name) {
            Ok(inode) => Ok(reply.put(self.found_entry(&inode)?)?),
            Err(Error::NotFound) => Ok(reply.put(self.no_entry())?),
            Err(error) => Err(error.into()),
        }
    }

    /// A user's file of words, for nobody else. The kernel keeps neither the name nor that there is none: another file may have it next time.
    fn look_up_words(&self, user: &[u8], reply: &mut Reply<'_>) -> Result<(), Errno> {
        if user != self.header.uid.to_string().as_bytes() {
            return Err(Errno(libc::ENOENT));
        }
        let mut entry = self.entry(&self.fs().words_file(self.header.uid)?)?;
        (entry.entry_valid, entry.entry_valid_nsec) = (0, 0);
        Ok(reply.put(entry)?)
    }

    pub(super) fn make_node(&self, input: &MkNodIn, name: &[u8], reply: &mut Reply<'_>) -> Result<(), Errno> {
        let inode = self.make(name, input.mode, input.umask, input.rdev)?;
        Ok(reply.put(self.lasting_entry(&inode)?)?)
    }

    pub(super) fn make_dir(&self, input: &MkDirIn, name: &[u8], reply: &mut Reply<'_>) -> Result<(), Errno> {
        let inode = self.make(name, libc::S_IFDIR | input.mode & PERMISSION_BITS, input.umask, 0)?;
        Ok(reply.put(self.entry(&inode)?)?)
    }

    pub(super) fn create(&self, input: &CreateIn, name: &[u8], reply: &mut Reply<'_>) -> Result<(), Errno> {
        let new = self.new_inode(libc::S_IFREG | input.mode & PERMISSION_BITS, input.umask, 0);
        let connection = self.service.passthrough.as_ref();
        let dir = self.inode()?;
        let mut prepared = connection.and_then(|connection| connection.prepared.take(self.serving_node()));
        let inode = self.with_room(|| self.fs().create_with(&dir, name, new, prepared.take()))?;
        self.note_changed(&dir);
        reply.put(self.lasting_entry(&inode)?)?;
        let opened = self.opened(&inode, input.flags, true, reply);
        if opened.is_err()
            && self
                .fs()
                .lookup(&dir, name)
                .is_ok_and(|found| found.ino() == inode.ino())
        {
            // The kernel goes on to know that there is no such name. What fails here is told by the error that follows.
            let _ = self.fs().unlink(&dir, name);
        }
        self.unless_failed(&inode, opened)
    }

    pub(super) fn temporary_file(&self, input: &CreateIn, reply: &mut Reply<'_>) -> Result<(), Errno> {
        let new = self.new_inode(libc::S_IFREG | input.mode & PERMISSION_BITS, input.umask, 0);
        // Comes pinned: with neither name nor pin it would be gone already.
        let dir = self.inode()?;
        let inode = self.with_room(|| self.fs().tmpfile(&dir, new))?;
        reply.put(self.lasting_entry_of_pinned(&inode))?;
        let opened = self.opened(&inode, input.flags, true, reply);
        self.unless_failed(&inode, opened)
    }

    /// Takes back the lookup that the answer was to give, when there is an error instead.
    fn unless_failed(&self, inode: &Inode, opened: Result<(), Errno>) -> Result<(), Errno> {
        opened.inspect_err(|_| self.forget(inode.ino().0, 1))
    }

    pub(super) fn sym_link(&self, name: &[u8], target: &[u8], reply: &mut Reply<'_>) -> Result<(), Errno> {
        let dir = self.inode()?;
        let (uid, gid) = (self.header.uid, self.header.gid);
        let inode = self.with_room(|| self.fs().symlink(&dir, name, target, uid, gid))?;
        self.note_changed(&dir);
        Ok(reply.put(self.entry(&inode)?)?)
    }

    pub(super) fn read_link(&self, reply: &mut Reply<'_>) -> Result<(), Errno> {
        let target = self.fs().readlink(&*self.inode()?)?;
        Ok(reply.put_bytes(&target)?)
    }

    pub(super) fn link(&self, input: &LinkIn, name: &[u8], reply: &mut Reply<'_>) -> Result<(), Errno> {
        let (inode, dir) = (self.inode_of(input.oldnodeid)?, self.inode()?);
        self.with_room(|| self.fs().link_as(self.header.uid, &inode, &dir, name))?;
        self.note_changed(&dir);
        Ok(reply.put(self.entry(&inode)?)?)
    }

    pub(super) fn unlink(&self, name: &[u8]) -> Result<(), Errno> {
        self.let_forgets_pass()?;
        let dir = self.inode()?;
        self.fs().unlink(&dir, name)?;
        self.note_changed(&dir);
        Ok(())
    }

    pub(super) fn remove_dir(&self, name: &[u8]) -> Result<(), Errno> {
        let dir = self.inode()?;
        self.fs().rmdir(&dir, name)?;
        self.note_changed(&dir);
        Ok(())
    }

    pub(super) fn rename(&self, input: &Rename2In, name: &[u8], new_name: &[u8]) -> Result<(), Errno> {
        let mode = match input.flags & !libc::RENAME_WHITEOUT {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Errno(libc::EINVAL)),
        };
        if mode == RenameMode::Replace {
            self.let_forgets_pass()?;
        }
        let (from, to) = (self.inode()?, self.inode_of(input.newdir)?);
        if input.flags & libc::RENAME_WHITEOUT != 0 {
            let owner = (self.header.uid, self.header.gid);
            self.fs()
                .rename_with_whiteout(&from, name, &to, new_name, mode, owner)?;
        } else {
            self.fs().rename_as(self.header.uid, &from, name, &to, new_name, mode)?;
        }
        self.note_changed(&from);
        self.note_changed(&to);
        for (dir, name) in [(&to, new_name), (&from, name)] {
            if let Ok(moved) = self.fs().lookup(dir, name) {
                self.note_changed(&moved);
            }
        }
        Ok(())
    }

    fn make(&self, name: &[u8], mode: u32, umask: u32, rdev: u32) -> Result<Arc<Inode>, Errno> {
        let dir = self.inode()?;
        let new = self.new_inode(mode, umask, rdev);
        let inode = self.with_room(|| self.fs().create(&dir, name, new))?;
        self.note_changed(&dir);
        Ok(inode)
    }

    fn new_inode(&self, mode: u32, umask: u32, rdev: u32) -> NewInode {
        NewInode {
            mode,
            umask,
            uid: self.header.uid,
            gid: self.header.gid,
            rdev,
        }
    }
}
