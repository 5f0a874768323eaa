//! The server's end of the socket: a thread per connection, requests of one connection one after the other.

use super::protocol::{Outcome, REQUEST_BYTES_MAX, Refusal, Reply, Request};
use super::{readers_path, socket_path};
use crate::failure::{Cannot, Result, fail};
use crate::mountinfo::Device;
use homenode_linux::process::peer_of;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SendFlags;
use std::any::Any;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Connections served at a time; further ones are refused.
const CONNECTIONS_MAX: usize = 64;
/// Connections of readers served at a time.
const READERS_MAX: usize = 8;
/// Connections of readers served at a time to a user other than root, so that no user takes the places of all others.
const USER_READERS_MAX: usize = 4;
const _: () = assert!(USER_READERS_MAX < READERS_MAX);
/// Shortest time between two answers to a reader's connection, and before the first one. An answer takes CPU time from the users of the pool, and a
/// reader could ask in a loop, also with a new connection for each request.
const READER_PERIOD: Duration = Duration::from_millis(250);
/// Shortest time that a reader's connection counts.
const CONNECT_PERIOD: Duration = Duration::from_millis(10);
/// A reader rests for so many times as long as its last answer took: eight of them together take less than a CPU.
const READER_REST: u32 = 10;
/// No reader waits longer: an answer may also have taken long because this process had no CPU.
const READER_REST_MAX: Duration = Duration::from_secs(2);
/// Progress lines are at least this far apart.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);
/// Time in which the line of a client's first request must be there: silent clients would take the places of all others.
const FIRST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time in which a client must take a reply: a stopped client must not hold a thread for ever.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Answers requests of a user, where it is known which. `progress` takes bytes done and to do.
pub(crate) trait Handler: Send + Sync + 'static {
    fn handle(
        &self,
        request: Request,
        user: Option<u32>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> std::result::Result<Outcome, Refusal>;
}

/// The open socket. Dropping it removes the name.
#[derive(Debug)]
pub(crate) struct Socket {
    names: Vec<Name>,
    activity: Arc<Activity>,
}

/// A socket's name.
#[derive(Debug)]
struct Name {
    path: PathBuf,
    /// The file behind the name: once the mount is gone its device number may be another server's, and the name too.
    inode: u64,
}

/// Requests that a socket's users may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    All,
    /// Requests that change nothing.
    Reading,
}

/// Connections and the requests being answered.
#[derive(Debug, Default)]
struct Activity {
    counts: Mutex<Counts>,
    idle: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    /// Connections by user; [`UNKNOWN`] stands for a user that the kernel does not tell.
    connections: BTreeMap<u32, usize>,
    requests: usize,
}

/// Number that the kernel gives to no user.
const UNKNOWN: u32 = u32::MAX;

/// Things that are counted.
#[derive(Clone, Copy, Debug)]
enum Thing {
    ConnectionOf(u32),
    Request,
}

impl Counts {
    fn of(&mut self, thing: Thing) -> &mut usize {
        match thing {
            Thing::ConnectionOf(user) => self.connections.entry(user).or_default(),
            Thing::Request => &mut self.requests,
        }
    }

    /// Says why a connection of `user`, which is counted already, is one too many.
    fn refuse(&self, user: u32, rights: Rights) -> Option<String> {
        let all: usize = self.connections.values().sum();
        let own = self.connections.get(&user).copied().unwrap_or(0);
        match rights {
            Rights::All if all > CONNECTIONS_MAX => Some(format!(
                "{CONNECTIONS_MAX} commands are connected to this server already: try again when one has ended"
            )),
            Rights::Reading if all > READERS_MAX => Some(format!(
                "{READERS_MAX} viewers look at this pool already: end one, or run as root"
            )),
            Rights::Reading if own > USER_READERS_MAX && user != 0 => Some(format!(
                "{USER_READERS_MAX} viewers of this user look at this pool already: end one, or run as root"
            )),
            _ => None,
        }
    }
}

impl Socket {
    /// Listens for requests about the mount `device`.
    pub(crate) fn open(device: Device, handler: Arc<dyn Handler>) -> Result<Self> {
        super::make_directory()?;
        let activity = Arc::new(Activity::default());
        let mut socket = Self {
            names: Vec::new(),
            activity: Arc::clone(&activity),
        };
        socket.listen(socket_path(device), None, &handler, &activity)?;
        match super::make_readers_directory() {
            Ok(None) => {}
            // Connections of their own, so that they take no places of root's.
            Ok(group) => {
                if let Err(failure) = socket.listen(readers_path(device), group, &handler, &Arc::default()) {
                    tracing::warn!("members of the group homenode cannot look at this pool: {failure}");
                }
            }
            Err(error) => tracing::warn!("members of the group homenode cannot look at this pool: {error}"),
        }
        Ok(socket)
    }

    /// Listens at a path: for readers of a group, or for root.
    fn listen(
        &mut self,
        path: PathBuf,
        readers: Option<u32>,
        handler: &Arc<dyn Handler>,
        activity: &Arc<Activity>,
    ) -> Result<()> {
        let (listener, inode) = {
            // A command that finds a name without a listener takes this lock, too, before it removes the name.
            let _alone = super::lock()?;
            listen(&path, readers).or_else(|error| fail!("cannot listen on {}: {error}", path.display()))?
        };
        self.names.push(Name { path, inode });
        let rights = readers.map_or(Rights::All, |_| Rights::Reading);
        let (handler, activity) = (Arc::clone(handler), Arc::clone(activity));
        let accept = move || {
            for stream in listener.incoming() {
                match stream {
                    Ok(stream) => serve(stream, &handler, &activity, rights),
                    Err(error) => {
                        tracing::warn!("a command could not connect: {error}");
                        // Out of descriptors or memory: do not spin until there are some.
                        thread::sleep(PROGRESS_PERIOD);
                    }
                }
            }
        };
        let started = thread::Builder::new().name("control".into()).spawn(accept);
        started.map(drop).cannot("start the thread that answers commands")
    }

    /// Waits until no request is being answered, at most `timeout`.
    pub(crate) fn finish(&self, timeout: Duration) {
        let (mut counts, busy) = (self.activity.counts.lock(), |counts: &mut Counts| counts.requests > 0);
        self.activity.idle.wait_while_for(&mut counts, busy, timeout);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let lock = super::lock();
        if let Err(failure) = &lock {
            tracing::warn!("{failure}");
        }
        for name in &self.names {
            let removed = match inode_of(&name.path) {
                Ok(inode) if inode == name.inode => fs::remove_file(&name.path),
                // Another server's by now.
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = removed {
                tracing::warn!("cannot remove {}: {error}", name.path.display());
            }
        }
    }
}

impl Activity {
    fn change(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock());
        self.idle.notify_all();
    }
}

/// Guard that keeps the number of a thing one higher until the guard is dropped, also by a panic.
struct Counted {
    activity: Arc<Activity>,
    thing: Thing,
}

impl Counted {
    fn new(activity: &Arc<Activity>, thing: Thing) -> Self {
        activity.change(|counts| *counts.of(thing) += 1);
        Self {
            activity: Arc::clone(activity),
            thing,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.activity.change(|counts| {
            *counts.of(self.thing) -= 1;
            counts.connections.retain(|_, connections| *connections > 0);
        });
    }
}

fn inode_of(path: &Path) -> io::Result<u64> {
    Ok(fs::symlink_metadata(path)?.ino())
}

fn listen(path: &Path, readers: Option<u32>) -> io::Result<(UnixListener, u64)> {
    // A socket of this name is of a server that was killed: the device number is ours now.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    // Nobody else can reach the name in between: the directories are closed.
    if readers.is_some() {
        chown(path, None, readers)?;
    }
    let mode = if readers.is_some() { 0o660 } else { 0o600 };
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    Ok((listener, inode_of(path)?))
}

fn serve(stream: UnixStream, handler: &Arc<dyn Handler>, activity: &Arc<Activity>, rights: Rights) {
    let user = peer_of(&stream).map_or(UNKNOWN, |peer| peer.user);
    let connection = Counted::new(activity, Thing::ConnectionOf(user));
    if let Some(why) = activity.counts.lock().refuse(user, rights) {
        // This thread waits for no client: the buffer of a new socket takes a line, and what it does not take is lost.
        let _ = stream.set_nonblocking(true);
        let _ = send(&stream, &Reply::Failed(Refusal::new(why)));
        return;
    }
    let handler = Arc::clone(handler);
    let spawned = thread::Builder::new().name("command".into()).spawn(move || {
        // Refusals, too, are told at this level alone: readers could fill the log with them.
        if let Err(error) = converse(&stream, &*handler, &connection.activity, (FIRST_TIMEOUT, rights)) {
            tracing::debug!("a command went away: {error}");
        }
        if rights == Rights::Reading {
            // A connection costs the server this thread, whatever it asks: it counts as its user's for a while.
            thread::sleep(CONNECT_PERIOD);
        }
    });
    if let Err(error) = spawned {
        tracing::warn!("cannot start a thread for a command: {error}");
    }
}

/// A stream that is read until a time, however little comes at once.
struct Timed<'a> {
    stream: &'a UnixStream,
    end: Option<Instant>,
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.stream.set_read_timeout(left)?;
        self.stream.read(bytes)
    }
}

/// Answers the requests of a connection. The line of the first request must be complete within `first`. The same holds for each later request of a
/// reader, whose answers are [`READER_PERIOD`] apart; clients of root may pause for long.
fn converse(
    stream: &UnixStream,
    handler: &dyn Handler,
    activity: &Arc<Activity>,
    (first, rights): (Duration, Rights),
) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let end = || Some(Instant::now() + first);
    let mut input = BufReader::new(Timed { stream, end: end() });
    let (mut answered, mut took) = (Instant::now(), Duration::ZERO);
    loop {
        let mut line = String::new();
        if input.by_ref().take(REQUEST_BYTES_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        if rights == Rights::Reading {
            // This thread alone waits, and holds no lock.
            let pause = READER_PERIOD.max((READER_REST * took).min(READER_REST_MAX));
            thread::sleep(pause.saturating_sub(answered.elapsed()));
        }
        let begun = Instant::now();
        {
            let _request = Counted::new(activity, Thing::Request);
            answer(stream, &line, handler, rights)?;
        }
        // Behind the answer, which may take long itself.
        answered = Instant::now();
        took = answered - begun;
        input.get_mut().end = (rights == Rights::Reading).then(end).flatten();
    }
}

fn answer(stream: &UnixStream, line: &str, handler: &dyn Handler, rights: Rights) -> io::Result<()> {
    let request = match serde_json::from_str::<Request>(line) {
        Ok(request) => request,
        Err(error) => {
            let version = env!("CARGO_PKG_VERSION");
            let message = format!("the server (version {version}) does not understand the request: {error}");
            return send(stream, &Reply::Failed(Refusal::new(message)));
        }
    };
    tracing::debug!("asked: {request:?}");
    let peer = peer_of(stream).ok();
    let (user, process) = (peer.map(|peer| peer.user), peer.and_then(|peer| peer.process));
    let audited = request.changes_something().then(|| format!("{request:?}"));
    if rights == Rights::Reading && !request.is_for_readers() {
        send(
            stream,
            &Reply::Failed(Refusal::new("only root may do that: run as root")),
        )?;
        // Closed, and without the request's text: the log is in memory.
        let why = format!("user {user:?}, process {process:?}: only root may do that");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    // This process may have been stopped for long.
    if has_gone(stream) {
        if rights == Rights::Reading {
            // Not to the log, which a reader could fill, and no further request.
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        tracing::info!("dropped a request, because its command has ended: {request:?}");
        return Ok(());
    }
    let mut told = Instant::now();
    let mut progress = |done_bytes, total_bytes| {
        if told.elapsed() >= PROGRESS_PERIOD {
            told = Instant::now();
            // Whether anyone still listens does not change what was begun.
            let _ = send_if_taken(
                stream,
                &Reply::Progress {
                    done_bytes,
                    total_bytes,
                },
            );
        }
    };
    // A bug costs one request, as on the mount. The locks of the pool do not poison.
    let result = catch_unwind(AssertUnwindSafe(|| handler.handle(request, user, &mut progress)));
    let result = result.unwrap_or_else(|panic| Err(refusal_of(&*panic)));
    if let Some(request) = &audited {
        match &result {
            Ok(_) => tracing::info!(user, process, request, "carried out"),
            Err(refusal) => tracing::info!(user, process, request, "failed: {}", refusal.message),
        }
    }
    send(stream, &result.map_or_else(Reply::Failed, Reply::Done))
}

/// Whether nobody waits for an answer any more.
fn has_gone(stream: &UnixStream) -> bool {
    // Nothing is asked for: that the other end is closed is told all the same.
    let mut ends = [PollFd::new(stream, PollFlags::empty())];
    poll(&mut ends, Some(&Timespec::default())).is_ok() && ends[0].revents().contains(PollFlags::HUP)
}

fn refusal_of(panic: &(dyn Any + Send)) -> Refusal {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let message = format!(
        "a bug in the server broke this request ({}); see the server's log",
        text.unwrap_or("it panicked")
    );
    Refusal::new(message)
}

fn send(mut stream: &UnixStream, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Sends a line that may be lost: a client that is stopped is not waited for, as whoever tells progress holds locks. A socket takes a line this short whole or
/// not at all.
fn send_if_taken(stream: &UnixStream, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    let sent = rustix::net::send(stream, &line, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    let mut rest = stream;
    rest.write_all(&line[sent..])
}

#[cfg(test)]
mod tests;
