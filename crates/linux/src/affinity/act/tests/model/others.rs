//! Changes that others make to the machine between any two operations of ours.

use super::super::super::Process;
use super::{ALL, At, Both, Cut, INIT, Machine, OTHERS, Thread, device};
use homenode_policy::affinity::{Target, ThreadId};
use std::panic::resume_unwind;

impl Machine {
    pub(super) fn operation(&mut self, at: At) {
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
                _ => {}
            }
        }
    }

    fn any<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        (!all.is_empty()).then(|| all[self.random.usize(0..all.len())].clone())
    }

    /// A thread starts a thread or a process, which has its mask.
    pub(in super::super) fn fork(&mut self) {
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
        let started = self.threads.get_mut(&number).expect("the thread was just added");
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
                let clears = self.random.u8(0..4) == 0;
                let none = Both { now: 0, wanted: 0 };
                self.queues.insert(queue, if clears { none } else { set });
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

    fn narrow_cpuset(&mut self) {
        let group = self.random.usize(0..self.cpusets.len());
        self.cpusets[group] = self.random.u8(..) | OTHERS;
    }
}
