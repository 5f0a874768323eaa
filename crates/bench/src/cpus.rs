//! Which CPUs the measuring threads are pinned to.

use crate::error::Error;
use homenode_linux::process::Stat;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;
use std::path::Path;

/// The most threads any case has.
pub(crate) const THREADS_MAX: usize = 2;

/// CPUs of one node, of different cores where the machine has them; at most [`THREADS_MAX`], at least one.
pub(crate) fn choose() -> Result<Vec<usize>, Error> {
    Ok(pick(&allowed()?, Path::new("/sys/devices/system/cpu")))
}

/// The CPUs that this process may use, ascending.
pub(crate) fn allowed() -> Result<Vec<usize>, Error> {
    let allowed = sched_getaffinity(None).map_err(|error| Error::system("reading the CPUs allowed to us", error))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect())
}

/// Pins the calling thread.
pub(crate) fn pin(cpu: usize) -> Result<(), Error> {
    allow(&[cpu])
}

/// Lets the calling thread run on these CPUs alone.
pub(crate) fn allow(cpus: &[usize]) -> Result<(), Error> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set)
        .map_err(|error| Error::system(format!("pinning a thread to the CPUs {cpus:?}"), error))
}

/// Whether the scheduler runs this process in real time (chrt -f, -r): then its threads do not take turns.
pub(crate) fn is_realtime() -> Result<bool, Error> {
    let path = "/proc/self/stat";
    let line = fs::read(path).map_err(|error| Error::system(format!("reading {path}"), error))?;
    Ok(Stat::parse(&line).is_some_and(|stat| stat.real_time_priority != 0))
}

/// The CPUs that a file of sysfs lists.
pub(crate) fn list(file: &str) -> Result<Vec<usize>, Error> {
    let text = fs::read_to_string(file).map_err(|error| Error::system(format!("reading {file}"), error))?;
    Ok(parse_list(&text))
}

/// The node of a CPU, 0 where sysfs does not tell.
pub(crate) fn node(cpu: usize) -> u16 {
    node_under(Path::new("/sys/devices/system/cpu"), cpu).unwrap_or(0)
}

/// The first allowed CPU, then the best partner for it: same node and another core, else same node, else any.
fn pick(allowed: &[usize], sysfs: &Path) -> Vec<usize> {
    let first = allowed[0];
    let node_of = |cpu| node_under(sysfs, cpu);
    let siblings = fs::read_to_string(sysfs.join(format!("cpu{first}/topology/thread_siblings_list")));
    let siblings = siblings.map(|list| parse_list(&list)).unwrap_or_default();
    let partner = allowed[1..]
        .iter()
        .copied()
        .min_by_key(|&cpu| (node_of(cpu) != node_of(first), siblings.contains(&cpu), cpu));
    let mut chosen = vec![first];
    chosen.extend(partner);
    chosen
}

fn node_under(sysfs: &Path, cpu: usize) -> Option<u16> {
    let entries = fs::read_dir(sysfs.join(format!("cpu{cpu}"))).ok()?;
    entries.flatten().find_map(|entry| {
        entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_prefix("node")?.parse().ok())
    })
}

/// Parses sysfs's lists, such as `0-3,8`.
fn parse_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim()
        .split(',')
        .map(str::trim)
        .filter_map(range)
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_cpu_is_another_core_of_the_same_node() {
        let sysfs = std::env::temp_dir().join(format!("homenode-bench-cpus-{}", std::process::id()));
        for (cpu, node, siblings) in [
            (0, 0, "0,2"),
            (1, 1, "1,3"),
            (2, 0, "0,2"),
            (4, 0, "4-5"),
            (5, 0, "4-5"),
        ] {
            fs::create_dir_all(sysfs.join(format!("cpu{cpu}/node{node}"))).expect("a temporary directory");
            let topology = sysfs.join(format!("cpu{cpu}/topology"));
            fs::create_dir_all(&topology).expect("a temporary directory");
            fs::write(topology.join("thread_siblings_list"), format!("{siblings}\n")).expect("a temporary file");
        }
        assert_eq!(pick(&[0, 1, 2, 4, 5], &sysfs), [0, 4]);
        assert_eq!(
            pick(&[0, 1, 2], &sysfs),
            [0, 2],
            "a sibling is better than another node"
        );
        assert_eq!(pick(&[1], &sysfs), [1]);
        fs::remove_dir_all(&sysfs).expect("the test made the directory");
    }

    #[test]
    fn cpu_lists_are_formatted_as_ranges() {
        assert_eq!(parse_list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(parse_list(""), [] as [usize; 0]);
    }
}
