//! `homenode affinity`, as root and as somebody else.

use crate::support;
pub(crate) use crate::support::{BINARY, fail, homenode, make_public, says, shown, text};
use std::ffi::OsStr;
use std::fs::File;
use std::process::{Command, Output};

/// Short, where only the words count.
pub(crate) const BRIEFLY: &str = "--period=0.2";

pub(crate) fn affinity<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = homenode(["affinity"]);
    command.args(arguments);
    command
}

/// Runs a command that must fail with a message that has these parts.
pub(crate) fn refused(command: &mut Command, code: i32, parts: &[&str]) {
    says(&fail(code, command), parts);
}

/// Runs it as nobody; `None` unless this test runs as root.
pub(crate) fn as_nobody(arguments: &[&str]) -> Option<Output> {
    if !rustix::process::geteuid().is_root() {
        skipped("root, to be somebody else");
        return None;
    }
    Some(support::as_nobody(&[&["affinity"], arguments].concat()))
}

/// Only one program may act on a machine: nobody else here does until this is dropped.
pub(crate) fn alone() -> File {
    let file = File::create(concat!(env!("CARGO_TARGET_TMPDIR"), "/affinity.lock")).unwrap();
    file.lock().unwrap();
    file
}

pub(crate) fn skipped(needs: &str) {
    support::skipped(&format!("needs {needs}"));
}
