//! An inode as the log tells of it.
//!
//! A million of them are in memory at once while a pool is opened, and most are files of one stretch of blocks, without anything rare: so
//! one takes 128 bytes, and nothing of the heap.

use super::names::Names;
use crate::Block;
use crate::fs::{FILE_BYTES_MAX, Ino, attr, check_volume_size, room_of_volume};
use crate::log::Attributes;
use std::collections::BTreeMap;
use std::ops::Range;

/// An inode.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Mode, owner and the like; `None` when the log never told.
    pub attributes: Option<Attributes>,
    /// Access, modification, change and birth, in ns since the epoch.
    pub times_ns: [i64; 4],
    /// Size and blocks.
    pub data: Data,
    /// Sequence number of the last group that moved its time of change.
    pub(super) changed: u64,
    /// Sequence number of the last group that set its times.
    pub(super) timed: u64,
    rare: Option<Box<Rare>>,
}

/// Parts that few inodes have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rare {
    /// Target of a symbolic link.
    pub(crate) target: Option<Box<[u8]>>,
    /// Extended attributes.
    pub(crate) xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// Names of a directory.
    pub(crate) names: Names,
}

/// Size and blocks of a file.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// In bytes.
    pub size: u64,
    /// Its blocks.
    pub extents: Extents,
}

/// Stretches of a file's blocks, ascending.
#[derive(Clone, Debug, Default)]
pub struct Extents(Stretches);

#[derive(Clone, Debug, Default)]
enum Stretches {
    #[default]
    None,
    One(Extent),
    Many(BTreeMap<u64, Extent>),
}

/// Blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first file block.
    pub at: u64,
    /// How many.
    pub blocks: u64,
    /// The pool's block at the first; see [`Extent::first`].
    raw: u64,
}

/// Mark in the place of the block of an extent that is promised only. No member has such a block.
const PROMISED: u64 = u64::MAX;

const _: () = assert!(size_of::<Node>() <= 120, "a node and its number fit 128 bytes");

impl Node {
    /// Target of a symbolic link.
    #[must_use]
    pub fn target(&self) -> Option<&[u8]> {
        self.rare.as_ref()?.target.as_deref()
    }

    /// Extended attributes.
    pub fn xattrs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let all = self.rare.iter().flat_map(|rare| &rare.xattrs);
        all.map(|(name, value)| (&**name, &**value))
    }

    /// Names in it.
    pub fn names(&self) -> impl Iterator<Item = (&[u8], Ino)> {
        let all = self.rare.as_ref().map_or(&[][..], |rare| rare.names.as_slice());
        all.iter().map(|name| (&*name.name, name.ino))
    }

    /// Moves its time of change.
    pub(super) fn touch(&mut self, sequence: u64, ns: i64) {
        (self.times_ns[2], self.changed) = (ns, sequence);
    }

    /// Its parts that few have.
    pub(super) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Takes its parts that few have.
    pub(crate) fn take_rare(&mut self) -> Option<Box<Rare>> {
        self.rare.take()
    }

    /// Its type, when that is known.
    pub(super) fn kind(&self) -> Option<u32> {
        self.attributes.map(|attributes| attributes.mode & attr::TYPE_MASK)
    }
}

/// Whether an inode of type `kind`, which may be a volume's, can have this size in bytes and blocks up to `end`.
pub(crate) fn fits(kind: u32, is_volume: bool, size: u64, end: u64, has_target: bool) -> bool {
    let is_empty = size == 0 && end == 0;
    match kind {
        attr::REGULAR => size <= FILE_BYTES_MAX,
        attr::BLOCK_DEVICE if is_volume => check_volume_size(size).is_ok() && end <= room_of_volume(size),
        attr::SYMLINK => is_empty && has_target,
        attr::DIRECTORY | attr::BLOCK_DEVICE | attr::CHARACTER_DEVICE | attr::FIFO | attr::SOCKET => is_empty,
        _ => false,
    }
}

impl Extent {
    /// An extent; without a place in the pool it is promised only.
    #[must_use]
    pub fn new(at: u64, blocks: u64, first: Option<Block>) -> Self {
        let raw = first.map_or(PROMISED, Block::to_raw);
        Self { at, blocks, raw }
    }

    /// The pool's block at the first; `None`: promised only.
    #[must_use]
    pub fn first(&self) -> Option<Block> {
        (self.raw != PROMISED).then(|| Block::from_raw(self.raw))
    }

    /// The file blocks.
    pub(super) fn file_blocks(&self) -> Range<u64> {
        self.at..self.end()
    }

    /// The file block behind it.
    fn end(&self) -> u64 {
        self.at + self.blocks
    }

    /// The part of it in `from..end`, which it reaches into.
    fn part(&self, from: u64, end: u64) -> Self {
        let (from, end) = (from.max(self.at), end.min(self.end()));
        let first = self.first().map(|first| first.plus(from - self.at));
        Self::new(from, end - from, first)
    }

    /// Whether `next` goes on where it ends, in the file and in the pool.
    fn leads_to(&self, next: &Self) -> bool {
        let end = self.first().map(|first| first.plus(self.blocks));
        self.end() == next.at && end == next.first()
    }
}

impl Extents {
    /// The file block behind the last one.
    #[must_use]
    pub fn end(&self) -> u64 {
        match &self.0 {
            Stretches::None => 0,
            Stretches::One(one) => one.end(),
            Stretches::Many(many) => many.last_key_value().map_or(0, |(_, last)| last.end()),
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Extent> {
        let (one, many) = match &self.0 {
            Stretches::None => (None, None),
            Stretches::One(one) => (Some(*one), None),
            Stretches::Many(many) => (None, Some(many)),
        };
        one.into_iter()
            .chain(many.into_iter().flat_map(|many| many.values().copied()))
    }

    /// The pool's block at file block `at`.
    pub(super) fn place(&self, at: u64) -> Option<Block> {
        let extent = match &self.0 {
            Stretches::None => return None,
            Stretches::One(one) => *one,
            Stretches::Many(many) => *many.range(..=at).next_back()?.1,
        };
        let is_inside = extent.at <= at && at < extent.end();
        extent
            .first()
            .filter(|_| is_inside)
            .map(|first| first.plus(at - extent.at))
    }

    /// Puts an extent in the place of what is there.
    pub(super) fn put(&mut self, new: Extent) {
        self.cut(new.at, new.blocks);
        self.insert(new);
    }

    /// Takes `blocks` file blocks from `at` on out.
    pub(super) fn cut(&mut self, at: u64, blocks: u64) {
        let end = at.saturating_add(blocks);
        let is_met = |extent: &Extent| extent.at < end && at < extent.end();
        match &mut self.0 {
            Stretches::None => {}
            Stretches::One(one) if !is_met(one) => {}
            Stretches::One(one) => {
                let one = *one;
                self.0 = Stretches::None;
                self.insert_rest(one, at, end);
            }
            Stretches::Many(many) => {
                let before = many.range(..at).next_back();
                let met = before.into_iter().chain(many.range(at..end));
                let met: Vec<Extent> = met.map(|(_, extent)| *extent).filter(is_met).collect();
                for extent in met {
                    if let Stretches::Many(many) = &mut self.0 {
                        many.remove(&extent.at);
                    }
                    self.insert_rest(extent, at, end);
                }
            }
        }
    }

    /// Inserts what of an extent is outside of `at..end`.
    fn insert_rest(&mut self, extent: Extent, at: u64, end: u64) {
        if extent.at < at {
            self.insert(extent.part(extent.at, at));
        }
        if extent.end() > end {
            self.insert(extent.part(end, extent.end()));
        }
    }

    /// Inserts an extent where nothing is. One that goes on where another ends makes that longer: a file that was written bit by bit has one.
    fn insert(&mut self, new: Extent) {
        match &mut self.0 {
            Stretches::None => self.0 = Stretches::One(new),
            Stretches::One(one) if one.leads_to(&new) => one.blocks += new.blocks,
            Stretches::One(one) => {
                let many = [*one, new].map(|extent| (extent.at, extent));
                self.0 = Stretches::Many(BTreeMap::from(many));
            }
            Stretches::Many(many) => {
                let before = many.range_mut(..new.at).next_back();
                match before.filter(|(_, before)| before.leads_to(&new)) {
                    Some((_, before)) => before.blocks += new.blocks,
                    None => drop(many.insert(new.at, new)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A change: a file block, how many, and a place in the pool, a promise, or nothing.
    fn change() -> impl Strategy<Value = (u64, u64, Option<Option<u64>>)> {
        (
            0..40_u64,
            1..10_u64,
            proptest::option::of(proptest::option::of(0..100_u64)),
        )
    }

    proptest! {
        #[test]
        fn extents_agree_with_a_map_of_blocks(changes in prop::collection::vec(change(), 0..60)) {
            let (mut extents, mut model) = (Extents::default(), BTreeMap::new());
            for (at, blocks, new) in changes {
                match new {
                    Some(first) => extents.put(Extent::new(at, blocks, first.map(Block::from_raw))),
                    None => extents.cut(at, blocks),
                }
                for into in 0..blocks {
                    match new {
                        Some(first) => drop(model.insert(at + into, first.map(|first| first + into))),
                        None => drop(model.remove(&(at + into))),
                    }
                }
                let (mut found, mut end) = (BTreeMap::new(), 0);
                for extent in extents.iter() {
                    prop_assert!(extent.at >= end && extent.blocks > 0, "extents overlap or are out of order");
                    end = extent.end();
                    let first = extent.first().map(Block::to_raw);
                    found.extend((0..extent.blocks).map(|into| (extent.at + into, first.map(|first| first + into))));
                }
                prop_assert_eq!((&found, extents.end()), (&model, end));
                for at in 0..60 {
                    prop_assert_eq!(extents.place(at).map(Block::to_raw), model.get(&at).copied().flatten());
                }
            }
        }
    }

    #[test]
    fn a_file_written_piece_by_piece_has_one_extent() {
        let mut extents = Extents::default();
        for at in 0..1000 {
            extents.put(Extent::new(at, 1, Some(Block::from_raw(at + 7))));
        }
        assert_eq!(
            extents.iter().collect::<Vec<_>>(),
            [Extent::new(0, 1000, Some(Block::from_raw(7)))]
        );
    }
}
