//! A small HTTP server for `homenode web` and metrics: pages that are read, over loopback or a unix socket.
//!
//! Serves on one thread, and on others pages that take long. At most [`CONNECTIONS_MAX`] connections at a time: one more takes the place of the
//! oldest whose last request did not come from somebody the pages know, as one that sends nothing; where all are known it waits. The bounds of each
//! connection are in [`conversation`].

mod address;
mod conversation;

pub(crate) use address::{Address, EXPECTED};
pub(crate) use conversation::{Asked, Page, Pages};

use crate::failure::{Failure, Result};
use conversation::{Stream, converse};
use std::collections::VecDeque;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};

const CONNECTIONS_MAX: usize = 64;
/// Threads of pages that take long; further requests for such wait.
const SLOW_MAX: usize = 4;
/// Pause before the next connection is taken when one could not be: out of descriptors, perhaps.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    address: Address,
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
        if let Address::Unix(path) = &self.address {
            // Gone already, if somebody else was quicker.
            let _ = fs::remove_file(path);
        }
    }
}

impl Listener {
    fn bind(address: &Address, mode: u32) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener).map(Self::Tcp)
            }
            Address::Unix(path) => {
                clear_away(path);
                let listener = UnixListener::bind(path)?;
                fs::set_permissions(path, Permissions::from_mode(mode))?;
                Ok(Self::Unix(listener))
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
    /// Each of the conversations, the oldest first, and whether it is of somebody the pages know.
    taken: VecDeque<(AbortHandle, Arc<AtomicBool>)>,
}

impl Places {
    /// Serves a connection, once it has a place.
    async fn take(&mut self, stream: Box<dyn Stream>, pages: &Arc<dyn Pages>) {
        while self.conversations.try_join_next().is_some() {}
        self.taken.retain(|(conversation, _)| !conversation.is_finished());
        if self.conversations.len() >= CONNECTIONS_MAX {
            let is_unknown = |(_, is_known): &(_, Arc<AtomicBool>)| !is_known.load(Ordering::Relaxed);
            if let Some((oldest, _)) = self.taken.iter().find(|place| is_unknown(place)) {
                oldest.abort();
            }
            let _ = self.conversations.join_next().await;
        }
        let is_known = Arc::new(AtomicBool::new(false));
        let conversation = converse(stream, Arc::clone(pages), Arc::clone(&is_known));
        self.taken.push_back((self.conversations.spawn(conversation), is_known));
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
