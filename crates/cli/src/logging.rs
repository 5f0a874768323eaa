//! Log lines on standard error, which of the server is its log file: from `info` on, or as HOMENODE_LOG says. A service of systemd writes to the journal,
//! with fields: who has asked for a change, by which process, and for which.

use std::io;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

const VARIABLE: &str = "HOMENODE_LOG";
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Where every module's path begins.
const CRATES: &str = "homenode";

/// Starts logging. A HOMENODE_LOG that means nothing counts as none, and is told of if `tell`.
pub(crate) fn start(tell: bool) {
    let wanted = std::env::var_os(VARIABLE).unwrap_or_default();
    let wanted = wanted.to_string_lossy();
    let filter = match check(&wanted) {
        Ok(()) => wanted.as_ref(),
        Err(problem) => {
            if tell {
                complain!("homenode: {VARIABLE}={wanted} is ignored: {problem}");
            }
            ""
        }
    };
    let filter = EnvFilter::builder()
        .with_default_directive(tracing::Level::INFO.into())
        .parse_lossy(filter);
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

/// Levels, and levels of our modules. The filter itself takes any word for a module, which then silences all others.
fn check(wanted: &str) -> Result<(), String> {
    for directive in wanted.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        let (module, level) = match directive.split_once('=') {
            Some((module, level)) => (Some(module), Some(level)),
            None if directive.starts_with(CRATES) => (Some(directive), None),
            None => (None, Some(directive)),
        };
        let is_level = |level: &str| LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level));
        if !level.is_none_or(is_level) || !module.is_none_or(|module| module.starts_with(CRATES)) {
            return Err(format!(
                "{directive:?} is neither a level ({}) nor a module with a level, such as homenode_fuse=debug",
                LEVELS.join(", ")
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(check(wanted), Ok(()), "{wanted}");
        }
        for wanted in [
            "bogus",
            "info=bogus",
            "homenode_fuse=bogus",
            "fuse=debug",
            "debug,bogus",
            "7",
        ] {
            let problem = check(wanted).unwrap_err();
            assert!(
                problem.contains("debug, trace") && problem.contains("is neither a level"),
                "{problem}"
            );
        }
    }
}
