//! A tmpfs of the bench's own, attached nowhere.
//!
//! The mount is only a file descriptor: no path leads to it, no mount table shows it, and however the process ends, the
//! kernel takes it down with the descriptor.

use crate::error::Error;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};

/// Which tmpfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Pages of `mount -t tmpfs` without the option `huge`.
    Default,
    /// With `huge=always`.
    Huge,
    /// With `huge=within_size`.
    WithinSize,
}

impl Pages {
    /// Name in tables and JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Default => "tmpfs",
            Self::Huge => "tmpfs-huge",
            Self::WithinSize => "tmpfs-within-size",
        }
    }

    /// Value of the mount's option `huge`.
    fn huge_option(self) -> Option<&'static str> {
        match self {
            Self::Default => None,
            Self::Huge => Some("always"),
            Self::WithinSize => Some("within_size"),
        }
    }
}

/// Mounts a tmpfs of at most `bytes` bytes and gives its root directory.
pub(crate) fn mount(pages: Pages, bytes: u64) -> Result<OwnedFd, Error> {
    let what = || format!("mounting a private {} (this needs root)", pages.name());
    let system = |error: rustix::io::Errno| Error::system(what(), error);
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(system)?;
    fsconfig_set_string(&context, "size", bytes.to_string()).map_err(system)?;
    // A small machine's share of inodes is less than some benches need.
    fsconfig_set_string(&context, "nr_inodes", "0").map_err(system)?;
    if let Some(huge) = pages.huge_option() {
        fsconfig_set_string(&context, "huge", huge).map_err(system)?;
    }
    fsconfig_create(&context).map_err(system)?;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).map_err(system)?;
    // The mount's own descriptor only names it; one that can be listed has to be opened, and keeps the mount alive.
    openat(
        &mount,
        ".",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(system)
}
