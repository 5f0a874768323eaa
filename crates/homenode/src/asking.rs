//! Who asks: this thread's slot, its CPU and its node.
//!
//! Every thread that works with a pool claims one slot of it, on first use, and keeps it in thread-local storage until it
//! ends; slots of pools that are gone are let go at the next claim. Cost on the data path: one thread-local load, one
//! comparison and the CPU's number; no lock, no allocation, no system call.

use crate::pool::Inner;
use homenode_engine::fs::Asking;
use homenode_shared::{Slot, SlotNumber};
use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};

/// A slot of one pool, held by this thread.
struct Claim {
    pool: u64,
    alive: Weak<()>,
    slot: Slot,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if CURRENT.get().0 == self.pool {
            CURRENT.set(NONE);
        }
    }
}

/// No pool has this number.
const NONE: (u64, SlotNumber) = (0, SlotNumber::FIRST);

thread_local! {
    /// The pool used last comes first.
    static CLAIMS: RefCell<Vec<Claim>> = const { RefCell::new(Vec::new()) };
    /// The first claim's pool and slot number, for the data path: it can be read even while the thread ends.
    static CURRENT: Cell<(u64, SlotNumber)> = const { Cell::new(NONE) };
}

impl Inner {
    /// Runs `operation` as the calling thread and gives what it gave.
    ///
    /// The result leaves in parts: moved as a whole through the layers below, it would be copied in pieces that overlap,
    /// and reading those right after they were written costs more than everything else here.
    #[inline]
    pub(crate) fn asking<R: Default, E>(&self, mut operation: impl FnMut(&Asking<'_>) -> Result<R, E>) -> Result<R, E> {
        let mut value = R::default();
        let mut error = None;
        self.run_with_slot(&mut |slot| {
            let cpu = homenode_linux::cpu::current_cpu();
            let node = || self.fs.pool().cpu_node(cpu);
            match operation(&Asking {
                waits: true,
                slot,
                cpu,
                node: &node,
                user: Some(0),
            }) {
                Ok(result) => value = result,
                Err(problem) => error = Some(problem),
            }
        });
        match error {
            None => Ok(value),
            Some(error) => Err(error),
        }
    }

    /// Number of the slot that this thread has claimed, if it used this pool last.
    #[inline]
    pub(crate) fn current_slot(&self) -> Option<SlotNumber> {
        let (pool, slot) = CURRENT.get();
        (pool == self.id).then_some(slot)
    }

    #[inline]
    fn run_with_slot(&self, operation: &mut impl FnMut(&Slot)) {
        let done = CLAIMS.try_with(|claims| {
            // Shared borrows nest, so an operation may call back into the library.
            let Ok(claims) = claims.try_borrow() else { return false };
            match claims.first() {
                Some(claim) if claim.pool == self.id => {
                    operation(&claim.slot);
                    true
                }
                _ => false,
            }
        });
        if done != Ok(true) {
            self.run_with_new_slot(operation);
        }
    }

    /// First use of this pool by this thread, another pool used in between, a thread that is ending, or no slot left.
    #[cold]
    fn run_with_new_slot(&self, operation: &mut impl FnMut(&Slot)) {
        let ready = CLAIMS.try_with(|claims| {
            let Ok(mut claims) = claims.try_borrow_mut() else {
                return false;
            };
            self.bring_to_front(&mut claims)
        });
        if ready == Ok(true) {
            return self.run_with_slot(operation);
        }
        // More threads than slots: they share one, one at a time.
        operation(&self.common_slot.lock());
    }

    /// Makes this pool's claim the first; claims a slot where there is none. False when all slots are taken.
    fn bring_to_front(&self, claims: &mut Vec<Claim>) -> bool {
        if let Some(index) = claims.iter().position(|claim| claim.pool == self.id) {
            claims.swap(0, index);
            CURRENT.set((self.id, claims[0].slot.number()));
            return true;
        }
        claims.retain(|claim| claim.alive.strong_count() > 0);
        let Some(slot) = self.fs.slots().claim() else {
            return false;
        };
        self.note_holder(slot.number());
        if self.fs.is_durable() {
            homenode_shared::let_bus_errors_through();
        }
        let alive = Arc::downgrade(&self.alive);
        CURRENT.set((self.id, slot.number()));
        claims.insert(
            0,
            Claim {
                pool: self.id,
                alive,
                slot,
            },
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::{NodeId, Pool, PoolOptions, Size};
    use std::iter::from_fn;
    use std::thread;

    fn pool() -> Pool {
        Pool::create(&PoolOptions::new().size_per_node(Size::Bytes(4 << 20)).node(NodeId(0))).unwrap()
    }

    /// Slots nobody holds; all of them are held for a moment.
    fn free_slots(pool: &Pool) -> usize {
        from_fn(|| pool.inner.fs.slots().claim()).collect::<Vec<_>>().len()
    }

    #[test]
    fn a_thread_holds_one_slot_until_it_ends() {
        let pool = pool();
        let file = pool.create_file("f").unwrap();
        let before = free_slots(&pool);
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                for _ in 0..10 {
                    file.write_all_at(b"x", 0).unwrap();
                }
                assert_eq!(free_slots(&pool), before - 1);
            });
            thread.join().unwrap();
        });
        assert_eq!(free_slots(&pool), before);
    }

    #[test]
    fn threads_without_a_slot_share_one() {
        let pool = pool();
        let file = pool.create_file("f").unwrap();
        let held: Vec<_> = from_fn(|| pool.inner.fs.slots().claim()).collect();
        thread::scope(|scope| {
            for thread in 0..4_u64 {
                let file = &file;
                scope.spawn(move || {
                    for round in 0..1000_u64 {
                        file.write_all_at(&round.to_le_bytes(), thread * 8).unwrap();
                        let mut back = [0; 8];
                        assert!(file.read_exact_at(&mut back, thread * 8).unwrap());
                        assert_eq!(u64::from_le_bytes(back), round);
                    }
                });
            }
        });
        drop(held);
        file.write_all_at(b"x", 0).unwrap();
        assert_eq!(file.metadata().len(), 32);
    }

    #[test]
    fn slots_of_closed_pools_are_released() {
        let (gone, kept) = (pool(), pool());
        gone.create_file("f").unwrap().write_all_at(b"x", 0).unwrap();
        drop(gone);
        kept.create_file("f").unwrap().write_all_at(b"x", 0).unwrap();
        super::CLAIMS.with_borrow(|claims| {
            assert_eq!(
                claims.iter().map(|claim| claim.pool).collect::<Vec<_>>(),
                [kept.inner.id]
            );
        });
    }
}
