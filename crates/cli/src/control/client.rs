//! A command's end of the socket.

use super::protocol::{Outcome, Refusal, Reply, Request, StatusReport};
use super::{log_path, root_hint, socket_path};
use crate::directory::{fate, is_dead};
use crate::failure::{Failure, Result, fail};
use crate::mountinfo::{Device, Located, locate, mounts, shown};
use rustix::process::Pid;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longest time that a running server needs for a quick request.
const QUICK_TIMEOUT: Duration = Duration::from_secs(5);

/// An open connection to a server.
#[derive(Debug)]
pub(crate) struct Connection {
    device: Device,
    stream: BufReader<UnixStream>,
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// The server said no.
    Refused(Refusal),
    /// The conversation broke.
    Broken(Failure),
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum ConnectError {
    /// Nobody listens.
    Dead,
    /// Something is in the way.
    Other(io::Error),
}

impl Connection {
    /// Connects to the server of `device`.
    pub(crate) fn open(device: Device) -> std::result::Result<Self, ConnectError> {
        match UnixStream::connect(socket_path(device)) {
            Ok(stream) => Ok(Self {
                device,
                stream: BufReader::new(stream),
            }),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Err(ConnectError::Dead),
                _ => Err(ConnectError::Other(error)),
            },
        }
    }

    /// Connects to the server of the mount that `path` lies on.
    pub(crate) fn to_server_of(path: &Path) -> Result<(Self, Located)> {
        let located = on_homenode(path)?;
        match Self::open(located.mount.device) {
            Ok(connection) => Ok((connection, located)),
            Err(ConnectError::Dead) if is_dead(&located) => fail!(
                "the server of {0} is dead: `homenode down {0}` clears the mount; {1}",
                shown(&located.mount.mount_point),
                fate(&located.mount)
            ),
            Err(ConnectError::Dead) => fail!(
                "the server of {} does not answer on {}: was it started in another container, or is it ending?",
                shown(&located.mount.mount_point),
                socket_path(located.mount.device).display(),
            ),
            Err(ConnectError::Other(error)) => fail!(
                "cannot talk to the server of {}: {error}{}",
                shown(&located.mount.mount_point),
                root_hint(&error)
            ),
        }
    }

    /// Sends `request` and waits for what comes of it. `progress` takes bytes done and to do.
    pub(crate) fn request(
        &mut self,
        request: &Request,
        progress: &mut dyn FnMut(u64, u64),
    ) -> std::result::Result<Outcome, RequestError> {
        let device = self.device;
        let broken = |error: io::Error| RequestError::Broken(broken_off(device, &error));
        let quick = self.stream.get_ref().set_read_timeout(Some(QUICK_TIMEOUT));
        quick.map_err(broken)?;
        let mut line = serde_json::to_vec(request).map_err(|error| broken(error.into()))?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).map_err(broken)?;
        loop {
            let mut line = Vec::new();
            while let Err(error) = self.stream.read_until(b'\n', &mut line) {
                match error.kind() {
                    // What takes its time is waited for, but not for a server that is stopped.
                    io::ErrorKind::WouldBlock if !request.is_quick() && !self.is_stopped() => {}
                    io::ErrorKind::WouldBlock => return Err(RequestError::Broken(self.silent(request))),
                    _ => return Err(broken(error)),
                }
            }
            if line.is_empty() {
                return Err(broken(io::ErrorKind::UnexpectedEof.into()));
            }
            match serde_json::from_slice(&line) {
                Ok(Reply::Progress {
                    done_bytes,
                    total_bytes,
                }) => progress(done_bytes, total_bytes),
                Ok(Reply::Done(outcome)) => return Ok(outcome),
                Ok(Reply::Failed(refusal)) => return Err(RequestError::Refused(refusal)),
                Err(error) => {
                    let version = env!("CARGO_PKG_VERSION");
                    let text = format!("the server's answer is not of this version ({version}): {error}");
                    return Err(RequestError::Broken(Failure::new(text)));
                }
            }
        }
    }

    /// Whether the server is there and gives no answer in this time (not zero). The connection is of no further use then.
    pub(crate) fn is_silent(&mut self, timeout: Duration) -> bool {
        let mut line = serde_json::to_vec(&Request::Status).expect("a request is JSON");
        line.push(b'\n');
        let stream = self.stream.get_mut();
        let asked = stream.set_read_timeout(Some(timeout));
        if asked.and_then(|()| stream.write_all(&line)).is_err() {
            return false;
        }
        let answer = self.stream.read_line(&mut String::new());
        answer.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// The state of the server's pool.
    pub(crate) fn status(&mut self) -> Result<StatusReport> {
        match self.request(&Request::Status, &mut |_, _| {})? {
            Outcome::Status(report) => Ok(*report),
            other => Err(unexpected(&other)),
        }
    }

    /// The server did not answer in time: what may have become of it, and what to do.
    fn silent(&self, request: &Request) -> Failure {
        let seconds = QUICK_TIMEOUT.as_secs();
        let unknown = if request.changes_something() {
            ". It drops what it has not begun when it goes on; whether it has begun this is not known"
        } else {
            ""
        };
        let Some(pid) = self.server().map(Pid::as_raw_nonzero) else {
            return Failure::new(format!("the server has not answered for {seconds} s{unknown}"));
        };
        let state = if self.is_stopped() {
            format!("is stopped, as are all calls to its mount: `kill -CONT {pid}` lets them go on")
        } else {
            format!("has not answered for {seconds} s: it is frozen, or the machine is overloaded")
        };
        Failure::new(format!(
            "the server (process {pid}) {state}; `kill -KILL {pid}` ends it, and what a pool of memory holds is lost{unknown}"
        ))
    }

    /// Whether the server's process is stopped, by a signal or a debugger.
    fn is_stopped(&self) -> bool {
        let Some(pid) = self.server().map(Pid::as_raw_nonzero) else {
            return false;
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
        matches!(state, Some('T' | 't'))
    }

    /// The server's process; `None` where it is none of this PID namespace.
    pub(crate) fn server(&self) -> Option<Pid> {
        Some(rustix::net::sockopt::socket_peercred(self.stream.get_ref()).ok()?.pid)
    }

    /// Waits until the server's process has ended, and with it gave its memory back, at most `timeout` (not zero).
    /// Whether it has.
    pub(crate) fn wait_for_end(&mut self, timeout: Duration) -> bool {
        if self.stream.get_ref().set_read_timeout(Some(timeout)).is_err() {
            return false;
        }
        loop {
            match self.stream.read(&mut [0]).map_err(|error| error.kind()) {
                // By a stop and a continue, which a timeout does not survive: it begins anew.
                Err(io::ErrorKind::Interrupted) => {}
                Err(io::ErrorKind::WouldBlock) => return false,
                // Any answer, end or error will do: it is gone, or does not talk to us any more.
                _ => return true,
            }
        }
    }
}

/// The connection to a server that was there has ended.
fn broken_off(device: Device, error: &io::Error) -> Failure {
    let mounts = mounts().unwrap_or_default();
    let pool = mounts
        .iter()
        .find(|mount| mount.device == device && mount.is_homenode());
    let pool = pool.map_or_else(
        || format!("behind {}", socket_path(device).display()),
        |mount| format!("of {}", shown(&mount.mount_point)),
    );
    Failure::new(format!(
        "the server {pool} broke off: {error}: `homenode status` tells whether it lives; its log is {}, or its standard error \
         where it was started in the foreground",
        log_path(device).display()
    ))
}

/// An answer that belongs to another request.
pub(crate) fn unexpected(outcome: &Outcome) -> Failure {
    Failure::new(format!("the server answered something else than asked: {outcome:?}"))
}

/// Finds the homenode mount that `path` lies on.
pub(crate) fn on_homenode(path: &Path) -> Result<Located> {
    let located = match locate(path) {
        Ok(located) => located,
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()) => {
            fail!(
                "{}: its server is dead; `homenode down` the directory it was mounted on",
                shown(path)
            )
        }
        Err(error) => fail!("cannot open {}: {error}", shown(path)),
    };
    if !located.mount.is_homenode() {
        fail!(
            "{} is not on a homenode mount: it lies on {} ({}); `homenode status` lists the mounts there are",
            shown(path),
            shown(&located.mount.mount_point),
            located.mount.filesystem_type
        );
    }
    Ok(located)
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Refused(refusal) => Self::new(refusal.message),
            RequestError::Broken(failure) => failure,
        }
    }
}
