//! Contestants on one kind of disk: a pool with a cache, filesystems with the page cache, and a bare disk.

use crate::durable::disk::{self, Disk, Loop};
use crate::error::{During, Error};
use crate::place::Place;
use crate::populated;
use crate::private_tmpfs::{self, Pages};
use crate::required;
use homenode::{Pool, PoolOptions};
use rustix::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

pub(super) const BLOCK: usize = 4096;
pub(super) const MEBIBYTE: usize = 1 << 20;
/// Files of each contestant. Each block of the first starts with its own number, and one.
pub(super) const STAMPED: &str = "stamped";
pub(super) const CHANGED: &str = "changed";

/// Kinds of disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    /// Loop devices with direct I/O on a tmpfs of huge pages.
    Fast,
    /// Files on the machine's own disk: past the page cache for the pool, through it for their filesystem.
    Own,
}

impl Kind {
    pub(super) const ALL: [Self; 2] = [Self::Fast, Self::Own];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Own => "own",
        }
    }
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) disk: usize,
    /// A power of two.
    pub(super) bare: usize,
    pub(super) stamped: usize,
    pub(super) changed: usize,
    /// A file that all caches hold: the first bytes of the stamped one.
    pub(super) hot: usize,
    /// A cache that holds all of both files, a tenth of which is more than the changed one.
    pub(super) large_cache: usize,
    /// A cache that holds some of the stamped file.
    pub(super) medium_cache: usize,
    /// A cache that holds so little of the stamped file that whoever reads it from one end to the other finds nothing there.
    pub(super) small_cache: usize,
}

impl Sizes {
    pub(super) const FULL: Self = Self {
        disk: 1280 * MEBIBYTE,
        bare: 1024 * MEBIBYTE,
        stamped: 640 * MEBIBYTE,
        changed: 256 * MEBIBYTE,
        hot: 256 * MEBIBYTE,
        large_cache: 3072 * MEBIBYTE,
        medium_cache: 256 * MEBIBYTE,
        small_cache: 64 * MEBIBYTE,
    };
    pub(super) const SMOKE: Self = Self {
        disk: 320 * MEBIBYTE,
        bare: 64 * MEBIBYTE,
        stamped: 64 * MEBIBYTE,
        changed: 16 * MEBIBYTE,
        hot: 16 * MEBIBYTE,
        large_cache: 192 * MEBIBYTE,
        medium_cache: 32 * MEBIBYTE,
        small_cache: 4 * MEBIBYTE,
    };
}

/// Everybody who takes part.
pub(super) struct Stage {
    pub(super) kind: Kind,
    pub(super) sizes: Sizes,
    /// A file or device as large as it is bare, which nobody else uses.
    pub(super) bare: PathBuf,
    /// Filesystems: their names, and a directory in each.
    pub(super) peers: Vec<(&'static str, Place)>,
    member: PathBuf,
    _loops: Vec<Loop>,
    _disks: Vec<Disk>,
    _own: TempDir,
    _tmpfs: Option<OwnedFd>,
}

impl Stage {
    /// Makes disks and filesystems, the pool, and everybody's files.
    pub(super) fn new(kind: Kind, sizes: Sizes, directory: &Path) -> Result<Self, Error> {
        println!("making pools and filesystems on disks of the kind {}", kind.name());
        let tmpfs = match kind {
            Kind::Fast => Some(private_tmpfs::mount(Pages::Huge, 4 * sizes.disk as u64)?),
            Kind::Own => None,
        };
        let root = tmpfs.as_ref().map_or(directory.to_owned(), |tmpfs| {
            // For other processes too, as losetup.
            PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), tmpfs.as_raw_fd()))
        });
        let own = tempfile::Builder::new().prefix("homenode-bench-").tempdir_in(&root);
        let own = own.during(format_args!("making a directory in {}", root.display()))?;
        let [member, bare] = ["member", "bare"].map(|name| own.path().join(name));
        disk::write_zeros(&bare, sizes.bare)?;
        disk::member(&member, sizes.disk as u64)?;
        let mut stage = Self {
            kind,
            sizes,
            bare,
            peers: Vec::new(),
            member,
            _loops: Vec::new(),
            _disks: Vec::new(),
            _own: own,
            _tmpfs: tmpfs,
        };
        match kind {
            Kind::Fast => stage.bring_up(&root)?,
            Kind::Own => stage
                .peers
                .push(("file", Place::Directory(stage._own.path().to_owned()))),
        }
        let options = PoolOptions {
            direct: true,
            ..PoolOptions::new().cache(sizes.medium_cache as u64)
        };
        let pool =
            Pool::create_on(std::slice::from_ref(&stage.member), &options).map_err(Error::library("making a pool"))?;
        let pool = Place::Pool(pool);
        for place in stage.peers.iter().map(|(_, place)| place).chain([&pool]) {
            fill(place, &sizes)?;
        }
        stage.close(pool)?;
        Ok(stage)
    }

    fn bring_up(&mut self, root: &Path) -> Result<(), Error> {
        for path in [&mut self.member, &mut self.bare] {
            let device = Loop::new(path)?;
            *path = device.path().to_owned();
            self._loops.push(device);
        }
        for kind in ["ext4", "xfs"] {
            let has_mkfs = Command::new(format!("mkfs.{kind}")).arg("-V").output().is_ok();
            if kind != "ext4" && !has_mkfs {
                required::skip(format_args!("{kind}: there is no mkfs.{kind}"));
                continue;
            }
            let disk = Disk::new(root, kind, self.sizes.disk)?;
            self.peers.push((kind, Place::Directory(disk.root().to_owned())));
            self._disks.push(disk);
        }
        Ok(())
    }

    /// Opens the pool with a cache of so many bytes.
    pub(super) fn pool(&self, cache: usize) -> Result<Place, Error> {
        let options = PoolOptions::new().cache(cache as u64);
        let pool = Pool::open_on(std::slice::from_ref(&self.member), &options);
        pool.map(Place::Pool).map_err(Error::library("opening a pool"))
    }

    /// Puts a pool away.
    pub(super) fn close(&self, pool: Place) -> Result<(), Error> {
        match pool {
            Place::Pool(pool) => pool.put_away().map_err(Error::library("putting a pool away")),
            Place::Directory(_) => Ok(()),
        }
    }

    /// A pool of memory with the same files.
    pub(super) fn volatile(&self) -> Result<Place, Error> {
        let bytes = (self.sizes.stamped + self.sizes.changed) / 8 * 9;
        let pool = populated::pool(bytes as u64, None).map_err(Error::library("making a pool of memory"))?;
        let pool = Place::Pool(pool);
        fill(&pool, &self.sizes)?;
        Ok(pool)
    }
}

fn fill(place: &Place, sizes: &Sizes) -> Result<(), Error> {
    let mut bytes = vec![0; MEBIBYTE];
    for (name, length) in [(STAMPED, sizes.stamped), (CHANGED, sizes.changed)] {
        let file = place.create(name)?;
        for at in (0..length).step_by(MEBIBYTE) {
            for (nth, block) in bytes.chunks_exact_mut(BLOCK).enumerate() {
                block[..8].copy_from_slice(&stamp((at / BLOCK + nth) as u64).to_le_bytes());
            }
            file.write(&bytes, at as u64)?;
        }
        file.sync()?;
    }
    Ok(())
}

/// First word of a block of the stamped file.
pub(super) fn stamp(block: u64) -> u64 {
    block + 1
}
