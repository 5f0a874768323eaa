//! Messages of `apply` when it fails after it has changed something.

use super::harness::*;
use super::load::{self, Load};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::process::{Child, Command, Output, Stdio};

const PERIOD: &str = "--period=1";

/// `apply`, in a namespace of mounts that nobody else sees.
fn apart(load: &Load, arguments: &[&str]) -> Child {
    let apply = load.affinity(arguments);
    let mut command = Command::new("unshare");
    command.arg("--mount").arg(apply.get_program()).args(apply.get_args());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Returns the output of an `apply` that cannot read the machine in the look after it moved the load. On a busy machine
/// that may be the last look: then `apply` is tried again. Each is reverted.
fn failed_later(load: &Load, arguments: &[&str]) -> (String, String) {
    let mut said = None;
    load::wait_until("a look that fails", || {
        let mut apply = apart(load, arguments);
        while !load.is_moved() && apply.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let target = apply.id().to_string();
        let cover = [
            "--mount",
            "--target",
            &target,
            "mount",
            "-t",
            "tmpfs",
            "homenode-test",
            "/proc",
        ];
        // It may have ended.
        let _ = Command::new("nsenter").args(cover).output().unwrap();
        let output = apply.wait_with_output().unwrap();
        let moved = load.is_moved();
        shown(&mut load.affinity(&["revert"]));
        let (told, warned) = (text(output.stdout), text(output.stderr));
        let failed = moved && warned.contains("/proc");
        if failed {
            assert_eq!(output.status.code(), Some(1), "{warned}");
            said = Some((told, warned));
        }
        failed
    });
    said.unwrap()
}

fn one_stands(load: &Load) -> String {
    let journal = load.journal();
    let revert = format!("`homenode affinity revert --journal {}`", journal.display());
    format!("; 1 change that was made before stands: {revert} takes it back\n")
}

/// Returns the output of an `apply` that moved the load and then ended with an error. `signal`, if any, comes before the
/// next look. On a busy machine `apply` may do nothing for some periods.
fn ended(load: &Load, arguments: &[&str], signal: Option<Signal>, output: fn() -> Stdio) -> Output {
    let mut ended = None;
    load::wait_until("a change that stands", || {
        let mut apply = load.affinity(arguments);
        let mut apply = apply.stdout(output()).stderr(Stdio::piped()).spawn().unwrap();
        while !load.is_moved() && apply.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        if let (Some(signal), None) = (signal, apply.try_wait().unwrap()) {
            kill_process(Pid::from_child(&apply), signal).unwrap();
        }
        let output = apply.wait_with_output().unwrap();
        let has_failed = load.is_moved() && !output.status.success();
        if has_failed {
            ended = Some(output);
        }
        shown(&mut load.affinity(&["revert"]));
        has_failed
    });
    ended.unwrap()
}

#[test]
fn apply_ended_by_a_signal_tells_how_many_changes_stand() {
    let Some(load) = Load::start() else { return };
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let output = ended(&load, &["apply", PERIOD, "--json"], Some(signal), Stdio::piped);
        let (said, warned) = (text(output.stdout), text(output.stderr));
        assert_eq!(output.status.code(), Some(1), "{warned}");
        assert!(warned.ends_with(&one_stands(&load)), "{warned}");
        says(&warned, &["ended by SIG"]);
        let told: serde_json::Value = serde_json::from_str(&said).unwrap();
        let looks = told["looks"].as_array().unwrap();
        let action = &looks.last().unwrap()["actions"][0];
        assert_eq!(action["outcome"]["is_done"], true, "{said}");
    }
}

#[test]
fn apply_with_unwritable_output_tells_how_many_changes_stand() {
    let Some(load) = Load::start() else { return };
    let full = || File::create("/dev/full").unwrap().into();
    for arguments in [&["apply", PERIOD][..], &["apply", PERIOD, "--json"]] {
        let output = ended(&load, arguments, None, full);
        let warned = text(output.stderr);
        assert_eq!(output.status.code(), Some(1), "{warned}");
        assert!(
            warned.starts_with("homenode: cannot write the output: No space left on device")
                && warned.ends_with(&one_stands(&load)),
            "{warned}"
        );
    }
}

/// Threads that begin in the first period are left for the second.
#[test]
fn threads_that_have_just_begun_are_looked_at_again() {
    let Some(load) = Load::start() else { return };
    let mut moved = false;
    load::wait_until("moved", || {
        let config = fs::read_to_string(load.config()).unwrap();
        let name = config.lines().last().unwrap().split(' ').next().unwrap().to_owned();
        let begins = format!("{}b", name.trim_end_matches('b'));
        fs::write(load.config(), config.replace(&name, &begins)).unwrap();
        let mut apply = load.affinity(&["apply", "--period=1.5"]);
        let apply = apply.stdout(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(700));
        let another = load.another(&begins);
        let said = text(apply.wait_with_output().unwrap().stdout);
        // The first look may come before it begins, on a busy machine.
        moved = said.starts_with("nothing to move: ") && said.contains("\nlooked again: 1 of ");
        drop(another);
        moved
    });
    shown(&mut load.affinity(&["revert"]));
}

#[test]
fn a_failed_later_look_tells_the_earlier_changes() {
    let Some(load) = Load::start() else { return };
    let before = load.mask();
    let (said, warned) = failed_later(&load, &["apply", PERIOD, "--json"]);
    assert!(warned.ends_with(&one_stands(&load)), "{warned}");
    let told: serde_json::Value = serde_json::from_str(&said).unwrap();
    let looks = told["looks"].as_array().unwrap();
    let action = &looks.last().unwrap()["actions"][0];
    assert_eq!(
        (&action["target"]["thread"], &action["outcome"]["is_done"]),
        (&load.id().into(), &true.into()),
        "{said}"
    );
    let (said, warned) = failed_later(&load, &["apply", PERIOD]);
    assert!(
        said.contains("\n1 of 1 changes made; ") && warned.ends_with(&one_stands(&load)),
        "{said}{warned}"
    );
    assert_eq!(load.mask(), before);
}
