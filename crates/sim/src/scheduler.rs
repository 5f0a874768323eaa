//! Threads on cores: a core runs one piece of work at a time, and a thread stays on its core until its mask forbids it.

use crate::Machine;
use homenode_policy::CpuId;
use homenode_policy::affinity::{Thread, ThreadId};
use homenode_policy::topology::Topology;

/// Cores, and who runs on them.
#[derive(Clone, Debug)]
pub(crate) struct Scheduler {
    cpus: Vec<CpuId>,
    free_at: Vec<u64>,
    threads: Vec<Placed>,
}

#[derive(Clone, Debug)]
struct Placed {
    core: u32,
    allowed: Vec<CpuId>,
    busy_ps: u64,
    waited_ps: u64,
}

impl Scheduler {
    /// Threads on the first `cores` CPUs that run, thread after thread where `starts` says.
    pub(crate) fn new(topology: &Topology, cores: u32, starts: &[u32]) -> Self {
        let online = topology.cpus().iter().filter(|cpu| cpu.online).map(|cpu| cpu.id);
        let cpus: Vec<_> = online.take(cores as usize).collect();
        let placed = |core: &u32| Placed {
            core: *core,
            allowed: cpus.clone(),
            busy_ps: 0,
            waited_ps: 0,
        };
        Self {
            free_at: vec![0; cpus.len()],
            threads: starts.iter().map(placed).collect(),
            cpus,
        }
    }

    pub(crate) fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    pub(crate) fn core(&self, thread: usize) -> u32 {
        self.threads[thread].core
    }

    pub(crate) fn core_of(&self, cpu: CpuId) -> u32 {
        let place = self.cpus.iter().position(|other| *other == cpu);
        u32::try_from(place.expect("a plan names CPUs that run")).expect("CPU numbers are 32 bits")
    }

    /// When the core is free; `now` or later.
    pub(crate) fn free_at(&self, core: u32, now: u64) -> u64 {
        self.free_at[core as usize].max(now)
    }

    /// A core is busy until `end`.
    pub(crate) fn occupy(&mut self, core: u32, end: u64) {
        self.free_at[core as usize] = end;
    }

    /// Adds time for which a thread ran, or waited for its core.
    pub(crate) fn note(&mut self, thread: usize, busy_ps: u64, waited_ps: u64) {
        self.threads[thread].busy_ps += busy_ps;
        self.threads[thread].waited_ps += waited_ps;
    }

    /// A thread of a snapshot with what the scheduler knows, and without bytes; begins a new period. Its number is one above its place here.
    pub(crate) fn tell(&mut self, thread: usize, process: &str) -> Thread {
        let cpu = self.cpus[self.core(thread) as usize];
        let cpuset = self.cpus.clone();
        let placed = &mut self.threads[thread];
        Thread {
            id: ThreadId {
                process: 1,
                thread: u32::try_from(thread + 1).expect("threads are few"),
                started: 1,
            },
            name: String::new(),
            process_name: process.to_owned(),
            cpu,
            allowed: placed.allowed.clone(),
            cpuset,
            cpu_ns: std::mem::take(&mut placed.busy_ps) / crate::PS_PER_NS,
            waited_ns: std::mem::take(&mut placed.waited_ps) / crate::PS_PER_NS,
            disk: Vec::new(),
            received: Vec::new(),
            sent: Vec::new(),
            memory: Vec::new(),
            files: Vec::new(),
            is_new: false,
            is_unread: false,
        }
    }

    /// Gives a thread a mask. A thread whose core is not in it goes to the core of the mask that has the fewest threads.
    pub(crate) fn allow(&mut self, thread: usize, mask: &[CpuId]) {
        self.threads[thread].allowed = mask.to_vec();
        if mask.contains(&self.cpus[self.core(thread) as usize]) {
            return;
        }
        let least = self.least(thread);
        self.threads[thread].core = least;
    }

    /// Moves threads that share a core to idle cores of their masks, those of their node first, as the kernel's scheduler does.
    pub(crate) fn balance(&mut self, machine: &Machine) {
        for thread in 0..self.threads.len() {
            let core = self.core(thread);
            let node = machine.node_of(core);
            let free = self.threads[thread].allowed.iter().map(|cpu| self.core_of(*cpu));
            let free = free.filter(|other| self.crowd(*other) == 0);
            let nearest = free.min_by_key(|other| (machine.node_of(*other) != node, *other));
            if let Some(to) = nearest.filter(|_| self.crowd(core) > 1) {
                self.threads[thread].core = to;
            }
        }
    }

    fn crowd(&self, core: u32) -> usize {
        self.threads.iter().filter(|placed| placed.core == core).count()
    }

    /// The core of a thread's mask that has the fewest threads.
    fn least(&self, thread: usize) -> u32 {
        let cores = self.threads[thread].allowed.iter().map(|cpu| self.core_of(*cpu));
        let least = cores.min_by_key(|core| (self.crowd(*core), *core));
        least.expect("a mask has a CPU")
    }
}
