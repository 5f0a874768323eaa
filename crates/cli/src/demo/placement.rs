//! Where bytes lie: of files, and of one file for each node that a thread of that node wrote.

use super::outcome::Files;
use super::trees;
use crate::failure::{Failure, Result};
use crate::file::map_of;
use crate::mountinfo::shown;
use homenode_linux::cpu;
use homenode_policy::topology::{NodeKind, Topology};
use homenode_policy::{CpuId, NodeId};
use std::collections::BTreeMap;
use std::path::Path;
use std::{io, thread};

/// What each node's thread writes.
const WRITTEN_BYTES: usize = 8 << 20;

/// Bytes by node of all regular files at and below `path`, on a homenode mount.
pub(super) fn bytes_by_node(path: &Path) -> Result<BTreeMap<u16, u64>> {
    let mut files = Vec::new();
    let looked = trees::each(path, &mut |path, found| {
        if found.is_file() {
            files.push(path.to_owned());
        }
        Ok(())
    });
    looked.map_err(|error| Failure::new(format!("cannot look at what is in {}: {error}", shown(path))))?;
    let mut sum = BTreeMap::new();
    for file in files {
        for on in map_of(&file, &shown(&file))? {
            *sum.entry(on.node).or_default() += on.bytes;
        }
    }
    Ok(sum)
}

/// From a thread pinned to each node in turn that this process may use, `write`s a file of its own, and has `locate` tell
/// where that lies. Both get its name.
pub(super) fn write_from_each_node(
    topology: &Topology,
    write: &(dyn Fn(&str, &[u8]) -> io::Result<()> + Sync),
    locate: &dyn Fn(&str) -> Result<BTreeMap<u16, u64>>,
) -> Result<Vec<Files>> {
    let allowed = cpu::allowed_cpus().unwrap_or_default();
    let nodes = topology
        .nodes()
        .iter()
        .filter(|node| matches!(node.kind(), NodeKind::Dram | NodeKind::CpuOnly));
    let bytes = vec![3; WRITTEN_BYTES];
    let mut files = Vec::new();
    for node in nodes {
        let cpus: Vec<CpuId> = node.cpus.iter().copied().filter(|cpu| allowed.contains(cpu)).collect();
        if cpus.is_empty() {
            continue;
        }
        let (NodeId(number), name) = (node.id, format!("written-on-node{}", node.id.0));
        // A thread of its own, so that nobody else is pinned.
        let written = thread::scope(|scope| {
            let pinned = || cpu::pin_to_node_cpus(&cpus).and_then(|()| write(&name, &bytes));
            scope
                .spawn(pinned)
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        written.map_err(|error| Failure::new(format!("cannot write {name} from node {number}: {error}")))?;
        files.push(Files {
            what: format!("written by a thread on node {number}"),
            written_from: Some(number),
            bytes_by_node: locate(&name)?,
        });
    }
    Ok(files)
}
