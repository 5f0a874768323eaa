//! What the benches of many cases take.

use std::path::PathBuf;

/// Of `homenode-bench fs` and `mount`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Small files, few operations and rounds: shows that the bench works, not how fast anything is.
    #[arg(long, conflicts_with = "check")]
    pub(crate) smoke: bool,
    /// Write the rows to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Run only cases whose name holds SUBSTRING (may be given again: any of them).
    #[arg(long, value_name = "SUBSTRING")]
    pub(crate) case: Vec<String>,
    /// Rounds that count.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Exit with 1 unless every required number of the cases that ran is reached.
    #[arg(long)]
    pub(crate) check: bool,
}
