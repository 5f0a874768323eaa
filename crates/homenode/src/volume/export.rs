//! A volume as a block device of the kernel: `/dev/ublkbN`, served by threads of this process through the block layer.

mod trace;

use super::Volume;
use super::driver::VolumeDriver;
use crate::blk::trace::Recorder;
use crate::blk::{Device, Options};
use crate::{Error, NodeId};
use homenode_linux::ublk::{self, Added, Server, Setup};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use trace::TraceWriter;

/// A volume that is a block device. While it is, the volume keeps its size and cannot be removed; dropping this ends it, also under its
/// users: they get errors then, as they do when this process dies, but see [`Volume::export_lasting`].
#[derive(Debug)]
pub struct Export {
    name: Box<str>,
    pub(super) server: Server,
    trace: Option<TraceWriter>,
}

/// The device, opened for this use alone: nobody mounts it meanwhile.
#[derive(Debug)]
pub struct Claim {
    _file: File,
}

/// Slots that are left to threads besides those of queues.
const SLOTS_FOR_OTHERS: usize = 256;

impl Volume {
    /// Makes it a block device of the kernel, with a queue for each CPU: a thread that is bound to it, and memory of its node. The
    /// kernel must allow it: root only.
    ///
    /// With `trace`, each request is written there in the form of [`crate::blk::trace`].
    ///
    /// # Errors
    /// EBUSY when it is attached already, ENOENT when it is removed; [`Error::TooManyDevices`]; [`Error::Export`] when the kernel has no ublk driver, or
    /// refuses. Nothing is left behind then.
    pub fn export(&self, trace: Option<File>) -> Result<Export, Error> {
        self.need_slots()?;
        self.export_by(trace, Added::new)
    }

    /// Refuses a device whose queues would take the slots that other threads of the pool need: these would wait for each other.
    pub(super) fn need_slots(&self) -> Result<(), Error> {
        // A queue for each CPU, as many rings of a mount, and threads of a program.
        let cpus = self.pool.machine.engine.cpu_nodes.len();
        if self.pool.fs.slots().left() < 2 * cpus + SLOTS_FOR_OTHERS {
            return Err(Error::TooManyDevices(self.name().into()));
        }
        Ok(())
    }

    /// Serves the device that `add` gives.
    pub(super) fn export_by(
        &self,
        trace: Option<File>,
        add: impl FnOnce() -> Result<Added, ublk::Error>,
    ) -> Result<Export, Error> {
        let attached = self.hold()?;
        self.exported(|failed| {
            let added = add().map_err(failed)?;
            let pool = &self.pool;
            // A queue without a CPU is the first node's: every machine has one.
            let nodes = pool.fs.pool();
            let home = |cpus: &Vec<_>| cpus.first().map_or(nodes.nodes()[0], |cpu| nodes.cpu_node(*cpu));
            let homes: Vec<NodeId> = added.queue_cpus().iter().map(home).collect();
            let buffers = added.buffers(&homes).map_err(failed)?;
            let queue_homes: Vec<_> = homes.iter().copied().map(Some).collect();
            let driver = VolumeDriver::new(attached, Arc::clone(&buffers), &queue_homes);
            // Each node has as many queues as cores: nobody goes to another one's.
            let device = Device::new(&driver, &homes, |_, _| 0, Options::default());
            let device = device.expect("queues of a volume need no resources");
            let (recorders, trace) = self.recorders(homes.len(), trace)?;
            let setup = Setup {
                device,
                buffers,
                near: homes.iter().map(|home| pool.machine.cpus_of(*home).to_vec()).collect(),
                recorders,
            };
            let server = added.start(setup).map_err(failed)?;
            Ok(Export {
                name: self.name().into(),
                server,
                trace,
            })
        })
    }

    /// Runs `make` with what names an error of it.
    fn exported<R>(&self, make: impl FnOnce(&dyn Fn(ublk::Error) -> Error) -> Result<R, Error>) -> Result<R, Error> {
        make(&|source| Error::Export {
            operation: "attach",
            name: self.name().into(),
            source: Box::new(source),
        })
    }

    fn recorders(
        &self,
        queues: usize,
        trace: Option<File>,
    ) -> Result<(Vec<Option<Recorder>>, Option<TraceWriter>), Error> {
        let Some(file) = trace else {
            return Ok(((0..queues).map(|_| None).collect(), None));
        };
        let (recorders, writer) = TraceWriter::start(file, self.size_bytes(), queues).map_err(Error::Thread)?;
        Ok((recorders.into_iter().map(Some).collect(), Some(writer)))
    }
}

impl Export {
    /// The volume's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The block device.
    #[must_use]
    pub fn device(&self) -> &Path {
        self.server.disk()
    }

    /// Whether the device is no more, though it was not detached here: somebody else has stopped it, or serving it met an error, which
    /// [`Export::detach`] tells.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.server.has_ended()
    }

    /// Claims the device: `None` when it is in use, mounted for example. Who has merely opened it, as for reading, does not claim
    /// it and is not seen.
    ///
    /// # Errors
    /// Result of opening it.
    pub fn claim(&self) -> io::Result<Option<Claim>> {
        claim(self.device())
    }

    /// Ends the device, also under its users; the volume is free then. What waits is carried out first; a trace is complete.
    ///
    /// # Errors
    /// What has ended it before, a trace that could not be written, or a kernel that does not end it. It is not served any more in
    /// any case.
    pub fn detach(self) -> Result<(), Error> {
        let Self {
            name, server, trace, ..
        } = self;
        let stopped = server.stop().map_err(|source| Error::Export {
            operation: "detach",
            name: name.clone(),
            source: Box::new(source),
        });
        let traced = trace.map_or(Ok(()), TraceWriter::finish);
        stopped.and(traced.map_err(|source| Error::Trace { name, source }))
    }
}

pub(super) fn claim(device: &Path) -> io::Result<Option<Claim>> {
    Ok(ublk::claim(device)?.map(|file| Claim { _file: file }))
}

/// Removes what processes like this one left of block devices when they were killed: the devices themselves ended with them. Gives
/// the paths they had. Devices of others, and of processes that live, are not touched.
///
/// # Errors
/// [`Error::Leftover`]: of one at least.
pub fn clear_dead_exports() -> Result<Vec<PathBuf>, Error> {
    ublk::clear_leftovers().map_err(|source| Error::Leftover(Box::new(source)))
}
