//! `homenode simulate`.

use super::harness::*;
use super::machine;
use homenode::blk::trace::{Entry, header};
use homenode::blk::{Durability, Operation, Request};
use serde_json::Value;
use std::fs;
use std::process::Command;

fn simulate(arguments: &[&str]) -> Command {
    let mut command = homenode(["simulate"]);
    command.args(arguments);
    command
}

#[test]
fn a_recorded_machine_is_told_what_it_would_gain() {
    let [from, directory] = machine::with_pool();
    let told: Value = serde_json::from_str(&shown(&mut simulate(&[from, directory, "--json"]))).unwrap();
    let number = |name: &str| told[name].as_i64().unwrap();
    assert!(number("moves") > 0 && number("bytes") > 500_000_000, "{told}");
    assert_eq!(
        number("freed"),
        number("crossing_before") - number("crossing_after"),
        "{told}"
    );
    assert!(number("freed") > 100_000_000, "{told}");
    let range = |name: &str| {
        told[name]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it.as_i64().unwrap())
            .collect::<Vec<_>>()
    };
    let freed = range("freed_range");
    assert!(
        freed[0] <= number("freed") && number("freed") <= freed[1] && freed[0] < freed[1],
        "{told}"
    );
    let text = shown(&mut simulate(&[from, directory]));
    assert!(text.starts_with("simulated from "), "{text}");
    says(&text, &["would stay home: "]);
    assert_eq!(
        text,
        shown(&mut simulate(&[from, directory])),
        "the same seed tells the same"
    );
}

#[test]
fn spoilt_recordings_are_refused() {
    let spoilt = machine::copy();
    let directory = spoilt.path().to_str().unwrap();
    fs::write(spoilt.path().join("topology.xml"), "<topology").unwrap();
    refused(&mut simulate(&["--from", directory]), 1, &[directory]);
    fs::remove_file(spoilt.path().join("topology.xml")).unwrap();
    refused(&mut simulate(&["--from", directory]), 1, &[directory]);
    refused(&mut simulate(&["--from", "/nowhere"]), 1, &["/nowhere"]);
}

#[test]
fn figures_are_files() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("figures");
    let make = |more: &[&str]| {
        simulate(&["figures", "--small", "--draws", "2", "--out", out.to_str().unwrap()])
            .args(more)
            .output()
    };
    let told = make(&["blk-mq-4"]).unwrap();
    assert!(told.status.success(), "{told:?}");
    assert_eq!(fs::read_dir(&out).unwrap().count(), 2);
    let rows = fs::read_to_string(out.join("blk-mq-4.csv")).unwrap();
    assert!(rows.starts_with("series,\"cores\",low,median,high\n"), "{rows}");
    assert!(make(&[]).unwrap().status.success());
    let page = fs::read_to_string(out.join("README.md")).unwrap();
    let figures = fs::read_dir(&out)
        .unwrap()
        .filter(|file| file.as_ref().unwrap().path().extension().unwrap() == "svg");
    assert_eq!(page.matches("## ").count(), figures.count());
    assert_eq!(
        fs::read_to_string(out.join("blk-mq-4.csv")).unwrap(),
        rows,
        "the same seed draws the same"
    );
    refused(
        &mut simulate(&["figures", "--out", "/proc/nowhere"]),
        1,
        &["cannot create /proc/nowhere"],
    );
    refused(&mut simulate(&["figures", "none"]), 2, &["possible values"]);
}

#[test]
fn loads_that_cannot_be_are_refused() {
    let text = shown(&mut simulate(&[
        "fio",
        "--machine",
        "node:2 core:2 pu:1",
        "--size",
        "1M",
        "--draws",
        "2",
    ]));
    assert!(text.starts_with("simulated, 2 draws"), "{text}");
    says(&text, &["100.0 % local"]);
    // Nodes without CPUs.
    let cxl = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/topologies/cxl.xml");
    shown(&mut simulate(&["fio", "--machine", cxl, "--size", "1M"]));
    for (arguments, problem) in [
        (
            &["fio", "--machine", "node:2 core:2 pu:1", "--jobs", "5"][..],
            "has 4 CPUs",
        ),
        (&["fio", "--set", "hop=3"], "no constant hop"),
        (&["fio", "--set", "hop_ns=-3"], "NAME=VALUE"),
        (&["fio", "--set", "local_ns=0"], "NAME=VALUE"),
        (&["fio", "--set", "copies.4096=0"], "NAME=VALUE"),
        (&["fio", "--set", "copies.4k=300"], "no constant copies.4k"),
        (&["fio", "--set", "crowded_copies.4096=300"], "give both"),
        (&["fio", "--size", "1K"], "less than a block"),
        (&["fio", "--runtime", "0", "--rw", "randread"], "--runtime 0"),
        (
            &["fio", "--machine", "node:2 core:1 pu:1", "--size", "1T"],
            "do not fit",
        ),
        (&["fio", "--machine", "/nowhere.xml"], "/nowhere.xml"),
    ] {
        refused(&mut simulate(arguments), 1, &[problem]);
    }
    refused(&mut simulate(&[]), 1, &["--from", "`figures`"]);
    refused(&mut simulate(&["--draws", "0", "--from", "x"]), 2, &["1..=1000"]);
}

#[test]
fn traces_are_placed_on_machines_that_have_their_nodes() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("trace");
    let on = |machine: &str| simulate(&["trace", file.to_str().unwrap(), "--machine", machine]);
    let two = "node:2 core:2 pu:1";
    fs::write(
        &file,
        "homenode trace 1\nnode 0 1048576\nnode 1 1048576\n1 0 5 0 8192 w\n2 1 5 0 8192 r\n3 1 6 0 4096 w\n",
    )
    .unwrap();
    let text = shown(&mut on(two));
    assert!(text.contains("Homenode            60.0 % of 0.0 MB local"), "{text}");
    refused(
        &mut on("node:1 core:2 pu:1"),
        1,
        &["node 1", "give the machine that was recorded"],
    );
    for (spoilt, problem) in [
        ("homenode trace 2\n", "another version"),
        ("homenode trace 1\nnode 0 9\n1 0 5", "is cut"),
        ("homenode trace 1\nnode 0 9\nnonsense\n", "line 3"),
        ("homenode trace 1\nnode 0 9\n", "no read and no write"),
    ] {
        fs::write(&file, spoilt).unwrap();
        refused(&mut on(two), 1, &[problem]);
    }
    // Of a volume: cores 0 and 1 are on node 0, core 3 on node 1.
    let entry = |core, operation, offset| {
        let request = Request {
            operation,
            durability: Durability::default(),
            stream: 0,
            bytes: 4096,
            offset,
            buffer: 0,
            user: 0,
        };
        let entry = Entry {
            time_ns: u64::from(core),
            request,
            core,
            lost: 0,
        };
        entry.to_bytes()
    };
    let (write, read) = (Operation::Write, Operation::Read);
    let mut bytes = header(1 << 20).to_vec();
    for one in [
        entry(0, write, 0),
        entry(1, read, 0),
        entry(3, read, 0),
        entry(3, write, 4096),
    ] {
        bytes.extend(one);
    }
    fs::write(&file, &bytes).unwrap();
    assert!(shown(&mut on(two)).contains("Homenode            75.0 % of 0.0 MB local"));
    refused(&mut on("node:1 core:2 pu:1"), 1, &["core 3", "2 CPUs"]);
    for (at, problem) in [(32 + 8, "ends beyond any offset"), (32 + 16, "more than 16 MiB")] {
        let mut spoilt = bytes.clone();
        spoilt[at..at + 8][..if at == 32 + 8 { 8 } else { 4 }].fill(0xFF);
        fs::write(&file, &spoilt).unwrap();
        refused(&mut on(two), 1, &["entry 0", problem]);
    }
    bytes[32 + 22] = 99;
    fs::write(&file, &bytes).unwrap();
    refused(&mut on(two), 1, &["entry 0", "unknown operation"]);
}
