//! The file as it is written, and what is said of mistakes in it.
//!
//! A key that is not known is a mistake, as is a value that does not fit. Each is told in one line: where it is, what is
//! written there, and what to write instead.

use super::{PERIOD, RUN_PERIOD, Settings, period_of};
use crate::http::{Address, EXPECTED};
use homenode_policy::affinity::{Config, Cost, Policy};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;
use toml::Value;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    policy: Option<Key<Policy>>,
    period_s: Option<Key<Duration>>,
    metrics: Option<Key<Address>>,
    irqbalance: Option<Key<Irqbalance>>,
    dwell_periods: Option<Key<u64>>,
    hysteresis_percent: Option<Key<u32>>,
    rate_bytes_per_s_min: Option<Key<u64>>,
    busy_percent_max: Option<Key<Percent>>,
    migration_price_bytes_per_s: Option<Key<u64>>,
    move_files: Option<Key<bool>>,
    devices: Policies<String>,
    processes: Policies<ProcessName>,
}

impl File {
    /// # Errors
    /// In one line, where the mistake is, and what it is.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            // A key is all that is wrong with its line, and what is missing at its end is on it.
            let before = &text[..start.min(text.len())];
            let number = before.matches('\n').count() + 1;
            let line = text.lines().nth(number - 1).unwrap_or_default().trim();
            format!("line {number}, `{line}`: {}", plain(error.message()))
        })
    }
}

/// Rewords the parser's messages about unknown keys and about values that are no tables.
fn plain(message: &str) -> String {
    if let Some((key, expected)) = message
        .strip_prefix("unknown field ")
        .and_then(|rest| rest.split_once(", expected "))
    {
        let keys = expected.trim_start_matches("one of ").replace(" or ", ", ");
        return format!("there is no key {key} here: write one of {keys}").replace('`', "");
    }
    if let Some((found, expected)) = message
        .strip_prefix("invalid type: ")
        .and_then(|rest| rest.split_once(", expected "))
    {
        let found = found.split_once(' ').map_or(found, |(_, found)| found);
        // So much for numbers beyond all others.
        let found = found.trim_end_matches(" as i128");
        return format!("{found} is no table: {expected}").replace('`', "");
    }
    message.lines().collect::<Vec<_>>().join(": ")
}

impl From<File> for Settings {
    fn from(file: File) -> Self {
        let least = Config::default();
        let price = |bytes: Key<u64>| Cost::new(bytes.0, 100);
        let decide = Config {
            policy: file.policy.map_or(least.policy, |key| key.0),
            devices: file.devices.0,
            processes: file.processes.0.into_iter().map(|(name, it)| (name.0, it)).collect(),
            dwell_periods: file.dwell_periods.map_or(least.dwell_periods, |key| key.0),
            hysteresis_percent: file.hysteresis_percent.map_or(least.hysteresis_percent, |key| key.0),
            rate_bytes_per_s_min: file
                .rate_bytes_per_s_min
                .map_or(least.rate_bytes_per_s_min, |key| key.0),
            busy_percent_max: file.busy_percent_max.map_or(least.busy_percent_max, |key| key.0.0),
            migration_price: file.migration_price_bytes_per_s.map_or(least.migration_price, price),
            moves_files: file.move_files.map_or(least.moves_files, |key| key.0),
        };
        Self {
            decide,
            period: file.period_s.map_or(RUN_PERIOD, |key| key.0),
            metrics: file.metrics.map(|key| key.0),
            despite_irqbalance: matches!(file.irqbalance, Some(Key(Irqbalance::Override))),
            file: None,
        }
    }
}

/// Type whose values a key may be set to.
trait Written: Sized {
    /// The problem, if it cannot be.
    fn of(value: &Value) -> Result<Self, String>;
}

/// A value that is told in its own words when it does not fit.
#[derive(Debug)]
struct Key<T>(T);

impl<'de, T: Written> Deserialize<'de> for Key<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // What the parser cannot hold, as a number beyond all bounds, fits nowhere, and neither does this.
        let value = Value::deserialize(from).unwrap_or(Value::Boolean(false));
        T::of(&value).map(Self).map_err(D::Error::custom)
    }
}

/// Policies by name.
#[derive(Debug)]
struct Policies<N>(BTreeMap<N, Policy>);

impl<N> Default for Policies<N> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, N: Deserialize<'de> + Ord> Deserialize<'de> for Policies<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Entries<N>(PhantomData<N>);

        impl<'de, N: Deserialize<'de> + Ord> Visitor<'de> for Entries<N> {
            type Value = Policies<N>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("write a line [devices] or [processes] and below it lines NAME = VALUE")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Policies<N>, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((name, policy)) = map.next_entry::<N, Key<Policy>>()? {
                    entries.insert(name, policy.0);
                }
                Ok(Policies(entries))
            }
        }

        from.deserialize_map(Entries(PhantomData))
    }
}

/// Name of a process in the kernel, 15 bytes at most.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ProcessName(String);

impl<'de> Deserialize<'de> for ProcessName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        const BYTES_MAX: usize = 15;
        let name = String::deserialize(from)?;
        if name.len() <= BYTES_MAX {
            return Ok(Self(name));
        }
        let kept = &name[..name.floor_char_boundary(BYTES_MAX)];
        Err(D::Error::custom(format!(
            "no process has this name, as the kernel keeps {BYTES_MAX} bytes of each: write \"{kept}\""
        )))
    }
}

impl Written for Policy {
    fn of(value: &Value) -> Result<Self, String> {
        let names = Self::ALL.map(Self::name).join(", ");
        match value.as_str() {
            Some(name) => Self::named(name).ok_or(format!("there is no policy \"{name}\": write one of {names}")),
            None => Err(format!("this is no policy: write one of {names}, in quotes")),
        }
    }
}

impl Written for Duration {
    fn of(value: &Value) -> Result<Self, String> {
        let whole = || value.as_integer().and_then(|seconds| i32::try_from(seconds).ok());
        let seconds = value.as_float().or_else(|| whole().map(f64::from));
        seconds
            .and_then(period_of)
            .ok_or(format!("this is no period: write {PERIOD}"))
    }
}

impl Written for Address {
    fn of(value: &Value) -> Result<Self, String> {
        let none = || format!("this is no address: {}", EXPECTED);
        value.as_str().ok_or_else(none)?.parse()
    }
}

/// Handling of interrupts while irqbalance runs.
#[derive(Debug)]
enum Irqbalance {
    /// Interrupts are left to it.
    Respect,
    /// They are moved all the same.
    Override,
}

impl Written for Irqbalance {
    fn of(value: &Value) -> Result<Self, String> {
        match value.as_str() {
            Some("respect") => Ok(Self::Respect),
            Some("override") => Ok(Self::Override),
            _ => Err("this does not fit: write \"respect\" or \"override\"".to_owned()),
        }
    }
}

fn whole<T: TryFrom<i64>>(value: &Value) -> Option<T> {
    value.as_integer()?.try_into().ok()
}

impl Written for bool {
    fn of(value: &Value) -> Result<Self, String> {
        value
            .as_bool()
            .ok_or("this does not fit: write true or false".to_owned())
    }
}

impl Written for u64 {
    fn of(value: &Value) -> Result<Self, String> {
        whole(value).ok_or(format!(
            "this does not fit: write a whole number from 0 to {}",
            i64::MAX
        ))
    }
}

impl Written for u32 {
    fn of(value: &Value) -> Result<Self, String> {
        whole(value).ok_or(format!(
            "this does not fit: write a whole number from 0 to {}",
            Self::MAX
        ))
    }
}

#[derive(Debug)]
struct Percent(u32);

impl Written for Percent {
    fn of(value: &Value) -> Result<Self, String> {
        let fits = whole(value).filter(|percent| (1..=100).contains(percent));
        fits.map(Self)
            .ok_or("this is no percentage: write a whole number from 1 to 100".to_owned())
    }
}
