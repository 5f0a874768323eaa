//! The choice of a plan: instructions by what the processor has, looking ahead by a short measurement.
//!
//! Long reads can ask for the lines of the next page while they copy the one before. One processor gains a third by
//! that, another one loses a third, and no CPUID bit tells which. So the process measures once, when its first pool
//! comes up: reads of [`MEASURED_BYTES`] whose lines were flushed from every cache, both ways in turns. Each way counts
//! by its best turn, because load and interrupts only ever add time. A way must be clearly better to be taken; else the
//! record of measured processors decides (docs/decisions/001-copies.md), and for others not to look ahead.
//!
//! Cost: about 2 ms on an idle CPU; no turn begins later than [`MEASURING_MAX`].

use super::super::Copying;
use super::vector::{LINE_BYTES, PAGE_BYTES};
use super::{repeat, vector};
use std::arch::is_x86_feature_detected;
use std::arch::x86_64::{__cpuid, _mm_clflush, _mm_mfence};
use std::fmt;
use std::time::{Duration, Instant};

/// Amid the lengths that are read ahead: at 16 KiB some processors show little of what they gain, others at 32 KiB.
const MEASURED_BYTES: usize = 24 << 10;
/// Places that are read in turns.
const PLACES: usize = 16;
const TURNS: usize = 24;
/// Fewer say nothing.
const TURNS_MIN: usize = 8;
/// No turn begins later than this after the first.
const MEASURING_MAX: Duration = Duration::from_millis(5);
/// A way is clearly better if it takes less than this share of the other's time, in percent.
const CLEARLY_PERCENT: u64 = 95;

/// Kinds of instructions, by what the processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Instructions {
    /// AVX-512, AVX2 and fast string instructions.
    Wide = 1,
    /// AVX2 and fast string instructions.
    Repeat = 2,
    /// AVX2: Zen to Zen 2, which includes EPYC 7001 and 7002.
    Stream = 3,
    /// Neither, or string instructions only.
    Basic = 4,
}

/// Choice of instructions for this processor, with the measurement behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Choice {
    pub(super) instructions: Instructions,
    /// Whether long reads ask for the next page's lines, and copies up to a page for all of theirs before they are counted.
    pub(super) ahead: bool,
    measured: Option<Measured>,
}

/// Best times of a cold read of [`MEASURED_BYTES`], in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Measured {
    plain: u64,
    ahead: u64,
}

impl Choice {
    /// Asks and measures this processor.
    pub(super) fn find() -> Self {
        let instructions = Instructions::of_this_processor();
        let plain: Copying = match instructions {
            // There is no other way than string instructions.
            Instructions::Basic => {
                return Self {
                    instructions,
                    ahead: false,
                    measured: None,
                };
            }
            Instructions::Wide | Instructions::Repeat => repeat::copy,
            Instructions::Stream => vector::copy,
        };
        // SAFETY: all but `Basic` have AVX2, and the reads are lines long.
        let best = unsafe { cold_ns(&[plain, vector::paged], MEASURED_BYTES) };
        let measured = best.map(|best| Measured {
            plain: best[0],
            ahead: best[1],
        });
        Self {
            instructions,
            ahead: looks_ahead(recorded(), measured),
            measured,
        }
    }
}

impl Instructions {
    fn of_this_processor() -> Self {
        if !is_x86_feature_detected!("avx2") {
            Self::Basic
        } else if !is_x86_feature_detected!("ermsb") {
            Self::Stream
        } else if !is_x86_feature_detected!("avx512f") {
            Self::Repeat
        } else {
            Self::Wide
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Wide => "64-byte vectors and string instructions",
            Self::Repeat => "32-byte vectors and string instructions",
            Self::Stream => "32-byte vectors",
            Self::Basic => "string instructions",
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.ahead { "ahead" } else { "not ahead" };
        write!(out, "{}, reading {how}", self.instructions.name())?;
        match self.measured {
            Some(Measured { plain, ahead }) => {
                let kib = MEASURED_BYTES >> 10;
                write!(out, " (a cold {kib} KiB: {ahead} ns ahead, {plain} ns not ahead)")
            }
            None => Ok(()),
        }
    }
}

/// Whether to look ahead: the measurement where it is clear, else what is `recorded`.
fn looks_ahead(recorded: bool, measured: Option<Measured>) -> bool {
    let clearly = |better: u64, worse: u64| better * 100 < worse * CLEARLY_PERCENT;
    match measured {
        Some(Measured { plain, ahead }) if clearly(ahead, plain) => true,
        Some(Measured { plain, ahead }) if clearly(plain, ahead) => false,
        _ => recorded,
    }
}

/// Whether this is a processor that was measured to gain by looking ahead.
fn recorded() -> bool {
    // EBX, EDX and ECX of leaf 0 are the vendor's name.
    let vendor = __cpuid(0);
    let amd = [vendor.ebx, vendor.edx, vendor.ecx] == [0x6874_7541, 0x6974_6e65, 0x444d_4163];
    amd && family(__cpuid(1).eax) == ZEN_5
}

/// The family of AMD's Zen 5 processors.
const ZEN_5: u32 = 26;

/// The family in EAX of leaf 1: its base, and what is added to the largest base.
fn family(eax: u32) -> u32 {
    let base = eax >> 8 & 0xf;
    if base == 0xf { base + (eax >> 20 & 0xff) } else { base }
}

/// Best nanoseconds of each way to read `bytes` that lie in no cache; `None` when there was no time for enough turns.
///
/// # Safety
/// The processor has what the ways need, and `bytes` is as many as they need.
pub(in super::super) unsafe fn cold_ns(ways: &[Copying], bytes: usize) -> Option<Vec<u64>> {
    // Written, so that each page is one of its own.
    let places = vec![1_u8; PLACES * bytes + PAGE_BYTES];
    let mut to = vec![1_u8; bytes + PAGE_BYTES];
    // Both at a page's start: string instructions are slow where one is a few bytes behind the other within a page.
    let places = &places[places.as_ptr().align_offset(PAGE_BYTES)..];
    let to_page = to.as_ptr().align_offset(PAGE_BYTES);
    let to = &mut to[to_page..to_page + bytes];
    let mut best = vec![u64::MAX; ways.len()];
    let start = Instant::now();
    for turn in 0..TURNS {
        if start.elapsed() > MEASURING_MAX {
            return (turn >= TURNS_MIN).then_some(best);
        }
        for (number, way) in ways.iter().enumerate() {
            // Never the place behind the last one: the processor may have asked for its first lines.
            let place = (turn * ways.len() + number) * 7 % PLACES * bytes;
            let from = &places[place..place + bytes];
            // Whatever the last way has left of it in the caches.
            to.fill(1);
            flush(from);
            let before = Instant::now();
            // SAFETY: both are `bytes` long; the caller promises the rest.
            unsafe { way(to.as_mut_ptr(), from.as_ptr(), bytes) };
            let ns = u64::try_from(before.elapsed().as_nanos()).unwrap_or(u64::MAX);
            best[number] = best[number].min(ns);
        }
    }
    Some(best)
}

/// Takes the bytes' lines out of every cache.
fn flush(bytes: &[u8]) {
    for line in bytes.chunks(LINE_BYTES) {
        // SAFETY: the line is ours; its bytes stay as they are.
        unsafe { _mm_clflush(line.as_ptr()) };
    }
    // SAFETY: a fence moves no data, and every x86-64 processor has it.
    unsafe { _mm_mfence() };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(plain: u64, ahead: u64) -> Option<Measured> {
        Some(Measured { plain, ahead })
    }

    #[test]
    fn a_clear_measurement_overrides_the_record() {
        for recorded in [false, true] {
            assert!(looks_ahead(recorded, measured(1000, 949)));
            assert!(!looks_ahead(recorded, measured(949, 1000)));
            assert_eq!(looks_ahead(recorded, measured(1000, 950)), recorded);
            assert_eq!(looks_ahead(recorded, measured(950, 1000)), recorded);
            assert_eq!(looks_ahead(recorded, None), recorded);
        }
    }

    #[test]
    fn processor_families_are_recognized_by_their_registers() {
        assert_eq!(family(0x00a1_0f11), 25, "Zen 4");
        assert_eq!(family(0x00b0_0f21), 26, "Zen 5");
        assert_eq!(family(0x0008_06f8), 6, "Sapphire Rapids");
    }

    /// At most a quarter slower than the best way there is, in one of some trials: other tests run beside it. At 64 KiB half:
    /// there one processor reads a third slower by string instructions what is in no cache, and the others faster.
    #[test]
    fn the_chosen_read_method_is_close_to_the_fastest() {
        let (_, used) = super::super::plan();
        if (0..5).any(|_| Choice::find().ahead != used) {
            crate::skip("the machine is too busy to tell");
            return;
        }
        let ways = crate::copy::methods();
        let loads: Vec<Copying> = ways.iter().map(|way| way.load).collect();
        for (bytes, percent) in [(4 << 10, 125), (16 << 10, 125), (32 << 10, 125), (64 << 10, 150)] {
            let mut trials = Vec::new();
            let good = (0..10).any(|_| {
                // SAFETY: the ways are this processor's, and the reads are lines long.
                let Some(best) = (unsafe { cold_ns(&loads, bytes) }) else {
                    return false;
                };
                let fastest = best.iter().min().expect("at least the way in use");
                let good = best[0] * 100 <= fastest * percent;
                trials.push(best);
                good
            });
            if trials.is_empty() {
                crate::skip(format_args!("{bytes} bytes: no time for enough turns"));
                continue;
            }
            let names: Vec<&str> = ways.iter().map(|way| way.name).collect();
            assert!(good, "{bytes} bytes, best ns by {names:?}: {trials:?}");
        }
    }

    /// 64 busy threads seldom talk it into the worse way, though they may leave none that is clear: the memory is other machines' too.
    #[test]
    fn load_does_not_change_a_clear_choice() {
        // Other tests run beside the first, so one of them says little.
        let found = [(); 3].map(|()| Choice::find());
        let clear = |choice: &Choice| {
            let is_clear = |it: Measured| it.plain.min(it.ahead) * 100 <= it.plain.max(it.ahead) * 80;
            choice.measured.is_some_and(is_clear) && choice.ahead == found[0].ahead
        };
        let quiet = found[0];
        if !found.iter().all(clear) {
            crate::skip(format_args!(
                "nothing to measure on this processor, no time for it, or both ways alike: {quiet}"
            ));
            return;
        }
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| {
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let loaded: Vec<Choice> = (0..20).map(|_| Choice::find()).collect();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            // Whatever is not clear leaves it to the record.
            let worse = loaded
                .iter()
                .filter(|choice| looks_ahead(quiet.ahead, choice.measured) != quiet.ahead);
            let worse: Vec<String> = worse.map(Choice::to_string).collect();
            assert!(worse.len() * 4 < loaded.len(), "quiet: {quiet}; under load: {worse:?}");
        });
    }
}
