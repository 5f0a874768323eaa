//! Files of memory that no path leads to: on a private tmpfs, or a memfd where mounting is not permitted.

use homenode_engine::NodeId;
use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// What a DRAM member's bytes lie on.
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

/// The calls of the mount API that build a file system: constants of linux/mount.h that libc lacks.
const FSOPEN_CLOEXEC: u32 = 1;
const FSMOUNT_CLOEXEC: u32 = 1;
const FSCONFIG_SET_FLAG: u32 = 0;
const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;

/// An open file of `bytes` on a new tmpfs that is mounted nowhere, its pages bound to `node` (unless none: a kernel
/// without NUMA). The file system lives as long as the file, or a mapping of it.
pub(super) fn tmpfs(node: Option<NodeId>, bytes: u64) -> io::Result<Tmpfs> {
    let context = context()?;
    set(&context, c"size", &bytes.to_string())?;
    set(&context, c"mode", "0700")?;
    if let Some(node) = node {
        set(&context, c"mpol", &format!("bind:{}", node.0))?;
    }
    let policy = set(&context, c"huge", "always").or_else(|_| set(&context, c"huge", "within_size"));
    let huge = policy.is_ok() && !huge_denied();
    let noswap = configure(&context, FSCONFIG_SET_FLAG, Some(c"noswap"), None).is_ok();
    configure(&context, FSCONFIG_CMD_CREATE, None, None)?;
    let mount = mount(&context)?;
    let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: the path ends in a zero byte.
    let file = owned(unsafe { libc::openat(mount.as_raw_fd(), c".".as_ptr(), flags, 0o600) }.into())?;
    resize(&file, bytes)?;
    Ok(Tmpfs { file, huge, noswap })
}

/// An open memfd of `bytes`.
pub(super) fn memfd(bytes: u64) -> io::Result<OwnedFd> {
    // SAFETY: the name ends in a zero byte.
    let file = owned(unsafe { libc::memfd_create(c"homenode".as_ptr(), libc::MFD_CLOEXEC) }.into())?;
    resize(&file, bytes)?;
    Ok(file)
}

/// Whether the administrator forbade huge pages in shared memory, whatever a mount asks for.
fn huge_denied() -> bool {
    let switch = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    switch.is_ok_and(|text| text.contains("[deny]"))
}

fn context() -> io::Result<OwnedFd> {
    // SAFETY: the name ends in a zero byte.
    owned(unsafe { libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), FSOPEN_CLOEXEC) })
}

fn mount(context: &OwnedFd) -> io::Result<OwnedFd> {
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    // SAFETY: takes numbers only.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, attributes) })
}

fn set(context: &OwnedFd, key: &CStr, value: &str) -> io::Result<()> {
    let value = CString::new(value)?;
    configure(context, FSCONFIG_SET_STRING, Some(key), Some(&value))
}

fn configure(context: &OwnedFd, command: u32, key: Option<&CStr>, value: Option<&CStr>) -> io::Result<()> {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    let (fd, key, value) = (context.as_raw_fd(), pointer(key), pointer(value));
    // SAFETY: key and value are null or end in a zero byte.
    let status = unsafe { libc::syscall(libc::SYS_fsconfig, fd, command, key, value, 0) };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn resize(file: &OwnedFd, bytes: u64) -> io::Result<()> {
    let file = std::fs::File::from(file.try_clone()?);
    file.set_len(bytes)
}

/// The descriptor a call returned, or its errno.
fn owned(returned: i64) -> io::Result<OwnedFd> {
    match i32::try_from(returned) {
        // SAFETY: the call that returned it made it for us; nobody else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
