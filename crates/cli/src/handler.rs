//! Carries out the requests of commands in the server.

mod exports;
mod members;
mod volumes;

pub(crate) use exports::Exports;
pub(crate) use members::Note;

use crate::bodies;
use crate::control::protocol::{
    Access, AccessReport, DurableReport, FuseReport, MemberReport, MoverReport, NodeReport, OUTPUT_VERSION, Outcome,
    Refusal, Request, SliceReport, SpillReport, State, StatusReport, UserReport,
};
use crate::control::server::Handler;
use crate::control::tasks::{owner, seen_by};
use crate::failure::told;
use crate::mountinfo::{Device, mounts};
use homenode::{CacheStatus, ChosenTransport, Error, Health, MemberId, Mount, NewFile, NodeId, Pool, Size, Status};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A pool and its mount.
pub(crate) struct PoolHandler {
    pool: Pool,
    note: Note,
    mount: Arc<Mount>,
    device: Device,
    exports: Arc<Exports>,
}

impl PoolHandler {
    pub(crate) fn new(pool: Pool, note: Note, mount: Arc<Mount>, device: Device, exports: Arc<Exports>) -> Self {
        Self {
            pool,
            note,
            mount,
            device,
            exports,
        }
    }

    /// Attached volumes go with the pool, unless somebody uses them: then all stays as it is.
    fn down(&self, lazy: bool) -> Result<Outcome, Refusal> {
        // Until it is unmounted nobody else begins to use them.
        let claims = self.exports.claim_all()?;
        self.mount.unmount(lazy).map_err(|error| refusal(&error))?;
        self.exports.detach_all();
        drop(claims);
        // The command that asks sees the end of the server, and not what came of it.
        let synced = if lazy { Ok(()) } else { self.pool.put_away() };
        synced.map_err(|error| Refusal {
            unmounted: true,
            ..Refusal::new(told(&error))
        })?;
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

    fn status(&self) -> StatusReport {
        let status = self.pool.status();
        let (directory, mounted) = self.place();
        let cache = self.pool.cache();
        StatusReport {
            output_version: OUTPUT_VERSION,
            directory: directory.to_string_lossy().into_owned(),
            mounted,
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            durable: self.durable(),
            capacity_bytes: status.capacity_bytes,
            used_bytes: status.used_bytes,
            kernel_bytes: status.kernel_bytes,
            kernel_located_bytes: status.kernel_by_node.iter().map(|(_, bytes)| bytes).sum(),
            reserved_bytes: status.reserved_bytes,
            free_bytes: status.free_bytes(),
            metadata_used_bytes: status.metadata_used_bytes,
            metadata_limit_bytes: status.metadata_limit_bytes,
            metadata_refused: status.metadata_refused,
            cache: slices(&cache, &status),
            cache_table_bytes: cache.table_bytes,
            metadata_users: status.metadata_by_user.len(),
            metadata_by_user: users(&status),
            nodes: nodes(&status),
            members: members(&status),
            accesses: accesses(&status),
            spills: spills(&status),
            mover: MoverReport::from(&self.mount.mover().unwrap_or_default()),
            copies: homenode_linux::copy::choice().to_string(),
            fuse: fuse(&self.mount),
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
        let done = match request {
            Request::Status => Ok(Outcome::Status(Box::new(self.status()))),
            Request::Tasks => Ok(Outcome::Tasks(seen_by(self.mount.tasks(), user, owner))),
            Request::Down { lazy } => return self.down(lazy),
            Request::FileMove { inode, node } => self.move_file(inode, node, progress),
            Request::PoolAdd { node, size } => self.add(node, &size),
            Request::PoolAddFile {
                path,
                size_bytes,
                unwritten,
                direct,
            } => return self.add_file(Path::new(&path), size_bytes, NewFile { unwritten, direct }),
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
            } => volumes::resize(&self.pool, &name, size_bytes, force),
            Request::VolumeRemove { name } => volumes::remove(&self.pool, &name),
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

fn refusal(error: &Error) -> Refusal {
    Refusal {
        busy: error.errno() == Errno::BUSY.raw_os_error(),
        ..Refusal::new(told(error) + volumes::remedy(error))
    }
}

fn nodes(status: &Status) -> Vec<NodeReport> {
    let empty = |node: NodeId| NodeReport {
        node: node.0,
        state: State::NoMember,
        capacity_bytes: 0,
        populated_bytes: 0,
        used_bytes: 0,
        spilled_bytes: 0,
    };
    let mut nodes: BTreeMap<NodeId, NodeReport> = BTreeMap::new();
    for member in &status.members {
        let node = nodes.entry(member.home).or_insert_with(|| empty(member.home));
        node.capacity_bytes += member.capacity_bytes;
        node.populated_bytes += member.populated_bytes;
        node.used_bytes += member.used_bytes;
        node.state = better(node.state, state(member));
    }
    for (node, bytes) in &status.kernel_by_node {
        nodes.entry(*node).or_insert_with(|| empty(*node)).used_bytes += bytes;
    }
    for spill in &status.spills {
        nodes
            .entry(spill.from)
            .or_insert_with(|| empty(spill.from))
            .spilled_bytes += spill.bytes;
    }
    nodes.into_values().collect()
}

/// A node takes data as long as one of its members does.
fn better(one: State, other: State) -> State {
    match (one, other) {
        (State::Candidate, _) | (_, State::Candidate) => State::Candidate,
        (State::Fat, _) | (_, State::Fat) => State::Fat,
        (State::Draining, _) | (_, State::Draining) => State::Draining,
        (State::Drained, _) | (_, State::Drained) => State::Drained,
        (State::Missing, _) | (_, State::Missing) => State::Missing,
        (State::NoMember, State::NoMember) => State::NoMember,
    }
}

fn state(member: &homenode::MemberStatus) -> State {
    if member.health == Health::Missing {
        return State::Missing;
    }
    match (member.draining, member.fat) {
        (true, _) if member.used_bytes == 0 => State::Drained,
        (true, _) => State::Draining,
        (false, true) => State::Fat,
        (false, false) => State::Candidate,
    }
}

fn members(status: &Status) -> Vec<MemberReport> {
    let report = |member: &homenode::MemberStatus| MemberReport {
        member: member.id.0,
        kind: member.kind.name().to_owned(),
        home: member.home.0,
        state: state(member),
        problem: members::problem(member),
        backing: member.backing.clone(),
        capacity_bytes: member.capacity_bytes,
        populated_bytes: member.populated_bytes,
        used_bytes: member.used_bytes,
        errors: member.errors,
    };
    status.members.iter().map(report).collect()
}

fn accesses(status: &Status) -> Vec<AccessReport> {
    let report = |cell: &homenode::Access| AccessReport {
        from: cell.from.0,
        home: cell.home.0,
        operations: cell.operations,
        read_bytes: cell.read_bytes,
        written_bytes: cell.written_bytes,
    };
    status.accesses.iter().map(report).collect()
}

/// Users whose metadata `status` tells, at most.
const USERS_TOLD: usize = 16;

fn users(status: &Status) -> Vec<UserReport> {
    let report = |&(uid, bytes): &(u32, u64)| UserReport { uid, bytes };
    status.metadata_by_user.iter().take(USERS_TOLD).map(report).collect()
}

fn spills(status: &Status) -> Vec<SpillReport> {
    let report = |spill: &homenode::Spill| SpillReport {
        from: spill.from.0,
        home: spill.home.0,
        bytes: spill.bytes,
    };
    status.spills.iter().map(report).collect()
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
    }
}

fn slices(cache: &CacheStatus, status: &Status) -> Vec<SliceReport> {
    const BLOCK: u64 = 4096;
    let slices = cache.slices.iter().map(|slice| SliceReport {
        node: slice.node.0,
        bytes: slice.frames * BLOCK,
        free_bytes: slice.free * BLOCK,
        dirty_bytes: slice.dirty * BLOCK,
        copies: status
            .accesses
            .iter()
            .filter(|access| access.home == slice.node)
            .map(|access| access.operations)
            .sum(),
        fetched_bytes: slice.fetched * BLOCK,
        saved_bytes: slice.saved * BLOCK,
        stolen_bytes: slice.stolen * BLOCK,
        returned_bytes: slice.returned * BLOCK,
    });
    slices.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_as_good_as_its_best_member() {
        use State::{Candidate, Drained, Draining, Fat, Missing, NoMember};
        assert_eq!(better(NoMember, Draining), Draining);
        assert_eq!(better(NoMember, NoMember), NoMember);
        assert_eq!(better(Draining, Fat), Fat);
        assert_eq!(better(Fat, Candidate), Candidate);
        assert_eq!(better(Candidate, Draining), Candidate);
        assert_eq!(better(Draining, Draining), Draining);
        assert_eq!(better(Drained, Draining), Draining);
        assert_eq!(better(NoMember, Drained), Drained);
        assert_eq!(better(Missing, NoMember), Missing);
        assert_eq!(better(Missing, Candidate), Candidate);
    }
}
