//! Atomics: the standard library's, or loom's when it explores interleavings.

#[cfg(loom)]
pub(crate) use loom::{
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

/// Waits a little: spins first, then lets other threads run, at last sleeps.
#[derive(Debug, Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    /// Rounds of spinning (a few hundred ns) before the CPU is offered to others.
    #[cfg(not(loom))]
    const SPINS: u32 = 64;

    /// Rounds before the thread sleeps. A thread of real-time priority offers its CPU to no other thread by yielding.
    #[cfg(not(loom))]
    const YIELDS: u32 = 1024;
    #[cfg(not(loom))]
    const SLEEP: std::time::Duration = std::time::Duration::from_micros(50);

    #[cfg(not(loom))]
    pub(crate) fn wait(&mut self) {
        self.0 = self.0.saturating_add(1);
        match self.0 {
            ..Self::SPINS => spin_loop(),
            Self::SPINS..Self::YIELDS => yield_now(),
            _ => std::thread::sleep(Self::SLEEP),
        }
    }

    #[cfg(loom)]
    pub(crate) fn wait(&mut self) {
        self.0 = self.0.saturating_add(1);
        yield_now();
    }
}

/// Two cache lines that nothing else is on: adjacent lines are prefetched in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct OwnLine<T>(pub(crate) T);

/// Bytes of one [`OwnLine`].
pub(crate) const LINE_BYTES: usize = 128;

/// Runs `work` in a thread of loom's, with its own handles of what the threads share.
#[cfg(all(test, loom))]
pub(crate) fn beside<S: 'static, R: 'static>(
    shared: S,
    work: impl FnOnce(S) -> R + 'static,
) -> loom::thread::JoinHandle<R> {
    loom::thread::spawn(move || work(shared))
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// CPU time of this thread.
    fn used() -> Duration {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts CPU time");
        let used = text.split(' ').next().and_then(|used| used.parse().ok());
        Duration::from_nanos(used.expect("its first number is the time on a CPU, in ns"))
    }

    /// Spinning alone would use all CPU time, and a thread of real-time priority would keep others away.
    #[test]
    fn a_long_wait_yields_the_cpu() {
        let (begun, before, mut backoff) = (Instant::now(), used(), Backoff::default());
        while begun.elapsed() < Duration::from_millis(300) {
            backoff.wait();
        }
        let used = used() - before;
        assert!(used < Duration::from_millis(150), "{used:?}");
    }
}
