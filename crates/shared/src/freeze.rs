//! How a device's cores are told to start nothing more, and how it is seen that none has anything under way.
//!
//! A core *begins* by writing that it has, and then looks whether it may; whoever *freezes* writes that first, and then looks
//! whether cores have begun. Each side writes before it reads, so at least one of them sees the other (Dekker's argument).
//!
//! Invariants: a core that may begin is not drained until it ends; a frozen device that is drained stays so until it thaws.
//! Cost: one ordered store when a core begins, none while it is busy; a load of a line that is hardly ever written each time
//! it would start something.

use crate::sync::{AtomicBool, AtomicU64, Ordering, OwnLine, fence};

/// Whether a device is frozen, and which cores have something under way.
#[derive(Debug)]
pub struct Freeze {
    frozen: AtomicU64,
    begun: Box<[OwnLine<AtomicBool>]>,
}

impl Freeze {
    /// Makes the state of a device with `cores` cores: no core has begun, and the device is not frozen.
    #[must_use]
    pub fn new(cores: usize) -> Self {
        Self {
            frozen: AtomicU64::new(0),
            begun: (0..cores).map(|_| OwnLine(AtomicBool::new(false))).collect(),
        }
    }

    /// Whether `core` may start something. It has begun then, until it says that it has ended; if it had not begun before and may
    /// not, it still has not.
    #[inline]
    #[must_use]
    pub fn begin(&self, core: usize, has_begun: bool) -> bool {
        let begun = &self.begun[core].0;
        if !has_begun {
            // Relaxed: the fence orders it before the load below.
            begun.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        // Acquire: what was done while it was frozen is seen when it has thawed.
        let may_begin = self.frozen.load(Ordering::Acquire) == 0;
        if !has_begun && !may_begin {
            begun.store(false, Ordering::Release);
        }
        may_begin
    }

    /// Nothing of `core` is under way any more.
    #[inline]
    pub fn end(&self, core: usize) {
        // Release: whoever sees it sees what was done before.
        self.begun[core].0.store(false, Ordering::Release);
    }

    /// From now on no core may begin. Freezing twice takes thawing twice.
    pub fn freeze(&self) {
        // Relaxed: the fence in `is_drained` orders it before the loads there.
        self.frozen.fetch_add(1, Ordering::Relaxed);
    }

    /// Undoes one [`Freeze::freeze`].
    ///
    /// # Panics
    /// When it is not frozen.
    pub fn thaw(&self) {
        // Release: see `begin`.
        let before = self.frozen.fetch_sub(1, Ordering::Release);
        assert!(before > 0, "thaw without a freeze");
    }

    /// Whether no core has anything under way.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        fence(Ordering::SeqCst);
        // Acquire pairs with the release in `end`.
        self.begun.iter().all(|begun| !begun.0.load(Ordering::Acquire))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_freeze_lets_started_work_finish_and_starts_none() {
        let freeze = Freeze::new(2);
        assert!(freeze.begin(0, false));
        freeze.freeze();
        assert!(!freeze.begin(1, false));
        assert!(!freeze.begin(0, true));
        assert!(!freeze.is_drained());
        freeze.end(0);
        assert!(freeze.is_drained());
        freeze.thaw();
        assert!(freeze.begin(1, false));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;
    use std::sync::Arc;

    /// Once a frozen device is drained nobody is in it, and what was done there is seen.
    #[test]
    fn loom_a_drained_device_is_empty() {
        loom::model(|| {
            let freeze = Arc::new(Freeze::new(1));
            let is_inside = Arc::new(AtomicBool::new(false));
            let core = {
                let (freeze, is_inside) = (Arc::clone(&freeze), Arc::clone(&is_inside));
                thread::spawn(move || {
                    if freeze.begin(0, false) {
                        // Relaxed: the freeze is to order it.
                        is_inside.store(true, Ordering::Relaxed);
                        is_inside.store(false, Ordering::Relaxed);
                        freeze.end(0);
                    }
                })
            };
            freeze.freeze();
            if freeze.is_drained() {
                assert!(!is_inside.load(Ordering::Relaxed));
            }
            core.join().expect("the thread does not panic");
        });
    }
}
