//! Cache lines on their way to persistent memory.

use super::vector::LINE_BYTES;
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

/// Instructions that write a line back, the best first.
#[derive(Clone, Copy, Debug)]
enum Means {
    /// CLWB: the line stays in the cache.
    Keeping,
    /// CLFLUSHOPT: it does not.
    Dropping,
    /// CLFLUSH: one line after the other.
    InTurn,
}

fn means() -> Means {
    static MEANS: OnceLock<Means> = OnceLock::new();
    *MEANS.get_or_init(|| {
        const CLFLUSHOPT: u32 = 1 << 23;
        const CLWB: u32 = 1 << 24;
        let has_leaf = __cpuid(0).eax >= 7;
        let features = if has_leaf { __cpuid_count(7, 0).ebx } else { 0 };
        if features & CLWB != 0 {
            Means::Keeping
        } else if features & CLFLUSHOPT != 0 {
            Means::Dropping
        } else {
            Means::InTurn
        }
    })
}

/// Writes the lines of `bytes` bytes at `at` back, and returns when they are in the domain that keeps them without power.
///
/// # Safety
/// The bytes are mapped.
pub(in super::super) unsafe fn write_back(at: *const u8, bytes: usize) {
    let into = at.addr() % LINE_BYTES;
    let first = at.wrapping_sub(into);
    for line in (0..bytes + into).step_by(LINE_BYTES) {
        let line = first.wrapping_add(line);
        match means() {
            // SAFETY: the caller promises that the line is mapped; the processor has the instruction.
            Means::Keeping => unsafe { asm!("clwb [{0}]", in(reg) line, options(nostack, preserves_flags)) },
            // SAFETY: as above.
            Means::Dropping => unsafe { asm!("clflushopt [{0}]", in(reg) line, options(nostack, preserves_flags)) },
            // SAFETY: as above; every x86-64 processor has it.
            Means::InTurn => unsafe { asm!("clflush [{0}]", in(reg) line, options(nostack, preserves_flags)) },
        }
    }
    // SAFETY: a fence moves no data. It waits for the lines above, and for non-temporal stores.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}
