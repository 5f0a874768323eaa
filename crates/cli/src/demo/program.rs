//! Other programs, run to their end unless a signal comes first.
//!
//! Each is the leader of a process group: Ctrl-C on the terminal reaches the demo alone, which ends the whole group, so no
//! grandchild keeps a mount busy.

use super::interrupt;
use crate::failure::{Failure, Result, fail};
use rustix::process::{Pid, Signal};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Pause between two looks for a signal.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Result of a program that succeeded.
#[derive(Debug)]
pub(super) struct Ended {
    /// Its standard output.
    pub(super) output: Vec<u8>,
    pub(super) elapsed: Duration,
}

/// Fails unless `name --version` runs. `package` is what to install.
pub(super) fn require(name: &str, package: &str, what_for: &str) -> Result<String> {
    match Command::new(name).arg("--version").output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            Ok(text.lines().next().unwrap_or_default().trim().to_owned())
        }
        Ok(output) => fail!(
            "`{name} --version` fails ({}): reinstall the package {package}",
            output.status
        ),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fail!(
                "{name} is missing, which {what_for}: install the package {package} (Debian: apt-get install {package})"
            )
        }
        Err(error) => fail!("cannot run {name}: {error}"),
    }
}

/// Runs `command` without input.
pub(super) fn run(command: &mut Command) -> Result<Ended> {
    interrupt::check()?;
    let name = command.get_program().to_string_lossy().into_owned();
    let cannot = |error: io::Error| Failure::new(format!("cannot run {name}: {error}"));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let start = Instant::now();
    let child = command.process_group(0).spawn().map_err(cannot)?;
    let leader = Pid::from_child(&child);
    let (ended, end) = mpsc::channel();
    thread::spawn(move || ended.send(child.wait_with_output()));
    let output = loop {
        match end.recv_timeout(LOOK_EVERY) {
            Ok(output) => break output.map_err(cannot)?,
            Err(_) if interrupt::signal().is_some() => {
                // Gone already, perhaps.
                let _ = rustix::process::kill_process_group(leader, Signal::KILL);
                let _ = end.recv();
                interrupt::check()?;
            }
            Err(_) => {}
        }
    };
    let elapsed = start.elapsed();
    if !output.status.success() {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        fail!(
            "{name} failed ({}): {}",
            output.status,
            last_lines(&text(&output.stderr), &text(&output.stdout))
        );
    }
    Ok(Ended {
        output: output.stdout,
        elapsed,
    })
}

/// The end of what it said, which mostly tells why.
fn last_lines(errors: &str, output: &str) -> String {
    const LINES: usize = 5;
    let said = if errors.trim().is_empty() { output } else { errors };
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::says::says;

    #[test]
    fn a_program_returns_its_output_or_its_failure() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        assert_eq!(run(&mut shell("echo said; cat")).unwrap().output, b"said\n");
        let failed = run(&mut shell("echo reason >&2; exit 3")).unwrap_err();
        assert!(
            failed.to_string().contains("sh failed") && failed.to_string().contains("reason"),
            "{failed}"
        );
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let missing = require("homenode-no-such-program", "some-package", "does something")
            .unwrap_err()
            .to_string();
        says(&missing, &["homenode-no-such-program is missing", "some-package"]);
    }
}
