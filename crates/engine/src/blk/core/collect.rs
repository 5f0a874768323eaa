//! The way back: what drivers and other cores have finished.

use super::{Core, slots_of};
use crate::blk::driver::DriverQueue;
use crate::blk::request::{Completion, Errno, Outcome};
use crate::blk::slot::{Slot, State, Tag};
use crate::blk::software::{Outlet, SoftwareQueue};
use crate::blk::time::Timing;

impl<Q: DriverQueue, T: Timing> Core<Q, T> {
    /// Takes what is finished.
    #[inline]
    pub(super) fn collect(&mut self, finished: &mut impl FnMut(Completion)) -> usize {
        let (known, timing, counts) = (self.known, &mut self.timing, &mut self.counts);
        let mut count = 0;
        let mut end = |software: &mut SoftwareQueue, tag: Tag, slot: &Slot, outcome: Outcome| {
            count += 1;
            finished(software.end(tag, slot, outcome, timing.end(slot, &known), counts));
        };
        for own in &mut self.hardware {
            let mut all = std::iter::once(&mut self.current).chain(&mut self.former);
            let mut software = all.find(|software| software.queue == own.queue);
            own.hardware.poll(known.now, &mut |tag, slot, outcome| {
                let software = software
                    .as_mut()
                    .expect("a submitted request is in its core's software queue");
                end(software, tag, slot, outcome);
            });
        }
        for software in std::iter::once(&mut self.current).chain(&mut self.former) {
            receive(software, &mut end);
        }
        self.timing.end_run();
        if self.current.pending == 0 {
            self.current.tags.rest();
        }
        self.former.retain(|software| software.pending > 0);
        count
    }

    /// Ends requests that need no driver. All are of the current software queue.
    #[cold]
    pub(super) fn end_instant(&mut self, finished: &mut impl FnMut(Completion)) -> usize {
        let count = self.instant.len();
        for tag in self.instant.drain(..) {
            let slot = slots_of(&mut self.current.outlet, &mut self.hardware).at_mut(tag);
            slot.state = State::Free;
            let slot = slot.clone();
            let took = self.timing.end(&slot, &self.known);
            finished(self.current.end(tag, &slot, Ok(0), took, &mut self.counts));
        }
        self.timing.end_run();
        count
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
