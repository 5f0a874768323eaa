//! The pool: its members, their populating threads, and what belongs to all its users.
//!
//! Invariants: a member's memory is there before the pool knows the member, and until after the pool has forgotten it;
//! members come and go one at a time; when the last handle, file and mount of a pool are gone, its threads have ended and
//! its memory is unmapped.

use crate::machine::{Machine, Node};
use crate::metadata::TYPE_DIRECTORY;
use crate::periodic::Periodic;
use crate::populate::{Populator, Progress};
use crate::tasks::{Holders, PoolTasks};
use crate::{Error, MEMBER_BYTES_MIN, MemberId, MemberKind, NodeId, Owner, PoolOptions, Size, Status};
use homenode_engine::BLOCK_BYTES;
use homenode_engine::cache::{CacheStatus, Cached};
use homenode_engine::fs::{Fs, NewInode, Survey};
use homenode_engine::pool::PoolError;
use homenode_linux::clock::CoarseClock;
use homenode_linux::memory::{NodeMemory, free_bytes, group_free_bytes};
use homenode_shared::Slot;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest time that a status takes to look where files of the kernel lie; what it finds is there for the next one.
pub(crate) const LOOK_TIME_MAX: Duration = Duration::from_millis(200);
/// Figures of bytes by node that nobody has asked for so long are found anew.
const SURVEY_AGE_MAX: Duration = Duration::from_secs(60);

/// The engine on this machine's memory.
pub(crate) type EngineFs = Fs<Cached<NodeMemory>, CoarseClock>;

/// A filesystem over the memory of every node, in this process. Handles are cheap to clone and share one pool; the pool
/// goes with the last handle, open file and mount.
#[derive(Clone)]
pub struct Pool {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    /// No other pool of this process has or had it.
    pub(crate) id: u64,
    pub(crate) fs: Arc<EngineFs>,
    pub(crate) owner: Owner,
    /// Threads keep their slots until they see that this is gone.
    pub(crate) alive: Arc<()>,
    /// For threads that found no free slot.
    pub(crate) common_slot: Mutex<Slot>,
    pub(crate) holders: Holders,
    pub(crate) machine: Machine,
    options: PoolOptions,
    populate_ahead: Mutex<Option<Size>>,
    /// Held while a member is added, drained or removed. A drained member has no thread.
    pub(crate) populators: Mutex<BTreeMap<MemberId, Populator>>,
    /// Makes a durable pool durable again and again.
    committer: Option<Periodic>,
    /// Where files of the kernel lie, and when somebody looked last.
    survey: Mutex<(Survey, Option<Instant>)>,
    /// Keep frames of a cache free, and write back.
    pub(crate) keepers: Mutex<Vec<Periodic>>,
}

impl Pool {
    /// Brings a pool up. Returns as soon as the first blocks of every member are populated; threads of the pool populate
    /// on, ahead of its writers.
    ///
    /// # Errors
    /// When a node is unknown or has less free memory than asked for, or the kernel refuses memory or threads. Nothing
    /// is left behind then.
    pub fn create(options: &PoolOptions) -> Result<Self, Error> {
        if options.commit_period.is_some() {
            return Err(Error::CommitOfMemory);
        }
        let machine = Machine::read(options.files_max)?;
        let sizes = member_sizes(&machine, options)?;
        let (owner, root) = root_of(options);
        let fs = Arc::new(Fs::new(
            &machine.engine,
            Cached::without_cache(NodeMemory::new()),
            CoarseClock,
            root,
        ));
        let pool = Self::of(fs, owner, machine, options, None);
        let mut populators = pool.inner.populators.lock();
        for (node, bytes) in sizes {
            pool.inner.add_member(&mut populators, node, bytes)?;
        }
        for (member, populator) in &*populators {
            if populator.wait_until(|progress| progress != Progress::Starting) == Progress::Starved {
                return Err(Error::Starved {
                    node: pool.inner.home(*member)?,
                    member: *member,
                });
            }
        }
        drop(populators);
        pool.inner.limit_metadata();
        Ok(pool)
    }

    /// Bytes that threads of this process have copied since each first used the pool, by home. Of threads that share a slot because there
    /// are too many, nothing is told.
    #[must_use]
    pub fn tasks(&self) -> PoolTasks {
        self.inner.tasks()
    }

    /// A pool of a filesystem that is there, without populating threads.
    pub(crate) fn of(
        fs: Arc<EngineFs>,
        owner: Owner,
        machine: Machine,
        options: &PoolOptions,
        committer: Option<Periodic>,
    ) -> Self {
        let common_slot = fs.slots().claim().expect("a new pool has free slots");
        let inner = Inner {
            id: next_pool_id(),
            fs,
            owner,
            alive: Arc::new(()),
            common_slot: Mutex::new(common_slot),
            holders: Holders::default(),
            machine,
            options: options.clone(),
            populate_ahead: Mutex::new(options.populate_ahead),
            populators: Mutex::default(),
            committer,
            keepers: Mutex::default(),
            survey: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Adds a member of `size` (or of this share of the node's memory) on `node`, while the pool is in use.
    ///
    /// # Errors
    /// As [`Pool::create`]; nothing has changed then.
    pub fn add_member(&self, node: NodeId, size: Size) -> Result<MemberId, Error> {
        if self.inner.fs.is_durable() {
            return Err(Error::DurablePool);
        }
        let node_bytes = self.inner.machine.node(node)?.memory_bytes;
        let bytes = whole_runs(node, size.bytes_of(node_bytes))?;
        let added = self.inner.add_member(&mut self.inner.populators.lock(), node, bytes);
        self.inner.limit_metadata();
        added
    }

    /// Moves everything that lies on `member` to other members, while files are in use; it gets no new data from then
    /// on, as long as the pool is up. Gives the bytes moved. `progress` is told the bytes done and to do.
    ///
    /// # Errors
    /// When there is no such member, it is the only one, the others have not the room, or the kernel refuses a thread to
    /// populate it again. It takes data as before then.
    pub fn drain(&self, member: MemberId, progress: &mut dyn FnMut(u64, u64)) -> Result<u64, Error> {
        let inner = &*self.inner;
        let mut populators = inner.populators.lock();
        let home = inner.home(member)?;
        // For the case that it stays. A durable member is there as a whole.
        let next = (!inner.fs.is_durable())
            .then(|| inner.prepare_populating(member, home, inner.member_bytes(member)?))
            .transpose()?;
        // Its thread would populate what nobody is to use.
        populators.remove(&member);
        let drained = inner.fs.drain(member, progress);
        inner.limit_metadata();
        drained.map_err(|error| {
            if let Some(next) = next {
                next.begin();
                populators.insert(member, next);
            }
            error.into()
        })
    }

    /// Takes a drained member out of the pool and gives its memory back, or its file, which is no member any more.
    ///
    /// # Errors
    /// When there is no such member, or it was not drained.
    pub fn remove(&self, member: MemberId) -> Result<(), Error> {
        let populators = self.inner.populators.lock();
        let (fs, pool) = (&self.inner.fs, self.inner.fs.pool());
        if !self.inner.member_status(member)?.draining {
            return Err(Error::NotDrained(member));
        }
        if fs.is_durable() {
            let identity = pool.memory().below().identity(member)?;
            fs.remove_member(member, identity.ok_or(PoolError::UnknownMember(member))?)?;
        } else {
            pool.remove(member)?;
        }
        pool.memory().end_all_reads_of(member);
        pool.memory().remove_disk(member);
        pool.memory().below().remove(member)?;
        self.inner.limit_metadata();
        drop(populators);
        Ok(())
    }

    /// State of the cache that a durable pool has for its disks; without slices where it has none.
    #[must_use]
    pub fn cache(&self) -> CacheStatus {
        let pool = self.inner.fs.pool();
        let (mut cache, accesses) = (pool.memory().cache_status(), pool.status().accesses);
        for slice in &mut cache.slices {
            let of_slice = accesses.iter().filter(|access| access.home == slice.node);
            slice.copies = of_slice.map(|access| access.operations).sum();
        }
        cache
    }

    /// Memory that names, attributes and block maps take.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        self.inner.fs.metadata_bytes().0
    }

    /// Members, space, access matrix and spills.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status_with(&self.kernel_by_node(LOOK_TIME_MAX))
    }

    /// Bytes of files of the kernel on each node. Looks at files for a time, from where the last call stopped; where that is not all of them, tells what the
    /// last look at all has found, or, before there is one, what was found so far.
    #[must_use]
    pub fn kernel_by_node(&self, time: Duration) -> Vec<(NodeId, u64)> {
        let inner = &*self.inner;
        let Some(mut guard) = inner.survey.try_lock() else {
            // Another thread is looking.
            return inner.survey.lock().0.by_node();
        };
        let (survey, looked) = &mut *guard;
        let start = Instant::now();
        if looked.is_none_or(|looked| start - looked > SURVEY_AGE_MAX) {
            *survey = Survey::default();
        }
        *looked = Some(start);
        inner.fs.survey(survey, || start.elapsed() < time);
        survey.by_node()
    }

    /// [`Pool::status`], with an earlier look at files of the kernel.
    #[must_use]
    pub fn status_with(&self, kernel_by_node: &[(NodeId, u64)]) -> Status {
        let pool = self.inner.fs.pool();
        let backing = |member| {
            let file = pool
                .memory()
                .below()
                .file(member)
                .map(|path| path.display().to_string());
            file.or_else(|| pool.memory().below().backing(member).map(|backing| backing.to_string()))
                .unwrap_or_default()
        };
        let fs = &self.inner.fs;
        let health = |member| {
            let below = pool.memory().below();
            (below.health(member), below.errors(member))
        };
        let mut status = Status::new(pool.status(), kernel_by_node, backing, health);
        if let Some((blocks, since_ns)) = fs.broken_promises() {
            status.reserved_lost_bytes = blocks * BLOCK_BYTES as u64;
            status.reserved_lost_since_s = u64::try_from(since_ns / 1_000_000_000).ok();
        }
        status.with_metadata(fs.metadata_bytes(), fs.metadata_refused(), &fs.metadata_by_user())
    }

    /// Sets how much free memory of each member is kept populated from now on, as [`PoolOptions::populate_ahead`] does for a new
    /// pool. What is populated stays so.
    pub fn set_populate_ahead(&self, size: Option<Size>) {
        let inner = &*self.inner;
        *inner.populate_ahead.lock() = size;
        for (member, populator) in &*inner.populators.lock() {
            if let Ok(bytes) = inner.member_bytes(*member) {
                populator.set_ahead(inner.ahead_bytes(bytes));
            }
        }
    }

    /// Gives up files of the kernel, whose memory else stays while anybody holds anything of a mount. Call it when the pool ends: files lose their
    /// bytes, at once when nobody has them open, else when they are closed.
    pub fn give_up_files(&self) {
        self.inner.fs.give_up_files();
    }

    /// Waits until every member has as much populated ahead as [`PoolOptions::populate_ahead`] says: for those who
    /// measure, and for those who want the whole pool in memory before they begin. While others write as fast as memory is
    /// populated, that is not reached; members can be added and taken out again only afterwards.
    ///
    /// # Errors
    /// When a node has no free memory left for it.
    pub fn wait_populated(&self) -> Result<(), Error> {
        let populators = self.inner.populators.lock();
        for (member, populator) in &*populators {
            populator.look_again();
            let enough = |progress| matches!(progress, Progress::Full | Progress::Whole | Progress::Starved);
            let reached = populator.wait_until(enough);
            if reached == Progress::Starved {
                return Err(Error::Starved {
                    node: self.inner.home(*member)?,
                    member: *member,
                });
            }
        }
        Ok(())
    }
}

impl Inner {
    /// The limit of metadata follows the pool's size.
    pub(crate) fn limit_metadata(&self) {
        let pool_bytes = self.fs.pool().status().capacity * BLOCK_BYTES as u64;
        self.fs.set_metadata_limit(
            self.options
                .metadata_bytes(pool_bytes, self.fs.pool().store().is_some()),
        );
    }

    /// Owner and mode of something new.
    pub(crate) fn new_inode(&self, mode: u32) -> NewInode {
        NewInode {
            uid: self.owner.uid,
            gid: self.owner.gid,
            ..NewInode::of_root(mode)
        }
    }

    /// Fails unless some member is at home on `node`.
    pub(crate) fn require_member_on(&self, node: NodeId) -> Result<(), Error> {
        let mut members_on: Vec<NodeId> = self
            .fs
            .pool()
            .status()
            .members
            .iter()
            .map(|member| member.home)
            .collect();
        members_on.sort_unstable();
        members_on.dedup();
        if members_on.contains(&node) {
            Ok(())
        } else {
            Err(Error::NoMemberOn { node, members_on })
        }
    }

    fn add_member(
        &self,
        populators: &mut BTreeMap<MemberId, Populator>,
        node: NodeId,
        bytes: u64,
    ) -> Result<MemberId, Error> {
        let pool = self.fs.pool();
        let member = pool.next_member();
        pool.memory().below().add(member, node, bytes)?;
        let added = self.prepare_populating(member, node, bytes).and_then(|populator| {
            debug_assert_eq!(pool.next_member(), member);
            pool.add(MemberKind::Dram, node, bytes / BLOCK_BYTES as u64)?;
            Ok(populator)
        });
        match added {
            Ok(populator) => {
                populator.begin();
                populators.insert(member, populator);
                Ok(member)
            }
            Err(error) => {
                if let Err(error) = pool.memory().below().remove(member) {
                    tracing::warn!("{member} was not added, and its memory stays: {error}");
                }
                Err(error)
            }
        }
    }

    fn prepare_populating(&self, member: MemberId, home: NodeId, bytes: u64) -> Result<Populator, Error> {
        let cpus = self
            .machine
            .node(home)
            .map(|node| node.cpus.clone())
            .unwrap_or_default();
        Populator::prepare(&self.fs, member, home, cpus, self.ahead_bytes(bytes))
    }

    /// Bytes to keep populated ahead in a member of `member_bytes`.
    fn ahead_bytes(&self, member_bytes: u64) -> u64 {
        let populate_ahead = *self.populate_ahead.lock();
        let options = PoolOptions {
            populate_ahead,
            ..PoolOptions::default()
        };
        options.ahead_bytes(member_bytes)
    }

    fn home(&self, member: MemberId) -> Result<NodeId, Error> {
        self.member_status(member).map(|status| status.home)
    }

    fn member_bytes(&self, member: MemberId) -> Result<u64, Error> {
        self.member_status(member)
            .map(|status| status.capacity * BLOCK_BYTES as u64)
    }

    fn member_status(&self, member: MemberId) -> Result<homenode_engine::pool::MemberStatus, Error> {
        let status = self.fs.pool().status();
        let found = status.members.into_iter().find(|status| status.id == member);
        Ok(found.ok_or(PoolError::UnknownMember(member))?)
    }
}

impl Drop for Inner {
    /// Puts a durable pool away: what comes back is a snapshot alone.
    fn drop(&mut self) {
        if self.committer.take().is_none() {
            return;
        }
        let slot = self.common_slot.get_mut();
        let compacted = self.fs.compact(slot);
        if let Err(error) = compacted.and_then(|()| self.fs.put_away(slot)) {
            tracing::error!("the pool could not be closed, and is in the state after a crash: {error}");
        }
    }
}

pub(crate) fn root_of(options: &PoolOptions) -> (Owner, NewInode) {
    let owner = options.owner.unwrap_or_else(|| Owner {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    });
    let root = NewInode {
        uid: owner.uid,
        gid: owner.gid,
        ..NewInode::of_root(TYPE_DIRECTORY | options.root_mode.unwrap_or(0o755))
    };
    (owner, root)
}

/// Size of the member that each node is to give, in bytes.
fn member_sizes(machine: &Machine, options: &PoolOptions) -> Result<Vec<(NodeId, u64)>, Error> {
    let nodes: Vec<&Node> = if options.nodes.is_empty() {
        machine.with_memory().collect()
    } else {
        let mut nodes = options.nodes.clone();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
            .into_iter()
            .map(|node| machine.node(node))
            .collect::<Result<_, _>>()?
    };
    if nodes.is_empty() {
        return Err(Error::NoNodes);
    }
    // A part stays for what the members themselves take of it, beginning with the first.
    let of_group = group_free_bytes() / 16 * 15 / nodes.len() as u64;
    let size = |node: &Node| {
        let bytes = match options.size_per_node {
            Some(size) => size.bytes_of(node.memory_bytes),
            // What cannot be read is refused with its reason when the member is made.
            None => (node.memory_bytes / 2)
                .min(free_bytes(node.id).unwrap_or(node.memory_bytes))
                .min(of_group),
        };
        Ok((node.id, whole_runs(node.id, bytes)?))
    };
    nodes.into_iter().map(size).collect()
}

/// Down to whole runs of 2 MiB, the step in which a member is populated.
fn whole_runs(node: NodeId, bytes: u64) -> Result<u64, Error> {
    match bytes / MEMBER_BYTES_MIN * MEMBER_BYTES_MIN {
        0 => Err(Error::TooSmall {
            node,
            wanted_bytes: bytes,
        }),
        whole => Ok(whole),
    }
}

fn next_pool_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn bytes_of(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("id", &self.inner.id)
            .field("status", &self.status())
            .finish()
    }
}
