//! HDFS upload: chunks of connections go from a card's queue through an interrupt's CPU and a thread to a disk (dynamic core affinity).
//!
//! The card writes a chunk to memory of the node of its queue's interrupt, where the driver has put the buffers. The CPU of that interrupt takes
//! it apart; the connection's thread copies it, checks it and writes it into a buffer of its own node; the disk takes it from there. Senders
//! wait while a connection has [`WINDOW`] chunks that its thread has not taken. Where nobody places threads, the scheduler moves each
//! with a chance of [`ROAM_PERCENT`] a period, as it balances.

use crate::scheduler::Scheduler;
use crate::{Agenda, Band, Drawn, Machine, MachineError, PS_PER_S, Stream, random};
use homenode_policy::affinity::{
    self, Config, DeviceBytes, Interrupt, Policy, Previous, Queue, QueueKind, Received, Snapshot, Target, Thread,
};
use homenode_policy::topology::{Device, DeviceKind, DeviceQueue, Parts, Topology};
use homenode_policy::{CpuId, NodeId};
use rand::Rng;
use std::collections::BTreeMap;

/// Chunks of a connection under way.
const WINDOW: u32 = 4;
/// Threads that the scheduler moves in a period, of a hundred.
const ROAM_PERCENT: u32 = 25;
const CARD: &str = "eth0";
const DISK: &str = "nvme0n1";
/// Numbers of the card's interrupts begin here, those of the disk above.
const CARD_INTERRUPTS: u32 = 100;
const DISK_INTERRUPTS: u32 = 10_000;

/// Placement of interrupts and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placing {
    /// All interrupts arrive on CPU 0; the scheduler puts threads anywhere.
    FirstCpu,
    /// Interrupts are spread over all CPUs, as irqbalance does; the scheduler puts threads anywhere.
    Spread,
    /// A policy of core affinity, from the spread that it finds.
    Affinity(Policy),
}

impl Placing {
    /// All that a figure compares.
    pub const ALL: [Self; 6] = [
        Self::FirstCpu,
        Self::Spread,
        Self::Affinity(Policy::Local),
        Self::Affinity(Policy::Spread),
        Self::Affinity(Policy::Pack),
        Self::Affinity(Policy::SingleCore),
    ];

    /// Its name in figures.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::FirstCpu => "interrupts on CPU 0".to_owned(),
            Self::Spread => "interrupts spread, threads anywhere".to_owned(),
            Self::Affinity(policy) => format!("Homenode: {policy}"),
        }
    }
}

/// The upload. Card and disk are devices of the topology that [`Upload::machine`] makes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Upload {
    /// Connections, each with a thread.
    pub connections: u32,
    /// Receive queues of the card.
    pub queues: u32,
    /// Bytes of a chunk: of the packets that one interrupt brings.
    pub chunk_bytes: u64,
    /// Bytes a nanosecond of the card.
    pub card_bytes_per_ns: f64,
    /// Bytes a nanosecond of the disk.
    pub disk_bytes_per_ns: f64,
    /// CPU time to take a KiB of packets apart.
    pub receive_ns_per_kib: Band,
    /// CPU time of the thread for a KiB: checksum, and the system calls.
    pub thread_ns_per_kib: Band,
    /// Periods; the last half of them is measured.
    pub periods: u32,
    /// Virtual time of each.
    pub period_s: f64,
}

/// Results of the measured periods.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    /// MB/s that reached the disk.
    pub mb_per_s: f64,
    /// Percent of the bytes that the thread found on the node of its CPU.
    pub local_percent: f64,
    /// Actions of all plans.
    pub actions: u64,
}

impl Upload {
    /// The paper's devices: 40 Gigabit Ethernet and an NVMe disk. Times are of the cost model of `affinity::cost`.
    pub const HDFS: Self = Self {
        connections: 16,
        queues: 8,
        chunk_bytes: 64 << 10,
        card_bytes_per_ns: 5.0,
        disk_bytes_per_ns: 4.0,
        receive_ns_per_kib: Band::new(250.0, 400.0),
        thread_ns_per_kib: Band::new(700.0, 1400.0),
        periods: 16,
        period_s: 0.02,
    };

    /// Two sockets with the first `cores` CPUs running, every second one on each node; the card is on the second node, the disk on the first.
    ///
    /// # Panics
    /// When there are more than 64 cores, or none.
    #[must_use]
    pub fn machine(&self, cores: u32) -> Topology {
        assert!((1..=64).contains(&cores), "{cores} cores");
        let full = crate::shapes::machine(2, 32, 64 << 30, crate::shapes::Shape::Full, Vec::new());
        let device = |name: &str, kind, home, queues| Device {
            name: name.to_owned(),
            kind,
            home: Some(NodeId(home)),
            queues,
        };
        let every = |number: u32, prefix: &str| DeviceQueue {
            name: format!("{prefix}{number}"),
            cpus: Vec::new(),
        };
        let receive = (0..self.queues).map(|queue| every(queue, "rx-")).collect();
        let of_cpu = |cpu: &CpuId| DeviceQueue {
            name: cpu.0.to_string(),
            cpus: vec![*cpu],
        };
        let running: Vec<CpuId> = (0..cores).map(|core| CpuId(core / 2 + 32 * (core % 2))).collect();
        let disk = running.iter().map(of_cpu).collect();
        let mut cpus = full.cpus().to_vec();
        cpus.iter_mut().for_each(|cpu| cpu.online = running.contains(&cpu.id));
        Topology::new(Parts {
            nodes: full.nodes().to_vec(),
            cpus,
            possible_cpus: 64,
            caches: full.caches().to_vec(),
            latency: full.latency().clone(),
            devices: vec![
                device(CARD, DeviceKind::Network, 1, receive),
                device(DISK, DeviceKind::Block, 0, disk),
            ],
        })
        .expect("CPUs and devices fit together")
    }

    /// Runs the upload.
    ///
    /// # Errors
    /// When the topology is no machine.
    pub fn run(&self, placing: Placing, cores: u32, drawn: &Drawn, seed: u64) -> Result<Done, MachineError> {
        let topology = self.machine(cores);
        let mut run = Run::new(self, placing, &topology, drawn, seed)?;
        let policy = if let Placing::Affinity(policy) = placing {
            policy
        } else {
            Policy::Off
        };
        let config = Config {
            policy,
            ..Config::default()
        };
        let (mut previous, mut done) = (Previous::default(), Done::default());
        let period_ps = crate::constants::ps(self.period_s * 1e9);
        let (mut bytes, mut local) = (0, 0);
        for period in 1..=self.periods {
            run.go_on(u64::from(period) * period_ps);
            let snapshot = run.snapshot(&topology, period_ps / crate::PS_PER_NS);
            let moved = std::mem::take(&mut run.moved);
            if period > self.periods / 2 {
                (bytes, local) = (bytes + moved.0, local + moved.1);
            }
            if policy == Policy::Off {
                run.roam();
            } else {
                let plan = affinity::decide(&snapshot, &config, &previous);
                done.actions += plan.actions.len() as u64;
                run.carry_out(&plan);
                previous = previous.after(&plan, &snapshot, &config);
            }
            run.scheduler.balance(&run.machine, u64::from(period) * period_ps);
        }
        let seconds = (u64::from(self.periods - self.periods / 2) * period_ps) as f64 / PS_PER_S as f64;
        done.mb_per_s = bytes as f64 / 1e6 / seconds;
        done.local_percent = 100.0 * local as f64 / bytes.max(1) as f64;
        Ok(done)
    }
}

struct Run<'a> {
    load: &'a Upload,
    machine: Machine,
    scheduler: Scheduler,
    random: crate::Random,
    agenda: Agenda,
    receive_ps: u64,
    thread_ps: u64,
    /// Core of each queue's interrupt.
    interrupts: Vec<u32>,
    /// Masks of interrupts that plans have set.
    masks: BTreeMap<Target, Vec<CpuId>>,
    connections: Vec<Connection>,
    /// Nodes of the card and of the disk.
    card: u32,
    disk: u32,
    card_free_at: u64,
    disk_free_at: u64,
    /// Bytes of this period that reached the disk, and those of them that threads found on their node.
    moved: (u64, u64),
}

#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    /// Chunks that its thread has not taken.
    waiting: u32,
    /// Core that has taken the last one apart.
    from: u32,
    /// Bytes of this period.
    bytes: u64,
}

impl<'a> Run<'a> {
    fn new(
        load: &'a Upload,
        placing: Placing,
        topology: &Topology,
        drawn: &Drawn,
        seed: u64,
    ) -> Result<Self, MachineError> {
        let machine = Machine::new(topology, drawn)?;
        let mut costs = random(Stream::Load, seed);
        let mut random = random(Stream::Run, seed);
        let cores = machine.cores();
        let mut of_chunk = |band: Band| {
            let ns_per_kib = band.draw(&mut costs);
            crate::constants::ps(ns_per_kib * load.chunk_bytes as f64 / 1024.0)
        };
        let [receive_ps, thread_ps] = [load.receive_ns_per_kib, load.thread_ns_per_kib].map(&mut of_chunk);
        let starts: Vec<u32> = (0..load.connections).map(|_| random.random_range(0..cores)).collect();
        // One CPU of each node in turn.
        let mut by_turns: Vec<u32> = (0..cores).collect();
        let place = |core: u32| {
            (0..core)
                .filter(|other| machine.node_of(*other) == machine.node_of(core))
                .count()
        };
        by_turns.sort_by_key(|core| (place(*core), *core));
        let core_of = |queue: u32| match placing {
            Placing::FirstCpu => 0,
            _ => by_turns[(queue % cores) as usize],
        };
        let home = |device: &str| {
            let device = topology.devices().iter().find(|other| other.name == device);
            let home = device.and_then(|device| device.home);
            (0..machine.nodes())
                .find(|node| Some(machine.id(*node)) == home)
                .unwrap_or(0)
        };
        let (card, disk) = (home(CARD), home(DISK));
        Ok(Self {
            scheduler: Scheduler::new(topology, cores, &starts),
            // Each connection has two actors: its packets, and its thread.
            agenda: Agenda::new(2 * load.connections),
            interrupts: (0..load.queues).map(core_of).collect(),
            masks: BTreeMap::new(),
            connections: vec![Connection::default(); load.connections as usize],
            card,
            disk,
            card_free_at: 0,
            disk_free_at: 0,
            moved: (0, 0),
            load,
            machine,
            random,
            receive_ps,
            thread_ps,
        })
    }

    fn go_on(&mut self, end_ps: u64) {
        let Self {
            load,
            machine,
            scheduler,
            agenda,
            receive_ps,
            thread_ps,
            interrupts,
            connections,
            ..
        } = self;
        let (card_free_at, disk_free_at, moved) = (&mut self.card_free_at, &mut self.disk_free_at, &mut self.moved);
        let on_card = crate::constants::ps(load.chunk_bytes as f64 / load.card_bytes_per_ns);
        let on_disk = crate::constants::ps(load.chunk_bytes as f64 / load.disk_bytes_per_ns);
        // Time after which an idle actor looks again.
        let idle = *receive_ps / 4;
        let (card, disk) = (self.card, self.disk);
        agenda.run(end_ps, |now, actor| {
            let number = actor / 2;
            let connection = &mut connections[number as usize];
            if actor % 2 == 0 {
                if connection.waiting == WINDOW {
                    return Some(now + idle);
                }
                let core = interrupts[(number % load.queues) as usize];
                if let Err(again) = scheduler.interrupt(core, number, now) {
                    return Some(again);
                }
                *card_free_at = (*card_free_at).max(now) + on_card;
                let node = machine.node_of(core);
                let arrived = machine.transfer(now, card, node, load.chunk_bytes);
                // Headers.
                let end = machine.read(now, core, node, load.chunk_bytes / 16) + *receive_ps;
                scheduler.occupy(core, end);
                (connection.waiting, connection.from) = (connection.waiting + 1, core);
                return Some(end.max(*card_free_at).max(arrived));
            }
            if connection.waiting == 0 {
                return Some(now + idle);
            }
            let thread = number as usize;
            let core = match scheduler.run(machine, thread, now) {
                Ok(core) => core,
                Err(again) => return Some(again),
            };
            let (node, from) = (machine.node_of(core), machine.node_of(connection.from));
            // Memories and links meet events in order, so all that a chunk needs takes its turn now, one time behind the other.
            let read = machine.read(now, core, from, load.chunk_bytes) - now;
            let copied = machine.write(now, core, node, load.chunk_bytes) - now;
            let saved = machine.transfer(now, disk, node, load.chunk_bytes) - now;
            let written = now + read + copied + *thread_ps;
            scheduler.occupy(core, written);
            scheduler.note(thread, written - now);
            *disk_free_at = (*disk_free_at).max(written) + on_disk.max(saved);
            connection.waiting -= 1;
            connection.bytes += load.chunk_bytes;
            moved.0 += load.chunk_bytes;
            moved.1 += if node == from { load.chunk_bytes } else { 0 };
            // The disk's queue is deep: a thread waits only for a disk that is far behind.
            Some(written.max((*disk_free_at).saturating_sub(16 * on_disk)))
        });
    }

    /// The scheduler puts some threads elsewhere, as it balances.
    fn roam(&mut self) {
        for thread in 0..self.connections.len() {
            if self.random.random_range(0..100) < ROAM_PERCENT {
                let cpus = self.scheduler.cpus().to_vec();
                let to = cpus[self.random.random_range(0..cpus.len())];
                self.scheduler.allow(thread, &[to]);
                self.scheduler.allow(thread, &cpus);
            }
        }
    }

    fn carry_out(&mut self, plan: &affinity::Plan) {
        self.scheduler.forget_interrupts();
        for action in &plan.actions {
            match &action.target {
                Target::Thread(id) => self.scheduler.allow(id.thread as usize - 1, &action.to),
                Target::Interrupt(number) => {
                    let queue = (number - CARD_INTERRUPTS) as usize;
                    self.interrupts[queue] = self.scheduler.core_of(action.to[0]);
                }
                Target::Receive { .. } | Target::Transmit { .. } => {}
            }
            self.masks.insert(action.target.clone(), action.to.clone());
        }
    }

    fn snapshot(&mut self, topology: &Topology, period_ns: u64) -> Snapshot {
        let online = self.scheduler.cpus().to_vec();
        let (chunk_bytes, queues) = (self.load.chunk_bytes, self.load.queues);
        let interrupts = self.interrupts.clone();
        let cpu_of = |core: u32| online[core as usize];
        let of_queue = |queue: u32| interrupts[queue as usize];
        let mut chunks = vec![0; queues as usize];
        let mut threads = Vec::new();
        for (number, connection) in (0_u32..).zip(&mut self.connections) {
            let bytes = std::mem::take(&mut connection.bytes);
            let queue = number % queues;
            chunks[queue as usize] += bytes / chunk_bytes;
            threads.push(Thread {
                disk: vec![DeviceBytes {
                    device: Some(DISK.to_owned()),
                    bytes,
                }],
                received: vec![Received {
                    cpu: Some(cpu_of(of_queue(queue))),
                    queue: Some((CARD.to_owned(), queue)),
                    bytes,
                }],
                ..self.scheduler.tell(number as usize, "java")
            });
        }
        let mut told = Vec::new();
        let mut all = Vec::new();
        for queue in 0..queues {
            let (number, at) = (CARD_INTERRUPTS + queue, cpu_of(of_queue(queue)));
            let target = Target::Interrupt(number);
            // Before a plan, CPU 0 has them all, or irqbalance has given each a CPU.
            let affinity = self.masks.get(&target).cloned().unwrap_or_else(|| vec![at]);
            told.push(Interrupt {
                number,
                name: format!("{CARD}-rx-{queue}"),
                device: Some(CARD.to_owned()),
                arrivals: vec![(at, chunks[queue as usize])],
                affinity,
                effective: vec![at],
                managed: false,
            });
            all.push(Queue {
                device: CARD.to_owned(),
                kind: QueueKind::Receive,
                index: queue,
                interrupt: Some(number),
                cpus: Vec::new(),
                movable: true,
            });
        }
        for (index, cpu) in (0_u32..).zip(&online) {
            let number = DISK_INTERRUPTS + index;
            told.push(Interrupt {
                number,
                name: format!("nvme0q{index}"),
                device: Some(DISK.to_owned()),
                arrivals: Vec::new(),
                affinity: vec![*cpu],
                effective: vec![*cpu],
                managed: true,
            });
            all.push(Queue {
                device: DISK.to_owned(),
                kind: QueueKind::Block,
                index,
                interrupt: Some(number),
                cpus: vec![*cpu],
                movable: false,
            });
        }
        Snapshot {
            interrupts: told,
            queues: all,
            threads,
            ..Snapshot::idle(topology.clone(), online, period_ns)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Constants;

    #[test]
    fn local_placing_keeps_bytes_and_beats_one_cpu() {
        let drawn = Constants::SERVER.draw(1);
        let of = |placing| Upload::HDFS.run(placing, 12, &drawn, 1).unwrap();
        let [first, spread, local, ..] = Placing::ALL.map(of);
        assert!(
            local.local_percent > spread.local_percent + 10.0,
            "{local:?} {spread:?}"
        );
        assert!(local.mb_per_s > first.mb_per_s, "{local:?} {first:?}");
        assert!(local.actions > 0 && first.actions == 0);
        assert_eq!(of(Placing::Affinity(Policy::Local)), local);
    }
}
