//! `homenode blk`: the block layer by hand.

mod replay;

use crate::failure::Result;

/// Submit requests to block devices through the block layer.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum BlkCommand {
    Replay(replay::Args),
}

pub(crate) fn run(command: &BlkCommand) -> Result<()> {
    match command {
        BlkCommand::Replay(args) => replay::run(args),
    }
}
