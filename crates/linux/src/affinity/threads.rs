//! Threads: the time they took, the bytes they moved, and where they may run.
//!
//! Cost: of a thread that did nothing one small file is read, `schedstat`; of one that ran four or five. Threads that
//! belong to the kernel are left out: nobody may move them, and most processes of an idle machine are theirs.

use super::cpusets::Cpusets;
use super::gaps::{Gaps, has_vanished};
use super::thread_files::{allowed_list, disk_bytes, run_ns, stat};
use crate::topology::sysfs::{Tree, parse_list};
use homenode_policy::CpuId;
use homenode_policy::affinity::{DiskBytes, Thread, ThreadId};
use std::collections::HashMap;
use std::io;

/// /proc counts in these on every architecture that this project runs on (`USER_HZ`).
pub(super) const TICKS_PER_SECOND: u64 = 100;
const TICK_NS: u64 = 1_000_000_000 / TICKS_PER_SECOND;

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
    process: u32,
    started: u64,
    run_ns: u64,
    disk_bytes: Option<u64>,
    is_the_kernels: bool,
    /// The pass that saw it last.
    pass: u32,
}

/// What a pass is about.
pub(super) struct Pass<'a> {
    pub(super) tree: &'a Tree,
    pub(super) online: &'a [CpuId],
    /// When the last pass began, in clock ticks since boot; none for the first.
    pub(super) since: Option<u64>,
    pub(super) gaps: &'a mut Gaps,
}

impl Threads {
    /// Looks at every thread, and returns those that ran since the last pass, ascending; none after the first.
    ///
    /// # Errors
    /// The list of processes cannot be read.
    pub(super) fn pass(&mut self, pass: &mut Pass<'_>) -> io::Result<Vec<Thread>> {
        self.pass = self.pass.wrapping_add(1);
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
                ran.extend(describe(
                    id,
                    cpu,
                    did,
                    &mut process_name,
                    &mut files,
                    &mut cpusets,
                    pass,
                ));
            }
        }
        self.known.retain(|_, known| known.pass == self.pass);
        (self.processes, self.threads) = (processes, threads);
        ran.sort_by_key(|thread| thread.id);
        Ok(ran)
    }

    fn is_still_the_kernels(&mut self, process: u32) -> bool {
        match self.known.get_mut(&process) {
            Some(known) if known.is_the_kernels && !process.wrapping_add(self.pass).is_multiple_of(KERNEL_PASSES) => {
                known.pass = self.pass;
                true
            }
            _ => false,
        }
    }

    /// What a thread did since the last pass; none when it did nothing, or the period does not hold all of it.
    fn look(
        &mut self,
        process: u32,
        thread: u32,
        files: &mut Files,
        pass: &mut Pass<'_>,
    ) -> io::Result<Option<(ThreadId, CpuId, Did)>> {
        let run_ns = files.run_ns(pass)?;
        if let Some(known) = self.known.get_mut(&thread)
            && known.process == process
            && known.run_ns == run_ns
        {
            known.pass = self.pass;
            return Ok(None);
        }
        let (started, cpu, is_the_kernels) = files.identity(pass)?;
        let disk = if is_the_kernels { None } else { files.disk_bytes(pass) };
        let now = Known {
            process,
            started,
            run_ns,
            disk_bytes: disk,
            is_the_kernels,
            pass: self.pass,
        };
        let before = self.known.insert(thread, now);
        let before = before.filter(|before| before.process == process && before.started == started);
        // One that is new began within the period: all it ever did is of the period.
        let began = |since: &u64| started >= *since;
        let (run_before, disk_before) = match (before, pass.since.filter(began)) {
            (Some(before), _) => (before.run_ns, before.disk_bytes),
            (None, Some(_)) => (0, Some(0)),
            (None, None) => return Ok(None),
        };
        let did = Did {
            cpu_ns: run_ns.saturating_sub(run_before),
            disk_bytes: disk
                .zip(disk_before)
                .map_or(0, |(now, before)| now.saturating_sub(before)),
        };
        let id = ThreadId {
            process,
            thread,
            started,
        };
        let counts = !is_the_kernels && (did.cpu_ns > 0 || did.disk_bytes > 0);
        Ok(counts.then_some((id, CpuId(cpu), did)))
    }
}

/// What a thread did in a period.
#[derive(Clone, Copy, Debug)]
struct Did {
    cpu_ns: u64,
    disk_bytes: u64,
}

/// The rest of what is to be known of a thread that ran. None when it has ended by now, or its mask cannot be read.
fn describe(
    id: ThreadId,
    cpu: CpuId,
    did: Did,
    process_name: &mut Option<String>,
    files: &mut Files,
    cpusets: &mut Cpusets,
    pass: &mut Pass<'_>,
) -> Option<Thread> {
    let allowed = files.allowed(pass)?;
    // The kernel keeps masks within the cpuset, so one that has every CPU says it all.
    let cpuset = if allowed == pass.online {
        None
    } else {
        files.cgroup(pass).and_then(|cgroup| cpusets.of(pass.tree, &cgroup))
    };
    let name = files.name.clone();
    let process_name = if id.process == id.thread {
        process_name.insert(name.clone())
    } else {
        process_name.get_or_insert_with(|| {
            let told = pass.tree.text(format!("proc/{}/comm", id.process));
            told.unwrap_or_else(|| name.clone())
        })
    };
    let disk = DiskBytes {
        device: None,
        bytes: did.disk_bytes,
    };
    Some(Thread {
        id,
        process_name: process_name.clone(),
        name,
        cpu,
        allowed,
        cpuset: cpuset.map_or_else(|| pass.online.to_vec(), |cpus| intersection(&cpus, pass.online)),
        cpu_ns: did.cpu_ns,
        disk: if did.disk_bytes > 0 { vec![disk] } else { Vec::new() },
        received: Vec::new(),
        sent_bytes: 0,
    })
}

/// Both ascending.
fn intersection(cpus: &[CpuId], online: &[CpuId]) -> Vec<CpuId> {
    let runs = |cpu: &CpuId| online.binary_search(cpu).is_ok();
    cpus.iter().copied().filter(runs).collect()
}

/// The files of one thread after the other, in the same memory.
#[derive(Default)]
struct Files {
    /// `proc/PROCESS/task/THREAD/`, and a file's name from `directory` on.
    path: String,
    directory: usize,
    bytes: Vec<u8>,
    /// The thread's, by its `stat`.
    name: String,
}

impl Files {
    fn enter(&mut self, process: u32, thread: u32) {
        use std::fmt::Write as _;
        self.path.clear();
        write!(self.path, "proc/{process}/task/{thread}/").expect("a string takes everything");
        self.directory = self.path.len();
    }

    fn read(&mut self, tree: &Tree, file: &str) -> io::Result<&[u8]> {
        self.path.truncate(self.directory);
        self.path.push_str(file);
        tree.read(&self.path, &mut self.bytes)?;
        Ok(&self.bytes)
    }

    /// Time on a CPU. Kernels without statistics of the scheduler have no such file, or leave it 0, and tell ticks only.
    fn run_ns(&mut self, pass: &mut Pass<'_>) -> io::Result<u64> {
        match self.read(pass.tree, "schedstat").map(run_ns) {
            Ok(Some(run_ns)) if run_ns > 0 => return Ok(run_ns),
            Err(error) if !has_vanished(&error) => {
                pass.gaps.unreadable("nanoseconds that threads ran", &self.path, &error)
            }
            _ => {}
        }
        self.read(pass.tree, "stat")
            .and_then(|bytes| stat(bytes).ok_or_else(|| io::ErrorKind::InvalidData.into()))
            .map(|stat| stat.run_ticks.saturating_mul(TICK_NS))
            .inspect_err(|error| pass.gaps.unreadable("time that threads ran", &self.path, error))
    }

    /// Its start, its CPU, and whether it is the kernel's; leaves its name.
    fn identity(&mut self, pass: &mut Pass<'_>) -> io::Result<(u64, u32, bool)> {
        let read = self.read(pass.tree, "stat");
        let parsed = read.and_then(|bytes| stat(bytes).ok_or_else(|| io::ErrorKind::InvalidData.into()));
        match parsed.map(|stat| (stat.name.to_owned(), (stat.started, stat.cpu, stat.is_the_kernels()))) {
            Ok((name, identity)) => {
                self.name = name;
                Ok(identity)
            }
            Err(error) => {
                pass.gaps.unreadable("names and CPUs of threads", &self.path, &error);
                Err(error)
            }
        }
    }

    fn disk_bytes(&mut self, pass: &mut Pass<'_>) -> Option<u64> {
        self.parsed(pass, "io", "disk bytes of threads", disk_bytes)
    }

    /// Its own mask, as far as CPUs run.
    fn allowed(&mut self, pass: &mut Pass<'_>) -> Option<Vec<CpuId>> {
        let list = |bytes: &[u8]| parse_list(allowed_list(bytes)?);
        let allowed = self.parsed(pass, "status", "masks of threads", list)?;
        let allowed: Vec<CpuId> = allowed.into_iter().map(CpuId).collect();
        Some(intersection(&allowed, pass.online))
    }

    fn cgroup(&mut self, pass: &mut Pass<'_>) -> Option<String> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        self.parsed(pass, "cgroup", "cpusets of threads", text)
    }

    fn parsed<T>(
        &mut self,
        pass: &mut Pass<'_>,
        file: &str,
        what: &'static str,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Option<T> {
        let read = self.read(pass.tree, file);
        let parsed = read.and_then(|bytes| parse(bytes).ok_or_else(|| io::ErrorKind::InvalidData.into()));
        parsed
            .inspect_err(|error| pass.gaps.unreadable(what, &self.path, error))
            .ok()
    }
}
