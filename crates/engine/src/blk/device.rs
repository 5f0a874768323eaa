//! The device, as all its cores see it: limits, the map of software to hardware queues, freezing, accounts.
//!
//! What is shared is written rarely: the map and the freeze by whoever rules the device, a core's business only when it
//! begins or ends having requests under way. Locks are taken when a core joins, or is mapped to another hardware queue, only.

use super::accounts::{HardwareCounts, OpenHardware, OpenSoftware, SoftwareCounts};
use super::core::Core;
use super::driver::{Driver, DriverQueue, Limits};
use super::hardware::{Hardware, Patience};
use super::latencies::{self, Latencies, OpenLatencies};
use super::link::Inbound;
use super::request::Operation;
use super::scheduler::{Scheduling, Waiting};
use super::time::{ByRequest, ByRun, Time, Timing};
use homenode_policy::NodeId;
use homenode_policy::queue_map;
use homenode_shared::{Door, Freeze, Map, TagSpace};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How a device is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests that can be under way or staged per hardware queue: its tags. At least [`Limits::depth`], below 65,535.
    pub tags: u16,
    /// Requests that are let accumulate before they are given to the driver together: 1 to 32.
    pub plug: usize,
    /// The order of what waits.
    pub scheduling: Scheduling,
    /// A request that has been with the driver for so long is late.
    pub timeout: Duration,
    /// How often a request is tried again after an error that may pass: up to 100.
    pub retries_max: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tags: 256,
            plug: 32,
            scheduling: Scheduling::None,
            timeout: Duration::from_secs(30),
            retries_max: 5,
        }
    }
}

/// The most that are let accumulate.
const PLUG_MAX: usize = 32;
const RETRIES_LIMIT: u8 = 100;

/// A device that several cores use. Each has its [`Core`].
#[derive(Debug)]
pub struct Device<Q> {
    pub(super) limits: Limits,
    pub(super) options: Options,
    /// Hardware queue of each core's requests.
    pub(super) map: Map,
    pub(super) hardware: Box<[SharedHardware]>,
    pub(super) cores: Box<[SharedCore]>,
    pub(super) freezing: Freeze,
    pub(super) waiting: Arc<Waiting>,
    /// Queues whose core has not come yet.
    unclaimed: Mutex<Vec<Option<Q>>>,
}

/// State of a hardware queue, shared by all cores.
#[derive(Debug)]
pub(super) struct SharedHardware {
    /// The core that owns it.
    pub(super) owner: usize,
    pub(super) tags: Arc<TagSpace>,
    /// Where cores come that are to be linked to it; closed once its core has gone.
    pub(super) door: Door<Inbound>,
    pub(super) counts: OpenHardware,
}

/// State of a core, shared by all threads of the device.
#[derive(Debug)]
pub(super) struct SharedCore {
    is_claimed: AtomicBool,
    pub(super) counts: OpenSoftware,
    /// Once a core that times each request has joined.
    latencies: OnceLock<Arc<OpenLatencies>>,
}

/// Why a core cannot join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The device was not set up for so many.
    #[error("the device has no core {0}")]
    NoCore(usize),
    /// It is there already.
    #[error("core {0} has joined the device already")]
    Twice(usize),
}

/// Why the map cannot be like that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// There is no such core.
    #[error("the device has no core {0}")]
    NoCore(usize),
    /// There is no such hardware queue.
    #[error("the device has no hardware queue {0}")]
    NoQueue(usize),
}

impl<Q: DriverQueue> Device<Q> {
    /// Sets a device up for cores on these nodes: each is one thread's. Cores get hardware queues by node first;
    /// a hardware queue is owned by the first core of its node that is mapped to it, or else by the first one that is, or
    /// else by the first one of its node.
    ///
    /// # Errors
    /// The driver cannot make its queues.
    ///
    /// # Panics
    /// When there is no core, or limits and options contradict each other.
    pub fn new<D: Driver<Queue = Q>>(
        driver: &D,
        cores: &[NodeId],
        latency: impl Fn(NodeId, NodeId) -> u32,
        options: Options,
    ) -> std::io::Result<Arc<Self>> {
        let limits = driver.limits();
        limits.check();
        assert!(!cores.is_empty(), "a device has at least one core");
        assert!(
            (1..=PLUG_MAX).contains(&options.plug),
            "1 to {PLUG_MAX} requests accumulate"
        );
        assert!(
            options.tags >= limits.depth && options.tags < u16::MAX,
            "options.tags covers the driver's depth"
        );
        assert!(options.retries_max <= RETRIES_LIMIT, "at most {RETRIES_LIMIT} retries");
        let homes = driver.queue_homes();
        let map = queue_map(cores, &homes, latency);
        let queues = (0..homes.len()).map(|index| driver.queue(index).map(Some));
        let unclaimed = queues.collect::<std::io::Result<Vec<_>>>()?;
        let owner = |queue: usize| {
            let is_mapped = |core: &usize| map[*core] == queue;
            let is_near = |core: &usize| homes[queue] == Some(cores[*core]);
            let all = 0..cores.len();
            let best = all.clone().find(|core| is_mapped(core) && is_near(core));
            best.or_else(|| all.clone().find(is_mapped))
                .or_else(|| all.clone().find(is_near))
                .unwrap_or(0)
        };
        let hardware = (0..homes.len()).map(|queue| {
            let users = map.iter().filter(|mapped| **mapped == queue).count();
            SharedHardware {
                owner: owner(queue),
                tags: TagSpace::new(options.tags, users, cores.len() - users),
                door: Door::default(),
                counts: OpenHardware::new(),
            }
        });
        let shared_core = || SharedCore {
            is_claimed: AtomicBool::new(false),
            counts: OpenSoftware::new(),
            latencies: OnceLock::new(),
        };
        Ok(Arc::new(Self {
            limits,
            hardware: hardware.collect(),
            map: Map::new(&map),
            cores: cores.iter().map(|_| shared_core()).collect(),
            freezing: Freeze::new(cores.len()),
            waiting: Waiting::new(),
            unclaimed: Mutex::new(unclaimed),
            options,
        }))
    }

    /// The part of the device that core `index` uses. It is to be one thread's. It reads no clock for a request: how exact
    /// its times are then says [`Core::run`].
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join(self: &Arc<Self>, index: usize) -> Result<Core<Q>, JoinError> {
        self.join_by(index, |_| ByRun::NEW)
    }

    /// [`Device::join`] for a core that reads `time` at both ends of each request: when it is submitted, and when its
    /// completion is told. [`SoftwareCounts`] have these times, and [`Device::latencies`] their histogram.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join_timed<T: Time>(self: &Arc<Self>, index: usize, time: T) -> Result<Core<Q, ByRequest<T>>, JoinError> {
        self.join_by(index, |core| {
            let latencies = core.latencies.get_or_init(|| Arc::new(OpenLatencies::new()));
            ByRequest::new(time, Arc::clone(latencies))
        })
    }

    fn join_by<T: Timing>(
        self: &Arc<Self>,
        index: usize,
        timing: impl FnOnce(&SharedCore) -> T,
    ) -> Result<Core<Q, T>, JoinError> {
        let core = self.cores.get(index).ok_or(JoinError::NoCore(index))?;
        // Acquire: see `leave`.
        if core.is_claimed.swap(true, Ordering::Acquire) {
            return Err(JoinError::Twice(index));
        }
        let mut unclaimed = self.unclaimed.lock();
        let own = self
            .hardware
            .iter()
            .enumerate()
            .filter(|(_, hardware)| hardware.owner == index);
        let patience = Patience {
            timeout_ns: u64::try_from(self.options.timeout.as_nanos()).unwrap_or(u64::MAX),
            retries_max: self.options.retries_max,
        };
        let hardware = own.map(|(queue, _)| {
            let driver_queue = unclaimed[queue]
                .take()
                .expect("the queue is unclaimed: its only core joins once");
            (
                queue,
                Hardware::new(driver_queue, self.limits, self.options.tags, patience),
            )
        });
        let hardware = hardware.collect();
        drop(unclaimed);
        Ok(Core::new(Arc::clone(self), index, hardware, timing(core)))
    }

    /// Maps a core's requests to another hardware queue, while it is at work: what it submits after its next run goes there.
    /// Nothing waits: what is under way ends where it is.
    ///
    /// # Errors
    /// [`MapError`]; nothing has changed then.
    pub fn remap(&self, core: usize, queue: usize) -> Result<(), MapError> {
        if core >= self.map.cores() {
            return Err(MapError::NoCore(core));
        }
        if queue >= self.hardware.len() {
            return Err(MapError::NoQueue(queue));
        }
        self.map.set(core, queue);
        Ok(())
    }

    /// The hardware queue that each core is mapped to.
    #[must_use]
    pub fn map(&self) -> Vec<usize> {
        (0..self.map.cores()).map(|core| self.map.queue(core)).collect()
    }

    /// From now on no core starts anything; what is under way goes on. [`Device::is_drained`] tells when that has ended. Requests
    /// are still taken, while there are tags. Freezing twice takes thawing twice.
    pub fn freeze(&self) {
        self.freezing.freeze();
    }

    /// Whether no core has a request under way. Cores tell when they run.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.freezing.is_drained()
    }

    /// Undoes one [`Device::freeze`].
    ///
    /// # Panics
    /// When it is not frozen.
    pub fn thaw(&self) {
        self.freezing.thaw();
    }

    /// Limits of the device: the requests that a core may be asked for.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Counts of each software queue, by core, as of the core's last run.
    #[must_use]
    pub fn software_counts(&self) -> Vec<SoftwareCounts> {
        self.cores.iter().map(|core| core.counts.read()).collect()
    }

    /// Counts of each hardware queue, as of the last run of its core.
    #[must_use]
    pub fn hardware_counts(&self) -> Vec<HardwareCounts> {
        self.hardware.iter().map(|hardware| hardware.counts.read()).collect()
    }

    /// How long requests of one operation took, of all cores that joined by [`Device::join_timed`], as of each core's last run.
    #[must_use]
    pub fn latencies(&self, operation: Operation) -> Latencies {
        let timed = self.cores.iter().filter_map(|core| core.latencies.get());
        latencies::sum(timed.map(Arc::as_ref), operation)
    }

    /// A core has gone; another thread may have it if no hardware queue has gone with it.
    pub(super) fn leave(&self, core: usize, may_return: bool) {
        self.freezing.end(core);
        // Release: whoever joins next has what this core counted.
        self.cores[core].is_claimed.store(!may_return, Ordering::Release);
    }

    pub(super) fn streams(&self) -> u16 {
        match &self.options.scheduling {
            Scheduling::Fair(streams, _) => u16::try_from(streams.len()).expect("there are fewer than 2^16 streams"),
            _ => u16::MAX,
        }
    }
}
