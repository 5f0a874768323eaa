//! `homenode-bench metadata`: names instead of bytes. The library against tmpfs and a mount.
//!
//! All contestants work in one directory, one thread, the same names in the same orders: created and listed in order;
//! examined, renamed and removed at random. tmpfs and the mount are called with paths relative to an open directory, the
//! library with paths from its root. `readdir` counts per entry. The memory of an empty file is measured first, on a pool
//! of its own.

mod directory;
mod footprint;
mod namespace;

use crate::arguments::Common;
use crate::cpus;
use crate::error::Error;
use crate::mount::can_mount;
use crate::mount::served::{Served, Variant};
use crate::private_tmpfs::{self, Pages};
use crate::report::{Report, Row, Table};
use crate::required::{self, Bound, Finding};
use crate::run::Run;
use crate::shuffle::permutation;
use directory::Directory;
use namespace::{Library, Namespace};
use std::time::Instant;

/// Least ratio of the library to tmpfs, for every operation.
const RATIO_MIN: f64 = 1.5;
/// Most memory that an empty file may take besides its name.
const FILE_BYTES_MAX: f64 = 512.0;
/// Bytes of the mounted pool on each node: its metadata may take a part of them, and must hold all files.
const MOUNT_BYTES: u64 = 1 << 30;

/// Runs the bench.
pub(crate) fn run(common: &Common) -> Result<(), Error> {
    let mut run = Run::new("metadata", common, &[])?;
    let (files, footprint_files) = if common.smoke {
        (2_000, 20_000)
    } else {
        (100_000, 1_000_000)
    };
    println!(
        "{files} files, {} rounds; memory with {footprint_files} empty files",
        run.rounds
    );
    // Before anything else has used the heap.
    let footprint = footprint::measure(footprint_files)?;
    // Everything that starts threads or processes comes before the pinning, which they would inherit.
    let mount = match Served::start(Variant::Auto, MOUNT_BYTES, None) {
        Err(error) if can_mount().is_err() => {
            required::skip(format_args!("a mount: {error}"));
            None
        }
        mount => Some(mount?),
    };
    let mut contestants: Vec<Box<dyn Namespace>> = vec![Box::new(Library::new(files)?)];
    let has_tmpfs = match private_tmpfs::mount(Pages::Default, 1 << 30) {
        Ok(root) => {
            contestants.push(Box::new(Directory::new("tmpfs", root, files)));
            true
        }
        Err(error) if common.check => return Err(error),
        Err(error) => {
            required::skip(format_args!("a peer: {error}"));
            false
        }
    };
    if let Some(mount) = &mount {
        contestants.push(Box::new(Directory::new("mount", mount.open()?, files)));
    }
    cpus::pin(cpus::choose()?[0])?;
    let names = Operation::ALL.map(|operation| operation.name().to_owned());
    let samples = run.interleave(&names, contestants.len(), |round, case, contestant| {
        time(contestants[contestant].as_mut(), Operation::ALL[case], files, round)
    })?;
    let peers: &[&str] = if has_tmpfs { &["tmpfs"] } else { &[] };
    run.begin(Table::new(peers));
    for (name, samples) in names.into_iter().zip(&samples) {
        let peers: Vec<_> = peers.iter().map(|&peer| (peer, &samples[1])).collect();
        run.show(Row::new(name.clone(), "ns/op", &samples[0], &peers));
        if mount.is_some() {
            let mounted = samples.last().expect("the library is always sampled");
            run.show(Row::new(format!("mount/{name}"), "ns/op", mounted, &peers));
        }
    }
    run.show(footprint);
    run.findings = findings(&run.report);
    run.end()
}

/// Operation on every file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Create,
    Stat,
    Rename,
    Readdir,
    Unlink,
}

impl Operation {
    /// In the order of a round: each rests on what the one before left.
    const ALL: [Self; 5] = [Self::Create, Self::Stat, Self::Rename, Self::Readdir, Self::Unlink];

    fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Rename => "rename",
            Self::Readdir => "readdir",
            Self::Unlink => "unlink",
        }
    }
}

/// Does the operation to every file; gives ns per file.
fn time(contestant: &mut dyn Namespace, operation: Operation, files: usize, seed: u64) -> Result<f64, Error> {
    let order = permutation(files, seed);
    let start = Instant::now();
    match operation {
        Operation::Create => (0..files).try_for_each(|file| contestant.create(file))?,
        Operation::Stat => order.iter().try_for_each(|&file| contestant.stat(file as usize))?,
        Operation::Rename => order.iter().try_for_each(|&file| contestant.rename(file as usize))?,
        Operation::Unlink => order.iter().try_for_each(|&file| contestant.unlink(file as usize))?,
        Operation::Readdir => {
            let listed = contestant.readdir()?;
            if listed != files {
                let what = format!("listing the directory on {}", contestant.name());
                let wrong = format!("{listed} entries instead of {files}");
                return Err(Error::system(what, std::io::Error::other(wrong)));
            }
        }
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / files as f64)
}

/// Returns each promised bound beside the number found.
fn findings(report: &Report) -> Vec<Finding> {
    let ratio = |operation: Operation| Finding::ratio(report, operation.name(), "tmpfs", RATIO_MIN);
    let bytes = report.value(footprint::CASE);
    let footprint = Finding::of("bytes of an empty file", bytes, Bound::AtMost(FILE_BYTES_MAX));
    Operation::ALL.into_iter().filter_map(ratio).chain(footprint).collect()
}
