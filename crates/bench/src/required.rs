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
    /// Numbers that the quartiles of the rounds are at, where they are known.
    middle: Option<[f64; 2]>,
}

impl Finding {
    pub(crate) fn new(what: impl Into<String>, found: f64, bound: Bound) -> Self {
        Self {
            what: what.into(),
            found,
            bound,
            middle: None,
        }
    }

    pub(crate) fn of(what: impl Into<String>, found: Option<f64>, bound: Bound) -> Option<Self> {
        found.map(|found| Self::new(what, found, bound))
    }

    /// Least ratio to a peer in a case, if both ran.
    pub(crate) fn ratio(report: &Report, case: &str, peer: &str, least: f64) -> Option<Self> {
        let what = format!("{case} against {peer}");
        let middle = report.row(case).and_then(|row| row.ratio_middle.get(peer).copied());
        let found = Self::of(what, report.ratio(case, peer), Bound::AtLeast(least))?;
        Some(Self { middle, ..found })
    }

    /// Most of a peer's time that a case takes, if both ran.
    pub(crate) fn share(what: String, report: &Report, (case, peer): (&str, &str), most: f64) -> Option<Self> {
        let ratio = Self::ratio(report, case, peer, 1.0 / most)?;
        Some(Self {
            what,
            found: 1.0 / ratio.found,
            bound: Bound::AtMost(most),
            middle: ratio.middle.map(|[low, high]| [1.0 / high, 1.0 / low]),
        })
    }

    /// Whether some of the middle half of the rounds found what was required, and some did not: this is to be measured again.
    fn is_unsure(&self) -> bool {
        self.middle
            .is_some_and(|[low, high]| self.bound.holds(low) != self.bound.holds(high))
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

/// Prints what each promise found; with `check`, fails if one was missed, or is unsure.
pub(crate) fn judge(findings: &[Finding], check: bool) -> Result<(), Error> {
    println!("\nrequired");
    let (mut missed, mut unsure) = (0, 0);
    for finding in findings {
        let Finding { what, found, bound, .. } = finding;
        let holds = bound.holds(*found);
        missed += usize::from(!holds);
        unsure += usize::from(holds && finding.is_unsure());
        let verdict = match (holds, finding.is_unsure()) {
            (true, false) => "ok",
            (true, true) => "ok, but not in a quarter of the rounds: to be measured again",
            (false, false) => "MISSED",
            (false, true) => "MISSED, but not in a quarter of the rounds",
        };
        println!("{what:<56} {:<9} {found:>9.2}  {verdict}", bound.to_string());
    }
    let checked = findings.len();
    CHECKED.fetch_add(checked, Ordering::Relaxed);
    if check && missed + unsure > 0 {
        Err(Error::Missed {
            missed,
            unsure,
            checked,
        })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interleave::Samples;
    use crate::report::Row;

    #[test]
    fn a_promise_that_a_quarter_of_the_rounds_broke_is_not_kept_for_sure() {
        let judged = |rounds: [f64; 5]| {
            let (homenode, peer) = (Samples::from(100.0), Samples::from_iter(rounds));
            let homenode = rounds.iter().map(|_| homenode.median()).collect();
            let mut report = Report::new("test");
            let row = Row::new("case".to_owned(), "ns/op", &homenode, &[("peer", &peer)]);
            report.rows.push(row);
            let ratio = Finding::ratio(&report, "case", "peer", 0.95).expect("both ran");
            let share = Finding::share("time".to_owned(), &report, ("case", "peer"), 1.0 / 0.95).expect("both ran");
            let judged = [ratio, share].map(|finding| judge(&[finding], true));
            let [ratio, share] = judged;
            assert_eq!(format!("{ratio:?}"), format!("{share:?}"));
            ratio
        };
        assert!(judged([90.0, 95.0, 96.0, 97.0, 98.0]).is_ok(), "one of five");
        let unsure = judged([90.0, 94.0, 96.0, 97.0, 98.0]);
        assert!(
            matches!(
                unsure,
                Err(Error::Missed {
                    missed: 0,
                    unsure: 1,
                    ..
                })
            ),
            "{unsure:?}"
        );
        let missed = judged([90.0, 93.0, 94.0, 97.0, 98.0]);
        assert!(
            matches!(
                missed,
                Err(Error::Missed {
                    missed: 1,
                    unsure: 0,
                    ..
                })
            ),
            "{missed:?}"
        );
    }
}
