//! Durable pools: made on files, and opened again.

use crate::machine::Machine;
use crate::periodic::Periodic;
use crate::pool::{Pool, root_of};
use crate::{Error, Owner, PoolOptions};
use homenode_engine::fs::{Fs, Replayed};
use homenode_engine::log::{Damage, LogOptions, MemberRecord, PoolName, Superblock};
use homenode_engine::{BLOCK_BYTES, MemberId};
use homenode_linux::clock::CoarseClock;
use homenode_linux::memory::{MemberFile, MemberFileError, MemberReader, NodeMemory};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Time between two commits: as long may what was not synced be lost by a power cut.
const COMMIT_PERIOD: Duration = Duration::from_secs(1);
/// Blocks of a segment of the log, and the share of the pool that is the most of them: 256 KiB to 1 MiB.
const SEGMENT_BLOCKS: RangeInclusive<u64> = 64..=256;
const SEGMENT_SHARE: u64 = 256;
/// Bytes by which a log may be longer than twice its snapshot, and the share of the pool that is the most of them.
const SLACK_BYTES_MAX: u64 = 64 << 20;
const SLACK_SHARE: u64 = 32;
/// Smallest member: its superblocks, a log that goes on, and some data.
const MEMBER_BLOCKS_MIN: u64 = 16 * 256;

impl Pool {
    /// Makes a durable pool on files, one member each, and brings it up. Each file keeps its size, takes all of its room on the disk, and is written once. One
    /// on persistent memory (DAX) is a `pmem` member, and so is one on a tmpfs, to play that; others are `file` members.
    ///
    /// # Errors
    /// When a file is too small, in use or a member already, or the disk is full. Nothing is changed then but the room that files take.
    pub fn create_on(paths: &[PathBuf], options: &PoolOptions) -> Result<Self, Error> {
        let mut machine = Machine::read()?;
        machine.engine.files_max = options.files_max.unwrap_or(machine.engine.files_max);
        let home = *machine.engine.nodes.first().ok_or(Error::NoNodes)?;
        let files = paths
            .iter()
            .map(|path| MemberFile::open(path))
            .collect::<Result<Vec<_>, _>>()?;
        let first = files.first().ok_or(Error::NoMembers)?;
        for file in &files {
            if file.blocks() < MEMBER_BLOCKS_MIN {
                return Err(Error::SmallFile {
                    path: file.path().to_owned(),
                    bytes: file.blocks() * BLOCK_BYTES as u64,
                    least_bytes: MEMBER_BLOCKS_MIN * BLOCK_BYTES as u64,
                });
            }
        }
        files.iter().try_for_each(|file| file.prepare(options.unwritten))?;
        let log = LogOptions {
            uuid: u128::from(random()?) << 64 | u128::from(random()?),
            name: options.name,
            nonce: random()?,
            witness: first.witness()?,
            ..log_options(files.iter().map(MemberFile::blocks).sum())
        };
        let members: Vec<_> = (0..)
            .zip(&files)
            .map(|(id, file)| {
                let (id, kind, blocks) = (MemberId(id), file.kind()?, file.blocks());
                Ok((MemberRecord { id, kind, blocks }, home))
            })
            .collect::<Result<_, Error>>()?;
        let memory = NodeMemory::new();
        for ((member, _), file) in members.iter().zip(files) {
            memory.attach(member.id, member.kind, file)?;
        }
        let (owner, root) = root_of(options);
        let fs = Fs::format(&machine.engine, memory, CoarseClock, root, log, &members);
        Self::committing(fs.map_err(Error::Open)?, owner, machine, options)
    }

    /// Opens a durable pool whose members are these files, in any order, and brings it up: also after a crash.
    ///
    /// # Errors
    /// When a file is in use, is of another pool, or is no member; when a member is missing; when the pool is damaged.
    pub fn open_on(paths: &[PathBuf], options: &PoolOptions) -> Result<Self, Error> {
        let mut machine = Machine::read()?;
        machine.engine.files_max = options.files_max.unwrap_or(machine.engine.files_max);
        let home = *machine.engine.nodes.first().ok_or(Error::NoNodes)?;
        let (newest, files) = members(paths, MemberFile::open)?;
        let log = LogOptions {
            uuid: newest.uuid,
            name: newest.name,
            nonce: newest.tail.nonce,
            witness: files[0].1.witness()?,
            ..log_options(newest.members.iter().map(|member| member.blocks).sum())
        };
        let memory = NodeMemory::new();
        for (record, file) in files {
            memory.attach(record.id, record.kind, file)?;
        }
        let fs = Fs::open_durable(&machine.engine, memory, CoarseClock, log, newest, &|_| home);
        let (owner, _) = root_of(options);
        Self::committing(fs.map_err(Error::Open)?, owner, machine, options)
    }

    /// Identity of a durable pool. A pool of memory has none.
    #[must_use]
    pub fn uuid(&self) -> Option<u128> {
        self.inner.fs.uuid()
    }

    /// Makes all of a durable pool durable now, as syncfs(2). A volatile pool has nothing to do.
    ///
    /// # Errors
    /// When a member cannot be written.
    pub fn sync(&self) -> Result<(), Error> {
        let slot = self.inner.common_slot.lock();
        self.inner.fs.sync_all(&slot).map_err(Error::Sync)
    }

    /// A pool with a thread that commits.
    fn committing(
        fs: Fs<NodeMemory, CoarseClock>,
        owner: Owner,
        machine: Machine,
        options: &PoolOptions,
    ) -> Result<Self, Error> {
        let fs = Arc::new(fs);
        let slot = fs.slots().claim().expect("nobody has claimed a slot of a new pool");
        let committed = Arc::clone(&fs);
        let committer = Periodic::start("commits", move || {
            if let Err(error) = committed.tend_log(&slot) {
                tracing::error!("the pool's changes cannot be made durable: {error}");
            }
            COMMIT_PERIOD
        })?;
        let pool = Self::of(fs, owner, machine, options, Some(committer));
        pool.inner.limit_metadata();
        Ok(pool)
    }
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
    /// All members, each with its bytes.
    pub members: Vec<(MemberId, u64)>,
    /// Generation of this copy: of those that members have the highest counts.
    pub generation: u64,
}

/// Looks at what pool a file is a member of, whether that is up or not.
///
/// # Errors
/// [`Error::MemberFile`] when it is none, or cannot be read.
pub fn member_of(path: &Path) -> Result<Membership, Error> {
    let superblock = MemberFile::peek(path)?;
    let members = superblock.members.iter();
    Ok(Membership {
        uuid: superblock.uuid,
        name: superblock.name,
        member: superblock.own,
        members: members
            .map(|record| (record.id, record.blocks * BLOCK_BYTES as u64))
            .collect(),
        generation: superblock.generation,
    })
}

/// Result of a check of a durable pool that nobody has up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Checked {
    /// Identity of the pool.
    pub uuid: u128,
    /// Name of the pool.
    pub name: PoolName,
    /// Inodes: directories, files, volumes and others.
    pub inodes: u64,
    /// Bytes of the blocks that files and volumes have.
    pub placed_bytes: u64,
    /// Faults of the tree; none in a sound pool.
    pub damage: Vec<Damage>,
}

/// Checks a durable pool on these files, and writes nothing: whether its log can be played, and leads to a sound tree.
///
/// # Errors
/// Those of [`Pool::open_on`]; [`Error::Open`] when the log itself is damaged.
pub fn check(paths: &[PathBuf]) -> Result<Checked, Error> {
    let (newest, files) = members(paths, MemberFile::open_to_read)?;
    let witness = files[0].1.witness()?;
    let memory = MemberReader::new(files.into_iter().map(|(record, file)| (record.id, file)));
    let replayed = Replayed::read(&memory, &newest, witness).map_err(Error::Open)?;
    let extents = replayed
        .tables
        .inodes
        .values()
        .flat_map(|node| node.data.extents.values());
    let placed = extents.filter(|(_, first)| first.is_some()).map(|(blocks, _)| blocks);
    Ok(Checked {
        uuid: newest.uuid,
        name: newest.name,
        inodes: replayed.tables.inodes.len() as u64,
        placed_bytes: placed.sum::<u64>() * BLOCK_BYTES as u64,
        damage: replayed.check(&newest),
    })
}

/// A pool's newest superblock, and its members in the order of their numbers.
type Members = (Superblock, Vec<(MemberRecord, MemberFile)>);

/// Opens the members of one pool; each must be given once.
fn members(paths: &[PathBuf], open: fn(&Path) -> Result<MemberFile, MemberFileError>) -> Result<Members, Error> {
    let mut files = Vec::new();
    for path in paths {
        let file = open(path)?;
        files.push((file.superblock()?, file));
    }
    let superblocks = files.iter().map(|(superblock, _)| superblock);
    let newest = superblocks.max_by_key(|superblock| superblock.generation);
    let newest = newest.ok_or(Error::NoMembers)?.clone();
    let mut by_id = BTreeMap::new();
    let given = files.len();
    for (superblock, file) in files {
        if superblock.uuid != newest.uuid {
            return Err(Error::OtherPoolsMember {
                path: file.path().to_owned(),
                uuid: superblock.uuid,
                pool: newest.uuid,
            });
        }
        by_id.insert(superblock.own, file);
    }
    let missing = newest.members.iter().map(|member| member.id);
    let missing: Vec<MemberId> = missing.filter(|id| !by_id.contains_key(id)).collect();
    if !missing.is_empty() || by_id.len() < given || given > newest.members.len() {
        return Err(Error::MissingMembers(missing));
    }
    let with_records = newest.members.iter().zip(by_id.into_values());
    let files = with_records.map(|(record, file)| {
        if record.blocks == file.blocks() {
            return Ok((*record, file));
        }
        Err(Error::SmallFile {
            path: file.path().to_owned(),
            bytes: file.blocks() * BLOCK_BYTES as u64,
            least_bytes: record.blocks * BLOCK_BYTES as u64,
        })
    });
    let files = files.collect::<Result<_, _>>()?;
    Ok((newest, files))
}

/// Options of the log that follow from the number of the pool's blocks.
fn log_options(blocks: u64) -> LogOptions {
    let segment_blocks = (blocks / SEGMENT_SHARE).clamp(*SEGMENT_BLOCKS.start(), *SEGMENT_BLOCKS.end());
    LogOptions {
        uuid: 0,
        name: PoolName::default(),
        nonce: 0,
        witness: 0,
        segment_blocks: 1 << segment_blocks.ilog2(),
        slack_bytes: (blocks * BLOCK_BYTES as u64 / SLACK_SHARE).min(SLACK_BYTES_MAX),
    }
}

/// A random number.
fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    File::open(Path::new("/dev/urandom"))
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Error::Random)?;
    Ok(u64::from_le_bytes(bytes))
}
