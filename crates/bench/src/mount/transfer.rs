//! A client that reads or writes blocks of a file.

use super::pass::Pass;
use super::subjects::Transfer;
use crate::error::Error;
use crate::pass::{Blocks, Client, Lane, order};
use crate::place::Open;

struct Transferring<'a> {
    file: &'a Open,
    transfer: Transfer,
    blocks: Blocks<'a>,
}

/// Decides the order, and empties the kernel's cache of the file: only tmpfs, whose cache is its storage, keeps it.
pub(super) fn prepare<'a>(
    file: &'a Open,
    transfer: Transfer,
    pass: &Pass<'_>,
    seed: u64,
) -> Result<Box<dyn Client + 'a>, Error> {
    file.sync_data()?;
    file.make_cold(false)?;
    let Transfer {
        block_bytes,
        sequential,
        write,
        ..
    } = transfer;
    let mut order = order(pass.file_bytes / block_bytes, sequential, seed);
    order.truncate(pass.operations);
    let blocks = Blocks::new(Lane::File(file, 0), write, block_bytes, order, seed)?;
    Ok(Box::new(Transferring { file, transfer, blocks }))
}

impl Client for Transferring<'_> {
    fn run(&mut self) -> Result<(), Error> {
        self.blocks.run()?;
        if self.transfer.write && !self.transfer.direct {
            // Nothing is left to write back: one request more.
            self.file.sync_data()?;
        }
        Ok(())
    }

    fn is_right(&mut self) -> Result<bool, Error> {
        // Not what the kernel still has of it.
        self.file.make_cold(false)?;
        self.blocks.is_right()
    }
}
