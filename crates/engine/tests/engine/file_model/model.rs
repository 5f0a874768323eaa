//! Files as maps of blocks. Obvious, and slow.

use crate::support::BLOCK;
use homenode_engine::fs::{Error, Result, Whence, fallocate_mode as mode};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The largest size of a file.
pub(crate) const LARGEST: u64 = i64::MAX as u64;
const LAST_BLOCK: u64 = LARGEST / BLOCK;

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) files: Vec<File>,
    pub(crate) capacity: u64,
}

#[derive(Default)]
pub(crate) struct File {
    pub(crate) size: u64,
    /// Written blocks.
    pub(crate) placed: BTreeMap<u64, Box<[u8]>>,
    /// Blocks that fallocate promised and nobody wrote yet.
    pub(crate) reserved: BTreeSet<u64>,
}

impl Model {
    pub(crate) fn new(files: usize, capacity: u64) -> Self {
        Self {
            files: (0..files).map(|_| File::default()).collect(),
            capacity,
        }
    }

    pub(crate) fn free(&self) -> u64 {
        self.capacity - self.used()
    }

    pub(crate) fn used(&self) -> u64 {
        self.files.iter().map(File::blocks).sum()
    }

    pub(crate) fn write(&mut self, number: usize, offset: u64, data: &[u8]) -> Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        if offset >= LARGEST {
            return Err(Error::TooBig);
        }
        let mut free = self.free();
        let file = &mut self.files[number];
        let data = &data[..data.len().min(usize::try_from(LARGEST - offset).expect("64 bits"))];
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (block, inside) = (at / BLOCK, (at % BLOCK) as usize);
            if !file.placed.contains_key(&block) && !file.reserved.contains(&block) {
                if free == 0 {
                    break;
                }
                free -= 1;
            }
            file.reserved.remove(&block);
            let page = file.placed.entry(block).or_insert_with(zeros);
            let now = (BLOCK as usize - inside).min(data.len() - done);
            page[inside..inside + now].copy_from_slice(&data[done..done + now]);
            done += now;
        }
        if done == 0 {
            return Err(Error::NoSpace);
        }
        file.size = file.size.max(offset + done as u64);
        Ok(done)
    }

    pub(crate) fn copy_range(&mut self, from: (usize, u64), to: (usize, u64), bytes: u64) -> Result<u64> {
        let file = &self.files[from.0];
        let bytes = bytes.min(file.size.saturating_sub(from.1));
        if bytes == 0 {
            return Ok(0);
        }
        if to.1 >= LARGEST {
            return Err(Error::TooBig);
        }
        if from.0 == to.0 && from.1 < to.1 + bytes && to.1 < from.1 + bytes {
            return Err(Error::Invalid);
        }
        // No more than the pool could take in any case.
        let data = file.read(from.1, bytes.min((self.capacity + 1) * BLOCK));
        self.write(to.0, to.1, &data).map(|written| written as u64)
    }

    pub(crate) fn fallocate(&mut self, number: usize, flags: u32, offset: u64, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Err(Error::Invalid);
        }
        let end = offset + bytes;
        if end > LARGEST {
            return Err(Error::TooBig);
        }
        let free = self.free();
        let file = &mut self.files[number];
        let aligned = offset.is_multiple_of(BLOCK) && bytes.is_multiple_of(BLOCK);
        match flags & !(mode::KEEP_SIZE | mode::UNSHARE_RANGE) {
            0 => file.reserve(offset, end, free)?,
            mode::PUNCH_HOLE if flags & mode::KEEP_SIZE != 0 => {
                file.punch(offset, end);
                return Ok(());
            }
            mode::ZERO_RANGE => {
                // Without room for all of it nothing is changed. What is placed stays placed.
                file.reserve(offset, end, free)?;
                for block in file.placed.keys().copied().collect::<Vec<_>>() {
                    file.zero(offset.max(block * BLOCK), end.min((block + 1) * BLOCK));
                }
            }
            mode::COLLAPSE_RANGE if aligned && end < file.size => {
                file.punch(offset, end);
                file.shift(end / BLOCK, offset / BLOCK);
                file.size -= bytes;
                return Ok(());
            }
            mode::INSERT_RANGE if aligned && offset < file.size => {
                if file.size + bytes > LARGEST {
                    return Err(Error::TooBig);
                }
                file.shift(offset / BLOCK, end / BLOCK);
                file.size += bytes;
                return Ok(());
            }
            mode::COLLAPSE_RANGE | mode::INSERT_RANGE => return Err(Error::Invalid),
            _ => return Err(Error::NotSupported),
        }
        if flags & mode::KEEP_SIZE == 0 {
            file.size = file.size.max(end);
        }
        Ok(())
    }
}

impl File {
    pub(crate) fn blocks(&self) -> u64 {
        (self.placed.len() + self.reserved.len()) as u64
    }

    pub(crate) fn blocks_within(&self, range: &Range<u64>) -> u64 {
        (self.placed.range(range.clone()).count() + self.reserved.range(range.clone()).count()) as u64
    }

    pub(crate) fn read(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let end = self.size.min(offset.saturating_add(bytes));
        let mut data = Vec::new();
        let mut at = offset;
        while at < end {
            let (block, inside) = (at / BLOCK, (at % BLOCK) as usize);
            let now = (BLOCK as usize - inside).min((end - at) as usize);
            match self.placed.get(&block) {
                Some(page) => data.extend_from_slice(&page[inside..inside + now]),
                None => data.resize(data.len() + now, 0),
            }
            at += now as u64;
        }
        data
    }

    /// Sets the size; unless the file grows, blocks reserved beyond the end go too.
    pub(crate) fn truncate(&mut self, size: u64) {
        if size <= self.size {
            let first_gone = size.div_ceil(BLOCK);
            self.placed.split_off(&first_gone);
            self.reserved.split_off(&first_gone);
            self.zero(size, size.next_multiple_of(BLOCK));
        }
        self.size = size;
    }

    /// Data is where a block is placed, up to the end of the file.
    pub(crate) fn seek(&self, offset: u64, whence: Whence) -> Result<u64> {
        if offset >= self.size {
            return Err(Error::NoData);
        }
        match whence {
            Whence::Data => {
                let (block, _) = self.placed.range(offset / BLOCK..).next().ok_or(Error::NoData)?;
                Some((block * BLOCK).max(offset))
                    .filter(|at| *at < self.size)
                    .ok_or(Error::NoData)
            }
            Whence::Hole => {
                let mut block = offset / BLOCK;
                while self.placed.contains_key(&block) {
                    block += 1;
                }
                Ok((block * BLOCK).max(offset).min(self.size))
            }
        }
    }

    pub(crate) fn punch(&mut self, start: u64, end: u64) {
        let whole = start.div_ceil(BLOCK)..end / BLOCK;
        if whole.start > whole.end {
            self.zero(start, end);
            return;
        }
        self.zero(start, whole.start * BLOCK);
        self.zero(whole.end * BLOCK, end);
        self.placed.retain(|block, _| !whole.contains(block));
        self.reserved.retain(|block| !whole.contains(block));
    }

    /// Bytes of one block.
    pub(crate) fn zero(&mut self, start: u64, end: u64) {
        if start < end
            && let Some(page) = self.placed.get_mut(&(start / BLOCK))
        {
            let inside = (start % BLOCK) as usize;
            page[inside..inside + (end - start) as usize].fill(0);
        }
    }

    fn reserve(&mut self, start: u64, end: u64, free: u64) -> Result<()> {
        let holes: Vec<u64> = (start / BLOCK..end.div_ceil(BLOCK))
            .filter(|block| !self.placed.contains_key(block) && !self.reserved.contains(block))
            .collect();
        if holes.len() as u64 > free {
            return Err(Error::NoSpace);
        }
        self.reserved.extend(holes);
        Ok(())
    }

    /// Moves the blocks from block `from` on to block `to`; reserved blocks beyond the largest file are dropped.
    fn shift(&mut self, from: u64, to: u64) {
        for (block, page) in self.placed.split_off(&from) {
            self.placed.insert(block - from + to, page);
        }
        let moved = self.reserved.split_off(&from);
        let moved = moved.iter().map(|block| block - from + to);
        self.reserved.extend(moved.filter(|block| *block <= LAST_BLOCK));
    }
}

fn zeros() -> Box<[u8]> {
    vec![0; BLOCK as usize].into()
}
