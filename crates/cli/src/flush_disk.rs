//! `homenode flush-disk`: the child that has the kernel write what it keeps of a block device that its server is about to end.
//!
//! Invariant: it has none of the server's files open. The kernel does not let go of it until the server has written all, so a server that is killed
//! meanwhile can leave its pool to the next one, whose threads write the rest.

use crate::mountinfo::shown;
use homenode_linux::ublk::flush_disk;
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// The word for it.
pub(crate) const VERB: &str = "flush-disk";

/// Have the kernel write what it keeps of a disk; the exit code is an errno.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(value_name = "DISK")]
    disk: PathBuf,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    // A service is told to end with all of its processes, and the flush is a part of the end.
    let mut ignored = [SIGTERM, SIGHUP, SIGINT].into_iter();
    let ignored = ignored.try_for_each(|signal| signal_hook::flag::register(signal, Arc::default()).map(drop));
    let Err(error) = ignored.and_then(|()| flush_disk(&args.disk)) else {
        return ExitCode::SUCCESS;
    };
    complain!("homenode: cannot flush {}: {error}", shown(&args.disk));
    let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
    ExitCode::from(u8::try_from(errno).unwrap_or(u8::MAX))
}
