//! Errors that end a bench early, in words for a person.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;

/// Why a bench stopped without (or with unwelcome) results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// A system call of a peer or of the bench itself failed.
    #[error("{what}: {source}")]
    System {
        /// Operation that failed, and its object.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The library under test failed.
    #[error("the library, {what}: {message}")]
    Library {
        /// Operation that failed.
        what: &'static str,
        /// The library's own words.
        message: String,
    },
    /// A contestant lost or changed bytes: its time means nothing.
    #[error("{case}: {contestant} returned other bytes than were written")]
    WrongBytes {
        /// The case that ran.
        case: String,
        /// Who ran it.
        contestant: &'static str,
    },
    /// No case's name holds any of the given substrings.
    #[error("no case matches {0}: run with --smoke and without --case to see the names of all")]
    NoCase(String),
    /// A file of `--trace` that is empty or not of the format that its ending tells.
    #[error("{}: not a trace in libCacheSim's oracleGeneral (.bin), or in lines of numbers", .0.display())]
    NoTrace(PathBuf),
    /// Cases whose threads share CPUs would be checked with a real-time policy.
    #[error("--check with cases contended/…: threads of a real-time policy do not share CPUs; run it without chrt")]
    RealTime,
    /// `--check` found ratios that fall short.
    #[error("{missed} of {checked} required numbers were not reached, {unsure} were reached in most rounds only")]
    Missed {
        /// How many fell short.
        missed: usize,
        /// How many were reached by the median, and missed in a quarter of the rounds.
        unsure: usize,
        /// Required numbers that were checked.
        checked: usize,
    },
    /// `--check` of a run that left out parts, or in which nothing is required.
    #[error("--check: {skipped} parts were skipped, {checked} required numbers were checked")]
    NotJudged {
        /// Parts that were skipped.
        skipped: usize,
        /// Required numbers that were checked.
        checked: usize,
    },
    /// A contestant that this machine does not give.
    #[error("no {contestant} contestant: {reason}")]
    Unavailable {
        /// Who cannot take part.
        contestant: &'static str,
        /// Why, and what to do.
        reason: String,
    },
    /// The kernel answered calls that were to measure a server.
    #[error("{case}: only {requests} requests reached the {contestant} server in {operations} operations")]
    Bypassed {
        /// The case that ran.
        case: String,
        /// Who ran it.
        contestant: &'static str,
        /// Requests that reached the contestant's server.
        requests: u64,
        /// Operations of all clients.
        operations: usize,
    },
    /// `--check` of a mount on a machine that mounts nothing.
    #[error("nothing can be mounted: {0}")]
    NoMount(String),
    /// A signal asked for the end.
    #[error("interrupted")]
    Interrupted,
    /// `--check` needs peers that this machine does not give.
    #[error("nothing can be checked without the {0} peer: run as root")]
    NoPeer(&'static str),
}

impl Error {
    /// Names the operation and object of a failed system call.
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System {
            what: what.into(),
            source: source.into(),
        }
    }

    /// Adds the case that ran and the contestant.
    pub(crate) fn of(self, case: &str, contestant: &str) -> Self {
        match self {
            Self::System { what, source } => Self::system(format!("{case} on {contestant}: {what}"), source),
            other => other,
        }
    }

    /// Names what was tried of the library.
    pub(crate) fn library(what: &'static str) -> impl Fn(homenode::Error) -> Self {
        move |error| Self::Library {
            what,
            message: error.to_string(),
        }
    }
}

/// Results whose errors name the operation that failed, and its object.
pub(crate) trait During<T> {
    fn during(self, what: impl Display) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    #[inline]
    fn during(self, what: impl Display) -> Result<T, Error> {
        self.map_err(|error| Error::system(what.to_string(), error))
    }
}
