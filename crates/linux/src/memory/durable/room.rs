//! The room on their disks that files take as they become members. It is looked for first, and goes back when nothing comes of it.

use super::MemberFile;
use rustix::fs::{FallocateFlags, SeekFrom};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// Bytes of a unit of `st_blocks`.
const SECTOR_BYTES: u64 = 512;

/// Why files cannot take their room.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoomError {
    /// A disk has less than files on it need.
    #[error(
        "no room on the disk for all of {}: {} MiB more are needed there, and {} MiB are free: choose a smaller size, or another disk",
        path.display(), needed_bytes.div_ceil(1 << 20), free_bytes >> 20
    )]
    Short {
        /// The file that does not fit, with those before it on that disk.
        path: PathBuf,
        /// Bytes that these files do not have yet.
        needed_bytes: u64,
        /// Free bytes of the disk's filesystem.
        free_bytes: u64,
    },
    /// A system call failed.
    #[error("cannot find how much disk space {} takes: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
}

/// Files that take their room. Dropped, it gives back what they did not have before.
#[derive(Debug)]
pub struct TakenRoom(Vec<(File, Vec<Range<u64>>)>);

impl TakenRoom {
    /// Notes which places of files have no room yet, and refuses when a disk has too little for all of them.
    ///
    /// # Errors
    /// [`RoomError`].
    pub fn begin(files: &[MemberFile]) -> Result<Self, RoomError> {
        let mut needed = BTreeMap::<u64, u64>::new();
        let mut sparse = Vec::new();
        for member in files
            .iter()
            .filter(|member| member.device.is_none() && !member.is_disk())
        {
            let failed = |source: io::Error| RoomError::Io {
                path: member.path.clone(),
                source,
            };
            let stat = rustix::fs::fstat(&member.file).map_err(|errno| failed(errno.into()))?;
            let has_bytes = u64::try_from(stat.st_blocks).unwrap_or(0) * SECTOR_BYTES;
            if has_bytes >= member.bytes {
                continue;
            }
            let disk = rustix::fs::fstatvfs(&member.file).map_err(|errno| failed(errno.into()))?;
            let needed_bytes = needed.entry(stat.st_dev).or_default();
            *needed_bytes += member.bytes - has_bytes;
            let is_root = rustix::process::geteuid().is_root();
            let free_bytes = if is_root { disk.f_bfree } else { disk.f_bavail } * disk.f_frsize;
            // A tmpfs without a limit has no size.
            if disk.f_blocks > 0 && *needed_bytes > free_bytes {
                return Err(RoomError::Short {
                    path: member.path.clone(),
                    needed_bytes: *needed_bytes,
                    free_bytes,
                });
            }
            let holes = member.holes().map_err(failed)?;
            sparse.push((member.file.try_clone().map_err(failed)?, holes));
        }
        Ok(Self(sparse))
    }

    /// Leaves the files their room.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for TakenRoom {
    fn drop(&mut self) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for (file, holes) in &self.0 {
            for hole in holes {
                // Where it fails the file keeps its room, and the error that brought it here is told.
                let _ = rustix::fs::fallocate(file, flags, hole.start, hole.end - hole.start);
            }
        }
    }
}

impl MemberFile {
    /// Places in which nothing was written yet, ascending.
    fn holes(&self) -> io::Result<Vec<Range<u64>>> {
        let (mut at, mut holes) = (0, Vec::new());
        while let Some(hole) = self.next_hole(at)? {
            at = hole.end;
            holes.push(hole);
        }
        Ok(holes)
    }

    /// The first place from `at` on in which nothing was written yet.
    pub(super) fn next_hole(&self, at: u64) -> io::Result<Option<Range<u64>>> {
        if at >= self.bytes {
            return Ok(None);
        }
        let hole = rustix::fs::seek(&self.file, SeekFrom::Hole(at))?;
        let end = match rustix::fs::seek(&self.file, SeekFrom::Data(hole)) {
            Ok(data) => data.min(self.bytes),
            // No data behind it.
            Err(rustix::io::Errno::NXIO) => self.bytes,
            Err(errno) => return Err(errno.into()),
        };
        Ok((hole < end).then_some(hole..end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fstat;
    use std::os::unix::fs::FileExt;

    fn sectors(file: &File) -> i64 {
        fstat(file).expect("the file is open").st_blocks
    }

    #[test]
    fn room_taken_in_vain_is_released_and_data_stays() {
        const BYTES: u64 = 4 << 20;
        // Beside the target: /tmp may be a tmpfs.
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("the source's directory is writable");
        let path = directory.path().join("member");
        let file = File::create(&path).expect("the new directory is writable");
        file.set_len(BYTES).expect("a sparse file takes no room");
        file.write_all_at(&[7; 8192], 1 << 20)
            .expect("there is room for two blocks");
        file.sync_all().expect("the disk works");
        let before = sectors(&file);
        let never = std::sync::atomic::AtomicBool::new(false);
        let try_once = |is_kept: bool| {
            let member = [MemberFile::open(&path).expect("no other process has the file")];
            let taken = TakenRoom::begin(&member).expect("the disk has room");
            member[0].prepare(false, &never).expect("the disk has room");
            assert!(sectors(&file) * 512 >= BYTES as i64);
            if is_kept {
                taken.keep();
            }
        };
        try_once(false);
        assert_eq!(sectors(&file), before);
        let mut kept = vec![0; 8192];
        let opened = File::open(&path).expect("the file exists");
        opened
            .read_exact_at(&mut kept, 1 << 20)
            .expect("the file is long enough");
        assert!(kept == [7; 8192]);
        try_once(true);
        // Nothing is taken that could go back.
        try_once(false);
        assert!(sectors(&file) * 512 >= BYTES as i64);
    }

    #[test]
    fn a_file_larger_than_its_disk_takes_no_room() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("the source's directory is writable");
        let path = directory.path().join("member");
        let file = File::create(&path).expect("the new directory is writable");
        let disk = rustix::fs::fstatvfs(&file).expect("the file is open");
        file.set_len(disk.f_bfree * disk.f_frsize + (1 << 30))
            .expect("a sparse file takes no room");
        let refused = TakenRoom::begin(&[MemberFile::open(&path).expect("no other process has the file")]).unwrap_err();
        assert!(
            refused.to_string().contains("no room on the disk for all of"),
            "{refused}"
        );
        assert_eq!(sectors(&file), 0);
    }
}
