//! Where the pages of a file on a tmpfs lie: told, asked for, and changed while the file is in use.
//!
//! Works on any tmpfs by a descriptor of the file: nothing here knows who made it. A policy is the file's own, shared by all who
//! write or map it; it comes before the policies of tasks and of the filesystem. Source: set_mempolicy(2), mbind(2), move_pages(2).

use crate::affinity::sense::pages_of_line;
use crate::memory::mapping::{HUGE_BYTES, Mapping, PAGE_BYTES};
use homenode_engine::NodeId;
use rustix::fs::{SeekFrom, fstat, seek};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;

/// Bytes of a file that a policy covers: a terabyte. More would leave many threads at once no addresses.
const POLICY_BYTES: usize = 1 << 40;

/// Where pages that are still to come lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// On the node of the CPU that writes, or as its task says.
    Local,
    /// On that node while it has room.
    Prefer(NodeId),
    /// On all nodes with memory in turns.
    Interleave,
}

/// Sets the file's policy for pages that are still to come.
///
/// # Errors
/// EINVAL for a node without memory, ENOMEM.
pub fn place(file: BorrowedFd<'_>, policy: Policy) -> io::Result<()> {
    let mapping = Mapping::reserve(POLICY_BYTES)?;
    mapping.attach_to_read(file)?;
    match policy {
        Policy::Local => mapping.unset_policy(),
        Policy::Prefer(node) => mapping.prefer(0, POLICY_BYTES, node),
        Policy::Interleave => mapping.interleave(),
    }
}

/// Bytes of the file on each node, ascending by node; nodes with none left out. Walks the file's pages: about 10 ms for 1 GiB in
/// huge pages.
///
/// # Errors
/// When the file cannot be mapped, or /proc/self/numa_maps not be read.
pub fn map(file: BorrowedFd<'_>) -> io::Result<Vec<(NodeId, u64)>> {
    let mut nodes = BTreeMap::<NodeId, u64>::new();
    let mut add = |node, pages| *nodes.entry(node).or_default() += pages * PAGE_BYTES as u64;
    if size_of_file(file)? <= HUGE_BYTES as u64 {
        // Page by page: numa_maps walks all that the process has mapped.
        map_data(file, &mut |mapping, offset| {
            for node in mapping.nodes_of_pages(offset, HUGE_BYTES)? {
                u16::try_from(node).into_iter().for_each(|node| add(NodeId(node), 1));
            }
            Ok(())
        })?;
    } else if let Some(mapping) = map_data(file, &mut |_, _| Ok(()))? {
        let maps = std::fs::read_to_string("/proc/self/numa_maps")?;
        let start = format!("{:x} ", mapping.base().addr());
        let line = maps.lines().find(|line| line.starts_with(&start)).unwrap_or_default();
        line.split(' ')
            .filter_map(pages_of_line)
            .for_each(|(node, pages)| add(node, pages));
    }
    Ok(nodes.into_iter().collect())
}

/// Moves the file's pages to `node`, under its readers and writers; returns the bytes moved. `progress` hears bytes looked at, and all
/// of them.
///
/// # Errors
/// ENOSPC when the node is full; what moved stays moved. EPERM without CAP_SYS_NICE.
pub fn move_to(file: BorrowedFd<'_>, node: NodeId, progress: &mut dyn FnMut(u64, u64)) -> io::Result<u64> {
    let all = size_of_file(file)?;
    let mut moved = 0;
    map_data(file, &mut |mapping, offset| {
        moved += mapping.move_pages(offset, HUGE_BYTES, node)?;
        progress((offset + HUGE_BYTES) as u64, all);
        Ok(())
    })?;
    progress(all, all);
    Ok(moved)
}

/// Maps the file with all pages that hold data, and calls `each` with the offset of each aligned 2 MiB that has some; `None` for a
/// file without data.
fn map_data(
    file: BorrowedFd<'_>,
    each: &mut dyn FnMut(&Mapping, usize) -> io::Result<()>,
) -> io::Result<Option<Mapping>> {
    let size = usize::try_from(size_of_file(file)?).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let Some(mapped) = size.checked_next_multiple_of(HUGE_BYTES).filter(|bytes| *bytes > 0) else {
        return Ok(None);
    };
    let mapping = Mapping::reserve(mapped)?;
    mapping.attach_to_read(file)?;
    let mut at = 0;
    while at < size {
        // Holes are skipped: reading one would fill it.
        let data = match seek(file, SeekFrom::Data(at as u64)) {
            Ok(data) => usize::try_from(data).unwrap_or(size) / HUGE_BYTES * HUGE_BYTES,
            Err(rustix::io::Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        let window = data.max(at)..(data.max(at) + HUGE_BYTES).min(size);
        populate(file, &mapping, window.clone())?;
        each(&mapping, window.start)?;
        at = window.start + HUGE_BYTES;
    }
    Ok(Some(mapping))
}

/// Brings the pages that hold data in a part of the file into the mapping.
fn populate(file: BorrowedFd<'_>, mapping: &Mapping, window: std::ops::Range<usize>) -> io::Result<()> {
    let mut at = window.start;
    while at < window.end {
        let start = match seek(file, SeekFrom::Data(at as u64)) {
            Ok(start) => usize::try_from(start).unwrap_or(window.end),
            Err(rustix::io::Errno::NXIO) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        if start >= window.end {
            return Ok(());
        }
        let end = seek(file, SeekFrom::Hole(start as u64)).map_or(window.end, |end| {
            usize::try_from(end).unwrap_or(window.end).min(window.end)
        });
        let (first, last) = (start / PAGE_BYTES * PAGE_BYTES, end.next_multiple_of(PAGE_BYTES));
        match mapping.populate_read(first, last - first) {
            // Truncated meanwhile: there is nothing there any more.
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => return Ok(()),
            populated => populated?,
        }
        at = end.max(at + PAGE_BYTES);
    }
    Ok(())
}

fn size_of_file(file: BorrowedFd<'_>) -> io::Result<u64> {
    u64::try_from(fstat(file)?.st_size).map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests;
