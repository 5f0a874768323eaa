//! Files that are given as the members of a pool. Each is known by its own superblock.

use crate::{Error, PoolName};
use homenode_engine::log::{MemberRecord, NotGathered, Superblock, gather};
use homenode_engine::{BLOCK_BYTES, MemberId};
use homenode_linux::memory::{MemberFile, MemberFileError};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A pool's newest superblock, and its members in the order of their numbers.
pub(super) type Members<T = MemberFile> = (Superblock, Vec<(MemberRecord, T)>);

type Open = fn(&Path) -> Result<MemberFile, MemberFileError>;

/// Opens all members of one pool; each must be given once.
pub(super) fn members(paths: &[PathBuf], open: Open) -> Result<Members, Error> {
    let (newest, files) = opened(paths, open, false)?;
    Ok((newest, whole(files)?))
}

/// Opens those members of one pool that are there; a file that is not, or is no member any more, counts as missing.
pub(super) fn present_members(paths: &[PathBuf], open: Open) -> Result<Members<Option<MemberFile>>, Error> {
    opened(paths, open, true)
}

/// A durable pool whose files were found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Found {
    /// Identity of the pool.
    pub uuid: u128,
    /// Name of the pool.
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
    let (newest, members) = gathered(paths, |path| Ok((MemberFile::peek(path)?, path.to_owned())), false)?;
    let members = whole(members)?;
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

/// Fails when a member is missing.
fn whole<T>(members: Vec<(MemberRecord, Option<T>)>) -> Result<Vec<(MemberRecord, T)>, Error> {
    let missing = members.iter().filter(|(_, file)| file.is_none());
    let missing: Vec<MemberId> = missing.map(|(record, _)| record.id).collect();
    if !missing.is_empty() {
        return Err(Error::MissingMembers(missing));
    }
    let all = members.into_iter().filter_map(|(record, file)| Some((record, file?)));
    Ok(all.collect())
}

fn opened(paths: &[PathBuf], open: Open, may_miss: bool) -> Result<Members<Option<MemberFile>>, Error> {
    let look = |path: &Path| {
        let file = open(path)?;
        Ok((file.superblock()?, file))
    };
    let (newest, files) = gathered(paths, look, may_miss)?;
    for (record, file) in &files {
        let Some(file) = file else { continue };
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

/// Finds the members of one pool among files, by what `look` finds in each. Files that cannot be used are told when no member is missing, or one `may` be.
fn gathered<T>(
    paths: &[PathBuf],
    look: impl Fn(&Path) -> Result<(Superblock, T), MemberFileError>,
    may_miss: bool,
) -> Result<Members<Option<T>>, Error> {
    refuse_twice(paths)?;
    let (mut given, mut superblocks, mut files, mut unusable) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for path in paths {
        match look(path) {
            Ok((superblock, file)) => {
                given.push(path);
                superblocks.push(superblock);
                files.push(Some(file));
            }
            Err(error) if may_miss && !is_gone(&error) => return Err(error.into()),
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
        Err(NotGathered::Twice(places)) => {
            return Err(Error::SameMember {
                member: superblocks[places[0]].own,
                paths: places.map(|place| given[place].clone()),
            });
        }
        Err(NotGathered::Nothing) => {
            let first = unusable.into_iter().next();
            return Err(first.map_or(Error::NoMembers, |(_, error)| error.into()));
        }
    };
    let records = gathered.newest.members.iter().zip(&gathered.members);
    if let Some((record, _)) = records.clone().find(|(_, place)| place.is_none()) {
        let is_old = |other: &&usize| superblocks[**other].own == record.id;
        if let Some(old) = gathered.others.iter().find(is_old) {
            return Err(Error::OldMember(given[*old].clone()));
        }
        if !may_miss && !unusable.is_empty() {
            // The member that is missing may be a file that cannot be used.
            return Err(unusable.swap_remove(0).1.into());
        }
    }
    // The superblocks of the members say that there are no others.
    for other in &gathered.others {
        tracing::debug!(
            "{} is no member of the pool, and is left alone: a crash came while it was added or removed",
            given[*other].display()
        );
    }
    for (path, error) in &unusable {
        if may_miss {
            tracing::warn!("{error}");
        } else {
            tracing::debug!(
                "{} is no member of the pool, and is left alone: {error}",
                path.display()
            );
        }
    }
    let files = records.map(|(record, place)| (*record, place.and_then(|place| files[place].take())));
    let files = files.collect();
    Ok((gathered.newest, files))
}

/// Fails when a file is given more than once, by whatever name.
pub(super) fn refuse_twice(paths: &[PathBuf]) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    // One that is not there is told by whoever opens it.
    let is_twice = |path: &&PathBuf| {
        let found = std::fs::metadata(path);
        found.is_ok_and(|found| !seen.insert((found.dev(), found.ino())))
    };
    let twice = paths.iter().find(is_twice);
    twice.map_or(Ok(()), |path| Err(Error::GivenTwice(path.clone())))
}

/// Fails when a file is smaller than it must be.
pub(super) fn require_blocks(file: &MemberFile, least: u64) -> Result<(), Error> {
    if file.blocks() >= least {
        return Ok(());
    }
    Err(Error::SmallFile {
        path: file.path().to_owned(),
        bytes: file.blocks() * BLOCK_BYTES as u64,
        least_bytes: least * BLOCK_BYTES as u64,
    })
}

/// Whether a member's file is gone, or what made it one.
fn is_gone(error: &MemberFileError) -> bool {
    match error {
        MemberFileError::Io { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
        MemberFileError::Superblock { .. } => true,
        _ => false,
    }
}
