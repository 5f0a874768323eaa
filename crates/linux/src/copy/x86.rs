//! x86-64: string instructions, 64-byte and 32-byte vectors, and non-temporal stores.
//!
//! String instructions ("repeat") know the size beforehand, so the processor writes whole lines without reading them
//! first: the best way from 2 KiB up. Below, vectors start faster: of 64 bytes ("wide") where AVX-512 is there, which also
//! read as well as any up to 8 KiB. Some processors read 4 to 48 KiB faster when they are asked for the next lines early
//! ("paged"), others slower: `choice` finds out which this one is. Processors without fast string instructions write large
//! runs with non-temporal stores ("stream"); those without AVX2 use string instructions for everything.

mod choice;
mod repeat;
mod vector;
mod wide;
mod write_back;

use super::{Copying, Method, Zeroing};
pub(super) use choice::Choice;
use choice::Instructions;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use vector::{LINE_BYTES, PAGE_BYTES};
pub(super) use write_back::write_back;

/// String instructions are faster than plain vectors from here.
const REPEAT_MIN: usize = 2 << 10;
/// Reads of a page and more look ahead below this, where the processor gains by it.
const PAGED_MAX: usize = 48 << 10;
/// Without fast string instructions: stores that bypass the cache are faster from here, and zeros from half of it.
const STREAM_MIN: usize = 16 << 10;

/// 64-byte vectors read faster than the others from [`wide::TURN_BYTES`] up to here.
const WIDE_LOAD_MAX: usize = 8 << 10;
/// Reads ask for their bytes before they are counted from here.
const ANNOUNCE_LOAD_MIN: usize = 1 << 10;
/// Where the processor does not gain by looking ahead, copies ask for that much of theirs.
const ANNOUNCED_MAX: usize = 1 << 10;

/// Whether the place written to begins less than a line behind the place read, counted within a page. String
/// instructions are slow then: measured 1.6 times on Zen 5, reported 20 times on Zen 3.
fn aliased(to: *mut u8, from: *const u8) -> bool {
    (1..LINE_BYTES).contains(&(to.addr().wrapping_sub(from.addr()) % PAGE_BYTES))
}

/// The choice once it is known, its instructions and [`AHEAD`]: one load, because a small copy is a few dozen instructions
/// in all. 0 until somebody asks.
static PLAN: AtomicU8 = AtomicU8::new(0);
/// Bit of [`PLAN`]: the processor gains by looking ahead.
const AHEAD: u8 = 0x80;

/// Returns the choice for this processor; the first call measures.
pub(super) fn choice() -> Choice {
    static CHOICE: OnceLock<Choice> = OnceLock::new();
    let choice = *CHOICE.get_or_init(Choice::find);
    let ahead = if choice.ahead { AHEAD } else { 0 };
    // Relaxed: it is the same for every thread, and nothing hangs on it but speed.
    PLAN.store(choice.instructions as u8 | ahead, Ordering::Relaxed);
    choice
}

/// The instructions, and whether to look ahead.
#[inline]
fn plan() -> (Instructions, bool) {
    let plan = PLAN.load(Ordering::Relaxed);
    let ahead = plan & AHEAD != 0;
    match plan & !AHEAD {
        1 => (Instructions::Wide, ahead),
        2 => (Instructions::Repeat, ahead),
        3 => (Instructions::Stream, ahead),
        4 => (Instructions::Basic, ahead),
        _ => first_plan(),
    }
}

#[cold]
fn first_plan() -> (Instructions, bool) {
    let choice = choice();
    (choice.instructions, choice.ahead)
}

/// Whether the instructions are known to be [`Instructions::Wide`], in fewer instructions.
#[inline]
fn is_wide() -> bool {
    PLAN.load(Ordering::Relaxed) & !AHEAD == Instructions::Wide as u8
}

/// # Safety
/// As [`super::load`].
#[inline(always)]
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
    let (instructions, ahead) = plan();
    let paged = ahead && (PAGE_BYTES..PAGED_MAX).contains(&bytes);
    let chosen: Copying = match instructions {
        Instructions::Basic => repeat::copy,
        _ if paged => vector::paged,
        Instructions::Wide | Instructions::Repeat if bytes >= REPEAT_MIN && !aliased(to, from) => repeat::copy,
        _ if bytes >= LINE_BYTES => vector::copy,
        _ => repeat::copy,
    };
    // SAFETY: the caller promises the same; where vectors were chosen AVX2 is there and a line at least to copy.
    unsafe { chosen(to, from, bytes) }
}

/// # Safety
/// As [`super::store`].
#[inline(always)]
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
    let chosen: Copying = match plan().0 {
        Instructions::Basic => repeat::copy,
        Instructions::Wide | Instructions::Repeat if bytes >= REPEAT_MIN && !aliased(to, from) => repeat::copy,
        _ if bytes >= STREAM_MIN => vector::stream,
        _ if bytes >= LINE_BYTES => vector::copy,
        _ => repeat::copy,
    };
    // SAFETY: as in `load_otherwise`.
    unsafe { chosen(to, from, bytes) }
}

/// Whether copies of so many bytes gain when they are announced.
///
/// Reads: from [`ANNOUNCE_LOAD_MIN`], as smaller ones are over before what is done around them, to a page, as longer ones have time.
/// Writes: those by vectors. Those by string instructions, which need no line's old bytes, where the processor does not look ahead.
#[inline]
pub(super) fn gains(bytes: usize, to_write: bool) -> bool {
    if to_write {
        bytes < REPEAT_MIN || (bytes <= PAGE_BYTES && !is_ahead())
    } else {
        (ANNOUNCE_LOAD_MIN..=PAGE_BYTES).contains(&bytes)
    }
}

#[inline]
pub(super) fn announce(at: *const u8, bytes: usize, to_write: bool) {
    // More lines at once than such a processor can wait for only hold it up.
    let bytes = if is_ahead() { bytes } else { bytes.min(ANNOUNCED_MAX) };
    if to_write {
        wide::prefetch_to_write(at, bytes);
    } else {
        wide::prefetch(at, bytes);
    }
}

/// Whether the processor is known to gain by looking ahead.
#[inline]
fn is_ahead() -> bool {
    PLAN.load(Ordering::Relaxed) & AHEAD != 0
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
    let chosen: Zeroing = match plan().0 {
        Instructions::Basic => repeat::zero,
        Instructions::Wide | Instructions::Repeat if bytes >= REPEAT_MIN => repeat::zero,
        Instructions::Stream if bytes >= STREAM_MIN / 2 => vector::stream_zero,
        _ if bytes >= LINE_BYTES => vector::zero,
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
    if plan().0 != Instructions::Basic {
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
