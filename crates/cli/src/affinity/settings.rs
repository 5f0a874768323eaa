//! The configuration: /etc/homenode/affinity.toml, or the file that is named, and what the command line overrides.
//!
//! packaging/affinity.toml is the annotated example. A key that is not known is an error, as is a value out of bounds: told
//! with the file, the line, and what is expected.

use super::metrics::address::Address;
use crate::failure::{Failure, Result, fail};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use homenode_linux::affinity::act::{CardWish, Spread};
use homenode_policy::affinity::{Config, Cost, Policy, Snapshot};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

const DEFAULT_FILE: &str = "/etc/homenode/affinity.toml";
/// `run` looks at the machine so often.
const RUN_PERIOD: Duration = Duration::from_secs(1);

const POLICIES: [Policy; 5] = [
    Policy::Off,
    Policy::Local,
    Policy::Spread,
    Policy::Pack,
    Policy::SingleCore,
];

/// Where the configuration comes from.
#[derive(Args, Clone, Debug)]
pub(crate) struct SettingsArgs {
    /// The configuration. Default: /etc/homenode/affinity.toml, if there is one.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Policy for all that the configuration does not name: local puts what works together near each other and near the
    /// device, spread and pack give everything a CPU of its own or as few as the load needs, single-core gives all one.
    #[arg(long, value_name = "POLICY", value_parser = policies())]
    policy: Option<Policy>,
}

/// What was configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) decide: Config,
    /// Numbers of queues and RSS tables that cards are to have; by name.
    pub(crate) cards: Vec<CardWish>,
    /// Of `run`.
    pub(crate) period: Duration,
    /// Where `run` serves metrics.
    pub(crate) metrics: Option<Address>,
    /// Whether interrupts are moved although irqbalance runs.
    pub(crate) despite_irqbalance: bool,
    /// What was read, if a file was.
    pub(crate) file: Option<PathBuf>,
}

impl Settings {
    /// # Errors
    /// The file cannot be read, or something in it is not understood.
    pub(crate) fn read(args: &SettingsArgs) -> Result<Self> {
        let mut settings = match &args.config {
            Some(path) => Self::of_file(path, &read(path)?)?,
            None => match read_default(Path::new(DEFAULT_FILE))? {
                Some(text) => Self::of_file(Path::new(DEFAULT_FILE), &text)?,
                None => Self::from(File::default()),
            },
        };
        settings.decide.policy = args.policy.unwrap_or(settings.decide.policy);
        Ok(settings)
    }

    /// Tells of devices that are configured and not there: perhaps a name is misspelt.
    pub(crate) fn tell_unknown_devices(&self, snapshot: &Snapshot) {
        let devices = snapshot.topology.devices();
        let unknown = |name: &&String| !devices.iter().any(|device| device.name == **name);
        for name in self.decide.devices.keys().filter(unknown) {
            eprintln!("homenode: the configuration names {name}, and this machine has no such disk or card");
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
        io::ErrorKind::NotFound => ": name a file that is there, or leave --config away for the defaults",
        io::ErrorKind::PermissionDenied => ": run it as root, or make it readable",
        io::ErrorKind::IsADirectory => ": name a file in it",
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
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(cannot_read(path, &error)),
    }
}

/// The file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    policy: Option<PolicyName>,
    period_s: Option<Period>,
    metrics: Option<Address>,
    irqbalance: Irqbalance,
    dwell_periods: Option<u64>,
    hysteresis_percent: Option<u32>,
    rate_bytes_per_s_min: Option<u64>,
    busy_percent_max: Option<Percent>,
    migration_price_bytes_per_s: Option<u64>,
    devices: BTreeMap<String, PolicyName>,
    processes: BTreeMap<String, PolicyName>,
    cards: BTreeMap<String, CardKeys>,
}

/// What is asked for of a card.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CardKeys {
    queues: Option<NonZeroU32>,
    rss: Option<Rss>,
}

/// What is done about interrupts while irqbalance runs.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Irqbalance {
    /// Interrupts are left to it.
    #[default]
    Respect,
    /// They are moved all the same.
    Override,
}

impl From<File> for Settings {
    fn from(file: File) -> Self {
        let least = Config::default();
        let policies = |named: BTreeMap<String, PolicyName>| named.into_iter().map(|(name, it)| (name, it.0)).collect();
        let price = |bytes| Cost::new(bytes, 100);
        let decide = Config {
            policy: file.policy.map_or(least.policy, |policy| policy.0),
            devices: policies(file.devices),
            processes: policies(file.processes),
            dwell_periods: file.dwell_periods.unwrap_or(least.dwell_periods),
            hysteresis_percent: file.hysteresis_percent.unwrap_or(least.hysteresis_percent),
            rate_bytes_per_s_min: file.rate_bytes_per_s_min.unwrap_or(least.rate_bytes_per_s_min),
            busy_percent_max: file
                .busy_percent_max
                .map_or(least.busy_percent_max, |percent| percent.0),
            migration_price: file.migration_price_bytes_per_s.map_or(least.migration_price, price),
        };
        let cards = file.cards.into_iter().map(|(device, keys)| CardWish {
            device,
            queues: keys.queues.map(NonZeroU32::get),
            rss: keys.rss.map(|rss| rss.0),
        });
        Self {
            decide,
            cards: cards.collect(),
            period: file.period_s.map_or(RUN_PERIOD, |period| period.0),
            metrics: file.metrics,
            despite_irqbalance: matches!(file.irqbalance, Irqbalance::Override),
            file: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
struct PolicyName(Policy);

impl TryFrom<String> for PolicyName {
    type Error = String;

    fn try_from(name: String) -> std::result::Result<Self, String> {
        let found = POLICIES.into_iter().find(|policy| policy.to_string() == name);
        found.map(Self).ok_or_else(|| {
            let names = POLICIES.map(|policy| policy.to_string()).join(", ");
            format!("there is no policy \"{name}\": write one of {names}")
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "toml::Value")]
struct Rss(Spread);

impl TryFrom<toml::Value> for Rss {
    type Error = String;

    fn try_from(value: toml::Value) -> std::result::Result<Self, String> {
        const EXPECTED: &str = "write \"even\", for all receive queues, or a list of some, as [0, 2]";
        let number = |value: &toml::Value| value.as_integer().and_then(|number| u32::try_from(number).ok());
        let spread = match &value {
            toml::Value::String(word) if word == "even" => Some(Spread::Even),
            toml::Value::Array(list) if !list.is_empty() => {
                list.iter().map(number).collect::<Option<_>>().map(Spread::Over)
            }
            _ => None,
        };
        spread.map(Self).ok_or_else(|| EXPECTED.to_owned())
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "f64")]
struct Period(Duration);

impl TryFrom<f64> for Period {
    type Error = String;

    fn try_from(seconds: f64) -> std::result::Result<Self, String> {
        period_of(seconds).map(Self)
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "u32")]
struct Percent(u32);

impl TryFrom<u32> for Percent {
    type Error = String;

    fn try_from(percent: u32) -> std::result::Result<Self, String> {
        match percent {
            1..=100 => Ok(Self(percent)),
            _ => Err(format!("{percent} is not between 1 and 100")),
        }
    }
}

fn period_of(seconds: f64) -> std::result::Result<Duration, String> {
    const SHORTEST_S: f64 = 0.1;
    const LONGEST_S: f64 = 3600.0;
    if (SHORTEST_S..=LONGEST_S).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("a period is {SHORTEST_S} to {LONGEST_S} seconds"))
    }
}

/// `--period`.
pub(crate) fn period(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "write seconds, as 1 or 0.5".to_owned())?;
    period_of(seconds)
}

fn policies() -> impl TypedValueParser<Value = Policy> {
    PossibleValuesParser::new(POLICIES.map(|policy| policy.to_string())).map(|name| {
        let found = POLICIES.into_iter().find(|policy| policy.to_string() == name);
        found.expect("these are the names of policies")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../packaging/affinity.toml");

    fn settings(text: &str) -> Result<Settings> {
        Settings::of_file(Path::new("/etc/x.toml"), text)
    }

    fn refused(text: &str) -> String {
        settings(text).unwrap_err().to_string()
    }

    #[test]
    fn nothing_said_is_the_default() {
        let read = settings("").unwrap();
        assert_eq!((read.decide, read.cards), (Config::default(), Vec::new()));
        assert_eq!(
            (read.period, read.metrics, read.despite_irqbalance),
            (RUN_PERIOD, None, false)
        );
    }

    /// Also what is commented out in it: those are the defaults, and what one would uncomment must be understood.
    #[test]
    fn the_example_is_understood_and_tells_the_defaults() {
        assert_eq!(
            settings(EXAMPLE).unwrap(),
            Settings {
                file: Some("/etc/x.toml".into()),
                ..settings("").unwrap()
            }
        );
        let setting = |line: &&str| line.starts_with('#') && (line.contains(" = ") || line.starts_with("#["));
        let uncommented: String = EXAMPLE
            .lines()
            .filter(setting)
            .map(|line| format!("{}\n", &line[1..]))
            .collect();
        let read = settings(&uncommented).unwrap();
        let named = Config {
            devices: read.decide.devices.clone(),
            processes: read.decide.processes.clone(),
            ..Config::default()
        };
        assert_eq!(read.decide, named);
        let card = CardWish {
            device: "eth0".to_owned(),
            queues: Some(4),
            rss: Some(Spread::Even),
        };
        assert_eq!(read.cards, [card]);
        assert!(!named.devices.is_empty() && !named.processes.is_empty() && read.metrics.is_some());
        let keys = [
            "policy",
            "period_s",
            "metrics",
            "irqbalance",
            "dwell_periods",
            "hysteresis_percent",
            "rate_bytes_per_s_min",
            "busy_percent_max",
            "migration_price_bytes_per_s",
        ];
        for key in keys {
            assert!(
                uncommented.contains(&format!("{key} = ")),
                "{key} is not in the example"
            );
        }
    }

    #[test]
    fn everything_said() {
        let text = "policy = \"spread\"\nperiod_s = 2\nmetrics = \"127.0.0.1:9101\"\nirqbalance = \"override\"\n\
            dwell_periods = 1\nhysteresis_percent = 2\nrate_bytes_per_s_min = 3\nbusy_percent_max = 4\n\
            migration_price_bytes_per_s = 5\n[devices]\neth0 = \"pack\"\n[processes]\n\"a b\" = \"single-core\"\n\
            [cards.eth1]\nrss = [0, 2]\n";
        let read = settings(text).unwrap();
        let expected = Config {
            policy: Policy::Spread,
            devices: BTreeMap::from([("eth0".to_owned(), Policy::Pack)]),
            processes: BTreeMap::from([("a b".to_owned(), Policy::SingleCore)]),
            dwell_periods: 1,
            hysteresis_percent: 2,
            rate_bytes_per_s_min: 3,
            busy_percent_max: 4,
            migration_price: Cost::new(5, 100),
        };
        assert_eq!(read.decide, expected);
        assert_eq!(read.period, Duration::from_secs(2));
        assert!(read.despite_irqbalance && read.metrics.is_some());
        let card = CardWish {
            device: "eth1".to_owned(),
            queues: None,
            rss: Some(Spread::Over(vec![0, 2])),
        };
        assert_eq!(read.cards, [card]);
    }

    #[test]
    fn mistakes_are_told_with_file_line_and_what_is_expected() {
        let table = [
            ("\npolicy = \"locl\"", "line 2", "local, spread"),
            ("policy = 3", "line 1", "string"),
            ("\n\nperiods = 1", "line 3", "period_s"),
            ("period_s = 0", "line 1", "0.1 to 3600"),
            ("period_s = nan", "line 1", "0.1 to 3600"),
            ("busy_percent_max = 101", "line 1", "between 1 and 100"),
            ("dwell_periods = -1", "line 1", "u64"),
            ("irqbalance = \"off\"", "line 1", "`respect` or `override`"),
            ("metrics = \"0.0.0.0:80\"", "line 1", "127.0.0.1"),
            ("[devices]\neth0 = \"fast\"", "line 2", "single-core"),
            ("[device]\n", "line 1", "`devices`"),
            ("[cards.eth0]\nqueues = 0", "line 2", "nonzero"),
            ("[cards.eth0]\nrss = \"local\"", "line 2", "as [0, 2]"),
            ("[cards.eth0]\nrss = []", "line 2", "as [0, 2]"),
            ("[cards.eth0]\nqueue = 1", "line 2", "`queues`"),
            ("policy", "line 1", "="),
        ];
        for (text, line, expected) in table {
            let message = refused(text);
            for part in ["/etc/x.toml", line, expected] {
                assert!(message.contains(part), "{text}: {message}");
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_told_with_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let table = [
            (directory.path().join("none.toml"), "leave --config away"),
            (directory.path().to_path_buf(), "name a file in it"),
        ];
        for (path, remedy) in table {
            let args = SettingsArgs {
                config: Some(path.clone()),
                policy: None,
            };
            let told = Settings::read(&args).unwrap_err().to_string();
            assert!(told.contains(path.to_str().unwrap()) && told.contains(remedy), "{told}");
        }
    }

    #[test]
    fn periods_are_seconds() {
        assert_eq!(period("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "0", "-1", "1s", "NaN", "inf", "3601"] {
            assert!(period(text).unwrap_err().contains("seconds"), "{text}");
        }
    }
}
