//! The rounds: who takes part takes turns, and who begins changes from round to round.

use super::case::{Case, Contestant, Operation, Section};
use super::fio::{Entrant, Fio};
use super::in_process::Loop;
use super::interrupt::Interrupt;
use super::outcome::{Outcome, Row, Samples, Tree};
use super::placement::cpus_by_job;
use super::stage::{Stage, tree_name};
use super::steps::Step;
use super::trees::{Original, extent};
use crate::failure::{Failure, Result};
use crate::mountinfo::shown;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};

/// A tree has to fit into this share of a member, beside the files that are measured.
const TREE_SHARE: u64 = 3;

/// Copies every tree in every round to everyone with directories, and has the last copies on the mounts compared.
pub(super) fn copies(
    originals: &[Original],
    stage: &Stage,
    outcome: &mut Outcome,
    interrupt: &Interrupt,
) -> Result<()> {
    let (roots, _attached) = stage.places_of_trees()?;
    for original in originals {
        let name = shown(&original.path);
        let cannot = |error: std::io::Error| Failure::new(format!("cannot look at {name}: {error}"));
        if original.bytes().map_err(cannot)? > stage.size_per_node / TREE_SHARE {
            complain!("homenode: {name} is left out: too large for members of this size (--size-per-node)");
            continue;
        }
        let step = Step::begin(&format!("copying {name}"), outcome.settings.rounds * roots.len());
        let directory = tree_name(outcome.trees.len());
        let (tree, row) = copy(original, &directory, &roots, outcome.settings.rounds, &step, interrupt)?;
        step.say(&format!(
            "copied {name}: {} entries, {:.1} MB; rsync finds no difference",
            tree.entries,
            megabytes(tree.bytes)
        ));
        outcome.trees.push(tree);
        outcome.rows.push(row);
    }
    Ok(())
}

fn copy(
    original: &Original,
    directory: &str,
    roots: &[(Contestant, PathBuf)],
    rounds: usize,
    step: &Step,
    interrupt: &Interrupt,
) -> Result<(Tree, Row)> {
    let name = original.path.to_string_lossy().into_owned();
    let mut row = Row::new(Case {
        section: Section::Copy,
        operation: Operation::Write,
        block_bytes: 0,
        jobs: 1,
        tree: Some(name.clone()),
    });
    let mut found = None;
    for round in 0..=rounds {
        for (contestant, root) in in_turn(roots, round) {
            let to = root.join(directory);
            remove(&to)?;
            let elapsed = original.copy(&to, interrupt)?;
            let found = match found {
                Some(found) => found,
                None => *found.insert(extent(&to).map_err(|error| cannot_look(&to, &error))?),
            };
            if round == 0 {
                // Only so that the original is in the page cache for all.
                break;
            }
            push(
                &mut row.cells,
                *contestant,
                megabytes(found.bytes) / elapsed.as_secs_f64(),
            );
            step.advance();
        }
    }
    let mut verified_on = Vec::new();
    for (contestant, root) in roots.iter().filter(|(contestant, _)| contestant.is_ours()) {
        original.verify(&root.join(directory), interrupt)?;
        verified_on.push(*contestant);
    }
    let found = found.unwrap_or_default();
    let tree = Tree {
        path: name,
        entries: found.entries,
        bytes: found.bytes,
        verified_on,
    };
    Ok((tree, row))
}

/// Measures every case of the other sections in every round.
pub(super) fn rates(stage: &mut Stage, outcome: &mut Outcome, interrupt: &Interrupt) -> Result<()> {
    let entrants = stage.entrants();
    let step = Step::begin("writing the files that are measured", 1);
    let (file_bytes, cpus_by_job) = (stage.file_bytes, cpus_by_job(&outcome.topology, super::JOBS_MAX));
    let fio = Fio {
        file_bytes,
        cpus_by_job: cpus_by_job.clone(),
    };
    let within = Loop {
        file_bytes,
        cpus_by_job,
    };
    fio.lay_out(&entrants, interrupt)?;
    let loop_files = stage.loop_files(&within)?;
    stage.settle(interrupt)?;
    drop(step);

    let rounds = outcome.settings.rounds;
    let seconds = outcome.settings.seconds_per_round;
    let mut rows: Vec<Row> = [Section::InProcess, Section::Fio, Section::FioDirect]
        .into_iter()
        .flat_map(Case::all)
        .map(Row::new)
        .collect();
    let fio_cases = Case::all(Section::Fio);
    let loop_cases = Case::all(Section::InProcess);
    let step = Step::begin("measuring", rounds * (fio_cases.len() + loop_cases.len()));
    for round in 0..rounds {
        for case in &fio_cases {
            // Small blocks by O_DIRECT too, in the same run.
            let with_direct = case.block_bytes < 1 << 20;
            let turn: Vec<&Entrant> = in_turn(&entrants, round)
                .filter(|one| with_direct || !one.direct)
                .collect();
            let rates = fio.measure(case, &turn, seconds, interrupt)?;
            for (entrant, rate) in turn.into_iter().zip(rates) {
                let sections: &[Section] = match (entrant.direct, entrant.contestant.is_ours()) {
                    (true, _) => &[Section::FioDirect],
                    (false, true) => &[Section::Fio],
                    // What the peers do by ordinary calls is what both rows are compared with.
                    (false, false) => &[Section::Fio, Section::FioDirect],
                };
                for &section in sections {
                    add(&mut rows, section, case, entrant.contestant, rate);
                }
            }
            step.advance();
        }
        for case in &loop_cases {
            for (contestant, files) in in_turn(&loop_files, round) {
                interrupt.check()?;
                let rate = within.measure(case, files, seconds, round as u64)?;
                add(&mut rows, Section::InProcess, case, *contestant, rate);
            }
            step.advance();
        }
    }
    outcome.rows.extend(rows);
    Ok(())
}

/// All of `items`, beginning with another one in each round.
fn in_turn<T>(items: &[T], round: usize) -> impl Iterator<Item = &T> {
    let first = if items.is_empty() { 0 } else { round % items.len() };
    items[first..].iter().chain(&items[..first])
}

/// Adds a value to the row of `section` that does what `case` does, if there is one.
fn add(rows: &mut [Row], section: Section, case: &Case, contestant: Contestant, value: f64) {
    let case = Case {
        section,
        ..case.clone()
    };
    if let Some(row) = rows.iter_mut().find(|row| row.case == case) {
        push(&mut row.cells, contestant, value);
    }
}

fn push(cells: &mut BTreeMap<Contestant, Samples>, contestant: Contestant, value: f64) {
    match cells.entry(contestant) {
        Entry::Vacant(entry) => drop(entry.insert(Samples::first(value))),
        Entry::Occupied(mut entry) => entry.get_mut().push(value),
    }
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::new(format!("cannot remove {}: {error}", shown(directory))))
        }
        _ => Ok(()),
    }
}

fn cannot_look(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot look at {}: {error}", shown(path)))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "bytes of memory are exact in an f64 up to 9 PB"
)]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_has_a_turn_and_the_first_changes() {
        let order = |round| in_turn(&[1, 2, 3], round).copied().collect::<Vec<_>>();
        assert_eq!(
            (order(0), order(1), order(5)),
            (vec![1, 2, 3], vec![2, 3, 1], vec![3, 1, 2])
        );
        assert_eq!(in_turn::<u8>(&[], 7).count(), 0);
    }
}
