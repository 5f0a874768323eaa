//! CPUs that the measuring threads are pinned to.

use crate::error::{During, Error};
use homenode_engine::CpuId;
use homenode_linux::cpu;
use homenode_linux::process::Stat;
use homenode_linux::topology::{self, Source};
use homenode_policy::topology::Topology;
use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::{fs, thread};

/// The most threads any case has.
pub(crate) const THREADS_MAX: usize = 2;

/// This machine; none where it cannot be read.
static MACHINE: LazyLock<Option<Topology>> = LazyLock::new(|| topology::read(&Source::Live).ok());

/// CPUs of one node, of different cores where the machine has them; at most [`THREADS_MAX`], at least one.
pub(crate) fn choose() -> Result<Vec<usize>, Error> {
    Ok(pick(&allowed()?, MACHINE.as_ref()))
}

/// The CPUs that this process may use, ascending.
pub(crate) fn allowed() -> Result<Vec<usize>, Error> {
    let allowed = cpu::allowed_cpus().during("reading the CPUs allowed to us")?;
    Ok(allowed.into_iter().map(|cpu| cpu.0 as usize).collect())
}

/// Pins the calling thread.
pub(crate) fn pin(cpu: usize) -> Result<(), Error> {
    allow(&[cpu])
}

/// Does `work` on a thread that is pinned to the first of the measuring threads' CPUs: memory that it touches first lies on their node.
pub(crate) fn at_home<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    let cpu = choose()?[0];
    let pinned = || pin(cpu).and_then(|()| work());
    thread::scope(|scope| scope.spawn(pinned).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Lets the calling thread run on these CPUs alone.
pub(crate) fn allow(cpus: &[usize]) -> Result<(), Error> {
    let ids: Vec<CpuId> = cpus.iter().map(|&cpu| id(cpu)).collect();
    cpu::pin_to_node_cpus(&ids).during(format_args!("pinning a thread to the CPUs {cpus:?}"))
}

/// Whether the scheduler runs this process in real time (chrt -f, -r): then its threads do not take turns.
pub(crate) fn is_realtime() -> Result<bool, Error> {
    let path = "/proc/self/stat";
    let line = fs::read(path).during(format_args!("reading {path}"))?;
    Ok(Stat::parse(&line).is_some_and(|stat| stat.real_time_priority != 0))
}

/// The node of a CPU, 0 where the machine does not tell.
pub(crate) fn node(cpu: usize) -> u16 {
    MACHINE.as_ref().and_then(|machine| node_in(machine, cpu)).unwrap_or(0)
}

/// The first allowed CPU, then the best partner for it: same node and another core, else same node, else any.
fn pick(allowed: &[usize], machine: Option<&Topology>) -> Vec<usize> {
    let first = allowed[0];
    let node = |cpu| machine.and_then(|machine| node_in(machine, cpu));
    let core = |cpu| machine?.cpus().iter().find(|known| known.id == id(cpu))?.core;
    let is_worse = |&cpu: &usize| (node(cpu) != node(first), core(cpu) == core(first), cpu);
    let partner = allowed[1..].iter().copied().min_by_key(is_worse);
    [first].into_iter().chain(partner).collect()
}

fn node_in(machine: &Topology, cpu: usize) -> Option<u16> {
    machine.cpu_nodes().get(cpu).map(|node| node.0)
}

fn id(cpu: usize) -> CpuId {
    CpuId(u32::try_from(cpu).expect("Linux has fewer than 2^32 CPUs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_cpu_is_another_core_of_the_same_node() {
        // CPUs 0-3 and 4-7, two on each core.
        let machine = Source::Synthetic("node:2 core:2 pu:2".to_owned());
        let machine = Some(topology::read(&machine).expect("the description is right"));
        let pick = |allowed: &[usize]| super::pick(allowed, machine.as_ref());
        assert_eq!(pick(&[0, 1, 2, 3, 4]), [0, 2]);
        assert_eq!(pick(&[0, 1, 4]), [0, 1], "a sibling is better than another node");
        assert_eq!(pick(&[1]), [1]);
    }

    #[test]
    fn memory_is_touched_where_it_is_measured() {
        let ran_on = at_home(|| Ok((cpu::current_cpu(), allowed()?))).expect("the CPU is one of ours");
        let first = choose().expect("there is a CPU")[0];
        assert_eq!(ran_on, (id(first), vec![first]));
    }
}
