//! `kernel/…`: a mount whose files are the kernel's, beside tmpfs by default, with `huge=always` and with `huge=within_size`, and beside a
//! mount whose bytes go through the server to the pool's blocks, by rings.
//!
//! Every pass works on a file that all contestants have, or makes one and removes it; the client is pinned. The mean of a pass is
//! measured without a clock inside; tails come from passes of their own, in which each operation is timed.

use super::contestant::Contestant;
use super::served::Variant;
use crate::cpus;
use crate::error::{During, Error};
use crate::pass::{order, together};
use crate::place::whole;
use crate::private_tmpfs::Pages;
use crate::report::{HOMENODE, Row, Tail, size_name};
use crate::required;
use crate::run::Run;
use homenode_linux::mapped::MappedFile;
use memmap2::MmapMut;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, fstat, ftruncate, openat, unlinkat};
use rustix::io::{pread, pwrite, write};
use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

/// Start of all names of these cases.
const PREFIX: &str = "kernel";

/// Work of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Writes a new file whose size is set, in order.
    First,
    /// Overwrites blocks of a file at random.
    Over,
    /// Overwrites blocks of one file at random by two threads.
    OverTwo,
    /// Reads blocks of a file at random.
    Read,
    /// Appends to a new file.
    Append,
    /// Stores a byte to each block of a new file's mapping.
    MapFirst,
    /// Stores a byte to each block of a mapping of a file that is there.
    MapOver,
    /// Opens a file that nobody else has open for reading, and closes it.
    OpenClose,
    /// Opens for reading a file that the bench has open for writing, and closes it.
    OpenCloseWritten,
    /// Makes a file, writes a block, closes and removes it.
    CreateWriteUnlink,
    /// Writes a block and asks for attributes.
    WriteStat,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    work: Work,
    block_bytes: usize,
}

const KIB_4: usize = 4 << 10;
const KIB_64: usize = 64 << 10;
const MIB_1: usize = 1 << 20;

const CASES: [Case; 18] = {
    use Work::{
        Append, CreateWriteUnlink, First, MapFirst, MapOver, OpenClose, OpenCloseWritten, Over, OverTwo, Read,
        WriteStat,
    };
    const fn case(work: Work, block_bytes: usize) -> Case {
        Case { work, block_bytes }
    }
    [
        case(Over, KIB_4),
        case(First, KIB_4),
        case(Read, KIB_4),
        case(Append, KIB_4),
        case(OverTwo, KIB_4),
        case(Over, KIB_64),
        case(First, KIB_64),
        case(Read, KIB_64),
        case(Append, KIB_64),
        case(Over, MIB_1),
        case(First, MIB_1),
        case(Read, MIB_1),
        case(MapFirst, KIB_4),
        case(MapOver, KIB_4),
        case(OpenClose, KIB_4),
        case(OpenCloseWritten, KIB_4),
        case(CreateWriteUnlink, KIB_4),
        case(WriteStat, KIB_4),
    ]
};

/// Most operations of a pass.
const OPERATIONS_MAX: usize = 16 << 10;
/// Most operations of a pass that makes or opens a file each time.
const NAMES_MAX: usize = 1000;

impl Case {
    fn name(self) -> String {
        let size = size_name(self.block_bytes);
        let work = match self.work {
            Work::First => "first",
            Work::Over => "over",
            Work::OverTwo => "over-2c",
            Work::Read => "read",
            Work::Append => "append",
            Work::MapFirst => "mmap-first",
            Work::MapOver => "mmap-over",
            Work::OpenClose => return format!("{PREFIX}/open-close"),
            Work::OpenCloseWritten => return format!("{PREFIX}/open-close-written"),
            Work::CreateWriteUnlink => return format!("{PREFIX}/create-4k-unlink"),
            Work::WriteStat => return format!("{PREFIX}/write-stat"),
        };
        format!("{PREFIX}/{size}/{work}")
    }

    fn operations(self, file_bytes: usize) -> usize {
        let most = match self.work {
            Work::OpenClose | Work::OpenCloseWritten | Work::CreateWriteUnlink | Work::WriteStat => NAMES_MAX,
            _ => OPERATIONS_MAX,
        };
        most.min(file_bytes / self.block_bytes)
    }
}

/// Whether any of the cases is wanted.
pub(super) fn is_wanted(run: &Run<'_>) -> bool {
    CASES.iter().any(|case| run.wants(&case.name()))
}

/// A contestant by its name in these cases, and the file that it has open. Fields drop in order: what is open before what serves it.
struct Subject {
    name: &'static str,
    file: OwnedFd,
    contestant: Contestant,
}

/// Names: of the file that a subject has open, of one among the names that nobody has open, and of one that is not there.
const FILE: &str = "0";
const CLOSED: &str = "f0000000";
const NEW: &str = "new";

impl Subject {
    fn new(name: &'static str, contestant: Contestant) -> Result<Self, Error> {
        let file = contestant.open(0, false)?;
        Ok(Self { name, file, contestant })
    }
}

fn create(directory: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | flags;
    Ok(openat(directory, NEW, flags, Mode::RUSR | Mode::WUSR)?)
}

/// Measures the wanted cases.
///
/// # Errors
/// [`Error::Unavailable`] when the kernel passes nothing through, or has no rings.
pub(super) fn run(run: &mut Run<'_>, bytes: usize, cpus: &[usize]) -> Result<(), Error> {
    let node = cpus::node(cpus[0]);
    let tmpfs = |pages: Pages| Subject::new(pages.name(), Contestant::tmpfs(pages, bytes)?);
    let subjects = [
        Subject::new(HOMENODE, Contestant::served(Variant::Kernel, bytes, node)?)?,
        tmpfs(Pages::Default)?,
        tmpfs(Pages::Huge)?,
        tmpfs(Pages::WithinSize)?,
        Subject::new("pool", Contestant::served(Variant::Uring, bytes, node)?)?,
    ];
    for case in CASES {
        let name = case.name();
        if !run.wants(&name) {
            continue;
        }
        if case.work == Work::OverTwo && cpus.len() < 2 {
            required::skip(format_args!("{name}: this process may use only one CPU"));
            continue;
        }
        let pass = |subject: &Subject, each, seed| -> Result<_, Error> {
            let pass = Pass::new(case, bytes, cpus, seed);
            let (ns, all_ns) = pass.run(subject, each).map_err(|error| error.of(&name, subject.name))?;
            Ok((ns as f64 / pass.order.len() as f64, all_ns))
        };
        let mut all_ns = vec![Vec::new(); subjects.len()];
        let samples = run.take_turns(&name, subjects.len(), |round, turn| {
            let subject = &subjects[turn];
            // The runner drops the first round.
            if round > 0 && case.work != Work::OverTwo {
                all_ns[turn].extend(pass(subject, true, round)?.1);
            }
            pass(subject, false, round).map(|(ns, _)| ns)
        })?;
        let timed = subjects
            .iter()
            .zip(&mut all_ns)
            .filter(|(_, all_ns)| !all_ns.is_empty());
        let tails: BTreeMap<_, _> = timed
            .map(|(subject, all_ns)| (subject.name, Tail::of(all_ns)))
            .collect();
        let peers: Vec<_> = subjects
            .iter()
            .zip(&samples)
            .skip(1)
            .map(|(peer, samples)| (peer.name, samples))
            .collect();
        let row = Row::new(name.clone(), "ns/op", &samples[0], &peers);
        run.show(if tails.is_empty() { row } else { row.with_tails(tails) });
    }
    Ok(())
}

/// A pass of a case.
struct Pass<'a> {
    case: Case,
    file_bytes: usize,
    cpus: &'a [usize],
    /// Blocks in the order of the operations.
    order: Vec<u32>,
}

impl<'a> Pass<'a> {
    fn new(case: Case, file_bytes: usize, cpus: &'a [usize], seed: u64) -> Self {
        let blocks = file_bytes / case.block_bytes;
        let is_random = matches!(case.work, Work::Over | Work::OverTwo | Work::Read | Work::WriteStat);
        let mut order = order(blocks, !is_random, seed);
        order.truncate(case.operations(file_bytes));
        Self {
            case,
            file_bytes,
            cpus,
            order,
        }
    }

    /// Ns of all operations, and of each if `each`.
    fn run(&self, subject: &Subject, each: bool) -> Result<(u128, Vec<u64>), Error> {
        let threads = if self.case.work == Work::OverTwo { 2 } else { 1 };
        let orders = self.order.chunks(self.order.len().div_ceil(threads));
        let mut done = together(
            orders.zip(self.cpus).collect(),
            || (),
            |(order, &cpu)| {
                cpus::pin(cpu)?;
                Ok(move || self.alone(subject, order, each).during("a pass"))
            },
        )?;
        let longest = done.results.iter().map(|(ns, _)| *ns).max().unwrap_or(0);
        Ok((longest, done.results.swap_remove(0).1))
    }

    fn alone(&self, subject: &Subject, order: &[u32], each: bool) -> io::Result<(u128, Vec<u64>)> {
        let directory = subject.contestant.directory();
        match self.case.work {
            Work::First | Work::MapFirst | Work::Append => {
                let is_append = self.case.work == Work::Append;
                let file = create(directory, if is_append { OFlags::APPEND } else { OFlags::empty() })?;
                if !is_append {
                    ftruncate(&file, self.file_bytes as u64)?;
                }
                let done = self.time(subject, &file, order, each)?;
                unlinkat(directory, NEW, AtFlags::empty())?;
                Ok(done)
            }
            _ => self.time(subject, &subject.file, order, each),
        }
    }

    /// Times operations on `file`, one for each of `order`.
    fn time(&self, subject: &Subject, file: &OwnedFd, order: &[u32], each: bool) -> io::Result<(u128, Vec<u64>)> {
        let bytes = self.case.block_bytes;
        let mut buffer = MmapMut::map_anon(bytes)?;
        buffer.fill(9);
        let mut map = match self.case.work {
            Work::MapFirst | Work::MapOver => Some(MappedFile::new(file.as_fd(), self.file_bytes)?),
            _ => None,
        };
        let (directory, names) = (subject.contestant.directory(), subject.contestant.names());
        let read_only = OFlags::RDONLY | OFlags::CLOEXEC;
        let mut operate = |block: u32| -> io::Result<()> {
            let at = block as usize * bytes;
            match self.case.work {
                Work::First | Work::Over | Work::OverTwo => whole(pwrite(file, &buffer, at as u64)?, bytes),
                Work::Read => whole(pread(file, &mut buffer[..], at as u64)?, bytes),
                Work::Append => whole(write(file, &buffer)?, bytes),
                Work::MapFirst | Work::MapOver => {
                    map.as_mut().expect("cases with stores map the file").store(at, 1);
                    Ok(())
                }
                Work::OpenClose => Ok(openat(names, CLOSED, read_only, Mode::empty()).map(drop)?),
                Work::OpenCloseWritten => Ok(openat(directory, FILE, read_only, Mode::empty()).map(drop)?),
                Work::CreateWriteUnlink => {
                    let file = create(directory, OFlags::empty())?;
                    whole(pwrite(&file, &buffer, 0)?, bytes)?;
                    drop(file);
                    Ok(unlinkat(directory, NEW, AtFlags::empty())?)
                }
                Work::WriteStat => {
                    whole(pwrite(file, &buffer, at as u64)?, bytes)?;
                    fstat(file)?;
                    Ok(())
                }
            }
        };
        let mut all_ns = Vec::with_capacity(if each { order.len() } else { 0 });
        let start = Instant::now();
        if each {
            for &block in order {
                let start = Instant::now();
                operate(block)?;
                all_ns.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
            }
        } else {
            order.iter().try_for_each(|&block| operate(block))?;
        }
        Ok((start.elapsed().as_nanos(), all_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_names_are_unique() {
        let mut names: Vec<String> = CASES.iter().map(|case| case.name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
        assert!(names.iter().all(|name| name.starts_with(PREFIX)));
    }
}
