//! Where pages are served.

use serde::Deserialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

const EXPECTED: &str = "write unix:/PATH, 127.0.0.1:PORT or [::1]:PORT";

/// A port or a socket's path.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub(crate) enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl Address {
    /// Whether other machines can reach it.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Self::Tcp(address) if !address.ip().is_loopback())
    }

    /// Where one of its pages is, for people.
    pub(crate) fn page(&self, name: &str) -> String {
        match self {
            Self::Unix(_) => self.to_string(),
            Self::Tcp(_) => format!("{self}{name}"),
        }
    }

    /// Any address, that of another machine's reach too.
    ///
    /// # Errors
    /// In words that say what to write.
    pub(crate) fn any(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match PathBuf::from(path) {
                path if path.is_absolute() => Ok(Self::Unix(path)),
                _ => Err(format!("\"{text}\" has no absolute path: {EXPECTED}")),
            };
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.port() == 0 => Err(format!("port 0 means an unknown free port: {EXPECTED}")),
            Ok(address) => Ok(Self::Tcp(address)),
            Err(_) => Err(format!("\"{text}\" is no address: {EXPECTED}")),
        }
    }
}

/// Reads an address that no other machine can reach.
impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match Self::any(text)? {
            Self::Tcp(address) if !address.ip().is_loopback() => Err(format!(
                "{} can be reached from other machines: {EXPECTED}",
                address.ip()
            )),
            address => Ok(address),
        }
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "http://{address}/"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_unix_addresses_are_accepted() {
        let of = |text: &str| text.parse::<Address>();
        assert_eq!(of("unix:/run/a b"), Ok(Address::Unix("/run/a b".into())));
        for text in ["127.0.0.1:9101", "127.9.9.9:1", "[::1]:9101"] {
            assert_eq!(of(text), Ok(Address::Tcp(text.parse().unwrap())));
        }
        for text in ["0.0.0.0:80", "[::]:80", "10.0.0.1:80", "192.0.2.1:9101"] {
            assert!(of(text).unwrap_err().contains("other machines"), "{text}");
            assert!(Address::any(text).unwrap().is_remote());
        }
        assert!(of("[::1]:0").unwrap_err().contains("[::1]:PORT"));
        for text in [
            "",
            "unix:",
            "unix:run",
            "localhost",
            "9101",
            "127.0.0.1",
            "127.0.0.1:99999",
            "/run/x",
        ] {
            assert!(of(text).unwrap_err().contains("[::1]:PORT"), "{text}");
        }
    }
}
