//! Counts of the server's work: kept by each thread on its own cache lines, summed on request.

use crate::accesses::Accesses;
use crate::tasks::Tasks;
use crate::wire::Opcode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Above every errno of Linux (EHWPOISON is 133).
const ERRNO_LIMIT: usize = 134;

/// Spans of time that are told apart: below 256 ns, 512 ns and so on, each twice the one before, and whatever is longer.
pub const SPANS: usize = 24;
const FIRST_SPAN_BITS: u32 = 8;

/// Kinds of requests whose times are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// READ.
    Read,
    /// WRITE.
    Write,
    /// FSYNC, FSYNCDIR and SYNCFS.
    Sync,
    /// Names, attributes and all others.
    Other,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Sync, Self::Other];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Other => "other",
        }
    }

    fn of(opcode: u32) -> Self {
        match Opcode::from_number(opcode) {
            Some(Opcode::Read) => Self::Read,
            Some(Opcode::Write) => Self::Write,
            Some(Opcode::FSync | Opcode::FSyncDir | Opcode::SyncFs) => Self::Sync,
            _ => Self::Other,
        }
    }
}

/// Times that the server took for requests of a kind, from when it had them to when it answered. Waits for room, for the disk and for other requests that
/// went along are part of it; the kernel's part is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Requests by span: the last one has no end. See [`Times::span_end`].
    pub counts: [u64; SPANS],
    /// Nanoseconds in all.
    pub sum_ns: u64,
}

impl Times {
    /// Ends of all spans.
    pub fn ends() -> impl Iterator<Item = Option<Duration>> {
        (0..SPANS).map(Self::span_end)
    }

    /// Time below which the requests of a span lie; `None` for the last one.
    #[must_use]
    pub fn span_end(span: usize) -> Option<Duration> {
        (span + 1 < SPANS).then(|| Duration::from_nanos(1 << (FIRST_SPAN_BITS as usize + span)))
    }
}

/// Counts since the mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Requests by operation, those that came at least once.
    pub requests: Vec<(Opcode, u64)>,
    /// Requests of operations this server does not know.
    pub unknown: u64,
    /// Answers that carried an errno other than ENOENT, ENODATA and ENOSYS, which are part of ordinary life.
    pub errors: u64,
    /// Answers counted in `errors`, by errno, for each errno that was given at least once.
    pub errors_by_errno: Vec<(i32, u64)>,
    /// Requests that panicked and were answered with EIO.
    pub panics: u64,
    /// Bytes of READ answers.
    pub read_bytes: u64,
    /// Bytes taken from WRITE requests.
    pub written_bytes: u64,
    /// Times of requests that were answered, in the order of [`Kind::ALL`].
    pub times: [Times; Kind::ALL.len()],
}

impl Statistics {
    /// All requests.
    #[must_use]
    pub fn request_count(&self) -> u64 {
        self.unknown + self.requests.iter().map(|(_, count)| count).sum::<u64>()
    }

    pub(crate) fn sum<'a>(all: impl Iterator<Item = &'a Counters> + Clone) -> Self {
        let total =
            |which: fn(&Counters) -> &AtomicU64| all.clone().map(|one| which(one).load(Ordering::Relaxed)).sum();
        let by_opcode = |opcode: Opcode| {
            all.clone()
                .map(|one| one.requests[opcode as usize].load(Ordering::Relaxed))
                .sum()
        };
        let by_errno = |errno: usize| all.clone().map(|one| one.errors[errno].load(Ordering::Relaxed)).sum();
        let errors_by_errno: Vec<(i32, u64)> = (0..ERRNO_LIMIT)
            .zip(0..)
            .map(|(index, errno)| (errno, by_errno(index)))
            .filter(|&(_, count)| count > 0)
            .collect();
        Self {
            requests: Opcode::ALL
                .iter()
                .map(|&opcode| (opcode, by_opcode(opcode)))
                .filter(|&(_, count)| count > 0)
                .collect(),
            // No operation has number 0.
            unknown: total(|one| &one.requests[0]),
            errors: errors_by_errno.iter().map(|(_, count)| count).sum(),
            errors_by_errno,
            panics: total(|one| &one.panics),
            read_bytes: total(|one| &one.read_bytes),
            written_bytes: total(|one| &one.written_bytes),
            times: Kind::ALL.map(|kind| {
                let sum = |which: &dyn Fn(&OfKind) -> &AtomicU64| {
                    all.clone()
                        .map(|one| which(&one.times[kind as usize]).load(Ordering::Relaxed))
                        .sum()
                };
                Times {
                    counts: std::array::from_fn(|span| sum(&|of: &OfKind| &of.counts[span])),
                    sum_ns: sum(&|of: &OfKind| &of.sum_ns),
                }
            }),
        }
    }
}

/// Times of requests of a kind.
#[derive(Debug)]
struct OfKind {
    counts: [AtomicU64; SPANS],
    sum_ns: AtomicU64,
}

/// Counts of one thread. Only that thread writes, so a load and a store (no locked instruction) are enough; all accesses
/// are relaxed because nothing else is ordered by them. The alignment keeps threads off each other's lines.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Counters {
    requests: [AtomicU64; Opcode::LIMIT],
    /// Errors by errno; a number that is no errno counts as 0.
    errors: [AtomicU64; ERRNO_LIMIT],
    panics: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    times: [OfKind; Kind::ALL.len()],
    pub(crate) tasks: Tasks,
    pub(crate) accesses: Accesses,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            requests: [const { AtomicU64::new(0) }; Opcode::LIMIT],
            errors: [const { AtomicU64::new(0) }; ERRNO_LIMIT],
            panics: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            times: [const {
                OfKind {
                    counts: [const { AtomicU64::new(0) }; SPANS],
                    sum_ns: AtomicU64::new(0),
                }
            }; Kind::ALL.len()],
            tasks: Tasks::default(),
            accesses: Accesses::default(),
        }
    }
}

impl Counters {
    /// A request with that number of an operation came.
    pub(crate) fn count_request(&self, number: u32) {
        let index = Opcode::from_number(number).map_or(0, |opcode| opcode as usize);
        add(&self.requests[index], 1);
    }

    /// An answer with that errno goes out.
    pub(crate) fn count_error(&self, errno: i32) {
        if !matches!(errno, libc::ENOENT | libc::ENODATA | libc::ENOSYS) {
            let index = usize::try_from(errno).ok().filter(|index| *index < ERRNO_LIMIT);
            add(&self.errors[index.unwrap_or(0)], 1);
        }
    }

    /// A request with that number of an operation was answered, so long after it came.
    pub(crate) fn count_time(&self, number: u32, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let span = (u64::BITS - ns.leading_zeros()).saturating_sub(FIRST_SPAN_BITS) as usize;
        let of_kind = &self.times[Kind::of(number) as usize];
        add(&of_kind.counts[span.min(SPANS - 1)], 1);
        add(&of_kind.sum_ns, ns);
    }

    pub(crate) fn count_panic(&self) {
        add(&self.panics, 1);
    }

    pub(crate) fn count_read(&self, bytes: usize) {
        add(&self.read_bytes, bytes as u64);
    }

    pub(crate) fn count_write(&self, bytes: usize) {
        add(&self.written_bytes, bytes as u64);
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_summed() {
        let all = [Counters::default(), Counters::default()];
        all[0].count_request(Opcode::Read as u32);
        all[1].count_request(Opcode::Read as u32);
        all[1].count_request(9999);
        all[1].count_error(libc::ENOENT);
        all[1].count_error(libc::ENOSPC);
        all[0].count_error(libc::ENOSPC);
        all[0].count_error(libc::EEXIST);
        all[0].count_error(9999);
        all[0].count_read(10);
        all[1].count_read(20);
        let sum = Statistics::sum(all.iter());
        assert_eq!(sum.requests, [(Opcode::Read, 2)]);
        assert_eq!(
            (sum.unknown, sum.errors, sum.read_bytes, sum.request_count()),
            (1, 4, 30, 3)
        );
        assert_eq!(sum.errors_by_errno, [(0, 1), (libc::EEXIST, 1), (libc::ENOSPC, 2)]);
    }

    #[test]
    fn times_are_below_the_ends_of_their_spans() {
        let counters = Counters::default();
        let mut sum = 0;
        for ns in [0, 255, 256, 257, 511, 512, 1 << 30, 1 << 31, 1 << 40, u64::MAX >> 4] {
            let before = Statistics::sum(std::iter::once(&counters)).times[Kind::Sync as usize];
            counters.count_time(Opcode::FSync as u32, Duration::from_nanos(ns));
            let after = Statistics::sum(std::iter::once(&counters)).times[Kind::Sync as usize];
            let span = (0..SPANS).find(|span| after.counts[*span] > before.counts[*span]);
            let span = span.expect("the request is counted");
            assert!(
                Times::span_end(span).is_none_or(|end| Duration::from_nanos(ns) < end),
                "{ns}: {span}"
            );
            let is_above = span == 0 || Times::span_end(span - 1).is_some_and(|end| Duration::from_nanos(ns) >= end);
            assert!(is_above, "{ns}: {span}");
            sum += ns;
            assert_eq!(after.sum_ns, sum);
        }
        counters.count_time(Opcode::Read as u32, Duration::ZERO);
        let times = Statistics::sum(std::iter::once(&counters)).times;
        let counts = Kind::ALL.map(|kind| times[kind as usize].counts.iter().sum::<u64>());
        assert_eq!(counts, [1, 0, 10, 0]);
    }
}
