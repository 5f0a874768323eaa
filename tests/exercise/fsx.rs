//! fsx: random reads, writes, mappings, truncations, holes and copies of one file, every byte compared.

use crate::stage::stage;
use crate::tool;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

const VERSION: &str = "0.3.2";
/// Length of a sequence; `make test` runs both with each transport and each kind of body.
const OPERATIONS: &str = "40000";

/// Everything fsx can do. None of it with 0 bytes: posix_fallocate refuses that on any filesystem, which fsx takes for a fault.
const ALL: &str = "
flen = 400000
[opsize]
max = 40000
min = 1
[weights]
close_open = 1
invalidate = 1
mapread = 5
mapwrite = 5
read = 10
write = 10
truncate = 5
fsync = 0.5
fdatasync = 0.5
posix_fallocate = 2
punch_hole = 5
sendfile = 2
posix_fadvise = 1
copy_file_range = 5
";

/// The installed program; the first run on a machine installs it.
fn program() -> PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let install = || {
        let root = tool::tools();
        let program = root.join("bin/fsx");
        let found = Command::new(&program).arg("--version").output();
        if !found.is_ok_and(|output| tool::text(&output).ends_with(VERSION)) {
            let mut command = tool::cargo();
            command
                .args(["install", "fsx", "--debug", "--version", VERSION, "--locked", "--root"])
                .arg(&root);
            // The build of the test itself must not decide how this one is built.
            command.env_remove("RUSTFLAGS").env_remove("CARGO_TARGET_DIR");
            tool::run(&mut command);
        }
        program
    };
    PROGRAM.get_or_init(install).clone()
}

fn exercise(seed: u32) {
    let stage = stage!();
    let config = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(config.path(), ALL).unwrap();
    // Where fsx leaves the good and the bad copy when they differ.
    let artifacts = tempfile::tempdir().unwrap();
    let mut command = Command::new(program());
    command
        .args(["-N", OPERATIONS, "-S", &seed.to_string()])
        .arg("-P")
        .arg(artifacts.path());
    command.arg("-f").arg(config.path()).arg(stage.at("fsx"));
    let output = command.output().unwrap();
    if !output.status.success() {
        let kept = artifacts.keep();
        let said = String::from_utf8_lossy(&output.stderr);
        let last: Vec<_> = said.lines().rev().take(40).collect();
        panic!(
            "{command:?} ended with {}; copies are in {}\n{last:#?}",
            output.status,
            kept.display()
        );
    }
}

#[test]
fn a_known_sequence() {
    exercise(20_070_707);
}

#[test]
fn a_random_sequence() {
    exercise(tool::seed("fsx"));
}
