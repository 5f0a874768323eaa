//! Where a topology is read from.

use super::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where a topology is read from; parses from `live`, a file name, or a synthetic description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The machine we run on.
    Live,
    /// An XML file that hwloc (`lstopo --disallowed FILE.xml`) wrote on some machine.
    Xml(PathBuf),
    /// A machine that need not exist, such as `node:4 core:8 pu:1`.
    Synthetic(String),
}

impl FromStr for Source {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let is_xml = Path::new(text)
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("xml"));
        if text.eq_ignore_ascii_case("live") {
            Ok(Self::Live)
        } else if is_xml || text.contains('/') || Path::new(text).is_file() {
            Ok(Self::Xml(text.into()))
        } else if text.contains(':') {
            Ok(Self::Synthetic(text.to_owned()))
        } else {
            Err(Error::UnknownSource { text: text.to_owned() })
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live => write!(f, "this machine"),
            Self::Xml(path) => write!(f, "{}", path.display()),
            Self::Synthetic(description) => write!(f, "\"{description}\""),
        }
    }
}

/// hwloc builds every object before it says anything: a description of billions of CPUs would fill the memory. The
/// number of the lowest objects is the product of all counts.
pub(super) fn counts_fit(description: &str) -> bool {
    let outside = description.split('(').enumerate().map(|(index, part)| match index {
        0 => part,
        _ => part.split_once(')').map_or("", |(_, outside)| outside),
    });
    let mut objects: u64 = 1;
    for token in outside.flat_map(str::split_whitespace) {
        let count = token.rsplit(':').next().unwrap_or(token);
        let digits = count.find(|c: char| !c.is_ascii_digit()).unwrap_or(count.len());
        if digits > 0 {
            objects = objects.saturating_mul(count[..digits].parse().unwrap_or(u64::MAX));
        }
    }
    objects <= u64::from(homenode_policy::topology::CPUS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topology_sources_parse() {
        assert_eq!("live".parse::<Source>().unwrap(), Source::Live);
        assert_eq!("a.XML".parse::<Source>().unwrap(), Source::Xml("a.XML".into()));
        assert_eq!(
            "./recorded".parse::<Source>().unwrap(),
            Source::Xml("./recorded".into())
        );
        let synthetic = Source::Synthetic("node:4 core:8 pu:1".to_owned());
        assert_eq!("node:4 core:8 pu:1".parse::<Source>().unwrap(), synthetic);
        for text in ["", "alive", "4 nodes"] {
            let message = text.parse::<Source>().unwrap_err().to_string();
            assert!(message.contains(text) && message.contains("node:4"), "{message}");
        }
    }

    #[test]
    fn counts_of_a_description_are_bounded() {
        assert!(counts_fit("node:4 core:8 pu:1"));
        assert!(counts_fit(
            "pack:2 [numa(memory=999999999999)] l3:2(size=33554432) core:4 pu:2"
        ));
        assert!(!counts_fit("node:65536 core:2 pu:1"));
        assert!(!counts_fit("node:99999999999999999999999 pu:1"));
    }
}
