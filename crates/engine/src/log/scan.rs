//! Reading the log back: segment after segment, up to the last group that is whole.

use super::codec::{self, Group, HEADER_BYTES, NEXT_BYTES, Record, Records, padded};
use super::salvage::{load, load_into};
use super::{Change, Claim, Head, Malformed};
use crate::{BLOCK_BYTES, Block, MemberId, Memory};

/// A stretch of blocks that holds a part of the log.
pub(crate) type Segment = (Block, u32);

/// Whether two segments have blocks in common.
pub(crate) fn overlap((first, blocks): Segment, (other, others): Segment) -> bool {
    let end = |first: Block, blocks: u32| first.index() + u64::from(blocks);
    first.member() == other.member() && first.index() < end(other, others) && other.index() < end(first, blocks)
}

/// Why a log cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    /// A member gives no bytes.
    #[error("the log on {0} cannot be read")]
    Memory(MemberId),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A segment lies outside of the members.
    #[error("the log goes on at {first:?}, {blocks} blocks long, outside of the pool's members")]
    Outside { first: Block, blocks: u32 },
}

/// Where a log ends: the next group goes there.
#[derive(Clone, Debug)]
pub(crate) struct Tail {
    /// All segments, the last one is written to.
    pub(crate) segments: Vec<Segment>,
    /// Bytes used of the last one.
    pub(crate) at: usize,
    /// Sequence number of the last group.
    pub(crate) sequence: u64,
    /// Checksum of the last group.
    pub(crate) crc: u32,
    /// Whether blocks of the last segment cannot be read: nothing more is to be written there.
    pub(crate) has_unread: bool,
}

/// The group that is shown: the parts of a large one are shown together.
#[derive(Clone, Debug)]
pub(crate) struct Shown<'a> {
    /// Sequence number of the last part.
    pub(crate) sequence: u64,
    /// Time of its changes.
    pub(crate) time_ns: i64,
    /// The records.
    pub(crate) records: Records<'a>,
}

/// Shows each group of the log that begins at `head`, up to the group `until`, and returns where it ends. `is_within` tells whether a segment
/// lies in the members.
pub(crate) fn scan<M: Memory>(
    memory: &M,
    head: Head,
    until: u64,
    is_within: &dyn Fn(Segment) -> bool,
    show: &mut dyn FnMut(Shown<'_>) -> Result<(), Malformed>,
) -> Result<Tail, Unreadable> {
    let mut reader = Reader {
        memory,
        nonce: head.nonce,
        is_within,
        bytes: Vec::new(),
        unread: None,
        tail: Tail {
            segments: Vec::new(),
            at: 0,
            sequence: head.sequence - 1,
            crc: head.seed,
            has_unread: false,
        },
    };
    reader.enter((head.first, head.blocks))?;
    let mut whole = reader.mark();
    let (mut parts, mut is_open) = (Vec::new(), false);
    while let Some((group, records, end)) = reader.group().filter(|(group, ..)| group.sequence <= until) {
        let next = next_segment(records);
        if next.is_none() {
            is_open = group.more;
            if is_open || !parts.is_empty() {
                parts.extend_from_slice(records);
            }
            if !is_open {
                // Most have one part, and are shown where they lie.
                let all = if parts.is_empty() { records } else { &parts };
                show(Shown {
                    sequence: group.sequence,
                    time_ns: group.time_ns,
                    records: Records::new(all),
                })?;
                parts.clear();
            }
        }
        reader.tail = Tail {
            segments: std::mem::take(&mut reader.tail.segments),
            ..end
        };
        if let Some(segment) = next {
            reader.enter(segment)?;
        }
        if !is_open {
            whole = reader.mark();
        }
    }
    if reader.tail.sequence < until {
        reader.check_end()?;
    }
    let (segments, at, sequence, crc, has_unread) = whole;
    reader.tail.segments.truncate(segments);
    Ok(Tail {
        at,
        sequence,
        crc,
        has_unread,
        ..reader.tail
    })
}

/// A group behind the log's end that was durable, as one that follows it tells; 0 when there is none. A power cut leaves no such group, so the log
/// is damaged at its end. Only groups are believed whose checksum continues that of another one: a crash may have torn others.
pub(crate) fn claimed_behind<M: Memory>(
    memory: &M,
    end: &Tail,
    nonce: u64,
    is_within: &dyn Fn(Segment) -> bool,
) -> u64 {
    let mut claimed = 0;
    each_behind(memory, end, nonce, is_within, &mut |group, _, _| {
        if group.durable > end.sequence {
            claimed = group.durable;
        }
        claimed > 0
    });
    claimed
}

/// Blocks that whole groups behind the log's end give to files, in their order, and segments that the log goes on in there. The first group there,
/// which is damaged, says nothing: a flipped bit of its would be believed.
pub(crate) fn given_behind<M: Memory>(
    memory: &M,
    end: &Tail,
    nonce: u64,
    is_within: &dyn Fn(Segment) -> bool,
) -> (Vec<Claim>, Vec<Segment>) {
    let (mut given, mut segments, mut last) = (Vec::new(), Vec::new(), None);
    each_behind(memory, end, nonce, is_within, &mut |_, records, (before, checksum)| {
        // Others are left from before a crash.
        if last.is_none_or(|last| last == before) {
            last = Some(checksum);
            given.extend(Records::new(records).map_while(Result::ok).filter_map(given_by));
            segments.extend(next_segment(records).filter(|next| is_within(*next)));
        }
        false
    });
    (given, segments)
}

/// Blocks that a record gives to a file.
pub(crate) fn given_by(record: Record<'_>) -> Option<Claim> {
    match record {
        Record::Change(Change::Extent { ino, first, blocks, .. }) => Some((first?, blocks, ino)),
        _ => None,
    }
}

/// Looks at a group: its records, the checksum that it continues, and its own. True: it is the last one.
type See<'a> = dyn FnMut(&Group, &[u8], (u32, u32)) -> bool + 'a;

/// Shows each group behind the log's end that continues the checksum of another one, until `see` returns true.
fn each_behind<M: Memory>(memory: &M, end: &Tail, nonce: u64, is_within: &dyn Fn(Segment) -> bool, see: &mut See<'_>) {
    // Each with the checksum that its first group continues, where a group has led there.
    let mut places: Vec<(Segment, usize, Option<u32>)> = end
        .segments
        .last()
        .map(|last| (*last, end.at, None))
        .into_iter()
        .collect();
    let mut nth = 0;
    while let Some(&(segment, from, seed)) = places.get(nth) {
        nth += 1;
        let bytes = load(memory, segment);
        // Where a group leads, and whether it is the last to be seen. A segment is looked at once: groups of a crash, or made up, may lead in
        // a circle.
        let mut follow = |group: &Group, records: &[u8], before: Option<u32>, checksum| {
            let segment = next_segment(records).filter(|next| is_within(*next));
            if let Some(segment) = segment.filter(|next| places.iter().all(|(seen, ..)| !overlap(*seen, *next))) {
                places.push((segment, 0, Some(checksum)));
            }
            before.is_some_and(|before| see(group, records, (before, checksum)))
        };
        if let Some((group, records, checksum)) = seed.and_then(|seed| codec::open(&bytes, seed))
            && follow(&group, records, seed, checksum)
        {
            return;
        }
        for at in (from..bytes.len()).step_by(padded(1)) {
            let found = codec::peek(&bytes[at..]);
            let Some((group, records, checksum)) =
                found.filter(|(group, ..)| group.nonce == nonce && group.sequence > end.sequence)
            else {
                continue;
            };
            if group.sequence == end.sequence + 1 {
                follow(&group, records, None, checksum);
            }
            let behind = bytes.get(at + padded(HEADER_BYTES + records.len())..);
            if let Some((group, records, own)) = behind.and_then(|behind| codec::open(behind, checksum))
                && follow(&group, records, Some(checksum), own)
            {
                return;
            }
        }
    }
}

struct Reader<'a, M: Memory> {
    memory: &'a M,
    nonce: u64,
    is_within: &'a dyn Fn(Segment) -> bool,
    /// The bytes of the segment that is read; zeros for blocks that cannot be.
    bytes: Vec<u8>,
    /// Where the first of those begins.
    unread: Option<usize>,
    tail: Tail,
}

impl<M: Memory> Reader<'_, M> {
    fn enter(&mut self, segment: Segment) -> Result<(), Unreadable> {
        let (first, blocks) = segment;
        let is_read = self.tail.segments.iter().any(|read| overlap(*read, segment));
        if blocks == 0 || is_read || !(self.is_within)(segment) {
            return Err(Unreadable::Outside { first, blocks });
        }
        self.bytes.resize(blocks as usize * BLOCK_BYTES, 0);
        self.unread = load_into(self.memory, first, &mut self.bytes);
        self.tail.segments.push(segment);
        self.tail.at = 0;
        Ok(())
    }

    /// Where the tail is: its number of segments, bytes in the last, sequence, checksum, and whether blocks of the last cannot be read.
    fn mark(&self) -> (usize, usize, u64, u32, bool) {
        let Tail {
            segments,
            at,
            sequence,
            crc,
            ..
        } = &self.tail;
        (segments.len(), *at, *sequence, *crc, self.unread.is_some())
    }

    /// An error where the log ends because a block cannot be read. Others behind the end do not matter.
    fn check_end(&self) -> Result<(), Unreadable> {
        let Some(unread) = self.unread.filter(|_| self.group().is_none()) else {
            return Ok(());
        };
        let bytes = self.bytes.get(self.tail.at..).unwrap_or_default();
        let is_next = |group: &codec::Group| group.sequence == self.tail.sequence + 1 && group.nonce == self.nonce;
        let begun = codec::peek(bytes).filter(|(group, ..)| is_next(group));
        // At the end there has to be room for what leads on.
        let bytes = begun.map_or(0, |(_, records, _)| padded(HEADER_BYTES + records.len()));
        if self.tail.at + bytes.max(NEXT_BYTES) <= unread {
            return Ok(());
        }
        let (first, _) = self.tail.segments.last().expect("a segment was entered");
        Err(Unreadable::Memory(first.member()))
    }

    /// The group that follows, and the tail behind it, without segments.
    fn group(&self) -> Option<(codec::Group, &[u8], Tail)> {
        let bytes = self.bytes.get(self.tail.at..)?;
        let (group, records, crc) = codec::open(bytes, self.tail.crc)?;
        let tail = Tail {
            segments: Vec::new(),
            at: self.tail.at + padded(HEADER_BYTES + records.len()),
            sequence: group.sequence,
            crc,
            has_unread: false,
        };
        let follows = group.sequence == self.tail.sequence + 1 && group.nonce == self.nonce;
        follows.then_some((group, records, tail))
    }
}

/// The segment that a group leads to, if it is that kind of group.
fn next_segment(records: &[u8]) -> Option<Segment> {
    match Records::new(records).next()? {
        Ok(Record::Next { first, blocks }) => Some((first, blocks)),
        _ => None,
    }
}
