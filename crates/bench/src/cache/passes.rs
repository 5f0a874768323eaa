//! Timed passes over a contestant's file, by threads that start together.

use super::stage::{BLOCK, stamp};
use crate::cpus;
use crate::error::{During, Error};
use crate::pass;
use crate::place::Open;
use memmap2::MmapMut;
use std::time::Duration;

/// Runs `act` with its number in a thread on each of these CPUs, all from the same moment, each with a page-aligned buffer of
/// `bytes` bytes. Returns the time from the first one's start to the last one's end.
pub(super) fn together(
    cpus: &[usize],
    bytes: usize,
    act: impl Fn(usize, &mut [u8]) -> Result<(), Error> + Sync,
) -> Result<Duration, Error> {
    let act = &act;
    let done = pass::together(
        cpus.iter().copied().enumerate().collect(),
        || (),
        |(nth, cpu)| {
            cpus::pin(cpu)?;
            let mut buffer = MmapMut::map_anon(bytes).during("mapping a buffer")?;
            Ok(move || act(nth, &mut buffer))
        },
    )?;
    Ok(done.elapsed)
}

/// Reads these blocks of the stamped file, one after the other.
pub(super) fn read_blocks(file: &Open, blocks: impl IntoIterator<Item = u32>, buffer: &mut [u8]) -> Result<(), Error> {
    let mut is_wrong = false;
    for block in blocks {
        file.read(&mut buffer[..BLOCK], u64::from(block) * BLOCK as u64)?;
        is_wrong |= buffer[..8] != stamp(u64::from(block)).to_le_bytes();
    }
    if is_wrong { Err(wrong()) } else { Ok(()) }
}

/// Writes these blocks, one after the other; the first word of what the buffer holds stays what it is.
pub(super) fn write_blocks(file: &Open, blocks: impl IntoIterator<Item = u32>, buffer: &[u8]) -> Result<(), Error> {
    let mut blocks = blocks.into_iter();
    blocks.try_for_each(|block| file.write(&buffer[..BLOCK], u64::from(block) * BLOCK as u64))
}

pub(super) fn wrong() -> Error {
    Error::WrongBytes {
        case: "cache".to_owned(),
        contestant: "a contestant",
    }
}

/// Mean time of an operation in ns.
pub(super) fn each(elapsed: Duration, operations: usize) -> f64 {
    elapsed.as_secs_f64() * 1e9 / operations as f64
}
