//! A snapshot that is written whole, beside a log that nobody has open.

use super::codec::{self, Group, HEADER_BYTES, NEXT_BYTES, Record};
use super::journal::SNAPSHOT_GROUP_BYTES;
use super::scan::Segment;
use super::{Head, Malformed, Tables};
use crate::{BLOCK_BYTES, Memory, MemoryError};

/// Records of a snapshot, in groups.
#[derive(Debug)]
pub(crate) struct Rewrite {
    groups: Vec<Vec<u8>>,
    segment_blocks: u32,
}

impl Rewrite {
    /// A snapshot without a record, for segments of that many blocks.
    pub(crate) fn new(segment_blocks: u32) -> Self {
        let groups = Vec::new();
        Self { groups, segment_blocks }
    }

    pub(crate) fn add(&mut self, record: &Record<'_>) {
        // One and the largest record fit into a segment, as in `Journal`.
        let group_bytes = SNAPSHOT_GROUP_BYTES.min(self.segment_blocks as usize * BLOCK_BYTES / 4);
        if self.groups.last().is_none_or(|group| group.len() >= group_bytes) {
            self.groups.push(vec![0; HEADER_BYTES]);
        }
        codec::encode(self.groups.last_mut().expect("pushed if empty"), record);
    }

    /// Segments that [`Rewrite::write`] takes, with the tail's.
    pub(crate) fn segments(&self) -> usize {
        let (mut segments, mut at) = (1, 0);
        for group in &self.groups {
            let bytes = codec::padded(group.len());
            if at + bytes + NEXT_BYTES > self.segment_blocks as usize * BLOCK_BYTES {
                (segments, at) = (segments + 1, 0);
            }
            at += bytes;
        }
        segments + 1
    }

    /// The tree that the records lead to.
    pub(crate) fn tables(&self) -> Result<Tables, Malformed> {
        let records = self.groups.iter().flat_map(|group| &group[HEADER_BYTES..]);
        Tables::of_records(&records.copied().collect::<Vec<_>>())
    }

    /// Writes the groups to `segments`, which nothing else uses, and makes them durable. Returns the heads of the snapshot, and of an empty tail.
    /// `nonce` is a new secret: nothing that lies in the segments is taken for a group.
    pub(crate) fn write<M: Memory>(
        self,
        memory: &M,
        nonce: u64,
        segments: &mut dyn Iterator<Item = Segment>,
    ) -> Result<(Head, Head), MemoryError> {
        let mut segment = segments.next().ok_or(MemoryError)?;
        let head = Head::of_new(segment, !nonce);
        let (mut sequence, mut crc, mut at) = (head.sequence, head.seed, 0);
        let mut store = |segment: Segment, at: &mut usize, mut group: Vec<u8>| -> Result<(), MemoryError> {
            let header = Group {
                sequence,
                nonce: head.nonce,
                time_ns: 0,
                more: false,
                durable: 0,
            };
            crc = codec::seal(&mut group, crc, header);
            sequence += 1;
            memory.store_clean(segment.0, *at, &group)?;
            *at += group.len();
            Ok(())
        };
        for group in self.groups {
            if at + codec::padded(group.len()) + NEXT_BYTES > segment.1 as usize * BLOCK_BYTES {
                let next = segments.next().ok_or(MemoryError)?;
                let (first, blocks) = next;
                let mut leads_on = vec![0; HEADER_BYTES];
                codec::encode(&mut leads_on, &Record::Next { first, blocks });
                store(segment, &mut at, leads_on)?;
                memory.persist(segment.0, 0, at)?;
                (segment, at) = (next, 0);
                if codec::padded(group.len()) + NEXT_BYTES > blocks as usize * BLOCK_BYTES {
                    return Err(MemoryError);
                }
            }
            store(segment, &mut at, group)?;
        }
        memory.persist(segment.0, 0, at)?;
        let tail = segments.next().ok_or(MemoryError)?;
        Ok((head, Head::of_new(tail, nonce)))
    }
}
