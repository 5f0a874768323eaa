//! Mending a damaged durable pool: its faults, each with its remedy, and a snapshot of the tree without them.
//!
//! Invariants: a plan writes nothing. The new snapshot goes where nothing lies, and counts from the change of the superblocks on: a crash before
//! leaves the pool as it was. The new tree is checked as any other before the first byte is written.

mod blocks;
mod tree;

use super::restore::{last_met, persist_life, require_writable, within};
use super::{Ino, OpenError, Replayed};
use crate::log::{
    Change, Claim, Damage, GENERATIONS_BEHIND_MAX, Part, Record, Rewrite, Salvaged, Segment, Shown, Superblock, Tables,
    Tail, given_behind, given_by, overlap, repair_superblocks, salvage, scan, write_superblocks,
};
use crate::{BLOCK_BYTES, Block, MemberId, Memory, MemoryError};
use blocks::Claims;
use std::collections::BTreeSet;
use std::sync::Arc;
use tree::Tree;

/// A fault, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{damage}: {remedy}")]
pub struct Mended {
    /// The fault.
    pub damage: Damage,
    /// The remedy.
    pub remedy: Remedy,
}

/// A remedy of a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Remedy {
    /// A name goes.
    #[error("the name is dropped")]
    NameDropped,
    /// All names in an inode go.
    #[error("they are dropped")]
    NamesDropped,
    /// An inode goes, with its blocks.
    #[error("the inode is dropped")]
    Dropped,
    /// An inode gets a name in lost+found.
    #[error("it is named `{0}` in lost+found")]
    Found(String),
    /// An inode becomes one of root's, which nobody else may use.
    #[error("it becomes a {0} owned by root")]
    Remade(&'static str),
    /// An inode keeps its owner and permissions, and becomes one of this type.
    #[error("it becomes a {0}")]
    Retyped(&'static str),
    /// Bytes of an inode that can have none go.
    #[error("its bytes are dropped")]
    BytesDropped,
    /// A file or a volume gets a size that it can have.
    #[error("its size is set to {0} bytes")]
    Resized(u64),
    /// A volume gets a name that it can have.
    #[error("it is renamed to `{0}`")]
    Renamed(Box<str>),
    /// Blocks become a hole.
    #[error("{0} of them read as zeros from now on")]
    Hole(u64),
    /// Promises of room go.
    #[error("the promises are dropped")]
    PromisesDropped,
    /// A part of the log is lost, and the rest is kept.
    #[error("the rest is kept")]
    Kept,
    /// A part of an inode is lost, and the rest is kept.
    #[error("its known parts are kept for its owner alone, and missing bytes read as zeros")]
    PartKept,
    /// A copy is written anew from the other one.
    #[error("it is written again")]
    Rewritten,
}

impl Remedy {
    /// Whether nothing is lost by it.
    #[must_use]
    pub fn is_lossless(&self) -> bool {
        matches!(self, Self::Rewritten)
    }
}

/// The smallest size of segments that are tried for a new snapshot. A record fits into it.
const SEGMENT_BLOCKS_MIN: u32 = 64;

/// A plan of what becomes of a damaged pool.
#[derive(Debug)]
pub struct Repair {
    mended: Vec<Mended>,
    /// Or why there is no place for it.
    new: Option<Result<New, OpenError>>,
    inodes: u64,
    placed_blocks: u64,
}

/// A new state of the pool.
#[derive(Debug)]
struct New {
    snapshot: Rewrite,
    /// Free segments that it may take.
    segments: Vec<Segment>,
    /// Bytes that are only in the old log, with their places.
    saved: Vec<(Block, Arc<[u8]>)>,
}

impl Repair {
    /// Reads the pool whose superblock this is, and plans how it is mended. What is not settled counts under `witness`. `segment_blocks` is the size
    /// of the log's segments, `now_ns` the time of what is made new.
    ///
    /// # Errors
    /// [`OpenError`] when nothing of the tree can be read.
    pub fn plan<M: Memory>(
        memory: &M,
        superblock: &Superblock,
        witness: u128,
        segment_blocks: u32,
        now_ns: i64,
    ) -> Result<Self, OpenError> {
        let mut mended = superblocks(memory, superblock);
        let (replayed, mut lost) = match Replayed::read(memory, superblock, witness) {
            Ok(replayed) => (replayed, Lost::default()),
            Err(error) => salvaged(memory, superblock, witness, error, &mut mended)?,
        };
        if let Some(fault) = replayed.cut_short(superblock) {
            mended.push(Mended {
                damage: Damage::Log(fault),
                remedy: Remedy::Kept,
            });
            let is_within = |segment| within(superblock, segment);
            let (given, segments) = given_behind(memory, &replayed.tail, superblock.tail.nonce, &is_within);
            lost.given.extend(given);
            lost.segments = segments;
        }
        let damage = replayed.check(superblock);
        let extents = replayed.tables.inodes().flat_map(|(_, node)| node.data.extents.iter());
        let placed = extents.filter(|extent| extent.first().is_some());
        let placed_blocks = placed.map(|extent| extent.blocks).fold(0, u64::saturating_add);
        let inodes = replayed.tables.inodes().count() as u64;
        let is_log_whole = mended.iter().all(|one| one.remedy == Remedy::Rewritten);
        let new = if damage.is_empty() && is_log_whole {
            None
        } else {
            let mut claims = Claims::new(superblock, &replayed);
            claims.keep_for_log(&lost.segments);
            let twice = damage.iter().any(|damage| matches!(damage, Damage::Twice { .. }));
            if twice {
                claims.order(memory, superblock);
            }
            let mut tree = Tree::of(replayed.tables, now_ns, &mut mended);
            let old = claims.all(&tree);
            tree.mend(&lost);
            claims.mend(&mut tree, lost.given);
            let left = tree
                .snapshot(segment_blocks)
                .tables()
                .map_err(|error| OpenError::Log(error.to_string()))?;
            let left = left.check(&|first, blocks| claims.is_for_files(first, blocks));
            if !left.is_empty() {
                return Err(OpenError::Damaged(left));
            }
            // A full pool may have room for smaller ones only.
            let mut blocks = segment_blocks;
            let placed = loop {
                let snapshot = tree.snapshot(blocks);
                match claims.free_segments(&old, superblock, blocks, snapshot.segments()) {
                    Ok(segments) => break Ok((snapshot, segments)),
                    Err(error) if blocks / 2 < SEGMENT_BLOCKS_MIN => break Err(error),
                    Err(_) => blocks /= 2,
                }
            };
            let saved = replayed.saved.into_iter();
            let saved = saved.filter(|(ino, place, _)| claims.is_of(*place, *ino));
            let saved = saved.map(|(_, place, bytes)| (place, bytes)).collect();
            Some(placed.map(|(snapshot, segments)| New {
                snapshot,
                segments,
                saved,
            }))
        };
        Ok(Self {
            mended,
            new,
            inodes,
            placed_blocks,
        })
    }

    /// All faults with their remedies; none in a sound pool.
    #[must_use]
    pub fn mended(&self) -> &[Mended] {
        &self.mended
    }

    /// Inodes, before anything is mended.
    #[must_use]
    pub fn inodes(&self) -> u64 {
        self.inodes
    }

    /// Blocks that files have, before anything is mended.
    #[must_use]
    pub fn placed_blocks(&self) -> u64 {
        self.placed_blocks
    }

    /// Carries the plan out, on the memory that it was made of. `nonce` is a random number.
    ///
    /// # Errors
    /// [`OpenError::NoRoom`] for a new snapshot; the pool is as it was. [`OpenError::Io`]; the pool is as it was then, or mended. [`OpenError::ReadOnly`] when this version may not change the pool.
    pub fn carry_out<M: Memory>(
        self,
        memory: &M,
        superblock: &Superblock,
        witness: u128,
        nonce: u64,
    ) -> Result<(), OpenError> {
        require_writable(superblock.features)?;
        if self.mended.is_empty() {
            return Ok(());
        }
        let new = self.new.transpose()?;
        repair_superblocks(memory, superblock)?;
        let Some(new) = new else { return Ok(()) };
        // What a killed process left in the machine's memory.
        persist_life(memory, superblock, witness)?;
        for (place, bytes) in &new.saved {
            memory.store_clean(*place, 0, bytes)?;
        }
        let mut segments = new.segments.into_iter();
        let (snapshot, tail) = new.snapshot.write(memory, nonce, &mut segments)?;
        for member in &superblock.members {
            memory.persist_all(member.id)?;
        }
        let mut superblock = superblock.clone();
        (superblock.snapshot, superblock.tail) = (snapshot, tail);
        (superblock.witness, superblock.end) = (witness, 0);
        superblock.history = nonce;
        let members = superblock.members.clone();
        // As often as when a pool is opened, for the same reason.
        for _ in 0..=GENERATIONS_BEHIND_MAX {
            superblock.generation += 1;
            let written = write_superblocks(memory, &mut superblock, &members, false);
            written.map_err(|_| MemoryError)?;
        }
        Ok(())
    }
}

/// Copies of superblocks that are none. An older copy is no fault: a crash leaves it between two writes.
fn superblocks<M: Memory>(memory: &M, superblock: &Superblock) -> Vec<Mended> {
    let copies = superblock.members.iter().flat_map(|member| {
        let places = [(false, 0), (true, member.blocks - 1)];
        places.map(|(at_end, index)| (member.id, at_end, Block::new(member.id, index)))
    });
    let is_damaged = |(.., place): &(MemberId, bool, Block)| {
        let mut copy = [0; BLOCK_BYTES];
        memory.load(*place, 0, &mut copy).is_err() || Superblock::decode(&copy).is_err()
    };
    let damaged = copies.filter(is_damaged);
    damaged
        .map(|(member, at_end, _)| Mended {
            damage: Damage::Superblock { member, at_end },
            remedy: Remedy::Rewritten,
        })
        .collect()
}

/// Losses of a damaged log.
#[derive(Debug, Default)]
struct Lost {
    /// There may have been names.
    names: bool,
    /// Inodes of which a part may be lost.
    torn: BTreeSet<Ino>,
    /// Blocks that changes gave to files, in their order.
    given: Vec<Claim>,
    /// Segments of the log behind its end.
    segments: Vec<Segment>,
    /// The inode whose records the last group has begun with and not ended.
    open: Option<Ino>,
}

impl Lost {
    /// Looks at a group of the snapshot: which inodes have records in the groups that are lost before it.
    fn look(&mut self, group: &Shown<'_>, is_behind_gap: bool) {
        let mut records = group.records.clone().filter_map(Result::ok);
        let first = records.next();
        if is_behind_gap {
            let is_new = matches!(first, Some(Record::Change(Change::Inode { .. })));
            self.torn.extend(self.open.take());
            self.torn.extend(first.and_then(inode_of).filter(|_| !is_new));
        }
        // Their birth comes last.
        let last = records.last().or(first);
        self.open = last
            .filter(|last| !matches!(last, Record::Birth { .. }))
            .and_then(inode_of);
    }
}

/// The inode that a record tells of.
fn inode_of(record: Record<'_>) -> Option<Ino> {
    match record {
        Record::Birth { ino, .. }
        | Record::Change(
            Change::Inode { ino, .. }
            | Change::Target { ino, .. }
            | Change::Times { ino, .. }
            | Change::Xattr { ino, .. }
            | Change::Extent { ino, .. }
            | Change::Size { ino, .. },
        ) => Some(ino),
        _ => None,
    }
}

/// Reads what is whole of a damaged log, and tells what is lost; fails with `error` when nothing can be read.
fn salvaged<M: Memory>(
    memory: &M,
    superblock: &Superblock,
    witness: u128,
    error: OpenError,
    mended: &mut Vec<Mended>,
) -> Result<(Replayed, Lost), OpenError> {
    let known = mended.len();
    let mut tell = |what: String| {
        mended.push(Mended {
            damage: Damage::Log(what),
            remedy: Remedy::Kept,
        });
    };
    let is_within = |segment| within(superblock, segment);
    let all_is_there = superblock.witness == witness;
    let mut tables = Tables::new(all_is_there);
    let mut lost = Lost::default();
    let snapshot = salvage(
        memory,
        superblock.snapshot,
        Part::Snapshot,
        &is_within,
        &mut |group, is_behind_gap| {
            lost.look(&group, is_behind_gap);
            tables.play_snapshot(group)
        },
    );
    let Salvaged { shown, damaged, .. } = snapshot;
    if damaged > 0 {
        tell(format!(
            "{damaged} of the snapshot's groups cannot be read, and their records are lost"
        ));
    }
    let has_end = tables.end_snapshot();
    if !has_end {
        tell(format!(
            "the snapshot ends after {shown} groups, and its further records are lost"
        ));
    }
    let (met, _) = last_met(memory, superblock.tail, &is_within);
    let until = if all_is_there { u64::MAX } else { met };
    let mut sequence = superblock.tail.sequence - 1;
    let mut has_changes = false;
    // Nothing of the snapshot's is the tail's.
    let is_within = |segment| is_within(segment) && snapshot.segments.iter().all(|one| !overlap(*one, segment));
    let played = scan(memory, superblock.tail, until, &is_within, &mut |group| {
        sequence = group.sequence;
        has_changes |= group
            .records
            .clone()
            .any(|record| matches!(record, Ok(Record::Change(_))));
        tables.play(group)
    });
    // An empty pool in place of this one would only look repaired.
    if shown == 0 && !has_changes {
        return Err(error);
    }
    if let Err(why) = played {
        tell(format!("records of the log after group {sequence} are lost ({why})"));
    }
    if mended.len() == known {
        // Behind what counts, as after a power cut.
        mended.push(Mended {
            damage: Damage::Log(error.to_string().trim_end_matches(": run homenode fsck").to_owned()),
            remedy: Remedy::Kept,
        });
    }
    let saved = tables.finish();
    lost.names = damaged > 0 || !has_end;
    if !has_end {
        lost.torn.extend(lost.open);
    }
    if !lost.names {
        tables.drop_nameless();
    }
    let segments = salvage(memory, superblock.tail, Part::Tail, &is_within, &mut |group, _| {
        if group.sequence > sequence {
            lost.given
                .extend(group.records.map_while(Result::ok).filter_map(given_by));
        }
        Ok(())
    })
    .segments;
    let tail = Tail {
        segments,
        at: 0,
        sequence,
        crc: 0,
        has_unread: false,
    };
    let replayed = Replayed {
        tables,
        saved,
        snapshot: snapshot.segments,
        tail,
        claimed: 0,
        all_is_there,
    };
    Ok((replayed, lost))
}

fn change(change: Change<'_>) -> Record<'_> {
    Record::Change(change)
}

/// Number of an inode, as a name in lost+found.
fn number(ino: Ino) -> String {
    format!("#{}", ino.0)
}
