//! A client that looks for, opens, creates, removes and syncs files by name.
//!
//! `stat` is statx(2) with `AT_STATX_FORCE_SYNC`: the kernel then asks the server (GETATTR) whatever it has cached, which on
//! a mounted pool is everything, for ever. A plain stat would measure the kernel. For tmpfs the flag means nothing.

use super::contestant::{numbered, old_names};
use super::subjects::Names;
use crate::error::{During, Error};
use crate::pass::Client;
use fastrand::Rng;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fsync, openat, statx, unlinkat};
use rustix::io::Errno;
use std::ffi::CString;

struct ByName<'a> {
    directory: BorrowedFd<'a>,
    /// With the index of a name: of an old file, or of one to be made.
    operations: Vec<(Names, usize)>,
    old: Vec<CString>,
    new: Vec<CString>,
    /// An old file, open, for those that sync one.
    synced: OwnedFd,
}

/// Decides what is done to which file.
pub(super) fn prepare<'a>(
    directory: BorrowedFd<'a>,
    names: Names,
    operations: usize,
    seed: u64,
) -> Result<Box<dyn Client + 'a>, Error> {
    let old = old_names();
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let synced = openat(directory, &old[0], flags, Mode::empty()).during("opening a file to sync")?;
    let new = numbered('g', operations);
    let operations = plan(names, operations, old.len(), &mut Rng::with_seed(seed));
    Ok(Box::new(ByName {
        directory,
        operations,
        old,
        new,
        synced,
    }))
}

/// A new file has the number of its operation, an old one is chosen at random.
fn plan(names: Names, operations: usize, old: usize, random: &mut Rng) -> Vec<(Names, usize)> {
    let operation = |number| {
        let operation = match names {
            Names::Storm => [Names::Stat, Names::OpenClose, Names::CreateUnlink][random.usize(..3)],
            single => single,
        };
        let name = if operation == Names::CreateUnlink {
            number
        } else {
            random.usize(..old)
        };
        (operation, name)
    };
    (0..operations).map(operation).collect()
}

impl ByName<'_> {
    fn carry_out(&self, operation: Names, name: usize) -> Result<(), Errno> {
        match operation {
            Names::Stat => {
                let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
                let attributes = statx(self.directory, &self.old[name], flags, StatxFlags::BASIC_STATS)?;
                std::hint::black_box(attributes);
            }
            Names::OpenClose => {
                openat(
                    self.directory,
                    &self.old[name],
                    OFlags::RDONLY | OFlags::CLOEXEC,
                    Mode::empty(),
                )?;
            }
            Names::CreateUnlink => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                openat(self.directory, &self.new[name], flags, Mode::RUSR | Mode::WUSR)?;
                unlinkat(self.directory, &self.new[name], AtFlags::empty())?;
            }
            Names::Sync => fsync(&self.synced)?,
            Names::Storm => unreachable!("a plan holds single operations"),
        }
        Ok(())
    }
}

impl Client for ByName<'_> {
    fn run(&mut self) -> Result<(), Error> {
        let mut operations = self.operations.iter();
        let done = operations.try_for_each(|&(operation, name)| self.carry_out(operation, name));
        done.during("files by name")
    }

    /// Checks that the files made are gone again. Everything else fails by itself where it does not work.
    fn is_right(&mut self) -> Result<bool, Error> {
        let last = self.new.last().expect("a pass has operations");
        match statx(self.directory, last, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS) {
            Ok(_) => Ok(false),
            Err(Errno::NOENT) => Ok(true),
            Err(error) => Err(Error::system("looking for a removed file", error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_mixes_three_operations_in_equal_parts() {
        let plan = plan(Names::Storm, 3000, 10, &mut Rng::with_seed(1));
        for single in [Names::Stat, Names::OpenClose, Names::CreateUnlink] {
            let count = plan.iter().filter(|(operation, _)| *operation == single).count();
            assert!((900..1100).contains(&count), "{single:?}: {count}");
        }
        assert!(
            plan.iter()
                .all(|&(operation, name)| operation == Names::CreateUnlink || name < 10)
        );
        let stats = super::plan(Names::Stat, 5, 10, &mut Rng::with_seed(1));
        assert!(stats.iter().all(|&(operation, _)| operation == Names::Stat));
    }
}
