//! Gain of a recorded machine.

use super::Draws;
use crate::affinity::look::of_recording;
use crate::failure::Result;
use homenode_linux::affinity::recorded;
use homenode_policy::affinity::Config;
use homenode_sim::gain::{self, Gain};
use serde::Serialize;
use std::path::Path;

/// Gain as JSON; bytes are those of a second.
#[derive(Debug, Serialize)]
struct Told {
    output_version: u32,
    is_simulated: bool,
    bytes: u64,
    crossing_before: u64,
    crossing_after: u64,
    freed: i64,
    /// Least and most of the loads that were changed by up to a quarter.
    freed_range: [i64; 2],
    moves: u64,
    moves_range: [u64; 2],
    files: u64,
    file_bytes: u64,
    unseen: usize,
}

pub(super) fn run(directory: &Path, draws: Draws, is_json: bool) -> Result<()> {
    let sensed = of_recording(directory, recorded)?;
    let gains = gain::of(&sensed.snapshot, &Config::default(), draws.draws, draws.seed);
    let (recorded, all) = (&gains[0], &gains[..]);
    let freed = range(all, Gain::freed);
    let moves = range(all, |gain| gain.moves);
    if is_json {
        return crate::print_json(&Told {
            output_version: 1,
            is_simulated: true,
            bytes: recorded.all,
            crossing_before: recorded.before.sum(),
            crossing_after: recorded.after.sum(),
            freed: recorded.freed(),
            freed_range: freed,
            moves: recorded.moves,
            moves_range: moves,
            files: recorded.files,
            file_bytes: recorded.file_bytes,
            unseen: sensed.unseen.len(),
        });
    }
    let mb = |bytes: u64| format!("{:.1} MB/s", bytes as f64 / 1e6);
    let mut text = format!(
        "simulated from {:.1} s of the machine in {}\n",
        sensed.snapshot.period_ns as f64 / 1e9,
        directory.display()
    );
    text.push_str(&format!(
        "{} read, written, sent or received by threads that were seen\n\n",
        mb(recorded.all)
    ));
    text.push_str(&format!(
        "{:<26} {:>14} {:>14}\n",
        "bytes that cross nodes", "now", "with the plan"
    ));
    let (now, then) = (&recorded.before, &recorded.after);
    for (name, before, after) in [
        ("memory of pools", now.memory, then.memory),
        ("network to thread", now.network, then.network),
        ("thread to disk", now.disk, then.disk),
    ] {
        text.push_str(&format!("{name:<26} {:>14} {:>14}\n", mb(before), mb(after)));
    }
    text.push_str(&format!(
        "\nwould stay home: {:.1} MB/s ({:.1} to {:.1} when each thread's load differs by up to a quarter)\n",
        recorded.freed() as f64 / 1e6,
        freed[0] as f64 / 1e6,
        freed[1] as f64 / 1e6
    ));
    text.push_str(&format!(
        "moves: {} threads, interrupts and queues ({} to {}); {} files of {:.1} MiB\n",
        recorded.moves,
        moves[0],
        moves[1],
        recorded.files,
        recorded.file_bytes as f64 / f64::from(1 << 20)
    ));
    if !sensed.unseen.is_empty() {
        text.push_str(&format!(
            "not in the recording: {} kinds of data, which `homenode affinity plan --from {}` lists: the gain may be more or less\n",
            sensed.unseen.len(),
            directory.display()
        ));
    }
    crate::print_text(&text)
}

fn range<T: Ord + Copy>(gains: &[Gain], of: impl Fn(&Gain) -> T) -> [T; 2] {
    let all = || gains.iter().map(&of);
    let ends = all().min().zip(all().max());
    let (least, most) = ends.expect("the recorded load is one of them");
    [least, most]
}
