//! fio's jobs, a process pinned to each CPU given.

use super::job::FILE_BYTES;
use crate::error::{During, Error};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// fio at work.
#[derive(Debug)]
pub(super) struct Fio {
    child: Child,
    jobs: usize,
    write: bool,
}

impl Fio {
    /// The job, started by the words of `through`, if there are any; what is not said is as fio has it by default.
    pub(super) fn command(
        through: &[&OsStr],
        directory: &Path,
        cpus: &[usize],
        block_bytes: u64,
        write: bool,
    ) -> Command {
        let list: Vec<String> = cpus.iter().map(usize::to_string).collect();
        let mut words = through.iter().copied().chain([OsStr::new("fio")]);
        let mut command = Command::new(words.next().expect("the command has at least the word fio"));
        command
            .args(words)
            .arg("--name=job")
            .arg(format!("--directory={}", directory.display()))
            .arg(format!("--filename_format={block_bytes}.$jobnum"))
            .arg(format!("--rw={}", if write { "randwrite" } else { "randread" }))
            .arg(format!("--bs={block_bytes}"))
            .arg(format!("--size={FILE_BYTES}"))
            .arg(format!("--numjobs={}", cpus.len()))
            .arg(format!("--cpus_allowed={}", list.join(",")))
            .args(["--cpus_allowed_policy=split", "--eta=never"]);
        command
    }

    pub(super) fn start(mut command: Command, jobs: usize, write: bool, once: bool) -> Result<Self, Error> {
        if !once {
            command.args(["--time_based", "--runtime=1d"]);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.during("starting fio")?;
        Ok(Self { child, jobs, write })
    }

    /// Returns the bytes that each job has read or written, by the kernel's count. A job not yet started has 0.
    pub(super) fn bytes(&mut self) -> Result<Vec<f64>, Error> {
        let system = |error| Error::system("reading what fio has done", error);
        if let Some(status) = self.child.try_wait().map_err(system)? {
            return Err(Error::system(
                "fio",
                io::Error::other(format!("has ended early: {status}")),
            ));
        }
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).map_err(system)?;
        let name = if self.write { "wchar:" } else { "rchar:" };
        let mut bytes = vec![0.0; self.jobs];
        for (bytes, child) in bytes.iter_mut().zip(children.split_whitespace()) {
            let text = fs::read_to_string(format!("/proc/{child}/io")).map_err(system)?;
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            *bytes = value.ok_or_else(|| system(io::ErrorKind::InvalidData.into()))?;
        }
        Ok(bytes)
    }

    /// Has it end now.
    pub(super) fn stop(mut self) -> Result<(), Error> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).during("ending fio")?;
        // What it says of its end is that it was told to.
        let ended = self.child.wait();
        ended.map(drop).during("waiting for fio")
    }

    /// Waits until it has done everything.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        let status = self.child.wait().during("waiting for fio")?;
        if status.success() {
            Ok(())
        } else {
            Err(Error::system("fio", io::Error::other(status.to_string())))
        }
    }
}
