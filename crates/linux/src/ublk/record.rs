//! Records of lasting devices: which volume each is of, for the server that comes after a crash.
//!
//! A file for each device, in a directory of root's that is gone when the machine starts anew, as the devices are. A record counts only for
//! the device whose mark it has: so a record that stayed behind says nothing about a later device of the same number.

use super::disk_path;
use super::error::Error;
use crate::memory::MemberFile;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Beside the servers' sockets.
const DIRECTORY: &str = "/run/homenode/ublk";

/// Volume that a lasting device is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Identity of the volume's pool.
    pub pool: u128,
    /// The volume's name.
    pub volume: String,
    /// A number that no other volume of the pool has or had. Servers before this one noted none.
    pub number: Option<u64>,
    /// Number of the pool's history while the device is served: with another one the volume may lack what was written to the device.
    pub history: u64,
    /// The directory where the pool is mounted, for people.
    pub directory: String,
    /// Files of the pool's members.
    pub members: Vec<String>,
}

/// A file's contents.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// The device's.
    mark: u64,
    /// In hexadecimal digits.
    pool: String,
    volume: String,
    number: Option<u64>,
    #[serde(default)]
    history: u64,
    directory: String,
    #[serde(default)]
    members: Vec<String>,
}

impl Origin {
    /// Whether the members that were noted are all there, and none of them is one of `files`: a pool of these files is a copy of the volume's pool.
    /// A file that is a member of the pool no more is not there.
    #[must_use]
    pub fn is_beside(&self, files: &[PathBuf]) -> bool {
        let superblock = |path: &Path| MemberFile::look(path).and_then(|file| file.superblock());
        self.is_beside_those(files, |path| {
            superblock(path).is_ok_and(|found| found.uuid == self.pool)
        })
    }

    fn is_beside_those(&self, files: &[PathBuf], is_member: impl Fn(&Path) -> bool) -> bool {
        let identity = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
        let own: Vec<_> = files.iter().filter_map(|path| identity(path)).collect();
        let is_elsewhere = |path: &Path| identity(path).is_some_and(|noted| !own.contains(&noted)) && is_member(path);
        !self.members.is_empty() && self.members.iter().map(Path::new).all(is_elsewhere)
    }
}

/// The volume that a device with this mark is of, if a record tells it.
pub(super) fn of(device: u32, mark: u64) -> Option<Origin> {
    read(Path::new(DIRECTORY), device, mark)
}

/// Notes which volume a device is of, in place of what was noted before.
pub(super) fn put(device: u32, mark: u64, origin: &Origin) -> Result<(), Error> {
    write(Path::new(DIRECTORY), device, mark, origin).map_err(|source| Error::Record {
        device: disk_path(device),
        path: path_in(Path::new(DIRECTORY), device),
        source,
    })
}

/// Removes the record of the device with this mark. One that stays counts for no other device.
pub(super) fn remove(device: u32, mark: u64) {
    remove_from(Path::new(DIRECTORY), device, mark);
}

fn remove_from(directory: &Path, device: u32, mark: u64) {
    // The number may be another server's by now.
    if read(directory, device, mark).is_some() {
        let _ = fs::remove_file(path_in(directory, device));
    }
}

fn path_in(directory: &Path, device: u32) -> PathBuf {
    directory.join(device.to_string())
}

fn read(directory: &Path, device: u32, mark: u64) -> Option<Origin> {
    let text = fs::read(path_in(directory, device)).ok()?;
    let record: Record = serde_json::from_slice(&text).ok()?;
    let origin = Origin {
        pool: u128::from_str_radix(&record.pool, 16).ok()?,
        volume: record.volume,
        number: record.number,
        history: record.history,
        directory: record.directory,
        members: record.members,
    };
    (record.mark == mark).then_some(origin)
}

/// Whole or not at all, whenever this process dies.
fn write(directory: &Path, device: u32, mark: u64, origin: &Origin) -> io::Result<()> {
    let record = Record {
        mark,
        pool: format!("{:032x}", origin.pool),
        volume: origin.volume.clone(),
        number: origin.number,
        history: origin.history,
        directory: origin.directory.clone(),
        members: origin.members.clone(),
    };
    match DirBuilder::new().recursive(true).mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let path = path_in(directory, device);
    let new = path.with_extension("new");
    fs::write(&new, serde_json::to_vec(&record)?)?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_only_for_the_device_with_its_mark() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("ublk");
        let origin = Origin {
            pool: 7 << 100,
            volume: "a \"disk\"".to_owned(),
            number: Some(12),
            history: u64::MAX,
            directory: "/srv/pool".to_owned(),
            members: vec!["/var/pool/m0".to_owned()],
        };
        assert_eq!(read(&directory, 3, u64::MAX), None, "no record exists");
        write(&directory, 3, u64::MAX, &origin).unwrap();
        assert_eq!(read(&directory, 3, u64::MAX), Some(origin.clone()));
        assert_eq!(read(&directory, 3, 1), None, "the record is of another device");
        assert_eq!(read(&directory, 4, u64::MAX), None);
        let moved = Origin {
            directory: "/mnt".to_owned(),
            ..origin
        };
        write(&directory, 3, 1, &moved).unwrap();
        assert_eq!(read(&directory, 3, 1), Some(moved.clone()));
        remove_from(&directory, 3, u64::MAX);
        assert_eq!(
            read(&directory, 3, 1),
            Some(moved),
            "of the device that has the number now"
        );
        remove_from(&directory, 3, 1);
        assert_eq!(read(&directory, 3, 1), None);
        fs::write(path_in(&directory, 3), "{").unwrap();
        assert_eq!(read(&directory, 3, 1), None, "damaged");
        let entries = fs::read_dir(&directory).unwrap().count();
        assert_eq!(entries, 1, "nothing else is left there");
    }

    #[test]
    fn a_pool_is_a_copy_while_the_noted_members_are_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["m0", "m1", "copy0", "copy1"] {
            fs::write(path(name), name).unwrap();
        }
        let noted = |names: &[&str]| Origin {
            pool: 7,
            volume: "disk".to_owned(),
            number: Some(12),
            history: 1,
            directory: "/srv/pool".to_owned(),
            members: names.iter().map(|name| path(name).display().to_string()).collect(),
        };
        let (origin, copies) = (noted(&["m0", "m1"]), [path("copy0"), path("copy1")]);
        let is_beside = |origin: &Origin, files: &[PathBuf]| origin.is_beside_those(files, |_| true);
        assert!(is_beside(&origin, &copies));
        assert!(!is_beside(&origin, &[path("m0"), path("m1")]), "the pool itself");
        assert!(
            !is_beside(&origin, &[path("m0"), path("copy1")]),
            "one member is a copy"
        );
        assert!(!is_beside(&noted(&[]), &copies), "an older server noted none");
        assert!(
            !origin.is_beside(&copies),
            "the files hold no member of a pool any more"
        );
        let is_left = |member: &Path| !member.ends_with("m0");
        assert!(
            !origin.is_beside_those(&copies, is_left),
            "one member was removed from the pool"
        );
        fs::rename(path("m1"), path("moved")).unwrap();
        assert!(!is_beside(&origin, &[path("m0"), path("moved")]), "a member was moved");
        assert!(!is_beside(&origin, &copies), "a member is gone");
        fs::rename(path("copy1"), path("m1")).unwrap();
        assert!(
            !is_beside(&origin, &[path("copy0"), path("m1")]),
            "a copy took a member's place"
        );
    }
}
