//! Pairs each number promised of the block layer with its value in a report.

use crate::report::Report;
use crate::required::{Bound, Finding};

/// M IOPS at least.
const RATES: [(&str, f64); 7] = [
    ("noop-512/plug32/qd128/1c", 60.0),
    ("noop-512/plug1/qd128/1c", 25.0),
    ("noop-512/plug32/qd128/1c/stamped", 40.0),
    ("noop-512/plug1/qd128/1c/stamped", 25.0),
    ("ram-512/plug32/qd128/1c", 15.0),
    ("ram-4k/plug32/qd128/1c", 3.3),
    ("crossing/noop-512/plug32/qd128", 15.0),
];
/// From one core to two.
const SCALING_MIN: f64 = 1.9;
/// Least ratio to the memcpy loop, by case.
const MEMCPY_MIN: [(&str, f64); 2] = [("ram-512/plug32/qd128/1c", 0.9), ("ram-4k/plug32/qd128/1c", 0.7)];
/// On two cores.
const SINGLE_LOCK_MIN: f64 = 10.0;
/// Least ratio to fio's engine.
const FIO_MIN: f64 = 0.95;
/// µs of one request from core to core.
const CROSSING_MAX: f64 = 1.0;
/// Percent that the modest stream keeps.
const SHARE_MIN: f64 = 45.0;

pub(super) fn findings(report: &Report) -> Vec<Finding> {
    let finding = |what: String, found: Option<f64>, bound: Bound| found.map(|found| Finding { what, found, bound });
    let value = |case: &str| report.row(case).map(|row| row.homenode);
    let ratio = |case: &str, peer: &str| report.row(case)?.ratio.get(peer).copied();
    let rates = RATES
        .iter()
        .map(|(case, least)| finding(format!("{case}, M IOPS"), value(case), Bound::AtLeast(*least)));
    let scaling = [
        "noop-512/plug32/qd128",
        "noop-512/plug1/qd128",
        "ram-512/plug32/qd128",
        "ram-4k/plug32/qd128",
    ];
    let scaling = scaling.iter().map(|case| {
        let of = |cores: u8| value(&format!("{case}/{cores}c"));
        let found = of(1).zip(of(2)).map(|(one, two)| two / one);
        finding(format!("{case}, two cores to one"), found, Bound::AtLeast(SCALING_MIN))
    });
    let memcpy = MEMCPY_MIN.iter().map(|(case, least)| {
        let found = ratio(case, "memcpy");
        finding(format!("{case} to memcpy"), found, Bound::AtLeast(*least))
    });
    let single_lock = "noop-512/plug32/qd128/2c";
    let rest = [
        finding(
            format!("{single_lock} to single-lock"),
            ratio(single_lock, "single-lock"),
            Bound::AtLeast(SINGLE_LOCK_MIN),
        ),
        finding(
            "crossing/noop-512/qd1, us".into(),
            value("crossing/noop-512/qd1"),
            Bound::AtMost(CROSSING_MAX),
        ),
        finding(
            "fairness/modest-share, %".into(),
            value("fairness/modest-share"),
            Bound::AtLeast(SHARE_MIN),
        ),
    ];
    let of_fio = report.rows.iter().filter_map(|row| {
        let found = row.ratio.get("fio").copied()?;
        finding(format!("{} to fio", row.case), Some(found), Bound::AtLeast(FIO_MIN))
    });
    rates
        .chain(scaling)
        .chain(memcpy)
        .chain(rest)
        .chain(of_fio.map(Some))
        .flatten()
        .collect()
}
