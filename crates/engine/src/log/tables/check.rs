//! Faults of the tables: a log that is whole can lead to a tree that is none.
//!
//! Cost: a few passes over all inodes and names, whatever their shape is, and a sort of the blocks.

use super::{Kind, Named, Node, Tables, fits};
use crate::fs::{Ino, attr, check_volume_name};
use crate::{Block, MemberId};
use std::collections::{HashMap, HashSet};

/// A fault of the tables: what a sound log cannot lead to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// A name leads nowhere.
    #[error("`{name}` in directory {dir} names inode {ino}, which does not exist", dir = .dir.0, ino = .ino.0)]
    Dangling {
        /// The directory.
        dir: Ino,
        /// The name, as text.
        name: String,
        /// The inode it names.
        ino: Ino,
    },
    /// Names in something that is no directory, or not there.
    #[error("inode {ino} holds names but is not a directory", ino = .0.0)]
    NoDirectory(Ino),
    /// A directory has more than one name, or none that leads to the root.
    #[error("directory {ino} is not reached from the root by exactly one path", ino = .0.0)]
    Shape(Ino),
    /// The root is not there.
    #[error("there is no root directory")]
    NoRoot,
    /// An inode without attributes.
    #[error("inode {ino} has no attributes", ino = .0.0)]
    NoAttributes(Ino),
    /// A name that no directory can have.
    #[error("directory {dir} has the invalid name `{name}`", dir = .dir.0)]
    Name {
        /// The directory.
        dir: Ino,
        /// The name, as text.
        name: String,
    },
    /// A type that no inode has, or blocks or a size that its type cannot have.
    #[error("inode {ino} has an invalid type, size or blocks", ino = .0.0)]
    Body(Ino),
    /// A volume whose inode is missing, or is none of a volume.
    #[error("volume `{0}` has no inode of its own")]
    Volume(Box<str>),
    /// Blocks that no member has, or that hold superblocks or the log.
    #[error("file {ino} has {blocks} blocks from block {} of {} on, which no file may have", .first.index(), .first.member(), ino = .ino.0)]
    Outside {
        /// The file.
        ino: Ino,
        /// The first.
        first: Block,
        /// How many.
        blocks: u64,
    },
    /// Blocks that two files have.
    #[error("file {ino} has {blocks} blocks from block {} of {} on, some of which another file has too", .first.index(), .first.member(), ino = .ino.0)]
    Twice {
        /// The file.
        ino: Ino,
        /// The first.
        first: Block,
        /// How many.
        blocks: u64,
    },
    /// Blocks of a file that another one got by changes which are lost.
    #[error("file {ino} had {blocks} blocks from block {} of {} on, which changes that are lost gave to another file", .first.index(), .first.member(), ino = .ino.0)]
    GivenOn {
        /// The file.
        ino: Ino,
        /// The first.
        first: Block,
        /// How many.
        blocks: u64,
    },
    /// More blocks are promised to files than the pool has.
    #[error("{0} blocks are promised to files, more than the pool has room for")]
    Promised(u64),
    /// An inode without a name, in a log that has lost some.
    #[error("inode {ino} has no name", ino = .0.0)]
    Nameless(Ino),
    /// An inode of which the log has lost a part: blocks, its size, or other things.
    #[error("inode {ino} has lost a part of its log records", ino = .0.0)]
    Torn(Ino),
    /// Parts of the log that cannot be read.
    #[error("the log is damaged: {0}")]
    Log(String),
    /// A copy of a member's superblock is no superblock.
    #[error("the superblock at the {} of {member} is damaged", if *.at_end { "end" } else { "start" })]
    Superblock {
        /// The member.
        member: MemberId,
        /// Which copy.
        at_end: bool,
    },
}

impl Damage {
    pub(super) fn name(dir: Ino, name: &[u8]) -> Self {
        let name = String::from_utf8_lossy(name).into_owned();
        Self::Name { dir, name }
    }

    pub(super) fn dangling(dir: Ino, name: &[u8], ino: Ino) -> Self {
        let name = String::from_utf8_lossy(name).into_owned();
        Self::Dangling { dir, name, ino }
    }
}

/// Result of a look at all that the tables have.
#[derive(Debug, Default)]
pub(crate) struct Overview {
    /// All faults.
    pub(crate) damage: Vec<Damage>,
    /// Blocks that files have, ascending.
    pub(crate) claims: Vec<Claim>,
    /// Blocks that are promised to files.
    pub(crate) promised: u64,
    /// How many inodes there are.
    pub(crate) inodes: u64,
}

/// Blocks that a file has: the first, how many, and the file.
pub(crate) type Claim = (Block, u64, Ino);

impl Tables {
    /// All faults of the tables. `is_for_files` tells whether blocks are a file's to have.
    #[must_use]
    pub fn check(&self, is_for_files: &dyn Fn(Block, u64) -> bool) -> Vec<Damage> {
        self.look_over(is_for_files, &mut |_, _| {}).damage
    }

    /// [`Tables::check`], with what else is seen on the way. Shows each inode, with what leads to it.
    pub(crate) fn look_over(
        &self,
        is_for_files: &dyn Fn(Block, u64) -> bool,
        show: &mut dyn FnMut(&Node, &Named),
    ) -> Overview {
        let mut damage = self.found.clone();
        if self.named(Ino::ROOT).is_none_or(|root| root.kind != Kind::Directory) {
            damage.push(Damage::NoRoot);
        }
        for place in &self.directories {
            let ((ino, _), named) = (self.nodes.at(*place), &self.named[*place]);
            if named.has_names && named.kind != Kind::Directory {
                damage.push(Damage::NoDirectory(*ino));
            }
        }
        let mut overview = Overview::default();
        let mut ways = Ways::default();
        for (place, ((ino, node), named)) in self.nodes.iter().zip(&self.named).enumerate() {
            if !self.is_live(*ino, named) {
                continue;
            }
            overview.inodes += 1;
            show(node, named);
            self.check_node(place, &mut ways, &mut damage);
            for extent in node.data.extents.iter() {
                match extent.first() {
                    Some(first) => overview.claims.push((first, extent.blocks, *ino)),
                    None => overview.promised = overview.promised.saturating_add(extent.blocks),
                }
            }
        }
        let mut volumes = HashSet::new();
        for (name, ino) in &self.volumes {
            let node = self.nodes.place(*ino).map(|place| &self.nodes.at(place).1);
            let is_device = node.is_some_and(|node| node.kind() == Some(attr::BLOCK_DEVICE));
            let has_name = self.named(*ino).is_some_and(|named| named.links > 0);
            // A second volume of the inode is none either.
            if !is_device || has_name || !volumes.insert(*ino) || check_volume_name(name).is_err() {
                damage.push(Damage::Volume(name.clone()));
            }
        }
        overview.claims.sort_unstable();
        check_blocks(&overview.claims, is_for_files, &mut damage);
        damage.sort_by_cached_key(|damage| format!("{damage:?}"));
        overview.damage = damage;
        overview
    }

    fn check_node(&self, place: usize, ways: &mut Ways, damage: &mut Vec<Damage>) {
        let ((ino, node), named) = (self.nodes.at(place), &self.named[place]);
        let Some(kind) = node.kind() else {
            damage.push(Damage::NoAttributes(*ino));
            return;
        };
        let data = &node.data;
        if !fits(
            kind,
            named.is_volume,
            data.size,
            data.extents.end(),
            node.target().is_some(),
        ) {
            damage.push(Damage::Body(*ino));
        }
        if named.kind == Kind::Directory && named.is_reached(*ino) {
            let names = if *ino == Ino::ROOT { 0 } else { 1 };
            if named.links != names || !self.is_reached(place, ways) {
                damage.push(Damage::Shape(*ino));
            }
        }
    }

    fn named(&self, ino: Ino) -> Option<&Named> {
        self.nodes.place(ino).map(|place| &self.named[place])
    }

    /// Whether a way leads up from a directory to the root. Each directory is passed once, for all that ask.
    fn is_reached(&self, place: usize, ways: &mut Ways) -> bool {
        let mut at = Some(place);
        let is_reached = loop {
            let Some(place) = at else { break false };
            if self.nodes.at(place).0 == Ino::ROOT {
                break true;
            }
            match ways.known.get(&place) {
                Some(Way::Reached) => break true,
                // A circle, too.
                Some(Way::Unknown | Way::Lost) => break false,
                None => {}
            }
            ways.known.insert(place, Way::Unknown);
            ways.path.push(place);
            at = self.named[place].parent().and_then(|parent| self.nodes.place(parent));
        };
        let way = if is_reached { Way::Reached } else { Way::Lost };
        for place in ways.path.drain(..) {
            ways.known.insert(place, way);
        }
        is_reached
    }
}

/// Facts of directories, by their places.
#[derive(Default)]
struct Ways {
    known: HashMap<usize, Way>,
    /// Directories that are being passed.
    path: Vec<usize>,
}

#[derive(Clone, Copy)]
enum Way {
    Unknown,
    Reached,
    Lost,
}

fn check_blocks(claims: &[Claim], is_for_files: &dyn Fn(Block, u64) -> bool, damage: &mut Vec<Damage>) {
    let mut end = None;
    for (first, blocks, ino) in claims.iter().copied() {
        if !is_for_files(first, blocks) {
            damage.push(Damage::Outside { ino, first, blocks });
            continue;
        }
        if end.is_some_and(|end| first < end) {
            damage.push(Damage::Twice { ino, first, blocks });
        }
        end = end.max(Some(first.plus(blocks)));
    }
}
