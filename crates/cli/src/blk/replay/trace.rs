//! A trace as it is read from its file.

use crate::failure::{Failure, Result, fail};
use crate::mountinfo::shown;
use homenode::blk::Operation;
use homenode::blk::trace::{ENTRY_BYTES, Entry, read_header};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

/// Threads that play.
const CORES_MAX: usize = 1024;
const PAGE: u32 = 4096;

/// Requests of a trace, to be submitted again.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) device_bytes: u64,
    /// The entries of each core, in the order of the file.
    pub(super) cores: Vec<Vec<Entry>>,
    /// When the first one was taken.
    pub(super) begin_ns: u64,
    /// Data of the longest request.
    pub(super) longest: u32,
    /// Memory that each request needs.
    pub(super) bytes_max: u32,
    /// Whether anything is written.
    pub(super) has_changes: bool,
    /// Requests that were not recorded.
    pub(super) lost: u64,
    /// Bytes of a last entry that is not whole: who recorded it was stopped there.
    pub(super) cut_bytes: usize,
}

impl Trace {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let name = shown(path);
        let failed = |error| Failure::new(format!("cannot read the trace {name}: {error}"));
        let mut file = BufReader::new(File::open(path).map_err(failed)?);
        let mut bytes = [0; ENTRY_BYTES];
        if fill(&mut file, &mut bytes).map_err(failed)? < ENTRY_BYTES {
            fail!("{name} is no trace: it is shorter than a trace's header");
        }
        let device_bytes = read_header(&bytes).map_err(|error| Failure::new(format!("{name} is no trace: {error}")))?;
        if device_bytes == 0 || !device_bytes.is_multiple_of(512) {
            fail!("{name} is no trace: its device has {device_bytes} bytes, and devices are whole blocks of 512");
        }
        let mut cores: BTreeMap<u16, Vec<Entry>> = BTreeMap::new();
        let mut number = 0_u64;
        let cut_bytes = loop {
            match fill(&mut file, &mut bytes).map_err(failed)? {
                ENTRY_BYTES => number += 1,
                cut => break cut,
            }
            let entry = Entry::from_bytes(&bytes);
            let entry = entry.map_err(|error| Failure::new(format!("{name}, entry {number}: {error}")))?;
            cores.entry(entry.core).or_default().push(entry);
        };
        if cores.is_empty() {
            fail!("{name} has no request in it");
        }
        if cores.len() > CORES_MAX {
            let count = cores.len();
            fail!("{name} has {count} cores, and each takes a thread: at most {CORES_MAX} can be replayed");
        }
        let all = || cores.values().flatten();
        let with_data = all().filter(|entry| entry.request.operation.has_data());
        let longest = with_data.map(|entry| entry.request.bytes).max().unwrap_or(0);
        let is_change = |operation| !matches!(operation, Operation::Read | Operation::Flush);
        Ok(Self {
            device_bytes,
            longest,
            begin_ns: all().map(|entry| entry.time_ns).min().unwrap_or(0),
            // Whole pages, so that each buffer begins where direct I/O can reach it; longer requests are not taken.
            bytes_max: longest.clamp(PAGE, 1 << 31).next_multiple_of(PAGE),
            has_changes: all().any(|entry| is_change(entry.request.operation)),
            lost: all().map(|entry| u64::from(entry.lost)).sum(),
            cut_bytes,
            cores: cores.into_values().collect(),
        })
    }
}

/// Reads an entry, or what there is of it: how many bytes.
fn fill(file: &mut impl Read, bytes: &mut [u8; ENTRY_BYTES]) -> std::io::Result<usize> {
    let mut count = 0;
    while count < ENTRY_BYTES {
        match file.read(&mut bytes[count..]) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}
