//! Ctrl-C ends a bench, and leaves no file that has nothing in it.

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT};
use signal_hook::flag;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[test]
fn an_interrupted_bench_leaves_no_empty_file() {
    for signal in [SIGINT, SIGHUP] {
        // Whatever started the tests may have had them ignore it; a program that a process with an own action starts has the default one.
        flag::register_conditional_default(signal, Arc::new(AtomicBool::new(true)))
            .expect("a signal that may be caught");
    }
    [Signal::INT, Signal::HUP].into_iter().for_each(interrupted_by);
}

fn interrupted_by(signal: Signal) {
    let directory = tempfile::tempdir().expect("a directory is made");
    let rows = directory.path().join("rows");
    let mut child = Command::new(env!("CARGO_BIN_EXE_homenode-bench"))
        // More rounds than anybody waits for.
        .args(["fs", "--case=4k/read/1t/same", "--rounds=1000", "--json"])
        .arg(&rows)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command runs");
    let mut said = BufReader::new(child.stdout.take().expect("the stream is piped"));
    said.read_line(&mut String::new()).expect("the bench prints a line");
    assert!(rows.exists(), "the file is created");
    kill_process(Pid::from_child(&child), signal).expect("the process runs");
    // So that it is not ended by what it goes on to say.
    std::io::copy(&mut said, &mut std::io::sink()).expect("the bench prints UTF-8");
    assert_eq!(child.wait().expect("it ends").code(), Some(1), "exit code 1");
    assert!(!rows.exists(), "an empty file is removed");
}
