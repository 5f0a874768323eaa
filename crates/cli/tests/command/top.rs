//! `top`: through a terminal of 80 columns and 24 lines, as text, and as JSON.

use super::harness::*;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// A `top` in a terminal that a person could sit at.
struct Terminal {
    script: Child,
    screen: Arc<Mutex<vt100::Parser>>,
    reader: Option<JoinHandle<()>>,
    pid_file: PathBuf,
}

impl Terminal {
    fn start(scratch: &Scratch, environment: &[(&str, &str)]) -> Self {
        let pid_file = scratch.path().join("pid");
        let run = format!(
            "echo $$ >{}; stty rows 24 cols 80; exec {BINARY} top",
            pid_file.display()
        );
        // util-linux's script gives the command a terminal, and copies it to and from here.
        let mut script = Command::new("script")
            .args(["-qefc", &run, "/dev/null"])
            .env("SHELL", "/bin/sh")
            .env("TERM", "xterm-256color")
            .env("LC_ALL", "C.UTF-8")
            .env_remove("NO_COLOR")
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(24, 80, 0)));
        let (mut output, shown) = (script.stdout.take().unwrap(), Arc::clone(&screen));
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().process(&bytes[..read]);
            }
        });
        Self {
            script,
            screen,
            reader: Some(reader),
            pid_file,
        }
    }

    fn press(&self, keys: &str) {
        self.script.stdin.as_ref().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    fn wait_for(&self, text: &str) {
        let shows = || self.text().contains(text);
        wait_until(&format!("the terminal shows {text:?}:\n{}", self.text()), shows);
    }

    fn pid(&self) -> Pid {
        let text = fs::read_to_string(&self.pid_file).unwrap();
        Pid::from_raw(text.trim().parse().unwrap()).unwrap()
    }

    /// Waits for the end; the terminal's screen is the one that was there before.
    fn end(mut self) -> ExitStatus {
        let status = self.script.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
        let screen = self.screen.lock().unwrap();
        assert!(!screen.screen().alternate_screen(), "the terminal is not as before");
        assert!(!screen.screen().hide_cursor(), "the cursor is gone");
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Ended already, where all went well.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

impl Terminal {
    fn line_of(&self, directory: &Path) -> Option<String> {
        let name = directory.to_str().unwrap();
        let end: String = name.chars().skip(name.chars().count().saturating_sub(19)).collect();
        let text = self.text();
        // The head may tell of the pool too.
        let mut lines = text.lines().skip(1).filter(|line| line.contains(&end));
        lines.next().map(ToOwned::to_owned)
    }

    /// Whether the line below the pool's tells that its server gives no status.
    fn is_silent(&self, directory: &Path) -> bool {
        let (line, text) = (self.line_of(directory), self.text());
        let mut lines = text.lines().skip_while(|shown| Some(*shown) != line.as_deref()).skip(1);
        lines.next().is_some_and(|below| below.contains("gives no status"))
    }

    /// Chooses this pool for good: pools of other tests come, go, and stand before it.
    fn choose(&self, directory: &Path) {
        self.press("k");
        wait_until("the pool is chosen", || {
            thread::sleep(std::time::Duration::from_millis(100));
            let Some(wanted) = self.line_of(directory) else {
                return false;
            };
            if wanted.starts_with("> ") {
                return true;
            }
            let text = self.text();
            let mut lines = text.lines().skip_while(|line| *line != wanted);
            let is_above = lines.any(|line| line.starts_with("> "));
            self.press(if is_above { "k" } else { "j" });
            false
        });
    }
}

#[test]
fn top_shows_pools_in_a_terminal_of_24_lines() {
    need_mounts!();
    let scratch = Scratch::new("top");
    let (one, other) = (scratch.dir("one"), scratch.dir("other"));
    up(&one);
    let terminal = Terminal::start(&scratch, &[]);
    wait_until("the pool is listed", || terminal.line_of(&one).is_some());
    terminal.wait_for("homenode top");
    // One that comes up while it looks, and one that goes down.
    up(&other);
    wait_until("the new pool is listed", || terminal.line_of(&other).is_some());
    fs::write(other.join("file"), vec![1; 3 << 20]).unwrap();
    let is_used = || terminal.line_of(&other).is_some_and(|line| line.contains("3.00 MiB"));
    wait_until("its bytes are shown", is_used);
    terminal.press("h");
    terminal.wait_for("threads of the chosen pool");
    terminal.press("hp");
    terminal.wait_for("PAUSED");
    terminal.press("p");
    down(&other);
    wait_until("the pool that went is gone", || terminal.line_of(&other).is_none());
    // Stopped: it is told, and nothing hangs.
    let pid = server_pid(&one).unwrap();
    let stopped = Stopped::new(pid);
    wait_until("the stopped server is told", || terminal.is_silent(&one));
    terminal.choose(&one);
    terminal.press("t");
    terminal.wait_for("THREAD NAME");
    drop(stopped);
    wait_until("the server answers again", || !terminal.is_silent(&one));
    signal(pid, Signal::KILL);
    terminal.wait_for("its server was killed");
    terminal.press("q");
    assert!(terminal.end().success());
    down(&one);
}

#[test]
fn top_ends_by_signals_and_ctrl_c_and_restores_the_terminal() {
    need_mounts!();
    let scratch = Scratch::new("top-ends");
    for end in ["\x03", "\x1b", "TERM", "HUP"] {
        let terminal = Terminal::start(&scratch, &[("NO_COLOR", "1")]);
        terminal.wait_for("homenode top");
        match end {
            "TERM" => signal(terminal.pid(), Signal::TERM),
            "HUP" => signal(terminal.pid(), Signal::HUP),
            key => terminal.press(key),
        }
        assert!(terminal.end().success(), "{end:?}");
    }
}

#[test]
fn top_ends_with_its_terminal() {
    need_mounts!();
    let scratch = Scratch::new("top-gone");
    let mut terminal = Terminal::start(&scratch, &[]);
    terminal.wait_for("homenode top");
    let pid = terminal.pid();
    terminal.script.kill().unwrap();
    wait_for_end(pid);
}

#[test]
fn top_ends_by_a_signal_when_its_terminal_takes_no_output() {
    need_mounts!();
    let scratch = Scratch::new("top-blocked");
    let terminal = Terminal::start(&scratch, &[]);
    terminal.wait_for("homenode top");
    let (pid, script) = (terminal.pid(), Pid::from_child(&terminal.script));
    signal(script, Signal::STOP);
    let process = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let input = fs::File::options()
        .read(true)
        .write(true)
        .open(process.join("fd/0"))
        .unwrap();
    let columns = std::cell::Cell::new(100);
    // Each new size is a new picture, until the terminal holds no more.
    wait_until("top waits for its terminal", || {
        columns.set(columns.get() ^ 1);
        let size = rustix::termios::Winsize {
            ws_row: 40,
            ws_col: columns.get(),
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        rustix::termios::tcsetwinsize(&input, size).unwrap();
        let waits = || fs::read_to_string(process.join("wchan")).unwrap() == "wait_woken";
        waits()
            && (0..20).all(|_| {
                thread::sleep(std::time::Duration::from_millis(5));
                waits()
            })
    });
    signal(pid, Signal::TERM);
    wait_for_end(pid);
    signal(script, Signal::CONT);
}

/// Nobody has looked at the pool before, so its server has not looked where files of the kernel lie.
#[test]
fn the_first_viewer_is_told_where_files_of_the_kernel_lie() {
    let (_scratch, dir) = need_mounts!("top-first");
    succeed(homenode(["up", SIZE, "--data", "kernel"]).arg(&dir));
    fs::write(dir.join("file"), vec![1; 2 << 20]).unwrap();
    // Samples are taken without a viewer meanwhile.
    thread::sleep(std::time::Duration::from_millis(2500));
    let told: Value = serde_json::from_str(&succeed(&mut homenode(["top", "--json"]))).unwrap();
    let pools = told["pools"].as_array().unwrap().iter();
    let mut pools = pools.map(|pool| &pool["report"]);
    let report = pools.find(|report| report["directory"] == dir.to_str().unwrap());
    let report = report.unwrap();
    assert_eq!(report["kernel_bytes"], 2 << 20, "{report}");
    assert_eq!(report["kernel_located_bytes"], 2 << 20, "{report}");
    down(&dir);
}

#[test]
fn top_prints_one_picture_or_json() {
    let (_scratch, dir) = need_pool!("top-once");
    fs::write(dir.join("file"), vec![1; 2 << 20]).unwrap();
    let found = || {
        let told: Value = serde_json::from_str(&succeed(&mut homenode(["top", "--json"]))).unwrap();
        let pools = told["pools"].as_array().unwrap().clone();
        let pool = pools.into_iter().find(|pool| pool["name"] == dir.to_str().unwrap());
        assert_eq!(told["output_version"], 2);
        pool.unwrap()
    };
    let is_sampled = || {
        let pool = found();
        let samples = pool["samples"].as_array().unwrap();
        samples.iter().any(|sample| sample["used_bytes"] == 2 << 20)
    };
    wait_until("the write is sampled", is_sampled);
    let pool = found();
    assert_eq!(pool["report"]["directory"], pool["name"]);
    assert_eq!(pool["silent"], Value::Null);
    let samples = pool["samples"].as_array().unwrap();
    assert!(
        samples.iter().all(|sample| sample["span_ms"].as_u64().unwrap() >= 900),
        "{samples:?}"
    );
    let made: u64 = samples.iter().map(|sample| sample["requests"].as_u64().unwrap()).sum();
    assert!(made > 0, "{samples:?}");
    let times = &pool["report"]["fuse"]["times"];
    let requests = |kind: &Value| {
        let spans = kind["spans"].as_array().unwrap().iter();
        spans.map(|span| span["requests"].as_u64().unwrap()).sum::<u64>()
    };
    assert!(
        times.as_array().unwrap().iter().map(requests).sum::<u64>() > 0,
        "{times}"
    );
    let picture = succeed(homenode(["top", "--once", "--ascii"]).env("COLUMNS", "120"));
    assert!(picture.is_ascii() && picture.contains("2.00 MiB"), "{picture}");
    // No terminal.
    refused(homenode(["top"]).stdin(Stdio::null()), &["--once", "terminal"]);
    down(&dir);
}
