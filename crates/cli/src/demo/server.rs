//! A pool, mounted by a child of the demo.
//!
//! The child is this program again. It lives as long as its standard input is open: it unmounts and ends with the demo,
//! also when that is killed. Questions and answers are lines; both pools and mounts are the library's, as those of
//! `homenode up` are.

use super::interrupt::Interrupt;
use super::outcome::PoolState;
use super::program::end_group;
use crate::failure::{Failure, Result, fail};
use crate::mountinfo::{locate, shown};
use homenode::{Data, MountOptions, Pool, PoolOptions, Size};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// To unmount and to give a gigabyte or so of memory back.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Messages of the child, a JSON line each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// The mount is there; how requests travel, and why.
    Ready(String),
    /// It is not.
    Failed(String),
    State(PoolState),
}

/// A mounted pool. Dropping it unmounts, and removes the directory.
#[derive(Debug)]
pub(super) struct Served {
    /// How requests travel, and why.
    pub(super) reason: String,
    pub(super) directory: PathBuf,
    child: Child,
    /// `None` once it was told to end.
    questions: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Served {
    /// Makes `directory` and mounts a pool of `size_per_node` on it.
    pub(super) fn start(directory: &Path, data: Data, size_per_node: u64, interrupt: &Interrupt) -> Result<Self> {
        fs::create_dir(directory)
            .map_err(|error| Failure::new(format!("cannot make {}: {error}", shown(directory))))?;
        let started = start_child(directory, data, size_per_node);
        let (child, questions, answers) = match started {
            Ok(started) => started,
            Err(error) => {
                let _ = fs::remove_dir(directory);
                fail!("cannot start a server for {}: {error}", shown(directory));
            }
        };
        let mut served = Self {
            reason: String::new(),
            directory: directory.to_owned(),
            child,
            questions: Some(questions),
            answers,
        };
        match served.next_answer(interrupt)? {
            Answer::Ready(reason) => {
                served.reason = reason;
                Ok(served)
            }
            Answer::Failed(reason) => Err(Failure::new(reason)),
            Answer::State(_) => fail!("the server of {} answered what it was not asked", shown(directory)),
        }
    }

    /// The root directory of the mount. Keeps it busy while it is open.
    pub(super) fn root(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&self.directory, flags, Mode::empty())
            .map_err(|error| Failure::new(format!("cannot open {}: {error}", shown(&self.directory))))
    }

    /// Asks the server for the state of its pool, after all memory populated ahead is populated.
    pub(super) fn state(&mut self, interrupt: &Interrupt) -> Result<PoolState> {
        let told = self.questions.as_mut().map(|questions| questions.write_all(b"state\n"));
        if !matches!(told, Some(Ok(()))) {
            fail!("the server of {} has ended", shown(&self.directory));
        }
        match self.next_answer(interrupt)? {
            Answer::State(state) => Ok(state),
            Answer::Failed(reason) => Err(Failure::new(reason)),
            Answer::Ready { .. } => fail!(
                "the server of {} answered what it was not asked",
                shown(&self.directory)
            ),
        }
    }

    fn next_answer(&self, interrupt: &Interrupt) -> Result<Answer> {
        loop {
            interrupt.check()?;
            match self.answers.recv_timeout(LOOK_EVERY) {
                Ok(line) => {
                    return serde_json::from_str(&line).map_err(|error| {
                        Failure::new(format!("the server's answer {line:?} is not understood: {error}"))
                    });
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    fail!(
                        "the server of {} ended: was it killed, or the memory short?",
                        shown(&self.directory)
                    )
                }
            }
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.questions.take());
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > END_TIMEOUT {
                end_group(&mut self.child);
            }
            thread::sleep(LOOK_EVERY);
        }
        // Only a child that was killed leaves its mount.
        if locate(&self.directory).is_ok_and(|located| located.mount.is_homenode() && located.is_mount_point()) {
            let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            if let Err(error) = rustix::mount::unmount(&self.directory, flags) {
                complain!("homenode: cannot unmount {}: {error}", shown(&self.directory));
            }
        }
        let _ = fs::remove_dir(&self.directory);
    }
}

type Started = (Child, ChildStdin, Receiver<String>);

fn start_child(directory: &Path, data: Data, size_per_node: u64) -> io::Result<Started> {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("homenode")
        .arg("demo")
        .arg(format!("--serve={data}"))
        .arg(format!("--size-per-node={size_per_node}"))
        .arg("--")
        .arg(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0);
    if std::env::var_os("HOMENODE_LOG").is_none() {
        command.env("HOMENODE_LOG", "warn");
    }
    let mut child = command.spawn()?;
    let (Some(questions), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        end_group(&mut child);
        return Err(io::Error::other("it has no pipes"));
    };
    let (lines, answers) = mpsc::channel();
    // A thread, because a signal must be seen while an answer is awaited. Ends with the child.
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(io::Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    Ok((child, questions, answers))
}

/// The child's `main`.
pub(super) fn serve(directory: &Path, data: Data, size_per_node: Size) -> Result<()> {
    let bring_up = || {
        let pool = Pool::create(&PoolOptions::new().size_per_node(size_per_node))?;
        // What is measured next must not share the CPUs with it.
        pool.wait_populated()?;
        let mut options = MountOptions::default();
        options.data = data;
        let mount = pool.mount_with(directory, &options)?;
        Ok::<_, Failure>((pool, mount))
    };
    let (pool, mount) = match bring_up() {
        Ok(up) => up,
        Err(failure) => return tell(&Answer::Failed(failure.to_string())),
    };
    let chosen = mount.transport();
    tell(&Answer::Ready(format!(
        "transport {}: {}",
        chosen.transport, chosen.reason
    )))?;
    // Every line asks the same. Ends with the pipe.
    for _ in io::stdin().lines().map_while(io::Result::ok) {
        let answer = match pool.wait_populated() {
            Ok(()) => Answer::State(PoolState::of(&pool.status())),
            Err(error) => Answer::Failed(Failure::from(error).to_string()),
        };
        if tell(&answer).is_err() {
            break;
        }
    }
    match mount.unmount(false) {
        // Its threads are to see that it is gone before this process looks again.
        Ok(()) => mount.wait()?,
        // Whoever uses it still is to get errors.
        Err(_) => mount.stop()?,
    }
    // A demo that was killed does it no more.
    let _ = fs::remove_dir(directory);
    Ok(())
}

fn tell(answer: &Answer) -> Result<()> {
    crate::print_line(&serde_json::to_string(answer).expect("answers are plain data"))
}
