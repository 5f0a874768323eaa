//! A pool that `homenode up` mounts, whose server ends with the demo, however that ends.

use crate::control::To;
use crate::control::client::Connection;
use crate::control::protocol::StatusReport;
use crate::failure::Result;
use crate::up;
use homenode::Data;
use rustix::process::{Pid, Signal};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Pause between two looks at memory that is populated ahead: in it megabytes are.
const POPULATE_PERIOD: Duration = Duration::from_millis(100);
/// To unmount and to give a gigabyte or so of memory back.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A mounted pool. Dropping it ends the server, which unmounts.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) directory: PathBuf,
    server: Child,
}

impl Served {
    pub(super) fn start(directory: &Path, data: Data, size_per_node: u64) -> Result<Self> {
        let mut command = up::server();
        command.args(["--with-parent", "--mover=off"]);
        command.arg(format!("--data={data}"));
        command.arg(format!("--size-per-node={size_per_node}"));
        command.arg("--").arg(directory);
        Ok(Self {
            server: up::start(command, directory, false, &mut |_| {})?,
            directory: directory.to_owned(),
        })
    }

    fn status(&self) -> Result<StatusReport> {
        Connection::to_server_of(&self.directory, To::Look)?.0.status()
    }

    /// How requests travel, and why.
    pub(super) fn transport(&self) -> Result<String> {
        let fuse = self.status()?.fuse;
        Ok(format!("transport {}: {}", fuse.transport, fuse.transport_reason))
    }

    /// Asks the server for the state of its pool, after all memory populated ahead is populated.
    pub(super) fn state(&self) -> Result<homenode::Status> {
        let mut last = self.status()?;
        loop {
            thread::sleep(POPULATE_PERIOD);
            let now = self.status()?;
            let populated =
                |report: &StatusReport| report.pool.members.iter().map(|one| one.populated_bytes).sum::<u64>();
            if populated(&now) == populated(&last) {
                return Ok(now.pool);
            }
            last = now;
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It fails only if it has ended.
        let _ = rustix::process::kill_process(Pid::from_child(&self.server), Signal::TERM);
        let start = Instant::now();
        while matches!(self.server.try_wait(), Ok(None)) {
            if start.elapsed() > END_TIMEOUT {
                let _ = self.server.kill();
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}
