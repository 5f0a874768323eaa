//! 64-byte vectors (AVX-512) for small copies, in as few instructions as can be.
//!
//! A copy of a page or less is mostly waiting for memory, and how much of the next copy the processor starts meanwhile
//! depends on how many instructions lie between: it holds a few hundred. Prefetches do not hold the others up, so the
//! lines of a page are asked for before the first is copied.

use std::arch::asm;

/// Bytes that one turn of the loops copies.
pub(super) const TURN_BYTES: usize = 256;

/// Asks for the lines of `bytes` bytes from `from` on, in whole turns.
#[inline]
pub(in super::super) fn prefetch(from: *const u8, bytes: usize) {
    // SAFETY: a prefetch touches nothing the program can see and cannot fault, whatever the address.
    unsafe {
        asm!(
            "2:",
            "prefetcht0 [{at}]",
            "prefetcht0 [{at} + 64]",
            "prefetcht0 [{at} + 128]",
            "prefetcht0 [{at} + 192]",
            "prefetcht0 [{at} + 256]",
            "prefetcht0 [{at} + 320]",
            "prefetcht0 [{at} + 384]",
            "prefetcht0 [{at} + 448]",
            "add {at}, 512",
            "cmp {at}, {end}",
            "jb 2b",
            at = inout(reg) from => _, end = in(reg) from.wrapping_add(bytes),
            options(nostack, readonly),
        );
    }
}

/// Asks for the lines of `bytes` bytes from `at` on, to be written, in whole turns.
#[inline]
pub(in super::super) fn prefetch_to_write(at: *const u8, bytes: usize) {
    // SAFETY: as in `prefetch`. Processors without the instruction take it as one that does nothing.
    unsafe {
        asm!(
            "2:",
            "prefetchw [{at}]",
            "prefetchw [{at} + 64]",
            "prefetchw [{at} + 128]",
            "prefetchw [{at} + 192]",
            "add {at}, 256",
            "cmp {at}, {end}",
            "jb 2b",
            at = inout(reg) at => _, end = in(reg) at.wrapping_add(bytes),
            options(nostack, readonly),
        );
    }
}

/// Front to back.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes`, at least [`TURN_BYTES`]; they do not overlap; AVX-512F is there.
#[inline(always)]
pub(in super::super) unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    // The last turn is copied by itself and may overlap the one before it, so no size needs a byte loop.
    // SAFETY: each turn reads and writes TURN_BYTES within the ranges; registers changed are declared.
    unsafe {
        asm!(
            "2:",
            "vmovdqu64 zmm16, [{from} + {done}]",
            "vmovdqu64 zmm17, [{from} + {done} + 64]",
            "vmovdqu64 zmm18, [{from} + {done} + 128]",
            "vmovdqu64 zmm19, [{from} + {done} + 192]",
            "vmovdqu64 [{to} + {done}], zmm16",
            "vmovdqu64 [{to} + {done} + 64], zmm17",
            "vmovdqu64 [{to} + {done} + 128], zmm18",
            "vmovdqu64 [{to} + {done} + 192], zmm19",
            "add {done}, 256",
            "cmp {done}, {last}",
            "jb 2b",
            "vmovdqu64 zmm16, [{from} + {last}]",
            "vmovdqu64 zmm17, [{from} + {last} + 64]",
            "vmovdqu64 zmm18, [{from} + {last} + 128]",
            "vmovdqu64 zmm19, [{from} + {last} + 192]",
            "vmovdqu64 [{to} + {last}], zmm16",
            "vmovdqu64 [{to} + {last} + 64], zmm17",
            "vmovdqu64 [{to} + {last} + 128], zmm18",
            "vmovdqu64 [{to} + {last} + 192], zmm19",
            to = in(reg) to, from = in(reg) from,
            done = inout(reg) 0_usize => _, last = in(reg) bytes - TURN_BYTES,
            out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
            options(nostack),
        );
    }
    // Registers 16 to 31 do not exist for older code, so no vzeroupper is needed for it to stay fast.
}
