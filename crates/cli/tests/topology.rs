//! `homenode topology` and `homenode member list` through the real binary.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn homenode(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_homenode"))
        .args(arguments)
        .output()
        .expect("the binary starts")
}

fn recorded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/topologies")
        .join(name)
}

/// Runs a command that must succeed silently, and gives what it printed.
fn shown(arguments: &[&str]) -> String {
    let output = homenode(arguments);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).expect("output is text")
}

/// Runs a command that must fail with a message on one subject, and gives the message.
fn refused(from: &str) -> String {
    let output = homenode(&["topology", "--from", from]);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).expect("messages are text")
}

#[test]
fn shows_recorded_machines() {
    let cxl = recorded("cxl.xml");
    let text = shown(&["topology", "--from", cxl.to_str().unwrap()]);
    assert!(text.contains("├─ node 1: memory-only (CXL), 128 GiB, 240 ns"), "{text}");
    assert!(text.contains("\n  node 2  150  320   85  240\n"), "{text}");

    let json = shown(&["topology", "--json", "--from", cxl.to_str().unwrap()]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["output_version"], 1);
    assert_eq!(json["nodes"][1]["kind"], "memory-only");
    assert_eq!(json["latency"]["source"], "hmat");
    assert_eq!(json["latency"]["matrix"][2][1], 320);
    assert_eq!(json["cpu_nodes"].as_array().unwrap().len(), 16);
}

#[test]
fn shows_this_machine_and_what_it_offers() {
    assert!(shown(&["topology"]).starts_with("this machine: "));
    let json: serde_json::Value = serde_json::from_str(&shown(&["member", "list", "--json"])).unwrap();
    assert_eq!(json["output_version"], 1);
    let first = &json["members"][0];
    assert!(first["bytes"].as_u64().unwrap() > 0, "{first}");
    assert!(shown(&["member", "list"]).starts_with("MEMBER "));
}

#[test]
fn bad_sources_are_named() {
    for from in [
        "garbage",
        "node:4 core:",
        "/nonexistent/machine.xml",
        "/etc/passwd",
        "/",
    ] {
        let message = refused(from);
        assert!(message.contains(from), "{message}");
        assert!(message.lines().count() <= 3, "one message: {message}");
    }
}

#[test]
fn a_file_that_crashes_hwloc_is_refused() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("damaged.xml");
    let whole = std::fs::read_to_string(recorded("cxl.xml")).unwrap();
    let complete = " complete_cpuset=\"0x00000004\"";
    assert!(whole.contains(complete));
    std::fs::write(&file, whole.replace(complete, "")).unwrap();
    let message = refused(file.to_str().unwrap());
    assert!(
        message.contains(file.to_str().unwrap()) && message.contains("lstopo"),
        "{message}"
    );
}
