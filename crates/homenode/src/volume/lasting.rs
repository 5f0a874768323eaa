//! Block devices of durable pools' volumes: they outlive the process that serves them.

use super::export::claim;
use super::{Claim, Export, Volume};
use crate::{Error, Pool};
use homenode_linux::ublk::{self, Added, Lasting, Origin};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A block device that outlives its server, of this process or any other.
#[derive(Debug)]
pub struct LastingExport(Lasting);

/// All block devices of this machine that outlive their servers. Empty where the kernel may not be asked (not root).
#[must_use]
pub fn lasting_exports() -> Vec<LastingExport> {
    ublk::lasting_devices().into_iter().map(LastingExport).collect()
}

impl LastingExport {
    /// The block device.
    #[must_use]
    pub fn device(&self) -> &Path {
        self.0.disk()
    }

    /// Identity of the pool that the device's volume is of. `None`: nobody knows.
    #[must_use]
    pub fn pool(&self) -> Option<u128> {
        self.0.origin().map(|origin| origin.pool)
    }

    /// Name of the volume.
    #[must_use]
    pub fn volume(&self) -> Option<&str> {
        self.0.origin().map(|origin| &*origin.volume)
    }

    /// Whether it is of this volume, and not of one of the same name that was removed.
    #[must_use]
    pub fn is_of(&self, volume: &Volume) -> bool {
        let own = volume.origin("");
        self.0.origin().is_some_and(|origin| {
            (origin.pool, &origin.volume) == (own.pool, &own.volume) && [None, own.number].contains(&origin.number)
        })
    }

    /// Whether nothing was lost of the device's pool while the device was served, and since: the volume has all that was written to the device. Ask
    /// before [`Volume::take_up`], as filesystems do not survive a disk that goes on without some writes.
    #[must_use]
    pub fn is_complete_in(&self, pool: &Pool) -> bool {
        let history = pool.inner.fs.history();
        self.0.origin().is_some_and(|origin| Some(origin.history) == history)
    }

    /// Whether a pool of `files` is another one than the device's, whose members are all there still: a server of theirs can take the device up.
    #[must_use]
    pub fn is_beside(&self, files: &[PathBuf]) -> bool {
        self.0.origin().is_some_and(|origin| origin.is_beside(files))
    }

    /// Directory where the pool was mounted.
    #[must_use]
    pub fn directory(&self) -> Option<&str> {
        self.0.origin().map(|origin| &*origin.directory)
    }

    /// Whether it is known that it has ended, so that its users got errors.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// Whether it had no server when it was found, so that its users waited.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.0.is_waiting()
    }

    /// Bytes of the device, which stay what they were when the volume changes its size.
    ///
    /// # Errors
    /// [`Error::Leftover`] when the kernel does not tell.
    pub fn bytes(&self) -> Result<u64, Error> {
        self.0.bytes().map_err(|source| Error::Leftover(Box::new(source)))
    }

    /// Claims as [`Export::claim`] does.
    ///
    /// # Errors
    /// Result of opening it.
    pub fn claim(&self) -> io::Result<Option<Claim>> {
        claim(self.device())
    }

    /// Ends it while it waits: its users get errors.
    ///
    /// # Errors
    /// [`Error::Leftover`], also when it has a server again.
    pub fn end(&self) -> Result<(), Error> {
        self.0.end().map_err(|source| Error::Leftover(Box::new(source)))
    }
}

impl Export {
    /// Notes the members that the volume's pool has now, by which the next server knows a device that outlives this one. To be called when a member has come
    /// or gone. `directory` is where the pool is mounted.
    ///
    /// # Errors
    /// [`Error::Leftover`].
    pub fn note_members(&self, volume: &Volume, directory: &str) -> Result<(), Error> {
        if volume.pool.fs.uuid().is_none() {
            return Ok(());
        }
        let noted = self.server.note(&volume.origin(directory));
        noted.map_err(|source| Error::Leftover(Box::new(source)))
    }
}

impl Volume {
    /// Exports as [`Volume::export`] does, for a volume of a durable pool: when this process dies, users of the device wait until a process that has the pool
    /// open calls [`Volume::take_up`], and what was under way is carried out again. The kernel must be able to do that, else the device is as any
    /// other, as it is in a pool with disks: what was written is lost with this process there. `directory` is where the pool is mounted, for people.
    ///
    /// # Errors
    /// The errors of [`Volume::export`].
    ///
    /// # Panics
    /// When the pool is not durable.
    pub fn export_lasting(&self, trace: Option<File>, directory: &str) -> Result<Export, Error> {
        if self.pool.fs.reads_disks() {
            return self.export(trace);
        }
        self.need_slots()?;
        let origin = self.origin(directory);
        self.export_by(trace, || Added::lasting(origin))
    }

    /// Serves a device of this volume whose server is gone: its users go on. `trace` is as for [`Volume::export`].
    ///
    /// # Errors
    /// The errors of [`Volume::export`]. The device's users go on waiting, but with Linux before 6.16 it may have to end.
    ///
    /// # Panics
    /// When the device is of another volume, or not [complete](LastingExport::is_complete_in).
    pub fn take_up(&self, device: &LastingExport, trace: Option<File>, directory: &str) -> Result<Export, Error> {
        let origin = self.origin(directory);
        assert!(device.is_of(self), "the device belongs to another volume");
        let noted = device.0.origin().map(|noted| noted.history);
        assert_eq!(noted, Some(origin.history), "the volume lacks what was written");
        self.export_by(trace, || device.0.take_up(origin))
    }

    fn origin(&self, directory: &str) -> Origin {
        let inner = Arc::clone(&self.pool);
        let files = Pool { inner }.files();
        Origin {
            pool: self.pool.fs.uuid().expect("a durable pool"),
            volume: self.name().to_owned(),
            number: Some(self.volume.inode().ino().0),
            history: self.pool.fs.history().expect("a durable pool"),
            directory: directory.to_owned(),
            members: files.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
        }
    }
}
