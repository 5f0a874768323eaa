//! OPEN and RELEASE, and the open part of CREATE and TMPFILE.
//!
//! The handle that the kernel keeps (`fh`) is the access of the open, so that RELEASE needs no table. A handle that was
//! never given releases nothing.

use super::{Call, Errno, FREED_BLOCKS, Origin};
use crate::host::Host;
use crate::wire::flags::opened;
use crate::wire::{OpenIn, OpenOut, ReleaseIn, Reply};
use homenode_engine::fs::{Access, Inode};
use homenode_engine::{Clock, Memory};

const CAPABILITY_XATTR: &[u8] = b"security.capability";

/// Handles of opens. 0 is that of a directory, which has no open state.
const READS: u64 = 1;
const WRITES: u64 = 2;

impl<M: Memory, C: Clock, H: Host> Call<'_, M, C, H> {
    pub(super) fn open(&self, input: &OpenIn, reply: &mut Reply<'_>) -> Result<(), Errno> {
        let inode = self.inode()?;
        if let Some(reader) = inode.words_reader()
            && (![0, reader].contains(&self.header.uid) || input.flags & O_ACCMODE != O_RDONLY)
        {
            return Err(Errno(libc::EACCES));
        }
        self.opened(&inode, input.flags, false, reply)
    }

    /// Counts the open, of a file that was just made if it `is_new`, and adds its answer.
    pub(super) fn opened(&self, inode: &Inode, flags: u32, is_new: bool, reply: &mut Reply<'_>) -> Result<(), Errno> {
        let access = if flags & O_ACCMODE == O_RDONLY {
            Access::Read
        } else {
            self.note_writer(inode.ino().0);
            Access::Write
        };
        // From here on an error takes the open back: nobody would release it.
        self.fs().open(inode, access)?;
        let answered = self.answer_open(inode, flags, access, is_new, reply);
        if answered.is_err() {
            self.fs().release(inode, access);
        }
        answered
    }

    fn answer_open(
        &self,
        inode: &Inode,
        flags: u32,
        access: Access,
        is_new: bool,
        reply: &mut Reply<'_>,
    ) -> Result<(), Errno> {
        if access == Access::Write && self.service.passthrough.is_some() {
            // Before the answer: from then on attributes may change unseen.
            let can_map = flags & O_ACCMODE == O_RDWR || !self.service.agreed.sees_writes;
            self.fs().note_writer(inode, can_map, || {
                // Attributes of a new file may last: see where it is answered.
                if !is_new {
                    self.service.forget_attributes(inode.ino());
                }
            });
        }
        let backing_id = match &self.service.passthrough {
            Some(connection) => connection.id_of(inode).transpose()?,
            None => None,
        };
        let open_flags = match backing_id {
            Some(_) => opened::PASSTHROUGH,
            None => self.open_flags(inode, flags),
        };
        let fh = match access {
            Access::Read => READS,
            Access::Write => WRITES,
        };
        let backing_id = backing_id.unwrap_or(0);
        Ok(reply.put(OpenOut {
            fh,
            open_flags,
            backing_id,
        })?)
    }

    /// RELEASE may come after FORGET, by the other way: the open itself has kept the inode. A large file goes by steps then, where no other thread can free
    /// it: nobody else reaches it any more.
    ///
    /// # Errors
    /// There is another step to do.
    pub(super) fn release(&self, input: &ReleaseIn) -> Result<(), Errno> {
        let access = match input.fh {
            READS => Access::Read,
            WRITES => Access::Write,
            _ => return Ok(()),
        };
        let Ok(inode) = self.inode() else { return Ok(()) };
        let fs = self.fs();
        let is_alone = matches!(self.origin, Origin::Ring { .. }) && !fs.is_durable();
        if is_alone
            && fs
                .blocks_going(&inode, 0, 1)
                .is_some_and(|blocks| blocks > FREED_BLOCKS)
        {
            let stepped = self.shrink(&inode, 0);
            if self.later.get().is_some() {
                return stepped;
            }
        }
        fs.release_telling(&inode, access, || self.note_end(&inode));
        Ok(())
    }

    /// Cached pages are always right, so they are kept. Without FOPEN_DIRECT_IO an O_DIRECT write holds the inode's lock
    /// exclusively; with it, writes that do not append run in parallel. On that way the kernel does not take a file's
    /// capabilities away from a writer who may keep set-uid, so files with capabilities go the other one.
    fn open_flags(&self, inode: &Inode, flags: u32) -> u32 {
        let direct = flags & O_DIRECT != 0
            && self.service.agreed.parallel_direct_io
            && self.fs().xattr(inode, CAPABILITY_XATTR).is_err();
        opened::KEEP_CACHE
            | if direct {
                opened::DIRECT_IO | opened::PARALLEL_DIRECT_WRITES
            } else {
                0
            }
    }
}

const O_ACCMODE: u32 = libc::O_ACCMODE as u32;
const O_RDONLY: u32 = libc::O_RDONLY as u32;
const O_RDWR: u32 = libc::O_RDWR as u32;
const O_DIRECT: u32 = libc::O_DIRECT as u32;
