//! Choices of an operator: policies, limits and prices.

use super::cost::{Cost, NS_PER_S};
use alloc::collections::BTreeMap;
use alloc::string::String;
use core::fmt;

/// Where interrupts, queues and threads are to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Nothing is moved.
    Off,
    /// Least cost: threads, queues and interrupts that work together go near each other and near the device.
    #[default]
    Local,
    /// Evenly over all CPUs, one CPU each.
    Spread,
    /// Onto as few CPUs as the load needs, the nearest to the device first, one CPU each.
    Pack,
    /// All on one CPU of the device's node.
    SingleCore,
}

/// How to decide. Periods are those between two snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// For everything that `devices` and `processes` do not name.
    pub policy: Policy,
    /// Policies by device name: for interrupts and queues, and for threads that move most of their bytes with the
    /// device.
    pub devices: BTreeMap<String, Policy>,
    /// Policies by process name: for threads of the process, whatever `devices` says.
    pub processes: BTreeMap<String, Policy>,
    /// Least number of periods from one move of a thread, queue or file to its next move.
    pub dwell_periods: u64,
    /// A move must save at least this share of what the bytes of the thread or queue cost where it is.
    pub hysteresis_percent: u32,
    /// Threads and queues that move fewer bytes a second are not looked at.
    pub rate_bytes_per_s_min: u64,
    /// CPU time that a thread wants at most, and that CPUs may take each, in percent; what is beyond costs
    /// ([`Cost::of_overload`]).
    pub busy_percent_max: u32,
    /// Price of moving a thread, or a queue with its interrupts: a move must save more.
    pub migration_price: Cost,
    /// Whether files of pools may come to threads that cannot go to them.
    pub moves_files: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::Local,
            devices: BTreeMap::new(),
            processes: BTreeMap::new(),
            dwell_periods: 10,
            hysteresis_percent: 10,
            rate_bytes_per_s_min: 1 << 20,
            busy_percent_max: 80,
            migration_price: Cost::new(1 << 20, 100),
            moves_files: true,
        }
    }
}

impl Config {
    /// Returns the CPU time that a CPU may take, in nanoseconds a second.
    pub(super) fn busy_ns_max(&self) -> u64 {
        u64::from(self.busy_percent_max.min(100)) * (NS_PER_S / 100)
    }

    /// The policy for a device's interrupts and queues.
    #[must_use]
    pub fn of_device(&self, device: &str) -> Policy {
        self.devices.get(device).copied().unwrap_or(self.policy)
    }

    /// The policy for a thread of that process, which moves most of its bytes with `device`, where one is known.
    #[must_use]
    pub fn of_thread(&self, process: &str, device: Option<&str>) -> Policy {
        let named = self.processes.get(process).copied();
        named.unwrap_or_else(|| device.map_or(self.policy, |device| self.of_device(device)))
    }
}

impl Policy {
    /// Every one of them.
    pub const ALL: [Self; 5] = [Self::Off, Self::Local, Self::Spread, Self::Pack, Self::SingleCore];

    /// Returns the name of the policy in configurations and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Local => "local",
            Self::Spread => "spread",
            Self::Pack => "pack",
            Self::SingleCore => "single-core",
        }
    }

    /// The one of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
