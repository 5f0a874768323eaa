//! Access of the program to the machine: to its kernel and its disk.

use super::super::super::{Error, Kernel, Mask, Process, Store};
use super::{ALL, At, Both, Cut, INIT, Listing, Machine, cpus, set_of};
use homenode_policy::CpuId;
use homenode_policy::affinity::{Target, ThreadId};
use std::cell::{RefCell, RefMut};
use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::rc::Rc;

const PATH: &str = "/model/journal";

/// Access of the program to the machine.
#[derive(Clone, Debug)]
pub(in super::super) struct Handle(pub(in super::super) Rc<RefCell<Machine>>);

impl Handle {
    pub(in super::super) fn new(seed: u64) -> Self {
        Self(Rc::new(RefCell::new(Machine::new(seed))))
    }

    pub(in super::super) fn machine(&self) -> RefMut<'_, Machine> {
        self.0.borrow_mut()
    }

    fn operate(&self, at: At) -> RefMut<'_, Machine> {
        let mut machine = self.machine();
        machine.operation(at);
        machine
    }

    /// Runs a program until it ends or is killed; whether it ended.
    pub(in super::super) fn run(&self, program: impl FnOnce()) -> bool {
        match catch_unwind(AssertUnwindSafe(program)) {
            Ok(()) => true,
            Err(panic) if panic.is::<Cut>() => false,
            Err(panic) => resume_unwind(panic),
        }
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
            // Without a name where no driver has asked for it.
            Target::Interrupt(number) => {
                let names = machine.interrupts.get(number).map(|interrupt| interrupt.name.clone());
                names.filter(|names| !names.is_empty())
            }
            Target::Transmit { device, .. } | Target::Receive { device, .. } => {
                machine.cards.get(device).map(u32::to_string)
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

    fn hint(&self, interrupt: u32) -> io::Result<Vec<CpuId>> {
        let machine = self.operate(At::Any);
        let interrupt = machine.interrupts.get(&interrupt).ok_or_else(|| no(libc::ENOENT))?;
        Ok(cpus(interrupt.hint))
    }

    fn cpuset(&self, thread: ThreadId) -> io::Result<Option<Vec<CpuId>>> {
        let machine = self.operate(At::Any);
        if machine.unreadable == Some(thread.thread) {
            return Err(no(libc::EIO));
        }
        let thread = machine.threads.get(&thread.thread).ok_or_else(|| no(libc::ESRCH))?;
        let room = cpus(machine.cpusets[thread.group] & machine.online);
        Ok((!machine.hides_cpusets).then_some(room))
    }

    fn process(&self, process: u32) -> io::Result<Process> {
        let mut machine = self.operate(At::Any);
        let mut found = machine.processes.get(&process).copied();
        if machine.losing == Some(process)
            && let Some(found) = &mut found
        {
            found.parent = machine.number();
        }
        let threads = machine.threads.values().filter(|thread| thread.id.process == process);
        let threads = threads.count().try_into().expect("a model has few threads");
        Ok(Process {
            threads,
            ..found.ok_or_else(|| no(libc::ENOENT))?
        })
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

impl Machine {
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
        self.online &= !self.goes;
        let comes = self.comes;
        self.cpusets.iter_mut().for_each(|cpuset| *cpuset |= comes);
        Ok(())
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
