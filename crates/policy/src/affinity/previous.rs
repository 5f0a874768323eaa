//! Settings of earlier plans. With them loads settle, and settings of other programs are told from this program's own.

mod quiet;
mod resets;

use super::cost::{Cost, NS_PER_S};
use super::model::per_second;
use super::reason::Why;
use super::{Action, Config, FileId, Plan, Snapshot, Target, ThreadId};
use crate::CpuId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use quiet::moves;
use resets::settings;

/// Periods that something waits at least which could not be changed.
const POSTPONED_PERIODS_MIN: u64 = 10;

/// Settings of the plans so far. The actor makes the next `Previous` after each plan that it carried out
/// ([`Previous::after`]), and corrects it where the kernel did not obey.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Previous {
    period: u64,
    set: BTreeMap<Target, Setting>,
    refused: BTreeSet<Target>,
    /// The period in which each could not be changed for a reason that may pass.
    postponed: BTreeMap<Target, u64>,
    files: BTreeMap<FileId, Moved>,
    /// How often threads got their masks back.
    returned: BTreeMap<ThreadId, u32>,
    /// The load that the last plan was made for, when that plan was free to move everything.
    settled: Option<Settled>,
}

/// Moves of a file so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moved {
    times: u32,
    /// The period of the last one.
    last: u64,
}

/// A load, and what it costs when its plan is carried out. A search would find the same again, or something as good at
/// the price of moves: which thread uses which queue is known only as far as packets tell by the CPU they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Settled {
    online: Vec<CpuId>,
    cost: Cost,
    threads: BTreeMap<ThreadId, Activity>,
}

/// Bytes that a thread moves and CPU time that it takes, in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Activity {
    disk_bytes: u64,
    network_bytes: u64,
    memory_bytes: u64,
    busy_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    cpus: Vec<CpuId>,
    /// The period in which it moved; none for one of an earlier run and one that was kept, which need not dwell.
    period: Option<u64>,
    /// When the youngest thread started that was seen then, in clock ticks: who started later and has these CPUs has
    /// inherited them.
    youngest: u64,
    /// Periods since a thread moved bytes to speak of.
    quiet_periods: u64,
    /// All bytes of a thread could be read since it was set.
    is_read: bool,
    /// A thread has the mask of the thread that started it, and has moved no bytes to speak of itself.
    is_inherited: bool,
    /// An interrupt or queue had other CPUs in the last period.
    is_changed: bool,
}

impl Previous {
    /// After `plan`, made for `snapshot`, has been carried out: the next period.
    #[must_use]
    pub fn after(&self, plan: &Plan, snapshot: &Snapshot, config: &Config) -> Self {
        let youngest = snapshot.threads.iter().map(|thread| thread.id.started).max();
        let mut next = self.with(&plan.resets);
        next.period += 1;
        let least = config.dwell_periods.max(POSTPONED_PERIODS_MIN);
        next.postponed.retain(|_, at| at.saturating_add(least) > next.period);
        next.see(snapshot, config);
        for one in &plan.returns {
            next.set.remove(&Target::Thread(one.thread));
            *next.returned.entry(one.thread).or_default() += 1;
        }
        let dwells = plan.stays.iter().any(|stay| matches!(stay.why, Why::Dwell { .. }));
        if plan.actions.iter().any(Action::moves) || !dwells {
            next.settled = (!dwells).then(|| Settled {
                online: snapshot.online.clone(),
                cost: plan.cost_after,
                threads: activities(snapshot),
            });
        }
        // A file that is not used for a moment is in no snapshot, and rests all the same.
        let rests = |id| self.file_rests(id, config.dwell_periods);
        next.files
            .retain(|id, _| rests(*id) || snapshot.files.iter().any(|file| file.id == *id));
        for one in &plan.files {
            let moved = next.files.entry(one.file).or_default();
            moved.times += 1;
            moved.last = self.period;
        }
        for action in &plan.actions {
            let setting = Setting {
                // Who is kept where it is has not moved, and may yet when more is known.
                period: action.moves().then_some(self.period),
                youngest: youngest.unwrap_or(u64::MAX),
                ..Setting::found(action.to.clone())
            };
            next.set.insert(action.target.clone(), setting);
        }
        next
    }

    /// Takes note of something that an earlier run of the program has set.
    pub fn note(&mut self, target: Target, cpus: Vec<CpuId>) {
        self.set.insert(target, Setting::found(cpus));
    }

    /// Counts periods in which threads move nothing to speak of, and sees which interrupts and queues are as they were set.
    fn see(&mut self, snapshot: &Snapshot, config: &Config) {
        for (target, setting) in &mut self.set {
            let Target::Thread(_) = target else { break };
            setting.quiet_periods += 1;
        }
        for thread in &snapshot.threads {
            let is_unknown = self.is_unknown(thread);
            let Some(setting) = self.set.get_mut(&Target::Thread(thread.id)) else {
                continue;
            };
            setting.is_read |= !thread.is_unread;
            if moves(thread, snapshot, config) {
                (setting.quiet_periods, setting.is_inherited) = (0, false);
            } else if is_unknown {
                setting.quiet_periods -= 1;
            }
        }
        for (target, now, _) in settings(snapshot) {
            if let Some(setting) = self.set.get_mut(&target) {
                setting.is_changed = setting.cpus != now;
            }
        }
    }

    /// The kernel refuses to change this, or it is left to another program: it is not planned again, and what was set of it is forgotten.
    pub fn refuse(&mut self, target: Target) {
        self.set.remove(&target);
        self.refused.insert(target);
        self.reconsider();
    }

    /// Leaves something where it is for the dwell time: it could not be changed, for a reason that may pass.
    pub fn postpone(&mut self, target: Target) {
        self.postponed.insert(target, self.period);
    }

    /// Forgets that something was set: it is not in force any more.
    pub fn forget(&mut self, target: &Target) {
        self.set.remove(target);
    }

    /// Plans interrupts and queues again that were refused: a program that they were left to has gone. Threads stay refused.
    pub fn forgive(&mut self) {
        self.refused.retain(|target| matches!(target, Target::Thread(_)));
        self.reconsider();
    }

    /// Looks at everything again, although the load may be the same: the configuration has changed, or not all of a plan
    /// was carried out.
    pub fn reconsider(&mut self) {
        self.settled = None;
    }

    /// Forgets whatever `keep` does not say is still there. Threads that are idle are in no snapshot, so only the caller
    /// knows which have ended.
    pub fn retain(&mut self, mut keep: impl FnMut(&Target) -> bool) {
        self.set.retain(|target, _| keep(target));
        self.refused.retain(|target| keep(target));
        self.postponed.retain(|target, _| keep(target));
        self.returned.retain(|thread, _| keep(&Target::Thread(*thread)));
    }

    /// The CPUs that were set last.
    #[must_use]
    pub fn cpus(&self, target: &Target) -> Option<&[CpuId]> {
        self.set.get(target).map(|setting| &setting.cpus[..])
    }

    /// Whether the kernel refuses to change it.
    #[must_use]
    pub fn refused(&self, target: &Target) -> bool {
        self.refused.contains(target)
    }

    /// Whether this is the load of the last plan, within the hysteresis, and costs no more than that plan promised.
    pub(super) fn is_settled(&self, snapshot: &Snapshot, config: &Config, cost: Cost) -> bool {
        let percent = u64::from(config.hysteresis_percent);
        let more = |value: u64| value.saturating_add((value / 100).saturating_mul(percent));
        let least = config.rate_bytes_per_s_min;
        let bytes = |a: u64, b: u64| a.max(b) <= more(a.min(b)).saturating_add(least);
        let busy = |a: u64, b: u64| a.abs_diff(b) <= NS_PER_S / 100 * percent;
        let alike = |a: Activity, b: Activity| {
            let by_kind = bytes(a.disk_bytes, b.disk_bytes) && bytes(a.network_bytes, b.network_bytes);
            by_kind && bytes(a.memory_bytes, b.memory_bytes) && busy(a.busy_ns, b.busy_ns)
        };
        let Some(settled) = &self.settled else {
            return false;
        };
        let threads = activities(snapshot);
        let of = |threads: &BTreeMap<ThreadId, Activity>, id| threads.get(id).copied().unwrap_or_default();
        let all = threads.keys().chain(settled.threads.keys());
        settled.online == snapshot.online
            && cost.0 <= more(settled.cost.0).saturating_add(config.migration_price.0)
            && all
                .into_iter()
                .all(|id| alike(of(&threads, id), of(&settled.threads, id)))
    }

    /// How many periods, this one included, the target has to stay yet.
    pub(super) fn dwell_left(&self, target: &Target, dwell_periods: u64) -> u64 {
        let left = |since: u64, periods| since.saturating_add(periods).saturating_sub(self.period);
        let moved = self.set.get(target).and_then(|setting| setting.period);
        let moved = moved.map_or(0, |moved| left(moved, dwell_periods));
        let failed = self.postponed.get(target);
        moved.max(failed.map_or(0, |failed| left(*failed, dwell_periods.max(POSTPONED_PERIODS_MIN))))
    }

    /// Whether a file stays where it is for now: for the dwell time after its first move, twice as long after each further one.
    pub(super) fn file_rests(&self, file: FileId, dwell_periods: u64) -> bool {
        self.files.get(&file).is_some_and(|moved| {
            let rest = dwell_periods.saturating_mul(1 << moved.times.saturating_sub(1).min(16));
            moved.last.saturating_add(rest) > self.period
        })
    }

    /// Whether a target that was set has other CPUs now. Not where none of the set ones `runs`: then it was the kernel.
    pub(super) fn taken_over(&self, target: &Target, now: &[CpuId], runs: impl Fn(CpuId) -> bool) -> bool {
        self.cpus(target)
            .is_some_and(|set| set != now && set.iter().any(|cpu| runs(*cpu)))
    }

    /// Whether someone else has given the thread fewer CPUs than its cpuset has. `own` are those of its mask and `all`
    /// those of its cpuset that run, ascending: CPUs that do not run are left in some masks and taken out of others.
    /// `indices` counts CPUs as these do.
    pub(super) fn foreign(
        &self,
        id: ThreadId,
        own: &[usize],
        all: &[usize],
        indices: impl Fn(&[CpuId]) -> Vec<usize>,
    ) -> bool {
        let inside = |cpu: &usize, set: &[usize]| set.binary_search(cpu).is_ok();
        if all.iter().all(|cpu| inside(cpu, own)) {
            return false;
        }
        let set_here = |setting: &Setting| {
            let mut set = indices(&setting.cpus);
            set.retain(|cpu| inside(cpu, all));
            set == own
        };
        let of_thread = self.set.get(&Target::Thread(id));
        !of_thread.is_some_and(set_here) && !self.inherited(id, set_here)
    }

    /// Whether the thread started after one of its process was given CPUs that are `alike` its own.
    fn inherited(&self, id: ThreadId, alike: impl Fn(&Setting) -> bool) -> bool {
        let first = ThreadId {
            thread: 0,
            started: 0,
            ..id
        };
        let process = self.set.range(Target::Thread(first)..);
        process
            .take_while(|(target, _)| matches!(target, Target::Thread(other) if other.process == id.process))
            .any(|(_, setting)| id.started > setting.youngest && alike(setting))
    }
}

impl Setting {
    /// CPUs that were set before this program looked.
    fn found(cpus: Vec<CpuId>) -> Self {
        Self {
            cpus,
            period: None,
            youngest: u64::MAX,
            quiet_periods: 0,
            is_read: false,
            is_inherited: false,
            is_changed: false,
        }
    }
}

fn activities(snapshot: &Snapshot) -> BTreeMap<ThreadId, Activity> {
    // Those that come and go unsettle nothing; who stays is a new load in the next period.
    let lasting = snapshot.threads.iter().filter(|thread| !thread.is_new);
    let threads = lasting.map(|thread| {
        let disk = thread.disk.iter().map(|disk| disk.bytes);
        let activity = Activity {
            disk_bytes: per_second(disk.fold(0, u64::saturating_add), snapshot),
            network_bytes: per_second(thread.network_bytes(), snapshot),
            memory_bytes: per_second(thread.memory_bytes(), snapshot),
            busy_ns: per_second(thread.cpu_ns, snapshot),
        };
        (thread.id, activity)
    });
    threads.collect()
}
