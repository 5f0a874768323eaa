//! Other programs that set what this one does.

use homenode_policy::affinity::Target;

/// A program that sets the same, and what that means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Which program.
    pub who: Who,
    /// What it does, on what: `irqbalance (process 812) moves interrupts every ten seconds`.
    pub what: String,
    /// What comes of it: what is left alone, or may be changed back.
    pub effect: String,
    /// What an operator may do.
    pub remedy: String,
}

/// Programs that are known to set CPUs of interrupts, queues or threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Who {
    /// irqbalance.
    Irqbalance,
    /// tuned.
    Tuned,
    /// systemd's udev, by .link files.
    SystemdLink,
}

impl Conflict {
    /// Whether it sets this target, so that it is to be left alone.
    #[must_use]
    pub fn sets(&self, target: &Target) -> bool {
        self.who == Who::Irqbalance && matches!(target, Target::Interrupt(_))
    }
}
