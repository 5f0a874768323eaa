//! JSON that the page draws: rates of the last second, and the part of the history that is new.

use crate::live::{Pool, Pools};
use crate::report::{Sample, drains};
use homenode::{Flow, MemberState, Spill};
use serde::Serialize;

/// The page's version of this; the page is loaded anew when it differs.
const PAGE_VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, Serialize)]
pub(super) struct Live {
    version: &'static str,
    health: String,
    dead: Vec<String>,
    affinity_changes: usize,
    pools: Vec<PoolNow>,
}

#[derive(Debug, Serialize)]
struct PoolNow {
    /// Tells apart pools of one name, and servers that have a device one after the other.
    id: String,
    name: String,
    is_mounted: bool,
    health: String,
    is_silent: bool,
    now: Option<Now>,
    history: Vec<Point>,
}

/// `[end in ms, bytes/s, remote bytes/s, requests/s, spilled bytes/s]`; nulls where bytes are not seen.
type Point = (u64, Option<u64>, Option<u64>, u64, u64);

/// A pool's state and its last second; bytes and counts are rates of a second.
#[derive(Debug, Serialize)]
struct Now {
    pid: u32,
    transport: String,
    data: String,
    durable: Option<String>,
    capacity_bytes: u64,
    used_bytes: u64,
    open_files: u64,
    local_percent: Option<f64>,
    requests: u64,
    errors: u64,
    moved_bytes: u64,
    nodes: Vec<NodeNow>,
    flows: Option<Vec<Flow>>,
    spills: Vec<Spill>,
    times: Vec<TimesNow>,
    cache: Vec<CacheNow>,
    server_bytes: u64,
    server_cpu_percent: f64,
    /// Members that are emptied, and files that move to their users.
    moves: Vec<String>,
}

#[derive(Debug, Serialize)]
struct NodeNow {
    node: u16,
    state: &'static str,
    is_full: bool,
    capacity_bytes: u64,
    used_bytes: u64,
}

#[derive(Debug, Serialize)]
struct TimesNow {
    kind: String,
    requests: u64,
    mean_ns: u64,
    /// 50, 99 and 99.9 percent take less; null for what is longer than any span.
    below_ns: [Option<u64>; 3],
}

#[derive(Debug, Serialize)]
struct CacheNow {
    node: u16,
    bytes: u64,
    free_bytes: u64,
    dirty_bytes: u64,
    copies: u64,
    fetched_bytes: u64,
    saved_bytes: u64,
}

impl Live {
    pub(super) fn of(pools: &Pools, since_ms: u64) -> Self {
        Self {
            version: PAGE_VERSION,
            health: pools.health(),
            dead: pools.dead.clone(),
            affinity_changes: pools.affinity_changes,
            pools: pools.pools.iter().map(|pool| PoolNow::of(pool, since_ms)).collect(),
        }
    }
}

impl PoolNow {
    fn of(pool: &Pool, since_ms: u64) -> Self {
        let after = pool.samples.partition_point(|sample| sample.at_ms <= since_ms);
        let point = |sample: &Sample| {
            (
                sample.at_ms,
                sample.bytes(),
                sample.remote_bytes(),
                sample.rate(sample.requests),
                sample.rate(sample.spills.iter().map(|spill| spill.bytes).sum()),
            )
        };
        Self {
            id: format!(
                "{}-{}",
                pool.device,
                pool.report.as_ref().map_or(0, |report| report.pid)
            ),
            name: pool.name.clone(),
            is_mounted: pool.report.as_ref().is_none_or(|report| report.mounted),
            health: pool.health(),
            is_silent: pool.silent.is_some(),
            now: Now::of(pool),
            history: pool.samples.range(after..).map(|sample| point(sample)).collect(),
        }
    }
}

impl Now {
    fn of(pool: &Pool) -> Option<Self> {
        let (report, sample) = (pool.report.as_ref()?, pool.latest()?);
        let nodes = report.pool.nodes.iter().map(|node| NodeNow {
            node: node.node.0,
            state: node.state.name(),
            is_full: node.state == MemberState::Fat,
            capacity_bytes: node.capacity_bytes,
            used_bytes: node.used_bytes,
        });
        let rate_of = |flow: &Flow| Flow {
            bytes: sample.rate(flow.bytes),
            operations: sample.rate(flow.operations),
            ..*flow
        };
        let spills = sample.spills.iter().map(|spill| Spill {
            bytes: sample.rate(spill.bytes),
            ..*spill
        });
        let times = sample.times.iter().map(|times| TimesNow {
            kind: times.kind.clone(),
            requests: sample.rate(times.requests()),
            mean_ns: times.sum_ns / times.requests().max(1),
            below_ns: [50.0, 99.0, 99.9].map(|percent| {
                let below = times.below(percent)?;
                u64::try_from(below.as_nanos()).ok()
            }),
        });
        let slices = report
            .cache
            .slices
            .iter()
            .zip(&sample.cache)
            .map(|(slice, rates)| CacheNow {
                node: slice.node.0,
                bytes: slice.bytes,
                free_bytes: slice.free_bytes,
                dirty_bytes: slice.dirty_bytes,
                copies: sample.rate(rates.copies),
                fetched_bytes: sample.rate(rates.fetched_bytes),
                saved_bytes: sample.rate(rates.saved_bytes),
            });
        let decisions = report.mover.decisions.iter().rev().map(|told| {
            format!(
                "inode {} to {}: {}: {}",
                told.inode, told.node, told.outcome, told.reason
            )
        });
        Some(Self {
            pid: report.pid,
            transport: report.fuse.transport.clone(),
            data: report.fuse.data.clone(),
            durable: report
                .durable
                .as_ref()
                .map(|durable| durable.name.clone().unwrap_or_else(|| durable.uuid.clone())),
            capacity_bytes: report.pool.capacity_bytes,
            used_bytes: report.pool.used_bytes,
            open_files: report.fuse.open_files,
            local_percent: sample.local_percent(),
            requests: sample.rate(sample.requests),
            errors: sample.rate(sample.errors),
            moved_bytes: sample.rate(sample.moved_bytes),
            nodes: nodes.collect(),
            flows: sample.flows.as_ref().map(|flows| flows.iter().map(rate_of).collect()),
            spills: spills.collect(),
            times: times.collect(),
            cache: slices.collect(),
            server_bytes: sample.server_bytes,
            server_cpu_percent: sample.server_cpu_ns as f64 / 10_000.0 / sample.span_ms.max(1) as f64,
            moves: drains(report).chain(decisions).collect(),
        })
    }
}
