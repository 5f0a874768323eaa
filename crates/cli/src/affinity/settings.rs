//! The configuration: /etc/homenode/affinity.toml, or the file that is named, and what the command line overrides.
//!
//! packaging/affinity.toml is the annotated example. `file` is how it is written.

mod file;

use crate::directory::is_link;
use crate::failure::{Failure, Result, fail};
use crate::http::Address;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use file::File;
use homenode_policy::affinity::{Config, Policy, Snapshot};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

const DEFAULT_FILE: &str = "/etc/homenode/affinity.toml";
/// `run` looks at the machine so often.
const RUN_PERIOD: Duration = Duration::from_secs(1);

/// Where the configuration comes from.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SettingsArgs {
    /// Configuration file. Default: /etc/homenode/affinity.toml, if it exists.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Policy for devices and processes that the configuration does not name: local places threads and queues that work
    /// together near their device, spread uses a CPU for each, pack as few CPUs as the load needs, single-core one CPU for all.
    #[arg(long, value_name = "POLICY", value_parser = policies())]
    policy: Option<Policy>,
}

/// Settings from the configuration file and the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) decide: Config,
    /// Period of `run`.
    pub(crate) period: Duration,
    /// Where `run` serves metrics.
    pub(crate) metrics: Option<Address>,
    /// Whether interrupts are moved although irqbalance runs.
    pub(crate) despite_irqbalance: bool,
    /// Configuration file that was read, if any.
    pub(crate) file: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self::from(File::default())
    }
}

impl Settings {
    /// # Errors
    /// The file cannot be read, or something in it is not understood.
    pub(crate) fn read(args: &SettingsArgs) -> Result<Self> {
        let mut settings = match &args.config {
            Some(path) => Self::of_file(path, &read(path)?)?,
            None => match read_default(Path::new(DEFAULT_FILE))? {
                Some(text) => Self::of_file(Path::new(DEFAULT_FILE), &text)?,
                None => Self::default(),
            },
        };
        settings.decide.policy = args.policy.unwrap_or(settings.decide.policy);
        Ok(settings)
    }

    /// Tells of devices that are configured and not there: perhaps a name is misspelt.
    pub(crate) fn tell_unknown_devices(&self, snapshot: &Snapshot) {
        let devices = snapshot.topology.devices().iter().map(|device| &device.name);
        // Virtual cards have queues only.
        let known: BTreeSet<&String> = devices
            .chain(snapshot.queues.iter().map(|queue| &queue.device))
            .collect();
        let unknown = |name: &&String| !known.contains(name);
        for name in self.decide.devices.keys().filter(unknown) {
            complain!("homenode: the configuration names {name}, and this machine has no such disk or card");
        }
    }

    fn of_file(path: &Path, text: &str) -> Result<Self> {
        match toml::from_str::<File>(text) {
            Ok(file) => Ok(Self {
                file: Some(path.to_path_buf()),
                ..Self::from(file)
            }),
            Err(error) => fail!("{} is not understood: {}", path.display(), error.to_string().trim_end()),
        }
    }
}

fn cannot_read(path: &Path, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => ": name an existing file, or leave --config out for the defaults",
        io::ErrorKind::PermissionDenied => ": run it as root, or make it readable",
        io::ErrorKind::IsADirectory => ": name a file in it",
        io::ErrorKind::InvalidData => ": it is no text in UTF-8",
        _ => "",
    };
    Failure::new(format!(
        "cannot read the configuration {}: {error}{remedy}",
        path.display()
    ))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| cannot_read(path, &error))
}

fn read_default(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_link(path) => {
            fail!(
                "the configuration {} is a link to a file that does not exist: create that file, or remove the link",
                path.display()
            )
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(cannot_read(path, &error)),
    }
}

/// `--period`.
pub(crate) fn period(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse().ok().and_then(period_of);
    seconds.ok_or_else(|| format!("write {PERIOD}"))
}

/// Expected form of a period, for messages.
const PERIOD: &str = "seconds from 0.1 to 3600, as 1 or 0.5";

fn period_of(seconds: f64) -> Option<Duration> {
    const SHORTEST_S: f64 = 0.1;
    const LONGEST_S: f64 = 3600.0;
    let fits = (SHORTEST_S..=LONGEST_S).contains(&seconds);
    fits.then(|| Duration::from_secs_f64(seconds))
}

fn policies() -> impl TypedValueParser<Value = Policy> {
    PossibleValuesParser::new(Policy::ALL.map(Policy::name))
        .map(|name| Policy::named(&name).expect("the parser admits names of policies only"))
}

#[cfg(test)]
mod tests;
