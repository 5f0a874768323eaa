//! Threads that work on one pool at once, each in a directory of its own, and crashes at every point of the order in which their stores and
//! persists came. The oracle relies on what each thread was told alone.
//!
//! Which thread goes first is the machine's choice, and changed by pauses at calls of the memory: a seed tells the operations, not the order.

use crate::check::{Looked, Violation, explore};
use crate::sim::Kind;
use crate::workload::{Operation, Range, Run};
use crate::{any, seed, states};
use homenode_engine::fs::RenameMode;

/// Directories of the workers, and one of the thread that commits, where it does nothing.
const DIRECTORIES: [&str; 4] = ["0", "1", "2", "c"];

const OPERATIONS: &[Operation] = &[
    Operation::Create("a"),
    Operation::Create("b"),
    Operation::Unlink("b"),
    Operation::Rename("a", "b", RenameMode::Replace),
    Operation::Rename("b", "a", RenameMode::Replace),
    Operation::Rename("a", "b", RenameMode::Exchange),
    Operation::Write("a", 0, 4096),
    Operation::Write("a", 3000, 6000),
    Operation::Write("b", 0, 9000),
    Operation::Append("a", 5000),
    Operation::Truncate("a", 2000),
    Operation::Truncate("b", 0),
    Operation::Allocate("a", Range::Punch, 0, 8192),
    Operation::Allocate("a", Range::Collapse, 0, 4096),
    Operation::Allocate("a", Range::Insert, 0, 4096),
    Operation::Chmod("a", 0o4711),
    Operation::SetXattr("a", 300),
    Operation::Sync("a"),
    Operation::Sync("a"),
    Operation::Sync("a"),
    Operation::Sync("b"),
    Operation::Sync("b"),
];

const COMMITS: &[Operation] = &[Operation::SyncAll, Operation::SyncAll, Operation::Snapshot];

/// Two or three threads with files, and one that commits. `each` is called by each thread first.
fn together(kind: Kind, random: &mut fastrand::Rng, each: impl Fn() + Sync) -> Vec<Run> {
    let mut first = Run::new(kind);
    let directories = DIRECTORIES.map(Operation::Mkdir);
    let names = ["0/a", "1/a"].map(Operation::Create);
    let bytes = ["0/a", "1/a"].map(|path| Operation::Write(path, 0, 9000));
    for operation in directories.into_iter().chain(names).chain(bytes) {
        assert!(first.step(operation));
    }
    assert!(first.step(Operation::SyncAll));
    // Those operations are of no thread: what follows is looked at.
    let mut begin = first.memory.take_events();
    begin.retain(|event| !matches!(event, crate::Event::Begin(..) | crate::Event::End(..)));
    begin.into_iter().for_each(|event| first.memory.mark(event));
    let workers = random.usize(2..=3);
    let mut runs: Vec<Run> = (0..workers)
        .map(|thread| first.beside(thread, DIRECTORIES[thread]))
        .collect();
    runs.push(first.beside(workers, DIRECTORIES[3]));
    runs[0].memory.pause_often(random.u8(8..96));
    let seeds: Vec<u64> = runs.iter().map(|_| random.u64(..)).collect();
    let counts: Vec<usize> = runs.iter().map(|_| random.usize(3..=12)).collect();
    std::thread::scope(|scope| {
        for ((run, seed), count) in runs.iter_mut().zip(seeds).zip(counts) {
            let each = &each;
            scope.spawn(move || {
                each();
                let mut random = fastrand::Rng::with_seed(seed);
                let of = if run.thread == workers { COMMITS } else { OPERATIONS };
                for _ in 0..count {
                    run.step(any(&mut random, of));
                }
            });
        }
    });
    runs[0].memory.pause_often(0);
    runs
}

fn look(states: u64, seed: u64, each: impl Fn() + Sync) -> Result<Looked, Violation> {
    let mut looked = Looked::default();
    let mut nth = 0;
    while looked.states < states {
        let seed = seed.wrapping_add(nth);
        let kind = if nth % 2 == 0 { Kind::File } else { Kind::Pmem };
        let mut random = fastrand::Rng::with_seed(seed);
        let runs = together(kind, &mut random, &each);
        explore(&runs, kind, &mut random, &mut looked)
            .map_err(|Violation(why)| Violation(format!("{kind:?}, HOMENODE_CRASH_SEED={seed}: {why}")))?;
        nth += 1;
    }
    Ok(looked)
}

#[test]
fn threads_survive_every_crash() {
    match look(states() / 7, seed(), || ()) {
        Ok(Looked { states, points }) => eprintln!("{states} states at {points} points"),
        Err(Violation(why)) => panic!("{why}"),
    }
}

#[cfg(feature = "planted")]
#[test]
fn faults_that_are_planted_in_threads_are_found() {
    use homenode_engine::log::planted::{Planted, plant};
    const SOME: &[Planted] = &[
        Planted::RecordBeforeBytes,
        Planted::BytesNotPersisted,
        Planted::LogNotForced,
        Planted::ShiftUndone,
    ];
    // Much more than one needs as a rule: the order of the threads is of the moment, and it ends when the fault is found.
    let is_found = |fault: &&Planted| look(400_000, seed(), || plant(Some(**fault))).is_err();
    let missed: Vec<_> = SOME.iter().filter(|fault| !is_found(fault)).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
