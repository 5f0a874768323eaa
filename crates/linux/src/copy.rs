//! Every copy to, from and within the pool: the one place that touches the pool's bytes.
//!
//! The pool's bytes are shared: other threads may copy to and from the same bytes at the same time. A reader then gets a
//! mix of old and new bytes, as with two `pwrite` calls; that must be all. So no reference to the pool's bytes ever
//! exists, and on x86-64 the bytes move in inline assembly only: the compiler knows nothing of these accesses but that
//! memory may change, so it can neither assume that a byte stays the same nor invent a second read of it. Other processors get the C library's `memcpy`, which is as opaque to the compiler.
//!
//! Which instructions move the bytes depends on the size, the direction and the processor: by rules from measurements
//! (`docs/decisions/001-copies.md`) and by one measurement of a millisecond when the process makes its first pool
//! ([`choice`]). `cargo run --release -p homenode-linux --example copy` repeats
//! the measurements.
//!
//! Ordering: when a function here returns, its stores are ordered before every later store of the thread (string
//! instructions order themselves against later stores, and non-temporal stores are followed by `sfence`), so a block
//! that is published after it was filled is seen filled.

#[cfg(not(target_arch = "x86_64"))]
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(not(target_arch = "x86_64"))]
use portable as processor;
use std::fmt::Display;
#[cfg(target_arch = "x86_64")]
use x86 as processor;

/// Copies `bytes` out of the pool at `from`.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes`; they do not overlap, and who else uses the bytes at `to` at the same
/// time does so by this module or is the kernel.
#[inline(always)]
pub unsafe fn load(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller promises the same.
    unsafe { processor::load(to, from, bytes) }
}

/// Copies `bytes` into the pool at `to`.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes`; they do not overlap, and who else changes the bytes at `from` at the
/// same time does so by this module or is the kernel.
#[inline(always)]
pub unsafe fn store(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller promises the same.
    unsafe { processor::store(to, from, bytes) }
}

/// Returns the choice for this processor, and why, in words. The first call in a process measures, for a millisecond on an
/// idle CPU: made before the first copy, no copy waits for it.
pub fn choice() -> impl Display {
    processor::choice()
}

/// Whether [`announce`] helps copies of that many bytes.
#[inline]
#[must_use]
pub fn gains(bytes: usize, to_write: bool) -> bool {
    processor::gains(bytes, to_write)
}

/// Asks the processor for the bytes of a copy that is about to come. Any address will do.
#[inline]
pub fn announce(at: *const u8, bytes: usize, to_write: bool) {
    processor::announce(at, bytes, to_write);
}

/// Whether [`write_back`] reaches persistent memory: on other processors the kernel does it.
pub(crate) const WRITES_BACK: bool = cfg!(target_arch = "x86_64");

/// Writes `bytes` at `at` from the processor's caches to persistent memory, and returns when they are there.
///
/// # Safety
/// The bytes are mapped.
pub(crate) unsafe fn write_back(at: *const u8, bytes: usize) {
    // SAFETY: the caller promises the same.
    unsafe { processor::write_back(at, bytes) }
}

/// Copies `bytes` from one place in the pool to another.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes`; they do not overlap.
#[inline]
pub unsafe fn within(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller promises the same.
    unsafe { processor::within(to, from, bytes) }
}

/// Writes `bytes` zeros into the pool at `at`.
///
/// # Safety
/// `at` is writable for `bytes`.
#[inline]
pub unsafe fn zero(at: *mut u8, bytes: usize) {
    // SAFETY: the caller promises the same.
    unsafe { processor::zero(at, bytes) }
}

/// A way to move 64 bytes or more, for measuring it against other ways.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Name of the method, such as `repeat` or `memcpy`; `in use` for the choice.
    pub name: &'static str,
    /// Copies out of the pool: to, from, bytes, under the terms of [`load`].
    pub load: Copying,
    /// Copies into the pool: to, from, bytes, under the terms of [`store`].
    pub store: Copying,
    /// Zeroes: at, bytes, under the terms of [`zero`].
    pub zero: Zeroing,
}

/// To, from, bytes.
pub type Copying = unsafe fn(*mut u8, *const u8, usize);
/// At, bytes.
pub type Zeroing = unsafe fn(*mut u8, usize);

/// The ways this processor can move bytes; the first is the one in use, which picks among the others by size (and takes
/// every size).
#[must_use]
pub fn methods() -> Vec<Method> {
    let mut methods = vec![Method {
        name: "in use",
        load,
        store,
        zero,
    }];
    methods.extend(processor::methods());
    methods
}

#[cfg(test)]
mod tests;
