//! Private filesystems of memory, which are mounted nowhere and which no path leads to.

pub mod store;

use rustix::fs::Mode;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use std::io;
use std::os::fd::OwnedFd;

/// Mode of files on a private filesystem.
pub(crate) const OWNER_ONLY: Mode = Mode::from_raw_mode(0o600);

/// A tmpfs that is being made.
#[derive(Debug)]
pub(crate) struct Context(OwnedFd);

impl Context {
    /// Begins to make a tmpfs of `bytes` bytes.
    pub(crate) fn new(bytes: u64) -> io::Result<Self> {
        let mut context = Self(fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?);
        context.set("size", &bytes.to_string())?;
        context.set("mode", "0700")?;
        Ok(context)
    }

    pub(crate) fn set(&mut self, key: &str, value: &str) -> io::Result<()> {
        Ok(fsconfig_set_string(&self.0, key, value)?)
    }

    /// Keeps its pages out of swap; false where the kernel cannot (before Linux 6.4).
    pub(crate) fn set_noswap(&mut self) -> bool {
        fsconfig_set_flag(&self.0, "noswap").is_ok()
    }

    /// Makes it, without set-uid programs, devices and what `attributes` forbid; the filesystem lives as long as the descriptor,
    /// files that are open on it, and their mappings.
    pub(crate) fn mount(self, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
        fsconfig_create(&self.0)?;
        let forbidden = attributes | MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        Ok(fsmount(&self.0, FsMountFlags::FSMOUNT_CLOEXEC, forbidden)?)
    }
}

/// Whether the administrator forbade huge pages in shared memory, whatever a mount asks for.
pub(crate) fn huge_denied() -> bool {
    let switch = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    switch.is_ok_and(|text| text.contains("[deny]"))
}
