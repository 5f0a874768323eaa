//! Long requests of a ring between two of their steps, and the order in which they go on.
//!
//! Users take turns. A user's request that was served longest ago goes on. Where half of the ring's entries hold long
//! requests, the same request of a user goes on to its end, so that entries become free one after the other and not all at the end.

use crate::aside::Served;
use std::collections::VecDeque;

/// Long requests, each with its user's number.
#[derive(Debug)]
pub(super) struct Going<T> {
    requests: VecDeque<(u32, T)>,
    served: Served,
    /// Half of the ring's entries.
    many: usize,
}

impl<T> Going<T> {
    /// For a ring with `depth` entries.
    pub(super) fn new(depth: usize) -> Self {
        Self {
            requests: VecDeque::with_capacity(depth),
            served: Served::default(),
            many: depth.div_ceil(2),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Keeps a request for its next step; `is_new` tells that it has done its first one.
    pub(super) fn push(&mut self, user: u32, request: T, is_new: bool) {
        // A new one does not overtake those that came before, which would never end where new ones keep coming.
        if !is_new && self.requests.len() >= self.many {
            self.requests.push_front((user, request));
        } else {
            self.requests.push_back((user, request));
        }
    }

    /// Takes the request whose turn it is.
    pub(super) fn pop(&mut self) -> Option<T> {
        let at = self.served.turn(self.requests.iter().map(|(user, _)| *user))?;
        let (user, request) = self.requests.remove(at)?;
        self.served.note(user);
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPTH: usize = 8;

    /// Serves requests to their ends, each given by its user and its number of steps; returns their places in the order of their ends.
    /// For each one that ends, the next of `later` comes.
    fn ends(requests: &[(u32, u32)], later: &[(u32, u32)]) -> Vec<usize> {
        let mut going = Going::new(DEPTH);
        let all: Vec<_> = [requests, later].concat();
        let mut coming = all.iter().enumerate();
        let mut come = |going: &mut Going<_>| {
            if let Some((place, (user, steps))) = coming.next() {
                going.push(*user, (place, *steps), true);
            }
        };
        requests.iter().for_each(|_| come(&mut going));
        let mut ends = Vec::new();
        while let Some((place, left)) = going.pop() {
            if left > 1 {
                going.push(all[place].0, (place, left - 1), false);
            } else {
                ends.push(place);
                come(&mut going);
            }
        }
        assert!(going.is_empty());
        ends
    }

    #[test]
    fn requests_of_one_user_take_turns_while_they_are_few() {
        assert_eq!(ends(&[(1, 9), (1, 2), (1, 1)], &[]), [2, 1, 0]);
    }

    #[test]
    fn requests_in_half_of_the_entries_end_in_their_order() {
        let ends = ends(&[(1, 9); DEPTH], &[(1, 9); 100]);
        assert_eq!(ends[..100], (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_user_with_one_request_gets_each_second_step() {
        let others = [(1, 100); DEPTH - 1];
        let with = |own| [&others[..], &[own]].concat();
        assert_eq!(ends(&with((2, 99)), &others)[0], DEPTH - 1);
        assert_eq!(ends(&with((2, 101)), &others)[..2], [0, DEPTH - 1]);
        let third = [(1, 100), (2, 100), (3, 60)];
        assert_eq!(ends(&third, &[])[0], 2);
    }
}
