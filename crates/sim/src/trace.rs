//! A trace of a mount's reads and writes, and where its bytes would lie.
//!
//! Text, a line each: `homenode trace 1`; for each node of the pool `node NUMBER BYTES`, the room that it has; then an access,
//! `TIME_NS NODE FILE OFFSET BYTES r|w|f`, where NODE is that of the thread which asked; `f` gives memory back. Lines that begin with `#`
//! are skipped.

use crate::{Contestant, Files, Machine};
use homenode_policy::{AccessKind, BLOCK_BYTES, FileAccess, NodeId};
use std::collections::BTreeMap;

/// First line.
pub const HEADER: &str = "homenode trace 1";
/// Bytes read or written at once, at most; a request has 1 MiB at most.
const ACCESS_BYTES_MAX: u64 = 16 << 20;
/// Blocks that all files of a trace may have together: 1 TiB.
const BLOCKS_MAX: u64 = 1 << 28;

/// Accesses in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Nodes of the pool, with the bytes that they have for files.
    pub nodes: Vec<(NodeId, u64)>,
    /// Reads, writes, and what gives memory back.
    pub accesses: Vec<FileAccess>,
}

/// Why a text is no trace, or a trace cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// First line that is another one.
    #[error("it does not begin with `{HEADER}`: it is no trace, or one of another version")]
    Header,
    /// A line is not understood.
    #[error("line {line}: {problem}")]
    Line {
        /// From 1.
        line: usize,
        /// Problem of the line.
        problem: &'static str,
    },
    /// End in the middle of a line.
    #[error("its last line is cut: it was not written to its end")]
    Cut,
    /// It names no node's room.
    #[error("it names no node of the pool")]
    NoNode,
    /// Machine without a node of the trace.
    #[error(
        "{0} asks or has memory in the trace, and has no CPU or no place in the machine: give the machine that was recorded"
    )]
    UnknownNode(NodeId),
    /// A damaged trace names offsets beyond any file.
    #[error("its files have more than 1 TiB together")]
    TooLarge,
}

/// Bytes of a simulated trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Read and written.
    pub bytes: u64,
    /// Bytes on the node of the thread that asked.
    pub local_bytes: u64,
    /// Reads of blocks without memory: never written in the trace, or freed. They are in neither.
    pub unknown_bytes: u64,
    /// Writes that found no room anywhere, likewise.
    pub refused_bytes: u64,
    /// Blocks that went to another node than their writer's.
    pub spilled_blocks: u64,
}

impl Done {
    /// Percent of the bytes that were local.
    #[must_use]
    pub fn local_percent(&self) -> f64 {
        100.0 * self.local_bytes as f64 / self.bytes.max(1) as f64
    }
}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// See [`TraceError`].
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut lines = (1..).zip(text.split_inclusive('\n'));
        if lines.next().map(|(_, line)| line.trim_end()) != Some(HEADER) {
            return Err(TraceError::Header);
        }
        let mut trace = Self::default();
        for (line, text) in lines {
            let Some(text) = text.strip_suffix('\n') else {
                return Err(TraceError::Cut);
            };
            let wrong = |problem| TraceError::Line { line, problem };
            if text.starts_with('#') || text.is_empty() {
                continue;
            }
            if let Some(node) = text.strip_prefix("node ") {
                let (number, bytes) = node.split_once(' ').ok_or(wrong("a node is `node NUMBER BYTES`"))?;
                let number = number.parse().map_err(|_| wrong("the node is no number"))?;
                let bytes = bytes.parse().map_err(|_| wrong("the node's bytes are no number"))?;
                if trace.nodes.iter().any(|(other, _)| *other == NodeId(number)) {
                    return Err(wrong("the node is there twice"));
                }
                trace.nodes.push((NodeId(number), bytes));
                continue;
            }
            let no_access = |_| wrong("an access is `TIME_NS NODE FILE OFFSET BYTES r|w|f`");
            let access = text.parse().map_err(no_access)?;
            check(&access).map_err(wrong)?;
            trace.accesses.push(access);
        }
        if trace.nodes.is_empty() {
            return Err(TraceError::NoNode);
        }
        // Threads of the server were asked one after another.
        trace.accesses.sort_by_key(|access| access.at_ns);
        Ok(trace)
    }

    /// Places the bytes as the contestant would, and counts those that are local.
    ///
    /// # Errors
    /// When the machine has not the nodes of the trace, or the files are too large for a table.
    pub fn run(&self, contestant: Contestant, machine: &Machine) -> Result<Done, TraceError> {
        let place = |id: NodeId| (0..machine.nodes()).find(|node| machine.id(*node) == id);
        let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
        for access in self.accesses.iter().filter(|access| access.kind != AccessKind::Free) {
            let end = ends.entry(access.file).or_default();
            *end = (*end).max((access.offset + access.bytes).div_ceil(BLOCK_BYTES as u64));
        }
        let all = ends.values().try_fold(0_u64, |sum, blocks| sum.checked_add(*blocks));
        if all.is_none_or(|blocks| blocks > BLOCKS_MAX) {
            return Err(TraceError::TooLarge);
        }
        // More than all files need is as good as twice that, and takes less memory here.
        let most = 2 * all.unwrap_or(0) + (1 << 20);
        let mut room = vec![0; machine.nodes() as usize];
        for (id, bytes) in &self.nodes {
            let node = place(*id).ok_or(TraceError::UnknownNode(*id))?;
            room[node as usize] = (bytes / BLOCK_BYTES as u64).min(most);
        }
        let first = |core: &u32| (machine.id(machine.node_of(*core)), *core);
        // The first core of each node, as later ones are overwritten.
        let cores: BTreeMap<NodeId, u32> = (0..machine.cores()).rev().map(|core| first(&core)).collect();
        let number: BTreeMap<u64, u64> = ends.keys().copied().zip(0..).collect();
        let mut files = Files::of_sizes(contestant, machine, ends.values().copied(), room);
        let mut done = Done::default();
        for access in &self.accesses {
            let core = cores.get(&access.node).copied();
            let core = core.ok_or(TraceError::UnknownNode(access.node))?;
            let Some(file) = number.get(&access.file).copied() else {
                // The trace neither reads nor writes this file.
                continue;
            };
            let (mut at, end) = (access.offset, access.offset + access.bytes);
            if access.kind == AccessKind::Free {
                let block_bytes = BLOCK_BYTES as u64;
                // A block of which a part is left keeps its memory.
                let blocks = at.div_ceil(block_bytes)..(end / block_bytes).min(ends[&access.file]);
                files.free(file, blocks);
                continue;
            }
            while at < end {
                let block = at / BLOCK_BYTES as u64;
                let bytes = end.min((block + 1) * BLOCK_BYTES as u64) - at;
                let home = if access.kind == AccessKind::Write {
                    files.write(machine, core, file, block).map(|(home, _)| home)
                } else {
                    files.home(file, block)
                };
                match home {
                    Some(home) => {
                        done.bytes += bytes;
                        done.local_bytes += if machine.node_of(core) == home { bytes } else { 0 };
                    }
                    None if access.kind == AccessKind::Write => done.refused_bytes += bytes,
                    None => done.unknown_bytes += bytes,
                }
                at += bytes;
            }
        }
        done.spilled_blocks = files.spilled_blocks();
        Ok(done)
    }
}

/// Whether an access can be simulated in a bounded time.
///
/// # Errors
/// The problem, in words.
pub fn check(access: &FileAccess) -> Result<(), &'static str> {
    if access.kind != AccessKind::Free && access.bytes > ACCESS_BYTES_MAX {
        return Err("the access has more than 16 MiB, which no request has");
    }
    match access.offset.checked_add(access.bytes) {
        Some(_) => Ok(()),
        None => Err("the access ends beyond any offset"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Constants;
    use crate::shapes::{Shape, machine};

    fn two_nodes() -> Machine {
        let topology = machine(2, 2, 1 << 30, Shape::Full, Vec::new());
        Machine::new(&topology, &Constants::SERVER.draw(1)).unwrap()
    }

    #[test]
    fn bytes_lie_with_their_writers() {
        let text = format!(
            "{HEADER}\n# made by hand\nnode 0 8388608\nnode 1 8388608\n1 0 7 0 8192 w\n2 1 7 4096 4096 r\n3 0 7 100 1000 r\n4 1 9 0 4096 w\n5 0 9 0 8192 r\n"
        );
        let trace = Trace::parse(&text).unwrap();
        assert_eq!(trace.accesses.len(), 5);
        for contestant in [Contestant::Tmpfs, Contestant::Library] {
            let done = trace.run(contestant, &two_nodes()).unwrap();
            let expected = Done {
                bytes: 8192 + 4096 + 1000 + 4096 + 4096,
                local_bytes: 8192 + 1000 + 4096,
                unknown_bytes: 4096,
                ..Done::default()
            };
            assert_eq!(done, expected, "{contestant:?}");
        }
    }

    #[test]
    fn full_nodes_spill_and_full_pools_refuse() {
        let text = format!("{HEADER}\nnode 0 4096000\nnode 1 4096000\n1 0 7 0 12288000 w\n");
        let done = Trace::parse(&text)
            .unwrap()
            .run(Contestant::Tmpfs, &two_nodes())
            .unwrap();
        assert_eq!(
            (done.local_bytes, done.bytes, done.refused_bytes),
            (4_096_000, 8_192_000, 4_096_000)
        );
        assert_eq!(done.spilled_blocks, 1000);
    }

    #[test]
    fn freed_memory_is_there_for_others() {
        let text = format!(
            "{HEADER}\nnode 0 4096000\nnode 1 4096000\n1 0 7 0 4096000 w\n2 0 7 100 {} f\n3 0 7 0 4096 r\n4 0 7 4096 4096 r\n5 0 8 0 4091904 w\n6 0 9 0 9 f\n7 0 7 0 5 f\n8 0 7 0 4096 r\n",
            1_u64 << 40
        );
        // Of a huge page a part gives nothing back.
        for (contestant, spilled) in [(Contestant::Tmpfs, 0), (Contestant::TmpfsHuge, 512)] {
            let done = Trace::parse(&text).unwrap().run(contestant, &two_nodes()).unwrap();
            assert_eq!(
                (done.spilled_blocks, done.unknown_bytes),
                (spilled, 4096),
                "{contestant:?}"
            );
        }
        // Ten files, one after another, of which two have room.
        let file = |number| format!("{number} 0 {number} 0 4096000 w\n{number} 0 {number} 0 4096000 f\n");
        let files: String = (0..10).map(file).collect();
        let trace = Trace::parse(&format!("{HEADER}\nnode 0 8192000\nnode 1 0\n{files}")).unwrap();
        for contestant in Contestant::ALL {
            let done = trace.run(contestant, &two_nodes()).unwrap();
            assert_eq!((done.local_percent(), done.refused_bytes), (100.0, 0), "{contestant:?}");
        }
    }

    #[test]
    fn frees_of_a_large_hole_take_no_time() {
        // 64 GiB, of which a block has memory. To look at all of it 20,000 times would take minutes.
        let end = 64_u64 << 30;
        let frees: String = (0..20_000).map(|at| format!("{at} 0 7 0 {} f\n", end - 4096)).collect();
        let trace = Trace::parse(&format!("{HEADER}\nnode 0 8192\n0 0 7 {} 4096 w\n{frees}", end - 4096)).unwrap();
        let begin = std::time::Instant::now();
        assert_eq!(trace.run(Contestant::Library, &two_nodes()).unwrap().bytes, 4096);
        assert!(begin.elapsed().as_secs() < 10, "{:?}", begin.elapsed());
    }

    #[test]
    fn what_is_no_trace_is_told() {
        let line = |line, problem| Err(TraceError::Line { line, problem });
        let of = |text: &str| Trace::parse(&format!("{HEADER}\n{text}"));
        assert_eq!(Trace::parse(""), Err(TraceError::Header));
        assert_eq!(Trace::parse("homenode trace 2\nnode 0 1\n"), Err(TraceError::Header));
        assert_eq!(of("node 0 1\n1 0 7 0 4096 w"), Err(TraceError::Cut));
        assert_eq!(of(""), Err(TraceError::NoNode));
        assert_eq!(of("node x 1\n"), line(2, "the node is no number"));
        assert_eq!(of("node 0 1\nnode 0 1\n"), line(3, "the node is there twice"));
        let huge = of(&format!("node 0 {}\n1 0 7 0 4096 w\n", u64::MAX)).unwrap();
        assert_eq!(
            huge.run(Contestant::Library, &two_nodes()).unwrap().local_percent(),
            100.0
        );
        let access = "an access is `TIME_NS NODE FILE OFFSET BYTES r|w|f`";
        for wrong in [
            "1 0 7 0 4096",
            "1 0 7 0 4096 x",
            "1 0 7 0 4096 w w",
            "-1 0 7 0 1 r",
            "1 70000 7 0 1 r",
            "\u{0}",
        ] {
            assert_eq!(of(&format!("node 0 1\n{wrong}\n")), line(3, access), "{wrong}");
        }
        assert_eq!(
            of(&format!("node 0 1\n1 0 7 {} 2 r\n", u64::MAX)),
            line(3, "the access ends beyond any offset")
        );
        let run = |text: &str| of(text).unwrap().run(Contestant::Library, &two_nodes());
        assert_eq!(run("node 9 1\n"), Err(TraceError::UnknownNode(NodeId(9))));
        assert_eq!(run("node 0 1\n1 9 7 0 1 r\n"), Err(TraceError::UnknownNode(NodeId(9))));
        assert_eq!(
            run(&format!("node 0 1\n1 0 7 {} 1 r\n", u64::MAX - 1)),
            Err(TraceError::TooLarge)
        );
    }
}
