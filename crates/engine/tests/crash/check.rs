//! The oracle: what a pool may show after a crash.
//!
//! Names and attributes are those after some operation, not before the last one that made them durable, and not behind the last one that was
//! begun. A file's size is that after some operation from the last one on that made the file durable; each byte is one that it had there at that
//! place. A file that took another's place has what it had then, or something newer.

use crate::repair;
use crate::sim::{Disk, Event, Kind};
use crate::tree::{Tree, grow_all};
use crate::workload::{Operation, Run, SimFs, open};
use homenode_engine::BLOCK_BYTES;
use std::collections::BTreeMap;

/// Power cuts that are tried at one point: all, when few units may be lost, or the usual suspects and some at random.
const UNITS_FOR_ALL: usize = 5;
const EACH_MAX: usize = 12;
const RANDOM: usize = 16;

/// How many stores of a unit survive, given its place and their number; with words for it.
type Choice = (String, Box<dyn FnMut(usize, usize) -> usize>);

/// Counts what was looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looked {
    pub(crate) states: u64,
    pub(crate) points: u64,
}

/// A state that the oracle refuses.
#[derive(Debug)]
pub(crate) struct Violation(pub(crate) String);

/// Where the threads of a run are at a crash.
#[derive(Clone, Debug)]
struct Progress {
    /// Operations that each has begun, and ended.
    begun: Vec<usize>,
    done: Vec<usize>,
    /// Operations of each that a thread's making everything durable had seen ended, and so acknowledged.
    all: Vec<usize>,
    /// For each thread that makes everything durable: the operations that had ended before.
    asked: Vec<Vec<usize>>,
    /// The disk has failed, and may have lost what it was given.
    has_failed: bool,
}

impl Progress {
    fn play(&mut self, runs: &[Run], event: &Event) {
        match event {
            Event::Begin(thread, nth) => {
                self.begun[*thread] = *nth;
                self.asked[*thread].clone_from(&self.done);
            }
            Event::End(thread, nth) => {
                self.done[*thread] = *nth;
                let run = &runs[*thread];
                let is_all = matches!(run.operations[nth - 1], Operation::SyncAll | Operation::Snapshot);
                if is_all && run.done.contains(nth) {
                    for (all, asked) in self.all.iter_mut().zip(&self.asked[*thread]) {
                        *all = (*all).max(*asked);
                    }
                }
            }
            Event::Fault => self.has_failed = true,
            Event::Store(..) | Event::Persist(..) | Event::Lose(..) => {}
        }
    }
}

/// Tries crashes of a run, of one thread or several, at every point where something becomes durable, at its end, and of the process before every
/// few stores.
pub(crate) fn explore(
    runs: &[Run],
    kind: Kind,
    random: &mut fastrand::Rng,
    looked: &mut Looked,
) -> Result<(), Violation> {
    let events = runs[0].memory.take_events();
    let mut disk = Disk::new(kind, runs[0].base.clone());
    let mut all = disk.durable.clone();
    let nothing = vec![0; runs.len()];
    let mut progress = Progress {
        begun: nothing.clone(),
        done: nothing.clone(),
        asked: vec![nothing.clone(); runs.len()],
        all: nothing,
        has_failed: false,
    };
    let first = events.iter().position(|event| matches!(event, Event::Begin(..)));
    for (nth, event) in events.iter().enumerate() {
        let is_in = runs[0].is_opened || first.is_some_and(|first| nth >= first);
        progress.play(runs, event);
        match event {
            Event::End(..) => kill(runs, kind, &all, &progress, looked)?,
            Event::Persist(..) if is_in => {
                looked.points += 1;
                cut(runs, kind, &disk, &progress, random, looked)?;
            }
            Event::Store(..) if is_in && random.u8(..) < 64 => kill(runs, kind, &all, &progress, looked)?,
            Event::Persist(..) | Event::Lose(..) | Event::Store(..) | Event::Fault | Event::Begin(..) => {}
        }
        disk.play(event);
        if let Event::Store(at, bytes) = event {
            all[*at..at + bytes.len()].copy_from_slice(bytes);
        }
    }
    looked.points += 1;
    cut(runs, kind, &disk, &progress, random, looked)
}

/// The process is killed: every store is there, unless the disk has failed before.
fn kill(runs: &[Run], kind: Kind, all: &[u8], progress: &Progress, looked: &mut Looked) -> Result<(), Violation> {
    looked.states += 1;
    let describe = |why: &str| describe(runs, "killed", progress, why);
    // What was in the cache is gone with it, so that no such pool is opened under its witness.
    let is_kept = !kind.is_disk();
    let witness = runs[0].witness + u128::from(!is_kept);
    let fs = recover(kind, all.to_vec(), witness).map_err(|why| describe(&why))?;
    if !progress.has_failed && goes_on(runs, &fs) != is_kept {
        return Err(describe(
            "the pool's history tells otherwise whether all that was stored is there",
        ));
    }
    judge_all(runs, &fs, progress, is_kept && !progress.has_failed).map_err(|why| describe(&why))?;
    let slot = fs.slots().claim().expect("the first slot is free");
    grow_all(&fs, &slot).map_err(|why| describe(&why))
}

/// The machine loses power: of what is not durable, any part is there.
fn cut(
    runs: &[Run],
    kind: Kind,
    disk: &Disk,
    progress: &Progress,
    random: &mut fastrand::Rng,
    looked: &mut Looked,
) -> Result<(), Violation> {
    for (nth, (what, survive)) in choices(disk.pending_units(), random).into_iter().enumerate() {
        looked.states += 1;
        let bytes = disk.after_crash(survive);
        let describe = |why: &str| describe(runs, &format!("power cut, {what}"), progress, why);
        let again = (nth % 8 == 0).then(|| bytes.clone());
        let fs = recover(kind, bytes, runs[0].witness + 1).map_err(|why| describe(&why))?;
        if goes_on(runs, &fs) {
            return Err(describe("the pool's history goes on"));
        }
        judge_all(runs, &fs, progress, false).map_err(|why| describe(&why))?;
        if let Some(bytes) = again {
            let slot = fs.slots().claim().expect("the first slot is free");
            again_the_same(kind, bytes, &Tree::of(&fs, &slot)).map_err(|why| describe(&why))?;
            grow_all(&fs, &slot).map_err(|why| describe(&why))?;
        }
    }
    Ok(())
}

/// Whether a pool's history is that of the runs: all that they stored is there.
fn goes_on(runs: &[Run], fs: &SimFs) -> bool {
    fs.history() == runs[0].fs.history()
}

/// Judges what a crash left of each thread's run; `all_is_there` when nothing that was stored may be lost.
fn judge_all(runs: &[Run], fs: &SimFs, progress: &Progress, all_is_there: bool) -> Result<(), String> {
    let slot = fs.slots().claim().expect("the first slot is free");
    for run in runs {
        let (begun, done) = (progress.begun[run.thread], progress.done[run.thread]);
        let tree = run.tree_in(fs, &slot).ok_or("a thread's directory is gone")?;
        let all = if all_is_there { done } else { progress.all[run.thread] };
        let synced = &run.synced[done];
        let mut files = synced.files.clone();
        for ino in run.trees[all].bytes.keys() {
            let least = files.entry(*ino).or_default();
            *least = (*least).max(all);
        }
        judge(run, &tree, synced.names.max(all)..=begun, &files)
            .map_err(|why| format!("thread {}: {why}", run.thread))?;
    }
    Ok(())
}

/// Power cuts with `units` units that may be lost.
fn choices(units: usize, random: &mut fastrand::Rng) -> Vec<Choice> {
    let seed = random.u64(..);
    let mut choices: Vec<Choice> = Vec::new();
    if units <= UNITS_FOR_ALL {
        for bits in 0..1_usize << units {
            let survive = move |unit: usize, stores: usize| if bits >> unit & 1 == 1 { stores } else { 0 };
            choices.push((format!("units {bits:b} of {units} survive"), Box::new(survive)));
        }
    } else {
        choices.push(("nothing survives".to_owned(), Box::new(|_, _| 0)));
        choices.push(("everything survives".to_owned(), Box::new(|_, stores| stores)));
        for _ in 0..EACH_MAX {
            let one = random.usize(..units);
            let alone = move |unit: usize, stores: usize| if unit == one { stores } else { 0 };
            let missing = move |unit: usize, stores: usize| if unit == one { 0 } else { stores };
            choices.push((format!("only unit {one} of {units} survives"), Box::new(alone)));
            choices.push((format!("all but unit {one} of {units} survive"), Box::new(missing)));
        }
        // Some come before a place, as a disk writes them.
        for nth in 0..4 {
            let until = random.usize(..units);
            let before = move |unit: usize, stores: usize| if (unit < until) == (nth % 2 == 0) { stores } else { 0 };
            choices.push((
                format!("units before {until} of {units} survive, or the others"),
                Box::new(before),
            ));
        }
        for nth in 0..RANDOM {
            let mut own = fastrand::Rng::with_seed(seed.wrapping_add(nth as u64));
            let some = move |_: usize, stores: usize| own.usize(..=stores);
            choices.push((format!("any of {units} units survive"), Box::new(some)));
        }
    }
    choices
}

fn describe(runs: &[Run], crash: &str, progress: &Progress, why: &str) -> Violation {
    let operations: Vec<_> = runs.iter().map(|run| &run.operations).collect();
    Violation(format!(
        "{crash}, with {:?} operations ended and {:?} begun: {why}\n  operations: {operations:?}",
        progress.done, progress.begun
    ))
}

fn recover(kind: Kind, bytes: Vec<u8>, witness: u128) -> Result<SimFs, String> {
    let (fs, _) = open(kind, bytes, witness).map_err(|error| format!("opening: {error}"))?;
    fs.check_invariants();
    Ok(fs)
}

/// A pool that was opened, and loses power at once, is the same again.
fn again_the_same(kind: Kind, bytes: Vec<u8>, first: &Tree) -> Result<(), String> {
    let mut disk = Disk::new(kind, bytes.clone());
    let (fs, memory) = open(kind, bytes, 8).map_err(|error| error.to_string())?;
    drop(fs);
    memory.take_events().iter().for_each(|event| disk.play(event));
    let (fs, _) = open(kind, disk.after_crash(|_, _| 0), 9).map_err(|error| format!("opened again: {error}"))?;
    let slot = fs.slots().claim().expect("the first slot is free");
    if Tree::of(&fs, &slot) == *first {
        Ok(())
    } else {
        Err("opened again after another power cut, it is not the same".to_owned())
    }
}

/// Whether `tree` is one that the oracle allows, with the operations that its names may be after, and those that its files are at least after.
fn judge(
    run: &Run,
    tree: &Tree,
    operations: std::ops::RangeInclusive<usize>,
    files: &BTreeMap<u64, usize>,
) -> Result<(), String> {
    let end = *operations.end();
    let mut why = format!(
        "names are not those after any of operations {operations:?}: {:?}",
        tree.names
    );
    for nth in operations {
        if !run.trees[nth].has_names_of(tree) {
            continue;
        }
        let mut least = files.clone();
        for (when, ino) in run.synced[end].needs.iter().filter(|(when, _)| *when <= nth) {
            let least = least.entry(*ino).or_default();
            *least = (*least).max(*when);
        }
        match tree.bytes.iter().try_for_each(|(ino, bytes)| {
            let from = least.get(ino).copied().unwrap_or(0);
            judge_bytes(run, *ino, bytes, from..=end)
        }) {
            Ok(()) => return Ok(()),
            Err(error) => why = error,
        }
    }
    Err(why)
}

fn judge_bytes(run: &Run, ino: u64, bytes: &[u8], operations: std::ops::RangeInclusive<usize>) -> Result<(), String> {
    let states: Vec<&Vec<u8>> = run.trees[operations.clone()]
        .iter()
        .filter_map(|tree| tree.bytes.get(&ino).map(|bytes| &**bytes))
        .collect();
    if states.iter().any(|state| ***state == *bytes) {
        return Ok(());
    }
    // A write that waits for frames, or for blocks that a commit gives back, is done in parts, and a commit may come between two of them.
    let is_part = |nth: usize| {
        let is_write = matches!(run.operations[nth], Operation::Write(..) | Operation::Append(..));
        let [before, after] = [nth, nth + 1].map(|nth| run.trees[nth].bytes.get(&ino).map_or(0, |bytes| bytes.len()));
        is_write && before < bytes.len() && bytes.len() < after && bytes.len().is_multiple_of(BLOCK_BYTES)
    };
    let (start, end) = (*operations.start(), *operations.end());
    if !states.iter().any(|state| state.len() == bytes.len()) && !(start..end).any(is_part) {
        let sizes: Vec<usize> = states.iter().map(|state| state.len()).collect();
        return Err(format!(
            "inode {ino} has {} bytes, and had {sizes:?} after operations {operations:?}",
            bytes.len()
        ));
    }
    let strange = (0..bytes.len()).find(|at| !states.iter().any(|state| state.get(*at) == Some(&bytes[*at])));
    strange.map_or(Ok(()), |at| {
        let had: Vec<_> = states.iter().map(|state| state.get(at)).collect();
        Err(format!(
            "inode {ino} has {} at byte {at}, and had {had:?} there after operations {operations:?}",
            bytes[at]
        ))
    })
}

/// Flips a bit of every byte of superblocks and of headers of the log, and of some others near them, one at a time: the pool is refused, or shows
/// what it did at some time; and mended, it is sound, or it is refused by a name. Returns pools that were opened, and those that were mended.
pub(crate) fn flip_each(run: &Run, kind: Kind, random: &mut fastrand::Rng) -> Result<(u64, u64), Violation> {
    const HEADER_BYTES: usize = 40;
    let bytes = run.memory.bytes();
    let end = run.operations.len();
    let found = |word: &[u8]| -> Vec<usize> {
        let words = bytes.windows(word.len()).enumerate();
        words.filter(|(_, found)| *found == word).map(|(at, _)| at).collect()
    };
    let superblocks = found(b"HomeNode");
    let headers = found(b"HNLG");
    let mut places: Vec<usize> = superblocks.iter().flat_map(|at| *at..at + BLOCK_BYTES).collect();
    places.extend(headers.iter().flat_map(|at| *at..(at + HEADER_BYTES).min(bytes.len())));
    // Names and bytes.
    let near = headers
        .iter()
        .flat_map(|at| at + HEADER_BYTES..(at + 4 * HEADER_BYTES).min(bytes.len()));
    places.extend(near.filter(|at| bytes[*at] != 0));
    let (mut opened, mut mended) = (0, 0);
    for (nth, at) in places.into_iter().enumerate() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << random.u8(..8);
        let crash = format!("byte {at} flipped");
        if let Ok((fs, _)) = open(kind, flipped.clone(), run.witness + 1) {
            fs.check_invariants();
            let slot = fs.slots().claim().expect("the first slot is free");
            let tree = Tree::of(&fs, &slot);
            judge(run, &tree, 0..=end, &BTreeMap::new())
                .map_err(|why| Violation(format!("{crash}: {why}\n  operations: {:?}", run.operations)))?;
            opened += 1;
            // One copy of two: all of them are alike.
            if nth % 16 != 0 {
                continue;
            }
        }
        if let Ok((told, memory)) = repair::mend(flipped) {
            repair::tree(memory.bytes());
            mended += u64::from(!told.is_empty());
        }
    }
    Ok((opened, mended))
}
