//! Lines of mountinfo, the table of a process's mounts in /proc. Parsing takes no memory, so that a library in a foreign process can do it.

/// Mount, from its line: `36 35 98:0 /root /mount\040point rw,noatime master:1 - ext3 /dev/root rw,errors=continue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountLine<'a> {
    /// Number of the mount.
    pub id: u64,
    /// Number of the mount that it is on.
    pub parent: u64,
    /// Major and minor number of the filesystem's device, which is `st_dev` of everything on it.
    pub device: (u32, u32),
    /// Directory of the filesystem that is mounted, escaped as for [`unescaped`].
    pub root: &'a [u8],
    /// Directory that the mount is on, escaped.
    pub mount_point: &'a [u8],
    /// Type of the filesystem.
    pub filesystem_type: &'a [u8],
    /// Source, as the filesystem says, escaped.
    pub source: &'a [u8],
    /// Options of the filesystem, separated by commas.
    pub options: &'a [u8],
}

impl<'a> MountLine<'a> {
    /// Parses a line; `None` if it is none.
    #[must_use]
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = number(fields.next()?)?;
        let parent = number(fields.next()?)?;
        let mut device = fields.next()?.splitn(2, |byte| *byte == b':');
        let device = (number(device.next()?)?, number(device.next()?)?);
        let (root, mount_point) = (fields.next()?, fields.next()?);
        // Any number of optional fields, then a hyphen.
        fields.find(|field| *field == b"-")?;
        Some(Self {
            id,
            parent,
            device,
            root,
            mount_point,
            filesystem_type: fields.next()?,
            source: fields.next()?,
            options: fields.next().unwrap_or_default(),
        })
    }

    /// Parses a table, without the lines that are none.
    pub fn all(table: &'a [u8]) -> impl Iterator<Item = Self> {
        table.split(|byte| *byte == b'\n').filter_map(Self::parse)
    }

    /// Returns whether the filesystem has an option.
    #[must_use]
    pub fn has_option(&self, option: &str) -> bool {
        let mut options = self.options.split(|byte| *byte == b',');
        options.any(|found| found == option.as_bytes())
    }
}

fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Returns the bytes of a field: the kernel writes space, tab, newline and backslash as `\` and three octal digits.
pub fn unescaped(field: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = field;
    std::iter::from_fn(move || {
        let (&byte, behind) = rest.split_first()?;
        let escaped = behind.get(..3).filter(|_| byte == b'\\').and_then(octal);
        rest = if escaped.is_some() { &behind[3..] } else { behind };
        Some(escaped.unwrap_or(byte))
    })
}

fn octal(digits: &[u8]) -> Option<u8> {
    digits.iter().try_fold(0_u8, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(digit - b'0'),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_with_and_without_optional_fields() {
        let with = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:7 - fuse.homenode homenode rw,user_id=0";
        let without = b"36 35 98:0 /mnt1 /mnt2 rw,noatime - fuse.homenode homenode rw,user_id=0";
        let expected = MountLine {
            id: 36,
            parent: 35,
            device: (98, 0),
            root: b"/mnt1",
            mount_point: b"/mnt2",
            filesystem_type: b"fuse.homenode",
            source: b"homenode",
            options: b"rw,user_id=0",
        };
        assert_eq!(MountLine::parse(with), Some(expected));
        assert_eq!(MountLine::parse(without), Some(expected));
        assert!(expected.has_option("user_id=0") && !expected.has_option("user_id"));
    }

    #[test]
    fn escaped_and_odd_bytes_in_a_mount_point_are_decoded() {
        let line = b"1 2 0:57 / /a\\040b\\011c\\012d\\134e\xff\\99 rw - tmpfs none rw";
        let mount = MountLine::parse(line).unwrap();
        let point: Vec<u8> = unescaped(mount.mount_point).collect();
        assert_eq!(point, b"/a b\tc\nd\\e\xff\\99");
    }

    #[test]
    fn malformed_mountinfo_lines_are_skipped() {
        let broken: [&[u8]; 6] = [
            b"",
            b" ",
            b"36",
            b"36 35 98 / / rw - a b c",
            b"x 35 9:8 / / rw - a b c",
            b"1 2 3:4 / / rw",
        ];
        for line in broken {
            assert_eq!(MountLine::parse(line), None, "{line:?}");
        }
        for field in [&b"\\"[..], b"\\04", b"\\777"] {
            assert_eq!(unescaped(field).collect::<Vec<_>>(), field, "no valid escape");
        }
    }
}
