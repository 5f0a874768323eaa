//! Pools on this machine: what their servers tell of the threads that use them, and files that come to these.
//!
//! Every server with a socket is asked once a period, and has [`ANSWER_TIME`] to answer; one that needs longer is not asked anew before it has,
//! and stops nobody meanwhile. A server is believed about threads of its own user only, unless it is root's ([`seen_by`]): so nobody has another's threads
//! moved by what a server of his claims. Its files it can only move itself.

use crate::control::client::{ConnectError, Connection, connect};
use crate::control::protocol::{Outcome, Reply, Request};
use crate::control::tasks::{owner, seen_by};
use crate::control::{To, devices, hint, socket_path};
use crate::mountinfo::{Device, mounts, shown};
use crate::topology::human_bytes;
use homenode_linux::affinity::{Ask, PoolTasks};
use homenode_policy::affinity::{FileId, MoveFile};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time that a server has to answer. It needs some milliseconds.
const ANSWER_TIME: Duration = Duration::from_millis(300);
/// No answer is longer: 4096 threads on 8 nodes take less than 1 MiB.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Threads that are looked at of one pool: a server tells no more.
const THREADS_MAX: usize = 8192;
/// Files that are looked at of one pool.
const FILES_MAX: usize = 64;
const BUFFERS: &str = "bytes of threads in memory of pools";

/// A way to ask all servers, again and again.
pub(crate) fn ask() -> Ask {
    let mut servers: HashMap<Device, Server> = HashMap::new();
    Box::new(move || {
        let devices = match devices() {
            Ok(devices) => devices,
            Err(failure) => return vec![unanswered(None, &failure.to_string())],
        };
        servers.retain(|device, _| devices.contains(device));
        let answers = devices.into_iter().filter_map(|device| of_pool(&mut servers, device));
        answers.collect()
    })
}

/// Asks the server of one pool; none where nobody serves it.
fn of_pool(servers: &mut HashMap<Device, Server>, device: Device) -> Option<PoolTasks> {
    let server = match servers.remove(&device) {
        Some(server) => Ok(server),
        None => Server::connect(&socket_path(device)),
    };
    let asked = server.and_then(|mut server| {
        let answer = server.tasks(Instant::now() + ANSWER_TIME)?;
        servers.insert(device, server);
        Ok(answer)
    });
    match asked {
        Ok(Some(tasks)) => Some(PoolTasks {
            pool: (device.major, device.minor),
            answered: true,
            ..tasks
        }),
        Ok(None) => Some(unanswered(Some(device), "its server has not answered in time")),
        // It has ended, or was killed.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => None,
        Err(error) => Some(unanswered(
            Some(device),
            &format!("{error}{}", hint(&error, To::Change)),
        )),
    }
}

fn unanswered(device: Option<Device>, why: &str) -> PoolTasks {
    let why = device.map_or_else(|| why.to_owned(), |device| format!("{}: {why}", place(device)));
    PoolTasks {
        pool: device.map_or((0, 0), |device| (device.major, device.minor)),
        unseen: vec![(BUFFERS.to_owned(), why)],
        ..PoolTasks::default()
    }
}

/// A connection on which one question is under way at most.
#[derive(Debug)]
struct Server {
    stream: UnixStream,
    /// Its user.
    uid: u32,
    /// Part of an answer that is due.
    answer: Option<Vec<u8>>,
}

impl Server {
    fn connect(path: &Path) -> io::Result<Self> {
        let stream = connect(path, ANSWER_TIME)?;
        let uid = rustix::net::sockopt::socket_peercred(&stream)?.uid.as_raw();
        Ok(Self {
            stream,
            uid,
            answer: None,
        })
    }

    /// Returns what the server tells of threads that it is believed about; none where it has not answered by the deadline: the next call takes
    /// that answer.
    fn tasks(&mut self, deadline: Instant) -> io::Result<Option<PoolTasks>> {
        if self.answer.is_none() {
            let mut line = serde_json::to_vec(&Request::Tasks)?;
            line.push(b'\n');
            self.stream.write_all(&line)?;
        }
        let answer = self.answer.get_or_insert_default();
        let mut part = [0; 1 << 16];
        while answer.last() != Some(&b'\n') {
            let left = deadline.saturating_duration_since(Instant::now());
            // Zero would be for ever.
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            match self.stream.read(&mut part) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) if answer.len() > ANSWER_BYTES_MAX => return Err(io::Error::other("its answer does not end")),
                Ok(count) => answer.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            if left.is_zero() && answer.last() != Some(&b'\n') {
                return Ok(None);
            }
        }
        let reply = serde_json::from_slice(&self.answer.take().unwrap_or_default());
        match reply {
            Ok(Reply::Done(Outcome::Tasks(tasks))) => Ok(Some(believed(tasks, self.uid, owner))),
            Ok(Reply::Failed(refusal)) => Err(io::Error::other(refusal.message)),
            _ => {
                let version = env!("CARGO_PKG_VERSION");
                Err(io::Error::other(format!(
                    "its server's answer does not fit this version ({version})"
                )))
            }
        }
    }
}

/// Leaves what a server of user `uid` is believed about.
fn believed(mut tasks: PoolTasks, uid: u32, owner: impl Fn(u32) -> Option<u32>) -> PoolTasks {
    tasks.threads.truncate(THREADS_MAX);
    let mut tasks = seen_by(tasks, Some(uid), owner);
    tasks.files.truncate(FILES_MAX);
    tasks.threads.iter_mut().for_each(|task| task.files.truncate(FILES_MAX));
    if uid != 0 {
        // Words of a user's choice, in the log of root.
        tasks.unseen.clear();
    }
    tasks
}

/// Outcome for a file: the bytes moved, or why it stays.
pub(super) type FileMoved = Result<u64, String>;

/// Tells the outcome in words.
pub(super) fn moved_text(moved: &FileMoved) -> String {
    match moved {
        Ok(bytes) => format!("moved {}", human_bytes(*bytes)),
        Err(why) => format!("not moved: {why}"),
    }
}

/// Asks a pool's server to move a file.
pub(super) fn move_file(one: &MoveFile) -> FileMoved {
    let device = device(one.file);
    let mut connection = Connection::open(device).map_err(|error| match error {
        ConnectError::Dead => "its server has ended".to_owned(),
        ConnectError::Other(error) => format!("{error}{}", hint(&error, To::Change)),
    })?;
    let request = Request::FileMove {
        inode: one.file.inode,
        node: one.to.0,
    };
    match connection.request(&request, &mut |_, _| {}) {
        Ok(Outcome::Moved { bytes }) => Ok(bytes),
        Ok(other) => Err(crate::control::client::unexpected(&other).to_string()),
        Err(error) => Err(crate::failure::Failure::from(error).to_string()),
    }
}

/// `file 17 of /mnt`, as `find /mnt -inum 17` finds it; of a machine that was recorded, `file 17 of pool 0:45`.
pub(super) fn file_name(file: FileId, is_live: bool) -> String {
    match is_live {
        true => format!("file {} of {}", file.inode, place(device(file))),
        false => file.to_string(),
    }
}

fn device(file: FileId) -> Device {
    let (major, minor) = file.pool;
    Device { major, minor }
}

/// Where a pool is mounted, or its device number.
fn place(device: Device) -> String {
    let mounts = mounts().unwrap_or_default();
    let mount = mounts
        .iter()
        .find(|mount| mount.device == device && mount.is_homenode());
    mount.map_or_else(
        || format!("pool {}:{}", device.major, device.minor),
        |mount| shown(&mount.mount_point),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use homenode_linux::affinity::{FilePlace, TaskBytes};
    use std::os::unix::net::UnixListener;
    use std::thread;

    fn task(thread: u32) -> TaskBytes {
        TaskBytes {
            thread,
            started: 5,
            homes: vec![(2, 1 << 40)],
            files: vec![(u64::from(thread), 1 << 30)],
        }
    }

    fn tasks(threads: &[u32]) -> PoolTasks {
        PoolTasks {
            threads: threads.iter().copied().map(task).collect(),
            unseen: vec![("all".to_owned(), "for fun".to_owned())],
            files: threads
                .iter()
                .map(|thread| FilePlace {
                    inode: u64::from(*thread),
                    homes: vec![(2, 1)],
                })
                .collect(),
            ..PoolTasks::default()
        }
    }

    #[test]
    fn a_users_server_may_report_only_threads_of_that_user() {
        // Thread 1 is root's, 2 and 3 are of user 1000, 4 of user 1001; 5 has ended.
        let owner = |thread: u32| [0, 1000, 1000, 1001].get(thread as usize - 1).copied();
        let numbers = |tasks: &PoolTasks| tasks.threads.iter().map(|task| task.thread).collect::<Vec<_>>();
        let claimed = tasks(&[1, 2, 3, 4, 5]);
        let users = believed(claimed.clone(), 1000, owner);
        assert_eq!(numbers(&users), [2, 3]);
        assert_eq!(users.files.iter().map(|file| file.inode).collect::<Vec<_>>(), [2, 3]);
        assert!(users.unseen.is_empty());
        assert!(believed(claimed.clone(), 1002, owner).threads.is_empty());
        assert_eq!(believed(claimed.clone(), 0, owner), claimed);
        let many: Vec<u32> = (1..500).collect();
        assert_eq!(believed(tasks(&many), 0, owner).files.len(), FILES_MAX);
        let mut long = tasks(&[1]);
        long.threads[0].files = vec![(1, 1); 500];
        assert_eq!(believed(long, 0, owner).threads[0].files.len(), FILES_MAX);
    }

    /// A server that answers by `answer`, and the asking end of it.
    fn server(answer: impl FnOnce(UnixStream) + Send + 'static) -> (tempfile::TempDir, Server) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || answer(listener.accept().unwrap().0));
        let server = Server::connect(&path).unwrap();
        (directory, server)
    }

    #[test]
    fn a_stopped_server_with_a_full_queue_is_not_waited_for_without_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        // It accepts none of them.
        rustix::net::listen(&listener, 1).unwrap();
        let waiting: Vec<_> = (0..2).map(|_| Server::connect(&path).unwrap()).collect();
        let error = Server::connect(&path).unwrap_err();
        assert!(error.to_string().contains("for 0.3 s: is it stopped"), "{error}");
        drop(waiting);
    }

    fn line(threads: &[u32]) -> Vec<u8> {
        let mut line = serde_json::to_vec(&Reply::Done(Outcome::Tasks(tasks(threads)))).unwrap();
        line.push(b'\n');
        line
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    #[test]
    fn a_late_answer_is_used_by_the_next_question() {
        let own = std::process::id();
        let (go, goes) = std::sync::mpsc::channel::<()>();
        let (_directory, mut server) = server(move |mut stream| {
            let mut question = [0; 64];
            let count = stream.read(&mut question).unwrap();
            assert_eq!(&question[..count], b"{\"request\":\"tasks\"}\n");
            let line = line(&[own]);
            stream.write_all(&line[..10]).unwrap();
            goes.recv().unwrap();
            stream.write_all(&line[10..]).unwrap();
            // One question has come, not two.
            stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            assert!(stream.read(&mut question).is_err());
        });
        for _ in 0..2 {
            let asked = server.tasks(Instant::now() + Duration::from_millis(20)).unwrap();
            assert_eq!(asked, None);
        }
        go.send(()).unwrap();
        let tasks = server.tasks(soon()).unwrap().unwrap();
        // The number of a process is that of its first thread, which is ours.
        assert_eq!(tasks.threads[0].thread, own);
    }

    #[test]
    fn a_server_that_sends_nonsense_or_never_stops_is_an_error() {
        for nonsense in [&b"{}\n"[..], b"\xff\n", b"{\"done\":\"down\"}\n", b""] {
            let (_directory, mut server) = server(move |mut stream| stream.write_all(nonsense).unwrap());
            server.tasks(soon()).unwrap_err();
        }
        let (_directory, mut server) = server(|mut stream| while stream.write_all(&[b'x'; 1 << 16]).is_ok() {});
        let error = server.tasks(soon()).unwrap_err();
        assert_eq!(error.to_string(), "its answer does not end");
    }
}
