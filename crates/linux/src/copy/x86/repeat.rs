//! String instructions: every size, every processor.

use std::arch::asm;

/// # Safety
/// `from` is readable and `to` writable for `bytes`; they do not overlap.
pub(in super::super) unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the instruction reads and writes just the bytes promised; the direction flag is clear by the ABI.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// `at` is writable for `bytes`.
pub(in super::super) unsafe fn zero(at: *mut u8, bytes: usize) {
    // SAFETY: the instruction writes just the bytes promised; the direction flag is clear by the ABI.
    unsafe {
        asm!(
            "rep stosb",
            inout("rcx") bytes => _,
            inout("rdi") at => _,
            in("al") 0_u8,
            options(nostack, preserves_flags),
        );
    }
}
