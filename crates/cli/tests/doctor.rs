//! `homenode doctor` through the real binary: this machine, a recorded one, and what is not one.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

#[path = "support/command.rs"]
mod support;

use homenode_linux::affinity::record;
use homenode_linux::topology::Source;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use support::{as_nobody, fail, homenode, says, shown, skipped};

fn doctor(arguments: &[&str]) -> Command {
    let mut command = homenode(["doctor"]);
    command.args(arguments);
    command
}

/// Returns the doctor's output; panics if the doctor fails or writes to standard error.
fn told(arguments: &[&str]) -> String {
    shown(&mut doctor(arguments))
}

/// Returns the doctor's message; panics unless the doctor exits with `code` and an empty standard output.
fn refused(code: i32, arguments: &[&str]) -> String {
    fail(code, &mut doctor(arguments))
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&told(&[arguments, &["--json"]].concat())).unwrap()
}

fn has_one_node(judged: &Value) -> bool {
    judged["machine"]["topology"]["nodes"].as_array().unwrap().len() == 1
}

#[test]
fn doctor_examines_this_machine() {
    let judged = json(&["--period", "0.2"]);
    assert_eq!(judged["bodies"]["volume"]["truncate"], "EINVAL");
    assert_eq!(judged["output_version"], 1);
    assert!(
        judged["machine"]["kernel"]
            .as_str()
            .unwrap()
            .starts_with(|first: char| first.is_ascii_digit())
    );
    assert!(judged["period_s"].as_f64().unwrap() >= 0.2, "{judged}");
    let text = told(&["--period", "0.2"]);
    let first = text.lines().next().unwrap();
    if has_one_node(&judged) {
        assert!(first.starts_with("nothing to gain here"), "{text}");
        assert_eq!(
            (&judged["verdict"], &judged["gain_mb_s"]),
            (&"one-node".into(), &0.0.into())
        );
        let findings = judged["findings"].as_array().unwrap();
        assert!(
            findings.iter().all(|finding| finding["is_of_nodes"] == false),
            "{findings:?}"
        );
    } else {
        skipped("this machine has several nodes, so that nobody knows what is to be found");
    }
    assert!(
        text.contains("\nthis machine: ") && text.contains("node 0"),
        "the facts follow: {text}"
    );
}

/// In a mount namespace of its own, with another /etc.
#[test]
fn doctor_tells_of_mistakes_in_the_configuration() {
    if !rustix::process::geteuid().is_root() {
        skipped("needs root");
        return;
    }
    let said = |make: &str| {
        let script =
            format!("mount -t tmpfs none /etc && mkdir /etc/homenode && {make} && exec \"$0\" doctor --period 0.2");
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            &script,
            support::BINARY,
        ]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let unknown = said("printf '[devices]\\neht0 = \"off\"\\n' >/etc/homenode/affinity.toml");
    assert!(unknown.contains("the configuration names eht0"), "{unknown}");
    let link = said("ln -s missing /etc/homenode/affinity.toml");
    says(&link, &["affinity.toml is a link", "defaults"]);
}

#[test]
fn doctor_without_root_judges_readable_data() {
    if !rustix::process::geteuid().is_root() {
        doctor_examines_this_machine();
        return;
    }
    let output = as_nobody(&["doctor", "--period", "0.2", "--json"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let judged: Value = serde_json::from_slice(&output.stdout).unwrap();
    let unseen = judged["unseen"].as_array().unwrap();
    let tells = |gap: &Value| gap["why"].as_str().unwrap().contains("root may read them");
    assert!(unseen.iter().any(tells), "{unseen:?}");
    assert!(judged["threads_unread"].as_u64().unwrap() > 0, "{judged}");
}

#[test]
fn doctor_reads_recordings_and_refuses_damaged_ones() {
    let recording = tempfile::tempdir().unwrap();
    let directory = recording.path().join("machine");
    record(
        &Source::Live,
        Path::new("/"),
        &directory,
        Duration::from_millis(100),
        Box::new(Vec::new),
    )
    .unwrap();
    let name = directory.to_str().unwrap();
    let text = told(&["--from", name]);
    assert!(text.contains(&format!("\n{name}: ")), "{text}");
    let (recorded, live) = (json(&["--from", name]), json(&["--period", "0.1"]));
    for part in ["kernel", "is_virtual"] {
        assert_eq!(recorded["machine"][part], live["machine"][part]);
    }
    let sizes = |judged: &Value| {
        let memory = judged["machine"]["memory"].as_array().unwrap();
        memory
            .iter()
            .map(|node| (node["node"].clone(), node["bytes"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(sizes(&recorded), sizes(&live));

    fs::remove_file(directory.join("1/proc/interrupts")).unwrap();
    let message = refused(1, &["--from", name]);
    says(&message, &["1/proc/interrupts is missing", "record"]);
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    let message = refused(1, &["--from", "/nowhere"]);
    assert!(message.contains("/nowhere"), "{message}");
}

#[test]
fn a_recording_that_crashes_hwloc_is_refused() {
    let recording = tempfile::tempdir().unwrap();
    let machines = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/topologies");
    let whole = fs::read_to_string(machines.join("cxl.xml")).unwrap();
    let complete = " complete_cpuset=\"0x00000004\"";
    assert!(whole.contains(complete));
    fs::write(recording.path().join("topology.xml"), whole.replace(complete, "")).unwrap();
    let message = refused(1, &["--from", recording.path().to_str().unwrap()]);
    says(&message, &["topology.xml", "hwloc"]);
}

#[test]
fn doctor_refuses_unknown_arguments() {
    for arguments in [
        &["--period", "0"][..],
        &["--period", "soon"],
        &["--from", "/", "--period", "1"],
        &["here"],
    ] {
        refused(2, arguments);
    }
}
