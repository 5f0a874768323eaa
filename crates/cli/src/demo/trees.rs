//! Real trees: copied by rsync, compared by rsync.
//!
//! Of a git work tree only what belongs to it is copied: its history and the files it tracks.

use super::interrupt::Interrupt;
use super::program::{self, Ended};
use crate::failure::{Failure, Result, fail};
use crate::mountinfo::shown;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Most lines of differences that are told.
const DIFFERENCES_TOLD: usize = 20;

/// A directory to copy.
#[derive(Clone, Debug)]
pub(super) struct Original {
    pub(super) path: PathBuf,
    /// Tracked files, each ended by a NUL; `None` where all is copied.
    tracked: Option<Vec<u8>>,
}

/// Entries and bytes of a tree of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    /// Files, directories, links and what else has a name.
    pub(super) entries: usize,
    /// Bytes of regular files.
    pub(super) bytes: u64,
}

impl Original {
    /// Looks at `path`, which must be a directory.
    pub(super) fn new(path: &Path, interrupt: &Interrupt) -> Result<Self> {
        let path = fs::canonicalize(path)
            .map_err(|error| Failure::new(format!("cannot copy {}: {error}: give a directory", shown(path))))?;
        if !path.is_dir() {
            fail!("cannot copy {}: give a directory", shown(&path));
        }
        let tracked = if path.join(".git").exists() {
            program::require("git", "git", "tells what belongs to a work tree")?;
            let mut safe = OsStr::new("safe.directory=").to_owned();
            safe.push(&path);
            let mut list = Command::new("git");
            list.arg("-c").arg(safe).arg("-C").arg(&path).args(["ls-files", "-z"]);
            Some(program::run(&mut list, None, interrupt)?.output)
        } else {
            None
        };
        Ok(Self { path, tracked })
    }

    /// Bytes that a copy will take.
    pub(super) fn bytes(&self) -> io::Result<u64> {
        let Some(tracked) = &self.tracked else {
            return Ok(extent(&self.path)?.bytes);
        };
        let names = tracked.split(|&byte| byte == 0).filter(|name| !name.is_empty());
        let sizes = names.filter_map(|name| fs::symlink_metadata(self.path.join(OsStr::from_bytes(name))).ok());
        Ok(extent(&self.path.join(".git"))?.bytes + sizes.map(|found| found.len()).sum::<u64>())
    }

    /// Copies it into the directory `to`, which is made. Gives the time.
    pub(super) fn copy(&self, to: &Path, interrupt: &Interrupt) -> Result<Duration> {
        fs::create_dir_all(to).map_err(|error| Failure::new(format!("cannot make {}: {error}", shown(to))))?;
        self.rsync(&["-aHAX"], to, interrupt).map(|(elapsed, _)| elapsed)
    }

    /// Fails when anything of the copy in `to` differs: by content, links, modes, owners, times, ACLs and attributes.
    pub(super) fn verify(&self, to: &Path, interrupt: &Interrupt) -> Result<()> {
        let delete: &[&str] = if self.tracked.is_some() { &[] } else { &["--delete"] };
        let options = [&["-nacHAX", "--itemize-changes"], delete].concat();
        let (_, found) = self.rsync(&options, to, interrupt)?;
        if found.trim_ascii().is_empty() {
            return Ok(());
        }
        let found = String::from_utf8_lossy(&found);
        let lines: Vec<&str> = found.lines().take(DIFFERENCES_TOLD).collect();
        fail!(
            "the copy of {} in {} differs from the original (or that changed meanwhile); the first lines of rsync: {}",
            shown(&self.path),
            shown(to),
            lines.join("; ")
        )
    }

    /// Gives the time it took and what rsync printed.
    fn rsync(&self, options: &[&str], to: &Path, interrupt: &Interrupt) -> Result<(Duration, Vec<u8>)> {
        let run = |from: &Path, slash: &str, more: &[&str], input: Option<File>| -> Result<Ended> {
            let mut source = from.as_os_str().to_owned();
            source.push(slash);
            let mut target = to.as_os_str().to_owned();
            target.push("/");
            let mut command = Command::new("rsync");
            command.args(options).args(more).arg("--").arg(source).arg(target);
            program::run(&mut command, input, interrupt)
        };
        let Some(tracked) = &self.tracked else {
            let ended = run(&self.path, "/", &[], None)?;
            return Ok((ended.elapsed, ended.output));
        };
        let list = program::memory_file_with(tracked)
            .map_err(|error| Failure::new(format!("cannot hold the list of tracked files: {error}")))?;
        let history = run(&self.path.join(".git"), "", &[], None)?;
        let files = run(
            &self.path,
            "/",
            &["--ignore-missing-args", "--from0", "--files-from=-"],
            Some(list),
        )?;
        Ok((history.elapsed + files.elapsed, [history.output, files.output].concat()))
    }
}

/// Counts the entries and bytes of `path`, itself included.
pub(super) fn extent(path: &Path) -> io::Result<Extent> {
    let mut sum = Extent::default();
    each(path, &mut |_, found| {
        sum.entries += 1;
        if found.is_file() {
            sum.bytes += found.size();
        }
        Ok(())
    })?;
    Ok(sum)
}

/// Calls `look` with everything at and below `path`. Follows no links.
pub(super) fn each(path: &Path, look: &mut dyn FnMut(&Path, &fs::Metadata) -> io::Result<()>) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    look(path, &found)?;
    if found.is_dir() {
        for entry in fs::read_dir(path)? {
            each(&entry?.path(), look)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_copy_is_equal_until_a_byte_changes() {
        let interrupt = Interrupt::watch().unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let (original, copy) = (scratch.path().join("a b"), scratch.path().join("copy"));
        fs::create_dir_all(original.join("below")).unwrap();
        fs::write(original.join("below/file"), "12345").unwrap();
        symlink("file", original.join("below/link")).unwrap();
        let tree = Original::new(&original, &interrupt).unwrap();
        assert_eq!(tree.bytes().unwrap(), 5);
        assert_eq!(extent(&original).unwrap(), Extent { entries: 4, bytes: 5 });
        tree.copy(&copy, &interrupt).unwrap();
        tree.verify(&copy, &interrupt).unwrap();

        let time = fs::metadata(copy.join("below/file")).unwrap().modified().unwrap();
        fs::write(copy.join("below/file"), "12346").unwrap();
        File::options()
            .write(true)
            .open(copy.join("below/file"))
            .unwrap()
            .set_modified(time)
            .unwrap();
        let differs = tree.verify(&copy, &interrupt).unwrap_err().to_string();
        assert!(
            differs.contains("below/file"),
            "same size, same time, other content: {differs}"
        );
    }

    #[test]
    fn only_what_a_work_tree_tracks_is_copied() {
        let interrupt = Interrupt::watch().unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let (original, copy) = (scratch.path().join("work"), scratch.path().join("copy"));
        fs::create_dir_all(&original).unwrap();
        for (name, content) in [("tracked", "1"), ("other", "22")] {
            fs::write(original.join(name), content).unwrap();
        }
        for arguments in [vec!["init", "-q"], vec!["add", "tracked"]] {
            assert!(
                Command::new("git")
                    .arg("-C")
                    .arg(&original)
                    .args(arguments)
                    .status()
                    .unwrap()
                    .success()
            );
        }
        let tree = Original::new(&original, &interrupt).unwrap();
        tree.copy(&copy, &interrupt).unwrap();
        tree.verify(&copy, &interrupt).unwrap();
        assert!(copy.join("tracked").exists() && copy.join(".git/index").exists());
        assert!(!copy.join("other").exists());
        let bytes = extent(&original.join(".git")).unwrap().bytes + 1;
        assert_eq!(tree.bytes().unwrap(), bytes);
    }
}
