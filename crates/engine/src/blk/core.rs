//! A core's part of a device: what it submits goes down, what is finished comes back, all in its own thread.

use super::accounts::SoftwareCounts;
use super::device::Device;
use super::driver::{Done, DriverQueue, Limits};
use super::hardware::{BATCH, Hardware};
use super::link::link;
use super::request::{Completion, Durability, Errno, Operation, Outcome, Refusal, Rejected, Request};
use super::scheduler::{Merging, Scheduler};
use super::slot::{OWN, Slot, Slots, State, Tag};
use super::software::{Outlet, SoftwareQueue, Stage};
use super::trace::Recorder;
use std::sync::Arc;

/// What one thread submits by and takes completions from. Made by [`Device::join`].
#[derive(Debug)]
pub struct Core<Q: DriverQueue> {
    device: Arc<Device<Q>>,
    index: usize,
    /// Those that it owns.
    hardware: Vec<OwnHardware<Q>>,
    current: SoftwareQueue,
    /// Those it was mapped to before, until their requests are finished.
    former: Vec<SoftwareQueue>,
    /// As of the last run, ns.
    now: u64,
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
    /// What its driver has finished, for the time of a poll.
    done: Done,
    arrivals: usize,
}

impl<Q: DriverQueue> Core<Q> {
    pub(super) fn new(device: Arc<Device<Q>>, index: usize, hardware: Vec<(usize, Hardware<Q>)>) -> Self {
        let hardware: Vec<_> = hardware
            .into_iter()
            .map(|(queue, hardware)| OwnHardware {
                queue,
                hardware,
                done: Done::new(usize::from(device.limits.depth)),
                arrivals: 0,
            })
            .collect();
        let current = software_queue(&device, &hardware, device.mapped(index));
        Self {
            streams: device.streams(),
            plug: device.options.plug,
            limits: device.limits,
            index,
            current,
            hardware,
            former: Vec::new(),
            now: 0,
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
            recorder.record(request, self.now);
        }
        if request.operation != Operation::Write || !self.limits.has_cache {
            request.durability = Durability::Later;
        }
        let slots = slots_of(&mut self.current.outlet, &mut self.hardware);
        slots.at_mut(tag).fill(&request, self.now, OWN);
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

    /// From now on it is `now`, in ns, for what is submitted: for a core that has slept since its last run, which else is the time.
    #[inline]
    pub fn wake(&mut self, now: u64) {
        self.now = now;
    }

    /// Does what there is to do, and never waits: requests go to the driver, `finished` is told what has come back. Gives
    /// how many that were. `now`: ns of a clock that does not go back, the same one for all cores.
    #[inline]
    pub fn run(&mut self, now: u64, mut finished: impl FnMut(Completion)) -> usize {
        self.now = now;
        let mut count = 0;
        if !self.instant.is_empty() {
            count += self.end_instant(&mut finished);
        }
        let mapped = self.device.mapped(self.index);
        if mapped != self.current.queue {
            self.follow_map(mapped);
        }
        self.unplug();
        self.dispatch();
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

    /// Whether something may be started now.
    #[inline]
    fn may_begin(&mut self) -> bool {
        let may_begin = self.device.freezing.begin(self.index, self.has_begun);
        self.has_begun |= may_begin;
        may_begin
    }

    /// Gives what is plugged to the driver, if nothing is in front of it, or to the scheduler.
    #[inline]
    fn unplug(&mut self) {
        if self.current.stage.plug.is_empty() {
            return;
        }
        if let Outlet::Own(own) = self.current.outlet
            && self.current.stage.scheduler.is_transparent()
        {
            let hardware = &self.hardware[own].hardware;
            if hardware.room() >= self.current.stage.plug.len() && !hardware.is_contended && self.may_begin() {
                let hardware = &mut self.hardware[own].hardware;
                hardware.start(&self.current.stage.plug, self.now);
                self.current.stage.clear();
                return;
            }
        }
        let slots = slots_of(&mut self.current.outlet, &mut self.hardware);
        self.counts.merged += self.current.stage.schedule(slots, self.now);
    }

    /// Gives the drivers what they have refused, and then what waits, in turns.
    #[inline]
    fn dispatch(&mut self) {
        for index in 0..self.hardware.len() {
            let own = &mut self.hardware[index];
            if let Some(links) = self.device.hardware[own.queue].arrived(&mut own.arrivals) {
                links.into_iter().for_each(|link| own.hardware.link(link));
            }
            own.hardware.serve_waiting(self.now);
            while self.take_turns(index) {}
            self.hardware[index].hardware.end_turns();
        }
        self.send();
    }

    /// One turn of this core and of each core that is linked to the hardware queue. Whether anything was started.
    fn take_turns(&mut self, index: usize) -> bool {
        let mut has_started = false;
        for _ in 0..self.hardware[index].hardware.sources() {
            let own = &mut self.hardware[index];
            if own.hardware.room() == 0 {
                break;
            }
            has_started |= match own.hardware.next_turn() {
                Some(link) => own.hardware.take_from_link(link, self.now),
                None => self.start_own(index),
            };
        }
        has_started
    }

    /// Starts requests of this core, at most a batch.
    fn start_own(&mut self, index: usize) -> bool {
        let queue = self.hardware[index].queue;
        let is_waiting = |software: &SoftwareQueue| software.queue == queue && !software.stage.scheduler.is_empty();
        if !self.software().any(is_waiting) || !self.may_begin() {
            return false;
        }
        let hardware = &mut self.hardware[index].hardware;
        let mut all = std::iter::once(&mut self.current).chain(&mut self.former);
        let Some(software) = all.find(|software| software.queue == queue) else {
            return false;
        };
        let mut batch = [Tag::NONE; BATCH];
        let room = hardware.room().min(BATCH);
        let count = software.stage.take(&mut batch[..room], &hardware.slots, self.now);
        hardware.start(&batch[..count], self.now);
        count > 0
    }

    /// Sends requests to the cores that own their hardware queues.
    fn send(&mut self) {
        let is_waiting = |software: &SoftwareQueue| {
            matches!(software.outlet, Outlet::Link(_)) && !software.stage.scheduler.is_empty()
        };
        if !self.software().any(is_waiting) || !self.may_begin() {
            return;
        }
        let depth = usize::from(self.device.limits.depth);
        for software in std::iter::once(&mut self.current).chain(&mut self.former) {
            while software.sent < depth && !software.stage.scheduler.is_empty() {
                let sent = software.send(BATCH.min(depth - software.sent), self.now);
                if sent == 0 {
                    break;
                }
                self.counts.sent += sent as u64;
            }
        }
    }

    /// Takes what is finished.
    #[inline]
    fn collect(&mut self, finished: &mut impl FnMut(Completion)) -> usize {
        let (now, counts) = (self.now, &mut self.counts);
        let mut count = 0;
        let mut end = |software: &mut SoftwareQueue, tag: Tag, slot: &Slot, outcome: Outcome| {
            count += 1;
            finished(software.end(tag, slot, outcome, now, counts));
        };
        for own in &mut self.hardware {
            let mut all = std::iter::once(&mut self.current).chain(&mut self.former);
            let mut software = all.find(|software| software.queue == own.queue);
            own.hardware.poll(now, &mut own.done, &mut |tag, slot, outcome| {
                let software = software
                    .as_mut()
                    .expect("what it has submitted is in its software queue");
                end(software, tag, slot, outcome);
            });
        }
        for software in std::iter::once(&mut self.current).chain(&mut self.former) {
            receive(software, &mut end);
        }
        if self.current.pending == 0 {
            self.current.tags.rest();
        }
        self.former.retain(|software| software.pending > 0);
        count
    }

    /// Ends requests that need no driver. All are of the current software queue.
    #[cold]
    fn end_instant(&mut self, finished: &mut impl FnMut(Completion)) -> usize {
        let count = self.instant.len();
        for tag in self.instant.drain(..) {
            let slot = slots_of(&mut self.current.outlet, &mut self.hardware).at_mut(tag);
            slot.state = State::Free;
            let slot = slot.clone();
            finished(self.current.end(tag, &slot, Ok(0), self.now, &mut self.counts));
        }
        count
    }

    /// It was mapped to another hardware queue.
    fn follow_map(&mut self, queue: usize) {
        let slots = slots_of(&mut self.current.outlet, &mut self.hardware);
        self.counts.merged += self.current.stage.schedule(slots, self.now);
        let back = self.former.iter().position(|software| software.queue == queue);
        let next = match back {
            Some(index) => self.former.swap_remove(index),
            None => software_queue(&self.device, &self.hardware, queue),
        };
        self.former.push(std::mem::replace(&mut self.current, next));
    }

    /// What must hold between two calls.
    ///
    /// # Panics
    /// When it does not.
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

impl<Q: DriverQueue> Drop for Core<Q> {
    /// What was under way is lost, with its tags; other cores' requests to its hardware queues end with
    /// [`Errno::NO_DEVICE`].
    fn drop(&mut self) {
        for own in &self.hardware {
            self.device.hardware[own.queue].end();
        }
        self.seat.may_return = self.hardware.is_empty() && self.pending() == 0;
    }
}

fn software_queue<Q>(device: &Device<Q>, own: &[OwnHardware<Q>], queue: usize) -> SoftwareQueue {
    let options = &device.options;
    let shared = &device.hardware[queue];
    let outlet = match own.iter().position(|own| own.queue == queue) {
        Some(index) => Outlet::Own(index),
        None => {
            let (outbound, inbound) = link(options.tags, device.limits.transfer_bytes_max);
            shared.send(inbound);
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

/// Takes what another core has sent back.
#[inline]
fn receive(software: &mut SoftwareQueue, end: &mut impl FnMut(&mut SoftwareQueue, Tag, &Slot, Outcome)) {
    while let Outlet::Link(outbound) = &mut software.outlet
        && software.sent > 0
    {
        let came = outbound.receive();
        let Some((tag, outcome)) = came.or_else(|| Some((outbound.lost()?, Err(Errno::NO_DEVICE)))) else {
            break;
        };
        let slot = outbound.slots.at(tag).clone();
        software.sent -= 1;
        end(software, tag, &slot, outcome);
    }
}
