//! A run of a bench: the cases that are wanted, contestants that take turns, and the rows and findings so far.

use crate::arguments::{Common, is_wanted};
use crate::error::Error;
use crate::interleave::{Samples, interleave};
use crate::interrupt;
use crate::output::Output;
use crate::report::{Report, Row, Table};
use crate::required::{self, Bound, Finding};
use indicatif::{ProgressBar, ProgressStyle};

/// A bar that counts `steps` steps on a terminal.
pub(crate) fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("the template is right");
    ProgressBar::new(steps as u64).with_style(style)
}

/// A run of a bench.
pub(crate) struct Run<'a> {
    pub(crate) common: &'a Common,
    /// Patterns of the cases that are wanted.
    case: &'a [String],
    /// Measured rounds.
    pub(crate) rounds: usize,
    json: Option<Output>,
    pub(crate) report: Report,
    table: Table,
    has_head: bool,
    pub(crate) findings: Vec<Finding>,
}

impl<'a> Run<'a> {
    /// Opens the file for the rows of the named bench; from now on signals are only noted.
    pub(crate) fn new(bench: &'static str, common: &'a Common, case: &'a [String]) -> Result<Self, Error> {
        let json = Output::open(common.json.as_deref())?;
        interrupt::watch()?;
        Ok(Self {
            common,
            case,
            rounds: if common.smoke { 1 } else { common.rounds as usize },
            json,
            report: Report::new(bench),
            table: Table::new(&[]),
            has_head: false,
            findings: Vec::new(),
        })
    }

    /// Begins a table for the rows that follow. Its head is printed with the first one.
    pub(crate) fn begin(&mut self, table: Table) {
        (self.table, self.has_head) = (table, false);
    }

    /// Whether a case of this name is to run.
    pub(crate) fn wants(&self, case: &str) -> bool {
        is_wanted(self.case, case)
    }

    pub(crate) fn no_case(&self) -> Error {
        Error::NoCase(self.case.join(" or "))
    }

    /// Fewer operations where only that they work is to be seen.
    pub(crate) fn few(&self, count: usize) -> usize {
        if self.common.smoke {
            count.div_ceil(50).max(8)
        } else {
            count
        }
    }

    /// Samples of contestants that take turns in `pass(round, contestant)` of a case.
    pub(crate) fn take_turns(
        &self,
        case: &str,
        contestants: usize,
        mut pass: impl FnMut(u64, usize) -> Result<f64, Error>,
    ) -> Result<Vec<Samples>, Error> {
        let cases = [case.to_owned()];
        let mut samples = self.interleave(&cases, contestants, |round, _, contestant| pass(round, contestant))?;
        Ok(samples.remove(0))
    }

    /// Samples of contestants that take turns in `pass(round, case, contestant)`, by case, then by contestant.
    pub(crate) fn interleave(
        &self,
        cases: &[String],
        contestants: usize,
        mut pass: impl FnMut(u64, usize, usize) -> Result<f64, Error>,
    ) -> Result<Vec<Vec<Samples>>, Error> {
        let progress = progress((self.rounds + 1) * cases.len() * contestants);
        let samples = interleave(cases.len(), contestants, self.rounds, |round, case, contestant| {
            progress.set_message(cases[case].clone());
            let value = pass(round as u64, case, contestant)?;
            progress.inc(1);
            Ok(value)
        });
        progress.finish_and_clear();
        samples
    }

    /// Prints a row, and adds it to the report.
    pub(crate) fn show(&mut self, row: Row) {
        if !std::mem::replace(&mut self.has_head, true) {
            self.table.print_head();
        }
        self.table.print_row(&row);
        self.report.rows.push(row);
    }

    /// Requires this ratio to a peer, if the case was shown.
    pub(crate) fn require_ratio(&mut self, case: &str, peer: &'static str, least: f64) {
        self.findings.extend(Finding::ratio(&self.report, case, peer, least));
    }

    /// Requires at most this share of a peer's time, if the case was shown.
    pub(crate) fn require_time(&mut self, case: &str, peer: &'static str, what: &str, most: f64) {
        let what = format!("{case} {what}");
        self.findings
            .extend(Finding::share(what, &self.report, (case, peer), most));
    }

    /// Requires at most this value, if the case was shown.
    pub(crate) fn require_most(&mut self, case: &str, what: &str, most: f64) {
        let found = self.report.value(case);
        self.findings
            .extend(Finding::of(format!("{case} {what}"), found, Bound::AtMost(most)));
    }

    /// Writes the rows, and judges what a full run found.
    pub(crate) fn end(self) -> Result<(), Error> {
        self.report.write_json(self.json)?;
        if self.common.smoke {
            return Ok(());
        }
        let judged = required::judge(&self.findings, self.common.check);
        if self.common.check {
            required::judged_all()?;
        }
        judged
    }
}
