//! Answers `GET /metrics`, one connection at a time, in a thread of its own: whoever asks slowly holds up nobody but others
//! who ask.
//!
//! Bounds: a request of [`REQUEST_BYTES_MAX`] and [`PATIENCE`] for each connection.

use super::Metrics;
use super::address::Address;
use crate::failure::{Failure, Result};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use rustix::net::{Shutdown, shutdown};
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const REQUEST_BYTES_MAX: usize = 8192;
const HEADERS_MAX: usize = 64;
const PATIENCE: Duration = Duration::from_secs(2);

/// Ends when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    address: Address,
    listener: Arc<Listener>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Listener {
    Unix(UnixListener),
    Loopback(TcpListener),
}

impl Server {
    pub(crate) fn start(address: &Address, metrics: &Metrics) -> Result<Self> {
        let cannot = |error: io::Error| {
            let remedy = remedy(address, &error);
            Failure::new(format!("cannot serve metrics at {address}: {error}{remedy}"))
        };
        let listener = Arc::new(Listener::bind(address).map_err(cannot)?);
        let (registry, of_thread) = (metrics.registry(), Arc::clone(&listener));
        let run = move || of_thread.serve(&registry);
        let thread = thread::Builder::new()
            .name("metrics".into())
            .spawn(run)
            .map_err(cannot)?;
        Ok(Self {
            address: address.clone(),
            listener,
            thread: Some(thread),
        })
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Has the thread's accept return; it fails only for one that has ended by itself.
        let _ = shutdown(self.listener.as_fd(), Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Address::Unix(path) = &self.address {
            // Gone already, if somebody else was quicker.
            let _ = fs::remove_file(path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Loopback(listener) => listener.as_fd(),
        }
    }
}

impl Listener {
    fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Loopback(address) => TcpListener::bind(address).map(Self::Loopback),
            Address::Unix(path) => {
                clear_away(path);
                let listener = UnixListener::bind(path)?;
                // As a port of this machine: who collects metrics is not root, and there are no names in them.
                fs::set_permissions(path, Permissions::from_mode(0o666))?;
                Ok(Self::Unix(listener))
            }
        }
    }

    fn serve(&self, registry: &Registry) {
        loop {
            let answered = match self {
                Self::Unix(listener) => listener.accept().map(|(stream, _)| answer(stream, registry)),
                Self::Loopback(listener) => listener.accept().map(|(stream, _)| answer(stream, registry)),
            };
            match answered {
                Ok(_) => {}
                // The listener was shut down.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
                Err(error) => {
                    tracing::debug!("metrics: {error}");
                    // Out of file descriptors, perhaps: not at once again.
                    thread::sleep(Duration::from_millis(100));
                }
            }
        }
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
        (Address::Loopback(_), io::ErrorKind::AddrInUse) => ": another program has that port: name another one",
        (Address::Loopback(_), io::ErrorKind::PermissionDenied) => ": run it as root, or name a port above 1023",
        (Address::Loopback(_), io::ErrorKind::AddrNotAvailable) => {
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

trait Stream: Read + Write {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

impl Stream for TcpStream {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

fn answer(mut stream: impl Stream, registry: &Registry) -> io::Result<()> {
    stream.set_timeouts(PATIENCE)?;
    let deadline = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    let (status, body) = loop {
        let mut part = [0; 1024];
        let read = stream.read(&mut part)?;
        request.extend_from_slice(&part[..read]);
        match understand(&request) {
            Understood::Asked => break ("200 OK", text(registry)),
            Understood::Wrong(status) => break (status, format!("{status}\n")),
            Understood::Incomplete if read == 0 || Instant::now() > deadline => return Ok(()),
            Understood::Incomplete => {}
        }
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

fn text(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).expect("writing to a string cannot fail");
    text
}

#[derive(Debug, PartialEq, Eq)]
enum Understood {
    Asked,
    Incomplete,
    Wrong(&'static str),
}

fn understand(bytes: &[u8]) -> Understood {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() >= REQUEST_BYTES_MAX => {
            Understood::Wrong("431 Request Header Fields Too Large")
        }
        Ok(httparse::Status::Partial) => Understood::Incomplete,
        Err(_) => Understood::Wrong("400 Bad Request"),
        Ok(httparse::Status::Complete(_)) => {
            let path = request.path.unwrap_or_default();
            match (request.method, path.split('?').next()) {
                (Some("GET"), Some("/metrics")) => Understood::Asked,
                (Some("GET"), _) => Understood::Wrong("404 Not Found"),
                _ => Understood::Wrong("405 Method Not Allowed"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        let table = [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Understood::Asked),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", Understood::Asked),
            ("GET /metrics HTTP/1.1\r\nHo", Understood::Incomplete),
            ("", Understood::Incomplete),
            ("GET / HTTP/1.1\r\n\r\n", Understood::Wrong("404 Not Found")),
            (
                "POST /metrics HTTP/1.1\r\n\r\n",
                Understood::Wrong("405 Method Not Allowed"),
            ),
            ("\u{1}\u{2}\r\n\r\n", Understood::Wrong("400 Bad Request")),
        ];
        for (request, expected) in table {
            assert_eq!(understand(request.as_bytes()), expected, "{request:?}");
        }
        let endless = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(REQUEST_BYTES_MAX));
        assert_eq!(
            understand(endless.as_bytes()),
            Understood::Wrong("431 Request Header Fields Too Large")
        );
    }

    fn ask(mut stream: impl Stream) -> String {
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn metrics_server_answers_and_ends() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        // As a killed server leaves it.
        drop(UnixListener::bind(&path).unwrap());
        let metrics = Metrics::default();
        metrics.looked("failed");
        let server = Server::start(&Address::Unix(path.clone()), &metrics).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        let silent = UnixStream::connect(&path).unwrap();
        drop(silent);
        let answer = ask(UnixStream::connect(&path).unwrap());
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer.contains("\nhomenode_affinity_periods_total{result=\"failed\"} 1\n"),
            "{answer}"
        );
        let second = Server::start(&Address::Unix(path.clone()), &metrics).unwrap_err();
        assert!(second.to_string().contains("socket: Address"), "{second}");
        drop(server);
        assert!(!path.exists());

        let server = Server::start(&Address::Loopback("127.0.0.1:0".parse().unwrap()), &metrics).unwrap();
        let Listener::Loopback(listener) = &*server.listener else {
            panic!("{server:?}")
        };
        let address = listener.local_addr().unwrap();
        assert!(ask(TcpStream::connect(address).unwrap()).ends_with("# EOF\n"));
        drop(server);
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn metrics_server_that_cannot_listen_tells_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let told = |address: &Address| Server::start(address, &Metrics::default()).unwrap_err().to_string();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let long = directory.path().join("x".repeat(120));
        let table = [
            (file.clone(), "the file is no socket: remove it"),
            (directory.path().join("none/socket"), "create its directory first"),
            (file.join("socket"), "create its directory first"),
            (long, "name a shorter path"),
        ];
        for (path, remedy) in table {
            let told = told(&Address::Unix(path));
            assert!(told.contains(remedy), "{told}");
        }
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let told = told(&Address::Loopback(taken.local_addr().unwrap()));
        assert!(told.contains("name another one"), "{told}");
    }
}
