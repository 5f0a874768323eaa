//! `homenode affinity record`: puts a period of this machine into a directory, so that it can be decided elsewhere.

use super::look::{PeriodArgs, failure};
use super::pools;
use super::words::{count, seconds, unseen};
use crate::failure::Result;
use crate::mountinfo::shown;
use clap::Args;
use homenode_linux::affinity::record;
use homenode_linux::topology::Source;
use homenode_policy::affinity::QueueKind;
use std::path::{Path, PathBuf};

/// Record a period of this machine into DIR: all data that `plan` and `explain` use.
///
/// With --from DIR, `plan` and `explain` decide on any machine as they would have decided here. The recording holds names
/// of processes, threads and devices, and inode numbers of pools' files, but no command lines or environments.
#[derive(Args, Debug)]
pub(crate) struct RecordArgs {
    /// Output directory: created if missing, else it must be empty and yours, and no other user may write to it.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    period: PeriodArgs,
}

pub(super) fn run(args: &RecordArgs) -> Result<()> {
    let (source, root) = (Source::Live, Path::new("/"));
    let sensed = record(&source, root, &args.directory, args.period.period, pools::ask()).map_err(failure)?;
    let snapshot = &sensed.snapshot;
    let name = shown(&args.directory);
    // As a plan counts them: nobody can change the CPUs of a disk's queues.
    let queues = snapshot.queues.iter().filter(|queue| queue.kind != QueueKind::Block);
    let text = format!(
        "recorded {} of this machine in {name}: {}, {}, {}; `homenode affinity plan --from {name}` decides for it\n{}",
        seconds(snapshot.period_ns),
        count(snapshot.threads.len(), "thread"),
        count(snapshot.interrupts.len(), "interrupt"),
        count(queues.count(), "queue"),
        unseen(&sensed.unseen),
    );
    crate::print_text(&text)
}
