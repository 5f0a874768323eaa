//! The lab, as benches use it: this program runs in a guest, and tells in lines of JSON what it found there.

use crate::error::{During, Error};
use crate::interrupt;
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Most CPUs of a guest: each is a thread of the emulator.
const CPUS_MAX: u32 = 8;
/// Longer than any guest takes whose processes do not hang.
const TIMEOUT_S: u32 = 3000;

/// The lab's program, and this one, which does the work in the guest.
#[derive(Debug)]
pub(crate) struct Lab {
    program: PathBuf,
    bench: PathBuf,
}

impl Lab {
    /// # Errors
    /// When it is not there.
    pub(crate) fn find(program: &Path) -> Result<Self, Error> {
        let found = |path: &Path| path.canonicalize();
        let bench = std::env::current_exe().and_then(|path| found(&path));
        Ok(Self {
            program: found(program).map_err(|error| {
                let what = format!(
                    "{}: run this in the repository's root, after make lab, or say --lab FILE",
                    program.display()
                );
                Error::system(what, error)
            })?,
            bench: bench.during("finding this program")?,
        })
    }

    /// A guest of so many nodes that runs this program with these words. The programs of `shown` are seen in it too.
    pub(crate) fn guest(&self, nodes: u32, options: &[String], shown: &[&Path], words: &[String]) -> Command {
        let cpus_per_node = (CPUS_MAX / nodes).clamp(1, 2);
        // Should this process be killed, the guest does not go on.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM"])
            .arg(&self.program)
            .arg(format!("--nodes={nodes}"))
            .arg(format!("--cpus-per-node={cpus_per_node}"))
            .arg(format!("--timeout={TIMEOUT_S}"))
            .args(options);
        // What is below /tmp is not there by itself.
        let programs = shown.iter().copied().chain([self.bench.as_path()]);
        let mut directories: Vec<&Path> = programs.filter_map(Path::parent).collect();
        directories.retain(|directory| directory.starts_with("/tmp"));
        directories.dedup();
        for directory in directories {
            command.arg("--show").arg(directory);
        }
        command.arg("--").arg(&self.bench).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    /// Runs it to its end; gives what it told, and calls `tick` at each line.
    pub(crate) fn told<T: DeserializeOwned>(&self, mut guest: Command, tick: impl Fn()) -> Result<Vec<T>, Error> {
        let mut child = guest
            .spawn()
            .during(format_args!("starting {}", self.program.display()))?;
        let out = BufReader::new(child.stdout.take().expect("the stream is piped"));
        let told: Result<Vec<T>, Error> = out
            .lines()
            .map(|line| {
                tick();
                interrupt::check()?;
                line.and_then(|line| Ok(serde_json::from_str(&line)?))
                    .during("reading what the guest tells")
            })
            .collect();
        if interrupt::check().is_err() {
            // Ctrl-C has reached it already; a signal to this process alone has not. It fails only if it has ended.
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        }
        let status = child.wait().during("waiting for the lab")?;
        interrupt::check()?;
        if status.success() {
            return told;
        }
        let what = format!("the guest, started by {}", self.program.display());
        Err(Error::system(what, io::Error::other(status.to_string())))
    }
}

/// Only in a guest, which is thrown away, may this be done.
///
/// # Errors
/// Elsewhere: the name of the bench that starts guests.
pub(crate) fn require_guest(bench: &str) -> Result<(), Error> {
    if std::env::var_os("HOMENODE_LAB").is_some() {
        return Ok(());
    }
    let what = format!("this runs in a guest of the lab only, which is thrown away: run homenode-bench {bench}");
    Err(Error::system(what, io::ErrorKind::Unsupported))
}
