//! The first and the last block of a durable member: what pool the member belongs to, and where the log begins.

use super::codec::NUMBERS_MAX;
use crate::pool::MemberKind;
use crate::{BLOCK_BYTES, Block, MemberId};

/// First bytes of a superblock.
const MAGIC: &[u8; 8] = b"HomeNode";
/// Members that a durable pool may have: as many as the table in a superblock has room for.
pub(crate) const MEMBERS_MAX: usize = 128;
/// Place of the number of the log's last group, in bytes.
const END_AT: usize = 152;
/// Place of the number of the pool's history, in bytes.
const HISTORY_AT: usize = 160;
/// Place of the pool's name, in bytes.
const NAME_AT: usize = 256;
/// Where the table of members begins, in bytes.
const MEMBERS_AT: usize = 512;
/// Bytes of a member's entry in the table.
const MEMBER_BYTES: usize = 16;
/// Where the names of incompatible features lie, each with a NUL behind it, in the order of their bits.
const NAMES_AT: usize = MEMBERS_AT + MEMBERS_MAX * MEMBER_BYTES;
/// Where the checksum lies: the last bytes.
const CRC_AT: usize = BLOCK_BYTES - 4;

const _: () = assert!(NAMES_AT + 1024 <= CRC_AT);

/// Features of a pool's format, that those who read it must know: bit sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Anybody may read and write the pool without knowing these.
    pub compatible: u64,
    /// Whoever does not know these may only read.
    pub read_only: u64,
    /// Whoever does not know these may not even read. Their names are in the superblock.
    pub incompatible: u64,
}

/// Names of the bits of [`Features::read_only`] that are given away, from bit 0 on. Nothing here writes such a pool.
const READ_ONLY: &[&str] = &["data-sums"];

impl Features {
    /// Name of the first feature that is in use, and that whoever writes must know; `None` when the pool may be written.
    pub(crate) fn not_to_write(self) -> Option<Box<str>> {
        let bit = (0..u64::BITS).find(|bit| self.read_only & 1 << bit != 0)?;
        let name = usize::try_from(bit).ok().and_then(|bit| READ_ONLY.get(bit));
        Some(name.map_or_else(|| format!("feature {bit}").into(), |name| (*name).into()))
    }
}

/// Names of the known bits of [`Features::incompatible`], from bit 0 on.
const INCOMPATIBLE: &[&str] = &[];

/// Name of a durable pool: at most 31 letters, digits, `-`, `_` and `.` of ASCII, of which a letter or digit is the first; or empty, of a pool
/// that was given none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolName([u8; 32]);

/// A text is no name of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pool's name has 1 to 31 letters, digits, `-`, `_` and `.`, and begins with a letter or digit")]
pub struct NotAName;

impl PoolName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let bytes = self.0.split(|byte| *byte == 0).next().unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl std::str::FromStr for PoolName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let is_inside = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
        let begins = text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        let mut name = Self::default();
        if !begins || text.len() >= name.0.len() || !text.as_bytes().iter().all(is_inside) {
            return Err(NotAName);
        }
        name.0[..text.len()].copy_from_slice(text.as_bytes());
        Ok(name)
    }
}

impl std::fmt::Display for PoolName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Where the log begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// First block of the first segment.
    pub first: Block,
    /// Blocks of that segment.
    pub blocks: u32,
    /// Sequence number of the first group.
    pub sequence: u64,
    /// Secret of the log.
    pub nonce: u64,
    /// Seed of the first group's checksum.
    pub seed: u32,
}

impl Head {
    /// The head of a log that follows nothing.
    pub(crate) fn of_new((first, blocks): (Block, u32), nonce: u64) -> Self {
        Self {
            first,
            blocks,
            sequence: 1,
            nonce,
            seed: crc32c::crc32c(&nonce.to_le_bytes()),
        }
    }
}

/// A member as the superblock knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberRecord {
    /// Its number.
    pub id: MemberId,
    /// Kind of storage.
    pub kind: MemberKind,
    /// All its blocks, superblocks among them.
    pub blocks: u64,
}

/// Content of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Features that the pool uses.
    pub features: Features,
    /// Identity of the pool.
    pub uuid: u128,
    /// Name, for people.
    pub name: PoolName,
    /// Rises with each change: the highest of all copies counts.
    pub generation: u64,
    /// The member that has this copy.
    pub own: MemberId,
    /// Identity of what keeps bytes that are not durable yet, such as one boot of the machine: while it is there, nothing that was
    /// stored is lost.
    pub witness: u128,
    /// Where the snapshot begins.
    pub snapshot: Head,
    /// Where what follows the snapshot begins.
    pub tail: Head,
    /// Sequence number of a group that no crash takes away, the last one when the pool was put away: a log that ends before it is damaged.
    pub end: u64,
    /// Number of the pool's history: random, and another one from each opening and each repair on that gave up something that had been stored.
    pub history: u64,
    /// All members, ascending by number.
    pub members: Vec<MemberRecord>,
}

/// Why a block is no superblock that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnusableSuperblock {
    /// It does not begin as one.
    #[error("it is no member of a pool (`homenode pool create` makes files and disks members)")]
    NotOne,
    /// There are no bytes.
    #[error("it has no bytes, as a loop device without a file (`losetup DEVICE FILE` gives it one)")]
    Empty,
    /// Its checksum is wrong.
    #[error("its superblock is damaged")]
    Damaged,
    /// It was written by something newer.
    #[error("the pool uses `{0}`, which this version of Homenode does not know: use a newer one")]
    Feature(Box<str>),
}

impl Superblock {
    /// The bytes of a superblock.
    ///
    /// # Panics
    /// With more members than a table has room for.
    #[must_use]
    pub fn encode(&self) -> Box<[u8; BLOCK_BYTES]> {
        assert!(self.members.len() <= MEMBERS_MAX);
        let mut out = Box::new([0; BLOCK_BYTES]);
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(MAGIC);
        let Features {
            compatible,
            read_only,
            incompatible,
        } = self.features;
        for bits in [compatible, read_only, incompatible] {
            put(&bits.to_le_bytes());
        }
        put(&self.uuid.to_le_bytes());
        put(&self.generation.to_le_bytes());
        put(&self.witness.to_le_bytes());
        for head in [&self.snapshot, &self.tail] {
            put(&head.first.to_raw().to_le_bytes());
            put(&head.blocks.to_le_bytes());
            put(&head.seed.to_le_bytes());
            put(&head.sequence.to_le_bytes());
            put(&head.nonce.to_le_bytes());
        }
        put(&self.own.0.to_le_bytes());
        let count = u16::try_from(self.members.len()).expect("the number of members is asserted above");
        put(&count.to_le_bytes());
        for (member, entry) in self
            .members
            .iter()
            .zip(out[MEMBERS_AT..].chunks_exact_mut(MEMBER_BYTES))
        {
            entry[..2].copy_from_slice(&member.id.0.to_le_bytes());
            entry[2] = kind_code(member.kind);
            entry[8..].copy_from_slice(&member.blocks.to_le_bytes());
        }
        out[END_AT..][..8].copy_from_slice(&self.end.to_le_bytes());
        out[HISTORY_AT..][..8].copy_from_slice(&self.history.to_le_bytes());
        out[NAME_AT..][..self.name.0.len()].copy_from_slice(&self.name.0);
        let mut at = NAMES_AT;
        for (bit, name) in INCOMPATIBLE.iter().enumerate() {
            if self.features.incompatible & 1 << bit != 0 {
                out[at..at + name.len()].copy_from_slice(name.as_bytes());
                at += name.len() + 1;
            }
        }
        let crc = crc32c::crc32c(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The superblock of these bytes.
    ///
    /// # Errors
    /// [`UnusableSuperblock`] says why there is none.
    pub fn decode(bytes: &[u8; BLOCK_BYTES]) -> Result<Self, UnusableSuperblock> {
        if &bytes[..8] != MAGIC {
            return Err(UnusableSuperblock::NotOne);
        }
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if crc32c::crc32c(&bytes[..CRC_AT]).to_le_bytes() != bytes[CRC_AT..] {
            return Err(UnusableSuperblock::Damaged);
        }
        let word = |nth: usize| {
            let at = 8 + 8 * nth;
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a word has eight bytes"))
        };
        let wide = |nth: usize| u128::from(word(nth)) | u128::from(word(nth + 1)) << 64;
        let features = Features {
            compatible: word(0),
            read_only: word(1),
            incompatible: word(2),
        };
        if let Some(name) = unknown_feature(features.incompatible, &bytes[NAMES_AT..CRC_AT]) {
            return Err(UnusableSuperblock::Feature(name));
        }
        let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).expect("the word is masked to 32 bits");
        let head = |nth: usize| -> Head {
            Head {
                first: Block::from_raw(word(nth)),
                blocks: low(word(nth + 1)),
                seed: low(word(nth + 1) >> 32),
                sequence: word(nth + 2),
                nonce: word(nth + 3),
            }
        };
        let (snapshot, tail) = (head(8), head(12));
        let behind = 8 + 8 * 16;
        let count = usize::from(u16_at(behind + 2));
        let generation = word(5);
        let is_counted = |number: u64| number < NUMBERS_MAX;
        let has_sequence = |head: Head| head.sequence > 0 && is_counted(head.sequence);
        if count > MEMBERS_MAX || !is_counted(generation) || !has_sequence(snapshot) || !has_sequence(tail) {
            return Err(UnusableSuperblock::Damaged);
        }
        let entries = bytes[MEMBERS_AT..].chunks_exact(MEMBER_BYTES).take(count);
        let members = entries.map(|entry| {
            Ok(MemberRecord {
                id: MemberId(u16::from_le_bytes([entry[0], entry[1]])),
                kind: kind_of(entry[2]).ok_or(UnusableSuperblock::Damaged)?,
                blocks: u64::from_le_bytes(entry[8..16].try_into().expect("a slice of 8 bytes fits an array of 8")),
            })
        });
        let members: Vec<MemberRecord> = members.collect::<Result<_, UnusableSuperblock>>()?;
        let own = MemberId(u16_at(behind));
        let text = bytes[NAME_AT..][..32]
            .split(|byte| *byte == 0)
            .next()
            .unwrap_or_default();
        let name = match std::str::from_utf8(text) {
            Ok("") => PoolName::default(),
            text => text
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or(UnusableSuperblock::Damaged)?,
        };
        let is_ascending = members.windows(2).all(|two| two[0].id < two[1].id);
        let is_sound =
            |member: &MemberRecord| usize::from(member.id.0) < MemberId::LIMIT && (2..1 << 48).contains(&member.blocks);
        if !is_ascending || !members.iter().all(is_sound) || !members.iter().any(|member| member.id == own) {
            return Err(UnusableSuperblock::Damaged);
        }
        Ok(Self {
            features,
            uuid: wide(3),
            name,
            generation,
            witness: wide(6),
            end: word((END_AT - 8) / 8),
            history: word((HISTORY_AT - 8) / 8),
            snapshot,
            tail,
            own,
            members,
        })
    }

    /// The newer superblock of a member, of the bytes of its first and of its last block.
    ///
    /// # Errors
    /// Why neither can be used.
    pub fn newer(first: &[u8; BLOCK_BYTES], last: &[u8; BLOCK_BYTES]) -> Result<Self, UnusableSuperblock> {
        match (Self::decode(first), Self::decode(last)) {
            (Ok(first), Ok(last)) if last.generation > first.generation => Ok(last),
            (Err(UnusableSuperblock::NotOne), last) => last,
            (Ok(first), _) => Ok(first),
            (Err(_), Ok(last)) => Ok(last),
            (Err(first), Err(_)) => Err(first),
        }
    }
}

/// The members of a pool among files, told by their superblocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gathered {
    /// The superblock that counts.
    pub newest: Superblock,
    /// Place of each member's superblock among those given, in the members' order; none where it is missing.
    pub members: Vec<Option<usize>>,
    /// Places of superblocks that the newest one does not list: of files that were to become members, or were some.
    pub others: Vec<usize>,
}

/// Why superblocks are not those of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotGathered {
    /// No superblock was given.
    Nothing,
    /// The one at that place is of another pool than the newest, which has this UUID.
    OtherPool(usize, u128),
    /// Superblocks at these places are of the same member.
    Twice([usize; 2]),
    /// Superblocks at these places have one generation and two logs: they are of copies of a pool that went on apart.
    Apart([usize; 2]),
}

/// Generations by which a member's superblock may be older than the newest: one for a change that was cut short, one for a member that joins.
pub(crate) const GENERATIONS_BEHIND_MAX: u64 = 2;

/// Finds the members of one pool among superblocks, the newer one of each file, in any order.
///
/// # Errors
/// [`NotGathered`].
pub fn gather(given: &[Superblock]) -> Result<Gathered, NotGathered> {
    let newest = given.iter().max_by_key(|superblock| superblock.generation);
    let newest = newest.ok_or(NotGathered::Nothing)?.clone();
    if let Some(other) = given.iter().position(|superblock| superblock.uuid != newest.uuid) {
        return Err(NotGathered::OtherPool(other, newest.uuid));
    }
    let mut members = Vec::new();
    for MemberRecord { id, .. } in &newest.members {
        let is_recent = |one: &Superblock| one.generation + GENERATIONS_BEHIND_MAX >= newest.generation;
        let own = (0..).zip(given).filter(|(_, one)| one.own == *id && is_recent(one));
        let mut own: Vec<(usize, u64)> = own.map(|(place, one)| (place, one.generation)).collect();
        own.sort_unstable_by_key(|(_, generation)| std::cmp::Reverse(*generation));
        match own[..] {
            [(one, newer), (other, older), ..] if newer == older => return Err(NotGathered::Twice([one, other])),
            _ => members.push(own.first().map(|(place, _)| *place)),
        }
    }
    let log = |one: &Superblock| (one.history, one.snapshot, one.tail);
    let mut equals = members
        .iter()
        .flatten()
        .filter(|place| given[**place].generation == newest.generation);
    if let Some(one) = equals.next()
        && let Some(other) = equals.find(|other| log(&given[**other]) != log(&given[*one]))
    {
        return Err(NotGathered::Apart([*one, *other]));
    }
    let others = (0..given.len())
        .filter(|place| !members.contains(&Some(*place)))
        .collect();
    Ok(Gathered {
        newest,
        members,
        others,
    })
}

/// The name of the first incompatible feature that is not known here, of `names` as they lie in a superblock.
fn unknown_feature(bits: u64, names: &[u8]) -> Option<Box<str>> {
    let set = (0..u64::BITS).filter(|bit| bits & 1 << bit != 0);
    let mut named = set.zip(names.split(|byte| *byte == 0));
    let is_known = |bit: u32| usize::try_from(bit).is_ok_and(|bit| bit < INCOMPATIBLE.len());
    let (bit, name) = named.find(|(bit, _)| !is_known(*bit))?;
    Some(match name {
        b"" => format!("feature {bit}").into(),
        name => String::from_utf8_lossy(name).into(),
    })
}

const fn kind_code(kind: MemberKind) -> u8 {
    match kind {
        MemberKind::Dram => 0,
        MemberKind::Pmem => 1,
        MemberKind::File => 2,
        MemberKind::Block => 3,
    }
}

/// Gives none for memory, which no superblock lists.
fn kind_of(code: u8) -> Option<MemberKind> {
    let all = [MemberKind::Dram, MemberKind::Pmem, MemberKind::File, MemberKind::Block];
    all.into_iter()
        .find(|kind| kind_code(*kind) == code && *kind != MemberKind::Dram)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            features: Features {
                compatible: 1,
                read_only: 2,
                incompatible: 0,
            },
            uuid: 1 << 100 | 5,
            name: "tank-1".parse().expect("the name is valid"),
            generation: 6,
            own: MemberId(1),
            witness: 1 << 90 | 7,
            end: 1 << 50 | 3,
            history: 1 << 60 | 11,
            snapshot: Head::of_new((Block::from_raw(8), 9), 10),
            tail: Head::of_new((Block::from_raw(11), 12), 13),
            members: (0..128)
                .map(|id| MemberRecord {
                    id: MemberId(id),
                    kind: MemberKind::Pmem,
                    blocks: 1000 + u64::from(id),
                })
                .collect(),
        }
    }

    #[test]
    fn a_superblock_survives_encoding() {
        assert_eq!(Superblock::decode(&superblock().encode()), Ok(superblock()));
    }

    #[test]
    fn numbers_that_no_pool_comes_to_are_refused() {
        let changes: [fn(&mut Superblock); 3] = [
            |one| one.generation = u64::MAX,
            |one| one.snapshot.sequence = u64::MAX,
            |one| one.tail.sequence = u64::MAX,
        ];
        for change in changes {
            let mut changed = superblock();
            change(&mut changed);
            assert_eq!(Superblock::decode(&changed.encode()), Err(UnusableSuperblock::Damaged));
        }
    }

    #[test]
    fn members_of_copies_that_were_used_apart_are_refused() {
        let of = |own, history, generation| Superblock {
            own: MemberId(own),
            history,
            generation,
            members: superblock().members[..2].to_vec(),
            ..superblock()
        };
        let places = |one, other| gather(&[one, other]).map(|gathered| gathered.members);
        assert_eq!(places(of(0, 1, 6), of(1, 1, 6)), Ok(vec![Some(0), Some(1)]));
        assert_eq!(places(of(0, 1, 6), of(1, 2, 6)), Err(NotGathered::Apart([0, 1])));
        // A crash came while the pool was opened.
        assert_eq!(places(of(0, 2, 7), of(1, 1, 6)), Ok(vec![Some(0), Some(1)]));
    }

    #[test]
    fn a_member_of_memory_is_refused() {
        let mut superblock = superblock();
        superblock.members[1].kind = MemberKind::Dram;
        assert_eq!(
            Superblock::decode(&superblock.encode()),
            Err(UnusableSuperblock::Damaged)
        );
    }

    #[test]
    fn pool_names_have_only_plain_letters() {
        for name in ["a", "0", "tank-1_b.c", &"x".repeat(31)] {
            assert_eq!(
                name.parse::<PoolName>().map(|name| name.to_string()),
                Ok(name.to_owned())
            );
        }
        for name in ["", ".", "..", "-a", "a/b", "a b", "\u{e4}", "a\0", &"x".repeat(32)] {
            assert_eq!(name.parse::<PoolName>(), Err(NotAName), "{name:?}");
        }
    }

    #[test]
    fn a_superblock_with_any_bit_flipped_is_refused() {
        let whole = superblock().encode();
        for bit in 0..BLOCK_BYTES * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let refused = Superblock::decode(&flipped).expect_err("the superblock is damaged");
            let expected = if bit < 64 {
                UnusableSuperblock::NotOne
            } else {
                UnusableSuperblock::Damaged
            };
            assert_eq!(refused, expected, "bit {bit}");
        }
    }

    #[test]
    fn an_unknown_feature_is_refused_by_its_name() {
        let mut superblock = superblock();
        superblock.features.incompatible = 1 << 40 | 1 << 63;
        let mut block = superblock.encode();
        let refused = Superblock::decode(&block).expect_err("the feature is unknown");
        assert_eq!(refused, UnusableSuperblock::Feature("feature 40".into()));
        block[NAMES_AT..NAMES_AT + 9].copy_from_slice(b"data-sums");
        let crc = crc32c::crc32c(&block[..CRC_AT]);
        block[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        let refused = Superblock::decode(&block).expect_err("the feature is unknown");
        assert_eq!(refused, UnusableSuperblock::Feature("data-sums".into()));
    }
}
