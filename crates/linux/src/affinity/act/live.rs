//! The machine this runs on.

use super::has_vanished as vanished;
use super::kernel::{Kernel, Process};
use super::mask::{Mask, within};
use crate::affinity::counts::Counts;
use crate::affinity::cpusets::Cpusets;
use crate::affinity::thread_files::{allowed_mask, stat};
use crate::affinity::{INTERRUPTS, ONLINE, UPTIME, uptime_ticks};
use crate::cpu;
use crate::topology::sysfs::{Tree, parse_list};
use homenode_policy::CpuId;
use homenode_policy::affinity::{Target, ThreadId};
use std::fs;
use std::io;
use std::path::Path;

/// Acts by /proc, /sys and system calls.
#[derive(Debug)]
pub struct Live {
    tree: Tree,
}

impl Live {
    /// This machine, as this process sees it.
    #[must_use]
    pub fn new() -> Self {
        Self {
            tree: Tree::new(Path::new("/")),
        }
    }

    fn list(&self, path: &str) -> io::Result<Vec<CpuId>> {
        let text = self.tree.try_text(path)?;
        let list = parse_list(&text).ok_or_else(|| unclear(path))?;
        Ok(list.into_iter().map(CpuId).collect())
    }

    /// What `stat` of a process or thread tells: its start, its process's parent and session, and whether it is the
    /// kernel's.
    fn stat(&self, path: &str) -> io::Result<(Process, bool)> {
        let mut bytes = Vec::new();
        self.tree.read(path, &mut bytes)?;
        let stat = stat(&bytes).ok_or_else(|| unclear(path))?;
        let process = Process {
            started: stat.started,
            parent: stat.parent,
            session: stat.session,
        };
        Ok((process, stat.is_the_kernels()))
    }

    fn threads_of(&self, process: u32, numbers: &mut Vec<u32>, threads: &mut Vec<ThreadId>) -> io::Result<()> {
        self.tree.numbers(format!("proc/{process}/task"), numbers)?;
        for thread in &*numbers {
            match self.stat(&format!("proc/{process}/task/{thread}/stat")) {
                Ok((found, false)) => threads.push(ThreadId {
                    process,
                    thread: *thread,
                    started: found.started,
                }),
                Ok((_, true)) => {}
                Err(error) if vanished(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Default for Live {
    fn default() -> Self {
        Self::new()
    }
}

impl Kernel for Live {
    fn boot(&self) -> io::Result<String> {
        self.tree.try_text("proc/sys/kernel/random/boot_id")
    }

    fn namespaces(&self) -> io::Result<String> {
        let name = |kind: &str| {
            let link = fs::read_link(format!("/proc/self/ns/{kind}"))?;
            Ok::<_, io::Error>(link.to_string_lossy().into_owned())
        };
        Ok(format!("{},{}", name("pid")?, name("net")?))
    }

    fn now(&self) -> io::Result<u64> {
        uptime_ticks(&self.tree.try_text(UPTIME)?).ok_or_else(|| unclear(UPTIME))
    }

    fn online(&self) -> io::Result<Vec<CpuId>> {
        self.list(ONLINE)
    }

    fn possible(&self) -> io::Result<Vec<CpuId>> {
        self.list("sys/devices/system/cpu/possible")
    }

    fn identity(&self, target: &Target) -> io::Result<Option<String>> {
        let found = match target {
            Target::Thread(id) => match self.stat(&format!("proc/{}/task/{}/stat", id.process, id.thread)) {
                Ok((found, _)) => Ok((found.started == id.started).then(String::new)),
                Err(error) => Err(error),
            },
            Target::Interrupt(number) => {
                let text = self.tree.try_text(INTERRUPTS)?;
                let counts = Counts::parse(&text).ok_or_else(|| unclear(INTERRUPTS))?;
                return Ok(counts.lines.get(number).map(|line| line.name.clone()));
            }
            Target::Transmit { device, .. } | Target::Receive { device, .. } => {
                self.tree.try_text(format!("sys/class/net/{device}/ifindex")).map(Some)
            }
        };
        match found {
            Err(error) if vanished(&error) => Ok(None),
            found => found,
        }
    }

    fn read(&self, target: &Target) -> io::Result<Mask> {
        let mut bytes = Vec::new();
        self.tree.read(path(target), &mut bytes)?;
        let text = match target {
            Target::Thread(_) => allowed_mask(&bytes).map(str::to_owned),
            _ => String::from_utf8(bytes).ok(),
        };
        Mask::parse(text.ok_or_else(|| unclear(&path(target)))?)
    }

    fn write(&self, target: &Target, mask: &Mask) -> io::Result<()> {
        match target {
            Target::Thread(id) => cpu::set_thread_cpus(id.thread, mask.cpus()),
            _ => fs::write(self.tree.path(path(target)), mask.text()),
        }
    }

    /// Kernels of some architectures do not tell: what was set is taken for what is in effect.
    fn effective(&self, interrupt: u32) -> io::Result<Vec<CpuId>> {
        match self.list(&format!("proc/irq/{interrupt}/effective_affinity_list")) {
            Err(error) if vanished(&error) => self.list(&format!("proc/irq/{interrupt}/smp_affinity_list")),
            told => told,
        }
    }

    fn cpuset(&self, thread: ThreadId) -> io::Result<Vec<CpuId>> {
        let groups = self
            .tree
            .try_text(format!("proc/{}/task/{}/cgroup", thread.process, thread.thread));
        let online = self.online()?;
        let cpus = match groups {
            Ok(groups) => Cpusets::default().of(&self.tree, &groups),
            // A kernel without control groups.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.process(thread.process).is_ok() => None,
            Err(error) => return Err(error),
        };
        Ok(cpus.map_or_else(|| online.clone(), |cpus| within(&cpus, &online)))
    }

    fn process(&self, process: u32) -> io::Result<Process> {
        self.stat(&format!("proc/{process}/stat")).map(|(found, _)| found)
    }

    fn threads(&self) -> io::Result<Vec<ThreadId>> {
        let (mut processes, mut numbers, mut threads) = (Vec::new(), Vec::new(), Vec::new());
        self.tree.numbers("proc", &mut processes)?;
        for process in processes {
            match self.threads_of(process, &mut numbers, &mut threads) {
                Err(error) if vanished(&error) => {}
                listed => listed?,
            }
        }
        Ok(threads)
    }
}

/// Where a target's CPUs are read, and, except a thread's, written.
fn path(target: &Target) -> String {
    match target {
        Target::Thread(id) => format!("proc/{}/task/{}/status", id.process, id.thread),
        Target::Interrupt(number) => format!("proc/irq/{number}/smp_affinity"),
        Target::Transmit { device, index } => format!("sys/class/net/{device}/queues/tx-{index}/xps_cpus"),
        Target::Receive { device, index } => format!("sys/class/net/{device}/queues/rx-{index}/rps_cpus"),
    }
}

fn unclear(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("/{path} is not as Linux writes it"))
}
