//! Order of events: each actor has one event to come.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// Actors by the time of their next event; of equal times the lowest actor comes first.
#[derive(Clone, Debug, Default)]
pub struct Agenda {
    events: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Agenda {
    /// Actors from 0 up to `actors`, each with an event at time 0.
    #[must_use]
    pub fn new(actors: u32) -> Self {
        Self {
            events: (0..actors).map(|actor| Reverse((0, actor))).collect(),
        }
    }

    /// Calls `next` with time and actor of each event, in order, until an event is at `end_ps` or later. `next` returns the time of that
    /// actor's next event; `None` when it has no more.
    pub fn run(&mut self, end_ps: u64, mut next: impl FnMut(u64, u32) -> Option<u64>) -> u64 {
        let mut events = 0;
        while let Some(mut first) = self.events.peek_mut() {
            let Reverse((now, actor)) = *first;
            if now >= end_ps {
                break;
            }
            events += 1;
            match next(now, actor) {
                Some(then) => *first = Reverse((then.max(now), actor)),
                None => _ = PeekMut::pop(first),
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_by_actor() {
        let mut seen = Vec::new();
        let events = Agenda::new(3).run(7, |now, actor| {
            seen.push((now, actor));
            (actor != 2).then_some(now + 3 + u64::from(actor))
        });
        assert_eq!(seen, [(0, 0), (0, 1), (0, 2), (3, 0), (4, 1), (6, 0)]);
        assert_eq!(events, 6);
    }
}
