//! `--check` of a run that leaves out parts.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::process::Command;

#[test]
fn a_part_that_is_skipped_fails_the_check() {
    let bench = env!("CARGO_BIN_EXE_homenode-bench");
    let words = [
        "-c",
        "0",
        bench,
        "fs",
        "--check",
        "--case",
        "4k/read/1t/separate",
        "--rounds",
        "1",
    ];
    let output = Command::new("taskset").args(words).output().unwrap();
    let (told, failed) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(told.contains("SKIPPED: cases of two threads"), "{told}");
    // Without root, tmpfs is missing before.
    let is_told = failed.contains("1 parts were skipped") || !rustix::process::geteuid().is_root();
    assert!(is_told && !output.status.success(), "{told}{failed}");
}
