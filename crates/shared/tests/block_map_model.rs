//! The block map against a slow, obvious model: random operations on one map, by one thread.

#![allow(clippy::cast_possible_truncation, reason = "sizes of a test")]

#[path = "block_map_model/model.rs"]
mod model;
mod random;

use fastrand::Rng;
use homenode_policy::{Block, MemberId};
use homenode_shared::{BlockMap, Change, Extent, Found, Nodes, NodesExhausted, RUN_BLOCKS};
use model::{Content, Model};
use std::ops::Range;
use std::sync::Arc;

/// Miri takes a thousand times as long, and has memory for a few nodes only.
const MAPS: u32 = if cfg!(miri) { 1 } else { 100 };
const OPERATIONS: u32 = if cfg!(miri) { 20 } else { 1200 };
const SMALL_MAPS: u32 = if cfg!(miri) { 1 } else { 20_000 };
const SMALL_OPERATIONS: u32 = 30;
const HOMES: usize = 2;

#[test]
fn maps_agree_with_the_model() {
    let seed = random::seed();
    for number in 0..MAPS {
        let mut run = Run::new(seed ^ u64::from(number) << 32);
        for step in 0..OPERATIONS {
            run.step();
            if step % 64 == 0 {
                run.compare();
            }
        }
        run.finish();
    }
}

/// Small files: they never leave a map's own entries, or just do. They share their nodes.
#[test]
fn small_maps_agree_with_the_model() {
    let seed = random::seed();
    let nodes = Arc::new(Nodes::new(HOMES));
    for number in 0..SMALL_MAPS {
        let mut run = Run::new(seed ^ u64::from(number) << 32);
        (run.nodes, run.is_small) = (Arc::clone(&nodes), true);
        for _ in 0..SMALL_OPERATIONS {
            run.step();
        }
        run.finish();
    }
}

/// Where a large reservation cannot be split, all behind it goes nevertheless.
#[test]
fn a_removal_that_splits_nothing_takes_out_all_else() {
    const LARGE: u64 = RUN_BLOCKS * RUN_BLOCKS;
    let (nodes, map) = (Nodes::new(HOMES), BlockMap::default());
    let mut reserved = 0;
    map.reserve(&nodes, 0, 0..2 * LARGE, &mut reserved).unwrap();
    map.reserve(&nodes, 0, 2 * LARGE..2 * LARGE + 1, &mut reserved).unwrap();
    nodes.set_limit(nodes.used());
    let mut taken = Vec::new();
    let removed = map.remove(&nodes, 0, LARGE / 2..BlockMap::LIMIT, &mut |at, _| taken.push(at));
    assert_eq!((removed, taken), (Err(NodesExhausted), vec![LARGE, 2 * LARGE]));
    map.remove(&nodes, 0, 0..BlockMap::LIMIT, &mut |_, _| ()).unwrap();
    assert!(map.is_blank());
}

struct Run {
    nodes: Arc<Nodes>,
    is_small: bool,
    map: BlockMap,
    model: Model,
    random: Rng,
    next_block: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        Self {
            nodes: Arc::new(Nodes::new(HOMES)),
            is_small: false,
            map: BlockMap::default(),
            model: Model::default(),
            random: Rng::with_seed(seed),
            next_block: 0,
        }
    }

    /// Near the start mostly, at the edges of runs, and near the powers of 512.
    fn place(&mut self) -> u64 {
        if self.is_small && self.random.u64(..16) != 0 {
            return self.random.u64(..11);
        }
        let far = if cfg!(miri) { 8 } else { 10 };
        match self.random.u64(..far) {
            0..=3 => self.random.u64(..30),
            4..=5 => self.random.u64(..6 * RUN_BLOCKS),
            6..=7 => self.random.u64(..6) * RUN_BLOCKS,
            8 => (1 << (9 * (1 + self.random.u64(..5)))) - 5 + self.random.u64(..10),
            _ => BlockMap::LIMIT - 1 - self.random.u64(..2000),
        }
    }

    fn length(&mut self) -> u64 {
        if self.is_small && self.random.u64(..16) != 0 {
            return 1 + self.random.u64(..6);
        }
        match self.random.u64(..8) {
            0..=3 => 1 + self.random.u64(..4),
            4..=5 => 1 + self.random.u64(..100),
            6 => RUN_BLOCKS,
            _ => 1 + self.random.u64(..4 * RUN_BLOCKS),
        }
    }

    fn range(&mut self) -> Range<u64> {
        let at = self.place();
        at..(at + self.length()).min(BlockMap::LIMIT)
    }

    /// `blocks` blocks that were never used: sometimes behind the last ones, sometimes of another member.
    fn fresh(&mut self, blocks: u64) -> Block {
        self.next_block += self.random.u64(..2) * 100;
        let member = MemberId(self.random.u64(..3) as u16 * 2000);
        let first = Block::new(member, self.next_block);
        self.next_block += blocks;
        first
    }

    fn step(&mut self) {
        match self.random.u64(..20) {
            0..=5 => self.fill(),
            6..=8 => self.fill_run(),
            9..=10 => self.reserve(),
            11..=13 => self.remove(),
            14..=15 => self.update(),
            16..=17 => self.find(),
            18 => {
                let at = self.place() / RUN_BLOCKS * RUN_BLOCKS;
                // Whether nodes wait is the map's own matter: it must show the same as before.
                let _ = self.map.make_run(&self.nodes, at);
            }
            _ => {
                let range = self.range();
                assert_eq!(self.map.holes(&self.nodes, range.clone()), self.model.holes(range));
            }
        }
    }

    fn fill(&mut self) {
        let (at, most) = (self.place(), self.length());
        let (home, give_up) = (self.random.usize(..HOMES), self.random.u64(..5) == 0);
        let shorter = self.random.u64(..most);
        let (before, block) = (self.model.content(at), self.fresh(RUN_BLOCKS));
        let places = self.map.lock_empty(&self.nodes, home, at, most).expect("enough nodes");
        let Some(mut places) = places else {
            assert!(
                matches!(before, Some(Content::Placed(_))),
                "refused at {at}: {before:?}"
            );
            return;
        };
        assert_eq!(places.reserved(), before == Some(Content::Reserved));
        let most = most.min(self.model.same(at)).min(RUN_BLOCKS - at % RUN_BLOCKS);
        assert_eq!(places.blocks(), most);
        if give_up {
            return;
        }
        if shorter > 0 && shorter < places.blocks() {
            places.shorten(shorter);
            assert_eq!(places.blocks(), shorter);
        }
        let blocks = places.blocks();
        places.publish(block);
        self.model.put(at..at + blocks, Some(Content::Placed(block)));
    }

    fn fill_run(&mut self) {
        let at = self.place() / RUN_BLOCKS * RUN_BLOCKS;
        let before = self.model.content(at);
        let block = self.fresh(RUN_BLOCKS);
        let Some(places) = self.map.lock_empty_run(&self.nodes, 0, at).expect("map nodes are left") else {
            return;
        };
        assert!(!matches!(before, Some(Content::Placed(_))), "locked what is placed");
        assert!(self.model.same(at) >= RUN_BLOCKS, "locked what is not all the same");
        assert_eq!(places.reserved(), before == Some(Content::Reserved));
        assert_eq!(places.blocks(), RUN_BLOCKS);
        places.publish(block);
        self.model.put(at..at + RUN_BLOCKS, Some(Content::Placed(block)));
    }

    /// Sometimes a range that covers whole upper levels.
    fn reserve(&mut self) {
        let mut range = self.range();
        if self.random.u64(..4) == 0 {
            range.end = BlockMap::LIMIT.min(range.end + self.random.u64(..1 << 40));
        }
        let mut count = 0;
        self.map
            .reserve(&self.nodes, 1, range.clone(), &mut count)
            .expect("map nodes are left");
        assert_eq!(count, self.model.holes(range.clone()));
        self.model.reserve(range);
    }

    fn remove(&mut self) {
        let mut range = self.range();
        if self.random.u64(..8) == 0 {
            range.end = BlockMap::LIMIT;
        }
        let taken = self.take(range.clone());
        assert!(
            taken == self.model.take(range),
            "other extents were taken out than were in"
        );
    }

    /// Takes out, and joins what belongs together.
    fn take(&self, range: Range<u64>) -> Vec<(Range<u64>, Content)> {
        let mut taken: Vec<(Range<u64>, Content)> = Vec::new();
        let mut each = |at: u64, extent| {
            let (content, blocks) = match extent {
                Extent::Placed { block, blocks } => (Content::Placed(block), blocks),
                Extent::Reserved { blocks } => (Content::Reserved, blocks),
            };
            match taken.last_mut() {
                Some((last, before)) if last.end == at && before.plus(last.end - last.start) == content => {
                    last.end += blocks;
                }
                _ => taken.push((at..at + blocks, content)),
            }
        };
        self.map.remove(&self.nodes, 0, range, &mut each).expect("enough nodes");
        taken
    }

    /// Moves some of the extents, splits some of the runs.
    fn update(&mut self) {
        let range = self.range();
        let mut random = self.random.clone();
        let mut moved = Vec::new();
        let mut to = Block::new(MemberId(7), self.next_block);
        let mut change = |block: Block, blocks: u64| -> Result<Change, NodesExhausted> {
            assert!(blocks == 1 || blocks == RUN_BLOCKS);
            Ok(match random.u64(..3) {
                0 => Change::Keep,
                1 if blocks > 1 => Change::Split,
                _ => {
                    let first = to;
                    to = to.plus(blocks);
                    moved.push((block, first, blocks));
                    Change::To(first)
                }
            })
        };
        self.map
            .update(&self.nodes, range.clone(), &mut change)
            .expect("map nodes are left");
        self.random.u64(..);
        self.next_block = to.index();
        self.model.relocate(range, &moved);
    }

    fn find(&mut self) {
        let (at, most) = (self.place(), self.length());
        let content = self.model.content(at);
        match self.map.find(&self.nodes, at, most) {
            Found::Placed { block, blocks } => {
                assert_eq!(content, Some(Content::Placed(block)));
                let longest = self.model.contiguous(at);
                let surely = longest.min(most).min(RUN_BLOCKS - at % RUN_BLOCKS);
                assert!(surely <= blocks && blocks <= longest.min(most), "{blocks} at {at}");
            }
            Found::Empty { blocks } => {
                assert!(1 <= blocks && blocks <= most);
                assert!(self.model.empty(at) >= blocks, "{blocks} at {at}");
            }
        }
        let one = match content {
            Some(Content::Placed(block)) => Some(block),
            _ => None,
        };
        assert_eq!(self.map.find_one(&self.nodes, at), one);
    }

    /// Walks through the whole map.
    fn compare(&self) {
        self.map.check_invariants(&self.nodes);
        let mut at = 0;
        let mut walked = Model::default();
        while at < BlockMap::LIMIT {
            at += match self.map.find(&self.nodes, at, BlockMap::LIMIT - at) {
                Found::Placed { block, blocks } => {
                    walked.put(at..at + blocks, Some(Content::Placed(block)));
                    blocks
                }
                Found::Empty { blocks } => blocks,
            };
        }
        assert!(walked.placed() == self.model.placed(), "the map shows other blocks");
        let everything = 0..BlockMap::LIMIT;
        assert_eq!(
            self.map.holes(&self.nodes, everything.clone()),
            self.model.holes(everything)
        );
    }

    /// No node is left when everything is taken out.
    fn finish(mut self) {
        self.compare();
        let taken = self.take(0..BlockMap::LIMIT);
        assert!(taken == self.model.take(0..BlockMap::LIMIT));
        assert_eq!(self.nodes.used(), 0);
        assert_eq!(self.map.find(&self.nodes, 0, 100), Found::Empty { blocks: 100 });
        self.map.check_invariants(&self.nodes);
    }
}
