//! A machine that behaves as Linux does where plans are carried out, with others at work on it, and a program that can be
//! killed at any of its operations.
//!
//! Beside each value is the one it would have if nobody but the others had ever set it: what must be there in the end.

use super::super::{Error, Kernel, Mask, Process, Store};
use super::card::Card;
use crate::affinity::{QueueCounts, Table};
use homenode_policy::CpuId;
use homenode_policy::affinity::{Target, ThreadId};
use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::rc::Rc;

/// A set of at most eight CPUs.
pub(super) type Set = u8;

pub(super) const ALL: Set = 0xff;
/// In all that others set and in every cpuset, and in nothing that is planned: so it is always clear who has set a value.
pub(super) const OTHERS: Set = 0x40;
const CPUSETS: [Set; 3] = [ALL, 0x43, 0xfc];
const INIT: u32 = 1;
const PATH: &str = "/model/journal";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Both<T> {
    pub(super) now: T,
    /// What it would be without us.
    pub(super) wanted: T,
}

#[derive(Clone, Debug)]
pub(super) struct Thread {
    pub(super) id: ThreadId,
    /// What was asked for; the mask is what the cpuset has of it.
    pub(super) asked: Both<Set>,
    pub(super) group: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Interrupt {
    pub(super) name: String,
    pub(super) affinity: Both<Set>,
    pub(super) effective: Set,
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
    pub(super) processes: BTreeMap<u32, Process>,
    pub(super) threads: BTreeMap<u32, Thread>,
    pub(super) interrupts: BTreeMap<u32, Interrupt>,
    pub(super) cards: BTreeMap<String, Card>,
    pub(super) queues: BTreeMap<Target, Both<Set>>,
    pub(super) file: Option<Vec<u8>>,
    pub(super) operations: usize,
    /// The program is killed at this operation.
    pub(super) cut: Option<usize>,
    /// Whether others are at work.
    pub(super) busy: bool,
    /// Writes to it fail with this errno.
    pub(super) refuses: BTreeMap<Target, i32>,
    /// Writes that reached the journal.
    pub(super) saves: usize,
    /// So many more fit on the disk.
    pub(super) saves_left: Option<usize>,
    /// Nothing can be written to the disk, nor removed from it.
    pub(super) is_read_only: bool,
    pub(super) listing: Listing,
    next_number: u32,
}

/// What happens when threads are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listing {
    Plain,
    /// The first process starts a thread before it, by one that had this mask of ours.
    Breeds(Set),
    /// One that is listed has ended when it is looked at.
    Ends,
    Fails(i32),
}

/// One operation may be followed by what others do between any two of ours.
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
            managed: self.random.u8(0..4) == 0,
            writes: 0,
        };
        self.interrupts.insert(number, interrupt);
    }

    fn add_card(&mut self, name: &str) {
        let card = Card::new(self.number(), &mut self.random);
        let queues = card.queues.now;
        self.cards.insert(name.to_owned(), card);
        for index in 0..Card::QUEUES_MAX {
            let device = name.to_owned();
            let is_set = index < queues && self.random.bool();
            let set = if is_set { self.others_set() } else { 0 };
            let set = Both { now: set, wanted: set };
            self.queues.insert(
                Target::Receive {
                    device: device.clone(),
                    index,
                },
                set,
            );
            self.queues.insert(Target::Transmit { device, index }, set);
        }
    }

    /// What a thread's cpuset has of what was asked for; all of it when that is nothing.
    pub(super) fn mask(&self, asked: Set, group: usize) -> Set {
        let room = self.cpusets[group];
        match asked & room {
            0 => room,
            left => left,
        }
    }

    /// What a thread, an interrupt or a queue has.
    pub(super) fn has(&self, target: &Target) -> Option<Set> {
        match target {
            Target::Thread(id) => {
                let thread = self.threads.get(&id.thread)?;
                (thread.id.process == id.process).then(|| self.mask(thread.asked.now, thread.group))
            }
            Target::Interrupt(number) => self.interrupts.get(number).map(|interrupt| interrupt.affinity.now),
            queue => {
                let card = self.cards.get(device(queue)?)?;
                let set = self.queues.get(queue)?;
                (queue_index(queue)? < card.queues.now).then_some(set.now)
            }
        }
    }

    /// A queue that goes takes its masks with it.
    fn set_queues(&mut self, name: &str, queues: Both<u32>) {
        let Some(card) = self.cards.get_mut(name) else { return };
        card.set_queues(queues);
        for (target, set) in &mut self.queues {
            let (Some(of), Some(index)) = (device(target), queue_index(target)) else {
                continue;
            };
            if of == name && index >= queues.now {
                set.now = 0;
            }
            if of == name && index >= queues.wanted {
                set.wanted = 0;
            }
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
        let sets = all
            .filter(|(_, set)| set.now != set.wanted)
            .map(|(name, set)| format!("{name} has {:02x}, not {:02x}", set.now, set.wanted));
        let cards = self.cards.iter();
        let cards = cards.filter_map(|(name, card)| Some(format!("{name} has {}", card.difference()?)));
        sets.chain(cards).collect()
    }

    fn operation(&mut self, at: At) {
        self.operations += 1;
        self.ticks += u64::from(self.random.u8(0..3));
        if self.cut == Some(self.operations) {
            resume_unwind(Box::new(Cut));
        }
        if !self.busy {
            return;
        }
        match self.random.u8(0..24) {
            0 => self.fork(),
            1 => self.end(),
            2 => self.arrive(),
            _ => {}
        }
        if at == At::First {
            match self.random.u8(0..40) {
                0..4 => self.set_by_others(),
                4 => self.use_again(),
                5 => self.plug(),
                6 => self.narrow_cpuset(),
                7 => self.rearrange(),
                _ => {}
            }
        }
    }

    fn any<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        (!all.is_empty()).then(|| all[self.random.usize(0..all.len())].clone())
    }

    /// A thread starts a thread or a process, which has its mask.
    pub(super) fn fork(&mut self) {
        let threads: Vec<Thread> = self.threads.values().cloned().collect();
        let Some(parent) = self.any(&threads).filter(|_| threads.len() < 40) else {
            return;
        };
        let number = self.number();
        if self.random.bool() {
            self.add_thread(parent.id.process, number, parent.asked, parent.group);
            return;
        }
        let session = match self.random.u8(0..3) {
            0 => number,
            _ => self.processes[&parent.id.process].session,
        };
        self.add_process(number, parent.id.process, session, parent.group, ALL);
        let started = self.threads.get_mut(&number).expect("it was just added");
        started.asked = parent.asked;
    }

    /// A thread or a process ends. Not one that links sessions: without it nothing tells where those below come from.
    fn end(&mut self) {
        let threads: Vec<ThreadId> = self.threads.values().map(|thread| thread.id).collect();
        let Some(id) = self.any(&threads).filter(|id| id.process != INIT) else {
            return;
        };
        if id.thread != id.process {
            self.threads.remove(&id.thread);
            return;
        }
        let session = self.processes[&id.process].session;
        let left = |process: &Process| process.parent == id.process && process.session != session;
        let leads = |(number, process): (&u32, &Process)| *number != id.process && process.session == id.process;
        if self.processes.values().any(left) || self.processes.iter().any(leads) {
            return;
        }
        self.processes.remove(&id.process);
        self.threads.retain(|_, thread| thread.id.process != id.process);
        let orphans = self
            .processes
            .values_mut()
            .filter(|process| process.parent == id.process);
        orphans.for_each(|orphan| orphan.parent = INIT);
    }

    fn arrive(&mut self) {
        for interrupt in self.interrupts.values_mut().filter(|interrupt| !interrupt.managed) {
            interrupt.effective = 1 << interrupt.affinity.now.trailing_zeros();
        }
    }

    /// Somebody else sets something.
    fn set_by_others(&mut self) {
        let set = if self.random.bool() { self.others_set() } else { ALL };
        let set = Both { now: set, wanted: set };
        let targets: Vec<Target> = self.targets();
        match self.any(&targets) {
            Some(Target::Thread(id)) => {
                if let Some(thread) = self.threads.get_mut(&id.thread) {
                    thread.asked = set;
                }
            }
            Some(Target::Interrupt(number)) => {
                if let Some(interrupt) = self.interrupts.get_mut(&number).filter(|interrupt| !interrupt.managed) {
                    interrupt.affinity = set;
                }
            }
            Some(queue) => {
                self.queues.insert(queue, set);
            }
            None => {}
        }
    }

    /// A thread's or an interrupt's number is used again.
    fn use_again(&mut self) {
        self.ticks += 1;
        let threads: Vec<ThreadId> = self.threads.values().map(|thread| thread.id).collect();
        let plain = |id: &ThreadId| id.thread != id.process;
        if let Some(id) = self.any(&threads).filter(plain) {
            let set = self.others_set();
            self.add_thread(id.process, id.thread, Both { now: set, wanted: set }, 0);
        } else {
            let number = self.random.u32(30..34);
            self.add_interrupt(number);
        }
    }

    /// A card is taken out, put in, or replaced.
    fn plug(&mut self) {
        let name = if self.random.bool() { "eth0" } else { "eth1" };
        self.queues.retain(|target, _| device(target) != Some(name));
        self.cards.remove(name);
        if self.random.bool() {
            self.add_card(name);
        }
    }

    /// Somebody else sets a card's number of queues or its table: to what is never asked for here.
    fn rearrange(&mut self) {
        let name = if self.random.bool() { "eth0" } else { "eth1" };
        let Some(card) = self.cards.get_mut(name) else { return };
        if self.random.bool() {
            card.set_table_by_others();
        } else {
            let all = Card::QUEUES_MAX;
            self.set_queues(name, Both { now: all, wanted: all });
        }
    }

    fn narrow_cpuset(&mut self) {
        let group = self.random.usize(0..self.cpusets.len());
        self.cpusets[group] = self.random.u8(..) | OTHERS;
    }

    fn save(&mut self) -> Result<(), Error> {
        if self.is_read_only {
            return Err(failed("write", libc::EROFS));
        }
        match &mut self.saves_left {
            Some(0) => return Err(failed("write", libc::ENOSPC)),
            Some(left) => *left -= 1,
            None => {}
        }
        self.saves += 1;
        Ok(())
    }

    pub(super) fn targets(&self) -> Vec<Target> {
        let threads = self.threads.values().map(|thread| Target::Thread(thread.id));
        let interrupts = self.interrupts.keys().map(|number| Target::Interrupt(*number));
        let queues = self.queues.keys().filter(|queue| self.has(queue).is_some());
        threads.chain(interrupts).chain(queues.cloned()).collect()
    }
}

/// What the program has of the machine.
#[derive(Clone, Debug)]
pub(super) struct Handle(pub(super) Rc<RefCell<Machine>>);

impl Handle {
    pub(super) fn new(seed: u64) -> Self {
        Self(Rc::new(RefCell::new(Machine::new(seed))))
    }

    pub(super) fn machine(&self) -> RefMut<'_, Machine> {
        self.0.borrow_mut()
    }

    fn operate(&self, at: At) -> RefMut<'_, Machine> {
        let mut machine = self.machine();
        machine.operation(at);
        machine
    }

    /// Runs a program until it ends or is killed; whether it ended.
    pub(super) fn run(&self, program: impl FnOnce()) -> bool {
        match catch_unwind(AssertUnwindSafe(program)) {
            Ok(()) => true,
            Err(panic) if panic.is::<Cut>() => false,
            Err(panic) => resume_unwind(panic),
        }
    }
}

pub(super) fn cpus(set: Set) -> Vec<CpuId> {
    (0..8).filter(|cpu| set >> cpu & 1 == 1).map(CpuId).collect()
}

fn set_of(cpus: &[CpuId]) -> Set {
    cpus.iter().filter(|cpu| cpu.0 < 8).fold(0, |set, cpu| set | 1 << cpu.0)
}

fn device(target: &Target) -> Option<&str> {
    match target {
        Target::Transmit { device, .. } | Target::Receive { device, .. } => Some(device),
        _ => None,
    }
}

fn queue_index(target: &Target) -> Option<u32> {
    match target {
        Target::Transmit { index, .. } | Target::Receive { index, .. } => Some(*index),
        _ => None,
    }
}

fn no(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

impl Kernel for Handle {
    fn boot(&self) -> io::Result<String> {
        Ok("5c4ba8f0-boot".to_owned())
    }

    fn namespaces(&self) -> io::Result<String> {
        Ok("pid:[1],net:[2]".to_owned())
    }

    fn now(&self) -> io::Result<u64> {
        Ok(self.operate(At::Any).ticks)
    }

    fn online(&self) -> io::Result<Vec<CpuId>> {
        Ok(cpus(self.operate(At::Any).online))
    }

    fn possible(&self) -> io::Result<Vec<CpuId>> {
        Ok(cpus(ALL))
    }

    fn identity(&self, target: &Target) -> io::Result<Option<String>> {
        let machine = self.operate(At::First);
        Ok(match target {
            Target::Thread(id) => {
                let thread = machine.threads.get(&id.thread);
                thread.filter(|thread| thread.id == *id).map(|_| String::new())
            }
            Target::Interrupt(number) => machine.interrupts.get(number).map(|interrupt| interrupt.name.clone()),
            Target::Transmit { device, .. } | Target::Receive { device, .. } => {
                machine.cards.get(device).map(|card| card.index.to_string())
            }
        })
    }

    fn read(&self, target: &Target) -> io::Result<Mask> {
        let set = self.operate(At::Any).has(target).ok_or_else(|| no(libc::ENOENT))?;
        Mask::parse(format!("{set:02x}\n"))
    }

    fn write(&self, target: &Target, mask: &Mask) -> io::Result<()> {
        let mut machine = self.operate(At::Any);
        let set = set_of(mask.cpus());
        if let Some(errno) = machine.refuses.get(target) {
            return Err(no(*errno));
        }
        let online = machine.online;
        match target {
            Target::Thread(id) => {
                let cpusets = machine.cpusets.clone();
                let thread = machine.threads.get_mut(&id.thread).ok_or_else(|| no(libc::ESRCH))?;
                if set & cpusets[thread.group] & online == 0 {
                    return Err(no(libc::EINVAL));
                }
                // A wish of others that has all of the cpuset cannot be seen, and so not be restored.
                if thread.asked.wanted & cpusets[thread.group] == cpusets[thread.group] {
                    thread.asked.wanted = ALL;
                }
                thread.asked.now = set;
            }
            Target::Interrupt(number) => {
                let interrupt = machine.interrupts.get_mut(number).ok_or_else(|| no(libc::ENOENT))?;
                interrupt.writes += 1;
                if interrupt.managed {
                    return Err(no(libc::EPERM));
                }
                if set & online == 0 {
                    return Err(no(libc::EINVAL));
                }
                interrupt.affinity.now = set;
            }
            queue => {
                machine.has(queue).ok_or_else(|| no(libc::ENOENT))?;
                let queue = machine.queues.get_mut(queue).ok_or_else(|| no(libc::ENOENT))?;
                queue.now = set & online;
            }
        }
        Ok(())
    }

    fn effective(&self, interrupt: u32) -> io::Result<Vec<CpuId>> {
        let machine = self.operate(At::Any);
        let interrupt = machine.interrupts.get(&interrupt).ok_or_else(|| no(libc::ENOENT))?;
        Ok(cpus(interrupt.effective))
    }

    fn cpuset(&self, thread: ThreadId) -> io::Result<Option<Vec<CpuId>>> {
        let machine = self.operate(At::Any);
        let thread = machine.threads.get(&thread.thread).ok_or_else(|| no(libc::ESRCH))?;
        let room = cpus(machine.cpusets[thread.group] & machine.online);
        Ok((!machine.hides_cpusets).then_some(room))
    }

    fn process(&self, process: u32) -> io::Result<Process> {
        let machine = self.operate(At::Any);
        machine.processes.get(&process).copied().ok_or_else(|| no(libc::ENOENT))
    }

    fn card(&self, device: &str) -> io::Result<Option<String>> {
        let machine = self.operate(At::First);
        Ok(machine.cards.get(device).map(|card| card.index.to_string()))
    }

    fn queues(&self, name: &str) -> io::Result<Vec<Target>> {
        let machine = self.operate(At::Any);
        let targets = machine.targets().into_iter();
        Ok(targets.filter(|target| device(target) == Some(name)).collect())
    }

    fn queue_counts(&self, device: &str) -> io::Result<QueueCounts> {
        let machine = self.operate(At::Any);
        let card = machine.cards.get(device).ok_or_else(|| no(libc::ENODEV))?;
        Ok(card.counts())
    }

    fn set_queues(&self, device: &str, [combined, ..]: [u32; 3]) -> io::Result<()> {
        let mut machine = self.operate(At::Any);
        let card = machine.cards.get(device).ok_or_else(|| no(libc::ENODEV))?;
        card.may_have(combined).map_err(no)?;
        let wanted = card.queues.wanted;
        machine.set_queues(device, Both { now: combined, wanted });
        Ok(())
    }

    fn table(&self, device: &str) -> io::Result<Table> {
        let machine = self.operate(At::Any);
        let card = machine.cards.get(device).ok_or_else(|| no(libc::ENODEV))?;
        Ok(card.table())
    }

    fn set_table(&self, device: &str, entries: &[u32]) -> io::Result<()> {
        let mut machine = self.operate(At::Any);
        let card = machine.cards.get_mut(device).ok_or_else(|| no(libc::ENODEV))?;
        card.set_table(entries).map_err(no)
    }

    fn threads(&self) -> io::Result<Vec<ThreadId>> {
        let mut machine = self.operate(At::First);
        let mut ids: BTreeSet<ThreadId> = BTreeSet::new();
        match machine.listing {
            Listing::Plain => {}
            Listing::Breeds(now) => {
                let number = machine.number();
                machine.add_thread(INIT, number, Both { now, wanted: ALL }, 0);
            }
            Listing::Ends => {
                let (number, started) = (machine.number(), machine.ticks);
                ids.insert(ThreadId {
                    process: number,
                    thread: number,
                    started,
                });
            }
            Listing::Fails(errno) => return Err(no(errno)),
        }
        ids.extend(machine.threads.values().map(|thread| thread.id));
        Ok(ids.into_iter().collect())
    }
}

fn failed(what: &'static str, errno: i32) -> Error {
    Error::Journal {
        what,
        path: PATH.into(),
        source: no(errno),
    }
}

impl Store for Handle {
    fn path(&self) -> &Path {
        Path::new(PATH)
    }

    fn load(&mut self) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.operate(At::Any).file.clone())
    }

    /// Killed meanwhile, or without room, it has written a part.
    fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut machine = self.machine();
        let saved = machine.save();
        let written = match machine.cut == Some(machine.operations + 1) || saved.is_err() && !machine.is_read_only {
            true => machine.random.usize(0..=bytes.len()),
            false if saved.is_err() => 0,
            false => bytes.len(),
        };
        machine.file.get_or_insert_default().extend(&bytes[..written]);
        machine.operation(At::Any);
        saved
    }

    /// Killed meanwhile, it has written all or nothing.
    fn replace(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut machine = self.machine();
        machine.operation(At::Any);
        machine.save()?;
        machine.file = Some(bytes.to_vec());
        machine.operation(At::Any);
        Ok(())
    }

    fn remove(&mut self) -> Result<(), Error> {
        let mut machine = self.machine();
        machine.operation(At::Any);
        if machine.is_read_only {
            return Err(failed("remove", libc::EROFS));
        }
        machine.file = None;
        machine.operation(At::Any);
        Ok(())
    }
}
