//! Log lines on standard error, which of the server is its log file: from `info` on, or as HOMENODE_LOG says. A service of systemd writes to the journal,
//! with fields: who has asked for a change, by which process, and for which.

use std::io;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

const VARIABLE: &str = "HOMENODE_LOG";
/// Where every module's path begins.
const CRATES: &str = "homenode";

/// Starts logging. A HOMENODE_LOG that means nothing counts as none, and is told of if `tell`.
pub(crate) fn start(tell: bool) {
    let wanted = std::env::var_os(VARIABLE).unwrap_or_default();
    let wanted = wanted.to_string_lossy();
    let filter = parse(&wanted).unwrap_or_else(|problem| {
        if tell {
            complain!("homenode: {VARIABLE}={wanted} is ignored: {problem}");
        }
        Targets::new().with_default(LevelFilter::INFO)
    });
    // A server in the background has a log file of its own.
    let is_detached = std::env::args_os().any(|argument| argument == "--detached");
    let journal = (!is_detached && is_journal())
        .then(tracing_journald::layer)
        .and_then(Result::ok);
    let lines = journal.is_none().then(|| {
        tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .with_ansi(false)
    });
    tracing_subscriber::registry()
        .with(filter)
        .with(journal)
        .with(lines)
        .init();
}

/// Whether standard error is the journal, as systemd tells: by its device and inode.
fn is_journal() -> bool {
    let Ok(told) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    rustix::fs::fstat(io::stderr()).is_ok_and(|found| told == format!("{}:{}", found.st_dev, found.st_ino))
}

/// A level, and levels of our modules; all of a module that is named alone.
fn parse(wanted: &str) -> Result<Targets, String> {
    let mut filter = Targets::new().with_default(LevelFilter::INFO);
    for directive in wanted.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        let (module, level) = match directive.split_once('=') {
            Some((module, level)) => (module, level.parse()),
            None if directive.starts_with(CRATES) => (directive, Ok(LevelFilter::TRACE)),
            None => ("", directive.parse()),
        };
        filter = match level {
            // A number is one, too, for the parser.
            Ok(level) if module.is_empty() && !directive.contains(|c: char| c == '=' || c.is_ascii_digit()) => {
                filter.with_default(level)
            }
            Ok(level) if module.starts_with(CRATES) => filter.with_target(module, level),
            _ => {
                return Err(format!(
                    "{directive:?} is neither a level (off, error, warn, info, debug, trace) nor a module with a level, such as \
                     homenode_fuse=debug"
                ));
            }
        };
    }
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::says::says;

    #[test]
    fn log_levels_and_modules_parse_and_nonsense_is_refused() {
        for wanted in [
            "",
            "debug",
            "WARN",
            "warn,homenode_fuse=trace",
            "homenode::pool",
            " info , ",
        ] {
            assert!(parse(wanted).is_ok(), "{wanted}");
        }
        for wanted in [
            "bogus",
            "info=bogus",
            "homenode_fuse=bogus",
            "fuse=debug",
            "debug,bogus",
            "7",
        ] {
            let problem = parse(wanted).unwrap_err();
            says(&problem, &["debug, trace", "is neither a level"]);
        }
    }
    #[test]
    fn modules_have_their_own_levels_and_others_the_default() {
        let filter = parse("warn,homenode_fuse=trace").unwrap();
        let is_logged = |module, level| filter.would_enable(module, &level);
        assert!(is_logged("homenode_fuse::call", tracing::Level::TRACE));
        assert!(is_logged("homenode", tracing::Level::WARN) && !is_logged("homenode", tracing::Level::INFO));
        let filter = parse("homenode_fuse=debug").unwrap();
        assert!(filter.would_enable("homenode", &tracing::Level::INFO));
    }
}
