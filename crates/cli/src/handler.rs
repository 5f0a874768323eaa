//! Carries out the requests of commands in the server.

mod exports;
mod health;
mod members;
mod sampler;
mod volumes;

pub(crate) use exports::Exports;
pub(crate) use members::Note;
pub(crate) use sampler::Sampler;

use crate::bodies;
use crate::control::protocol::{
    Access, DurableReport, FuseReport, Outcome, Refusal, Request, STATUS_VERSION, StatusReport,
};
use crate::control::server::Handler;
use crate::control::tasks::{owner, seen_by};
use crate::failure::{Failure, told};
use crate::mountinfo::{Device, mounts};
use crate::report::{KindTimes, Span};
use homenode::{
    Accessed, ChosenTransport, Error, MemberId, Mount, MountStatistics, NewFile, NodeId, Pool, RequestKind,
    RequestTimes, Size, Status,
};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Ends a refusal of what changes a pool.
const READ_ONLY: &str =
    "the pool is mounted read-only: take it down (`homenode down`), and up again without --read-only or --degraded";

/// How often it is looked for viewers where files of the kernel lie, and for how long.
const LOOK_PERIOD: Duration = Duration::from_secs(10);
const LOOK_TIME: Duration = Duration::from_millis(50);

/// A pool and its mount.
pub(crate) struct PoolHandler {
    pub(crate) pool: Pool,
    pub(crate) note: Note,
    /// Mount options that say how it was brought up.
    pub(crate) options: Vec<String>,
    pub(crate) mount: Arc<Mount>,
    pub(crate) device: Device,
    pub(crate) exports: Arc<Exports>,
    /// Samples of it, once it serves.
    pub(crate) sampler: OnceLock<Sampler>,
    /// Held by the first viewer while it looks.
    pub(crate) looking: Mutex<()>,
}

impl PoolHandler {
    /// Attached volumes go with the pool, unless somebody uses them: then all stays as it is.
    fn down(&self, lazy: bool) -> Result<Outcome, Refusal> {
        // Until it is unmounted nobody else begins to use them.
        let claims = self.exports.claim_all()?;
        self.mount.unmount(lazy).map_err(|error| Refusal {
            not_mounted: error.errno() == Errno::INVAL.raw_os_error(),
            ..refusal(&error)
        })?;
        let detached = self.exports.detach_all();
        drop(claims);
        // The command that asks sees the end of the server, and not what came of it.
        if lazy {
            return Ok(Outcome::Down);
        }
        let synced = match detached.all {
            true => self.pool.put_away().map_err(|error| told(&error)),
            false => Err("volumes are still being detached".to_owned()),
        };
        let not_closed = synced.err().map(|why| {
            format!("its pool could not be closed: {why}: unsynced data may be lost; `homenode fsck` checks the pool")
        });
        let failed: Vec<String> = detached.failed.into_iter().chain(not_closed).collect();
        if !failed.is_empty() {
            return Err(Refusal {
                unmounted: true,
                ..Refusal::new(failed.join("; "))
            });
        }
        Ok(Outcome::Down)
    }

    /// Where the pool is mounted now, and whether it is at all. A bind mount, or a directory above that got another name,
    /// stand in for the directory it was mounted on only when that one is no more.
    fn place(&self) -> (PathBuf, bool) {
        let own = self.mount.directory();
        // What cannot be looked up is as it was.
        let Ok(mounts) = mounts() else {
            return (own.to_owned(), true);
        };
        let mut points = mounts
            .into_iter()
            .filter(|mount| mount.device == self.device && mount.is_homenode())
            .map(|mount| mount.mount_point)
            .peekable();
        let first = points.peek().cloned();
        let mounted = first.is_some();
        let place = points.find(|point| point == own).or(first);
        (place.unwrap_or_else(|| own.to_owned()), mounted)
    }

    /// A member that the pool has not.
    fn refuse_unknown(&self, member: u16) -> Result<(), Refusal> {
        let members = self.pool.status().members;
        if members.iter().any(|known| known.id.0 == member) {
            return Ok(());
        }
        let known: Vec<String> = members.iter().map(|known| known.id.to_string()).collect();
        let known = known.join(", ");
        Err(Refusal::new(format!("the pool has no member {member}, only {known}")))
    }

    fn add(&self, node: u16, size: &str) -> Result<Outcome, Error> {
        let size: Size = size.parse()?;
        let member = self.pool.add_member(NodeId(node), size)?;
        Ok(self.added(member, &format!("on node {node}")))
    }

    fn add_file(&self, path: &Path, size_bytes: Option<u64>, new: NewFile) -> Result<Outcome, Refusal> {
        let member = members::add_file(&self.pool, &self.note, path, (size_bytes, new), self.device)?;
        self.exports.note_members(&self.pool, &self.place().0);
        Ok(self.added(member, &format!("in {}", path.display())))
    }

    fn added(&self, member: MemberId, place: &str) -> Outcome {
        let status = self.pool.status();
        let bytes = status
            .members
            .iter()
            .find(|status| status.id == member)
            .map_or(0, |status| status.capacity_bytes);
        tracing::info!("added {member} of {bytes} bytes {place}");
        Outcome::Added {
            member: member.0,
            bytes,
        }
    }

    fn drain(&self, member: u16, progress: &mut dyn FnMut(u64, u64)) -> Result<Outcome, Error> {
        let bytes = self.pool.drain(MemberId(member), progress)?;
        tracing::info!("drained member {member}: moved {bytes} bytes");
        Ok(Outcome::Drained { bytes })
    }

    fn remove(&self, member: u16) -> Result<Outcome, Error> {
        self.pool.remove(MemberId(member))?;
        self.note.write(&self.pool);
        self.exports.note_members(&self.pool, &self.place().0);
        tracing::info!("removed member {member}");
        Ok(Outcome::Removed)
    }

    fn move_file(&self, inode: u64, node: u16, progress: &mut dyn FnMut(u64, u64)) -> Result<Outcome, Error> {
        let bytes = self.pool.open_inode(inode)?.move_to_with(NodeId(node), progress)?;
        Ok(Outcome::Moved { bytes })
    }

    fn durable(&self) -> Option<DurableReport> {
        let access = match (self.pool.is_read_only(), self.pool.has_failed()) {
            (true, _) => Access::ReadOnly,
            (false, true) => Access::Failed,
            (false, false) => Access::ReadWrite,
        };
        Some(DurableReport {
            name: self.note.name().map(ToString::to_string),
            uuid: format!("{:032x}", self.pool.uuid()?),
            access,
        })
    }

    /// Begins to sample the status.
    pub(crate) fn sample(self: &Arc<Self>) -> Result<(), Failure> {
        let pool = Arc::downgrade(self);
        let (mut known, mut looked) = (Vec::new(), None::<Instant>);
        let status = move |is_watched: bool| {
            let handler = pool.upgrade()?;
            if !is_watched {
                // The next viewer would be told where the files lay long ago.
                (known, looked) = (Vec::new(), None);
            } else if looked.is_none_or(|looked| looked.elapsed() >= LOOK_PERIOD) {
                // A look at all inodes: for viewers, and not each second.
                (known, looked) = (handler.pool.kernel_by_node(LOOK_TIME), Some(Instant::now()));
            }
            Some(handler.report(handler.pool.status_with(&known)))
        };
        let sampler = Sampler::start(status)?;
        // A second call would find one.
        let _ = self.sampler.set(sampler);
        Ok(())
    }

    /// The sampler for a viewer. For the first viewer it looks where files of the kernel lie: without viewers the server does not look.
    fn watched(&self) -> Option<&Sampler> {
        let sampler = self.sampler.get()?;
        // Several at the same moment: one looks, and the others find what it found.
        let _one = self.looking.lock();
        if !sampler.is_for_viewers() {
            let known = self.pool.kernel_by_node(LOOK_TIME);
            sampler.show(self.report(self.pool.status_with(&known)));
        }
        Some(sampler)
    }

    fn live(&self, since_ms: u64, user: Option<u32>) -> Result<Outcome, Refusal> {
        let sampler = self.watched();
        let sampler = sampler.ok_or_else(|| Refusal::new("the server samples nothing yet: try again"))?;
        let mut live = sampler.since(since_ms);
        live.report.problems.extend(sampler.problem());
        if is_reader(user) {
            live.report = live.report.without_private();
        }
        Ok(Outcome::Live(Box::new(live)))
    }

    /// Status for a user. Readers get the last one that was sampled, or that the first viewer was shown.
    fn status_for(&self, user: Option<u32>) -> StatusReport {
        let is_reader = is_reader(user);
        let mut report = match is_reader.then(|| self.watched()).flatten() {
            Some(sampler) => sampler.latest(),
            None => self.report(self.pool.status()),
        };
        report.problems.extend(self.sampler.get().and_then(Sampler::problem));
        if is_reader { report.without_private() } else { report }
    }

    fn report(&self, pool: Status) -> StatusReport {
        let (directory, mounted) = self.place();
        let (durable, fuse) = (self.durable(), fuse(&self.mount));
        StatusReport {
            output_version: STATUS_VERSION,
            directory: directory.to_string_lossy().into_owned(),
            mounted,
            elsewhere: None,
            options: self.options.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            problems: health::problems(&pool, durable.as_ref(), &fuse),
            local_percent: self.mount.local_percent(&pool),
            flows: self.mount.flows(&pool),
            durable,
            server_memory: health::server_memory(pool.metadata_used_bytes),
            server_cpu_ns: health::server_cpu_ns(),
            pool,
            cache: self.pool.cache(),
            mover: self.mount.mover().unwrap_or_default(),
            copies: homenode_linux::copy::choice().to_string(),
            fuse,
            bodies: bodies::answers(),
        }
    }
}

impl Handler for PoolHandler {
    fn handle(
        &self,
        request: Request,
        user: Option<u32>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Outcome, Refusal> {
        if let Request::PoolDrain { member } | Request::PoolRemove { member } = request {
            self.refuse_unknown(member)?;
        }
        let changed = match request {
            Request::VolumeCreate { .. } | Request::VolumeResize { .. } | Request::VolumeRemove { .. } => {
                Some("a volume")
            }
            Request::PoolAddFile { .. } | Request::PoolDrain { .. } | Request::PoolRemove { .. } => Some("a member"),
            _ => None,
        };
        if let Some(changed) = changed.filter(|_| self.pool.is_read_only()) {
            return Err(Refusal::new(format!("cannot change {changed}: {READ_ONLY}")));
        }
        let done = match request {
            Request::Status => Ok(Outcome::Status(Box::new(self.status_for(user)))),
            Request::Live { since_ms } => return self.live(since_ms, user),
            Request::Tasks => Ok(Outcome::Tasks(seen_by(self.mount.tasks(), user, owner))),
            Request::Accesses { ends } => Ok(accesses(&self.mount.take_accesses(ends))),
            Request::Down { lazy } => return self.down(lazy),
            Request::FileMove { inode, node } => self.move_file(inode, node, progress),
            Request::PoolAdd { node, size } => self.add(node, &size),
            Request::PoolAddFile {
                path,
                size_bytes,
                unwritten,
                direct,
                overwrites,
            } => {
                let new = NewFile {
                    unwritten,
                    direct,
                    overwrites,
                    made: None,
                };
                return self.add_file(Path::new(&path), size_bytes, new);
            }
            Request::PoolDrain { member } => self.drain(member, progress),
            Request::PoolRemove { member } => self.remove(member),
            Request::VolumeCreate {
                name,
                size_bytes,
                policy,
            } => {
                let policy = volumes::policy(&policy)?;
                volumes::create(&self.pool, &name, size_bytes, policy)
            }
            Request::VolumeList => Ok(volumes::list(&self.pool, &self.exports, &self.place().0)),
            Request::VolumeResize {
                name,
                size_bytes,
                force,
            } => {
                exports::require_no_waiting(&self.pool, &name)?;
                volumes::resize(&self.pool, &name, size_bytes, force)
            }
            Request::VolumeRemove { name } => {
                exports::require_no_waiting(&self.pool, &name)?;
                volumes::remove(&self.pool, &name)
            }
            Request::VolumeAttach { name, trace } => {
                let trace = trace.as_deref().map(Path::new);
                let place = (self.device, &*self.place().0);
                return self.exports.attach(&self.pool, &name, trace, place);
            }
            Request::VolumeDetach { name, force } => return self.exports.detach(&self.pool, &name, force),
        };
        done.map_err(|error| refusal(&error))
    }
}

/// Whether somebody may only look: a user who is neither root nor the server's, or is not known.
fn is_reader(user: Option<u32>) -> bool {
    ![0, rustix::process::geteuid().as_raw()].map(Some).contains(&user)
}

/// Lines of a trace ([`homenode_sim::trace`]).
fn accesses(accessed: &Accessed) -> Outcome {
    let mut lines = String::new();
    for access in &accessed.accesses {
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "{access}");
    }
    Outcome::Accesses {
        lines,
        lost: accessed.lost,
    }
}

fn refusal(error: &Error) -> Refusal {
    Refusal {
        busy: error.errno() == Errno::BUSY.raw_os_error(),
        ..Refusal::new(told(error) + volumes::remedy(error))
    }
}

fn fuse(mount: &Mount) -> FuseReport {
    let statistics = mount.statistics();
    let named = |(operation, count): &(_, u64)| (format!("{operation:?}"), *count);
    let ChosenTransport { transport, reason, .. } = mount.transport();
    FuseReport {
        transport: transport.to_string(),
        transport_reason: reason.clone(),
        data: mount.data().data.to_string(),
        data_reason: mount.data().reason.clone(),
        requests: statistics.request_count(),
        open_files: mount.open_files(),
        errors: statistics.errors,
        errors_by_errno: statistics.errors_by_errno.iter().copied().collect(),
        panics: statistics.panics,
        by_operation: statistics.requests.iter().map(named).collect(),
        times: times(&statistics),
    }
}

/// Times of requests, those kinds and spans that have some.
fn times(statistics: &MountStatistics) -> Vec<KindTimes> {
    let all = RequestKind::ALL.iter().zip(&statistics.times);
    let of_kind = all.map(|(kind, times)| {
        let spans = times.counts.iter().enumerate().filter(|(_, requests)| **requests > 0);
        let spans = spans.map(|(span, requests)| Span {
            below_ns: RequestTimes::span_end(span).map(|end| u64::try_from(end.as_nanos()).unwrap_or(u64::MAX)),
            requests: *requests,
        });
        KindTimes {
            kind: kind.name().to_owned(),
            sum_ns: times.sum_ns,
            spans: spans.collect(),
        }
    });
    of_kind.filter(|times| !times.spans.is_empty()).collect()
}
