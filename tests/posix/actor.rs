//! Who acts: another user, a thread with a umask and working directory of its own, a child process that takes orders.
//!
//! On Linux credentials belong to the thread, so acting as another user needs no fork; record locks belong to the process, and
//! a fault ends one, so for those there is a child: this very test binary, run again with [`serve_orders`] as its only test.

use crate::map::Map;
use crate::stage::open;
use rustix::fs::{FlockOperation, OFlags};
use rustix::thread::UnshareFlags;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// A user that is nobody in particular.
pub(crate) const ALICE: u32 = 41_001;
/// Another.
pub(crate) const BOB: u32 = 41_002;
/// A group both may be in.
pub(crate) const STAFF: u32 = 41_100;

/// Runs `act` as this user with the group of the same number, and no capability.
pub(crate) fn as_user<T: Send>(user: u32, groups: &[u32], act: impl FnOnce() -> T + Send) -> T {
    apart(|| {
        let groups: Vec<_> = groups.iter().map(|&group| rustix::fs::Gid::from_raw(group)).collect();
        let (uid, gid) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(user));
        rustix::thread::set_thread_groups(&groups).expect("root may set its groups");
        rustix::thread::set_thread_res_gid(gid, gid, gid).expect("root may set its group");
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("root may set its user");
        act()
    })
}

/// Runs `act` on a thread with a umask and working directory of its own.
pub(crate) fn apart<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: FS concerns umask, root and working directory only; descriptors stay shared, so none changes its meaning.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }.expect("a thread may leave what it shares");
            act()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A child process that opens, locks, appends and touches as told. Its death by [`Actor::kill`] is sudden.
#[derive(Debug)]
pub(crate) struct Actor {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// Set in the child's environment.
const ROLE: &str = "HOMENODE_TEST_ACTOR";
/// Before every answer, to tell it from the test harness's own lines.
const MARK: &str = "answer: ";

impl Actor {
    pub(crate) fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a process knows its program"))
            .args([
                "--exact",
                "actor::serve_orders",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test binary can run itself");
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("the stream is piped"));
        Self { child, orders, answers }
    }

    pub(crate) fn id(&self) -> i32 {
        i32::try_from(self.child.id()).expect("process ids are positive")
    }

    /// Gives an order without waiting for the answer.
    pub(crate) fn tell(&mut self, order: &str) {
        let orders = self.orders.as_mut().expect("open until the actor ends");
        writeln!(orders, "{order}").expect("the actor listens");
    }

    /// Waits for the next answer; empty if the actor has died.
    pub(crate) fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            if self.answers.read_line(&mut line).expect("the actor speaks text") == 0 {
                return line;
            }
            // The harness writes "test actor::serve_orders ... " without an end of line before the first answer.
            if let Some(at) = line.find(MARK) {
                return line[at + MARK.len()..].trim_end().to_owned();
            }
        }
    }

    /// Gives an order and waits for its answer: `ok`, a value or a [`refusal`].
    pub(crate) fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.answer()
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// Lets it end, or waits until it has died.
    pub(crate) fn end(mut self) -> ExitStatus {
        self.orders = None;
        self.child.wait().expect("a child can be waited for")
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child's side: one order a line, words separated by blanks, paths last.
#[test]
#[ignore = "the child side of other tests"]
fn serve_orders() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut files: HashMap<String, OwnedFd> = HashMap::new();
    for order in std::io::stdin().lines() {
        let order = order.expect("orders are text");
        let words: Vec<_> = order.split(' ').collect();
        let answer = obey(&mut files, &words).unwrap_or_else(refusal);
        println!("{MARK}{answer}");
    }
}

/// How an actor reports a failed call.
pub(crate) fn refusal(error: rustix::io::Errno) -> String {
    format!("errno {}", error.raw_os_error())
}

fn obey(files: &mut HashMap<String, OwnedFd>, words: &[&str]) -> Result<String, rustix::io::Errno> {
    match *words {
        ["open", path] => {
            let file = open(path, OFlags::RDWR)?;
            files.insert(path.to_owned(), file);
        }
        ["close", path] => drop(files.remove(path)),
        ["flock", operation, path] => {
            let operation = match operation {
                "shared" => FlockOperation::NonBlockingLockShared,
                "exclusive" => FlockOperation::NonBlockingLockExclusive,
                "wait" => FlockOperation::LockExclusive,
                _ => FlockOperation::Unlock,
            };
            rustix::fs::flock(&files[path], operation)?;
        }
        ["lock", scope, kind, start, length, path] => {
            let range = crate::lock::Range::parse(kind, start, length);
            let found = range.request(&files[path], crate::lock::Call::parse(scope))?;
            return Ok(found.map_or_else(|| "ok".to_owned(), |lock| lock.to_string()));
        }
        ["append", count, stamp, path] => {
            let file = open(path, OFlags::WRONLY | OFlags::APPEND)?;
            let record = [stamp.as_bytes(), b"\n"].concat();
            for _ in 0..count.parse().expect("a count") {
                assert_eq!(rustix::io::write(&file, &record)?, record.len());
            }
        }
        ["touch-mapped", offset, path] => {
            let offset = offset.parse::<usize>().expect("an offset");
            let map = Map::shared(&open(path, OFlags::RDWR)?, 0, offset + 1);
            return Ok(map.byte(offset).to_string());
        }
        ["store-mapped", offset, path] => {
            let offset = offset.parse::<usize>().expect("an offset");
            Map::shared(&open(path, OFlags::RDWR)?, 0, offset + 1).set(offset, 1);
        }
        ["refill", way, rounds, dir] => crate::full::refill(way, rounds.parse().expect("a count"), dir.as_ref())?,
        _ => panic!("no such order: {words:?}"),
    }
    Ok("ok".to_owned())
}
