//! Machines made by hand, for tests: a machine is a directory, and time passes when its files are changed.

use super::sysfs::Tree;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A machine's directory, which vanishes with it.
pub(crate) struct Made(tempfile::TempDir);

impl Made {
    /// A machine without a file.
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A machine of some files, each with its text.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let machine = Self::new();
        for (path, text) in files {
            machine.file(path, text);
        }
        machine
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn tree(&self) -> Tree {
        Tree::new(self.root())
    }

    /// Makes the directories above `path`, and returns where `path` is.
    pub(crate) fn place(&self, path: &str) -> PathBuf {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    pub(crate) fn file(&self, path: &str, text: &str) -> &Self {
        self.bytes(path, text.as_bytes())
    }

    pub(crate) fn bytes(&self, path: &str, bytes: &[u8]) -> &Self {
        fs::write(self.place(path), bytes).unwrap();
        self
    }

    pub(crate) fn link(&self, path: &str, target: &str) -> &Self {
        symlink(target, self.place(path)).unwrap();
        self
    }
}
