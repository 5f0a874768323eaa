//! Reads and writes of a mount's callers, and what gave memory back, one after another, for a trace.
//!
//! Each server thread keeps its own. Nothing is kept before somebody asks, nor after [`LEASE`] requests without anyone asking; more than
//! [`KEPT_MAX`] are lost and counted. Two who ask at the same time share what there is.
//! Not seen: reads and writes that the kernel serves by itself.
//! Cost: while somebody asks, 160 KiB for each thread, and for each request an uncontended lock, the clock, and on the classic transport a look
//! into /proc for the caller's CPU. The memory is taken by whoever asks, never by a request, and freed when the last question is asked or the lease ends.

use crate::tasks::Lease;
use homenode_engine::FileAccess;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Instant;

/// Accesses that a thread keeps at most.
const KEPT_MAX: usize = 1 << 12;
/// Requests for which a thread keeps its memory when nobody asks any more: a recorder that was killed leaves it for no longer.
const LEASE: u32 = 1 << 14;
const _: () = assert!(LEASE as usize > 2 * KEPT_MAX);
const _: () = assert!(KEPT_MAX * size_of::<FileAccess>() <= 160 << 10);
/// Times are counted from here.
static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Accesses since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accessed {
    /// In the order of their times.
    pub accesses: Vec<FileAccess>,
    /// Accesses that were not kept.
    pub lost: u64,
}

/// Accesses of one server thread.
#[derive(Debug, Default)]
pub(crate) struct Accesses {
    lease: Lease,
    kept: Mutex<Accessed>,
}

impl Accesses {
    /// Keeps an access where somebody asks for them; its time is filled in.
    pub(crate) fn note(&self, access: impl FnOnce() -> Option<FileAccess>) {
        if self.lease.is_over() {
            return;
        }
        let Some(access) = access() else { return };
        if !self.lease.counts() {
            return;
        }
        let is_last = self.lease.is_over();
        let at_ns = u64::try_from(BEGIN.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let access = FileAccess { at_ns, ..access };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if is_last {
            *kept = Accessed::default();
        } else if kept.accesses.len() < kept.accesses.capacity() {
            kept.accesses.push(access);
        } else {
            kept.lost += 1;
        }
    }

    /// Moves what was kept to `all`, and has more kept unless this `ends` it.
    pub(crate) fn take(&self, ends: bool, all: &mut Accessed) {
        LazyLock::force(&BEGIN);
        let room = if ends { 0 } else { KEPT_MAX };
        let new = Accessed {
            accesses: Vec::with_capacity(room),
            lost: 0,
        };
        let kept = std::mem::replace(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner), new);
        if ends {
            self.lease.end();
        } else {
            self.lease.renew(LEASE);
        }
        all.accesses.extend(kept.accesses);
        all.lost += kept.lost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use homenode_engine::{AccessKind, NodeId};

    fn access(file: u64) -> FileAccess {
        FileAccess {
            at_ns: 0,
            node: NodeId(1),
            file,
            offset: 4096,
            bytes: 512,
            kind: AccessKind::Write,
        }
    }

    #[test]
    fn accesses_are_kept_while_somebody_asks_and_the_rest_is_counted() {
        let accesses = Accesses::default();
        accesses.note(|| panic!("nobody has asked"));
        let take = || {
            let mut all = Accessed::default();
            accesses.take(false, &mut all);
            all
        };
        assert_eq!(take(), Accessed::default());
        (0..KEPT_MAX as u64 + 3).for_each(|file| accesses.note(|| Some(access(file))));
        let all = take();
        assert_eq!((all.accesses.len(), all.lost), (KEPT_MAX, 3));
        assert!(all.accesses.is_sorted_by_key(|access| access.at_ns));
        assert_eq!(
            FileAccess {
                at_ns: 0,
                ..all.accesses[7]
            },
            access(7)
        );
        assert_eq!(take(), Accessed::default());
        accesses.note(|| Some(access(1)));
        let mut last = Accessed::default();
        accesses.take(true, &mut last);
        assert_eq!(last.accesses.len(), 1);
        // A recorder that was killed: the lease ends, and with it the memory.
        assert_eq!(take(), Accessed::default());
        (0..u64::from(LEASE)).for_each(|file| accesses.note(|| Some(access(file))));
        assert_eq!(accesses.kept.lock().unwrap().accesses.capacity(), 0);
        accesses.take(true, &mut last);
        accesses.note(|| panic!("nobody asks any more"));
        assert_eq!(accesses.kept.lock().unwrap().accesses.capacity(), 0);
    }
}
