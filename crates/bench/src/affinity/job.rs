//! What host and guest speak of.

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

    /// As the command and rows name it.
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

/// What is measured once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Work {
    pub(super) round: u32,
    pub(super) connections: u32,
    pub(super) policy: Policy,
}

/// What it showed, as the guest tells it in a line.
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
    /// Of these, what was processed on the node of the CPU that read it from the socket; none where nothing was received.
    pub(super) received_right_percent: Option<f64>,
    pub(super) written_bytes: f64,
    /// Interrupts of the disks' queues.
    pub(super) completions: f64,
    /// Of these, what arrived on the node of those who submit to the queue.
    pub(super) completions_right_percent: Option<f64>,
    /// Of these, what arrived on the disk's home.
    pub(super) completions_home_percent: Option<f64>,
}
