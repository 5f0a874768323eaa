//! Periods of `run`, one after the other: sense, decide, act, check whether it holds.

use super::super::card_advice::advice;
use super::super::known::{Known, failure, of_others};
use super::super::look;
use super::super::metrics::Metrics;
use super::super::pools::{self, FileMoved};
use super::super::revert::named;
use super::super::settings::Settings;
use super::super::words::{count, name, plain};
use crate::failure::{Failure, Result, chain};
use crate::topology::ranges;
use homenode_linux::affinity::act::{Actor, Applied, Live, Outcome, Restore, Standing};
use homenode_linux::affinity::{Hardware, Sensed, Sensor};
use homenode_linux::topology::{self, Source};
use homenode_policy::affinity::{MoveFile, Plan, Snapshot, Target};
use homenode_policy::topology::Topology;
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;

/// Periods between two looks at state that changes rarely.
const AROUND_PERIODS: u64 = 30;
/// Periods between two looks for threads that have inherited a mask: a build that was started from a bound shell is not to
/// wait long for its CPUs.
const INHERIT_PERIODS: u64 = 10;
/// Periods between two looks at pending changes: an interrupt that never arrives leaves its change pending.
const PENDING_PERIODS: u64 = 5;
/// Messages that are remembered as told. A machine has a few; further ones are not logged.
const ONCE_MAX: usize = 1000;

#[derive(Debug)]
pub(super) struct Daemon {
    settings: Settings,
    actor: Actor<Live>,
    sensor: Sensor,
    topology: Topology,
    /// Hardware of the last period; a change has the topology read again.
    hardware: Hardware,
    known: Known,
    metrics: Metrics,
    period: u64,
    /// Files on the way, with what becomes of each.
    moving: Option<Receiver<(MoveFile, FileMoved)>>,
    /// Threads that got their masks back so far.
    given_back: usize,
    /// Messages told so far, each to be told once.
    told: Told,
    status: String,
}

/// Summary of a period.
struct Moved {
    threads: usize,
    cost: String,
    is_to_be_verified: bool,
}

/// Messages that were told last.
#[derive(Debug, Default)]
struct Told {
    problem: Option<String>,
    /// Advice, and what is not seen: each is logged once.
    once: BTreeSet<String>,
    conflicts: BTreeSet<String>,
    standings: BTreeMap<Target, Standing>,
}

impl Told {
    /// Logs each advice about cards once.
    fn advise(&mut self, sensed: &Sensed, plan: &Plan) {
        for one in advice(sensed, plan) {
            let said = plain(&one.to_string());
            if self.is_new(&said) {
                tracing::warn!("{said}");
            }
        }
    }

    /// Whether a message is to be logged, as it has not been yet.
    fn is_new(&mut self, said: &str) -> bool {
        self.once.len() < ONCE_MAX && self.once.insert(said.to_owned())
    }
}

impl Daemon {
    pub(super) fn new(settings: Settings, actor: Actor<Live>, metrics: Metrics) -> Result<Self> {
        let sensor = Sensor::new(Path::new("/"), pools::ask()).map_err(look::failure)?;
        // Before the topology: a device that comes between is new.
        let seen = sensor.hardware();
        let mut daemon = Self {
            settings,
            actor,
            sensor,
            topology: hardware()?,
            hardware: seen,
            known: Known::default(),
            metrics,
            period: 0,
            moving: None,
            given_back: 0,
            told: Told::default(),
            status: "looking at the machine".to_owned(),
        };
        // Changes that could not be taken back are known as this program's.
        match daemon.actor.previous() {
            Ok(previous) => daemon.known.previous = previous,
            Err(error) => tracing::warn!("{}", failure(error)),
        }
        daemon.look_around();
        Ok(daemon)
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// For `systemctl status`.
    pub(super) fn status(&self) -> String {
        self.status.clone()
    }

    pub(super) fn reconfigure(&mut self, settings: Settings) {
        self.settings = settings;
        self.known.previous.reconsider();
        self.look_around();
    }

    pub(super) fn into_actor(self) -> Actor<Live> {
        self.actor
    }

    /// A failure is told, and the next period begins anew.
    pub(super) fn period(&mut self) {
        self.period += 1;
        match self.move_and_verify() {
            Ok(()) => {
                self.metrics.looked("ok");
                if self.told.problem.take().is_some() {
                    tracing::info!("all is well again");
                }
            }
            Err(failure) => {
                self.metrics.looked("failed");
                let problem = failure.to_string();
                if self.told.problem.as_ref() != Some(&problem) {
                    tracing::error!("{problem}");
                    self.status.clone_from(&problem);
                    self.told.problem = Some(problem);
                }
            }
        }
        let spent = clock_gettime(ClockId::ProcessCPUTime);
        self.metrics.spent(spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9);
    }

    fn move_and_verify(&mut self) -> Result<()> {
        let with = |what: &'static str| move |failure: Failure| Failure::new(format!("{failure}: {what}"));
        let moved = self.move_all().map_err(with("nothing is moved in this period"))?;
        if moved.is_to_be_verified {
            let verified = self.verify();
            verified.map_err(with(
                "it is not known whether changes are still in force; moved targets stay moved",
            ))?;
        }
        self.status = format!(
            "{} looked at, {} in the journal, {} with their CPUs back as they moved nothing; {}",
            count(moved.threads, "thread"),
            count(self.told.standings.len(), "change"),
            count(self.given_back, "thread"),
            moved.cost
        );
        Ok(())
    }

    fn move_all(&mut self) -> Result<Moved> {
        let sensed = self.sensor.sense(&self.topology).map_err(look::failure)?;
        self.tell_unseen(&sensed);
        let snapshot = &sensed.snapshot;
        let hardware = self.sensor.hardware();
        if self.hardware != hardware {
            // For the next period. What is new in this one is in no queue yet; what is gone is found to have vanished.
            self.read_hardware()?;
        }
        self.hardware = hardware;
        if self.period.is_multiple_of(AROUND_PERIODS) {
            self.look_around();
        }
        if self.period.is_multiple_of(INHERIT_PERIODS) {
            let noted = self.actor.note_inheritors(snapshot, &mut self.known.previous);
            noted.map_err(failure)?;
        }
        let mut plan = self.known.decide(snapshot, &self.settings);
        if self.period.is_multiple_of(AROUND_PERIODS) {
            self.told.advise(&sensed, &plan);
        }
        self.tell_moved();
        if self.moving.is_some() {
            // The others are on the way yet.
            plan.files.clear();
        }
        self.metrics.planned(&sensed, &plan, &self.settings.decide);
        let applied = if plan.is_idle() {
            Applied::default()
        } else {
            self.actor
                .apply(&plan, snapshot, &self.known.conflicts)
                .map_err(failure)?
        };
        for reset in plan
            .resets
            .iter()
            .filter(|reset| applied.taken_up.binary_search(&reset.target).is_ok())
        {
            let (what, now) = (name(snapshot, &reset.target), ranges(&reset.now));
            tracing::info!("{what}: has CPUs {now} since CPUs, the machine or its card came back: taken up again");
        }
        tell_outcomes(snapshot, &plan, &applied);
        self.given_back += tell_returned(&plan, &applied);
        for (thread, _) in &applied.returned {
            self.told.standings.remove(&Target::Thread(*thread));
        }
        self.metrics.applied(&applied);
        self.known.previous = applied.next(&self.known.previous, &plan, snapshot, &self.settings.decide);
        self.move_files(&plan.files)?;
        if !applied.outcomes.is_empty() {
            self.sensor.settings_changed();
        }
        // What was to be in effect only later, and what others did to it.
        let every = if self.has_pending() {
            PENDING_PERIODS
        } else {
            AROUND_PERIODS
        };
        Ok(Moved {
            threads: snapshot.threads.len(),
            cost: format!("{} now, {} by the plan", plan.cost_before, plan.cost_after),
            is_to_be_verified: self.period.is_multiple_of(every) || !applied.outcomes.is_empty(),
        })
    }

    /// Has files moved by a thread of its own: that may take longer than a period.
    fn move_files(&mut self, files: &[MoveFile]) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        self.actor.note_files(files).map_err(failure)?;
        let (done, moving) = mpsc::channel();
        let files = files.to_vec();
        let work = move || {
            for one in files {
                let moved = pools::move_file(&one);
                if done.send((one, moved)).is_err() {
                    break;
                }
            }
        };
        match thread::Builder::new().name("files".to_owned()).spawn(work) {
            Ok(_) => self.moving = Some(moving),
            Err(error) => tracing::warn!("files are not moved, because no thread can be started: {error}"),
        }
        Ok(())
    }

    fn tell_moved(&mut self) {
        let Some(moving) = &self.moving else { return };
        let is_over = loop {
            match moving.try_recv() {
                Ok((one, moved)) => {
                    let (what, to) = (plain(&pools::file_name(one.file, true)), one.to);
                    let outcome = plain(&pools::moved_text(&moved));
                    self.metrics.file_moved(moved.is_ok());
                    match moved {
                        Ok(_) => tracing::info!("{what}: to {to}: {outcome}, to stay there: {one}"),
                        Err(_) => tracing::warn!("{what}: to {to}: {outcome}: {one}"),
                    }
                }
                Err(TryRecvError::Empty) => break false,
                Err(TryRecvError::Disconnected) => break true,
            }
        };
        if is_over {
            self.moving = None;
        }
    }

    fn read_hardware(&mut self) -> Result<()> {
        tracing::info!("CPUs or devices have changed: reading the hardware again");
        self.topology = hardware()?;
        self.sensor.settings_changed();
        self.known.previous.reconsider();
        Ok(())
    }

    /// Other programs that set the same, and what has vanished of what was set.
    fn look_around(&mut self) {
        let conflicts = of_others(&self.settings);
        let said: BTreeSet<String> = conflicts.iter().map(ToString::to_string).collect();
        for one in said.difference(&self.told.conflicts) {
            tracing::warn!("{}", plain(one));
        }
        if said != self.told.conflicts {
            // What the kernel refuses, the actor knows.
            self.known.previous.forgive();
        }
        self.metrics.conflicts(conflicts.len());
        self.told.conflicts = said;
        self.known.conflicts = conflicts;
        let actor = &self.actor;
        self.known.previous.retain(|target| actor.is_there(target));
    }

    fn has_pending(&self) -> bool {
        self.told
            .standings
            .values()
            .any(|standing| *standing == Standing::Pending)
    }

    /// Looks at the effective state of all that was changed.
    fn verify(&mut self) -> Result<()> {
        let standings = self.actor.verify().map_err(failure)?;
        self.metrics.standing(&standings);
        for (target, standing) in &standings {
            let news = self.told.standings.get(target) != Some(standing);
            if let (true, Standing::Changed(_) | Standing::Unreadable(_)) = (news, standing) {
                tracing::warn!("{target}: {standing}");
            }
        }
        self.told.standings = standings.into_iter().collect();
        Ok(())
    }

    /// Once, not in every period.
    fn tell_unseen(&mut self, sensed: &Sensed) {
        for unseen in &sensed.unseen {
            if self.told.is_new(&unseen.what) {
                tracing::warn!("not seen: {}", plain(&unseen.to_string()));
            }
        }
    }
}

fn tell_outcomes(snapshot: &Snapshot, plan: &Plan, applied: &Applied) {
    for (action, (_, outcome)) in plan.actions.iter().zip(&applied.outcomes) {
        let what = name(snapshot, &action.target);
        let (from, to) = (ranges(&action.from), ranges(&action.to));
        let why = plain(&action.reason.to_string());
        match outcome {
            Outcome::Refused(_) | Outcome::NoCpu => tracing::warn!("{what}: {from} -> {to}: {outcome}: {why}"),
            _ => tracing::info!("{what}: {from} -> {to}: {outcome}: {why}"),
        }
    }
}

/// Returns how many threads have their masks back.
fn tell_returned(plan: &Plan, applied: &Applied) -> usize {
    let mut given_back = 0;
    for (one, (thread, restore)) in plan.returns.iter().zip(&applied.returned) {
        let what = named(&Target::Thread(*thread));
        match restore {
            Restore::Vanished => {}
            Restore::Left(_) => tracing::info!("{what}: {restore}"),
            Restore::Failed(_) => tracing::warn!("{what}: {restore}: {one}"),
            _ => tracing::info!("{what}: {restore}: {one}"),
        }
        given_back += usize::from(matches!(restore, Restore::Restored | Restore::Partly(_)));
    }
    given_back
}

fn hardware() -> Result<Topology> {
    topology::read(&Source::Live).map_err(|error| Failure::new(chain(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_once_and_only_so_many_are_kept() {
        let mut told = Told::default();
        assert!(told.is_new("bytes of threads"));
        assert!(!told.is_new("bytes of threads"));
        for number in 0..2 * ONCE_MAX {
            told.is_new(&format!("{number} bytes"));
        }
        assert_eq!(told.once.len(), ONCE_MAX);
    }
}
