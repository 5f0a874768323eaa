//! Stage of the demo: two mounts, the library's pools, two tmpfs, and the directory that holds the mounts.
//!
//! Dropping the stage takes all of them down.

use super::case::Contestant;
use super::fio::{Entrant, FILES};
use super::in_process::{AnyFile, Loop};
use super::interrupt::Interrupt;
use super::outcome::{Absent, Files, Outcome, PoolReport, PoolState, TransportTaken};
use super::place::Directory;
use super::server::Served;
use super::steps::Step;
use super::tmpfs::Attached;
use super::{DemoArgs, JOBS_MAX};
use super::{place, placement, tmpfs};
use crate::failure::{Failure, Result, fail};
use crate::mountinfo::shown;
use crate::run;
use crate::topology::human_bytes;
use homenode::{Data, Pool, PoolOptions, Size};
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
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

// Fields are dropped in this order: descriptors on the mounts, the mounts, the directory.
/// Everything that is up.
#[derive(Debug)]
pub(super) struct Stage {
    /// Root directories by contestant, kept open.
    roots: BTreeMap<Contestant, OwnedFd>,
    mounts: BTreeMap<Contestant, Served>,
    library: Pool,
    cached: Option<Pool>,
    /// Library of `homenode run`, if there is a mount for it.
    preloaded: Option<PathBuf>,
    directory: Directory,
    pub(super) size_per_node: u64,
    pub(super) file_bytes: u64,
}

impl Stage {
    /// Sets everything up. Who cannot take part is noted in `outcome`.
    pub(super) fn set(args: &DemoArgs, outcome: &mut Outcome, interrupt: &Interrupt) -> Result<Self> {
        let size_per_node = size_per_node(args, outcome)?;
        let file_bytes = (size_per_node / FILES_PER_MEMBER).min(FILE_BYTES_MAX) >> 20 << 20;
        outcome.settings.size_per_node_bytes = size_per_node;
        outcome.settings.file_bytes = file_bytes;
        let directory = Directory::prepare(args.directory.as_deref())?;
        let step = Step::begin("bringing up pools, mounts and tmpfs", 1);
        let library = Pool::create(&PoolOptions::new().size_per_node(Size::Bytes(size_per_node)))?;
        let mut stage = Self {
            roots: BTreeMap::new(),
            mounts: BTreeMap::new(),
            library,
            cached: None,
            preloaded: None,
            directory,
            size_per_node,
            file_bytes,
        };
        for contestant in Contestant::MOUNTS {
            stage.mount(contestant, outcome, interrupt)?;
        }
        let found = match stage.mounts.contains_key(&Contestant::Kernel) {
            true => run::library(),
            false => Err(Failure::new("it needs a mount whose files are the kernel's")),
        };
        match found {
            Ok(library) => stage.preloaded = Some(library),
            Err(failure) => outcome.absent.push(Absent {
                contestant: Contestant::Run,
                reason: failure.to_string(),
            }),
        }
        let bytes = stage.library.status().capacity_bytes;
        for contestant in Contestant::PEERS {
            let huge = contestant == Contestant::TmpfsHuge;
            match tmpfs::mount(bytes, huge) {
                Ok(root) => drop(stage.roots.insert(contestant, root)),
                // A kernel without huge pages, not an error of the demo.
                Err(error) if huge => outcome.absent.push(Absent {
                    contestant,
                    reason: format!("the kernel refuses a tmpfs with huge=always: {error}"),
                }),
                Err(error) => fail!("cannot mount a tmpfs to compare with: {error}"),
            }
        }
        match stage.pool_on_disk() {
            Ok(pool) => stage.cached = Some(pool),
            Err(failure) => outcome.absent.push(Absent {
                contestant: Contestant::Cached,
                reason: failure.to_string(),
            }),
        }
        drop(step);
        Ok(stage)
    }

    /// A pool in a file without a name, past the page cache, all of which fits into its cache. The directory may lie on no disk at all.
    fn pool_on_disk(&self) -> Result<Pool> {
        let bytes = (self.file_bytes * JOBS_MAX as u64 * 2).max(DISK_BYTES_MIN);
        let path = self.directory.path.join(place::DISK);
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

    fn mount(&mut self, contestant: Contestant, outcome: &mut Outcome, interrupt: &Interrupt) -> Result<()> {
        let (wanted, name) = match contestant {
            Contestant::Kernel => (Data::Kernel, place::KERNEL),
            _ => (Data::Pool, place::POOL),
        };
        let started = Served::start(&self.directory.path.join(name), wanted, self.size_per_node, interrupt);
        interrupt.check()?;
        let reason = match started {
            Ok(served) => {
                outcome.transports.push(TransportTaken {
                    contestant,
                    reason: served.reason.clone(),
                });
                self.roots.insert(contestant, served.root()?);
                self.mounts.insert(contestant, served);
                return Ok(());
            }
            Err(failure) if wanted == Data::Kernel => failure.to_string(),
            Err(failure) => return Err(failure),
        };
        outcome.absent.push(Absent { contestant, reason });
        Ok(())
    }

    /// Returns contestants whose files have paths, with these paths.
    pub(super) fn roots(&self) -> impl Iterator<Item = (Contestant, PathBuf)> {
        let process = std::process::id();
        // By number: it works from other processes, and no name of a directory can upset fio. The dot makes it a directory
        // for those who do not follow links.
        let path = move |root: &OwnedFd| PathBuf::from(format!("/proc/{process}/fd/{}/.", root.as_raw_fd()));
        self.roots
            .iter()
            .map(move |(&contestant, root)| (contestant, path(root)))
    }

    /// Where everyone who gets copies of trees has them. By real paths: rsync takes those of descriptors apart. With it what
    /// must live as long.
    pub(super) fn places_of_trees(&self) -> Result<(Vec<(Contestant, PathBuf)>, Attached)> {
        let Some(tmpfs) = self.roots.get(&Contestant::Tmpfs) else {
            fail!("there is no tmpfs to compare with");
        };
        let attached = Attached::new(tmpfs, &self.directory.path.join(place::TMPFS))?;
        let mut places = vec![(Contestant::Tmpfs, attached.path.clone())];
        places.extend(
            self.mounts
                .iter()
                .map(|(&contestant, served)| (contestant, served.directory.clone())),
        );
        Ok((places, attached))
    }

    /// Who takes part in fio's runs; the mounts also past the page cache.
    pub(super) fn entrants(&self) -> Vec<Entrant> {
        let mut entrants = Vec::new();
        for (contestant, directory) in self.roots() {
            let buffered = Entrant {
                contestant,
                directory,
                direct: false,
                library: None,
            };
            if contestant.is_ours() {
                entrants.push(Entrant {
                    direct: true,
                    ..buffered.clone()
                });
            }
            if contestant == Contestant::Kernel && self.preloaded.is_some() {
                entrants.push(Entrant {
                    contestant: Contestant::Run,
                    library: self.preloaded.clone(),
                    ..buffered.clone()
                });
            }
            entrants.push(buffered);
        }
        entrants
    }

    /// Files for the loop inside this process, filled, for each who takes part in it.
    pub(super) fn loop_files(&self, within: &Loop) -> Result<Vec<(Contestant, Vec<AnyFile>)>> {
        let mut files = Vec::new();
        for (contestant, directory) in self.roots().filter(|(contestant, _)| !contestant.is_ours()) {
            files.push((contestant, within.open(&directory)?));
        }
        files.push((Contestant::Library, within.lay_out(&self.library)?));
        if let Some(pool) = &self.cached {
            files.push((Contestant::Cached, within.lay_out(pool)?));
        }
        Ok(files)
    }

    /// Waits until no pool populates memory in the background.
    pub(super) fn settle(&mut self, interrupt: &Interrupt) -> Result<()> {
        self.library.wait_populated()?;
        for served in self.mounts.values_mut() {
            served.state(interrupt)?;
        }
        Ok(())
    }

    /// Notes where everything lies, and who reached it from where.
    pub(super) fn look(&mut self, outcome: &mut Outcome, interrupt: &Interrupt) -> Result<()> {
        let step = Step::begin("looking where bytes lie", 1);
        let roots: Vec<_> = self.roots().filter(|(contestant, _)| contestant.is_ours()).collect();
        for (contestant, root) in roots {
            let mut files = files_on(&root, outcome)?;
            let write = |name: &str, bytes: &[u8]| fs::write(root.join(name), bytes);
            let locate = |name: &str| placement::bytes_by_node(&root.join(name));
            files.extend(placement::write_from_each_node(&outcome.topology, &write, &locate)?);
            if let Some(served) = self.mounts.get_mut(&contestant) {
                let state = served.state(interrupt)?;
                outcome.pools.push(PoolReport {
                    contestant,
                    state,
                    files,
                });
            }
        }
        outcome.pools.push(self.library_report(outcome)?);
        drop(step);
        Ok(())
    }

    fn library_report(&self, outcome: &Outcome) -> Result<PoolReport> {
        let pool = &self.library;
        let map = |name: &str| -> Result<BTreeMap<u16, u64>> {
            let file = pool.open(name, &homenode::OpenOptions::new().read(true))?;
            Ok(file.map().into_iter().map(|(node, bytes)| (node.0, bytes)).collect())
        };
        let mut sum = BTreeMap::new();
        for job in 0..super::JOBS_MAX {
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
            state: PoolState::of(&pool.status()),
            files,
        })
    }
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
        for job in 0..super::JOBS_MAX {
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
