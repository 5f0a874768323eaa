//! The machine that all tests of this binary share: what it offers, and settings that a test changes for a moment.

use crate::command::harness::*;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Says whether requests go through rings.
pub(crate) const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

static MACHINE: RwLock<()> = RwLock::new(());

/// Returns a guard: while a test holds it, no other test changes the machine.
pub(crate) fn as_it_is() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// The transports that can be had here. To be asked while the machine stays as it is.
pub(crate) fn transports() -> Vec<&'static str> {
    if fs::read_to_string(SWITCH).is_ok_and(|value| value.trim() == "Y") {
        return vec!["classic", "uring"];
    }
    skipped(&format!("rings need a kernel that has them, and Y in {SWITCH}"));
    vec!["classic"]
}

pub(crate) fn has_rings() -> bool {
    let _undisturbed = as_it_is();
    transports().contains(&"uring")
}

/// Runs a test by each transport that can be had here, in a new directory of a [`Scratch`], while the machine stays as it is.
pub(crate) fn on_each_transport(test: &str, act: impl Fn(&Scratch, PathBuf, &str)) {
    if !can_mount() {
        return;
    }
    let _undisturbed = as_it_is();
    for transport in transports() {
        let scratch = Scratch::new(test);
        act(&scratch, scratch.dir("pool"), transport);
    }
}

/// Runs a test where requests can go through rings, in a new directory of a [`Scratch`], while the machine stays as it is.
pub(crate) fn with_rings(test: &str, act: impl FnOnce(&Scratch, PathBuf)) {
    if !can_mount() {
        return;
    }
    let _undisturbed = as_it_is();
    if transports().contains(&"uring") {
        let scratch = Scratch::new(test);
        act(&scratch, scratch.dir("pool"));
    }
}

/// Mounts a small pool; `HOMENODE_TEST_DATA` says what holds the bytes.
pub(crate) fn up_by(transport: &str, directory: &Path) {
    let data = std::env::var("HOMENODE_TEST_DATA");
    up_with(transport, data.as_deref().unwrap_or("auto"), directory);
}

/// Mounts a small pool whose bytes `data` holds.
pub(crate) fn up_with(transport: &str, data: &str, directory: &Path) {
    succeed(homenode(["up", SIZE, "--transport", transport, "--data", data]).arg(directory));
    assert_eq!(status(directory)["fuse"]["transport"], transport, "the one asked for");
}

/// A shell that runs a script once this is dropped, or the test binary ends in whatever way.
pub(crate) struct Janitor(Child);

impl Janitor {
    /// `script` has `arguments` as $1 and on.
    pub(crate) fn new<A: AsRef<OsStr>>(script: &str, arguments: impl IntoIterator<Item = A>) -> Self {
        let child = Command::new("sh")
            .args(["-c", &format!("cat >/dev/null\n{script}"), "janitor"])
            .args(arguments)
            .stdin(Stdio::piped())
            // Out of reach of a ctrl-C that ends the test binary.
            .process_group(0)
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let ended = self.0.wait();
        if !std::thread::panicking() {
            assert!(ended.unwrap().success(), "the machine is as it was");
        }
    }
}

/// A setting of the kernel that differs until this is dropped. No other test runs meanwhile.
pub(crate) struct Changed {
    // Restored first, then the others may run.
    _restore: Janitor,
    _alone: RwLockWriteGuard<'static, ()>,
}

impl Changed {
    /// `None`, and a word about it, where the setting is missing or cannot be changed.
    pub(crate) fn new(setting: &Path, value: &str) -> Option<Self> {
        let alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
        let skip = |error: io::Error| skipped(&format!("needs {} to be writable: {error}", setting.display()));
        let before = fs::read_to_string(setting).map_err(skip).ok()?;
        let restore = Janitor::new(r#"printf %s "$1" >"$2""#, [before.trim().as_ref(), setting.as_os_str()]);
        fs::write(setting, value).map_err(skip).ok()?;
        Some(Self {
            _restore: restore,
            _alone: alone,
        })
    }
}
