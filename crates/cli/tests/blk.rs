//! `homenode blk replay` on traces of the block layer.

use homenode::NodeId;
use homenode::blk::trace::{Entry, header, recorder};
use homenode::blk::{Device, Durability, Limits, Null, Options, Request};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const DEVICE_BYTES: u64 = 1 << 20;

/// Four reads, two writes of which one is forced, and a flush; recorded as they are submitted.
fn record(file: &Path) {
    let limits = Limits {
        has_cache: true,
        ..Limits::of_bytes(DEVICE_BYTES)
    };
    let null = Null::new(limits, &[None]);
    let device = Device::new(&null, &[NodeId(0)], |_, _| 10, Options::default()).expect("a null device is made");
    let mut core = device.join(0).expect("the core joins once");
    let (recorder, mut recorded) = recorder(3, 64);
    core.record(Some(recorder));
    for index in 0..4 {
        core.run(1000 + index * 1_000_000, |_| {});
        core.submit(Request::read(index * 8192, 4096, 0))
            .expect("the request is within the device's limits");
    }
    core.submit(Request::write(0, 512, 0)).expect("the request is valid");
    let forced = Request::write(512, 512, 512).durability(Durability::Forced);
    core.submit(forced).expect("the request is within the device's limits");
    core.submit(Request::flush()).expect("the request is valid");
    core.run(5_000_000, |_| {});
    let mut bytes = header(DEVICE_BYTES).to_vec();
    while let Some(entry) = recorded.next_bytes() {
        bytes.extend(entry);
    }
    fs::write(file, bytes).expect("the trace is written");
}

struct World {
    directory: TempDir,
    trace: PathBuf,
}

impl World {
    fn new() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let trace = directory.path().join("trace");
        record(&trace);
        Self { directory, trace }
    }

    fn file(&self, name: &str) -> String {
        self.directory
            .path()
            .join(name)
            .to_str()
            .expect("a name in UTF-8")
            .to_owned()
    }

    fn replay(&self, more: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_homenode"));
        command.args(["blk", "replay"]).arg(&self.trace).args(more);
        command.output().expect("the command runs")
    }

    fn failure(&self, more: &[&str]) -> String {
        let output = self.replay(more);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).expect("messages are UTF-8")
    }

    fn requests(&self, more: &[&str]) -> Vec<(String, u64, u64)> {
        let output = self.replay(&[more, &["--json"]].concat());
        assert!(output.status.success(), "{output:?}");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("the output is JSON");
        let number = |of: &serde_json::Value, name: &str| of[name].as_u64().expect("a number");
        let of_each = json["operations"].as_array().expect("a list");
        let one = |of: &serde_json::Value| {
            assert_eq!(number(of, "errors"), 0);
            let name = of["operation"].as_str().expect("a name");
            (name.to_owned(), number(of, "requests"), number(of, "bytes"))
        };
        of_each.iter().map(one).collect()
    }
}

fn expected() -> Vec<(String, u64, u64)> {
    [("read", 4, 16384), ("write", 2, 1024), ("flush", 1, 0)]
        .map(|(name, count, bytes)| (name.to_owned(), count, bytes))
        .into()
}

#[test]
fn replay_submits_every_request_of_a_trace() {
    let world = World::new();
    let file = world.file("disk");
    fs::write(&file, vec![0xff; 1 << 20]).expect("the file is written");
    assert_eq!(world.requests(&[]), expected());
    assert_eq!(world.requests(&["--device", "ram", "--asap"]), expected());
    assert_eq!(world.requests(&["--scheduler", "deadline"]), expected());
    assert_eq!(world.requests(&["--scheduler", "fair"]), expected());
    assert_eq!(
        world.requests(&["--device", &file, "--overwrite", "--asap"]),
        expected()
    );
    let bytes = fs::read(&file).expect("the file is there");
    assert!(bytes[..1024].iter().all(|byte| *byte == 0) && bytes[1024..].iter().all(|byte| *byte == 0xff));
    let text = String::from_utf8(world.replay(&[]).stdout).expect("the text is UTF-8");
    assert!(text.contains("read") && text.contains("16 KiB"), "{text}");
}

#[test]
fn replay_overwrites_only_with_the_option() {
    let world = World::new();
    let file = world.file("disk");
    fs::write(&file, vec![7; 1 << 20]).expect("the file is written");
    let message = world.failure(&["--device", &file]);
    assert!(message.contains(&file) && message.contains("--overwrite"), "{message}");
    assert!(
        fs::read(&file)
            .expect("the file is there")
            .iter()
            .all(|byte| *byte == 7)
    );
}

#[test]
fn bad_traces_and_devices_are_refused() {
    let mut world = World::new();
    let absent = world.file("absent");
    let message = world.failure(&["--device", &absent, "--overwrite"]);
    assert!(message.contains(&absent), "{message}");
    let good = fs::read(&world.trace).expect("the trace is there");
    let mut wrong = good.clone();
    wrong[32 + 22] = 9;
    let mut odd = good.clone();
    odd[16] = 1;
    let crowd: Vec<u8> = (0..2000_u16)
        .flat_map(|core| {
            let mut entry = good[32..64].to_vec();
            entry[24..26].copy_from_slice(&core.to_le_bytes());
            entry
        })
        .collect();
    let crowded = [&good[..32], &crowd].concat();
    for (bytes, told) in [
        (&[][..], "shorter than a trace's header"),
        (&[7; 100][..], "does not begin with a trace's header"),
        (&good[..32], "no request in it"),
        (&odd[..], "devices are whole blocks of 512"),
        (&crowded[..], "has 2000 cores"),
        (&wrong[..], "entry 1: an entry has an unknown operation: 9"),
    ] {
        fs::write(&world.trace, bytes).expect("the trace is written");
        let message = world.failure(&[]);
        assert!(message.contains(told), "{message}");
    }
    // Whoever made it was stopped within an entry.
    fs::write(&world.trace, &good[..good.len() - 10]).expect("the trace is written");
    assert_eq!(world.requests(&[]), expected()[..2]);
    let text = String::from_utf8(world.replay(&[]).stdout).expect("the text is UTF-8");
    assert!(text.contains("ends within an entry"), "{text}");
    world.trace = PathBuf::from(&absent);
    assert!(world.failure(&[]).contains(&absent));
}

/// Nothing is written to a device that is too small for all of it, nor to the trace itself.
#[test]
fn a_device_that_does_not_fit_the_trace_is_refused() {
    let world = World::new();
    let file = world.file("small");
    fs::write(&file, vec![7; 8192]).expect("the file is written");
    let message = world.failure(&["--device", &file, "--overwrite"]);
    assert!(
        message.contains(&file) && message.contains("8192 bytes") && message.contains("1048576"),
        "{message}"
    );
    assert_eq!(fs::read(&file).expect("the file is there"), vec![7; 8192]);
    let trace = world.trace.to_str().expect("a name in UTF-8");
    let before = fs::read(trace).expect("the trace is there");
    let message = world.failure(&["--device", trace, "--overwrite"]);
    assert!(message.contains("the trace itself"), "{message}");
    assert_eq!(fs::read(trace).expect("the trace is there"), before);
}

#[test]
fn refused_requests_are_counted_and_fail_the_replay() {
    let world = World::new();
    let mut bytes = fs::read(&world.trace).expect("the trace is there");
    // The first request is now beyond the device's end.
    bytes[32 + 8..32 + 16].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    fs::write(&world.trace, bytes).expect("the trace is written");
    let output = world.replay(&["--asap"]);
    assert_eq!(output.status.code(), Some(1));
    let [text, message] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("it is text"));
    assert!(
        text.contains("1 requests were not taken: it goes beyond the end of the device"),
        "{text}"
    );
    assert!(message.contains("1 of its requests failed"), "{message}");
}

/// Memory is for data: what is discarded needs none, however long it is.
#[test]
fn a_long_discard_needs_no_memory() {
    let world = World::new();
    let device = 4_u64 << 30;
    let mut bytes = header(device).to_vec();
    let discard = Entry {
        time_ns: 0,
        request: Request::discard(0, 1 << 30),
        core: 0,
        lost: 0,
    };
    let other = Entry { core: 1, ..discard };
    bytes.extend([discard.to_bytes(), other.to_bytes()].concat());
    fs::write(&world.trace, bytes).expect("the trace is written");
    let output = world.replay(&[]);
    assert!(output.status.success(), "{output:?}");
}

/// A trace of reads, so many seconds apart.
fn reads(device_bytes: u64, seconds: &[u64]) -> Vec<u8> {
    let entry = |at: &u64| Entry {
        time_ns: at * 1_000_000_000,
        request: Request::read(0, 4096, 0),
        core: 0,
        lost: 0,
    };
    let entries = seconds.iter().flat_map(|at| entry(at).to_bytes());
    header(device_bytes).into_iter().chain(entries).collect()
}

/// Nobody may write to the file of a program that runs, not even root.
#[test]
fn a_trace_of_reads_needs_no_write_permission() {
    let world = World::new();
    fs::write(&world.trace, reads(8192, &[0, 0])).expect("the trace is written");
    let itself = env!("CARGO_BIN_EXE_homenode");
    assert_eq!(world.requests(&["--device", itself]), [("read".to_owned(), 2, 8192)]);
}

#[test]
fn names_are_escaped_onto_one_line() {
    let mut world = World::new();
    let named = |message: &str, name: &str| {
        assert_eq!(message.trim_end().lines().count(), 1, "{message}");
        assert!(message.contains(name), "{message}");
    };
    named(&world.failure(&["--device", "a\nb"]), " a\\nb:");
    named(&world.failure(&["--device", "a\nb", "--overwrite"]), " a\\nb ");
    named(&world.failure(&["--device", "a\x1bb", "--overwrite"]), "a\\u{1b}b");
    world.trace = world.directory.path().join("odd\nname");
    named(&world.failure(&[]), "odd\\nname");
    fs::write(&world.trace, [7; 100]).expect("it is written");
    named(&world.failure(&[]), "odd\\nname");
}

#[test]
fn ctrl_c_ends_a_replay_and_prints_the_results() {
    let world = World::new();
    fs::write(&world.trace, reads(DEVICE_BYTES, &[0, 3600, 3601])).expect("the trace is written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_homenode"));
    command.args(["blk", "replay"]).arg(&world.trace);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("the command runs");
    let process = Pid::from_child(&child);
    // Until the thread that plays sleeps as well: the first is done, and the second far off.
    let sleeps = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).expect("the process runs");
        let stat = |task: io::Result<fs::DirEntry>| fs::read_to_string(task.expect("it is there").path().join("stat"));
        let states = tasks.map(|task| Some(stat(task).ok()?.rsplit_once(") ")?.1.starts_with('S')));
        let states: Vec<Option<bool>> = states.collect();
        states.len() == 2 && states.iter().all(|sleeps| *sleeps == Some(true))
    };
    let looks = (0..2000).take_while(|_| !sleeps());
    looks.for_each(|_| thread::sleep(Duration::from_millis(10)));
    kill_process(process, Signal::INT).expect("the process runs");
    let output = child.wait_with_output().expect("the process ends");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let [text, message] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("it is text"));
    assert!(text.contains("2 requests were not submitted"), "{text}");
    assert!(
        text.lines()
            .any(|line| line.starts_with("read") && line.contains("4 KiB")),
        "{text}"
    );
    assert!(message.contains("interrupted"), "{message}");
}
