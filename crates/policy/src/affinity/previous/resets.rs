//! Interrupts and queues whose CPUs the kernel or a driver sets anew, when CPUs come and go, after a sleep, or when a card comes up.

use super::Previous;
use crate::CpuId;
use crate::affinity::{Reset, Snapshot, Target};
use alloc::string::String;
use alloc::vec::Vec;

impl Previous {
    /// Counts what was set anew by the kernel or a driver as set by this program.
    pub(in crate::affinity) fn with(&self, resets: &[Reset]) -> Self {
        let mut known = self.clone();
        for reset in resets {
            if let Some(setting) = known.set.get_mut(&reset.target) {
                setting.cpus.clone_from(&reset.now);
            }
        }
        known
    }

    /// Returns what the kernel or a driver has set anew: it was as it was set until CPUs, the machine or its card came back.
    pub(in crate::affinity) fn resets(&self, snapshot: &Snapshot) -> Vec<Reset> {
        if !snapshot.has_restarted && snapshot.restarted.is_empty() {
            return Vec::new();
        }
        let is_restarted = |device: Option<&String>| {
            let listed = |device| snapshot.restarted.binary_search(device).is_ok();
            snapshot.has_restarted || device.is_some_and(listed)
        };
        let mut resets: Vec<Reset> = settings(snapshot)
            .filter(|(target, now, device)| {
                let setting = self.set.get(target);
                is_restarted(*device) && setting.is_some_and(|set| !set.is_changed && set.cpus != *now)
            })
            .map(|(target, now, _)| Reset {
                target,
                now: now.to_vec(),
            })
            .collect();
        resets.sort_by(|a, b| a.target.cmp(&b.target));
        resets
    }
}

/// Interrupts and queues that can be set, each with its CPUs and device.
pub(super) fn settings(snapshot: &Snapshot) -> impl Iterator<Item = (Target, &[CpuId], Option<&String>)> {
    let interrupts = snapshot.interrupts.iter();
    let interrupts = interrupts.map(|it| (Target::Interrupt(it.number), &it.affinity[..], it.device.as_ref()));
    let queues = snapshot.queues.iter().filter_map(|queue| {
        let target = Target::of_queue(&queue.device, queue.kind, queue.index)?;
        Some((target, &queue.cpus[..], Some(&queue.device)))
    });
    interrupts.chain(queues)
}
