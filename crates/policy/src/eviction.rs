//! Eviction: decides which frame of a slice of the cache is given back.
//!
//! S3-FIFO with the correlation window of Clock2Q+. Three queues: new frames enter the *window*, half of the small queue; from there
//! they come to *probation*, its other half. A frame at the end of probation that was used since it left the window goes to the
//! *main* queue, another one is the victim and its key is remembered as a *ghost*. A block that comes back while its ghost is there
//! enters the main queue, which is a clock: used frames go round once more. The small queue gives while it has more than a tenth of all
//! frames. Uses within the window do not count, so that a block that is touched a few times in a row does not look hot.
//!
//! Whether a frame was used is not kept here: it is a state of the entry that maps it, which [`Look`] tells.
//! - [`Inserted::is_returned`]: the block enters the main queue; publish it *cool*. Any other may be published hot.
//! - [`Inserted::cool`]: this frame has left the window; make it cool.
//! - Write-back makes a block cool, not hot: being cleaned is no use.
//!
//! Invariants: a frame is in one queue or in none; a key is nowhere but in the callers' own tables. Without clock and randomness.
//! Cost: 12 bytes a frame, 8 for the links and 4 for a ghost. [`Eviction::insert`] and [`Eviction::remove`] take constant time,
//! [`Eviction::evict`] at most [`LOOKS_MAX`] looks and one more, whatever the number of frames.
//! Sources: Yang and others, "FIFO queues are all you need for cache eviction" (S3-FIFO); Zhai and others, "Clock2Q+" (the window, the
//! limit of looks).

use alloc::boxed::Box;
use alloc::vec;

mod ghosts;

use ghosts::Ghosts;

/// Most looks of an eviction before it takes a frame that was used: a main queue of nothing but hot frames has no better one.
pub const LOOKS_MAX: u32 = 64;
/// Most busy frames that an eviction meets in a queue before it turns to the other one.
const BUSY_MAX: u32 = 16;
/// The small queue gives while it has more than this part of all frames.
const SMALL_PART: u32 = 10;
/// The window is this part of all frames: half of the small queue.
const WINDOW_PART: u32 = 2 * SMALL_PART;
/// Most frames of a slice, 4 TiB: the queue of a frame is in the two bits above its link.
pub const FRAMES_MAX: u32 = (1 << QUEUE_SHIFT) - SENTINELS;
const SENTINELS: u32 = 3;
const QUEUE_SHIFT: u32 = 30;

/// State of a frame, as the callback of [`Eviction::evict`] tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The frame was used since it was last looked at or made cool; the callback has made it cool again.
    Referenced,
    /// Nobody used it since then: it may go. With the key of its block; the callback has seen to it that nobody uses the frame from now on.
    Unused(u64),
    /// It cannot go now: dirty, being written, or in use.
    Busy,
    /// It holds no block any more.
    Gone,
}

/// How a block has come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "frames that are not made cool are never evicted on their merits"]
pub struct Inserted {
    /// Its ghost was there: it went to the main queue, and is to be published cool.
    pub is_returned: bool,
    /// A frame that has left the window, to be made cool.
    pub cool: Option<u32>,
}

/// Events since [`Eviction::take_counts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks that came in: misses.
    pub inserts: u64,
    /// Blocks of them whose ghost was there: what a larger slice would have hit.
    pub ghost_hits: u64,
    /// Frames given back by [`Eviction::evict`].
    pub evictions: u64,
    /// Frames looked at for that.
    pub looks: u64,
}

/// Frames of a slice in the order in which they go.
#[derive(Debug)]
pub struct Eviction {
    /// By frame, then a sentinel of each queue: rings in both directions.
    links: Box<[Link]>,
    /// Frames in each queue.
    lengths: [u32; SENTINELS as usize],
    ghosts: Ghosts,
    counts: Counts,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    /// Previous frame or sentinel; above [`QUEUE_SHIFT`] the queue plus one, 0 in none.
    previous: u32,
}

const NOWHERE: Link = Link { next: 0, previous: 0 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Window,
    Probation,
    Main,
}

impl Eviction {
    /// A slice whose frames, numbered from 0, hold nothing.
    ///
    /// # Panics
    /// When there are more than [`FRAMES_MAX`].
    #[must_use]
    pub fn new(frames: u32) -> Self {
        assert!(frames <= FRAMES_MAX, "{frames} frames in a slice, at most {FRAMES_MAX}");
        let mut links = vec![NOWHERE; (frames + SENTINELS) as usize].into_boxed_slice();
        for queue in Queue::ALL {
            let sentinel = frames + queue as u32;
            links[sentinel as usize] = Link::new(queue, sentinel, sentinel);
        }
        Self {
            links,
            lengths: [0; SENTINELS as usize],
            ghosts: Ghosts::new(frames),
            counts: Counts::default(),
        }
    }

    /// Frames of the slice, whether they hold a block or not.
    #[must_use]
    pub fn frames(&self) -> u32 {
        // `new` made no more than fit.
        u32::try_from(self.links.len()).map_or(0, |links| links - SENTINELS)
    }

    /// Frames that hold a block.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.lengths.iter().sum()
    }

    /// Takes note of a block that comes into a free frame.
    ///
    /// # Panics
    /// When the frame holds a block already, or is none of the slice.
    pub fn insert(&mut self, frame: u32, key: u64) -> Inserted {
        assert!(frame < self.frames(), "frame {frame} of {}", self.frames());
        assert!(self.queue_of(frame).is_none(), "frame {frame} holds a block already");
        self.counts.inserts += 1;
        let is_returned = self.ghosts.take(key);
        self.counts.ghost_hits += u64::from(is_returned);
        if is_returned {
            self.push(Queue::Main, frame);
            return Inserted {
                is_returned,
                cool: None,
            };
        }
        self.push(Queue::Window, frame);
        let is_full = self.length(Queue::Window) > self.frames() / WINDOW_PART;
        let cool = self.first(Queue::Window).filter(|_| is_full);
        if let Some(frame) = cool {
            self.take_out(frame);
            self.push(Queue::Probation, frame);
        }
        Inserted { is_returned, cool }
    }

    /// Takes a frame out for another block. `None` when all that it met in [`LOOKS_MAX`] looks are busy or in use all the time: to be
    /// called again when some of them have been written back.
    pub fn evict(&mut self, look: &mut dyn FnMut(u32) -> Look) -> Option<u32> {
        let victim = self.search(look);
        self.counts.evictions += u64::from(victim.is_some());
        victim
    }

    /// Takes out a frame whose block was truncated away; whether it held one. To be called before the frame holds another one.
    pub fn remove(&mut self, frame: u32) -> bool {
        self.take_out(frame).is_some()
    }

    /// Events since the last call.
    pub fn take_counts(&mut self) -> Counts {
        core::mem::take(&mut self.counts)
    }

    /// Panics unless every frame is in one ring or in none, and the lengths are right.
    pub fn check_invariants(&self) {
        let mut linked = 0;
        for queue in Queue::ALL {
            let sentinel = self.frames() + queue as u32;
            let (mut at, mut length) = (sentinel, 0);
            loop {
                let next = self.link(at).next;
                assert_eq!(
                    self.link(next).previous(),
                    at,
                    "{queue:?}: the ring is the same backwards"
                );
                assert_eq!(self.link(next).queue(), Some(queue), "{queue:?}: {next} belongs to it");
                if next == sentinel {
                    break;
                }
                assert!(
                    next < self.frames() && length < self.frames(),
                    "{queue:?}: the ring ends"
                );
                (at, length) = (next, length + 1);
            }
            assert_eq!(length, self.length(queue), "{queue:?}: frames counted");
            linked += length;
        }
        let held = (0..self.frames()).filter(|frame| self.queue_of(*frame).is_some());
        assert_eq!(held.count(), linked as usize, "no frame is outside of the rings");
        assert!(
            self.length(Queue::Window) <= self.frames() / WINDOW_PART,
            "the window is no larger"
        );
    }

    fn search(&mut self, look: &mut dyn FnMut(u32) -> Look) -> Option<u32> {
        let small = self.used() - self.length(Queue::Main);
        // Each busy frame is looked at once.
        let mut busy_left = [small.min(BUSY_MAX), self.length(Queue::Main).min(BUSY_MAX)];
        let mut first_used = None;
        for _ in 0..LOOKS_MAX {
            let Some(frame) = self.next(busy_left) else { break };
            let Some(queue) = self.take_out(frame) else { break };
            self.counts.looks += 1;
            match look(frame) {
                Look::Unused(key) => {
                    if queue != Queue::Main {
                        self.ghosts.put(key);
                    }
                    return Some(frame);
                }
                Look::Referenced => {
                    self.push(Queue::Main, frame);
                    first_used = first_used.or(Some(frame));
                }
                Look::Busy => {
                    busy_left[usize::from(queue == Queue::Main)] -= 1;
                    // Not back into the window: its uses count.
                    let back = if queue == Queue::Main { queue } else { Queue::Probation };
                    self.push(back, frame);
                }
                Look::Gone => {}
            }
        }
        // All that it met are hot: that which was looked at first has been cool for longest.
        let frame = first_used?;
        self.counts.looks += 1;
        match look(frame) {
            Look::Unused(_) => {}
            Look::Referenced | Look::Busy => return None,
            Look::Gone => {
                self.take_out(frame);
                return None;
            }
        }
        self.take_out(frame);
        Some(frame)
    }

    /// The frame to look at next, of the queue that has more than its share, and of the other one where that has nothing to look at.
    fn next(&self, busy_left: [u32; 2]) -> Option<u32> {
        let main = self.first(Queue::Main).filter(|_| busy_left[1] > 0);
        let small = self.first(Queue::Probation).or_else(|| self.first(Queue::Window));
        let small = small.filter(|_| busy_left[0] > 0);
        let is_small_turn = self.used() - self.length(Queue::Main) > self.frames() / SMALL_PART;
        if is_small_turn { small.or(main) } else { main.or(small) }
    }

    fn push(&mut self, queue: Queue, frame: u32) {
        let sentinel = self.frames() + queue as u32;
        let last = self.link(sentinel).previous();
        self.links[frame as usize] = Link::new(queue, sentinel, last);
        self.links[last as usize].next = frame;
        self.links[sentinel as usize].set_previous(frame);
        self.lengths[queue as usize] += 1;
    }

    /// Takes a frame out of its queue, and tells which that was.
    fn take_out(&mut self, frame: u32) -> Option<Queue> {
        let queue = self.queue_of(frame)?;
        let link = self.link(frame);
        self.links[link.previous() as usize].next = link.next;
        self.links[link.next as usize].set_previous(link.previous());
        self.links[frame as usize] = NOWHERE;
        self.lengths[queue as usize] -= 1;
        Some(queue)
    }

    fn first(&self, queue: Queue) -> Option<u32> {
        let first = self.link(self.frames() + queue as u32).next;
        (first < self.frames()).then_some(first)
    }

    fn length(&self, queue: Queue) -> u32 {
        self.lengths[queue as usize]
    }

    fn queue_of(&self, frame: u32) -> Option<Queue> {
        self.link(frame).queue()
    }

    fn link(&self, index: u32) -> Link {
        self.links[index as usize]
    }
}

impl Queue {
    const ALL: [Self; SENTINELS as usize] = [Self::Window, Self::Probation, Self::Main];
}

impl Link {
    fn new(queue: Queue, next: u32, previous: u32) -> Self {
        let previous = (queue as u32 + 1) << QUEUE_SHIFT | previous;
        Self { next, previous }
    }

    fn previous(self) -> u32 {
        self.previous & ((1 << QUEUE_SHIFT) - 1)
    }

    fn set_previous(&mut self, previous: u32) {
        self.previous = self.previous >> QUEUE_SHIFT << QUEUE_SHIFT | previous;
    }

    fn queue(self) -> Option<Queue> {
        let number = (self.previous >> QUEUE_SHIFT).checked_sub(1)?;
        Queue::ALL.get(number as usize).copied()
    }
}

// What the frame table of the cache allows.
const _: () = assert!(size_of::<Link>() + size_of::<u32>() <= 12);
