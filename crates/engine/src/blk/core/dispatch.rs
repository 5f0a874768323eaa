//! The way down: from the staging area to drivers, or to cores that own them.

use super::{Core, slots_of};
use crate::blk::driver::DriverQueue;
use crate::blk::hardware::BATCH;
use crate::blk::slot::Tag;
use crate::blk::software::{Outlet, SoftwareQueue};
use crate::blk::time::Timing;

impl<Q: DriverQueue, T: Timing> Core<Q, T> {
    /// Whether something may be started now.
    #[inline]
    fn may_begin(&mut self) -> bool {
        let may_begin = self.device.freezing.begin(self.index, self.has_begun);
        self.has_begun |= may_begin;
        may_begin
    }

    /// Gives what is plugged to the driver, if nothing is in front of it, or to the scheduler.
    #[inline]
    pub(super) fn unplug(&mut self) {
        if self.current.stage.plug.is_empty() {
            return;
        }
        if let Outlet::Own(own) = self.current.outlet
            && self.current.stage.scheduler.is_transparent()
        {
            let hardware = &self.hardware[own].hardware;
            if hardware.room() >= self.current.stage.plug.len() && !hardware.is_contended && self.may_begin() {
                let hardware = &mut self.hardware[own].hardware;
                hardware.start(&self.current.stage.plug, self.known.now);
                self.current.stage.clear();
                return;
            }
        }
        let slots = slots_of(&mut self.current.outlet, &mut self.hardware);
        self.counts.merged += self.current.stage.schedule(slots, self.known.now);
    }

    /// Gives the drivers what they have refused, and then what waits, in turns.
    #[inline]
    pub(super) fn dispatch(&mut self) {
        for index in 0..self.hardware.len() {
            let own = &mut self.hardware[index];
            if let Some(links) = self.device.hardware[own.queue].door.newcomers(&mut own.seen) {
                links.into_iter().for_each(|link| own.hardware.link(link));
            }
            own.hardware.serve_waiting(self.known.now);
            while self.take_turns(index) {}
            self.hardware[index].hardware.end_turns();
        }
        self.send();
    }

    /// Gives one turn to this core and to each core linked to the hardware queue, while there is room. Returns whether any
    /// request was started.
    fn take_turns(&mut self, index: usize) -> bool {
        let mut has_started = false;
        for _ in 0..self.hardware[index].hardware.sources() {
            let own = &mut self.hardware[index];
            if own.hardware.room() == 0 {
                break;
            }
            has_started |= match own.hardware.next_turn() {
                Some(link) => own.hardware.take_from_link(link, self.known.now),
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
        let count = software.stage.take(&mut batch[..room], &hardware.slots, self.known.now);
        hardware.start(&batch[..count], self.known.now);
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
                let sent = software.send(BATCH.min(depth - software.sent), self.known.now);
                if sent == 0 {
                    break;
                }
                self.counts.sent += sent as u64;
            }
        }
    }
}
