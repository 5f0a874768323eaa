//! The log of a server: a file that stays until the server has ended well.
//!
//! A server in the foreground has one too, which says where its messages go. The kernel may give a mount's number to another mount while the server
//! is ending still: the log is told by its inode then.

use super::DIRECTORY;
use crate::failure::{Cannot, Result};
use crate::mountinfo::Device;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Path of the log of the server of `device`.
pub(crate) fn log_path(device: Device) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{device}.log"))
}

#[derive(Clone, Debug)]
pub(crate) struct Log {
    path: PathBuf,
    inode: u64,
}

impl Log {
    /// Begins the log of this server. The log of an earlier one with this number gets another name.
    pub(crate) fn begin(device: Device) -> Result<(Self, File)> {
        Self::begin_at(log_path(device))
    }

    fn begin_at(path: PathBuf) -> Result<(Self, File)> {
        let what = format!("write the log {}", path.display());
        match fs::rename(&path, earlier(&path)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).cannot(&what),
            _ => {}
        }
        let file = File::options()
            .append(true)
            .create_new(true)
            .open(&path)
            .cannot(&what)?;
        let inode = file.metadata().cannot(&what)?.ino();
        Ok((Self { path, inode }, file))
    }

    /// The log of a server that runs.
    pub(crate) fn of(device: Device) -> Option<Self> {
        let path = log_path(device);
        let inode = fs::metadata(&path).ok()?.ino();
        Some(Self { path, inode })
    }

    /// Whether the server has not ended well.
    pub(crate) fn is_there(&self) -> bool {
        self.place().is_some()
    }

    /// The server has ended well, so that the log tells nothing.
    pub(crate) fn remove(&self) {
        if let Some(path) = self.place() {
            let _ = fs::remove_file(path);
        }
    }

    fn place(&self) -> Option<PathBuf> {
        let is_it = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.ino() == self.inode);
        [self.path.clone(), earlier(&self.path)].into_iter().find(is_it)
    }
}

fn earlier(path: &Path) -> PathBuf {
    path.with_extension("earlier.log")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn servers_with_the_same_number_have_logs_of_their_own() {
        let directory = std::env::temp_dir().join(format!("homenode-log-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("0-57.log");
        let (ending, mut first) = Log::begin_at(path.clone()).unwrap();
        first.write_all(b"one\n").unwrap();
        let (begun, mut second) = Log::begin_at(path.clone()).unwrap();
        second.write_all(b"two\n").unwrap();
        first.write_all(b"ends\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
        assert_eq!(fs::read_to_string(earlier(&path)).unwrap(), "one\nends\n");
        ending.remove();
        assert!(!ending.is_there() && begun.is_there());
        ending.remove();
        assert!(begun.is_there(), "the log of another server");
        begun.remove();
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        fs::remove_dir(&directory).unwrap();
    }
}
