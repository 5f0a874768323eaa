//! Files of memory that no path leads to: on a private tmpfs, or a memfd where mounting is not permitted.

use crate::tmpfs::{self, OWNER_ONLY, huge_denied};
use homenode_engine::NodeId;
use rustix::fs::{OFlags, openat};
use rustix::mount::MountAttrFlags;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

/// Kind of memory on which a DRAM member's bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backing {
    /// A private tmpfs that gives pages of 2 MiB.
    HugeTmpfs {
        /// Whether the pages can leave memory.
        swap: Swap,
    },
    /// A private tmpfs where the kernel has no huge pages, or its administrator denied them to shared memory.
    Tmpfs {
        /// Whether the pages can leave memory.
        swap: Swap,
    },
    /// A memfd: its pages are of 4 KiB unless the machine's `shmem_enabled` says otherwise.
    Memfd {
        /// Whether the pages can leave memory.
        swap: Swap,
        /// The errno that refused the tmpfs.
        refusal: i32,
    },
}

/// Whether a member's pages can be swapped out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Swap {
    /// Never: the file system was made without swap.
    NoSwap,
    /// Never: the pages are locked.
    Locked,
    /// They can: locking them was refused.
    Swappable,
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HugeTmpfs { swap } => write!(f, "tmpfs of 2 MiB pages, {swap}"),
            Self::Tmpfs { swap } => write!(
                f,
                "tmpfs of 4 KiB pages (huge ones are off: see transparent_hugepage/shmem_enabled), {swap}"
            ),
            Self::Memfd { swap, refusal } => {
                let refusal = io::Error::from_raw_os_error(*refusal);
                write!(f, "memfd (a private tmpfs was refused: {refusal}), {swap}")
            }
        }
    }
}

impl fmt::Display for Swap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSwap => "never swapped",
            Self::Locked => "locked in memory",
            Self::Swappable => "swappable (locking was refused: raise RLIMIT_MEMLOCK)",
        })
    }
}

/// A file on a tmpfs of its own.
#[derive(Debug)]
pub(super) struct Tmpfs {
    pub(super) file: OwnedFd,
    /// The kernel took a huge page policy and will act on it.
    pub(super) huge: bool,
    /// The kernel took `noswap` (Linux 6.4).
    pub(super) noswap: bool,
}

/// An open file of `bytes` on a new tmpfs that is mounted nowhere, its pages bound to `node` (unless none: a kernel
/// without NUMA). The file system lives as long as the file, or a mapping of it.
pub(super) fn tmpfs(node: Option<NodeId>, bytes: u64) -> io::Result<Tmpfs> {
    let mut context = tmpfs::Context::new(bytes)?;
    if let Some(node) = node {
        context.set("mpol", &format!("bind:{}", node.0))?;
    }
    let policy = context
        .set("huge", "always")
        .or_else(|_| context.set("huge", "within_size"));
    let huge = policy.is_ok() && !huge_denied();
    let noswap = context.set_noswap();
    let mount = context.mount(MountAttrFlags::MOUNT_ATTR_NOEXEC)?;
    let file = openat(
        &mount,
        ".",
        OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
        OWNER_ONLY,
    )?;
    resize(&file, bytes)?;
    Ok(Tmpfs { file, huge, noswap })
}

/// An open memfd of `bytes`.
pub(super) fn memfd(bytes: u64) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("homenode", rustix::fs::MemfdFlags::CLOEXEC)?;
    resize(&file, bytes)?;
    Ok(file)
}

fn resize(file: &OwnedFd, bytes: u64) -> io::Result<()> {
    let file = std::fs::File::from(file.try_clone()?);
    file.set_len(bytes)
}
