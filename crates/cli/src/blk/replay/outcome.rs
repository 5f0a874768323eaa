//! Result of a replayed trace, as text and JSON.

use super::player::Played;
use super::trace::Trace;
use crate::topology::human_bytes;
use homenode::blk::{Device, DriverQueue, Operation, SoftwareCounts};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    output_version: u32,
    operations: Vec<OfOperation>,
    merged: u64,
    elapsed_s: f64,
    /// Longest delay between a request's due time and its submission.
    late_ms: f64,
    /// Requests that are missing from the trace.
    lost: u64,
    /// Whether the trace ends within an entry.
    is_cut: bool,
    /// Requests that were left out as it was interrupted.
    not_submitted: u64,
    refused: BTreeMap<String, u64>,
    failed: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
struct OfOperation {
    operation: &'static str,
    requests: u64,
    bytes: u64,
    errors: u64,
    mean_us: f64,
    /// Quantiles, too long by a 32nd at most.
    p50_us: f64,
    p99_us: f64,
    p99_9_us: f64,
}

fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::Read => "read",
        Operation::Write => "write",
        Operation::Flush => "flush",
        Operation::Discard => "discard",
        Operation::WriteZeroes => "write zeros",
    }
}

impl Outcome {
    /// Requests that the device did not take, or failed.
    pub(super) fn not_done(&self) -> u64 {
        self.refused.values().chain(self.failed.values()).sum()
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.not_submitted > 0
    }

    pub(super) fn new<Q: DriverQueue>(device: &Device<Q>, played: Played, trace: &Trace) -> Self {
        let mut counts = SoftwareCounts::default();
        device.software_counts().into_iter().for_each(|core| counts += core);
        let of_operation = |operation: Operation| {
            let of_it = counts.operations[operation as usize];
            let mean_us = of_it.time_ns as f64 / 1e3 / of_it.requests.max(1) as f64;
            let latencies = device.latencies(operation);
            let quantile_us = |part| latencies.quantile_ns(part).unwrap_or(0) as f64 / 1e3;
            OfOperation {
                operation: name(operation),
                requests: of_it.requests,
                bytes: of_it.bytes,
                errors: of_it.errors,
                mean_us,
                p50_us: quantile_us(0.5),
                p99_us: quantile_us(0.99),
                p99_9_us: quantile_us(0.999),
            }
        };
        let operations = Operation::ALL.map(of_operation).into_iter();
        Self {
            output_version: 1,
            operations: operations.filter(|of_it| of_it.requests > 0).collect(),
            merged: counts.merged,
            elapsed_s: played.elapsed.as_secs_f64(),
            late_ms: played.late.as_secs_f64() * 1e3,
            lost: trace.lost,
            is_cut: trace.cut_bytes > 0,
            not_submitted: played.not_submitted,
            refused: played.refused,
            failed: played.failed,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<12}{:>12}{:>12}{:>10}{:>12}{:>10}{:>10}{:>10}",
            "operation", "requests", "bytes", "errors", "mean us", "p50", "p99", "p99.9"
        )?;
        for of_it in &self.operations {
            let (name, requests, errors) = (of_it.operation, of_it.requests, of_it.errors);
            let (bytes, mean) = (human_bytes(of_it.bytes), of_it.mean_us);
            let [p50, p99, p99_9] = [of_it.p50_us, of_it.p99_us, of_it.p99_9_us];
            writeln!(
                f,
                "{name:<12}{requests:>12}{bytes:>12}{errors:>10}{mean:>12.1}{p50:>10.1}{p99:>10.1}{p99_9:>10.1}"
            )?;
        }
        let Self {
            elapsed_s,
            late_ms,
            merged,
            ..
        } = self;
        writeln!(
            f,
            "{elapsed_s:.3} s, the latest request {late_ms:.3} ms late; {merged} were merged"
        )?;
        if self.lost > 0 {
            let lost = self.lost;
            writeln!(
                f,
                "{lost} requests are missing from the trace: there was no room for them when it was made"
            )?;
        }
        if self.is_cut {
            writeln!(
                f,
                "the trace ends within an entry, which was left out: the recorder was stopped"
            )?;
        }
        if self.is_interrupted() {
            let count = self.not_submitted;
            writeln!(f, "{count} requests were not submitted: it was interrupted")?;
        }
        for (why, count) in &self.refused {
            writeln!(f, "{count} requests were not taken: {why}")?;
        }
        for (why, count) in &self.failed {
            writeln!(f, "{count} requests failed: {why}")?;
        }
        Ok(())
    }
}
