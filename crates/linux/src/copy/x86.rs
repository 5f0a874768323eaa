//! x86-64: string instructions, 32-byte vectors, and non-temporal stores.
//!
//! String instructions ("repeat") know the size beforehand, so the processor writes whole lines without reading them
//! first: the best way from 2 KiB up, but for reads of 4 to 48 KiB, which gain from asking for the next lines early
//! ("paged"). Below, vectors start faster. Processors without fast string instructions write large runs with
//! non-temporal stores ("stream"); those without AVX2 use string instructions for everything.

mod repeat;
mod vector;

use super::{Copying, Method, Zeroing};
use std::arch::is_x86_feature_detected;
use vector::{LINE_BYTES, PAGE_BYTES};

/// String instructions are faster than plain vectors from here.
const REPEAT_MIN: usize = 2 << 10;
/// Reads of a page and more gain from prefetching below this.
const PAGED_MAX: usize = 48 << 10;
/// Without fast string instructions: stores that bypass the cache are faster from here, and zeros from half of it.
const STREAM_MIN: usize = 16 << 10;

/// What this processor has.
#[derive(Clone, Copy)]
enum Plan {
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

/// Tests flags that the standard library keeps after the first call.
#[inline]
fn plan() -> Plan {
    if !is_x86_feature_detected!("avx2") {
        Plan::Basic
    } else if is_x86_feature_detected!("ermsb") {
        Plan::Repeat
    } else {
        Plan::Stream
    }
}

/// # Safety
/// As [`super::load`].
#[inline]
pub(super) unsafe fn load(to: *mut u8, from: *const u8, bytes: usize) {
    let chosen: Copying = match plan() {
        Plan::Repeat | Plan::Stream if (PAGE_BYTES..PAGED_MAX).contains(&bytes) => vector::paged,
        Plan::Repeat if bytes >= REPEAT_MIN && !aliased(to, from) => repeat::copy,
        Plan::Repeat | Plan::Stream if bytes >= LINE_BYTES => vector::copy,
        _ => repeat::copy,
    };
    // SAFETY: the caller promises the same; where vectors were chosen AVX2 is there and a line at least to copy.
    unsafe { chosen(to, from, bytes) }
}

/// # Safety
/// As [`super::store`].
#[inline]
pub(super) unsafe fn store(to: *mut u8, from: *const u8, bytes: usize) {
    let chosen: Copying = match plan() {
        Plan::Repeat if bytes >= REPEAT_MIN && !aliased(to, from) => repeat::copy,
        Plan::Repeat | Plan::Stream if bytes >= STREAM_MIN => vector::stream,
        Plan::Repeat | Plan::Stream if bytes >= LINE_BYTES => vector::copy,
        _ => repeat::copy,
    };
    // SAFETY: as in `load`.
    unsafe { chosen(to, from, bytes) }
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
        Plan::Repeat if bytes >= REPEAT_MIN => repeat::zero,
        Plan::Stream if bytes >= STREAM_MIN / 2 => vector::stream_zero,
        Plan::Repeat | Plan::Stream if bytes >= LINE_BYTES => vector::zero,
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
