//! Files that are given as the members of a pool. Each is known by its own superblock.

use crate::{Error, PoolName};
use homenode_engine::log::{MemberRecord, NotGathered, Superblock, gather};
use homenode_engine::pool::MemberKind;
use homenode_engine::{BLOCK_BYTES, MemberId};
use homenode_linux::memory::{MemberFile, MemberFileError, witness};
use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

/// A pool's newest superblock, and its members in the order of their numbers.
pub(super) struct Members {
    pub(super) newest: Superblock,
    /// A member that is missing has no file.
    pub(super) files: Vec<(MemberRecord, Option<MemberFile>)>,
}

impl Members {
    /// Files of those that are there.
    pub(super) fn present(&self) -> impl Iterator<Item = (MemberId, &MemberFile)> {
        let files = self.files.iter();
        files.filter_map(|(record, file)| Some((record.id, file.as_ref()?)))
    }

    /// Superblocks that cannot be read are written anew, where all of the pool is opened.
    fn healed(self, access: Access) -> Self {
        for (record, file) in self.files.iter().filter(|_| access == Access::Write) {
            let superblock = Superblock {
                own: record.id,
                ..self.newest.clone()
            };
            if let Some(Err(error)) = file.as_ref().map(|file| file.heal(&superblock)) {
                tracing::warn!("{error}");
            }
        }
        self
    }

    /// Identity of what keeps bytes of these files that are not durable yet.
    pub(super) fn witness(&self) -> Result<u128, MemberFileError> {
        witness(self.present())
    }
}

/// Use of a pool's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// The pool is opened, by nobody else meanwhile.
    Write,
    /// The pool is only read, and by others as well.
    Read,
    /// The pool may be in use, and its files need not be of the right size.
    Look,
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
    /// Kind of each member, in the same order.
    pub kinds: Vec<MemberKind>,
    /// Bytes of all members.
    pub bytes: u64,
}

/// Looks which of these files are the members of one pool, whether that is up or not.
///
/// # Errors
/// When they are not all members of one pool, but for files that it does not list.
pub fn find_members(paths: &[PathBuf]) -> Result<Found, Error> {
    let Members { newest, files } = gathered(paths, Access::Look, false)?;
    Ok(Found {
        uuid: newest.uuid,
        name: newest.name,
        bytes: blocks(&newest) * BLOCK_BYTES as u64,
        kinds: files.iter().map(|(member, _)| member.kind).collect(),
        members: files
            .into_iter()
            .filter_map(|(_, file)| Some(file?.path().to_owned()))
            .collect(),
    })
}

/// Blocks of all members of a pool.
pub(super) fn blocks(superblock: &Superblock) -> u64 {
    superblock.members.iter().map(|member| member.blocks).sum()
}

/// Opens the members of one pool; each must be given once, unless members `may_miss`. Then a file that is not there, or is no member any more, counts
/// as missing. Files that cannot be used are told when no member is missing, or one may be.
///
/// Where not all counts that was stored, files are read from the disk: the page cache may show what the disk never got.
pub(super) fn gathered(paths: &[PathBuf], access: Access, may_miss: bool) -> Result<Members, Error> {
    let members = gathered_once(paths, access, may_miss)?;
    if access == Access::Look || members.newest.witness == members.witness()? {
        return Ok(members.healed(access));
    }
    // By where it lies now: it may have been copied to a disk.
    let mut files = members
        .present()
        .filter(|(_, file)| file.kind().is_ok_and(|kind| kind == MemberKind::File))
        .peekable();
    if files.peek().is_none() {
        drop(files);
        return Ok(members.healed(access));
    }
    files.for_each(|(_, file)| file.drop_unwritten());
    // Superblocks too.
    drop(members);
    let mut members = gathered_once(paths, access, may_miss)?;
    // The disk may have them from before the witness was taken out.
    members.newest.witness = 0;
    Ok(members.healed(access))
}

fn gathered_once(paths: &[PathBuf], access: Access, may_miss: bool) -> Result<Members, Error> {
    let open = match access {
        Access::Write => MemberFile::open,
        Access::Read => MemberFile::open_to_read,
        Access::Look => MemberFile::look,
    };
    refuse_twice(paths)?;
    let (mut given, mut superblocks, mut files, mut unusable) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for path in paths {
        match open(path).and_then(|file| Ok((file.superblock()?, file))) {
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
        Err(NotGathered::Apart(places)) => {
            return Err(Error::Apart(places.map(|place| given[place].clone())));
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
            "{} is no member of the pool, and is unchanged: a crash came while it was added or removed",
            given[*other].display()
        );
    }
    for (path, error) in &unusable {
        if may_miss {
            tracing::warn!("{error}");
        } else {
            tracing::debug!("{} is no member of the pool, and is unchanged: {error}", path.display());
        }
    }
    let mut members = Members {
        files: Vec::new(),
        newest: gathered.newest,
    };
    let mut missing = Vec::new();
    for (record, place) in members.newest.members.iter().zip(gathered.members) {
        let mut file = place.and_then(|place| files[place].take());
        if record.kind == MemberKind::Block && access != Access::Look {
            file = file.map(MemberFile::direct).transpose()?;
        }
        match &file {
            Some(file) if access != Access::Look => require_size(file, record.blocks)?,
            Some(_) => {}
            None => missing.push(record.id),
        }
        members.files.push((*record, file));
    }
    if may_miss || missing.is_empty() {
        Ok(members)
    } else {
        Err(Error::MissingMembers(missing))
    }
}

/// Fails when a file has not the size that its pool knows.
fn require_size(file: &MemberFile, blocks: u64) -> Result<(), Error> {
    require_blocks(file, blocks)?;
    if file.blocks() > blocks {
        return Err(Error::GrownFile {
            path: file.path().to_owned(),
            bytes: blocks * BLOCK_BYTES as u64,
        });
    }
    Ok(())
}

/// Fails when a file is given more than once, by whatever name.
pub(super) fn refuse_twice(paths: &[PathBuf]) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    // One that is not there is told by whoever opens it.
    let identity = |found: &Metadata| match found.file_type().is_block_device() {
        true => (found.rdev(), None),
        false => (found.dev(), Some(found.ino())),
    };
    let is_twice = |path: &&PathBuf| {
        let found = std::fs::metadata(path);
        found.is_ok_and(|found| !seen.insert(identity(&found)))
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
