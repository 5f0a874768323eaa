//! Policies, work and results that host and guest exchange.

use serde::{Deserialize, Serialize};

/// Where interrupts, queues and threads are to go. The numbers are indices into [`Policy::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Policy {
    /// Nobody moves anything.
    Off,
    Local,
    Spread,
    Pack,
    SingleCore,
}

impl Policy {
    pub(super) const ALL: [Self; 5] = [Self::Off, Self::Local, Self::Spread, Self::Pack, Self::SingleCore];

    /// Returns the policy's name in the command and in rows.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Local => "local",
            Self::Spread => "spread",
            Self::Pack => "pack",
            Self::SingleCore => "single-core",
        }
    }
}

/// Work of one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Work {
    pub(super) round: u32,
    pub(super) connections: u32,
    pub(super) policy: Policy,
}

/// Result of one measurement, as the guest reports it in a line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) work: Work,
    pub(super) shares: Shares,
}

/// Where an upload's bytes and completions went, in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Shares {
    pub(super) seconds: f64,
    pub(super) received_bytes: f64,
    /// Percent of the received bytes processed on the node of the CPU that read them from the socket. `None` if
    /// no bytes were received.
    pub(super) received_right_percent: Option<f64>,
    pub(super) written_bytes: f64,
    /// Interrupts of the disks' queues.
    pub(super) completions: f64,
    /// Percent of the completions that arrived on the node of the queue's submitters.
    pub(super) completions_right_percent: Option<f64>,
    /// Percent of the completions that arrived on the disk's home.
    pub(super) completions_home_percent: Option<f64>,
}
