//! `homenode-bench measure-locality`: the guest's part of `homenode-bench locality`.
//!
//! Brings everyone up, has each file written once, then marks intervals of steady work for the emulator's counter, and
//! prints a line of JSON for each. A directory or mount that it leaves behind goes with the guest.

use super::fio::Fio;
use super::job::{Contestant, Done, FILE_BYTES, Work};
use super::threads::Library;
use crate::cpus;
use crate::error::{During, Error};
use crate::lab;
use crate::mount::served::{Served, Variant};
use crate::output::tell;
use crate::private_tmpfs::{self, Pages};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Arguments of `homenode-bench measure-locality`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Bytes of an operation.
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<u64>,
    #[arg(long)]
    rounds: u32,
    /// Length of an interval.
    #[arg(long)]
    interval_ms: u64,
    /// The command homenode.
    #[arg(long)]
    command: PathBuf,
}

/// The kernel's switch for rings, of a guest of its own.
const RINGS: &str = "/sys/module/fuse/parameters/enable_uring";
/// Bytes that every job moves before its work counts as steady.
const STEADY_BYTES: f64 = (1 << 20) as f64;
const STEADY_TIMEOUT: Duration = Duration::from_secs(60);
/// In this time the mover has seen who uses a file, and has moved it.
const MOVER_TIME: Duration = Duration::from_secs(30);
/// Room that is left besides what fio's fallocate promises: with less, the server allocates it on its own node.
const PROMISED_BYTES: u64 = 64 << 20;
const POLL: Duration = Duration::from_millis(20);

/// Measures everyone, round after round.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    lab::require_guest("locality")?;
    fs::write(RINGS, "Y").during(format_args!("switching rings on, {RINGS}"))?;
    let cpus = one_of_each_node()?;
    let files = arguments.sizes.len() as u64;
    let stages = Contestant::ALL
        .map(|contestant| Stage::set_up(contestant, files, cpus.clone(), &arguments.command))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    for &block_bytes in &arguments.sizes {
        for stage in &stages {
            stage.lay_out(block_bytes)?;
        }
    }
    let interval = Duration::from_millis(arguments.interval_ms);
    for round in 0..arguments.rounds {
        for &block_bytes in &arguments.sizes {
            for stage in &stages {
                for write in [true, false] {
                    let work = Work {
                        round,
                        contestant: stage.contestant,
                        block_bytes,
                        write,
                    };
                    let done = stage.measure(work, interval)?;
                    tell(serde_json::to_string(&done).expect("it holds only numbers and names"))?;
                }
            }
        }
    }
    Ok(())
}

/// The first CPU of each node that has any.
fn one_of_each_node() -> Result<Vec<usize>, Error> {
    let mut first = BTreeMap::new();
    for cpu in cpus::allowed()? {
        first.entry(cpus::node(cpu)).or_insert(cpu);
    }
    Ok(first.into_values().collect())
}

/// A contestant that is up.
#[derive(Debug)]
struct Stage {
    contestant: Contestant,
    /// The command homenode.
    command: PathBuf,
    /// Where the jobs run.
    cpus: Vec<usize>,
    files: Files,
}

#[derive(Debug)]
enum Files {
    Tmpfs(OwnedFd),
    Steered(
        OwnedFd,
        #[expect(dead_code, reason = "it is there until it is dropped")] Steer,
    ),
    Served(Served),
    Library(Library),
}

/// `homenode steer` at work. Dropping it ends it.
#[derive(Debug)]
struct Steer(Child);

impl Steer {
    fn start(command: &Path, directory: &Path) -> Result<Self, Error> {
        let child = Command::new(command)
            .args(["steer", "--mover", "on"])
            .arg(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        child.map(Self).during("starting homenode steer")
    }
}

impl Drop for Steer {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

fn path_of(directory: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}/.", std::process::id(), directory.as_raw_fd()))
}

/// The job at work.
#[derive(Debug)]
enum Running {
    Fio(Fio),
    Threads(super::threads::Running),
}

impl Stage {
    fn set_up(contestant: Contestant, files_per_job: u64, cpus: Vec<usize>, command: &Path) -> Result<Self, Error> {
        let node_bytes = (files_per_job + 1) * FILE_BYTES;
        let all_bytes = node_bytes * cpus.len() as u64;
        let files = match contestant {
            Contestant::Tmpfs | Contestant::TmpfsNone => Files::Tmpfs(private_tmpfs::mount(Pages::Default, all_bytes)?),
            Contestant::Steer => {
                let root = private_tmpfs::mount(Pages::Default, all_bytes)?;
                let steer = Steer::start(command, &path_of(&root))?;
                Files::Steered(root, steer)
            }
            Contestant::Kernel | Contestant::Run => {
                Files::Served(Served::start(Variant::Kernel, node_bytes + PROMISED_BYTES, None)?)
            }
            Contestant::Mount | Contestant::MountDirect => {
                Files::Served(Served::start(Variant::Uring, node_bytes, None)?)
            }
            Contestant::MountClassic => Files::Served(Served::start(Variant::Classic, node_bytes, None)?),
            Contestant::Library => Files::Library(Library::new(node_bytes)?),
        };
        Ok(Self {
            contestant,
            command: command.to_owned(),
            cpus,
            files,
        })
    }

    /// Has each file written once.
    fn lay_out(&self, block_bytes: u64) -> Result<(), Error> {
        self.start(block_bytes, true, true)?.finish()?;
        if self.contestant == Contestant::Steer {
            let running = self.start(block_bytes, true, false)?;
            thread::sleep(MOVER_TIME);
            running.stop()?;
        }
        Ok(())
    }

    /// Starts the job; `once`: it ends by itself when all of each file has had its turn.
    fn start(&self, block_bytes: u64, write: bool, once: bool) -> Result<Running, Error> {
        let directory = match &self.files {
            Files::Library(library) => {
                return library
                    .start(&self.cpus, block_bytes, write, once)
                    .map(Running::Threads);
            }
            Files::Tmpfs(root) | Files::Steered(root, _) => path_of(root),
            Files::Served(served) => served.directory().to_owned(),
        };
        let through = match self.contestant {
            Contestant::Run => &[self.command.as_os_str(), OsStr::new("run"), OsStr::new("--")][..],
            _ => &[],
        };
        let mut command = Fio::command(through, &directory, &self.cpus, block_bytes, write);
        match self.contestant {
            Contestant::TmpfsNone => drop(command.arg("--fallocate=none")),
            Contestant::MountDirect => drop(command.arg("--direct=1")),
            _ => {}
        }
        Fio::start(command, self.cpus.len(), write, once).map(Running::Fio)
    }

    fn measure(&self, work: Work, length: Duration) -> Result<Done, Error> {
        let mut running = self.start(work.block_bytes, work.write, false)?;
        let start = Instant::now();
        while running.least_bytes()? < STEADY_BYTES {
            if start.elapsed() > STEADY_TIMEOUT {
                let what = format!("{} has not begun in time", self.contestant.name());
                return Err(Error::system(what, io::ErrorKind::TimedOut));
            }
            thread::sleep(POLL);
        }
        let (start, before) = (Instant::now(), running.bytes()?);
        mark(length)?;
        let (after, seconds) = (running.bytes()?, start.elapsed().as_secs_f64());
        running.stop()?;
        // The counter saw no more than `length`; the rest is the start and the end of `mark`.
        let marked = length.as_secs_f64();
        Ok(Done {
            work,
            bytes: (after - before) * marked / seconds,
            seconds: marked,
        })
    }
}

impl Running {
    /// Moved by each job so far.
    fn each(&mut self) -> Result<Vec<f64>, Error> {
        match self {
            Self::Fio(fio) => fio.bytes(),
            Self::Threads(threads) => Ok(threads.bytes()),
        }
    }

    fn bytes(&mut self) -> Result<f64, Error> {
        Ok(self.each()?.iter().sum())
    }

    fn least_bytes(&mut self) -> Result<f64, Error> {
        Ok(self.each()?.into_iter().fold(f64::INFINITY, f64::min))
    }

    /// Ends it.
    fn stop(self) -> Result<(), Error> {
        match self {
            Self::Fio(fio) => fio.stop(),
            Self::Threads(threads) => threads.stop(),
        }
    }

    /// Waits until it ends by itself.
    fn finish(self) -> Result<(), Error> {
        match self {
            Self::Fio(fio) => fio.finish(),
            Self::Threads(threads) => threads.finish(),
        }
    }
}

/// Tells the counter of an interval of this length, and returns at its end.
fn mark(length: Duration) -> Result<(), Error> {
    let seconds = length.as_secs_f64().to_string();
    let status = Command::new("mark").args(["for", &seconds]).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::system("the lab's mark", io::Error::other(status.to_string()))),
        Err(error) => Err(Error::system("the lab's mark", error)),
    }
}
