//! A command's end of the socket.

use super::protocol::{Outcome, Refusal, Reply, Request, StatusReport};
use super::{To, hint, log_path, readers_path, socket_path};
use crate::directory::{Behind, fate, is_dead, server_behind};
use crate::failure::{Failure, Result, fail};
use crate::mountinfo::{Device, Located, MountEntry, absolute, first_homenode_mount, locate, mount_point, shown};
use homenode_linux::process::{Stat, peer_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::Pid;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest time that a running server needs for a quick request.
pub(super) const QUICK_TIMEOUT: Duration = Duration::from_secs(5);

/// An open connection to a server.
#[derive(Debug)]
pub(crate) struct Connection {
    device: Device,
    stream: BufReader<UnixStream>,
    /// Longest time that a running server needs for a quick request.
    quick: Duration,
    /// Longest time without a word of progress that a running server is waited for.
    silence_max: Duration,
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// The server said no.
    Refused(Refusal),
    /// The conversation broke.
    Broken(Failure),
    /// The server has not answered in time; the connection is as before.
    Late(Failure),
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
    pub(crate) fn open(device: Device) -> std::result::Result<Self, ConnectError> {
        Self::open_with(device, QUICK_TIMEOUT)
    }

    /// Connects to the server of `device`, which has the time `quick` to take the connection, and for each quick request.
    pub(super) fn open_with(device: Device, quick: Duration) -> std::result::Result<Self, ConnectError> {
        let stream = connect(&socket_path(device), quick).or_else(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                let readers = connect(&readers_path(device), quick);
                // A socket that this user may use tells more.
                readers.map_err(|of_readers| match of_readers.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => error,
                    _ => of_readers,
                })
            }
            _ => Err(error),
        });
        match stream {
            Ok(stream) => Ok(Self::over(device, stream, quick)),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Err(ConnectError::Dead),
                // Only root may connect.
                io::ErrorKind::PermissionDenied if !is_listened_on(&socket_path(device)) => Err(ConnectError::Dead),
                _ => Err(ConnectError::Other(error)),
            },
        }
    }

    /// Makes a connection of a stream to the server of `device`.
    pub(super) fn over(device: Device, stream: UnixStream, quick: Duration) -> Self {
        Self {
            device,
            stream: BufReader::new(stream),
            quick,
            silence_max: Duration::MAX,
        }
    }

    /// Gives a server up that says nothing for so long, whatever it is doing.
    pub(crate) fn with_silence_max(self, silence_max: Duration) -> Self {
        Self { silence_max, ..self }
    }

    /// Connects to the server of the mount that `path` lies on.
    pub(crate) fn to_server_of(path: &Path, to: To) -> Result<(Self, Located)> {
        let located = on_homenode(path)?;
        match Self::open(located.mount.device) {
            Ok(connection) => Ok((connection, located)),
            Err(ConnectError::Dead) if is_dead(&located) => Err(dead_server(&located.mount)),
            Err(ConnectError::Dead) => fail!(
                "the server of {} does not answer on {}: was it started in another container, or is it ending?",
                shown(&located.mount.mount_point),
                socket_path(located.mount.device).display(),
            ),
            Err(ConnectError::Other(error)) => Err(cannot_talk(&shown(&located.mount.mount_point), &error, to)),
        }
    }

    /// Sends `request` and waits for what comes of it. `progress` takes bytes done and to do.
    pub(crate) fn request(
        &mut self,
        request: &Request,
        progress: &mut dyn FnMut(u64, u64),
    ) -> std::result::Result<Outcome, RequestError> {
        self.send(request)?;
        self.receive(request, self.quick, &mut Vec::new(), progress)
    }

    pub(super) fn send(&mut self, request: &Request) -> std::result::Result<(), RequestError> {
        let device = self.device;
        let broken = |error: io::Error| RequestError::Broken(broken_off(device, &error));
        let timeout = self.stream.get_ref().set_write_timeout(Some(self.quick));
        timeout.map_err(broken)?;
        let mut line = serde_json::to_vec(request).map_err(|error| broken(error.into()))?;
        line.push(b'\n');
        match self.stream.get_mut().write_all(&line) {
            // A server that closes the connection may have said why before.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(broken(error)),
            _ => Ok(()),
        }
    }

    /// Waits for what comes of `request`, which was sent: for so long if it is quick. `line` is the part of the answer's line that has come, before and after.
    pub(super) fn receive(
        &mut self,
        request: &Request,
        quick: Duration,
        line: &mut Vec<u8>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> std::result::Result<Outcome, RequestError> {
        let mut heard = Instant::now();
        let mut deadline = heard + quick;
        loop {
            while let Err(error) = self.read_line(line, request.answer_bytes_max(), deadline) {
                match error.kind() {
                    // What takes its time is waited for, but not for a server that is stopped.
                    io::ErrorKind::WouldBlock
                        if !request.is_quick() && !self.is_stopped() && heard.elapsed() < self.silence_max =>
                    {
                        deadline = Instant::now() + self.quick;
                    }
                    io::ErrorKind::WouldBlock => return Err(RequestError::Late(self.silent(request))),
                    _ => return Err(RequestError::Broken(broken_off(self.device, &error))),
                }
            }
            match serde_json::from_slice(&std::mem::take(line)) {
                Ok(Reply::Progress {
                    done_bytes,
                    total_bytes,
                }) => {
                    progress(done_bytes, total_bytes);
                    heard = Instant::now();
                    if request.is_quick() && Instant::now() >= deadline {
                        return Err(RequestError::Late(self.silent(request)));
                    }
                }
                Ok(Reply::Done(outcome)) => return Ok(outcome),
                Ok(Reply::Failed(refusal)) => return Err(RequestError::Refused(refusal)),
                Err(error) => {
                    let version = env!("CARGO_PKG_VERSION");
                    let text = format!("the server's answer does not fit this version ({version}): {error}");
                    return Err(RequestError::Broken(Failure::new(text)));
                }
            }
        }
    }

    /// Reads on to the end of a line, `line` being the part that has come. Returns `WouldBlock` when the line is not whole by the deadline.
    fn read_line(&mut self, line: &mut Vec<u8>, bytes_max: usize, deadline: Instant) -> io::Result<()> {
        while line.last() != Some(&b'\n') {
            let left = deadline.saturating_duration_since(Instant::now());
            // Zero would be for ever.
            let timeout = left.max(Duration::from_millis(1));
            self.stream.get_ref().set_read_timeout(Some(timeout))?;
            let part = match self.stream.fill_buf() {
                Ok([]) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                part => part?,
            };
            let count = part
                .iter()
                .position(|&byte| byte == b'\n')
                .map_or(part.len(), |at| at + 1);
            line.extend_from_slice(&part[..count]);
            self.stream.consume(count);
            if line.len() > bytes_max {
                return Err(io::Error::other("its answer does not end"));
            }
            if left.is_zero() && line.last() != Some(&b'\n') {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        Ok(())
    }

    /// Whether the server has closed the connection, or has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let mut ends = [PollFd::new(self.stream.get_ref(), PollFlags::empty())];
        poll(&mut ends, Some(&Timespec::default())).is_ok() && ends[0].revents().contains(PollFlags::HUP)
    }

    /// Whether the server is there and gives no answer in this time (not zero). The connection is of no further use then.
    pub(crate) fn is_silent(&mut self, timeout: Duration) -> bool {
        let mut line = serde_json::to_vec(&Request::Status).expect("a request always serializes to JSON");
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
        let seconds = self.quick.as_secs_f32();
        let unknown = if request.changes_something() {
            ". When it continues, it drops requests not begun; whether it has begun this one is not known"
        } else {
            ""
        };
        let Some(pid) = self.server().map(Pid::as_raw_nonzero) else {
            return Failure::new(format!("the server has not answered for {seconds} s{unknown}"));
        };
        let state = if self.is_stopped() {
            format!(
                "is stopped, and calls to its mount wait, those of killed programs too: `kill -CONT {pid}` resumes it"
            )
        } else {
            format!("has not answered for {seconds} s: it is frozen, or the machine is overloaded")
        };
        Failure::new(format!(
            "the server (process {pid}) {state}; `kill -KILL {pid}` ends it and loses the contents of a pool of memory{unknown}"
        ))
    }

    /// Whether the server's process is stopped, by a signal or a debugger.
    fn is_stopped(&self) -> bool {
        let Some(pid) = self.server().map(Pid::as_raw_nonzero) else {
            return false;
        };
        let line = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
        Stat::parse(&line).is_some_and(|stat| matches!(stat.state, 'T' | 't'))
    }

    /// The server's process; `None` where it is none of this PID namespace.
    pub(crate) fn server(&self) -> Option<Pid> {
        Pid::from_raw(peer_of(self.stream.get_ref()).ok()?.process?)
    }

    /// The server's user.
    pub(super) fn user(&self) -> io::Result<u32> {
        Ok(peer_of(self.stream.get_ref())?.user)
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
    Failure::new(format!(
        "the server of {} closed the connection: {error}: `homenode status` shows whether it runs; its log is {}, or its standard error \
         if it was started in the foreground",
        pool_of(device),
        log_path(device).display()
    ))
}

/// Names the pool of a server for messages: by its directory, or by the socket where no mount is seen.
pub(crate) fn pool_of(device: Device) -> String {
    mount_point(device).unwrap_or_else(|| format!("the pool behind {}", socket_path(device).display()))
}

/// Whether a process of this network namespace may listen on a socket. Used where connecting is not permitted.
fn is_listened_on(socket: &Path) -> bool {
    let Ok(sockets) = fs::read("/proc/net/unix") else {
        return true;
    };
    is_listed(&String::from_utf8_lossy(&sockets), socket)
}

/// Whether a socket is in the text of /proc/net/unix by its whole path: any user may listen on a longer path, or on an abstract name that ends with it.
fn is_listed(sockets: &str, socket: &Path) -> bool {
    let path = |line| str::split_ascii_whitespace(line).nth(7);
    sockets.lines().filter_map(path).any(|path| Path::new(path) == socket)
}

/// Connects to a socket. Waits `within` while its queue is full, as that of a stopped server may be.
pub(crate) fn connect(path: &Path, within: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(within))?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) => Ok(socket.into()),
        Err(Errno::AGAIN) => {
            let why = format!(
                "others wait to connect, and it took none of them for {} s: is it stopped?",
                within.as_secs_f32()
            );
            Err(io::Error::new(io::ErrorKind::TimedOut, why))
        }
        Err(error) => Err(error.into()),
    }
}

/// The server of a mount was killed: what to do, and what became of the bytes.
pub(crate) fn dead_server(mount: &MountEntry) -> Failure {
    Failure::new(format!(
        "the server of {0} is dead: `homenode down {0}` clears the mount; {1}",
        shown(&mount.mount_point),
        fate(mount)
    ))
}

/// An answer that belongs to another request.
pub(crate) fn unexpected(outcome: &Outcome) -> Failure {
    Failure::new(format!("the server gave an unexpected answer: {outcome:?}"))
}

/// Mount whose server does not serve this command, and the message about it.
#[derive(Debug)]
pub(crate) enum Unserved {
    /// The server was killed.
    Dead(MountEntry, Failure),
    /// The server does not answer.
    Silent(MountEntry, Failure),
    /// The user may not ask the server, so it may be stopped.
    Refused(Failure),
}

/// Finds the mount on the way to `path` whose server does not serve this command. The path is not opened: where the server is stopped that would keep
/// this process, which not even SIGKILL ends while its request is in a ring.
pub(crate) fn unserved(path: &Path, to: To) -> Option<Unserved> {
    let mount = first_homenode_mount(path)?;
    let name = shown(&mount.mount_point);
    match Connection::open(mount.device) {
        Ok(mut server) => server.is_silent(QUICK_TIMEOUT).then(|| {
            let why = server.silent(&Request::Status);
            let failure = format!("the server of {name} does not answer: {why}");
            Unserved::Silent(mount, Failure::new(failure))
        }),
        // Nobody listens, so the mount is asked.
        Err(ConnectError::Dead) => match server_behind(&locate(&mount.mount_point).ok()?) {
            Behind::Nobody => {
                let failure = dead_server(&mount);
                Some(Unserved::Dead(mount, failure))
            }
            Behind::Silent => {
                let failure = format!(
                    "the server of {name} does not answer, and has no socket here: is the program that mounted it stopped? `umount -l {name}` \
                     takes the mount away"
                );
                Some(Unserved::Silent(mount, Failure::new(failure)))
            }
            Behind::Server => None,
        },
        // Its queue is full. Who asks the mount would wait without end.
        Err(ConnectError::Other(error)) if error.kind() == io::ErrorKind::TimedOut => {
            let failure = Failure::new(format!("the server of {name} does not answer: {error}"));
            Some(Unserved::Silent(mount, failure))
        }
        Err(ConnectError::Other(error)) => Some(Unserved::Refused(cannot_talk(&name, &error, to))),
    }
}

/// Refuses a path on a mount whose server is dead or does not answer, as far as the user may ask the server.
pub(crate) fn refuse_unserved(path: &Path) -> Result<()> {
    match unserved(path, To::Look) {
        Some(Unserved::Dead(_, failure) | Unserved::Silent(_, failure)) => Err(failure),
        Some(Unserved::Refused(_)) | None => Ok(()),
    }
}

/// [`refuse_unserved`] of a path below the root of such a mount, which alone the kernel finds without the server.
pub(crate) fn refuse_unserved_inside(path: &Path) -> Result<()> {
    match first_homenode_mount(path) {
        Some(mount) if mount.mount_point != absolute(path) => refuse_unserved(path),
        _ => Ok(()),
    }
}

/// Message about a server that cannot be connected to.
pub(crate) fn cannot_talk(name: &str, error: &io::Error, to: To) -> Failure {
    Failure::new(format!(
        "cannot talk to the server of {name}: {error}{}",
        hint(error, to)
    ))
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
            "{} is not on a homenode mount: it lies on {} ({}); `homenode status` lists the mounts",
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
            RequestError::Broken(failure) | RequestError::Late(failure) => failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread;

    #[test]
    fn a_full_queue_is_not_waited_for_without_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        // It accepts none of them.
        rustix::net::listen(&listener, 2).unwrap();
        let within = Duration::from_millis(300);
        let waiting: Vec<_> = (0..3).map(|_| connect(&path, within).unwrap()).collect();
        let begun = Instant::now();
        let error = connect(&path, within).unwrap_err();
        assert!(error.to_string().contains("is it stopped"), "{error}");
        assert!(begun.elapsed() < 10 * within, "{:?}", begun.elapsed());
        drop(waiting);
        drop(listener);
        assert_eq!(
            connect(&path, within).unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
    }

    #[test]
    fn an_answer_that_does_not_end_is_an_error() {
        let ask = |part: &'static [u8], pause_ms: u64, quick: Duration| {
            let (client, mut server) = UnixStream::pair().unwrap();
            thread::spawn(move || {
                while server.write_all(part).is_ok() {
                    thread::sleep(Duration::from_millis(pause_ms));
                }
            });
            let mut connection = Connection::over(Device { major: 4000, minor: 75 }, client, quick);
            connection.request(&Request::Tasks, &mut |_, _| {}).unwrap_err()
        };
        let told = ask(&[b'x'; 1 << 20], 0, Duration::from_secs(60));
        assert!(
            matches!(&told, RequestError::Broken(why) if why.to_string().contains("does not end")),
            "{told:?}"
        );
        // Each part comes in time.
        const PROGRESS: &[u8] = b"{\"progress\":{\"done_bytes\":0,\"total_bytes\":1}}\n";
        for (part, pause_ms) in [(&b"x"[..], 10), (PROGRESS, 10), (PROGRESS, 0)] {
            let told = ask(part, pause_ms, Duration::from_millis(100));
            assert!(matches!(told, RequestError::Late(_)), "{told:?}");
        }
    }

    #[test]
    fn a_server_that_says_nothing_for_long_is_given_up_whatever_it_does() {
        let (client, server) = UnixStream::pair().unwrap();
        let connection = Connection::over(Device { major: 4000, minor: 74 }, client, Duration::from_millis(50));
        let mut connection = connection.with_silence_max(Duration::from_millis(300));
        let begun = Instant::now();
        let told = connection.request(&Request::FileMove { inode: 1, node: 0 }, &mut |_, _| {});
        assert!(matches!(told, Err(RequestError::Late(_))), "{told:?}");
        assert!(begun.elapsed() >= Duration::from_millis(300));
        drop(server);
    }

    #[test]
    fn a_socket_of_another_name_is_another_socket() {
        let socket = Path::new("/run/homenode/0-40.sock");
        let line = |path| format!("Num RefCount\nffff: 00000002 00000000 00010000 0001 01  7331 {path}\n");
        for other in [
            "@/run/homenode/0-40.sock",
            "/tmp/run/homenode/0-40.sock",
            "/tmp/x /run/homenode/0-40.sock",
        ] {
            assert!(!is_listed(&line(other), socket), "{other}");
        }
        assert!(is_listed(&line("/run/homenode/0-40.sock"), socket));
    }
}
