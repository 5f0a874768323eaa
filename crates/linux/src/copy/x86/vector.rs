//! Loops over 32-byte vectors (AVX2). Every function needs AVX2 and at least one line of bytes.
//!
//! The loops are Rust; what touches memory are assembly steps of one to four lines. The last line is copied by itself
//! and may overlap the one before it, so no size needs a byte loop. For the sizes copied here wider vectors (AVX-512) gain
//! next to nothing, because the time goes to memory; small copies are in `wide`.

use std::arch::asm;

/// A cache line.
pub(super) const LINE_BYTES: usize = 64;
/// Hardware prefetchers stop at its end, so software asks for the next.
pub(super) const PAGE_BYTES: usize = 4096;
/// A page is read in four places at once: more misses are under way than one stream of them keeps.
const LANE_BYTES: usize = PAGE_BYTES / 4;
const PAIR_BYTES: usize = 2 * LINE_BYTES;

/// Front to back: the fastest start.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes`, at least [`LINE_BYTES`]; they do not overlap; AVX2 is there.
pub(in super::super) unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    let mut done = 0;
    while bytes - done >= PAIR_BYTES {
        // SAFETY: two lines are left from `done` on.
        unsafe { copy_pair(to.wrapping_add(done), from.wrapping_add(done)) };
        done += PAIR_BYTES;
    }
    if bytes - done > LINE_BYTES {
        // SAFETY: a line is left from `done` on.
        unsafe { copy_line(to.wrapping_add(done), from.wrapping_add(done)) };
    }
    let last = bytes - LINE_BYTES;
    // SAFETY: the last line of at least one.
    unsafe { copy_line(to.wrapping_add(last), from.wrapping_add(last)) };
    leave();
}

/// Page by page, four places of a page at once, while the next page's lines are on their way.
///
/// # Safety
/// As [`copy`].
pub(in super::super) unsafe fn paged(to: *mut u8, from: *const u8, bytes: usize) {
    let pages = bytes / PAGE_BYTES;
    if pages > 0 {
        prefetch_page(from);
    }
    for page in 0..pages {
        let (to, from) = (to.wrapping_add(page * PAGE_BYTES), from.wrapping_add(page * PAGE_BYTES));
        let another = page + 1 < pages;
        for line in (0..LANE_BYTES).step_by(LINE_BYTES) {
            if another {
                prefetch_lanes(from.wrapping_add(PAGE_BYTES + line));
            }
            // SAFETY: the line and those one, two and three lanes on are within this whole page.
            unsafe { copy_lanes(to.wrapping_add(line), from.wrapping_add(line)) };
        }
    }
    let done = pages * PAGE_BYTES;
    match bytes - done {
        0 => leave(),
        // SAFETY: the last line of at least one.
        1..LINE_BYTES => unsafe {
            copy(
                to.wrapping_add(bytes - LINE_BYTES),
                from.wrapping_add(bytes - LINE_BYTES),
                64,
            )
        },
        // SAFETY: `rest` bytes are left from `done` on, a line at least.
        rest => unsafe { copy(to.wrapping_add(done), from.wrapping_add(done), rest) },
    }
}

/// Past the cache: lines are written whole, without reading them first.
///
/// # Safety
/// As [`copy`].
pub(in super::super) unsafe fn stream(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the first line of at least one.
    unsafe { copy_line(to, from) };
    let mut done = to_next_line(to);
    while bytes - done >= LINE_BYTES {
        // SAFETY: a line is left from `done` on, and the place to write is aligned.
        unsafe { stream_line(to.wrapping_add(done), from.wrapping_add(done)) };
        done += LINE_BYTES;
    }
    let last = bytes - LINE_BYTES;
    // SAFETY: the last line of at least one.
    unsafe { copy_line(to.wrapping_add(last), from.wrapping_add(last)) };
    leave();
    stream_fence();
}

/// # Safety
/// `at` is writable for `bytes`, at least [`LINE_BYTES`]; AVX2 is there.
pub(in super::super) unsafe fn zero(at: *mut u8, bytes: usize) {
    for line in (0..=bytes - LINE_BYTES).step_by(LINE_BYTES) {
        // SAFETY: a line is left from `line` on.
        unsafe { zero_line(at.wrapping_add(line)) };
    }
    // SAFETY: the last line of at least one.
    unsafe { zero_line(at.wrapping_add(bytes - LINE_BYTES)) };
    leave();
}

/// Zeroes past the cache.
///
/// # Safety
/// As [`zero`].
pub(in super::super) unsafe fn stream_zero(at: *mut u8, bytes: usize) {
    // SAFETY: the first line of at least one.
    unsafe { zero_line(at) };
    let mut done = to_next_line(at);
    while bytes - done >= LINE_BYTES {
        // SAFETY: a line is left from `done` on, and it is aligned.
        unsafe { stream_zero_line(at.wrapping_add(done)) };
        done += LINE_BYTES;
    }
    // SAFETY: the last line of at least one.
    unsafe { zero_line(at.wrapping_add(bytes - LINE_BYTES)) };
    leave();
    stream_fence();
}

/// Bytes up to the next start of a line: less than a line.
#[inline]
fn to_next_line(at: *mut u8) -> usize {
    at.addr().wrapping_neg() % LINE_BYTES
}

/// # Safety
/// Both pointers are valid for one line; AVX2 is there.
#[inline]
unsafe fn copy_line(to: *mut u8, from: *const u8) {
    // SAFETY: reads and writes one line.
    unsafe {
        asm!(
            "vmovdqu ymm0, [{from}]",
            "vmovdqu ymm1, [{from} + 32]",
            "vmovdqu [{to}], ymm0",
            "vmovdqu [{to} + 32], ymm1",
            to = in(reg) to, from = in(reg) from,
            out("xmm0") _, out("xmm1") _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// Both pointers are valid for two lines; AVX2 is there.
#[inline]
unsafe fn copy_pair(to: *mut u8, from: *const u8) {
    // SAFETY: reads and writes two lines.
    unsafe {
        asm!(
            "vmovdqu ymm0, [{from}]",
            "vmovdqu ymm1, [{from} + 32]",
            "vmovdqu ymm2, [{from} + 64]",
            "vmovdqu ymm3, [{from} + 96]",
            "vmovdqu [{to}], ymm0",
            "vmovdqu [{to} + 32], ymm1",
            "vmovdqu [{to} + 64], ymm2",
            "vmovdqu [{to} + 96], ymm3",
            to = in(reg) to, from = in(reg) from,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// Both pointers are valid for one line, and for one at each of the next three lanes; AVX2 is there.
#[inline]
unsafe fn copy_lanes(to: *mut u8, from: *const u8) {
    // SAFETY: reads and writes one line in each lane.
    unsafe {
        asm!(
            "vmovdqu ymm0, [{from}]",
            "vmovdqu ymm1, [{from} + 32]",
            "vmovdqu ymm2, [{from} + {lane}]",
            "vmovdqu ymm3, [{from} + {lane} + 32]",
            "vmovdqu ymm4, [{from} + 2 * {lane}]",
            "vmovdqu ymm5, [{from} + 2 * {lane} + 32]",
            "vmovdqu ymm6, [{from} + 3 * {lane}]",
            "vmovdqu ymm7, [{from} + 3 * {lane} + 32]",
            "vmovdqu [{to}], ymm0",
            "vmovdqu [{to} + 32], ymm1",
            "vmovdqu [{to} + {lane}], ymm2",
            "vmovdqu [{to} + {lane} + 32], ymm3",
            "vmovdqu [{to} + 2 * {lane}], ymm4",
            "vmovdqu [{to} + 2 * {lane} + 32], ymm5",
            "vmovdqu [{to} + 3 * {lane}], ymm6",
            "vmovdqu [{to} + 3 * {lane} + 32], ymm7",
            to = in(reg) to, from = in(reg) from, lane = const LANE_BYTES,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            options(nostack, preserves_flags),
        );
    }
}

/// Asks for a page's lines, lane by lane.
#[inline]
fn prefetch_page(page: *const u8) {
    for line in (0..LANE_BYTES).step_by(LINE_BYTES) {
        prefetch_lanes(page.wrapping_add(line));
    }
}

/// Asks for one line in each of four lanes.
#[inline]
fn prefetch_lanes(from: *const u8) {
    // SAFETY: a prefetch touches nothing the program can see and cannot fault, whatever the address.
    unsafe {
        asm!(
            "prefetcht0 [{from}]",
            "prefetcht0 [{from} + {lane}]",
            "prefetcht0 [{from} + 2 * {lane}]",
            "prefetcht0 [{from} + 3 * {lane}]",
            from = in(reg) from, lane = const LANE_BYTES,
            options(nostack, preserves_flags, readonly),
        );
    }
}

/// # Safety
/// Both pointers are valid for one line and `to` is aligned to 32; AVX2 is there.
#[inline]
unsafe fn stream_line(to: *mut u8, from: *const u8) {
    // SAFETY: reads and writes one line.
    unsafe {
        asm!(
            "vmovdqu ymm0, [{from}]",
            "vmovdqu ymm1, [{from} + 32]",
            "vmovntdq [{to}], ymm0",
            "vmovntdq [{to} + 32], ymm1",
            to = in(reg) to, from = in(reg) from,
            out("xmm0") _, out("xmm1") _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// `at` is writable for one line; AVX2 is there.
#[inline]
unsafe fn zero_line(at: *mut u8) {
    // SAFETY: writes one line.
    unsafe {
        asm!(
            "vpxor xmm0, xmm0, xmm0",
            "vmovdqu [{at}], ymm0",
            "vmovdqu [{at} + 32], ymm0",
            at = in(reg) at,
            out("xmm0") _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// `at` is writable for one line and aligned to 32; AVX2 is there.
#[inline]
unsafe fn stream_zero_line(at: *mut u8) {
    // SAFETY: writes one line.
    unsafe {
        asm!(
            "vpxor xmm0, xmm0, xmm0",
            "vmovntdq [{at}], ymm0",
            "vmovntdq [{at} + 32], ymm0",
            at = in(reg) at,
            out("xmm0") _,
            options(nostack, preserves_flags),
        );
    }
}

/// Orders non-temporal stores before all later stores.
#[inline]
fn stream_fence() {
    // SAFETY: a fence moves no data. The compiler keeps memory accesses on their side of it.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}

/// Clears the upper halves of the vector registers: older code in the same thread is slow while they are in use.
/// Only called where AVX2 is there.
#[inline]
fn leave() {
    // SAFETY: the registers changed are declared; AVX2 processors have the instruction.
    unsafe {
        asm!(
            "vzeroupper",
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack, nomem, preserves_flags),
        );
    }
}
