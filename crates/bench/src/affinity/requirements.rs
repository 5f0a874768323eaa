//! Promises of the project about core affinity, and the check whether a report keeps them.

use super::{BYTES, COMPLETIONS, DAEMON};
use crate::report::Report;
use crate::required::{Bound, Finding};

/// Least shares under policy local, in percent.
const RIGHT_PERCENT_MIN: [(&str, f64); 2] = [(BYTES, 90.0), (COMPLETIONS, 95.0)];
/// Most of a CPU that the daemon takes beside 1,000 threads, in percent.
const DAEMON_PERCENT_MAX: f64 = 1.0;

/// Returns the value and bound of each promise whose cases ran.
pub(super) fn findings(report: &Report) -> Vec<Finding> {
    let mut findings = Vec::new();
    for row in &report.rows {
        let promised = RIGHT_PERCENT_MIN
            .iter()
            .find(|(end, _)| row.case.contains("/local/") && row.case.ends_with(end));
        let bound = match promised {
            Some((_, least)) => Bound::AtLeast(*least),
            None if row.case.starts_with(DAEMON) => Bound::AtMost(DAEMON_PERCENT_MAX),
            None => continue,
        };
        findings.push(Finding::new(format!("{}, {}", row.case, row.unit), row.homenode, bound));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::report::Row;
    use crate::required;

    #[test]
    fn only_rows_with_a_promise_are_judged() {
        let mut report = Report::new("affinity");
        for (case, value) in [
            ("4n/upload/local/4c/bytes", 91.0),
            ("4n/upload/local/4c/completions", 94.0),
            ("4n/upload/local/4c/completions-home", 1.0),
            ("4n/upload/local/4c/modelled", 1.0),
            ("4n/upload/spread/4c/bytes", 1.0),
            ("daemon/1000-threads/idle", 1.5),
        ] {
            let row = Row::more_is_better(case.into(), "%", &value.into(), &[]);
            report.rows.push(row);
        }
        let judged = required::judge(&findings(&report), true);
        assert!(
            matches!(
                judged,
                Err(Error::Missed {
                    missed: 2,
                    checked: 3,
                    ..
                })
            ),
            "{judged:?}"
        );
    }
}
