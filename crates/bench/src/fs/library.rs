//! The library under test as a contestant.

use super::contestant::{FILES, Lane, Store, whole};
use super::workloads::{Layout, Part};
use crate::error::Error;
use crate::populated;
use homenode::{File, OpenOptions, Pool};
use std::io;

/// A pool of one node with every block populated, and its files.
#[derive(Debug)]
pub(super) struct Library {
    pool: Pool,
    file_bytes: usize,
    files: Vec<File>,
}

impl Library {
    /// Creates the pool and waits until all its blocks are populated.
    pub(super) fn new(file_bytes: usize, node: u16) -> Result<Self, Error> {
        let pool_bytes = 2 * (FILES * file_bytes) as u64;
        let pool = populated::pool(pool_bytes, Some(node)).map_err(Error::library("creating a populated pool"))?;
        let open = |file: usize| {
            let options = OpenOptions::new().read(true).write(true).create_new(true);
            pool.open(format!("/{file}"), &options)
                .map_err(Error::library("creating a file"))
        };
        let files = (0..FILES).map(open).collect::<Result<_, _>>()?;
        Ok(Self {
            pool,
            file_bytes,
            files,
        })
    }

    /// Bytes of the pool that memory stands behind.
    pub(super) fn populated_bytes(&self) -> u64 {
        self.pool
            .status()
            .members
            .iter()
            .map(|member| member.populated_bytes)
            .sum()
    }
}

impl Store for Library {
    type Lane<'a> = FileLane<'a>;

    fn name(&self) -> &'static str {
        crate::report::HOMENODE
    }

    fn empty(&mut self, file: usize) -> Result<(), Error> {
        self.files[file].set_len(0).map_err(Error::library("emptying a file"))?;
        self.files[file]
            .set_len(self.file_bytes as u64)
            .map_err(Error::library("extending a file"))
    }

    fn lanes(&mut self, layout: Layout) -> Vec<FileLane<'_>> {
        let lane = |part: Part| FileLane {
            file: &self.files[part.file],
            start: part.start,
        };
        layout.parts(self.file_bytes).into_iter().map(lane).collect()
    }
}

/// Part of an open file.
#[derive(Debug)]
pub(super) struct FileLane<'a> {
    file: &'a File,
    start: usize,
}

impl Lane for FileLane<'_> {
    #[inline(always)]
    fn write(&mut self, at: usize, from: &[u8]) -> io::Result<()> {
        whole(self.file.write_at(from, (self.start + at) as u64)?, from.len())
    }
    #[inline(always)]
    fn read(&mut self, at: usize, to: &mut [u8]) -> io::Result<()> {
        let bytes = to.len();
        whole(self.file.read_at(to, (self.start + at) as u64)?, bytes)
    }
}
