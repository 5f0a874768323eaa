//! `homenode-bench serve-mount`: a mounted pool in a process of its own, for other benches.
//!
//! Its standard output starts with a line: `ready` once the mount works, `unavailable WHY` if it cannot have rings, or
//! `failed WHY`. For each line of its standard input it then prints how many requests it has served. When its input ends, because the bench is done or
//! has died of whatever, it unmounts, removes the directory and ends.

use crate::error::{During, Error};
use crate::output::tell;
use crate::populated;
use homenode::{Data, Mount, MountError, MountOptions, Transport};
use std::fs;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

/// Arguments of `homenode-bench serve-mount`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Where to mount: an empty directory. It goes with the mount.
    directory: PathBuf,
    /// Bytes of the pool on each of its nodes.
    #[arg(long)]
    node_bytes: u64,
    /// Its only node; without it, all.
    #[arg(long)]
    node: Option<u16>,
    /// How requests travel.
    #[arg(long)]
    transport: Transport,
    /// Storage that holds the bytes of files.
    #[arg(long, default_value = "pool")]
    data: Data,
    /// Have the kernel look for privileges before each buffered write.
    #[arg(long)]
    no_killpriv: bool,
}

/// Serves until standard input ends.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let served = match bring_up(arguments) {
        Ok(mount) => answer(&mount),
        // The bench tells it: it knows what it means.
        Err(homenode::Error::Mount(MountError::Rings(reason))) => tell(format!("unavailable {reason}")),
        Err(homenode::Error::Mount(MountError::Passthrough { reason })) => tell(format!("unavailable {reason}")),
        Err(error) => tell(format!("failed {error}")),
    };
    remove(&arguments.directory)?;
    served
}

fn bring_up(arguments: &Arguments) -> Result<Mount, homenode::Error> {
    let pool = populated::pool(arguments.node_bytes, arguments.node)?;
    let mut options = MountOptions::default();
    options.transport = arguments.transport;
    options.data = arguments.data;
    options.kill_privileges = !arguments.no_killpriv;
    pool.mount_with(&arguments.directory, &options)
}

fn answer(mount: &Mount) -> Result<(), Error> {
    tell("ready")?;
    for line in io::stdin().lock().lines() {
        line.during("reading from the bench")?;
        tell(mount.statistics().request_count())?;
    }
    Ok(())
}

fn remove(directory: &Path) -> Result<(), Error> {
    fs::remove_dir(directory).during(format_args!("removing {}", directory.display()))
}
