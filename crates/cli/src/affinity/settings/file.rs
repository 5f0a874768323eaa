//! The file as it is written. A key that is not known is a mistake, as is a value that does not fit.

use super::{PERIOD, RUN_PERIOD, Settings, period_of};
use crate::http::Address;
use homenode_policy::affinity::{Config, Cost, Policy};
use serde::de::{self, Expected, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    policy: Option<Named>,
    period_s: Option<Period>,
    metrics: Option<Address>,
    irqbalance: Option<Irqbalance>,
    dwell_periods: Option<Whole<u32, 0, 100_000>>,
    hysteresis_percent: Option<Whole<u32, 0, 100>>,
    rate_bytes_per_s_min: Option<Bytes>,
    busy_percent_max: Option<Whole<u32, 1, 100>>,
    migration_price_bytes_per_s: Option<Bytes>,
    move_files: Option<bool>,
    devices: BTreeMap<String, Named>,
    processes: BTreeMap<ProcessName, Named>,
}

impl From<File> for Settings {
    fn from(file: File) -> Self {
        let least = Config::default();
        let price = |bytes: Bytes| Cost::new(bytes.0, 100);
        let decide = Config {
            policy: file.policy.map_or(least.policy, |it| it.0),
            devices: file.devices.into_iter().map(|(name, it)| (name, it.0)).collect(),
            processes: file.processes.into_iter().map(|(name, it)| (name.0, it.0)).collect(),
            dwell_periods: file.dwell_periods.map_or(least.dwell_periods, |it| it.0.into()),
            hysteresis_percent: file.hysteresis_percent.map_or(least.hysteresis_percent, |it| it.0),
            rate_bytes_per_s_min: file.rate_bytes_per_s_min.map_or(least.rate_bytes_per_s_min, |it| it.0),
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
#[serde(try_from = "String")]
enum Irqbalance {
    /// Interrupts are left to it.
    Respect,
    /// They are moved all the same.
    Override,
}

impl TryFrom<String> for Irqbalance {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        match &*name {
            "respect" => Ok(Self::Respect),
            "override" => Ok(Self::Override),
            _ => Err("expected `respect` or `override`"),
        }
    }
}

#[derive(Debug)]
struct Period(Duration);

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seconds;
        impl Visitor<'_> for Seconds {
            type Value = Period;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(PERIOD)
            }

            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Period, E> {
                let wrong = || E::invalid_value(Unexpected::Float(seconds), &self);
                period_of(seconds).map(Period).ok_or_else(wrong)
            }

            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Period, E> {
                let small = i32::try_from(seconds)
                    .ok()
                    .and_then(|seconds| period_of(seconds.into()));
                small
                    .map(Period)
                    .ok_or_else(|| E::invalid_value(Unexpected::Signed(seconds), &self))
            }
        }
        deserializer.deserialize_any(Seconds)
    }
}

/// A whole number in a range.
#[derive(Clone, Copy, Debug)]
struct Whole<T, const LEAST: i64, const MOST: i64>(T);

impl<'de, T: TryFrom<i64>, const LEAST: i64, const MOST: i64> Deserialize<'de> for Whole<T, LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number<T, const LEAST: i64, const MOST: i64>(PhantomData<T>);
        impl<T: TryFrom<i64>, const LEAST: i64, const MOST: i64> Visitor<'_> for Number<T, LEAST, MOST> {
            type Value = Whole<T, LEAST, MOST>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from {LEAST} to {MOST}")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
                let fits = Some(number).filter(|number| (LEAST..=MOST).contains(number));
                fits.and_then(|number| number.try_into().ok())
                    .map(Whole)
                    .ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
            }
        }
        deserializer.deserialize_any(Number::<T, LEAST, MOST>(PhantomData))
    }
}

/// Bytes a second.
type Bytes = Whole<u64, 0, { i64::MAX }>;

#[derive(Debug)]
struct Named(Policy);

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Named;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let names = Policy::ALL.map(|policy| format!("`{policy}`"));
                write!(f, "one of {}", names.join(", "))
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Named, E> {
                let wrong = || E::custom(format!("unknown policy `{name}`, expected {}", &self as &dyn Expected));
                Policy::named(name).map(Named).ok_or_else(wrong)
            }
        }
        deserializer.deserialize_any(Name)
    }
}

/// Name of a process in the kernel, 1 to 15 bytes.
#[derive(Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(try_from = "String")]
struct ProcessName(String);

impl TryFrom<String> for ProcessName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        const BYTES_MAX: usize = 15;
        if name.is_empty() {
            return Err(format!("expected a name of 1 to {BYTES_MAX} bytes"));
        }
        if name.len() <= BYTES_MAX {
            return Ok(Self(name));
        }
        let kept = &name[..name.floor_char_boundary(BYTES_MAX)];
        Err(format!(
            "the kernel keeps {BYTES_MAX} bytes of a process's name, expected \"{kept}\""
        ))
    }
}
