//! Showing what lies in a map; and moving all that lies behind a point of a file, in a second map, so that the first stays whole
//! until the second is.

use super::entry::{Entry, Kind};
use super::exclusive::children;
use super::nodes::{Nodes, NodesExhausted, Taker};
use super::{BlockMap, Extent, RUN_BLOCKS, slot_of, span};
use crate::sync::{AtomicU64, Ordering};
use std::convert::Infallible;
use std::ops::Range;

impl BlockMap {
    /// Makes a map of the same blocks, in which what lies from file block `from` on starts at `to`. What lies from `to` to `from`
    /// is left out, and so is what would come to lie beyond [`BlockMap::LIMIT`]. This map stays as it is. *Exclusive.*
    ///
    /// Cost: a store for each block that leaves its aligned 2 MiB, a load for each entry.
    ///
    /// # Errors
    /// When no map node is left for it.
    pub fn shifted(&self, nodes: &Nodes, taker: impl Into<Taker>, from: u64, to: u64) -> Result<Self, NodesExhausted> {
        let taker = taker.into();
        let new = Self::default();
        let mut merged = Merged::default();
        self.settle(nodes);
        let mut show = |at: u64, extent: Extent| {
            let stays = clip(at, extent, 0, from.min(to));
            let moves = clip(at, extent, from, Self::LIMIT);
            let moves = moves.and_then(|(at, extent)| clip(at - from + to, extent, 0, Self::LIMIT));
            [stays, moves].into_iter().flatten().try_for_each(|(at, extent)| {
                merged
                    .add(at, extent)
                    .map_or(Ok(()), |(at, extent)| new.put(nodes, taker, at, extent))
            })
        };
        let mut put = self.try_visit(nodes, &(0..Self::LIMIT), &mut show);
        if let Some((at, extent)) = merged.0 {
            put = put.and_then(|()| new.put(nodes, taker, at, extent));
        }
        if let Err(exhausted) = put {
            new.clear(nodes);
            return Err(exhausted);
        }
        Ok(new)
    }

    /// Shows everything in `range` (file blocks), in ascending order, a block, a run or what is reserved at a time. *Exclusive.*
    pub fn visit(&self, nodes: &Nodes, range: &Range<u64>, show: &mut dyn FnMut(u64, Extent)) {
        let Ok(()) = self.visit_until(nodes, range, &mut |at, extent| {
            show(at, extent);
            Ok::<_, Infallible>(())
        });
    }

    /// [`BlockMap::visit`] until `show` fails. *Exclusive.*
    ///
    /// # Errors
    /// That of `show`.
    pub fn visit_until<E>(
        &self,
        nodes: &Nodes,
        range: &Range<u64>,
        show: &mut dyn FnMut(u64, Extent) -> Result<(), E>,
    ) -> Result<(), E> {
        self.settle(nodes);
        self.try_visit(nodes, range, &mut |at, extent| {
            clip(at, extent, range.start, range.end).map_or(Ok(()), |(at, extent)| show(at, extent))
        })
    }

    /// The last file block below `end` that is no hole. *Exclusive.*
    ///
    /// Cost: a load for each entry behind it in its nodes, however much lies before it.
    #[must_use]
    pub fn last(&self, nodes: &Nodes, end: u64) -> Option<u64> {
        let inside = self.within(&(0..end));
        if inside.is_empty() {
            return None;
        }
        let tops: Vec<_> = self.tops(&inside).collect();
        let mut tops = tops.into_iter().rev();
        tops.find_map(|(entry, level, base)| last(nodes, entry, level, base, inside.end))
    }

    /// Visits like [`BlockMap::visit`], until `show` fails; an extent that is partly in `range` is shown whole.
    fn try_visit<E>(
        &self,
        nodes: &Nodes,
        range: &Range<u64>,
        show: &mut dyn FnMut(u64, Extent) -> Result<(), E>,
    ) -> Result<(), E> {
        let range = self.within(range);
        self.tops(&range)
            .try_for_each(|(entry, level, base)| visit(nodes, entry, level, base, &range, show))
    }

    /// Puts `new` in place of this map, and gives what was in it. *Exclusive.*
    #[must_use = "its nodes and blocks would be lost"]
    pub fn replace(&self, new: Self) -> Self {
        for (entry, new) in self.entries.iter().zip(&new.entries) {
            // Relaxed: opening the gate shows them to others.
            new.store(
                entry.swap(new.load(Ordering::Relaxed), Ordering::Relaxed),
                Ordering::Relaxed,
            );
        }
        let waiting = self
            .retired
            .swap(new.retired.load(Ordering::Relaxed), Ordering::Relaxed);
        new.retired.store(waiting, Ordering::Relaxed);
        new
    }

    /// Empties the map without a look at what was in it. *Exclusive.*
    pub fn clear(&self, nodes: &Nodes) {
        self.remove(nodes, 0, 0..Self::LIMIT, &mut |_, _| {})
            .expect("removing the whole map splits no run, so it needs no node");
    }

    /// Fills holes of a map that no other thread sees.
    fn put(&self, nodes: &Nodes, taker: Taker, at: u64, extent: Extent) -> Result<(), NodesExhausted> {
        let (block, blocks) = match extent {
            Extent::Placed { block, blocks } => (block, blocks),
            Extent::Reserved { blocks } => return self.reserve(nodes, taker, at..at + blocks, &mut 0),
        };
        let mut done = 0;
        while done < blocks {
            let (at, block) = (at + done, block.plus(done));
            let is_run = at.is_multiple_of(RUN_BLOCKS)
                && block.index().is_multiple_of(RUN_BLOCKS)
                && blocks - done >= RUN_BLOCKS;
            let entries = self.entries_at(nodes, taker, at, u32::from(is_run))?;
            let entries = entries.expect("extents of a map do not overlap");
            if is_run {
                // Relaxed, here and below: `replace` publishes the map.
                entries[0].store(Entry::run(block).0, Ordering::Relaxed);
                done += RUN_BLOCKS;
                continue;
            }
            for (entry, i) in entries.iter().zip(0..blocks - done) {
                entry.store(Entry::block(block.plus(i)).0, Ordering::Relaxed);
                done += 1;
            }
        }
        Ok(())
    }
}

/// The last extent that was shown, and all before it that lie one behind the other with it.
#[derive(Default)]
struct Merged(Option<(u64, Extent)>);

impl Merged {
    /// Takes the next extent; gives the one before when the two are not one.
    fn add(&mut self, at: u64, extent: Extent) -> Option<(u64, Extent)> {
        let blocks = extent_blocks(extent);
        match (&mut self.0, extent) {
            (Some((first, Extent::Placed { block, blocks: so_far })), Extent::Placed { block: next, .. })
                if *first + *so_far == at && block.plus(*so_far) == next =>
            {
                *so_far += blocks;
                None
            }
            (Some((first, Extent::Reserved { blocks: so_far })), Extent::Reserved { .. }) if *first + *so_far == at => {
                *so_far += blocks;
                None
            }
            (before, _) => before.replace((at, extent)),
        }
    }
}

fn extent_blocks(extent: Extent) -> u64 {
    match extent {
        Extent::Placed { blocks, .. } | Extent::Reserved { blocks } => blocks,
    }
}

/// The part of an extent at `at` that lies from `start` to `end`.
fn clip(at: u64, extent: Extent, start: u64, end: u64) -> Option<(u64, Extent)> {
    let from = at.max(start);
    let blocks = (at + extent_blocks(extent)).min(end).checked_sub(from)?;
    let part = match extent {
        Extent::Placed { block, .. } => Extent::Placed {
            block: block.plus(from - at),
            blocks,
        },
        Extent::Reserved { .. } => Extent::Reserved { blocks },
    };
    (blocks > 0).then_some((from, part))
}

fn last(nodes: &Nodes, entry: &AtomicU64, level: u32, base: u64, end: u64) -> Option<u64> {
    let value = Entry(entry.load(Ordering::Relaxed));
    match value.kind() {
        Kind::Hole | Kind::Moved => None,
        Kind::Reserved | Kind::Block | Kind::Run => Some((base + span(level)).min(end) - 1),
        Kind::Node => {
            let below = level - 1;
            let slots = slot_of(end.min(base + span(level)) - 1, below);
            let entries = nodes.node(value.to_node()).entries[..=slots].iter().enumerate();
            let found = |(slot, child)| last(nodes, child, below, base + slot as u64 * span(below), end);
            entries.rev().find_map(found)
        }
    }
}

/// Shows every entry of `range` that is no hole, with its first file block.
fn visit<E>(
    nodes: &Nodes,
    entry: &AtomicU64,
    level: u32,
    base: u64,
    range: &Range<u64>,
    show: &mut dyn FnMut(u64, Extent) -> Result<(), E>,
) -> Result<(), E> {
    let value = Entry(entry.load(Ordering::Relaxed));
    debug_assert!(!value.is_locked());
    let blocks = span(level);
    match value.kind() {
        Kind::Hole | Kind::Moved => Ok(()),
        Kind::Reserved => show(base, Extent::Reserved { blocks }),
        Kind::Block | Kind::Run => show(
            base,
            Extent::Placed {
                block: value.to_block(),
                blocks,
            },
        ),
        Kind::Node => children(nodes, value, level, base, range)
            .try_for_each(|(child, base)| visit(nodes, child, level - 1, base, range, show)),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use homenode_policy::{Block, MemberId};

    fn place(nodes: &Nodes, map: &BlockMap, at: u64, block: u64) {
        let places = map.lock_empty(nodes, 0, at, 1).expect("map nodes are left");
        places.expect("it is empty").publish(Block::new(MemberId(1), block));
    }

    #[test]
    fn the_last_block_is_found_below_any_end() {
        let (nodes, map) = (Nodes::new(1), BlockMap::default());
        assert_eq!(map.last(&nodes, BlockMap::LIMIT), None);
        let all = [2, 7, 600, 1 << 20, (1 << 40) + 5];
        for (count, at) in all.into_iter().enumerate() {
            place(&nodes, &map, at, at);
            for (end, wanted) in all[..=count].iter().map(|at| (at + 1, Some(*at))) {
                assert_eq!(map.last(&nodes, end), wanted, "below {end}");
            }
            assert_eq!(map.last(&nodes, BlockMap::LIMIT), Some(at));
            assert_eq!((map.last(&nodes, 2), map.last(&nodes, 0)), (None, None));
        }
        map.reserve(&nodes, 0, 1024..1536, &mut 0).expect("map nodes are left");
        assert_eq!(map.last(&nodes, 1200), Some(1199));
        assert_eq!(map.last(&nodes, 1 << 20), Some(1535));
        map.clear(&nodes);
    }

    #[test]
    fn entries_behind_a_point_shift_and_return_as_runs() {
        let (nodes, map) = (Nodes::new(1), BlockMap::default());
        for at in 0..1024 {
            place(&nodes, &map, at, at + 512);
        }
        assert!(!map.make_run(&nodes, 0) && !map.make_run(&nodes, 512));
        map.settle(&nodes);
        map.reserve(&nodes, 0, 4096..5000, &mut 0).expect("map nodes are left");
        let before = nodes.used();
        let down = map.shifted(&nodes, 0, 0, 3).expect("map nodes are left");
        for at in 0..1024 {
            assert_eq!(map.find_one(&nodes, at), Some(Block::new(MemberId(1), at + 512)));
            assert_eq!(down.find_one(&nodes, at + 3), Some(Block::new(MemberId(1), at + 512)));
        }
        assert_eq!(down.find_one(&nodes, 2), None);
        assert_eq!(down.holes(&nodes, 4099..5003), 0);
        assert_eq!(down.holes(&nodes, 1027..4099), 4099 - 1027);
        let up = down.shifted(&nodes, 0, 3, 0).expect("map nodes are left");
        down.check_invariants(&nodes);
        down.clear(&nodes);
        up.check_invariants(&nodes);
        let old = map.replace(up);
        old.clear(&nodes);
        assert_eq!(nodes.used(), before, "whole runs are runs again");
        for at in [0, 511, 512, 1023] {
            assert_eq!(map.find_one(&nodes, at), Some(Block::new(MemberId(1), at + 512)));
        }
        map.clear(&nodes);
        assert_eq!(nodes.used(), 0);
    }
}
