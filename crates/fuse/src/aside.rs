//! Threads beside those that take requests. What waits for the disk of a durable pool is carried out here, and those go on with what does not.
//!
//! There are two: one for fsyncs of few bytes, one for all that may take long, so that the first do not wait for the second. An fsync takes along all
//! others that have come: each is settled, and then the log is forced once for all.

use crate::host::Host;
use crate::responder::{Answer, Responder};
use homenode_engine::{Clock, Memory};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Most bytes of requests that wait in one lane, besides the entries of rings. Each thread of a user's can have one of 1 MiB under way.
const BYTES_MAX: usize = 16 << 20;

/// A request that was taken.
pub(crate) trait Errand: Send + Sized + 'static {
    /// Memory that it takes of its own.
    fn bytes(&self) -> usize;

    /// Whether it is an fsync.
    fn is_sync(&self) -> bool;

    /// Carries the request out; an fsync up to where the log is to be forced.
    fn carry_out<M: Memory, C: Clock, H: Host>(&mut self, responder: &Responder<M, C, H>) -> Answer;

    /// Gives the answers of some requests back, from `errands`, which may keep its room.
    fn give_back(errands: &mut Vec<(Self, Answer)>);
}

/// Work of one thread.
#[derive(Debug)]
pub(crate) struct Lane<E> {
    /// For the thread.
    pub(crate) name: &'static str,
    state: Mutex<State<E>>,
    came: Condvar,
}

#[derive(Debug)]
struct State<E> {
    errands: VecDeque<E>,
    /// Messages of the threads' own.
    bytes: usize,
    is_over: bool,
}

/// The way to both threads, which end when it is dropped, after what they are doing.
#[derive(Debug)]
pub(crate) struct Aside<E> {
    short: Arc<Lane<E>>,
    long: Arc<Lane<E>>,
}

impl<E: Errand> Aside<E> {
    pub(crate) fn new() -> Self {
        let lane = |name| {
            Arc::new(Lane {
                name,
                state: Mutex::new(State {
                    errands: VecDeque::new(),
                    bytes: 0,
                    is_over: false,
                }),
                came: Condvar::new(),
            })
        };
        Self {
            short: lane("sync"),
            long: lane("long"),
        }
    }

    /// Has a request carried out.
    pub(crate) fn send(&self, errand: E, is_long: bool) {
        let lane = self.lane(is_long);
        let mut state = lane.lock();
        state.bytes += errand.bytes();
        state.errands.push_back(errand);
        drop(state);
        lane.came.notify_one();
    }

    /// Whether a request of that many bytes may wait with the others, or else its thread is to wait itself.
    pub(crate) fn has_room(&self, bytes: usize, is_long: bool) -> bool {
        self.lane(is_long).lock().bytes + bytes <= BYTES_MAX
    }

    fn lane(&self, is_long: bool) -> &Lane<E> {
        if is_long { &self.long } else { &self.short }
    }
}

impl<E> Aside<E> {
    /// Lanes that threads [`serve`](Lane::serve), one each.
    pub(crate) fn lanes(&self) -> [&Arc<Lane<E>>; 2] {
        [&self.short, &self.long]
    }
}

impl<E> Drop for Aside<E> {
    fn drop(&mut self) {
        for lane in self.lanes() {
            lane.lock().is_over = true;
            lane.came.notify_one();
        }
    }
}

impl<E> Lane<E> {
    fn lock(&self) -> MutexGuard<'_, State<E>> {
        // Nothing panics under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Errand> Lane<E> {
    /// Carries out what comes, until the other side is dropped.
    pub(crate) fn serve<M: Memory, C: Clock, H: Host>(&self, responder: &Responder<M, C, H>) {
        let mut batch = Vec::new();
        let mut answered = Vec::new();
        while self.take(&mut batch) {
            let are_syncs = batch.first().is_some_and(E::is_sync);
            for mut errand in batch.drain(..) {
                let answer = errand.carry_out(responder);
                answered.push((errand, answer));
            }
            if are_syncs {
                responder.force(answered.iter_mut().map(|(_, answer)| answer));
            }
            E::give_back(&mut answered);
        }
    }

    /// Waits for requests and takes the first one, or all fsyncs that come before something else; false when there are to be none.
    fn take(&self, batch: &mut Vec<E>) -> bool {
        let mut state = self.lock();
        while state.errands.is_empty() {
            if state.is_over {
                return false;
            }
            state = self.came.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let syncs = state.errands.iter().take_while(|errand| errand.is_sync()).count();
        let before = batch.len();
        batch.extend(state.errands.drain(..syncs.max(1)));
        state.bytes -= batch[before..].iter().map(E::bytes).sum::<usize>();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Of(usize, bool);

    impl Errand for Of {
        fn bytes(&self) -> usize {
            self.0
        }

        fn is_sync(&self) -> bool {
            self.1
        }

        fn carry_out<M: Memory, C: Clock, H: Host>(&mut self, _: &Responder<M, C, H>) -> Answer {
            Answer::None
        }

        fn give_back(errands: &mut Vec<(Self, Answer)>) {
            errands.clear();
        }
    }

    #[test]
    fn fsyncs_are_taken_together_and_anything_else_alone() {
        let aside = Aside::new();
        for errand in [Of(1, true), Of(2, true), Of(3, false), Of(4, false), Of(5, true)] {
            aside.send(errand, false);
        }
        let take = || {
            let mut batch = Vec::new();
            aside
                .short
                .take(&mut batch)
                .then(|| batch.iter().map(|of| of.0).collect::<Vec<_>>())
        };
        assert_eq!(take(), Some(vec![1, 2]));
        assert_eq!(take(), Some(vec![3]));
        assert_eq!(take(), Some(vec![4]));
        assert_eq!(take(), Some(vec![5]));
    }

    #[test]
    fn the_memory_of_what_waits_is_bounded_and_the_rest_is_carried_out_before_the_end() {
        let aside = Aside::new();
        let lane = Arc::clone(&aside.long);
        aside.send(Of(BYTES_MAX, false), true);
        assert!(!aside.has_room(1, true) && aside.has_room(BYTES_MAX, false));
        aside.send(Of(0, false), true);
        let mut batch = Vec::new();
        assert!(lane.take(&mut batch));
        assert!(aside.has_room(BYTES_MAX, true));
        aside.send(Of(BYTES_MAX, false), true);
        drop(aside);
        assert!(lane.take(&mut batch) && lane.take(&mut batch));
        assert_eq!(batch.len(), 3);
        assert!(!lane.take(&mut batch));
    }
}
