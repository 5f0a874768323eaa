//! The tags of a hardware queue, split among the cores that submit to it (of the blk-mq paper: tags).
//!
//! Each core has a share of the tags on a stack of its own. What no share holds is common: a bitmap in groups of up to 32
//! tags, a word a group. A core whose stack is empty takes all that is in one word; a core with a group more than its share
//! gives what is above the share back.
//! Invariants: a tag is on one stack, or in the bitmap, or with whoever took it. A core keeps at least as many tags as its
//! share has, on its stack or taken; so no other core can keep it from its share.
//! Cost: a load and a store while the stack lasts; then an atomic swap, on a word that cores come to in different orders.
//! Nothing is allocated after [`TagSpace::new`].

use crate::sync::{AtomicU64, LINE_BYTES, Mutex, Ordering, OwnLine};
use std::sync::Arc;

/// Most tags that move between a core and the bitmap in one atomic operation.
const GROUP_MAX: usize = 32;

/// Fewest tags a group should have: with fewer, a core would look through many words to find none.
const GROUP_MIN: usize = 8;

/// All tags of one hardware queue.
#[derive(Debug)]
pub struct TagSpace {
    /// Bit `b` of word `w`: tag `(w << group_bits) + b` is common and free. Empty when shares hold all tags.
    common: Box<[OwnLine<AtomicU64>]>,
    /// Tags below this exist.
    tags: u16,
    /// Tags of a group, as a power of two.
    group_bits: u32,
    /// Tags of a share.
    share: usize,
    /// Shares that no core has.
    shares: Mutex<Vec<Share>>,
}

/// Source of a core's tags: its own stack, then the bitmap.
#[derive(Debug, Default)]
struct Share {
    /// Never more than `share` and a group.
    stack: Vec<u16>,
    /// The word of the bitmap to look at first: where the last find was.
    word: usize,
}

/// Tags of one core. When they are dropped, a share that is whole may go to another core; else the share is lost. Taken tags that were not
/// put are lost too.
#[derive(Debug)]
pub struct Tags {
    space: Arc<TagSpace>,
    own: Share,
    /// How many are not given back: a share, or none.
    keep: usize,
}

impl TagSpace {
    /// The tags below `tags`, for `cores` cores and up to `guests` others. Half of them go in equal shares to the cores, but at
    /// least one to each; all of them if there is one core and no guest. If there are not enough tags for that, all are common.
    /// Guests have no share: what they have is common.
    #[must_use]
    pub fn new(tags: u16, cores: usize, guests: usize) -> Arc<Self> {
        let count = usize::from(tags);
        let share = match cores {
            0 => 0,
            1 if guests == 0 => count,
            // A guest needs a tag that is common.
            _ if cores + usize::from(guests > 0) > count => 0,
            _ => (count / 2 / cores).max(1),
        };
        let common = count - share * cores;
        let group = (common / (cores + guests).max(1))
            .clamp(GROUP_MIN, GROUP_MAX)
            .next_power_of_two();
        let words = if common == 0 { 0 } else { count.div_ceil(group) };
        let space = Self {
            common: (0..words).map(|_| OwnLine::default()).collect(),
            tags,
            group_bits: group.trailing_zeros(),
            share,
            shares: Mutex::default(),
        };
        let number = |tag: usize| u16::try_from(tag).expect("tags are below 2^16");
        for tag in share * cores..count {
            let (word, bit) = space.place(number(tag));
            word.fetch_or(bit, Ordering::Relaxed);
        }
        let shares = (0..cores).rev().map(|core| {
            // No two stacks are on one line, wherever they are allocated.
            let mut stack = Vec::with_capacity(share + group + 1 + LINE_BYTES / size_of::<u16>());
            stack.extend((core * share..(core + 1) * share).rev().map(number));
            // Where the common tags are at first, the cores begin as far from each other as can be.
            let word = (share * cores + core * common / cores) / group;
            Share { stack, word }
        });
        space.shares.lock().extend(shares);
        Arc::new(space)
    }

    /// The tags of the calling core: with a share while there is one that nobody has, else as a guest.
    #[must_use]
    pub fn share(self: &Arc<Self>) -> Tags {
        let (own, keep) = match self.shares.lock().pop() {
            Some(share) => (share, self.share),
            None => (
                Share {
                    stack: Vec::with_capacity((1 << self.group_bits) + 1 + LINE_BYTES / size_of::<u16>()),
                    word: 0,
                },
                0,
            ),
        };
        Tags {
            space: Arc::clone(self),
            own,
            keep,
        }
    }

    /// The word and the bit of a tag.
    fn place(&self, tag: u16) -> (&AtomicU64, u64) {
        let tag = usize::from(tag);
        let bit = tag & ((1 << self.group_bits) - 1);
        (&self.common[tag >> self.group_bits].0, 1 << bit)
    }

    /// Checks the shares and the bitmap while no core has a share.
    ///
    /// # Panics
    /// When a tag is missing, or free twice, or a share is not whole.
    pub fn check_invariants(&self) {
        let shares = self.shares.lock();
        let mut free: Vec<u16> = (0..self.tags)
            .filter(|_| !self.common.is_empty())
            .filter(|tag| {
                let (word, bit) = self.place(*tag);
                // Acquire: as in `borrow`.
                word.load(Ordering::Acquire) & bit != 0
            })
            .collect();
        for share in shares.iter() {
            assert_eq!(share.stack.len(), self.share, "a share lacks tags");
            free.extend(&share.stack);
        }
        free.sort_unstable();
        assert!(free.iter().copied().eq(0..self.tags), "each tag is free once: {free:?}");
    }
}

impl Tags {
    /// A tag that nobody else has; `None` when the share is used up and nothing common is left.
    #[inline]
    #[must_use]
    pub fn take(&mut self) -> Option<u16> {
        match self.own.stack.pop() {
            Some(tag) => Some(tag),
            None => self.borrow(),
        }
    }

    /// Gives back a tag that this core took.
    #[inline]
    pub fn put(&mut self, tag: u16) {
        debug_assert!(tag < self.space.tags, "tag {tag} of {}", self.space.tags);
        debug_assert!(!self.own.stack.contains(&tag), "tag {tag} is put twice");
        self.own.stack.push(tag);
        if self.own.stack.len() > self.keep + (1 << self.space.group_bits) {
            self.rest();
        }
    }

    /// Gives what is above the share to the other cores: for a core that has nothing to do.
    #[inline]
    pub fn rest(&mut self) {
        if self.own.stack.len() > self.keep {
            self.give_back();
        }
    }

    #[cold]
    fn borrow(&mut self) -> Option<u16> {
        let space = &*self.space;
        let words = space.common.len();
        for step in 0..words {
            let index = (self.own.word + step) % words;
            let word = &space.common[index].0;
            // Relaxed: only whether it is worth a try.
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Acquire pairs with the release in `give_back`: what their last users did to these tags' requests is seen.
            let mut free = word.swap(0, Ordering::Acquire);
            if free == 0 {
                continue;
            }
            self.own.word = index;
            while free != 0 {
                let bit = 63 - free.leading_zeros();
                free ^= 1 << bit;
                let tag = index << space.group_bits | bit as usize;
                self.own.stack.push(u16::try_from(tag).expect("bits are those of tags"));
            }
            return self.own.stack.pop();
        }
        None
    }

    #[cold]
    fn give_back(&mut self) {
        let surplus = self.own.stack.len() - self.keep;
        // The lowest on the stack have not been used for the longest time. Sorted, those of one word come together.
        let given = &mut self.own.stack[..surplus];
        given.sort_unstable();
        let group_bits = self.space.group_bits;
        for group in given.chunk_by(|a, b| a >> group_bits == b >> group_bits) {
            let (word, _) = self.space.place(group[0]);
            let bits = group.iter().fold(0, |bits, tag| bits | self.space.place(*tag).1);
            // Release: whoever takes these tags sees what was done to their requests. The swaps and ors of others in
            // between continue the release sequence.
            let before = word.fetch_or(bits, Ordering::Release);
            debug_assert_eq!(before & bits, 0, "a tag is free twice");
        }
        self.own.stack.drain(..surplus);
    }
}

impl Drop for Tags {
    fn drop(&mut self) {
        self.rest();
        // Tags that were not put may still be in use: what is left of this share is nobody's then.
        if self.own.stack.len() == self.keep && self.keep == self.space.share {
            // There is room: as many shares come back as went out.
            self.space.shares.lock().push(std::mem::take(&mut self.own));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
