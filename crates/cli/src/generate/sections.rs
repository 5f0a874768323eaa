//! Sections of a man page besides the command line's own help.

use clap::Command;
use clap_mangen::roff::{Inline, Roff, bold, roman};

const EXIT_STATUS: [(&str, &str); 4] = [
    ("0", "It is done."),
    (
        "1",
        "The command failed; one message on standard error says why, and what to do.",
    ),
    ("2", "The command line was not understood."),
    (
        "128 + N",
        "Signal N ended it before it was done: 130 after Ctrl-C. A message names work that goes on. Commands that run until Ctrl-C \
         or SIGTERM (affinity run, steer, top, web, simulate record, up --foreground) then end with 0, and affinity apply with 1.",
    ),
];
/// Pages of commands that have exit codes of their own, which the help of each tells.
const OTHER_EXIT_STATUS: [&str; 2] = ["homenode-fsck", "homenode-run"];
const ENVIRONMENT: [(&str, &str); 2] = [
    (
        "HOMENODE_LOG",
        "What is logged: off, error, warn, info (the default), debug or trace; or levels of modules, such as \
         warn,homenode_fuse=debug. A server keeps what it was started with.",
    ),
    (
        "HOMENODE_POOLS",
        "Directory of the durable pools that are known, in place of /etc/homenode/pools.",
    ),
];
const FILES: [(&str, &str); 11] = [
    (
        "/run/homenode/MAJOR-MINOR.sock, .log",
        "The server's socket, which the other commands talk to, and its log; named by the mount's device number. Both go \
         when the server ends well; the log of one that was killed stays as .killed.log, of one that failed at its end as .log, or \
         as .earlier.log once another mount has the number.",
    ),
    (
        "/run/homenode-read/MAJOR-MINOR.sock",
        "A socket on which members of the group homenode may look and change nothing; where the group was there when the server started.",
    ),
    (
        "/run/homenode/ublk/N",
        "The volume of the block device /dev/ublkbN of a durable pool, for the server that takes the device over after a crash.",
    ),
    (
        "/etc/homenode/pools/NAME.toml",
        "A durable pool that is known by its name: its UUID, the files of its members, and options of homenode up, such as \
         options = [\"--mover=on\", \"--noatime\"]. Those with a value on a command line outrank it; a flag holds as long as it is there.",
    ),
    ("/etc/fstab", "Pools to mount at boot: mount.homenode(8)."),
    (
        "/etc/default/homenode, /etc/default/homenode-INSTANCE",
        "HOMENODE_OPTIONS of the pools that homenode@.service and homenode-durable@.service bring up.",
    ),
    (
        "/etc/homenode/affinity.toml",
        "Policies of homenode affinity; an annotated example is in share/doc/homenode.",
    ),
    (
        "/var/lib/homenode/affinity.journal",
        "Changes of homenode affinity, with the old values.",
    ),
    (
        "/run/homenode-affinity/lock",
        "Lock of the one homenode affinity that may act on this machine; stays until the next boot.",
    ),
    (
        "/dev/ublk-control, /dev/ublkcN, /dev/ublkbN",
        "The kernel's driver of block devices that programs serve (module ublk_drv), a device's file for its server, and \
         the device, as homenode volume attach prints it.",
    ),
    (
        "/sys/module/fuse/parameters/enable_uring",
        "Y: mounts made from then on may take the transport uring (Linux 6.14 and newer; only root may write it).",
    ),
];

/// Sections for the end of a command's page; most of them are those of the whole.
pub(super) fn of(command: &Command, name: &str) -> Roff {
    let mut page = Roff::new();
    if !OTHER_EXIT_STATUS.contains(&name) {
        list(&mut page, "EXIT STATUS", &EXIT_STATUS);
    }
    let is_whole = name == "homenode";
    if is_whole {
        page.control("PP", []);
        page.text([roman("homenode-fsck(1) and homenode-run(1) have other codes.")]);
        list(&mut page, "ENVIRONMENT", &ENVIRONMENT);
        list(&mut page, "FILES", &FILES);
    }
    page.control("SH", ["SEE ALSO"]);
    let below = command.get_subcommands().filter(|one| !one.is_hide_set());
    let mut others: Vec<(String, &str)> = below.map(|one| (format!("{name}-{}", one.get_name()), "1")).collect();
    // The page above this one.
    others.extend(name.rsplit_once('-').map(|(above, _)| (above.to_owned(), "1")));
    if is_whole || name == "homenode-up" {
        others.push(("mount.homenode".to_owned(), super::ADMINISTRATION));
        others.push(("numa".to_owned(), "7"));
    }
    let pages = others.into_iter().enumerate();
    let pages = pages.flat_map(|(index, (page, section))| -> [Inline; 3] {
        let comma = if index == 0 { "" } else { ", " };
        [roman(comma), bold(page), roman(format!("({section})"))]
    });
    page.text(pages.collect::<Vec<Inline>>());
    page
}

fn list(page: &mut Roff, title: &str, items: &[(&str, &str)]) {
    page.control("SH", [title]);
    for (term, meaning) in items {
        page.control("TP", []);
        page.text([bold(*term)]);
        page.text([roman(*meaning)]);
    }
}
