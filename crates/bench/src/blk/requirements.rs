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
    let value = |case: &str| report.value(case);
    let rates = RATES
        .iter()
        .map(|(case, least)| Finding::of(format!("{case}, M IOPS"), value(case), Bound::AtLeast(*least)));
    let scaling = [
        "noop-512/plug32/qd128",
        "noop-512/plug1/qd128",
        "ram-512/plug32/qd128",
        "ram-4k/plug32/qd128",
    ];
    let scaling = scaling
        .iter()
        .map(|case| Finding::ratio(report, &format!("{case}/2c"), "one-core", SCALING_MIN));
    let memcpy = MEMCPY_MIN
        .iter()
        .map(|(case, least)| Finding::ratio(report, case, "memcpy", *least));
    let (crossing, share) = ("crossing/noop-512/qd1", "fairness/modest-share");
    let rest = [
        Finding::ratio(report, "noop-512/plug32/qd128/2c", "single-lock", SINGLE_LOCK_MIN),
        Finding::of(format!("{crossing}, us"), value(crossing), Bound::AtMost(CROSSING_MAX)),
        Finding::of(format!("{share}, %"), value(share), Bound::AtLeast(SHARE_MIN)),
    ];
    let fio = report
        .rows
        .iter()
        .map(|row| Finding::ratio(report, &row.case, "fio", FIO_MIN));
    rates
        .chain(scaling)
        .chain(memcpy)
        .chain(rest)
        .chain(fio)
        .flatten()
        .collect()
}
