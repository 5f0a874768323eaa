//! Outcomes of changes.

use super::conflicts::Conflict;
use homenode_policy::affinity::{Config, FileId, Plan, Previous, Snapshot, Target, ThreadId};
use homenode_policy::{CpuId, NodeId};
use std::collections::BTreeSet;
use std::fmt;
use std::io;

/// Outcome of one action of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It has the CPUs, and they are in effect.
    Done,
    /// It has the CPUs; the interrupt arrives there from its next arrival on.
    Pending,
    /// The kernel gave some of the CPUs only: the others have gone, or are not in the cpuset.
    Narrowed(Vec<CpuId>),
    /// Somebody else was quicker: it has these CPUs, which neither the plan knew nor set, and was left alone.
    Changed(Vec<CpuId>),
    /// It is not there any more, or is another one.
    Vanished,
    /// The target can have none of the CPUs: they have gone, or the cpuset has changed. The target stays where it was.
    NoCpu,
    /// The kernel refuses, with this errno. It is not asked again; where the reason may pass, not for a while.
    Refused(i32),
    /// It was left alone.
    Withheld(Hold),
}

/// Why something that a plan names was left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hold {
    /// The kernel spreads the interrupt itself.
    Managed,
    /// The kernel has refused it before.
    Refused,
    /// Someone else has narrowed the thread's mask.
    Foreign,
    /// Another program sets it.
    Conflict(Box<Conflict>),
}

/// Outcome of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Outcomes by action, in the plan's order.
    pub outcomes: Vec<(Target, Outcome)>,
    /// Threads that got their masks back, in the plan's order.
    pub returned: Vec<(ThreadId, Restore)>,
    /// Interrupts and queues that the kernel or a driver had set anew, and that count as set by us now.
    pub taken_up: Vec<Target>,
}

impl Outcome {
    /// Whether the target has been changed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done | Self::Pending | Self::Narrowed(_))
    }
}

impl Applied {
    /// How many actions were carried out.
    #[must_use]
    pub fn made(&self) -> usize {
        self.outcomes.iter().filter(|(_, outcome)| outcome.is_done()).count()
    }

    /// Returns the state for the next decision. Actions that were carried out and resets that were taken up count as set,
    /// refused targets are not planned again, and where an action was left undone everything is looked at anew.
    #[must_use]
    pub fn next(&self, previous: &Previous, plan: &Plan, snapshot: &Snapshot, config: &Config) -> Previous {
        let all = self.outcomes.iter().filter(|(_, outcome)| outcome.is_done());
        let all: BTreeSet<&Target> = all.map(|(target, _)| target).collect();
        let done = |target: &Target| all.contains(target);
        let mut carried_out = plan.clone();
        carried_out.actions.retain(|action| done(&action.target));
        let mut next = previous.after(&carried_out, snapshot, config);
        for reset in &plan.resets {
            let is_ours = self.taken_up.contains(&reset.target) || done(&reset.target);
            if let Some(set) = previous.cpus(&reset.target).filter(|_| !is_ours) {
                // The kernel may have set it once more since the snapshot: the next period sees.
                next.note(reset.target.clone(), set.to_vec());
            }
        }
        for (target, outcome) in &self.outcomes {
            match outcome {
                Outcome::Refused(errno) if is_for_good(*errno) => next.refuse(target.clone()),
                // Its ancestors could not be read yet.
                Outcome::Refused(libc::EAGAIN) => {}
                Outcome::Refused(_) => next.postpone(target.clone()),
                // Who has narrowed a thread's mask may widen it again. Until then decisions are to see that it is not ours.
                Outcome::Withheld(Hold::Foreign) => next.forget(target),
                Outcome::Withheld(_) => next.refuse(target.clone()),
                _ => {}
            }
        }
        for (thread, restore) in &self.returned {
            if matches!(restore, Restore::Failed(errno) if *errno != libc::EAGAIN) {
                next.refuse(Target::Thread(*thread));
            }
        }
        if carried_out.actions.len() < plan.actions.len() {
            next.reconsider();
        }
        next
    }
}

/// Whether the kernel would give the same answer at any other time. Others pass: it had no memory, or that CPU no vector left.
pub(super) fn is_for_good(errno: i32) -> bool {
    matches!(
        errno,
        libc::EPERM | libc::EACCES | libc::EIO | libc::EROFS | libc::ENOSYS | libc::EOPNOTSUPP
    )
}

/// How something stands that was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// The target is as it was set, and the CPUs are in effect.
    InForce,
    /// The target is as it was set; the interrupt has not arrived since.
    Pending,
    /// It has these CPUs: somebody else has changed it, or the kernel has, as the CPUs went.
    Changed(Vec<CpuId>),
    /// It is not there any more.
    Vanished,
    /// It cannot be read, by this errno.
    Unreadable(i32),
}

/// Outcome of restoring one target.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Restore {
    /// It was ours, and is as it was.
    Restored,
    /// It was ours, and is as it was as far as the kernel lets it: it has these CPUs, as others do not run.
    Partly(Vec<CpuId>),
    /// It was as it had been: nothing was to be done.
    Same,
    /// It has these CPUs, which were not set by this program: it was left alone.
    Left(Vec<CpuId>),
    /// It is not there any more.
    Vanished,
    /// It was not restored: others were started that had inherited, as fast as they were restored. It stays in the journal.
    Late,
    /// It could not be restored, by this errno; it stays in the journal.
    Failed(i32),
}

/// Outcome of taking back everything that was changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reverted {
    /// Targets that the journal named, the latest change first.
    pub targets: Vec<(Target, Restore)>,
    /// Threads and processes that have inherited a mask of ours.
    pub inherited: Vec<(ThreadId, Restore)>,
    /// Files that were moved, with their nodes. They stay there, and are in no journal any more.
    pub files: Vec<(FileId, NodeId)>,
    /// At each look at all threads one ended before it was looked at itself: who it may have started meanwhile is not
    /// known, though not likely to be left.
    pub is_unsure: bool,
    /// Threads of the machine could not be read, by this errno: those that have inherited a mask keep it, and the
    /// journal has still of whom.
    pub unread: Option<i32>,
    /// Why the journal could not be removed, or written without what was restored. It names more than there is to restore.
    pub stale: Option<String>,
}

impl Reverted {
    /// Whether nothing is left to be restored. The journal may still be there ([`Self::stale`]).
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let of_targets = self.targets.iter().map(|(_, restore)| restore);
        let of_threads = self.inherited.iter().map(|(_, restore)| restore);
        self.unread.is_none()
            && !of_targets
                .chain(of_threads)
                .any(|restore| matches!(restore, Restore::Failed(_) | Restore::Late))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => write!(f, "done"),
            Self::Pending => write!(f, "done, in effect when it arrives next"),
            Self::Narrowed(cpus) => write!(f, "done in part: the kernel gave {} only", List(cpus)),
            Self::Changed(cpus) => write!(
                f,
                "left alone: another program, or the kernel when CPUs went offline, has set {} meanwhile",
                List(cpus)
            ),
            Self::Vanished => write!(f, "it is not there any more"),
            Self::NoCpu => write!(f, "not done: its CPUs have gone, or its cpuset has changed"),
            Self::Refused(errno) => write!(f, "refused by the kernel: {}", io::Error::from_raw_os_error(*errno)),
            Self::Withheld(hold) => write!(f, "left alone: {hold}"),
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Managed => write!(f, "the kernel spreads this interrupt itself"),
            Self::Refused => write!(f, "the kernel has refused it before"),
            Self::Foreign => write!(f, "someone else has narrowed its mask"),
            Self::Conflict(conflict) => write!(f, "{}", conflict.what),
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InForce => write!(f, "in force"),
            Self::Pending => write!(f, "set, in effect when it arrives next"),
            Self::Changed(cpus) => write!(f, "changed since: it has {}", List(cpus)),
            Self::Vanished => write!(f, "it is not there any more"),
            Self::Unreadable(errno) => write!(f, "unreadable: {}", io::Error::from_raw_os_error(*errno)),
        }
    }
}

impl fmt::Display for Restore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restored => write!(f, "restored"),
            Self::Partly(cpus) => write!(f, "restored as far as CPUs run: it has {}", List(cpus)),
            Self::Same => write!(f, "as it was"),
            Self::Left(cpus) => write!(f, "left alone: another program has set {}", List(cpus)),
            Self::Vanished => write!(f, "it is not there any more"),
            Self::Late => write!(
                f,
                "not restored: threads were started as fast as they were restored: the change stays in the journal"
            ),
            Self::Failed(errno) => write!(
                f,
                "not restored: {}: the change stays in the journal",
                io::Error::from_raw_os_error(*errno)
            ),
        }
    }
}

/// `CPUs 0-3,8`.
struct List<'a>(&'a [CpuId]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        if rest.is_empty() {
            return write!(f, "no CPU");
        }
        let mut before = if rest.len() == 1 { "CPU " } else { "CPUs " };
        while let Some(first) = rest.first() {
            let run = (first.0..)
                .zip(rest)
                .take_while(|(number, cpu)| *number == cpu.0)
                .count();
            let last = rest[run - 1];
            match run {
                1 => write!(f, "{before}{}", first.0)?,
                _ => write!(f, "{before}{}-{}", first.0, last.0)?,
            }
            before = ",";
            rest = &rest[run..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_formatted_as_ranges() {
        let list = |numbers: &[u32]| List(&numbers.iter().copied().map(CpuId).collect::<Vec<_>>()).to_string();
        assert_eq!(list(&[]), "no CPU");
        assert_eq!(list(&[4]), "CPU 4");
        assert_eq!(list(&[0, 1, 2, 5, 7, 8]), "CPUs 0-2,5,7-8");
    }
}
