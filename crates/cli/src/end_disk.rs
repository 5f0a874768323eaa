//! `homenode end-disk`: the child that has the kernel write what it keeps of a block device, and end the device.
//!
//! Invariant: it has none of the server's files open. The kernel does not let go of it until the server has written all. A server that is killed
//! meanwhile still ends, and leaves its pool to the next one. The kernel then ends the device, or has the next server write the rest; this process
//! ends the device no more.

use crate::mountinfo::shown;
use homenode_linux::ublk::end_disk;
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// The word for it.
pub(crate) const VERB: &str = "end-disk";

/// Have the kernel write what it keeps of a disk, and end the disk; the exit code is an errno.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(value_name = "DISK")]
    disk: PathBuf,
    /// Process that serves the disk, this one's parent.
    #[arg(value_name = "SERVER")]
    server: u32,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    // A service is told to end with all of its processes, and this is a part of the end.
    let mut ignored = [SIGTERM, SIGHUP, SIGINT].into_iter();
    let ignored = ignored.try_for_each(|signal| signal_hook::flag::register(signal, Arc::default()).map(drop));
    let Err(error) = ignored.and_then(|()| end_disk(&args.disk, args.server)) else {
        return ExitCode::SUCCESS;
    };
    complain!("homenode: cannot end {}: {error}", shown(&args.disk));
    let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
    ExitCode::from(u8::try_from(errno).unwrap_or(u8::MAX))
}
