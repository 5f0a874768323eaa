//! Traces: every request a core takes, when and what, for a file that can be played again.
//!
//! A core puts entries into a ring and never waits: what does not fit is counted, and told by the next entry that does. Whoever
//! has the other end writes them where he likes. Everything is little-endian.
//!
//! File: a header of 32 bytes: `HNBLKTRC`, version (u32, 1), entry bytes (u32, 32), size of the device (u64), zeros (8).
//! Then entries of 32 bytes: time since the device's clock began (u64, ns), offset (u64), bytes (u32), stream (u16), operation
//! (u8), durability (u8), core (u16), zeros (2), entries lost before this one (u32).

use super::request::{Durability, Operation, Request};
use homenode_shared::{Receiver, Sender, ring};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a header, and of an entry.
pub const ENTRY_BYTES: usize = 32;
const MAGIC: &[u8; 8] = b"HNBLKTRC";
const VERSION: u32 = 1;

/// A request as it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When, in ns of the clock that the core is run by.
    pub time_ns: u64,
    /// Request, with 0 as its buffer and its user's number.
    pub request: Request,
    /// On which core.
    pub core: u16,
    /// Requests before it, on this core, that were not recorded for want of room.
    pub lost: u32,
}

/// Why bytes are no trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The header is that of something else.
    #[error("it does not begin with a trace's header")]
    NoTrace,
    /// A later or foreign version.
    #[error("its version is {0}, and this program reads version {VERSION}")]
    Version(u32),
    /// An entry with a number that has no meaning.
    #[error("an entry has an unknown {what}: {number}")]
    Unknown {
        /// Which field.
        what: &'static str,
        /// Number in the field.
        number: u8,
    },
}

/// The header of a trace of a device of that size.
#[must_use]
pub fn header(device_bytes: u64) -> [u8; ENTRY_BYTES] {
    let mut header = [0; ENTRY_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&32_u32.to_le_bytes());
    header[16..24].copy_from_slice(&device_bytes.to_le_bytes());
    header
}

/// The size of the device that a trace with this header is of.
///
/// # Errors
/// [`TraceError`].
pub fn read_header(header: &[u8; ENTRY_BYTES]) -> Result<u64, TraceError> {
    let version = u32::from_le_bytes(part(header, 8));
    match (&header[..8] == MAGIC, version, u32::from_le_bytes(part(header, 12))) {
        (false, ..) => Err(TraceError::NoTrace),
        (true, VERSION, 32) => Ok(u64::from_le_bytes(part(header, 16))),
        (true, VERSION, _) => Err(TraceError::NoTrace),
        (true, version, _) => Err(TraceError::Version(version)),
    }
}

fn part<const BYTES: usize>(from: &[u8; ENTRY_BYTES], at: usize) -> [u8; BYTES] {
    std::array::from_fn(|index| from[at + index])
}

impl Entry {
    /// Encodes the entry as in a file.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let request = &self.request;
        bytes[..8].copy_from_slice(&self.time_ns.to_le_bytes());
        bytes[8..16].copy_from_slice(&request.offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&request.bytes.to_le_bytes());
        bytes[20..22].copy_from_slice(&request.stream.to_le_bytes());
        bytes[22] = request.operation as u8;
        bytes[23] = request.durability as u8;
        bytes[24..26].copy_from_slice(&self.core.to_le_bytes());
        bytes[28..].copy_from_slice(&self.lost.to_le_bytes());
        bytes
    }

    /// From a file.
    ///
    /// # Errors
    /// [`TraceError::Unknown`].
    pub fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Result<Self, TraceError> {
        let operation = operation_of(bytes[22])?;
        let durability = durability_of(bytes[23])?;
        Ok(Self {
            time_ns: u64::from_le_bytes(part(bytes, 0)),
            request: Request {
                operation,
                durability,
                stream: u16::from_le_bytes(part(bytes, 20)),
                bytes: u32::from_le_bytes(part(bytes, 16)),
                offset: u64::from_le_bytes(part(bytes, 8)),
                buffer: 0,
                user: 0,
            },
            core: u16::from_le_bytes(part(bytes, 24)),
            lost: u32::from_le_bytes(part(bytes, 28)),
        })
    }
}

fn operation_of(number: u8) -> Result<Operation, TraceError> {
    let what = "operation";
    let unknown = TraceError::Unknown { what, number };
    Operation::ALL.get(usize::from(number)).copied().ok_or(unknown)
}

fn durability_of(number: u8) -> Result<Durability, TraceError> {
    let what = "durability";
    let unknown = TraceError::Unknown { what, number };
    Durability::ALL.get(usize::from(number)).copied().ok_or(unknown)
}

/// A core's end: see [`super::Core::record`].
#[derive(Debug)]
pub struct Recorder {
    entries: Sender<4>,
    /// Since the last entry. Only this end writes it.
    lost: Arc<AtomicU32>,
    core: u16,
}

/// The end that entries come out of.
#[derive(Debug)]
pub struct Recorded {
    entries: Receiver<4>,
    lost: Arc<AtomicU32>,
}

/// Room for `entries` requests that one core has taken and nobody has read yet.
#[must_use]
pub fn recorder(core: u16, entries: usize) -> (Recorder, Recorded) {
    let (sender, receiver) = ring(entries);
    let lost = Arc::new(AtomicU32::new(0));
    let recorder = Recorder {
        entries: sender,
        lost: Arc::clone(&lost),
        core,
    };
    let recorded = Recorded {
        entries: receiver,
        lost,
    };
    (recorder, recorded)
}

impl Recorder {
    /// Records a request, taken by value: a request whose address is taken anywhere lies in memory everywhere.
    #[cold]
    pub(super) fn record(&mut self, request: Request, time_ns: u64) {
        // Relaxed: a number, which the other end reads when this one is gone.
        let lost = self.lost.load(Ordering::Relaxed);
        let entry = Entry {
            time_ns,
            request,
            core: self.core,
            lost,
        };
        let bytes = entry.to_bytes();
        let words = std::array::from_fn(|word| u64::from_le_bytes(part(&bytes, word * 8)));
        let now_lost = match self.entries.push(words) {
            Ok(()) => 0,
            Err(_) => lost.saturating_add(1),
        };
        if now_lost != lost {
            self.lost.store(now_lost, Ordering::Relaxed);
        }
    }

    pub(super) fn publish(&mut self) {
        self.entries.publish();
    }
}

impl Recorded {
    /// The next entry, as in a file; none when all that was published is read.
    pub fn next_bytes(&mut self) -> Option<[u8; ENTRY_BYTES]> {
        let words = self.entries.pop()?;
        let mut bytes = [0; ENTRY_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        Some(bytes)
    }

    /// Requests behind the last entry that were not recorded for want of room; once the core is gone.
    #[must_use]
    pub fn lost(&self) -> u32 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether the core is gone and everything is read.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.entries.is_closed()
    }
}
