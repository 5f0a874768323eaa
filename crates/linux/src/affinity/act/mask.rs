//! A set of CPUs as the kernel writes it.

use crate::topology::sysfs::parse_mask;
use homenode_policy::CpuId;
use std::fmt;
use std::io;
use std::sync::Arc;

/// A set of CPUs with the kernel's own text for it (`ff,00000001` and a new line), which is what is restored. Copies share
/// the memory of both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask {
    text: Arc<str>,
    cpus: Arc<[CpuId]>,
}

impl Mask {
    /// Parses the text of a kernel file.
    ///
    /// # Errors
    /// It is not a mask.
    pub fn parse(text: String) -> io::Result<Self> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is not a mask of CPUs"));
        let cpus = parse_mask(&text).ok_or_else(invalid)?.into();
        Ok(Self {
            text: text.into(),
            cpus,
        })
    }

    /// A mask of these CPUs, which are ascending.
    #[must_use]
    pub fn of(cpus: &[CpuId]) -> Self {
        let words = cpus.last().map_or(1, |last| last.0 as usize / 32 + 1);
        let mut bits = vec![0_u32; words];
        for cpu in cpus {
            bits[cpu.0 as usize / 32] |= 1 << (cpu.0 % 32);
        }
        let words: Vec<String> = bits.iter().rev().map(|word| format!("{word:08x}")).collect();
        Self {
            text: words.join(",").into(),
            cpus: cpus.into(),
        }
    }

    /// Returns the text of the mask; byte for byte as read if the mask was parsed.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Ascending.
    #[must_use]
    pub fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.trim())
    }
}

/// Whether all of `cpus` are in `room`.
pub(super) fn is_within(cpus: &[CpuId], room: &[CpuId]) -> bool {
    cpus.iter().all(|cpu| room.binary_search(cpu).is_ok())
}

/// Whether a thread that was given `set`, of a cpuset with `room`, has `now`: what its cpuset has of it; and all of the
/// cpuset, where that has none of it (any more). Of a cpuset that is not seen: some of it, whoever has left that.
pub(super) fn is_what_became_of(set: &[CpuId], now: &[CpuId], room: Option<&[CpuId]>) -> bool {
    let Some(room) = room else {
        return !now.is_empty() && is_within(now, set);
    };
    // Asked for each thread and each mask that was set: most differ in their first CPU.
    let mut left = set.iter().filter(|cpu| room.binary_search(cpu).is_ok()).peekable();
    match left.peek() {
        None => !now.is_empty() && is_within(room, now),
        Some(_) => set == now || left.eq(now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_masks_survive_a_round_trip() {
        for numbers in [&[][..], &[0], &[31], &[0, 32], &[3, 63, 64, 8191]] {
            let cpus: Vec<CpuId> = numbers.iter().copied().map(CpuId).collect();
            let mask = Mask::of(&cpus);
            assert_eq!(Mask::parse(mask.text().to_owned()).unwrap(), mask);
            assert_eq!(mask.cpus(), cpus);
        }
        assert_eq!(Mask::of(&[CpuId(33)]).text(), "00000002,00000000");
    }

    #[test]
    fn malformed_masks_are_refused() {
        for text in ["", "x", "1,,2", "100000000"] {
            assert!(Mask::parse(text.to_owned()).is_err(), "{text:?}");
        }
    }
}
