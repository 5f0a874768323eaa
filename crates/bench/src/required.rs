//! Promised numbers, and whether what was found keeps them.

use crate::error::Error;
use crate::report::Report;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Parts of this run that were skipped, and promises that were judged. Relaxed: two numbers.
static SKIPPED: AtomicUsize = AtomicUsize::new(0);
static CHECKED: AtomicUsize = AtomicUsize::new(0);

/// A bound and on which side of it the found number has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    fn holds(self, found: f64) -> bool {
        match self {
            Self::AtLeast(bound) => found >= bound,
            Self::AtMost(bound) => found <= bound,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bound) => write!(f, ">= {bound}"),
            Self::AtMost(bound) => write!(f, "<= {bound}"),
        }
    }
}

/// Promised bound of a number, and the number found.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) what: String,
    pub(crate) found: f64,
    pub(crate) bound: Bound,
}

impl Finding {
    pub(crate) fn of(what: impl Into<String>, found: Option<f64>, bound: Bound) -> Option<Self> {
        let what = what.into();
        found.map(|found| Self { what, found, bound })
    }

    /// Least ratio to a peer in a case, if both ran.
    pub(crate) fn ratio(report: &Report, case: &str, peer: &str, least: f64) -> Option<Self> {
        let what = format!("{case} against {peer}");
        Self::of(what, report.ratio(case, peer), Bound::AtLeast(least))
    }
}

/// Prints that a part cannot run here, for which `--check` fails.
pub(crate) fn skip(what: impl fmt::Display) {
    println!("SKIPPED: {what}");
    SKIPPED.fetch_add(1, Ordering::Relaxed);
}

/// Returns how many parts were skipped.
pub(crate) fn skipped() -> usize {
    SKIPPED.load(Ordering::Relaxed)
}

/// Fails if a part was skipped, or nothing that is promised was judged.
pub(crate) fn judged_all() -> Result<(), Error> {
    match (skipped(), CHECKED.load(Ordering::Relaxed)) {
        (0, 1..) => Ok(()),
        (skipped, checked) => Err(Error::NotJudged { skipped, checked }),
    }
}

/// Prints what each promise found; with `check`, fails if one was missed.
pub(crate) fn judge(findings: &[Finding], check: bool) -> Result<(), Error> {
    println!("\nrequired");
    let mut missed = 0;
    for Finding { what, found, bound } in findings {
        let holds = bound.holds(*found);
        missed += usize::from(!holds);
        let verdict = if holds { "ok" } else { "MISSED" };
        println!("{what:<56} {:<9} {found:>9.2}  {verdict}", bound.to_string());
    }
    let checked = findings.len();
    CHECKED.fetch_add(checked, Ordering::Relaxed);
    if check && missed > 0 {
        Err(Error::Missed { missed, checked })
    } else {
        Ok(())
    }
}
