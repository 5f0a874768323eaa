//! `homenode volume attach` and `detach`: a volume as a block device of the kernel.

use super::find;
use crate::control::client::unexpected;
use crate::control::protocol::{Outcome, Request};
use crate::failure::{Result, fail};
use crate::mountinfo::{absolute, shown};
use crate::waiting;
use clap::Args;
use std::path::PathBuf;

/// Make a volume a block device, and print its path.
///
/// The kernel's ublk driver (Linux 6.9 and newer, `modprobe ublk_drv`) hands each request to the pool's server, where a thread of the
/// CPU that asked carries it out: there is a queue for each CPU. The device ends with `homenode volume detach`, and with the server.
/// If that is killed, users of a device of a pool of memory get I/O errors, and the next `homenode up` clears what is left. Users of a durable
/// pool's device wait until `homenode up` has brought the pool back, and go on then as if nothing had happened: what they had under way is carried
/// out again. `homenode volume detach --force` ends a device that waits. What was discarded (fstrim, mkfs) is free in the pool at once. Flushes
/// and forced writes of a durable pool's device are durable when they are answered; a pool of memory has no cache to flush.
#[derive(Args, Debug)]
pub(crate) struct AttachArgs {
    /// Where its pool is mounted, a slash, and its name.
    #[arg(value_name = "POOL/NAME")]
    volume: PathBuf,
    /// Write each request to this file, which must not exist yet, until the volume is detached; `homenode blk replay` asks for all of
    /// them again. It must not lie in the pool.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// End the block device of a volume. What was asked for before is carried out first.
///
/// A device whose server was killed has nobody to carry it out: it is ended with `--force` only, and its users, who wait, get I/O errors.
#[derive(Args, Debug)]
pub(crate) struct DetachArgs {
    /// Where its pool is mounted, a slash, and its name; or the device itself (/dev/ublkb0) when its server was killed.
    #[arg(value_name = "POOL/NAME")]
    volume: PathBuf,
    /// Also while the device is in use, mounted for example: its users get I/O errors from then on.
    #[arg(long)]
    force: bool,
}

pub(super) fn attach(args: &AttachArgs) -> Result<()> {
    let trace = match args.trace.as_deref().map(absolute) {
        None => None,
        Some(path) => match path.to_str() {
            Some(text) => Some(text.to_owned()),
            None => fail!("cannot write the trace {}: its path is not UTF-8", shown(&path)),
        },
    };
    let (mut connection, name) = find(&args.volume)?;
    match connection.request(&Request::VolumeAttach { name, trace }, &mut |_, _| {})? {
        Outcome::VolumeAttached { device } => crate::print_line(&device),
        other => Err(unexpected(&other)),
    }
}

pub(super) fn detach(args: &DetachArgs) -> Result<()> {
    if let Some(device) = waiting::named(&args.volume) {
        if !args.force {
            fail!("{}: {}", waiting::line(&device), waiting::remedy(&device));
        }
        waiting::end(&[device], true)?;
        return crate::print_line(&format!("detached {}", shown(&args.volume)));
    }
    let (mut connection, name) = find(&args.volume)?;
    let force = args.force;
    match connection.request(&Request::VolumeDetach { name, force }, &mut |_, _| {})? {
        Outcome::VolumeDetached => crate::print_line(&format!("detached {}", shown(&args.volume))),
        other => Err(unexpected(&other)),
    }
}
