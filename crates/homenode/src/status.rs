//! Status of a pool: what programs that embed it get, and what `homenode status --json` prints. Sizes in bytes.
//!
//! A server of another version may have sent it: fields that came later have defaults.

use crate::{Access, MemberId, MemberKind, NodeId, Spill};
use homenode_engine::BLOCK_BYTES;
use homenode_engine::pool as engine;
use homenode_linux::memory::Health;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::ErrorKind;

/// Users whose metadata is told, at most.
const USERS_TOLD: usize = 16;
/// Percent of a node that are used when it is full, as for a member that is fat.
const FULL_PERCENT: u64 = 98;

/// State of a pool. Exact while nobody writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Space of all members that take data.
    pub capacity_bytes: u64,
    /// Holds data, that of `kernel_bytes` included.
    pub used_bytes: u64,
    /// Held by files of the kernel, whose bytes are on no member.
    #[serde(default)]
    pub kernel_bytes: u64,
    /// Bytes of `kernel_bytes` in files that were looked at: the nodes' `used_bytes` have them.
    #[serde(default)]
    pub kernel_located_bytes: u64,
    /// Promised to files and not placed yet.
    pub reserved_bytes: u64,
    /// Promised to files by fallocate and taken by other writers, since the mount.
    #[serde(default)]
    pub reserved_lost_bytes: u64,
    /// Time of the first such loss, in seconds since 1970; `None` without one.
    #[serde(default)]
    pub reserved_lost_since_s: Option<u64>,
    /// Can still be written or promised.
    pub free_bytes: u64,
    /// Memory that names, attributes and block maps take besides the members.
    pub metadata_used_bytes: u64,
    /// The limit of that memory.
    pub metadata_limit_bytes: u64,
    /// Changes of names and attributes, and writes, that were refused because they take more of that memory than their user may have.
    #[serde(default)]
    pub metadata_refused: u64,
    /// Number of users who own some of that memory.
    #[serde(default)]
    pub metadata_users: usize,
    /// The sixteen users who own most of it, the greatest first.
    #[serde(default)]
    pub metadata_by_user: Vec<UserBytes>,
    /// Nodes that have members, hold bytes or spilled some, ascending.
    pub nodes: Vec<NodeStatus>,
    /// All members, ascending by number.
    pub members: Vec<MemberStatus>,
    /// The access matrix: bytes and operations by (CPU's node, home). Cells without any are left out.
    pub accesses: Vec<Access>,
    /// Bytes that went to another node than the writer's because nearer members were fat.
    pub spills: Vec<Spill>,
}

/// Bytes that CPUs of a node read and wrote at a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Node of the CPUs.
    pub from: NodeId,
    /// Home of the bytes.
    pub home: NodeId,
    /// How many.
    pub bytes: u64,
    /// Reads and writes of them. One that meets two homes counts at both; those that the kernel does by itself are not counted.
    #[serde(default)]
    pub operations: u64,
}

impl Flow {
    /// Whether CPUs and bytes are on the same node.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.from == self.home
    }

    /// Adds up what goes the same way; ascending.
    #[must_use]
    pub fn sum<'a>(flows: impl Iterator<Item = &'a Self>) -> Vec<Self> {
        let mut sums: BTreeMap<(NodeId, NodeId), Self> = BTreeMap::new();
        for flow in flows {
            let sum = sums.entry((flow.from, flow.home)).or_insert(Self {
                bytes: 0,
                operations: 0,
                ..*flow
            });
            sum.bytes += flow.bytes;
            sum.operations += flow.operations;
        }
        sums.into_values().collect()
    }

    /// Percent of the bytes that are local, in tenths; `None` when there are none.
    #[must_use]
    pub fn local_percent(flows: &[Self]) -> Option<f64> {
        let sum = |is_one: &dyn Fn(&Self) -> bool| {
            let some = flows.iter().filter(|flow| is_one(flow));
            some.map(|flow| u128::from(flow.bytes)).sum::<u128>()
        };
        let all = sum(&|_| true);
        (all > 0).then(|| (sum(&Self::is_local) * 1000 / all) as f64 / 10.0)
    }
}

impl From<&Access> for Flow {
    fn from(access: &Access) -> Self {
        Self {
            from: access.from,
            home: access.home,
            bytes: access.read_bytes + access.written_bytes,
            operations: access.operations,
        }
    }
}

/// Memory of names, attributes and block maps that a user owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserBytes {
    /// The user's number.
    pub uid: u32,
    /// How many.
    pub bytes: u64,
}

/// State of a node: the sum of its members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The node.
    pub node: NodeId,
    /// State of the best of its members; fat where files of the kernel fill the node.
    pub state: MemberState,
    /// Size of its members.
    pub capacity_bytes: u64,
    /// Bytes of its members that are backed by memory already.
    pub populated_bytes: u64,
    /// Bytes that hold data, in members and in files of the kernel.
    pub used_bytes: u64,
    /// Written by this node's CPUs to other nodes because members here were fat.
    pub spilled_bytes: u64,
}

/// State of one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its number.
    #[serde(rename = "member")]
    pub id: MemberId,
    /// Kind of storage that holds the member's bytes.
    pub kind: MemberKind,
    /// The node it is at home on.
    pub home: NodeId,
    /// Whether it takes data, and why not.
    pub state: MemberState,
    /// Fault of a durable member, in words.
    #[serde(default)]
    pub problem: Option<String>,
    /// Storage that holds the member's bytes, such as a tmpfs of 2 MiB pages, or a path.
    pub backing: String,
    /// Its size.
    pub capacity_bytes: u64,
    /// Bytes that are backed by memory already.
    pub populated_bytes: u64,
    /// Bytes that hold data.
    pub used_bytes: u64,
    /// Requests to a disk that failed since the pool came up; 0 of other members.
    #[serde(default)]
    pub errors: u64,
}

/// Whether a member, or any member of a node, takes data; the best state first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// It has room.
    Candidate,
    /// It has none: writers turn to other members.
    Fat,
    /// It takes no new data, and what it holds moves to others.
    Draining,
    /// Draining is over: it holds nothing.
    Drained,
    /// The pool was opened without the member.
    Missing,
    /// The node has no member in the pool, only bytes of the kernel's files or CPUs that write to it.
    NoMember,
    /// A server of a later version told it.
    #[serde(other)]
    Unknown,
}

impl MemberState {
    /// Its name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Candidate => "candidate",
            Self::Fat => "fat",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Missing => "missing",
            Self::NoMember => "no member",
            Self::Unknown => "unknown",
        }
    }
}

const fn bytes(blocks: u64) -> u64 {
    blocks * BLOCK_BYTES as u64
}

impl Status {
    /// Makes it of the engine's figures and of the bytes of files of the kernel by node. `backing` says what a member lies on, `health` how well,
    /// and how many requests to it failed. Metadata is still to be told.
    pub(crate) fn new(
        status: engine::Status,
        kernel_by_node: &[(NodeId, u64)],
        backing: impl Fn(MemberId) -> String,
        health: impl Fn(MemberId) -> (Health, u64),
    ) -> Self {
        let members = status.members.iter().map(|member| {
            let (health, errors) = health(member.id);
            MemberStatus::new(member, backing(member.id), health, errors)
        });
        let (kernel_bytes, located) = (
            bytes(status.backing),
            kernel_by_node.iter().map(|(_, bytes)| bytes).sum::<u64>(),
        );
        // An earlier look may have found more than there is by now.
        let shrunk = |bytes: u64| match located {
            0 => 0,
            _ => u128::from(bytes) * u128::from(kernel_bytes.min(located)) / u128::from(located),
        };
        let kernel_by_node = kernel_by_node.iter().map(|(node, bytes)| {
            let bytes = u64::try_from(shrunk(*bytes)).expect("no more than before");
            (*node, bytes)
        });
        let mut pool = Self {
            capacity_bytes: bytes(status.capacity),
            used_bytes: bytes(status.used + status.backing),
            kernel_bytes,
            kernel_located_bytes: located.min(kernel_bytes),
            reserved_bytes: bytes(status.reserved),
            free_bytes: bytes(status.free()),
            members: members.collect(),
            accesses: status.accesses,
            spills: status.spills,
            ..Self::default()
        };
        pool.nodes = pool.sum_up(kernel_by_node);
        pool
    }

    fn sum_up(&self, kernel_by_node: impl Iterator<Item = (NodeId, u64)>) -> Vec<NodeStatus> {
        let mut nodes = BTreeMap::new();
        for member in &self.members {
            let node = node_of(&mut nodes, member.home);
            node.capacity_bytes += member.capacity_bytes;
            node.populated_bytes += member.populated_bytes;
            node.used_bytes += member.used_bytes;
            node.state = node.state.min(member.state);
        }
        for (node, bytes) in kernel_by_node {
            node_of(&mut nodes, node).used_bytes += bytes;
        }
        for spill in &self.spills {
            node_of(&mut nodes, spill.from).spilled_bytes += spill.bytes;
        }
        // The monitor of members sees files of the kernel only while it steers them, from two nodes on.
        if self.kernel_bytes > 0 {
            let is_full = |used: u64, capacity: u64| used / FULL_PERCENT > capacity / 100;
            let is_pool_full = is_full(self.capacity_bytes - self.free_bytes, self.capacity_bytes);
            let candidates = nodes.values_mut().filter(|node| node.state == MemberState::Candidate);
            candidates
                .filter(|node| is_pool_full || is_full(node.used_bytes, node.capacity_bytes))
                .for_each(|node| node.state = MemberState::Fat);
        }
        nodes.into_values().collect()
    }

    /// Bytes that were copied to and from a CPU's own node, and all that were copied.
    #[must_use]
    pub fn local_and_all_bytes(&self) -> (u64, u64) {
        let bytes = |cell: &Access| cell.read_bytes + cell.written_bytes;
        let local = self.accesses.iter().filter(|cell| cell.from == cell.home);
        (local.map(bytes).sum(), self.accesses.iter().map(bytes).sum())
    }

    /// Bytes that went to another node than the writer's, in all.
    #[must_use]
    pub fn spilled_bytes(&self) -> u64 {
        self.spills.iter().map(|spill| spill.bytes).sum()
    }

    /// Tells who owns the metadata, and how much of it there is; the greatest owner comes first.
    pub(crate) fn with_metadata(self, (used, limit): (u64, u64), refused: u64, by_user: &[(u32, u64)]) -> Self {
        let users = by_user.iter().take(USERS_TOLD);
        Self {
            metadata_used_bytes: used,
            metadata_limit_bytes: limit,
            metadata_refused: refused,
            metadata_users: by_user.len(),
            metadata_by_user: users.map(|&(uid, bytes)| UserBytes { uid, bytes }).collect(),
            ..self
        }
    }
}

fn node_of(nodes: &mut BTreeMap<NodeId, NodeStatus>, node: NodeId) -> &mut NodeStatus {
    nodes.entry(node).or_insert(NodeStatus {
        node,
        state: MemberState::NoMember,
        capacity_bytes: 0,
        populated_bytes: 0,
        used_bytes: 0,
        spilled_bytes: 0,
    })
}

impl MemberStatus {
    fn new(member: &engine::MemberStatus, backing: String, health: Health, errors: u64) -> Self {
        let state = match (member.draining, member.fat) {
            _ if health == Health::Missing => MemberState::Missing,
            (true, _) if member.used == 0 => MemberState::Drained,
            (true, _) => MemberState::Draining,
            (false, true) => MemberState::Fat,
            (false, false) => MemberState::Candidate,
        };
        let mut status = Self {
            id: member.id,
            kind: member.kind,
            home: member.home,
            state,
            problem: None,
            backing,
            capacity_bytes: bytes(member.capacity),
            populated_bytes: bytes(member.populated),
            used_bytes: bytes(member.used),
            errors,
        };
        status.problem = status.find_problem(health);
        status
    }

    /// Says what is wrong with a durable member. A file that somebody has removed or cut off is found before its bytes are missed.
    fn find_problem(&self, health: Health) -> Option<String> {
        let told = match health {
            Health::Missing => "is missing: access to its bytes fails with EIO".to_owned(),
            _ if self.kind == MemberKind::Dram => return None,
            health => match std::fs::metadata(&self.backing) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    "has lost its file's name: its bytes are lost when the pool goes down, so copy them".to_owned()
                }
                Ok(found) if found.is_file() && found.len() < self.capacity_bytes => format!(
                    "was cut off: its file has {} B and needs {} B: the rest is lost, and fails with EIO",
                    found.len(),
                    self.capacity_bytes
                ),
                _ if self.kind == MemberKind::Block && self.errors > 0 => format!(
                    "has failed {} times to read or write: such requests fail with EIO; the kernel's log (dmesg) may tell why",
                    self.errors
                ),
                _ if health == Health::Damaged => {
                    "has bytes that its disk did not give: they fail with EIO until the pool is \
                     opened again; the kernel's log (dmesg) may tell why"
                        .to_owned()
                }
                _ => return None,
            },
        };
        Some(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u16, home: u16, fat: bool, used: u64) -> engine::MemberStatus {
        engine::MemberStatus {
            id: MemberId(id),
            kind: MemberKind::Dram,
            home: NodeId(home),
            capacity: 1000,
            populated: 1000,
            used,
            fat,
            draining: false,
        }
    }

    fn status(members: Vec<engine::MemberStatus>, backing: u64, kernel_by_node: &[(NodeId, u64)]) -> Status {
        let status = engine::Status {
            capacity: members.iter().map(|member| member.capacity).sum(),
            used: members.iter().map(|member| member.used).sum(),
            members,
            accesses: Vec::new(),
            spills: Vec::new(),
            reserved: 0,
            backing,
        };
        Status::new(status, kernel_by_node, |_| String::new(), |_| (Health::Sound, 0))
    }

    fn states(status: &Status) -> Vec<MemberState> {
        status.nodes.iter().map(|node| node.state).collect()
    }

    #[test]
    fn a_nodes_state_is_that_of_its_best_member() {
        use MemberState::{Candidate, Fat, NoMember};
        let members = vec![member(0, 0, true, 990), member(1, 0, false, 0), member(2, 1, true, 990)];
        assert_eq!(
            states(&status(members, 0, &[(NodeId(2), 4096)])),
            [Candidate, Fat, NoMember]
        );
    }

    #[test]
    fn kernel_files_fill_their_node_and_finally_all_nodes() {
        use MemberState::{Candidate, Fat};
        let members = || vec![member(0, 0, false, 0), member(1, 1, false, 0)];
        let on_node_1 = |blocks| [(NodeId(1), bytes(blocks))];
        assert_eq!(states(&status(members(), 900, &on_node_1(900))), [Candidate, Candidate]);
        assert_eq!(states(&status(members(), 1000, &on_node_1(1000))), [Candidate, Fat]);
        assert_eq!(states(&status(members(), 2000, &[])), [Fat, Fat], "not looked at yet");
        // The look was before half of it was removed.
        let now = status(members(), 450, &on_node_1(900));
        assert_eq!(
            (now.nodes[1].used_bytes, now.kernel_located_bytes),
            (bytes(450), bytes(450))
        );
    }

    #[test]
    fn local_bytes_are_those_at_the_accessing_cpus_node() {
        let cell = |from, home, read_bytes, written_bytes| Access {
            from: NodeId(from),
            home: NodeId(home),
            operations: 1,
            read_bytes,
            written_bytes,
        };
        let status = Status {
            accesses: vec![cell(0, 0, 10, 20), cell(0, 1, 1, 2), cell(1, 1, 100, 0)],
            spills: vec![Spill {
                from: NodeId(0),
                home: NodeId(1),
                bytes: 2,
            }],
            ..Status::default()
        };
        assert_eq!(status.local_and_all_bytes(), (130, 133));
        assert_eq!(status.spilled_bytes(), 2);
    }
}
