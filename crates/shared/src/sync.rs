//! Atomics: the standard library's, or loom's when it explores interleavings.

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread::yield_now,
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread::yield_now,
};

#[cfg(not(loom))]
pub(crate) use parking_lot::Mutex;

/// Mutex with parking_lot's interface; loom knows what it orders.
#[cfg(loom)]
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().expect("loom's mutexes are never poisoned")
    }
}

/// Condition variable like parking_lot's, but a wait takes and returns the guard, as loom's does.
#[derive(Debug, Default)]
pub(crate) struct Condvar(#[cfg(not(loom))] parking_lot::Condvar, #[cfg(loom)] loom::sync::Condvar);

impl Condvar {
    #[cfg(not(loom))]
    pub(crate) fn wait<'a, T>(&self, mut guard: parking_lot::MutexGuard<'a, T>) -> parking_lot::MutexGuard<'a, T> {
        self.0.wait(&mut guard);
        guard
    }

    #[cfg(loom)]
    pub(crate) fn wait<'a, T>(&self, guard: loom::sync::MutexGuard<'a, T>) -> loom::sync::MutexGuard<'a, T> {
        self.0.wait(guard).expect("loom's mutexes are never poisoned")
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }
}

/// Waits a little: spins first, then lets other threads run.
#[derive(Debug, Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    /// Rounds of spinning (a few hundred ns) before the CPU is offered to others.
    const SPINS: u32 = 64;

    pub(crate) fn wait(&mut self) {
        self.0 += 1;
        if self.0 < Self::SPINS && cfg!(not(loom)) {
            spin_loop();
        } else {
            yield_now();
        }
    }
}

/// Two cache lines that nothing else is on: adjacent lines are prefetched in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct OwnLine<T>(pub(crate) T);

/// Bytes of one [`OwnLine`].
pub(crate) const LINE_BYTES: usize = 128;
