//! Gain of a recorded machine: its bytes that cross nodes before and after a plan.
//!
//! A recording is one period, and the next one differs. So the plan is made for the recorded load, and for the same load with each thread's
//! bytes and CPU time changed by up to a quarter, several times; the range of the results is the uncertainty.

use crate::{Stream, random_of};
use homenode_policy::affinity::{self, Config, Plan, Previous, Snapshot, Target};
use homenode_policy::{CpuId, NodeId};
use rand::Rng;

/// Share by which a thread's load is changed at most.
const CHANGE: f64 = 0.25;

/// Bytes a second that cross nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crossing {
    /// Between a thread and memory of pools.
    pub memory: u64,
    /// Between the CPU that takes packets apart and the thread that receives them, and between a thread and the home of the card it sends by.
    pub network: u64,
    /// Between a thread and a disk's home.
    pub disk: u64,
}

impl Crossing {
    /// All of them.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.memory + self.network + self.disk
    }
}

/// Effect of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gain {
    /// Threads, interrupts and queues that move.
    pub moves: u64,
    /// Files that move.
    pub files: u64,
    /// Bytes of these files.
    pub file_bytes: u64,
    /// Bytes a second, crossing or not.
    pub all: u64,
    /// Bytes that cross as things are.
    pub before: Crossing,
    /// Bytes that cross when the plan is carried out.
    pub after: Crossing,
}

impl Gain {
    /// Bytes a second that stay home beside those that do now; negative when more cross.
    #[must_use]
    pub fn freed(&self) -> i64 {
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        signed(self.before.sum()) - signed(self.after.sum())
    }
}

/// The gain of the recorded load, and then of `variants` changed ones.
#[must_use]
pub fn of(snapshot: &Snapshot, config: &Config, variants: u64, seed: u64) -> Vec<Gain> {
    let mut gains = vec![of_plan(snapshot, config)];
    gains.extend((0..variants).map(|number| of_plan(&changed(snapshot, seed + number), config)));
    gains
}

fn of_plan(snapshot: &Snapshot, config: &Config) -> Gain {
    let plan = affinity::decide(snapshot, config, &Previous::default());
    let snapshot = &affinity::by_card(snapshot, config);
    let after = carried_out(snapshot, &plan);
    Gain {
        moves: plan.actions.iter().filter(|action| action.moves()).count() as u64,
        files: plan.files.len() as u64,
        file_bytes: plan.files.iter().map(|file| file.bytes).sum(),
        all: per_second(all(snapshot), snapshot),
        before: crossing(snapshot),
        after: crossing(&after),
    }
}

fn changed(snapshot: &Snapshot, seed: u64) -> Snapshot {
    let mut changed = snapshot.clone();
    let mut random = random_of(Stream::Load, 0, seed);
    for thread in &mut changed.threads {
        let by = random.random_range(1.0 - CHANGE..1.0 + CHANGE);
        #[expect(clippy::cast_possible_truncation, reason = "a count times a number about 1")]
        let change = |count: &mut u64| *count = (*count as f64 * by) as u64;
        thread
            .disk
            .iter_mut()
            .chain(&mut thread.sent)
            .for_each(|it| change(&mut it.bytes));
        thread.received.iter_mut().for_each(|it| change(&mut it.bytes));
        thread.memory.iter_mut().for_each(|(_, bytes)| change(bytes));
        thread.files.iter_mut().for_each(|(_, bytes)| change(bytes));
        change(&mut thread.cpu_ns);
    }
    changed
}

fn carried_out(snapshot: &Snapshot, plan: &Plan) -> Snapshot {
    let mut after = snapshot.clone();
    let goes = |target: Target, at: CpuId| {
        let to = plan.action(&target).map(|action| &action.to);
        to.filter(|to| !to.contains(&at)).map_or(at, |to| to[0])
    };
    for thread in &mut after.threads {
        thread.cpu = goes(Target::Thread(thread.id), thread.cpu);
        for received in &mut thread.received {
            let Some((device, index)) = &received.queue else {
                continue;
            };
            let of_queue = |queue: &&affinity::Queue| {
                queue.kind == affinity::QueueKind::Receive && queue.device == *device && queue.index == *index
            };
            let queue = snapshot.queues.iter().find(of_queue);
            // With RPS, packets are processed elsewhere than where they arrive.
            let arrives = queue.filter(|queue| queue.cpus.is_empty());
            let interrupt = arrives.and_then(|queue| queue.interrupt);
            let processed = Target::Receive {
                device: device.clone(),
                index: *index,
            };
            received.cpu = received.cpu.map(|cpu| {
                let arrives = interrupt.map_or(cpu, |number| goes(Target::Interrupt(number), cpu));
                goes(processed, arrives)
            });
        }
    }
    for moved in &plan.files {
        for thread in &mut after.threads {
            let Some((_, rate)) = thread.files.iter().find(|(file, _)| *file == moved.file) else {
                continue;
            };
            let lies = snapshot.files.iter().find(|file| file.id == moved.file);
            let lies = lies.map_or(&[][..], |file| &file.lies);
            let all = lies.iter().map(|(_, bytes)| u128::from(*bytes)).sum::<u128>().max(1);
            let period = u128::from(snapshot.period_ns) * u128::from(*rate) / 1_000_000_000;
            let mut come = 0;
            for (node, bytes) in thread.memory.iter_mut().filter(|(node, _)| *node != moved.to) {
                // A thread's bytes of a file are taken as spread over it, as the plan takes them.
                let there = lies.iter().find(|(on, _)| on == node).map_or(0, |(_, bytes)| *bytes);
                let part = u64::try_from(period * u128::from(there) / all)
                    .unwrap_or(u64::MAX)
                    .min(*bytes);
                (*bytes, come) = (*bytes - part, come + part);
            }
            match thread.memory.iter_mut().find(|(node, _)| *node == moved.to) {
                Some((_, bytes)) => *bytes += come,
                None => thread.memory.push((moved.to, come)),
            }
        }
    }
    after
}

fn all(snapshot: &Snapshot) -> u64 {
    let of = |thread: &affinity::Thread| {
        let disk: u64 = thread.disk.iter().map(|it| it.bytes).sum();
        thread.memory_bytes() + thread.network_bytes() + disk
    };
    snapshot.threads.iter().map(of).sum()
}

fn crossing(snapshot: &Snapshot) -> Crossing {
    let mut sum = Crossing::default();
    let is_away = |node: Option<NodeId>, of: Option<NodeId>| node.is_some() && of.is_some() && node != of;
    for thread in &snapshot.threads {
        let node = snapshot.node(thread.cpu);
        let memory = thread.memory.iter().filter(|(home, _)| is_away(Some(*home), node));
        sum.memory += memory.map(|(_, bytes)| *bytes).sum::<u64>();
        let received = thread
            .received
            .iter()
            .filter(|it| is_away(it.cpu.and_then(|cpu| snapshot.node(cpu)), node));
        sum.network += received.map(|it| it.bytes).sum::<u64>();
        let home =
            |it: &&affinity::DeviceBytes| is_away(it.device.as_deref().and_then(|name| snapshot.home(name)), node);
        sum.network += thread.sent.iter().filter(home).map(|it| it.bytes).sum::<u64>();
        sum.disk += thread.disk.iter().filter(home).map(|it| it.bytes).sum::<u64>();
    }
    Crossing {
        memory: per_second(sum.memory, snapshot),
        network: per_second(sum.network, snapshot),
        disk: per_second(sum.disk, snapshot),
    }
}

fn per_second(count: u64, snapshot: &Snapshot) -> u64 {
    let rate = u128::from(count) * 1_000_000_000 / u128::from(snapshot.period_ns.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::{Shape, machine};
    use affinity::{Thread, ThreadId};

    fn snapshot(homes: &[(u32, u16)]) -> Snapshot {
        let topology = machine(2, 4, 1 << 30, Shape::Full, Vec::new());
        let online: Vec<CpuId> = topology.cpus().iter().map(|cpu| cpu.id).collect();
        let id = |thread| ThreadId {
            process: 1,
            thread,
            started: 1,
        };
        let thread = |(number, (cpu, home)): (u32, &(u32, u16))| Thread {
            process_name: "reader".to_owned(),
            cpu_ns: 500_000_000,
            memory: vec![(NodeId(*home), 1 << 30)],
            ..Thread::idle(id(number), CpuId(*cpu), online[..].into())
        };
        Snapshot {
            threads: (1..).zip(homes).map(thread).collect(),
            ..Snapshot::idle(topology, online.clone(), 2_000_000_000)
        }
    }

    #[test]
    fn threads_that_go_to_their_buffers_free_the_links() {
        let gains = of(&snapshot(&[(0, 1), (1, 0), (4, 0)]), &Config::default(), 8, 1);
        assert_eq!(gains.len(), 9);
        let gain = &gains[0];
        assert_eq!(
            (gain.before.memory, gain.before.sum(), gain.all),
            (1 << 30, 1 << 30, 3 << 29)
        );
        assert_eq!(
            (gain.after.sum(), gain.freed(), gain.moves),
            (0, 1 << 30, 2),
            "{gain:?}"
        );
        assert!(
            gains[1..].iter().any(|other| other.freed() != gain.freed()),
            "loads are changed"
        );
        assert_eq!(
            of(&snapshot(&[(0, 1)]), &Config::default(), 3, 5),
            of(&snapshot(&[(0, 1)]), &Config::default(), 3, 5)
        );
    }

    #[test]
    fn a_file_that_moves_takes_what_lies_elsewhere_with_it() {
        let file = affinity::FileId { pool: (0, 1), inode: 7 };
        let mut before = snapshot(&[(0, 1)]);
        before.files = vec![affinity::PoolFile {
            id: file,
            lies: vec![(NodeId(0), 60), (NodeId(1), 40)],
            room: Vec::new(),
        }];
        before.threads[0].memory = vec![(NodeId(0), 60), (NodeId(1), 140)];
        // 100 bytes in the period of 2 s; the other 100 on node 1 are of another file.
        before.threads[0].files = vec![(file, 50)];
        let mut plan = affinity::decide(&before, &Config::default(), &Previous::default());
        plan.actions.clear();
        plan.files = vec![affinity::MoveFile {
            file,
            to: NodeId(0),
            threads: 1,
            bytes: 40,
            saved_bytes_per_s: 20,
            reason: affinity::FileReason::Held,
            cost_before: affinity::Cost::default(),
            cost_after: affinity::Cost::default(),
        }];
        assert_eq!(
            carried_out(&before, &plan).threads[0].memory,
            [(NodeId(0), 100), (NodeId(1), 100)]
        );
    }

    #[test]
    fn sent_bytes_count_where_their_card_is_far() {
        let card = |home| homenode_policy::topology::Device {
            name: "eth0".to_owned(),
            kind: homenode_policy::topology::DeviceKind::Network,
            home: Some(NodeId(home)),
            queues: Vec::new(),
        };
        for (home, bytes) in [(0, 0), (1, 500)] {
            let mut sends = snapshot(&[(0, 0)]);
            sends.topology = machine(2, 4, 1 << 30, Shape::Full, vec![card(home)]);
            sends.threads[0].sent = vec![affinity::DeviceBytes {
                device: Some("eth0".to_owned()),
                bytes: 1000,
            }];
            assert_eq!(crossing(&sends).network, bytes);
        }
    }

    /// Two cards in a bond, whose queues have no interrupts: the CPU tells by which card packets come.
    #[test]
    fn bytes_of_a_bond_are_those_of_its_cards() {
        let card = |name: &str, home| homenode_policy::topology::Device {
            name: name.to_owned(),
            kind: homenode_policy::topology::DeviceKind::Network,
            home: Some(NodeId(home)),
            queues: Vec::new(),
        };
        let mut bonded = snapshot(&[(0, 0)]);
        bonded.topology = machine(2, 4, 1 << 30, Shape::Full, vec![card("eth0", 0), card("eth1", 1)]);
        for (number, (device, cpu)) in (30..).zip([("eth0", 4), ("eth1", 5)]) {
            bonded.interrupts.push(affinity::Interrupt {
                number,
                name: format!("{device}-TxRx-0"),
                device: Some(device.to_owned()),
                arrivals: vec![(CpuId(cpu), 100_000)],
                affinity: vec![CpuId(cpu)],
                effective: vec![CpuId(cpu)],
                managed: false,
            });
        }
        for (device, interrupt) in [("bond0", None), ("eth0", Some(30)), ("eth1", Some(31))] {
            for kind in [affinity::QueueKind::Receive, affinity::QueueKind::Transmit] {
                bonded.queues.push(affinity::Queue {
                    device: device.to_owned(),
                    kind,
                    index: 0,
                    interrupt,
                    cpus: Vec::new(),
                    movable: true,
                });
            }
        }
        let thread = &mut bonded.threads[0];
        // Somebody keeps it on node 0.
        thread.allowed = [CpuId(0)].into();
        thread.memory.clear();
        thread.received = vec![affinity::Received {
            cpu: Some(CpuId(4)),
            queue: Some(("bond0".to_owned(), 0)),
            bytes: 1 << 30,
        }];
        thread.sent = vec![affinity::DeviceBytes {
            device: Some("bond0".to_owned()),
            bytes: 1 << 20,
        }];
        let config = Config::default();
        let gain = of_plan(&bonded, &config);
        assert_eq!((gain.before.network, gain.after.network), (1 << 29, 0), "{gain:?}");
        // It comes by the far card: so do the bytes that it sends.
        bonded.threads[0].received[0].cpu = Some(CpuId(5));
        let gain = of_plan(&bonded, &config);
        assert_eq!(gain.before.network, (1 << 29) + (1 << 19), "{gain:?}");
        assert_eq!(gain.all, gain.before.network);
    }

    #[test]
    fn a_machine_in_order_gains_nothing() {
        let gains = of(&snapshot(&[(0, 0), (4, 1)]), &Config::default(), 4, 1);
        assert!(
            gains.iter().all(|gain| gain.freed() == 0 && gain.moves == 0),
            "{gains:?}"
        );
    }
}
