//! Block layers: requests of 512 bytes to a device that does nothing, as fast as cores submit them (blk-mq, figures 3 and 4).

use crate::{Agenda, Band, Lock, Machine, PS_PER_NS, PS_PER_S, Stream, random};
use homenode_policy::{NodeId, queue_map};

/// How requests are queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Design {
    /// Single request queue, whose lock each submission and each completion takes.
    SingleLock,
    /// A software queue for each core, and hardware queues that cores are mapped to.
    TwoLevel {
        /// Hardware queues, spread over the nodes.
        hardware_queues: u32,
    },
}

/// Costs of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Requests {
    /// Work of the core for a request, from the system call to its end.
    pub core_ns: Band,
    /// Percent of it that the single queue does under its lock, half when a request is submitted and half when it ends.
    pub locked_percent: Band,
    /// Time for which a hardware queue is held.
    pub hardware_hold_ns: Band,
    /// Virtual time.
    pub seconds: f64,
}

impl Requests {
    /// Linux of 2012: "a single CPU core can sustain an IO submission rate of around 800 thousand IOPS" (blk-mq, section 1).
    pub const LINUX: Self = Self {
        core_ns: Band::new(1000.0, 1400.0),
        locked_percent: Band::new(60.0, 85.0),
        hardware_hold_ns: Band::new(40.0, 80.0),
        seconds: 0.01,
    };

    /// Requests a second of the first `cores` cores together.
    ///
    /// # Panics
    /// When the machine has fewer cores.
    #[must_use]
    pub fn run(&self, design: Design, machine: &Machine, cores: u32, seed: u64) -> f64 {
        let random = &mut random(Stream::Load, seed);
        let drawn = |band: Band| crate::constants::ps(band.draw(random));
        let [core_ps, locked, hardware_ps] = [self.core_ns, self.locked_percent, self.hardware_hold_ns].map(drawn);
        let single_ps = core_ps * locked / (100 * PS_PER_NS) / 2;
        let nodes: Vec<NodeId> = (0..cores).map(|core| machine.id(machine.node_of(core))).collect();
        let (map, mut locks) = match design {
            Design::SingleLock => (vec![0; nodes.len()], vec![Lock::default()]),
            Design::TwoLevel { hardware_queues } => {
                let home = |queue: u32| Some(machine.id(queue % machine.nodes()));
                let homes: Vec<_> = (0..hardware_queues).map(home).collect();
                let place = |id: NodeId| (0..machine.nodes()).find(|node| machine.id(*node) == id).unwrap_or(0);
                let latency = |a, b| u32::try_from(machine.latency_ps(place(a), place(b))).unwrap_or(u32::MAX);
                (
                    queue_map(&nodes, &homes, latency),
                    vec![Lock::default(); hardware_queues as usize],
                )
            }
        };
        let (between_ps, hold_ps, takes) = match design {
            Design::SingleLock => (core_ps / 2 - single_ps, single_ps, 2),
            Design::TwoLevel { .. } => (core_ps, hardware_ps, 1),
        };
        let end_ps = crate::constants::ps(self.seconds * 1e9);
        // Events are cores that come to a lock, so that locks meet them in order. What has not ended by the end does not count.
        let mut taken = 0;
        Agenda::new(cores).run(end_ps, |now, core| {
            let free = locks[map[core as usize]].hold(machine, now, core, hold_ps);
            taken += u64::from(free <= end_ps);
            Some(free + between_ps)
        });
        let requests = taken / takes;
        requests as f64 * PS_PER_S as f64 / end_ps as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Constants;
    use crate::shapes::{Shape, machine};

    #[test]
    fn one_lock_falls_with_sockets_and_queues_do_not() {
        let machine = Machine::new(
            &machine(4, 8, 1 << 30, Shape::Full, Vec::new()),
            &Constants::SERVER.draw(1),
        )
        .unwrap();
        let of = |design, cores| Requests::LINUX.run(design, &machine, cores, 1);
        let (one, socket, all) = (
            of(Design::SingleLock, 1),
            of(Design::SingleLock, 8),
            of(Design::SingleLock, 32),
        );
        assert!((600e3..1.1e6).contains(&one), "{one}");
        assert!(all < one && all < socket && socket < 1.3e6, "{one}, {socket}, {all}");
        let queues = Design::TwoLevel { hardware_queues: 32 };
        assert!(of(queues, 32) > 25.0 * of(queues, 1));
        assert!(of(queues, 32) > of(Design::TwoLevel { hardware_queues: 4 }, 32));
    }
}
