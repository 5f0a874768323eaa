//! Limits of the numbers, as sentences.

use super::findings::one_node;
use super::outcome::{Outcome, Row};
use crate::topology::human_bytes;

/// A spread above this is the machine's, not the filesystem's.
const NOISY_SPREAD: f64 = 0.25;

/// Above this one, something else ran.
const BUSY_SPREAD: f64 = 0.5;
const ONE_ROUND: &str = "There was one round, so nothing tells how noisy the machine was: trust no single number.";

/// Returns the limits of the outcome's numbers.
pub(super) fn of(outcome: &Outcome) -> Vec<String> {
    let settings = &outcome.settings;
    let mut limits = Vec::new();
    if one_node(outcome) {
        limits.push(
            "This machine has one node: there is nothing to place, so placement is shown to work and gains nothing here. On \
             several nodes the tables of bytes and accesses are what to look at."
                .to_owned(),
        );
    }
    limits.push(format!(
        "Measured: random reads and overwrites in files of {} that are laid out before, {} round{} of {:.2} s each; the median \
         counts, lines on the bars span all rounds. First writes, metadata (but for the copies), more than {} threads, and the \
         server's own CPU time are not in these numbers.",
        human_bytes(settings.file_bytes),
        settings.rounds,
        if settings.rounds == 1 { "" } else { "s" },
        settings.seconds_per_round,
        super::JOBS_MAX
    ));
    let cache_bytes = outcome
        .topology
        .caches()
        .iter()
        .map(|cache| cache.bytes)
        .max()
        .unwrap_or(0);
    if cache_bytes > 0 {
        limits.push(format!(
            "The largest cache is {}, each file {}: what of large blocks comes from the cache, not from memory, differs between \
             machines.",
            human_bytes(cache_bytes),
            human_bytes(settings.file_bytes)
        ));
    }
    limits.push(
        "Compare within a group of rows only: fio itself costs a fraction of a microsecond for each call, which the loop inside \
         one process does not have."
            .to_owned(),
    );
    limits.push(if one_node(outcome) {
        "Threads are not pinned: the scheduler may move them.".to_owned()
    } else {
        "Each job stays on a node of its own, also when its file is laid out: a program whose threads roam reads from wherever \
         they were when they wrote."
            .to_owned()
    });
    limits.push(noise(outcome));
    if outcome.machine.virtual_machine {
        limits.push(
            "This is a virtual machine: its neighbours are not seen, and its nodes may not be those of the hardware."
                .to_owned(),
        );
    }
    limits.push("Unmounting a pool discards its contents, as with tmpfs.".to_owned());
    limits
}

/// Returns the warning, if any, that the numbers of this run mean little, for readers of the text table.
pub(super) fn distrust(outcome: &Outcome) -> Option<String> {
    if outcome.settings.rounds < 2 {
        return Some(ONE_ROUND.to_owned());
    }
    let (largest, busy) = largest_and_above(outcome, BUSY_SPREAD);
    (busy > 0).then(|| {
        format!(
            "The machine is busy: in {busy} of {} rows values differed by more than {:.0}\u{a0}% between rounds, by up to \
             {:.0}\u{a0}%. Numbers of those rows mean little; run the demo again when nothing else runs.",
            outcome.rows.len(),
            BUSY_SPREAD * 100.0,
            largest * 100.0
        )
    })
}

/// The largest spread of any row, and how many are above `limit`.
fn largest_and_above(outcome: &Outcome, limit: f64) -> (f64, usize) {
    let spreads: Vec<f64> = outcome.rows.iter().filter_map(Row::spread).collect();
    let above = spreads.iter().filter(|spread| **spread > limit).count();
    (spreads.into_iter().fold(0.0, f64::max), above)
}

fn noise(outcome: &Outcome) -> String {
    if outcome.settings.rounds < 2 {
        return ONE_ROUND.to_owned();
    }
    let (largest, noisy) = largest_and_above(outcome, NOISY_SPREAD);
    format!(
        "Noise: between rounds values differed by up to {:.0}\u{a0}% of their median; in {noisy} of {} rows by more than {:.0}\u{a0}%. \
         Smaller differences say nothing.",
        largest * 100.0,
        outcome.rows.len(),
        NOISY_SPREAD * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::page::sample;
    use crate::says::says;

    #[test]
    fn limits_of_machine_and_run_are_listed() {
        let mut outcome = sample::outcome("node:2 pu:2");
        outcome.settings.rounds = 1;
        let text = of(&outcome).join("\n");
        assert!(!text.contains("one node") && !text.contains("virtual"), "{text}");
        says(&text, &["one round"]);
        let cells = outcome.rows[0].cells.values_mut().next().unwrap();
        let median = cells.median();
        cells.push(median);
        cells.push(median * 1.5);
        outcome.settings.rounds = 3;
        outcome.machine.virtual_machine = true;
        let text = of(&outcome).join("\n");
        says(&text, &["up to 50\u{a0}% of their median; in 1 of 4 rows"]);
        assert!(text.contains("virtual machine"), "{text}");
        assert!(of(&sample::outcome("node:1 pu:2")).join("\n").contains("one node"));
    }
}
