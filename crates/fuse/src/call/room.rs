//! Waits for the space of removed files, which the kernel has let go of and the server has not heard of yet.
//!
//! The kernel tells of a file's last close, and then of forgetting it, only after close(2) and unlink(2) have returned. Without a wait, space that a process
//! has just freed would not be there for its next write. A file that stays open is not waited for again and again: its space may never come.
//!
//! Users who remove files in a loop renew the wait. Each thread that reads the device may wait once; in the long run all threads together
//! wait as long as one could, for whichever users.

use super::ROOM_TIMEOUT;
use homenode_engine::fs::{Unlinked, UnlinkedCount};
use std::time::{Duration, Instant};

/// Whether files without a name may soon give their space back.
#[derive(Debug, Default)]
pub(super) struct Hope {
    open: Wait,
    closed: Wait,
    /// Time up to which one thread would have waited alone.
    spent_until: Option<Instant>,
    /// Time up to which removals do not wait for files that were removed before.
    vain_until: Option<Instant>,
}

/// Time without such waits after one that was in vain: removals then take a tenth longer, however long a removed file is kept.
const VAIN_PAUSE: Duration = Duration::from_secs(2);

impl Hope {
    /// Whether there may be room soon, by what `unlinked` says at `now`.
    pub(super) fn lasts(&mut self, unlinked: &Unlinked, now: Instant) -> bool {
        let open = self.open.lasts(unlinked.open, now);
        let closed = self.closed.lasts(unlinked.closed, now);
        unlinked.going.files > 0 || open || closed
    }

    /// Notes that a removal waited in vain for files that were removed before. A descriptor that only names one may keep it for ever.
    pub(super) fn note_vain(&mut self, now: Instant) {
        self.vain_until = Some(now + VAIN_PAUSE);
    }

    /// Whether a removal waited in vain a short time ago.
    pub(super) fn is_vain(&self, now: Instant) -> bool {
        self.vain_until.is_some_and(|until| now < until)
    }

    /// Counts a time for which one of `threads` threads has `paused`. Returns whether the thread may pause at `now`.
    pub(super) fn count_pause(&mut self, paused: Duration, threads: u32, now: Instant) -> bool {
        let spent = self.spent_until.map_or(now, |spent| spent.max(now)) + paused;
        self.spent_until = Some(spent);
        spent < now + ROOM_TIMEOUT * threads
    }
}

/// The time for which files of one kind are waited for: a while from when their number was first seen to have changed.
#[derive(Debug, Default)]
struct Wait {
    moves: u64,
    since: Option<Instant>,
}

impl Wait {
    fn lasts(&mut self, count: UnlinkedCount, now: Instant) -> bool {
        // A thread that looked long ago brings an older count.
        if count.moves > self.moves {
            (self.moves, self.since) = (count.moves, Some(now));
        }
        let is_recent = |since| now.saturating_duration_since(since) < ROOM_TIMEOUT;
        count.files > 0 && self.since.is_some_and(is_recent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_the_time_of_one_thread_in_the_long_run() {
        const THREADS: u32 = 8;
        const PAUSE: Duration = Duration::from_millis(1);
        let mut hope = Hope::default();
        let start = Instant::now();
        let mut pauses = |from: u32, to: u32| {
            let (mut paused, mut all) = ([Duration::ZERO; THREADS as usize], Duration::ZERO);
            for time in from..to {
                for paused in &mut paused {
                    let may_pause = hope.count_pause(*paused, THREADS, start + PAUSE * time);
                    *paused = if may_pause { PAUSE } else { Duration::ZERO };
                    all += *paused;
                }
            }
            all
        };
        assert_eq!(pauses(0, 200), ROOM_TIMEOUT * THREADS, "each waits once");
        let long = pauses(200, 10_000);
        assert!(long <= ROOM_TIMEOUT * THREADS + PAUSE * (9_800 + THREADS), "{long:?}");
        assert_eq!(pauses(20_000, 20_200), ROOM_TIMEOUT * THREADS, "after a rest");
    }

    #[test]
    fn removals_wait_again_a_while_after_a_wait_in_vain() {
        let mut hope = Hope::default();
        let start = Instant::now();
        assert!(!hope.is_vain(start));
        hope.note_vain(start);
        assert!(hope.is_vain(start) && hope.is_vain(start + ROOM_TIMEOUT * 9));
        assert!(!hope.is_vain(start + ROOM_TIMEOUT * 10));
    }

    #[test]
    fn removals_are_awaited_once_after_each_change_of_their_number() {
        let mut hope = Hope::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let count = |files, moves| UnlinkedCount { files, moves };
        let mut unlinked = Unlinked::default();
        assert!(!hope.lasts(&unlinked, at(0)), "no file is unlinked");

        unlinked.open = count(1, 1);
        for (ms, lasts) in [(1000, true), (1199, true), (1200, false), (100_000, false)] {
            assert_eq!(hope.lasts(&unlinked, at(ms)), lasts, "held open, at {ms}");
        }
        unlinked.closed = count(1, 1);
        for (ms, lasts) in [(200_000, true), (200_199, true), (200_200, false)] {
            assert_eq!(
                hope.lasts(&unlinked, at(ms)),
                lasts,
                "a second file waits to be forgotten, at {ms}"
            );
        }
        // A third comes and goes: neither of the two others gets nearer its end.
        unlinked.closed = count(1, 3);
        assert!(hope.lasts(&unlinked, at(300_000)));
        unlinked.closed = count(0, 4);
        assert!(!hope.lasts(&unlinked, at(300_001)), "only the open file is left");

        unlinked.going = count(1, 1);
        for ms in [400_000, 500_000] {
            assert!(hope.lasts(&unlinked, at(ms)), "blocks are being freed");
        }
    }
}
