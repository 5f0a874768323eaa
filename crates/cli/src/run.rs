//! `homenode run`: a command whose reads and writes on mounted pools are copies, by a library that is preloaded into it.

mod program;

use crate::control::client::{ConnectError, Connection, dead_server, on_homenode, refuse_unserved};
use crate::directory::is_dead;
use crate::failure::{Cannot, Failure, Result, fail};
use crate::mountinfo::shown;
use program::{Fit, look_at};
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The library's file.
const LIBRARY: &str = "libhomenode.so";
/// Variable that turns the library on.
const RUN: &str = "HOMENODE_RUN";
/// Variable that names the device of the only pool to use.
const DEVICE: &str = "HOMENODE_RUN_DEVICE";
/// The dynamic linker's list of libraries.
const PRELOAD: &str = "LD_PRELOAD";

/// Run a command whose reads and writes at an offset, on files of mounted pools, become copies by its own threads.
///
/// This helps programs that call pread(2) and pwrite(2) on files that they have open for reading, or for both, and have used 32 times: databases, fio,
/// channels of the JVM. From Linux 6.12 on, fstat(2) and stat(2) ask the server at most once in a tick of the kernel's clock. All other calls and files work as before. The kernel must hold
/// the files' bytes (`homenode status` says: data kernel), as in pools of memory, but not in durable pools. Programs that are linked statically, run with another
/// user's rights, or use another C library than glibc run unchanged.
///
/// The exit code is the command's: 127 if the command does not exist, 126 if it cannot be run, 1 if `homenode run` itself failed.
#[derive(clap::Parser, Debug)]
#[command(name = "homenode-run", version)]
pub(crate) struct RunArgs {
    /// Copy only on the pool mounted on DIR. Default: on all pools.
    #[arg(long, value_name = "DIR")]
    pool: Option<PathBuf>,
    /// Print on standard error why a program runs unchanged, and at the end of the command, and of each process that made such calls, how many were copies.
    #[arg(long)]
    stats: bool,
    /// Command with its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

impl RunArgs {
    /// Parses the command line of this process if this is its verb.
    pub(crate) fn parse_if_meant() -> Option<clap::error::Result<Self>> {
        let mut words = std::env::args_os().skip(1);
        words.next().filter(|verb| verb == "run")?;
        let words: Vec<OsString> = words.collect();
        let name = std::iter::once("homenode run".into());
        // A program that starts and ends at once should not wait for clap, which tells what was wrong.
        let plain = Self::plain(words.iter().cloned()).map(Ok);
        plain.or_else(|| Some(clap::Parser::try_parse_from(name.chain(words))))
    }

    /// Parses words that clap would take, and that do not ask for help; `None` for others.
    fn plain(mut words: impl Iterator<Item = OsString>) -> Option<Self> {
        let (mut pool, mut stats) = (None, false);
        loop {
            let word = words.next()?;
            let command: Vec<OsString> = match word.to_str() {
                Some("--stats") if !stats => {
                    stats = true;
                    continue;
                }
                Some("--pool") if pool.is_none() => {
                    let is_name = |word: &OsString| !matches!(word.as_encoded_bytes(), [] | [b'-', ..]);
                    pool = Some(words.next().filter(is_name)?.into());
                    continue;
                }
                Some("--") => words.collect(),
                _ if word.as_encoded_bytes().starts_with(b"-") => return None,
                _ => std::iter::once(word).chain(words).collect(),
            };
            return (!command.is_empty()).then_some(Self { pool, stats, command });
        }
    }
}

/// Exit codes where the command is not there or cannot be run, as env(1) has them.
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;

/// Runs the command in the place of this process. Returns the exit code where that failed.
pub(crate) fn run(args: &RunArgs) -> ExitCode {
    let Err((code, failure)) = run_or_fail(args);
    complain!("homenode: {failure}");
    code
}

fn run_or_fail(args: &RunArgs) -> std::result::Result<Infallible, (ExitCode, Failure)> {
    let failed = |failure| (ExitCode::FAILURE, failure);
    let (program, words) = args.command.split_first().expect("clap requires at least one word");
    let mut command = Command::new(program);
    command.args(words);
    let device = args.pool.as_deref().map(device_of).transpose().map_err(failed)?;
    let fit = look_at(program);
    if let (Some(Fit::Unfit(reason) | Fit::Other(reason)), true) = (&fit, args.stats) {
        complain!("homenode run: {} runs unchanged: {reason}", shown(Path::new(program)));
    }
    // What cannot be looked at can perhaps be run; if not, that is told below.
    match fit {
        Some(Fit::Other(_)) => unload(&mut command),
        _ => preload(&mut command, &library().map_err(failed)?, args.stats, device),
    }
    homenode_linux::process::keep_pipe_signal(&mut command);
    let error = command.exec();
    let name = shown(Path::new(program));
    let (code, why) = match error.kind() {
        ErrorKind::NotFound if program.as_encoded_bytes().starts_with(b"-") => (
            NOT_FOUND,
            "there is no such command, and no such option: see `homenode run --help`".to_owned(),
        ),
        ErrorKind::NotFound => (
            NOT_FOUND,
            "there is no such command, or the interpreter in its first line does not exist".to_owned(),
        ),
        ErrorKind::PermissionDenied => (
            NOT_RUN,
            format!("{error}: a program must be executable (`chmod +x`), and not lie on a mount with noexec"),
        ),
        _ => (NOT_RUN, error.to_string()),
    };
    Err((code.into(), Failure::new(format!("cannot run {name}: {why}"))))
}

/// Has a command run with the library, on all pools or on the one of a device.
pub(crate) fn preload(command: &mut Command, library: &Path, stats: bool, device: Option<String>) {
    let list = [vec![library.to_owned()], other_libraries()].concat();
    let list: Vec<&OsStr> = list.iter().map(|library| library.as_os_str()).collect();
    let run = if stats {
        &format!("stats{}", std::process::id())
    } else {
        "on"
    };
    command.env(PRELOAD, list.join(OsStr::new(":"))).env(RUN, run);
    match device {
        Some(device) => command.env(DEVICE, device),
        None => command.env_remove(DEVICE),
    };
}

/// Has a command run without the library, which this process may have been run with: the command's dynamic linker would print an error.
fn unload(command: &mut Command) {
    let others = other_libraries();
    let others: Vec<&OsStr> = others.iter().map(|library| library.as_os_str()).collect();
    match others.is_empty() {
        true => command.env_remove(PRELOAD),
        false => command.env(PRELOAD, others.join(OsStr::new(":"))),
    };
}

/// Libraries that are preloaded into this process, but for ours.
fn other_libraries() -> Vec<PathBuf> {
    let all = std::env::var_os(PRELOAD).unwrap_or_default();
    let all = all.as_encoded_bytes().split(|byte| matches!(byte, b':' | b' '));
    let all = all.map(|library| PathBuf::from(OsStr::from_bytes(library)));
    all.filter(|library| library.file_name().is_some_and(|name| name != LIBRARY))
        .collect()
}

/// The device of the pool that is mounted on a directory, as the library compares it.
fn device_of(directory: &Path) -> Result<String> {
    refuse_unserved(directory)?;
    let located = on_homenode(directory)?;
    let words = format!(".homenode.words.{}", rustix::process::geteuid().as_raw());
    let found = located.mount.mount_point.join(words).symlink_metadata();
    // The kernel may know the file still. Others than root cannot connect.
    let is_refused = matches!(Connection::open(located.mount.device), Err(ConnectError::Dead));
    let is_missing = |error: &io::Error| error.kind() == ErrorKind::NotFound;
    if (is_refused || found.as_ref().is_err_and(|error| !is_missing(error))) && is_dead(&located) {
        return Err(dead_server(&located.mount));
    }
    // Durable pools have none, nor have kernels that pass nothing through.
    if found.is_err() {
        complain!(
            "homenode run: the kernel does not hold the bytes of {}: reads and writes there are system calls",
            shown(directory)
        );
    }
    let device = located.mount.device;
    Ok(format!("{}:{}", device.major, device.minor))
}

/// The library's file: beside this command, as Cargo builds it, or where `make install` puts it.
pub(crate) fn library() -> Result<PathBuf> {
    let own = std::env::current_exe().cannot("find the path of this command")?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    let prefix = directory.parent().unwrap_or(directory);
    let places = [directory.join(LIBRARY), prefix.join("lib/homenode").join(LIBRARY)];
    let found = places.iter().find(|place| place.is_file());
    if let Some(place) = found.filter(|place| !can_be_listed(place.as_os_str())) {
        fail!(
            "cannot use {}: the dynamic linker takes no library whose path has a colon or a blank: move the library",
            shown(place)
        );
    }
    found.cloned().ok_or_else(|| {
        let [beside, installed] = &places;
        Failure::new(format!(
            "cannot find {LIBRARY}: neither {} nor {} is there; `make install` or `cargo build --package homenode-client` makes it",
            shown(beside),
            shown(installed)
        ))
    })
}

/// Whether the dynamic linker takes the path for one: it separates paths by colons and blanks.
fn can_be_listed(path: &OsStr) -> bool {
    !path.as_encoded_bytes().iter().any(|byte| matches!(byte, b':' | b' '))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn the_fast_parser_agrees_with_clap() {
        let lines = [
            ("echo a", true),
            ("-- echo a", true),
            ("--stats echo --stats --pool", true),
            ("--pool /m --stats -- echo -- a", true),
            ("--stats --pool /m sh -c exit", true),
            ("-- -- echo", true),
            ("-- --help", true),
            ("--pool=/m echo", false),
            ("--help", false),
            ("", false),
            ("--", false),
            ("--stats", false),
            ("--stats --stats echo", false),
            ("--pool", false),
            ("--pool --stats echo", false),
            ("--pool /a --pool /b echo", false),
            ("-x echo", false),
            ("- echo", false),
        ];
        for (line, is_plain) in lines {
            let words: Vec<OsString> = line.split_ascii_whitespace().map(OsString::from).collect();
            let plain = RunArgs::plain(words.iter().cloned());
            assert_eq!(plain.is_some(), is_plain, "{line}");
            let Some(plain) = plain else { continue };
            let name = std::iter::once("homenode run".into());
            let args = RunArgs::try_parse_from(name.chain(words)).unwrap();
            assert_eq!(format!("{plain:?}"), format!("{args:?}"), "{line}");
        }
    }
}
