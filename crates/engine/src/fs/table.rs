//! All live inodes by number.

use super::inode::{Body, Inode, Life};
use super::placement::Policy;
use super::{Error, Ino, NewInode, Result};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// Locks that inodes are spread over.
const SHARDS: usize = 64;

#[derive(Debug)]
pub(super) struct Table {
    shards: [RwLock<HashMap<u64, Arc<Inode>>>; SHARDS],
    /// The last number given out.
    last: AtomicU64,
    live: AtomicU64,
    files_max: u64,
}

impl Table {
    /// A table for at most `files_max` inodes.
    pub(super) fn new(files_max: u64) -> Self {
        Self {
            shards: std::array::from_fn(|_| RwLock::default()),
            last: AtomicU64::new(0),
            live: AtomicU64::new(0),
            files_max,
        }
    }

    /// A new inode with one link; [`Error::NoSpace`] when there are too many.
    pub(super) fn add(&self, new: NewInode, body: Body, now_ns: i64) -> Result<Arc<Inode>> {
        if self.live.fetch_add(1, Ordering::Relaxed) >= self.files_max {
            self.live.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::NoSpace);
        }
        let ino = Ino(self.last.fetch_add(1, Ordering::Relaxed) + 1);
        let inode = Arc::new(Inode {
            ino,
            mode: AtomicU32::new(new.mode),
            uid: AtomicU32::new(new.uid),
            gid: AtomicU32::new(new.gid),
            rdev: new.rdev,
            policy: Policy::default(),
            atime_ns: AtomicI64::new(now_ns),
            mtime_ns: AtomicI64::new(now_ns),
            ctime_ns: AtomicI64::new(now_ns),
            btime_ns: now_ns,
            life: Mutex::new(Life {
                links: 1,
                pins: 0,
                evicted: false,
            }),
            xattrs: Mutex::new(None),
            body,
        });
        self.shard(ino).write().insert(ino.0, Arc::clone(&inode));
        Ok(inode)
    }

    pub(super) fn find(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.shard(ino).read().get(&ino.0).cloned()
    }

    pub(super) fn remove(&self, ino: Ino) {
        if self.shard(ino).write().remove(&ino.0).is_some() {
            self.live.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// How many there may be.
    pub(super) fn files_max(&self) -> u64 {
        self.files_max
    }

    pub(super) fn for_each(&self, mut visit: impl FnMut(&Arc<Inode>)) {
        for shard in &self.shards {
            // Not under the lock: visiting may take long, and may evict.
            let inodes: Vec<_> = shard.read().values().cloned().collect();
            inodes.iter().for_each(&mut visit);
        }
    }

    fn shard(&self, ino: Ino) -> &RwLock<HashMap<u64, Arc<Inode>>> {
        // The remainder is below SHARDS.
        &self.shards[usize::try_from(ino.0 % SHARDS as u64).expect("small")]
    }
}
