//! The time-stamp counter of x86-64, and how many nanoseconds its cycles are.

use super::stamps::monotonic_ns;
use std::arch::x86_64::{__cpuid, _rdtsc};
use std::sync::OnceLock;

/// How long the counter is compared with the kernel's clock, ns.
const COMPARED_NS: u64 = 10_000_000;
/// Attempts to read both clocks at one moment: the closest one counts.
const ATTEMPTS: usize = 16;

/// Nanoseconds of the counter's cycles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// Cycles at its zero.
    zero: u64,
    /// ns of 2^32 cycles.
    ns_per_2_32: u64,
}

impl Scale {
    #[expect(clippy::cast_possible_truncation, reason = "2^64 ns are 584 years")]
    #[inline]
    pub(super) fn ns(&self, cycles: u64) -> u64 {
        let cycles = cycles.saturating_sub(self.zero);
        ((u128::from(cycles) * u128::from(self.ns_per_2_32)) >> 32) as u64
    }
}

/// The scale of this process, found once; `None` when the counter is not invariant, or the kernel does not count by it.
pub(super) fn scale() -> Option<Scale> {
    static SCALE: OnceLock<Option<Scale>> = OnceLock::new();
    *SCALE.get_or_init(|| (is_invariant() && kernel_trusts_it()).then(compare).flatten())
}

/// Cycles now.
#[inline]
pub(super) fn read() -> u64 {
    // SAFETY: reads a counter that every x86-64 processor has.
    unsafe { _rdtsc() }
}

/// Whether the processor says that the counter runs at one rate in all its states (AMD and Intel: leaf 8000_0007H, EDX bit 8).
fn is_invariant() -> bool {
    const POWER: u32 = 0x8000_0007;
    let has_leaf = __cpuid(0x8000_0000).eax >= POWER;
    has_leaf && __cpuid(POWER).edx & 1 << 8 != 0
}

/// Whether the kernel would count by it: it leaves a counter out that it saw to drift, or to differ between processors.
fn kernel_trusts_it() -> bool {
    let sources = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/available_clocksource");
    // Without sysfs nothing speaks against it.
    sources.map_or(true, |sources| sources.split_whitespace().any(|source| source == "tsc"))
}

/// Compares the counter with the kernel's clock.
fn compare() -> Option<Scale> {
    let (zero, begin_ns) = both();
    while monotonic_ns() < begin_ns + COMPARED_NS {
        std::hint::spin_loop();
    }
    let (end, end_ns) = both();
    let cycles = end.checked_sub(zero).filter(|cycles| *cycles > 0)?;
    let ns = u128::from(end_ns - begin_ns) << 32;
    let ns_per_2_32 = u64::try_from(ns / u128::from(cycles)).ok()?;
    Some(Scale { zero, ns_per_2_32 })
}

/// Both clocks at one moment, as nearly as a thread that is interrupted can tell.
fn both() -> (u64, u64) {
    let attempt = |_| {
        let before = read();
        let ns = monotonic_ns();
        let between = read().saturating_sub(before);
        (between, (before + between / 2, ns))
    };
    let closest = (0..ATTEMPTS).map(attempt).min_by_key(|(between, _)| *between);
    closest.expect("at least one attempt was made").1
}
