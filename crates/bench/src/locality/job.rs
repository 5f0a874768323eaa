//! Work done in a guest, and the contestants that do it.

use serde::{Deserialize, Serialize};

/// Who does the job. The numbers are indices into [`Contestant::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Contestant {
    /// fio on tmpfs, both as they are by default.
    Tmpfs,
    /// fio on tmpfs, told not to lay files out.
    TmpfsNone,
    /// The library's threads.
    Library,
    /// fio, as it is by default, on a mount through rings.
    Mount,
    /// fio, as for [`Self::Mount`] but by `O_DIRECT`: the page cache of the kernel answers nothing.
    MountDirect,
    /// fio, as it is by default, on a mount through the classic device.
    MountClassic,
    /// fio, as it is by default, on a mount whose files are the kernel's.
    Kernel,
    /// fio on such a mount under `homenode run`; nobody counts the bytes of its copies.
    Run,
    /// fio on tmpfs, both as they are by default, beside `homenode steer --mover on`.
    Steer,
}

impl Contestant {
    /// All, the peers first.
    pub(super) const ALL: [Self; 9] = [
        Self::Tmpfs,
        Self::TmpfsNone,
        Self::Library,
        Self::Mount,
        Self::MountDirect,
        Self::MountClassic,
        Self::Kernel,
        Self::Run,
        Self::Steer,
    ];
    pub(super) const PEERS: [Self; 2] = [Self::Tmpfs, Self::TmpfsNone];

    /// Name in tables and JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::TmpfsNone => "tmpfs-none",
            Self::Library => "library",
            Self::Mount => "mount",
            Self::MountDirect => "mount-direct",
            Self::MountClassic => "mount-classic",
            Self::Kernel => "kernel",
            Self::Run => "run",
            Self::Steer => "steer",
        }
    }
}

/// Bytes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) name: &'static str,
    pub(super) bytes: u64,
}

pub(super) const SIZES: [Size; 2] = [
    Size {
        name: "4k",
        bytes: 4 << 10,
    },
    Size {
        name: "1m",
        bytes: 1 << 20,
    },
];

/// Bytes of each node's file: many times the lab's cache filter, which is 1 MiB.
pub(super) const FILE_BYTES: u64 = 16 << 20;

/// Work of one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Work {
    pub(super) round: u32,
    pub(super) contestant: Contestant,
    pub(super) block_bytes: u64,
    /// Else it reads.
    pub(super) write: bool,
}

/// Work done in one interval, as the guest reports it in a line of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) work: Work,
    /// Moved by all jobs together.
    pub(super) bytes: f64,
    pub(super) seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contestant_numbers_are_their_indices() {
        for (index, contestant) in Contestant::ALL.into_iter().enumerate() {
            assert_eq!(contestant as usize, index);
        }
    }
}
