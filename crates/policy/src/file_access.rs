//! An access to a file, as traces tell it: who asked, when, for which bytes, and what for.

use crate::NodeId;
use core::fmt;
use core::str::FromStr;

/// Kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// `r`
    Read,
    /// `w`
    Write,
    /// `f`: gives memory of the file back, by a truncation, a hole, or the end of a removed file.
    Free,
}

/// An access. As text: `TIME_NS NODE FILE OFFSET BYTES r|w|f`.
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
    /// Kind.
    pub kind: AccessKind,
}

/// A text is no access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoFileAccess;

impl fmt::Display for FileAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.kind {
            AccessKind::Read => 'r',
            AccessKind::Write => 'w',
            AccessKind::Free => 'f',
        };
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
            kind: match words.next() {
                Some("r") => AccessKind::Read,
                Some("w") => AccessKind::Write,
                Some("f") => AccessKind::Free,
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
            kind: AccessKind::Write,
        };
        let of = |kind| FileAccess { kind, ..access };
        assert_eq!(access.to_string(), "18446744073709551615 7 3 1099511627776 4096 w");
        for access in [access, of(AccessKind::Read), of(AccessKind::Free)] {
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
