//! A ring from one thread to another: messages of a fixed number of words, in order, handed over in batches.
//!
//! Owns the words. The sender writes messages behind `tail` and moves it when it publishes; the receiver reads up to `tail`
//! and moves `head` when it gives room back. Either looks at the other's index only when it has used up what it knows of.
//! Invariants: `head <= tail <= head + capacity`; a word between them is written by nobody, any other by the sender only;
//! nobody waits.
//! Cost: a few loads and stores a message while the lines are one core's; across cores the lines that the messages fill,
//! and one for each index and batch. The words are memory of the node on which the ring was made.

use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, LINE_BYTES, Ordering, OwnLine};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

/// State that both ends share. Positions count messages since the beginning, and wrap with `usize`.
#[derive(Debug)]
struct Shared {
    /// The first message that was not given back. Written by the receiver.
    head: OwnLine<AtomicUsize>,
    /// Behind the last published message. Written by the sender, as the flag beside it.
    tail: OwnLine<(AtomicUsize, AtomicBool)>,
    words: Box<[AtomicU64]>,
    /// Index of the first message's first word: where a cache line begins.
    first: usize,
    /// A power of two.
    capacity: usize,
}

impl Shared {
    /// The words of the message at `position`.
    #[inline(always)]
    fn message<const WORDS: usize>(&self, position: usize) -> &[AtomicU64; WORDS] {
        let at = self.first + (position & (self.capacity - 1)) * WORDS;
        self.words[at..]
            .first_chunk()
            .expect("there are words for `capacity` messages behind the first")
    }
}

/// The end that messages go in. Dropped, it publishes what it holds and closes the ring.
#[derive(Debug)]
pub struct Sender<const WORDS: usize> {
    shared: Arc<Shared>,
    /// Where the next message goes.
    next: usize,
    /// Value of `tail`.
    published: usize,
    /// Value last read from `head`.
    head: usize,
    one_thread: PhantomData<Cell<()>>,
}

/// The end that messages come out of. When it is dropped, the sender finds the ring full in the end.
#[derive(Debug)]
pub struct Receiver<const WORDS: usize> {
    shared: Arc<Shared>,
    /// The next message to pop.
    next: usize,
    /// Value last read from `tail`.
    tail: usize,
    one_thread: PhantomData<Cell<()>>,
}

/// A ring for `capacity` messages at least, rounded up to a power of two. Each end may go to a thread of its own.
#[must_use]
pub fn ring<const WORDS: usize>(capacity: usize) -> (Sender<WORDS>, Receiver<WORDS>) {
    let capacity = capacity.max(1).next_power_of_two();
    let spare = LINE_BYTES / size_of::<u64>();
    let words: Box<[AtomicU64]> = (0..capacity * WORDS + spare).map(|_| AtomicU64::new(0)).collect();
    let shared = Arc::new(Shared {
        head: OwnLine::default(),
        tail: OwnLine::default(),
        // More than `spare` where it cannot be known, as with loom's atomics: any first word will do.
        first: words.as_ptr().align_offset(LINE_BYTES).min(spare),
        words,
        capacity,
    });
    let sender = Sender {
        shared: Arc::clone(&shared),
        next: 0,
        published: 0,
        head: 0,
        one_thread: PhantomData,
    };
    let receiver = Receiver {
        shared,
        next: 0,
        tail: 0,
        one_thread: PhantomData,
    };
    (sender, receiver)
}

impl<const WORDS: usize> Sender<WORDS> {
    /// Puts a message behind the others. The receiver does not see it before [`Sender::publish`].
    ///
    /// # Errors
    /// The message, when the ring is full. Messages not published yet fill it too, and stay until they are.
    #[inline]
    pub fn push(&mut self, message: [u64; WORDS]) -> Result<(), [u64; WORDS]> {
        let shared = &*self.shared;
        if self.next.wrapping_sub(self.head) == shared.capacity {
            // Acquire pairs with the release in `release`: the receiver has read what is overwritten now.
            self.head = shared.head.0.load(Ordering::Acquire);
            if self.next.wrapping_sub(self.head) == shared.capacity {
                return Err(message);
            }
        }
        for (word, value) in shared.message::<WORDS>(self.next).iter().zip(message) {
            // Relaxed: ordered by the release of `tail`.
            word.store(value, Ordering::Relaxed);
        }
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Shows the receiver all that was pushed. Costs nothing when there is nothing new.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.next {
            self.published = self.next;
            // Release: the words are written.
            self.shared.tail.0.0.store(self.next, Ordering::Release);
        }
    }
}

impl<const WORDS: usize> Drop for Sender<WORDS> {
    fn drop(&mut self) {
        self.publish();
        // Release: whoever sees it sees the last `tail`.
        self.shared.tail.0.1.store(true, Ordering::Release);
    }
}

impl<const WORDS: usize> Receiver<WORDS> {
    /// The oldest published message. Its room goes back to the sender with all that were seen at once, when the last of
    /// them is popped, or by [`Receiver::release`].
    #[inline]
    pub fn pop(&mut self) -> Option<[u64; WORDS]> {
        if self.next == self.tail {
            // Acquire pairs with the release in `publish`: the words are there.
            self.tail = self.shared.tail.0.0.load(Ordering::Acquire);
            if self.next == self.tail {
                return None;
            }
        }
        let words = self.shared.message::<WORDS>(self.next);
        // Relaxed: ordered by the acquire of `tail`.
        let message = std::array::from_fn(|word| words[word].load(Ordering::Relaxed));
        self.next = self.next.wrapping_add(1);
        if self.next == self.tail {
            self.release();
        }
        Some(message)
    }

    /// Gives the room of all popped messages back to the sender.
    #[inline]
    pub fn release(&mut self) {
        // Release: the words are read before the sender writes over them.
        self.shared.head.0.store(self.next, Ordering::Release);
    }

    /// The sender is gone, and nothing is left to pop.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let (tail, closed) = &self.shared.tail.0;
        // Acquire pairs with the release of the flag: the tail read behind it is the last one, so Relaxed will do there.
        closed.load(Ordering::Acquire) && tail.load(Ordering::Relaxed) == self.next
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn messages_are_invisible_before_publication() {
        let (mut sender, mut receiver) = ring(3);
        sender.push([1, 2]).expect("the ring has room");
        assert_eq!(receiver.pop(), None);
        sender.publish();
        sender.push([3, 4]).expect("the ring has room");
        assert_eq!(receiver.pop(), Some([1, 2]));
        assert_eq!(receiver.pop(), None);
    }

    #[test]
    fn a_full_ring_gives_the_message_back() {
        let (mut sender, mut receiver) = ring(3);
        for number in 0..4 {
            sender.push([number]).expect("rounded up to four");
        }
        assert_eq!(sender.push([4]), Err([4]));
        sender.publish();
        assert_eq!(receiver.pop(), Some([0]));
        assert_eq!(sender.push([4]), Err([4]), "room comes back in batches");
        receiver.release();
        assert_eq!(sender.push([4]), Ok(()));
        assert_eq!(sender.push([5]), Err([5]));
        for number in 1..4 {
            assert_eq!(receiver.pop(), Some([number]));
        }
        for number in 5..8 {
            sender.push([number]).expect("all that was seen is popped");
        }
        assert_eq!(sender.push([8]), Err([8]));
    }

    #[test]
    fn a_ring_is_closed_only_when_empty() {
        let (mut sender, mut receiver) = ring(2);
        sender.push([1]).expect("the ring has room");
        assert!(!receiver.is_closed());
        drop(sender);
        assert!(!receiver.is_closed(), "dropping publishes");
        assert_eq!(receiver.pop(), Some([1]));
        assert!(receiver.is_closed());
        assert_eq!(receiver.pop(), None);
    }

    #[test]
    fn messages_begin_on_a_line_of_their_own() {
        for capacity in [1, 2, 64, 1000] {
            let (sender, _receiver) = ring::<8>(capacity);
            let first = sender.shared.message::<8>(0).as_ptr().addr();
            assert_eq!(first % LINE_BYTES, 0);
        }
    }

    #[test]
    fn positions_wrap() {
        let (mut sender, mut receiver) = ring(2);
        let last = usize::MAX;
        sender.shared.head.0.store(last, Ordering::Relaxed);
        (sender.next, sender.published, sender.head) = (last, last, last);
        (receiver.next, receiver.tail) = (last, last);
        for number in 0..5 {
            sender.push([number]).expect("the ring has room");
            sender.push([number]).expect("the ring has room");
            assert_eq!(sender.push([number]), Err([number]));
            sender.publish();
            assert_eq!(receiver.pop().and(receiver.pop()), Some([number]));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::yield_now;
    use loom::cell::UnsafeCell;

    /// All messages of the other thread, until it is gone.
    fn pop_all(receiver: &mut Receiver<2>) -> Vec<[u64; 2]> {
        let mut popped = Vec::new();
        while !receiver.is_closed() {
            match receiver.pop() {
                Some(message) => popped.push(message),
                None => yield_now(),
            }
        }
        popped
    }

    /// Whole messages, in order, none lost, none twice, through a ring that is full now and then.
    #[test]
    fn messages_pass_through_a_small_ring_in_order() {
        loom::model(|| {
            let (mut sender, mut receiver) = ring(2);
            let sending = loom::thread::spawn(move || {
                for number in 0..3 {
                    while sender.push([number, number + 10]).is_err() {
                        yield_now();
                    }
                    sender.publish();
                }
            });
            for number in 0..3 {
                let message = loop {
                    match receiver.pop() {
                        Some(message) => break message,
                        None => yield_now(),
                    }
                };
                assert_eq!(message, [number, number + 10]);
            }
            sending.join().expect("the thread does not panic");
            assert_eq!(receiver.pop(), None);
        });
    }

    /// Messages that the sender published, or left unpublished when dropped, are popped before the ring is closed.
    #[test]
    fn closing_while_popping_loses_no_message() {
        loom::model(|| {
            let (mut sender, mut receiver) = ring(2);
            let sending = loom::thread::spawn(move || {
                sender.push([1, 2]).expect("the ring has room");
                sender.publish();
                sender.push([3, 4]).expect("the ring has room");
            });
            assert_eq!(pop_all(&mut receiver), [[1, 2], [3, 4]]);
            sending.join().expect("the thread does not panic");
        });
    }

    /// Words are not written over before they are read: what the receiver does before it gives room back comes before
    /// what the sender does with it.
    #[test]
    fn room_is_returned_in_the_middle_of_a_batch() {
        loom::model(|| {
            let (mut sender, mut receiver) = ring(2);
            let room = Arc::new(UnsafeCell::new(0_u32));
            sender.push([0, 10]).expect("the ring has room");
            sender.push([1, 11]).expect("the ring has room");
            sender.publish();
            let senders_room = Arc::clone(&room);
            let sending = loom::thread::spawn(move || {
                let pushed = sender.push([2, 12]).is_ok();
                if pushed {
                    // SAFETY: loom checks that nobody else touches it meanwhile: that is the test.
                    senders_room.with_mut(|at| unsafe { *at += 1 });
                }
                pushed
            });
            assert_eq!(receiver.pop(), Some([0, 10]));
            // SAFETY: as above.
            room.with_mut(|at| unsafe { *at += 1 });
            receiver.release();
            assert_eq!(receiver.pop(), Some([1, 11]));
            let pushed = sending.join().expect("the thread does not panic");
            assert_eq!(receiver.pop(), pushed.then_some([2, 12]));
        });
    }
}
