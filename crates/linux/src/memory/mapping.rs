//! A range of this process's addresses, and the calls that put memory behind it.
//!
//! Invariant: the range belongs to its [`Mapping`] until that is dropped. [`Mapping::vacate`] takes the memory away but
//! keeps the addresses, so a late copy faults; it never reaches bytes that someone else was given.

use crate::process::check;
use homenode_engine::NodeId;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Bytes of a huge page: what every mapping starts and ends at.
pub(crate) const HUGE_BYTES: usize = 2 << 20;
pub(crate) const PAGE_BYTES: usize = 4096;
/// Mappings of at least this size start at a multiple of it, so that they fill whole page-table pages.
const GIGABYTE: usize = 1 << 30;

/// Reserved addresses, with or without memory behind them.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: a mapping is a range of addresses of the process, the same for every thread; the calls on it are thread-safe.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out the pointer, and whoever reads or writes through it answers for that.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves addresses for `bytes` (a multiple of [`HUGE_BYTES`]), without memory behind them.
    pub(crate) fn reserve(bytes: usize) -> io::Result<Self> {
        let align = if bytes >= GIGABYTE { GIGABYTE } else { HUGE_BYTES };
        let all = bytes.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new range wherever the kernel likes touches nothing that exists.
        let start = unsafe { libc::mmap(ptr::null_mut(), all, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = start.cast::<u8>();
        let before = start.align_offset(align);
        let base = start.wrapping_add(before);
        unmap(start, before);
        unmap(base.wrapping_add(bytes), align - before);
        Ok(Self { base, bytes })
    }

    /// Where the range starts.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Puts the start of `file` behind the whole range.
    pub(crate) fn attach(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.replace(
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    }

    /// [`Mapping::attach`] of a file whose blocks the filesystem keeps in their place without being asked again (MAP_SYNC).
    pub(crate) fn attach_synced(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.replace(
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC,
            file.as_raw_fd(),
            0,
        )
    }

    /// Puts the start of `file`, which may be open for reading only, behind the whole range; what is stored stays in this process.
    pub(crate) fn attach_private(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        // Next to nothing is stored: it needs no promise of memory.
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        self.replace(libc::PROT_READ | libc::PROT_WRITE, flags, file.as_raw_fd(), 0)
    }

    /// Puts zeros behind the whole range, which take memory only where something is stored.
    pub(crate) fn attach_nothing(&self) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        self.replace(libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    }

    /// Puts `file`, which may be open for reading only, from byte `offset` on, a multiple of a page, behind the whole range, for reading.
    pub(crate) fn attach_to_read(&self, file: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
        self.replace(libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), offset)
    }

    /// Puts new memory of this process behind the whole range, zeros.
    pub(crate) fn fill(&self) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        self.replace(libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    }

    /// Takes the memory away; the addresses stay reserved.
    pub(crate) fn vacate(&self) -> io::Result<()> {
        self.replace(
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    }

    fn replace(&self, protection: i32, flags: i32, fd: i32, offset: u64) -> io::Result<()> {
        let base = self.base.cast();
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
        // SAFETY: MAP_FIXED replaces exactly our own range, which nobody else was given and no reference points into.
        let mapped = unsafe { libc::mmap(base, self.bytes, protection, flags | libc::MAP_FIXED, fd, offset) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A child of fork(2) would share the parent's bytes; it faults instead. The kernel refuses that for
        // mappings of devices only.
        let _ = self.advise(libc::MADV_DONTFORK);
        Ok(())
    }

    /// `madvise` over the whole range.
    pub(crate) fn advise(&self, advice: i32) -> io::Result<()> {
        // SAFETY: the range is ours, and callers give advice that keeps its bytes.
        check(unsafe { libc::madvise(self.base.cast(), self.bytes, advice) })
    }

    /// Makes the bytes from `offset` on present, writable and zero where they are new.
    pub(crate) fn populate(&self, offset: usize, bytes: usize) -> io::Result<()> {
        self.advise_range(offset, bytes, libc::MADV_POPULATE_WRITE)
    }

    /// `madvise` over a part of the range, again while a signal interrupts.
    fn advise_range(&self, offset: usize, bytes: usize, advice: i32) -> io::Result<()> {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "advice for {bytes} bytes at {offset}"
        );
        let start = self.base.wrapping_add(offset).cast();
        loop {
            // SAFETY: the range lies in ours; callers give advice that changes no byte.
            match check(unsafe { libc::madvise(start, bytes, advice) }) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Binds the pages still to come to `node`, for everyone who maps the same file.
    pub(crate) fn bind(&self, node: NodeId) -> io::Result<()> {
        self.set_nodes(libc::MPOL_BIND, 0, self.bytes, &[node])
    }

    /// Has the pages still to come of the bytes from `offset` on come from `node` while it has any.
    pub(crate) fn prefer(&self, offset: usize, bytes: usize, node: NodeId) -> io::Result<()> {
        self.set_nodes(libc::MPOL_PREFERRED, offset, bytes, &[node])
    }

    /// Has the pages still to come lie on `nodes` in turns.
    pub(crate) fn interleave(&self, nodes: &[NodeId]) -> io::Result<()> {
        self.set_nodes(libc::MPOL_INTERLEAVE, 0, self.bytes, nodes)
    }

    /// Has the pages still to come lie on the one of `nodes` that is nearest to their writer, while these have any.
    pub(crate) fn prefer_many(&self, nodes: &[NodeId]) -> io::Result<()> {
        /// Linux 5.15 and newer; libc has no name for it.
        const MPOL_PREFERRED_MANY: i32 = 5;
        self.set_nodes(MPOL_PREFERRED_MANY, 0, self.bytes, nodes)
    }

    /// Takes the policy of the whole range away.
    pub(crate) fn unset_policy(&self) -> io::Result<()> {
        // The kernel takes no policy for no change where this mapping has none, whatever the file has.
        self.set_nodes(libc::MPOL_LOCAL, 0, self.bytes, &[])?;
        self.set_nodes(libc::MPOL_DEFAULT, 0, self.bytes, &[])
    }

    fn set_nodes(&self, mode: i32, offset: usize, bytes: usize, of: &[NodeId]) -> io::Result<()> {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "the policy of {bytes} bytes at {offset}"
        );
        const WORD_BITS: usize = libc::c_ulong::BITS as usize;
        let mut nodes = [0 as libc::c_ulong; 1024 / WORD_BITS];
        for node in of {
            let word = nodes
                .get_mut(usize::from(node.0) / WORD_BITS)
                .ok_or(io::ErrorKind::InvalidInput)?;
            *word |= 1 << (usize::from(node.0) % WORD_BITS);
        }
        // The kernel takes one bit less than it is told.
        let bits = if of.is_empty() { 1 } else { nodes.len() * WORD_BITS + 1 };
        let (start, mask) = (self.base.wrapping_add(offset), nodes.as_ptr());
        // SAFETY: the range lies in ours; the mask is readable for the bits given.
        check(unsafe { libc::syscall(libc::SYS_mbind, start, bytes, mode, mask, bits, 0) })
    }

    /// Writes a range of bytes from page `offset` on to the file's disk (msync(2)).
    pub(crate) fn sync(&self, offset: usize, bytes: usize) -> io::Result<()> {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "{bytes} bytes at {offset} to write back"
        );
        let start = self.base.wrapping_add(offset).cast();
        // SAFETY: the range lies in ours; its bytes stay as they are.
        check(unsafe { libc::msync(start, bytes, libc::MS_SYNC) })
    }

    /// Writes a range of bytes from the processor's caches to persistent memory, and waits until it is there.
    pub(crate) fn write_back(&self, offset: usize, bytes: usize) {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "{bytes} bytes at {offset} to write back"
        );
        // SAFETY: the range lies in ours.
        unsafe { crate::copy::write_back(self.base.wrapping_add(offset), bytes) };
    }

    /// Brings the pages of a range of bytes into the page tables, for reading.
    pub(crate) fn populate_read(&self, offset: usize, bytes: usize) -> io::Result<()> {
        self.advise_range(offset, bytes, libc::MADV_POPULATE_READ)
    }

    /// Puts the 2 MiB from `offset` on, a multiple of that, in a huge page.
    pub(crate) fn collapse(&self, offset: usize) -> io::Result<()> {
        // Linux 6.1 and newer.
        const MADV_COLLAPSE: i32 = 25;
        match self.advise_range(offset, HUGE_BYTES, MADV_COLLAPSE) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
            }
            done => done,
        }
    }

    /// Whether each page of a range of bytes is in memory. Of a file that this process may neither write nor owns the kernel says so of all.
    pub(crate) fn resident_pages(&self, offset: usize, bytes: usize) -> io::Result<Vec<bool>> {
        let mut pages = vec![0_u8; self.pages(offset, bytes).len()];
        let start = self.base.wrapping_add(offset).cast();
        // SAFETY: the list has a byte for each page of the range, and the range lies in ours: `pages` has cut it there.
        check(unsafe { libc::mincore(start, pages.len() * PAGE_BYTES, pages.as_mut_ptr()) })?;
        Ok(pages.into_iter().map(|page| page & 1 == 1).collect())
    }

    /// The node of each page of a range of bytes; negative for one that is not in the page tables.
    pub(crate) fn nodes_of_pages(&self, offset: usize, bytes: usize) -> io::Result<Vec<i32>> {
        let pages = self.pages(offset, bytes);
        let mut nodes = vec![0_i32; pages.len()];
        let to = std::ptr::null::<i32>();
        // SAFETY: the lists of addresses and of answers have as many entries as told; without nodes to go to, nothing moves.
        let status = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                pages.len(),
                pages.as_ptr(),
                to,
                nodes.as_mut_ptr(),
                0,
            )
        };
        check(status).map(|()| nodes)
    }

    /// Moves the pages of a range of bytes that are in the page tables and on `from`, `None` for all nodes, to `node`, whoever else maps
    /// them; returns the bytes that moved. A page that is just written to is tried again; one that a device uses stays. ENOSPC when the node
    /// is full.
    pub(crate) fn move_pages(
        &self,
        offset: usize,
        bytes: usize,
        from: Option<NodeId>,
        node: NodeId,
    ) -> io::Result<u64> {
        const TRIES: usize = 5;
        let mut moved = 0;
        for _ in 0..TRIES {
            let nodes = self.nodes_of_pages(offset, bytes)?;
            let is_source = |at: i32| from.is_none_or(|from| at == i32::from(from.0));
            let is_elsewhere = |at: &i32| *at >= 0 && *at != i32::from(node.0) && is_source(*at);
            let pages = self.pages(offset, bytes).into_iter().zip(&nodes);
            let away: Vec<*mut u8> = pages.filter(|(_, at)| is_elsewhere(at)).map(|(page, _)| page).collect();
            if away.is_empty() {
                break;
            }
            moved += move_to(&away, node)?;
        }
        Ok((moved * PAGE_BYTES) as u64)
    }

    /// Addresses of the pages of a range of bytes.
    fn pages(&self, offset: usize, bytes: usize) -> Vec<*mut u8> {
        let end = offset.saturating_add(bytes).min(self.bytes);
        let pages = (offset..end).step_by(PAGE_BYTES);
        pages.map(|at| self.base.wrapping_add(at)).collect()
    }

    /// Bytes of the range that the page tables reach through huge pages.
    pub(crate) fn huge_bytes(&self) -> Option<u64> {
        let told = self.told("ShmemPmdMapped:")?;
        let kilobytes = told.split_whitespace().next()?.parse::<u64>().ok()?;
        Some(kilobytes * 1024)
    }

    /// Returns the text of a field that the kernel tells of this mapping.
    pub(crate) fn told(&self, field: &str) -> Option<String> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let start = format!("{:x}-", self.base.addr());
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&start)).skip(1);
        lines.find_map(|line| line.strip_prefix(field)).map(str::to_owned)
    }

    /// Keeps pages from being swapped out once they are present.
    pub(crate) fn lock(&self) -> io::Result<()> {
        // SAFETY: locking changes no byte of the range.
        check(unsafe { libc::mlock2(self.base.cast(), self.bytes, libc::MLOCK_ONFAULT) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.base, self.bytes);
    }
}

fn unmap(base: *mut u8, bytes: usize) {
    if bytes == 0 {
        return;
    }
    // SAFETY: called with ranges of a `Mapping` that nobody uses any more (it is being made or dropped).
    let status = unsafe { libc::munmap(base.cast(), bytes) };
    debug_assert_eq!(status, 0, "munmap: {}", io::Error::last_os_error());
}

/// Moves pages of this process to `node`, whoever else maps them; returns how many moved.
fn move_to(pages: &[*mut u8], node: NodeId) -> io::Result<usize> {
    const MPOL_MF_MOVE_ALL: i32 = 4;
    let to = vec![i32::from(node.0); pages.len()];
    let mut answers = vec![0_i32; pages.len()];
    // SAFETY: the three lists have as many entries as told; moving a page changes no byte of it.
    let status = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages.len(),
            pages.as_ptr(),
            to.as_ptr(),
            answers.as_mut_ptr(),
            MPOL_MF_MOVE_ALL,
        )
    };
    let full = || io::Error::from_raw_os_error(libc::ENOSPC);
    if status < 0 {
        let error = io::Error::last_os_error();
        let is_full = error.raw_os_error() == Some(libc::ENOMEM);
        return Err(if is_full { full() } else { error });
    }
    if answers.contains(&-libc::ENOMEM) {
        return Err(full());
    }
    Ok(answers.iter().filter(|answer| **answer == i32::from(node.0)).count())
}

/// Nodes that have memory, as the kernel lists them.
pub(crate) fn nodes_with_memory() -> io::Result<Vec<NodeId>> {
    let text = std::fs::read_to_string("/sys/devices/system/node/has_memory")?;
    crate::topology::nodes::list(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_ranges_are_aligned_and_disjoint() {
        let small = Mapping::reserve(3 * HUGE_BYTES).unwrap();
        let large = Mapping::reserve(GIGABYTE + HUGE_BYTES).unwrap();
        assert_eq!(small.base().addr() % HUGE_BYTES, 0);
        assert_eq!(large.base().addr() % GIGABYTE, 0);
        let (small, large) = (small.base().addr(), large.base().addr());
        assert!(small + 3 * HUGE_BYTES <= large || large + GIGABYTE + HUGE_BYTES <= small);
    }

    /// Also after its bytes were put elsewhere, by a new mapping in its place.
    #[test]
    fn a_forked_child_does_not_inherit_the_mapping() {
        let mapping = Mapping::reserve(2 * HUGE_BYTES).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(2 * HUGE_BYTES as u64).unwrap();
        for _ in 0..2 {
            mapping.attach(std::os::fd::AsFd::as_fd(&file)).unwrap();
            let flags = mapping.told("VmFlags:").unwrap();
            assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{flags}");
            mapping.vacate().unwrap();
        }
    }

    #[test]
    fn mappings_of_absurd_sizes_are_refused() {
        assert!(Mapping::reserve(usize::MAX / HUGE_BYTES * HUGE_BYTES).is_err());
        assert_eq!(
            Mapping::reserve(1 << 56).unwrap_err().raw_os_error(),
            Some(libc::ENOMEM)
        );
    }
}
