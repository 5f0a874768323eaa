//! `homenode affinity record`, and what is wrong with recordings.

use super::harness::*;
use super::load::wait_until;
use super::machine;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn plan_of(directory: &Path) -> std::process::Command {
    affinity([Path::new("plan"), Path::new("--from"), directory])
}

#[test]
fn this_machine_is_recorded_and_planned_from_the_recording() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("a recording");
    let text = shown(&mut affinity([Path::new("record"), &directory, Path::new(BRIEFLY)]));
    let first = text.lines().next().unwrap();
    let expected = format!("`homenode affinity plan --from {}`", directory.display());
    assert!(first.starts_with("recorded ") && first.contains(&expected), "{text}");
    let plan = shown(plan_of(&directory).arg("--json"));
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let all = ["actions", "stays"].map(|part| plan[part].as_array().unwrap());
    for (kinds, name) in [
        (&["thread"][..], "thread"),
        (&["interrupt"], "interrupt"),
        (&["transmit", "receive"], "queue"),
    ] {
        let of_kind = |one: &&serde_json::Value| kinds.contains(&one["target"]["kind"].as_str().unwrap());
        let number = all.into_iter().flatten().filter(of_kind).count();
        let counted = format!(" {number} {name}{}", if number == 1 { "" } else { "s" });
        let word = |end: &str| first.contains(&format!("{counted}{end}"));
        assert!(word(",") || word(";"), "{counted}: {first}");
    }
    let planned = shown(&mut plan_of(&directory));
    assert!(
        planned.contains(" looked at for ") || planned.contains(" move"),
        "{planned}"
    );
    refused(
        &mut affinity([Path::new("record"), &directory, Path::new(BRIEFLY)]),
        1,
        &["not empty", directory.to_str().unwrap()],
    );
    refused(
        &mut affinity(["record", "/proc/nowhere", BRIEFLY]),
        1,
        &["cannot write /proc/nowhere"],
    );
}

#[test]
fn a_missing_file_of_a_recording_is_named() {
    let copy = machine::copy();
    let missing = copy.path().join("1/proc/uptime");
    fs::remove_file(&missing).unwrap();
    refused(
        &mut plan_of(copy.path()),
        1,
        &["is incomplete", missing.to_str().unwrap(), "record the machine again"],
    );
    let nowhere = copy.path().join("nowhere");
    let made = "name a directory that `homenode affinity record DIR` made";
    refused(&mut plan_of(&nowhere), 1, &["nowhere is not there: ", made]);
    refused(
        &mut plan_of(&copy.path().join("meta")),
        1,
        &["meta is no directory: ", made],
    );
    let meta = copy.path().join("meta");
    let whole = fs::read_to_string(&meta).unwrap();
    fs::write(
        &meta,
        whole.replacen("homenode-recording 6\n", "homenode-recording 3\n", 1),
    )
    .unwrap();
    let parts = [
        "is of another version of homenode (\"homenode-recording 3\", not \"homenode-recording 6\"): record",
        copy.path().to_str().unwrap(),
    ];
    refused(&mut plan_of(copy.path()), 1, &parts);
    fs::write(&meta, "something else\n").unwrap();
    refused(&mut plan_of(copy.path()), 1, &["is damaged", "/meta"]);
}

#[test]
fn a_recording_that_may_not_be_read_is_not_called_damaged() {
    let copy = machine::copy();
    let interrupts = copy.path().join("1/proc/interrupts");
    // Handed on by its owner.
    fs::set_permissions(copy.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&interrupts, fs::Permissions::from_mode(0o000)).unwrap();
    if let Some(output) = as_nobody(&["plan", "--from", copy.path().to_str().unwrap()]) {
        let told = String::from_utf8_lossy(&output.stderr);
        let part = format!(
            "cannot read {}: Permission denied (os error 13): run it as root",
            interrupts.display()
        );
        assert!(told.contains(&part), "{told}");
    }
    fs::set_permissions(copy.path(), fs::Permissions::from_mode(0o700)).unwrap();
    // Its file cannot be read, and what is inside not even looked at.
    for (directory, named) in [(copy.path().to_path_buf(), "/meta"), (copy.path().join("1"), "/1")] {
        let Some(output) = as_nobody(&["plan", "--from", directory.to_str().unwrap()]) else {
            return;
        };
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("cannot read") && told.contains(named), "{told}");
        assert!(told.contains("or root") && !told.contains("damaged"), "{told}");
    }
}

/// Not by the signal of Ctrl-C: who starts tests in the background may have it ignored.
#[test]
fn an_incomplete_recording_is_reported() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("recording");
    let mut record = affinity([Path::new("record"), &directory, Path::new("--period=60")]);
    let mut record = record.spawn().unwrap();
    wait_until("a recording", || directory.join("0/proc/uptime").exists());
    kill_process(Pid::from_child(&record), Signal::TERM).unwrap();
    assert!(!record.wait().unwrap().success());
    let parts = [
        directory.to_str().unwrap(),
        "has no file meta",
        "stopped before its end",
        "into another directory",
    ];
    refused(&mut plan_of(&directory), 1, &parts);
}

#[test]
fn hardware_that_crashes_hwloc_is_refused() {
    let copy = machine::copy();
    let hardware = copy.path().join("topology.xml");
    let cxl = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/topologies/cxl.xml");
    let whole = fs::read_to_string(cxl).unwrap();
    fs::write(&hardware, whole.replace(" complete_cpuset=\"0x00000004\"", "")).unwrap();
    let parts = [
        "is damaged",
        hardware.to_str().unwrap(),
        "hwloc crashes",
        "record the machine again",
    ];
    refused(&mut plan_of(copy.path()), 1, &parts);
    fs::write(&hardware, "nonsense").unwrap();
    refused(&mut plan_of(copy.path()), 1, &[hardware.to_str().unwrap()]);
}
