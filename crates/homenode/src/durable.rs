//! Durable pools: made on files, and opened again.

use crate::machine::Machine;
use crate::periodic::Periodic;
use crate::pool::{Pool, root_of};
use crate::{Error, Owner, PoolOptions};
use homenode_engine::fs::{Fs, Replayed};
use homenode_engine::log::{Damage, LogOptions, MemberRecord, NotGathered, PoolName, Superblock, gather};
use homenode_engine::{BLOCK_BYTES, MemberId, NodeId};
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
        let files = paths
            .iter()
            .map(|path| MemberFile::open(path))
            .collect::<Result<Vec<_>, _>>()?;
        let first = files.first().ok_or(Error::NoMembers)?;
        files
            .iter()
            .try_for_each(|file| require_blocks(file, MEMBER_BLOCKS_MIN))?;
        files
            .iter()
            .try_for_each(|file| file.prepare(options.unwritten, |_| false))?;
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
                let member = record(MemberId(id), file)?;
                Ok((member, home_of(&machine, file)?))
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

    /// Opens a durable pool whose members are these files, in any order, and brings it up: also after a crash. A file that the pool does not
    /// list, because it was to become a member or was one, is left alone.
    ///
    /// # Errors
    /// When a file is in use, is of another pool, or is no member; when a member is missing; when the pool is damaged.
    pub fn open_on(paths: &[PathBuf], options: &PoolOptions) -> Result<Self, Error> {
        let mut machine = Machine::read()?;
        machine.engine.files_max = options.files_max.unwrap_or(machine.engine.files_max);
        let (newest, files) = members(paths, MemberFile::open)?;
        let log = LogOptions {
            uuid: newest.uuid,
            name: newest.name,
            nonce: newest.tail.nonce,
            witness: files[0].1.witness()?,
            ..log_options(newest.members.iter().map(|member| member.blocks).sum())
        };
        let memory = NodeMemory::new();
        let mut homes = BTreeMap::new();
        for (record, file) in files {
            homes.insert(record.id, home_of(&machine, &file)?);
            memory.attach(record.id, record.kind, file)?;
        }
        let fs = Fs::open_durable(&machine.engine, memory, CoarseClock, log, newest, &|id| homes[&id]);
        let (owner, _) = root_of(options);
        Self::committing(fs.map_err(Error::Open)?, owner, machine, options)
    }

    /// Adds a file to a durable pool that is in use, as a member. The file keeps its size, takes all of its room on the disk, and is written
    /// once unless `unwritten`, as with [`PoolOptions::unwritten`].
    ///
    /// # Errors
    /// [`Error::VolatilePool`]; when the file is too small, in use or a member already, or the disk is full: the pool has not changed then. After
    /// [`PoolError::Log`] the pool can only be read, and has the member or not when it is opened again.
    pub fn add_file(&self, path: &Path, unwritten: bool) -> Result<MemberId, Error> {
        let inner = &*self.inner;
        let (fs, pool) = (&inner.fs, inner.fs.pool());
        let uuid = fs.uuid().ok_or(Error::VolatilePool)?;
        let file = MemberFile::open(path)?;
        require_blocks(&file, MEMBER_BLOCKS_MIN)?;
        let members = pool.status().members;
        let is_member = |id: MemberId| members.iter().any(|member| member.id == id);
        file.prepare(unwritten, |found| found.uuid == uuid && !is_member(found.own))?;
        let home = home_of(&inner.machine, &file)?;
        // One member at a time.
        let _alone = inner.populators.lock();
        let member = record(pool.next_member(), &file)?;
        pool.memory().attach(member.id, member.kind, file)?;
        if let Err(error) = fs.add_member(member, home) {
            pool.memory().remove(member.id)?;
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
            .filter_map(|member| pool.memory().file(member.id))
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
}

/// Looks at what pool a file is a member of, whether that is up or not.
///
/// # Errors
/// [`Error::MemberFile`] when it is none, or cannot be read.
pub fn member_of(path: &Path) -> Result<Membership, Error> {
    let superblock = MemberFile::peek(path)?;
    Ok(Membership {
        uuid: superblock.uuid,
        name: superblock.name,
        member: superblock.own,
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

/// A durable pool whose files were found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Found {
    /// Identity of the pool.
    pub uuid: u128,
    /// What people call the pool.
    pub name: PoolName,
    /// Files of its members, in the order of their numbers.
    pub members: Vec<PathBuf>,
    /// Bytes of all members.
    pub bytes: u64,
}

/// Looks which of these files are the members of one pool, whether that is up or not.
///
/// # Errors
/// When they are not all members of one pool, but for files that it does not list.
pub fn find_members(paths: &[PathBuf]) -> Result<Found, Error> {
    let (newest, members) = gathered(paths, |path| Ok((MemberFile::peek(path)?, path.to_owned())))?;
    Ok(Found {
        uuid: newest.uuid,
        name: newest.name,
        bytes: members
            .iter()
            .map(|(record, _)| record.blocks * BLOCK_BYTES as u64)
            .sum(),
        members: members.into_iter().map(|(_, path)| path).collect(),
    })
}

/// A pool's newest superblock, and its members in the order of their numbers.
type Members<T = MemberFile> = (Superblock, Vec<(MemberRecord, T)>);

/// Opens the members of one pool; each must be given once.
fn members(paths: &[PathBuf], open: fn(&Path) -> Result<MemberFile, MemberFileError>) -> Result<Members, Error> {
    let (newest, files) = gathered(paths, |path| {
        let file = open(path)?;
        Ok((file.superblock()?, file))
    })?;
    for (record, file) in &files {
        require_blocks(file, record.blocks)?;
        if file.blocks() > record.blocks {
            return Err(Error::GrownFile {
                path: file.path().to_owned(),
                bytes: record.blocks * BLOCK_BYTES as u64,
            });
        }
    }
    Ok((newest, files))
}

/// Finds the members of one pool among files, by what `look` finds in each.
fn gathered<T>(
    paths: &[PathBuf],
    look: impl Fn(&Path) -> Result<(Superblock, T), MemberFileError>,
) -> Result<Members<T>, Error> {
    let (mut given, mut superblocks, mut files, mut unusable) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for path in paths {
        match look(path) {
            Ok((superblock, file)) => {
                given.push(path);
                superblocks.push(superblock);
                files.push(Some(file));
            }
            Err(error) => unusable.push((path, error)),
        }
    }
    let gathered = match gather(&superblocks) {
        Ok(gathered) => gathered,
        Err(NotGathered::OtherPool(other, pool)) => {
            return Err(Error::OtherPoolsMember {
                path: given[other].clone(),
                uuid: superblocks[other].uuid,
                pool,
            });
        }
        Err(NotGathered::Twice(member)) => return Err(Error::MemberTwice(member)),
        Err(missing) => {
            // The member that is missing may be a file that cannot be used.
            let unusable = unusable.into_iter().next().map(|(_, error)| error.into());
            return Err(unusable.unwrap_or(match missing {
                NotGathered::Missing(members) => Error::MissingMembers(members),
                _ => Error::NoMembers,
            }));
        }
    };
    // The superblocks of the members say that there are no others.
    let others = gathered.others.iter().map(|other| given[*other]);
    for path in others.chain(unusable.iter().map(|(path, _)| *path)) {
        tracing::warn!(
            "{} is no member of the pool, and is left alone: a crash came while it was added or removed",
            path.display()
        );
    }
    let members = gathered.newest.members.iter().zip(&gathered.members);
    let files = members
        .map(|(record, place)| (*record, files[*place].take().expect("each is one member")))
        .collect();
    Ok((gathered.newest, files))
}

/// Fails when a file is smaller than it must be.
fn require_blocks(file: &MemberFile, least: u64) -> Result<(), Error> {
    if file.blocks() >= least {
        return Ok(());
    }
    Err(Error::SmallFile {
        path: file.path().to_owned(),
        bytes: file.blocks() * BLOCK_BYTES as u64,
        least_bytes: least * BLOCK_BYTES as u64,
    })
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
