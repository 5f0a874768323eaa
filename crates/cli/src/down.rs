//! `homenode down`: unmounts, and ends the server.

use crate::control::client::{ConnectError, Connection, RequestError, Unserved, cannot_talk, unexpected, unserved};
use crate::control::protocol::{Outcome, Request, StatusReport};
use crate::control::{Log, To, log_path};
use crate::directory::{Inside, clear_dead};
use crate::failure::{Failure, Result, fail};
use crate::holders;
use crate::mountinfo::{Located, locate, mounts, mounts_inside, shown};
use crate::progress::Progress;
use crate::status::mounted_elsewhere;
use crate::waiting;
use clap::Args;
use homenode::{MemberKind, MemberState, MemberStatus};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// In this time a server that nobody uses any more has ended, but for the freeing of much memory.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Further time for that: at the 5 GB/s of small pages, 600 GB.
const FREEING_TIMEOUT: Duration = Duration::from_secs(120);

/// Attempts to unmount what is busy although nobody is seen to hold it, and the time between them.
const BUSY_ATTEMPTS_MAX: u32 = 5;
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// Unmount DIR and end its server. The contents of a pool of memory are lost. Attached volumes are detached first; if a volume is in use, the
/// command fails and changes nothing. The same holds for block devices that a killed server of a durable pool left. The command also fails if it cannot make an unmounted pool
/// durable; with --lazy only the server's log reports that failure.
#[derive(Args, Debug)]
pub(crate) struct DownArgs {
    /// Mount point of the pool.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Unmount the directory even if files are open there: open files work until they are closed, then the server ends.
    /// (SIGTERM ends the server at once; calls on open files then fail.)
    #[arg(long)]
    lazy: bool,
    /// Take the pool down even if a member's file was deleted and its bytes are lost with the server.
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &DownArgs) -> Result<()> {
    match unserved(&args.directory, To::Change) {
        // The mount point of a dead server is cleared below.
        Some(Unserved::Dead(..)) if locate(&args.directory).is_ok() => {}
        Some(Unserved::Dead(_, failure) | Unserved::Silent(_, failure) | Unserved::Refused(failure)) => {
            return Err(failure);
        }
        None => {}
    }
    // Of a server that was killed. With the pool up to be read only, they wait on for its next server that writes.
    let mut waiting = waiting::of_directory(&args.directory);
    if !waiting.is_empty() && waiting::is_read_only(&args.directory) {
        waiting.clear();
    }
    waiting::end(&waiting, false)?;
    let mut cleared = false;
    let inside = if args.lazy { Inside::Goes } else { Inside::Stays };
    let mut notice = |notice: &str| {
        cleared = true;
        complain!("homenode: {notice}");
    };
    let located = clear_dead(
        &args.directory,
        "`homenode status` lists the mounts",
        &inside,
        &mut notice,
    )?;
    let name = shown(&located.path);
    let mounted_here = located.mount.is_homenode() && located.is_mount_point();
    if (cleared || !waiting.is_empty()) && !mounted_here {
        return Ok(());
    }
    if !located.mount.is_homenode() {
        if let Some(place) = mounted_elsewhere(&located.path) {
            fail!("{name} is no homenode mount here; the pool that was mounted on {name} is {place}");
        }
        fail!("{name} is not a homenode mount: `homenode status` lists the mounts");
    }
    if !mounted_here {
        fail!(
            "{name} is inside the homenode mount on {}: give that directory",
            shown(&located.mount.mount_point)
        );
    }
    match Connection::open(located.mount.device) {
        Ok(connection) => ask_server(connection, &located, args),
        // Its socket is out of reach (another /run, say). The server ends by itself when it is unmounted.
        Err(ConnectError::Dead) => unless_gone(unmount(&located, args.lazy), &located),
        Err(ConnectError::Other(error)) => Err(cannot_talk(&name, &error, To::Change)),
    }?;
    // Beneath it: of a server that was killed while it took the place of another one.
    let mut notice = |notice: &str| complain!("homenode: {notice}");
    if let Err(failure) = clear_dead(&located.path, "it was there", &Inside::Stays, &mut notice) {
        complain!("homenode: {failure}");
    }
    Ok(())
}

fn ask_server(mut connection: Connection, located: &Located, args: &DownArgs) -> Result<()> {
    let lazy = args.lazy;
    let what = format!("taking {} down", shown(&located.path));
    let progress = Progress::of_request(what, "homenode status".to_owned())?;
    let lost = unless_gone(have_it_unmounted(&mut connection, located, args), located)?;
    // A server whose mount was detached from under open files lives on until they are closed.
    if !lazy && !connection.wait_for_end(END_TIMEOUT) {
        still_there(&mut connection, located)?;
    }
    drop(progress);
    lost.map_or(Ok(()), Err)
}

/// Returns a failure to put the pool away, when it is unmounted all the same.
fn have_it_unmounted(connection: &mut Connection, located: &Located, args: &DownArgs) -> Result<Option<Failure>> {
    let (lazy, report) = (args.lazy, connection.status()?);
    refuse_other(&report.directory, located)?;
    if !args.force {
        refuse_loss(&report, located)?;
    }
    // A server takes its log away when all has ended well.
    let log = Log::of(located.mount.device);
    let mut attempts = 1;
    loop {
        match connection.request(&Request::Down { lazy }, &mut |_, _| {}) {
            Ok(Outcome::Down) => return Ok(None),
            Ok(other) => return Err(unexpected(&other)),
            Err(RequestError::Refused(refusal)) if refusal.busy => {
                // Whoever just looks at the directory, as another `homenode down` does, is gone in a moment.
                let told = busy(located);
                if attempts == BUSY_ATTEMPTS_MAX || !holders::of(located).is_empty() {
                    return told.map(|()| None);
                }
            }
            Err(RequestError::Refused(refusal)) if refusal.unmounted => {
                return Ok(Some(Failure::new(format!(
                    "{} is unmounted, but {}",
                    shown(&located.path),
                    refusal.message
                ))));
            }
            // Its own directory went by another way, this one is what is left: without it, the server ends too.
            Err(RequestError::Refused(refusal)) if refusal.not_mounted => return unmount(located, lazy).map(|()| None),
            Err(RequestError::Refused(refusal)) => fail!("{}", refusal.message),
            Err(RequestError::Broken(_))
                if report.durable.is_some() && is_gone(located) && log.as_ref().is_some_and(Log::is_there) =>
            {
                return Ok(Some(Failure::new(format!(
                    "{} is unmounted, but its server was killed before it had put the pool away: unsynced data may be lost; `homenode fsck` checks \
                     the pool",
                    shown(&located.path)
                ))));
            }
            // A server that was stopped while it closes the pool.
            Err(RequestError::Late(failure)) if is_gone(located) => return Ok(Some(failure)),
            Err(other) => return Err(other.into()),
        }
        attempts += 1;
        thread::sleep(BUSY_PAUSE);
    }
}

/// Forgives a failure if another command has taken the mount down meanwhile. Of two such commands at
/// once, the later one fails at its current step.
fn unless_gone<T: Default>(done: Result<T>, located: &Located) -> Result<T> {
    if done.is_err() && is_gone(located) {
        complain!("homenode: another command has taken {} down", shown(&located.path));
        return Ok(T::default());
    }
    done
}

fn is_gone(located: &Located) -> bool {
    // All of the entry: its number may be another mount's by now.
    mounts().is_ok_and(|mounts| !mounts.contains(&located.mount))
}

/// Refuses to end the server of a durable pool that alone holds a member's bytes, because somebody has removed its file's name.
fn refuse_loss(report: &StatusReport, located: &Located) -> Result<()> {
    let is_unnamed = |member: &&MemberStatus| {
        let is_gone = || fs::symlink_metadata(&member.backing).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        // Readers, whose request the server will refuse, are told no paths.
        let is_told = !member.backing.is_empty();
        is_told && member.kind != MemberKind::Dram && member.state != MemberState::Missing && is_gone()
    };
    match report.pool.members.iter().find(is_unnamed) {
        Some(member) if report.durable.is_some() => fail!(
            "{} stays up: the file of {} is no longer at {}. If it was removed, its bytes are lost when the pool goes down, so copy them first; if \
             it has another name, --force takes the pool down, and `homenode pool import` records that one",
            shown(&located.path),
            member.id,
            member.backing
        ),
        _ => Ok(()),
    }
}

/// The server unmounts `directory`, and nothing else.
fn refuse_other(directory: &str, located: &Located) -> Result<()> {
    if directory == located.path.to_string_lossy() {
        return Ok(());
    }
    let (name, other) = (shown(&located.path), shown(Path::new(directory)));
    fail!("{name} is a bind mount of {other}: `umount {name}`, or `homenode down {other}` to end the pool")
}

/// Unmounted, but the server has not ended: says why, or waits on.
fn still_there(connection: &mut Connection, located: &Located) -> Result<()> {
    let name = shown(&located.path);
    let pid = connection.server().map(|pid| pid.as_raw_nonzero());
    let (server, kill) = pid.map_or_else(
        || ("its server".to_owned(), "killing its server".to_owned()),
        |pid| (format!("its server (process {pid})"), format!("`kill {pid}`")),
    );
    let device = located.mount.device;
    if let Some(other) = mounts().unwrap_or_default().iter().find(|one| one.device == device) {
        let other = shown(&other.mount_point);
        fail!(
            "{name} is unmounted, but its contents are mounted on {other} too, so {server} serves on: `umount {other}`"
        );
    }
    let namespaces = holders::other_namespaces(device);
    if !namespaces.is_empty() {
        fail!(
            "{name} is unmounted here, but still mounted in another mount namespace, of {}, so {server} serves on: end \
             those processes first, or end the server all the same with {kill}",
            namespaces.join(", ")
        );
    }
    // It ends, but a large pool's memory is not given back in a moment.
    if connection.wait_for_end(FREEING_TIMEOUT) {
        return Ok(());
    }
    fail!(
        "{name} is unmounted, but {server} has not ended: wait, or end the server with {kill}; the server's log is {}",
        log_path(device).display()
    )
}

fn unmount(located: &Located, lazy: bool) -> Result<()> {
    let flags = if lazy {
        UnmountFlags::DETACH
    } else {
        UnmountFlags::empty()
    };
    match located.unmount(flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => busy(located),
        Err(Errno::PERM) => fail!("cannot unmount {}: run as root", shown(&located.path)),
        Err(error) => fail!("cannot unmount {}: {error}", shown(&located.path)),
    }
}

fn busy(located: &Located) -> Result<()> {
    refuse_nested(located)?;
    let holders = holders::of(located);
    let name = shown(&located.path);
    let who = if holders.is_empty() {
        String::new()
    } else {
        format!(" by {}", holders.join(", "))
    };
    fail!("{name} is in use{who}: end that use first, or unmount all the same with `homenode down --lazy {name}`")
}

fn refuse_nested(located: &Located) -> Result<()> {
    let Some(nested) = mounts_inside(&located.mount).unwrap_or_default().pop() else {
        return Ok(());
    };
    let (name, inner) = (shown(&located.path), shown(&nested.mount_point));
    fail!(
        "{name} is in use: {inner} ({}) is mounted inside it: `{} {inner}` first",
        nested.filesystem_type,
        nested.verb()
    )
}
