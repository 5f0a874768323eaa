//! Who is measured: two kinds of tmpfs, and mounted pools. Each keeps the same files.

use super::served::{Served, Variant};
use crate::cpu_time::CpuTime;
use crate::cpus::{self, THREADS_MAX};
use crate::error::{During, Error};
use crate::place::Open;
use crate::private_tmpfs::{self, Pages};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, mkdirat, openat, syncfs};
use std::ffi::CString;

/// Files to read and write: one for each client.
const FILES: usize = THREADS_MAX;
/// Files to find by name, in a directory of their own.
pub(super) const NAMES: usize = 256;

/// Byte that files hold: whatever is written has odd words, so that zeros stand out.
const FILL: u8 = 0x5b;

/// A filesystem with the bench's files on it. Fields drop in order: what is open before what serves it.
#[derive(Debug)]
pub(super) struct Contestant {
    name: &'static str,
    root: OwnedFd,
    names: OwnedFd,
    /// `None`: the kernel serves it.
    served: Option<Served>,
}

impl Contestant {
    /// A private tmpfs.
    pub(super) fn tmpfs(pages: Pages, file_bytes: usize) -> Result<Self, Error> {
        let root = private_tmpfs::mount(pages, pool_bytes(file_bytes))?;
        cpus::at_home(|| Self::fill(pages.name(), root, None, file_bytes))
    }

    /// A mounted pool of the node.
    pub(super) fn served(variant: Variant, file_bytes: usize, node: u16) -> Result<Self, Error> {
        let served = Served::start(variant, pool_bytes(file_bytes), Some(node))?;
        Self::fill(variant.name(), served.open()?, Some(served), file_bytes)
    }

    /// Makes all files. Those to be read and written are written from start to end.
    fn fill(name: &'static str, root: OwnedFd, served: Option<Served>, file_bytes: usize) -> Result<Self, Error> {
        let system = |error| Error::system(format!("making files on {name}"), error);
        mkdirat(&root, "names", Mode::RWXU).map_err(system)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let names = openat(&root, "names", flags, Mode::empty()).map_err(system)?;
        let create = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        for file in old_names() {
            openat(&names, &file, create, Mode::RUSR | Mode::WUSR).map_err(system)?;
        }
        for file in 0..FILES {
            let file = openat(&root, file.to_string(), create, Mode::RUSR | Mode::WUSR).map_err(system)?;
            let file = Open::Directory(file.into());
            file.fill(FILL, file_bytes)?;
            file.sync_data()?;
        }
        Ok(Self {
            name,
            root,
            names,
            served,
        })
    }

    /// Name in tables and JSON.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// How it is served, if not by the kernel.
    pub(super) fn variant(&self) -> Option<Variant> {
        self.served.as_ref().map(Served::variant)
    }

    /// Requests that its server has answered, if it has one.
    pub(super) fn requests(&mut self) -> Result<Option<u64>, Error> {
        self.served.as_mut().map(Served::requests).transpose()
    }

    /// CPU time that its server took, if it has one.
    pub(super) fn cpu_time(&self) -> Result<Option<CpuTime>, Error> {
        self.served.as_ref().map(Served::cpu_time).transpose()
    }

    /// Opens the file of this client for reading and writing.
    ///
    /// tmpfs is asked for no `O_DIRECT`: its page cache is its storage.
    pub(super) fn open(&self, client: usize, direct: bool) -> Result<OwnedFd, Error> {
        let direct = if direct && self.served.is_some() {
            OFlags::DIRECT
        } else {
            OFlags::empty()
        };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | direct;
        openat(&self.root, client.to_string(), flags, Mode::empty())
            .during(format_args!("opening file {client} on {}", self.name))
    }

    /// The directory with the files to read and write.
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The directory with the files to find by name.
    pub(super) fn names(&self) -> BorrowedFd<'_> {
        self.names.as_fd()
    }

    /// Has the kernel write everything back that it still keeps.
    pub(super) fn settle(&self) -> Result<(), Error> {
        syncfs(&self.root).during(format_args!("writing back {}", self.name))
    }
}

/// Names of the files that are there.
pub(super) fn old_names() -> Vec<CString> {
    numbered('f', NAMES)
}

/// `count` names of one length.
pub(super) fn numbered(letter: char, count: usize) -> Vec<CString> {
    let name = |number| CString::new(format!("{letter}{number:07}")).expect("the name holds no NUL");
    (0..count).map(name).collect()
}

/// Room for the files and as much again.
fn pool_bytes(file_bytes: usize) -> u64 {
    (2 * FILES * file_bytes) as u64
}
