//! Volumes: block devices of a pool, thin.

mod driver;
mod export;
mod lasting;

pub use driver::{VolumeDriver, VolumeQueue};
pub use export::{Claim, Export, clear_dead_exports};
pub use lasting::{LastingExport, lasting_exports};

use crate::pool::{Inner, LOOK_TIME_MAX, Pool};
use crate::{Error, FsError, NodeId, Placement, VolumeError, VolumeStatus};
use homenode_engine::fs::{Asking, Volume as EngineVolume};
use homenode_linux::cpu::current_cpu;
use std::sync::Arc;
use std::time::Instant;

/// A volume: bytes of a fixed number, all zero at first. It takes space of the pool where it is written, by the same monitor
/// as files do, on the node its [`Placement`] says; no directory shows it.
///
/// Clones share it; any number of threads may use it at once. Reads and writes are copies made by the calling thread. Whoever
/// still holds a volume when it is removed holds one of no bytes.
///
/// ```no_run
/// use homenode::{Placement, Pool, PoolOptions};
/// let pool = Pool::create(&PoolOptions::new())?;
/// let volume = pool.create_volume("disk", 1 << 40, Placement::Local)?;
/// volume.write_all_at(b"superblock", 1024)?;
/// volume.discard(0, 1 << 30)?;
/// println!("{} bytes used, by node {:?}", volume.status().used_bytes, volume.map());
/// volume.remove()?;
/// # Ok::<(), homenode::Error>(())
/// ```
#[derive(Clone)]
pub struct Volume {
    pool: Arc<Inner>,
    volume: Arc<EngineVolume>,
}

impl Pool {
    /// Makes a volume of `size_bytes` bytes, whole blocks of 4 KiB. It may be larger than the pool, up to
    /// [`VOLUME_BYTES_MAX`](crate::VOLUME_BYTES_MAX): it takes space as it is written, and who writes when the pool is full
    /// gets ENOSPC.
    ///
    /// Names have 1 to 255 bytes, no slash and no control character, and are not `.` or `..`.
    ///
    /// # Errors
    /// EINVAL for what is no name or no whole blocks, EFBIG for too large a size, EEXIST when the name is taken, ENODEV when the
    /// pool has no member on the node of `placement`, ENOSPC when it has too many files.
    pub fn create_volume(&self, name: &str, size_bytes: u64, placement: Placement) -> Result<Volume, Error> {
        if let Placement::Node(node) = placement {
            self.inner.require_member_on(node)?;
        }
        let made = self.inner.fs.create_volume(name, size_bytes, placement);
        self.handle("create", name, made)
    }

    /// The volume of that name.
    ///
    /// # Errors
    /// ENOENT.
    pub fn volume(&self, name: &str) -> Result<Volume, Error> {
        self.handle("find", name, self.inner.fs.volume(name))
    }

    /// All volumes, by name; where they lie as far as that is found in a fifth of a second.
    #[must_use]
    pub fn volumes(&self) -> Vec<VolumeStatus> {
        let start = Instant::now();
        self.inner.fs.volumes(|| start.elapsed() < LOOK_TIME_MAX)
    }

    fn handle(
        &self,
        operation: &'static str,
        name: &str,
        found: Result<Arc<EngineVolume>, VolumeError>,
    ) -> Result<Volume, Error> {
        match found {
            Ok(volume) => Ok(Volume {
                pool: Arc::clone(&self.inner),
                volume,
            }),
            Err(source) => Err(Error::Volume {
                operation,
                name: name.into(),
                source,
            }),
        }
    }
}

impl Volume {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.volume.name()
    }

    /// Its size now, in bytes; 0 once it is removed.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.volume.size_bytes()
    }

    /// Its size, what it takes, and where, as far as that is found in a fifth of a second; [`Volume::map`] looks at all of it.
    #[must_use]
    pub fn status(&self) -> VolumeStatus {
        let start = Instant::now();
        self.pool
            .fs
            .volume_status(&self.volume, || start.elapsed() < LOOK_TIME_MAX)
    }

    /// Where it lies: bytes on each node, ascending by node, nodes with none left out.
    #[must_use]
    pub fn map(&self) -> Vec<(NodeId, u64)> {
        self.pool.fs.map(self.volume.inode())
    }

    /// Fills `to` from `offset` on (bytes, as all here). What was never written, or was discarded, reads as zeros.
    ///
    /// # Errors
    /// ENXIO beyond its size; `to` may be changed then.
    #[inline]
    pub fn read_at(&self, to: &mut [u8], offset: u64) -> Result<(), Error> {
        if let Some(slot) = self.pool.current_slot()
            && let Ok(true) = self
                .pool
                .fs
                .read_whole(slot, current_cpu, self.volume.inode(), offset, to)
        {
            return Ok(());
        }
        self.asking("read", |asking| {
            self.pool.fs.read_volume(asking, &self.volume, offset, to)
        })
    }

    /// Writes `from` at `offset`. Gives the bytes written: fewer than given only when the pool is full.
    ///
    /// # Errors
    /// ENOSPC when nothing could be written because the pool is full, ENXIO beyond its size.
    #[inline]
    pub fn write_at(&self, from: &[u8], offset: u64) -> Result<usize, Error> {
        if let Some(slot) = self.pool.current_slot()
            && let Ok(true) = self
                .pool
                .fs
                .write_whole(slot, current_cpu, self.volume.inode(), offset, from)
        {
            return Ok(from.len());
        }
        self.asking("write", |asking| {
            self.pool.fs.write_volume(asking, &self.volume, offset, from)
        })
    }

    /// Writes all of `from`; ENOSPC where the pool cannot hold it (a part may be written then).
    ///
    /// # Errors
    /// As [`Volume::write_at`].
    pub fn write_all_at(&self, mut from: &[u8], mut offset: u64) -> Result<(), Error> {
        while !from.is_empty() {
            let bytes = self.write_at(from, offset)?;
            if bytes == 0 {
                return Err(self.failed("write", FsError::NoSpace.into()));
            }
            from = &from[bytes..];
            offset += bytes as u64;
        }
        Ok(())
    }

    /// Gives up `bytes` bytes from `offset` on: whole blocks of them are free at once. All of them read as zeros then.
    ///
    /// # Errors
    /// ENXIO beyond its size.
    pub fn discard(&self, offset: u64, bytes: u64) -> Result<(), Error> {
        self.asking("discard a part of", |asking| {
            self.pool.fs.discard_volume(asking, &self.volume, offset, bytes)
        })
    }

    /// Makes everything written durable. A pool of memory has nothing to do for it.
    ///
    /// # Errors
    /// EIO when a member of a durable pool cannot be written.
    pub fn sync(&self) -> Result<(), Error> {
        self.asking("make durable", |asking| {
            Ok(self.pool.fs.sync(asking.slot, self.volume.inode())?)
        })
    }

    /// Writes `bytes` zeros from `offset` on. It takes no space, and gives none back: what was written before can be written
    /// again, also when the pool is full.
    ///
    /// # Errors
    /// ENXIO beyond its size.
    pub fn zero(&self, offset: u64, bytes: u64) -> Result<(), Error> {
        self.asking("write zeros to", |asking| {
            self.pool.fs.zero_volume(asking, &self.volume, offset, bytes)
        })
    }

    /// Sets its size. What is added reads as zeros; what is cut off must hold no data.
    ///
    /// # Errors
    /// ENOTEMPTY where it does, EBUSY while it is attached, ENOENT when it is removed; for sizes as [`Pool::create_volume`].
    pub fn resize(&self, size_bytes: u64) -> Result<(), Error> {
        self.set_size(size_bytes, false)
    }

    /// Sets its size. Data in what is cut off is lost, its space free at once.
    ///
    /// # Errors
    /// As [`Volume::resize`], but for ENOTEMPTY.
    pub fn resize_discarding(&self, size_bytes: u64) -> Result<(), Error> {
        self.set_size(size_bytes, true)
    }

    /// Removes it; its space is free at once.
    ///
    /// # Errors
    /// EBUSY while it is attached, ENOENT when it is removed already.
    pub fn remove(self) -> Result<(), Error> {
        let removed = self.pool.fs.remove_volume(&self.volume);
        removed.map_err(|source| self.failed("remove", source))
    }

    fn set_size(&self, size_bytes: u64, may_discard: bool) -> Result<(), Error> {
        let resized = self.pool.fs.resize_volume(&self.volume, size_bytes, may_discard);
        resized.map_err(|source| self.failed("resize", source))
    }

    #[inline(never)]
    fn asking<R: Default>(
        &self,
        operation: &'static str,
        run: impl FnMut(&Asking<'_>) -> Result<R, VolumeError>,
    ) -> Result<R, Error> {
        let done = self.pool.asking(run);
        done.map_err(|source| self.failed(operation, source))
    }

    #[cold]
    fn failed(&self, operation: &'static str, source: VolumeError) -> Error {
        Error::Volume {
            operation,
            name: self.name().into(),
            source,
        }
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume")
            .field("name", &self.name())
            .field("size_bytes", &self.size_bytes())
            .finish_non_exhaustive()
    }
}
