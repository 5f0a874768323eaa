//! READDIR and READDIRPLUS.
//!
//! Directories have no handles: an entry's offset says by itself where to go on. READDIRPLUS gives attributes with the
//! names, and each entry is a lookup (a pin) like any other; `.`, `..` and files with promised room are names only. The kernel asks for the plus form
//! while somebody looks at what it got (READDIRPLUS_AUTO).

use super::{Call, Errno};
use crate::host::Host;
use crate::wire::{AttrRecord, EntryOut, Full, ReadIn, Reply};
use homenode_engine::fs::DirEntry;
use homenode_engine::{Clock, Memory};

/// Most entries with attributes in an answer. The kernel asks for as many as the caller's buffer takes, some 200 of glibc's and thousands of a larger one;
/// each is a look at a file, with the directory's entries locked.
const PLUS_MAX: usize = 256;

impl<M: Memory, C: Clock, H: Host> Call<'_, M, C, H> {
    pub(super) fn read_dir(&self, input: &ReadIn, reply: &mut Reply<'_>) -> Result<(), Errno> {
        self.entries(input, reply, |reply, entry| {
            reply.put_dir_entry(entry.inode.ino().0, entry.next, entry.inode.mode(), entry.name)
        })
    }

    pub(super) fn read_dir_plus(&self, input: &ReadIn, reply: &mut Reply<'_>) -> Result<(), Errno> {
        let mut left = PLUS_MAX;
        self.entries(input, reply, |reply, entry| {
            left = left.checked_sub(1).ok_or(Full)?;
            // Look for room first: what is put is pinned.
            if reply.free().len() < Reply::dir_entry_bytes(entry.name.len(), true) {
                return Err(Full);
            }
            let own = matches!(entry.name, b"." | b"..");
            // Attributes that take a count are for those who ask for them.
            let is_alone = own || entry.inode.has_promises();
            let found = if is_alone {
                None
            } else {
                self.found_entry(entry.inode).ok()
            };
            let name_only = || EntryOut {
                attr: AttrRecord {
                    ino: entry.inode.ino().0,
                    ..AttrRecord::default()
                },
                ..EntryOut::default()
            };
            reply.put_dir_entry_plus(
                found.unwrap_or_else(name_only),
                entry.next,
                entry.inode.mode(),
                entry.name,
            )
        })
    }

    /// Puts entries from the offset asked for until one finds no room.
    fn entries(
        &self,
        input: &ReadIn,
        reply: &mut Reply<'_>,
        mut put: impl FnMut(&mut Reply<'_>, &DirEntry<'_>) -> Result<(), Full>,
    ) -> Result<(), Errno> {
        let dir = self.inode()?;
        let mut limited = Reply::new(reply.free()).limited(input.size as usize);
        let mut full = false;
        self.fs().readdir(&dir, input.offset, &mut |entry| {
            full = put(&mut limited, &entry).is_err();
            !full
        })?;
        let bytes = limited.used();
        if full && bytes == 0 {
            // Not even one entry: an empty answer would say that the directory ends here.
            return Err(Errno(libc::EINVAL));
        }
        Ok(reply.advance(bytes)?)
    }
}
