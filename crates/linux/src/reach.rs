//! Which threads reach which files of one filesystem, and from which nodes' CPUs, as BPF programs in the kernel count it.
//!
//! Counts reads and writes of a tmpfs, or of a FUSE mount whose files are passed through to one. Not seen: bytes that mappings and
//! splice(2) move. The programs go with their [`Reach`], or with the process.
//!
//! Cost: two hash lookups a read or write, for programs that use the filesystem.

use crate::affinity::sense::bpf::programs::{Part, Programs, refusal};
use homenode_engine::NodeId;

/// Kinds of filesystem whose files are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filesystem {
    /// A FUSE mount; its files' numbers are those of the server.
    Mount,
    /// A tmpfs.
    Tmpfs,
}

/// Programs that count for one filesystem.
#[derive(Debug)]
pub struct Reach(Programs);

/// Bytes that one thread moved between CPUs of one node and one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The file's inode number.
    pub file: u64,
    /// The thread's number.
    pub thread: u32,
    /// Node of the CPUs.
    pub node: NodeId,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

impl Reach {
    /// Begins to count for the filesystem with the device number `device`, as stat(2) tells it.
    ///
    /// # Errors
    /// Why the kernel takes no such programs, in words.
    pub fn begin(filesystem: Filesystem, device: u64) -> Result<Self, String> {
        if let Some(why) = refusal() {
            return Err(why);
        }
        let part = match filesystem {
            Filesystem::Mount => Part::Mount,
            Filesystem::Tmpfs => Part::Tmpfs,
        };
        let number = libc::major(device) << 20 | libc::minor(device);
        Programs::load(part, number).map(Self)
    }

    /// Takes what was counted since the last call, and the bytes that found no room among the counts.
    ///
    /// # Errors
    /// Reason of the kernel, in words.
    pub fn take(&mut self) -> Result<(Vec<Reached>, u64), String> {
        let mut bytes = Vec::new();
        self.0.read(&mut bytes)?;
        decode(&bytes).ok_or_else(|| "the counts of BPF programs cannot be understood".to_owned())
    }
}

/// Bytes without room, then keys with their counts, as `files.bpf.c` has them.
fn decode(bytes: &[u8]) -> Option<(Vec<Reached>, u64)> {
    let (missed, entries) = bytes.split_first_chunk()?;
    let (entries, []) = entries.as_chunks::<32>() else {
        return None;
    };
    let entry = |entry: &[u8; 32]| {
        let word = |at: usize| Some(u64::from_le_bytes(entry.get(at..at + 8)?.try_into().ok()?));
        let half = |at: usize| Some(u32::from_le_bytes(entry.get(at..at + 4)?.try_into().ok()?));
        Some(Reached {
            file: word(0)?,
            thread: half(8)?,
            node: NodeId(u16::try_from(half(12)?).ok()?),
            read_bytes: word(16)?,
            written_bytes: word(24)?,
        })
    };
    let reached = entries.iter().map(entry).collect::<Option<_>>()?;
    Some((reached, u64::from_le_bytes(*missed)))
}

#[cfg(test)]
mod tests;
