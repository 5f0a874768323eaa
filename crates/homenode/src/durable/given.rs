//! Files that are given as the members of a pool. Each is known by its own superblock.

use crate::Error;
use homenode_engine::log::{MemberRecord, Superblock};
use homenode_engine::{BLOCK_BYTES, MemberId};
use homenode_linux::memory::{MemberFile, MemberFileError};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A pool's newest superblock, and its members in the order of their numbers.
pub(super) type Members = (Superblock, Vec<(MemberRecord, MemberFile)>);

/// As [`Members`], of a pool that may miss some.
pub(super) type Present = (Superblock, Vec<(MemberRecord, Option<MemberFile>)>);

/// Opens all members of one pool; each must be given once.
pub(super) fn members(paths: &[PathBuf], open: Open) -> Result<Members, Error> {
    let (newest, files) = sorted(paths, open, false)?;
    let missing = files.iter().filter(|(_, file)| file.is_none());
    let missing: Vec<MemberId> = missing.map(|(record, _)| record.id).collect();
    if !missing.is_empty() {
        return Err(Error::MissingMembers(missing));
    }
    let files = files.into_iter().filter_map(|(record, file)| Some((record, file?)));
    Ok((newest, files.collect()))
}

/// Opens those members of one pool that are there; a file that is not, or is no member any more, counts as missing.
pub(super) fn present_members(paths: &[PathBuf], open: Open) -> Result<Present, Error> {
    sorted(paths, open, true)
}

type Open = fn(&Path) -> Result<MemberFile, MemberFileError>;

fn sorted(paths: &[PathBuf], open: Open, may_miss: bool) -> Result<Present, Error> {
    let mut seen = BTreeSet::new();
    let mut files = Vec::new();
    for path in paths {
        // One that is not there is told by whoever opens it.
        if let Ok(resolved) = path.canonicalize()
            && !seen.insert(resolved)
        {
            return Err(Error::GivenTwice(path.clone()));
        }
        match open(path).and_then(|file| Ok((file.superblock()?, file))) {
            Ok(member) => files.push(member),
            Err(error) if may_miss && is_gone(&error) => tracing::warn!("{error}"),
            Err(error) => return Err(error.into()),
        }
    }
    let superblocks = files.iter().map(|(superblock, _)| superblock);
    let newest = superblocks.max_by_key(|superblock| superblock.generation);
    let newest = newest.ok_or(Error::NoMembers)?.clone();
    let mut by_id = BTreeMap::<MemberId, MemberFile>::new();
    for (superblock, file) in files {
        if superblock.uuid != newest.uuid {
            return Err(Error::OtherPoolsMember {
                path: file.path().to_owned(),
                uuid: superblock.uuid,
                pool: newest.uuid,
            });
        }
        if let Some(other) = by_id.get(&superblock.own) {
            return Err(Error::SameMember {
                member: superblock.own,
                paths: [other.path().to_owned(), file.path().to_owned()],
            });
        }
        let record = newest.members.iter().find(|record| record.id == superblock.own);
        let Some(record) = record else {
            return Err(Error::NoMemberAnyMore(file.path().to_owned()));
        };
        // A crash leaves members one change apart.
        if superblock.generation + 1 < newest.generation {
            return Err(Error::OldMember(file.path().to_owned()));
        }
        if record.blocks != file.blocks() {
            return Err(Error::SmallFile {
                path: file.path().to_owned(),
                bytes: file.blocks() * BLOCK_BYTES as u64,
                least_bytes: record.blocks * BLOCK_BYTES as u64,
            });
        }
        by_id.insert(superblock.own, file);
    }
    let records = newest.members.iter();
    let files = records.map(|record| (*record, by_id.remove(&record.id))).collect();
    Ok((newest, files))
}

/// Whether a member's file is gone, or what made it one.
fn is_gone(error: &MemberFileError) -> bool {
    match error {
        MemberFileError::Io { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
        MemberFileError::Superblock { .. } => true,
        _ => false,
    }
}
