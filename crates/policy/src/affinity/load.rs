//! How busy the CPUs are, and how much beyond what they may be.
//!
//! Whoever may use all CPUs of a domain is put by the kernel's scheduler where there is room; whoever may use only some
//! uses each of them alike. So a domain is overloaded by what is beyond the capacity of all its CPUs together, or by
//! what is bound to single CPUs beyond theirs, whichever is more. Nanoseconds in a second throughout.

use super::domains::Domains;
use alloc::vec;
use alloc::vec::Vec;

#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Load that one CPU may take.
    allowance: u64,
    /// Load bound to each CPU: threads that use only some CPUs of a domain, and all channels.
    pub(super) bound: Vec<u64>,
    /// Sum of `bound` beyond the allowance, by domain.
    bound_over: Vec<u64>,
    /// Whole load of each domain.
    pub(super) total: Vec<u64>,
    capacity: Vec<u64>,
}

impl Load {
    pub(super) fn new(domains: &Domains, allowance: u64) -> Self {
        let capacity = domains
            .domains
            .iter()
            .map(|domain| allowance * domain.cpus.len() as u64);
        Self {
            allowance,
            bound: vec![0; domains.cpu_count()],
            bound_over: vec![0; domains.len()],
            total: vec![0; domains.len()],
            capacity: capacity.collect(),
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
                bound_over += self.beyond(self.bound[*cpu] + each) - self.beyond(self.bound[*cpu]);
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
            self.bound_over[domain] = self.bound_over[domain] + self.beyond(new) - self.beyond(old);
        }
    }

    fn beyond(&self, load: u64) -> u64 {
        load.saturating_sub(self.allowance)
    }
}
