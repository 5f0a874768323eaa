//! READ, WRITE and what else touches the bytes of files.
//!
//! O_APPEND needs no care here: the kernel holds the inode's lock exclusively for such a write, buffered or direct, takes
//! the offset from its own size, which it alone changes, and places pages and the new size by that offset. Appending at a
//! size read here could only disagree with the pages it caches.

use super::{Call, Errno, Origin};
use crate::aside::Way;
use crate::host::Host;
use crate::wire::flags::write;
use crate::wire::{
    CopyFileRangeIn, CopyFileRangeOut, FAllocateIn, LSeekIn, LSeekOut, ReadIn, Reply, WriteIn, WriteOut, Zeros,
};
use homenode_engine::fs::{self, Asking, Inode, SetAttr, Whence};
use homenode_engine::{AccessKind, Clock, Memory};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Most bytes one COPY_FILE_RANGE copies, so that it does not hold a thread for long, or a ring's or a lane's, which have all others
/// to serve; the kernel reports the short count and the caller goes on.
const COPY_BYTES_MAX: u64 = 16 << 20;
const COPY_BYTES_MAX_IN_TURN: u64 = 1 << 20;

impl<M: Memory, C: Clock, H: Host> Call<'_, M, C, H> {
    pub(super) fn read(&self, input: &ReadIn, reply: &mut Reply<'_>) -> Result<(), Errno> {
        let inode = self.inode()?;
        // More than was negotiated is refused: a short answer would say that the file ends there.
        let to = reply.free().get_mut(..input.size as usize).ok_or(Errno(libc::EINVAL))?;
        let node = || self.own_node();
        let asking = self.asking(&node);
        let touches = input.flags & O_NOATIME == 0;
        let end = input.offset.saturating_add(input.size.into());
        let bytes = self.counted(self.header.pid, &asking, || {
            let fetches = || self.fs().begin_fetches(&asking, &inode, input.offset..end);
            self.with_disk(&asking, Way::Read, fetches, |asking| match touches {
                true => self.fs().read(asking, &inode, input.offset, to),
                false => self.fs().read_untouched(asking, &inode, input.offset, to),
            })
        })?;
        self.counters.count_read(bytes);
        self.note_access(&node, input.offset, bytes, AccessKind::Read);
        Ok(reply.advance(bytes)?)
    }

    pub(super) fn write(&self, input: &WriteIn, data: &[u8], reply: &mut Reply<'_>) -> Result<(), Errno> {
        let inode = self.inode()?;
        let kill_priv = input.write_flags & write::KILL_SUIDGID != 0;
        let tid = if input.write_flags & write::CACHE == 0 {
            self.note_writer(self.header.nodeid);
            self.header.pid
        } else {
            self.service.writers.last(self.header.nodeid).unwrap_or(0)
        };
        let node = || self.node(tid);
        let is_write_back = input.write_flags & write::CACHE != 0;
        let asking = Asking {
            // Pages that the kernel writes back are no user's.
            user: (!is_write_back).then_some(self.header.uid),
            ..self.asking(&node)
        };
        let end = input.offset.saturating_add(data.len() as u64);
        let fetches = || self.fs().begin_fetches_to_write(&asking, &inode, input.offset..end);
        let write = || {
            self.with_room(|| {
                self.with_disk(&asking, Way::Long, fetches, |asking| {
                    self.fs().write(asking, &inode, input.offset, data, kill_priv)
                })
            })
        };
        let mut written = self.counted(tid, &asking, write)?;
        // Of pages that it writes back the kernel takes a short count for success, and drops them all: stores through mappings would be
        // lost without a word. What was written stays, and the sync that waits for these pages fails, with the error of the rest.
        if is_write_back && written < data.len() {
            let rest = self.fs().write(
                &asking,
                &inode,
                input.offset + written as u64,
                &data[written..],
                kill_priv,
            );
            written += rest.or_else(|error| if error == fs::Error::Away { Ok(0) } else { Err(error) })?;
        }
        let is_cut = is_write_back && written < data.len();
        if is_cut || written == 0 && !data.is_empty() {
            return Err(Errno(libc::ENOSPC));
        }
        if is_write_back {
            self.note_changed(&inode);
        }
        self.counters.count_write(written);
        self.note_access(&node, input.offset, written, AccessKind::Write);
        // O_SYNC has both bits.
        if input.flags & libc::O_DSYNC.cast_unsigned() != 0 {
            self.sync()?;
        }
        let size = u32::try_from(written).expect("at most the bytes of the request");
        Ok(reply.put(WriteOut {
            size,
            padding: Zeros::default(),
        })?)
    }

    pub(super) fn allocate(&self, input: &FAllocateIn) -> Result<(), Errno> {
        let inode = self.inode()?;
        let node = || self.own_node();
        let asking = self.asking(&node);
        self.note_freed(|| {
            let is_hole = input.mode & libc::FALLOC_FL_PUNCH_HOLE.cast_unsigned() != 0;
            is_hole.then_some((inode.ino().0, input.offset..input.offset.saturating_add(input.length)))
        });
        self.in_steps(|done| {
            self.with_room(|| {
                self.fs()
                    .fallocate_step(&asking, &inode, input.mode, input.offset, input.length, done)
            })
        })?;
        self.note_changed(&inode);
        self.kill_privileges(&inode)
    }

    pub(super) fn seek(&self, input: &LSeekIn, reply: &mut Reply<'_>) -> Result<(), Errno> {
        let inode = self.inode()?;
        let whence = match input.whence {
            SEEK_DATA => Whence::Data,
            SEEK_HOLE => Whence::Hole,
            // The kernel does the others by itself.
            _ => return Err(Errno(libc::EINVAL)),
        };
        let node = || self.own_node();
        let asking = self.asking(&node);
        let mut offset = input.offset;
        self.in_steps(|done| {
            let sought = self.with_disk(&asking, Way::Read, Vec::new, |asking| {
                self.fs().seek_step(asking, &inode, input.offset.max(done), whence)
            })?;
            Ok(match sought {
                ControlFlow::Break(found) => {
                    offset = found;
                    None
                }
                ControlFlow::Continue(next) => Some(next),
            })
        })?;
        Ok(reply.put(LSeekOut { offset })?)
    }

    pub(super) fn copy_range(&self, input: &CopyFileRangeIn, reply: &mut Reply<'_>) -> Result<(), Errno> {
        let size = self.copy(input)?;
        Ok(reply.put(WriteOut {
            size,
            padding: Zeros::default(),
        })?)
    }

    pub(super) fn copy_range_64(&self, input: &CopyFileRangeIn, reply: &mut Reply<'_>) -> Result<(), Errno> {
        let bytes_copied = self.copy(input)?.into();
        Ok(reply.put(CopyFileRangeOut { bytes_copied })?)
    }

    fn copy(&self, input: &CopyFileRangeIn) -> Result<u32, Errno> {
        if input.flags != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let (from, to) = (self.inode()?, self.inode_of(input.nodeid_out)?);
        let most = input.len.min(match self.origin {
            Origin::Device { is_aside: false, .. } => COPY_BYTES_MAX,
            _ => COPY_BYTES_MAX_IN_TURN,
        });
        let node = || self.own_node();
        let asking = self.asking(&node);
        let copy = || {
            self.with_room(|| {
                self.fs()
                    .copy_range(&asking, &from, input.off_in, &to, input.off_out, most)
            })
        };
        let copied = self.counted(self.header.pid, &asking, copy)?;
        match self.kill_privileges(&to) {
            // The kernel knows the file's size by what was copied.
            Err(_) if copied > 0 => {}
            killed => killed?,
        }
        Ok(u32::try_from(copied).expect("at most the bytes asked for"))
    }

    /// Clears set-uid and set-gid after a change of content that carries no flag for it. Who may keep the bits
    /// (CAP_FSETID) is known to the kernel only; here it is root.
    fn kill_privileges(&self, inode: &Arc<Inode>) -> Result<(), Errno> {
        let killable = inode.mode() & (libc::S_ISUID | libc::S_ISGID) != 0;
        if killable && self.header.uid != 0 {
            let set = SetAttr {
                kill_priv: true,
                ..SetAttr::default()
            };
            self.fs().set_attr(inode, &set)?;
        }
        Ok(())
    }
}

const SEEK_DATA: u32 = libc::SEEK_DATA as u32;
const SEEK_HOLE: u32 = libc::SEEK_HOLE as u32;
const O_NOATIME: u32 = libc::O_NOATIME as u32;
