//! A run of a bench whose contestants take turns case by case: the cases that are wanted, and the rows and findings so far.

use crate::arguments::{Arguments, is_wanted};
use crate::error::Error;
use crate::interleave::{Samples, take_turns};
use crate::report::{Report, Row, Table};
use crate::required::{Bound, Finding};
use indicatif::{ProgressBar, ProgressStyle};

/// A bar that counts `steps` steps on a terminal.
pub(crate) fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("the template is right");
    ProgressBar::new(steps as u64).with_style(style)
}

/// A run of a bench.
pub(crate) struct Run<'a> {
    pub(crate) arguments: &'a Arguments,
    pub(crate) report: Report,
    table: Table,
    pub(crate) findings: Vec<Finding>,
}

impl<'a> Run<'a> {
    /// A run of the named bench, without rows.
    pub(crate) fn new(bench: &'static str, arguments: &'a Arguments) -> Self {
        Self {
            arguments,
            report: Report::new(bench),
            table: Table::new(&[]),
            findings: Vec::new(),
        }
    }

    /// Begins a table for the rows that follow.
    pub(crate) fn begin(&mut self, table: Table) {
        table.print_head();
        self.table = table;
    }

    /// Whether a case of this name is to run.
    pub(crate) fn wants(&self, case: &str) -> bool {
        is_wanted(&self.arguments.case, case)
    }

    /// Fewer operations where only that they work is to be seen.
    pub(crate) fn few(&self, count: usize) -> usize {
        if self.arguments.common.smoke {
            count.div_ceil(50).max(8)
        } else {
            count
        }
    }

    /// Samples of contestants that take turns.
    pub(crate) fn take_turns(
        &self,
        contestants: usize,
        pass: impl FnMut(u64, usize) -> Result<f64, Error>,
    ) -> Result<Vec<Samples>, Error> {
        let rounds = if self.arguments.common.smoke {
            1
        } else {
            self.arguments.common.rounds
        };
        take_turns(contestants, rounds as usize, pass)
    }

    /// Prints a row, and adds it to the report.
    pub(crate) fn show(&mut self, row: Row) {
        self.table.print_row(&row);
        self.report.rows.push(row);
    }

    /// Requires this ratio to a peer, if the case was shown.
    pub(crate) fn require_ratio(&mut self, case: &str, peer: &'static str, least: f64) {
        self.findings.extend(Finding::ratio(&self.report, case, peer, least));
    }

    /// Requires at most this share of a peer's time, if the case was shown.
    pub(crate) fn require_time(&mut self, case: &str, peer: &'static str, what: &str, most: f64) {
        let found = self.report.ratio(case, peer).map(|ratio| 1.0 / ratio);
        self.findings
            .extend(Finding::of(format!("{case} {what}"), found, Bound::AtMost(most)));
    }

    /// Requires at most this value, if the case was shown.
    pub(crate) fn require_most(&mut self, case: &str, what: &str, most: f64) {
        let found = self.report.value(case);
        self.findings
            .extend(Finding::of(format!("{case} {what}"), found, Bound::AtMost(most)));
    }
}
