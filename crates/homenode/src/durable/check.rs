//! A durable pool that nobody has up: checked, and mended.

use super::given::{Access, Members, blocks, gathered};
use super::{attach, cached, frames, home_of, index_of, log_options, random};
use crate::machine::Machine;
use crate::{Error, PoolName};
use homenode_engine::fs::{Mended, Repair};
use homenode_engine::log::Superblock;
use homenode_engine::{BLOCK_BYTES, Clock, Memory};
use homenode_linux::clock::CoarseClock;
use homenode_linux::memory::{MemberReader, NodeMemory};
use std::path::PathBuf;

/// Memory of the cache that a repair has for disks.
const REPAIR_CACHE_BYTES: u64 = 64 << 20;

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
    /// Faults, each with its remedy; none in a sound pool.
    pub faults: Vec<Mended>,
    /// Files that were given and are no members of the pool: they are left alone.
    pub others: Vec<PathBuf>,
}

/// Checks a durable pool on these files, and writes nothing: whether its log can be played, and leads to a sound tree.
///
/// # Errors
/// The errors of [`Pool::open_on`](crate::Pool::open_on); [`Error::Open`] when nothing of the tree can be read.
pub fn check(paths: &[PathBuf]) -> Result<Checked, Error> {
    let members = gathered(paths, Access::Read, false)?;
    let (witness, others) = (members.witness()?, others(paths, &members));
    let Members { newest, files } = members;
    let files = files.into_iter().filter_map(|(record, file)| Some((record.id, file?)));
    let repair = plan(&MemberReader::new(files), &newest, witness)?;
    Ok(checked(&newest, &repair, others))
}

/// Checks a durable pool on these files, and mends all faults: by the remedy that each has in the answer. A sound pool is not written to, and unless
/// it `may_lose` something, no pool of which a remedy does.
///
/// # Errors
/// The errors of [`check`]. Nothing is changed then, unless writing itself failed.
pub fn repair(paths: &[PathBuf], may_lose: bool) -> Result<Checked, Error> {
    let members = gathered(paths, Access::Write, false)?;
    let (witness, others) = (members.witness()?, others(paths, &members));
    let Members { newest, files } = members;
    let memory = NodeMemory::new();
    let present = files.iter().filter_map(|(_, file)| file.as_ref());
    let machine = Machine::read(None)?;
    let frames = frames::add(&machine, &memory, present, Some(REPAIR_CACHE_BYTES))?;
    let memory = cached(&machine, memory, &frames);
    for (record, file) in files {
        let file = file.expect("a check needs all members, so every file is there");
        let home = home_of(&machine, &file)?;
        let index = index_of(&file, record.blocks)?;
        attach(&memory, record, home, (file, index), Access::Write)?;
    }
    let repair = plan(&memory, &newest, witness)?;
    let checked = checked(&newest, &repair, others);
    if may_lose || checked.faults.iter().all(|fault| fault.remedy.is_lossless()) {
        let carried_out = repair.carry_out(&memory, &newest, witness, random()?);
        carried_out.map_err(Error::Open)?;
    }
    Ok(checked)
}

fn plan<M: Memory>(memory: &M, newest: &Superblock, witness: u128) -> Result<Repair, Error> {
    let segment_blocks = log_options(blocks(newest)).segment_blocks;
    Repair::plan(memory, newest, witness, segment_blocks, CoarseClock.now_ns()).map_err(Error::Open)
}

fn others(paths: &[PathBuf], members: &Members) -> Vec<PathBuf> {
    let is_member = |path: &&PathBuf| members.present().any(|(_, file)| file.path() == **path);
    paths.iter().filter(|path| !is_member(path)).cloned().collect()
}

fn checked(newest: &Superblock, repair: &Repair, others: Vec<PathBuf>) -> Checked {
    Checked {
        uuid: newest.uuid,
        name: newest.name,
        inodes: repair.inodes(),
        placed_bytes: repair.placed_blocks() * BLOCK_BYTES as u64,
        faults: repair.mended().to_vec(),
        others,
    }
}
