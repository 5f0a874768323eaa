//! The bytes of the log: groups of records, each group with a checksum that continues the one before.
//!
//! All numbers are little-endian. A group is a header of 40 bytes and its records, padded to 8 bytes; it counts when its checksum is right, and
//! the checksum's seed is that of the group before: what an earlier life of the pool left behind a group never continues it.

use super::planted::{Planted, is_planted};
use super::{Attributes, Change};
use crate::fs::{Ino, Placement, TARGET_BYTES_MAX, VALUE_BYTES_MAX};
use crate::{BLOCK_BYTES, Block};
use homenode_shared::BlockMap;

/// First bytes of a group: `HNLG`.
const MAGIC: u32 = u32::from_le_bytes(*b"HNLG");
/// Bytes of a group's header.
pub(super) const HEADER_BYTES: usize = 40;

/// Bytes of the group that leads to the next segment.
pub(super) const NEXT_BYTES: usize = padded(HEADER_BYTES + 13);
/// Sequence numbers and generations lie below: no pool comes so far, and sums with them cannot overflow.
pub(super) const NUMBERS_MAX: u64 = 1 << 62;
/// Where the checksum lies in the header.
const CRC_AT: usize = 36;
/// Flag of a group that the next one continues: they count together or not at all.
const MORE: u32 = 1;
/// Bits of the flags above that one: how many groups before this one the last durable group was when it was stored; 0 when that is not told.
const BEHIND_BITS: u32 = 31;

/// Record of the log: a put of a whole value, a delete, or a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A change of the filesystem's metadata.
    Change(Change<'a>),
    /// Birth of an inode, where it is not the time of its group.
    Birth {
        /// Number of the inode.
        ino: Ino,
        /// Nanoseconds since the epoch.
        ns: i64,
    },
    /// A file's changes of blocks and size up to a group are final: their bytes are durable.
    Settled {
        /// Number of the inode.
        ino: Ino,
        /// Sequence number of the last group that is meant; this group, if that comes before.
        through: u64,
        /// First file block of those whose bytes were made durable where they lie.
        at: u64,
        /// How many of those.
        blocks: u64,
    },
    /// All files' changes of blocks and size up to a group are final, and all bytes are durable where they lie.
    SettledAll {
        /// Sequence number of the last group that is meant.
        through: u64,
    },
    /// Bytes of a file from a block's start on, which may not be durable where they lie.
    Bytes {
        /// Number of the inode.
        ino: Ino,
        /// First file block.
        at: u64,
        /// Whole blocks.
        bytes: &'a [u8],
    },
    /// The group counts only when the changes of this file that came before are settled by one of the groups behind.
    Needs {
        /// Number of the inode.
        ino: Ino,
    },
    /// The log goes on in another segment.
    Next {
        /// Its first block.
        first: Block,
        /// How many blocks it has.
        blocks: u32,
    },
    /// The pool was opened.
    Opened {
        /// Whether changes that were not settled were given up.
        dropped: bool,
    },
    /// Last number that an inode had.
    LastInode {
        /// The number.
        ino: Ino,
    },
    /// End of a snapshot.
    SnapshotEnd,
}

/// Bytes that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a group of the log holds an invalid record {at} bytes after its start")]
pub struct Malformed {
    /// Where they begin, in bytes behind the records' start.
    pub at: usize,
}

/// Header of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Number of the group, one more than that of the group before.
    pub(crate) sequence: u64,
    /// Secret of the log: no file's bytes are taken for a group.
    pub(crate) nonce: u64,
    /// Time of the changes, nanoseconds since the epoch.
    pub(crate) time_ns: i64,
    /// Whether the next group continues this one.
    pub(crate) more: bool,
    /// Sequence number of a group before this one: that and all before are there after any crash. 0 when none is known.
    pub(crate) durable: u64,
}

/// A change within a record, and any other record as it is: a pattern, or an expression.
macro_rules! record {
    (Change::$($variant:tt)*) => { Record::Change(Change::$($variant)*) };
    (Record::$($variant:tt)*) => { Record::$($variant)* };
}

/// Makes [`encode`] and [`Records::record`] of a table. A row has the record's code and its fields, each with the name of the method of [`Put`] that
/// stores it and the method of [`Records`] that reads it; the last ones may share a method.
macro_rules! records {
    ($($code:literal => $of:ident::$name:ident {
        $($field:ident: $codec:ident),* $(,)? $(($($last:ident),+): $codec_of_last:ident)?
    } $(if $is_meant:expr)?,)+) => {
        /// Appends the bytes of a record.
        pub(super) fn encode(to: &mut Vec<u8>, record: &Record<'_>) {
            let mut put = Put(to);
            match *record {
                $(record!($of::$name { $($field,)* $($($last),+)? }) $(if $is_meant)? => {
                    put.u8($code)$(.$codec($field))*$(.$codec_of_last($($last),+))?;
                })+
            }
        }

        impl<'a> Records<'a> {
            fn record(&mut self) -> Option<Record<'a>> {
                Some(match self.u8()? {
                    $($code => {
                        $(let $field = self.$codec()?;)*
                        $(let ($($last),+) = self.$codec_of_last()?;)?
                        record!($of::$name { $($field,)* $($($last),+)? })
                    })+
                    _ => return None,
                })
            }
        }
    };
}

// Codes, and the order of the fields, are for ever.
records! {
    1 => Change::Inode { ino: ino, attributes: attributes },
    2 => Change::Target { ino: ino, target: target },
    3 => Change::Times { ino: ino, (atime_ns, mtime_ns, ctime_ns): times },
    4 => Change::Name { dir: ino, ino: ino, name: short },
    5 => Change::NoName { dir: ino, name: short },
    6 => Change::Xattr { ino: ino, name: short, value: value },
    7 => Change::NoXattr { ino: ino, name: short },
    8 => Change::Extent { ino: ino, (at, blocks, first): placed } if first.is_some(),
    9 => Change::Extent { ino: ino, (at, blocks, first): reserved },
    10 => Change::NoExtents { ino: ino, (at, blocks): stretch },
    11 => Change::Size { ino: ino, bytes: u64 },
    12 => Change::Grown { ino: ino, bytes: u64 },
    13 => Change::Volume { ino: ino, name: text },
    14 => Change::NoVolume { name: text },
    15 => Record::Birth { ino: ino, ns: i64 },
    16 => Record::Settled { ino: ino, through: u64, at: u64, blocks: u64 },
    17 => Record::SettledAll { through: u64 },
    18 => Record::Bytes { ino: ino, (at, bytes): blocks_from },
    19 => Record::Needs { ino: ino },
    20 => Record::Next { first: block, blocks: u32 },
    21 => Record::Opened { dropped: flag },
    22 => Record::LastInode { ino: ino },
    23 => Record::SnapshotEnd {},
}

struct Put<'a>(&'a mut Vec<u8>);

impl Put<'_> {
    fn ino(&mut self, ino: Ino) -> &mut Self {
        self.u64(ino.0)
    }

    fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn i64(&mut self, value: i64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A name: its length in one byte, then its bytes.
    fn short(&mut self, bytes: &[u8]) -> &mut Self {
        self.u8(u8::try_from(bytes.len()).expect("names have at most 255 bytes: checked where they come in"));
        self.0.extend_from_slice(bytes);
        self
    }

    /// Bytes: their number in four bytes, then they.
    fn long(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(u32::try_from(bytes.len()).expect("values have at most 64 KiB: checked where they come in"));
        self.0.extend_from_slice(bytes);
        self
    }

    fn target(&mut self, target: &[u8]) -> &mut Self {
        self.long(target)
    }

    fn value(&mut self, value: &[u8]) -> &mut Self {
        self.long(value)
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.short(text.as_bytes())
    }

    fn flag(&mut self, flag: bool) -> &mut Self {
        self.u8(flag.into())
    }

    fn block(&mut self, block: Block) -> &mut Self {
        self.u64(block.to_raw())
    }

    fn attributes(&mut self, a: Attributes) -> &mut Self {
        self.u32(a.mode).u32(a.uid).u32(a.gid).u32(a.rdev);
        self.u32(Placement::to_word(a.placement))
    }

    /// A bit for each time that is there, then those.
    fn times(&mut self, atime_ns: Option<i64>, mtime_ns: Option<i64>, ctime_ns: Option<i64>) -> &mut Self {
        let all = [atime_ns, mtime_ns, ctime_ns];
        let bits = all
            .iter()
            .enumerate()
            .map(|(bit, time)| u8::from(time.is_some()) << bit);
        self.u8(bits.sum());
        for time in all.into_iter().flatten() {
            self.i64(time);
        }
        self
    }

    fn stretch(&mut self, at: u64, blocks: u64) -> &mut Self {
        debug_assert!(blocks > 0, "an empty stretch at {at} cannot be read back");
        self.u64(at).u64(blocks)
    }

    fn placed(&mut self, at: u64, blocks: u64, first: Option<Block>) -> &mut Self {
        self.stretch(at, blocks)
            .block(first.expect("a row's condition: there is one"))
    }

    fn reserved(&mut self, at: u64, blocks: u64, _: Option<Block>) -> &mut Self {
        self.stretch(at, blocks)
    }

    fn blocks_from(&mut self, at: u64, bytes: &[u8]) -> &mut Self {
        self.u64(at).long(bytes)
    }
}

/// Goes through the records of one group.
#[derive(Clone, Debug)]
pub(crate) struct Records<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Records<'a> {
    pub(crate) fn new(all: &'a [u8]) -> Self {
        Self { all, at: 0 }
    }

    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let bytes = self.all.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    fn ino(&mut self) -> Option<Ino> {
        // As many are never given out.
        self.u64().filter(|ino| *ino < 1 << 62).map(Ino)
    }

    fn short(&mut self) -> Option<&'a [u8]> {
        let count = self.u8()?;
        self.bytes(count.into())
    }

    /// At most so many bytes: a segment has room for no more.
    fn long(&mut self, most: usize) -> Option<&'a [u8]> {
        let count = usize::try_from(self.u32()?).ok()?;
        (count <= most).then(|| self.bytes(count))?
    }

    fn target(&mut self) -> Option<&'a [u8]> {
        self.long(TARGET_BYTES_MAX)
    }

    fn value(&mut self) -> Option<&'a [u8]> {
        self.long(VALUE_BYTES_MAX)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.short()?).ok()
    }

    fn flag(&mut self) -> Option<bool> {
        self.u8().map(|byte| byte != 0)
    }

    fn block(&mut self) -> Option<Block> {
        self.u64().map(Block::from_raw)
    }

    fn attributes(&mut self) -> Option<Attributes> {
        Some(Attributes {
            mode: self.u32()?,
            uid: self.u32()?,
            gid: self.u32()?,
            rdev: self.u32()?,
            placement: Placement::from_word(self.u32()?).ok()?,
        })
    }

    fn times(&mut self) -> Option<(Option<i64>, Option<i64>, Option<i64>)> {
        let bits = self.u8()?;
        let mut times = [None; 3];
        for (bit, time) in times.iter_mut().enumerate() {
            if bits & 1 << bit != 0 {
                *time = Some(self.i64()?);
            }
        }
        Some(times.into())
    }

    /// The first of some file blocks, and how many they are: at least 1, and within what a map can name.
    fn stretch(&mut self) -> Option<(u64, u64)> {
        let (at, blocks) = (self.u64()?, self.u64()?);
        let end = at.checked_add(blocks)?;
        (blocks > 0 && end <= BlockMap::LIMIT).then_some((at, blocks))
    }

    /// A stretch, and where it lies in the pool.
    fn placed(&mut self) -> Option<(u64, u64, Option<Block>)> {
        let ((at, blocks), first) = (self.stretch()?, self.block()?);
        let end = first.index().checked_add(blocks)?;
        (end < 1 << 48).then_some((at, blocks, Some(first)))
    }

    fn reserved(&mut self) -> Option<(u64, u64, Option<Block>)> {
        self.stretch().map(|(at, blocks)| (at, blocks, None))
    }

    /// The first of some file blocks, and their bytes.
    fn blocks_from(&mut self) -> Option<(u64, &'a [u8])> {
        let (at, bytes) = (self.u64()?, self.long(usize::MAX)?);
        let end = at.checked_add((bytes.len() / BLOCK_BYTES) as u64)?;
        (end <= BlockMap::LIMIT && bytes.len().is_multiple_of(BLOCK_BYTES)).then_some((at, bytes))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at == self.all.len() {
            return None;
        }
        let at = self.at;
        let record = self.record().ok_or(Malformed { at });
        if record.is_err() {
            self.at = self.all.len();
        }
        Some(record)
    }
}

/// Bytes that a group takes in a segment whose records take so many.
pub(super) const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

/// Writes the header in front of the records in `group`, which begin behind [`HEADER_BYTES`]; pads it, and returns its checksum.
pub(super) fn seal(group: &mut Vec<u8>, seed: u32, header: Group) -> u32 {
    let bytes = u32::try_from(group.len()).expect("a group is smaller than a segment, which is below 4 GiB");
    let behind = u32::try_from(header.sequence - header.durable).unwrap_or(0);
    let behind = if header.durable == 0 || behind >> BEHIND_BITS != 0 {
        0
    } else {
        behind
    };
    let mut put = Vec::with_capacity(HEADER_BYTES);
    Put(&mut put)
        .u32(MAGIC)
        .u32(bytes)
        .u64(header.sequence)
        .u64(header.nonce)
        .i64(header.time_ns)
        .u32((behind << 1) | if header.more { MORE } else { 0 });
    let crc = crc32c::crc32c_append(crc32c::crc32c_append(seed, &put), &group[HEADER_BYTES..]);
    Put(&mut put).u32(crc);
    group[..HEADER_BYTES].copy_from_slice(&put);
    group.resize(padded(group.len()), 0);
    crc
}

/// Opens the group at the start of `bytes`: its header, its records, and its checksum. `None`: there is none whose checksum continues `seed`.
pub(super) fn open(bytes: &[u8], seed: u32) -> Option<(Group, &[u8], u32)> {
    let (group, records, crc) = peek(bytes)?;
    let found = crc32c::crc32c_append(crc32c::crc32c_append(seed, &bytes[..CRC_AT]), records);
    (found == crc || is_planted(Planted::TornGroup)).then_some((group, records, crc))
}

/// The group at the start of `bytes` as its header tells it, right or not.
pub(super) fn peek(bytes: &[u8]) -> Option<(Group, &[u8], u32)> {
    let mut header = Records::new(bytes.get(..HEADER_BYTES)?);
    let (magic, count) = (header.u32()?, header.u32()?);
    let (sequence, nonce, time_ns) = (header.u64()?, header.u64()?, header.i64()?);
    let (flags, crc) = (header.u32()?, header.u32()?);
    if magic != MAGIC || sequence >= NUMBERS_MAX {
        return None;
    }
    let records = bytes.get(HEADER_BYTES..usize::try_from(count).ok()?)?;
    let group = Group {
        sequence,
        nonce,
        time_ns,
        more: flags & MORE != 0,
        durable: match flags >> 1 {
            0 => 0,
            behind => sequence.saturating_sub(behind.into()),
        },
    };
    Some((group, records, crc))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeId;

    const INO: Ino = Ino(0x0102_0304_0506_0708);

    /// A record of each kind.
    fn all() -> Vec<Record<'static>> {
        let attributes = Attributes {
            mode: 0o100_644,
            uid: 1,
            gid: u32::MAX,
            rdev: 7,
            placement: Some(Placement::Node(NodeId(3))),
        };
        let (at, blocks, first) = (5, 600, Some(Block::from_raw(1 << 48 | 9)));
        let name: &[u8] = b"name";
        let changes = [
            Change::Inode { ino: INO, attributes },
            Change::Target {
                ino: INO,
                target: &[b'x'; 4095],
            },
            Change::Times {
                ino: INO,
                atime_ns: None,
                mtime_ns: Some(-1),
                ctime_ns: Some(i64::MAX),
            },
            Change::Name {
                dir: Ino::ROOT,
                name: &[b'n'; 255],
                ino: INO,
            },
            Change::NoName { dir: INO, name },
            Change::Xattr {
                ino: INO,
                name,
                value: &[],
            },
            Change::NoXattr { ino: INO, name },
            Change::Extent {
                ino: INO,
                at,
                blocks,
                first,
            },
            Change::Extent {
                ino: INO,
                at,
                blocks,
                first: None,
            },
            Change::NoExtents { ino: INO, at, blocks },
            Change::Size { ino: INO, bytes: 9 },
            Change::Grown { ino: INO, bytes: 10 },
            Change::Volume { name: "v", ino: INO },
            Change::NoVolume { name: "v" },
        ];
        let mut all: Vec<Record<'_>> = changes.into_iter().map(Record::Change).collect();
        all.extend([
            Record::Birth { ino: INO, ns: -5 },
            Record::Settled {
                ino: INO,
                through: u64::MAX,
                at,
                blocks,
            },
            Record::SettledAll { through: 4 },
            Record::Bytes {
                ino: INO,
                at,
                bytes: &[7; BLOCK],
            },
            Record::Needs { ino: INO },
            Record::Next {
                first: Block::from_raw(77),
                blocks: 256,
            },
            Record::Opened { dropped: true },
            Record::LastInode { ino: INO },
            Record::SnapshotEnd,
        ]);
        all
    }

    const BLOCK: usize = crate::BLOCK_BYTES;

    fn group(records: &[Record<'_>]) -> Vec<u8> {
        let mut group = vec![0; HEADER_BYTES];
        records.iter().for_each(|record| encode(&mut group, record));
        let header = Group {
            sequence: 3,
            nonce: 4,
            time_ns: 5,
            more: false,
            durable: 1,
        };
        seal(&mut group, 9, header);
        group
    }

    #[test]
    fn every_record_survives_encoding() {
        let (all, group) = (all(), group(&all()));
        let (header, records, _) = open(&group, 9).expect("the group is whole");
        let expected = Group {
            sequence: 3,
            nonce: 4,
            time_ns: 5,
            more: false,
            durable: 1,
        };
        assert_eq!(header, expected);
        let read: Result<Vec<_>, _> = Records::new(records).collect();
        assert_eq!(read, Ok(all));
    }

    #[test]
    fn a_group_with_a_flipped_bit_or_a_wrong_predecessor_is_rejected() {
        let group = group(&[Record::Needs { ino: INO }]);
        assert!(open(&group, 8).is_none(), "the group continues another one");
        let sealed = HEADER_BYTES + 9;
        for bit in 0..sealed * 8 {
            let mut flipped = group.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&flipped, 9).is_none(), "bit {bit} of {}", sealed * 8);
        }
        for end in 0..sealed {
            assert!(open(&group[..end], 9).is_none(), "{end} bytes of it");
        }
    }

    #[test]
    fn values_are_as_long_as_files_may_have_them() {
        let value = vec![7; VALUE_BYTES_MAX + 1];
        for (bytes, is_read) in [(VALUE_BYTES_MAX, true), (VALUE_BYTES_MAX + 1, false)] {
            let (ino, value) = (INO, &value[..bytes]);
            let mut record = Vec::new();
            encode(
                &mut record,
                &Record::Change(Change::Xattr {
                    ino,
                    name: b"user.a",
                    value,
                }),
            );
            assert_eq!(Records::new(&record).all(|record| record.is_ok()), is_read, "{bytes}");
        }
    }

    #[test]
    fn truncated_records_are_malformed() {
        for record in all() {
            let mut bytes = Vec::new();
            encode(&mut bytes, &record);
            for end in 1..bytes.len() {
                let read: Result<Vec<_>, _> = Records::new(&bytes[..end]).collect();
                assert_eq!(read, Err(Malformed { at: 0 }), "{end} bytes of {record:?}");
            }
        }
    }
}
