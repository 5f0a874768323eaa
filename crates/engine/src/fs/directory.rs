//! A directory's entries, in the order of their names' hashes, so that an offset of readdir stays valid while entries come
//! and go.
//!
//! An entry's key is 54 bits of hash, then 8 bits that tell names of equal hash apart. Cost: a tree of 32-byte entries.

use super::{Error, Ino, Inode, Result};
use parking_lot::RwLock;
use siphasher::sip::SipHasher13;
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest name, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 255;

#[derive(Debug)]
pub(super) struct Directory {
    parent: AtomicU64,
    pub(super) entries: RwLock<Entries>,
}

#[derive(Debug, Default)]
pub(super) struct Entries {
    by_key: BTreeMap<u64, Entry>,
    /// The directory itself was removed: nothing can be made in it.
    pub(super) removed: bool,
}

/// The key of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is there.
    Taken(u64),
    /// It is not there, and would get this key.
    Free(u64),
    /// Too many names have its hash.
    Full,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: Box<[u8]>,
    pub(super) inode: Arc<Inode>,
}

impl Directory {
    pub(super) fn new(parent: Ino) -> Self {
        Self {
            parent: AtomicU64::new(parent.0),
            entries: RwLock::default(),
        }
    }

    pub(super) fn parent(&self) -> Ino {
        // Relaxed: changes under the lock for renames, whose holders need it exact.
        Ino(self.parent.load(Ordering::Relaxed))
    }

    /// What stat(2) shows, as tmpfs does: 20 bytes an entry.
    pub(super) fn size_bytes(&self) -> u64 {
        (self.entries.read().by_key.len() as u64 + 2) * 20
    }

    pub(super) fn set_parent(&self, parent: Ino) {
        self.parent.store(parent.0, Ordering::Relaxed);
    }
}

impl Entries {
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<&Arc<Inode>> {
        let first = first_key(name);
        let mut all = self.by_key.range(first..=first + LAST_OF_HASH);
        all.find(|(_, entry)| *entry.name == *name)
            .map(|(_, entry)| &entry.inode)
    }

    /// Where `name` is, or would be.
    pub(super) fn place(&self, name: &[u8]) -> Place {
        let first = first_key(name);
        let mut free = first;
        for (key, entry) in self.by_key.range(first..=first + LAST_OF_HASH) {
            if *entry.name == *name {
                return Place::Taken(*key);
            }
            // The first gap: keys rise.
            free += u64::from(free == *key);
        }
        if free <= first + LAST_OF_HASH {
            Place::Free(free)
        } else {
            Place::Full
        }
    }

    /// The inode behind the name with this key.
    pub(super) fn at(&self, key: u64) -> &Arc<Inode> {
        &self.by_key[&key].inode
    }

    /// Puts `inode` behind a name that has a place; gives what it named before.
    pub(super) fn put(&mut self, name: &[u8], inode: Arc<Inode>) -> Option<Arc<Inode>> {
        match self.place(name) {
            Place::Taken(key) => {
                let entry = self.by_key.get_mut(&key).expect("this key was just found");
                Some(std::mem::replace(&mut entry.inode, inode))
            }
            Place::Free(key) => {
                let name = name.into();
                self.by_key.insert(key, Entry { name, inode });
                None
            }
            Place::Full => unreachable!("the caller has looked for a place"),
        }
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> Option<Arc<Inode>> {
        let Place::Taken(key) = self.place(name) else {
            return None;
        };
        self.by_key.remove(&key).map(|entry| entry.inode)
    }

    /// Entries from offset `from` on, with the offset to go on from after each.
    pub(super) fn from(&self, from: u64) -> impl Iterator<Item = (&Entry, u64)> {
        self.by_key.range(from..).map(|(key, entry)| (entry, key + 1))
    }
}

const LAST_OF_HASH: u64 = 0xff;

/// Between 2^61 and 2^62: clear of the offsets of `.` and `..`, and positive as an off_t.
fn first_key(name: &[u8]) -> u64 {
    // A hash that never changes: offsets of readdir are written down by others.
    let mut hasher = SipHasher13::new();
    hasher.write(name);
    (hasher.finish() >> 11 | 1 << 53) << 8
}

/// The checks every new name must pass.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        _ if name.len() > NAME_BYTES_MAX => Err(Error::NameTooLong),
        b"" => Err(Error::NotFound),
        b"." | b".." => Err(Error::Exists),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Error::Invalid),
        _ => Ok(()),
    }
}
