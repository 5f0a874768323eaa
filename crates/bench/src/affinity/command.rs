//! The command `homenode`, which is under test: `homenode affinity run` as a process.

use crate::error::{During, Error};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Until the daemon has looked at the machine once; everything in an emulated machine is slow.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const NAME: &str = "homenode";

/// Where the command is: it is named, or beside this program.
pub(crate) fn find(named: Option<&Path>) -> Result<PathBuf, Error> {
    let beside = || std::env::current_exe().map(|bench| bench.with_file_name(NAME));
    let path = named.map_or_else(beside, |path| Ok(path.to_owned()));
    path.and_then(|path| path.canonicalize()).map_err(|error| {
        let what =
            "finding the command homenode: build it (cargo build --release -p homenode-cli), or say --command FILE";
        Error::system(what, error)
    })
}

/// The daemon, while it keeps threads and interrupts where they should be.
#[derive(Debug)]
pub(super) struct Daemon {
    child: Child,
    /// Its journal, its configuration, and where it says that it is ready.
    _directory: TempDir,
}

impl Daemon {
    /// Starts it, and waits until it says that it is ready.
    pub(super) fn start(command: &Path, configuration: &str) -> Result<Self, Error> {
        let system = |error| Error::system("preparing homenode affinity run", error);
        let directory = tempfile::tempdir().map_err(system)?;
        let of = |name: &str| directory.path().join(name);
        fs::write(of("affinity.toml"), configuration).map_err(system)?;
        let ready = UnixDatagram::bind(of("ready")).map_err(system)?;
        ready.set_read_timeout(Some(READY_TIMEOUT)).map_err(system)?;
        let child = Command::new(command)
            .args(["affinity", "run", "--config"])
            .arg(of("affinity.toml"))
            .arg("--journal")
            .arg(of("journal"))
            .env("NOTIFY_SOCKET", of("ready"))
            // Nobody listens there any more once it is ready, of which it would warn.
            .env("HOMENODE_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .during(format_args!("starting {}", command.display()))?;
        let mut daemon = Self {
            child,
            _directory: directory,
        };
        let mut told = [0; 1024];
        loop {
            let length = ready
                .recv(&mut told)
                .map_err(|error| daemon.failed("is not ready", error))?;
            if told[..length].starts_with(b"READY=1") {
                return Ok(daemon);
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it put everything back, and end.
    pub(super) fn stop(mut self) -> Result<(), Error> {
        // It fails only if the daemon has ended, which its status tells.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let status = self.child.wait().during("waiting for the daemon")?;
        if status.success() {
            return Ok(());
        }
        Err(Error::system(
            "homenode affinity run",
            io::Error::other(status.to_string()),
        ))
    }

    fn failed(&mut self, what: &str, error: io::Error) -> Error {
        let ended = self.child.try_wait().ok().flatten();
        let ended = ended.map(|status| io::Error::other(format!("it has ended: {status}")));
        Error::system(format!("homenode affinity run {what}"), ended.unwrap_or(error))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}
