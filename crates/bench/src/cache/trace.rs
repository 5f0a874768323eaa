//! Traces: the blocks that programs asked for, one after the other.

use crate::error::Error;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Requests of a trace, with its blocks numbered in the order in which they come first.
#[derive(Debug)]
pub(super) struct Trace {
    /// Name of the file without its ending.
    pub(super) name: String,
    pub(super) requests: Vec<u32>,
    /// The block's own number, by its number here.
    pub(super) ids: Vec<u64>,
}

/// Bytes of a request in libCacheSim's oracleGeneral: time 4, object 8, size 4, next access 8.
const RECORD: usize = 24;

impl Trace {
    pub(super) fn new(name: &str, requests: Vec<u64>) -> Self {
        let mut numbers = HashMap::new();
        let mut ids = Vec::new();
        let requests = requests.into_iter().map(|id| {
            *numbers.entry(id).or_insert_with(|| {
                ids.push(id);
                u32::try_from(ids.len() - 1).expect("a trace that fits into memory has fewer than 2^32 blocks")
            })
        });
        Self {
            requests: requests.collect(),
            name: name.to_owned(),
            ids,
        }
    }

    /// Reads a file; its ending tells the format.
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let failed = |error| Error::system(format!("reading {}", path.display()), error);
        let bytes = fs::read(path).map_err(failed)?;
        let is_binary = path.extension().is_some_and(|ending| ending == "bin");
        let ids = if is_binary { records(&bytes) } else { lines(&bytes) };
        let ids = ids
            .filter(|ids| !ids.is_empty())
            .ok_or_else(|| Error::NoTrace(path.to_owned()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self::new(name.split('.').next().unwrap_or_default(), ids))
    }
}

fn records(bytes: &[u8]) -> Option<Vec<u64>> {
    let records = bytes.chunks_exact(RECORD);
    let is_whole = records.remainder().is_empty();
    let ids = records.map(|record| Some(u64::from_le_bytes(record[4..12].try_into().ok()?)));
    ids.collect::<Option<_>>().filter(|_| is_whole)
}

/// Lines of one number, a block, or of more: the first block and how many follow each other.
fn lines(bytes: &[u8]) -> Option<Vec<u64>> {
    let mut ids = Vec::new();
    for line in std::str::from_utf8(bytes).ok()?.lines() {
        let mut words = line.split_ascii_whitespace().map(str::parse::<u64>);
        let Some(first) = words.next() else { continue };
        let first = first.ok()?;
        let count = words.next().unwrap_or(Ok(1)).ok()?;
        ids.extend(first..first.checked_add(count)?);
    }
    Some(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trace_format_is_read() {
        let mut bytes = vec![0; 2 * RECORD];
        bytes[4..12].copy_from_slice(&u64::to_le_bytes(1 << 40));
        bytes[RECORD + 4] = 7;
        assert_eq!(records(&bytes), Some(vec![1 << 40, 7]));
        assert_eq!(records(&bytes[1..]), None);
        assert_eq!(lines(b"5 3 0 0\n9 1 0 1\n\n"), Some(vec![5, 6, 7, 9]));
        assert_eq!(lines(b"5\n3\n5"), Some(vec![5, 3, 5]));
        assert_eq!(lines(b"5\nx\n"), None);
    }

    #[test]
    fn blocks_are_numbered_in_order_of_first_use() {
        let trace = Trace::new("t", vec![30, 10, 30, 20]);
        assert_eq!((trace.requests, trace.ids), (vec![0, 1, 0, 2], vec![30, 10, 20]));
    }
}
