//! `homenode down`: unmounts, and ends the server.

use crate::control::client::{ConnectError, Connection, RequestError, unexpected};
use crate::control::protocol::{Outcome, Request};
use crate::control::root_hint;
use crate::directory::clear_dead;
use crate::failure::{Result, fail};
use crate::holders;
use crate::mountinfo::{Located, shown};
use crate::progress::Progress;
use clap::Args;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::path::PathBuf;

/// Unmount DIR and end its server. What the pool held is gone then.
#[derive(Args, Debug)]
pub(crate) struct DownArgs {
    /// Where it is mounted.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Take the directory away also when files are open there: they work until they are closed, then the server ends.
    /// (SIGTERM to the server ends it at once; open files get errors then.)
    #[arg(long)]
    lazy: bool,
}

pub(crate) fn run(args: &DownArgs) -> Result<()> {
    let mut cleared = false;
    let located = clear_dead(&args.directory, &mut |notice| {
        cleared = true;
        eprintln!("homenode: {notice}");
    })?;
    let name = shown(&located.path);
    let mounted_here = located.mount.is_homenode() && located.is_mount_point();
    if cleared && !mounted_here {
        return Ok(());
    }
    if !located.mount.is_homenode() {
        fail!("{name} is no homenode mount: `homenode status` lists those there are");
    }
    if !mounted_here {
        fail!(
            "{name} is inside the homenode mount on {}: give that directory",
            shown(&located.mount.mount_point)
        );
    }
    match Connection::open(located.mount.device) {
        Ok(connection) => ask_server(connection, &located, args.lazy),
        // Its socket is out of reach (another /run, say). The server ends by itself when it is unmounted.
        Err(ConnectError::Dead) => unmount(&located, args.lazy),
        Err(ConnectError::Other(error)) => fail!("cannot talk to the server of {name}: {error}{}", root_hint(&error)),
    }
}

fn ask_server(mut connection: Connection, located: &Located, lazy: bool) -> Result<()> {
    let progress = Progress::new(format!("taking {} down", shown(&located.path)));
    match connection.request(&Request::Down { lazy }, &mut |_, _| {}) {
        Ok(Outcome::Down) => {}
        Ok(other) => return Err(unexpected(&other)),
        Err(RequestError::Refused(refusal)) if refusal.busy => return busy(located),
        Err(other) => return Err(other.into()),
    }
    // A server whose mount was detached from under open files lives on until they are closed.
    if !lazy {
        connection.wait_for_end();
    }
    drop(progress);
    Ok(())
}

fn unmount(located: &Located, lazy: bool) -> Result<()> {
    let flags = if lazy {
        UnmountFlags::DETACH
    } else {
        UnmountFlags::empty()
    };
    match rustix::mount::unmount(&located.path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => busy(located),
        Err(Errno::PERM) => fail!("cannot unmount {}: run as root", shown(&located.path)),
        Err(error) => fail!("cannot unmount {}: {error}", shown(&located.path)),
    }
}

fn busy(located: &Located) -> Result<()> {
    let holders = holders::of(located);
    let name = shown(&located.path);
    let who = if holders.is_empty() {
        String::new()
    } else {
        format!(" by {}", holders.join(", "))
    };
    fail!("{name} is in use{who}: end that first, or take it away from under its users with `homenode down --lazy`")
}
