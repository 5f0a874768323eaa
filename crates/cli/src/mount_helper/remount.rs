//! `mount -o remount`: what is the kernel's to change is handed on to it; what is the pool's must be what the pool has.
//!
//! mount(8) runs `mount.fuse.homenode` for it, named by the type in the mount table, with what the mount has already and what
//! is asked for in one list; for a line of /etc/fstab it runs `mount.homenode`, with the line's options in front.

use super::options::{Meaning, has_word, meaning, name_in};
use super::{HelperArgs, NAME, argument, is_pool_option, options_of, parse};
use crate::control::To;
use crate::control::client::Connection;
use crate::control::protocol::{Access, DurableReport, StatusReport};
use crate::failure::{Result, fail};
use crate::mountinfo::shown;
use crate::up::UpArgs;
use rustix::fs::StatVfsMountFlags;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

/// Options that mount(2) applies to an existing mount.
const BY_KERNEL: &str =
    "remount ro nosuid nodev noexec noatime nodiratime norelatime strictatime sync dirsync nosymfollow mand";
/// Options of these that the server has to know as well, as it keeps access times.
const OF_SERVER: [&str; 2] = ["noatime", "nodiratime"];
/// Options of a FUSE mount in the mount table. The kernel lists these options, and a remount ignores them.
const OF_FUSE: [&str; 3] = ["user_id", "group_id", "max_read"];

pub(super) fn is_asked_for(args: &HelperArgs) -> bool {
    args.written().any(|option| option == "remount")
}

/// Options about the pool that a remount is given.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Names of the options.
    pub(super) options: Vec<String>,
    /// A pool that has them, as mount options.
    described: Vec<String>,
}

impl Wanted {
    /// The name of an option that a pool with the options `has` would have to change.
    pub(super) fn differs_from(&self, has: &[String]) -> Option<String> {
        let differs = |name: &&String| meant(name, &self.described) != meant(name, has);
        self.options.iter().find(differs).cloned()
    }
}

/// Meaning of the options of one name; `None` for an option that is not known.
fn meant(name: &str, options: &[String]) -> Option<UpArgs> {
    let named = options.iter().filter(|option| name_in(option) == name);
    let words = named.map(|option| Some(argument(option).ok()??.into()));
    let words = words.chain(["--", "/"].map(|word| Some(word.into())));
    let mut args = parse(words.collect::<Option<_>>()?).ok()?;
    args.words.clear();
    // The order of several nodes says nothing.
    args.nodes.sort_unstable();
    args.nodes.dedup();
    Some(args)
}

/// Whether the option says something about the pool. mount(8) is not to hand such on to the kernel.
fn is_of_pool(option: &str) -> bool {
    let name = name_in(option);
    !has_word(BY_KERNEL, name) && is_pool_option(name)
}

/// Refuses what no mounted pool can change, and returns what has to be compared with the pool.
pub(super) fn check(args: &HelperArgs) -> Result<Wanted> {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut options = Vec::new();
    for option in args.written() {
        let name = name_in(option);
        let is_kernels = has_word(BY_KERNEL, name) && !OF_SERVER.contains(&name);
        if is_kernels || OF_FUSE.contains(&name) {
            continue;
        }
        match meaning(option) {
            Meaning::GivenAnyway | Meaning::ReadOnly => {}
            Meaning::Refused(remedy) => fail!("option {option}: {remedy}"),
            Meaning::OfPool => match argument(option)? {
                Some(argument) => {
                    arguments.push(argument.into());
                    options.push(name.to_owned());
                }
                None if args.sloppy => {}
                None => fail!("option {option} is not known"),
            },
        }
    }
    arguments.extend(["--".into(), args.directory.clone().into()]);
    Ok(Wanted {
        options,
        described: options_of(&parse(arguments)?.words),
    })
}

/// Refuses options that the kernel would take, and that the server of the mount does not follow.
fn refuse_changes(args: &HelperArgs, wanted: &Wanted, report: &StatusReport) -> Result<()> {
    let anew = match report.durable {
        Some(_) => format!("unmount {} and mount it anew", shown(&args.directory)),
        None => "it is chosen when the pool is mounted".to_owned(),
    };
    if let Some(name) = wanted.differs_from(&report.options) {
        let given = args.written().filter(|option| name_in(option) == name);
        let remedy = match &*name {
            "size_per_node" | "node" => "to change members use `homenode pool add`, `drain` and `remove`",
            _ => &anew,
        };
        fail!(
            "option {}: remount cannot change {name} of the pool: {remedy}. `mount -i -o remount,ro DIR` (or rw) leaves the \
             pool's options of /etc/fstab out",
            given.collect::<Vec<_>>().join(",")
        );
    }
    let last = |words: &str| args.written().filter(|option| has_word(words, option)).last();
    let is_read = |durable: &DurableReport| durable.access == Access::ReadOnly;
    if report.durable.as_ref().is_some_and(is_read) && last("ro rw") == Some("rw") {
        fail!("option rw: the pool was opened read-only, and its server takes no changes: {anew}");
    }
    // The mount table may say otherwise, since a remount without this helper.
    let flags = rustix::fs::statvfs(&args.directory).map_or(StatVfsMountFlags::empty(), |found| found.f_flag);
    for (kept, words, flag) in [
        (
            "noatime",
            "noatime atime relatime strictatime",
            StatVfsMountFlags::NOATIME,
        ),
        ("nodiratime", "nodiratime diratime", StatVfsMountFlags::NODIRATIME),
    ] {
        let is_kept = flags.contains(flag) && report.options.iter().any(|option| option == kept);
        if let Some(option) = last(words).filter(|option| is_kept && *option != kept) {
            fail!(
                "option {option}: the server keeps access times as they are since the pool was mounted with {kept}: {anew}"
            );
        }
    }
    Ok(())
}

/// Has mount(8) do it itself, without a helper. Options of the pool may be those that it has already, as those of a line of /etc/fstab are.
pub(super) fn run(args: &HelperArgs, wanted: &Wanted) -> Result<()> {
    if !wanted.options.is_empty() && args.namespace.is_some() {
        fail!(
            "option {}: give no options of the pool for a mount of another namespace",
            wanted.options.join(",")
        );
    }
    if args.namespace.is_none() {
        let server = Connection::to_server_of(&args.directory, To::Look);
        match server.and_then(|(mut server, _)| server.status()) {
            Ok(report) => refuse_changes(args, wanted, &report)?,
            Err(failure) if !wanted.options.is_empty() => return Err(failure),
            // The kernel can change its own options without the server.
            Err(_) => {}
        }
    }
    let of_kernel = args.written().filter(|option| !is_of_pool(option));
    let options = of_kernel.collect::<Vec<_>>().join(",");
    // It enters the namespace itself: a program of that one's would have the rights of this one.
    let namespace = args
        .namespace
        .iter()
        .flat_map(|path| [OsStr::new("-N"), path.as_os_str()]);
    let done = Command::new("mount")
        .args(namespace)
        .args(["-i", "-o", &options, "--"])
        .args([Path::new(&args.source), &args.directory])
        .status();
    match done {
        Ok(status) if status.success() => Ok(()),
        // It has told why.
        Ok(status) => fail!("cannot remount {}: mount: {status}", args.directory.display()),
        Err(error) => fail!("{NAME} cannot run mount: {error}"),
    }
}
