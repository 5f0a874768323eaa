//! A directory's entries, in the order of their names' hashes, so that an offset of readdir stays valid while entries come
//! and go.
//!
//! An entry's key is 54 bits of hash, then 8 bits that tell names of equal hash apart. Cost: a tree of 32-byte entries.

use super::inode::Body;
use super::words::WORDS_NAME;
use super::{Error, Ino, Inode, Result};
use parking_lot::RwLock;
use siphasher::sip::SipHasher13;
use std::collections::{BTreeMap, btree_map};
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
#[derive(Clone, Copy, Debug)]
pub(super) enum Place<'a> {
    /// It is there.
    Taken(u64, &'a Arc<Inode>),
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

/// Drops what is below one entry after the other: a tree may be deeper than a stack.
impl Drop for Directory {
    fn drop(&mut self) {
        let mut entries: Vec<Entry> = self.take_entries().collect();
        while let Some(entry) = entries.pop() {
            // `None` while others have it.
            if let Some(Body::Directory(mut below)) = Arc::into_inner(entry.inode).map(|inode| inode.body) {
                entries.extend(below.take_entries());
            }
        }
    }
}

impl Directory {
    fn take_entries(&mut self) -> impl Iterator<Item = Entry> {
        std::mem::take(&mut self.entries.get_mut().by_key).into_values()
    }

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

    /// Size that stat(2) shows, as tmpfs does: 20 bytes an entry.
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
        self.find_with_key(name).map(|(_, inode)| inode)
    }

    /// The inode behind `name`, and the name's key.
    pub(super) fn find_with_key(&self, name: &[u8]) -> Option<(u64, &Arc<Inode>)> {
        match self.place(name) {
            Place::Taken(key, inode) => Some((key, inode)),
            Place::Free(_) | Place::Full => None,
        }
    }

    /// Whether a name has this key.
    pub(super) fn has(&self, key: u64) -> bool {
        self.by_key.contains_key(&key)
    }

    /// Where `name` is, or would be.
    pub(super) fn place(&self, name: &[u8]) -> Place<'_> {
        let first = first_key(name);
        let mut free = first;
        for (key, entry) in self.by_key.range(first..=first + LAST_OF_HASH) {
            if *entry.name == *name {
                return Place::Taken(*key, &entry.inode);
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

    /// Puts `inode` behind the name that has this key, or takes it; gives what it named before.
    pub(super) fn put(&mut self, key: u64, name: &[u8], inode: Arc<Inode>) -> Option<Arc<Inode>> {
        match self.by_key.entry(key) {
            btree_map::Entry::Occupied(mut entry) => {
                debug_assert_eq!(*entry.get().name, *name);
                Some(std::mem::replace(&mut entry.get_mut().inode, inode))
            }
            btree_map::Entry::Vacant(free) => {
                let name = name.into();
                free.insert(Entry { name, inode });
                None
            }
        }
    }

    /// Takes out the name that has this key.
    pub(super) fn remove(&mut self, key: u64) -> Option<Arc<Inode>> {
        self.by_key.remove(&key).map(|entry| entry.inode)
    }

    /// Entries whose keys ascend.
    pub(super) fn of(entries: impl Iterator<Item = (u64, Box<[u8]>, Arc<Inode>)>) -> Self {
        let entry = |(key, name, inode)| (key, Entry { name, inode });
        Self {
            by_key: entries.map(entry).collect(),
            removed: false,
        }
    }

    /// Entries from offset `from` on, with the offset to go on from after each.
    pub(super) fn from(&self, from: u64) -> impl Iterator<Item = (&Entry, u64)> {
        self.by_key.range(from..).map(|(key, entry)| (entry, key + 1))
    }
}

/// Names of a directory that can have the same hash, but for one.
pub(crate) const LAST_OF_HASH: u64 = 0xff;

/// The first key of a name's hash. Between 2^61 and 2^62: clear of the offsets of `.` and `..`, and positive as an off_t.
pub(crate) fn first_key(name: &[u8]) -> u64 {
    // A hash that never changes: offsets of readdir are written down by others.
    let mut hasher = SipHasher13::new();
    hasher.write(name);
    (hasher.finish() >> 11 | 1 << 53) << 8
}

/// The checks that every new name must pass.
pub(super) fn check_new_name(name: &[u8]) -> Result<()> {
    match name.starts_with(WORDS_NAME) {
        true => Err(Error::NotPermitted),
        false => check_name(name),
    }
}

/// The checks that every name must pass.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        _ if name.len() > NAME_BYTES_MAX => Err(Error::NameTooLong),
        b"" => Err(Error::NotFound),
        b"." | b".." => Err(Error::Exists),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Error::Invalid),
        _ => Ok(()),
    }
}
