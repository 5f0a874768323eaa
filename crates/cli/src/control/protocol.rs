//! The lines between a command and a server.

use crate::bodies::Answers;
use crate::report::{KindTimes, LiveReport};
use homenode::mover::MoverStatus;
use homenode::tasks::PoolTasks;
use homenode::{CacheStatus, Flow, MemberKind, Status};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of most that is printed as JSON. Grows when a field changes its meaning or goes.
pub(crate) const OUTPUT_VERSION: u32 = 1;

/// Version of what `homenode status` prints as JSON.
pub(crate) const STATUS_VERSION: u32 = 2;

/// Longest line of a request.
pub(crate) const REQUEST_BYTES_MAX: u64 = 64 << 10;

/// Request of a command to a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    Status,
    /// Asks for the last status that was sampled, and samples that ended later than this.
    Live {
        since_ms: u64,
    },
    /// Unmount and end.
    Down {
        lazy: bool,
    },
    FileMove {
        inode: u64,
        node: u16,
    },
    /// Asks for reads and writes since the last such request.
    Accesses {
        /// No more are asked for.
        ends: bool,
    },
    /// Asks what threads do with the pool, as far as the asker may see them.
    Tasks,
    PoolAdd {
        node: u16,
        size: String,
    },
    PoolAddFile {
        /// An absolute path.
        path: String,
        /// Size of a file that is not there yet.
        size_bytes: Option<u64>,
        unwritten: bool,
        /// Reached past the page cache.
        #[serde(default)]
        direct: bool,
        /// Also where it holds other data.
        #[serde(default)]
        overwrites: bool,
    },
    PoolDrain {
        member: u16,
    },
    PoolRemove {
        member: u16,
    },
    VolumeCreate {
        name: String,
        size_bytes: u64,
        policy: String,
    },
    VolumeList,
    VolumeResize {
        name: String,
        size_bytes: u64,
        /// Also where what is cut off has data.
        force: bool,
    },
    VolumeRemove {
        name: String,
    },
    VolumeAttach {
        name: String,
        /// An absolute path, for a record of each request.
        trace: Option<String>,
    },
    VolumeDetach {
        name: String,
        /// Also under its users.
        force: bool,
    },
}

impl Request {
    /// Whether anything is other than before when it was carried out.
    pub(crate) fn changes_something(&self) -> bool {
        !matches!(
            self,
            Self::Status | Self::Live { .. } | Self::VolumeList | Self::Tasks | Self::Accesses { .. }
        )
    }

    /// Whether a reader may make this request. A reader may not ask for tasks, because the kernel counts reads and writes for them.
    pub(crate) fn is_for_readers(&self) -> bool {
        matches!(self, Self::Status | Self::Live { .. } | Self::VolumeList)
    }

    /// Longest line of an answer. Root's daemon asks the servers of all users for tasks, and 4096 threads on 8 nodes take less than 1 MiB.
    pub(crate) fn answer_bytes_max(&self) -> usize {
        match self {
            Self::Tasks => 8 << 20,
            _ => usize::MAX,
        }
    }

    /// Whether a running server has the answer at once.
    pub(crate) fn is_quick(&self) -> bool {
        matches!(
            self,
            Self::Status
                | Self::Live { .. }
                | Self::VolumeList
                | Self::Tasks
                | Self::Accesses { .. }
                | Self::VolumeCreate { .. }
        )
    }
}

/// Reply of a server: any number of `progress`, then one `done` or `failed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    Progress { done_bytes: u64, total_bytes: u64 },
    Done(Outcome),
    Failed(Refusal),
}

/// Result of a request that was carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Status(Box<StatusReport>),
    Live(Box<LiveReport>),
    Tasks(PoolTasks),
    Accesses {
        /// Lines of a trace.
        lines: String,
        lost: u64,
    },
    Down,
    Moved {
        bytes: u64,
    },
    Added {
        member: u16,
        bytes: u64,
    },
    Drained {
        bytes: u64,
    },
    Removed,
    /// It was made, or has its new size.
    VolumeSized {
        capacity_bytes: u64,
    },
    Volumes {
        directory: String,
        volumes: Vec<VolumeReport>,
    },
    VolumeRemoved,
    VolumeAttached {
        /// The block device.
        device: String,
    },
    VolumeDetached,
}

/// Why nothing came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) message: String,
    /// The mount is in use.
    #[serde(default)]
    pub(crate) busy: bool,
    /// The block device of an attached volume is in use.
    #[serde(default)]
    pub(crate) device_busy: bool,
    /// It is unmounted all the same.
    #[serde(default)]
    pub(crate) unmounted: bool,
    /// It is not mounted any more where the server has mounted it.
    #[serde(default)]
    pub(crate) not_mounted: bool,
}

impl Refusal {
    /// For a reason that a command has no remedy for but to tell it.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            busy: false,
            device_busy: false,
            unmounted: false,
            not_mounted: false,
        }
    }
}

/// A pool and its mount, as `homenode status --json` prints it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StatusReport {
    pub(crate) output_version: u32,
    /// Where it is mounted, or was.
    pub(crate) directory: String,
    /// Else it was detached from under open files, and goes when they are closed.
    pub(crate) mounted: bool,
    /// Process of another mount namespace, when it is mounted there only; the command that asks fills it in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) elsewhere: Option<u32>,
    /// Options it was mounted with, as mount options.
    #[serde(default)]
    pub(crate) options: Vec<String>,
    /// The server.
    pub(crate) pid: u32,
    pub(crate) version: String,
    /// Faults of the pool, each in a few words; none where all is well.
    #[serde(default)]
    pub(crate) problems: Vec<String>,
    /// Percent of the bytes read and written that were on the node of the CPU; null where that is not seen, or nothing was read or written yet.
    #[serde(default)]
    pub(crate) local_percent: Option<f64>,
    /// Bytes read and written since the mount, by node of the CPUs and home; null where that is not seen.
    #[serde(default)]
    pub(crate) flows: Option<Vec<Flow>>,
    /// Set for a durable pool.
    #[serde(default)]
    pub(crate) durable: Option<DurableReport>,
    #[serde(default)]
    pub(crate) server_memory: ServerMemory,
    /// CPU time that the server has taken.
    #[serde(default)]
    pub(crate) server_cpu_ns: u64,
    #[serde(flatten)]
    pub(crate) pool: Status,
    /// Cache that a pool with disks has.
    #[serde(flatten)]
    pub(crate) cache: CacheStatus,
    #[serde(default)]
    pub(crate) mover: MoverStatus,
    /// How bytes are copied on this processor, and why.
    #[serde(default)]
    pub(crate) copies: String,
    pub(crate) fuse: FuseReport,
    /// Answers by kind of body and operation: `yes`, or the name of the errno that refuses it.
    #[serde(default)]
    pub(crate) bodies: Answers,
}

/// Memory of the server's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerMemory {
    /// All of it, members that are memory included.
    pub(crate) resident_bytes: u64,
    /// Its own: what is neither members nor other files that it has mapped.
    pub(crate) own_bytes: u64,
    /// Names, attributes and block maps, which are part of its own.
    pub(crate) metadata_bytes: u64,
}

/// A durable pool, as `homenode status --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DurableReport {
    /// The name it was mounted by.
    pub(crate) name: Option<String>,
    /// In hexadecimal digits.
    pub(crate) uuid: String,
    pub(crate) access: Access,
}

/// Uses that a durable pool allows now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Access {
    ReadWrite,
    /// It was opened to be read only.
    ReadOnly,
    /// A member could not be written. Only reading goes on until the pool is opened again.
    Failed,
    /// A server of a later version told it.
    #[serde(other)]
    Unknown,
}

impl StatusReport {
    /// Removes paths of members, numbers of users and inodes, which a reader may not see.
    pub(crate) fn without_private(mut self) -> Self {
        let stored = self.pool.members.iter_mut();
        stored
            .filter(|member| member.kind != MemberKind::Dram)
            .for_each(|member| member.backing.clear());
        self.pool.metadata_by_user.clear();
        self.mover.decisions.clear();
        self
    }

    /// Whether it is of a durable pool that can only be read because a member could not be written.
    pub(crate) fn has_failed(&self) -> bool {
        self.durable
            .as_ref()
            .is_some_and(|durable| durable.access == Access::Failed)
    }
}

/// A volume, as `homenode volume list --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeReport {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    pub(crate) used_bytes: u64,
    /// Ascending; nodes with none left out.
    pub(crate) nodes: Vec<NodeBytes>,
    /// `local`, `node:N` or `interleave`.
    pub(crate) policy: String,
    pub(crate) attached: bool,
    /// Block device of an attached volume.
    #[serde(default)]
    pub(crate) device: Option<String>,
}

/// Number of bytes that a file or volume has on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeBytes {
    pub(crate) node: u16,
    pub(crate) bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct FuseReport {
    /// `uring` or `classic`.
    pub(crate) transport: String,
    pub(crate) transport_reason: String,
    /// Storage of the bytes of regular files: `kernel` or `pool`.
    pub(crate) data: String,
    pub(crate) data_reason: String,
    pub(crate) requests: u64,
    /// Opens of files that are not closed yet.
    #[serde(default)]
    pub(crate) open_files: u64,
    /// Answered with an errno, other than those of ordinary life (a name that is not there).
    pub(crate) errors: u64,
    /// Requests counted in `errors`, by errno.
    #[serde(default)]
    pub(crate) errors_by_errno: BTreeMap<i32, u64>,
    /// Requests that met a bug of the server and were answered with EIO.
    pub(crate) panics: u64,
    /// Requests by operation, those that were made.
    pub(crate) by_operation: BTreeMap<String, u64>,
    /// Times of requests by kind, those that were made.
    #[serde(default)]
    pub(crate) times: Vec<KindTimes>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use homenode::mover::{MoverMode, Outcome as MoveOutcome};
    use homenode::{MemberId, MemberState, MemberStatus, NodeId};

    /// A member on node 0 with nothing on it.
    pub(crate) fn member(id: u16, state: MemberState) -> MemberStatus {
        MemberStatus {
            id: MemberId(id),
            kind: MemberKind::Dram,
            home: NodeId(0),
            state,
            problem: None,
            backing: String::new(),
            capacity_bytes: 1,
            populated_bytes: 0,
            used_bytes: 0,
            errors: 0,
        }
    }

    #[test]
    fn malformed_requests_are_refused() {
        let refused = [
            "",
            "{}",
            "[]",
            "null",
            r#"{"request":"format"}"#,
            r#"{"request":"down"}"#,
            r#"{"request":"file_move","inode":-1,"node":0}"#,
            r#"{"request":"pool_drain","member":70000}"#,
            r#"{"request":"volume_create","name":"a","size_bytes":-1,"policy":"local"}"#,
            r#"{"request":"volume_remove"}"#,
            r#"{"request":"down","lazy":true,"force":true}"#,
        ];
        for line in refused {
            assert!(serde_json::from_str::<Request>(line).is_err(), "{line}");
        }
    }

    #[test]
    fn status_survives_serialization_and_has_flat_keys() {
        let member = MemberStatus {
            kind: MemberKind::Block,
            home: NodeId(1),
            problem: Some("is missing".to_owned()),
            capacity_bytes: u64::MAX,
            errors: 2,
            ..member(3, MemberState::Fat)
        };
        let report = StatusReport {
            output_version: STATUS_VERSION,
            directory: "/mnt".to_owned(),
            mounted: true,
            options: vec!["nosuid".to_owned()],
            problems: vec!["node 1 is full".to_owned()],
            local_percent: Some(99.5),
            server_cpu_ns: 7,
            pool: Status {
                members: vec![member],
                ..Status::default()
            },
            fuse: FuseReport {
                errors_by_errno: BTreeMap::from([(28, 3)]),
                ..FuseReport::default()
            },
            ..StatusReport::default()
        };
        let reply = Reply::Done(Outcome::Status(Box::new(report)));
        let line = serde_json::to_string(&reply).unwrap();
        assert_eq!(serde_json::from_str::<Reply>(&line).unwrap(), reply);
        let told: serde_json::Value = serde_json::from_str(&line).unwrap();
        let told = &told["done"]["status"];
        for key in [
            "capacity_bytes",
            "nodes",
            "accesses",
            "cache",
            "cache_table_bytes",
            "pid",
        ] {
            assert!(!told[key].is_null(), "{key} is missing: {told}");
        }
        let member = &told["members"][0];
        assert_eq!((&member["member"], &member["home"]), (&3.into(), &1.into()));
        assert_eq!((&member["kind"], &member["state"]), (&"block".into(), &"fat".into()));
        assert_eq!(told["mover"]["mode"], "off");
    }

    #[test]
    fn readers_are_told_no_paths_users_and_inodes() {
        let member = |id, kind, backing: &str| MemberStatus {
            kind,
            backing: backing.to_owned(),
            ..member(id, MemberState::Candidate)
        };
        let mut report = StatusReport {
            pool: Status {
                members: vec![
                    member(0, MemberKind::Dram, "pages of memory"),
                    member(1, MemberKind::File, "/home/a"),
                    member(2, MemberKind::Block, "/dev/a"),
                ],
                metadata_users: 1,
                metadata_by_user: vec![homenode::UserBytes { uid: 4711, bytes: 1 }],
                ..Status::default()
            },
            ..StatusReport::default()
        };
        let decision = r#"{"inode":4712,"node":1,"bytes":1,"saved_rate":1,"outcome":"moved","reason":""}"#;
        report
            .mover
            .decisions
            .push_back(serde_json::from_str(decision).unwrap());
        let told = |report: &StatusReport| serde_json::to_string(report).unwrap();
        let (all, public) = (told(&report), told(&report.clone().without_private()));
        for private in ["/home/a", "/dev/a", "4711", "4712"] {
            assert!(
                all.contains(private) && !public.contains(private),
                "{private}: {public}"
            );
        }
        assert!(public.contains("pages of memory"), "{public}");
    }

    #[test]
    fn words_of_a_later_server_are_read_as_unknown() {
        let later = r#""of a later version""#;
        fn read<T: serde::de::DeserializeOwned>(json: &str) -> T {
            serde_json::from_str(json).expect("any word is read")
        }
        assert_eq!(read::<MemberState>(later), MemberState::Unknown);
        assert_eq!(read::<MoverMode>(later), MoverMode::Unknown);
        assert_eq!(read::<MoveOutcome>(later), MoveOutcome::Unknown);
        assert_eq!(read::<Access>(later), Access::Unknown);
    }
}
