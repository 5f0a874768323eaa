//! Decodes the bytes that the programs wrote: little-endian, without padding, each structure as in the program beside this file.

use std::collections::HashMap;

/// Record of a thread, as `threads.bpf.c` writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Record {
    pub(in super::super) process: u32,
    pub(in super::super) thread: u32,
    /// Since boot.
    pub(in super::super) started_ns: u64,
    pub(in super::super) run_ns: u64,
    /// Read from and written to disks; none where the kernel does not count.
    pub(in super::super) disk: Option<(u64, u64)>,
    /// Number of the thread's cpuset: equal for all threads in that cpuset.
    pub(in super::super) cpuset: u64,
    pub(in super::super) cpu: u32,
    pub(in super::super) name: Name,
    pub(in super::super) process_name: Name,
    /// Its mask, 64 CPUs a word.
    pub(in super::super) mask: Vec<u64>,
}

/// A name, up to its first zero.
pub(in super::super) type Name = [u8; 16];

/// A thread's bytes of sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct SocketCounts {
    /// Bytes received, by the CPU that processed them, and by card and queue.
    pub(in super::super) received: Vec<(Way, u64)>,
    /// Bytes sent, by card; 0 is no known card.
    pub(in super::super) sent: Vec<(u32, u64)>,
}

/// The CPU, where it is known, and card and queue, where both are.
pub(in super::super) type Way = (Option<u32>, Option<(u32, u32)>);

/// A disk or a part of one, as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) struct DiskKey {
    pub(in super::super) major: u32,
    pub(in super::super) minor: u32,
}

/// A thread's share of each disk.
pub(in super::super) type DiskCounts = Vec<(DiskKey, DiskCount)>;

/// Bytes of a thread on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct DiskCount {
    /// Bytes that it asked for.
    pub(in super::super) read: u64,
    /// Bytes of direct writes.
    pub(in super::super) written: u64,
    /// Bytes of the page cache that it made dirty, in whole pages.
    pub(in super::super) dirtied: u64,
}

pub(super) fn threads(bytes: &[u8]) -> Option<Vec<Record>> {
    let mut rest = Rest(bytes);
    let mut threads = Vec::new();
    while !rest.0.is_empty() {
        threads.push(rest.record()?);
    }
    Some(threads)
}

/// How many bytes found no room, and the others by thread.
pub(super) fn sockets(bytes: &[u8]) -> Option<(u64, HashMap<u32, SocketCounts>)> {
    let mut rest = Rest(bytes);
    let missed = rest.long()?;
    let mut by_thread: HashMap<u32, SocketCounts> = HashMap::new();
    while !rest.0.is_empty() {
        let counts = by_thread.entry(rest.int()?).or_default();
        // -1 is no CPU.
        let cpu = Some(rest.int()?).filter(|cpu| i32::try_from(*cpu).is_ok());
        let (card, queue) = (rest.int()?, rest.int()?);
        let way = (cpu, (card > 0).then_some((card, queue)));
        add(&mut counts.received, way, rest.long()?);
        add(&mut counts.sent, card, rest.long()?);
    }
    for counts in by_thread.values_mut() {
        // Ascending, and what is not known last.
        counts
            .received
            .sort_by_key(|((cpu, queue), _)| (cpu.unwrap_or(u32::MAX), queue.is_none(), *queue));
        counts.sent.sort_unstable();
    }
    Some((missed, by_thread))
}

fn add<K: PartialEq>(counts: &mut Vec<(K, u64)>, key: K, bytes: u64) {
    match counts.iter_mut().find(|(known, _)| *known == key) {
        Some((_, count)) => *count = count.saturating_add(bytes),
        None if bytes > 0 => counts.push((key, bytes)),
        None => {}
    }
}

/// How many bytes found no room, and the others by thread.
pub(super) fn disks(bytes: &[u8]) -> Option<(u64, HashMap<u32, DiskCounts>)> {
    const MINOR_BITS: u32 = 20;
    let mut rest = Rest(bytes);
    let missed = rest.long()?;
    let mut by_thread: HashMap<u32, DiskCounts> = HashMap::new();
    while !rest.0.is_empty() {
        let counts = by_thread.entry(rest.int()?).or_default();
        let device = rest.int()?;
        let key = DiskKey {
            major: device >> MINOR_BITS,
            minor: device & ((1 << MINOR_BITS) - 1),
        };
        let count = DiskCount {
            read: rest.long()?,
            written: rest.long()?,
            dirtied: rest.long()?,
        };
        counts.push((key, count));
    }
    for counts in by_thread.values_mut() {
        counts.sort_by_key(|(key, _)| *key);
    }
    Some((missed, by_thread))
}

/// Bytes that have not been decoded yet.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn short(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn int(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn record(&mut self) -> Option<Record> {
        let mut record = Record {
            process: self.int()?,
            thread: self.int()?,
            started_ns: self.long()?,
            run_ns: self.long()?,
            ..Record::default()
        };
        let disk = (self.long()?, self.long()?);
        record.cpuset = self.long()?;
        record.cpu = self.int()?;
        record.disk = (self.short()? != 0).then_some(disk);
        let words = self.short()?;
        (record.name, record.process_name) = (self.take()?, self.take()?);
        record.mask = (0..words).map(|_| self.long()).collect::<Option<_>>()?;
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(7_u32.to_le_bytes());
        bytes.extend(8_u32.to_le_bytes());
        for long in [1_000_000_000_u64, 5000, 4096, 512, 77] {
            bytes.extend(long.to_le_bytes());
        }
        bytes.extend(3_u32.to_le_bytes());
        bytes.extend(1_u16.to_le_bytes());
        bytes.extend(2_u16.to_le_bytes());
        bytes.extend(b"io (1)\0\0\0\0\0\0\0\0\0\0");
        bytes.extend(b"server-of-names\0");
        bytes.extend(5_u64.to_le_bytes());
        bytes.extend(1_u64.to_le_bytes());
        bytes
    }

    #[test]
    fn records() {
        let expected = Record {
            process: 7,
            thread: 8,
            started_ns: 1_000_000_000,
            run_ns: 5000,
            disk: Some((4096, 512)),
            cpuset: 77,
            cpu: 3,
            name: *b"io (1)\0\0\0\0\0\0\0\0\0\0",
            process_name: *b"server-of-names\0",
            mask: vec![5, 1],
        };
        let one = record();
        let mut uncounted = record();
        uncounted[52] = 0;
        let both = [one.clone(), uncounted].concat();
        let without = Record {
            disk: None,
            ..expected.clone()
        };
        assert_eq!(threads(&both), Some(vec![expected, without]));
        assert_eq!(threads(&[]), Some(vec![]));
        for end in 1..one.len() {
            assert_eq!(threads(&one[..end]), None, "{end}");
        }
    }

    fn entry(numbers: &[u32], longs: &[u64]) -> Vec<u8> {
        let numbers = numbers.iter().copied().flat_map(u32::to_le_bytes);
        numbers
            .chain(longs.iter().flat_map(|long| long.to_le_bytes()))
            .collect()
    }

    #[test]
    fn counts_by_thread() {
        let parts = [
            9_u64.to_le_bytes().to_vec(),
            entry(&[7, u32::MAX, 0, 0], &[100, 30]),
            entry(&[7, u32::MAX, 4, 0], &[0, 20]),
            entry(&[7, u32::MAX, 4, 0], &[0, 1]),
            entry(&[7, 2, 4, 3], &[5, 0]),
            entry(&[7, 2, 4, 1], &[6, 0]),
            entry(&[7, 1, 4, 1], &[2, 0]),
            entry(&[7, 2, 0, 0], &[9, 0]),
            entry(&[7, 2, 4, 1], &[8, 0]),
            entry(&[8, 0, 0, 0], &[0, 1]),
        ];
        let bytes = parts.concat();
        let (missed, by_thread) = sockets(&bytes).unwrap();
        assert_eq!(missed, 9);
        let counts = SocketCounts {
            received: vec![
                ((Some(1), Some((4, 1))), 2),
                ((Some(2), Some((4, 1))), 14),
                ((Some(2), Some((4, 3))), 5),
                ((Some(2), None), 9),
                ((None, None), 100),
            ],
            sent: vec![(0, 30), (4, 21)],
        };
        assert_eq!(by_thread[&7], counts);
        let counts = SocketCounts {
            sent: vec![(0, 1)],
            ..SocketCounts::default()
        };
        assert_eq!(by_thread[&8], counts);
        let parts = [9_u64.to_le_bytes().to_vec(), entry(&[7, 8 << 20 | 1], &[1, 2, 3])];
        let bytes_of_disks = parts.concat();
        let (missed, by_thread) = disks(&bytes_of_disks).unwrap();
        assert_eq!((missed, by_thread.len()), (9, 1));
        let (read, written, dirtied) = (1, 2, 3);
        let key = DiskKey { major: 8, minor: 1 };
        assert_eq!(by_thread[&7], [(key, DiskCount { read, written, dirtied })]);
        for end in (0..bytes.len()).filter(|end| end % 32 != 8) {
            assert_eq!(sockets(&bytes[..end]), None, "{end}");
        }
        for end in (0..bytes_of_disks.len()).filter(|end| *end != 8) {
            assert_eq!(disks(&bytes_of_disks[..end]), None, "{end}");
        }
    }
}
