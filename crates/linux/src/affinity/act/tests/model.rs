//! A machine that behaves as Linux does where plans are carried out, with others at work on it, and a program that can be
//! killed at any of its operations.
//!
//! Beside each value is the one it would have if nobody but the others had ever set it: what must be there in the end.

mod handle;
mod others;

use super::super::Process;
pub(super) use handle::Handle;
use homenode_policy::CpuId;
use homenode_policy::affinity::{QueueKind, Target, ThreadId};
use std::collections::BTreeMap;

/// A set of at most eight CPUs.
pub(super) type Set = u8;

pub(super) const ALL: Set = 0xff;
/// In all that others set and in every cpuset, and in nothing that is planned, so it is clear who has set a value; except a
/// mask of ours that somebody sets after it went back.
pub(super) const OTHERS: Set = 0x40;
/// Number of queues of a card in each direction.
const QUEUES: u32 = 3;
const CPUSETS: [Set; 3] = [ALL, 0x43, 0xfc];
const INIT: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Both<T> {
    pub(super) now: T,
    /// Value that would be there without us.
    pub(super) wanted: T,
}

#[derive(Clone, Debug)]
pub(super) struct Thread {
    pub(super) id: ThreadId,
    /// CPUs that were asked for; the mask is the part of these CPUs in the cpuset.
    pub(super) asked: Both<Set>,
    pub(super) group: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Interrupt {
    pub(super) name: String,
    pub(super) affinity: Both<Set>,
    pub(super) effective: Set,
    pub(super) hint: Set,
    pub(super) managed: bool,
    pub(super) writes: usize,
}

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) random: fastrand::Rng,
    pub(super) ticks: u64,
    pub(super) online: Set,
    pub(super) cpusets: Vec<Set>,
    pub(super) hides_cpusets: bool,
    /// The thread whose cpuset cannot be read.
    pub(super) unreadable: Option<u32>,
    /// The process whose parent always ends before it is looked at.
    pub(super) losing: Option<u32>,
    pub(super) processes: BTreeMap<u32, Process>,
    pub(super) threads: BTreeMap<u32, Thread>,
    pub(super) interrupts: BTreeMap<u32, Interrupt>,
    /// Their indices, by name.
    pub(super) cards: BTreeMap<String, u32>,
    pub(super) queues: BTreeMap<Target, Both<Set>>,
    pub(super) file: Option<Vec<u8>>,
    pub(super) operations: usize,
    /// The program is killed at this operation.
    pub(super) cut: Option<usize>,
    /// Whether others are at work.
    pub(super) busy: bool,
    /// Writes to it fail with this errno.
    pub(super) refuses: BTreeMap<Target, i32>,
    /// CPUs that go when something is written to the journal.
    pub(super) goes: Set,
    /// CPUs that every cpuset gets then.
    pub(super) comes: Set,
    /// Writes that reached the journal.
    pub(super) saves: usize,
    /// Writes that still fit on the disk; `None` without a limit.
    pub(super) saves_left: Option<usize>,
    /// Nothing can be written to the disk, nor removed from it.
    pub(super) is_read_only: bool,
    pub(super) listing: Listing,
    next_number: u32,
}

/// Event while threads are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listing {
    Plain,
    /// The first process starts a thread before it, by one that had this mask of ours.
    Breeds(Set),
    /// A listed thread has ended when it is looked at.
    Ends,
    Fails(i32),
}

/// Kind of an operation of ours, which decides the changes that others may make there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// The first look at a target: others may have changed it, and numbers may be others' by now.
    First,
    /// Threads start and end at any time. Between the last look at a target and its change nobody else changes it:
    /// Linux has no way to notice that.
    Any,
}

/// The program was killed.
struct Cut;

impl Machine {
    pub(super) fn new(seed: u64) -> Self {
        let mut machine = Self {
            random: fastrand::Rng::with_seed(seed),
            ticks: 1000,
            online: ALL,
            cpusets: CPUSETS.to_vec(),
            hides_cpusets: false,
            unreadable: None,
            losing: None,
            processes: BTreeMap::new(),
            threads: BTreeMap::new(),
            interrupts: BTreeMap::new(),
            cards: BTreeMap::new(),
            queues: BTreeMap::new(),
            file: None,
            operations: 0,
            cut: None,
            busy: true,
            refuses: BTreeMap::new(),
            goes: 0,
            comes: 0,
            saves: 0,
            saves_left: None,
            is_read_only: false,
            listing: Listing::Plain,
            next_number: 100,
        };
        machine.add_process(INIT, 0, INIT, 0, ALL);
        for _ in 0..machine.random.u32(2..5) {
            let process = machine.number();
            let (group, session) = (machine.random.usize(0..CPUSETS.len()), machine.random.u32(50..52));
            machine.add_process(process, INIT, session, group, ALL);
            for _ in 0..machine.random.u32(0..3) {
                let asked = if machine.random.u8(0..4) == 0 {
                    machine.others_set()
                } else {
                    ALL
                };
                let thread = machine.number();
                let asked = Both {
                    now: asked,
                    wanted: asked,
                };
                machine.add_thread(process, thread, asked, group);
            }
        }
        for number in 30..34 {
            machine.add_interrupt(number);
        }
        machine.add_card("eth0");
        machine.add_card("eth1");
        machine
    }

    fn number(&mut self) -> u32 {
        self.next_number += 1;
        self.next_number
    }

    fn others_set(&mut self) -> Set {
        self.random.u8(..) | OTHERS
    }

    pub(super) fn add_process(&mut self, number: u32, parent: u32, session: u32, group: usize, asked: Set) {
        let process = Process {
            started: self.ticks,
            parent,
            session,
            threads: 1,
        };
        self.processes.insert(number, process);
        self.add_thread(
            number,
            number,
            Both {
                now: asked,
                wanted: asked,
            },
            group,
        );
    }

    fn add_thread(&mut self, process: u32, thread: u32, asked: Both<Set>, group: usize) {
        let id = ThreadId {
            process,
            thread,
            started: self.ticks,
        };
        self.threads.insert(thread, Thread { id, asked, group });
    }

    fn add_interrupt(&mut self, number: u32) {
        let set = if self.random.bool() { ALL } else { self.others_set() };
        let interrupt = Interrupt {
            name: format!("card-{}", self.number()),
            affinity: Both { now: set, wanted: set },
            effective: 1 << set.trailing_zeros(),
            hint: 0,
            managed: self.random.u8(0..4) == 0,
            writes: 0,
        };
        self.interrupts.insert(number, interrupt);
    }

    fn add_card(&mut self, name: &str) {
        let card = self.number();
        self.cards.insert(name.to_owned(), card);
        for index in 0..QUEUES {
            for kind in [QueueKind::Receive, QueueKind::Transmit] {
                let set = if self.random.bool() { self.others_set() } else { 0 };
                let queue = Target::of_queue(name, kind, index).expect("its CPUs can be set");
                self.queues.insert(queue, Both { now: set, wanted: set });
            }
        }
    }

    /// Returns the part of `asked` that a thread's cpuset has; the whole cpuset when that part is empty.
    pub(super) fn mask(&self, asked: Set, group: usize) -> Set {
        let room = self.cpusets[group];
        match asked & room {
            0 => room,
            left => left,
        }
    }

    /// Returns the CPUs of a thread, an interrupt or a queue; `None` when the target is gone.
    pub(super) fn has(&self, target: &Target) -> Option<Set> {
        match target {
            Target::Thread(id) => {
                let thread = self.threads.get(&id.thread)?;
                (thread.id.process == id.process).then(|| self.mask(thread.asked.now, thread.group))
            }
            Target::Interrupt(number) => self.interrupts.get(number).map(|interrupt| interrupt.affinity.now),
            queue => self.queues.get(queue).map(|set| set.now),
        }
    }

    /// Everything that is not as it would be without us.
    pub(super) fn differences(&self) -> Vec<String> {
        let threads = self
            .threads
            .values()
            .map(|thread| (format!("{:?}", thread.id), thread.asked));
        let interrupts = self
            .interrupts
            .iter()
            .map(|(number, it)| (format!("interrupt {number}"), it.affinity));
        let queues = self.queues.iter().map(|(target, set)| (target.to_string(), *set));
        let all = threads.chain(interrupts).chain(queues);
        all.filter(|(_, set)| set.now != set.wanted)
            .map(|(name, set)| format!("{name} has {:02x}, not {:02x}", set.now, set.wanted))
            .collect()
    }

    pub(super) fn targets(&self) -> Vec<Target> {
        let threads = self.threads.values().map(|thread| Target::Thread(thread.id));
        let interrupts = self.interrupts.keys().map(|number| Target::Interrupt(*number));
        threads.chain(interrupts).chain(self.queues.keys().cloned()).collect()
    }
}

pub(super) fn cpus(set: Set) -> Vec<CpuId> {
    (0..8).filter(|cpu| set >> cpu & 1 == 1).map(CpuId).collect()
}

pub(super) fn set_of(cpus: &[CpuId]) -> Set {
    cpus.iter().filter(|cpu| cpu.0 < 8).fold(0, |set, cpu| set | 1 << cpu.0)
}

fn device(target: &Target) -> Option<&str> {
    match target {
        Target::Transmit { device, .. } | Target::Receive { device, .. } => Some(device),
        _ => None,
    }
}
