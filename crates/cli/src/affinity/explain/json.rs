//! JSON report about threads, interrupts and queues, `output_version` 1. Bytes are counted over the period.

use super::story::Story;
use crate::affinity::card_advice::Advice;
use crate::affinity::plan::json::{ActionReport, CardReport, FileReport, StayReport, action, card, file, stay};
use crate::affinity::target::Found;
use crate::affinity::words::name_alone;
use homenode_linux::affinity::Unseen;
use homenode_linux::affinity::act::conflicts::Conflict;
use homenode_policy::affinity::{DeviceBytes, FileId, Interrupt, Queue, Target, Thread};
use homenode_policy::{CpuId, NodeId};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Report<'a> {
    output_version: u32,
    source: String,
    period_ns: u64,
    /// Threads, then interrupts, then queues; empty for a thread that did nothing in the period.
    found: Vec<FoundReport<'a>>,
    conflicts: &'a [Conflict],
    unseen: &'a [Unseen],
}

#[derive(Serialize)]
struct FoundReport<'a> {
    target: FoundTarget<'a>,
    name: Option<String>,
    seen: Seen<'a>,
    /// Change of the target in the journal.
    set: Option<SetReport<'a>>,
    /// At most one of these is there, and none of what is not placed.
    action: Option<ActionReport<'a>>,
    stay: Option<StayReport<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum FoundTarget<'a> {
    /// Its CPUs can be changed.
    Target(Target),
    /// Nobody can change its CPUs.
    BlockQueue {
        kind: &'static str,
        device: &'a str,
        index: u32,
    },
}

#[derive(Serialize)]
struct SetReport<'a> {
    to: &'a [CpuId],
    old: &'a [CpuId],
}

/// Observations about a target, by its kind.
#[derive(Serialize)]
#[serde(untagged)]
enum Seen<'a> {
    Thread {
        cpu: CpuId,
        node: Option<NodeId>,
        allowed: &'a [CpuId],
        cpuset: &'a [CpuId],
        cpu_ns: u64,
        disk: &'a [DeviceBytes],
        received: Vec<ReceivedReport<'a>>,
        sent: &'a [DeviceBytes],
        /// Bytes of buffers of pools, by home.
        memory: Vec<MemoryReport>,
        files: Vec<UsedFileReport>,
        /// Not all of its bytes are readable: what is 0 may be more.
        is_unread: bool,
    },
    Interrupt {
        device: Option<&'a str>,
        home: Option<NodeId>,
        affinity: &'a [CpuId],
        effective: &'a [CpuId],
        managed: bool,
        arrivals: Vec<CpuReport>,
    },
    Queue {
        home: Option<NodeId>,
        interrupt: Option<u32>,
        cpus: &'a [CpuId],
        movable: bool,
        card: Option<CardReport>,
        advice: Option<&'a Advice>,
    },
}

/// Null is not known; device and queue are known together.
#[derive(Serialize)]
struct ReceivedReport<'a> {
    cpu: Option<CpuId>,
    device: Option<&'a str>,
    queue: Option<u32>,
    bytes: u64,
}

#[derive(Serialize)]
struct MemoryReport {
    node: u16,
    bytes: u64,
}

#[derive(Serialize)]
struct UsedFileReport {
    /// Device number of the pool's mount.
    pool: String,
    inode: u64,
    bytes_per_s: u64,
    /// Node to which it was moved for good.
    moved_to: Option<u16>,
    /// It is to move.
    action: Option<FileReport>,
}

#[derive(Serialize)]
struct CpuReport {
    cpu: u32,
    count: u64,
}

pub(super) fn of<'a>(story: &Story<'a>, found: &Found<'a>, unseen: &'a [Unseen], source: String) -> Report<'a> {
    let threads = found.threads.iter().map(|one| of_thread(story, one));
    let interrupts = found.interrupts.iter().map(|one| of_interrupt(story, one));
    let queues = found.queues.iter().map(|one| of_queue(story, one));
    Report {
        output_version: 1,
        source,
        period_ns: story.snapshot.period_ns,
        found: threads.chain(interrupts).chain(queues).collect(),
        conflicts: &story.known.conflicts,
        unseen,
    }
}

fn of_thread<'a>(story: &Story<'a>, thread: &'a Thread) -> FoundReport<'a> {
    let received = thread.received.iter().map(|it| ReceivedReport {
        cpu: it.cpu,
        device: it.queue.as_ref().map(|(device, _)| &device[..]),
        queue: it.queue.as_ref().map(|(_, index)| *index),
        bytes: it.bytes,
    });
    let seen = Seen::Thread {
        cpu: thread.cpu,
        node: story.snapshot.node(thread.cpu),
        allowed: &thread.allowed,
        cpuset: &thread.cpuset,
        cpu_ns: thread.cpu_ns,
        disk: &thread.disk,
        received: received.collect(),
        sent: &thread.sent,
        memory: thread
            .memory
            .iter()
            .map(|(node, bytes)| MemoryReport {
                node: node.0,
                bytes: *bytes,
            })
            .collect(),
        files: thread.files.iter().map(|used| used_file(story, *used)).collect(),
        is_unread: thread.is_unread,
    };
    placed(story, Target::Thread(thread.id), seen)
}

fn used_file(story: &Story<'_>, (id, bytes_per_s): (FileId, u64)) -> UsedFileReport {
    let (major, minor) = id.pool;
    let moved = story.known.files.iter().find(|(known, _)| *known == id);
    UsedFileReport {
        pool: format!("{major}:{minor}"),
        inode: id.inode,
        bytes_per_s,
        moved_to: moved.map(|(_, node)| node.0),
        action: story.plan.files.iter().find(|one| one.file == id).map(file),
    }
}

fn of_interrupt<'a>(story: &Story<'a>, interrupt: &'a Interrupt) -> FoundReport<'a> {
    let arrivals = interrupt.arrivals.iter().map(|(cpu, count)| CpuReport {
        cpu: cpu.0,
        count: *count,
    });
    let seen = Seen::Interrupt {
        device: interrupt.device.as_deref(),
        home: interrupt
            .device
            .as_deref()
            .and_then(|device| story.snapshot.home(device)),
        affinity: &interrupt.affinity,
        effective: &interrupt.effective,
        managed: interrupt.managed,
        arrivals: arrivals.collect(),
    };
    placed(story, Target::Interrupt(interrupt.number), seen)
}

fn of_queue<'a>(story: &Story<'a>, queue: &'a Queue) -> FoundReport<'a> {
    let of_device = story.cards.iter().find(|card| card.device == queue.device);
    let seen = Seen::Queue {
        home: story.snapshot.home(&queue.device),
        interrupt: queue.interrupt,
        cpus: &queue.cpus,
        movable: queue.movable,
        card: of_device.map(card),
        advice: story.advice_on(&queue.device),
    };
    match Target::of_queue(&queue.device, queue.kind, queue.index) {
        Some(target) => placed(story, target, seen),
        None => FoundReport {
            target: FoundTarget::BlockQueue {
                kind: "block",
                device: &queue.device,
                index: queue.index,
            },
            name: None,
            seen,
            set: None,
            action: None,
            stay: None,
        },
    }
}

fn placed<'a>(story: &Story<'a>, target: Target, seen: Seen<'a>) -> FoundReport<'a> {
    let (snapshot, known) = (story.snapshot, story.known);
    let changed = known.changed.iter().find(|changed| changed.target == target);
    FoundReport {
        name: name_alone(snapshot, &target),
        seen,
        set: changed.map(|changed| SetReport {
            to: &changed.to,
            old: changed.old.cpus(),
        }),
        action: story.plan.action(&target).map(|one| action(snapshot, one)),
        stay: story
            .plan
            .stay(&target)
            .map(|one| stay(snapshot, &known.conflicts, one)),
        target: FoundTarget::Target(target),
    }
}
