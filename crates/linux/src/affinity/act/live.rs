//! The machine this runs on.

use super::has_vanished as vanished;
use super::kernel::{Kernel, Process};
use super::mask::Mask;
use crate::affinity::sense::counts::Counts;
use crate::affinity::sense::cpusets::within;
use crate::affinity::sense::cpusets::{Cpuset, Cpusets};
use crate::affinity::sense::thread_files::allowed_mask;
use crate::affinity::sense::threads::{TICK_NS, TICKS_PER_SECOND};
use crate::affinity::sense::{INTERRUPTS, ONLINE};
use crate::cpu;
use crate::process::Stat;
use crate::topology::sysfs::{Tree, parse_list};
use homenode_policy::CpuId;
use homenode_policy::affinity::{Target, ThreadId};
use rustix::time::{ClockId, clock_gettime};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The list of a process's threads is read no more often.
const LISTINGS_MAX: usize = 16;

/// The names of interrupts, a file each.
const ACTIONS: &str = "sys/kernel/irq";

/// The cards of the network namespace for which /sys was mounted, and of that of this process.
const CARDS: &str = "sys/class/net";
const OWN_CARDS: &str = "proc/self/net/dev";
/// Cards may come and go between a look at the one and at the other.
const LOOKS_MAX: usize = 5;

/// Acts by /proc, /sys and system calls.
#[derive(Debug)]
pub struct Live {
    tree: Tree,
    /// For where groups are mounted; what is in them is read each time.
    cpusets: RefCell<Cpusets>,
}

impl Live {
    /// This machine, as this process sees it.
    #[must_use]
    pub fn new() -> Self {
        Self {
            tree: Tree::new(Path::new("/")),
            cpusets: RefCell::default(),
        }
    }

    fn list(&self, path: &str) -> io::Result<Vec<CpuId>> {
        let text = self.tree.try_text(path)?;
        let list = parse_list(&text).ok_or_else(|| unclear(path))?;
        Ok(list.into_iter().map(CpuId).collect())
    }

    /// Fails where writes to queues in /sys would reach the cards of another network namespace than this process's.
    fn check_cards(&self) -> io::Result<()> {
        for _ in 0..LOOKS_MAX {
            let Some(own) = self.tree.text(OWN_CARDS) else {
                return Ok(());
            };
            let own: BTreeSet<&str> = own
                .lines()
                .filter_map(|line| Some(line.rsplit_once(':')?.0.trim_start()))
                .collect();
            let names = self.tree.names(CARDS);
            let is_card = |name: &&str| self.tree.exists(format!("{CARDS}/{name}/ifindex"));
            let there: BTreeSet<&str> = names.iter().map(String::as_str).filter(is_card).collect();
            if there.is_empty() || there == own {
                return Ok(());
            }
        }
        Err(io::Error::other(
            "/sys/class/net has the cards of another network namespace than this process's: run it where /sys is of the \
             same (nsenter --all --target PROCESS, with a process of there, or ip netns exec)",
        ))
    }

    /// Reads `stat`: the thread's start, its process's parent and session, and whether the thread is the kernel's.
    fn stat(&self, path: &str) -> io::Result<(Process, bool)> {
        let mut bytes = Vec::new();
        self.tree.read(path, &mut bytes)?;
        let stat = Stat::parse(&bytes).ok_or_else(|| unclear(path))?;
        let process = Process {
            started: stat.started,
            parent: stat.parent,
            session: stat.session,
            threads: stat.threads,
        };
        Ok((process, stat.is_the_kernels()))
    }

    /// Returns the name of an interrupt as in /proc/interrupts; none when no driver has asked for the interrupt. That file
    /// is large on large machines: it is read only where the kernel has no [`ACTIONS`].
    fn interrupt_name(&self, number: u32) -> io::Result<Option<String>> {
        if self.tree.exists(ACTIONS) {
            let names = match self.tree.try_text(format!("{ACTIONS}/{number}/actions")) {
                Err(error) if vanished(&error) => return Ok(None),
                names => names?,
            };
            return Ok((!names.is_empty()).then(|| names.replace(',', ", ")));
        }
        let text = self.tree.try_text(INTERRUPTS)?;
        let counts = Counts::parse(&text).ok_or_else(|| unclear(INTERRUPTS))?;
        Ok(counts.lines.get(&number).map(|line| line.name.clone()))
    }

    /// The kernel leaves threads out of the list when others end while it is read: it is read until it has as many as
    /// there are.
    fn threads_of(&self, process: u32, numbers: &mut Vec<u32>, threads: &mut BTreeSet<ThreadId>) -> io::Result<()> {
        let directory = format!("proc/{process}/task");
        for _ in 0..LISTINGS_MAX {
            self.tree.numbers(&directory, numbers)?;
            let mut found = 0;
            for thread in &*numbers {
                match self.stat(&format!("{directory}/{thread}/stat")) {
                    Ok((stat, is_the_kernels)) => {
                        found += 1;
                        let (thread, started) = (*thread, stat.started);
                        let id = ThreadId {
                            process,
                            thread,
                            started,
                        };
                        if !is_the_kernels {
                            threads.insert(id);
                        }
                    }
                    Err(error) if vanished(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            // The links of the directory: its own two, and one for each thread.
            if found + 2 >= fs::metadata(self.tree.path(&directory))?.nlink() {
                break;
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
        self.check_cards()?;
        let name = |kind: &str| {
            let link = fs::read_link(format!("/proc/self/ns/{kind}"))?;
            Ok::<_, io::Error>(link.to_string_lossy().into_owned())
        };
        Ok(format!("{},{}", name("pid")?, name("net")?))
    }

    fn now(&self) -> io::Result<u64> {
        // Not by /proc/uptime, which lxcfs shows as that of its container.
        let now = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).map_err(io::Error::other)?;
        let nanoseconds = u64::try_from(now.tv_nsec).map_err(io::Error::other)?;
        Ok(seconds * TICKS_PER_SECOND + nanoseconds / TICK_NS)
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
            Target::Interrupt(number) => return self.interrupt_name(*number),
            Target::Transmit { device, .. } | Target::Receive { device, .. } => {
                self.tree.try_text(format!("sys/class/net/{device}/ifindex")).map(Some)
            }
        };
        match found {
            Err(error) if vanished(&error) => Ok(None),
            found => found,
        }
    }

    fn renamed(&self, target: &Target, identity: &str) -> Option<Target> {
        let mut renamed = target.clone();
        let (Target::Transmit { device, .. } | Target::Receive { device, .. }) = &mut renamed else {
            return None;
        };
        let has_it = |card: &String| self.tree.text(format!("{CARDS}/{card}/ifindex")).as_deref() == Some(identity);
        if !has_it(device) {
            *device = self.tree.names(CARDS).into_iter().find(has_it)?;
        }
        Some(renamed)
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

    fn hint(&self, interrupt: u32) -> io::Result<Vec<CpuId>> {
        let text = self.tree.try_text(format!("proc/irq/{interrupt}/affinity_hint"))?;
        Ok(Mask::parse(text)?.cpus().to_vec())
    }

    fn cpuset(&self, thread: ThreadId) -> io::Result<Option<Vec<CpuId>>> {
        let mut groups = Vec::new();
        let path = format!("proc/{}/task/{}/cgroup", thread.process, thread.thread);
        let read = self.tree.read(path, &mut groups);
        let online = self.online()?;
        let cpus = match (read, str::from_utf8(&groups)) {
            (Ok(_), Ok(groups)) => {
                let mut cpusets = self.cpusets.borrow_mut();
                cpusets.forget();
                cpusets.of(&self.tree, groups)
            }
            // Users may give their groups any name.
            (Ok(_), Err(_)) => Cpuset::Unseen,
            // A kernel without control groups.
            (Err(error), _) if error.kind() == io::ErrorKind::NotFound && self.process(thread.process).is_ok() => {
                Cpuset::All
            }
            (Err(error), _) => return Err(error),
        };
        Ok(match cpus {
            Cpuset::All => Some(online),
            Cpuset::Only(cpus) => Some(within(&cpus, &online)),
            Cpuset::Unseen => None,
        })
    }

    fn process(&self, process: u32) -> io::Result<Process> {
        self.stat(&format!("proc/{process}/stat")).map(|(found, _)| found)
    }

    fn threads(&self) -> io::Result<Vec<ThreadId>> {
        let (mut processes, mut numbers, mut threads) = (Vec::new(), Vec::new(), BTreeSet::new());
        self.tree.numbers("proc", &mut processes)?;
        for process in processes {
            match self.threads_of(process, &mut numbers, &mut threads) {
                Err(error) if vanished(&error) => {}
                listed => listed?,
            }
        }
        Ok(threads.into_iter().collect())
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

#[cfg(test)]
mod tests {
    use super::super::{Actor, Disk, Restore};
    use super::*;
    use crate::topology::made::Made;
    use crate::topology::{self, Source};
    use homenode_policy::NodeId;
    use homenode_policy::affinity::{Action, Cost, Plan, Reason, Snapshot};

    fn below(machine: &Made) -> Live {
        Live {
            tree: machine.tree(),
            cpusets: RefCell::default(),
        }
    }

    #[test]
    fn interrupt_names_match_proc_interrupts() {
        let live = Live::new();
        let counts = Counts::parse(&live.tree.try_text(INTERRUPTS).unwrap()).unwrap();
        for (number, line) in &counts.lines {
            let name = live.identity(&Target::Interrupt(*number)).unwrap();
            assert_eq!(name.as_ref(), Some(&line.name), "{number}");
        }
        assert_eq!(live.identity(&Target::Interrupt(u32::MAX)).unwrap(), None);
    }

    #[test]
    fn cards_of_another_network_namespace_are_refused() {
        let machine = Made::new();
        let live = below(&machine);
        let add = |name: &str| {
            machine.file(&format!("{CARDS}/{name}/ifindex"), "1\n");
        };
        let own = |names: &[&str]| {
            let lines: String = names.iter().map(|name| format!("{name:>6}: 1 2 0 0\n")).collect();
            machine.file(OWN_CARDS, &format!("Inter-|   Receive\n face |bytes\n{lines}"));
        };
        live.check_cards().unwrap();
        own(&["lo", "a:b"]);
        live.check_cards().unwrap();
        add("lo");
        let told = live.check_cards().unwrap_err().to_string();
        assert!(
            told.contains("another network namespace") && told.contains("nsenter --all"),
            "{told}"
        );
        add("a:b");
        machine.file(&format!("{CARDS}/bonding_masters"), "");
        live.check_cards().unwrap();
        add("eth0");
        live.check_cards().unwrap_err();
        Live::new().check_cards().unwrap();
    }

    #[test]
    fn queues_of_a_renamed_card_are_restored() {
        let queue = |card: &str| format!("{CARDS}/{card}/queues/tx-0/xps_cpus");
        let machine = Made::of(&[
            ("proc/sys/kernel/random/boot_id", "1\n"),
            (ONLINE, "0-3\n"),
            ("sys/devices/system/cpu/possible", "0-3\n"),
            (&format!("{CARDS}/eth0/ifindex"), "7\n"),
            (&queue("eth0"), "f\n"),
        ]);
        let cpus = |numbers: &[u32]| numbers.iter().copied().map(CpuId).collect::<Vec<_>>();
        let (device, index) = ("eth0".to_owned(), 0);
        let action = Action {
            target: Target::Transmit { device, index },
            from: cpus(&[0, 1, 2, 3]),
            to: cpus(&[1]),
            reason: Reason::NearDevice {
                device: "eth0".to_owned(),
                node: NodeId(0),
            },
            cost_before: Cost::default(),
            cost_after: Cost::default(),
        };
        let plan = Plan {
            actions: vec![action],
            ..Plan::default()
        };
        let topology = topology::read(&Source::Live).unwrap();
        let snapshot = Snapshot::idle(topology, cpus(&[0, 1, 2, 3]), 1);
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::open(&directory.path().join("journal")).unwrap();
        let mut actor = Actor::with_store(below(&machine), disk).unwrap();
        assert_eq!(actor.apply(&plan, &snapshot, &[]).unwrap().made(), 1);
        let cards = machine.root().join(CARDS);
        fs::rename(cards.join("eth0"), cards.join("lan0")).unwrap();
        let reverted = actor.revert().unwrap();
        assert_eq!(reverted.targets[0].1, Restore::Restored);
        assert_eq!(fs::read_to_string(machine.root().join(queue("lan0"))).unwrap(), "f\n");
    }

    #[test]
    fn a_container_with_an_uptime_of_its_own_has_the_time_of_its_threads() {
        let machine = Made::of(&[("proc/uptime", "0.01 0.00\n")]);
        let started = crate::process::start_ticks(std::process::id()).unwrap();
        assert!(below(&machine).now().unwrap() >= started);
    }

    #[test]
    fn a_group_whose_name_is_no_text_is_unseen() {
        let machine = Made::of(&[("sys/devices/system/cpu/online", "0-1\n")]);
        let live = below(&machine);
        machine.bytes("proc/9/task/9/cgroup", b"0::/user/\xff\n");
        let thread = ThreadId {
            process: 9,
            thread: 9,
            started: 1,
        };
        assert_eq!(live.cpuset(thread).unwrap(), None);
        machine.file("proc/9/task/9/cgroup", "1:name=other:/\n");
        assert_eq!(live.cpuset(thread).unwrap(), Some(vec![CpuId(0), CpuId(1)]));
    }

    #[test]
    fn this_thread_is_among_the_threads_of_this_process() {
        let live = Live::new();
        let process = std::process::id();
        let own: Vec<ThreadId> = live
            .threads()
            .unwrap()
            .into_iter()
            .filter(|id| id.process == process)
            .collect();
        let thread = fs::read_link("/proc/thread-self").unwrap();
        let thread = thread.file_name().unwrap().to_str().unwrap().parse::<u32>().unwrap();
        let id = own.iter().copied().find(|id| id.thread == thread).unwrap();
        let target = Target::Thread(id);
        assert!(live.identity(&target).unwrap().is_some());
        let another = Target::Thread(ThreadId { started: 1, ..id });
        assert_eq!(live.identity(&another).unwrap(), None);
        let allowed = cpu::allowed_cpus().unwrap();
        let mask = live.read(&target).unwrap();
        assert!(allowed.iter().all(|cpu| mask.cpus().contains(cpu)));
        assert!(live.now().unwrap() >= id.started);
        assert!(
            live.cpuset(id)
                .unwrap()
                .unwrap()
                .iter()
                .any(|cpu| allowed.contains(cpu))
        );
    }
}
