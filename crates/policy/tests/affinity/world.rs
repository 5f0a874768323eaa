//! A machine whose threads do the same in every period: it shows what a kernel would, and carries out plans.

use homenode_policy::affinity::{
    Config, DeviceBytes, FileId, Interrupt, Plan, Policy, PoolFile, Previous, Queue, QueueKind, Received, Snapshot,
    Target, Thread, ThreadId, Why, decide,
};
use homenode_policy::topology::{
    Cache, CacheKind, Cpu, Device, DeviceKind, Latency, LatencySource, Node, Parts, Topology,
};
use homenode_policy::{CpuId, NodeId};
use std::collections::BTreeMap;
use std::fmt;

pub(crate) const MB: u64 = 1_000_000;

pub(crate) fn cpus(numbers: impl IntoIterator<Item = u32>) -> Vec<CpuId> {
    numbers.into_iter().map(CpuId).collect()
}

pub(crate) fn file(inode: u64) -> FileId {
    FileId { pool: (0, 45), inode }
}

pub(crate) fn with_policy(policy: Policy) -> Config {
    Config {
        policy,
        ..Config::default()
    }
}

pub(crate) fn dwelling(dwell_periods: u64) -> Config {
    Config {
        dwell_periods,
        ..Config::default()
    }
}

/// The reason why a target stays.
pub(crate) fn why<'a>(plan: &'a Plan, target: &Target) -> &'a Why {
    assert_eq!(plan.action(target), None);
    &plan.stay(target).expect("the plan looked at the target").why
}

/// Bytes that a thread receives, through which queue.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) thread: usize,
    pub(crate) device: String,
    pub(crate) queue: u32,
    pub(crate) bytes: u64,
}

/// Bytes that a thread moves with a file of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub(crate) thread: usize,
    pub(crate) inode: u64,
    pub(crate) bytes: u64,
}

#[derive(Clone)]
pub(crate) struct World {
    pub(crate) snapshot: Snapshot,
    pub(crate) streams: Vec<Stream>,
    /// Bytes of buffers that stay where they are: thread, node, bytes.
    pub(crate) fixed: Vec<(usize, NodeId, u64)>,
    pub(crate) uses: Vec<Use>,
    /// Whether it is seen by which queue bytes come; else only the CPUs tell.
    pub(crate) tells_queues: bool,
}

/// A failing world is to be read: a line each.
impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topology = &self.snapshot.topology;
        writeln!(f, "\nlatency {:?}", topology.latency().matrix)?;
        let numbers = |cpus: &[CpuId]| cpus.iter().map(|cpu| cpu.0).collect::<Vec<_>>();
        for node in topology.nodes() {
            writeln!(f, "{} {:?}", node.id, numbers(&node.cpus))?;
        }
        for cache in topology.caches() {
            writeln!(f, "cache {:?}", numbers(&cache.cpus))?;
        }
        for device in topology.devices() {
            writeln!(f, "{} at home on {:?}", device.name, device.home)?;
        }
        for it in &self.snapshot.interrupts {
            writeln!(f, "{} {} on {:?}", it.number, it.name, numbers(&it.affinity))?;
        }
        for it in &self.snapshot.threads {
            let (mask, set) = (numbers(&it.allowed), numbers(&it.cpuset));
            let disk = it
                .disk
                .iter()
                .map(|disk| (&disk.device, disk.bytes / MB))
                .collect::<Vec<_>>();
            let (name, busy, sent) = (&it.name, it.cpu_ns / 10_000_000, it.sent_bytes() / MB);
            let memory = it.memory.iter().map(|(node, bytes)| (node.0, bytes / MB));
            let memory = memory.collect::<Vec<_>>();
            writeln!(
                f,
                "{name} on {} of {mask:?} of {set:?} {busy} % disk {disk:?} sent {sent} memory {memory:?}",
                it.cpu.0
            )?;
        }
        for it in &self.snapshot.files {
            writeln!(f, "{} lies on {:?}, room {:?}", it.id, it.lies, it.room)?;
        }
        for it in &self.uses {
            writeln!(f, "thread {} uses file {}: {}", it.thread, it.inode, it.bytes / MB)?;
        }
        for it in &self.streams {
            writeln!(
                f,
                "thread {} from {} {}: {}",
                it.thread,
                it.device,
                it.queue,
                it.bytes / MB
            )?;
        }
        Ok(())
    }
}

impl World {
    /// Nodes with so many CPUs each, all as far from each other; `caches` CPUs share a cache.
    pub(crate) fn new(nodes: &[u32], distance: u32, caches: u32) -> Self {
        let mut parts = Parts::default();
        let mut first = 0;
        for (id, count) in (0..).zip(nodes) {
            let numbers = first..first + count;
            parts.nodes.push(Node {
                cpus: cpus(numbers.clone()),
                memory_bytes: 1 << 30,
                ..Node::new(NodeId(id))
            });
            parts.cpus.extend(numbers.clone().map(|number| Cpu {
                id: CpuId(number),
                core: Some(number),
                package: Some(u32::from(id)),
                online: true,
            }));
            let all: Vec<CpuId> = cpus(numbers);
            parts.caches.extend(all.chunks(caches as usize).map(|cpus| Cache {
                level: 3,
                kind: CacheKind::Unified,
                bytes: 1 << 20,
                cpus: cpus.to_vec(),
            }));
            first += count;
        }
        parts.possible_cpus = first;
        let far = |a, b| if a == b { 10 } else { distance };
        let row = |a| (0..nodes.len()).map(|b| far(a, b)).collect();
        parts.latency = Latency {
            source: LatencySource::Slit,
            matrix: (0..nodes.len()).map(row).collect(),
        };
        Self::of(Topology::new(parts).expect("the test's world is consistent"))
    }

    /// An idle machine.
    pub(crate) fn of(topology: Topology) -> Self {
        let online = topology.cpus().iter().filter(|cpu| cpu.online).map(|cpu| cpu.id);
        let online = online.collect();
        Self {
            snapshot: Snapshot::idle(topology, online, 1_000_000_000),
            streams: Vec::new(),
            fixed: Vec::new(),
            uses: Vec::new(),
            tells_queues: true,
        }
    }

    fn add_device(&mut self, name: &str, kind: DeviceKind, home: Option<u16>) {
        let old = &self.snapshot.topology;
        let mut devices = old.devices().to_vec();
        devices.push(Device {
            name: name.to_owned(),
            kind,
            home: home.map(NodeId),
            queues: Vec::new(),
        });
        let parts = Parts {
            nodes: old.nodes().to_vec(),
            cpus: old.cpus().to_vec(),
            possible_cpus: u32::try_from(old.cpu_nodes().len()).expect("the test's world is consistent"),
            caches: old.caches().to_vec(),
            latency: old.latency().clone(),
            devices,
        };
        self.snapshot.topology = Topology::new(parts).expect("the test's world is consistent");
    }

    /// An NVMe disk: a queue for each of these sets of CPUs, with a managed interrupt on the first of them.
    pub(crate) fn add_disk(&mut self, name: &str, home: Option<u16>, queues: &[Vec<CpuId>]) {
        self.add_device(name, DeviceKind::Block, home);
        for (index, cpus) in (0..).zip(queues) {
            let interrupt = self.add_interrupt(name, index, cpus[0], true);
            self.snapshot
                .interrupts
                .last_mut()
                .expect("the test's world is consistent")
                .affinity
                .clone_from(cpus);
            self.snapshot.queues.push(Queue {
                device: name.to_owned(),
                kind: QueueKind::Block,
                index,
                interrupt: Some(interrupt),
                cpus: cpus.clone(),
                movable: false,
            });
        }
    }

    /// An NVMe disk with a queue for each CPU.
    pub(crate) fn add_wide_disk(&mut self, name: &str, home: Option<u16>) {
        let queues: Vec<Vec<CpuId>> = self.snapshot.online.iter().map(|cpu| vec![*cpu]).collect();
        self.add_disk(name, home, &queues);
    }

    /// A network card: pairs of queues with an interrupt each, on these CPUs.
    pub(crate) fn add_card(&mut self, name: &str, home: Option<u16>, places: &[u32]) {
        self.add_device(name, DeviceKind::Network, home);
        for (index, place) in (0..).zip(places) {
            let interrupt = Some(self.add_interrupt(name, index, CpuId(*place), false));
            for (kind, movable) in [(QueueKind::Receive, true), (QueueKind::Transmit, true)] {
                self.snapshot.queues.push(Queue {
                    device: name.to_owned(),
                    kind,
                    index,
                    interrupt,
                    cpus: Vec::new(),
                    movable,
                });
            }
        }
    }

    fn add_interrupt(&mut self, device: &str, index: u32, cpu: CpuId, managed: bool) -> u32 {
        let number = 100 + u32::try_from(self.snapshot.interrupts.len()).expect("the test's world is consistent");
        self.snapshot.interrupts.push(Interrupt {
            number,
            name: format!("{device}q{index}"),
            device: Some(device.to_owned()),
            arrivals: Vec::new(),
            affinity: vec![cpu],
            effective: vec![cpu],
            managed,
        });
        number
    }

    /// A thread that may use all CPUs; its index.
    pub(crate) fn add_thread(&mut self, process_name: &str, cpu: u32, busy_percent: u64) -> usize {
        let number = 1000 + u32::try_from(self.snapshot.threads.len()).expect("the test's world is consistent");
        let id = ThreadId {
            process: number,
            thread: number,
            started: 5,
        };
        self.snapshot.threads.push(Thread {
            name: format!("{process_name}-{number}"),
            process_name: process_name.to_owned(),
            cpu_ns: busy_percent * 10_000_000,
            ..Thread::idle(id, CpuId(cpu), self.snapshot.online[..].into())
        });
        self.snapshot.threads.len() - 1
    }

    pub(crate) fn add_disk_bytes(&mut self, thread: usize, device: &str, bytes: u64) {
        self.snapshot.threads[thread].disk.push(DeviceBytes {
            device: Some(device.to_owned()),
            bytes,
        });
    }

    pub(crate) fn add_sent_bytes(&mut self, thread: usize, device: Option<&str>, bytes: u64) {
        self.snapshot.threads[thread].sent.push(DeviceBytes {
            device: device.map(str::to_owned),
            bytes,
        });
    }

    pub(crate) fn add_stream(&mut self, thread: usize, device: &str, queue: u32, bytes: u64) {
        self.streams.push(Stream {
            thread,
            device: device.to_owned(),
            queue,
            bytes,
        });
    }

    /// A file of a pool that lies on one node, and for which all have room.
    pub(crate) fn add_file(&mut self, inode: u64, home: u16, bytes: u64) {
        let nodes = self.snapshot.topology.node_ids();
        self.snapshot.files.push(PoolFile {
            id: file(inode),
            lies: vec![(NodeId(home), bytes)],
            room: nodes.into_iter().map(|node| (node, 1 << 40)).collect(),
        });
    }

    pub(crate) fn add_use(&mut self, thread: usize, inode: u64, bytes: u64) {
        self.uses.push(Use { thread, inode, bytes });
    }

    pub(crate) fn target(&self, thread: usize) -> Target {
        Target::Thread(self.snapshot.threads[thread].id)
    }

    /// Has a thread run on these CPUs only, by its cpuset.
    pub(crate) fn confine(&mut self, thread: usize, to: impl IntoIterator<Item = u32>) {
        let to = cpus(to);
        let it = &mut self.snapshot.threads[thread];
        it.cpuset = to[..].into();
        it.allowed = to.into();
    }

    /// Bytes by node of each thread's buffers.
    fn observe_buffers(&mut self) {
        let Self {
            snapshot, fixed, uses, ..
        } = self;
        for (index, thread) in snapshot.threads.iter_mut().enumerate() {
            let mut memory: BTreeMap<NodeId, u64> = BTreeMap::new();
            for (_, node, bytes) in fixed.iter().filter(|(thread, ..)| *thread == index) {
                *memory.entry(*node).or_default() += bytes;
            }
            thread.files.clear();
            for it in uses.iter().filter(|it| it.thread == index) {
                let used = snapshot.files.iter().find(|known| known.id == file(it.inode));
                let lies = &used.expect("the test's world is consistent").lies;
                let all: u64 = lies.iter().map(|(_, bytes)| bytes).sum();
                for (node, bytes) in lies {
                    *memory.entry(*node).or_default() += it.bytes * bytes / all;
                }
                thread.files.push((file(it.inode), it.bytes));
            }
            thread.memory = memory.into_iter().collect();
        }
    }

    /// Brings up to date what follows from where everything is: where packets are processed and interrupts arrive.
    pub(crate) fn observe(&mut self) -> &Snapshot {
        self.observe_buffers();
        let Self { snapshot, streams, .. } = self;
        for thread in &mut snapshot.threads {
            thread.received.clear();
        }
        for interrupt in &mut snapshot.interrupts {
            interrupt.arrivals.clear();
        }
        for stream in streams {
            let mut queues = snapshot.queues.iter();
            let queue = queues
                .find(|queue| {
                    queue.device == stream.device && queue.index == stream.queue && queue.kind == QueueKind::Receive
                })
                .expect("the test's world is consistent");
            let mut interrupts = snapshot.interrupts.iter_mut();
            let interrupt = interrupts
                .find(|it| Some(it.number) == queue.interrupt)
                .expect("the test's world is consistent");
            let arrives = interrupt.effective[0];
            match interrupt.arrivals.first_mut() {
                Some((_, count)) => *count += stream.bytes / 50_000,
                None => interrupt.arrivals.push((arrives, stream.bytes / 50_000)),
            }
            let processed = queue.cpus.first().copied().unwrap_or(arrives);
            let queue = (stream.device.clone(), stream.queue);
            snapshot.threads[stream.thread].received.push(Received {
                cpu: Some(processed),
                queue: self.tells_queues.then_some(queue),
                bytes: stream.bytes,
            });
        }
        snapshot
    }

    /// Decides the plan of a period.
    pub(crate) fn decide(&self, config: &Config, previous: &mut Previous) -> Plan {
        let plan = decide(&self.snapshot, config, previous);
        *previous = previous.after(&plan, &self.snapshot, config);
        plan
    }

    /// Decides the plan of a period, and carries it out.
    pub(crate) fn period(&mut self, config: &Config, previous: &mut Previous) -> Plan {
        let plan = self.decide(config, previous);
        self.carry_out(&plan);
        plan
    }

    /// Does what a plan says, as a kernel would: panics at what one would refuse.
    pub(crate) fn carry_out(&mut self, plan: &Plan) {
        for action in &plan.actions {
            let snapshot = &mut self.snapshot;
            assert!(action.to.iter().all(|cpu| snapshot.online.contains(cpu)), "{action:?}");
            match &action.target {
                Target::Thread(id) => {
                    let mut threads = snapshot.threads.iter_mut();
                    let thread = threads.find(|thread| thread.id == *id).expect("a consistent world");
                    assert!(action.to.iter().all(|cpu| thread.cpuset.contains(cpu)), "{action:?}");
                    assert_eq!(thread.allowed[..], action.from);
                    thread.allowed = action.to[..].into();
                    if !action.to.contains(&thread.cpu) {
                        thread.cpu = action.to[0];
                    }
                }
                Target::Interrupt(number) => {
                    let mut interrupts = snapshot.interrupts.iter_mut();
                    let interrupt = interrupts
                        .find(|interrupt| interrupt.number == *number)
                        .expect("the test's world is consistent");
                    assert!(!interrupt.managed, "{action:?}");
                    assert_eq!(interrupt.affinity, action.from);
                    interrupt.affinity.clone_from(&action.to);
                    interrupt.effective = vec![action.to[0]];
                }
                Target::Transmit { device, index } | Target::Receive { device, index } => {
                    let kind = match &action.target {
                        Target::Transmit { .. } => QueueKind::Transmit,
                        _ => QueueKind::Receive,
                    };
                    let mut queues = snapshot.queues.iter_mut();
                    let queue = queues
                        .find(|queue| queue.device == *device && queue.index == *index && queue.kind == kind)
                        .expect("the test's world is consistent");
                    assert!(queue.movable, "{action:?}");
                    assert_eq!(queue.cpus, action.from);
                    queue.cpus.clone_from(&action.to);
                }
            }
        }
        for one in &plan.returns {
            let mut threads = self.snapshot.threads.iter_mut();
            if let Some(thread) = threads.find(|thread| thread.id == one.thread) {
                thread.allowed.clone_from(&thread.cpuset);
            }
        }
        for one in &plan.files {
            let mut files = self.snapshot.files.iter_mut();
            let moved = files.find(|file| file.id == one.file).expect("the world is consistent");
            let all = moved.lies.iter().map(|(_, bytes)| bytes).sum();
            moved.lies = vec![(one.to, all)];
        }
        self.observe();
    }
}
