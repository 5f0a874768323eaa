//! Checks a report against the numbers that the project promises of reads and writes.

use super::contended;
use super::workloads::{self, Files, Layout, Operation, SIZES};
use crate::report::{HOMENODE, Report, Row};
use crate::required::{Bound, Finding};

const ONE: Layout = Layout {
    threads: 1,
    files: Files::Separate,
};
const ONE_SAME: Layout = Layout {
    threads: 1,
    files: Files::Same,
};
const TWO_SAME: Layout = Layout {
    threads: 2,
    files: Files::Same,
};

/// Least share of memcpy's scaling from one thread to two on one file.
const SCALING_SHARE_MIN: f64 = 0.9;

/// Least ratios to tmpfs with huge pages, one thread: first, overwrite, read.
const HUGE_RATIOS_MIN: [(&str, [f64; 3]); 7] = [
    ("1k", [3.0, 5.0, 5.0]),
    ("4k", [1.8, 2.5, 2.2]),
    ("16k", [1.3, 1.3, 1.3]),
    ("64k", [0.95, 0.95, 0.95]),
    ("256k", [0.95, 0.95, 0.95]),
    ("1m", [0.95, 0.95, 0.95]),
    ("2m", [0.95, 0.95, 0.95]),
];

/// Least ratios to a bare memcpy, one thread: first, overwrite, read. At 1k nothing is asked of `first`: it zeroes the rest
/// of each block besides, which a memcpy does not.
const MEMCPY_RATIOS_MIN: [(&str, [f64; 3]); 7] = [
    ("1k", [0.0, 0.93, 0.93]),
    ("4k", [0.95; 3]),
    ("16k", [0.95; 3]),
    ("64k", [0.95; 3]),
    ("256k", [0.95; 3]),
    ("1m", [0.95; 3]),
    ("2m", [0.95; 3]),
];

/// Least ratio to default tmpfs at 4k, one thread, any operation.
const DEFAULT_RATIO_MIN: f64 = 5.0;

/// Returns the value and bound of each promise whose cases ran.
pub(super) fn findings(report: &Report) -> Vec<Finding> {
    ratios(report)
        .into_iter()
        .chain(scaling_shares(report))
        .chain(contended_ratios(report))
        .collect()
}

/// Returns a peer without which nothing can be checked, if one is missing.
pub(super) fn missing_peer(report: &Report) -> Option<&'static str> {
    let has = |row: &Row, peer: &str| row.tails.is_some() || row.ratio.contains_key(peer);
    let mut peers = ["tmpfs", "tmpfs-huge"].into_iter();
    peers.find(|peer| !report.rows.iter().all(|row| has(row, peer)))
}

/// Prints how throughput grows from one thread to two on one file.
pub(super) fn print_scaling(report: &Report) {
    let cases = scaling_cases(report);
    if cases.is_empty() {
        return;
    }
    println!("\nscaling: throughput of 2 threads in one file over 1 thread");
    println!("{:<26}{HOMENODE:>12}{:>12}{:>12}", "size/operation", "memcpy", "share");
    for case in cases {
        println!(
            "{:<26}{:>12.2}{:>12.2}{:>12.2}",
            case.name,
            case.homenode,
            case.memcpy,
            case.share()
        );
    }
}

struct Scaling {
    name: String,
    homenode: f64,
    memcpy: f64,
}

impl Scaling {
    fn share(&self) -> f64 {
        self.homenode / self.memcpy
    }
}

fn scaling_cases(report: &Report) -> Vec<Scaling> {
    let mut cases = Vec::new();
    for (size, _) in SIZES {
        for operation in Operation::ALL {
            let row = |layout| report.row(&workloads::name(size, operation, layout));
            if let (Some(one), Some(two)) = (row(ONE_SAME), row(TWO_SAME)) {
                // The rows hold ns per operation of one thread, so two threads do twice as much in that time.
                let memcpy = |row: &Row| row.peers["memcpy"];
                cases.push(Scaling {
                    name: format!("{size}/{}", operation.name()),
                    homenode: 2.0 * one.homenode / two.homenode,
                    memcpy: 2.0 * memcpy(one) / memcpy(two),
                });
            }
        }
    }
    cases
}

fn scaling_shares(report: &Report) -> Vec<Finding> {
    let finding = |case: Scaling| {
        let what = format!("{} scaling, share of memcpy's", case.name);
        Finding::new(what, case.share(), Bound::AtLeast(SCALING_SHARE_MIN))
    };
    scaling_cases(report).into_iter().map(finding).collect()
}

fn contended_ratios(report: &Report) -> Vec<Finding> {
    let finding = |case: contended::Case| Finding::ratio(report, &case.name(), contended::TMPFS, case.ratio_min);
    contended::cases(|_| true).into_iter().filter_map(finding).collect()
}

fn ratios(report: &Report) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut push = |size: &str, operation: Operation, peer: &str, wanted: f64| {
        let name = workloads::name(size, operation, ONE);
        let Some(row) = report.row(&name) else { return };
        // No copy is much faster than a memcpy: where that is not so many times as fast as tmpfs, the ratio to memcpy counts alone. Nobody
        // needs memcpy to be as fast as tmpfs.
        let memcpy_reaches = row
            .peers
            .get(peer)
            .zip(row.peers.get("memcpy"))
            .is_none_or(|(peer, memcpy)| peer / memcpy >= wanted);
        if memcpy_reaches || wanted <= 1.0 {
            findings.extend(Finding::ratio(report, &name, peer, wanted));
        } else {
            println!("{name} against {peer}: {wanted} is waived, as memcpy does not reach it");
        }
    };
    for (size, wanted) in HUGE_RATIOS_MIN {
        for (operation, wanted) in Operation::ALL.into_iter().zip(wanted) {
            push(size, operation, "tmpfs-huge", wanted);
        }
    }
    for (size, wanted) in MEMCPY_RATIOS_MIN {
        for (operation, wanted) in Operation::ALL.into_iter().zip(wanted) {
            push(size, operation, "memcpy", wanted);
        }
    }
    for operation in Operation::ALL {
        push("4k", operation, "tmpfs", DEFAULT_RATIO_MIN);
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::interleave::Samples;
    use crate::required::judge;

    fn report(two_threads_ns: f64) -> Report {
        let mut report = Report::new("fs");
        for (case, homenode, memcpy) in [
            ("4k/read/1t/separate", 100.0, 50.0),
            ("4k/read/1t/same", 100.0, 50.0),
            ("4k/read/2t/same", two_threads_ns, 50.0),
        ] {
            let (tmpfs, huge, memcpy) = (Samples::from(600.0), Samples::from(219.0), Samples::from(memcpy));
            let peers = [("tmpfs", &tmpfs), ("tmpfs-huge", &huge), ("memcpy", &memcpy)];
            report
                .rows
                .push(Row::new(case.into(), "ns/op", &homenode.into(), &peers));
        }
        report
    }

    #[test]
    fn a_ratio_below_its_promise_is_missed() {
        let missed = judge(&findings(&report(100.0)), true);
        assert!(
            matches!(
                missed,
                Err(Error::Missed {
                    missed: 2,
                    checked: 4,
                    ..
                })
            ),
            "2.19 < 2.2 of tmpfs-huge, 0.5 < 0.95 of memcpy: {missed:?}"
        );
        assert!(judge(&findings(&report(100.0)), false).is_ok());
    }

    #[test]
    fn tmpfs_ratio_beyond_memcpy_itself_is_not_judged() {
        let mut report = Report::new("fs");
        let (huge, memcpy) = (Samples::from(190.0), Samples::from(100.0));
        let peers = [("tmpfs-huge", &huge), ("memcpy", &memcpy)];
        report
            .rows
            .push(Row::new("4k/read/1t/separate".into(), "ns/op", &101.0.into(), &peers));
        let names: Vec<String> = ratios(&report).into_iter().map(|finding| finding.what).collect();
        assert_eq!(names, ["4k/read/1t/separate against memcpy"]);
    }

    #[test]
    fn a_library_that_is_slower_than_tmpfs_is_missed_whatever_memcpy_takes() {
        let mut report = Report::new("fs");
        let (huge, memcpy) = (Samples::from(95.0), Samples::from(112.0));
        let peers = [("tmpfs-huge", &huge), ("memcpy", &memcpy)];
        report.rows.push(Row::new(
            "1m/overwrite/1t/separate".into(),
            "ns/op",
            &110.0.into(),
            &peers,
        ));
        let missed = judge(&ratios(&report), true);
        assert!(
            matches!(
                missed,
                Err(Error::Missed {
                    missed: 1,
                    checked: 2,
                    ..
                })
            ),
            "{missed:?}"
        );
    }

    #[test]
    fn scaling_is_shared_with_memcpy() {
        let cases = scaling_cases(&report(125.0));
        assert_eq!(cases.len(), 1);
        assert!((cases[0].homenode - 1.6).abs() < 1e-9);
        assert!((cases[0].memcpy - 2.0).abs() < 1e-9);
        assert!((cases[0].share() - 0.8).abs() < 1e-9);
    }
}
