//! Files of the kernel that are made, and known to it, before anybody creates them.
//!
//! Making one and having the kernel know it are five system calls, a third of a create. A thread on each node does that
//! while files are created there; a creator that finds none makes its own.
//!
//! Cost: [`FILES_MAX`] empty files a node, 2.4 kB of the kernel's memory each, once files are created; the threads sleep otherwise.

use crate::call::Service;
use crate::host::Host;
use homenode_engine::fs::PreparedFile;
use homenode_engine::{Clock, CpuId, Memory, NodeId};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// Files that a node has ready at most.
pub(crate) const FILES_MAX: usize = 64;
/// Files below which more are made: enough for creators until the thread has been woken.
const FILES_MIN: usize = 40;

/// Files that are ready, by node.
#[derive(Debug)]
pub(crate) struct Prepared(BTreeMap<NodeId, Ready>);

#[derive(Debug)]
struct Ready {
    files: Mutex<Vec<PreparedFile>>,
    /// Wakes the thread; it ends when this is dropped.
    wanted: SyncSender<()>,
}

/// A thread that is to be started once there is a service.
pub(crate) struct Preparer {
    cpu: CpuId,
    node: NodeId,
    wanted: Receiver<()>,
}

impl Prepared {
    /// For the nodes of `cpus`, whose threads are the caller's to start.
    pub(crate) fn new(cpus: impl Iterator<Item = (CpuId, NodeId)>) -> (Self, Vec<Preparer>) {
        let mut preparers = Vec::new();
        let mut nodes = BTreeMap::new();
        for (cpu, node) in cpus {
            nodes.entry(node).or_insert_with(|| {
                let (wanted, receiver) = sync_channel(1);
                preparers.push(Preparer {
                    cpu,
                    node,
                    wanted: receiver,
                });
                Ready {
                    files: Mutex::default(),
                    wanted,
                }
            });
        }
        (Self(nodes), preparers)
    }

    /// A file that was made on `node`, if one is ready.
    pub(crate) fn take(&self, node: NodeId) -> Option<PreparedFile> {
        let ready = self.0.get(&node)?;
        let (file, left) = {
            let mut files = ready.lock();
            (files.pop(), files.len())
        };
        if left < FILES_MIN {
            // Full: it was woken already.
            let _ = ready.wanted.try_send(());
        }
        file
    }
}

impl Ready {
    fn lock(&self) -> MutexGuard<'_, Vec<PreparedFile>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Preparer {
    /// A name for the thread.
    pub(crate) fn name(&self) -> String {
        format!("fuse-files-{}", self.node.0)
    }

    /// Makes files until the service ends, which this does not keep.
    pub(crate) fn run<M: Memory, C: Clock, H: Host>(&self, service: &Weak<Service<M, C, H>>, host: &H) {
        // Elsewhere if no CPU of the node may be used.
        let _ = host.pin_near_cpu(self.cpu);
        while self.wanted.recv().is_ok() {
            while prepare_one(service, self.node) {}
        }
    }
}

/// Makes a file ready if one is wanted; whether it did.
fn prepare_one<M: Memory, C: Clock, H: Host>(service: &Weak<Service<M, C, H>>, node: NodeId) -> bool {
    let Some(service) = service.upgrade() else { return false };
    let Some(connection) = &service.passthrough else {
        return false;
    };
    let ready = &connection.prepared.0[&node];
    if ready.lock().len() >= FILES_MAX {
        return false;
    }
    // Without room for one, creators try for themselves, and tell their callers.
    let Ok(file) = connection.prepare(&service.fs) else {
        return false;
    };
    ready.lock().push(file);
    true
}
