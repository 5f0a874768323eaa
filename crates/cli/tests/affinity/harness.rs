//! The command, as root and as somebody else.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_homenode");
/// Short, where only the words count.
pub(crate) const BRIEFLY: &str = "--period=0.2";

pub(crate) fn affinity<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(BINARY);
    command.arg("affinity").args(arguments);
    command
}

/// Runs a command that must succeed without a word on standard error, and gives what it printed.
pub(crate) fn shown(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{command:?}: {output:?}"
    );
    text(output.stdout)
}

/// Runs a command that must fail with a message that has these parts.
pub(crate) fn refused(command: &mut Command, code: i32, parts: &[&str]) {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let message = text(output.stderr);
    for part in parts {
        assert!(message.contains(part), "{command:?}: no {part:?} in {message}");
    }
}

/// Runs a command as nobody, who may run the binary but owns nothing; `None` unless this test runs as root.
pub(crate) fn as_nobody(arguments: &[&str]) -> Option<Output> {
    if !rustix::process::geteuid().is_root() {
        skipped("root, to be somebody else");
        return None;
    }
    // Where everybody may look: the target directory may be below one that is private.
    let directory = tempfile::tempdir().unwrap();
    let binary = directory.path().join("homenode");
    std::fs::copy(BINARY, &binary).unwrap();
    make_public(directory.path());
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg("--").arg(binary).arg("affinity").args(arguments);
    // Threads that only sleep are not asked for: root has one that runs.
    let is_over = AtomicBool::new(false);
    Some(thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
            }
        });
        let output = command.output();
        is_over.store(true, Ordering::Relaxed);
        output.unwrap()
    }))
}

/// Only one program may act on a machine: nobody else here does until this is dropped.
pub(crate) fn alone() -> File {
    let file = File::create(concat!(env!("CARGO_TARGET_TMPDIR"), "/affinity.lock")).unwrap();
    file.lock().unwrap();
    file
}

pub(crate) fn make_public(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

pub(crate) fn skipped(needs: &str) {
    let test = thread::current().name().unwrap_or("a test").to_owned();
    // Not by a macro: the test harness would keep it to itself.
    let _ = writeln!(std::io::stderr(), "SKIPPED: needs {needs} ({test})");
}

pub(crate) fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}
