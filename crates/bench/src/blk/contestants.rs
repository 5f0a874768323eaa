//! The cases, and how homenode runs them.

use super::load::{Load, null, play, together};
use super::memcpy::{BUFFER_BYTES, DEVICE_BYTES};
use crate::error::{During, Error};
use crate::populated;
use crate::report::size_name;
use homenode::blk::{Arena, ArenaError, Device, Driver, Null, Options, Ram, StampClock, Storage};
use homenode::{NodeId, Placement, VolumeDriver};
use std::sync::Arc;

/// Driver that serves the requests of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Noop,
    Ram,
    Volume,
}

/// Whom homenode is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// homenode's block layer with one queue behind one lock.
    SingleLock,
    /// A loop of copies over the same kind of memory, with nothing around it.
    Memcpy,
    /// homenode itself on one of the cores.
    OneCore,
    /// A loop that reads the clock twice, as for a stamped request, and does nothing else.
    Clock,
}

impl Peer {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::SingleLock => "single-lock",
            Self::Memcpy => "memcpy",
            Self::OneCore => "one-core",
            Self::Clock => "clock",
        }
    }
}

/// Driver of a case, made once for all rounds.
#[derive(Debug)]
pub(super) enum Target {
    Noop(Null),
    Ram(Ram),
    /// Its blocks are all placed.
    Volume(VolumeDriver),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) kind: Kind,
    pub(super) bytes: u32,
    pub(super) plug: usize,
    pub(super) depth: u16,
    pub(super) cores: usize,
    /// Whether a clock is read at both ends of each request, and each is counted in a histogram.
    pub(super) is_stamped: bool,
}

const fn case(kind: Kind, bytes: u32, plug: usize, depth: u16, cores: usize) -> Case {
    Case {
        kind,
        bytes,
        plug,
        depth,
        cores,
        is_stamped: false,
    }
}

const fn stamped(case: Case) -> Case {
    Case {
        is_stamped: true,
        ..case
    }
}

pub(super) const CASES: [Case; 17] = [
    case(Kind::Noop, 512, 32, 128, 1),
    case(Kind::Noop, 512, 1, 128, 1),
    case(Kind::Noop, 512, 1, 1, 1),
    stamped(case(Kind::Noop, 512, 32, 128, 1)),
    stamped(case(Kind::Noop, 512, 1, 128, 1)),
    case(Kind::Ram, 512, 32, 128, 1),
    stamped(case(Kind::Ram, 512, 32, 128, 1)),
    case(Kind::Ram, 4096, 32, 128, 1),
    case(Kind::Ram, 4096, 1, 1, 1),
    case(Kind::Volume, 4096, 32, 128, 1),
    case(Kind::Volume, 4096, 1, 1, 1),
    case(Kind::Noop, 512, 32, 128, 2),
    case(Kind::Noop, 512, 1, 128, 2),
    stamped(case(Kind::Noop, 512, 32, 128, 2)),
    case(Kind::Ram, 512, 32, 128, 2),
    case(Kind::Ram, 4096, 32, 128, 2),
    case(Kind::Volume, 4096, 32, 128, 2),
];

impl Case {
    pub(super) fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Noop => "noop",
            Kind::Ram => "ram",
            Kind::Volume => "volume",
        };
        let size = size_name(self.bytes as usize);
        let stamped = if self.is_stamped { "/stamped" } else { "" };
        format!(
            "{kind}-{size}/plug{}/qd{}/{}c{stamped}",
            self.plug, self.depth, self.cores
        )
    }

    pub(super) fn peers(&self) -> Vec<Peer> {
        let mut peers = vec![Peer::SingleLock];
        if self.kind != Kind::Noop {
            peers.push(Peer::Memcpy);
        }
        if self.is_stamped {
            peers.push(Peer::Clock);
        }
        if self.cores == 2 {
            peers.push(Peer::OneCore);
        }
        peers
    }

    pub(super) fn load(&self, divisor: u64) -> Load {
        let requests = match (self.kind, self.bytes) {
            (Kind::Noop, _) => 2_000_000,
            (Kind::Ram, 512) => 600_000,
            (Kind::Ram | Kind::Volume, _) => 150_000,
        };
        Load {
            bytes: self.bytes,
            depth: usize::from(self.depth),
            requests: requests / divisor,
        }
    }

    pub(super) fn options(&self) -> Options {
        Options {
            plug: self.plug,
            // So many that a core's share, half of them, is enough: no core borrows tags.
            tags: self.depth.max(128) * 2,
            ..Options::default()
        }
    }

    /// Makes the driver of the case, with memory of this machine unless the driver is the no-op.
    pub(super) fn target(&self) -> Result<Target, Error> {
        let homes = vec![Some(NodeId(0)); self.cores];
        Ok(match self.kind {
            Kind::Noop => Target::Noop(null(self.cores)),
            Kind::Ram => {
                let storage = Storage::Arena(arena("ram", DEVICE_BYTES)?);
                Target::Ram(Ram::new(storage, arena("ram", BUFFER_BYTES)?, &homes))
            }
            Kind::Volume => Target::Volume(volume(&homes)?),
        })
    }

    /// With the layer's two levels: a hardware queue for each core. M IOPS.
    pub(super) fn run(&self, target: &Target, cpus: &[usize], divisor: u64) -> Result<f64, Error> {
        match target {
            Target::Noop(null) => self.run_on(null, cpus, divisor),
            Target::Ram(ram) => self.run_on(ram, cpus, divisor),
            Target::Volume(volume) => self.run_on(volume, cpus, divisor),
        }
    }

    fn run_on<D: Driver>(&self, driver: &D, cpus: &[usize], divisor: u64) -> Result<f64, Error> {
        let device = device(driver, cpus.len(), self.options())?;
        let load = self.load(divisor);
        if self.is_stamped {
            return together(cpus, |index| {
                let core = device.join_timed(index, StampClock::new());
                let mut core = core.expect("each core joins once");
                move |clock| play(&mut core, clock, &load, (index as u64, index as u64))
            });
        }
        together(cpus, |index| {
            let mut core = device.join(index).expect("each core joins once");
            move |clock| play(&mut core, clock, &load, (index as u64, index as u64))
        })
    }
}

fn arena(contestant: &'static str, bytes: u64) -> Result<Arc<Arena>, Error> {
    let failed = |error: ArenaError| Error::Unavailable {
        contestant,
        reason: error.to_string(),
    };
    Arena::new(bytes, None).map_err(failed)
}

/// Attaches a new volume after writing all of its bytes.
fn volume(homes: &[Option<NodeId>]) -> Result<VolumeDriver, Error> {
    const PART_BYTES: usize = 2 << 20;
    let pool = populated::pool(DEVICE_BYTES + DEVICE_BYTES / 8, None).map_err(Error::library("creating a pool"))?;
    let filled = || {
        let volume = pool.create_volume("bench", DEVICE_BYTES, Placement::Local)?;
        for offset in (0..DEVICE_BYTES).step_by(PART_BYTES) {
            volume.write_all_at(&[1; PART_BYTES], offset)?;
        }
        Ok(volume)
    };
    let volume = filled().map_err(Error::library("filling a volume"))?;
    let attached = volume.attach(arena("volume", BUFFER_BYTES)?, homes);
    attached.map_err(Error::library("attaching a volume"))
}

/// A device with a hardware queue for each core, if its driver has so many.
pub(super) fn device<D: Driver>(driver: &D, cores: usize, options: Options) -> Result<Arc<Device<D::Queue>>, Error> {
    let nodes = vec![NodeId(0); cores];
    Device::new(driver, &nodes, |_, _| 10, options).during("setting up the device")
}
