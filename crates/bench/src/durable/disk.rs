//! A filesystem of the bench's own on a loop device, whose file lies on the disk that is measured. It goes when this is dropped.

use crate::error::{During, Error};
use crate::place::Open;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A mounted filesystem.
#[derive(Debug)]
pub(crate) struct Disk {
    // Dropped in this order, behind what drop() does.
    root: TempDir,
    _file: TempDir,
    is_mounted: bool,
}

impl Disk {
    /// Makes a filesystem of `kind` with `bytes` bytes, in a file in `directory`.
    pub(crate) fn new(directory: &Path, kind: &'static str, bytes: usize) -> Result<Self, Error> {
        let system = |error| Error::system(format!("making a file in {}", directory.display()), error);
        let file = tempfile::Builder::new()
            .prefix("homenode-bench-")
            .tempdir_in(directory)
            .map_err(system)?;
        let path = file.path().join(kind);
        write_zeros(&path, bytes)?;
        call(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&path))?;
        let root = tempfile::tempdir().map_err(system)?;
        // Detached as soon as it is mounted, so that it goes with the mount.
        let device = Loop::new(&path)?;
        call(
            Command::new("mount")
                .args(["-t", kind])
                .arg(device.path())
                .arg(root.path()),
        )?;
        Ok(Self {
            root,
            _file: file,
            is_mounted: true,
        })
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted && call(Command::new("umount").arg(self.root.path())).is_err() {
            // Somebody looks into it: it goes when he is gone.
            let _ = call(Command::new("umount").arg("--lazy").arg(self.root.path()));
        }
    }
}

/// A loop device on a file, past the page cache of that: a device has none. It goes when this is dropped, or when nobody uses it any more.
#[derive(Debug)]
pub(crate) struct Loop {
    path: PathBuf,
}

impl Loop {
    pub(crate) fn new(file: &Path) -> Result<Self, Error> {
        let said = call(
            Command::new("losetup")
                .args(["--find", "--show", "--direct-io=on"])
                .arg(file),
        )?;
        let path = PathBuf::from(said.trim_end());
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = call(Command::new("losetup").arg("--detach").arg(&self.path));
    }
}

/// Writes all of a file, so that each of its blocks has a place on the disk.
pub(crate) fn write_zeros(path: &Path, bytes: usize) -> Result<(), Error> {
    let file = File::create(path).during(format_args!("making {}", path.display()))?;
    let file = Open::Directory(file);
    file.fill(0, bytes)?;
    file.sync()
}

/// Runs a command that must succeed; gives what it printed.
pub(crate) fn call(command: &mut Command) -> Result<String, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().during(format_args!("running {name}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::system(format!("running {name}"), std::io::Error::other(said)))
}

/// Makes a file of this size for a member.
pub(crate) fn member(path: &Path, bytes: u64) -> Result<(), Error> {
    let made = File::create(path).and_then(|file| file.set_len(bytes));
    made.during(format_args!("making {}", path.display()))
}

/// Removes a file that may be gone already.
pub(crate) fn remove(path: &Path) {
    let _ = fs::remove_file(path);
}
