//! x86-64: string instructions, 64-byte and 32-byte vectors, and non-temporal stores.
//!
//! String instructions ("repeat") know the size beforehand, so the processor writes whole lines without reading them
//! first: the best way from 2 KiB up, but for reads of 4 to 48 KiB, which gain from asking for the next lines early
//! ("paged"). Below, vectors start faster: of 64 bytes ("wide") where AVX-512 is there, which also reads best up to 8 KiB.
//! Processors without fast string instructions write large runs with non-temporal stores ("stream"); those without AVX2
//! use string instructions for everything.

mod repeat;
mod vector;
mod wide;

use super::{Copying, Method, Zeroing};
use std::arch::is_x86_feature_detected;
use std::sync::atomic::{AtomicU8, Ordering};
use vector::{LINE_BYTES, PAGE_BYTES};

/// String instructions are faster than plain vectors from here.
const REPEAT_MIN: usize = 2 << 10;
/// Reads of a page and more gain from prefetching below this.
const PAGED_MAX: usize = 48 << 10;
/// Without fast string instructions: stores that bypass the cache are faster from here, and zeros from half of it.
const STREAM_MIN: usize = 16 << 10;

/// 64-byte vectors read faster than the others from [`wide::TURN_BYTES`] up to here.
const WIDE_LOAD_MAX: usize = 8 << 10;
/// Reads gain from asking for their bytes before they are counted from here.
const ANNOUNCE_LOAD_MIN: usize = 1 << 10;

/// What this processor has.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Plan {
    /// Nobody asked yet.
    Unknown,
    /// AVX-512, AVX2 and fast string instructions.
    Wide,
    /// AVX2 and fast string instructions.
    Repeat,
    /// AVX2.
    Stream,
    /// Neither, or string instructions only.
    Basic,
}

/// Whether the place written to begins less than a line behind the place read, counted within a page. String
/// instructions are slow then: measured 1.6 times on Zen 5, reported 20 times on Zen 3.
fn aliased(to: *mut u8, from: *const u8) -> bool {
    (1..LINE_BYTES).contains(&(to.addr().wrapping_sub(from.addr()) % PAGE_BYTES))
}

/// The plan once it is known: one load, because a small copy is a few dozen instructions in all.
static PLAN: AtomicU8 = AtomicU8::new(Plan::Unknown as u8);

#[inline]
fn plan() -> Plan {
    // Relaxed: every thread finds the same plan.
    match PLAN.load(Ordering::Relaxed) {
        1 => Plan::Wide,
        2 => Plan::Repeat,
        3 => Plan::Stream,
        4 => Plan::Basic,
        _ => find_plan(),
    }
}

/// Whether the plan is known to be [`Plan::Wide`], in fewer instructions.
#[inline]
fn is_wide() -> bool {
    PLAN.load(Ordering::Relaxed) == Plan::Wide as u8
}

#[cold]
fn find_plan() -> Plan {
    let plan = if !is_x86_feature_detected!("avx2") {
        Plan::Basic
    } else if !is_x86_feature_detected!("ermsb") {
        Plan::Stream
    } else if !is_x86_feature_detected!("avx512f") {
        Plan::Repeat
    } else {
        Plan::Wide
    };
    PLAN.store(plan as u8, Ordering::Relaxed);
    plan
}

/// # Safety
/// As [`super::load`].
#[inline]
pub(super) unsafe fn load(to: *mut u8, from: *const u8, bytes: usize) {
    if is_wide() && (wide::TURN_BYTES..=WIDE_LOAD_MAX).contains(&bytes) {
        // SAFETY: the caller promises the same; AVX-512 is there and a turn at least to copy.
        unsafe { wide::copy(to, from, bytes) }
    } else {
        // SAFETY: the caller promises the same.
        unsafe { load_otherwise(to, from, bytes) }
    }
}

/// # Safety
/// As [`super::load`].
unsafe fn load_otherwise(to: *mut u8, from: *const u8, bytes: usize) {
    let chosen: Copying = match plan() {
        Plan::Wide | Plan::Repeat | Plan::Stream if (PAGE_BYTES..PAGED_MAX).contains(&bytes) => vector::paged,
        Plan::Wide | Plan::Repeat if bytes >= REPEAT_MIN && !aliased(to, from) => repeat::copy,
        Plan::Wide | Plan::Repeat | Plan::Stream if bytes >= LINE_BYTES => vector::copy,
        _ => repeat::copy,
    };
    // SAFETY: the caller promises the same; where vectors were chosen AVX2 is there and a line at least to copy.
    unsafe { chosen(to, from, bytes) }
}

/// # Safety
/// As [`super::store`].
#[inline]
pub(super) unsafe fn store(to: *mut u8, from: *const u8, bytes: usize) {
    if is_wide() && (wide::TURN_BYTES..REPEAT_MIN).contains(&bytes) {
        // SAFETY: the caller promises the same; AVX-512 is there and a turn at least to copy.
        unsafe { wide::copy(to, from, bytes) }
    } else {
        // SAFETY: the caller promises the same.
        unsafe { store_otherwise(to, from, bytes) }
    }
}

/// # Safety
/// As [`super::store`].
unsafe fn store_otherwise(to: *mut u8, from: *const u8, bytes: usize) {
    let chosen: Copying = match plan() {
        Plan::Wide | Plan::Repeat if bytes >= REPEAT_MIN && !aliased(to, from) => repeat::copy,
        Plan::Wide | Plan::Repeat | Plan::Stream if bytes >= STREAM_MIN => vector::stream,
        Plan::Wide | Plan::Repeat | Plan::Stream if bytes >= LINE_BYTES => vector::copy,
        _ => repeat::copy,
    };
    // SAFETY: as in `load_otherwise`.
    unsafe { chosen(to, from, bytes) }
}

/// Writes gain that string instructions do not make (those need no line's old bytes), and reads that are no smaller than
/// what is done around them, up to a page: longer ones ask for their next lines themselves.
#[inline]
pub(super) fn gains(bytes: usize, to_write: bool) -> bool {
    if to_write {
        bytes < REPEAT_MIN
    } else {
        (ANNOUNCE_LOAD_MIN..=PAGE_BYTES).contains(&bytes)
    }
}

#[inline]
pub(super) fn announce(at: *const u8, bytes: usize, to_write: bool) {
    if to_write {
        wide::prefetch_to_write(at, bytes);
    } else {
        wide::prefetch(at, bytes);
    }
}

/// # Safety
/// As [`super::within`].
#[inline]
pub(super) unsafe fn within(to: *mut u8, from: *const u8, bytes: usize) {
    // Neither side is in the cache: what is best for the side that is written decides.
    // SAFETY: the caller promises the same.
    unsafe { store(to, from, bytes) }
}

/// # Safety
/// As [`super::zero`].
#[inline]
pub(super) unsafe fn zero(at: *mut u8, bytes: usize) {
    let chosen: Zeroing = match plan() {
        Plan::Wide | Plan::Repeat if bytes >= REPEAT_MIN => repeat::zero,
        Plan::Stream if bytes >= STREAM_MIN / 2 => vector::stream_zero,
        Plan::Wide | Plan::Repeat | Plan::Stream if bytes >= LINE_BYTES => vector::zero,
        _ => repeat::zero,
    };
    // SAFETY: as in `load`.
    unsafe { chosen(at, bytes) }
}

/// The ways to compare. All but the string instructions need AVX2, and a line of bytes at least.
pub(super) fn methods() -> Vec<Method> {
    let mut methods = vec![Method {
        name: "repeat",
        load: repeat::copy,
        store: repeat::copy,
        zero: repeat::zero,
    }];
    if !matches!(plan(), Plan::Basic) {
        methods.extend([
            Method {
                name: "vector",
                load: vector::copy,
                store: vector::copy,
                zero: vector::zero,
            },
            Method {
                name: "paged",
                load: vector::paged,
                store: vector::paged,
                zero: vector::zero,
            },
            Method {
                name: "stream",
                load: vector::stream,
                store: vector::stream,
                zero: vector::stream_zero,
            },
        ]);
    }
    methods
}
