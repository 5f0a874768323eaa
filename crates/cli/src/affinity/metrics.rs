//! Metrics of `homenode affinity run`: what it sees, decides and does, and what it costs. No names of processes or threads.

use super::plan::codes::of_outcome;
use crate::failure::Result;
use crate::http::{Address, Asked, Page, Pages, Server};
use homenode_linux::affinity::Sensed;
use homenode_linux::affinity::act::{Applied, Restore, Standing};
use homenode_policy::affinity::{Class, Config, Plan, Snapshot, Target, Thread};
use hyper::StatusCode;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

type Labels<const N: usize> = [(&'static str, &'static str); N];

/// Cheap to copy: all copies count together.
#[derive(Clone, Debug, Default)]
pub(super) struct Metrics {
    periods: Family<Labels<1>, Counter>,
    actions: Family<Labels<2>, Counter>,
    files: Family<Labels<1>, Counter>,
    cost: Family<Labels<1>, Gauge>,
    threads: Family<Labels<1>, Gauge>,
    changes: Family<Labels<1>, Gauge>,
    unseen: Gauge,
    conflicts: Gauge,
    cpu_seconds: Counter<f64, AtomicU64>,
}

struct MetricsPage(Registry);

impl Pages for MetricsPage {
    /// All users may ask, so none of them keeps a place.
    fn at_once(&self, asked: &Asked<'_>) -> Option<Page> {
        Some(self.get(asked))
    }

    fn get(&self, asked: &Asked<'_>) -> Page {
        if asked.path != "/metrics" {
            return Page::refused(StatusCode::NOT_FOUND, "there is /metrics alone");
        }
        let mut text = String::new();
        encode(&mut text, &self.0).expect("writing to a string cannot fail");
        Page::new(METRICS_TYPE, text)
    }
}

/// Content type of metrics as text.
pub(crate) const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

impl Metrics {
    /// Serves them at an address, to whoever can reach it: there are no names in them.
    pub(super) fn serve(&self, address: &Address) -> Result<Server> {
        Server::start(address, 0o666, "metrics", Arc::new(MetricsPage(self.registry())))
    }

    fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("homenode_affinity");
        registry.register("periods", "Observed periods, by outcome", self.periods.clone());
        registry.register("actions", "Changes, by target and outcome", self.actions.clone());
        registry.register(
            "files",
            "Files of pools to move to their threads, by outcome",
            self.files.clone(),
        );
        registry.register_with_unit(
            "cost",
            "What the bytes of the last period cost where things were, and what they cost by the plan: bytes a second that \
             travel as far again as a local access",
            Unit::Other("bytes_per_second".to_owned()),
            self.cost.clone(),
        );
        registry.register(
            "threads",
            "Threads that ran in the last period, by activity",
            self.threads.clone(),
        );
        registry.register(
            "changes",
            "Changes in the journal, by how they stand",
            self.changes.clone(),
        );
        registry.register("unseen", "Kinds of things that could not be seen", self.unseen.clone());
        registry.register("conflicts", "Other programs that set the same", self.conflicts.clone());
        registry.register_with_unit(
            "cpu",
            "CPU time of this process",
            Unit::Seconds,
            self.cpu_seconds.clone(),
        );
        registry
    }

    pub(super) fn looked(&self, result: &'static str) {
        self.periods.get_or_create(&[("result", result)]).inc();
    }

    pub(super) fn planned(&self, sensed: &Sensed, plan: &Plan, config: &Config) {
        let set = |family: &Family<Labels<1>, Gauge>, label, value: u64| {
            family
                .get_or_create(&[label])
                .set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        set(&self.cost, ("when", "now"), plan.cost_before.bytes_per_s());
        set(&self.cost, ("when", "planned"), plan.cost_after.bytes_per_s());
        let mut classes = CLASSES.map(|name| (name, 0));
        for thread in &sensed.snapshot.threads {
            let of_thread = class(thread, &sensed.snapshot, config);
            for (_, number) in classes.iter_mut().filter(|(name, _)| *name == of_thread) {
                *number += 1;
            }
        }
        for (name, number) in classes {
            set(&self.threads, ("class", name), number);
        }
        self.unseen.set(i64::try_from(sensed.unseen.len()).unwrap_or(i64::MAX));
    }

    pub(super) fn applied(&self, applied: &Applied) {
        for (target, outcome) in &applied.outcomes {
            let labels = [("kind", kind(target)), ("outcome", of_outcome(outcome))];
            self.actions.get_or_create(&labels).inc();
        }
        for (_, restore) in &applied.returned {
            let outcome = match restore {
                Restore::Left(_) => "changed",
                Restore::Vanished => "vanished",
                Restore::Failed(_) => "refused",
                _ => "given-back",
            };
            let labels = [("kind", "thread"), ("outcome", outcome)];
            self.actions.get_or_create(&labels).inc();
        }
    }

    pub(super) fn file_moved(&self, is_done: bool) {
        let outcome = if is_done { "moved" } else { "refused" };
        self.files.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(super) fn standing(&self, standings: &[(Target, Standing)]) {
        for (name, is) in STANDINGS {
            let number = standings.iter().filter(|(_, standing)| is(standing)).count();
            let gauge = self.changes.get_or_create(&[("standing", name)]);
            gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
        }
    }

    pub(super) fn conflicts(&self, number: usize) {
        self.conflicts.set(i64::try_from(number).unwrap_or(i64::MAX));
    }

    pub(super) fn spent(&self, cpu_seconds: f64) {
        let more = cpu_seconds - self.cpu_seconds.get();
        self.cpu_seconds.inc_by(more.max(0.0));
    }
}

const CLASSES: [&str; 6] = ["network", "disk", "both", "buffers", "compute", "unread"];

type IsStanding = fn(&Standing) -> bool;

const STANDINGS: [(&str, IsStanding); 5] = [
    ("in-force", |standing| *standing == Standing::InForce),
    ("pending", |standing| *standing == Standing::Pending),
    ("changed", |standing| matches!(standing, Standing::Changed(_))),
    ("vanished", |standing| *standing == Standing::Vanished),
    ("unreadable", |standing| matches!(standing, Standing::Unreadable(_))),
];

fn class(thread: &Thread, snapshot: &Snapshot, config: &Config) -> &'static str {
    let per_second = |bytes: u64| {
        let rate = u128::from(bytes) * 1_000_000_000 / u128::from(snapshot.period_ns.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    };
    let disk = thread.disk.iter().map(|disk| disk.bytes).fold(0, u64::saturating_add);
    match Class::of(
        per_second(thread.network_bytes()),
        per_second(disk),
        per_second(thread.memory_bytes()),
        config.rate_bytes_per_s_min,
    ) {
        Class::Network => "network",
        Class::Disk => "disk",
        Class::Both => "both",
        Class::Buffers => "buffers",
        Class::Compute if thread.is_unread => "unread",
        Class::Compute => "compute",
    }
}

fn kind(target: &Target) -> &'static str {
    match target {
        Target::Thread(_) => "thread",
        Target::Interrupt(_) => "interrupt",
        Target::Transmit { .. } => "transmit",
        Target::Receive { .. } => "receive",
    }
}
