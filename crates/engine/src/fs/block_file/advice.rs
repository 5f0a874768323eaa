//! Reads that are known beforehand: many at a time, and what programs say about how they will read.

use super::super::{Asking, Fs, Inode, Result};
use super::bring::{Missing, ReadAhead};
use crate::{BLOCK_BYTES, Clock, Memory};
use homenode_shared::Found;
use std::ops::Range;
use std::sync::atomic::Ordering;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Reads of [`Fs::read_many`] that are under way at a time, and how many begin at a time.
pub const READS_MAX: usize = 32;
const READS_AT_A_TIME: usize = 8;
/// Blocks that are looked at before others can take blocks of the file away.
const STEP_BLOCKS: u64 = 4096;
/// Blocks of a file that are looked at for those that are soon wanted: 4 GiB.
const WANTED_BLOCKS_MAX: u64 = 1 << 20;

/// Advice of a program about its use of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing: takes back what was said of the file.
    Normal,
    /// The file is read in order.
    Sequential,
    /// The file is not read in order.
    Random,
    /// The bytes are wanted soon.
    WillNeed,
    /// The bytes are not wanted soon.
    DontNeed,
}

/// A read among [many](Fs::read_many).
#[derive(Debug)]
pub struct ReadAt<'a> {
    /// Byte of the file that it begins with.
    pub offset: u64,
    /// Where its bytes go.
    pub to: &'a mut [u8],
    /// Bytes that it read: fewer than there is room for only at the end of the file.
    pub done: usize,
}

impl<'a> ReadAt<'a> {
    /// To be carried out.
    #[must_use]
    pub fn new(offset: u64, to: &'a mut [u8]) -> Self {
        Self { offset, to, done: 0 }
    }
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Takes advice on bytes of a file, or on the whole file, whoever reads it, where it is about the order of reads. Begins to bring bytes that are
    /// wanted, some MiB at most; never waits for a disk.
    ///
    /// # Errors
    /// [`Error::Away`](crate::fs::Error::Away) when blocks are being taken away and who asks may not wait.
    pub fn advise(&self, asking: &Asking<'_>, inode: &Inode, advice: Advice, bytes: Range<u64>) -> Result<()> {
        let Some(file) = inode.blocks() else { return Ok(()) };
        let memory = self.pool.memory();
        let size = file.size.load(Ordering::Acquire);
        let blocks = bytes.start / BLOCK..bytes.end.min(size).div_ceil(BLOCK);
        match advice {
            Advice::Normal => file.ahead.advise(0),
            Advice::Sequential => file.ahead.advise(ReadAhead::SEQUENTIAL),
            Advice::Random => file.ahead.advise(ReadAhead::RANDOM),
            Advice::WillNeed => {
                // Holes cost time as well.
                let near = blocks.start..blocks.end.min(blocks.start.saturating_add(WANTED_BLOCKS_MAX));
                let missing = self.missing(asking, inode, file, [near], memory.fetch_max() / 2)?;
                memory.fetch_soon(&missing, false);
            }
            Advice::DontNeed => {
                let mut at = blocks.start;
                while self.is_cached && at < blocks.end {
                    let _inside = inode.enter_as(file, asking)?;
                    at += match file.map.find(&self.nodes, at, blocks.end - at) {
                        Found::Placed { block, blocks } => {
                            let blocks = blocks.min(STEP_BLOCKS);
                            memory.cool(block, blocks);
                            blocks
                        }
                        Found::Empty { blocks } => blocks,
                    };
                }
            }
        }
        Ok(())
    }

    /// Reads many pieces of a file, as one [`Fs::read`] after the other would, with up to [`READS_MAX`] of them under way at a time.
    ///
    /// # Errors
    /// That of the first that fails; those behind it have read nothing.
    pub fn read_many(&self, asking: &Asking<'_>, inode: &Inode, reads: &mut [ReadAt<'_>]) -> Result<()> {
        let mut begun = 0;
        for next in 0..reads.len() {
            let until = reads.len().min(next + READS_MAX);
            // Some at a time: each time costs a system call.
            if begun < until && (until - begun >= READS_AT_A_TIME || until == reads.len()) {
                let ahead = reads[begun..until].iter().map(|read| (read.offset, read.to.len()));
                self.begin_reads(asking, inode, ahead)?;
                begun = until;
            }
            let ReadAt { offset, to, done } = &mut reads[next];
            *done = self.read(asking, inode, *offset, to)?;
        }
        Ok(())
    }

    fn begin_reads(&self, asking: &Asking<'_>, inode: &Inode, reads: impl Iterator<Item = (u64, usize)>) -> Result<()> {
        let Some(file) = inode.blocks() else { return Ok(()) };
        let memory = self.pool.memory();
        let most = memory.fetch_max() / 2;
        let (mut all, mut blocks) = (Missing::new(), 0);
        for (offset, bytes) in reads {
            let end = offset.saturating_add(bytes as u64);
            let wanted = offset / BLOCK..end.div_ceil(BLOCK);
            let missing = self.missing(asking, inode, file, [wanted], most)?;
            blocks += missing.iter().map(|(.., blocks)| blocks).sum::<u64>();
            if blocks > most {
                break;
            }
            all.extend(missing);
        }
        memory.fetch_soon(&all, false);
        Ok(())
    }
}
