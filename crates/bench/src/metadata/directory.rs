//! A directory of the kernel's as a contestant: system calls relative to its descriptor.

use super::namespace::{Namespace, names};
use crate::error::Error;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, SeekFrom, openat, renameat, seek, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::CString;
use std::mem::MaybeUninit;

/// Size of the buffer for directory entries, as large as the C library's.
const LIST_BUFFER_BYTES: usize = 32 << 10;

/// An open directory, empty at first.
#[derive(Debug)]
pub(super) struct Directory {
    name: &'static str,
    directory: OwnedFd,
    names: [Vec<CString>; 2],
}

impl Directory {
    pub(super) fn new(name: &'static str, directory: OwnedFd, files: usize) -> Self {
        // Made ready before, so that no time goes into converting names.
        let ready = |name: String| CString::new(name).expect("the names hold no NUL");
        Self {
            name,
            directory,
            names: names(files, "").map(|names| names.into_iter().map(ready).collect()),
        }
    }

    fn system(&self, verb: &str) -> impl Fn(Errno) -> Error {
        let what = format!("{verb} on {}", self.name);
        move |error| Error::system(what.clone(), error)
    }
}

impl Namespace for Directory {
    fn name(&self) -> &'static str {
        self.name
    }

    fn create(&mut self, file: usize) -> Result<(), Error> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let opened = openat(&self.directory, &self.names[0][file], flags, Mode::RUSR | Mode::WUSR);
        opened.map(drop).map_err(|error| self.system("creating a file")(error))
    }

    fn stat(&mut self, file: usize) -> Result<(), Error> {
        let stat = statat(&self.directory, &self.names[0][file], AtFlags::SYMLINK_NOFOLLOW);
        std::hint::black_box(stat)
            .map(drop)
            .map_err(|error| self.system("examining a file")(error))
    }

    fn rename(&mut self, file: usize) -> Result<(), Error> {
        let [first, second] = &self.names;
        renameat(&self.directory, &first[file], &self.directory, &second[file])
            .map_err(|error| self.system("renaming a file")(error))
    }

    fn readdir(&mut self) -> Result<usize, Error> {
        seek(&self.directory, SeekFrom::Start(0)).map_err(self.system("rewinding the directory"))?;
        let mut buffer = vec![MaybeUninit::uninit(); LIST_BUFFER_BYTES];
        let mut entries = RawDir::new(&self.directory, &mut buffer);
        let mut listed = 0;
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(self.system("listing the directory"))?;
            listed += usize::from(![c".", c".."].contains(&entry.file_name()));
        }
        Ok(listed)
    }

    fn unlink(&mut self, file: usize) -> Result<(), Error> {
        unlinkat(&self.directory, &self.names[1][file], AtFlags::empty())
            .map_err(|error| self.system("removing a file")(error))
    }
}
