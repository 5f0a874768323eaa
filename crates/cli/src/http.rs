//! A small HTTP server for `homenode web` and metrics: pages that are read, over loopback or a unix socket.
//!
//! A thread serves, and a few others make pages that take long. At most [`CONNECTIONS_MAX`] connections are served at a time. A new one replaces the oldest
//! whose last request had no token. If all have shown it, the new one waits. The bounds of each connection are in [`conversation`].

mod address;
mod conversation;

pub(crate) use address::Address;
pub(crate) use conversation::{Asked, Page, Pages};

use crate::failure::{Failure, Result};
use conversation::{Stream, converse};
use rustix::fs::{FileType, Mode, OFlags, fchmod};
use rustix::process::geteuid;
use std::collections::VecDeque;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

const CONNECTIONS_MAX: usize = 256;
/// A connection has this time for its first request before it is replaced. Longer, and those that wait behind many silent ones would wait longer.
const FIRST_TIME: Duration = Duration::from_millis(10);
/// Connections that the kernel keeps until they are taken. It has their clients try again after a second where more come.
const WAITING_MAX: u32 = 1024;
/// Threads of pages that take long; further requests for such wait.
const SLOW_MAX: usize = 4;
/// Pause before the next connection is taken when one could not be: out of descriptors, perhaps.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    address: Address,
    /// Inode of its socket.
    inode: Option<u64>,
    over: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Server {
    /// Serves `pages` at an address; a unix socket gets the permissions `mode`. `what` names them in messages.
    pub(crate) fn start(address: &Address, mode: u32, what: &str, pages: Arc<dyn Pages>) -> Result<Self> {
        let cannot = |error: io::Error| {
            let remedy = remedy(address, &error);
            Failure::new(format!("cannot serve {what} at {address}: {error}{remedy}"))
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(SLOW_MAX)
            .build()
            .map_err(cannot)?;
        let listener = {
            let _inside = runtime.enter();
            Listener::bind(address, mode).map_err(cannot)?
        };
        let inode = inode_at(address);
        let (over, is_over) = oneshot::channel::<()>();
        let run = move || {
            runtime.spawn(async move { listener.serve(&pages).await });
            // An error: the other end was dropped, which says the same.
            let _ = runtime.block_on(is_over);
            // Pages that take long are not waited for.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("http".into()).spawn(run).map_err(cannot)?;
        Ok(Self {
            address: address.clone(),
            inode,
            over: Some(over),
            thread: Some(thread),
        })
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Address::Unix(path) = &self.address
            // Another server may have taken the place of a removed one.
            && self.inode == inode_at(&self.address)
        {
            let _ = fs::remove_file(path);
        }
    }
}

impl Listener {
    fn bind(address: &Address, mode: u32) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let socket = if address.is_ipv4() {
                    TcpSocket::new_v4()
                } else {
                    TcpSocket::new_v6()
                }?;
                socket.set_reuseaddr(true)?;
                socket.bind(*address)?;
                socket.listen(WAITING_MAX).map(Self::Tcp)
            }
            Address::Unix(path) => {
                clear_away(path);
                let socket = UnixSocket::new_stream()?;
                // Before it has a name: the file that binding makes gets these rights at once.
                fchmod(&socket, Mode::from_raw_mode(mode))?;
                socket.bind(path)?;
                give_rights(path, mode)?;
                socket.listen(WAITING_MAX).map(Self::Unix)
            }
        }
    }

    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
        })
    }

    async fn serve(&self, pages: &Arc<dyn Pages>) {
        let mut places = Places::default();
        loop {
            match self.accept().await {
                Ok(stream) => places.take(stream, pages).await,
                Err(error) => {
                    tracing::debug!("http: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// The connections that are served.
#[derive(Default)]
struct Places {
    conversations: JoinSet<()>,
    /// The oldest first.
    taken: VecDeque<Place>,
}

struct Place {
    conversation: AbortHandle,
    begun: Instant,
    /// See [`converse`].
    keeps_place: Arc<AtomicBool>,
}

impl Places {
    /// Serves a connection, once it has a place.
    async fn take(&mut self, stream: Box<dyn Stream>, pages: &Arc<dyn Pages>) {
        loop {
            while self.conversations.try_join_next().is_some() {}
            self.taken.retain(|place| !place.conversation.is_finished());
            if self.taken.len() < CONNECTIONS_MAX {
                break;
            }
            let mut places = self.taken.iter();
            let oldest = places.find(|place| !place.keeps_place.load(Ordering::Relaxed));
            let youth = oldest.map_or(FIRST_TIME, |place| FIRST_TIME.saturating_sub(place.begun.elapsed()));
            if youth > Duration::ZERO {
                // Until one ends, or an unknown one is old enough.
                let _ = timeout(youth, self.conversations.join_next()).await;
            } else if let Some(oldest) = oldest {
                oldest.conversation.abort();
                let _ = self.conversations.join_next().await;
            }
        }
        let keeps_place = Arc::new(AtomicBool::new(false));
        let conversation = converse(stream, Arc::clone(pages), Arc::clone(&keeps_place));
        self.taken.push_back(Place {
            conversation: self.conversations.spawn(conversation),
            begun: Instant::now(),
            keeps_place,
        });
    }
}

/// Gives a socket the rights that the umask took away. Not by its path, which somebody else may have made a link meanwhile.
fn give_rights(path: &Path, mode: u32) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = rustix::fs::fstat(&file)?;
    let is_ours = FileType::from_raw_mode(found.st_mode) == FileType::Socket && found.st_uid == geteuid().as_raw();
    if !is_ours {
        return Err(io::Error::other("another user has replaced the socket"));
    }
    let file = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::set_permissions(file, Permissions::from_mode(mode))
}

fn inode_at(address: &Address) -> Option<u64> {
    match address {
        Address::Unix(path) => fs::symlink_metadata(path).ok().map(|found| found.ino()),
        Address::Tcp(_) => None,
    }
}

fn remedy(address: &Address, error: &io::Error) -> &'static str {
    match (address, error.kind()) {
        (Address::Unix(_), io::ErrorKind::AddrInUse) => {
            ": another process serves there, or the file is no socket: remove it, or name another path"
        }
        (Address::Unix(_), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            ": create its directory first, or name a path in an existing one"
        }
        (Address::Unix(_), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
            ": run it as root, or name a path where it may write"
        }
        (Address::Unix(_), io::ErrorKind::InvalidInput) => ": name a shorter path",
        (Address::Tcp(_), io::ErrorKind::AddrInUse) => ": another program has that port: name another one",
        (Address::Tcp(_), io::ErrorKind::PermissionDenied) => ": run it as root, or name a port above 1023",
        (Address::Tcp(_), io::ErrorKind::AddrNotAvailable) => {
            ": this machine does not have that address: name 127.0.0.1:PORT, or unix:/PATH"
        }
        _ => "",
    }
}

/// Removes a socket that a killed server has left, on which nobody listens.
fn clear_away(path: &Path) {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        // What cannot be removed is told when binding fails.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests;
