//! Bound threads that move almost nothing: when they get their masks back.
//!
//! Threads that pause for less than six dwell times keep their masks. A thread that was bound again waits twice as long the
//! next time, so one that pauses regularly is soon left as it is. A thread that has only inherited a mask waits for one dwell time.

use super::{Previous, Setting};
use crate::CpuId;
use crate::affinity::model::per_second;
use crate::affinity::{Config, Return, Snapshot, Target, Thread, ThreadId};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// Dwell times without bytes to speak of after which a bound thread gets its mask back for the first time.
const QUIET_DWELLS: u64 = 6;
/// Periods that a dwell time has here at least, however short the configured one is.
const QUIET_DWELL_PERIODS_MIN: u64 = 10;
/// Times that the wait doubles: once each time that the thread is bound again.
const QUIET_DOUBLINGS_MAX: u32 = 5;
/// This part of the smallest rate that is looked at is almost nothing: a thread that moves about the smallest is not quiet.
const QUIET_PART: u64 = 4;

impl Previous {
    /// Takes note of a thread that has inherited its mask from one that this program has bound, unless it is known.
    pub fn inherit(&mut self, thread: ThreadId, cpus: Vec<CpuId>) {
        self.set.entry(Target::Thread(thread)).or_insert_with(|| Setting {
            is_inherited: true,
            ..Setting::found(cpus)
        });
    }

    /// Whether a thread has been bound, and has not only inherited its mask.
    pub(in crate::affinity) fn is_bound(&self, id: ThreadId) -> bool {
        let setting = self.set.get(&Target::Thread(id));
        setting.is_some_and(|setting| !setting.is_inherited)
    }

    /// Returns the threads that get their masks back: they have moved almost nothing for long.
    pub(in crate::affinity) fn returns(&self, snapshot: &Snapshot, config: &Config) -> Vec<Return> {
        let threads = self.set.iter().map_while(|(target, setting)| match target {
            Target::Thread(id) => Some((*id, setting.quiet_periods + 1)),
            _ => None,
        });
        let is_long = |id, periods| self.quiet_periods(id, config).is_some_and(|enough| periods >= enough);
        let mut quiet: Vec<Return> = threads
            .filter(|(id, periods)| is_long(*id, *periods))
            .map(|(thread, quiet_periods)| Return {
                thread,
                quiet_periods: Some(quiet_periods),
            })
            .collect();
        if !quiet.is_empty() {
            let keeps = |thread: &&Thread| moves(thread, snapshot, config) || self.is_unknown(thread);
            let kept: BTreeSet<ThreadId> = snapshot.threads.iter().filter(keeps).map(|thread| thread.id).collect();
            quiet.retain(|one| !kept.contains(&one.thread));
        }
        quiet
    }

    /// Whether a thread has a mask that was set, and has had it for the dwell time: its policy may change with the device that it uses.
    pub(in crate::affinity) fn may_go_back(&self, id: ThreadId, config: &Config) -> bool {
        let target = Target::Thread(id);
        self.set.contains_key(&target) && self.dwell_left(&target, config.dwell_periods) == 0
    }

    /// Whether it is not known how much a thread moves, as bytes that could be read before cannot be read now. A
    /// thread with bytes that never can be read, as without BPF, is judged by its other bytes.
    pub(in crate::affinity) fn is_unknown(&self, thread: &Thread) -> bool {
        let setting = self.set.get(&Target::Thread(thread.id));
        thread.is_unread && setting.is_some_and(|setting| setting.is_read)
    }

    /// Returns after how many periods without bytes to speak of a thread gets its mask back; none for one that was not bound.
    pub(in crate::affinity) fn quiet_periods(&self, id: ThreadId, config: &Config) -> Option<u64> {
        let setting = self.set.get(&Target::Thread(id))?;
        let dwell = config.dwell_periods.max(QUIET_DWELL_PERIODS_MIN);
        if setting.is_inherited {
            return Some(dwell);
        }
        let times = self.returned.get(&id).copied().unwrap_or(0);
        Some(dwell.saturating_mul(QUIET_DWELLS << times.min(QUIET_DOUBLINGS_MAX)))
    }
}

/// Whether a thread moves bytes to speak of.
pub(super) fn moves(thread: &Thread, snapshot: &Snapshot, config: &Config) -> bool {
    let least = (config.rate_bytes_per_s_min / QUIET_PART).max(1);
    let disk = thread.disk.iter().map(|disk| disk.bytes).fold(0, u64::saturating_add);
    let all = disk
        .saturating_add(thread.network_bytes())
        .saturating_add(thread.memory_bytes());
    per_second(all, snapshot) >= least
}
