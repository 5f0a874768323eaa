//! Eviction: decides which frame of a slice of the cache is given back.
//!
//! S3-FIFO with the correlation window of Clock2Q+. A new frame enters the *window*, half of the small queue, and comes from there to
//! *probation*, its other half. At the end of probation a frame that was used since it left the window goes to the *main* queue, and
//! any other is the victim; where that use was its first, probation begins anew. The main queue is a clock: used frames go round once
//! more. The small queue gives while it has more than a tenth of all frames. Uses within the window do not count, so a block that is
//! touched a few times in a row does not look hot.
//!
//! [`Ghosts`] remember the keys of victims of the small queue; a block that comes back while its ghost is there enters the main queue.
//! All slices share them, as a block may come back to another slice than it left.
//!
//! Neither keys nor uses are kept here. A use is a state of the entry that maps the frame, hot instead of cool, and [`Look`] tells it:
//! - A block that comes back is published cool, any other one hot.
//! - A frame that leaves the window ([`Eviction::insert`] returns it) is made cool.
//! - A block that was written back becomes cool, not hot: being cleaned is no use.
//!
//! Invariants: a frame is in one queue or in none; without clock and randomness.
//! Cost: 8 bytes a frame, and 4 for a ghost. [`Eviction::insert`] and [`Eviction::remove`] take constant time, [`Eviction::evict`]
//! at most [`WORK_MAX`] looks, whatever the number of frames; [`Eviction::evict_passing`] as many more as it is told.
//! Sources: Yang and others, "FIFO queues are all you need for cache eviction" (S3-FIFO); Zhai and others, "Clock2Q+: a simple and
//! efficient replacement algorithm for metadata cache in VMware vSAN" (the window, the limit of looks).

mod ghosts;

pub use ghosts::Ghosts;

use alloc::boxed::Box;
use alloc::vec;

/// Most looks of an eviction before it turns to frames that were cooled lately: where all frames are hot there are no better ones.
const LOOKS_MAX: u32 = 64;
/// Most busy frames that an eviction meets in a queue before it turns to the other one, and most of those cooled lately that it meets.
const BUSY_MAX: u32 = 16;
/// Most looks of an eviction in all.
pub const WORK_MAX: u32 = LOOKS_MAX + BUSY_MAX + 1;
/// The small queue gives while it has more than this part of all frames.
const SMALL_PART: u32 = 10;
/// The window is this part of all frames.
const WINDOW_PART: u32 = 2 * SMALL_PART;
const QUEUES: u32 = 3;
/// A frame's queue is in the bits above its link.
const QUEUE_SHIFT: u32 = 30;
/// Most frames of a slice: 4 TiB.
pub const FRAMES_MAX: u32 = (1 << QUEUE_SHIFT) - QUEUES;

/// State of a frame, as the callback of [`Eviction::evict`] tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Hot: used since it was made cool. The callback has made it cool again.
    Referenced,
    /// Hot: used for the first time, after it was made cool. The callback has made it cool again.
    First,
    /// Cool: it may go. The callback has seen to it that nobody uses it from now on.
    Unused,
    /// It cannot go now: dirty, or being written.
    Busy,
    /// It cannot go yet: cool for so short a time that a thread may still use it. So are those behind it.
    Young,
    /// It holds no block any more.
    Gone,
}

/// A frame that is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the frame is in no queue any more"]
pub struct Victim {
    /// The frame.
    pub frame: u32,
    /// Whether the key of its block belongs into [`Ghosts`].
    pub is_remembered: bool,
}

/// Events since [`Eviction::take_counts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks that came in.
    pub inserts: u64,
    /// Blocks among `inserts` that came back while their ghost was there.
    pub returned: u64,
    /// Frames that [`Eviction::evict`] gave back.
    pub evictions: u64,
    /// Frames that it looked at.
    pub looks: u64,
}

/// Frames of a slice, in the order in which they go.
#[derive(Debug)]
pub struct Eviction {
    /// Links of the frames, then of a sentinel for each queue. Each queue is a ring.
    links: Box<[Link]>,
    /// Frames of each queue.
    lengths: [u32; QUEUES as usize],
    /// A frame of the main queue: it and all behind it were made cool, or came in cool, since an eviction last met nothing but hot frames.
    cooled: Option<u32>,
    counts: Counts,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    /// Frame or sentinel before this one. Above [`QUEUE_SHIFT`] the queue's number plus one, or 0 in no queue.
    previous: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Window,
    Probation,
    Main,
}

// The whole frame table of the cache takes 32 bytes a frame.
const _: () = assert!(size_of::<Link>() == 8);

impl Eviction {
    /// A slice whose frames, numbered from 0, hold nothing.
    ///
    /// # Panics
    /// When there are more than [`FRAMES_MAX`].
    #[must_use]
    pub fn new(frames: u32) -> Self {
        assert!(frames <= FRAMES_MAX, "{frames} frames in a slice, at most {FRAMES_MAX}");
        let mut links = vec![Link::NONE; (frames + QUEUES) as usize].into_boxed_slice();
        for queue in Queue::ALL {
            let sentinel = frames + queue as u32;
            links[sentinel as usize] = Link::new(queue, sentinel, sentinel);
        }
        Self {
            links,
            lengths: [0; QUEUES as usize],
            cooled: None,
            counts: Counts::default(),
        }
    }

    /// Frames of the slice, with or without a block.
    #[must_use]
    pub fn frames(&self) -> u32 {
        u32::try_from(self.links.len()).expect("`new` makes fewer than 2^32 links") - QUEUES
    }

    /// Frames with a block.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.lengths.iter().sum()
    }

    /// Takes note of a block that comes into a free frame; `is_returned` when its ghost was there. Returns a frame that has left the
    /// window, which the caller makes cool.
    ///
    /// # Panics
    /// When the frame holds a block already, or is none of the slice.
    #[must_use = "a frame that is not made cool looks used"]
    pub fn insert(&mut self, frame: u32, is_returned: bool) -> Option<u32> {
        assert!(frame < self.frames(), "frame {frame} of {}", self.frames());
        assert!(self.queue_of(frame).is_none(), "frame {frame} holds a block already");
        self.counts.inserts += 1;
        if is_returned {
            self.counts.returned += 1;
            self.push(Queue::Main, frame);
            return None;
        }
        self.push(Queue::Window, frame);
        if self.length(Queue::Window) <= self.frames() / WINDOW_PART {
            return None;
        }
        let oldest = self.first(Queue::Window)?;
        self.take_out(oldest);
        self.push(Queue::Probation, oldest);
        Some(oldest)
    }

    /// Takes out the frame that is to be given back. `None` when none of those that it met may go: to be called anew when some have been
    /// written back, and those that it made cool are out of use.
    pub fn evict(&mut self, look: &mut dyn FnMut(u32) -> Look) -> Option<Victim> {
        self.evict_passing(0, look)
    }

    /// [`Eviction::evict`] that passes so many busy frames more, and looks at as many more: frames may lie one behind the other that stay busy for long.
    pub fn evict_passing(&mut self, more: u32, look: &mut dyn FnMut(u32) -> Look) -> Option<Victim> {
        let small = self.used() - self.length(Queue::Main);
        // So that no busy frame is met twice.
        let most = BUSY_MAX + more;
        let mut busy_left = [small.min(most), self.length(Queue::Main).min(most)];
        let (mut looks, mut more, mut first_used) = (LOOKS_MAX, more, None);
        while looks > 0 {
            let Some((frame, queue)) = self.take_next(busy_left) else {
                break;
            };
            let found = self.count(look(frame));
            match (found, more) {
                (Look::Busy, 1..) => more -= 1,
                (Look::Young, 1..) => {
                    (more, looks) = (0, looks - 1);
                    busy_left = busy_left.map(|left| left.min(BUSY_MAX));
                }
                _ => looks -= 1,
            }
            match found {
                Look::Unused => return self.give(frame, queue != Queue::Main),
                Look::Referenced => {
                    self.push(Queue::Main, frame);
                    first_used = first_used.or(Some(frame));
                }
                look @ (Look::Busy | Look::Young | Look::First) => {
                    busy_left[usize::from(queue == Queue::Main)] -= u32::from(look != Look::First);
                    // It does not come into the window again: its uses count.
                    let is_main = queue == Queue::Main;
                    self.push(if is_main { Queue::Main } else { Queue::Probation }, frame);
                }
                Look::Gone => {}
            }
        }
        self.cooled = self.cooled.or(self.still_main(first_used));
        let victim = self.evict_cooled(self.cooled, BUSY_MAX, look);
        // Those cooled before this call may be hot again, but hardly the first of this one.
        victim.or_else(|| self.evict_cooled(self.still_main(first_used), 1, look))
    }

    /// Whether a frame holds no block, or one that is in probation.
    #[must_use]
    pub fn may_go_early(&self, frame: u32) -> bool {
        self.queue_of(frame).is_none_or(|queue| queue == Queue::Probation)
    }

    /// [`Eviction::evict`] of a frame whose turn has not come. It must be in probation; `None` when it may not go, or is not there.
    pub fn evict_early(&mut self, frame: u32, look: &mut dyn FnMut(u32) -> Look) -> Option<Victim> {
        if self.queue_of(frame) != Some(Queue::Probation) {
            return None;
        }
        let look = self.count(look(frame));
        if !matches!(look, Look::Busy | Look::Young) {
            self.take_out(frame);
        }
        match look {
            Look::Unused => self.give(frame, true),
            Look::Referenced => {
                self.push(Queue::Main, frame);
                None
            }
            Look::First => {
                self.push(Queue::Probation, frame);
                None
            }
            Look::Busy | Look::Young | Look::Gone => None,
        }
    }

    /// Frames that the next evictions are likely to look at, in order: their state can be announced to the processor.
    pub fn upcoming(&self) -> impl Iterator<Item = u32> {
        core::iter::successors(self.next([1, 1]), |frame| self.behind(*frame))
    }

    /// The frame that leaves the window next.
    #[must_use]
    pub fn next_to_leave_window(&self) -> Option<u32> {
        self.first(Queue::Window)
    }

    /// Takes out a frame whose block was cut away; whether it held one. To be called before the frame holds another block.
    pub fn remove(&mut self, frame: u32) -> bool {
        self.take_out(frame).is_some()
    }

    /// Whether a frame is in the main queue: its block is likely to stay for long.
    #[must_use]
    pub fn is_main(&self, frame: u32) -> bool {
        self.queue_of(frame) == Some(Queue::Main)
    }

    /// Gives the place of a frame to another one, to which its block was moved.
    ///
    /// # Panics
    /// When the frame holds no block, or the other one holds one.
    pub fn replace(&mut self, frame: u32, other: u32) {
        assert!(self.queue_of(frame).is_some(), "frame {frame} holds no block");
        assert!(self.queue_of(other).is_none(), "frame {other} holds a block already");
        let link = core::mem::replace(&mut self.links[frame as usize], Link::NONE);
        self.links[other as usize] = link;
        self.links[link.previous() as usize].next = other;
        self.links[link.next as usize].set_previous(other);
        if self.cooled == Some(frame) {
            self.cooled = Some(other);
        }
    }

    /// Events since the last call.
    pub fn take_counts(&mut self) -> Counts {
        core::mem::take(&mut self.counts)
    }

    /// Panics unless each frame is in one ring or in none, and the lengths are right.
    pub fn check_invariants(&self) {
        let frames = self.frames();
        for queue in Queue::ALL {
            let sentinel = frames + queue as u32;
            let (mut at, mut length) = (sentinel, 0);
            loop {
                let next = self.links[at as usize].next;
                let link = self.links[next as usize];
                assert_eq!(link.previous(), at, "{queue:?}: {at} and {next} link to each other");
                assert_eq!(link.queue(), Some(queue), "{next} is in the queue that it names");
                if next == sentinel {
                    break;
                }
                (at, length) = (next, length + 1);
                assert!(at < frames && length <= frames, "{queue:?}: the ring closes");
            }
            assert_eq!(length, self.length(queue), "{queue:?}: frames are counted");
        }
        let held = (0..frames).filter(|frame| self.queue_of(*frame).is_some()).count();
        assert_eq!(held, self.used() as usize, "a used frame is in no ring");
        assert!(
            self.length(Queue::Window) <= frames / WINDOW_PART,
            "the window is full at most"
        );
    }

    /// The frame to look at: of the queue that has more than its share, or else of the other one.
    fn next(&self, busy_left: [u32; 2]) -> Option<u32> {
        let small = self.first(Queue::Probation).or_else(|| self.first(Queue::Window));
        let small = small.filter(|_| busy_left[0] > 0);
        let main = self.first(Queue::Main).filter(|_| busy_left[1] > 0);
        let has_more = self.used() - self.length(Queue::Main) > self.frames() / SMALL_PART;
        if has_more { small.or(main) } else { main.or(small) }
    }

    /// Takes out the frame to look at.
    fn take_next(&mut self, busy_left: [u32; 2]) -> Option<(u32, Queue)> {
        let frame = self.next(busy_left)?;
        let has_come_round = self.cooled == Some(frame);
        let queue = self.take_out(frame)?;
        if has_come_round {
            self.cooled = None;
        }
        Some((frame, queue))
    }

    /// A frame, unless it has gone.
    fn still_main(&self, frame: Option<u32>) -> Option<u32> {
        frame.filter(|frame| self.queue_of(*frame) == Some(Queue::Main))
    }

    /// Takes out one of at most `most` frames of the main queue, the first of which is `first`.
    fn evict_cooled(&mut self, first: Option<u32>, most: u32, look: &mut dyn FnMut(u32) -> Look) -> Option<Victim> {
        let mut next = first;
        for _ in 0..most {
            let frame = next?;
            next = self.behind(frame);
            match self.count(look(frame)) {
                Look::Unused => {
                    self.take_out(frame);
                    return self.give(frame, false);
                }
                // It is hot again at once, and goes round with the others.
                Look::Referenced | Look::First if self.cooled == Some(frame) => self.cooled = next,
                Look::Referenced | Look::First | Look::Busy | Look::Young => {}
                Look::Gone => _ = self.take_out(frame),
            }
        }
        None
    }

    fn count(&mut self, look: Look) -> Look {
        self.counts.looks += 1;
        look
    }

    fn give(&mut self, frame: u32, is_remembered: bool) -> Option<Victim> {
        self.counts.evictions += 1;
        Some(Victim { frame, is_remembered })
    }

    /// Adds a frame at the end.
    fn push(&mut self, queue: Queue, frame: u32) {
        let sentinel = self.frames() + queue as u32;
        let last = self.links[sentinel as usize].previous();
        self.links[frame as usize] = Link::new(queue, sentinel, last);
        self.links[last as usize].next = frame;
        self.links[sentinel as usize].set_previous(frame);
        self.lengths[queue as usize] += 1;
    }

    /// Takes a frame out of its queue, and returns which that was.
    fn take_out(&mut self, frame: u32) -> Option<Queue> {
        let queue = self.queue_of(frame)?;
        if self.cooled == Some(frame) {
            self.cooled = self.behind(frame);
        }
        let link = core::mem::replace(&mut self.links[frame as usize], Link::NONE);
        self.links[link.previous() as usize].next = link.next;
        self.links[link.next as usize].set_previous(link.previous());
        self.lengths[queue as usize] -= 1;
        Some(queue)
    }

    fn first(&self, queue: Queue) -> Option<u32> {
        self.behind(self.frames() + queue as u32)
    }

    /// The frame behind a frame or sentinel.
    fn behind(&self, index: u32) -> Option<u32> {
        let next = self.links[index as usize].next;
        (next < self.frames()).then_some(next)
    }

    fn length(&self, queue: Queue) -> u32 {
        self.lengths[queue as usize]
    }

    fn queue_of(&self, frame: u32) -> Option<Queue> {
        self.links[frame as usize].queue()
    }
}

impl Queue {
    const ALL: [Self; QUEUES as usize] = [Self::Window, Self::Probation, Self::Main];
}

impl Link {
    const NONE: Self = Self { next: 0, previous: 0 };

    fn new(queue: Queue, next: u32, previous: u32) -> Self {
        let previous = ((queue as u32 + 1) << QUEUE_SHIFT) | previous;
        Self { next, previous }
    }

    fn previous(self) -> u32 {
        self.previous & !(u32::MAX << QUEUE_SHIFT)
    }

    fn set_previous(&mut self, previous: u32) {
        self.previous = (self.previous & (u32::MAX << QUEUE_SHIFT)) | previous;
    }

    fn queue(self) -> Option<Queue> {
        let number = (self.previous >> QUEUE_SHIFT).checked_sub(1)?;
        Queue::ALL.get(number as usize).copied()
    }
}
