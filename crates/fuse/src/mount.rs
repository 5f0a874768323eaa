//! Mounting and unmounting through mount(2) and umount2(2): no fusermount, so root only.
//!
//! The mount has `allow_other` (every user, as on any filesystem) and `default_permissions` (the kernel checks modes and
//! ACLs). There is no `max_read`: the size of requests is negotiated. Unless asked otherwise, set-uid programs and device nodes
//! work as on a tmpfs.

use crate::device::Device;
use crate::error::Error;
use crate::options::Options;
use homenode_shared::{MountLine, unescaped};
use std::ffi::{CString, OsStr};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The type in /proc/mounts; the kernel takes what follows the point as the subtype.
const FILESYSTEM_TYPE: &str = "fuse.homenode";

/// Behaviour of an unmount when the filesystem is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Busy {
    /// Fails with EBUSY.
    Refuse,
    /// Takes the name away; open files live on until they are closed.
    Detach,
    /// Takes the name away and fails every request from then on with ECONNABORTED.
    Abort,
}

/// Mounts the connection of `device` on `dir`, an absolute path.
pub(crate) fn mount(device: &Device, options: &Options, dir: &Path) -> Result<(), Error> {
    let failed = |source: io::Error| Error::Mount {
        dir: dir.to_owned(),
        source,
    };
    let data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},allow_other,default_permissions",
        device.raw(),
        libc::S_IFDIR,
        effective_user(),
        effective_group(),
    );
    let source = c_string(OsStr::new(&options.source)).map_err(failed)?;
    let flags = [
        (libc::MS_RDONLY, options.read_only),
        (libc::MS_NOSUID, options.nosuid),
        (libc::MS_NODEV, options.nodev),
        (libc::MS_NOEXEC, options.noexec),
    ];
    let flags = flags
        .into_iter()
        .filter(|(_, given)| *given)
        .fold(0, |all, (flag, _)| all | flag);
    let target = c_string(dir.as_os_str()).map_err(failed)?;
    let kind = c_string(OsStr::new(FILESYSTEM_TYPE)).map_err(failed)?;
    let data = c_string(OsStr::new(&data)).map_err(failed)?;
    // SAFETY: four strings that end in NUL and live until the call returns.
    let result = unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            flags,
            data.as_ptr().cast(),
        )
    };
    if result < 0 {
        Err(failed(io::Error::last_os_error()))
    } else {
        Ok(())
    }
}

/// Unmounts what is mounted on `dir`, living or dead.
///
/// # Errors
/// [`Error::Unmount`]: EBUSY when files are open and `busy` is to refuse, EINVAL when nothing is mounted on `dir`.
pub(crate) fn unmount(dir: &Path, busy: Busy) -> Result<(), Error> {
    let failed = |source: io::Error| Error::Unmount {
        dir: dir.to_owned(),
        source,
    };
    let target = c_string(dir.as_os_str()).map_err(failed)?;
    let flags = libc::UMOUNT_NOFOLLOW
        | match busy {
            Busy::Refuse => 0,
            Busy::Detach => libc::MNT_DETACH,
            // FORCE lets FUSE abort the connection before the kernel looks who is using it.
            Busy::Abort => libc::MNT_FORCE | libc::MNT_DETACH,
        };
    // SAFETY: a string that ends in NUL and lives until the call returns.
    let result = unsafe { libc::umount2(target.as_ptr(), flags) };
    if result < 0 {
        Err(failed(io::Error::last_os_error()))
    } else {
        Ok(())
    }
}

/// The device number of whatever is mounted on `dir`. Asks the kernel only: the answer needs no living server.
pub(crate) fn device_of(dir: &Path) -> io::Result<u64> {
    let target = c_string(dir.as_os_str())?;
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_STATX_DONT_SYNC | libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: a string that ends in NUL, and room for the structure the call fills.
    let result = unsafe { libc::statx(libc::AT_FDCWD, target.as_ptr(), flags, 0, found.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zeros are a valid structure, and the call may have filled it.
    let found = unsafe { found.assume_init() };
    Ok(libc::makedev(found.stx_dev_major, found.stx_dev_minor))
}

/// Whether a mount of ours with this device number is on `dir`, at whatever depth.
pub(crate) fn is_listed(dir: &Path, device: u64) -> io::Result<bool> {
    // Bytes, not text: mount points need not be UTF-8.
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(lists(&table, dir, device))
}

fn lists(table: &[u8], dir: &Path, device: u64) -> bool {
    MountLine::all(table).any(|mount| {
        mount.device == (libc::major(device), libc::minor(device))
            && mount.filesystem_type == FILESYSTEM_TYPE.as_bytes()
            && unescaped(mount.mount_point).eq(dir.as_os_str().as_bytes().iter().copied())
    })
}

/// Whether nobody serves what is mounted on `dir`.
pub(crate) fn is_dead(dir: &Path) -> bool {
    let Ok(target) = c_string(dir.as_os_str()) else {
        return false;
    };
    let mut found = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: a string that ends in NUL, and room for the structure the call fills.
    let result = unsafe { libc::statfs(target.as_ptr(), found.as_mut_ptr()) };
    let error = io::Error::last_os_error();
    // The last is what a ring says whose thread has just died.
    let dead = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED];
    result < 0 && error.raw_os_error().is_some_and(|errno| dead.contains(&errno))
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn effective_user() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

fn effective_group() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::getegid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_found_under_others_and_with_a_nasty_name() {
        let table = b"36 35 0:57 / /a\\040b\\134 rw,noatime master:1 shared:7 - fuse.homenode homenode rw\n\
            40 36 0:58 / /a\\040b\\134 rw - tmpfs none rw\n\
            41 35 0:59 / /c rw - tmpfs none rw\n";
        let listed = |dir: &str, minor| lists(table, Path::new(dir), libc::makedev(0, minor));
        assert!(listed("/a b\\", 57));
        assert!(!listed("/a b\\", 58), "not ours");
        assert!(!listed("/a b\\", 5), "another number");
        assert!(!listed("/a", 57), "another directory");
        assert!(!listed("/c", 59), "not ours");
    }

    #[test]
    fn living_filesystems_are_not_dead() {
        assert!(!is_dead(Path::new("/")));
        assert!(!is_dead(Path::new("/nowhere/at all")));
    }
}
