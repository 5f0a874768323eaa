//! `homenode volume attach` and `detach`: a volume as a block device of the kernel.

use super::change;
use crate::control::client::unexpected;
use crate::control::protocol::{Outcome, Request};
use crate::failure::{Result, fail};
use crate::mountinfo::{absolute, shown};
use crate::waiting;
use clap::Args;
use std::path::PathBuf;

/// Attach a volume as a block device, and print the device's path.
///
/// The kernel's ublk driver (Linux 6.9 and newer, `modprobe ublk_drv`) hands each request to the pool's server. Each CPU has a queue and a
/// thread that carries out its requests. The device ends with `homenode volume detach`, or with the server.
/// If the server of a pool of memory, or of a durable pool with disks, is killed, users of the device get I/O errors, and the next `homenode up`
/// removes the device. If the server of another durable pool is killed, users of the device wait until `homenode up` brings the pool back, and then
/// continue: their requests in flight are carried out again. They get I/O errors if the pool has lost completed writes meanwhile.
/// `homenode volume detach --force` ends a waiting device. Discarded space (fstrim, mkfs) is free in the pool at once. Flushes
/// and forced writes to a durable pool's device are durable when they complete; a pool of memory has no cache to flush.
#[derive(Args, Debug)]
pub(crate) struct AttachArgs {
    /// Mount point of the pool, a slash, and the volume's name.
    #[arg(value_name = "POOL/NAME")]
    volume: PathBuf,
    /// Record each request in this file until the volume is detached; `homenode blk replay` submits the requests again. The file must
    /// not exist yet, and must not lie in the pool.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Detach the block device of a volume, after its earlier requests are carried out.
///
/// A device whose server was killed cannot carry out requests: only `--force` ends it, and its waiting users get I/O errors.
#[derive(Args, Debug)]
pub(crate) struct DetachArgs {
    /// Mount point of the pool, a slash, and the volume's name; or the device itself (/dev/ublkb0) if its server was killed.
    #[arg(value_name = "POOL/NAME")]
    volume: PathBuf,
    /// Detach a device that is in use, for example mounted: its users get I/O errors from then on.
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
    match change("attaching", &args.volume, |name| Request::VolumeAttach { name, trace })? {
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
    if args.volume.as_os_str().as_encoded_bytes().starts_with(b"/dev/ublkb") {
        fail!(
            "there is no waiting device {}: give an attached volume as POOL/NAME",
            shown(&args.volume)
        );
    }
    let force = args.force;
    match change("detaching", &args.volume, |name| Request::VolumeDetach { name, force })? {
        Outcome::VolumeDetached => crate::print_line(&format!("detached {}", shown(&args.volume))),
        other => Err(unexpected(&other)),
    }
}
