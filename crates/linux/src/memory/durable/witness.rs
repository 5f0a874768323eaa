//! The witness of a pool: whether all that an earlier process stored in its members is still there.
//!
//! Stores that are not durable are kept by the page cache, which belongs to an instance of a filesystem: it comes with mount(2), is shared by all
//! namespaces and bind mounts, and goes with the last of them. Its directory in sysfs has a number there that is used once in a boot. So the
//! witness is made of this boot, and for each member of its filesystem's device and number and its own inode.
//!
//! What is stored in a disk of ours (`super::direct`) lies in this process until it is durable: its part of the witness is a random number, so that no
//! later process finds that all is there.
//!
//! Filesystems without such a directory (NFS, overlayfs, tmpfs ...) are told by their device alone. An unmount in the meantime writes all out.

use super::{MemberFile, MemberFileError};
use homenode_engine::MemberId;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

/// The witness of a pool whose members these are; all of them agree when it is the same.
///
/// # Errors
/// When the kernel does not tell.
pub fn witness<'a>(members: impl IntoIterator<Item = (MemberId, &'a MemberFile)>) -> Result<u128, MemberFileError> {
    let mut members = members.into_iter();
    members.try_fold(0, |witness, (id, file)| Ok(witness ^ identity(id, file)?))
}

/// A member's part of the witness, which is all of these, one by exclusive or with the other: so it changes with members that come and go.
///
/// # Errors
/// When the kernel does not tell.
pub fn identity(id: MemberId, file: &MemberFile) -> Result<u128, MemberFileError> {
    if let Some(direct) = &file.direct {
        return Ok(direct.life);
    }
    let mut boot = String::new();
    let read = |boot: &mut String| File::open("/proc/sys/kernel/random/boot_id")?.read_to_string(boot);
    read(&mut boot).map_err(|error| file.failed("read the machine's boot_id for", error))?;
    let stat = file.file.metadata().map_err(|error| file.failed("look at", error))?;
    let born = stat
        .created()
        .ok()
        .and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    let born = born.map_or(0, |born| born.as_nanos());
    let words = [
        id.0.into(),
        stat.dev().into(),
        stat.ino().into(),
        instance(stat.dev()).into(),
        born,
    ];
    let words = words.iter().flat_map(|word: &u128| word.to_le_bytes());
    Ok(boot.bytes().chain(words).fold(FNV_BASIS, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(FNV_PRIME)
    }))
}

/// Constants of the hash FNV-1a of 128 bits.
const FNV_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const FNV_PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// Number of the instance of a filesystem on a block device: that of its directory in sysfs; 0 where there is none.
fn instance(device: u64) -> u64 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let Ok(link) = fs::read_link(format!("/sys/dev/block/{major}:{minor}")) else {
        return 0;
    };
    let (Some(name), Ok(kinds)) = (link.file_name(), fs::read_dir("/sys/fs")) else {
        return 0;
    };
    let numbers = kinds
        .flatten()
        .filter_map(|kind| fs::metadata(kind.path().join(name)).ok());
    numbers.map(|directory| directory.ino()).next().unwrap_or(0)
}
