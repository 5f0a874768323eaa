//! Counts of threads by BPF programs in the kernel. They are a thread's time and bytes in one read instead of five files,
//! the bytes of its sockets with the CPU that processed them, and the disks that its bytes are of.
//!
//! Only a sensor of the machine it runs on loads programs; they go with it, or with its process, as nothing is pinned.
//! What they counted becomes files of a recording, below `proc/bpf`, and is read from there again. Where they cannot be
//! loaded, everything else is still sensed, and the reason is told.
//!
//! Invariant: what is not in a map because it was full is counted, and told as not seen.
//!
//! Cost: a read of about 1 µs a thread; an entry of a map for each thread that moved bytes, emptied every period. Threads
//! themselves pay a program's run for each message, request to a disk and folio made dirty.

mod decode;
mod drain;
pub(crate) mod programs;

use super::gaps::Gaps;
use crate::topology::sysfs::Tree;
pub(super) use decode::{DiskCount, DiskCounts, DiskKey, Record, SocketCounts};
use programs::{Part, Programs};
use std::collections::HashMap;

/// Where a recording has what was counted.
const FILES: &str = "proc/bpf";
const SOCKETS: &str = "bytes that threads received and sent";
const DISKS: &str = "which disks bytes of threads were of";

/// The programs of a live machine, or what a recording has of them.
#[derive(Debug)]
pub(super) struct Bpf {
    /// Loaded programs, or why they were refused; none where the machine is not the one we run on.
    programs: Option<[Result<Programs, String>; 3]>,
    bytes: Vec<u8>,
}

/// Counts by programs in the kernel at the end of a period; none for a part that cannot be counted.
#[derive(Debug, Default)]
pub(super) struct Counted {
    /// All threads of user space.
    pub(super) threads: Option<Vec<Record>>,
    /// Bytes of sockets, by thread.
    pub(super) sockets: Option<HashMap<u32, SocketCounts>>,
    /// Whether bytes of sockets were counted for which there was no room: a thread that is not in `sockets` may have moved them.
    pub(super) missed_sockets: bool,
    /// Bytes of disks, by thread.
    pub(super) disks: Option<HashMap<u32, DiskCounts>>,
}

impl Bpf {
    pub(super) fn new(tree: &Tree) -> Self {
        let parts = [Part::Threads, Part::Sockets, Part::Disks];
        Self {
            programs: tree.is_live().then(|| {
                let refused = programs::refusal();
                parts.map(|part| match &refused {
                    Some(why) => Err(why.clone()),
                    None => Programs::load(part, part.constant(tree)),
                })
            }),
            bytes: Vec::new(),
        }
    }

    /// Reads the counts of threads since they began, and of sockets and disks since the last call. The first call's are
    /// since an unknown time.
    pub(super) fn read(&mut self, tree: &Tree, gaps: &mut Gaps) -> Counted {
        let threads = self.part(Part::Threads, tree, decode::threads);
        let sockets = self.part(Part::Sockets, tree, decode::sockets);
        let disks = self.part(Part::Disks, tree, decode::disks);
        let mut known = |what: &str, missed: u64| {
            if missed > 0 {
                let why = format!("{missed} more are of threads for which the BPF programs had no room");
                gaps.tell(what, &why);
            }
        };
        let mut missed_sockets = false;
        let sockets = sockets.map(|(missed, by_thread)| {
            known(SOCKETS, missed);
            missed_sockets = missed > 0;
            by_thread
        });
        let disks = disks.map(|(missed, by_thread)| {
            known(DISKS, missed);
            by_thread
        });
        Counted {
            // Without them the same is read from /proc.
            threads: threads.ok(),
            sockets: sockets.map_err(|why| gaps.tell(SOCKETS, &why)).ok(),
            missed_sockets,
            disks: disks
                .map_err(|why| gaps.tell(DISKS, &format!("{why}; of some, the open files of their process tell")))
                .ok(),
        }
    }

    /// From the programs, or from the recording; the reason where there is neither.
    fn part<T>(&mut self, part: Part, tree: &Tree, decode: impl Fn(&[u8]) -> Option<T>) -> Result<T, String> {
        let path = format!("{FILES}/{}", part.name());
        let unseen = format!("{path}.unseen");
        let bytes = &mut self.bytes;
        bytes.clear();
        match &mut self.programs {
            Some(programs) => {
                let programs = programs[part as usize].as_mut().map_err(|why| why.clone());
                match programs.and_then(|programs| programs.read(bytes)) {
                    Ok(()) => tree.keep(&path, bytes),
                    Err(why) => {
                        tree.keep(&unseen, why.as_bytes());
                        return Err(why);
                    }
                }
            }
            None => tree.read(&path, bytes).map_err(|_| {
                let why = tree.text(&unseen);
                why.unwrap_or_else(|| "BPF programs count them, and none ran here".to_owned())
            })?,
        }
        decode(bytes).ok_or_else(|| format!("{path} cannot be understood"))
    }
}
