//! `homenode-bench upload`: the load alone, for tests that have a plan of their own. Says `steady` when all its threads are
//! at work; a line `SECONDS` of its input is answered with where bytes and completions went for so long. It ends with its input.

use super::upload::{Load, Upload};
use super::witness::Machine;
use crate::error::{During, Error};
use crate::output::tell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Arguments of `homenode-bench upload`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    load: Load,
    /// NVMe disk, whose contents are overwritten; may be given several times.
    #[arg(long = "disk", value_name = "NAME", required = true)]
    disks: Vec<String>,
    /// Number of connections; each has a thread.
    #[arg(long, value_name = "N")]
    connections: usize,
    /// CPUs on which threads start, in turn.
    #[arg(long, value_name = "CPU", value_delimiter = ',', required = true)]
    on: Vec<usize>,
}

/// Runs the load.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    crate::lab::require_guest("affinity")?;
    let machine = Arc::new(Machine::read(&arguments.disks)?);
    let mut upload = Upload::start(&arguments.load, &machine, arguments.connections, &arguments.on)?;
    tell("steady")?;
    for line in io::stdin().lines() {
        let line = line.during("reading the input")?;
        let seconds = line.trim().parse().map_err(|_| {
            let what = format!("the input holds {line:?}: expected seconds");
            Error::system(what, io::ErrorKind::InvalidInput)
        })?;
        let shares = upload.measure(Duration::from_secs(seconds))?;
        tell(serde_json::to_string(&shares).expect("it holds only numbers"))?;
    }
    upload.stop()
}
