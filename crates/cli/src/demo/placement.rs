//! Where bytes lie: of files, and of one file for each node that a thread of that node wrote.

use super::outcome::Files;
use crate::failure::{Cannot, Result};
use crate::file::map_of;
use crate::mountinfo::shown;
use homenode_linux::cpu;
use homenode_policy::CpuId;
use homenode_policy::topology::Topology;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io, thread};

/// Bytes that each node's thread writes.
const WRITTEN_BYTES: usize = 8 << 20;

/// The CPUs of each node that this process may use; nodes without any left out.
pub(super) fn cpus_by_node(topology: &Topology) -> Vec<(u16, Vec<CpuId>)> {
    let allowed = cpu::allowed_cpus().unwrap_or_default();
    let usable = |cpus: &[CpuId]| {
        cpus.iter()
            .copied()
            .filter(|cpu| allowed.contains(cpu))
            .collect::<Vec<_>>()
    };
    let nodes = topology.nodes().iter().map(|node| (node.id.0, usable(&node.cpus)));
    nodes.filter(|(_, cpus)| !cpus.is_empty()).collect()
}

/// Where each job is to stay: each on a node of its own, in turn. Nothing where there is one node: the scheduler knows
/// better there.
pub(super) fn cpus_by_job(topology: &Topology, jobs: usize) -> Vec<Option<Vec<CpuId>>> {
    let nodes = cpus_by_node(topology);
    let cpus = |job: usize| (nodes.len() > 1).then(|| nodes[job % nodes.len()].1.clone());
    (0..jobs).map(cpus).collect()
}

/// Bytes by node of all regular files at and below `path`, on a homenode mount.
pub(super) fn bytes_by_node(path: &Path) -> Result<BTreeMap<u16, u64>> {
    let files = files_at(path).cannot(format_args!("read the files in {}", shown(path)))?;
    let mut sum = BTreeMap::new();
    for file in files {
        for on in map_of(&file, &shown(&file))? {
            *sum.entry(on.node).or_default() += on.bytes;
        }
    }
    Ok(sum)
}

/// Regular files at and below `path`. Follows no links.
fn files_at(path: &Path) -> io::Result<Vec<PathBuf>> {
    let kind = fs::symlink_metadata(path)?.file_type();
    let mut files = Vec::new();
    if kind.is_file() {
        files.push(path.to_owned());
    } else if kind.is_dir() {
        for entry in fs::read_dir(path)? {
            files.extend(files_at(&entry?.path())?);
        }
    }
    Ok(files)
}

/// From a thread pinned to each node in turn that this process may use, `write`s a file of its own, and has `locate` tell
/// where that lies. Both get its name.
pub(super) fn write_from_each_node(
    topology: &Topology,
    write: &(dyn Fn(&str, &[u8]) -> io::Result<()> + Sync),
    locate: &dyn Fn(&str) -> Result<BTreeMap<u16, u64>>,
) -> Result<Vec<Files>> {
    let bytes = vec![3; WRITTEN_BYTES];
    let mut files = Vec::new();
    for (number, cpus) in cpus_by_node(topology) {
        let name = format!("written-on-node{number}");
        // A thread of its own, so that nobody else is pinned.
        let written = thread::scope(|scope| {
            let pinned = || cpu::pin_to_node_cpus(&cpus).and_then(|()| write(&name, &bytes));
            scope
                .spawn(pinned)
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        written.cannot(format_args!("write {name} from node {number}"))?;
        files.push(Files {
            what: format!("written by a thread on node {number}"),
            written_from: Some(number),
            bytes_by_node: locate(&name)?,
        });
    }
    Ok(files)
}
