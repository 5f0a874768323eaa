//! An access to a file, as traces tell it: who asked, when, and for which bytes.

use crate::NodeId;
use core::fmt;
use core::str::FromStr;

/// A read or a write. As text: `TIME_NS NODE FILE OFFSET BYTES r|w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAccess {
    /// When, in nanoseconds from some beginning.
    pub at_ns: u64,
    /// Node of the thread that asked.
    pub node: NodeId,
    /// Number of the file's inode.
    pub file: u64,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Whether it wrote.
    pub writes: bool,
}

/// A text is no access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoFileAccess;

impl fmt::Display for FileAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = if self.writes { 'w' } else { 'r' };
        let Self {
            at_ns,
            node,
            file,
            offset,
            bytes,
            ..
        } = self;
        write!(f, "{at_ns} {} {file} {offset} {bytes} {letter}", node.0)
    }
}

impl FromStr for FileAccess {
    type Err = NoFileAccess;

    fn from_str(text: &str) -> Result<Self, NoFileAccess> {
        let mut words = text.split(' ');
        let mut number = || {
            words
                .next()
                .and_then(|word| word.parse::<u64>().ok())
                .ok_or(NoFileAccess)
        };
        let access = Self {
            at_ns: number()?,
            node: NodeId(u16::try_from(number()?).map_err(|_| NoFileAccess)?),
            file: number()?,
            offset: number()?,
            bytes: number()?,
            writes: match words.next() {
                Some("r") => false,
                Some("w") => true,
                _ => return Err(NoFileAccess),
            },
        };
        words.next().is_none().then_some(access).ok_or(NoFileAccess)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::string::ToString;

    #[test]
    fn accesses_are_read_as_they_are_told() {
        let access = FileAccess {
            at_ns: u64::MAX,
            node: NodeId(7),
            file: 3,
            offset: 1 << 40,
            bytes: 4096,
            writes: true,
        };
        let reads = FileAccess {
            writes: false,
            ..access
        };
        assert_eq!(access.to_string(), "18446744073709551615 7 3 1099511627776 4096 w");
        for access in [access, reads] {
            assert_eq!(access.to_string().parse(), Ok(access));
        }
        for wrong in [
            "",
            "1 2 3 4 5",
            "1 2 3 4 5 x",
            "1 2 3 4 5 r ",
            "1 65536 3 4 5 r",
            "-1 2 3 4 5 r",
            "1 2 3 4 5 r 6",
        ] {
            assert_eq!(wrong.parse::<FileAccess>(), Err(NoFileAccess), "{wrong}");
        }
    }
}
