//! Signs that hardware has come or gone: reading them is far cheaper than reading the topology anew.

use super::Reading;
use crate::topology::sysfs::Tree;
use homenode_policy::CpuId;

/// The CPUs that run, the interrupts, and the names of disks and cards. While it is the same, so is the topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardware {
    online: Vec<CpuId>,
    interrupts: Vec<(u32, String)>,
    devices: Vec<String>,
}

impl Hardware {
    pub(super) fn read(tree: &Tree, reading: &Reading) -> Self {
        let directories = ["sys/block", "sys/class/net"];
        Self {
            online: reading.online.clone(),
            interrupts: reading.interrupts(),
            devices: directories.iter().flat_map(|path| tree.names(path)).collect(),
        }
    }
}
