//! For processors without a measured method: the C library's.
//!
//! A racing `memcpy` is undefined to the letter. In practice these compile to calls of the C library, whose result under
//! a race is a mix of bytes; nothing is assumed about the bytes before or after.

use super::Method;
use std::ptr;

pub(super) use {memcpy as load, memcpy as store, memcpy as within, memset as zero};

pub(super) unsafe fn memcpy(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller promises that both are valid for `bytes` and do not overlap.
    unsafe { ptr::copy_nonoverlapping(from, to, bytes) }
}

pub(super) unsafe fn memset(at: *mut u8, bytes: usize) {
    // SAFETY: the caller promises that `at` is writable for `bytes`.
    unsafe { ptr::write_bytes(at, 0, bytes) }
}

/// Nothing is chosen.
pub(super) fn choice() -> &'static str {
    "the C library's memcpy"
}

pub(super) fn methods() -> Vec<Method> {
    vec![Method {
        name: "memcpy",
        load: memcpy,
        store: memcpy,
        zero: memset,
    }]
}

/// The processor looks ahead by itself.
#[inline]
pub(super) fn announce(_at: *const u8, _bytes: usize, _to_write: bool) {}

#[inline]
pub(super) fn gains(_bytes: usize, _to_write: bool) -> bool {
    false
}

/// Never called: see `WRITES_BACK`.
pub(super) unsafe fn write_back(_: *const u8, _: usize) {
    unreachable!("this processor has no instruction to write back");
}
