//! Real trees: copied by rsync, compared by rsync.

use super::program::{self, Ended};
use crate::failure::{Failure, Result, fail};
use crate::mountinfo::shown;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Most lines of differences that are told.
const DIFFERENCES_TOLD: usize = 20;

/// A directory to copy. Of a git work tree what git ignores is left out.
#[derive(Clone, Debug)]
pub(super) struct Original {
    pub(super) path: PathBuf,
    /// Files, directories, links and what else has a name.
    pub(super) entries: usize,
    /// Bytes that a copy will take.
    pub(super) bytes: u64,
}

impl Original {
    /// Looks at `path`, which must be a directory.
    pub(super) fn new(path: &Path) -> Result<Self> {
        let path = fs::canonicalize(path)
            .map_err(|error| Failure::new(format!("cannot copy {}: {error}: give a directory", shown(path))))?;
        if !path.is_dir() {
            fail!("cannot copy {}: give a directory", shown(&path));
        }
        // Nothing is copied: there need be no such directory.
        let looked = rsync(
            &path,
            &["-naHAX", "--stats", "--no-human-readable"],
            Path::new("/nowhere"),
        )?;
        let text = String::from_utf8_lossy(&looked.output);
        let number = |name: &str| {
            let behind = text.lines().find_map(|line| line.strip_prefix(name))?;
            behind.split_whitespace().next()?.parse::<u64>().ok()
        };
        let found = number("Number of files:").zip(number("Total file size:"));
        let Some((entries, bytes)) = found else {
            fail!("rsync's output is not understood: {}", text.trim());
        };
        Ok(Self {
            path,
            entries: usize::try_from(entries).unwrap_or(usize::MAX),
            bytes,
        })
    }

    /// Copies it into the directory `to`, which is made. Gives the time.
    pub(super) fn copy(&self, to: &Path) -> Result<Duration> {
        rsync(&self.path, &["-aHAX"], to).map(|ended| ended.elapsed)
    }

    /// Fails when anything of the copy in `to` differs: by content, links, modes, owners, times, ACLs and attributes.
    pub(super) fn verify(&self, to: &Path) -> Result<()> {
        let found = rsync(&self.path, &["-nacHAX", "--itemize-changes", "--delete"], to)?.output;
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
}

fn rsync(from: &Path, options: &[&str], to: &Path) -> Result<Ended> {
    let mut command = Command::new("rsync");
    command.args(options);
    if from.join(".git").exists() {
        command.arg("--filter=:- .gitignore");
    }
    // With the slash it is what is in the directory, which goes right below the other one.
    command.arg("--").arg(from.join("")).arg(to.join(""));
    program::run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_copy_is_equal_until_a_byte_changes() {
        let scratch = tempfile::tempdir().unwrap();
        let (original, copy) = (scratch.path().join("a b"), scratch.path().join("copy"));
        fs::create_dir_all(original.join("below")).unwrap();
        fs::write(original.join("below/file"), "12345").unwrap();
        symlink("file", original.join("below/link")).unwrap();
        let tree = Original::new(&original).unwrap();
        assert_eq!(
            (tree.entries, tree.bytes),
            (4, 5 + 4),
            "a link is as long as what it names"
        );
        assert!(!Path::new("/nowhere").exists());
        tree.copy(&copy).unwrap();
        tree.verify(&copy).unwrap();

        let time = fs::metadata(copy.join("below/file")).unwrap().modified().unwrap();
        fs::write(copy.join("below/file"), "12346").unwrap();
        File::options()
            .write(true)
            .open(copy.join("below/file"))
            .unwrap()
            .set_modified(time)
            .unwrap();
        let differs = tree.verify(&copy).unwrap_err().to_string();
        assert!(
            differs.contains("below/file"),
            "same size, same time, other content: {differs}"
        );
    }

    #[test]
    fn files_ignored_by_git_are_not_copied() {
        let scratch = tempfile::tempdir().unwrap();
        let (original, copy) = (scratch.path().join("work"), scratch.path().join("copy"));
        fs::create_dir_all(original.join(".git")).unwrap();
        fs::create_dir_all(original.join("target/below")).unwrap();
        for (name, content) in [(".git/index", "1"), (".gitignore", "/target\n"), ("tracked", "22")] {
            fs::write(original.join(name), content).unwrap();
        }
        let tree = Original::new(&original).unwrap();
        assert_eq!((tree.entries, tree.bytes), (5, 1 + 8 + 2));
        tree.copy(&copy).unwrap();
        tree.verify(&copy).unwrap();
        assert!(copy.join("tracked").exists() && copy.join(".git/index").exists());
        assert!(!copy.join("target").exists());
    }
}
