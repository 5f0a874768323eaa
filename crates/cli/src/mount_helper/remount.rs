//! `mount -o remount`: what is the kernel's to change is handed on to it, what is the pool's is refused.
//!
//! mount(8) runs `mount.fuse.homenode` for it, named by the type in the mount table, with what the mount has already and what
//! is asked for in one list; for a line of /etc/fstab it runs `mount.homenode`, with the line's options in front.

use super::options::{Meaning, meaning};
use super::{HelperArgs, NAME, is_pool_option};
use crate::failure::{Result, fail};
use std::path::Path;
use std::process::Command;

/// Options that mount(2) applies to an existing mount.
const BY_KERNEL: [&str; 13] = [
    "remount",
    "ro",
    "nosuid",
    "nodev",
    "noexec",
    "noatime",
    "nodiratime",
    "norelatime",
    "strictatime",
    "sync",
    "dirsync",
    "nosymfollow",
    "mand",
];
/// Options of a FUSE mount in the mount table. The kernel lists these options, and a remount ignores them.
const OF_FUSE: [&str; 3] = ["user_id", "group_id", "max_read"];

pub(super) fn is_asked_for(args: &HelperArgs) -> bool {
    args.written().any(|option| option == "remount")
}

/// Refuses what a mounted pool cannot change.
pub(super) fn check(args: &HelperArgs) -> Result<()> {
    for option in args.written() {
        let name = option.split_once('=').map_or(option, |(name, _)| name);
        if BY_KERNEL.contains(&name) || OF_FUSE.contains(&name) {
            continue;
        }
        match meaning(option) {
            Meaning::GivenAnyway | Meaning::ReadOnly => {}
            Meaning::Refused(remedy) => fail!("option {option}: {remedy}"),
            Meaning::OfPool if is_pool_option(name) => fail!(
                "option {option}: a mounted pool keeps it, remount changes no pool; its members change with `homenode pool \
                 add`, `drain` and `remove`. `mount -i -o remount,ro DIR` (or rw) leaves the pool's options of /etc/fstab out"
            ),
            Meaning::OfPool if args.sloppy => {}
            Meaning::OfPool => fail!("option {option} is not known"),
        }
    }
    Ok(())
}

/// Has mount(8) do it itself, without a helper.
pub(super) fn run(args: &HelperArgs) -> Result<()> {
    let options = args.written().collect::<Vec<_>>().join(",");
    let done = Command::new("mount")
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
