//! JSON report about threads, interrupts and queues, `output_version` 1. Bytes are counted over the period.

use super::story::Story;
use crate::affinity::plan::json::{
    ActionReport, CardReport, ConflictReport, FileReport, StayReport, TargetReport, action, card, conflict_reports,
    file, numbers, stay, target,
};
use crate::affinity::target::Found;
use crate::affinity::words::{UnseenReport, name_alone, unseen_reports};
use homenode_linux::affinity::Unseen;
use homenode_policy::affinity::{DeviceBytes, FileId, Interrupt, Queue, Target, Thread};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Report<'a> {
    output_version: u32,
    source: String,
    period_ns: u64,
    /// Threads, then interrupts, then queues; empty for a thread that did nothing in the period.
    found: Vec<FoundReport<'a>>,
    conflicts: Vec<ConflictReport>,
    unseen: Vec<UnseenReport<'a>>,
}

#[derive(Serialize)]
struct FoundReport<'a> {
    target: TargetReport,
    name: Option<String>,
    seen: Seen<'a>,
    /// Change of the target in the journal.
    set: Option<SetReport>,
    /// At most one of these is there, and none of what is not placed.
    action: Option<ActionReport>,
    stay: Option<StayReport>,
}

#[derive(Serialize)]
struct SetReport {
    to: Vec<u32>,
    old: Vec<u32>,
}

/// Observations about a target, by its kind.
#[derive(Serialize)]
#[serde(untagged)]
enum Seen<'a> {
    Thread {
        cpu: u32,
        node: Option<u16>,
        allowed: Vec<u32>,
        cpuset: Vec<u32>,
        cpu_ns: u64,
        disk: Vec<DeviceReport<'a>>,
        received: Vec<ReceivedReport<'a>>,
        sent: Vec<DeviceReport<'a>>,
        /// Bytes of buffers of pools, by home.
        memory: Vec<MemoryReport>,
        files: Vec<UsedFileReport>,
        /// Not all of its bytes are readable: what is 0 may be more.
        is_unread: bool,
    },
    Interrupt {
        device: Option<&'a str>,
        home: Option<u16>,
        affinity: Vec<u32>,
        effective: Vec<u32>,
        managed: bool,
        arrivals: Vec<CpuReport>,
    },
    Queue {
        home: Option<u16>,
        interrupt: Option<u32>,
        cpus: Vec<u32>,
        movable: bool,
        card: Option<CardReport>,
    },
}

#[derive(Serialize)]
struct DeviceReport<'a> {
    device: Option<&'a str>,
    bytes: u64,
}

/// Null is not known; device and queue are known together.
#[derive(Serialize)]
struct ReceivedReport<'a> {
    cpu: Option<u32>,
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
        conflicts: conflict_reports(&story.known.conflicts),
        unseen: unseen_reports(unseen),
    }
}

fn of_thread<'a>(story: &Story<'a>, thread: &'a Thread) -> FoundReport<'a> {
    let devices = |all: &'a [DeviceBytes]| all.iter().map(device).collect();
    let received = thread.received.iter().map(|it| ReceivedReport {
        cpu: it.cpu.map(|cpu| cpu.0),
        device: it.queue.as_ref().map(|(device, _)| &device[..]),
        queue: it.queue.as_ref().map(|(_, index)| *index),
        bytes: it.bytes,
    });
    let seen = Seen::Thread {
        cpu: thread.cpu.0,
        node: story.snapshot.node(thread.cpu).map(|node| node.0),
        allowed: numbers(&thread.allowed),
        cpuset: numbers(&thread.cpuset),
        cpu_ns: thread.cpu_ns,
        disk: devices(&thread.disk),
        received: received.collect(),
        sent: devices(&thread.sent),
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
    placed(story, &Target::Thread(thread.id), seen)
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

fn device(it: &DeviceBytes) -> DeviceReport<'_> {
    DeviceReport {
        device: it.device.as_deref(),
        bytes: it.bytes,
    }
}

fn of_interrupt<'a>(story: &Story<'a>, interrupt: &'a Interrupt) -> FoundReport<'a> {
    let arrivals = interrupt.arrivals.iter().map(|(cpu, count)| CpuReport {
        cpu: cpu.0,
        count: *count,
    });
    let seen = Seen::Interrupt {
        device: interrupt.device.as_deref(),
        home: interrupt.device.as_deref().and_then(|device| home(story, device)),
        affinity: numbers(&interrupt.affinity),
        effective: numbers(&interrupt.effective),
        managed: interrupt.managed,
        arrivals: arrivals.collect(),
    };
    placed(story, &Target::Interrupt(interrupt.number), seen)
}

fn of_queue<'a>(story: &Story<'a>, queue: &'a Queue) -> FoundReport<'a> {
    let of_device = story.cards.iter().find(|card| card.device == queue.device);
    let seen = Seen::Queue {
        home: home(story, &queue.device),
        interrupt: queue.interrupt,
        cpus: numbers(&queue.cpus),
        movable: queue.movable,
        card: of_device.map(card),
    };
    match Target::of_queue(&queue.device, queue.kind, queue.index) {
        Some(target) => placed(story, &target, seen),
        None => FoundReport {
            target: TargetReport::Block {
                device: queue.device.clone(),
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

fn placed<'a>(story: &Story<'a>, of: &Target, seen: Seen<'a>) -> FoundReport<'a> {
    let (snapshot, known) = (story.snapshot, story.known);
    let changed = known.changed.iter().find(|changed| changed.target == *of);
    FoundReport {
        target: target(of),
        name: name_alone(snapshot, of),
        seen,
        set: changed.map(|changed| SetReport {
            to: numbers(&changed.to),
            old: numbers(changed.old.cpus()),
        }),
        action: story.plan.action(of).map(|one| action(snapshot, one)),
        stay: story.plan.stay(of).map(|one| stay(snapshot, &known.conflicts, one)),
    }
}

fn home(story: &Story<'_>, device: &str) -> Option<u16> {
    story.snapshot.home(device).map(|home| home.0)
}
