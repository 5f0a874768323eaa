//! `homenode volume`: block volumes of a mounted pool.
//!
//! A volume is named as its pool's directory, a slash, and its name. There is no such file: the directory is where the pool is
//! mounted, and the server knows the rest.

mod attach;
mod table;

use crate::argument;
use crate::control::client::{ConnectError, Connection, pool_of, refuse_unserved_inside, unexpected};
use crate::control::protocol::{Outcome, Request, VolumeReport};
use crate::control::{self, To, hint};
use crate::failure::{Failure, Result, fail};
use crate::mountinfo::{locate, shown};
use crate::progress::Progress;
use crate::status;
use crate::waiting;
use clap::{Args, Subcommand};
use homenode::Placement;
use indicatif::HumanBytes;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Create, list, resize, remove, attach and detach block volumes of a mounted pool.
///
/// A volume is named POOL/NAME: the mount point of its pool, a slash, and a name that no directory lists. A volume is
/// thin: it takes space of the pool as it is written, and may be larger than the pool. Writes to a full pool fail with "no
/// space left on device", but writes over bytes already written succeed. Volumes of a pool of memory are lost with its server.
#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    Create(CreateArgs),
    List(ListArgs),
    Resize(ResizeArgs),
    Remove(RemoveArgs),
    Attach(attach::AttachArgs),
    Detach(attach::DetachArgs),
}

/// Create a volume that reads as zeros.
#[derive(Args, Debug)]
pub(crate) struct CreateArgs {
    /// Mount point of the pool, a slash, and the volume's name: 1 to 255 bytes without slashes and control characters.
    #[arg(value_name = "POOL/NAME")]
    volume: PathBuf,
    /// Size (512M, 1.5G, 2T): whole blocks of 4 KiB, below 8192P. A new volume takes no space.
    #[arg(long, value_name = "SIZE", value_parser = argument::bytes)]
    size: u64,
    /// Placement of the bytes: local (the node of the CPU that writes), node:N, or interleave.
    #[arg(long, value_parser = argument::policy, default_value_t)]
    policy: Placement,
}

/// List the volumes of a pool, or of all pools: size, space taken, attached device, bytes by node.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Mount point of the pool, or a path on it. Default: every pool of this machine.
    #[arg(value_name = "POOL")]
    pool: Option<PathBuf>,
    /// Print JSON; sizes in bytes.
    #[arg(long)]
    json: bool,
}

/// Set a volume's size. Added bytes read as zeros; the space of removed bytes is free at once.
#[derive(Args, Debug)]
pub(crate) struct ResizeArgs {
    /// Mount point of the pool, a slash, and the volume's name.
    #[arg(value_name = "POOL/NAME")]
    volume: PathBuf,
    /// New size (512M, 1.5G, 2T): whole blocks of 4 KiB, below 8192P.
    #[arg(long, value_name = "SIZE", value_parser = argument::bytes)]
    size: u64,
    /// Shrink the volume although the removed part holds data, which is lost.
    #[arg(long)]
    force: bool,
}

/// Remove a volume and all its data.
#[derive(Args, Debug)]
pub(crate) struct RemoveArgs {
    /// Mount point of the pool, a slash, and the volume's name.
    #[arg(value_name = "POOL/NAME")]
    volume: PathBuf,
}

/// A volume and where it is.
pub(super) struct Listed {
    /// The directory of its pool.
    pool: String,
    volume: VolumeReport,
}

pub(crate) fn run(command: &VolumeCommand) -> Result<()> {
    match command {
        VolumeCommand::Create(args) => create(args),
        VolumeCommand::List(args) => list(args),
        VolumeCommand::Resize(args) => resize(args),
        VolumeCommand::Remove(args) => remove(args),
        VolumeCommand::Attach(args) => attach::attach(args),
        VolumeCommand::Detach(args) => attach::detach(args),
    }
}

fn create(args: &CreateArgs) -> Result<()> {
    let outcome = change("creating", &args.volume, |name| Request::VolumeCreate {
        name,
        size_bytes: args.size,
        policy: args.policy.to_string(),
    })?;
    tell_size(&args.volume, "created", args.size, outcome)
}

fn resize(args: &ResizeArgs) -> Result<()> {
    let outcome = change("resizing", &args.volume, |name| Request::VolumeResize {
        name,
        size_bytes: args.size,
        force: args.force,
    })?;
    tell_size(&args.volume, "resized", args.size, outcome)
}

fn remove(args: &RemoveArgs) -> Result<()> {
    match change("removing", &args.volume, |name| Request::VolumeRemove { name })? {
        Outcome::VolumeRemoved => crate::print_line(&format!("removed {}", shown(&args.volume))),
        other => Err(unexpected(&other)),
    }
}

fn list(args: &ListArgs) -> Result<()> {
    let (mut volumes, mut silent, mut dead) = (Vec::new(), Vec::new(), Vec::new());
    if let Some(pool) = &args.pool {
        refuse_unserved_inside(pool)?;
        volumes = ask(&mut Connection::to_server_of(pool, To::Look)?.0)?;
    } else {
        let mut answering = Vec::new();
        let look = |device| {
            (
                device,
                Connection::open(device).map(|mut connection| ask(&mut connection)),
            )
        };
        for (device, answer) in control::at_once(control::devices()?, look) {
            let told = match answer {
                Ok(told) => {
                    answering.push(device);
                    told
                }
                // Nothing, or a mount that is told of below.
                Err(ConnectError::Dead) => continue,
                Err(ConnectError::Other(error)) => Err(Failure::new(format!("{error}{}", hint(&error, To::Look)))),
            };
            match told {
                Ok(found) => volumes.extend(found),
                // One that does not answer hides no others.
                Err(failure) => {
                    complain!("homenode: {}: {failure}", pool_of(device));
                    silent.push(device);
                }
            }
        }
        dead = status::dead(&answering);
        for mount in &dead {
            complain!("homenode: {}", status::dead_line(mount));
        }
        for device in waiting::all() {
            complain!("homenode: {}: {}", waiting::line(&device), waiting::remedy(&device));
        }
    }
    if args.json {
        crate::print_json(&table::json(volumes, &dead, &silent))
    } else if !volumes.is_empty() {
        crate::print_text(&table::text(&volumes))
    } else if silent.is_empty() {
        crate::print_line("no volumes")
    } else {
        Ok(())
    }
}

fn ask(connection: &mut Connection) -> Result<Vec<Listed>> {
    match connection.request(&Request::VolumeList, &mut |_, _| {})? {
        Outcome::Volumes { directory, volumes } => {
            let listed = |volume| Listed {
                pool: directory.clone(),
                volume,
            };
            Ok(volumes.into_iter().map(listed).collect())
        }
        other => Err(unexpected(&other)),
    }
}

fn tell_size(volume: &Path, done: &str, size_bytes: u64, outcome: Outcome) -> Result<()> {
    let Outcome::VolumeSized { capacity_bytes } = outcome else {
        return Err(unexpected(&outcome));
    };
    let name = shown(volume);
    if size_bytes > capacity_bytes {
        complain!(
            "homenode: {name} is larger than its pool ({}): writes fail when the pool is full",
            HumanBytes(capacity_bytes)
        );
    }
    crate::print_line(&format!("{done} {name}: {}", HumanBytes(size_bytes)))
}

/// Has the server of a volume, which is named by `POOL/NAME`, change it.
fn change(doing: &str, volume: &Path, request: impl FnOnce(String) -> Request) -> Result<Outcome> {
    let (directory, name) = split(volume)?;
    refuse_unserved_inside(directory)?;
    let (mut connection, located) = Connection::to_server_of(directory, To::Change).map_err(|failure| {
        // Only now: a pool's own directory asks no server, but a name in it does.
        if locate(volume).is_ok_and(|it| it.mount.is_homenode() && it.is_mount_point()) {
            no_name(volume)
        } else {
            failure
        }
    })?;
    if !located.is_mount_point() {
        let pool = shown(&located.mount.mount_point);
        fail!(
            "{} lies inside the pool: volumes are in no directory, write {pool}/{name}",
            shown(directory)
        );
    }
    let (what, look) = (
        format!("{doing} {}", shown(volume)),
        format!("homenode volume list {}", shown(directory)),
    );
    let _progress = Progress::of_request(what, look)?;
    Ok(connection.request(&request(name), &mut |_, _| {})?)
}

/// Length limit for a volume's name.
const NAME_BYTES_MAX: usize = 255;

/// Splits `POOL/NAME` at the last slash into the directory and the name. The server checks the name further.
fn split(volume: &Path) -> Result<(&Path, String)> {
    let bytes = volume.as_os_str().as_bytes();
    let (directory, name) = match bytes.iter().rposition(|byte| *byte == b'/') {
        None => (&b"."[..], bytes),
        Some(0) => (&b"/"[..], &bytes[1..]),
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
    };
    match std::str::from_utf8(name) {
        Ok("") => Err(no_name(volume)),
        // The server judges the rest, but takes no message of any length.
        Ok(name) if name.len() > NAME_BYTES_MAX => {
            let start: String = name.chars().take(20).collect();
            fail!(
                "the name of the volume, {}…, is longer than {NAME_BYTES_MAX} bytes",
                start.escape_debug()
            )
        }
        Ok(name) => Ok((Path::new(OsStr::from_bytes(directory)), name.to_owned())),
        Err(_) => fail!("{} names no volume: the name is not UTF-8", shown(volume)),
    }
}

fn no_name(volume: &Path) -> Failure {
    Failure::new(format!(
        "{} names no volume: write POOL/NAME, the mount point and the volume's name, such as /srv/pool/disk",
        shown(volume)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volume_name_follows_the_last_slash() {
        let split = |text: &str| {
            let (directory, name) = split(Path::new(text))?;
            Ok::<_, Failure>((directory.to_str().unwrap().to_owned(), name))
        };
        for (text, directory, name) in [
            ("/srv/pool/disk", "/srv/pool", "disk"),
            ("/disk", "/", "disk"),
            ("disk", ".", "disk"),
            ("pool/.", "pool", "."),
            ("a//b", "a/", "b"),
        ] {
            assert_eq!(split(text), Ok((directory.to_owned(), name.to_owned())));
        }
        for text in ["", "/", "/srv/pool/"] {
            assert!(split(text).unwrap_err().to_string().contains("POOL/NAME"), "{text}");
        }
    }
}
