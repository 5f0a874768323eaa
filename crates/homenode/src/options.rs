//! Options of a pool.

use crate::{Error, NodeId, PoolName, Size};
use std::fs::File;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Fewest bytes of a member: one huge page, the step in which memory is populated.
pub const MEMBER_BYTES_MIN: u64 = 2 << 20;

/// Options of a new [`Pool`](crate::Pool). Everything has a default: a member on every node with memory, half of the
/// node's memory large (as tmpfs), populated as it fills.
///
/// ```
/// use homenode::{NodeId, PoolOptions};
/// let options = PoolOptions::new().size_per_node("64M".parse()?).node(NodeId(0));
/// assert_eq!(options.nodes, [NodeId(0)]);
/// # Ok::<(), homenode::SizeError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PoolOptions {
    /// Size of each node's member. `None`: half of the node's memory, or what is free there if that is less; what other
    /// pools may still fill counts as free. Memory is taken as files fill it, not at once.
    pub size_per_node: Option<Size>,
    /// The nodes that give a member each. Empty: every node with memory.
    pub nodes: Vec<NodeId>,
    /// How much free memory of each member is kept populated, so that a first write never waits for the kernel to find
    /// and clear pages. `None`: a quarter of the member, at most 256 MiB: a tenth of a second of writing at memory speed,
    /// and what a nearly empty pool costs. A share is one of the member.
    pub populate_ahead: Option<Size>,
    /// Files, directories and links the pool can have at a time. `None`: one for every 2 KiB of the machine's memory, at most
    /// half of fs.file-max, as a file of the kernel is open to the machine. A user other than root gets at most half of what the others leave. An empty one takes less than 512 bytes besides its name, outside of
    /// the members; a file of the kernel 2.9 KB.
    pub files_max: Option<u64>,
    /// Memory that names, attributes and block maps may take besides the members; a share is one of the members' size.
    /// `None`: a quarter, at least 16 MiB; of a mount whose files are the kernel's, half, at least 64 MiB. When it is reached, what takes more fails as in a full pool. A user other than root gets at most half of
    /// what is left.
    pub metadata: Option<Size>,
    /// Owner of the pool's root directory and of what the library makes in it. `None`: this process's effective user.
    pub owner: Option<Owner>,
    /// Permission bits of the root directory. `None`: 0755.
    pub root_mode: Option<u32>,
    /// Name of a new durable pool; it may have none.
    pub name: PoolName,
    /// A durable pool is opened to be read only: nothing is written to its members, and others may read it meanwhile. Changes fail with
    /// EROFS.
    pub read_only: bool,
    /// A durable pool is opened although members are missing, to be read only. What lies on these fails with EIO.
    pub degraded: bool,
    /// Leaves the files of a new durable pool unwritten: it is made at once, and the first fsync of bytes in each place takes twice as long.
    pub unwritten: bool,
    /// Files of a new durable pool become disks of it (members of kind `block`), as whole devices are: they are reached by requests, past the page
    /// cache, and cached in the pool's own memory.
    pub direct: bool,
    /// Memory of the cache that a durable pool has for its disks, in bytes, spread over the nodes by how much memory they have. `None`: a quarter of
    /// each node's memory, or half of what is free there if that is less. A pool without disks has no cache.
    pub cache: Option<u64>,
    /// UUIDs of pools whose members may become members of a durable pool that is being made: what they hold is lost.
    pub takes_from: Vec<u128>,
    /// Files that hold other data may become members of a durable pool that is being made: the data are lost.
    pub overwrites: bool,
    /// Each file of a new durable pool that was just made for it, open for reading and writing, in the order of the files: another one in its place is
    /// refused. Nobody else can make a member of it as long as it is locked by flock(2).
    pub made: Vec<Option<Arc<File>>>,
    /// Set while a durable pool is being made, the pool is given up soon, with an error.
    pub interrupted: Option<Arc<AtomicBool>>,
    /// Time between two commits of a durable pool, 1 to 300 s: as long may a power cut take back what was not synced. `None`: a second,
    /// and with disks 5, as all that a cache has is written then. A longer one writes less of what changes again soon, and keeps freed blocks back for longer. A pool of memory has none.
    pub commit_period: Option<Duration>,
}

/// A user and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
}

impl PoolOptions {
    const AHEAD_BYTES_MAX: u64 = 256 << 20;
    /// Half of a quarter, what one user may take, is enough to fill the pool with files of 4 KiB (430 bytes each), and nearly so with
    /// files that just need a map node (4.4 KiB for 36 KiB). An empty file takes some 400 bytes.
    const METADATA_DEFAULT: Size = Size::percent(25);
    /// Where files are the kernel's, each takes 2.9 KB: what one user may take is enough to fill the pool with files of 12 KB.
    const METADATA_DEFAULT_OF_KERNEL_FILES: Size = Size::percent(50);
    /// Room for 22,000 files of the kernel in the smallest pool.
    const METADATA_BYTES_MIN_OF_KERNEL_FILES: u64 = 64 << 20;
    /// Room for 40,000 files in the smallest pool.
    const METADATA_BYTES_MIN: u64 = 16 << 20;
    /// Room for a few names: less is of no use.
    const METADATA_FLOOR_BYTES: u64 = 64 << 10;

    /// Time between two commits, unless another is set.
    const COMMIT_PERIOD_DEFAULT: Duration = Duration::from_secs(1);
    /// Time between two commits in a pool with disks, unless another is set.
    const COMMIT_PERIOD_DEFAULT_OF_DISKS: Duration = Duration::from_secs(5);
    /// Shorter ones force the disk for nothing (a program that needs more syncs its files); longer ones are mistakes.
    const COMMIT_PERIODS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(300);

    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the size of each node's member.
    #[must_use]
    pub fn size_per_node(mut self, size: Size) -> Self {
        self.size_per_node = Some(size);
        self
    }

    /// Adds a node; without any, all nodes with memory take part.
    #[must_use]
    pub fn node(mut self, node: NodeId) -> Self {
        self.nodes.push(node);
        self
    }

    /// Sets how much of each member's free memory is kept populated.
    #[must_use]
    pub fn populate_ahead(mut self, size: Size) -> Self {
        self.populate_ahead = Some(size);
        self
    }

    /// Sets how much memory names, attributes and block maps may take: at least 64 KiB.
    #[must_use]
    pub fn metadata(mut self, size: Size) -> Self {
        self.metadata = Some(size);
        self
    }

    /// Sets the time between two commits of a durable pool.
    #[must_use]
    pub fn commit_period(mut self, period: Duration) -> Self {
        self.commit_period = Some(period);
        self
    }

    /// Sets the memory of a durable pool's cache.
    #[must_use]
    pub fn cache(mut self, bytes: u64) -> Self {
        self.cache = Some(bytes);
        self
    }

    /// Time between two commits of a durable pool, which has disks or not.
    pub(crate) fn checked_commit_period(&self, has_disks: bool) -> Result<Duration, Error> {
        let period = self.commit_period.unwrap_or(match has_disks {
            true => Self::COMMIT_PERIOD_DEFAULT_OF_DISKS,
            false => Self::COMMIT_PERIOD_DEFAULT,
        });
        if Self::COMMIT_PERIODS.contains(&period) {
            Ok(period)
        } else {
            Err(Error::CommitPeriod(period))
        }
    }

    /// Bytes that metadata may take in a pool of `pool_bytes`, whose files may be the kernel's.
    pub(crate) fn metadata_bytes(&self, pool_bytes: u64, has_kernel_files: bool) -> u64 {
        let (default, least) = if has_kernel_files {
            (
                Self::METADATA_DEFAULT_OF_KERNEL_FILES,
                Self::METADATA_BYTES_MIN_OF_KERNEL_FILES,
            )
        } else {
            (Self::METADATA_DEFAULT, Self::METADATA_BYTES_MIN)
        };
        match self.metadata {
            Some(size) => size.bytes_of(pool_bytes).max(Self::METADATA_FLOOR_BYTES),
            None => default.bytes_of(pool_bytes).max(least),
        }
    }

    /// Bytes to keep populated ahead in a member of `member_bytes`.
    pub(crate) fn ahead_bytes(&self, member_bytes: u64) -> u64 {
        let ahead = match self.populate_ahead {
            Some(size) => size.bytes_of(member_bytes),
            None => (member_bytes / 4).min(Self::AHEAD_BYTES_MAX),
        };
        ahead.clamp(MEMBER_BYTES_MIN, member_bytes.max(MEMBER_BYTES_MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_at_least_a_second_and_at_most_five_minutes_apart() {
        let period = |seconds| {
            PoolOptions::new()
                .commit_period(Duration::from_secs_f64(seconds))
                .checked_commit_period(true)
        };
        for (has_disks, seconds) in [(false, 1), (true, 5)] {
            let period = PoolOptions::new().checked_commit_period(has_disks);
            assert_eq!(period.unwrap(), Duration::from_secs(seconds));
        }
        assert_eq!(period(300.0).unwrap(), Duration::from_secs(300));
        for wrong in [0.0, 0.999, 300.1] {
            assert!(period(wrong).unwrap_err().to_string().contains("1 to 300 s"));
        }
    }

    #[test]
    fn populated_ahead_is_bounded_by_the_member_and_the_default_window() {
        let default = PoolOptions::new();
        assert_eq!(default.ahead_bytes(64 << 20), 16 << 20);
        assert_eq!(default.ahead_bytes(64 << 30), 256 << 20);
        assert_eq!(default.ahead_bytes(2 << 20), 2 << 20);
        let whole = PoolOptions::new().populate_ahead(Size::percent(100));
        assert_eq!(whole.ahead_bytes(1 << 30), 1 << 30);
        let more = PoolOptions::new().populate_ahead(Size::Bytes(1 << 40));
        assert_eq!(more.ahead_bytes(1 << 30), 1 << 30);
    }
}
