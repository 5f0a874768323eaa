//! Running the programs that tests need, and the seeds they run with.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Runs it to its end; a failure shows all it said.
pub(crate) fn run(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    assert!(
        output.status.success(),
        "{command:?} ended with {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// What it printed, without the last end of line.
pub(crate) fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone())
        .expect("the tools of these tests print text")
        .trim_end()
        .to_owned()
}

/// A seed that differs with every run, or the one of `HOMENODE_TEST_SEED`. Printed past the test harness's capture.
pub(crate) fn seed(what: &str) -> u32 {
    let seed = match std::env::var("HOMENODE_TEST_SEED") {
        Ok(text) => text.parse().expect("HOMENODE_TEST_SEED is a number below 2^32"),
        Err(_) => fastrand::u32(..),
    };
    // A failed write to standard error must not fail the test.
    let _ = writeln!(std::io::stderr(), "{what}: seed {seed}");
    seed
}

/// The cargo that built this test.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Where tools that tests install for themselves are kept between runs: beside what cargo builds.
pub(crate) fn tools() -> PathBuf {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_homenode"));
    let target = binary.ancestors().nth(2).expect("cargo puts binaries two levels down");
    target.join("tools")
}
