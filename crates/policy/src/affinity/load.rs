//! How busy the CPUs are, and how much beyond what they may be.
//!
//! A thread wants the CPU time that it took, up to what a CPU may take: one thread alone may fill a CPU. A thread that
//! waited for full CPUs at least half as long as it ran wants that time as well, as threads that share a CPU take less
//! than they would. A thread that never slept wants what a CPU may take, unless it ran less than [`LITTLE_NS`] and is not one of
//! a crowd that fills its CPUs.
//!
//! A domain may take what its CPUs may, and a little more ([`NOISE_NS`]); so may each CPU. Where no thread waits, they bear their present
//! load and that little more.
//!
//! A thread that is not placed counts nowhere if its mask has all CPUs: the scheduler puts it where there is room. With a
//! narrower mask it counts equally on each CPU of the mask.
//!
//! Whoever may use all CPUs of a domain is put by the kernel's scheduler where there is room; whoever may use only some
//! uses each of them alike. So a domain is overloaded by what is beyond the capacity of all its CPUs together, or by
//! what is bound to single CPUs beyond theirs, whichever is more. Nanoseconds in a second throughout.

use super::cost::NS_PER_S;
use super::domains::Domains;
use super::model::per_second;
use super::{Snapshot, Thread};
use alloc::vec;
use alloc::vec::Vec;

/// CPU time a second from which a CPU is full. Time run and waited from which a thread never slept.
const FULL_NS: u64 = NS_PER_S / 100 * 90;
/// CPU time a second by which a thread's load differs from period to period: a quarter of what a CPU may take by default.
pub(super) const NOISE_NS: u64 = NS_PER_S / 5;
/// A thread that runs less is no sign that CPUs are too busy: whoever runs rarely waits for others.
const LITTLE_NS: u64 = NS_PER_S / 10;

/// CPU time that threads want.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    snapshot: &'a Snapshot,
    domains: &'a Domains,
    threads: Vec<&'a Thread>,
    /// CPU time a second of these threads, by the CPU on which each ran last.
    ran: Vec<u64>,
    /// That of those among them that took little and never slept.
    crowd: Vec<u64>,
    /// The most a thread wants.
    most: u64,
}

impl<'a> Wanted<'a> {
    /// Threads are those that count somewhere.
    pub(super) fn new(snapshot: &'a Snapshot, domains: &'a Domains, threads: Vec<&'a Thread>, most: u64) -> Self {
        let (mut ran, mut crowd) = (vec![0; domains.cpu_count()], vec![0; domains.cpu_count()]);
        for thread in &threads {
            if let Some(cpu) = domains.index(thread.cpu) {
                let [took, waited] = [thread.cpu_ns, thread.waited_ns].map(|ns| per_second(ns, snapshot));
                ran[cpu] += took;
                if took < LITTLE_NS && took.saturating_add(waited) >= FULL_NS {
                    crowd[cpu] += took;
                }
            }
        }
        Self {
            snapshot,
            domains,
            threads,
            ran,
            crowd,
            most,
        }
    }

    /// Returns the CPU time that a thread wants, in nanoseconds a second.
    pub(super) fn of(&self, thread: &Thread) -> u64 {
        let (took, waited) = (self.took(thread), self.waited(thread));
        if took + waited >= FULL_NS && (took >= LITTLE_NS || self.is_crowded(thread)) {
            return self.most;
        }
        let waited = if self.waits(thread) { waited.min(took) } else { 0 };
        (took + waited).min(self.most)
    }

    /// Whether CPUs of each domain are too busy for a thread that ran there.
    pub(super) fn lacking(&self) -> Vec<bool> {
        let mut lacking = vec![false; self.domains.len()];
        let waiting = self.threads.iter().filter(|thread| self.waits(thread));
        for domain in waiting.filter_map(|thread| self.domain(thread)) {
            lacking[domain] = true;
        }
        lacking
    }

    fn took(&self, thread: &Thread) -> u64 {
        per_second(thread.cpu_ns, self.snapshot).min(NS_PER_S)
    }

    fn waited(&self, thread: &Thread) -> u64 {
        per_second(thread.waited_ns, self.snapshot).min(NS_PER_S)
    }

    /// Whether a thread that ran waited for full CPUs. Threads that wait for each other's work wait a little as well, for
    /// its end. One of a crowd that never slept waited, however little it ran.
    fn waits(&self, thread: &Thread) -> bool {
        let (took, waited) = (self.took(thread), self.waited(thread));
        let is_sign = took >= LITTLE_NS || took + waited >= FULL_NS && self.is_crowded(thread);
        is_sign && waited >= took / 2 && self.is_full(thread)
    }

    /// Whether the CPUs are full that a thread may have in the domain in which it ran.
    fn is_full(&self, thread: &Thread) -> bool {
        self.mean(thread, &self.ran) >= FULL_NS
    }

    /// Whether these CPUs are full for the most part of threads that took little and never slept: one of them alone waits for others.
    fn is_crowded(&self, thread: &Thread) -> bool {
        self.is_full(thread) && self.mean(thread, &self.crowd) >= FULL_NS / 2
    }

    /// Mean of `times` by CPU over these CPUs; 0 where there are none.
    fn mean(&self, thread: &Thread, times: &[u64]) -> u64 {
        let cpus = self.domains.indices(&thread.allowed).into_iter();
        let there = cpus.filter(|cpu| Some(self.domains.domain(*cpu)) == self.domain(thread));
        let (count, sum) = there.fold((0, 0), |(count, sum), cpu| (count + 1, sum + times[cpu]));
        sum / u64::max(count, 1)
    }

    fn domain(&self, thread: &Thread) -> Option<usize> {
        self.domains.index(thread.cpu).map(|cpu| self.domains.domain(cpu))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Load that each CPU may take.
    allowance: Vec<u64>,
    /// Load bound to each CPU: threads that use only some CPUs of a domain, and all channels.
    pub(super) bound: Vec<u64>,
    /// Sum of `bound` beyond the allowances, by domain.
    bound_over: Vec<u64>,
    /// Whole load of each domain.
    pub(super) total: Vec<u64>,
    /// Load that each domain may take.
    capacity: Vec<u64>,
}

impl Load {
    pub(super) fn new(domains: &Domains, allowance: u64) -> Self {
        let capacity = domains
            .domains
            .iter()
            .map(|domain| allowance * domain.cpus.len() as u64);
        Self {
            allowance: vec![allowance; domains.cpu_count()],
            bound: vec![0; domains.cpu_count()],
            bound_over: vec![0; domains.len()],
            total: vec![0; domains.len()],
            capacity: capacity.collect(),
        }
    }

    /// Lets each CPU and each domain take [`NOISE_NS`] more; in domains that do not lack CPUs, [`NOISE_NS`] more than their present load
    /// if that is more.
    ///
    /// Each bears most of all what it has now. So what a plan leads to costs no more when it is looked at again, and every further plan
    /// costs less: plans come to an end.
    pub(super) fn bear(&mut self, domains: &Domains, lacking: &[bool]) {
        // A CPU runs nothing beyond its time: loads that say so are of threads that ran elsewhere as well.
        let bear =
            |may: u64, now: u64, time: u64, lacks: bool| may.max(if lacks { 0 } else { now.min(time) }) + NOISE_NS;
        for (domain, it) in domains.domains.iter().enumerate() {
            let time = it.cpus.len() as u64 * NS_PER_S;
            self.capacity[domain] = bear(self.capacity[domain], self.total[domain], time, lacking[domain]);
            for cpu in &it.cpus {
                self.allowance[*cpu] = bear(self.allowance[*cpu], self.bound[*cpu], NS_PER_S, lacking[domain]);
            }
            self.bound_over[domain] = it.cpus.iter().map(|cpu| self.beyond(*cpu, self.bound[*cpu])).sum();
        }
    }

    /// Returns the overload of a domain: its load beyond the load that it may take.
    pub(super) fn over(&self, domain: usize) -> u64 {
        let beyond = self.total[domain].saturating_sub(self.capacity[domain]);
        beyond.max(self.bound_over[domain])
    }

    pub(super) fn all_over(&self) -> u64 {
        (0..self.total.len()).map(|domain| self.over(domain)).sum()
    }

    /// How much more would be beyond, were `load` added to these CPUs of the domain; `whole` says that they are all.
    pub(super) fn more(&self, domain: usize, cpus: &[usize], whole: bool, load: u64) -> u64 {
        let mut bound_over = self.bound_over[domain];
        if !whole {
            let each = load / cpus.len() as u64;
            for cpu in cpus {
                bound_over += self.beyond(*cpu, self.bound[*cpu] + each) - self.beyond(*cpu, self.bound[*cpu]);
            }
        }
        let beyond = (self.total[domain] + load).saturating_sub(self.capacity[domain]);
        beyond.max(bound_over) - self.over(domain)
    }

    pub(super) fn add(&mut self, domain: usize, cpus: &[usize], whole: bool, load: u64) {
        self.total[domain] += load;
        self.bind(domain, cpus, whole, load, |old, each| old + each);
    }

    /// Takes away what [`Load::add`] added with the same arguments.
    pub(super) fn remove(&mut self, domain: usize, cpus: &[usize], whole: bool, load: u64) {
        self.total[domain] -= load;
        self.bind(domain, cpus, whole, load, |old, each| old - each);
    }

    fn bind(&mut self, domain: usize, cpus: &[usize], whole: bool, load: u64, change: impl Fn(u64, u64) -> u64) {
        if whole {
            return;
        }
        let each = load / cpus.len() as u64;
        for cpu in cpus {
            let (old, new) = (self.bound[*cpu], change(self.bound[*cpu], each));
            self.bound[*cpu] = new;
            self.bound_over[domain] = self.bound_over[domain] + self.beyond(*cpu, new) - self.beyond(*cpu, old);
        }
    }

    fn beyond(&self, cpu: usize, load: u64) -> u64 {
        load.saturating_sub(self.allowance[cpu])
    }
}
