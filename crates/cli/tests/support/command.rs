//! The command, as root and as somebody else.
#![allow(dead_code, reason = "each test needs some of it")]
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod says;

pub(crate) use says::says;
use signal_hook::consts::{SIGHUP, SIGINT};
use signal_hook::flag;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;
use std::{fs, thread};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_homenode");

pub(crate) fn homenode<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    // Whatever started the tests may have had them ignore these; a program that a process with an own action starts has the default one.
    static ACTIONS: Once = Once::new();
    ACTIONS.call_once(|| {
        for signal in [SIGINT, SIGHUP] {
            flag::register_conditional_default(signal, Arc::new(AtomicBool::new(true))).unwrap();
        }
    });
    let mut command = Command::new(BINARY);
    command.args(arguments);
    command
}

/// Runs a command that must succeed without a word on standard error; gives what it printed.
pub(crate) fn shown(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{command:?}: {}",
        describe(&output)
    );
    text(output.stdout)
}

/// Runs a command that must fail with exit code `code`; gives its message.
pub(crate) fn fail(code: i32, command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {}", describe(&output));
    assert!(
        output.stdout.is_empty(),
        "a failure prints on standard error only: {}",
        describe(&output)
    );
    let message = text(output.stderr);
    assert!(!message.contains("panicked"), "{message}");
    message
}

/// Runs the command as nobody, who may run the binary but owns nothing. For root.
pub(crate) fn as_nobody(arguments: &[&str]) -> Output {
    // Where everybody may look: the target directory may be below one that is private.
    let directory = tempfile::tempdir().unwrap();
    let binary = directory.path().join("homenode");
    fs::copy(BINARY, &binary).unwrap();
    make_public(directory.path());
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    command.arg(binary).args(arguments).current_dir("/");
    // Threads that only sleep are not asked for: root has one that runs.
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
            }
        });
        let output = command.output();
        is_over.store(true, Ordering::Relaxed);
        output.unwrap()
    })
}

pub(crate) fn make_public(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Says that something is skipped, past the test harness's capture.
pub(crate) fn skipped(why: &str) {
    let test = thread::current().name().unwrap_or("a test").to_owned();
    // Not by a macro: the test harness would keep it to itself.
    let _ = writeln!(io::stderr(), "SKIPPED: {why} ({test})");
}

pub(crate) fn describe(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}

pub(crate) fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}
