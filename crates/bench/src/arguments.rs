//! Arguments that benches share, and the choice of cases by name.

use std::path::PathBuf;

/// Whether a case is among those that `--case` asks for: all without one, else those with a name that is a pattern, or
/// has its parts (between slashes) one after the other among its own.
pub(crate) fn is_wanted(patterns: &[String], name: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    let has = |pattern: &String| {
        let wanted: Vec<&str> = pattern.split('/').collect();
        parts.windows(wanted.len()).any(|part| part == wanted)
    };
    patterns.is_empty() || patterns.iter().any(has)
}

/// Arguments of every bench.
#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    /// Use small files, few operations and few rounds, to check that the bench works. The numbers mean nothing.
    #[arg(long, conflicts_with = "check")]
    pub(crate) smoke: bool,
    /// Write the rows to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Number of measured rounds.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Exit with 1 if a case missed a required number or could not run, or no number is required.
    #[arg(long)]
    pub(crate) check: bool,
}

/// Arguments of benches with many cases.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Run only cases with this name or these parts of it, as 4k and read/1t are parts of 4k/read/1t/same; may be given several times.
    #[arg(long, value_name = "NAME")]
    pub(crate) case: Vec<String>,
}

/// Arguments of benches in guests.
#[derive(Debug, clap::Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("3")))]
pub(crate) struct GuestArguments {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Modelled extra time of a remote access that misses the cache.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) delay_ns: u32,
    /// Program that runs the lab.
    #[arg(long, value_name = "FILE", default_value = "lab/run")]
    pub(crate) lab: PathBuf,
    /// Path of the command homenode. Default: beside this program.
    #[arg(long, value_name = "FILE")]
    pub(crate) command: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::is_wanted;

    #[test]
    fn a_pattern_selects_a_case_by_its_name_or_whole_parts_of_it() {
        let wants = |pattern: &str| is_wanted(&[pattern.to_owned()], "noop-512/plug1/qd128/1c");
        for pattern in [
            "noop-512/plug1/qd128/1c",
            "noop-512",
            "1c",
            "noop-512/plug1",
            "plug1/qd128",
        ] {
            assert!(wants(pattern), "{pattern}");
        }
        for pattern in [
            "noop",
            "512",
            "plug",
            "qd1",
            "plug12",
            "noop-512/qd128",
            "noop-512/plug1/qd128/1c/stamped",
            "",
            "/",
        ] {
            assert!(!wants(pattern), "{pattern}");
        }
    }

    #[test]
    fn no_pattern_selects_every_case_and_two_patterns_select_their_union() {
        assert!(is_wanted(&[], "4k/read"));
        let patterns = ["1k".to_owned(), "4k".to_owned()];
        assert!(is_wanted(&patterns, "4k/read") && !is_wanted(&patterns, "64k/read"));
    }
}
