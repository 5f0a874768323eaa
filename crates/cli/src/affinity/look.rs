//! A period of this machine, or of a recorded one.

use super::known::{JournalArgs, Known};
use super::pools;
use super::settings::{Settings, period};
use crate::failure::{Failure, Result, chain, fail};
use crate::topology::crashes_hwloc;
use clap::Args;
use homenode_linux::affinity::{Error, Sensed, Sensor, recorded};
use homenode_linux::topology::{self, Source};
use homenode_policy::topology::Topology;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Machine to look at, and for how long.
#[derive(Args, Debug)]
pub(crate) struct LookArgs {
    /// Use the recording that `homenode affinity record` wrote to DIR instead of this machine.
    #[arg(long, value_name = "DIR", conflicts_with = "period")]
    pub(crate) from: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) period: PeriodArgs,
}

/// For how long it is looked at.
#[derive(Args, Debug)]
pub(crate) struct PeriodArgs {
    /// Seconds to observe the machine. Threads and queues that move no bytes in this time are not seen.
    #[arg(long, value_name = "SECONDS", value_parser = period, default_value = "3")]
    pub(crate) period: Duration,
}

impl LookArgs {
    pub(super) fn look(&self) -> Result<Sensed> {
        match &self.from {
            Some(directory) => of_recording(directory, recorded),
            None => live(self.period.period),
        }
    }

    /// Returns the knowledge besides the period; empty for a recorded machine.
    pub(super) fn known(&self, journal: &JournalArgs, settings: &Settings) -> Known {
        if self.is_live() {
            Known::glance(journal, settings)
        } else {
            Known::default()
        }
    }

    pub(super) fn is_live(&self) -> bool {
        self.from.is_none()
    }

    /// Returns the source for JSON: `live`, or the recording's directory.
    pub(super) fn source(&self) -> String {
        let directory = |from: &PathBuf| from.display().to_string();
        self.from.as_ref().map_or_else(|| "live".to_owned(), directory)
    }
}

pub(super) fn live(period: Duration) -> Result<Sensed> {
    let mut look = Look::begin()?;
    thread::sleep(period);
    look.sense()
}

/// Looks at this machine, once or again and again.
pub(super) struct Look {
    topology: Topology,
    sensor: Sensor,
}

impl Look {
    pub(super) fn begin() -> Result<Self> {
        Ok(Self {
            topology: topology::read(&Source::Live).map_err(|error| Failure::new(chain(&error)))?,
            sensor: Sensor::new(Path::new("/"), pools::ask()).map_err(failure)?,
        })
    }

    /// Returns the activity since the last call, or since the beginning; settings are read anew.
    pub(super) fn sense(&mut self) -> Result<Sensed> {
        self.sensor.settings_changed();
        self.sensor.sense(&self.topology).map_err(failure)
    }
}

/// Reads a recording by `read`.
pub(crate) fn of_recording<T>(
    directory: &Path,
    read: impl FnOnce(&Path) -> std::result::Result<T, Error>,
) -> Result<T> {
    let hardware = directory.join("topology.xml");
    if hardware.exists() && crashes_hwloc(&hardware)? {
        fail!(
            "the recording {} is damaged: {}: it contradicts itself so badly that hwloc crashes on it: record the machine again",
            directory.display(),
            hardware.display()
        );
    }
    read(directory).map_err(failure)
}

pub(crate) fn failure(error: Error) -> Failure {
    Failure::new(chain(&error))
}
