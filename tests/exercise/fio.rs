//! fio --verify: random writes of random sizes over each other, every block with its checksum read back.

use crate::stage::stage;
use crate::tool;
use std::process::Command;

fn verified(engine: &str, options: &[&str]) {
    let stage = stage!();
    let seed = tool::seed(&format!("fio {engine}"));
    let mut command = Command::new("fio");
    command
        .arg("--name=verified")
        .arg(format!("--directory={}", stage.path().display()));
    command
        .arg(format!("--ioengine={engine}"))
        .arg(format!("--randseed={seed}"));
    command.args([
        "--rw=randwrite",
        "--size=24m",
        "--io_size=96m",
        "--numjobs=2",
        "--norandommap=1",
    ]);
    command.args([
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_backlog=1000",
        "--do_verify=1",
    ]);
    command.args([
        "--allrandrepeat=1",
        "--thread=1",
        "--group_reporting=1",
        "--fallocate=none",
    ]);
    // No file that remembers how far a broken run came; it would be left in the directory of the sources.
    command.args(["--verify_state_save=0"]).current_dir(stage.path());
    command.args(options);
    tool::run(&mut command);
}

#[test]
fn cached_writes_of_odd_sizes() {
    verified("psync", &["--bsrange=512-300k", "--bs_unaligned=1"]);
}

#[test]
fn direct_writes_in_flight_together() {
    verified(
        "libaio",
        &[
            "--bsrange=4k-128k",
            "--blockalign=4k",
            "--direct=1",
            "--iodepth=16",
            "--serialize_overlap=1",
        ],
    );
}

#[test]
fn direct_writes_one_by_one() {
    verified("psync", &["--bsrange=4k-1m", "--direct=1"]);
}

#[test]
fn stores_through_a_mapping() {
    verified("mmap", &["--bsrange=4k-64k", "--fsync=64"]);
}
