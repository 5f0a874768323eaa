//! Reading a damaged log: all groups that are whole, and how much is lost.
//!
//! A group's checksum continues that of the group before, and each header holds its own. So a group with wrong bytes and a plausible header is
//! left out, and the one behind it is checked against the header's checksum. Without a plausible header the rest is lost; but the segments of a snapshot are
//! searched for the next header that the group behind it bears out.

use super::codec::{self, Group, HEADER_BYTES, Record, Records, padded};
use super::scan::{Segment, Shown, overlap};
use super::{Head, Malformed};
use crate::{BLOCK_BYTES, Block, Memory};

/// A part of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// No other groups have its secret, so any that bear each other out are its own.
    Snapshot,
    /// Behind its end there may be groups of the same secret that a crash left: it is read as far as each follows the one before.
    Tail,
}

/// Parts of a log that were read, and those that were not.
#[derive(Debug, Default)]
pub(crate) struct Salvaged {
    /// Segments that were read.
    pub(crate) segments: Vec<Segment>,
    /// Groups that were shown.
    pub(crate) shown: u64,
    /// Groups that are damaged, and were left out in whole or in part.
    pub(crate) damaged: u64,
}

/// Shows each group of the log at `head` that is whole, and whether damaged ones are between it and the one before, without the rule that the log
/// ends before these. `is_within` tells whether a segment lies in the members. Parts of a large group are shown one by one.
pub(crate) fn salvage<M: Memory>(
    memory: &M,
    head: Head,
    part: Part,
    is_within: &dyn Fn(Segment) -> bool,
    show: &mut dyn FnMut(Shown<'_>, bool) -> Result<(), Malformed>,
) -> Salvaged {
    let mut salvaged = Salvaged::default();
    let (mut sequence, mut seed) = (head.sequence, head.seed);
    let mut next = Some((head.first, head.blocks));
    let mut is_behind_gap = false;
    while let Some(segment) = next.take() {
        let is_read = salvaged.segments.iter().any(|read| overlap(*read, segment));
        if segment.1 == 0 || is_read || !is_within(segment) {
            salvaged.damaged += 1;
            break;
        }
        salvaged.segments.push(segment);
        let bytes = load(memory, segment);
        let mut rest = &bytes[..];
        loop {
            let found = codec::peek(rest).filter(|(group, ..)| (group.sequence, group.nonce) == (sequence, head.nonce));
            let Some((group, records, crc)) = found else {
                let behind = (part == Part::Snapshot).then(|| borne_out(rest, head.nonce, sequence));
                let Some((at, group, crc)) = behind.flatten() else {
                    break;
                };
                // Its own bytes are of no use: only its number and checksum are.
                salvaged.damaged += group.sequence + 1 - sequence;
                is_behind_gap = true;
                (sequence, seed, rest) = (group.sequence + 1, crc, &rest[at..]);
                continue;
            };
            let is_whole = codec::open(rest, seed).is_some();
            (sequence, seed) = (sequence + 1, crc);
            rest = rest.get(padded(HEADER_BYTES + records.len())..).unwrap_or_default();
            if !is_whole {
                is_behind_gap = true;
                salvaged.damaged += 1;
                continue;
            }
            if let Some(Ok(Record::Next { first, blocks })) = Records::new(records).next() {
                next = Some((first, blocks));
                break;
            }
            let records = Records::new(records);
            salvaged.shown += 1;
            let (sequence, time_ns) = (group.sequence, group.time_ns);
            let shown = Shown {
                sequence,
                time_ns,
                records,
            };
            let is_read = show(shown, is_behind_gap).is_ok();
            is_behind_gap = !is_read;
            salvaged.damaged += u64::from(!is_read);
        }
    }
    salvaged
}

/// The first header of a group from `sequence` on whose checksum the group behind it continues: where that begins, the header and its checksum.
fn borne_out(bytes: &[u8], nonce: u64, sequence: u64) -> Option<(usize, Group, u32)> {
    (0..bytes.len()).step_by(padded(1)).find_map(|at| {
        let (group, records, crc) = codec::peek(&bytes[at..])?;
        let behind = at + padded(HEADER_BYTES + records.len());
        let is_one = group.nonce == nonce && group.sequence >= sequence;
        let (next, ..) = codec::open(bytes.get(behind..).filter(|_| is_one)?, crc)?;
        (next.nonce == nonce && next.sequence == group.sequence + 1).then_some((behind, group, crc))
    })
}

/// Bytes of a segment; zeros for blocks that cannot be read.
pub(super) fn load<M: Memory>(memory: &M, (first, blocks): Segment) -> Vec<u8> {
    let mut bytes = vec![0; blocks as usize * BLOCK_BYTES];
    load_into(memory, first, &mut bytes);
    bytes
}

/// [`load`] into a segment's bytes. Returns where the first block begins that cannot be read.
pub(super) fn load_into<M: Memory>(memory: &M, first: Block, bytes: &mut [u8]) -> Option<usize> {
    if memory.load(first, 0, bytes).is_ok() {
        return None;
    }
    let mut unread = None;
    for (nth, block) in bytes.chunks_mut(BLOCK_BYTES).enumerate() {
        if memory.load(first.plus(nth as u64), 0, block).is_err() {
            block.fill(0);
            unread.get_or_insert(nth * BLOCK_BYTES);
        }
    }
    unread
}
