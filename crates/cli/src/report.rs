//! A second of a pool as viewers see it: the difference of two statuses, which the server takes once a second and keeps.

use crate::control::protocol::StatusReport;
use crate::status::size;
use homenode::{Flow, MemberState, NodeId, SliceStatus, Spill};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Seconds that a server keeps.
pub(crate) const KEPT: usize = 600;

/// Times of requests of a kind: from when the server had them to when it answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KindTimes {
    /// `read`, `write`, `sync` or `other`.
    pub(crate) kind: String,
    /// Nanoseconds in all.
    pub(crate) sum_ns: u64,
    /// Requests by time, ascending; spans without any are left out.
    pub(crate) spans: Vec<Span>,
}

/// Requests that took less than a time, and not less than half of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Span {
    /// The time; null for the longest ones.
    pub(crate) below_ns: Option<u64>,
    pub(crate) requests: u64,
}

impl KindTimes {
    pub(crate) fn requests(&self) -> u64 {
        self.spans.iter().map(|span| span.requests).sum()
    }

    /// The time below which so many percent of the requests lie, up to a factor of 2; `None` without requests, and for the longest ones.
    pub(crate) fn below(&self, percent: f64) -> Option<Duration> {
        let wanted = self.requests() as f64 * percent / 100.0;
        let mut sum = 0;
        let span = self.spans.iter().find(|span| {
            sum += span.requests;
            sum as f64 >= wanted
        })?;
        span.below_ns.map(Duration::from_nanos)
    }

    fn since(&self, before: Option<&Self>) -> Self {
        let earlier = |span: &Span| {
            let same = before.and_then(|before| before.spans.iter().find(|other| other.below_ns == span.below_ns));
            same.map_or(0, |span| span.requests)
        };
        let spans = self.spans.iter().map(|span| Span {
            requests: span.requests.saturating_sub(earlier(span)),
            ..*span
        });
        Self {
            kind: self.kind.clone(),
            sum_ns: self.sum_ns.saturating_sub(before.map_or(0, |before| before.sum_ns)),
            spans: spans.filter(|span| span.requests > 0).collect(),
        }
    }
}

/// Activity between two looks, about a second. Bytes and counts of that time, not a rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Sample {
    /// When it ended, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// How long it was.
    pub(crate) span_ms: u64,
    /// Bytes by node of the CPUs and home; null where that is not seen. Files of the kernel are looked at less often: the mean of what was counted last.
    pub(crate) flows: Option<Vec<Flow>>,
    /// Bytes among them that the mover located.
    #[serde(skip)]
    pub(crate) located: Vec<Flow>,
    /// Bytes that went to another node than the writer's, because nearer members were full.
    pub(crate) spills: Vec<Spill>,
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    /// Times of its requests; kinds without any are left out.
    pub(crate) times: Vec<KindTimes>,
    /// Bytes by which each slice of the cache was fetched from and saved to disks.
    pub(crate) cache: Vec<SliceSample>,
    /// Bytes of files that moved to their users.
    pub(crate) moved_bytes: u64,
    /// Held at its end.
    pub(crate) used_bytes: u64,
    /// Memory of the server's own at its end.
    pub(crate) server_bytes: u64,
    pub(crate) server_cpu_ns: u64,
}

/// A slice of the cache in that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SliceSample {
    pub(crate) node: NodeId,
    pub(crate) copies: u64,
    pub(crate) fetched_bytes: u64,
    pub(crate) saved_bytes: u64,
}

/// The last status that was sampled, and samples, the latest at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LiveReport {
    pub(crate) report: StatusReport,
    pub(crate) samples: Vec<Sample>,
}

impl Sample {
    /// The difference of two statuses, taken `span` apart. `last` is the sample before.
    pub(crate) fn between(
        before: &StatusReport,
        after: &StatusReport,
        (span, at_ms): (Duration, u64),
        last: Option<&Self>,
    ) -> Self {
        let span_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let counted = between(before.flows.as_deref(), after.flows.as_deref());
        // Files of the kernel are located seconds apart: their part is the mean since the look before, until there is a next one.
        let fresh = between(Some(&before.mover.located), Some(&after.mover.located)).unwrap_or_default();
        let located = match after
            .mover
            .located_until_ms
            .saturating_sub(before.mover.located_until_ms)
        {
            0 => last.map_or_else(Vec::new, |last| scaled(&last.located, span_ms, last.span_ms)),
            counted_ms => scaled(&fresh, span_ms, counted_ms),
        };
        let flows = counted.map(|counted| {
            let others = between(Some(&fresh), Some(&counted)).unwrap_or_default();
            Flow::sum(others.iter().chain(&located))
        });
        let spills = after.pool.spills.iter().map(|spill| {
            let mut same = before.pool.spills.iter();
            let same = same.find(|other| (other.from, other.home) == (spill.from, spill.home));
            Spill {
                bytes: spill.bytes.saturating_sub(same.map_or(0, |spill| spill.bytes)),
                ..*spill
            }
        });
        let times = after.fuse.times.iter().map(|times| {
            let mut same = before.fuse.times.iter();
            times.since(same.find(|other| other.kind == times.kind))
        });
        let cache = after.cache.slices.iter().map(|slice| {
            let same = before.cache.slices.iter().find(|other| other.node == slice.node);
            let more = |count: fn(&SliceStatus) -> u64| count(slice).saturating_sub(same.map_or(0, count));
            SliceSample {
                node: slice.node,
                copies: more(|slice| slice.copies),
                fetched_bytes: more(|slice| slice.fetched_bytes),
                saved_bytes: more(|slice| slice.saved_bytes),
            }
        });
        Self {
            at_ms,
            span_ms,
            flows,
            located,
            spills: spills.filter(|spill| spill.bytes > 0).collect(),
            requests: after.fuse.requests.saturating_sub(before.fuse.requests),
            errors: after.fuse.errors.saturating_sub(before.fuse.errors),
            times: times.filter(|times| times.requests() > 0).collect(),
            cache: cache.collect(),
            moved_bytes: after.mover.moved_bytes.saturating_sub(before.mover.moved_bytes),
            used_bytes: after.pool.used_bytes,
            server_bytes: after.server_memory.own_bytes,
            server_cpu_ns: after.server_cpu_ns.saturating_sub(before.server_cpu_ns),
        }
    }

    /// Makes a count of its time one of a second.
    pub(crate) fn rate(&self, count: u64) -> u64 {
        let rate = u128::from(count) * 1000 / u128::from(self.span_ms.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    /// Bytes a second; `None` where they are not seen.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.bytes_of(|_| true)
    }

    /// Bytes a second on other nodes than that of the CPU; `None` where they are not seen.
    pub(crate) fn remote_bytes(&self) -> Option<u64> {
        self.bytes_of(|flow| !flow.is_local())
    }

    fn bytes_of(&self, is_one: impl Fn(&Flow) -> bool) -> Option<u64> {
        let flows = self.flows.as_ref()?.iter().filter(|flow| is_one(flow));
        Some(self.rate(flows.map(|flow| flow.bytes).sum()))
    }

    /// Percent of its bytes that were local; `None` where that is not seen, or none moved.
    pub(crate) fn local_percent(&self) -> Option<f64> {
        Flow::local_percent(self.flows.as_ref()?)
    }
}

/// The flows that `after` has beyond `before`; `None` where they are not seen.
fn between(before: Option<&[Flow]>, after: Option<&[Flow]>) -> Option<Vec<Flow>> {
    let earlier = |flow: &Flow| {
        let mut same = before.into_iter().flatten();
        let same = same.find(|other| (other.from, other.home) == (flow.from, flow.home));
        same.map_or((0, 0), |flow| (flow.bytes, flow.operations))
    };
    let flows = after?.iter().map(|flow| {
        let (bytes, operations) = earlier(flow);
        Flow {
            bytes: flow.bytes.saturating_sub(bytes),
            operations: flow.operations.saturating_sub(operations),
            ..*flow
        }
    });
    Some(flows.filter(|flow| flow.bytes > 0).collect())
}

/// Makes counts of a time those of another one.
fn scaled(flows: &[Flow], to_ms: u64, from_ms: u64) -> Vec<Flow> {
    let scale = |count: u64| {
        let count = u128::from(count) * u128::from(to_ms) / u128::from(from_ms.max(1));
        u64::try_from(count).unwrap_or(u64::MAX)
    };
    let flows = flows.iter().map(|flow| Flow {
        bytes: scale(flow.bytes),
        operations: scale(flow.operations),
        ..*flow
    });
    flows.collect()
}

/// A line for each member that is emptied, with what is left.
pub(crate) fn drains(report: &StatusReport) -> impl Iterator<Item = String> {
    let members = report.pool.members.iter();
    members
        .filter(|member| member.state == MemberState::Draining)
        .map(|member| {
            format!(
                "{} of {} is drained: {} left",
                member.id,
                member.home,
                size(member.used_bytes)
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::protocol::tests::member;
    use homenode::{MemberStatus, Status};

    fn report(bytes: u64, requests: u64) -> StatusReport {
        let flow = |from, home, bytes| Flow {
            from: NodeId(from),
            home: NodeId(home),
            bytes,
            operations: bytes / 2,
        };
        let spans = [(256, requests / 2), (512, requests - requests / 2)];
        let spans = spans.map(|(below, requests)| Span {
            below_ns: Some(below),
            requests,
        });
        let mut report = StatusReport {
            flows: Some(vec![flow(0, 0, 3 * bytes), flow(1, 0, bytes), flow(1, 1, 7)]),
            pool: Status {
                spills: vec![Spill {
                    from: NodeId(1),
                    home: NodeId(0),
                    bytes,
                }],
                used_bytes: bytes,
                ..Status::default()
            },
            ..StatusReport::default()
        };
        report.fuse.requests = requests;
        report.fuse.times = vec![KindTimes {
            kind: "read".to_owned(),
            sum_ns: 300 * requests,
            spans: spans.to_vec(),
        }];
        report
    }

    #[test]
    fn a_sample_is_what_came_between_two_reports() {
        let (before, after) = (report(1000, 10), report(3000, 30));
        let sample = Sample::between(&before, &after, (Duration::from_millis(2000), 5), None);
        let flows = sample.flows.as_ref().expect("flows are seen");
        let told: Vec<_> = flows
            .iter()
            .map(|flow| (flow.from.0, flow.home.0, flow.bytes, flow.operations))
            .collect();
        assert_eq!(told, [(0, 0, 6000, 3000), (1, 0, 2000, 1000)]);
        assert_eq!(sample.local_percent(), Some(75.0));
        assert_eq!((sample.bytes(), sample.remote_bytes()), (Some(4000), Some(1000)));
        assert_eq!(
            sample.spills.iter().map(|spill| spill.bytes).collect::<Vec<_>>(),
            [2000]
        );
        assert_eq!(
            (sample.requests, sample.rate(sample.requests), sample.used_bytes),
            (20, 10, 3000)
        );
        assert_eq!((sample.times[0].requests(), sample.times[0].sum_ns), (20, 6000));
        let same = Sample::between(&after, &after, (Duration::from_secs(1), 6), None);
        assert_eq!(
            (same.flows, same.times.len(), same.spills.len()),
            (Some(Vec::new()), 0, 0)
        );
        assert_eq!(same.requests, 0);
        let unseen = StatusReport { flows: None, ..after };
        assert_eq!(
            Sample::between(&before, &unseen, (Duration::from_secs(1), 7), None).local_percent(),
            None
        );
    }

    #[test]
    fn a_drain_tells_what_is_left() {
        let member = |id, state| MemberStatus {
            home: NodeId(2),
            used_bytes: 3 << 20,
            ..member(id, state)
        };
        let mut report = report(0, 0);
        report.pool.members = vec![member(0, MemberState::Candidate), member(1, MemberState::Draining)];
        assert_eq!(
            drains(&report).collect::<Vec<_>>(),
            ["member 1 of node 2 is drained: 3.00 MiB left"]
        );
    }

    #[test]
    fn percentiles_are_ends_of_spans() {
        let span = |below_ns, requests| Span { below_ns, requests };
        let times = KindTimes {
            spans: vec![span(Some(256), 98), span(Some(1024), 1), span(None, 1)],
            ..KindTimes::default()
        };
        let below = |percent| times.below(percent).map(|time| time.as_nanos());
        assert_eq!(
            (below(50.0), below(98.0), below(99.0)),
            (Some(256), Some(256), Some(1024))
        );
        assert_eq!(below(99.9), None);
        assert_eq!(KindTimes::default().below(50.0), None);
    }

    /// Looks take long, and are seconds apart.
    #[test]
    fn bytes_that_are_located_seldom_are_shown_at_their_rate() {
        const LOOK_MS: u64 = 3500;
        let at = |ms: u64| {
            let mut report = StatusReport::default();
            let until_ms = ms / LOOK_MS * LOOK_MS;
            report.mover.located_until_ms = until_ms;
            let flow = |home, bytes| Flow {
                from: NodeId(0),
                home: NodeId(home),
                bytes,
                operations: bytes,
            };
            report.mover.located = vec![flow(1, 100 * until_ms)];
            // A volume is counted at once.
            report.flows = Some(vec![flow(0, 7 * ms), flow(1, 100 * until_ms)]);
            report
        };
        let mut rates = Vec::new();
        let mut last: Option<Sample> = None;
        for second in 1..=30 {
            let (before, after) = (at((second - 1) * 1000), at(second * 1000));
            let sample = Sample::between(&before, &after, (Duration::from_secs(1), second), last.as_ref());
            rates.extend(sample.bytes());
            last = Some(sample);
        }
        assert!(
            rates[..3].iter().all(|rate| *rate == 7_000),
            "nothing is counted yet: {rates:?}"
        );
        assert!(rates[3..].iter().all(|rate| *rate == 107_000), "{rates:?}");
    }
}
