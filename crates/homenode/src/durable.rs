//! Durable pools: made on files, and opened again.

mod check;
mod frames;
mod given;

pub use check::{Checked, check, repair};
pub use frames::check_cache;
pub use given::{Found, find_members};

use crate::machine::Machine;
use crate::periodic::Periodic;
use crate::pool::{EngineFs, Pool, root_of};
use crate::{Error, Owner, PoolOptions};
use frames::Frames;
use given::{Access, Members, blocks, gathered, refuse_twice, require_blocks};
use homenode_engine::cache::{Cached, FrameIndex, SliceOptions, SliceStatus};
use homenode_engine::fs::{Fs, OpenError};
use homenode_engine::log::{LogOptions, MemberRecord, PoolName, Superblock};
use homenode_engine::pool::{MemberKind, PoolError};
use homenode_engine::{BLOCK_BYTES, MemberId, NodeId};
use homenode_linux::clock::CoarseClock;
use homenode_linux::cpu::pin_to_node_cpus;
use homenode_linux::memory::{MemberFile, MemberFileError, NodeMemory, TakenRoom, identity, witness};
use homenode_linux::process::serve_writes;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::iter;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Blocks of a segment of the log, and the share of the pool that is the most of them: 256 KiB to 1 MiB.
const SEGMENT_BLOCKS: RangeInclusive<u64> = 64..=256;
const SEGMENT_SHARE: u64 = 256;
/// Bytes by which a log may be longer than twice its snapshot, and the share of the pool that is the most of them.
const SLACK_BYTES_MAX: u64 = 64 << 20;
const SLACK_SHARE: u64 = 32;
/// Smallest member: its superblocks, a log that goes on, and some data.
const MEMBER_BLOCKS_MIN: u64 = 16 * 256;
/// Most threads of a slice that write back.
const SAVERS_MAX: usize = 4;
/// Time between two looks at a slice of the cache.
const KEEPER_PERIOD: Duration = Duration::from_millis(20);

impl Pool {
    /// Makes a durable pool on files and devices, one member each, and brings it up. Each file keeps its size, takes all of its room on the disk, and is
    /// written once. One on persistent memory (DAX) is a `pmem` member, and so is one on a tmpfs, to play that; disks and their partitions are `block`
    /// members, and with [`PoolOptions::direct`] all files are; others are `file` members. A pool may have members of all kinds.
    ///
    /// # Errors
    /// When a file is too small, in use or a member already, the disk has too little room, or the nodes have too little memory for a cache. Files have
    /// the room that they had then.
    pub fn create_on(paths: &[PathBuf], options: &PoolOptions) -> Result<Self, Error> {
        options.checked_commit_period(false)?;
        let machine = Machine::read(options.files_max)?;
        refuse_twice(paths)?;
        let made = options.made.iter().map(Option::as_deref).chain(iter::repeat(None));
        let files = paths
            .iter()
            .zip(made)
            .map(|(path, made)| open(path, made, options.direct));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        if files.is_empty() {
            return Err(Error::NoMembers);
        }
        files
            .iter()
            .try_for_each(|file| require_blocks(file, MEMBER_BLOCKS_MIN))?;
        let memory = NodeMemory::new();
        let frames = frames::add(&machine, &memory, &files, options.cache)?;
        let memory = cached(&machine, memory, &frames);
        // Before anything is taken, or written.
        let indexes = files.iter().map(|file| index_of(file, file.blocks()));
        let indexes = indexes.collect::<Result<Vec<_>, _>>()?;
        let taken = TakenRoom::begin(&files)?;
        let is_over = options.interrupted.clone().unwrap_or_default();
        let takes = |found: &Superblock| options.takes_from.contains(&found.uuid);
        // All, before any of them is written to.
        files
            .iter()
            .try_for_each(|file| file.check_free(options.overwrites, takes))?;
        files
            .iter()
            .try_for_each(|file| file.prepare(options.unwritten, &is_over))?;
        // Last: who is interrupted before, or has no room, finds the files as they were.
        files.iter().try_for_each(MemberFile::take_over)?;
        let log = LogOptions {
            uuid: u128::from(random()?) << 64 | u128::from(random()?),
            name: options.name,
            nonce: random()?,
            witness: witness((0..).map(MemberId).zip(&files))?,
            history: random()?,
            ..log_options(files.iter().map(MemberFile::blocks).sum())
        };
        let members: Vec<_> = (0..)
            .zip(&files)
            .map(|(id, file)| {
                let member = record(MemberId(id), file)?;
                Ok((member, home_of(&machine, file)?))
            })
            .collect::<Result<_, Error>>()?;
        for (((member, home), file), index) in members.iter().zip(files).zip(indexes) {
            attach(&memory, *member, *home, (file, index), Access::Write)?;
        }
        let (owner, root) = root_of(options);
        let fs = Fs::format(&machine.engine, memory, CoarseClock, root, log, &members);
        let fs = fs.map_err(Error::Open)?;
        taken.keep();
        Self::committing(fs, owner, machine, options)
    }

    /// Opens a durable pool whose members are these files, in any order, and brings it up: also after a crash. A file that the pool does not
    /// list, because it was to become a member or was one, is left alone.
    ///
    /// # Errors
    /// When a file is in use, is of another pool, or is no member; when a member is missing; when the pool is damaged.
    pub fn open_on(paths: &[PathBuf], options: &PoolOptions) -> Result<Self, Error> {
        options.checked_commit_period(false)?;
        let machine = Machine::read(options.files_max)?;
        let is_read = options.read_only || options.degraded;
        let access = if is_read { Access::Read } else { Access::Write };
        let members = gathered(paths, access, options.degraded)?;
        let log = log_options_of(&members, options)?;
        let Members { newest, files } = members;
        let memory = NodeMemory::new();
        let (mut missing, mut homes) = (Vec::new(), BTreeMap::new());
        let present = files.iter().filter_map(|(_, file)| file.as_ref());
        let frames = frames::add(&machine, &memory, present, options.cache)?;
        let memory = cached(&machine, memory, &frames);
        for (member, file) in files {
            let Some(file) = file else {
                missing.push(member.id);
                memory
                    .below()
                    .attach_missing(member.id, member.blocks * BLOCK_BYTES as u64)?;
                continue;
            };
            let home = home_of(&machine, &file)?;
            homes.insert(member.id, home);
            let index = index_of(&file, member.blocks)?;
            attach(&memory, member, home, (file, index), access)?;
        }
        let first = *machine.engine.nodes.first().ok_or(Error::NoNodes)?;
        let home_of = |id| homes.get(&id).copied().unwrap_or(first);
        let (owner, _) = root_of(options);
        if !is_read {
            let fs = Fs::open_durable(&machine.engine, memory, CoarseClock, log, newest, &home_of);
            return Self::committing(fs.map_err(Error::Open)?, owner, machine, options);
        }
        let fs = Fs::open_to_read(&machine.engine, memory, CoarseClock, log, newest, &home_of);
        let fs = fs.map_err(|error| match error {
            OpenError::Unreadable(member) if missing.contains(&member) => Error::LogMissing(member),
            error => Error::Open(error),
        })?;
        for member in missing {
            tracing::warn!("{member} is missing: its bytes cannot be read");
        }
        let pool = Self::of(Arc::new(fs), owner, machine, options, None);
        pool.inner.limit_metadata();
        Ok(pool)
    }

    /// Whether the pool was opened to be read only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.inner.fs.is_read_only()
    }

    /// Whether a member of a durable pool could not be written: the pool can only be read until it is opened again.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.inner.fs.has_failed()
    }

    /// Adds a file or a device to a durable pool that is in use, as a member, as [`Pool::create_on`] does.
    ///
    /// # Errors
    /// [`Error::VolatilePool`]; [`Error::NoCache`]; when the file is too small, in use or a member already, or the disk is full: the pool has not changed
    /// then. After [`PoolError::Log`] the pool can only be read, and has the member or not when it is opened again.
    pub fn add_file(&self, path: &Path, new: NewFile) -> Result<MemberId, Error> {
        let inner = &*self.inner;
        let (fs, pool) = (&inner.fs, inner.fs.pool());
        let uuid = fs.uuid().ok_or(Error::VolatilePool)?;
        fs.check_members()?;
        let file = open(path, new.made.as_deref(), new.direct)?;
        require_blocks(&file, MEMBER_BLOCKS_MIN)?;
        let members = pool.status().members;
        if file.kind()? == MemberKind::Block && !pool.memory().has_cache() {
            return Err(Error::NoCache(path.to_owned()));
        }
        let is_member = |id: MemberId| members.iter().any(|member| member.id == id);
        let index = index_of(&file, file.blocks())?;
        let files = [file];
        let taken = TakenRoom::begin(&files)?;
        let [file] = files;
        let was_left = |found: &Superblock| found.uuid == uuid && !is_member(found.own);
        file.check_free(new.overwrites, was_left)?;
        file.prepare(new.unwritten, &AtomicBool::new(false))?;
        file.take_over()?;
        let home = home_of(&inner.machine, &file)?;
        // One member at a time.
        let _alone = inner.populators.lock();
        fs.check_members()?;
        if pool.next_member().0 >= frames::FIRST {
            return Err(PoolError::TooMany.into());
        }
        let member = record(pool.next_member(), &file)?;
        let identity = identity(member.id, &file)?;
        attach(pool.memory(), member, home, (file, index), Access::Write)?;
        let added = fs.add_member(member, home, identity);
        // After the second the pool may list it.
        if matches!(added, Ok(()) | Err(PoolError::Log)) {
            taken.keep();
        }
        if let Err(error) = added {
            pool.memory().end_all_reads_of(member.id);
            pool.memory().remove_disk(member.id);
            pool.memory().below().remove(member.id)?;
            return Err(error.into());
        }
        inner.limit_metadata();
        Ok(member.id)
    }

    /// The pool's UUID, if it is durable.
    #[must_use]
    pub fn uuid(&self) -> Option<u128> {
        self.inner.fs.uuid()
    }

    /// Files of a durable pool's members, in the order of their numbers.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let pool = self.inner.fs.pool();
        let members = pool.status().members;
        members
            .iter()
            .filter_map(|member| pool.memory().below().file(member.id))
            .collect()
    }

    /// Makes all of a durable pool durable now, as syncfs(2). A volatile pool has nothing to do.
    ///
    /// # Errors
    /// When a member cannot be written.
    pub fn sync(&self) -> Result<(), Error> {
        let slot = self.inner.common_slot.lock();
        self.inner.fs.sync_all(&slot).map_err(Error::Sync)
    }

    /// Makes all of a durable pool durable, and notes that it was put away: what is damaged of its log later is told then. Nothing may use the
    /// pool afterwards. A volatile pool, or one that is only read, has nothing to do.
    ///
    /// # Errors
    /// When a member cannot be written, or could not before: what was not synced may be lost.
    pub fn put_away(&self) -> Result<(), Error> {
        let slot = self.inner.common_slot.lock();
        self.inner.fs.put_away(&slot).map_err(Error::Sync)
    }

    /// A pool with a thread that commits.
    fn committing(fs: EngineFs, owner: Owner, machine: Machine, options: &PoolOptions) -> Result<Self, Error> {
        let period = options.checked_commit_period(fs.reads_disks())?;
        let fs = Arc::new(fs);
        let slot = fs.slots().claim().expect("all slots of a new pool are free");
        let committed = Arc::clone(&fs);
        let mut told = None;
        let committer = Periodic::start("commits", move || {
            let failed = committed.tend_log(&slot).err();
            if failed != told {
                if let Some(error) = &failed {
                    tracing::error!("the pool's changes cannot be made durable: {error}");
                }
                told = failed;
            }
            period
        })?;
        let pool = Self::of(Arc::clone(&fs), owner, machine, options, Some(committer));
        pool.inner.limit_metadata();
        *pool.inner.keepers.lock() = keepers(&fs, &pool.inner.machine)?;
        Ok(pool)
    }
}

/// Ways in which a file can become a member.
#[derive(Clone, Debug, Default)]
pub struct NewFile {
    /// Leaves the file unwritten: see [`PoolOptions::unwritten`].
    pub unwritten: bool,
    /// Makes the file a disk of the pool: see [`PoolOptions::direct`].
    pub direct: bool,
    /// Overwrites what the file holds: see [`PoolOptions::overwrites`].
    pub overwrites: bool,
    /// The file, if it was just made for this: see [`PoolOptions::made`].
    pub made: Option<Arc<File>>,
}

/// The pool that a file is a member of, by the file's own superblock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Membership {
    /// Identity of the pool.
    pub uuid: u128,
    /// Name of the pool.
    pub name: PoolName,
    /// This member.
    pub member: MemberId,
}

/// Looks at what pool a file is a member of, whether that is up or not.
///
/// # Errors
/// [`Error::MemberFile`] when it is none, or cannot be read.
pub fn member_of(path: &Path) -> Result<Membership, Error> {
    let superblock = MemberFile::look(path)?.superblock()?;
    Ok(Membership {
        uuid: superblock.uuid,
        name: superblock.name,
        member: superblock.own,
    })
}

/// Opens a file that is to become a member, or takes the one that was `made` for that.
fn open(path: &Path, made: Option<&File>, direct: bool) -> Result<MemberFile, MemberFileError> {
    let file = made.map_or_else(|| MemberFile::open(path), |made| MemberFile::of_made(path, made))?;
    if direct { file.direct() } else { Ok(file) }
}

/// Memory with a cache in these frames, if there are any.
fn cached(machine: &Machine, memory: NodeMemory, frames: &[Frames]) -> Cached<NodeMemory> {
    let slices: Vec<SliceOptions> = frames.iter().map(Frames::slice).collect();
    if slices.is_empty() {
        Cached::without_cache(memory)
    } else {
        let nodes = &machine.engine.nodes;
        let place = |node| nodes.iter().position(|other| *other == node).unwrap_or(0);
        let row = |from: &SliceOptions| {
            let latency = &machine.engine.latency[place(from.node)];
            slices.iter().map(|to| latency[place(to.node)]).collect()
        };
        let distances: Vec<Vec<u32>> = slices.iter().map(row).collect();
        Cached::new(memory, &slices, &distances)
    }
}

/// The index of the cache for a member of `blocks` blocks, if that is a disk.
fn index_of(file: &MemberFile, blocks: u64) -> Result<Option<FrameIndex>, Error> {
    if file.kind()? != MemberKind::Block {
        return Ok(None);
    }
    let index = FrameIndex::new(blocks).ok_or_else(|| Error::IndexRoom {
        path: file.path().to_owned(),
        bytes: FrameIndex::bytes(blocks),
    });
    index.map(Some)
}

/// Gives a file to the memory as a member, as where it lies now asks for.
fn attach(
    memory: &Cached<NodeMemory>,
    member: MemberRecord,
    home: NodeId,
    (file, index): (MemberFile, Option<FrameIndex>),
    access: Access,
) -> Result<(), Error> {
    let below = memory.below();
    match (index, access) {
        (Some(index), _) => {
            below.attach_disk(member.id, file)?;
            memory.add_disk(member.id, home, index);
        }
        (_, Access::Write) => below.attach(member.id, member.kind, file)?,
        (_, Access::Read | Access::Look) => below.attach_to_read(member.id, member.kind, file)?,
    }
    Ok(())
}

/// Threads that tend the slices of a pool's cache, on the CPUs of the slice's node: one each that keeps frames free and reads ahead, and as many as there are
/// disks, up to [`SAVERS_MAX`], that write back, each of which a disk may hold up for long.
fn keepers(fs: &Arc<EngineFs>, machine: &Machine) -> Result<Vec<Periodic>, Error> {
    let slices = fs.pool().memory().cache_status().slices;
    let members = fs.pool().status().members;
    let disks = members.iter().filter(|member| member.kind == MemberKind::Block).count();
    let savers = disks.clamp(1, SAVERS_MAX);
    let keeper = |slice: usize, status: &SliceStatus, name: &str, work: Box<dyn Fn(&EngineFs) -> Duration + Send>| {
        let (fs, node) = (Arc::clone(fs), status.node);
        let mut cpus = Some(machine.cpus_of(node).to_vec());
        Periodic::start(&format!("{name} {slice}"), move || {
            if let Some(cpus) = cpus.take() {
                // Memory may be full of what it is to write: what it needs itself must not wait for that.
                serve_writes();
                // A node may have no CPUs, and a cpuset may forbid them: then any CPU does the work.
                if !cpus.is_empty()
                    && let Err(error) = pin_to_node_cpus(&cpus)
                {
                    tracing::warn!("keeper {slice} runs away from {node}: cannot run there: {error}");
                }
            }
            work(&fs)
        })
    };
    let mut all = Vec::new();
    for (slice, status) in slices.iter().enumerate() {
        let tend = move |fs: &EngineFs| {
            fs.pool().memory().tend(slice, KEEPER_PERIOD);
            Duration::ZERO
        };
        all.push(keeper(slice, status, "keeper", Box::new(tend))?);
        for nth in 0..savers {
            let write_back = move |fs: &EngineFs| match fs.pool().memory().write_back(slice, (nth, savers)) {
                Ok(true) => Duration::ZERO,
                // Errors are told to those who sync the blocks.
                Ok(false) | Err(_) => KEEPER_PERIOD,
            };
            all.push(keeper(slice, status, "saver", Box::new(write_back))?);
        }
    }
    Ok(all)
}

/// A file as a new member of that number.
fn record(id: MemberId, file: &MemberFile) -> Result<MemberRecord, Error> {
    let (kind, blocks) = (file.kind()?, file.blocks());
    Ok(MemberRecord { id, kind, blocks })
}

/// The home of a member in a file: that of the file's disk, or the first node where the machine does not tell.
fn home_of(machine: &Machine, file: &MemberFile) -> Result<NodeId, Error> {
    let nodes = &machine.engine.nodes;
    let home = file.home().filter(|home| nodes.contains(home));
    home.or(nodes.first().copied()).ok_or(Error::NoNodes)
}

/// Options of the log that follow from the number of the pool's blocks.
fn log_options(blocks: u64) -> LogOptions {
    let segment_blocks = (blocks / SEGMENT_SHARE).clamp(*SEGMENT_BLOCKS.start(), *SEGMENT_BLOCKS.end());
    LogOptions {
        uuid: 0,
        name: PoolName::default(),
        nonce: 0,
        witness: 0,
        history: 0,
        metadata_bytes_max: u64::MAX,
        segment_blocks: 1 << segment_blocks.ilog2(),
        slack_bytes: (blocks * BLOCK_BYTES as u64 / SLACK_SHARE).min(SLACK_BYTES_MAX),
    }
}

/// Options of the log of a pool that is opened, on the members that are there.
fn log_options_of(members: &Members, options: &PoolOptions) -> Result<LogOptions, Error> {
    let newest = &members.newest;
    let blocks = blocks(newest);
    Ok(LogOptions {
        uuid: newest.uuid,
        name: newest.name,
        nonce: newest.tail.nonce,
        witness: members.witness()?,
        history: random()?,
        metadata_bytes_max: options.metadata_bytes(blocks * BLOCK_BYTES as u64, false),
        ..log_options(blocks)
    })
}

/// A random number.
fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    File::open(Path::new("/dev/urandom"))
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Error::Random)?;
    Ok(u64::from_le_bytes(bytes))
}
