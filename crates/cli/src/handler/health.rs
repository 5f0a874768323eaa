//! Health of a pool in a few words, and the memory of its server.

use crate::control::protocol::{Access, DurableReport, FuseReport, ServerMemory};
use crate::status::{reserved_lost, size};
use homenode::{MemberState, Status};
use rustix::time::{ClockId, clock_gettime};

/// Says what is wrong with a pool, the gravest first; nothing where all is well.
pub(super) fn problems(pool: &Status, durable: Option<&DurableReport>, fuse: &FuseReport) -> Vec<String> {
    let mut problems = Vec::new();
    if durable.is_some_and(|durable| durable.access == Access::Failed) {
        problems.push("READ ONLY: a member could not be written".to_owned());
    }
    let members = pool.members.iter();
    problems.extend(members.filter_map(|member| Some(format!("{} {}", member.id, member.problem.as_deref()?))));
    if fuse.panics > 0 {
        problems.push(format!("{} requests failed by a bug in the server", fuse.panics));
    }
    // A node without a member has all of its writers' bytes elsewhere, as was asked for.
    let with_member = pool.nodes.iter().filter(|node| node.state != MemberState::NoMember);
    let (full, others): (Vec<_>, Vec<_>) = with_member.partition(|node| node.state == MemberState::Fat);
    if others.is_empty() && !full.is_empty() {
        problems.push(format!(
            "full: {} of {} are free",
            size(pool.free_bytes),
            size(pool.capacity_bytes)
        ));
    } else {
        problems.extend(full.iter().map(|node| format!("{} is full", node.node)));
    }
    problems.extend(reserved_lost(pool));
    let spilled: u64 = full.iter().chain(&others).map(|node| node.spilled_bytes).sum();
    if spilled > 0 {
        problems.push(format!(
            "{} spilled to other nodes, because the writers' nodes were full",
            size(spilled)
        ));
    }
    // The first user is refused at a half.
    if pool.metadata_refused > 0 && pool.metadata_used_bytes >= pool.metadata_limit_bytes / 3 {
        problems.push(format!(
            "requests refused as metadata memory was full for their user: {}; {} of {} are used",
            pool.metadata_refused,
            size(pool.metadata_used_bytes),
            size(pool.metadata_limit_bytes)
        ));
    }
    problems
}

/// Memory of this process as the kernel counts it; zeros where it does not.
pub(super) fn server_memory(metadata_bytes: u64) -> ServerMemory {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let told = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kibibytes << 10)
    };
    ServerMemory {
        resident_bytes: told("VmRSS:").unwrap_or(0),
        own_bytes: told("RssAnon:").unwrap_or(0),
        metadata_bytes,
    }
}

/// CPU time of this process, threads that have ended included.
pub(super) fn server_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let ns = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    u64::try_from(ns).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use homenode::{NodeId, NodeStatus};

    fn node(number: u16, state: MemberState) -> NodeStatus {
        NodeStatus {
            node: NodeId(number),
            state,
            capacity_bytes: 1 << 20,
            populated_bytes: 0,
            used_bytes: 0,
            spilled_bytes: 0,
        }
    }

    #[test]
    fn problems_of_a_pool_are_sorted_by_gravity() {
        let well = Status {
            nodes: vec![node(0, MemberState::Candidate), node(1, MemberState::NoMember)],
            ..Status::default()
        };
        assert!(problems(&well, None, &FuseReport::default()).is_empty());
        let spilled = |number, state| NodeStatus {
            spilled_bytes: 4096,
            ..node(number, state)
        };
        let pool = Status {
            // Bytes of a node without a member lie where they were asked to.
            nodes: vec![
                spilled(0, MemberState::Fat),
                node(1, MemberState::Candidate),
                spilled(2, MemberState::NoMember),
            ],
            ..Status::default()
        };
        let durable = DurableReport {
            name: None,
            uuid: String::new(),
            access: Access::Failed,
        };
        let fuse = FuseReport {
            panics: 2,
            ..FuseReport::default()
        };
        let told = problems(&pool, Some(&durable), &fuse);
        let words = ["READ ONLY", "2 requests failed", "node 0 is full", "4.00 KiB spilled"];
        assert_eq!(told.len(), words.len(), "{told:?}");
        assert!(
            told.iter().zip(words).all(|(told, word)| told.starts_with(word)),
            "{told:?}"
        );
        let metadata = |metadata_used_bytes| Status {
            metadata_limit_bytes: 300,
            metadata_used_bytes,
            metadata_refused: 1,
            ..Status::default()
        };
        let told = [150, 99].map(|used| problems(&metadata(used), None, &FuseReport::default()));
        assert!(
            told[0][0].starts_with("requests refused as metadata") && told[1].is_empty(),
            "{told:?}"
        );
        let lost = Status {
            reserved_lost_bytes: 4096,
            reserved_lost_since_s: Some(1),
            ..Status::default()
        };
        let told = problems(&lost, None, &FuseReport::default());
        let words = "other writers took 4.00 KiB that fallocate had reserved, first ";
        assert!(told.len() == 1 && told[0].starts_with(words), "{told:?}");
        let full = Status {
            nodes: vec![node(0, MemberState::Fat)],
            ..Status::default()
        };
        let told = problems(&full, None, &FuseReport::default());
        assert!(told.len() == 1 && told[0].starts_with("full: "), "{told:?}");
    }

    #[test]
    fn memory_of_this_process_is_reported() {
        let memory = server_memory(7);
        assert!(
            memory.resident_bytes >= memory.own_bytes && memory.own_bytes > 0,
            "{memory:?}"
        );
        assert_eq!(memory.metadata_bytes, 7);
    }
}
