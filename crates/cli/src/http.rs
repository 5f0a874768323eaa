//! A small HTTP server for `homenode web` and metrics: pages that are read, over loopback or a unix socket.
//!
//! Serves on one thread, and on others pages that take long. Bounds: [`CONNECTIONS_MAX`] connections at a time, others wait; a header must be there within
//! [`PATIENCE`] and fit [`HEADER_BYTES_MAX`]; a connection ends after [`CONNECTION_TIME`] with the answer that is under way, and [`LAST_TIME`] later whether or
//! not that was read; bodies of requests are not read.

mod address;

pub(crate) use address::{Address, EXPECTED};

use crate::failure::{Failure, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

const CONNECTIONS_MAX: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);
const CONNECTION_TIME: Duration = Duration::from_secs(60);
/// Further time for the answer that is under way then.
const LAST_TIME: Duration = Duration::from_secs(70);
const HEADER_BYTES_MAX: usize = 16 << 10;
/// Threads of pages that take long; further requests for such wait.
const SLOW_MAX: usize = 4;
/// Pause before the next connection is taken when one could not be: out of descriptors, perhaps.
const PAUSE: Duration = Duration::from_millis(100);

/// A request as pages see it.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) path: &'a str,
    /// The part behind `?`.
    pub(crate) query: &'a str,
    pub(crate) headers: &'a HeaderMap,
}

impl Asked<'_> {
    /// A field of the query, as it is written there.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.query.split('&').filter_map(|field| field.split_once('='));
        fields.find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) status: StatusCode,
    pub(crate) content_type: &'static str,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Bytes,
}

impl Page {
    pub(crate) fn new(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self {
            status: StatusCode::OK,
            content_type,
            headers: Vec::new(),
            body: body.into(),
        }
    }

    /// A line of text that says what is wrong.
    pub(crate) fn refused(status: StatusCode, why: &str) -> Self {
        Self {
            status,
            ..Self::new("text/plain; charset=utf-8", format!("{why}\n"))
        }
    }
}

/// Pages by path. Nothing is changed by a request.
pub(crate) trait Pages: Send + Sync + 'static {
    /// The answer to GET. May take long.
    fn get(&self, asked: &Asked<'_>) -> Page;
}

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

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

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
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            match self.accept().await {
                Ok(stream) => {
                    let pages = Arc::clone(pages);
                    tokio::spawn(async move {
                        converse(stream, pages).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::debug!("http: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

async fn converse(stream: Box<dyn Stream>, pages: Arc<dyn Pages>) {
    let service = service_fn(move |request| {
        let pages = Arc::clone(&pages);
        async move { Ok::<_, Infallible>(response(answer(request, pages).await)) }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .max_buf_size(HEADER_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service)
    );
    // Over or broken: nobody is left to be told.
    if timeout(CONNECTION_TIME, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(LAST_TIME, connection).await;
    }
}

async fn answer(request: Request<Incoming>, pages: Arc<dyn Pages>) -> Page {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return Page::refused(StatusCode::METHOD_NOT_ALLOWED, "pages are only read here: GET");
    }
    let page = tokio::task::spawn_blocking(move || {
        pages.get(&Asked {
            path: request.uri().path(),
            query: request.uri().query().unwrap_or_default(),
            headers: request.headers(),
        })
    });
    let broken = |_| Page::refused(StatusCode::INTERNAL_SERVER_ERROR, "a bug broke this page: see the log");
    page.await.unwrap_or_else(broken)
}

fn response(page: Page) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(page.body));
    *response.status_mut() = page.status;
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static(page.content_type));
    headers.insert("cache-control", HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.extend(page.headers);
    response
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
