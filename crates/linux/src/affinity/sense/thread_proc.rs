//! Threads as /proc shows them, a file after the other.

use super::cpusets::Cpusets;
use super::cpusets::within;
use super::disks::Bytes;
use super::gaps::has_vanished;
use super::thread_files::{allowed_list, disk_bytes};
use super::threads::{Pass, TICK_NS, Who};
use crate::process::{Stat, run_ns, waited_ns};
use crate::topology::sysfs::{Tree, parse_list};
use homenode_policy::CpuId;
use homenode_policy::affinity::ThreadId;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// The files of one thread after the other, in the same memory.
#[derive(Default)]
pub(super) struct Files {
    /// `proc/PROCESS/task/THREAD/`, and a file's name from `directory` on.
    path: String,
    directory: usize,
    bytes: Vec<u8>,
    /// The thread's, by its `stat`.
    name: String,
    /// All CPUs that run, once they were needed.
    all: Option<Arc<[CpuId]>>,
    /// Masks by their text, as far as CPUs run.
    masks: HashMap<String, Arc<[CpuId]>>,
    /// The CPUs of cpusets that run, by the text of their groups.
    cpusets: HashMap<String, Arc<[CpuId]>>,
}

impl Files {
    pub(super) fn enter(&mut self, process: u32, thread: u32) {
        use std::fmt::Write as _;
        self.path.clear();
        write!(self.path, "proc/{process}/task/{thread}/").expect("writing to a string cannot fail");
        self.directory = self.path.len();
    }

    fn read(&mut self, tree: &Tree, file: &str) -> io::Result<&[u8]> {
        self.path.truncate(self.directory);
        self.path.push_str(file);
        tree.read(&self.path, &mut self.bytes)?;
        Ok(&self.bytes)
    }

    /// Time on a CPU. Kernels without statistics of the scheduler have no such file, or leave it 0, and tell ticks only.
    pub(super) fn run_ns(&mut self, pass: &mut Pass<'_>) -> io::Result<u64> {
        match self.read(pass.tree, "schedstat").map(run_ns) {
            Ok(Some(run_ns)) if run_ns > 0 => return Ok(run_ns),
            Err(error) if !has_vanished(&error) => {
                pass.gaps.unreadable("nanoseconds that threads ran", &self.path, &error)
            }
            _ => {}
        }
        self.read(pass.tree, "stat")
            .and_then(|bytes| Stat::parse(bytes).ok_or_else(|| io::ErrorKind::InvalidData.into()))
            .map(|stat| stat.run_ticks.saturating_mul(TICK_NS))
            .inspect_err(|error| pass.gaps.unreadable("time that threads ran", &self.path, error))
    }

    /// Time it was ready to run and waited; none where the kernel does not tell.
    pub(super) fn waited_ns(&mut self, pass: &Pass<'_>) -> Option<u64> {
        waited_ns(self.read(pass.tree, "schedstat").ok()?)
    }

    /// Its start, its CPU, and whether it is the kernel's; leaves its name.
    pub(super) fn identity(&mut self, pass: &mut Pass<'_>) -> io::Result<(u64, u32, bool)> {
        let read = self.read(pass.tree, "stat");
        let parsed = read.and_then(|bytes| Stat::parse(bytes).ok_or_else(|| io::ErrorKind::InvalidData.into()));
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

    pub(super) fn disk_bytes(&mut self, pass: &mut Pass<'_>) -> Option<Bytes> {
        self.parsed(pass, "io", "disk bytes of threads", disk_bytes)
    }

    /// The rest of what is to be known of a thread that ran. None when it has ended by now, or its mask cannot be read.
    pub(super) fn who(
        &mut self,
        id: ThreadId,
        cpu: CpuId,
        process_name: &mut Option<String>,
        cpusets: &mut Cpusets,
        pass: &mut Pass<'_>,
    ) -> Option<Who> {
        let allowed = self.allowed(pass)?;
        let all = self.all.get_or_insert_with(|| pass.online.into()).clone();
        // The kernel keeps masks within the cpuset, so one that has every CPU says it all.
        let cgroup = if allowed == all { None } else { self.cgroup(pass) };
        let cpuset = cgroup.map_or_else(
            || all.clone(),
            |cgroup| {
                let found = || cpusets.of(pass.tree, &cgroup).among(&all);
                self.cpusets.entry(cgroup.clone()).or_insert_with(found).clone()
            },
        );
        let name = self.name.clone();
        let process_name = if id.process == id.thread {
            process_name.insert(name.clone())
        } else {
            process_name.get_or_insert_with(|| {
                let told = pass.tree.text(format!("proc/{}/comm", id.process));
                told.unwrap_or_else(|| name.clone())
            })
        };
        let process_name = process_name.clone();
        Some(Who {
            name,
            process_name,
            cpu,
            allowed,
            cpuset,
        })
    }

    /// Its own mask, as far as CPUs run.
    fn allowed(&mut self, pass: &mut Pass<'_>) -> Option<Arc<[CpuId]>> {
        let text = self.parsed(pass, "status", "masks of threads", |bytes| {
            let text = allowed_list(bytes)?;
            parse_list(text).map(|cpus| (text.to_owned(), cpus))
        });
        let (text, cpus) = text?;
        let mask = self.masks.entry(text).or_insert_with(|| {
            let cpus: Vec<CpuId> = cpus.into_iter().map(CpuId).collect();
            within(&cpus, pass.online).into()
        });
        Some(mask.clone())
    }

    pub(super) fn cgroup(&mut self, pass: &mut Pass<'_>) -> Option<String> {
        // Users may give their groups any name. Of one that is no text the path leads nowhere.
        let text = |bytes: &[u8]| Some(String::from_utf8_lossy(bytes).into_owned());
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
