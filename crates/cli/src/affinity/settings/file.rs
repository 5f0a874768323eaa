//! The file as it is written. A key that is not known is a mistake, as is a value that does not fit.

use super::{PERIOD, RUN_PERIOD, Settings, period_of};
use crate::http::Address;
use homenode_policy::affinity::{Config, Cost, Policy};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    policy: Option<Policy>,
    period_s: Option<Period>,
    metrics: Option<Address>,
    irqbalance: Option<Irqbalance>,
    dwell_periods: Option<u64>,
    hysteresis_percent: Option<u32>,
    rate_bytes_per_s_min: Option<u64>,
    busy_percent_max: Option<Percent>,
    migration_price_bytes_per_s: Option<u64>,
    move_files: Option<bool>,
    devices: BTreeMap<String, Policy>,
    processes: BTreeMap<ProcessName, Policy>,
}

impl From<File> for Settings {
    fn from(file: File) -> Self {
        let least = Config::default();
        let price = |bytes| Cost::new(bytes, 100);
        let decide = Config {
            policy: file.policy.unwrap_or(least.policy),
            devices: file.devices,
            processes: file.processes.into_iter().map(|(name, it)| (name.0, it)).collect(),
            dwell_periods: file.dwell_periods.unwrap_or(least.dwell_periods),
            hysteresis_percent: file.hysteresis_percent.unwrap_or(least.hysteresis_percent),
            rate_bytes_per_s_min: file.rate_bytes_per_s_min.unwrap_or(least.rate_bytes_per_s_min),
            busy_percent_max: file.busy_percent_max.map_or(least.busy_percent_max, |it| it.0),
            migration_price: file.migration_price_bytes_per_s.map_or(least.migration_price, price),
            moves_files: file.move_files.unwrap_or(least.moves_files),
        };
        Self {
            decide,
            period: file.period_s.map_or(RUN_PERIOD, |period| period.0),
            metrics: file.metrics,
            despite_irqbalance: matches!(file.irqbalance, Some(Irqbalance::Override)),
            file: None,
        }
    }
}

/// Handling of interrupts while irqbalance runs.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Irqbalance {
    /// Interrupts are left to it.
    Respect,
    /// They are moved all the same.
    Override,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "f64")]
struct Period(Duration);

impl TryFrom<f64> for Period {
    type Error = String;

    fn try_from(seconds: f64) -> Result<Self, String> {
        period_of(seconds).map(Self).ok_or(format!("expected {PERIOD}"))
    }
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "u32")]
struct Percent(u32);

impl TryFrom<u32> for Percent {
    type Error = &'static str;

    fn try_from(percent: u32) -> Result<Self, Self::Error> {
        let fits = (1..=100).contains(&percent);
        fits.then_some(Self(percent))
            .ok_or("expected a whole number from 1 to 100")
    }
}

/// Name of a process in the kernel, 15 bytes at most.
#[derive(Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(try_from = "String")]
struct ProcessName(String);

impl TryFrom<String> for ProcessName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        const BYTES_MAX: usize = 15;
        if name.len() <= BYTES_MAX {
            return Ok(Self(name));
        }
        let kept = &name[..name.floor_char_boundary(BYTES_MAX)];
        Err(format!(
            "the kernel keeps {BYTES_MAX} bytes of a process's name, expected \"{kept}\""
        ))
    }
}
