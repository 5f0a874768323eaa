//! Makes seeds for the fuzz targets of what a server read from its device, as scripts/fuzz-seeds.sh recorded it:
//!
//!     strace -f -xx -s 1024 -e trace=read … | fuzz_seeds DIR
//!
//! DIR/request gets the requests as they came; DIR/ring the same as they come through a ring: an entry's header, and behind
//! it its payload.

use homenode_fuse::wire::{Field, InHeader, Incoming, RingEntry, RingHeader};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::{fs, io};

/// Most seeds of each operation: the shortest requests of different lengths.
const SEEDS_OF_OPERATION_MAX: usize = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).ok_or("name the directory for the seeds")?;
    let directory = Path::new(&directory);
    let mut seeds: BTreeMap<(u32, usize), Vec<u8>> = BTreeMap::new();
    for line in io::stdin().lines() {
        if let Some(bytes) = request_of(&line?)
            && let Ok(incoming) = Incoming::parse(&bytes)
        {
            seeds.entry((incoming.header.opcode, bytes.len())).or_insert(bytes);
        }
    }
    let mut written = BTreeMap::new();
    for ((operation, length), bytes) in &seeds {
        let count = written.entry(operation).or_insert(0);
        if *count < SEEDS_OF_OPERATION_MAX {
            *count += 1;
            let name = format!("{operation:03}-{length}");
            save(&directory.join("request").join(&name), bytes)?;
            if let Some(bytes) = through_ring(bytes) {
                save(&directory.join("ring").join(&name), &bytes)?;
            }
        }
    }
    println!("seeds of {} operations", written.len());
    Ok(())
}

fn save(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let parent = path.parent().expect("a file is in a directory");
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(path, bytes))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// `12 read(5, "\x38\x00…", 1052672) = 56`, or the like with `resumed`; one that was cut short ends in `"...`. What was read
/// from other files is told from a request by its length.
fn request_of(line: &str) -> Option<Vec<u8>> {
    let (_, rest) = line.split_once('"')?;
    let (text, rest) = rest.split_once('"')?;
    let whole = rest.starts_with(", ");
    let byte = |digits: &str| u8::from_str_radix(digits, 16).ok();
    let bytes: Option<Vec<u8>> = text.split("\\x").skip(1).map(byte).collect();
    bytes.filter(|_| whole)
}

/// Turns a request into the form in which a ring brings it. Parsing finds the length of its fixed part.
fn through_ring(bytes: &[u8]) -> Option<Vec<u8>> {
    let incoming = Incoming::parse(bytes).ok()?;
    let expected = format!("{:?}", incoming.request);
    let arguments = &bytes[InHeader::BYTES..];
    let split = |fixed: usize| {
        let (fixed, payload) = arguments.split_at(fixed);
        let entry = RingEntry {
            commit_id: 1,
            payload_sz: u32::try_from(payload.len()).ok()?,
            ..RingEntry::default()
        };
        let header = RingHeader::of_request(incoming.header, fixed, entry)?;
        let parsed = header.parse(payload).ok()?;
        (format!("{:?}", parsed.request) == expected).then(|| [&header.0[..], payload].concat())
    };
    (0..=arguments.len()).find_map(split)
}
