//! A client that reads or writes blocks of a file.

use super::pass::{Client, Pass};
use super::subjects::Transfer;
use crate::error::Error;
use crate::shuffle::permutation;
use fastrand::Rng;
use memmap2::MmapMut;
use rustix::fd::OwnedFd;
use rustix::fs::{Advice, fadvise, fdatasync};
use std::io;

/// Blocks that are read back and compared after a pass that writes.
const VERIFIED_BLOCKS: usize = 8;

struct Blocks {
    file: OwnedFd,
    transfer: Transfer,
    order: Vec<u32>,
    /// A block, page-aligned for O_DIRECT.
    buffer: MmapMut,
}

/// Decides the order, and empties the kernel's cache of the file: only tmpfs, whose cache is its storage, keeps it.
pub(super) fn prepare<'a>(
    file: OwnedFd,
    transfer: Transfer,
    pass: &Pass<'_>,
    seed: u64,
) -> Result<Box<dyn Client + 'a>, Error> {
    let system = |error: io::Error| Error::system(format!("preparing {}", pass.name), error);
    fdatasync(&file).map_err(|error| system(error.into()))?;
    fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| system(error.into()))?;
    let blocks = pass.file_bytes / transfer.block_bytes;
    let mut order = if transfer.sequential {
        (0..u32::try_from(blocks).expect("files have fewer than 2^32 blocks")).collect()
    } else {
        permutation(blocks, seed)
    };
    order.truncate(pass.operations);
    let mut buffer = MmapMut::map_anon(transfer.block_bytes).map_err(system)?;
    if transfer.write {
        let mut random = Rng::with_seed(!seed);
        buffer
            .chunks_exact_mut(8)
            .for_each(|word| word.copy_from_slice(&(random.u64(..) | 1).to_le_bytes()));
    } else {
        buffer.fill(0);
    }
    Ok(Box::new(Blocks {
        file,
        transfer,
        order,
        buffer,
    }))
}

impl Blocks {
    fn at(&self, block: u32) -> u64 {
        u64::from(block) * self.transfer.block_bytes as u64
    }
}

impl Client for Blocks {
    fn run(&mut self) -> io::Result<()> {
        for index in 0..self.order.len() {
            let at = self.at(self.order[index]);
            let done = if self.transfer.write {
                rustix::io::pwrite(&self.file, &self.buffer, at)?
            } else {
                rustix::io::pread(&self.file, &mut self.buffer[..], at)?
            };
            if done != self.buffer.len() {
                // A transfer that stopped early would make the figure look good.
                return Err(io::Error::other(format!("only {done} bytes were transferred")));
            }
        }
        if self.transfer.write && !self.transfer.direct {
            // Nothing is left to write back: one request more.
            fdatasync(&self.file)?;
        }
        Ok(())
    }

    /// After writes: some blocks, read back, are what was written. After reads: the buffer, zeros before, holds what a
    /// writer left (writers' words are odd).
    fn is_right(&mut self) -> io::Result<bool> {
        if !self.transfer.write {
            return Ok(self.buffer.chunks_exact(8).all(|word| word[0] & 1 == 1));
        }
        let mut back = MmapMut::map_anon(self.transfer.block_bytes)?;
        // Not what the kernel still has of it.
        fadvise(&self.file, 0, None, Advice::DontNeed)?;
        for &block in self.order.iter().rev().take(VERIFIED_BLOCKS) {
            let done = rustix::io::pread(&self.file, &mut back[..], self.at(block))?;
            if done != back.len() || back[..] != self.buffer[..] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
