//! The example, all keys, and mistakes.

use super::*;
use crate::says::says;
use homenode_policy::affinity::Cost;
use std::collections::BTreeMap;

const EXAMPLE: &str = include_str!("../../../../../packaging/affinity.toml");

fn settings(text: &str) -> Result<Settings> {
    Settings::of_file(Path::new("/etc/x.toml"), text)
}

fn refused(text: &str) -> String {
    settings(text).unwrap_err().to_string()
}

#[test]
fn an_empty_configuration_gives_the_defaults() {
    let read = settings("").unwrap();
    assert_eq!(read.decide, Config::default());
    assert_eq!(
        (read.period, read.metrics, read.despite_irqbalance),
        (RUN_PERIOD, None, false)
    );
}

/// Also what is commented out in it: those are the defaults, and what one would uncomment must be understood.
#[test]
fn the_example_configuration_parses_and_shows_the_defaults() {
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
        "move_files",
    ];
    for key in keys {
        assert!(
            uncommented.contains(&format!("{key} = ")),
            "{key} is not in the example"
        );
    }
}

#[test]
fn a_full_configuration_sets_every_value() {
    let text = "policy = \"spread\"\nperiod_s = 2\nmetrics = \"127.0.0.1:9101\"\nirqbalance = \"override\"\n\
        dwell_periods = 1\nhysteresis_percent = 2\nrate_bytes_per_s_min = 3\nbusy_percent_max = 4\n\
        migration_price_bytes_per_s = 5\nmove_files = false\n[devices]\neth0 = \"pack\"\n[processes]\n\"a b\" = \"single-core\"\n";
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
        moves_files: false,
    };
    assert_eq!(read.decide, expected);
    assert_eq!(read.period, Duration::from_secs(2));
    assert!(read.despite_irqbalance && read.metrics.is_some());
}

#[test]
fn configuration_errors_name_file_line_and_expected_value() {
    let table = [
        ("\npolicy = \"locl\"", "expected one of `off`, `local`, `spread`"),
        ("\n\nperiods = 1", "unknown field `periods`, expected one of `policy`"),
        ("period_s = 0", "expected seconds from 0.1 to 3600, as 1 or 0.5"),
        ("period_s = nan", "seconds from 0.1 to 3600"),
        ("period_s = \"soon\"", "expected seconds from 0.1 to 3600"),
        ("period_s = -1", "expected seconds from 0.1 to 3600"),
        ("policy = true", "expected one of `off`, `local`"),
        ("hysteresis_percent = 101", "expected a whole number from 0 to 100"),
        ("busy_percent_max = 101", "expected a whole number from 1 to 100"),
        ("dwell_periods = -1", "expected a whole number from 0 to 100000"),
        ("dwell_periods = 100001", "expected a whole number from 0 to 100000"),
        ("dwell_periods = \"1\"", "expected a whole number from 0 to 100000"),
        (
            "rate_bytes_per_s_min = 99999999999999999999",
            "expected a whole number from 0",
        ),
        ("migration_price_bytes_per_s = -1", "expected a whole number from 0"),
        ("irqbalance = \"off\"", "expected `respect` or `override`"),
        ("irqbalance = true", "expected a string"),
        ("metrics = \"0.0.0.0:80\"", "write unix:/PATH, 127.0.0.1:PORT"),
        ("devices = 3", "expected a map"),
        ("[devices]\neth0 = \"fast\"", "single-core"),
        ("[processes]\npostgres = true", "expected one of `off`, `local`"),
        ("[processes]\n\"\" = \"off\"", "expected a name of 1 to 15 bytes"),
        ("[device]", "unknown field `device`"),
        ("policy", "="),
        ("policy = \"off\"\npolicy = \"off\"", "duplicate key"),
        (
            "[processes]\nfio = \"off\"\nprometheus-node-exporter = \"off\"",
            "expected \"prometheus-node\"",
        ),
        (
            "[processes]\n\"12345678901234\u{e4}\" = \"off\"",
            "expected \"12345678901234\"",
        ),
    ];
    for (text, expected) in table {
        let message = refused(text);
        // The last line of each text is wrong.
        let line = text.lines().count();
        let written = text.lines().last().unwrap();
        says(
            &message,
            &[
                "/etc/x.toml",
                &format!("line {line}, "),
                &format!("| {written}\n"),
                expected,
            ],
        );
    }
}

#[test]
fn an_unreadable_configuration_is_an_error_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = directory.path().join("bytes.toml");
    fs::write(&bytes, b"\xff\xfe").unwrap();
    let table = [
        (directory.path().join("none.toml"), "leave --config out"),
        (directory.path().to_path_buf(), "name a file in it"),
        (bytes, "it is no text in UTF-8"),
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
fn a_link_to_a_missing_default_configuration_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("affinity.toml");
    assert_eq!(read_default(&path), Ok(None));
    std::os::unix::fs::symlink("missing", &path).unwrap();
    let told = read_default(&path).unwrap_err().to_string();
    says(&told, &[path.to_str().unwrap(), "is a link"]);
}

#[test]
fn periods_are_seconds() {
    assert_eq!(period("0.5"), Ok(Duration::from_millis(500)));
    for text in ["", "0", "-1", "1s", "NaN", "inf", "3601"] {
        assert!(period(text).unwrap_err().contains("seconds"), "{text}");
    }
}
