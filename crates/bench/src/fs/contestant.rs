//! Who is measured: the library, two kinds of tmpfs, and a bare memcpy. Each keeps the same set of files.

use super::pass::{Pass, time};
use super::workloads::{Layout, Part};
use crate::error::Error;
use crate::private_tmpfs::{self, Pages};
use memmap2::{Advice, MmapMut};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ftruncate, openat};
use std::io;
use std::os::fd::AsFd;

/// Files of every contestant: one for each thread.
pub(super) const FILES: usize = crate::cpus::THREADS_MAX;

/// A thread's view of its part of a file. Offsets count from the start of that part. Lanes are inlined, so that their own
/// cost is the same for all contestants: next to none.
pub(super) trait Lane: Send {
    /// Writes all of `from`.
    fn write(&mut self, at: usize, from: &[u8]) -> io::Result<()>;
    /// Fills `to`.
    fn read(&mut self, at: usize, to: &mut [u8]) -> io::Result<()>;
}

/// A contestant's set of files, all of one length.
pub(super) trait Store {
    type Lane<'a>: Lane
    where
        Self: 'a;

    /// Name in tables and JSON.
    fn name(&self) -> &'static str;
    /// Takes all blocks from a file and extends it again, so that it is one hole of the old length.
    fn empty(&mut self, file: usize) -> Result<(), Error>;
    /// A lane for each thread of the layout.
    fn lanes(&mut self, layout: Layout) -> Vec<Self::Lane<'_>>;
}

/// Contestant as the bench calls it, whatever its [`Store`].
pub(super) trait Contestant {
    /// See [`Store::name`].
    fn name(&self) -> &'static str;
    /// See [`Store::empty`].
    fn empty(&mut self, file: usize) -> Result<(), Error>;
    /// Runs the pass; gives ns per operation of the slowest thread.
    fn time(&mut self, pass: &Pass<'_>) -> Result<f64, Error>;
}

impl<S: Store> Contestant for S {
    fn name(&self) -> &'static str {
        Store::name(self)
    }
    fn empty(&mut self, file: usize) -> Result<(), Error> {
        Store::empty(self, file)
    }
    fn time(&mut self, pass: &Pass<'_>) -> Result<f64, Error> {
        let name = Store::name(self);
        time(self.lanes(pass.layout), pass, name)
    }
}

/// Files of a private tmpfs, read and written by pread(2) and pwrite(2) on descriptors opened before.
#[derive(Debug)]
pub(super) struct Tmpfs {
    name: &'static str,
    file_bytes: usize,
    files: Vec<OwnedFd>,
}

impl Tmpfs {
    /// Mounts it and makes its files.
    pub(super) fn new(pages: Pages, file_bytes: usize) -> Result<Self, Error> {
        let name = pages.name();
        let root = private_tmpfs::mount(pages, 2 * (FILES * file_bytes) as u64)?;
        let open = |file: usize| {
            openat(
                &root,
                file.to_string(),
                OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC,
                Mode::RUSR | Mode::WUSR,
            )
            .map_err(|error| Error::system(format!("creating file {file} on {name}"), error))
        };
        let files = (0..FILES).map(open).collect::<Result<_, _>>()?;
        Ok(Self {
            name,
            file_bytes,
            files,
        })
    }
}

impl Store for Tmpfs {
    type Lane<'a> = DescriptorLane<'a>;

    fn name(&self) -> &'static str {
        self.name
    }

    fn empty(&mut self, file: usize) -> Result<(), Error> {
        let system = |error| Error::system(format!("truncating file {file} on {}", self.name), error);
        ftruncate(&self.files[file], 0).map_err(system)?;
        ftruncate(&self.files[file], self.file_bytes as u64).map_err(system)
    }

    fn lanes(&mut self, layout: Layout) -> Vec<DescriptorLane<'_>> {
        let lane = |part: Part| DescriptorLane {
            file: self.files[part.file].as_fd(),
            start: part.start,
        };
        layout.parts(self.file_bytes).into_iter().map(lane).collect()
    }
}

/// Part of an open file.
#[derive(Debug)]
pub(super) struct DescriptorLane<'a> {
    file: BorrowedFd<'a>,
    start: usize,
}

impl Lane for DescriptorLane<'_> {
    #[inline(always)]
    fn write(&mut self, at: usize, from: &[u8]) -> io::Result<()> {
        whole(
            rustix::io::pwrite(self.file, from, (self.start + at) as u64)?,
            from.len(),
        )
    }
    #[inline(always)]
    fn read(&mut self, at: usize, to: &mut [u8]) -> io::Result<()> {
        let bytes = to.len();
        whole(rustix::io::pread(self.file, to, (self.start + at) as u64)?, bytes)
    }
}

/// A transfer that stopped early would make the next figure look good.
#[inline]
pub(crate) fn whole(done: usize, wanted: usize) -> io::Result<()> {
    if done == wanted {
        Ok(())
    } else {
        Err(stopped_early(done, wanted))
    }
}

/// Apart, so that [`whole`] costs no contestant anything.
#[cold]
fn stopped_early(done: usize, wanted: usize) -> io::Error {
    io::Error::other(format!("only {done} of {wanted} bytes were transferred"))
}

/// The floor: copies to and from a plain anonymous mapping of huge pages, present before the first pass. `first` is the
/// same work as `overwrite` here: a memcpy places nothing.
#[derive(Debug)]
pub(super) struct Memcpy {
    file_bytes: usize,
    files: Vec<MmapMut>,
}

const HUGE_PAGE_BYTES: usize = 2 << 20;

impl Memcpy {
    /// Maps and touches the memory.
    pub(super) fn new(file_bytes: usize) -> Result<Self, Error> {
        let map = |_| {
            let what = || format!("mapping {file_bytes} bytes of anonymous memory");
            let mut file =
                MmapMut::map_anon(file_bytes + HUGE_PAGE_BYTES).map_err(|error| Error::system(what(), error))?;
            // A kernel without huge pages refuses; its floor is then one of small pages.
            let _ = file.advise(Advice::HugePage);
            file.fill(1);
            Ok(file)
        };
        Ok(Self {
            file_bytes,
            files: (0..FILES).map(map).collect::<Result<_, Error>>()?,
        })
    }
}

impl Store for Memcpy {
    type Lane<'a> = &'a mut [u8];

    fn name(&self) -> &'static str {
        "memcpy"
    }

    fn empty(&mut self, _file: usize) -> Result<(), Error> {
        Ok(())
    }

    fn lanes(&mut self, layout: Layout) -> Vec<&mut [u8]> {
        let parts = layout.parts(self.file_bytes);
        let mut lanes = Vec::new();
        for (number, file) in self.files.iter_mut().enumerate() {
            let aligned = file.as_ptr().align_offset(HUGE_PAGE_BYTES);
            let mut rest = &mut file[aligned..aligned + self.file_bytes];
            // Parts of one file come in order and without gaps.
            for part in parts.iter().filter(|part| part.file == number) {
                let (lane, behind) = rest.split_at_mut(part.bytes);
                lanes.push(lane);
                rest = behind;
            }
        }
        lanes
    }
}

impl Lane for &mut [u8] {
    #[inline(always)]
    fn write(&mut self, at: usize, from: &[u8]) -> io::Result<()> {
        self[at..at + from.len()].copy_from_slice(from);
        Ok(())
    }
    #[inline(always)]
    fn read(&mut self, at: usize, to: &mut [u8]) -> io::Result<()> {
        to.copy_from_slice(&self[at..at + to.len()]);
        Ok(())
    }
}
