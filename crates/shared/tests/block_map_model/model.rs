//! A map as a list of stretches. Stretches are cut where an operation starts and ends, and never joined.

use homenode_policy::Block;
use std::collections::BTreeMap;
use std::ops::Range;

/// Content of a stretch of file blocks; `Placed` has the first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Placed(Block),
    Reserved,
}

impl Content {
    /// The content `blocks` further.
    pub(crate) fn plus(self, blocks: u64) -> Self {
        match self {
            Self::Placed(block) => Self::Placed(block.plus(blocks)),
            Self::Reserved => Self::Reserved,
        }
    }
}

/// End and content of each stretch, by its start.
#[derive(Default)]
pub(crate) struct Model(BTreeMap<u64, (u64, Content)>);

impl Model {
    pub(crate) fn content(&self, at: u64) -> Option<Content> {
        let (start, (end, content)) = self.0.range(..=at).next_back()?;
        (at < *end).then(|| content.plus(at - start))
    }

    /// Replaces what is in `range`.
    pub(crate) fn put(&mut self, range: Range<u64>, content: Option<Content>) {
        self.cut_out(&range);
        if let Some(content) = content {
            self.0.insert(range.start, (range.end, content));
        }
    }

    pub(crate) fn reserve(&mut self, range: Range<u64>) {
        for hole in self.hole_ranges(&range) {
            self.0.insert(hole.start, (hole.end, Content::Reserved));
        }
    }

    pub(crate) fn holes(&self, range: Range<u64>) -> u64 {
        self.hole_ranges(&range).iter().map(|hole| hole.end - hole.start).sum()
    }

    /// Takes out what is in `range`, joined.
    pub(crate) fn take(&mut self, range: Range<u64>) -> Vec<(Range<u64>, Content)> {
        join(self.cut_out(&range))
    }

    /// Every placed stretch, joined.
    pub(crate) fn placed(&self) -> Vec<(Range<u64>, Content)> {
        let all = self.0.iter().map(|(start, (end, content))| (*start..*end, *content));
        join(all.filter(|(_, content)| *content != Content::Reserved).collect())
    }

    /// In `range`, what was at `from` is now at `to`, for each of `moved` (from, to, blocks), in ascending order of their
    /// places in the file.
    pub(crate) fn relocate(&mut self, range: Range<u64>, moved: &[(Block, Block, u64)]) {
        let mut moved = moved.iter();
        let mut next = moved.next();
        for (stretch, content) in self.cut_out(&range) {
            self.0.insert(stretch.start, (stretch.end, content));
            let mut at = stretch.start;
            while at < stretch.end {
                let here = self.content(at).expect("it was just put back");
                match next {
                    Some((from, to, blocks)) if here == Content::Placed(*from) => {
                        self.put(at..at + blocks, Some(Content::Placed(*to)));
                        at += blocks;
                        next = moved.next();
                    }
                    _ => at += 1,
                }
                if content == Content::Reserved {
                    break;
                }
            }
        }
        assert!(next.is_none(), "something was moved that is not there");
    }

    /// File blocks from `at` on that are as empty as that one (holes, or all reserved).
    pub(crate) fn same(&self, at: u64) -> u64 {
        let content = self.content(at);
        let mut end = at;
        loop {
            let next = match self.content(end) {
                now if now != content => return end - at,
                Some(_) => self.0.range(..=end).next_back().expect("the map has content").1.0,
                None => self.0.range(end..).next().map_or(u64::MAX, |(start, _)| *start),
            };
            if next == u64::MAX {
                return next - at;
            }
            end = next;
        }
    }

    /// File blocks from `at` on where nothing is placed.
    pub(crate) fn empty(&self, at: u64) -> u64 {
        let placed = |(_, (end, content)): &(&u64, &(u64, Content))| *end > at && *content != Content::Reserved;
        let next = self.0.iter().find(placed);
        next.map_or(u64::MAX, |(start, _)| start.saturating_sub(at))
    }

    /// Blocks from `at` on that lie one behind the other.
    pub(crate) fn contiguous(&self, at: u64) -> u64 {
        let first = self.content(at).expect("the block is placed");
        (0..)
            .take_while(|i| self.content(at + i) == Some(first.plus(*i)))
            .count() as u64
    }

    fn hole_ranges(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut holes = Vec::new();
        let mut at = range.start;
        for (start, (end, _)) in &self.0 {
            if *end <= at || *start >= range.end {
                continue;
            }
            if at < *start {
                holes.push(at..*start);
            }
            at = *end;
        }
        if at < range.end {
            holes.push(at..range.end);
        }
        holes
    }

    /// Removes `range`; gives what was in it.
    fn cut_out(&mut self, range: &Range<u64>) -> Vec<(Range<u64>, Content)> {
        self.cut(range.start);
        self.cut(range.end);
        let starts: Vec<u64> = self.0.range(range.clone()).map(|(start, _)| *start).collect();
        let mut out = Vec::new();
        for start in starts {
            let (end, content) = self.0.remove(&start).expect("the start is in the list");
            out.push((start..end, content));
        }
        out
    }

    /// Makes two stretches of the one that `at` is within.
    fn cut(&mut self, at: u64) {
        let Some((start, (end, content))) = self.0.range_mut(..at).next_back() else {
            return;
        };
        if *end > at {
            let rest = (*end, content.plus(at - *start));
            *end = at;
            self.0.insert(at, rest);
        }
    }
}

/// Joins stretches that continue each other.
fn join(stretches: Vec<(Range<u64>, Content)>) -> Vec<(Range<u64>, Content)> {
    let mut joined: Vec<(Range<u64>, Content)> = Vec::new();
    for (stretch, content) in stretches {
        match joined.last_mut() {
            Some((last, first)) if last.end == stretch.start && first.plus(last.end - last.start) == content => {
                last.end = stretch.end;
            }
            _ => joined.push((stretch, content)),
        }
    }
    joined
}
