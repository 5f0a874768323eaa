//! Samples a pool's status once a second, for viewers: they read what was sampled.
//!
//! Cost: a status a second, and some kilobytes for each of [`KEPT`] samples.

use crate::control::protocol::StatusReport;
use crate::failure::{Cannot, Result, fail};
use crate::report::{KEPT, LiveReport, Sample};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const PERIOD: Duration = Duration::from_secs(1);
/// A pool is watched for so long after a viewer has asked.
const WATCHED: Duration = Duration::from_secs(30);
/// Age of the last sample above which something is wrong with the thread that takes them.
const AGE_MAX: Duration = Duration::from_secs(5);
const _: () = assert!(AGE_MAX.as_secs() > PERIOD.as_secs());

/// The samples of a pool. The thread that takes them ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Sampler {
    kept: Arc<Mutex<Kept>>,
    _alive: Sender<()>,
}

#[derive(Debug)]
struct Kept {
    /// The status that viewers are told: the one of the last sample, or a newer one for the first of them.
    shown: Arc<StatusReport>,
    /// `shown` was taken for viewers.
    is_for_viewers: bool,
    /// The status of the last sample, from which the next one counts.
    latest: Arc<StatusReport>,
    samples: VecDeque<Arc<Sample>>,
    /// When `latest` was taken.
    sampled: Instant,
    /// When a viewer last asked.
    asked: Option<Instant>,
}

impl Sampler {
    /// Samples what `status` tells, from now on and until it tells nothing. It hears whether somebody has looked lately.
    pub(crate) fn start(mut status: impl FnMut(bool) -> Option<StatusReport> + Send + 'static) -> Result<Self> {
        let Some(first) = status(false) else {
            fail!("the pool has no status to sample");
        };
        let first = Arc::new(first);
        let kept = Arc::new(Mutex::new(Kept {
            shown: Arc::clone(&first),
            is_for_viewers: false,
            latest: first,
            samples: VecDeque::new(),
            sampled: Instant::now(),
            asked: None,
        }));
        let (alive, is_over) = channel::<()>();
        let shared = Arc::clone(&kept);
        let run = move || {
            let mut looked = Instant::now();
            while let Err(RecvTimeoutError::Timeout) = is_over.recv_timeout(PERIOD) {
                let is_watched = shared.lock().asked.is_some_and(|asked| asked.elapsed() < WATCHED);
                let Some(report) = status(is_watched) else { return };
                let span = looked.elapsed();
                looked += span;
                shared.lock().add(report, span, is_watched);
            }
        };
        let started = thread::Builder::new().name("sampler".into()).spawn(run);
        started.cannot("start the thread that samples the pool")?;
        Ok(Self { kept, _alive: alive })
    }

    /// Whether the latest status was taken for viewers: without them some figures are left out.
    pub(crate) fn is_for_viewers(&self) -> bool {
        self.kept.lock().is_for_viewers
    }

    /// Says that samples have ended, or wait for something.
    pub(crate) fn problem(&self) -> Option<String> {
        let age = self.kept.lock().sampled.elapsed();
        (age > AGE_MAX).then(|| format!("the server has sampled nothing for {} s: see its log", age.as_secs()))
    }

    /// Shows viewers a status until there is a next one.
    pub(crate) fn show(&self, report: StatusReport) {
        let mut kept = self.kept.lock();
        kept.shown = Arc::new(report);
        kept.is_for_viewers = true;
    }

    pub(crate) fn latest(&self) -> StatusReport {
        let mut kept = self.kept.lock();
        kept.asked = Some(Instant::now());
        let latest = Arc::clone(&kept.shown);
        drop(kept);
        (*latest).clone()
    }

    /// The latest status, and samples that ended after `since_ms`.
    pub(crate) fn since(&self, since_ms: u64) -> LiveReport {
        let (latest, samples) = {
            let mut kept = self.kept.lock();
            kept.asked = Some(Instant::now());
            let after = kept.samples.partition_point(|sample| sample.at_ms <= since_ms);
            (
                Arc::clone(&kept.shown),
                kept.samples.range(after..).cloned().collect::<Vec<_>>(),
            )
        };
        LiveReport {
            report: (*latest).clone(),
            samples: samples.iter().map(|sample| (**sample).clone()).collect(),
        }
    }
}

impl Kept {
    fn add(&mut self, report: StatusReport, span: Duration, is_for_viewers: bool) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        // As far apart as they were taken, also after the clock was set back.
        let span_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1);
        let last_ms = self.samples.back().map_or(0, |sample| sample.at_ms);
        let last = self.samples.back().map(|sample| &**sample);
        let at_ms = now_ms.max(last_ms.saturating_add(span_ms));
        let sample = Sample::between(&self.latest, &report, (span, at_ms), last);
        self.latest = Arc::new(report);
        self.sampled = Instant::now();
        self.shown = Arc::clone(&self.latest);
        self.is_for_viewers = is_for_viewers;
        self.samples.push_back(Arc::new(sample));
        if self.samples.len() > KEPT {
            self.samples.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_minutes_are_kept_and_viewers_get_what_is_new() {
        let report = |requests| {
            let mut report = StatusReport::default();
            report.fuse.requests = requests;
            report
        };
        let mut kept = Kept {
            shown: Arc::default(),
            is_for_viewers: false,
            latest: Arc::new(report(0)),
            samples: VecDeque::new(),
            sampled: Instant::now(),
            asked: None,
        };
        (1..=KEPT as u64 + 5).for_each(|second| kept.add(report(second * second), PERIOD, false));
        assert_eq!(kept.samples.len(), KEPT);
        let sampler = Sampler {
            kept: Arc::new(Mutex::new(kept)),
            _alive: channel().0,
        };
        let all = sampler.since(0);
        assert_eq!(all.report.fuse.requests, 605 * 605);
        assert_eq!(
            all.samples.last().expect("there are samples").requests,
            605 * 605 - 604 * 604
        );
        assert!(all.samples.is_sorted_by(|one, next| one.at_ms < next.at_ms));
        // The clock stood still meanwhile, as one that was set back.
        let apart_ms = all.samples[KEPT - 1].at_ms - all.samples[0].at_ms;
        assert!(u128::from(apart_ms) >= (KEPT as u128 - 1) * PERIOD.as_millis());
        let last_ms = all.samples[KEPT - 3].at_ms;
        assert_eq!(sampler.since(last_ms).samples.len(), 2);
        assert!(sampler.since(u64::MAX).samples.is_empty());
        // A status for the first viewer is no sample: the next one counts from the last one.
        assert!(!sampler.is_for_viewers());
        sampler.show(report(7));
        assert!(sampler.is_for_viewers());
        assert_eq!(sampler.since(last_ms).report.fuse.requests, 7);
        sampler.kept.lock().add(report(605 * 605 + 3), PERIOD, true);
        let told = sampler.since(0);
        assert_eq!(told.report.fuse.requests, 605 * 605 + 3);
        assert_eq!(told.samples.last().expect("there are samples").requests, 3);
    }

    #[test]
    fn samples_that_end_are_a_problem() {
        let sampler = Sampler::start(|_| Some(StatusReport::default())).unwrap();
        assert_eq!(sampler.problem(), None);
        sampler.kept.lock().sampled = Instant::now().checked_sub(2 * AGE_MAX).unwrap();
        let problem = sampler.problem().unwrap();
        assert!(problem.contains("sampled nothing for 10 s"), "{problem}");
    }

    #[test]
    fn a_pool_is_sampled_until_it_has_no_status() {
        let looks = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&looks);
        let sampler = Sampler::start(move |_| {
            let mut looks = counted.lock();
            *looks += 1;
            (*looks < 3).then(StatusReport::default)
        });
        let sampler = sampler.unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while *looks.lock() < 3 && Instant::now() < end {
            thread::sleep(Duration::from_millis(50));
        }
        let told = sampler.since(0);
        assert_eq!((told.samples.len(), *looks.lock()), (1, 3));
        assert!(told.samples[0].span_ms >= 1000, "{told:?}");
        assert!(Sampler::start(|_| None).is_err());
    }
}
