//! The memory that inodes, names, extended attributes and block maps take besides the pool's members: counted by user, and
//! limited.
//!
//! An inode is its owner's, with all names that lead to it; a node of a block map is counted for the owner at that time. Root may take
//! everything, and add to everybody's. Any other user may take at most half of what is left besides him, and leaves
//! [`RESERVE_SHARE`] of all to root; he may add to what is another's only while half of all is free. Removing and
//! shrinking need no memory, so they work when the limit is reached. The same goes for the number of inodes, which has a limit of its own.
//!
//! Counts are of the heap's own steps, near enough to bound the process: they are not its resident size.
//! Cost: two shared words a change of names, and two more where an inode comes or goes.

use super::Error;
use super::directory::Directory;
use super::inode::{Body, Inode};
use super::kernel_file::KernelFile;
use homenode_shared::{Allowance, Asker, Nodes, Taker};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The share of the limit that only root may take: a 32nd.
const RESERVE_SHARE: u64 = 32;
/// Users without a byte are forgotten when there are that many, and each time there are twice as many as were left.
const USERS_KEPT: usize = 1024;
/// An entry of the table of inodes, and what the heap adds to an inode.
const TABLE_BYTES: u64 = 64;
/// An entry of a directory without its name, and what the heap adds to both.
const ENTRY_BYTES: u64 = 80;
/// The first node of the tree of a directory's entries, which has room for eleven.
const FIRST_ENTRIES_BYTES: usize = 368;
/// Bytes of the body of a directory.
pub(super) const DIRECTORY_BYTES: usize = size_of::<Directory>() + FIRST_ENTRIES_BYTES;
/// Bytes that the heap adds to an attribute's name and value: a tree node for the first attribute.
const XATTR_BYTES: u64 = 384;
/// Kernel memory of an empty backing file with its open file, and of the kernel's own inode and name of ours; and what is held of it here.
const KERNEL_FILE_BYTES: usize = 2400 + size_of::<KernelFile>();
pub(super) const ROOT: u32 = 0;

/// The account of a filesystem.
#[derive(Debug)]
pub(super) struct Metadata {
    limit: AtomicU64,
    used: AtomicU64,
    inodes_max: u64,
    inodes: AtomicU64,
    /// Changes of names and attributes, and writes, that were refused.
    refused: AtomicU64,
    users: RwLock<BTreeMap<u32, Own>>,
    /// Users at which those without a byte are forgotten next.
    forget_at: AtomicUsize,
}

/// Shares of a user.
#[derive(Debug, Default)]
struct Own {
    bytes: AtomicU64,
    inodes: AtomicU64,
}

impl Metadata {
    /// Without a limit of bytes.
    pub(super) fn new(inodes_max: u64) -> Self {
        Self {
            limit: AtomicU64::new(u64::MAX),
            used: AtomicU64::new(0),
            inodes_max,
            inodes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            users: RwLock::default(),
            forget_at: AtomicUsize::new(USERS_KEPT),
        }
    }

    pub(super) fn set_limit(&self, bytes: u64) {
        // Relaxed, here and below: counts that guard no other memory.
        self.limit.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Bytes that all users take, block maps left out.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Counts a change or a write that is refused; gives its error.
    pub(super) fn refuse(&self) -> Error {
        self.refused.fetch_add(1, Ordering::Relaxed);
        Error::NoMetadata
    }

    /// [`Metadata::refuse`] for an inode that there is no room for.
    pub(super) fn refuse_inode(&self) -> Error {
        self.refuse();
        Error::NoInodes
    }

    /// Number of refused changes and writes.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Bytes by user, block maps left out.
    pub(super) fn by_user(&self) -> BTreeMap<u32, u64> {
        let users = self.users.read();
        let bytes = |(uid, own): (&u32, &Own)| (*uid, own.bytes.load(Ordering::Relaxed));
        users.iter().map(bytes).collect()
    }

    /// Whether memory that `asker` adds to what is `uid`'s is within the limits now. `maps` are the bytes of all block maps,
    /// `own_maps` tells those of this user's.
    pub(super) fn is_within(&self, uid: u32, asker: Asker, maps: u64, own_maps: &dyn Fn() -> u64) -> bool {
        let own = || self.own(uid, |own| &own.bytes).saturating_add(own_maps());
        is_within((self.limit(), self.used().saturating_add(maps)), (uid, asker), &own)
    }

    /// [`Metadata::is_within`] for an inode that `asker` makes, and that is `uid`'s.
    pub(super) fn has_inode(&self, uid: u32, asker: Asker) -> bool {
        let inodes = self.inodes.load(Ordering::Relaxed);
        is_within((self.inodes_max, inodes), (uid, asker), &|| {
            self.own(uid, |own| &own.inodes)
        })
    }

    fn own(&self, uid: u32, share: impl Fn(&Own) -> &AtomicU64) -> u64 {
        let users = self.users.read();
        users.get(&uid).map_or(0, |own| share(own).load(Ordering::Relaxed))
    }

    /// Counts `bytes` more, and `inodes` with them, whatever the limits are.
    pub(super) fn add(&self, uid: u32, bytes: u64, inodes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        if inodes > 0 {
            self.inodes.fetch_add(inodes, Ordering::Relaxed);
        }
        if let Some(own) = self.users.read().get(&uid) {
            own.add(bytes, inodes);
            return;
        }
        let mut users = self.users.write();
        if users.len() >= self.forget_at.load(Ordering::Relaxed) {
            users.retain(|_, own| *own.bytes.get_mut() > 0);
            // Not with each user who comes, or any two who take turns would have all users looked at.
            self.forget_at.store(USERS_KEPT.max(2 * users.len()), Ordering::Relaxed);
        }
        users.entry(uid).or_default().add(bytes, inodes);
    }

    /// Counts `bytes` less, and `inodes` with them.
    pub(super) fn give_back(&self, uid: u32, bytes: u64, inodes: u64) {
        if bytes == 0 {
            // A user without a byte may be forgotten.
            return;
        }
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        let users = self.users.read();
        let own = users.get(&uid).expect("a user is kept while its bytes are above 0");
        if inodes > 0 {
            self.inodes.fetch_sub(inodes, Ordering::Relaxed);
            own.inodes.fetch_sub(inodes, Ordering::Relaxed);
        }
        own.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Moves an inode's `bytes` from one user to another, whatever the limits are.
    pub(super) fn transfer(&self, from: u32, to: u32, bytes: u64) {
        if from != to && bytes > 0 {
            self.add(to, bytes, 1);
            self.give_back(from, bytes, 1);
        }
    }

    /// Panics unless the users' bytes are all that is used. At rest only.
    pub(super) fn check_invariants(&self, inodes: u64) {
        let users = self.users.read();
        let sum: u64 = users.values().map(|own| own.bytes.load(Ordering::Relaxed)).sum();
        assert_eq!(
            (sum, sum),
            (self.used(), inodes),
            "bytes of metadata by user, in all, and by inode"
        );
        let sum: u64 = users.values().map(|own| own.inodes.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, self.inodes.load(Ordering::Relaxed), "inodes by user, and in all");
    }
}

impl Own {
    fn add(&self, bytes: u64, inodes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if inodes > 0 {
            self.inodes.fetch_add(inodes, Ordering::Relaxed);
        }
    }
}

/// Whether a user may have `own` of what is `used` of a limit, by who asks.
fn is_within((limit, used): (u64, u64), (uid, asker): (u32, Asker), own: &dyn Fn() -> u64) -> bool {
    if asker == Asker::Root || (uid == ROOT && asker == Asker::Owner) {
        return used <= limit;
    }
    let limit = limit - limit / RESERVE_SHARE;
    if used.saturating_mul(2) <= limit {
        return true;
    }
    // At most half of what others leave: own <= (limit - (used - own)) / 2.
    asker != Asker::Other && used.saturating_add(own()) <= limit
}

/// Asks the account for nodes of block maps.
#[derive(Debug)]
pub(super) struct MapAllowance(pub(super) Arc<Metadata>);

impl Allowance for MapAllowance {
    fn may_take(&self, taker: Taker, all: usize, own: &dyn Fn() -> usize) -> bool {
        let own = || node_bytes(own() + 1);
        self.0.is_within(taker.user, taker.asker, node_bytes(all), &own)
    }
}

/// Bytes of an empty file with a name of 16 bytes, for what statfs tells.
pub(super) fn file_bytes(is_of_the_kernel: bool) -> u64 {
    let body = if is_of_the_kernel { KERNEL_FILE_BYTES } else { 0 };
    inode_bytes_with(body) + ENTRY_BYTES + 16
}

/// Bytes of an inode without names and extended attributes.
pub(super) fn inode_bytes(body: &Body) -> u64 {
    let body = match body {
        Body::Symlink(target) => target.len(),
        Body::Directory(_) => DIRECTORY_BYTES,
        Body::Kernel(_) => KERNEL_FILE_BYTES,
        Body::File(_) | Body::Volume(_) | Body::Special => 0,
    };
    inode_bytes_with(body)
}

/// Bytes of an inode whose body takes so many.
pub(super) fn inode_bytes_with(body: usize) -> u64 {
    TABLE_BYTES + (size_of::<Inode>() + body) as u64
}

/// Bytes of nodes of block maps.
pub(super) fn node_bytes(nodes: usize) -> u64 {
    (nodes * Nodes::NODE_BYTES) as u64
}

/// Bytes of a name in a directory.
pub(super) fn name_bytes(name: &[u8]) -> u64 {
    names_bytes(1, name.len() as u64)
}

/// Bytes of names in directories that have so many bytes together.
pub(super) fn names_bytes(names: u32, bytes: u64) -> u64 {
    u64::from(names) * ENTRY_BYTES + bytes
}

/// Bytes of an extended attribute.
pub(super) fn xattr_bytes(name: &[u8], value: &[u8]) -> u64 {
    XATTR_BYTES + (name.len() + value.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_gets_half_of_the_remaining_memory_and_root_all_of_it() {
        let metadata = Metadata::new(100);
        metadata.set_limit(3200);
        metadata.add(7, 1550, 1);
        assert!(metadata.is_within(7, Asker::Owner, 0, &|| 0));
        metadata.add(7, 1, 0);
        assert!(!metadata.is_within(7, Asker::Owner, 0, &|| 0));
        metadata.give_back(7, 1, 0);
        metadata.add(8, 775, 0);
        assert!(metadata.is_within(8, Asker::Owner, 0, &|| 0) && !metadata.is_within(8, Asker::Owner, 1, &|| 0));
        metadata.add(ROOT, 875, 0);
        assert!(metadata.is_within(ROOT, Asker::Owner, 0, &|| 0) && !metadata.is_within(ROOT, Asker::Owner, 1, &|| 0));
        assert!(
            !metadata.is_within(ROOT, Asker::Other, 0, &|| 0),
            "more than half is taken"
        );
        metadata.transfer(7, ROOT, 1550);
        assert!(metadata.is_within(ROOT, Asker::Owner, 0, &|| 0) && !metadata.is_within(8, Asker::Owner, 0, &|| 0));
        metadata.check_invariants(3200);
    }

    #[test]
    fn users_without_a_byte_are_forgotten() {
        let metadata = Metadata::new(100);
        for uid in 1..10_000 {
            metadata.add(uid, 5, 0);
            metadata.give_back(uid, 5, 0);
        }
        assert!(metadata.users.read().len() <= USERS_KEPT + 1);
    }

    #[test]
    fn users_who_take_turns_do_not_have_all_others_looked_at() {
        let metadata = Metadata::new(100);
        (1..=2048).for_each(|uid| metadata.add(uid, 5, 0));
        for uid in 10_000..10_100 {
            metadata.add(uid, 5, 0);
            metadata.give_back(uid, 5, 0);
        }
        let kept = |uid: &u32| metadata.users.read().contains_key(uid);
        assert!(
            (10_000..10_100).filter(kept).count() >= 99,
            "looked at all users with each that came"
        );
    }

    #[test]
    fn a_user_gets_half_of_the_remaining_inodes_and_root_all() {
        let metadata = Metadata::new(320);
        metadata.add(7, 155, 155);
        assert!(metadata.has_inode(7, Asker::Owner));
        metadata.add(7, 1, 1);
        assert!(!metadata.has_inode(7, Asker::Owner) && metadata.has_inode(8, Asker::Owner));
        metadata.transfer(7, 8, 1);
        metadata.give_back(7, 155, 155);
        metadata.add(ROOT, 319, 319);
        assert!(metadata.has_inode(ROOT, Asker::Owner) && !metadata.has_inode(8, Asker::Owner));
        metadata.check_invariants(320);
    }
}
