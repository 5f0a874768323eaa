//! The pools of this machine as viewers see them: each server is asked once a second for what it has sampled.
//!
//! A thread for each server, so that one that is stopped holds up no other.

use crate::affinity::changes_in_force;
use crate::control::client::{ConnectError, Connection, pool_of, unexpected};
use crate::control::kept::{Kept, Unanswered};
use crate::control::protocol::{Outcome, Request, StatusReport};
use crate::control::{self, To, hint, readers_path, socket_path};
use crate::failure::{Cannot, Result, fail};
use crate::mountinfo::{Device, mount_point, shown};
use crate::report::{KEPT, LiveReport, Sample};
use crate::status;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const PERIOD: Duration = Duration::from_secs(1);
/// Looks for servers for each look at the changes of affinity.
const AFFINITY_LOOKS: u64 = 10;

/// A pool, as far as it was seen.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) device: Device,
    /// The directory, or the socket where none is known.
    pub(crate) name: String,
    /// The last status; `None` before the first answer.
    pub(crate) report: Option<Arc<StatusReport>>,
    /// Up to ten minutes, the latest at the end.
    pub(crate) samples: VecDeque<Arc<Sample>>,
    /// Why nothing new is known.
    pub(crate) silent: Option<String>,
}

/// All pools of a moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    pub(crate) pools: Vec<Pool>,
    /// Directories of mounts whose servers were killed.
    pub(crate) dead: Vec<String>,
    /// Changes of `homenode affinity` that are in force, as far as this user may see them.
    pub(crate) affinity_changes: usize,
}

/// Pools that are looked at until this is dropped.
#[derive(Debug)]
pub(crate) struct Watch(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    known: Mutex<Known>,
    /// Somebody has seen something new.
    changed: Condvar,
    is_over: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    pools: BTreeMap<(u32, u32), Pool>,
    dead: Vec<String>,
    affinity_changes: usize,
    /// How often something was seen.
    looks: u64,
}

/// A server, and what it was asked for.
#[derive(Debug)]
struct Server {
    kept: Kept,
    since_ms: u64,
}

/// Result of asking a server.
enum Answer {
    Live(Box<LiveReport>),
    Silent(String),
    /// Nobody listens any more.
    Gone,
}

impl Server {
    fn new(device: Device) -> Self {
        Self {
            kept: Kept::new(device),
            since_ms: 0,
        }
    }

    fn ask(&mut self) -> Answer {
        let since_ms = self.since_ms;
        match self.kept.ask(&Request::Live { since_ms }) {
            Ok(Outcome::Live(live)) => {
                self.since_ms = live.samples.last().map_or(since_ms, |sample| sample.at_ms);
                Answer::Live(live)
            }
            Ok(other) => Answer::Silent(unexpected(&other).to_string()),
            Err(Unanswered::Gone) => Answer::Gone,
            Err(Unanswered::Unreachable(error)) => Answer::Silent(format!("{error}{}", hint(&error, To::Look))),
            Err(Unanswered::Silent(why) | Unanswered::Late(why)) => {
                // The next answer may be of another server, which has samples of its own.
                self.since_ms = 0;
                Answer::Silent(why)
            }
        }
    }
}

impl Pool {
    fn new(device: Device) -> Self {
        Self {
            device,
            name: pool_of(device),
            report: None,
            samples: VecDeque::new(),
            silent: None,
        }
    }

    fn add(&mut self, live: LiveReport) {
        if self.report.as_ref().is_some_and(|report| report.pid != live.report.pid) {
            // The device is another server's by now.
            self.samples.clear();
        }
        self.name = shown(Path::new(&live.report.directory));
        self.report = Some(Arc::new(live.report));
        let last_ms = self.samples.back().map_or(0, |sample| sample.at_ms);
        let new = live.samples.into_iter().filter(|sample| sample.at_ms > last_ms);
        self.samples.extend(new.map(Arc::new));
        let old = self.samples.len().saturating_sub(KEPT);
        self.samples.drain(..old);
        self.silent = None;
    }

    /// The last second; `None` while nothing is known of it.
    pub(crate) fn latest(&self) -> Option<&Sample> {
        self.samples.back().map(Arc::as_ref)
    }

    /// `ok`, or what is wrong.
    pub(crate) fn health(&self) -> String {
        match (&self.silent, &self.report) {
            (Some(why), _) => format!("gives no status: {why}"),
            (None, Some(report)) if !report.problems.is_empty() => report.problems.join(", "),
            (None, None) => "is asked".to_owned(),
            _ => "ok".to_owned(),
        }
    }
}

impl Pools {
    /// `ok`, or what is wrong with each pool.
    pub(crate) fn health(&self) -> String {
        let pools = self.pools.iter().filter_map(|pool| match pool.health() {
            health if health == "ok" => None,
            health => Some((pool.name.clone(), health)),
        });
        status::health(self.dead.iter().cloned(), pools)
    }
}

/// Asks all servers once.
///
/// # Errors
/// When they cannot be listed, and when none may be asked.
pub(crate) fn look() -> Result<Pools> {
    let mut known = Known::default();
    for (device, answer) in control::at_once(control::devices()?, |device| (device, Server::new(device).ask())) {
        known.note(device, answer);
    }
    known.find_dead();
    known.affinity_changes = changes_in_force();
    Ok(known.pools())
}

/// Says early why nothing can be seen.
///
/// # Errors
/// When this user may not ask servers.
pub(crate) fn check() -> Result<()> {
    for device in control::devices()? {
        // Not by a connection, which would count as another viewer of this user.
        let may_use = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK);
        let (socket, readers) = (socket_path(device), readers_path(device));
        if may_use(&socket) == Err(Errno::ACCESS) && may_use(&readers).is_err() {
            let error = Errno::ACCESS.into();
            fail!(
                "cannot talk to the server behind {}: {error}{}",
                socket.display(),
                hint(&error, To::Look)
            );
        }
    }
    Ok(())
}

impl Known {
    fn note(&mut self, device: Device, answer: Answer) {
        let key = (device.major, device.minor);
        self.looks += 1;
        match answer {
            Answer::Gone => drop(self.pools.remove(&key)),
            Answer::Live(live) => self.pools.entry(key).or_insert_with(|| Pool::new(device)).add(*live),
            Answer::Silent(why) => {
                let pool = self.pools.entry(key).or_insert_with(|| Pool::new(device));
                // The device may be another server's by now, of which nothing is known yet.
                if mount_point(device).is_some_and(|name| name != pool.name) {
                    *pool = Pool::new(device);
                }
                pool.silent = Some(why);
            }
        }
    }

    /// Looks for mounts of dead servers.
    fn find_dead(&mut self) {
        let listening = self.pools.keys().map(|&(major, minor)| Device { major, minor });
        let dead = status::dead(&listening.collect::<Vec<_>>());
        self.dead = dead.iter().map(|mount| shown(&mount.mount_point)).collect();
    }

    fn pools(&self) -> Pools {
        Pools {
            pools: self.pools.values().cloned().collect(),
            dead: self.dead.clone(),
            affinity_changes: self.affinity_changes,
        }
    }
}

impl Watch {
    /// Begins to look.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub(crate) fn start() -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let scanned = Arc::clone(&shared);
        let thread = thread::Builder::new().name("watch".into());
        let started = thread.spawn(move || scanned.scan());
        started
            .map(|_| Self(shared))
            .cannot("start the thread that looks for pools")
    }

    /// How many looks there were.
    pub(crate) fn looks(&self) -> u64 {
        self.0.known.lock().looks
    }

    /// Returns what is known after more than `seen` looks, or after a while; and how many there were.
    pub(crate) fn wait(&self, seen: u64, timeout: Duration) -> (Pools, u64) {
        let mut known = self.0.known.lock();
        let changed = &self.0.changed;
        changed.wait_while_for(&mut known, |known| known.looks <= seen, timeout);
        (known.pools(), known.looks)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The threads see it within a period; one that waits for a server that is stopped, later.
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn note(&self, device: Device, answer: Answer) {
        self.known.lock().note(device, answer);
        self.changed.notify_all();
    }

    /// Looks for servers, and starts a thread for each new one.
    fn scan(self: Arc<Self>) {
        for look in 0_u64.. {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            if look.is_multiple_of(AFFINITY_LOOKS) {
                // Not under the lock: each change is compared with what the kernel has.
                let changes = changes_in_force();
                self.known.lock().affinity_changes = changes;
            }
            let devices = control::devices().unwrap_or_default();
            let known: Vec<_> = self.known.lock().pools.keys().copied().collect();
            for device in devices {
                // Sockets of killed servers stay.
                let is_listening = || !matches!(Connection::open(device), Err(ConnectError::Dead));
                if !known.contains(&(device.major, device.minor)) && is_listening() {
                    self.follow(device);
                }
            }
            // Not under the lock: a mount may be slow to answer.
            let mut found = Known {
                pools: self.known.lock().pools.clone(),
                ..Known::default()
            };
            found.find_dead();
            let mut all = self.known.lock();
            all.looks += u64::from(all.looks == 0 || all.dead != found.dead);
            all.dead = found.dead;
            drop(all);
            self.changed.notify_all();
            thread::sleep(PERIOD);
        }
    }

    fn follow(self: &Arc<Self>, device: Device) {
        let key = (device.major, device.minor);
        self.known.lock().pools.insert(key, Pool::new(device));
        let shared = Arc::clone(self);
        let follow = move || {
            let mut server = Server::new(device);
            while !shared.is_over.load(Ordering::Relaxed) {
                let answer = server.ask();
                let is_gone = matches!(answer, Answer::Gone);
                shared.note(device, answer);
                if is_gone {
                    return;
                }
                thread::sleep(PERIOD);
            }
        };
        if thread::Builder::new().name("follow".into()).spawn(follow).is_err() {
            // The next scan tries again.
            self.note(device, Answer::Gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock of the new server may have been set back.
    #[test]
    fn a_new_server_of_a_device_begins_anew() {
        let live = |pid, at_ms| LiveReport {
            report: StatusReport {
                pid,
                ..StatusReport::default()
            },
            samples: vec![Sample {
                at_ms,
                ..Sample::default()
            }],
        };
        let mut pool = Pool::new(Device { major: 4000, minor: 79 });
        let mut ends = |pid, at_ms| {
            pool.add(live(pid, at_ms));
            pool.samples.iter().map(|sample| sample.at_ms).collect::<Vec<_>>()
        };
        assert_eq!(ends(1, 5000), [5000]);
        assert_eq!(ends(1, 4000), [5000], "it was told before");
        assert_eq!(ends(2, 1000), [1000]);
    }
}
