//! The rounds: who takes part takes turns, and who begins changes from round to round.

use super::contestants::{Case, Contestant, Operation, Section};
use super::fio::{Entrant, Fio};
use super::in_process::Loop;
use super::interrupt;
use super::outcome::{Outcome, Row, Tree};
use super::placement::cpus_by_job;
use super::stage::{Stage, tree_name};
use super::trees::Original;
use crate::failure::{Failure, Result};
use crate::mountinfo::shown;
use crate::progress::Progress;
use std::fs;
use std::path::{Path, PathBuf};

/// A tree has to fit into this share of a member, beside the files that are measured.
const TREE_SHARE: u64 = 3;

/// Copies every tree in every round to everyone with directories, and has the last copies on the mounts compared.
pub(super) fn copies(originals: &[Original], stage: &Stage, outcome: &mut Outcome) -> Result<()> {
    let roots: Vec<_> = stage
        .roots()
        .filter(|(one, _)| Section::Copy.contestants().contains(one))
        .collect();
    for original in originals {
        let name = shown(&original.path);
        if original.bytes > stage.size_per_node / TREE_SHARE {
            complain!("homenode: {name} is left out: too large for members of this size (--size-per-node)");
            continue;
        }
        let step = Progress::step(&format!("copying {name}"), outcome.settings.rounds * roots.len());
        let directory = tree_name(outcome.trees.len());
        let (tree, row) = copy(original, &directory, &roots, outcome.settings.rounds, &step)?;
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
    step: &Progress,
) -> Result<(Tree, Row)> {
    let name = original.path.to_string_lossy().into_owned();
    let mut row = Row::new(Case {
        section: Section::Copy,
        operation: Operation::Write,
        block_bytes: 0,
        jobs: 1,
        tree: Some(name.clone()),
    });
    // The first copy does not count: it brings the original into the page cache, for all.
    for (_, root) in roots.iter().take(1) {
        original.copy(&root.join(directory))?;
    }
    for round in 0..rounds {
        for (contestant, root) in in_turn(roots, round) {
            let to = root.join(directory);
            remove(&to)?;
            let seconds = original.copy(&to)?.as_secs_f64();
            let samples = row.cells.entry(*contestant).or_default();
            samples.push(megabytes(original.bytes) / seconds);
            step.advance();
        }
    }
    let mut verified_on = Vec::new();
    for (contestant, root) in roots.iter().filter(|(contestant, _)| contestant.is_ours()) {
        original.verify(&root.join(directory))?;
        verified_on.push(*contestant);
    }
    let tree = Tree {
        path: name,
        entries: original.entries,
        bytes: original.bytes,
        verified_on,
    };
    Ok((tree, row))
}

/// Measures every case of the other sections in every round.
pub(super) fn rates(stage: &Stage, outcome: &mut Outcome) -> Result<()> {
    let entrants = stage.entrants();
    let step = Progress::step("writing the files that are measured", 1);
    let (file_bytes, cpus_by_job) = (stage.file_bytes, cpus_by_job(&outcome.topology, super::JOBS_MAX));
    let fio = Fio {
        library: stage.preloaded.clone(),
        above: stage.directory.path.clone(),
        file_bytes,
        cpus_by_job: cpus_by_job.clone(),
    };
    let within = Loop {
        file_bytes,
        cpus_by_job,
    };
    fio.lay_out(&entrants)?;
    let loop_files = stage.loop_files(&within)?;
    stage.settle()?;
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
    let step = Progress::step("measuring", rounds * (fio_cases.len() + loop_cases.len()));
    for round in 0..rounds {
        for case in &fio_cases {
            // Small blocks by O_DIRECT too, in the same run.
            let with_direct = case.block_bytes < 1 << 20;
            let turn: Vec<&Entrant> = in_turn(&entrants, round)
                .filter(|one| with_direct || !one.direct)
                .collect();
            let rates = fio.measure(case, &turn, seconds)?;
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
                interrupt::check()?;
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
        row.cells.entry(contestant).or_default().push(value);
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

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contestant_has_a_turn_and_the_starter_rotates() {
        let order = |round| in_turn(&[1, 2, 3], round).copied().collect::<Vec<_>>();
        assert_eq!(
            (order(0), order(1), order(5)),
            (vec![1, 2, 3], vec![2, 3, 1], vec![3, 1, 2])
        );
        assert_eq!(in_turn::<u8>(&[], 7).count(), 0);
    }
}
