//! How arguments are read, and what is said about those that are wrong.

use crate::failure::plain;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use homenode::mover::MoverMode;
use homenode::{Data, MountOptions, Placement, Size, Transport};
use std::fmt::Display;
use std::time::Duration;

/// `--node`, where it may be given several times.
pub(crate) fn one_of_several_nodes(text: &str) -> Result<u16, String> {
    node(text).map_err(|problem| format!("{problem}; repeat the option for several nodes"))
}

/// Says that a value is negative where clap takes it for an option that it does not know.
pub(crate) fn negative_value(error: clap::Error) -> clap::Error {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    negative_of(error, &words.collect::<Vec<_>>())
}

/// [`negative_value`] of the command line `words`.
fn negative_of(error: clap::Error, words: &[String]) -> clap::Error {
    let negative = words.windows(2).find(|pair| {
        let digit = pair[1]
            .strip_prefix('-')
            .and_then(|rest| rest.trim_start_matches('.').chars().next());
        // Of several letters after one `-` clap names the first.
        let is_named = matches!(error.get(ContextKind::InvalidArg),
            Some(ContextValue::String(unknown)) if pair[1].starts_with(unknown));
        is_named && pair[0].starts_with("--") && digit.is_some_and(|digit| digit.is_ascii_digit())
    });
    match negative {
        Some(pair) if error.kind() == ErrorKind::UnknownArgument => {
            let message = format!(
                "invalid value '{}' for '{}': it is negative\n",
                plain(&pair[1]),
                plain(&pair[0])
            );
            clap::Error::raw(ErrorKind::InvalidValue, message)
        }
        None if words.get(1).is_some_and(|verb| verb == "up") && error.kind() == ErrorKind::UnknownArgument => {
            match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::String(word)) if !word.starts_with('-') => {
                    let message = format!(
                        "unexpected argument '{}' found: give NAME and DIR next to each other, as in `homenode up [OPTIONS] NAME DIR`\n",
                        plain(word)
                    );
                    clap::Error::raw(ErrorKind::UnknownArgument, message)
                }
                _ => error,
            }
        }
        _ => error,
    }
}

/// A node's number.
pub(crate) fn node(text: &str) -> Result<u16, String> {
    text.parse()
        .map_err(|_| "a node is one number, as `homenode topology` tells it".to_owned())
}

/// A size; the message names the units, and what to write instead of those of 1000.
pub(crate) fn size(text: &str) -> Result<Size, String> {
    text.parse().map_err(|problem| not_a_size(text, &problem))
}

/// Returns the message about text that is not a size; `problem` tells what to write.
fn not_a_size(text: &str, problem: &dyn Display) -> String {
    // `1GB` is 10^9 bytes for some and 2^30 for others.
    let is_number_and_letter = |rest: &&str| {
        let number = rest.trim_end_matches(|one: char| one.is_ascii_alphabetic());
        number.len() + 1 == rest.len() && rest.parse::<Size>().is_ok()
    };
    match text.strip_suffix(['B', 'b']).filter(is_number_and_letter) {
        Some(rest) => {
            format!("size `{text}` is ambiguous: units here are powers of 1024, such as 512M; write {rest}iB or {rest}")
        }
        None => format!("{problem} (units: K, M, G, T, P or KiB, MiB, GiB, TiB, PiB; all of them powers of 1024)"),
    }
}

/// Least memory for names and attributes that a pool is of any use with.
const METADATA_BYTES_MIN: u64 = 64 << 10;

/// `--metadata`: a size, or a share of the members'.
pub(crate) fn metadata(text: &str) -> Result<Size, String> {
    const INSTEAD: &str = "write bytes as 64M or 1G, or a share of the members' size as 25%";
    match text.parse() {
        Ok(Size::Bytes(bytes)) if bytes < METADATA_BYTES_MIN => {
            Err(format!("too little memory: give at least 64K; {INSTEAD}"))
        }
        Ok(size) => Ok(size),
        Err(problem) => Err(not_a_size(
            text,
            &format!("size `{text}` {}; {INSTEAD}", problem.problem()),
        )),
    }
}

/// A size in bytes, where there is no node to have a share of.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(Size::Bytes(bytes)) => Ok(bytes),
        Ok(Size::Share(_)) => Err("a share (%) is not possible here: write bytes, as 64M or 1G".to_owned()),
        Err(problem) => Err(not_a_size(
            text,
            &format!("size `{text}` {}; write bytes as 512M, 1.5G or 2T", problem.problem()),
        )),
    }
}

/// Where bytes are to go.
pub(crate) fn policy(text: &str) -> Result<Placement, String> {
    text.parse::<Placement>().map_err(|problem| problem.to_string())
}

/// How requests travel. Completions offer the names.
pub(crate) fn transport() -> impl TypedValueParser<Value = Transport> {
    PossibleValuesParser::new(Transport::ALL.map(Transport::name))
        .map(|name| name.parse().expect("the parser admits names of transports only"))
}

/// Returns the parser of [`Data`], the storage of files' bytes. Completions offer the names.
pub(crate) fn data() -> impl TypedValueParser<Value = Data> {
    PossibleValuesParser::new(Data::ALL.map(Data::name)).map(|name| name.parse().expect("clap admits only these"))
}

/// Mode of the mover. Completions offer the names.
pub(crate) fn mover() -> impl TypedValueParser<Value = MoverMode> {
    PossibleValuesParser::new(MoverMode::ALL.map(MoverMode::name))
        .map(|name| name.parse().expect("the parser admits names of modes only"))
}

/// A time in whole microseconds, at most a second.
pub(crate) fn microseconds(text: &str) -> Result<u64, String> {
    const SECOND_US: u64 = 1_000_000;
    text.parse()
        .ok()
        .filter(|time| *time <= SECOND_US)
        .ok_or_else(|| format!("write whole microseconds, 0 to {SECOND_US}"))
}

/// A time between two commits, in seconds.
pub(crate) fn commit_period(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=300).contains(seconds));
    seconds.ok_or_else(|| "write whole seconds, 1 to 300".to_owned())
}

/// A time in seconds, whole or not, down to a nanosecond.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let remedy = || "write seconds, as 0, 0.5 or 60".to_owned();
    // Digits and a point only: a number also reads as `1e3`, `inf` and `-0`.
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number = text.parse().ok().filter(|_| is_plain).ok_or_else(remedy)?;
    let time = Duration::try_from_secs_f64(number).map_err(|_| remedy())?;
    if time > MountOptions::ATTRIBUTE_TIMEOUT {
        return Err("longer than a year: leave it out, for ever is the default".to_owned());
    }
    Ok(time)
}

/// Parses the time between two reports.
pub(crate) fn report_period(text: &str) -> Result<Duration, String> {
    let period = seconds(text)?;
    if period < Duration::from_secs(1) {
        return Err("write a second or more".to_owned());
    }
    Ok(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_values_are_told_apart_from_unknown_options() {
        let told = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let command = clap::Command::new("a").arg(clap::Arg::new("size").long("size"));
            let error = command.try_get_matches_from(&words).unwrap_err();
            negative_of(error, &words).to_string()
        };
        for line in ["a --size -512M", "a --size -.5"] {
            assert!(told(line).contains("'--size': it is negative"), "{}", told(line));
        }
        for line in ["a -x --size -512M", "a --other -512M -x"] {
            assert!(!told(line).contains("negative"), "{}", told(line));
        }
    }

    #[test]
    fn sizes_parse_or_the_error_shows_the_format() {
        assert_eq!(size("2GiB"), Ok(Size::Bytes(2 << 30)));
        assert_eq!(size("25%"), Ok(Size::percent(25)));
        let message = size("1GB").unwrap_err();
        assert!(message.contains("`1GB`") && message.contains("1GiB or 1G"), "{message}");
        for text in ["", "5X", "12B", "1GiBB", "GB"] {
            let message = size(text).unwrap_err();
            assert!(message.contains("K, M, G, T") && message.contains("KiB"), "{message}");
        }
    }

    #[test]
    fn metadata_below_the_least_size_is_refused() {
        assert_eq!(metadata("64K"), Ok(Size::Bytes(64 << 10)));
        assert_eq!(metadata("25%"), Ok(Size::percent(25)));
        for text in ["63K", "x", "0"] {
            let message = metadata(text).unwrap_err();
            assert!(message.contains("members' size"), "{message}");
        }
    }

    #[test]
    fn a_share_is_refused_where_bytes_are_needed() {
        assert_eq!(bytes("64M"), Ok(64 << 20));
        assert!(bytes("25%").unwrap_err().contains("64M"));
        for text in ["x", "", "-1", "0", "8192P"] {
            let message = bytes(text).unwrap_err();
            assert!(message.contains("K, M, G, T") && !message.contains('%'), "{message}");
        }
    }

    #[test]
    fn times_parse_or_the_error_shows_the_format() {
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("60"), Ok(Duration::from_secs(60)));
        for text in ["", ".", "-1", "1e3", "inf", "NaN", "1s", "0x1", "forever"] {
            assert!(seconds(text).unwrap_err().contains("0.5"), "{text}");
        }
        assert!(seconds("99999999999").unwrap_err().contains("leave it out"));
        assert_eq!(microseconds("50"), Ok(50));
        for text in ["", "-1", "0.5", "50us", "1000001"] {
            assert!(microseconds(text).unwrap_err().contains("whole microseconds"), "{text}");
        }
    }

    #[test]
    fn nodes_are_numbers() {
        assert_eq!(node("3"), Ok(3));
        assert_eq!(one_of_several_nodes("3"), Ok(3));
        for text in ["", "x", "-1", "0,1", "65536"] {
            assert!(
                one_of_several_nodes(text).unwrap_err().contains("repeat the option"),
                "{text}"
            );
            assert!(!node(text).unwrap_err().contains("repeat the option"), "{text}");
        }
    }
}
