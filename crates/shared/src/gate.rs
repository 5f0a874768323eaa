//! The gate of an inode: open to threads that copy without a lock, or closed; and where they sleep while it is closed.
//!
//! Sleepers are woken one after the other: opening wakes one, which gets the *baton*, enters, and passes the baton on. So
//! opening costs one wake at most, however many sleep, and a thread that closes again at once meets one woken thread
//! and not a crowd of them. While the baton is out nobody else is woken.
//!
//! Invariants: when threads sleep, either the baton is out or the gate says so ([`ASLEEP`]), and a thread that opens the
//! gate, or enters the open gate, sees that and sends the baton.
//! Cost: an open gate without sleepers is one word that reads as 0.

use crate::sync::{AtomicU32, Condvar, Mutex, Ordering};

/// The gate is closed.
const CLOSED: u32 = 1;
/// Threads sleep, and no baton is out.
const ASLEEP: u32 = 2;

/// An inode's door for threads that copy without a lock.
#[derive(Debug)]
pub struct Gate {
    state: AtomicU32,
    sleepers: Mutex<Sleepers>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Sleepers {
    count: u32,
    baton_is_out: bool,
    /// The baton is on its way to one of the sleepers.
    is_sent: bool,
}

/// State of a gate as an entering thread saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen(u32);

impl Seen {
    /// It is open, and nobody sleeps.
    #[inline(always)]
    pub(crate) fn is_clear(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            state: AtomicU32::new(0),
            sleepers: Mutex::new(Sleepers::default()),
            wake: Condvar::default(),
        }
    }
}

impl Gate {
    #[inline(always)]
    pub(crate) fn look(&self) -> Seen {
        // SeqCst: comes after the claim of the slot, which a closing thread may have missed; also acquires what the last
        // closer did.
        Seen(self.state.load(Ordering::SeqCst))
    }

    pub(crate) fn shut(&self) {
        self.state.fetch_or(CLOSED, Ordering::SeqCst);
    }

    pub(crate) fn open(&self) {
        // Release: what was done while it was closed is visible to threads that enter. SeqCst: either a thread that is about
        // to sleep sees the gate open, or it is seen here.
        if self.state.fetch_and(!CLOSED, Ordering::SeqCst) & ASLEEP != 0 {
            self.wake_one();
        }
    }

    /// Sends the baton to a sleeper, if there is one and the baton is not out.
    #[cold]
    pub(crate) fn wake_one(&self) {
        self.send(&mut self.sleepers.lock());
    }

    fn send(&self, sleepers: &mut Sleepers) {
        self.state.fetch_and(!ASLEEP, Ordering::SeqCst);
        if sleepers.count > 0 && !sleepers.baton_is_out {
            sleepers.baton_is_out = true;
            sleepers.is_sent = true;
            self.wake.notify_one();
        }
    }

    /// Sleeps until the baton comes; `None` when the gate is found open. The gate may be closed again when this returns:
    /// hold the baton until this thread has entered.
    #[must_use]
    pub fn sleep(&self) -> Option<Baton<'_>> {
        let mut sleepers = self.sleepers.lock();
        let state = if sleepers.baton_is_out {
            // The thread that has it will look for sleepers when it has entered.
            self.state.load(Ordering::SeqCst)
        } else {
            self.state.fetch_or(ASLEEP, Ordering::SeqCst)
        };
        if state & CLOSED == 0 {
            if sleepers.count == 0 {
                self.state.fetch_and(!ASLEEP, Ordering::SeqCst);
            }
            return None;
        }
        sleepers.count += 1;
        while !sleepers.is_sent {
            sleepers = self.wake.wait(sleepers);
        }
        sleepers.is_sent = false;
        sleepers.count -= 1;
        Some(Baton { gate: self })
    }
}

/// The turn of a thread that was woken. Passed to the next sleeper when dropped.
#[derive(Debug)]
#[must_use]
pub struct Baton<'a> {
    gate: &'a Gate,
}

impl Drop for Baton<'_> {
    fn drop(&mut self) {
        let mut sleepers = self.gate.sleepers.lock();
        sleepers.baton_is_out = false;
        if sleepers.count > 0 && self.gate.state.fetch_or(ASLEEP, Ordering::SeqCst) & CLOSED == 0 {
            self.gate.send(&mut sleepers);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// Sleepers leave in turn, each with the baton.
    #[test]
    fn an_opened_gate_wakes_all_sleepers_in_turn() {
        const SLEEPERS: u32 = 5;
        let gate = Gate::default();
        gate.shut();
        let (woken, order) = channel();
        std::thread::scope(|scope| {
            for _ in 0..SLEEPERS {
                let (gate, woken) = (&gate, woken.clone());
                scope.spawn(move || {
                    let baton = gate.sleep();
                    woken.send(baton.is_some()).expect("the test listens");
                });
            }
            while gate.sleepers.lock().count < SLEEPERS {
                std::thread::yield_now();
            }
            gate.open();
            for _ in 0..SLEEPERS {
                assert!(order.recv().expect("threads live"), "the thread did not sleep");
            }
        });
        assert!(gate.look().is_clear());
        assert!(gate.sleep().is_none(), "a thread sleeps at an open gate");
        assert!(gate.look().is_clear());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Nobody sleeps for ever at a gate that is opened: loom reports a deadlock otherwise.
    #[test]
    fn loom_two_sleepers_come_through_two_closings() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let gate = Arc::new(Gate::default());
            gate.shut();
            let pass = |gate: Arc<Gate>| {
                let mut baton = None;
                loop {
                    let seen = gate.look();
                    if !seen.is_closed() {
                        // As a thread that enters.
                        if !seen.is_clear() {
                            gate.wake_one();
                        }
                        break;
                    }
                    drop(baton.take());
                    baton = gate.sleep();
                }
                drop(baton);
            };
            let threads = [Arc::clone(&gate), Arc::clone(&gate)].map(|gate| thread::spawn(move || pass(gate)));
            gate.open();
            gate.shut();
            gate.open();
            for thread in threads {
                thread.join().expect("the thread does not panic");
            }
            assert!(gate.look().is_clear());
        });
    }
}
