//! Mounts as /proc/self/mountinfo tells them, and the mount a path lies on.
//!
//! A path is opened with O_PATH, which asks no file server: so it also works on a mount whose server is dead.

use crate::failure::plain;
use homenode_shared::{MountLine, unescaped};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::geteuid;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::str::Utf8Chunk;

pub(crate) const FILESYSTEM_TYPE: &str = "fuse.homenode";

/// Mounts of a path that may be taken away one after the other while it is looked up.
const LOOKS_MAX: usize = 16;

/// Mount, from its line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    pub(crate) id: u64,
    /// The mount that it is on.
    parent: u64,
    /// Device number of everything on it: `st_dev`.
    pub(crate) device: Device,
    pub(crate) mount_point: PathBuf,
    pub(crate) filesystem_type: String,
    /// Source, as the filesystem says.
    pub(crate) source: OsString,
    /// Placement of a tmpfs by `mpol=`, as the kernel tells it: none where the CPU decides.
    pub(crate) policy: Option<String>,
    /// Whether root or this user has mounted it, if it is a FUSE filesystem: what anybody else has mounted may tell anything.
    is_trusted: bool,
}

/// A device number: one mounted filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Device {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl Device {
    /// Number of the block device at a path.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        Ok(fs::metadata(path)?.rdev().into())
    }
}

impl From<u64> for Device {
    fn from(number: u64) -> Self {
        Self {
            major: rustix::fs::major(number),
            minor: rustix::fs::minor(number),
        }
    }
}

impl From<Device> for u64 {
    fn from(device: Device) -> Self {
        rustix::fs::makedev(device.major, device.minor)
    }
}

/// An existing path and the mount it lies on.
#[derive(Debug)]
pub(crate) struct Located {
    /// Absolute, without symbolic links.
    pub(crate) path: PathBuf,
    pub(crate) mount: MountEntry,
}

impl MountEntry {
    pub(crate) fn is_homenode(&self) -> bool {
        self.filesystem_type == FILESYSTEM_TYPE && self.is_trusted
    }

    /// Whether a user who is not root has mounted it, as FUSE lets users do.
    pub(crate) fn is_of_user(&self) -> bool {
        self.filesystem_type.starts_with("fuse") && !self.is_trusted
    }

    /// Whether it is mounted on something of that one.
    pub(crate) fn is_on(&self, other: &Self) -> bool {
        self.parent == other.id
    }

    /// Command that takes it away.
    pub(crate) fn verb(&self) -> &'static str {
        if self.is_homenode() { "homenode down" } else { "umount" }
    }
}

impl Located {
    /// Whether the path is the root of its mount.
    pub(crate) fn is_mount_point(&self) -> bool {
        self.mount.mount_point == self.path
    }

    /// Unmounts this mount only: another user may have renamed a directory above it, so the mount's number is compared first.
    ///
    /// # Errors
    /// EINVAL, ENOTDIR or ENOENT when it is not there any more, and those of umount2(2).
    pub(crate) fn unmount(&self, flags: UnmountFlags) -> rustix::io::Result<()> {
        let (Some(above), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return Err(Errno::INVAL);
        };
        let open_at = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let above = rustix::fs::open(above, open_at | OFlags::DIRECTORY, Mode::empty())?;
        let found = rustix::fs::openat(&above, name, open_at, Mode::empty())?;
        if mount_of(&found).ok() != Some(self.mount.id) {
            return Err(Errno::INVAL);
        }
        // An open descriptor would keep the mount busy.
        drop(found);
        let mount_point = Path::new("/proc/self/fd")
            .join(above.as_raw_fd().to_string())
            .join(name);
        rustix::mount::unmount(&mount_point, flags | UnmountFlags::NOFOLLOW)
    }
}

/// Finds the mount that `path` lies on. Symbolic links are followed.
pub(crate) fn locate(path: &Path) -> io::Result<Located> {
    for _ in 0..LOOKS_MAX {
        if let Some(located) = look(path)? {
            return Ok(located);
        }
    }
    Err(io::Error::other("its mount is in no mount table of this process"))
}

/// `None` when the mount was taken away between the looks at the path and at the table.
fn look(path: &Path) -> io::Result<Option<Located>> {
    let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let number = fd.as_raw_fd();
    let path = fs::read_link(format!("/proc/self/fd/{number}"))?;
    let id = mount_of(&fd)?;
    let mount = mounts()?.into_iter().find(|mount| mount.id == id);
    Ok(mount.map(|mount| Located { path, mount }))
}

/// The number of the mount that a descriptor lies on.
fn mount_of(fd: &OwnedFd) -> io::Result<u64> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    let id = info
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::Error::other("/proc/self/fdinfo does not tell the mount"))
}

/// The first homenode mount on the way to `path`, found without a call to its server. Symbolic links before it are followed.
pub(crate) fn first_homenode_mount(path: &Path) -> Option<MountEntry> {
    const LINKS_MAX: usize = 40;
    let mounts = mounts().ok()?;
    let mut left = vec![absolute(path)];
    let (mut at, mut links) = (PathBuf::new(), 0);
    while let Some(part) = left.pop() {
        let mut components = part.components();
        let Some(next) = components.next() else { continue };
        left.push(components.as_path().to_owned());
        match next {
            Component::ParentDir => drop(at.pop()),
            // An absolute path begins anew with the root.
            next => at.push(next),
        }
        // Of several, the one on which no other is.
        let is_here = |mount: &&MountEntry| mount.mount_point == at;
        let is_top = |mount: &&MountEntry| !mounts.iter().filter(is_here).any(|other| other.is_on(mount));
        let mount = mounts.iter().filter(is_here).rfind(is_top);
        if let Some(mount) = mount.filter(|mount| mount.is_homenode()) {
            return Some(mount.clone());
        }
        if let Ok(target) = fs::read_link(&at) {
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            at.pop();
            left.push(target);
        }
    }
    None
}

/// The directory on which a pool is mounted, whatever lies on top of it.
pub(crate) fn mount_point(device: Device) -> Option<String> {
    let mounts = mounts().unwrap_or_default();
    let mut mounts = mounts.iter();
    let mount = mounts.find(|mount| mount.device == device && mount.is_homenode())?;
    Some(shown(&mount.mount_point))
}

/// Every mount of this process's mount namespace.
pub(crate) fn mounts() -> io::Result<Vec<MountEntry>> {
    mounts_of("self")
}

/// Every mount inside another one, at whatever depth; the innermost last.
pub(crate) fn mounts_inside(outer: &MountEntry) -> io::Result<Vec<MountEntry>> {
    let mut all = mounts()?;
    let mut inside = Vec::new();
    let mut around = vec![outer.id];
    while let Some(id) = around.pop() {
        let (on_it, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|mount| mount.parent == id);
        around.extend(on_it.iter().map(|mount| mount.id));
        inside.extend(on_it);
        all = others;
    }
    Ok(inside)
}

/// Every mount of the mount namespace of a process: its number, or `self`.
pub(crate) fn mounts_of(process: &str) -> io::Result<Vec<MountEntry>> {
    // Bytes, not text: mount points need not be UTF-8.
    let table = fs::read(format!("/proc/{process}/mountinfo"))?;
    Ok(MountLine::all(&table).filter_map(entry).collect())
}

fn entry(line: MountLine<'_>) -> Option<MountEntry> {
    let (major, minor) = line.device;
    Some(MountEntry {
        id: line.id,
        parent: line.parent,
        device: Device { major, minor },
        mount_point: OsString::from_vec(unescaped(line.mount_point).collect()).into(),
        filesystem_type: std::str::from_utf8(line.filesystem_type).ok()?.to_owned(),
        source: OsString::from_vec(unescaped(line.source).collect()),
        // Numbers of nodes behind it may have commas as well.
        policy: line
            .options
            .split(|byte| [b',', b':'].contains(byte))
            .find_map(|option| option.strip_prefix(b"mpol="))
            .filter(|policy| ![&b"local"[..], b"default"].contains(policy))
            .map(|policy| String::from_utf8_lossy(policy).into_owned()),
        is_trusted: line.has_option("user_id=0") || line.has_option(&format!("user_id={}", geteuid().as_raw())),
    })
}

/// The absolute path of something that may not exist, for messages.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// A path as one line of text, whatever is in its name; bytes that are no text as `\xff`.
pub(crate) fn shown(path: &Path) -> String {
    let chunks = path.as_os_str().as_bytes().utf8_chunks();
    let text = |chunk: Utf8Chunk<'_>| plain(chunk.valid()) + &chunk.invalid().escape_ascii().to_string();
    chunks.map(text).collect()
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.major, self.minor)
    }
}

impl std::str::FromStr for Device {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (major, minor) = text.split_once('-').ok_or(())?;
        Ok(Self {
            major: major.parse().map_err(drop)?,
            minor: minor.parse().map_err(drop)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mount::MountFlags;
    use std::io::Write;

    #[test]
    fn mounts_of_root_and_proc_are_found() {
        let root = locate(Path::new("/")).unwrap();
        assert!(root.is_mount_point());
        let proc = locate(Path::new("/proc/self/status")).unwrap();
        assert_eq!(proc.mount.filesystem_type, "proc");
        assert!(!proc.is_mount_point());
        assert!(!proc.mount.is_homenode());
    }

    #[test]
    fn no_other_mount_is_taken_away_for_one_whose_directory_was_renamed() {
        let scratch = tempfile::tempdir().unwrap();
        let [one, other, old] = ["one", "other", "old"].map(|name| scratch.path().join(name));
        for above in [&one, &other] {
            let place = above.join("pool");
            fs::create_dir_all(&place).unwrap();
            if rustix::mount::mount("none", &place, "tmpfs", MountFlags::empty(), None).is_err() {
                let _ = writeln!(io::stderr(), "SKIPPED: this user may not mount");
                return;
            }
        }
        let located = locate(&one.join("pool")).unwrap();
        fs::rename(&one, &old).unwrap();
        std::os::unix::fs::symlink(&other, &one).unwrap();
        assert_eq!(located.unmount(UnmountFlags::DETACH), Err(Errno::NOTDIR), "by a link");
        fs::remove_file(&one).unwrap();
        fs::rename(&other, &one).unwrap();
        assert_eq!(
            located.unmount(UnmountFlags::DETACH),
            Err(Errno::INVAL),
            "another mount"
        );
        for place in [one.join("pool"), old.join("pool")] {
            locate(&place).unwrap().unmount(UnmountFlags::empty()).unwrap();
        }
    }

    #[test]
    fn names_are_shown_on_one_line() {
        assert_eq!(shown(Path::new("/a b")), "/a b");
        assert_eq!(shown(Path::new("/ä\n\u{9b}2Jb")), r"/ä\n\u{9b}2Jb");
        assert_eq!(shown(Path::new(&OsString::from_vec(b"/a\xffb".into()))), r"/a\xffb");
    }
}
