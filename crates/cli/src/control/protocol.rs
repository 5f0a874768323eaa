//! The lines between a command and a server.

use crate::bodies::Answers;
use homenode::NodeId;
use homenode::mover::{MoverStatus, ReachedBytes, Reason, Told};
use homenode::tasks::PoolTasks;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of everything that is printed as JSON. Grows when a field changes its meaning or goes.
pub(crate) const OUTPUT_VERSION: u32 = 1;

/// Longest line of a request.
pub(crate) const REQUEST_BYTES_MAX: u64 = 64 << 10;

/// Request of a command to a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    Status,
    /// Unmount and end.
    Down {
        lazy: bool,
    },
    FileMove {
        inode: u64,
        node: u16,
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
        !matches!(self, Self::Status | Self::VolumeList | Self::Tasks)
    }

    /// Whether a running server has the answer at once.
    pub(crate) fn is_quick(&self) -> bool {
        matches!(
            self,
            Self::Status | Self::VolumeList | Self::Tasks | Self::VolumeCreate { .. }
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
    Tasks(PoolTasks),
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
}

impl Refusal {
    /// For a reason that a command has no remedy for but to tell it.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            busy: false,
            device_busy: false,
            unmounted: false,
        }
    }
}

/// Memory of names, attributes and block maps that a user owns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct UserReport {
    pub(crate) uid: u32,
    pub(crate) bytes: u64,
}

/// A pool and its mount, as `homenode status --json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StatusReport {
    pub(crate) output_version: u32,
    /// Where it is mounted, or was.
    pub(crate) directory: String,
    /// Else it was detached from under open files, and goes when they are closed.
    pub(crate) mounted: bool,
    /// The server.
    pub(crate) pid: u32,
    pub(crate) version: String,
    /// Set for a durable pool.
    #[serde(default)]
    pub(crate) durable: Option<DurableReport>,
    pub(crate) capacity_bytes: u64,
    pub(crate) used_bytes: u64,
    /// Bytes of `used_bytes` that files of the kernel hold, on no member.
    #[serde(default)]
    pub(crate) kernel_bytes: u64,
    /// Bytes of `kernel_bytes` in files that were looked at: the nodes' `used_bytes` have them.
    #[serde(default)]
    pub(crate) kernel_located_bytes: u64,
    /// Promised by fallocate and not placed yet.
    pub(crate) reserved_bytes: u64,
    pub(crate) free_bytes: u64,
    /// Memory of names, attributes and block maps, besides the members.
    pub(crate) metadata_used_bytes: u64,
    /// The limit of that memory.
    pub(crate) metadata_limit_bytes: u64,
    /// Changes of names and attributes, and writes, that were refused for want of that memory.
    #[serde(default)]
    pub(crate) metadata_refused: u64,
    /// Number of users who own some of it.
    #[serde(default)]
    pub(crate) metadata_users: usize,
    /// The sixteen users who own most of it, the greatest first.
    #[serde(default)]
    pub(crate) metadata_by_user: Vec<UserReport>,
    pub(crate) nodes: Vec<NodeReport>,
    pub(crate) members: Vec<MemberReport>,
    /// Slices of the cache that a pool with disks has.
    #[serde(default)]
    pub(crate) cache: Vec<SliceReport>,
    /// Memory of the cache's tables, besides its frames and at most.
    #[serde(default)]
    pub(crate) cache_table_bytes: u64,
    /// The access matrix without its empty cells.
    pub(crate) accesses: Vec<AccessReport>,
    pub(crate) spills: Vec<SpillReport>,
    #[serde(default)]
    pub(crate) mover: MoverReport,
    /// How bytes are copied on this processor, and why.
    #[serde(default)]
    pub(crate) copies: String,
    pub(crate) fuse: FuseReport,
    /// Answers by kind of body and operation: `yes`, or the name of the errno that refuses it.
    #[serde(default)]
    pub(crate) bodies: Answers,
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
}

impl StatusReport {
    /// Whether it is of a durable pool that can only be read because a member could not be written.
    pub(crate) fn has_failed(&self) -> bool {
        self.durable
            .as_ref()
            .is_some_and(|durable| durable.access == Access::Failed)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodeReport {
    pub(crate) node: u16,
    pub(crate) state: State,
    pub(crate) capacity_bytes: u64,
    pub(crate) populated_bytes: u64,
    pub(crate) used_bytes: u64,
    /// Written by this node's CPUs to other nodes because members here were fat.
    pub(crate) spilled_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MemberReport {
    pub(crate) member: u16,
    /// `dram`, `pmem`, `file` or `block`.
    #[serde(default)]
    pub(crate) kind: String,
    pub(crate) home: u16,
    pub(crate) state: State,
    /// Fault of a durable member.
    #[serde(default)]
    pub(crate) problem: Option<String>,
    pub(crate) backing: String,
    pub(crate) capacity_bytes: u64,
    pub(crate) populated_bytes: u64,
    pub(crate) used_bytes: u64,
    /// Requests to a disk that failed.
    #[serde(default)]
    pub(crate) errors: u64,
}

/// Slice of a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SliceReport {
    pub(crate) node: u16,
    pub(crate) bytes: u64,
    /// Holds nothing.
    pub(crate) free_bytes: u64,
    /// Newer than the disks.
    pub(crate) dirty_bytes: u64,
    /// Copies to and from its frames, those of blocks that had to be read first among them.
    pub(crate) copies: u64,
    /// Read from disks: misses, and what was read ahead.
    pub(crate) fetched_bytes: u64,
    /// Written to disks.
    pub(crate) saved_bytes: u64,
    /// Frames given to blocks that other nodes asked for.
    pub(crate) stolen_bytes: u64,
    /// Read for the node though they had left the cache not long before: a larger one would have had them.
    #[serde(default)]
    pub(crate) returned_bytes: u64,
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

/// Counts and decisions of the mover.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct MoverReport {
    /// `off`, `plan` or `on`.
    pub(crate) mode: String,
    /// Why nothing is counted.
    pub(crate) not_seen: Option<String>,
    /// Reads and writes of files of the kernel, by node of the CPUs; mappings are not seen.
    pub(crate) reached: Vec<ReachedReport>,
    /// Bytes that found no room among the counts.
    pub(crate) missed_bytes: u64,
    pub(crate) moves: u64,
    pub(crate) moved_bytes: u64,
    /// The latest decisions, the last one at the end.
    pub(crate) decisions: Vec<DecisionReport>,
}

impl From<&MoverStatus> for MoverReport {
    fn from(status: &MoverStatus) -> Self {
        let reached = |(node, bytes): (&NodeId, &ReachedBytes)| ReachedReport {
            node: node.0,
            read_bytes: bytes.read,
            written_bytes: bytes.written,
        };
        let decision = |told: &Told| {
            let decision = &told.decision;
            let reason = match &told.moved {
                Some(Err(why)) => format!("cannot move: {why}"),
                _ => decision.reason.to_string(),
            };
            DecisionReport {
                inode: decision.file,
                node: decision.to.0,
                bytes: decision.bytes,
                saved_rate: decision.saved_rate,
                outcome: outcome(told).to_owned(),
                reason,
            }
        };
        Self {
            mode: status.mode.name().to_owned(),
            not_seen: status.not_seen.clone(),
            reached: status.reached.iter().map(reached).collect(),
            missed_bytes: status.missed_bytes,
            moves: status.moves,
            moved_bytes: status.moved_bytes,
            decisions: status.told.iter().map(decision).collect(),
        }
    }
}

fn outcome(told: &Told) -> &'static str {
    match (&told.moved, told.decision.reason) {
        (Some(Ok(_)), _) => "moved",
        (None, Reason::Pays) => "would move",
        _ => "stays",
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReachedReport {
    pub(crate) node: u16,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DecisionReport {
    pub(crate) inode: u64,
    /// Node whose CPUs reach most of its bytes.
    pub(crate) node: u16,
    /// Bytes of the file on other nodes.
    pub(crate) bytes: u64,
    /// Bytes a second that would no longer be remote.
    pub(crate) saved_rate: u64,
    /// `moved`, `would move` or `stays`.
    pub(crate) outcome: String,
    pub(crate) reason: String,
}

/// State of a member, or of all members of a node, as the monitor sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Candidate,
    Fat,
    Draining,
    /// Draining is over: the member holds nothing.
    Drained,
    /// The pool was opened without the member.
    Missing,
    /// The node has no member in the pool, only CPUs that write to it.
    NoMember,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AccessReport {
    pub(crate) from: u16,
    pub(crate) home: u16,
    pub(crate) operations: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SpillReport {
    pub(crate) from: u16,
    pub(crate) home: u16,
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
    /// Answered with an errno; many are ordinary (a name that is not there).
    pub(crate) errors: u64,
    /// Requests answered with an errno, by errno.
    #[serde(default)]
    pub(crate) errors_by_errno: BTreeMap<i32, u64>,
    /// Requests that met a bug of the server and were answered with EIO.
    pub(crate) panics: u64,
    /// Requests by operation, those that were made.
    pub(crate) by_operation: BTreeMap<String, u64>,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Candidate => "candidate",
            Self::Fat => "fat",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Missing => "missing",
            Self::NoMember => "no member",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use homenode::tasks::{FilePlace, TaskBytes};

    #[test]
    fn requests_read_back() {
        let requests = [
            (Request::Status, r#"{"request":"status"}"#),
            (Request::Tasks, r#"{"request":"tasks"}"#),
            (Request::Down { lazy: true }, r#"{"request":"down","lazy":true}"#),
            (
                Request::FileMove { inode: 7, node: 1 },
                r#"{"request":"file_move","inode":7,"node":1}"#,
            ),
            (
                Request::PoolAdd {
                    node: 1,
                    size: "2G".into(),
                },
                r#"{"request":"pool_add","node":1,"size":"2G"}"#,
            ),
            (
                Request::PoolAddFile {
                    path: "/a".into(),
                    size_bytes: None,
                    unwritten: true,
                    direct: false,
                },
                r#"{"request":"pool_add_file","path":"/a","size_bytes":null,"unwritten":true,"direct":false}"#,
            ),
            (
                Request::PoolDrain { member: 3 },
                r#"{"request":"pool_drain","member":3}"#,
            ),
            (
                Request::PoolRemove { member: 3 },
                r#"{"request":"pool_remove","member":3}"#,
            ),
            (
                Request::VolumeCreate {
                    name: "a\"b".into(),
                    size_bytes: 4096,
                    policy: "node:1".into(),
                },
                r#"{"request":"volume_create","name":"a\"b","size_bytes":4096,"policy":"node:1"}"#,
            ),
            (Request::VolumeList, r#"{"request":"volume_list"}"#),
            (
                Request::VolumeResize {
                    name: "a".into(),
                    size_bytes: 4096,
                    force: true,
                },
                r#"{"request":"volume_resize","name":"a","size_bytes":4096,"force":true}"#,
            ),
            (
                Request::VolumeRemove { name: "a".into() },
                r#"{"request":"volume_remove","name":"a"}"#,
            ),
            (
                Request::VolumeAttach {
                    name: "a".into(),
                    trace: Some("/t".into()),
                },
                r#"{"request":"volume_attach","name":"a","trace":"/t"}"#,
            ),
            (
                Request::VolumeDetach {
                    name: "a".into(),
                    force: false,
                },
                r#"{"request":"volume_detach","name":"a","force":false}"#,
            ),
        ];
        for (request, line) in requests {
            assert_eq!(serde_json::to_string(&request).unwrap(), line);
            assert_eq!(serde_json::from_str::<Request>(line).unwrap(), request);
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
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
    fn replies_read_back() {
        let replies = [
            Reply::Progress {
                done_bytes: 1,
                total_bytes: 2,
            },
            Reply::Done(Outcome::Down),
            Reply::Done(Outcome::Tasks(PoolTasks {
                answered: true,
                threads: vec![TaskBytes {
                    thread: 7,
                    started: 5,
                    homes: vec![(0, 1), (2, u64::MAX)],
                    files: vec![(9, 1 << 20)],
                }],
                files: vec![FilePlace {
                    inode: 9,
                    homes: vec![(2, 4096)],
                }],
                room: vec![(0, 1), (2, 0)],
                unseen: vec![("a\nb".to_owned(), "c".to_owned())],
                ..PoolTasks::default()
            })),
            Reply::Done(Outcome::Moved { bytes: 4096 }),
            Reply::Failed(Refusal {
                message: "a\nb".into(),
                busy: true,
                device_busy: false,
                unmounted: false,
            }),
        ];
        for reply in replies {
            let line = serde_json::to_string(&reply).unwrap();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(serde_json::from_str::<Reply>(&line).unwrap(), reply);
        }
    }
}
