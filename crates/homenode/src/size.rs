//! Sizes as people write them: `2G`, `512M`, `1.5G`, `25%`.
//!
//! Units are powers of 1024 (`K`, `M`, `G`, `T`, `P`, with or without `iB`), as mount(8) reads them for tmpfs. Integer
//! arithmetic only: a size is exact or refused.

use std::fmt;
use std::str::FromStr;

/// How much of something: bytes, or a share of the memory of the node it is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Number of bytes.
    Bytes(u64),
    /// Hundredths of a percent of the node's memory, 1 ..= 10 000.
    Share(u16),
}

/// A size that does not parse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("size `{text}` {problem}; write bytes as 512M, 1.5G or 2T, or a share of the node's memory as 25%")]
pub struct SizeError {
    text: String,
    problem: &'static str,
}

impl SizeError {
    /// Returns the problem of the text, without advice: not every caller has a node to take a share of.
    #[must_use]
    pub const fn problem(&self) -> &'static str {
        self.problem
    }
}

const SHARE_WHOLE: u16 = 10_000;
const UNITS: [(char, u32); 5] = [('k', 10), ('m', 20), ('g', 30), ('t', 40), ('p', 50)];

impl Size {
    /// `percent` of the node's memory, at most 100.
    #[must_use]
    pub const fn percent(percent: u8) -> Self {
        let percent = if percent > 100 { 100 } else { percent };
        Self::Share(percent as u16 * 100)
    }

    /// The bytes this is, where the node has `whole_bytes`.
    #[must_use]
    pub fn bytes_of(self, whole_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(share) => {
                let bytes = u128::from(whole_bytes) * u128::from(share.min(SHARE_WHOLE)) / u128::from(SHARE_WHOLE);
                u64::try_from(bytes).expect("a share of a u64 fits a u64")
            }
        }
    }
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        parse(text).map_err(|problem| SizeError {
            text: text.to_owned(),
            problem,
        })
    }
}

fn parse(text: &str) -> Result<Size, &'static str> {
    if text.is_empty() {
        return Err("is empty");
    }
    if let Some(number) = text.strip_suffix('%') {
        let hundredths = scaled(number, 100, "has more than two decimals")?;
        return match u16::try_from(hundredths) {
            Ok(0) => Err("is nothing"),
            Ok(share) if share <= SHARE_WHOLE => Ok(Size::Share(share)),
            _ => Err("is more than the whole"),
        };
    }
    let digits_end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits_end);
    let bytes = scaled(number, 1 << unit_shift(unit)?, "is not a whole number of bytes")?;
    match u64::try_from(bytes) {
        Ok(0) => Err("is nothing"),
        Ok(bytes) if i64::try_from(bytes).is_ok() => Ok(Size::Bytes(bytes)),
        _ => Err("is larger than any memory"),
    }
}

fn unit_shift(unit: &str) -> Result<u32, &'static str> {
    let mut letters = unit.chars();
    let Some(letter) = letters.next() else { return Ok(0) };
    let rest = letters.as_str();
    let known = UNITS.iter().find(|(name, _)| *name == letter.to_ascii_lowercase());
    match known {
        Some((_, shift)) if ["", "i", "ib"].contains(&rest.to_ascii_lowercase().as_str()) => Ok(*shift),
        _ => Err("is not a number with a unit of K, M, G, T or P"),
    }
}

/// The decimal `number` times `unit`; `inexact` is the problem when that is no whole number.
fn scaled(number: &str, unit: u128, inexact: &'static str) -> Result<u128, &'static str> {
    const NOT_A_NUMBER: &str = "is not a number with a unit of K, M, G, T or P";
    const TOO_LARGE: &str = "is larger than any memory";
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return Err(NOT_A_NUMBER);
    }
    let fraction = fraction.trim_end_matches('0');
    // 10^18 of a fraction is finer than a byte of the largest unit; u128 holds it times 2^50.
    if fraction.len() > 18 {
        return Err(inexact);
    }
    let whole: u128 = whole.parse().map_err(|_| TOO_LARGE)?;
    let power = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| TOO_LARGE)?);
    let numerator = if fraction.is_empty() {
        0
    } else {
        fraction.parse::<u128>().map_err(|_| TOO_LARGE)? * unit
    };
    // `1.1G` is no whole number of bytes, yet clear: down to the byte. Bytes and percent have no finer part.
    if unit <= 100 && numerator % power != 0 {
        return Err(inexact);
    }
    whole
        .checked_mul(unit)
        .and_then(|w| w.checked_add(numerator / power))
        .ok_or(TOO_LARGE)
}

impl fmt::Display for Size {
    /// Reads back as the same size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Share(share) if share % 100 == 0 => write!(f, "{}%", share / 100),
            Self::Share(share) => write!(f, "{}.{:02}%", share / 100, share % 100),
            Self::Bytes(bytes) => {
                let exact = UNITS
                    .iter()
                    .rev()
                    .find(|(_, shift)| bytes >= 1 << shift && bytes % (1 << shift) == 0);
                match exact {
                    Some((letter, shift)) => write!(f, "{}{}", bytes >> shift, letter.to_ascii_uppercase()),
                    None => write!(f, "{bytes}"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> u64 {
        match text.parse().unwrap() {
            Size::Bytes(bytes) => bytes,
            Size::Share(share) => panic!("{text} is a share: {share}"),
        }
    }

    #[test]
    fn bytes_with_units_of_1024() {
        assert_eq!(bytes("1"), 1);
        assert_eq!(bytes("4096"), 4096);
        assert_eq!(bytes("3k"), 3 << 10);
        assert_eq!(bytes("512M"), 512 << 20);
        assert_eq!(bytes("2G"), 2 << 30);
        assert_eq!(bytes("2GiB"), 2 << 30);
        assert_eq!(bytes("2Gi"), 2 << 30);
        assert_eq!(bytes("1.5G"), 3 << 29);
        assert_eq!(bytes("0.5t"), 1 << 39);
        assert_eq!(bytes("1.1K"), 1126, "down to the byte");
        assert_eq!(bytes("1P"), 1 << 50);
    }

    #[test]
    fn shares_of_a_node() {
        assert_eq!("25%".parse(), Ok(Size::percent(25)));
        assert_eq!("12.5%".parse(), Ok(Size::Share(1250)));
        assert_eq!("100%".parse(), Ok(Size::percent(100)));
        assert_eq!(Size::percent(25).bytes_of(4 << 30), 1 << 30);
        assert_eq!(Size::percent(100).bytes_of(u64::MAX), u64::MAX);
    }

    #[test]
    fn bad_sizes_are_refused_with_the_text_and_the_remedy() {
        let refused = [
            "",
            "0",
            "0%",
            "0.0G",
            "abc",
            "-1",
            "+1",
            "-25%",
            "101%",
            "100.01%",
            "1.234%",
            "1.5",
            "G",
            "%",
            ".",
            "1.",
            ".5G",
            "1..5G",
            "1 G",
            " 1G",
            "1G ",
            "2GB",
            "2Gb",
            "2X",
            "0x10",
            "1e3",
            "NaN",
            "inf",
            "10E",
            "٣G",
            "99999999999999999999",
            "9223372036854775808",
            "18446744073709551616",
            "8192P",
            "1e400",
            "340282366920938463463374607431768211456P",
            "0.0000000000000000001P",
        ];
        for text in refused {
            let error = text.parse::<Size>().expect_err(text).to_string();
            assert!(
                error.contains(&format!("`{text}`")) && error.contains("512M"),
                "{error}"
            );
        }
    }

    #[test]
    fn display_reads_back() {
        for text in ["1", "4097", "3K", "1536M", "2G", "25%", "12.50%", "8191P"] {
            let size: Size = text.parse().unwrap();
            assert_eq!(size.to_string(), text);
            assert_eq!(size.to_string().parse(), Ok(size));
        }
    }
}
