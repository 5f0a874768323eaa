//! `homenode demo`: the real binary, real mounts, fio and rsync.
//!
//! Needs root, /dev/fuse, fio and rsync; says SKIPPED where they are missing.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod command {
    #[allow(
        dead_code,
        unused_macros,
        unused_imports,
        reason = "made for the tests of the other verbs too"
    )]
    pub(crate) mod harness;
}

use command::harness::*;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

/// Rows of every report, without the copies.
const MEASURED_ROWS: usize = 20;

fn can_run() -> bool {
    let missing = ["fio", "rsync"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_err());
    if let Some(name) = missing {
        skipped(&format!("needs {name}"));
    }
    missing.is_none() && can_mount()
}

/// A demo of little in a directory of its own, whose temporary files go to `tmp` there.
struct Demo {
    scratch: Scratch,
    temporary: PathBuf,
    report: PathBuf,
}

impl Demo {
    fn new(test: &str) -> Self {
        let scratch = Scratch::new(test);
        let temporary = scratch.dir("tmp");
        let tree = scratch.dir("tree <&>");
        fs::write(tree.join("file"), vec![5; 100_000]).unwrap();
        Self {
            report: scratch.path().join("report.html"),
            temporary,
            scratch,
        }
    }

    fn command(&self, seconds: &str) -> Command {
        let mut command = homenode(["demo", "--quick", "--size-per-node=64M", "--seconds", seconds]);
        command.arg("--report").arg(&self.report);
        command.arg("--tree").arg(self.scratch.path().join("tree <&>"));
        command.env("TMPDIR", &self.temporary).current_dir(self.scratch.path());
        command
    }

    /// Starts it; gives it and its standard error, read until it tells that a step has begun.
    fn start_until(&self, step: &str) -> (Child, BufReader<ChildStderr>) {
        self.start_until_in(None, step)
    }

    /// In this directory, if one is given.
    fn start_until_in(&self, directory: Option<&Path>, step: &str) -> (Child, BufReader<ChildStderr>) {
        // So long that it cannot be over by itself.
        let mut command = self.command("60");
        let mut child = command
            .args(directory)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with(step) {
            line.clear();
            assert!(errors.read_line(&mut line).unwrap() > 0, "the demo ended before {step}");
        }
        (child, errors)
    }

    fn assert_nothing_left(&self) {
        assert_nothing_mounted(self.scratch.path());
        assert_eq!(
            fs::read_dir(&self.temporary).unwrap().count(),
            0,
            "nothing temporary is left"
        );
    }
}

/// The mount table that the demo has for itself, with something mounted in it.
struct OwnMounts(PathBuf);

impl OwnMounts {
    fn of(demo: &Demo, child: &Child) -> Self {
        let process = PathBuf::from(format!("/proc/{}", child.id()));
        let table = fs::read_to_string(process.join("mountinfo")).unwrap();
        let place = demo.scratch.path().to_str().unwrap();
        assert!(table.matches(place).count() > 2, "something is up: {table}");
        assert_nothing_mounted(demo.scratch.path());
        Self(fs::read_link(process.join("ns/mnt")).unwrap())
    }

    /// Processes that see it: the demo, its servers, and all they started.
    fn processes(&self) -> Vec<Pid> {
        let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        let numbers = fs::read_dir("/proc").unwrap().filter_map(number);
        let sees = |number: &i32| fs::read_link(format!("/proc/{number}/ns/mnt")).is_ok_and(|seen| seen == self.0);
        numbers.filter(sees).filter_map(Pid::from_raw).collect()
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

#[test]
fn demo_reports_every_row_and_leaves_nothing() {
    if !can_run() {
        return;
    }
    let demo = Demo::new("demo");
    let json = demo.scratch.path().join("report.json");
    let text = succeed(demo.command("0.02").arg("--json").arg(&json));
    demo.assert_nothing_left();

    let found: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(found["output_version"], 1);
    let date = found["machine"]["date"].as_str().unwrap();
    assert!(date.starts_with("20") && date.ends_with(" UTC"), "{date}");
    let rows = found["rows"].as_array().unwrap();
    assert_eq!(rows.len(), MEASURED_ROWS + 1, "rows measured, and one tree: {found}");
    let page = fs::read_to_string(&demo.report).unwrap();
    assert!(
        page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"),
        "the page is cut"
    );
    assert!(
        !page.contains("tree <&>") && page.contains("tree &lt;&amp;&gt;"),
        "names are text"
    );
    let has = |contestant: &str| {
        let absent = found["absent"].as_array().unwrap();
        absent.iter().all(|absent| absent["contestant"] != contestant)
    };
    let has_kernel = has("kernel");
    assert_eq!(
        found["absent"] != Value::Array(Vec::new()),
        text.contains("not available") && page.contains("not available"),
        "{text}"
    );
    let is_compared = |text: &str| text.contains("× tmpfs") || text.contains("×  ");
    assert!(
        !is_compared(&text) && !is_compared(&page),
        "one round was compared: {text}"
    );
    for row in rows {
        let title = row["title"].as_str().unwrap();
        assert!(text.contains(title), "{title} is in the table: {text}");
        let escaped = title.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        assert!(page.contains(&escaped), "{title} is on the page");
        let ours = if row["section"] == "in_process" {
            "library"
        } else {
            "pool"
        };
        let kernel = (has_kernel && ours == "pool").then_some("kernel");
        let cached = (has("cached") && ours == "library").then_some("cached");
        for contestant in ["tmpfs", ours].into_iter().chain(kernel).chain(cached) {
            let median = row["cells"][contestant]["median"].as_f64();
            assert!(median.is_some_and(|rate| rate > 0.0), "{contestant} of {row}");
            assert!(
                row["cells"][contestant]["spread"].is_null(),
                "one round has no spread: {row}"
            );
        }
    }
    let tree = &found["trees"][0];
    assert_eq!((&tree["entries"], &tree["bytes"]), (&2.into(), &100_000.into()));
    let pools = found["pools"].as_array().unwrap();
    assert_eq!(pools.len(), 2 + usize::from(has_kernel));
    for pool in pools {
        for files in pool["files"].as_array().unwrap() {
            let Some(node) = files["written_from"].as_u64() else {
                continue;
            };
            let bytes = files["bytes_by_node"].as_object().unwrap();
            assert_eq!(
                bytes.keys().collect::<Vec<_>>(),
                [&node.to_string()],
                "a node's bytes lie elsewhere"
            );
        }
    }
}

#[test]
fn an_interrupted_demo_beside_a_pool_leaves_nothing() {
    if !can_run() {
        return;
    }
    for (step, by, code) in [("copying", Signal::INT, 130), ("measuring", Signal::TERM, 143)] {
        let demo = Demo::new("demo-interrupt");
        let other = demo.scratch.dir("other");
        up(&other);
        let (mut child, _errors) = demo.start_until(step);
        down(&other);
        let own = OwnMounts::of(&demo, &child);
        signal(pid(&child), by);
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(own.processes(), [], "no process of it is left");
        demo.assert_nothing_left();
        assert!(!demo.report.exists(), "a report was written");
    }
}

#[test]
fn a_killed_demo_blocks_no_later_run() {
    if !can_run() {
        return;
    }
    let demo = Demo::new("demo-kill");
    let directory = demo.scratch.dir("mounts");
    for step in ["copying", "measuring"] {
        let (mut child, _errors) = demo.start_until_in(Some(&directory), step);
        let own = OwnMounts::of(&demo, &child);
        child.kill().unwrap();
        child.wait().unwrap();
        // fio and rsync are nobody's children now, and end when they are done, which takes long here.
        let is_server = |process: &Pid| {
            let line = fs::read(format!("/proc/{}/cmdline", process.as_raw_nonzero())).unwrap_or_default();
            line.starts_with(b"homenode")
        };
        wait_until("the servers end", || !own.processes().iter().any(is_server));
        for other in own.processes() {
            let _ = rustix::process::kill_process(other, Signal::KILL);
        }
        wait_until("its mounts are gone", || own.processes().is_empty());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    }
    demo.assert_nothing_left();
}

/// That a user has to be root comes before what else is in the way.
fn refused_without_root(demo: &Demo) {
    fs::set_permissions(demo.scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let binary = demo.scratch.path().join("homenode");
    fs::copy(BINARY, &binary).unwrap();
    let mut command = Command::new(&binary);
    command
        .args(["demo", "--report", "/no/such/report.html"])
        .current_dir("/");
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    refused(&mut command, &["needs root", "sudo"]);
    fs::remove_file(binary).unwrap();
}

#[test]
fn demo_checks_its_requirements_before_it_starts() {
    let demo = Demo::new("demo-refused");
    refused_without_root(&demo);
    if !can_run() {
        return;
    }
    let empty = demo.scratch.dir("empty");
    refused(
        demo.command("1").env("PATH", &empty),
        &["fio is missing", "apt-get install fio"],
    );
    refused(
        demo.command("1")
            .arg("--json")
            .arg(demo.scratch.path().join("no/such/report.html")),
        &["cannot write", "no/such", "--json"],
    );
    refused(
        homenode(["demo", "--tree", "/no/such/tree"]).current_dir(demo.scratch.path()),
        &["/no/such/tree", "give a directory"],
    );
    refused(demo.command("1").arg(demo.scratch.path()), &["is not empty"]);
    refused(
        homenode(["demo", "--size-per-node=1M", "--tree=tmp"]).current_dir(demo.scratch.path()),
        &["too little", "32M"],
    );
    for seconds in ["0", "-1", "x", "NaN", "inf"] {
        let argument = format!("--seconds={seconds}");
        assert!(
            fail(2, &mut homenode(["demo", &argument])).contains("number of seconds"),
            "{seconds}"
        );
    }
    demo.assert_nothing_left();
    assert!(!demo.report.exists());
}
