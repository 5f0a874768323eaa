//! Cost of a placement, computed from the words of `affinity::cost` and nothing else.

use crate::world::World;
use homenode_policy::affinity::cost::{
    ARRIVAL_BYTES, CACHE_PERCENT, DEVICE_ACCESS_PERCENT, DISTANCE_PERCENT_MAX, INTERRUPT_NS, OVERLOAD_BYTES_PER_CPU,
    RECEIVE_NS_PER_KIB,
};
use homenode_policy::affinity::{Queue, QueueKind, Thread};
use homenode_policy::{CpuId, NodeId};

/// Who is where: CPUs of each thread, and the CPU of each of the card's queues.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Placement {
    pub(crate) threads: Vec<Vec<CpuId>>,
    pub(crate) queues: Vec<CpuId>,
}

/// The way of some of a thread's bytes: bytes a second, and the queue of the card, the disk's name or the buffers' node.
pub(crate) enum Way<'a> {
    Card(u64, usize),
    Disk(u64, &'a str),
    Memory(u64, NodeId),
}

impl World {
    /// CPUs that share a cache, as the worlds' caches are made.
    pub(crate) fn domain(&self, cpu: CpuId) -> Vec<CpuId> {
        let topology = &self.snapshot.topology;
        let node = self.snapshot.node(cpu).expect("the test's world is consistent");
        let caches = topology.caches().iter().filter(|cache| cache.cpus.len() > 1);
        let shared = caches.map(|cache| cache.cpus.clone()).find(|cpus| cpus.contains(&cpu));
        let alone = || {
            let caches = || topology.caches().iter().filter(|cache| cache.cpus.len() > 1);
            let left = topology.node(node).expect("a consistent world").cpus.iter().copied();
            left.filter(|cpu| !caches().any(|cache| cache.cpus.contains(cpu)))
                .collect()
        };
        shared.unwrap_or_else(alone)
    }

    pub(crate) fn apart(&self, a: CpuId, b: CpuId) -> f64 {
        let node = |cpu| usize::from(self.snapshot.node(cpu).expect("the test's world is consistent").0);
        if self.domain(a).contains(&b) {
            0.0
        } else if node(a) == node(b) {
            CACHE_PERCENT as f64 / 100.0
        } else {
            self.far(node(a), node(b))
        }
    }

    fn far(&self, a: usize, b: usize) -> f64 {
        if a == b {
            return 0.0;
        }
        let matrix = &self.snapshot.topology.latency().matrix;
        let beyond = 100 * (matrix[a][b] + matrix[b][a]) / (matrix[a][a] + matrix[b][b]) - 100;
        u64::from(beyond).clamp(CACHE_PERCENT, DISTANCE_PERCENT_MAX) as f64 / 100.0
    }

    fn access(&self, cpu: CpuId, device: &str) -> f64 {
        let node = usize::from(self.snapshot.node(cpu).expect("the test's world is consistent").0);
        let home = self.snapshot.home(device);
        let far = home.map_or(0.0, |home| self.far(node, usize::from(home.0)));
        far * DEVICE_ACCESS_PERCENT as f64 / 100.0
    }

    pub(crate) fn card_queues(&self) -> Vec<&Queue> {
        let queues = self.snapshot.queues.iter();
        queues.filter(|queue| queue.kind == QueueKind::Receive).collect()
    }

    /// Where everything is now.
    pub(crate) fn placement(&self) -> Placement {
        let threads = self.snapshot.threads.iter().map(|thread| {
            let domain = self.domain(thread.cpu);
            thread
                .allowed
                .iter()
                .copied()
                .filter(|cpu| domain.contains(cpu))
                .collect()
        });
        let queues = self.card_queues().into_iter().map(|queue| {
            let mut interrupts = self.snapshot.interrupts.iter();
            interrupts
                .find(|it| Some(it.number) == queue.interrupt)
                .expect("the test's world is consistent")
                .affinity[0]
        });
        Placement {
            threads: threads.collect(),
            queues: queues.collect(),
        }
    }

    /// Where a thread's bytes go. What is sent goes through all queues alike, as no world has XPS at first.
    pub(crate) fn ways(&self, thread: usize) -> Vec<Way<'_>> {
        let disk = self.snapshot.threads[thread].disk.iter();
        let mut ways: Vec<Way<'_>> = disk
            .map(|disk| Way::Disk(disk.bytes, disk.device.as_deref().expect("the world is consistent")))
            .collect();
        let streams = self.streams.iter().filter(|stream| stream.thread == thread);
        ways.extend(streams.map(|stream| Way::Card(stream.bytes, stream.queue as usize)));
        let queues = self.card_queues().len();
        let sent = self.snapshot.threads[thread].sent_bytes() / queues.max(1) as u64;
        ways.extend((0..queues).map(|queue| Way::Card(sent, queue)));
        let memory = self.snapshot.threads[thread].memory.iter();
        ways.extend(memory.map(|(node, bytes)| Way::Memory(*bytes, *node)));
        ways
    }

    /// Returns the cost of a thread's bytes from a set of CPUs.
    pub(crate) fn way_cost(&self, ways: &[Way<'_>], from: &[CpuId], queues: &[CpuId]) -> f64 {
        let one = |cpu: CpuId| -> f64 {
            let here = usize::from(self.snapshot.node(cpu).expect("the test's world is consistent").0);
            let cost = |way: &Way<'_>| match way {
                Way::Memory(bytes, node) => *bytes as f64 * self.far(here, usize::from(node.0)),
                Way::Card(bytes, queue) => {
                    *bytes as f64 * (self.apart(cpu, queues[*queue]) + self.access(queues[*queue], "eth0"))
                }
                Way::Disk(bytes, name) => {
                    let mut all = self.snapshot.queues.iter();
                    let queue = all
                        .find(|queue| queue.device == *name && queue.cpus.contains(&cpu))
                        .expect("the test's world is consistent");
                    let mut interrupts = self.snapshot.interrupts.iter();
                    let arrives = interrupts
                        .find(|it| Some(it.number) == queue.interrupt)
                        .expect("the test's world is consistent")
                        .effective[0];
                    *bytes as f64 * (self.apart(cpu, arrives) + self.access(arrives, name))
                }
            };
            ways.iter().map(cost).sum()
        };
        from.iter().map(|cpu| one(*cpu)).sum::<f64>() / from.len() as f64
    }

    /// Bytes a second that are known of each queue, what nobody is known to take, and how busy it keeps its CPU.
    pub(crate) fn queue_facts(&self) -> Vec<(f64, f64)> {
        let count = self.card_queues().len();
        (0..count)
            .map(|queue| {
                let of_queue = |way: &Way<'_>| matches!(way, Way::Card(_, other) if *other == queue);
                let bytes = |way: Way<'_>| if let Way::Card(bytes, _) = way { bytes } else { 0 };
                let threads = 0..self.snapshot.threads.len();
                let ways = threads.flat_map(|thread| self.ways(thread));
                let known: u64 = ways.filter(of_queue).map(bytes).sum();
                let streams = self.streams.iter().filter(|stream| stream.queue as usize == queue);
                let (received, arrivals) = streams.fold((0, 0), |(bytes, arrivals), stream| {
                    (bytes + stream.bytes, arrivals + stream.bytes / 50_000)
                });
                let busy = arrivals * INTERRUPT_NS + (received >> 10) * RECEIVE_NS_PER_KIB;
                let unknown = (arrivals * ARRIVAL_BYTES).saturating_sub(known);
                (unknown as f64, busy.min(1_000_000_000) as f64)
            })
            .collect()
    }

    /// Whether a thread's CPUs are 90 % full of threads that count.
    fn is_on_full(&self, thread: &Thread) -> bool {
        let mut own = self.domain(thread.cpu);
        own.retain(|cpu| thread.allowed.contains(cpu));
        let there = self.snapshot.threads.iter().filter(|other| own.contains(&other.cpu));
        let counted = there.filter(|other| !self.is_anywhere(other));
        let ran: u64 = counted.map(|other| other.cpu_ns).sum();
        ran as f64 >= 9e8 * own.len() as f64
    }

    /// Whether a thread's CPUs are for the most part full of threads that count, took little and never slept.
    fn is_in_crowd(&self, thread: &Thread) -> bool {
        let mut own = self.domain(thread.cpu);
        own.retain(|cpu| thread.allowed.contains(cpu));
        let there = self.snapshot.threads.iter().filter(|other| own.contains(&other.cpu));
        let crowd = there
            .filter(|other| !self.is_anywhere(other))
            .filter(|other| other.cpu_ns < 100_000_000 && other.cpu_ns + other.waited_ns >= 900_000_000);
        let took: u64 = crowd.map(|other| other.cpu_ns).sum();
        self.is_on_full(thread) && took as f64 >= 4.5e8 * own.len() as f64
    }

    /// Whether a thread waited at least half as long for its CPUs as it ran. Those that run rarely wait for others.
    fn waits(&self, thread: &Thread) -> bool {
        let never_slept = thread.cpu_ns + thread.waited_ns >= 900_000_000;
        let is_sign = thread.cpu_ns >= 100_000_000 || never_slept && self.is_in_crowd(thread);
        self.is_on_full(thread) && is_sign && thread.waited_ns >= thread.cpu_ns / 2
    }

    /// Whether a thread is not placed.
    fn roams(&self, thread: &Thread) -> bool {
        let disk: u64 = thread.disk.iter().map(|disk| disk.bytes).sum();
        let bytes = disk + thread.network_bytes() + thread.memory_bytes();
        thread.is_new || bytes < 1 << 20 || thread.allowed != thread.cpuset
    }

    /// Whether a thread counts nowhere.
    fn is_anywhere(&self, thread: &Thread) -> bool {
        self.roams(thread) && thread.allowed[..] == self.snapshot.online
    }

    /// CPU time that a thread wants, up to 80 % of a CPU.
    fn wants(&self, thread: &Thread) -> f64 {
        let is_sign = thread.cpu_ns >= 100_000_000 || self.is_in_crowd(thread);
        if is_sign && thread.cpu_ns + thread.waited_ns >= 900_000_000 {
            return 8e8;
        }
        let waited = if self.waits(thread) {
            thread.waited_ns.min(thread.cpu_ns)
        } else {
            0
        };
        ((thread.cpu_ns + waited) as f64).min(8e8)
    }

    /// Load of a domain, and what of it is bound to each of its CPUs.
    fn loads(&self, domain: &[CpuId], placement: &Placement, facts: &[(f64, f64)]) -> (f64, Vec<f64>) {
        let (mut total, mut bound) = (0.0, vec![0.0; domain.len()]);
        let mut count = |cpus: &[CpuId], load: f64, is_bound: bool| {
            for cpu in cpus.iter().filter(|cpu| domain.contains(cpu)) {
                total += load / cpus.len() as f64;
                let place = domain
                    .iter()
                    .position(|other| other == cpu)
                    .expect("the test's world is consistent");
                bound[place] += if is_bound { load / cpus.len() as f64 } else { 0.0 };
            }
        };
        for (thread, cpus) in self.snapshot.threads.iter().zip(&placement.threads) {
            let cpus = if self.roams(thread) {
                &thread.allowed[..]
            } else {
                &cpus[..]
            };
            let inside = cpus.iter().filter(|cpu| domain.contains(cpu)).count();
            if !self.is_anywhere(thread) {
                count(cpus, self.wants(thread), inside < domain.len());
            }
        }
        for (cpu, (_, busy)) in placement.queues.iter().zip(facts) {
            count(&[*cpu], *busy, true);
        }
        (total, bound)
    }

    /// Returns the cost of the load beyond 80 % of the CPUs and 20 %; where no thread waits, beyond what they have now and 20 %.
    pub(crate) fn overload_cost(&self, placement: &Placement, facts: &[(f64, f64)]) -> f64 {
        let mut left = self.snapshot.online.clone();
        let mut over = 0.0;
        while let Some(first) = left.first() {
            let domain = self.domain(*first);
            left.retain(|cpu| !domain.contains(cpu));
            let there = |thread: &&Thread| domain.contains(&thread.cpu);
            let lacks = self
                .snapshot
                .threads
                .iter()
                .filter(there)
                .any(|thread| !self.is_anywhere(thread) && self.waits(thread));
            let beyond = |load: f64, now: f64, cpus: f64| {
                let borne = if lacks { 0.0 } else { now.min(1e9 * cpus) };
                (load - borne.max(8e8 * cpus) - 2e8).max(0.0)
            };
            let (now, bound_now) = self.loads(&domain, &self.placement(), facts);
            let (total, bound) = self.loads(&domain, placement, facts);
            let bound = bound.into_iter().zip(bound_now);
            let bound: f64 = bound.map(|(load, now)| beyond(load, now, 1.0)).sum();
            over += bound.max(beyond(total, now, domain.len() as f64));
        }
        over / 1e9 * OVERLOAD_BYTES_PER_CPU as f64
    }

    /// Returns the cost of a placement, in bytes a second.
    pub(crate) fn slow_cost(&self, placement: &Placement) -> f64 {
        let facts = self.queue_facts();
        let threads = placement.threads.iter().enumerate();
        let bytes: f64 = threads
            .map(|(thread, from)| self.way_cost(&self.ways(thread), from, &placement.queues))
            .sum();
        let queues = placement.queues.iter().zip(&facts);
        let unknown: f64 = queues
            .map(|(cpu, (unknown, _))| unknown * self.access(*cpu, "eth0"))
            .sum();
        bytes + unknown + self.overload_cost(placement, &facts)
    }
}
