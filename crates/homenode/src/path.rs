//! From a path to an inode: components, symbolic links, `.` and `..`.
//!
//! Paths start at the pool's root, with or without a leading slash. As in the kernel, at most 40 symbolic links are
//! followed, a trailing slash asks for a directory, and an empty path names nothing.

use crate::error::PathProblem;
use crate::pool::Inner;
use homenode_engine::fs::{Error as FsError, Inode};
use std::sync::Arc;

/// Symbolic links followed in one resolution, the kernel's limit.
const SYMLINKS_MAX: usize = 40;

/// Treatment of a symbolic link in the last place of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    Follow,
    Keep,
}

/// The directory and the name a path ends in: where something is to be made, renamed or removed.
pub(crate) struct Place {
    pub(crate) directory: Arc<Inode>,
    pub(crate) name: Vec<u8>,
    /// The path ended in a slash: only a directory will do.
    pub(crate) slash: bool,
}

impl Inner {
    /// The inode `path` names.
    pub(crate) fn resolve(&self, path: &[u8], last: Last) -> Result<Arc<Inode>, PathProblem> {
        if path.is_empty() {
            return Err(FsError::NotFound.into());
        }
        Walk {
            inner: self,
            symlinks: 0,
        }
        .walk(self.fs.root(), path, last)
    }

    /// The place `path` names; a path without a name in its last place (`/`, `.`, `a/..`) gives `unnamed`.
    pub(crate) fn place(&self, path: &[u8], unnamed: PathProblem) -> Result<Place, PathProblem> {
        let mut walk = Walk {
            inner: self,
            symlinks: 0,
        };
        walk.place(self.fs.root(), path, unnamed)
    }

    /// The place a new file may be made at: symbolic links in the last place lead on, as open(2) with O_CREAT has it.
    pub(crate) fn place_through_links(&self, path: &[u8], unnamed: PathProblem) -> Result<Place, PathProblem> {
        let mut walk = Walk {
            inner: self,
            symlinks: 0,
        };
        let mut place = walk.place(self.fs.root(), path, unnamed)?;
        loop {
            let inode = match self.fs.lookup(&place.directory, &place.name) {
                Ok(inode) if inode.is_symlink() => inode,
                _ => return Ok(place),
            };
            let target = walk.follow(&inode)?;
            place = walk.place(place.directory, &target, unnamed)?;
        }
    }
}

/// Resolution of one path; counts the symbolic links it followed.
struct Walk<'a> {
    inner: &'a Inner,
    symlinks: usize,
}

impl Walk<'_> {
    fn walk(&mut self, start: Arc<Inode>, path: &[u8], last: Last) -> Result<Arc<Inode>, PathProblem> {
        let mut at = if path.starts_with(b"/") {
            self.inner.fs.root()
        } else {
            start
        };
        let mut rest = path;
        while let Some((name, behind)) = next_name(rest) {
            rest = behind;
            if !at.is_directory() {
                return Err(FsError::NotDirectory.into());
            }
            let next = self.inner.fs.lookup(&at, name).map_err(gone_is_not_found)?;
            // Anything behind the name, be it only a slash, asks for what the link leads to.
            at = if next.is_symlink() && (last == Last::Follow || !rest.is_empty()) {
                let target = self.follow(&next)?;
                self.walk(at, &target, Last::Follow)?
            } else {
                next
            };
        }
        if path.ends_with(b"/") && !at.is_directory() {
            return Err(FsError::NotDirectory.into());
        }
        Ok(at)
    }

    fn place(&mut self, start: Arc<Inode>, path: &[u8], unnamed: PathProblem) -> Result<Place, PathProblem> {
        if path.is_empty() {
            return Err(FsError::NotFound.into());
        }
        let trimmed = path
            .iter()
            .rposition(|&byte| byte != b'/')
            .map_or(&path[..0], |end| &path[..=end]);
        let split = trimmed
            .iter()
            .rposition(|&byte| byte == b'/')
            .map_or(0, |slash| slash + 1);
        let (parent, name) = trimmed.split_at(split);
        if name.is_empty() || name == b"." || name == b".." {
            return Err(unnamed);
        }
        let directory = self.walk(start, parent, Last::Follow)?;
        if !directory.is_directory() {
            return Err(FsError::NotDirectory.into());
        }
        Ok(Place {
            directory,
            name: name.to_vec(),
            slash: trimmed.len() < path.len(),
        })
    }

    fn follow(&mut self, link: &Arc<Inode>) -> Result<Box<[u8]>, PathProblem> {
        self.symlinks += 1;
        if self.symlinks > SYMLINKS_MAX {
            return Err(PathProblem::SymlinkLoop);
        }
        Ok(self.inner.fs.readlink(link).map_err(gone_is_not_found)?)
    }
}

/// The first name of `path` and what lies behind it, a slash included.
fn next_name(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = path.iter().position(|&byte| byte != b'/')?;
    let path = &path[start..];
    let end = path.iter().position(|&byte| byte == b'/').unwrap_or(path.len());
    Some(path.split_at(end))
}

/// An inode that vanished between two steps was removed by someone else: the name is not there.
pub(crate) fn gone_is_not_found(error: FsError) -> FsError {
    if error == FsError::Stale {
        FsError::NotFound
    } else {
        error
    }
}

#[cfg(test)]
mod tests {
    use super::next_name;

    #[test]
    fn names_one_by_one() {
        assert_eq!(next_name(b""), None);
        assert_eq!(next_name(b"///"), None);
        assert_eq!(next_name(b"a"), Some((&b"a"[..], &b""[..])));
        assert_eq!(next_name(b"//a//b/"), Some((&b"a"[..], &b"//b/"[..])));
        assert_eq!(next_name(b"//b/"), Some((&b"b"[..], &b"/"[..])));
    }
}
