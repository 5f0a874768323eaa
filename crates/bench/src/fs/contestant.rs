//! Contestants: the library, two kinds of tmpfs, and a bare memcpy. Each keeps the same set of files.

use super::workloads::Layout;
use crate::error::Error;
use crate::pass::Lane;
use crate::place::{Open, Place};
use crate::populated;
use crate::private_tmpfs::{self, Pages};
use crate::report::HOMENODE;
use homenode::Pool;
use memmap2::MmapMut;
use rustix::fd::AsRawFd;

/// Files of every contestant: one for each thread.
const FILES: usize = crate::cpus::THREADS_MAX;
const FILL: u8 = 0x5b;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A contestant's set of files, all of one length.
#[derive(Debug)]
pub(super) struct Contestant {
    /// Name in tables and JSON.
    pub(super) name: &'static str,
    file_bytes: usize,
    files: Files,
}

#[derive(Debug)]
enum Files {
    Open(Vec<Open>),
    /// The floor: plain anonymous mappings of huge pages, present before the first pass. `first` is the same work as
    /// `overwrite` here: a memcpy places nothing.
    Memory(Vec<MmapMut>),
}

/// Room for the files and as much again.
pub(super) fn place_bytes(file_bytes: usize) -> u64 {
    2 * (FILES * file_bytes) as u64
}

impl Contestant {
    /// The library under test: files of a pool.
    pub(super) fn library(pool: Pool, file_bytes: usize) -> Result<Self, Error> {
        Self::new(HOMENODE, &Place::Pool(pool), file_bytes)
    }

    /// Files of a private tmpfs.
    pub(super) fn tmpfs(pages: Pages, file_bytes: usize) -> Result<Self, Error> {
        let root = private_tmpfs::mount(pages, place_bytes(file_bytes))?;
        let place = Place::Directory(format!("/proc/self/fd/{}", root.as_raw_fd()).into());
        Self::new(pages.name(), &place, file_bytes)
    }

    fn new(name: &'static str, place: &Place, file_bytes: usize) -> Result<Self, Error> {
        let files = (0..FILES).map(|file| place.create(&file.to_string()));
        Ok(Self {
            name,
            file_bytes,
            files: Files::Open(files.collect::<Result<_, _>>()?),
        })
    }

    /// Copies in memory.
    pub(super) fn memcpy(file_bytes: usize) -> Result<Self, Error> {
        let files = (0..FILES).map(|_| populated::memory((file_bytes + HUGE_PAGE_BYTES) as u64));
        Ok(Self {
            name: "memcpy",
            file_bytes,
            files: Files::Memory(files.collect::<Result<_, _>>()?),
        })
    }

    /// Takes all blocks from the first files and extends them again, so that each is one hole of the old length.
    pub(super) fn empty(&self, count: usize) -> Result<(), Error> {
        let Files::Open(files) = &self.files else { return Ok(()) };
        files[..count].iter().try_for_each(|file| {
            file.set_len(0)?;
            file.set_len(self.file_bytes as u64)
        })
    }

    /// Writes all files anew, from start to end. What writers leave has odd words.
    pub(super) fn fill(&self) -> Result<(), Error> {
        let Files::Open(files) = &self.files else { return Ok(()) };
        self.empty(FILES)?;
        files.iter().try_for_each(|file| file.fill(FILL, self.file_bytes))
    }

    pub(super) fn lanes(&mut self, layout: Layout) -> Vec<Lane<'_>> {
        let parts = layout.parts(self.file_bytes);
        let files = match &mut self.files {
            Files::Open(files) => {
                return parts
                    .iter()
                    .map(|part| Lane::File(&files[part.file], part.start))
                    .collect();
            }
            Files::Memory(files) => files,
        };
        let mut lanes = Vec::new();
        for (number, file) in files.iter_mut().enumerate() {
            let aligned = file.as_ptr().align_offset(HUGE_PAGE_BYTES);
            let mut rest = &mut file[aligned..aligned + self.file_bytes];
            // Parts of one file come in order and without gaps.
            for part in parts.iter().filter(|part| part.file == number) {
                let (lane, behind) = rest.split_at_mut(part.bytes);
                lanes.push(Lane::Memory(lane));
                rest = behind;
            }
        }
        lanes
    }
}
