//! Mounts as /proc/self/mountinfo tells them, and the mount a path lies on.
//!
//! A path is opened with O_PATH, which asks no file server: so it also works on a mount whose server is dead.

use crate::failure::plain;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::Utf8Chunk;

/// The type homenode's mounts have.
pub(crate) const FILESYSTEM_TYPE: &str = "fuse.homenode";

/// Mounts of a path that may be taken away one after the other while it is looked up.
const LOOKS_MAX: usize = 16;

/// Mount, from its line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    pub(crate) id: u64,
    /// Device number of everything on it: `st_dev`.
    pub(crate) device: Device,
    pub(crate) mount_point: PathBuf,
    pub(crate) filesystem_type: String,
    /// Source, as the filesystem says.
    pub(crate) source: OsString,
}

/// A device number: one mounted filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Device {
    pub(crate) major: u32,
    pub(crate) minor: u32,
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
        self.filesystem_type == FILESYSTEM_TYPE
    }
}

impl Located {
    /// Whether the path is the root of its mount.
    pub(crate) fn is_mount_point(&self) -> bool {
        self.mount.mount_point == self.path
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
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    let id = info
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    let id: u64 = id.ok_or_else(|| io::Error::other("/proc/self/fdinfo does not tell the mount"))?;
    let mount = mounts()?.into_iter().find(|mount| mount.id == id);
    Ok(mount.map(|mount| Located { path, mount }))
}

/// Every mount of this process's mount namespace.
pub(crate) fn mounts() -> io::Result<Vec<MountEntry>> {
    mounts_of("self")
}

/// Every mount of the mount namespace of a process: its number, or `self`.
pub(crate) fn mounts_of(process: &str) -> io::Result<Vec<MountEntry>> {
    // Bytes, not text: mount points need not be UTF-8.
    let table = fs::read(format!("/proc/{process}/mountinfo"))?;
    Ok(table.split(|&byte| byte == b'\n').filter_map(parse_line).collect())
}

/// `36 35 98:0 /root /mount\040point rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = text(fields.next()?)?.parse().ok()?;
    let device = text(fields.nth(1)?)?;
    let (major, minor) = device.split_once(':')?;
    let device = Device {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    };
    let mount_point = PathBuf::from(unescape(fields.nth(1)?));
    // Any number of optional fields, then a hyphen.
    fields.find(|field| *field == b"-")?;
    let filesystem_type = text(fields.next()?)?.to_owned();
    let source = unescape(fields.next()?);
    Some(MountEntry {
        id,
        device,
        mount_point,
        filesystem_type,
        source,
    })
}

fn text(field: &[u8]) -> Option<&str> {
    std::str::from_utf8(field).ok()
}

/// The kernel writes space, tab, newline and backslash as `\` and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, behind)) = rest.split_first() {
        let escaped = if byte == b'\\' {
            behind.get(..3).and_then(octal)
        } else {
            None
        };
        bytes.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() { &behind[3..] } else { behind };
    }
    OsString::from_vec(bytes)
}

fn octal(digits: &[u8]) -> Option<u8> {
    digits.iter().try_fold(0_u8, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(digit - b'0'),
        _ => None,
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

    #[test]
    fn a_line_with_and_without_optional_fields() {
        let with = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:7 - fuse.homenode homenode rw,user_id=0";
        let without = b"36 35 98:0 /mnt1 /mnt2 rw,noatime - fuse.homenode homenode rw,user_id=0";
        let expected = MountEntry {
            id: 36,
            device: Device { major: 98, minor: 0 },
            mount_point: "/mnt2".into(),
            filesystem_type: "fuse.homenode".into(),
            source: "homenode".into(),
        };
        assert_eq!(parse_line(with), Some(expected.clone()));
        assert_eq!(parse_line(without), Some(expected));
    }

    #[test]
    fn escaped_and_foreign_bytes_in_the_mount_point() {
        let line = b"1 2 0:57 / /a\\040b\\011c\\012d\\134e\xff\\99 rw - tmpfs none rw";
        let entry = parse_line(line).unwrap();
        assert_eq!(entry.mount_point.as_os_str().as_bytes(), b"/a b\tc\nd\\e\xff\\99");
    }

    #[test]
    fn broken_lines_are_no_mounts() {
        let broken: [&[u8]; 6] = [
            b"",
            b" ",
            b"36",
            b"36 35 98 / / rw - a b c",
            b"x 35 9:8 / / rw - a b c",
            b"1 2 3:4 / / rw",
        ];
        for line in broken {
            assert_eq!(parse_line(line), None, "{line:?}");
        }
        assert_eq!(unescape(b"\\"), "\\");
        assert_eq!(unescape(b"\\04"), "\\04");
        assert_eq!(unescape(b"\\777"), "\\777", "more than a byte");
    }

    #[test]
    fn this_process_root_and_proc_are_found() {
        let root = locate(Path::new("/")).unwrap();
        assert!(root.is_mount_point());
        let proc = locate(Path::new("/proc/self/status")).unwrap();
        assert_eq!(proc.mount.filesystem_type, "proc");
        assert!(!proc.is_mount_point());
        assert!(!proc.mount.is_homenode());
    }

    #[test]
    fn names_are_shown_on_one_line() {
        assert_eq!(shown(Path::new("/a b")), "/a b");
        assert_eq!(shown(Path::new("/ä\n\u{9b}2Jb")), r"/ä\n\u{9b}2Jb");
        assert_eq!(shown(Path::new(&OsString::from_vec(b"/a\xffb".into()))), r"/a\xffb");
    }
}
