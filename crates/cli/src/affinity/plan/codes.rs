//! Reasons in a word for programs, and in general for a person who is told only how many there are.

use homenode_linux::affinity::act::Outcome;
use homenode_linux::affinity::act::conflicts::Conflict;
use homenode_policy::affinity::{FileReason, Reason, Stay, Why};

pub(super) fn of_reason(reason: &Reason) -> &'static str {
    match reason {
        Reason::NearQueues { .. } => "near-queues",
        Reason::NearBuffers { .. } => "near-buffers",
        Reason::Kept { .. } => "kept",
        Reason::Relieved { .. } => "relieved",
        Reason::NearThreads { .. } => "near-threads",
        Reason::NearDevice { .. } => "near-device",
        Reason::NearSenders { .. } => "near-senders",
        Reason::MadeWay { .. } => "made-way",
        Reason::Policy { .. } => "policy",
        _ => "other",
    }
}

/// Why a file comes to its threads.
pub(super) fn of_file(reason: FileReason) -> &'static str {
    match reason {
        FileReason::Held => "threads-held",
        FileReason::Together => "cheaper-than-threads",
        FileReason::Placed => "threads-placed",
    }
}

/// Returns the code for the outcome of an action.
pub(in crate::affinity) fn of_outcome(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "done",
        Outcome::Pending => "pending",
        Outcome::Narrowed(_) => "narrowed",
        Outcome::Changed(_) => "changed",
        Outcome::Vanished => "vanished",
        Outcome::NoCpu => "no-cpu",
        Outcome::Refused(_) => "refused",
        Outcome::Withheld(_) => "withheld",
        _ => "other",
    }
}

/// Why something stays, in a word, in general and exactly. What is left to another program counts as refused in
/// decisions.
pub(super) fn of_stay(stay: &Stay, conflicts: &[Conflict]) -> (&'static str, String, String) {
    let others = || conflicts.iter().find(|conflict| conflict.sets(&stay.target));
    match (&stay.why, others()) {
        (Why::Refused, Some(conflict)) => {
            let general = "left to another program that sets it".to_owned();
            ("conflict", general, format!("left alone: {}", conflict.what))
        }
        (why, _) => {
            let (code, general) = of_why(why);
            (code, general.to_owned(), why.to_string())
        }
    }
}

/// The word, and what it means.
fn of_why(why: &Why) -> (&'static str, &'static str) {
    match why {
        Why::Off => ("off", "left alone by the configuration"),
        Why::Foreign => ("foreign", "someone else has narrowed its mask"),
        Why::TakenOver => ("taken-over", "someone else has changed it since it was moved"),
        Why::Refused => ("refused", "the kernel has refused to move it"),
        Why::Managed => (
            "managed",
            "the kernel spreads the interrupt itself; its threads move instead",
        ),
        Why::NotMovable => ("not-movable", "its CPUs cannot be changed, or follow its interrupt"),
        Why::NoQueue => ("no-queue", "belongs to no known queue"),
        Why::Compute => ("compute", "compute-bound: moves no bytes to speak of"),
        Why::Quiet { .. } => (
            "quiet",
            "bound by homenode affinity, and moves no bytes now: gets its CPUs back when that goes on",
        ),
        Why::Unread => (
            "unread",
            "bytes not readable (not root, or the kernel does not count them): their traffic is not known",
        ),
        Why::Small { .. } => ("small", "moves too few bytes to be looked at"),
        Why::DeviceUnknown => ("device-unknown", "not known with which device it moves bytes"),
        Why::Dwell { .. } => ("dwell", "was moved lately"),
        Why::New => ("new", "began in this period"),
        Why::OnePlace => ("one-place", "has one place only, by its cpuset or on this machine"),
        Why::NoCpu(_) => ("no-cpu", "its cpuset has none of the CPUs of its policy"),
        Why::InPlace(_) => ("in-place", "is where its policy wants it"),
        Why::TooLittle { .. } => ("too-little", "a move would save too little"),
        Why::Settled => ("settled", "the load is the one for which it was placed"),
        Why::Best => ("best", "nowhere is it better"),
        _ => ("other", "for another reason"),
    }
}
