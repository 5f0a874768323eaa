//! Threads on cores: a core runs one piece of work at a time, of interrupts first, then of threads in the order in which they asked.
//!
//! A thread stays on its core until its mask forbids it, or the core is busy and another is idle.

use crate::Machine;
use homenode_policy::CpuId;
use homenode_policy::affinity::{Thread, ThreadId};
use homenode_policy::topology::Topology;
use std::collections::VecDeque;
use std::sync::Arc;

/// Cores, and who runs on them.
#[derive(Clone, Debug)]
pub(crate) struct Scheduler {
    cpus: Arc<[CpuId]>,
    cores: Vec<Core>,
    threads: Vec<Placed>,
}

#[derive(Clone, Debug, Default)]
struct Core {
    free_at: u64,
    /// Interrupts and threads that wait for it.
    waiting: [VecDeque<u32>; 2],
}

impl Core {
    fn is_idle(&self, now: u64) -> bool {
        self.free_at <= now && self.waiting.iter().all(VecDeque::is_empty)
    }

    /// Whose turn it is, of interrupts or of threads.
    fn next(&self) -> Option<(usize, u32)> {
        let first = |class: usize| self.waiting[class].front().map(|who| (class, *who));
        first(INTERRUPTS).or_else(|| first(THREADS))
    }

    /// Says that it is `who`'s turn, or else when to ask again.
    fn ask(&mut self, class: usize, who: u32, now: u64) -> Result<(), u64> {
        let is_next = self.next().is_none_or(|next| next == (class, who));
        if self.free_at <= now && is_next {
            self.waiting[class].pop_front();
            return Ok(());
        }
        if !self.waiting[class].contains(&who) {
            self.waiting[class].push_back(who);
        }
        // Whoever is next asks at this time as well, and occupies the core.
        Err(self.free_at.max(now + 1))
    }
}

const INTERRUPTS: usize = 0;
const THREADS: usize = 1;

#[derive(Clone, Debug)]
struct Placed {
    core: u32,
    allowed: Arc<[CpuId]>,
    busy_ps: u64,
    waited_ps: u64,
}

impl Scheduler {
    /// Threads on the first `cores` CPUs that run, thread after thread where `starts` says.
    pub(crate) fn new(topology: &Topology, cores: u32, starts: &[u32]) -> Self {
        let online = topology.cpus().iter().filter(|cpu| cpu.online).map(|cpu| cpu.id);
        let cpus: Arc<[CpuId]> = online.take(cores as usize).collect();
        let placed = |core: &u32| Placed {
            core: *core,
            allowed: cpus.clone(),
            busy_ps: 0,
            waited_ps: 0,
        };
        Self {
            cores: vec![Core::default(); cpus.len()],
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

    /// Gives a core to work of an interrupt, which then occupies it.
    ///
    /// # Errors
    /// When it is not free: when to ask again.
    pub(crate) fn interrupt(&mut self, core: u32, interrupt: u32, now: u64) -> Result<(), u64> {
        self.cores[core as usize].ask(INTERRUPTS, interrupt, now)
    }

    /// Gives a thread its core, which it then occupies: an idle one of its node and mask, if its own is not idle.
    ///
    /// # Errors
    /// When no core is free: when to ask again.
    pub(crate) fn run(&mut self, machine: &Machine, thread: usize, now: u64) -> Result<u32, u64> {
        if !self.cores[self.core(thread) as usize].is_idle(now) {
            self.go_to_idle(machine, thread, now, false);
        }
        let core = self.core(thread);
        let who = u32::try_from(thread).expect("threads are few");
        let asked = self.cores[core as usize].ask(THREADS, who, now);
        if let Err(again) = asked {
            self.threads[thread].waited_ps += again - now;
        }
        asked.map(|()| core)
    }

    /// A core is busy until `end`.
    pub(crate) fn occupy(&mut self, core: u32, end: u64) {
        self.cores[core as usize].free_at = end;
    }

    /// Adds time for which a thread ran.
    pub(crate) fn note(&mut self, thread: usize, busy_ps: u64) {
        self.threads[thread].busy_ps += busy_ps;
    }

    /// A thread of a snapshot with what the scheduler knows, and without bytes; begins a new period. Its number is one above its place here.
    pub(crate) fn tell(&mut self, thread: usize, process: &str) -> Thread {
        let cpu = self.cpus[self.core(thread) as usize];
        let cpuset = self.cpus.clone();
        let placed = &mut self.threads[thread];
        let id = ThreadId {
            process: 1,
            thread: u32::try_from(thread + 1).expect("threads are few"),
            started: 1,
        };
        Thread {
            process_name: process.to_owned(),
            allowed: placed.allowed.clone(),
            cpu_ns: std::mem::take(&mut placed.busy_ps) / crate::PS_PER_NS,
            waited_ns: std::mem::take(&mut placed.waited_ps) / crate::PS_PER_NS,
            ..Thread::idle(id, cpu, cpuset)
        }
    }

    /// Gives a thread a mask. A thread whose core is not in it goes to the core of the mask that has the fewest threads.
    pub(crate) fn allow(&mut self, thread: usize, mask: &[CpuId]) {
        self.threads[thread].allowed = mask.into();
        if mask.contains(&self.cpus[self.core(thread) as usize]) {
            return;
        }
        let least = self.least(thread);
        self.go_to(thread, least);
    }

    /// Moves threads that wait to idle cores of their masks, those of their node first, as the kernel's scheduler does now and then.
    pub(crate) fn balance(&mut self, machine: &Machine, now: u64) {
        for thread in 0..self.threads.len() {
            let waiting = &self.cores[self.core(thread) as usize].waiting[THREADS];
            if waiting.iter().any(|who| *who as usize == thread) {
                self.go_to_idle(machine, thread, now, true);
            }
        }
    }

    /// Puts a thread on an idle core of its mask, the first of its node, if there is one. Of other nodes if `anywhere`.
    fn go_to_idle(&mut self, machine: &Machine, thread: usize, now: u64, anywhere: bool) {
        let node = machine.node_of(self.core(thread));
        let cores = self.threads[thread].allowed.iter().map(|cpu| self.core_of(*cpu));
        let idle = cores.filter(|core| self.cores[*core as usize].is_idle(now));
        let near = idle.filter(|core| anywhere || machine.node_of(*core) == node);
        if let Some(to) = near.min_by_key(|core| (machine.node_of(*core) != node, *core)) {
            self.go_to(thread, to);
        }
    }

    fn go_to(&mut self, thread: usize, core: u32) {
        let from = self.core(thread) as usize;
        self.cores[from].waiting[THREADS].retain(|who| *who as usize != thread);
        self.threads[thread].core = core;
    }

    /// No interrupt waits any more: some come to other cores. Each asks again.
    pub(crate) fn forget_interrupts(&mut self) {
        self.cores.iter_mut().for_each(|core| core.waiting[INTERRUPTS].clear());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Constants, shapes};

    fn two_nodes() -> (Topology, Machine) {
        let topology = shapes::machine(2, 2, 1 << 30, shapes::Shape::Full, Vec::new());
        let machine = Machine::new(&topology, &Constants::SERVER.draw(1)).unwrap();
        (topology, machine)
    }

    #[test]
    fn a_core_goes_to_interrupts_first_and_then_to_threads_by_turns() {
        let (topology, machine) = two_nodes();
        let mut scheduler = Scheduler::new(&topology, 1, &[0, 0]);
        assert_eq!(scheduler.run(&machine, 0, 0), Ok(0));
        scheduler.occupy(0, 10);
        assert_eq!(scheduler.run(&machine, 1, 0), Err(10));
        // The one that ran asks first, but it is the other's turn.
        assert_eq!(scheduler.run(&machine, 0, 10), Err(11));
        assert_eq!(scheduler.run(&machine, 1, 10), Ok(0));
        scheduler.occupy(0, 20);
        assert_eq!(scheduler.interrupt(0, 0, 15), Err(20));
        assert_eq!(scheduler.run(&machine, 0, 20), Err(21));
        assert_eq!(scheduler.interrupt(0, 0, 20), Ok(()));
    }

    #[test]
    fn threads_go_to_idle_cores_of_their_masks() {
        let (topology, machine) = two_nodes();
        let mut scheduler = Scheduler::new(&topology, 4, &[0, 0, 0]);
        assert_eq!(scheduler.run(&machine, 0, 0), Ok(0));
        scheduler.occupy(0, 10);
        let on_node = |core: u32, other: u32| machine.node_of(core) == machine.node_of(other);
        let near = scheduler.run(&machine, 1, 0).unwrap();
        assert!(near != 0 && on_node(near, 0));
        scheduler.occupy(near, 10);
        // The other node's only when threads are balanced, and by the mask.
        assert_eq!(scheduler.run(&machine, 2, 0), Err(10));
        let cpus = scheduler.cpus().to_vec();
        let near_cpus: Vec<CpuId> = (0_u32..)
            .zip(&cpus)
            .filter(|(core, _)| on_node(*core, 0))
            .map(|(_, cpu)| *cpu)
            .collect();
        scheduler.allow(2, &near_cpus);
        scheduler.balance(&machine, 5);
        assert_eq!(scheduler.core(2), 0);
        scheduler.allow(2, &cpus);
        scheduler.balance(&machine, 5);
        assert!(!on_node(scheduler.core(2), 0));
        assert!(scheduler.run(&machine, 2, 10).is_ok());
    }
}
