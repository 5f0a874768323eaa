//! Stage of the demo: two mounts, the library's pools, two tmpfs, and the directory that holds the mounts.
//!
//! Dropping the stage takes all of them down.

use super::contestants::Contestant;
use super::fio::{Entrant, FILES};
use super::in_process::{Call, Loop};
use super::outcome::{Absent, Files, Outcome, PoolReport, TransportTaken};
use super::place::{Directory, mount_tmpfs};
use super::server::Served;
use super::{DemoArgs, JOBS_MAX};
use super::{interrupt, placement};
use crate::failure::{Failure, Result, fail};
use crate::mountinfo::shown;
use crate::progress::Progress;
use crate::run;
use crate::topology::human_bytes;
use homenode::{Data, Pool, PoolOptions, Size};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Largest file that is read and written at random: larger than most caches.
const FILE_BYTES_MAX: u64 = 128 << 20;
/// A mount has four files, which may all lie on one node, and trees want room too.
const FILES_PER_MEMBER: u64 = 8;
const SIZE_PER_NODE_MAX: u64 = 1 << 30;
/// Divisor of a node's memory for the size per node: three pools, two tmpfs and the page cache share it.
const SHARE_OF_NODE: u64 = 8;
/// Room for a pool's log beside small files.
const DISK_BYTES_MIN: u64 = 64 << 20;
/// Enough for files of a few megabytes.
const SIZE_PER_NODE_MIN: u64 = 32 << 20;

// Fields are dropped in this order: the mounts, then the directory.
/// Everything that is up.
#[derive(Debug)]
pub(super) struct Stage {
    mounts: BTreeMap<Contestant, Served>,
    /// Names of mount points in the directory.
    roots: BTreeMap<Contestant, &'static str>,
    library: Pool,
    cached: Option<Pool>,
    /// Library of `homenode run`, if there is a mount for it.
    pub(super) preloaded: Option<PathBuf>,
    pub(super) directory: Directory,
    pub(super) size_per_node: u64,
    pub(super) file_bytes: u64,
}

impl Stage {
    /// Sets everything up. Who cannot take part is noted in `outcome`. The demo still reaches the paths in `needed`.
    pub(super) fn set(args: &DemoArgs, needed: &[PathBuf], outcome: &mut Outcome) -> Result<Self> {
        let size_per_node = size_per_node(args, outcome)?;
        let file_bytes = (size_per_node / FILES_PER_MEMBER).min(FILE_BYTES_MAX) >> 20 << 20;
        outcome.settings.size_per_node_bytes = size_per_node;
        outcome.settings.file_bytes = file_bytes;
        let directory = Directory::prepare(args.directory.as_deref())?;
        let _step = Progress::step("bringing up pools, mounts and tmpfs", 1);
        let mut absent = |contestant, reason| outcome.absent.push(Absent { contestant, reason });
        let cached = pool_on_disk(&directory.path, file_bytes);
        let cached = cached.map_err(|failure| absent(Contestant::Cached, failure.to_string()));
        directory.cover(needed)?;
        let mut stage = Self {
            mounts: BTreeMap::new(),
            roots: BTreeMap::new(),
            library: Pool::create(&PoolOptions::new().size_per_node(Size::Bytes(size_per_node)))?,
            cached: cached.ok(),
            preloaded: None,
            directory,
            size_per_node,
            file_bytes,
        };
        for (contestant, name, data) in [
            (Contestant::Kernel, "kernel", Data::Kernel),
            (Contestant::Pool, "pool", Data::Pool),
        ] {
            interrupt::check()?;
            let root = stage.directory.make(name)?;
            match Served::start(&root, data, size_per_node) {
                Ok(served) => {
                    outcome.transports.push(TransportTaken {
                        contestant,
                        reason: served.transport()?,
                    });
                    stage.roots.insert(contestant, name);
                    stage.mounts.insert(contestant, served);
                }
                Err(failure) if data == Data::Kernel => absent(contestant, failure.to_string()),
                Err(failure) => return Err(failure),
            }
        }
        let found = match stage.mounts.contains_key(&Contestant::Kernel) {
            true => run::library(),
            false => Err(Failure::new("it needs a mount whose files are the kernel's")),
        };
        let found = found.map_err(|failure| absent(Contestant::Run, failure.to_string()));
        stage.preloaded = found.ok();
        let bytes = stage.library.status().capacity_bytes;
        for (contestant, name, options) in [
            (Contestant::Tmpfs, "tmpfs", ""),
            (Contestant::TmpfsHuge, "huge", ",huge=always"),
        ] {
            let root = stage.directory.make(name)?;
            match mount_tmpfs(&root, bytes, options) {
                Ok(()) => drop(stage.roots.insert(contestant, name)),
                // A kernel without huge pages, not an error of the demo.
                Err(error) if contestant == Contestant::TmpfsHuge => absent(
                    contestant,
                    format!("the kernel refuses a tmpfs with huge=always: {error}"),
                ),
                Err(error) => fail!("cannot mount a tmpfs to compare with: {error}"),
            }
        }
        stage.settle()?;
        Ok(stage)
    }

    /// Returns contestants whose files have paths, with the roots of these.
    pub(super) fn roots(&self) -> impl Iterator<Item = (Contestant, PathBuf)> {
        self.roots
            .iter()
            .map(|(&contestant, name)| (contestant, self.directory.path.join(name)))
    }

    /// Who takes part in fio's runs; the mounts also past the page cache.
    pub(super) fn entrants(&self) -> Vec<Entrant> {
        let mut entrants = Vec::new();
        for (&contestant, &directory) in &self.roots {
            let mut add = |contestant, direct| {
                entrants.push(Entrant {
                    contestant,
                    directory,
                    direct,
                });
            };
            if contestant.is_ours() {
                add(contestant, true);
            }
            if contestant == Contestant::Kernel && self.preloaded.is_some() {
                add(Contestant::Run, false);
            }
            add(contestant, false);
        }
        entrants
    }

    /// Files for the loop inside this process, filled, for each who takes part in it.
    pub(super) fn loop_files(&self, within: &Loop) -> Result<Vec<(Contestant, Vec<Call>)>> {
        let mut files = Vec::new();
        for (contestant, root) in self.roots().filter(|(contestant, _)| !contestant.is_ours()) {
            files.push((contestant, within.open(&root)?));
        }
        files.push((Contestant::Library, within.lay_out(&self.library)?));
        if let Some(pool) = &self.cached {
            files.push((Contestant::Cached, within.lay_out(pool)?));
        }
        Ok(files)
    }

    /// Waits until no pool populates memory in the background.
    pub(super) fn settle(&self) -> Result<()> {
        self.library.wait_populated()?;
        self.mounts.values().try_for_each(|served| served.state().map(drop))
    }

    /// Notes where everything lies, and who reached it from where.
    pub(super) fn look(&self, outcome: &mut Outcome) -> Result<()> {
        let _step = Progress::step("looking where bytes lie", 1);
        for (&contestant, served) in &self.mounts {
            let root = &served.directory;
            let mut files = files_on(root, outcome)?;
            let write = |name: &str, bytes: &[u8]| fs::write(root.join(name), bytes);
            let locate = |name: &str| placement::bytes_by_node(&root.join(name));
            files.extend(placement::write_from_each_node(&outcome.topology, &write, &locate)?);
            outcome.pools.push(PoolReport {
                contestant,
                state: served.state()?,
                files,
            });
        }
        outcome.pools.push(self.library_report(outcome)?);
        Ok(())
    }

    fn library_report(&self, outcome: &Outcome) -> Result<PoolReport> {
        let pool = &self.library;
        let map = |name: &str| -> Result<BTreeMap<u16, u64>> {
            let file = pool.open(name, &homenode::OpenOptions::new().read(true))?;
            Ok(file.map().into_iter().map(|(node, bytes)| (node.0, bytes)).collect())
        };
        let mut sum = BTreeMap::new();
        for job in 0..JOBS_MAX {
            for (node, bytes) in map(&format!("{}{job}", FILES[0]))? {
                *sum.entry(node).or_default() += bytes;
            }
        }
        let mut files = vec![Files {
            what: "files of the loop".to_owned(),
            written_from: None,
            bytes_by_node: sum,
        }];
        let write =
            |name: &str, bytes: &[u8]| -> io::Result<()> { Ok(pool.create_file(name)?.write_all_at(bytes, 0)?) };
        files.extend(placement::write_from_each_node(&outcome.topology, &write, &map)?);
        Ok(PoolReport {
            contestant: Contestant::Library,
            state: pool.status(),
            files,
        })
    }
}

/// A pool in a file without a name, past the page cache, all of which fits into its cache. The directory may lie on no disk at all.
fn pool_on_disk(directory: &Path, file_bytes: u64) -> Result<Pool> {
    let bytes = (file_bytes * JOBS_MAX as u64 * 2).max(DISK_BYTES_MIN);
    let path = directory.join("disk");
    let cannot = |error: io::Error| Failure::new(format!("cannot make {}: {error}", shown(&path)));
    let mut options = PoolOptions::new().cache(bytes);
    options.direct = true;
    let made = fs::File::create_new(&path).and_then(|file| file.set_len(bytes));
    let pool = made
        .map_err(cannot)
        .and_then(|()| Ok(Pool::create_on(std::slice::from_ref(&path), &options)?));
    fs::remove_file(&path).map_err(cannot)?;
    pool
}

/// Where a mount's trees and fio's files lie.
fn files_on(root: &Path, outcome: &Outcome) -> Result<Vec<Files>> {
    let mut files = Vec::new();
    for (index, tree) in outcome.trees.iter().enumerate() {
        files.push(Files {
            what: format!("copy of {}", tree.path),
            written_from: None,
            bytes_by_node: placement::bytes_by_node(&root.join(tree_name(index)))?,
        });
    }
    let mut sum: BTreeMap<u16, u64> = BTreeMap::new();
    for name in FILES {
        for job in 0..JOBS_MAX {
            for (node, bytes) in placement::bytes_by_node(&root.join(format!("{name}{job}")))? {
                *sum.entry(node).or_default() += bytes;
            }
        }
    }
    files.push(Files {
        what: "files of fio".to_owned(),
        written_from: None,
        bytes_by_node: sum,
    });
    Ok(files)
}

/// The directory that the copy of a tree gets.
pub(super) fn tree_name(index: usize) -> String {
    format!("tree{index}")
}

/// Whether mounts are possible, before anything else is asked of a person.
pub(super) fn check_rights() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        fail!("homenode demo needs root, because it mounts filesystems: run it with sudo");
    }
    if !Path::new("/dev/fuse").exists() {
        fail!("there is no /dev/fuse: load the kernel's fuse module (modprobe fuse), or give the container the device");
    }
    Ok(())
}

fn size_per_node(args: &DemoArgs, outcome: &Outcome) -> Result<u64> {
    let memories = outcome.topology.nodes().iter().map(|node| node.memory_bytes);
    let Some(smallest) = memories.filter(|&bytes| bytes > 0).min() else {
        fail!("no node has memory");
    };
    let bytes = match args.size_per_node {
        Some(size) => size.bytes_of(smallest),
        None => SIZE_PER_NODE_MAX.min(smallest / SHARE_OF_NODE),
    };
    if bytes < SIZE_PER_NODE_MIN {
        fail!(
            "{} on each node would be too little to show anything: give at least --size-per-node {}",
            human_bytes(bytes),
            Size::Bytes(SIZE_PER_NODE_MIN)
        );
    }
    Ok(bytes)
}
