//! Signs that hardware has come or gone: reading them is far cheaper than reading the topology anew.

use super::Reading;
use crate::topology::live::real_devices;
use crate::topology::paths::Paths;
use crate::topology::sysfs::Tree;
use homenode_policy::CpuId;

/// The CPUs that run, the interrupts, and the names of disks and cards with a device behind them: others, such as those of containers, come and
/// go all the time, and are not in the topology. While it is the same, so is the topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardware {
    online: Vec<CpuId>,
    interrupts: Vec<(u32, String)>,
    devices: Vec<String>,
    /// Paths of disks that are in use: with them, homes and queues change.
    paths: Paths,
}

impl Hardware {
    pub(super) fn read(tree: &Tree, reading: &Reading) -> Self {
        Self {
            online: reading.online.clone(),
            interrupts: reading.interrupts(),
            devices: real_devices(tree),
            paths: Paths::read(tree),
        }
    }
}
