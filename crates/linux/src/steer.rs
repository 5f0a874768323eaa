//! Where the pages of a file on a tmpfs lie: told, asked for, and changed while the file is in use.
//!
//! Works on any tmpfs by a descriptor of the file: nothing here knows who made it. A policy is the file's own, shared by all who
//! write or map it; it comes before the policies of tasks and of the filesystem. Source: set_mempolicy(2), mbind(2), move_pages(2),
//! cachestat(2).
//!
//! From Linux 6.5 on no call takes the file's inode lock: a write(2) holds it for as long as the memory that it writes does not come, which
//! may be for ever. Before 6.5, and of a file that this process may neither write nor owns, lseek(2) finds the pages, which waits for such a writer.

use crate::memory::cgroup::Limits;
use crate::memory::mapping::{HUGE_BYTES, Mapping, PAGE_BYTES, nodes_with_memory};
use crate::tmpfs::huge_denied;
use homenode_engine::NodeId;
use homenode_engine::fs::Placement;
use rustix::fs::{SeekFrom, fstat, seek};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;

/// Bytes of a file that a policy covers: a terabyte. More would leave many threads at once no addresses.
const POLICY_BYTES: usize = 1 << 40;
const HUGE: u64 = HUGE_BYTES as u64;

/// Nodes with memory, ascending.
///
/// # Errors
/// When sysfs cannot be read, as on a kernel without NUMA.
pub fn nodes() -> io::Result<Vec<NodeId>> {
    nodes_with_memory()
}

/// Sets the file's policy for pages that are still to come: local is the writer's node, or as its task says, and the nearest `among`
/// some nodes; a node is taken while it has room.
///
/// # Errors
/// EINVAL for a node without memory, ENOMEM.
pub fn place(file: BorrowedFd<'_>, placement: Placement, among: Option<&[NodeId]>) -> io::Result<()> {
    let mapping = Mapping::reserve(POLICY_BYTES)?;
    mapping.attach_to_read(file, 0)?;
    match placement {
        Placement::Local => among.map_or_else(|| mapping.unset_policy(), |nodes| mapping.prefer_many(nodes)),
        Placement::Node(node) => mapping.prefer(0, POLICY_BYTES, node),
        Placement::Interleave => match among {
            Some(nodes) => mapping.interleave(nodes),
            None => mapping.interleave(&nodes_with_memory()?),
        },
    }
}

/// Bytes of the file on each node, ascending by node; nodes with none left out. Walks the file's pages: a few ms for 1 GiB in
/// huge pages.
///
/// # Errors
/// When the file cannot be mapped.
pub fn map(file: BorrowedFd<'_>) -> io::Result<Vec<(NodeId, u64)>> {
    let (mut by_node, mut next) = (BTreeMap::new(), Some(0));
    // As large as it is now: it may grow as fast as it is looked at.
    let end = size_of_file(file)?;
    while let Some(from) = next.filter(|from| *from < end) {
        next = map_part(file, from, &mut by_node)?;
    }
    Ok(by_node.into_iter().collect())
}

/// Adds what [`map`] tells of the part of the file that begins at the byte `from`, some milliseconds' work; gives where the next part
/// begins, `None` at the end.
///
/// # Errors
/// When the file cannot be mapped.
pub fn map_part(file: BorrowedFd<'_>, from: u64, by_node: &mut BTreeMap<NodeId, u64>) -> io::Result<Option<u64>> {
    let mut add = |node, pages| *by_node.entry(node).or_default() += pages * PAGE_BYTES as u64;
    let parts = RefCell::new(Vec::new());
    map_window(
        file,
        from,
        &mut |_, part| {
            parts.borrow_mut().push(part);
            Ok(())
        },
        &mut |mapping| {
            // Not by /proc/self/numa_maps, which counts a mapping's pages: it walks all that the process has mapped.
            let frames = std::fs::File::open("/proc/self/pagemap").ok();
            for part in parts.take() {
                let is_one = frames.as_ref().is_some_and(|frames| is_one_run(frames, mapping, part));
                let asked = if is_one {
                    Part {
                        bytes: PAGE_BYTES,
                        ..part
                    }
                } else {
                    part
                };
                let pages = (part.bytes / asked.bytes.max(1)) as u64;
                nodes_of_part(mapping, asked)?.for_each(|node| add(NodeId(node), if is_one { pages } else { 1 }));
            }
            Ok(())
        },
    )
}

/// Whether a part is an aligned 2 MiB of the machine's memory, as a huge page is: all of it lies on one node. The kernel tells it to root.
fn is_one_run(frames: &std::fs::File, mapping: &Mapping, part: Part) -> bool {
    const WORD: usize = size_of::<u64>();
    const PRESENT: u64 = 1 << 63;
    const NUMBER: u64 = (1 << 55) - 1;
    if part.bytes != HUGE_BYTES {
        return false;
    }
    let mut words = [0; HUGE_BYTES / PAGE_BYTES * WORD];
    let at = (mapping.base().addr() + part.in_mapping) / PAGE_BYTES * WORD;
    if frames.read_exact_at(&mut words, at as u64).is_err() {
        return false;
    }
    let (words, _) = words.as_chunks();
    let numbers = words.iter().map(|word| u64::from_le_bytes(*word) & (PRESENT | NUMBER));
    let first = u64::from_le_bytes(words[0]) & (PRESENT | NUMBER);
    let is_aligned = first & NUMBER > 0 && (first & NUMBER).is_multiple_of(HUGE / PAGE_BYTES as u64);
    first & PRESENT != 0 && is_aligned && (first..).zip(numbers).all(|(expected, number)| number == expected)
}

/// Nodes of a part's pages. A page that the kernel is just moving is in no page table, and is asked for again; one that was cut off
/// meanwhile has no node.
fn nodes_of_part(mapping: &Mapping, part: Part) -> io::Result<impl Iterator<Item = u16>> {
    const ASKED_MAX: usize = 10;
    let mut nodes = mapping.nodes_of_pages(part.in_mapping, part.bytes)?;
    for _ in 1..ASKED_MAX {
        // Waits for a page that moves.
        if nodes.iter().all(|node| *node >= 0) || mapping.populate_read(part.in_mapping, part.bytes).is_err() {
            break;
        }
        nodes = mapping.nodes_of_pages(part.in_mapping, part.bytes)?;
    }
    Ok(nodes.into_iter().filter_map(|node| u16::try_from(node).ok()))
}

/// Moves the file's pages that are on the node `from`, `None` for all, to the node `to`, under its readers and writers; returns the bytes
/// moved. `progress` hears bytes looked at, and all of them.
///
/// # Errors
/// ENOSPC when the node is full; what moved stays moved. EPERM without CAP_SYS_NICE.
pub fn move_pages(
    file: BorrowedFd<'_>,
    from: Option<NodeId>,
    to: NodeId,
    progress: &mut dyn FnMut(u64, u64),
) -> io::Result<u64> {
    let all = size_of_file(file)?;
    let mut moved = 0;
    let mut move_part = |mapping: &Mapping, part: Part| {
        moved += mapping.move_pages(part.in_mapping, part.bytes, from, to)?;
        progress((part.in_file + part.bytes as u64).min(all), all);
        Ok(())
    };
    let mut next = Some(0);
    while let Some(from) = next.filter(|from| *from < all) {
        next = map_window(file, from, &mut move_part, &mut |_| Ok(()))?;
    }
    progress(all, all);
    Ok(moved)
}

/// Puts the aligned 2 MiB within a range of bytes in huge pages, where they have data without holes. New pages are charged to the memory
/// control group of this process, which has to have room for them.
///
/// # Errors
/// EOPNOTSUPP where there are no huge pages for it, or that room. What is in use just now stays as it is.
pub fn collapse(file: BorrowedFd<'_>, bytes: Range<u64>) -> io::Result<()> {
    let end = size_of_file(file)?.min(bytes.end) / HUGE_BYTES as u64 * HUGE_BYTES as u64;
    let start = bytes.start.next_multiple_of(HUGE_BYTES as u64);
    if huge_denied() || Limits::lately().room() < end.saturating_sub(start) {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    if start >= end {
        return Ok(());
    }
    let mapped = usize::try_from(end - start).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mapping = Mapping::reserve(mapped)?;
    mapping.attach_to_read(file, start)?;
    for in_mapping in (0..mapped).step_by(HUGE_BYTES) {
        let at = start + in_mapping as u64;
        // SEEK_HOLE would walk all data that follows.
        if cached_pages(file, at, HUGE_BYTES as u64)? == (HUGE_BYTES / PAGE_BYTES) as u64 {
            match mapping.collapse(in_mapping) {
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Err(error),
                // In use, or there is no huge page just now: the others are tried all the same.
                _ => {}
            }
        }
    }
    Ok(())
}

/// Has the kernel allocate the holes of a range of bytes below the end of the file, as reading from a mapping of it does: no time of the file moves.
///
/// # Errors
/// ENOSPC when the filesystem is full; what was allocated stays.
pub(crate) fn fill(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
    let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mapping = Mapping::reserve(bytes.next_multiple_of(HUGE_BYTES))?;
    mapping.attach_to_read(file, offset)?;
    mapping
        .populate_read(0, bytes)
        .map_err(|error| match error.raw_os_error() {
            // The page fault could give its thread SIGBUS only.
            Some(libc::EFAULT) => io::Error::from_raw_os_error(libc::ENOSPC),
            _ => error,
        })
}

/// Bytes of a file that are mapped at a time: 12 ms to look at in pages of 4 KiB.
const WINDOW_BYTES: u64 = 64 << 20;

/// A part of a file in a mapping.
#[derive(Clone, Copy, Debug)]
struct Part {
    in_file: u64,
    in_mapping: usize,
    bytes: usize,
}

/// Maps a window of the file that begins with the first data from the byte `from` on; gives where the next one may begin, `None` when there is no
/// more. Brings the pages that are in memory into the page tables: a hole would be filled, and a page in swap read. Calls `each`
/// with each part within an aligned 2 MiB that has such pages, and `whole` at the end.
fn map_window(
    file: BorrowedFd<'_>,
    from: u64,
    each: &mut dyn FnMut(&Mapping, Part) -> io::Result<()>,
    whole: &mut dyn FnMut(&Mapping) -> io::Result<()>,
) -> io::Result<Option<u64>> {
    /// No mapping reaches the last page that a file could have.
    const MAPPED_MAX: u64 = i64::MAX as u64 / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    let size = size_of_file(file)?.min(MAPPED_MAX);
    let Some(start) = next_pages(file, from, size)?.map(|at| at / HUGE * HUGE) else {
        return Ok(None);
    };
    let mut at = start;
    let end = size
        .next_multiple_of(HUGE)
        .min(MAPPED_MAX)
        .min(start.saturating_add(WINDOW_BYTES));
    let mapping = Mapping::reserve(usize::try_from(end - start).map_err(|_| io::ErrorKind::FileTooLarge)?)?;
    mapping.attach_to_read(file, start)?;
    while at < end {
        let in_mapping = usize::try_from(at - start).map_err(|_| io::ErrorKind::FileTooLarge)?;
        // Cut at the end of the file: of a file of another user the kernel calls pages beyond it resident too.
        let below = usize::try_from(size.saturating_sub(at).min(HUGE)).unwrap_or(HUGE_BYTES);
        let pages = below.div_ceil(PAGE_BYTES);
        let resident = match cached_pages(file, at, below as u64) {
            // One count of a huge page, where mincore(2) would look for each of its 512.
            Ok(cached) if cached == pages as u64 => vec![true; pages],
            cached => {
                let mut resident = mapping.resident_pages(in_mapping, below)?;
                let seen = resident.iter().filter(|is_resident| **is_resident).count() as u64;
                // mincore(2) passes pages that fallocate(2) took and nobody has written.
                if cached.is_ok_and(|cached| cached > seen) {
                    mark_cached(file, at, &mut resident)?;
                }
                resident
            }
        };
        let mut page = 0;
        for run in resident.chunk_by(|one, other| one == other) {
            let offset = page * PAGE_BYTES;
            page += run.len();
            let part = Part {
                in_file: at + offset as u64,
                in_mapping: in_mapping + offset,
                bytes: run.len() * PAGE_BYTES,
            };
            if run[0] {
                match mapping.populate_read(part.in_mapping, part.bytes) {
                    // Truncated meanwhile: there is nothing there any more.
                    Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {}
                    populated => {
                        populated?;
                        each(&mapping, part)?;
                    }
                }
            }
        }
        at += HUGE;
        if !resident.contains(&true) {
            at = next_pages(file, at, size)?.map_or(u64::MAX, |at| at / HUGE * HUGE);
        }
    }
    whole(&mapping)?;
    Ok((at < size).then_some(at))
}

/// Start of the first aligned 2 MiB of the file from the byte `from` on, or `from` itself within such, with pages in memory below the byte `end`; `None`
/// when there are none. Pages that fallocate(2) took and nobody has written count.
///
/// # Errors
/// When the kernel can neither count the pages nor look for them.
pub fn next_pages(file: BorrowedFd<'_>, from: u64, end: u64) -> io::Result<Option<u64>> {
    let counted = next_counted(from, end, |at, bytes| cached_pages(file, at, bytes));
    counted.or_else(|_| next_data(file, from, end))
}

/// [`next_pages`] by `count`, which tells how many pages of a range of bytes are in memory.
fn next_counted(from: u64, end: u64, count: impl Fn(u64, u64) -> io::Result<u64>) -> io::Result<Option<u64>> {
    /// Most that is counted at once up to the byte 1 TiB: 2 ms in pages of 4 KiB. Far more may lie behind a hole, also beyond the end of the file.
    const COUNTED_MAX: u64 = 1 << 30;
    /// Beyond 1 TiB, one part in so many of what lies before. Where pages were counted they are looked for in as many parts: a hole takes no time, and pages
    /// are counted a few times at most.
    const PARTS: u64 = 1024;
    // Some were counted below the byte `known`.
    let (mut at, mut bytes, mut known) = (from, HUGE, from);
    while at < end {
        let until = (at / HUGE * HUGE).saturating_add(bytes).min(end);
        if count(at, until - at)? > 0 {
            if bytes == HUGE {
                return Ok(Some(at));
            }
            (bytes, known) = ((bytes / PARTS / HUGE * HUGE).max(HUGE), until);
            continue;
        }
        at = until;
        if at >= known {
            // The next hole may be longer: as much again as was passed.
            bytes = (bytes * 2).min((until / PARTS / HUGE * HUGE).max(COUNTED_MAX));
        }
    }
    Ok(None)
}

/// [`next_pages`] where the kernel does not count pages: the next data.
fn next_data(file: BorrowedFd<'_>, from: u64, end: u64) -> io::Result<Option<u64>> {
    match seek(file, SeekFrom::Data(from)) {
        Ok(at) => Ok(Some(from.max(at / HUGE * HUGE)).filter(|at| *at < end)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(errno) => Err(io::Error::from(errno)),
    }
}

/// Marks those of some pages from the byte `at` on that are in memory.
fn mark_cached(file: BorrowedFd<'_>, at: u64, pages: &mut [bool]) -> io::Result<()> {
    let cached = cached_pages(file, at, (pages.len() * PAGE_BYTES) as u64)?;
    if cached == 0 || cached == pages.len() as u64 {
        pages.fill(cached > 0);
        return Ok(());
    }
    let (one, other) = pages.split_at_mut(pages.len() / 2);
    let middle = at + (one.len() * PAGE_BYTES) as u64;
    mark_cached(file, at, one)?;
    mark_cached(file, middle, other)
}

/// Pages of a range of bytes of the file that are in memory (cachestat(2), Linux 6.5 and newer).
pub(crate) fn cached_pages(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<u64> {
    const CACHESTAT: libc::c_long = 451;
    let range = [offset, bytes];
    // Pages in memory, dirty, under write-back, evicted, evicted lately.
    let mut counts = [0_u64; 5];
    // SAFETY: the kernel reads two words and writes five, and both arrays live until it returns.
    let status = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0) };
    if status == 0 {
        Ok(counts[0])
    } else {
        let error = io::Error::last_os_error();
        let is_unknown = error.raw_os_error() == Some(libc::ENOSYS);
        Err(if is_unknown {
            io::Error::from_raw_os_error(libc::EOPNOTSUPP)
        } else {
            error
        })
    }
}

fn size_of_file(file: BorrowedFd<'_>) -> io::Result<u64> {
    u64::try_from(fstat(file)?.st_size).map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests;
