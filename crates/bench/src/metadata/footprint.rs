//! How much memory an empty file takes besides its name.
//!
//! For the library: the growth of this process's anonymous memory over many files in one directory, divided by their
//! number, less the bytes of a name. The pool's own memory is shared memory and does not count. For tmpfs: the same from
//! the growth of the kernel's slabs, which other processes disturb.

use super::namespace::{names, small_pool};
use crate::error::{During, Error};
use crate::interleave::Samples;
use crate::private_tmpfs::{self, Pages};
use crate::report::Row;
use homenode::OpenOptions;
use rustix::fs::{Mode, OFlags, openat};
use std::fs;
use std::io;

/// Name of the row.
pub(super) const CASE: &str = "memory";

/// Makes `files` files in one directory of the library, then in one of tmpfs if root runs this.
pub(super) fn measure(files: usize) -> Result<Row, Error> {
    // With the prefix of the library's paths. They are there before the first reading, and nothing is freed before the last one, which files would
    // take without a growth.
    let [names, _kept] = names(files, "/");
    let name_bytes = names[0].len() - 1;
    let per_file = |grown_bytes: u64| Samples::from(grown_bytes as f64 / files as f64 - name_bytes as f64);
    let homenode = per_file(grow_library(&names)?);
    let tmpfs = match private_tmpfs::mount(Pages::Default, 1 << 30) {
        Ok(root) => Some(per_file(grow_tmpfs(&root, &names)?)),
        Err(_) => None,
    };
    let peers: Vec<_> = tmpfs.iter().map(|samples| ("tmpfs", samples)).collect();
    Ok(Row::new(CASE.into(), "B/file", &homenode, &peers))
}

fn grow_library(names: &[String]) -> Result<u64, Error> {
    let pool = small_pool(names.len())?;
    let new = OpenOptions::new().write(true).create_new(true);
    let before = kernel_bytes("/proc/self/status", "RssAnon:")?;
    for name in names {
        pool.open(name, &new)
            .map(drop)
            .map_err(Error::library("creating a file"))?;
    }
    Ok(kernel_bytes("/proc/self/status", "RssAnon:")?.saturating_sub(before))
}

fn grow_tmpfs(root: &rustix::fd::OwnedFd, names: &[String]) -> Result<u64, Error> {
    let slabs = || kernel_bytes("/proc/meminfo", "Slab:");
    let before = slabs()?;
    for name in names {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        openat(root, &name[1..], flags, Mode::RUSR).during("creating a file on tmpfs")?;
    }
    Ok(slabs()?.saturating_sub(before))
}

/// The named line of a file like /proc/meminfo, in bytes.
fn kernel_bytes(path: &str, field: &str) -> Result<u64, Error> {
    let text = fs::read_to_string(path).during(format_args!("reading {path}"))?;
    field_bytes(&text, field).ok_or_else(|| {
        Error::system(
            format!("reading {path}"),
            io::Error::other(format!("it has no line {field}")),
        )
    })
}

fn field_bytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_are_in_kib() {
        let text = "VmRSS:\t  12 kB\nRssAnon:\t     3 kB\nRssFile:\t     4 kB\n";
        assert_eq!(field_bytes(text, "RssAnon:"), Some(3 << 10));
        assert_eq!(field_bytes(text, "RssShmem:"), None);
    }
}
