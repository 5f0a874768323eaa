//! The server's end of the socket: a thread per connection, requests of one connection one after the other.

use super::protocol::{Outcome, REQUEST_BYTES_MAX, Refusal, Reply, Request};
use super::socket_path;
use crate::failure::{Result, fail};
use crate::mountinfo::Device;
use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Connections served at a time; further ones are closed at once.
const CONNECTIONS_MAX: usize = 64;
/// Progress lines are at least this far apart.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);
/// What a client has to take a reply; a stopped client must not hold a thread for ever.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Answers requests. `progress` takes bytes done and to do.
pub(crate) trait Handler: Send + Sync + 'static {
    fn handle(&self, request: Request, progress: &mut dyn FnMut(u64, u64)) -> std::result::Result<Outcome, Refusal>;
}

/// The open socket. Dropping it removes the name.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    activity: Arc<Activity>,
}

/// Connections and the requests being answered.
#[derive(Debug, Default)]
struct Activity {
    counts: Mutex<Counts>,
    idle: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    connections: usize,
    requests: usize,
}

impl Socket {
    /// Listens for requests about the mount `device`.
    pub(crate) fn open(device: Device, handler: Arc<dyn Handler>) -> Result<Self> {
        super::make_directory()?;
        let path = socket_path(device);
        let listener = listen(&path).or_else(|error| fail!("cannot listen on {}: {error}", path.display()))?;
        let activity = Arc::new(Activity::default());
        let socket = Self {
            path,
            activity: Arc::clone(&activity),
        };
        let accept = move || {
            for stream in listener.incoming() {
                match stream {
                    Ok(stream) => serve(stream, &handler, &activity),
                    Err(error) => {
                        tracing::warn!("a command could not connect: {error}");
                        // Out of descriptors or memory: do not spin until there are some.
                        thread::sleep(PROGRESS_PERIOD);
                    }
                }
            }
        };
        match thread::Builder::new().name("control".into()).spawn(accept) {
            Ok(_) => Ok(socket),
            Err(error) => fail!("cannot start the thread that answers commands: {error}"),
        }
    }

    /// Waits until no request is being answered, at most `timeout`.
    pub(crate) fn finish(&self, timeout: Duration) {
        let counts = self.activity.counts.lock().unwrap_or_else(PoisonError::into_inner);
        drop(
            self.activity
                .idle
                .wait_timeout_while(counts, timeout, |counts| counts.requests > 0),
        );
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

impl Activity {
    fn change(&self, change: impl FnOnce(&mut Counts)) -> usize {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut counts);
        self.idle.notify_all();
        counts.connections
    }
}

fn listen(path: &PathBuf) -> io::Result<UnixListener> {
    // A socket of this name is of a server that was killed: the device number is ours now.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn serve(stream: UnixStream, handler: &Arc<dyn Handler>, activity: &Arc<Activity>) {
    if activity.change(|counts| counts.connections += 1) > CONNECTIONS_MAX {
        activity.change(|counts| counts.connections -= 1);
        return;
    }
    let (handler, thread_activity) = (Arc::clone(handler), Arc::clone(activity));
    let spawned = thread::Builder::new().name("command".into()).spawn(move || {
        if let Err(error) = converse(&stream, &*handler, &thread_activity) {
            tracing::debug!("a command went away: {error}");
        }
        thread_activity.change(|counts| counts.connections -= 1);
    });
    if let Err(error) = spawned {
        tracing::warn!("cannot start a thread for a command: {error}");
        activity.change(|counts| counts.connections -= 1);
    }
}

fn converse(stream: &UnixStream, handler: &dyn Handler, activity: &Activity) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let mut input = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if input.by_ref().take(REQUEST_BYTES_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        activity.change(|counts| counts.requests += 1);
        let answered = answer(stream, &line, handler);
        activity.change(|counts| counts.requests -= 1);
        answered?;
    }
}

fn answer(stream: &UnixStream, line: &str, handler: &dyn Handler) -> io::Result<()> {
    let request = match serde_json::from_str::<Request>(line) {
        Ok(request) => request,
        Err(error) => {
            let version = env!("CARGO_PKG_VERSION");
            let message = format!("the server (version {version}) does not understand the request: {error}");
            return send(stream, &Reply::Failed(Refusal { message, busy: false }));
        }
    };
    tracing::debug!("asked: {request:?}");
    let mut told = Instant::now();
    let result = handler.handle(request, &mut |done_bytes, total_bytes| {
        if told.elapsed() >= PROGRESS_PERIOD {
            told = Instant::now();
            // Whether anyone still listens does not change what was begun.
            let _ = send(
                stream,
                &Reply::Progress {
                    done_bytes,
                    total_bytes,
                },
            );
        }
    });
    send(stream, &result.map_or_else(Reply::Failed, Reply::Done))
}

fn send(mut stream: &UnixStream, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    stream.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;

    impl Handler for Echo {
        fn handle(
            &self,
            request: Request,
            progress: &mut dyn FnMut(u64, u64),
        ) -> std::result::Result<Outcome, Refusal> {
            match request {
                Request::PoolDrain { member } => {
                    thread::sleep(PROGRESS_PERIOD);
                    progress(1, 2);
                    progress(2, 2);
                    Ok(Outcome::Drained {
                        bytes: u64::from(member),
                    })
                }
                _ => Err(Refusal {
                    message: "no".into(),
                    busy: false,
                }),
            }
        }
    }

    fn talk(lines: &[u8]) -> Vec<Reply> {
        let (client, server) = UnixStream::pair().unwrap();
        let thread = thread::spawn(move || converse(&server, &Echo, &Activity::default()));
        (&client).write_all(lines).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let replies = BufReader::new(&client)
            .lines()
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect();
        thread.join().unwrap().unwrap();
        replies
    }

    #[test]
    fn progress_then_result_and_the_next_request() {
        let replies = talk(b"{\"request\":\"pool_drain\",\"member\":5}\n{\"request\":\"status\"}\n");
        let expected = [
            Reply::Progress {
                done_bytes: 1,
                total_bytes: 2,
            },
            Reply::Done(Outcome::Drained { bytes: 5 }),
            Reply::Failed(Refusal {
                message: "no".into(),
                busy: false,
            }),
        ];
        assert_eq!(replies, expected);
    }

    #[test]
    fn garbage_is_answered_and_the_connection_lives_on() {
        let replies = talk(b"garbage\n{\"request\":\"status\"}\n");
        assert_eq!(replies.len(), 2);
        assert!(matches!(&replies[0], Reply::Failed(refusal) if refusal.message.contains("does not understand")));
    }
}
