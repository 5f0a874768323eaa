//! The mounted filesystem that the metadata bench measures: one that is there, or one of its own.

use crate::error::Error;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory of the bench's own on a mounted homenode filesystem; taken away again when dropped, with the mount if that
/// is ours too.
#[derive(Debug)]
pub(super) struct Mount {
    directory: PathBuf,
    #[expect(dead_code, reason = "held to be dropped, after the directory is gone")]
    own: Option<Own>,
}

/// A mount that the bench brought up.
#[derive(Debug)]
struct Own {
    command: PathBuf,
    mount_point: PathBuf,
}

impl Mount {
    /// On a filesystem that somebody else mounted.
    pub(super) fn given(mount_point: &Path) -> Self {
        Self {
            directory: mount_point.join(format!("homenode-bench-{}", std::process::id())),
            own: None,
        }
    }

    /// Makes the directory and opens it.
    pub(super) fn open(&self) -> Result<OwnedFd, Error> {
        let what = || format!("making the directory {}", self.directory.display());
        fs::create_dir(&self.directory).map_err(|error| Error::system(what(), error))?;
        open(
            &self.directory,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|error| Error::system(what(), error))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let warn = |error: std::io::Error| eprintln!("homenode-bench: removing {}: {error}", self.directory.display());
        if self.directory.exists() {
            fs::remove_dir_all(&self.directory).unwrap_or_else(warn);
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Err(reason) = homenode(&self.command, "down", &self.mount_point, &[]) {
            eprintln!("homenode-bench: {reason}");
        }
        // Fails, as it should, if something is still mounted there.
        if let Err(error) = fs::remove_dir(&self.mount_point) {
            eprintln!("homenode-bench: removing {}: {error}", self.mount_point.display());
        }
    }
}

/// Brings a mount up with the `homenode` command that was built beside this one. Errors are reasons to go without.
pub(super) fn bring_up() -> Result<Mount, String> {
    let here = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let command = here.with_file_name("homenode");
    if !command.exists() {
        return Err(format!(
            "{} is not there: build homenode-cli, or use --mount DIR",
            command.display()
        ));
    }
    let mount_point = std::env::temp_dir().join(format!("homenode-bench-{}", std::process::id()));
    fs::create_dir(&mount_point).map_err(|error| format!("cannot make {}: {error}", mount_point.display()))?;
    if let Err(reason) = homenode(&command, "up", &mount_point, &["--size-per-node", "512M"]) {
        // Nothing is mounted there, so it is empty.
        let _ = fs::remove_dir(&mount_point);
        return Err(reason);
    }
    let directory = mount_point.join("files");
    Ok(Mount {
        directory,
        own: Some(Own { command, mount_point }),
    })
}

/// Runs a verb of the `homenode` command; on failure gives what it printed.
fn homenode(command: &Path, verb: &str, mount_point: &Path, options: &[&str]) -> Result<(), String> {
    let run = Command::new(command).arg(verb).arg(mount_point).args(options).output();
    match run {
        Ok(Output { status, .. }) if status.success() => Ok(()),
        Ok(output) => Err(format!(
            "homenode {verb}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Err(format!("cannot run {}: {error}", command.display())),
    }
}
