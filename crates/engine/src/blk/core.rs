//! A core's part of a device: what it submits goes down, what is finished comes back, all in its own thread.

mod collect;
mod dispatch;

use super::accounts::SoftwareCounts;
use super::device::Device;
use super::driver::{DriverQueue, Limits};
use super::hardware::Hardware;
use super::link::link;
use super::request::{Completion, Durability, Operation, Refusal, Rejected, Request};
use super::scheduler::{Merging, Scheduler};
use super::slot::{OWN, Slots, Tag};
use super::software::{Outlet, SoftwareQueue, Stage};
use super::time::{ByRun, Known, Time, Timing};
use super::trace::Recorder;
use std::sync::Arc;

/// Handle by which one thread submits requests and takes completions. Made by [`Device::join`], or by [`Device::join_timed`].
#[derive(Debug)]
pub struct Core<Q: DriverQueue, T = ByRun> {
    device: Arc<Device<Q>>,
    index: usize,
    /// Hardware queues that this core owns.
    hardware: Vec<OwnHardware<Q>>,
    current: SoftwareQueue,
    /// Software queues of earlier mappings, kept until their requests are finished.
    former: Vec<SoftwareQueue>,
    timing: T,
    known: Known,
    /// Whether it may have slept, without requests, since it was told the time.
    may_have_slept: bool,
    /// Requests that need no driver.
    instant: Vec<Tag>,
    /// Whether it has told that it has requests beyond its software queues.
    has_begun: bool,
    /// Streams of the device.
    streams: u16,
    /// Requests that accumulate.
    plug: usize,
    limits: Limits,
    counts: SoftwareCounts,
    recorder: Option<Recorder>,
    // Dropped when everything that is under way has ended, and the tags are back.
    seat: Seat<Q>,
}

/// The place of a core in its device, which is free again when this is dropped.
#[derive(Debug)]
struct Seat<Q: DriverQueue> {
    device: Arc<Device<Q>>,
    index: usize,
    /// Whether another thread may have it.
    may_return: bool,
}

impl<Q: DriverQueue> Drop for Seat<Q> {
    fn drop(&mut self) {
        self.device.leave(self.index, self.may_return);
    }
}

#[derive(Debug)]
struct OwnHardware<Q> {
    queue: usize,
    hardware: Hardware<Q>,
    /// Cores that had come to it when it looked last.
    seen: usize,
}

impl<Q: DriverQueue, T: Timing> Core<Q, T> {
    pub(super) fn new(device: Arc<Device<Q>>, index: usize, hardware: Vec<(usize, Hardware<Q>)>, timing: T) -> Self {
        let hardware: Vec<_> = hardware
            .into_iter()
            .map(|(queue, hardware)| OwnHardware {
                queue,
                hardware,
                seen: 0,
            })
            .collect();
        let current = software_queue(&device, &hardware, device.map.queue(index));
        Self {
            streams: device.streams(),
            plug: device.options.plug,
            limits: device.limits,
            index,
            current,
            hardware,
            former: Vec::new(),
            timing,
            known: Known::default(),
            may_have_slept: true,
            instant: Vec::with_capacity(usize::from(device.options.tags)),
            has_begun: false,
            counts: device.cores[index].counts.read(),
            recorder: None,
            seat: Seat {
                device: Arc::clone(&device),
                index,
                may_return: false,
            },
            device,
        }
    }

    /// Takes a request. It is given to the driver when as many have accumulated as are let, or at the next run.
    ///
    /// # Errors
    /// [`Rejected`], with the request: when there is no tag, take completions and try again.
    #[inline(always)]
    pub fn submit(&mut self, mut request: Request) -> Result<(), Rejected> {
        if let Err(why) = self.limits.admits(&request) {
            return Err(Rejected { request, why });
        }
        if request.stream >= self.streams {
            let why = Refusal::NoStream;
            return Err(Rejected { request, why });
        }
        let Some(tag) = self.current.tags.take().map(Tag) else {
            self.counts.no_tag += 1;
            let why = Refusal::NoTag;
            return Err(Rejected { request, why });
        };
        if let Some(recorder) = &mut self.recorder {
            recorder.record(request, self.known.now);
        }
        if request.operation != Operation::Write || !self.limits.has_cache {
            request.durability = Durability::Later;
        }
        let slots = slots_of(&mut self.current.outlet, &mut self.hardware);
        slots.at_mut(tag).fill(&request, self.timing.begin(&self.known), OWN);
        self.counts.submitted += 1;
        self.current.pending += 1;
        if !self.limits.needs_driver(request.operation) {
            self.instant(tag);
        } else if self.current.stage.add(tag, &request, slots) {
            self.counts.merged += 1;
        } else if self.current.stage.plug.len() == self.plug {
            self.unplug();
        }
        Ok(())
    }

    #[cold]
    fn instant(&mut self, tag: Tag) {
        self.instant.push(tag);
    }

    /// Tells a core that has slept since its last run the time, ns: what it submits next is accounted from then on.
    #[inline]
    pub fn wake(&mut self, now: u64) {
        self.known.now = now;
        self.may_have_slept = false;
    }

    /// Does what there is to do, and never waits: requests go to the driver, `finished` is told what has come back. Returns
    /// how many that were.
    ///
    /// The time is read when a run begins, and again when it has gone to the driver and looks for completions. A core that
    /// has not joined by [`Device::join_timed`] reads no other: a request's time begins at the last one that was read before
    /// it was submitted, or, when the core had no requests, at the first one after it or at [`Core::wake`]; it ends at the
    /// last one that was read before its completion is told. Each end is wrong by the time between two of these reads at
    /// most, a turn of the loop that calls this.
    #[inline]
    pub fn run(&mut self, time: impl Time, mut finished: impl FnMut(Completion)) -> usize {
        self.known.now = time.now();
        if self.may_have_slept {
            self.known.busy_since = self.known.now;
        }
        let mut count = 0;
        if !self.instant.is_empty() {
            count += self.end_instant(&mut finished);
        }
        let mapped = self.device.map.queue(self.index);
        if mapped != self.current.queue {
            self.follow_map(mapped);
        }
        self.unplug();
        self.dispatch();
        self.known.now = time.now();
        count += self.collect(&mut finished);
        if count > 0 {
            // There is room now for what has waited.
            self.dispatch();
        }
        for own in &mut self.hardware {
            own.hardware.publish();
            self.device.hardware[own.queue].counts.set(&own.hardware.counts);
        }
        if self.has_begun && self.under_way() == 0 {
            self.has_begun = false;
            self.device.freezing.end(self.index);
        }
        self.may_have_slept = self.current.pending == 0 && self.former.is_empty();
        self.device.cores[self.index].counts.set(&self.counts);
        if let Some(recorder) = &mut self.recorder {
            recorder.publish();
        }
        count
    }

    /// From now on every request that is taken is recorded, or no more.
    pub fn record(&mut self, recorder: Option<Recorder>) {
        self.recorder = recorder;
    }

    /// Requests that were taken and are not finished.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.software().map(|software| software.pending).sum()
    }

    /// Whether there is nothing to do for this core: neither requests of its own nor of others that it serves.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.pending() == 0 && self.hardware.iter().all(|own| own.hardware.is_idle())
    }

    /// Descriptor that becomes readable when the next run has something to do, but for late requests: after a run that left all
    /// requests with a driver that has such a one. `None` when it is to run again at once, or is idle.
    #[must_use]
    pub fn bell(&self) -> Option<i32> {
        let [own] = self.hardware.as_slice() else { return None };
        let is_own = self.former.is_empty() && matches!(self.current.outlet, Outlet::Own(_));
        let is_given = self.instant.is_empty() && self.current.stage.count == 0;
        own.hardware.bell().filter(|_| is_own && is_given)
    }

    /// The device it is a part of.
    #[must_use]
    pub fn device(&self) -> &Arc<Device<Q>> {
        &self.device
    }

    fn software(&self) -> impl Iterator<Item = &SoftwareQueue> {
        std::iter::once(&self.current).chain(&self.former)
    }

    /// Requests beyond the software queues.
    fn under_way(&self) -> usize {
        self.software().map(SoftwareQueue::begun).sum::<usize>() - self.instant.len()
    }

    /// It was mapped to another hardware queue.
    fn follow_map(&mut self, queue: usize) {
        let slots = slots_of(&mut self.current.outlet, &mut self.hardware);
        self.counts.merged += self.current.stage.schedule(slots, self.known.now);
        let back = self.former.iter().position(|software| software.queue == queue);
        let next = match back {
            Some(index) => self.former.swap_remove(index),
            None => software_queue(&self.device, &self.hardware, queue),
        };
        self.former.push(std::mem::replace(&mut self.current, next));
    }

    /// Checks the conditions that hold between two calls.
    ///
    /// # Panics
    /// If one of them does not hold.
    pub fn check_invariants(&self) {
        for own in &self.hardware {
            own.hardware.check_invariants();
        }
        for software in self.software() {
            assert!(software.stage.count <= software.pending);
        }
        assert!(self.has_begun || self.under_way() == 0);
    }
}

impl<Q: DriverQueue, T> Drop for Core<Q, T> {
    /// Loses this core's requests under way and their tags; other cores' requests to its hardware queues end with
    /// [`Errno::NO_DEVICE`].
    fn drop(&mut self) {
        for own in &self.hardware {
            self.device.hardware[own.queue].door.close();
        }
        let pending = |software: &SoftwareQueue| software.pending;
        let pending = pending(&self.current) + self.former.iter().map(pending).sum::<usize>();
        self.seat.may_return = self.hardware.is_empty() && pending == 0;
    }
}

fn software_queue<Q>(device: &Device<Q>, own: &[OwnHardware<Q>], queue: usize) -> SoftwareQueue {
    let options = &device.options;
    let shared = &device.hardware[queue];
    let outlet = match own.iter().position(|own| own.queue == queue) {
        Some(index) => Outlet::Own(index),
        None => {
            let (outbound, inbound) = link(options.tags, device.limits.transfer_bytes_max);
            shared.door.enter(inbound);
            Outlet::Link(Box::new(outbound))
        }
    };
    let merging = Merging {
        segments_max: device.limits.segments_max,
        bytes_max: device.limits.transfer_bytes_max,
    };
    let scheduler = Scheduler::new(&options.scheduling, usize::from(options.tags), merging, &device.waiting);
    SoftwareQueue {
        queue,
        outlet,
        tags: shared.tags.share(),
        stage: Stage::new(options.plug, scheduler, merging),
        sent: 0,
        pending: 0,
    }
}

#[inline]
fn slots_of<'a, Q>(outlet: &'a mut Outlet, hardware: &'a mut [OwnHardware<Q>]) -> &'a mut Slots {
    match outlet {
        Outlet::Own(index) => &mut hardware[*index].hardware.slots,
        Outlet::Link(outbound) => &mut outbound.slots,
    }
}
