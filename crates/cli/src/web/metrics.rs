//! Metrics of all pools, as OpenMetrics text. Names of files, users and threads are in none.

use crate::control::protocol::StatusReport;
use crate::live::{Pool, Pools};
use crate::status;
use homenode::{Flow, MemberState, NodeStatus, RequestTimes, SliceStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeSet;
use std::fmt::{self, Write};

/// Labels besides the pool's name, and a value.
type Tell<'a> = dyn FnMut(&[(&'static str, String)], u64) + 'a;

struct Metric {
    name: &'static str,
    help: &'static str,
    is_bytes: bool,
    is_counter: bool,
    tell: fn(&StatusReport, &mut Tell<'_>),
}

const GAUGE: bool = false;
const COUNTER: bool = true;
const BYTES: bool = true;
const NONE: bool = false;

/// Tells a number of each flow.
fn flows_of(report: &StatusReport, tell: &mut Tell<'_>, number: fn(&Flow) -> u64) {
    for flow in report.flows.iter().flatten() {
        let place = if flow.is_local() { "local" } else { "remote" };
        let labels = [
            ("from", flow.from.0.to_string()),
            ("home", flow.home.0.to_string()),
            ("place", place.to_owned()),
        ];
        tell(&labels, number(flow));
    }
}

/// A table of metrics: kind, unit, name, help, and the value of a report, or the telling of values that have labels.
macro_rules! metrics {
    (@tell |$report:ident| $value:expr) => { |$report, tell| tell(&[], $value) };
    (@tell |$report:ident, $tell:ident| $telling:expr) => { |$report, $tell| $telling };
    ($($kind:ident $unit:ident $name:literal $help:literal |$report:ident $(, $tell:ident)?| $value:expr;)*) => {
        &[$(Metric {
            name: $name,
            help: $help,
            is_bytes: $unit,
            is_counter: $kind,
            tell: metrics!(@tell |$report $(, $tell)?| $value),
        }),*]
    };
}

const METRICS: &[Metric] = metrics! {
    GAUGE BYTES "capacity" "Space of all members that take data" |report| report.pool.capacity_bytes;
    GAUGE BYTES "used" "Bytes that hold data, those in files of the kernel included" |report| report.pool.used_bytes;
    GAUGE BYTES "located" "Bytes in files of the kernel by the last complete look at where they lie: node_used has them"
        |report| report.pool.kernel_located_bytes;
    GAUGE BYTES "free" "Bytes that can still be written or promised" |report| report.pool.free_bytes;
    GAUGE BYTES "reserved" "Bytes promised to files and not placed yet" |report| report.pool.reserved_bytes;
    GAUGE BYTES "metadata" "Memory of names, attributes and block maps" |report| report.pool.metadata_used_bytes;
    GAUGE BYTES "metadata_limit" "Limit of that memory" |report| report.pool.metadata_limit_bytes;
    GAUGE NONE "problems" "Faults of the pool that homenode status names" |report| report.problems.len() as u64;
    GAUGE NONE "failed" "1 where a durable pool can only be read because a member could not be written"
        |report| u64::from(report.has_failed());
    GAUGE NONE "member_problems" "Members that are missing, or whose files have changed"
        |report| status::problems(report).count() as u64;
    GAUGE NONE "open_files" "Opens of files that are not closed yet" |report| report.fuse.open_files;
    GAUGE BYTES "node_capacity" "Size of the members of a node" |report, tell| nodes(report, tell, |node| node.capacity_bytes);
    GAUGE BYTES "node_used" "Bytes that hold data on a node" |report, tell| nodes(report, tell, |node| node.used_bytes);
    GAUGE BYTES "draining" "Bytes that are left on members which are being emptied" |report, tell| {
        let members = report.pool.members.iter();
        for member in members.filter(|member| member.state == MemberState::Draining) {
            let labels = [("member", member.id.0.to_string()), ("node", member.home.0.to_string())];
            tell(&labels, member.used_bytes);
        }
    };
    COUNTER BYTES "flow" "Bytes read and written, by node of the CPUs and home of the bytes; none where that is not seen"
        |report, tell| flows_of(report, tell, |flow| flow.bytes);
    COUNTER NONE "flow_operations" "Reads and writes of these bytes; those that the kernel does by itself are not counted"
        |report, tell| flows_of(report, tell, |flow| flow.operations);
    COUNTER BYTES "spilled" "Bytes that went to another node than the writer's because nearer members were full" |report, tell| {
        for spill in &report.pool.spills {
            tell(&[("from", spill.from.0.to_string()), ("home", spill.home.0.to_string())], spill.bytes);
        }
    };
    COUNTER NONE "requests" "Requests that reached the server, by operation" |report, tell| {
        for (operation, count) in &report.fuse.by_operation {
            tell(&[("operation", operation.clone())], *count);
        }
    };
    COUNTER NONE "errors" "Requests answered with an errno that is not ordinary, by errno" |report, tell| {
        for (errno, count) in &report.fuse.errors_by_errno {
            tell(&[("errno", errno.to_string())], *count);
        }
    };
    COUNTER NONE "panics" "Requests that met a bug of the server" |report| report.fuse.panics;
    COUNTER NONE "refused" "Requests refused because the memory of metadata was full" |report| report.pool.metadata_refused;
    COUNTER NONE "member_errors" "Requests to a disk that failed" |report, tell| {
        for member in &report.pool.members {
            tell(&[("member", member.id.0.to_string())], member.errors);
        }
    };
    COUNTER BYTES "moved" "Bytes of files that moved to their users" |report| report.mover.moved_bytes;
    GAUGE BYTES "cache" "Frames of a slice of the cache" |report, tell| slices(report, tell, |slice| slice.bytes);
    GAUGE BYTES "cache_free" "Frames that hold no block" |report, tell| slices(report, tell, |slice| slice.free_bytes);
    GAUGE BYTES "cache_dirty" "Frames that are newer than their disks" |report, tell| slices(report, tell, |slice| slice.dirty_bytes);
    COUNTER NONE "cache_copies" "Copies to and from frames" |report, tell| slices(report, tell, |slice| slice.copies);
    COUNTER BYTES "cache_fetched" "Bytes read from disks" |report, tell| slices(report, tell, |slice| slice.fetched_bytes);
    COUNTER BYTES "cache_saved" "Bytes written to disks" |report, tell| slices(report, tell, |slice| slice.saved_bytes);
    GAUGE BYTES "server_resident" "Memory of the server's process" |report| report.server_memory.resident_bytes;
    GAUGE BYTES "server_own" "Memory of its own: neither members nor mapped files" |report| report.server_memory.own_bytes;
};

fn nodes(report: &StatusReport, tell: &mut Tell<'_>, of: fn(&NodeStatus) -> u64) {
    for node in &report.pool.nodes {
        tell(&[("node", node.node.0.to_string())], of(node));
    }
}

fn slices(report: &StatusReport, tell: &mut Tell<'_>, of: fn(&SliceStatus) -> u64) {
    for slice in &report.cache.slices {
        tell(&[("node", slice.node.0.to_string())], of(slice));
    }
}

#[derive(Debug)]
struct Told(Pools);

impl Told {
    fn reports(&self) -> impl Iterator<Item = (&Pool, &StatusReport)> {
        let pools = self.0.pools.iter();
        pools.filter_map(|pool| Some((pool, &**pool.report.as_ref()?)))
    }
}

impl Collector for Told {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut up = encoder.encode_descriptor(
            "up",
            "1 where the server answers, 0 where it does not",
            None,
            MetricType::Gauge,
        )?;
        for pool in &self.0.pools {
            let value = ConstGauge::new(u64::from(pool.silent.is_none() && pool.report.is_some()));
            value.encode(up.encode_family(&[("pool", &*pool.name)])?)?;
        }
        for dead in &self.0.dead {
            ConstGauge::new(0_u64).encode(up.encode_family(&[("pool", &**dead)])?)?;
        }
        let help = "Changes of homenode affinity that are in force";
        let changes = encoder.encode_descriptor("affinity_changes", help, None, MetricType::Gauge)?;
        ConstGauge::new(self.0.affinity_changes as u64).encode(changes)?;
        for metric in METRICS {
            let kind = if metric.is_counter {
                MetricType::Counter
            } else {
                MetricType::Gauge
            };
            let mut encoder =
                encoder.encode_descriptor(metric.name, metric.help, metric.is_bytes.then_some(&Unit::Bytes), kind)?;
            for (pool, report) in self.reports() {
                let mut result = Ok(());
                let mut tell = |labels: &[(&'static str, String)], value| {
                    let mut all = vec![("pool", &*pool.name)];
                    all.extend(labels.iter().map(|(label, value)| (*label, &**value)));
                    let encoded = encoder.encode_family(&all).and_then(|encoder| match metric.is_counter {
                        true => ConstCounter::new(value).encode(encoder),
                        false => ConstGauge::new(value).encode(encoder),
                    });
                    result = result.and(encoded);
                };
                (metric.tell)(report, &mut tell);
                result?;
            }
        }
        let help = "CPU time of the server";
        let mut cpu = encoder.encode_descriptor("server_cpu", help, Some(&Unit::Seconds), MetricType::Counter)?;
        for (pool, report) in self.reports() {
            let seconds = ConstCounter::new(report.server_cpu_ns as f64 / 1e9);
            seconds.encode(cpu.encode_family(&[("pool", &*pool.name)])?)?;
        }
        let help = "Time from when the server had a request to when it answered, by kind";
        let mut times = encoder.encode_descriptor("request", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (pool, report) in self.reports() {
            for of_kind in &report.fuse.times {
                let labels = [("pool", &*pool.name), ("kind", &*of_kind.kind)];
                // All of them each time: buckets that come later would break the quantiles of those that look back.
                let spans: Vec<_> = RequestTimes::ends()
                    .map(|end| {
                        let below_ns = end.map(|end| u64::try_from(end.as_nanos()).unwrap_or(u64::MAX));
                        let span = of_kind.spans.iter().find(|span| span.below_ns == below_ns);
                        let seconds = end.map_or(f64::INFINITY, |end| end.as_secs_f64());
                        (seconds, span.map_or(0, |span| span.requests))
                    })
                    .collect();
                let sum = of_kind.sum_ns as f64 / 1e9;
                let mut encoder = times.encode_family(&labels)?;
                encoder.encode_histogram::<NoLabelSet>(sum, of_kind.requests(), &spans, None)?;
            }
        }
        Ok(())
    }
}

/// Leaves one pool for each name: series are told apart by the names of pools. A mounted pool is left rather than a mount whose server was killed, and both
/// rather than a pool that was unmounted and waits for open files.
fn with_unique_names(pools: Pools) -> Pools {
    let mut names = BTreeSet::new();
    let mut is_new = |name: &String| names.insert(name.clone());
    let is_mounted = |pool: &Pool| pool.report.as_ref().is_none_or(|report| report.mounted);
    let (mut told, detached): (Vec<Pool>, Vec<Pool>) = pools.pools.into_iter().partition(is_mounted);
    told.retain(|pool| is_new(&pool.name));
    let mut dead = pools.dead;
    dead.retain(&mut is_new);
    told.extend(detached.into_iter().filter(|pool| is_new(&pool.name)));
    Pools {
        pools: told,
        dead,
        ..pools
    }
}

/// The text of what is known of all pools.
pub(super) fn text(pools: Pools) -> String {
    let mut registry = Registry::with_prefix("homenode");
    registry.register_collector(Box::new(Told(with_unique_names(pools))));
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing to a string cannot fail");
    text
}

pub(super) const CLASSIC_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Rewrites metrics in the text format before OpenMetrics, which collectors of text files read: descriptions name counters as their values do, and there are
/// neither units nor an end.
pub(super) fn classic(text: &str) -> String {
    let counter = |line: &str| Some(line.strip_prefix("# TYPE ")?.strip_suffix(" counter")?.to_owned());
    let counters: BTreeSet<String> = text.lines().filter_map(counter).collect();
    let mut lines = String::new();
    for line in text
        .lines()
        .filter(|line| !line.starts_with("# UNIT ") && *line != "# EOF")
    {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", what, name, rest] if counters.contains(name) => writeln!(lines, "# {what} {name}_total {rest}"),
            _ => writeln!(lines, "{line}"),
        }
        .expect("writing to a string cannot fail");
    }
    lines
}
