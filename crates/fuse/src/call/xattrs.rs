//! Extended attributes. Names, limits and the `user.homenode.` attributes are the engine's.

use super::{Call, Errno, Origin};
use crate::host::Host;
use crate::wire::flags::set_xattr;
use crate::wire::{GetXattrIn, GetXattrOut, Reply, SetXattrIn, Zeros};
use homenode_engine::fs::{Error, FoundMap, MAP_XATTR, WORDS_XATTR, XattrMode, map_value};
use homenode_engine::{Clock, Memory};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

/// SELinux's label of a file.
const LABEL: &[u8] = b"security.selinux";
const XATTR_CREATE: u32 = libc::XATTR_CREATE as u32;
const XATTR_REPLACE: u32 = libc::XATTR_REPLACE as u32;

/// Requests for maps of files that are under way at a time, in all rings.
const MAPS_MAX: usize = 2;

impl<M: Memory, C: Clock, H: Host> Call<'_, M, C, H> {
    pub(super) fn set_xattr(&self, input: &SetXattrIn, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        let mode = match input.flags {
            0 => XattrMode::Either,
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno(libc::EINVAL)),
        };
        if name == LABEL {
            self.service.has_labels.store(true, Ordering::Relaxed);
        }
        let kill_sgid = input.setxattr_flags & set_xattr::ACL_KILL_SGID != 0;
        let inode = self.inode()?;
        self.fs()
            .set_xattr_as(self.header.uid, &inode, name, value, mode, kill_sgid)?;
        self.note_changed(&inode);
        Ok(())
    }

    pub(super) fn get_xattr(&self, input: &GetXattrIn, name: &[u8], reply: &mut Reply<'_>) -> Result<(), Errno> {
        if name == MAP_XATTR {
            return self.get_map(input, reply);
        }
        if let Some(offset) = name.strip_prefix(WORDS_XATTR) {
            let offset = std::str::from_utf8(offset).ok().and_then(|offset| offset.parse().ok());
            let offset = offset.ok_or(Errno(libc::ENODATA))?;
            let value = self.fs().words_value(&*self.inode()?, self.header.uid, offset)?;
            return answer(input, &value, reply);
        }
        match self.fs().xattr(&*self.inode()?, name) {
            Ok(value) => answer(input, &value, reply),
            // Without SELinux nobody labels files, but ls(1) asks for the label of each, unless it hears that there can be none. Relaxed: the
            // caller cannot tell which of two calls came first.
            Err(Error::NoAttribute) if name == LABEL && !self.service.has_labels.load(Ordering::Relaxed) => {
                Err(Errno(libc::EOPNOTSUPP))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Counts a request for a map that comes to a ring.
    ///
    /// # Errors
    /// EAGAIN for users while [`MAPS_MAX`] are under way: such a request costs its caller nothing, and could take all entries of a ring for long.
    pub(super) fn admit_map(&self) -> Result<(), Errno> {
        if let Origin::Ring { is_new: true, .. } = self.origin {
            let mut maps = self.maps();
            if maps.len() >= MAPS_MAX && self.header.uid != 0 {
                return Err(Errno(libc::EAGAIN));
            }
            maps.insert(self.header.unique, FoundMap::default());
        }
        Ok(())
    }

    fn maps(&self) -> MutexGuard<'_, HashMap<u64, FoundMap>> {
        self.service.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the bytes lie. Of a large file that takes long, so it comes in steps; what they have found is kept in between.
    fn get_map(&self, input: &GetXattrIn, reply: &mut Reply<'_>) -> Result<(), Errno> {
        let (inode, lock) = (self.inode(), || self.maps());
        let inode = inode.inspect_err(|_| _ = lock().remove(&self.header.unique))?;
        self.in_steps(|from| {
            // It counts as under way meanwhile.
            let kept = std::mem::take(lock().entry(self.header.unique).or_default());
            let mut found = if from > 0 { kept } else { FoundMap::default() };
            let next = self.fs().map_step(&inode, from, &mut found);
            let next = next.inspect_err(|_| _ = lock().remove(&self.header.unique))?;
            lock().insert(self.header.unique, found);
            Ok(next)
        })?;
        let FoundMap { by_node, .. } = lock().remove(&self.header.unique).unwrap_or_default();
        answer(
            input,
            &map_value(by_node.into_iter().filter(|(_, bytes)| *bytes > 0)),
            reply,
        )
    }

    pub(super) fn list_xattrs(&self, input: &GetXattrIn, reply: &mut Reply<'_>) -> Result<(), Errno> {
        let names = self.fs().xattr_names(&*self.inode()?);
        if self.header.uid == 0 {
            return answer(input, &names, reply);
        }
        // trusted.* is root's: the kernel guards getting and setting, listing is left to the filesystem.
        answer(input, &without_trusted(&names), reply)
    }

    pub(super) fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        let inode = self.inode()?;
        self.fs().remove_xattr(&inode, name)?;
        self.note_changed(&inode);
        Ok(())
    }
}

/// Asked with size 0, the length; else the bytes, if they fit.
fn answer(input: &GetXattrIn, bytes: &[u8], reply: &mut Reply<'_>) -> Result<(), Errno> {
    if input.size == 0 {
        let size = u32::try_from(bytes.len()).map_err(|_| Errno(libc::E2BIG))?;
        return Ok(reply.put(GetXattrOut {
            size,
            padding: Zeros::default(),
        })?);
    }
    if bytes.len() > input.size as usize {
        return Err(Errno(libc::ERANGE));
    }
    Ok(reply.put_bytes(bytes)?)
}

fn without_trusted(names: &[u8]) -> Vec<u8> {
    let shown = |name: &&[u8]| !name.starts_with(b"trusted.");
    names
        .split_inclusive(|&byte| byte == 0)
        .filter(shown)
        .flatten()
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trusted_attribute_names_are_not_listed() {
        assert_eq!(
            without_trusted(b"user.a\0trusted.b\0security.c\0"),
            b"user.a\0security.c\0"
        );
        assert_eq!(without_trusted(b""), b"");
    }

    #[test]
    fn a_size_of_zero_returns_the_length() {
        let mut memory = [0; 16];
        let mut reply = Reply::new(&mut memory);
        let input = |size| GetXattrIn {
            size,
            padding: Zeros::default(),
        };
        assert_eq!(answer(&input(2), b"abc", &mut reply), Err(Errno(libc::ERANGE)));
        answer(&input(0), b"abc", &mut reply).unwrap();
        answer(&input(3), b"abc", &mut reply).unwrap();
        assert_eq!(reply.used(), 8 + 3);
        assert_eq!(&memory[8..11], b"abc");
    }
}
