//! Other programs, run to their end unless a signal comes first.
//!
//! Each is the leader of a process group: Ctrl-C on the terminal reaches the demo alone, which ends the whole group, so no
//! grandchild keeps a mount busy.

use super::interrupt::Interrupt;
use crate::failure::{Failure, Result, fail};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Short against what is timed, long against what looking costs.
const LOOK_EVERY: Duration = Duration::from_millis(2);

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

/// Runs `command`; its standard input is `input`, or empty.
pub(super) fn run(command: &mut Command, input: Option<File>, interrupt: &Interrupt) -> Result<Ended> {
    interrupt.check()?;
    let name = command.get_program().to_string_lossy().into_owned();
    let cannot = |error: io::Error| Failure::new(format!("cannot run {name}: {error}"));
    // Files, not pipes: nobody has to read them while it runs.
    let (mut output, mut errors) = (memory_file().map_err(cannot)?, memory_file().map_err(cannot)?);
    command
        .stdin(input.map_or_else(Stdio::null, Stdio::from))
        .stdout(output.try_clone().map_err(cannot)?)
        .stderr(errors.try_clone().map_err(cannot)?)
        .process_group(0);
    let start = Instant::now();
    let mut child = command.spawn().map_err(cannot)?;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(cannot)? {
            break status;
        }
        if let Err(interrupted) = interrupt.check() {
            end_group(&mut child);
            return Err(interrupted);
        }
        thread::sleep(LOOK_EVERY);
    };
    let elapsed = start.elapsed();
    let output = content(&mut output).map_err(cannot)?;
    if !status.success() {
        let errors = content(&mut errors).map_err(cannot)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        fail!(
            "{name} failed ({status}): {}",
            last_lines(&text(&errors), &text(&output))
        );
    }
    Ok(Ended { output, elapsed })
}

/// A file of no filesystem that holds `bytes`, to be read from its start.
pub(super) fn memory_file_with(bytes: &[u8]) -> io::Result<File> {
    let mut file = memory_file()?;
    io::Write::write_all(&mut file, bytes)?;
    file.rewind()?;
    Ok(file)
}

/// Ends a group leader and all it started, and waits for the leader.
pub(super) fn end_group(child: &mut Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // Gone already, perhaps.
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
    let _ = child.wait();
}

fn memory_file() -> io::Result<File> {
    Ok(rustix::fs::memfd_create("homenode-demo", MemfdFlags::CLOEXEC)?.into())
}

fn content(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
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

    #[test]
    fn output_and_failures_are_told() {
        let interrupt = Interrupt::watch().unwrap();
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let input = memory_file_with(b"said").unwrap();
        assert_eq!(run(&mut shell("cat"), Some(input), &interrupt).unwrap().output, b"said");
        let failed = run(&mut shell("echo reason >&2; exit 3"), None, &interrupt).unwrap_err();
        assert!(
            failed.to_string().contains("sh failed") && failed.to_string().contains("reason"),
            "{failed}"
        );
    }

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        let missing = require("homenode-no-such-program", "some-package", "does something")
            .unwrap_err()
            .to_string();
        assert!(
            missing.contains("homenode-no-such-program is missing") && missing.contains("some-package"),
            "{missing}"
        );
    }
}
