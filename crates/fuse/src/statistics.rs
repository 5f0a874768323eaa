//! Counts of the server's work: kept by each thread on its own cache lines, summed on request.

use crate::tasks::Tasks;
use crate::wire::Opcode;
use std::sync::atomic::{AtomicU64, Ordering};

/// Above every errno of Linux (EHWPOISON is 133).
const ERRNO_LIMIT: usize = 134;

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
        }
    }
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
    pub(crate) tasks: Tasks,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            requests: [const { AtomicU64::new(0) }; Opcode::LIMIT],
            errors: [const { AtomicU64::new(0) }; ERRNO_LIMIT],
            panics: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            tasks: Tasks::default(),
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
}
