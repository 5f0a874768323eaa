//! Helper threads for requests that wait for a durable pool's disk and, with the classic transport, for every long request of any pool.
//!
//! Three lanes: fsyncs of few bytes; reads that wait for frames or for other threads' reads; long requests. Each has a thread; with the classic
//! transport the last two have several. One pass settles all waiting fsyncs and forces the log once. Users take turns. A long
//! request of the classic transport goes on by a step in each turn. When all fsyncs of a user are settled and another user has many, the log is
//! forced for those that are settled so far.

use crate::host::Host;
use crate::responder::{Answer, Responder};
use homenode_engine::{Clock, Memory};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Most bytes of requests that wait in one lane, besides the entries of rings. Each thread of a user's can have one of 1 MiB under way.
const BYTES_MAX: usize = 16 << 20;

/// Fsyncs of a user that are settled in a row while another user waits.
const TURN: usize = 4;
/// Users that are known to have been served.
const SERVED_MAX: usize = 64;
/// Fsyncs that are settled before the log is forced, at most: users who keep coming do not put it off.
const BATCH_MAX: usize = 64;

/// A request that was taken.
pub(crate) trait Errand: Send + Sized + 'static {
    /// Memory that it takes of its own.
    fn bytes(&self) -> usize;

    /// Whether it is an fsync.
    fn is_sync(&self) -> bool;

    /// Number of the user who asks.
    fn user(&self) -> u32;

    /// Its operation's number, and when it came; `None` where whoever answers it counts its time.
    fn begun(&self) -> Option<(u32, Instant)>;

    /// Carries the request out; an fsync up to where the log is to be forced.
    fn carry_out<M: Memory, C: Clock, H: Host>(&mut self, responder: &Responder<M, C, H>) -> Answer;

    /// Whether it is to be carried out again by this lane, for its next step. Requests of rings go back to their threads for that.
    fn goes_on(&mut self, answer: Answer) -> bool {
        let _ = answer;
        false
    }

    /// Gives the answers of some requests back, from `errands`, which may keep its room.
    fn give_back(errands: &mut Vec<(Self, Answer)>);
}

/// Which thread carries a request out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Short,
    Read,
    Long,
}

/// Work of one thread, or of several that need not keep its order.
#[derive(Debug)]
pub(crate) struct Lane<E> {
    /// For the names of its threads.
    pub(crate) name: &'static str,
    state: Mutex<State<E>>,
    came: Condvar,
}

#[derive(Debug)]
struct State<E> {
    errands: VecDeque<E>,
    /// Messages of the threads' own.
    bytes: usize,
    served: Served,
    is_over: bool,
}

/// Users whose requests were taken last, the last one last.
#[derive(Debug)]
pub(crate) struct Served(VecDeque<u32>);

impl Default for Served {
    fn default() -> Self {
        // All that it will hold: rings' threads take nothing from the heap later.
        Self(VecDeque::with_capacity(SERVED_MAX + 1))
    }
}

impl Served {
    /// Chooses among users of requests, and returns its place. Users who are not among the last come first, and of equals the first request.
    pub(crate) fn turn(&self, users: impl Iterator<Item = u32>) -> Option<usize> {
        let first = users
            .enumerate()
            .min_by_key(|(_, user)| self.0.iter().position(|served| served == user));
        first.map(|(at, _)| at)
    }

    /// Notes that a user's request was taken.
    pub(crate) fn note(&mut self, user: u32) {
        self.0.retain(|served| *served != user);
        self.0.push_back(user);
        if self.0.len() > SERVED_MAX {
            self.0.pop_front();
        }
    }
}

/// The way to all threads, which end when it is dropped, after what they are doing.
#[derive(Debug)]
pub(crate) struct Aside<E>([Arc<Lane<E>>; 3]);

impl<E: Errand> Aside<E> {
    pub(crate) fn new() -> Self {
        let lane = |name| {
            Arc::new(Lane {
                name,
                state: Mutex::new(State {
                    errands: VecDeque::new(),
                    bytes: 0,
                    served: Served::default(),
                    is_over: false,
                }),
                came: Condvar::new(),
            })
        };
        Self(["sync", "read", "long"].map(lane))
    }

    /// Has a request carried out.
    pub(crate) fn send(&self, errand: E, way: Way) {
        let lane = self.lane(way);
        let mut state = lane.lock();
        state.bytes += errand.bytes();
        state.errands.push_back(errand);
        drop(state);
        lane.came.notify_one();
    }

    /// Whether a request of that many bytes may wait with the others, or else its thread is to wait itself.
    pub(crate) fn has_room(&self, bytes: usize, way: Way) -> bool {
        self.lane(way).lock().bytes + bytes <= BYTES_MAX
    }

    fn lane(&self, way: Way) -> &Arc<Lane<E>> {
        &self.0[way as usize]
    }
}

impl<E> Aside<E> {
    /// Lanes that threads [`serve`](Lane::serve).
    pub(crate) fn lanes(&self) -> &[Arc<Lane<E>>; 3] {
        &self.0
    }
}

impl<E> Drop for Aside<E> {
    fn drop(&mut self) {
        for lane in self.lanes() {
            lane.lock().is_over = true;
            lane.came.notify_all();
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
        let mut answered = Vec::new();
        let mut turns = Turns::default();
        while let Some(mut errand) = self.take() {
            let are_syncs = errand.is_sync();
            if are_syncs {
                turns.begin(&errand, self.syncs());
            }
            loop {
                let answer = errand.carry_out(responder);
                if errand.goes_on(answer) {
                    self.put_back(errand);
                    break;
                }
                answered.push((errand, answer));
                match are_syncs.then(|| self.take_next(&mut turns)).flatten() {
                    Some(next) => errand = next,
                    None => break,
                }
            }
            if are_syncs {
                responder.force(answered.iter_mut().map(|(_, answer)| answer));
            }
            for (number, begun) in answered.iter().filter_map(|(errand, _)| errand.begun()) {
                responder.counters.count_time(number, begun.elapsed());
            }
            E::give_back(&mut answered);
        }
    }

    /// Puts a request back for its next step, before others of its user; the calling thread looks for the next one itself.
    fn put_back(&self, errand: E) {
        let mut state = self.lock();
        state.bytes += errand.bytes();
        let at = state.syncs();
        state.errands.insert(at, errand);
    }

    /// Waits for requests and takes the first one of the user who was served longest ago; none when there are to be none.
    fn take(&self) -> Option<E> {
        let mut state = self.lock();
        while state.errands.is_empty() {
            if state.is_over {
                return None;
            }
            state = self.came.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let at = state.turn();
        state.remove(at)
    }

    /// Fsyncs that wait before anything else.
    fn syncs(&self) -> usize {
        self.lock().syncs()
    }

    /// Takes an fsync that is to be settled with those before it, if there is one.
    fn take_next(&self, turns: &mut Turns) -> Option<E> {
        let mut state = self.lock();
        let syncs = state.syncs();
        let at = turns.next(state.errands.range(..syncs).map(E::user))?;
        state.remove(at)
    }
}

impl<E: Errand> State<E> {
    fn syncs(&self) -> usize {
        self.errands.iter().take_while(|errand| errand.is_sync()).count()
    }

    /// The request whose turn it is. Fsyncs at the front are taken as they came: they take turns as they are settled.
    fn turn(&self) -> usize {
        if self.syncs() > 0 {
            return 0;
        }
        self.served.turn(self.errands.iter().map(E::user)).unwrap_or(0)
    }

    fn remove(&mut self, at: usize) -> Option<E> {
        let errand = self.errands.remove(at)?;
        self.bytes -= errand.bytes();
        self.served.note(errand.user());
        Some(errand)
    }
}

/// Fsyncs that are settled before the log is forced, by user.
#[derive(Debug, Default)]
struct Turns {
    settled: Vec<(u32, usize)>,
    /// Fsyncs that may still be taken: as many as waited when the first one was, and those of users who came since.
    left: usize,
}

impl Turns {
    /// Begins with one, when `waiting` others wait.
    fn begin<E: Errand>(&mut self, first: &E, waiting: usize) {
        self.settled.clear();
        self.settled.push((first.user(), 1));
        self.left = waiting;
    }

    /// Chooses among users of fsyncs that wait, in their order; none when the log is to be forced now. The user comes first who has had fewest turns.
    fn next(&mut self, waiting: impl Iterator<Item = u32> + Clone) -> Option<usize> {
        let turns_of = |user: u32| {
            let found = self.settled.iter().find(|(one, _)| *one == user);
            found.map_or(0, |(_, count)| count.div_ceil(TURN))
        };
        let (at, user) = waiting.clone().enumerate().min_by_key(|(_, user)| turns_of(*user))?;
        let is_new = turns_of(user) == 0;
        // Somebody has nothing more to be settled, and waits for the log alone.
        let is_done = |one: u32| !waiting.clone().any(|user| user == one);
        let waits_for_others = || self.settled.iter().any(|(one, _)| *one != user && is_done(*one));
        let has_had_turn = self.settled.iter().any(|(one, count)| *one == user && *count >= TURN);
        let has_many = || waiting.clone().count() > TURN;
        let is_enough = self.settled.iter().map(|(_, count)| count).sum::<usize>() >= BATCH_MAX;
        if is_enough || self.left == 0 && !is_new || has_had_turn && has_many() && waits_for_others() {
            return None;
        }
        self.left = self.left.saturating_sub(1);
        match self.settled.iter_mut().find(|(one, _)| *one == user) {
            Some((_, count)) => *count += 1,
            None => self.settled.push((user, 1)),
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its number, which is its bytes too, whether it is an fsync, and its user.
    struct Of(usize, bool, u32);

    impl Errand for Of {
        fn bytes(&self) -> usize {
            self.0
        }

        fn is_sync(&self) -> bool {
            self.1
        }

        fn user(&self) -> u32 {
            self.2
        }

        fn begun(&self) -> Option<(u32, Instant)> {
            None
        }

        fn carry_out<M: Memory, C: Clock, H: Host>(&mut self, _: &Responder<M, C, H>) -> Answer {
            Answer::None
        }

        fn give_back(errands: &mut Vec<(Self, Answer)>) {
            errands.clear();
        }
    }

    /// Numbers of what is settled before the log is forced; `meanwhile` comes after so many.
    fn batch(aside: &Aside<Of>, meanwhile: (usize, Option<Of>)) -> Vec<usize> {
        let (after, mut coming) = meanwhile;
        let mut turns = Turns::default();
        let first = aside.lane(Way::Short).take().expect("a request waits");
        let is_sync = first.is_sync();
        turns.begin(&first, aside.lane(Way::Short).syncs());
        let mut numbers = vec![first.0];
        loop {
            if numbers.len() == after {
                coming
                    .take()
                    .into_iter()
                    .for_each(|errand| aside.send(errand, Way::Short));
            }
            match is_sync.then(|| aside.lane(Way::Short).take_next(&mut turns)).flatten() {
                Some(next) => numbers.push(next.0),
                None => return numbers,
            }
        }
    }

    #[test]
    fn fsyncs_are_grouped_and_other_requests_run_alone() {
        let aside = Aside::new();
        for (number, is_sync) in [(1, true), (2, true), (3, false), (4, false), (5, true)] {
            aside.send(Of(number, is_sync, 0), Way::Short);
        }
        assert_eq!(batch(&aside, (0, None)), [1, 2]);
        assert_eq!(batch(&aside, (0, None)), [3]);
        assert_eq!(batch(&aside, (0, None)), [4]);
        // One that comes later waits for the next time, so that there is one.
        assert_eq!(batch(&aside, (1, Some(Of(6, true, 0)))), [5]);
        assert_eq!(batch(&aside, (0, None)), [6]);
    }

    #[test]
    fn a_stream_of_requests_delays_no_forced_write() {
        let aside = Aside::new();
        (0..1000).for_each(|user| aside.send(Of(1, true, user), Way::Short));
        assert_eq!(batch(&aside, (0, None)).len(), BATCH_MAX);
    }

    #[test]
    fn a_user_with_one_fsync_does_not_wait_for_all_of_another() {
        let aside = Aside::new();
        (1..=30).for_each(|number| aside.send(Of(number, true, 1), Way::Short));
        aside.send(Of(99, true, 0), Way::Short);
        assert_eq!(batch(&aside, (0, None)), [1, 99, 2, 3, 4]);
        // It comes while others are settled.
        let expected: Vec<usize> = (5..=14).chain([99]).collect();
        assert_eq!(batch(&aside, (10, Some(Of(99, true, 0)))), expected);
        assert_eq!(batch(&aside, (0, None)), (15..=30).collect::<Vec<_>>());
    }

    #[test]
    fn many_users_with_one_fsync_each_share_a_forced_write() {
        let aside = Aside::new();
        (1..=30).for_each(|number| aside.send(Of(number, true, u32::try_from(number).expect("small")), Way::Short));
        assert_eq!(batch(&aside, (0, None)), (1..=30).collect::<Vec<_>>());
        // Two with many each as well.
        (1..=30).for_each(|number| aside.send(Of(number, true, u32::from(number > 15)), Way::Short));
        assert_eq!(batch(&aside, (0, None)).len(), 30);
    }

    #[test]
    fn a_user_with_one_request_does_not_wait_for_all_of_another() {
        let aside = Aside::new();
        let lane = Arc::clone(aside.lane(Way::Long));
        (1..=5).for_each(|number| aside.send(Of(number, false, 1), Way::Long));
        let taken = || lane.take().map(|errand| errand.0);
        assert_eq!((taken(), taken()), (Some(1), Some(2)));
        for number in [98, 99] {
            aside.send(Of(number, false, 2), Way::Long);
        }
        aside.send(Of(77, false, 3), Way::Long);
        let order: Vec<_> = (0..6).filter_map(|_| taken()).collect();
        assert_eq!(order, [98, 77, 3, 99, 4, 5]);
        // An fsync is one of them.
        (1..=10).for_each(|number| aside.send(Of(number, false, 1), Way::Long));
        aside.send(Of(50, true, 4), Way::Long);
        assert_eq!((taken(), taken()), (Some(50), Some(1)));
    }

    #[test]
    fn waiting_requests_are_bounded_and_all_are_carried_out() {
        let aside = Aside::new();
        let lane = Arc::clone(aside.lane(Way::Long));
        aside.send(Of(BYTES_MAX, false, 0), Way::Long);
        assert!(!aside.has_room(1, Way::Long) && aside.has_room(BYTES_MAX, Way::Short));
        aside.send(Of(0, false, 0), Way::Long);
        assert!(lane.take().is_some());
        assert!(aside.has_room(BYTES_MAX, Way::Long));
        aside.send(Of(BYTES_MAX, false, 0), Way::Long);
        drop(aside);
        assert!(lane.take().is_some() && lane.take().is_some());
        assert!(lane.take().is_none());
    }
}
