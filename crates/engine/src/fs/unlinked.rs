//! Inodes without a name, files mostly, by what keeps them: their space may soon be free.
//!
//! An inode's state tells its [`Standing`], which changes under the lock of that state only. The counts here follow, and are figures to look at again
//! and again. Files of words are no part of them: they have no name for as long as the pool lives.

use super::inode::{Inode, State};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a file is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has a name, or is a volume.
    Named,
    /// It has no name, and somebody has it open.
    Open,
    /// It has no name and is not open: the kernel's word to forget it is mostly on its way.
    Closed,
    /// Its blocks are just being freed.
    Going,
}

/// Files of one standing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnlinkedCount {
    /// How many there are.
    pub files: u64,
    /// How many became that, or ceased to be.
    pub moves: u64,
}

/// Files without a name ([`super::Fs::unlinked`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unlinked {
    /// Files that are open. They may stay so for ever.
    pub open: UnlinkedCount,
    /// Files that are not open, which the kernel mostly forgets at once. A mapping, or a descriptor that only names a file, keeps them.
    pub closed: UnlinkedCount,
    /// Files whose blocks are just being freed.
    pub going: UnlinkedCount,
}

impl Unlinked {
    /// Whether there is a file of any kind.
    pub fn is_any(&self) -> bool {
        [self.open, self.closed, self.going].iter().any(|count| count.files > 0)
    }
}

/// The counts of [`Unlinked`], as threads change them.
#[derive(Debug, Default)]
pub(super) struct UnlinkedFiles {
    open: Count,
    closed: Count,
    going: Count,
}

#[derive(Debug, Default)]
struct Count {
    files: AtomicU64,
    moves: AtomicU64,
}

impl Count {
    fn look(&self) -> UnlinkedCount {
        // Relaxed, here and below: figures.
        UnlinkedCount {
            files: self.files.load(Ordering::Relaxed),
            moves: self.moves.load(Ordering::Relaxed),
        }
    }
}

impl UnlinkedFiles {
    /// A file's standing was `before` and is `after`. To be called with its state locked, unless it is going.
    pub(super) fn moved(&self, before: Standing, after: Standing) {
        if before == after {
            return;
        }
        // First: a file is never missing from all counts.
        if let Some(count) = self.count(after) {
            count.files.fetch_add(1, Ordering::Relaxed);
            count.moves.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(count) = self.count(before) {
            count.files.fetch_sub(1, Ordering::Relaxed);
            count.moves.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn look(&self) -> Unlinked {
        Unlinked {
            open: self.open.look(),
            closed: self.closed.look(),
            going: self.going.look(),
        }
    }

    fn count(&self, standing: Standing) -> Option<&Count> {
        match standing {
            Standing::Named => None,
            Standing::Open => Some(&self.open),
            Standing::Closed => Some(&self.closed),
            Standing::Going => Some(&self.going),
        }
    }
}

impl State {
    /// The standing of `inode`, whose state this is, while something keeps it.
    pub(super) fn standing(&self, inode: &Inode) -> Standing {
        if !self.is_unlinked() || inode.is_volume() || inode.words_reader().is_some() {
            Standing::Named
        } else if self.opens.all > 0 {
            Standing::Open
        } else {
            Standing::Closed
        }
    }
}
