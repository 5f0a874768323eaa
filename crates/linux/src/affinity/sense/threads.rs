//! Threads: the time they took, the bytes they moved, and where they may run.
//!
//! Who ran is told by programs in the kernel (`bpf`), or, without them, by /proc (`thread_proc`). Threads that belong to
//! the kernel are left out: nobody may move them, and most processes of an idle machine are theirs.
//!
//! Cost: with programs, some memory for each thread that ran, and one file for each cpuset with fewer than all CPUs.
//! Without, of a thread that did nothing one small file is read, `schedstat`; of one that ran four or five.

use super::bpf::{Counted, Record};
use super::cpusets::Cpusets;
use super::disks::{Bytes, Disks};
use super::gaps::Gaps;
use super::pools::Buffers;
use super::thread_proc::Files;
use crate::process::valid;
use crate::topology::sysfs::Tree;
use homenode_policy::CpuId;
use homenode_policy::affinity::{DeviceBytes, Received, Thread, ThreadId};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

/// /proc counts in these on every architecture that this project runs on (`USER_HZ`).
pub(in crate::affinity) const TICKS_PER_SECOND: u64 = 100;
pub(in crate::affinity) const TICK_NS: u64 = 1_000_000_000 / TICKS_PER_SECOND;

/// A thread that ran for less than such a part of the time since the last pass is not asked how long it waited. Of one that is bound a part is
/// enough that hundreds on one CPU have.
const SHORT_PART: u64 = 10;
const SHORT_PART_BOUND: u64 = 1000;

/// A process of the kernel is looked at again after so many passes, as its number may be another's by then.
const KERNEL_PASSES: u32 = 16;

/// Counts of every thread at the last pass.
#[derive(Debug, Default)]
pub(super) struct Threads {
    known: HashMap<u32, Known>,
    pass: u32,
    processes: Vec<u32>,
    threads: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    now: Counts,
    /// The pass that saw it last.
    pass: u32,
    /// Time it has waited for CPUs, if that pass has asked.
    waited_ns: Option<u64>,
}

/// Counts of a thread since its start.
#[derive(Clone, Copy, Debug)]
struct Counts {
    id: ThreadId,
    run_ns: u64,
    disk: Option<Bytes>,
    is_the_kernels: bool,
}

/// Context of a pass over all threads.
pub(super) struct Pass<'a> {
    pub(super) tree: &'a Tree,
    pub(super) online: &'a [CpuId],
    /// When the last pass began, in clock ticks since boot; none for the first.
    pub(super) since: Option<u64>,
    /// Time since then.
    pub(super) period_ns: u64,
    pub(super) gaps: &'a mut Gaps,
    /// Counts by programs in the kernel, read for this pass.
    pub(super) counted: &'a Counted,
    /// Buffers that servers of pools told for this pass.
    pub(super) buffers: &'a mut Buffers,
    pub(super) disks: &'a mut Disks,
    /// Names of cards, by the numbers that the kernel gives to cards.
    pub(super) card_names: &'a BTreeMap<u32, String>,
    /// A thread that moved so much since the last pass may be moved: what its bytes are of is worth a look.
    pub(super) busy_bytes: u64,
}

impl Threads {
    /// Looks at every thread, and returns those that ran since the last pass, ascending; none after the first.
    ///
    /// # Errors
    /// The list of processes cannot be read.
    pub(super) fn pass(&mut self, pass: &mut Pass<'_>) -> io::Result<Vec<Thread>> {
        self.pass = self.pass.wrapping_add(1);
        let mut ran = match &pass.counted.threads {
            Some(records) => self.pass_records(records, pass),
            None => self.pass_files(pass)?,
        };
        self.known.retain(|_, known| known.pass == self.pass);
        self.ask_waits(&mut ran, pass);
        ran.sort_by_key(|thread| thread.id);
        Ok(ran)
    }

    /// Reads how long each thread that ran for a while was ready to run and had no CPU.
    fn ask_waits(&mut self, ran: &mut [Thread], pass: &Pass<'_>) {
        let mut files = Files::default();
        for thread in ran {
            let known = self
                .known
                .get_mut(&thread.id.thread)
                .expect("this pass compared the thread, so it is in the map");
            let is_bound = thread.allowed != thread.cpuset;
            let part = if is_bound { SHORT_PART_BOUND } else { SHORT_PART };
            if thread.cpu_ns < pass.period_ns / part {
                known.waited_ns = None;
                continue;
            }
            files.enter(thread.id.process, thread.id.thread);
            let now = files.waited_ns(pass);
            let before = std::mem::replace(&mut known.waited_ns, now);
            thread.waited_ns = now.zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
        }
    }

    fn pass_records(&mut self, records: &[Record], pass: &mut Pass<'_>) -> Vec<Thread> {
        let mut files = Files::default();
        let mut cpusets = Cpusets::default();
        let all: Arc<[CpuId]> = pass.online.into();
        let mut by_number: HashMap<u64, Arc<[CpuId]>> = HashMap::new();
        let mut by_mask: HashMap<&[u64], Arc<[CpuId]>> = HashMap::new();
        let mut ran = Vec::new();
        for record in records {
            let id = ThreadId {
                process: record.process,
                thread: record.thread,
                started: record.started_ns / TICK_NS,
            };
            if self.did_nothing(id.process, id.thread, record.run_ns) {
                continue;
            }
            let counts = Counts {
                id,
                run_ns: record.run_ns,
                disk: record.disk.map(|(read, written)| Bytes { read, written }),
                is_the_kernels: false,
            };
            let Some(did) = self.compare(counts, pass) else {
                continue;
            };
            let allowed = by_mask.entry(&record.mask[..]);
            let allowed = allowed
                .or_insert_with(|| allowed_of(&record.mask, pass.online).into())
                .clone();
            // The kernel keeps masks within the cpuset, so one that has every CPU says it all.
            let cpuset = if allowed == all {
                all.clone()
            } else if let Some(known) = by_number.get(&record.cpuset) {
                known.clone()
            } else {
                files.enter(id.process, id.thread);
                match files.cgroup(pass) {
                    Some(cgroup) => {
                        let cpuset = cpusets.of(pass.tree, &cgroup).among(&all);
                        by_number.entry(record.cpuset).or_insert(cpuset).clone()
                    }
                    // It has ended. Others of its cpuset may tell; for itself no more is known to be allowed.
                    None => allowed.clone(),
                }
            };
            let cpu = CpuId(record.cpu);
            let (name, process_name) = (text(&record.name), text(&record.process_name));
            let who = Who {
                name,
                process_name,
                cpu,
                allowed,
                cpuset,
            };
            ran.push(describe(id, did, who, pass));
        }
        cpusets.tell(pass.gaps);
        ran
    }

    fn pass_files(&mut self, pass: &mut Pass<'_>) -> io::Result<Vec<Thread>> {
        let mut processes = std::mem::take(&mut self.processes);
        let mut threads = std::mem::take(&mut self.threads);
        let mut ran = Vec::new();
        let mut files = Files::default();
        let mut cpusets = Cpusets::default();
        pass.tree.numbers("proc", &mut processes)?;
        for process in &processes {
            if self.is_still_the_kernels(*process) {
                continue;
            }
            if let Err(error) = pass.tree.numbers(format!("proc/{process}/task"), &mut threads) {
                let what = "threads of processes";
                pass.gaps.unreadable(what, format!("proc/{process}/task"), &error);
                continue;
            }
            let mut process_name = None;
            for thread in &threads {
                files.enter(*process, *thread);
                let Ok(Some((id, cpu, did))) = self.look(*process, *thread, &mut files, pass) else {
                    continue;
                };
                let who = files.who(id, cpu, &mut process_name, &mut cpusets, pass);
                ran.extend(who.map(|who| describe(id, did, who, pass)));
            }
        }
        (self.processes, self.threads) = (processes, threads);
        cpusets.tell(pass.gaps);
        Ok(ran)
    }

    fn is_still_the_kernels(&mut self, process: u32) -> bool {
        match self.known.get_mut(&process) {
            Some(known)
                if known.now.is_the_kernels && !process.wrapping_add(self.pass).is_multiple_of(KERNEL_PASSES) =>
            {
                known.pass = self.pass;
                true
            }
            _ => false,
        }
    }

    /// Whether it is known, and has not run since the last pass.
    fn did_nothing(&mut self, process: u32, thread: u32, run_ns: u64) -> bool {
        let known = self.known.get_mut(&thread);
        let same = known.filter(|known| known.now.id.process == process && known.now.run_ns == run_ns);
        same.map(|known| known.pass = self.pass).is_some()
    }

    /// Returns what a thread did since the last pass, by its files. Returns none when the thread did nothing, or the period
    /// does not hold all that it did.
    fn look(
        &mut self,
        process: u32,
        thread: u32,
        files: &mut Files,
        pass: &mut Pass<'_>,
    ) -> io::Result<Option<(ThreadId, CpuId, Did)>> {
        let run_ns = files.run_ns(pass)?;
        if self.did_nothing(process, thread, run_ns) {
            return Ok(None);
        }
        let (started, cpu, is_the_kernels) = files.identity(pass)?;
        let id = ThreadId {
            process,
            thread,
            started,
        };
        let disk = if is_the_kernels { None } else { files.disk_bytes(pass) };
        let counts = Counts {
            id,
            run_ns,
            disk,
            is_the_kernels,
        };
        Ok(self.compare(counts, pass).map(|did| (id, CpuId(cpu), did)))
    }

    /// Returns what a thread did since the last pass. Returns none when the thread did nothing, or the period does not hold
    /// all that it did.
    fn compare(&mut self, now: Counts, pass: &Pass<'_>) -> Option<Did> {
        let before = self.known.get(&now.id.thread).filter(|known| known.now.id == now.id);
        let known = Known {
            now,
            pass: self.pass,
            waited_ns: before.and_then(|before| before.waited_ns),
        };
        let before = before.map(|before| before.now);
        self.known.insert(now.id.thread, known);
        // One that is new began within the period: all it ever did is of the period.
        let began = |since: &u64| now.id.started >= *since;
        let (run_before, disk_before) = match (before, pass.since.filter(began)) {
            (Some(before), _) => (before.run_ns, before.disk),
            (None, Some(_)) => (0, Some(Bytes::default())),
            (None, None) => return None,
        };
        let did = Did {
            cpu_ns: now.run_ns.saturating_sub(run_before),
            disk: now.disk.zip(disk_before).map(|(now, before)| now.since(before)),
            is_new: before.is_none(),
        };
        let moved = did.disk.is_some_and(|bytes| bytes.sum() > 0);
        (!now.is_the_kernels && (did.cpu_ns > 0 || moved)).then_some(did)
    }
}

/// Work of a thread in a period.
#[derive(Clone, Copy, Debug)]
struct Did {
    cpu_ns: u64,
    /// Bytes on disks; none where the kernel does not tell.
    disk: Option<Bytes>,
    /// The last pass has not seen it.
    is_new: bool,
}

/// Names and CPUs of a thread.
pub(super) struct Who {
    pub(super) name: String,
    pub(super) process_name: String,
    pub(super) cpu: CpuId,
    pub(super) allowed: Arc<[CpuId]>,
    /// CPUs of the thread's cpuset that run; all where no control group restricts the thread, as far as is seen.
    pub(super) cpuset: Arc<[CpuId]>,
}

fn describe(id: ThreadId, did: Did, who: Who, pass: &mut Pass<'_>) -> Thread {
    let counted = |counts: &super::bpf::DiskCounts| {
        let read = counts.iter().map(|(_, count)| count.read).sum();
        let written = counts
            .iter()
            .map(|(_, count)| count.written.saturating_add(count.dirtied))
            .sum();
        Bytes { read, written }
    };
    let nothing = Vec::new();
    let counts = pass.counted.disks.as_ref();
    let counts = counts.map(|disks| disks.get(&id.thread).unwrap_or(&nothing));
    let bytes = did.disk.or(counts.map(counted));
    let has_disks = bytes.is_some();
    let bytes = bytes.unwrap_or_default();
    let disk = pass.disks.divide(pass.tree, id.process, bytes, counts, pass.busy_bytes);
    let sockets = pass
        .counted
        .sockets
        .as_ref()
        .and_then(|sockets| sockets.get(&id.thread));
    let has_sockets = pass.counted.sockets.is_some() && !(pass.counted.missed_sockets && sockets.is_none());
    let queue = |(card, index)| Some((pass.card_names.get(&card)?.clone(), index));
    let received = sockets.into_iter().flat_map(|sockets| &sockets.received);
    let received = received.map(|((cpu, by), bytes)| Received {
        cpu: cpu.map(CpuId),
        queue: by.and_then(queue),
        bytes: *bytes,
    });
    let sent = sockets.into_iter().flat_map(|sockets| &sockets.sent);
    let sent = sent.map(|(card, bytes)| DeviceBytes {
        device: pass.card_names.get(card).cloned(),
        bytes: *bytes,
    });
    let buffer = pass.buffers.take(id.thread, id.started);
    Thread {
        id,
        name: who.name,
        process_name: who.process_name,
        cpu: who.cpu,
        allowed: who.allowed,
        cpuset: who.cpuset,
        cpu_ns: did.cpu_ns,
        waited_ns: 0,
        disk,
        received: received.collect(),
        sent: sent.collect(),
        memory: buffer.memory.into_iter().collect(),
        files: buffer.files,
        is_new: did.is_new,
        is_unread: !(has_disks && has_sockets),
    }
}

/// A mask, as far as CPUs run.
fn allowed_of(mask: &[u64], online: &[CpuId]) -> Vec<CpuId> {
    let has = |cpu: &CpuId| {
        let word = mask.get((cpu.0 / u64::BITS) as usize);
        word.is_some_and(|word| word >> (cpu.0 % u64::BITS) & 1 == 1)
    };
    online.iter().copied().filter(has).collect()
}

fn text(name: &[u8]) -> String {
    valid(name.split(|byte| *byte == 0).next().unwrap_or_default()).to_owned()
}
