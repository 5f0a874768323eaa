//! What the programs wrote, from bytes: little-endian, without padding, each structure as in the program beside this file.

use std::collections::HashMap;

/// One thread, as `threads.bpf.c` writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Record {
    pub(in super::super) process: u32,
    pub(in super::super) thread: u32,
    /// Since boot.
    pub(in super::super) started_ns: u64,
    pub(in super::super) run_ns: u64,
    /// Read from and written to disks; none where the kernel does not count.
    pub(in super::super) disk: Option<(u64, u64)>,
    /// The same for all threads in a cpuset.
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
    /// By the CPU that processed them; none where it is not known.
    pub(in super::super) received: Vec<(Option<u32>, u64)>,
    pub(in super::super) sent: u64,
}

/// A disk or a part of one, as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) struct DiskKey {
    pub(in super::super) major: u32,
    pub(in super::super) minor: u32,
}

/// A thread's share of each disk.
pub(in super::super) type DiskCounts = Vec<(DiskKey, DiskCount)>;

/// What a thread had to do with a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct DiskCount {
    /// Bytes that it asked for.
    pub(in super::super) read: u64,
    /// Bytes that it sent itself: direct writes, and what it made durable.
    pub(in super::super) written: u64,
    /// Folios that it made dirty.
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
        let received = rest.long()?;
        if received > 0 {
            counts.received.push((cpu, received));
        }
        counts.sent = counts.sent.saturating_add(rest.long()?);
    }
    for counts in by_thread.values_mut() {
        // Ascending, and what is not known last.
        counts.received.sort_by_key(|(cpu, _)| cpu.unwrap_or(u32::MAX));
    }
    Some((missed, by_thread))
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

/// What has not been decoded yet.
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
