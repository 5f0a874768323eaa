//! Promises of the project about locality, and the check whether a report keeps them.

use super::job::{Contestant, SIZES};
use crate::report::{Report, Row};
use crate::required::{Bound, Finding};

/// Least share of local accesses behind the filter, in percent.
const LOCAL_PERCENT_MIN: [(Contestant, f64); 5] = [
    (Contestant::Library, 95.0),
    (Contestant::Mount, 90.0),
    (Contestant::MountDirect, 90.0),
    (Contestant::Kernel, 95.0),
    (Contestant::Run, 95.0),
];

/// Returns the value and bound of each promise whose cases ran.
pub(super) fn findings(report: &Report) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (contestant, least) in LOCAL_PERCENT_MIN {
        for size in SIZES {
            let end = format!("n/{}/{}", size.name, contestant.name());
            let direct_mapped = format!("{end}/direct-mapped");
            // Behind the cruder filter tmpfs with fallocate=none is no better than files of the kernel: that tells of fio.
            let is_kernel = [Contestant::Kernel, Contestant::Run].contains(&contestant);
            let is_direct_mapped = |row: &Row| !is_kernel && row.case.ends_with(&direct_mapped);
            let is_judged = |row: &&Row| row.case.ends_with(&end) || is_direct_mapped(row);
            let rows = report.rows.iter().filter(is_judged);
            findings.extend(rows.map(|row| {
                let what = format!("{}, % local", row.case);
                Finding::new(what, row.homenode, Bound::AtLeast(least))
            }));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::required;

    #[test]
    fn only_rows_of_shares_are_judged() {
        let mut report = Report::new("locality");
        for (case, percent) in [
            ("4n/4k/library", 99.0),
            ("4n/4k/library/raw", 1.0),
            ("8n/1m/mount", 89.0),
            ("8n/1m/mount/modelled", 1.0),
            ("scaling/4n/mount", 1.0),
            ("4n/4k/mount/direct-mapped", 91.0),
            ("4n/4k/kernel/direct-mapped", 91.0),
            ("4n/4k/run/direct-mapped", 91.0),
            ("4n/4k/mount-classic", 50.0),
        ] {
            let row = Row::more_is_better(case.into(), "% local", &percent.into(), &[]);
            report.rows.push(row);
        }
        let judged = required::judge(&findings(&report), true);
        assert!(
            matches!(
                judged,
                Err(Error::Missed {
                    missed: 1,
                    checked: 3,
                    ..
                })
            ),
            "{judged:?}"
        );
    }
}
