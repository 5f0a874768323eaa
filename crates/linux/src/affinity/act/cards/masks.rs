//! Masks (XPS, RPS) of a card's queues when their number changes: which are to be there when nothing of ours is.
//!
//! A queue that goes takes its masks with it, and drivers set those of all queues anew when their number changes. So the
//! journal has, before each change, the masks that queues are to have without us, and after it those that the change has
//! made. What differs from these, somebody else has set since; unless the program was killed between the two, when nobody
//! knows what the driver has made: then everything is taken for that.
//!
//! A queue that has come back without a mask has its own again at once: were it to wait for revert, nobody could tell the
//! driver's none from that of somebody who has cleared it.

use super::super::book::Entries;
use super::super::cards_book::CardEntry;
use super::super::kernel::Kernel;
use super::super::mask::Mask;
use super::super::record::Key;
use crate::affinity::sense::gaps::has_vanished;
use homenode_policy::affinity::Target;
use std::collections::BTreeMap;
use std::io;

/// Masks by queue.
pub(in super::super) type Masks = BTreeMap<Target, Mask>;

/// Returns the masks of a card's queues; a queue without a mask is left out.
pub(super) fn of(kernel: &impl Kernel, device: &str) -> io::Result<Masks> {
    let mut masks = Masks::new();
    for queue in kernel.queues(device)? {
        match kernel.read(&queue) {
            Ok(mask) => {
                masks.insert(queue, mask);
            }
            // It has gone meanwhile, or is the only one: there is nothing to choose.
            Err(error) if has_vanished(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(masks)
}

/// Returns the masks that queues are to have without us, whether the queues are there or not. `entry`: what is known of the
/// card, if its number of queues was changed; `planned`: the masks that plans have set.
pub(super) fn owned(now: &Masks, entry: Option<&CardEntry>, planned: &Entries) -> Masks {
    let mut owned = entry.map(|entry| entry.masks.clone()).unwrap_or_default();
    for (queue, mask) in now {
        let is_planned = |cpus: &[_]| cpus == mask.cpus();
        let entry_of_plan = planned
            .get(queue)
            .filter(|entry| entry.set.iter().any(|(set, _)| is_planned(set)));
        let mask = entry_of_plan.map_or(mask, |entry| &entry.old);
        if !entry.is_some_and(|entry| has_made(entry, queue, mask)) {
            owned.insert(queue.clone(), mask.clone());
        }
    }
    owned
}

/// Whether a mask is nobody's but the driver's.
fn has_made(entry: &CardEntry, queue: &Target, mask: &Mask) -> bool {
    entry.made.as_ref().is_none_or(|made| match made.get(queue) {
        Some(made) => made == mask,
        // Somebody else has brought the queue back, and given it none.
        None => mask.cpus().is_empty(),
    })
}

/// Gives masks to the queues that there are; whether any had another one.
pub(super) fn give(kernel: &impl Kernel, device: &str, owned: &Masks) -> io::Result<bool> {
    let mut is_changed = false;
    for (queue, mask) in of(kernel, device)? {
        if let Some(owned) = owned.get(&queue).filter(|owned| **owned != mask) {
            kernel.write(&queue, owned)?;
            is_changed = true;
        }
    }
    Ok(is_changed)
}

/// Gives their masks to the queues that have none.
pub(super) fn bring_back(kernel: &impl Kernel, device: &str, owned: &Masks) -> io::Result<()> {
    let mut lost = owned.clone();
    let now = of(kernel, device)?;
    lost.retain(|queue, _| now.get(queue).is_some_and(|mask| mask.cpus().is_empty()));
    give(kernel, device, &lost).map(drop)
}

/// Formats masks as the journal has them.
pub(in super::super) fn texts(masks: &Masks) -> Vec<(Key, String)> {
    let masks = masks.iter();
    masks
        .map(|(queue, mask)| (Key::from(queue), mask.text().to_owned()))
        .collect()
}
