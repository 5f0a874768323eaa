//! Disks for tests, played by files on a tmpfs of their own (loop(4)). Only root may make them.

use crate::skip;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A disk, and the directory that its file lies in.
pub(super) struct Played {
    pub(super) device: PathBuf,
    directory: tempfile::TempDir,
}

pub(super) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("it is installed");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {told}");
    String::from_utf8(output.stdout)
        .expect("the program prints UTF-8")
        .trim()
        .to_owned()
}

impl Played {
    /// A disk of `bytes` bytes, made by losetup(8) with these options, on a tmpfs of `room`, as mount(8) takes it.
    pub(super) fn new(bytes: u64, room: &str, options: &[&str]) -> Option<Self> {
        let made = Self::made(bytes, room, options)?;
        Some(made.unwrap_or_else(|told| panic!("losetup {options:?}: {told}")))
    }

    /// [`Played::new`] of one that not every kernel can play.
    pub(super) fn try_new(bytes: u64, room: &str, options: &[&str]) -> Option<Self> {
        let made = Self::made(bytes, room, options)?;
        made.inspect_err(|told| skip(format_args!("this kernel plays no such disk: {told}")))
            .ok()
    }

    fn made(bytes: u64, room: &str, options: &[&str]) -> Option<Result<Self, String>> {
        if !rustix::process::geteuid().is_root() {
            skip("only root may make disks");
            return None;
        }
        let directory = tempfile::tempdir().expect("the directory for temporary files is writable");
        let place = directory.path().to_str().expect("the path is UTF-8");
        run("mount", &["-t", "tmpfs", "-o", &format!("size={room}"), "none", place]);
        let file = directory.path().join("disk");
        File::create(&file)
            .and_then(|file| file.set_len(bytes))
            .expect("a sparse file takes no room");
        let mut arguments = vec!["--find", "--show", "--direct-io=on"];
        arguments.extend(options);
        arguments.push(file.to_str().expect("the path is UTF-8"));
        let output = Command::new("losetup")
            .args(&arguments)
            .output()
            .expect("the machine has the program: see scripts/setup.sh");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if !output.status.success() {
            run("umount", &[place]);
            return Some(Err(text(&output.stderr)));
        }
        let device = text(&output.stdout).into();
        Some(Ok(Self { device, directory }))
    }

    /// The file that plays it.
    pub(super) fn file(&self) -> PathBuf {
        self.directory.path().join("disk")
    }

    /// Takes all room that is left for it: what was never written to cannot be.
    pub(super) fn take_room(&self) {
        let mut rest = File::create(self.directory.path().join("rest")).expect("an empty file takes no room");
        for step in [1 << 16, 1 << 12] {
            while std::io::Write::write_all(&mut rest, &vec![1; step]).is_ok() {}
        }
    }

    /// A partition of it.
    pub(super) fn partition(&self, number: u32, first: u64, bytes: u64) -> PathBuf {
        let disk = self.device.to_str().expect("the kernel's device names are UTF-8");
        let sectors = |bytes: u64| (bytes / 512).to_string();
        run(
            "addpart",
            &[disk, &number.to_string(), &sectors(first), &sectors(bytes)],
        );
        format!("{disk}p{number}").into()
    }

    /// Makes a filesystem on a part of it, or all, and mounts it.
    pub(super) fn mount(&self, part: &Path) -> Mounted {
        run(
            "mkfs.ext4",
            &["-q", "-F", part.to_str().expect("the kernel's device names are UTF-8")],
        );
        let place = tempfile::tempdir().expect("the directory for temporary files is writable");
        run(
            "mount",
            &[
                part.to_str().expect("the kernel's device names are UTF-8"),
                place.path().to_str().expect("the path is UTF-8"),
            ],
        );
        Mounted(place)
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        let quietly = |program: &str, argument: &Path| {
            let _ = Command::new(program).arg(argument).stderr(Stdio::null()).status();
        };
        let _ = Command::new("losetup").arg("-d").arg(&self.device).status();
        quietly("umount", self.directory.path());
    }
}

/// A mounted filesystem.
pub(super) struct Mounted(pub(super) tempfile::TempDir);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

/// A file of holes that a filesystem on a disk has, or a tmpfs.
pub(super) fn file_under(directory: &Path, bytes: u64) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir_in(directory).expect("the caller's directory is writable");
    let path = directory.path().join("member");
    File::create(&path)
        .and_then(|file| file.set_len(bytes))
        .expect("a sparse file takes no room");
    fs::metadata(&path).expect("the file was made above");
    (directory, path)
}
