//! Crashes of durable pools at every point, on memory that forgets what was not made durable.
//!
//! `HOMENODE_CRASH_STATES` sets how many states are looked at; seeds are printed when one is refused.

mod check;
mod sim;
mod tree;
mod workload;

use check::{Looked, Violation, explore};
use homenode_engine::fs::RenameMode;
use sim::Kind;
use workload::{Operation, Range, Run};

/// Every operation that the short sequences are made of.
const OPERATIONS: &[Operation] = &[
    Operation::Create("b"),
    Operation::Mkdir("d"),
    Operation::Create("d/a"),
    Operation::Symlink("s"),
    Operation::Link("a", "l"),
    Operation::Unlink("a"),
    Operation::Rmdir("d"),
    Operation::Rename("a", "b", RenameMode::Replace),
    Operation::Rename("a", "d/a", RenameMode::NoReplace),
    Operation::Rename("a", "b", RenameMode::Exchange),
    Operation::Rename("d", "e", RenameMode::Replace),
    Operation::Write("a", 0, 100),
    Operation::Write("a", 3000, 6000),
    Operation::Write("b", 0, 4096),
    Operation::Append("a", 5000),
    Operation::Truncate("a", 0),
    Operation::Truncate("a", 2000),
    Operation::Truncate("a", 20_000),
    Operation::Allocate("a", Range::Reserve, 0, 16_384),
    Operation::Allocate("a", Range::ReserveKeepSize, 4096, 16_384),
    Operation::Allocate("a", Range::Punch, 1000, 6000),
    Operation::Allocate("a", Range::Zero, 1000, 9000),
    Operation::Allocate("a", Range::Collapse, 0, 4096),
    Operation::Allocate("a", Range::Insert, 0, 4096),
    Operation::Chmod("a", 0o4711),
    Operation::SetXattr("a", 300),
    Operation::RemoveXattr("a"),
    Operation::Mknod("d/n"),
    Operation::Chown("a"),
    Operation::SetAcl("a", b"system.posix_acl_access"),
    Operation::SetAcl("d", b"system.posix_acl_default"),
    Operation::SetPolicy("d"),
    Operation::MakeVolume,
    Operation::WriteVolume(4096, 5000),
    Operation::RemoveVolume,
];

/// Operations that make something durable.
const SYNCS: &[Operation] = &[
    Operation::Sync("a"),
    Operation::Sync("b"),
    Operation::SyncAll,
    Operation::Snapshot,
];

/// States that a test looks at, together with the others.
fn states() -> u64 {
    let set = std::env::var("HOMENODE_CRASH_STATES").ok();
    set.map_or(20_000, |count| {
        count.parse().expect("HOMENODE_CRASH_STATES is a number")
    })
}

/// A run that begins with a file that has bytes, some of them durable, and a directory.
fn begun(kind: Kind, random: &mut fastrand::Rng) -> Run {
    let mut run = Run::new(kind);
    run.step(Operation::Create("a"));
    if random.bool() {
        run.step(Operation::Write("a", 0, 9000));
    }
    if random.bool() {
        run.step(Operation::Sync("a"));
    }
    if random.bool() {
        run.step(Operation::Create("b"));
        run.step(Operation::Write("b", 100, 200));
    }
    if random.bool() {
        run.step(Operation::Mkdir("d"));
    }
    if random.bool() {
        run.step(Operation::SyncAll);
    }
    run
}

fn any(random: &mut fastrand::Rng, of: &[Operation]) -> Operation {
    of[random.usize(..of.len())]
}

fn report(kind: Kind, seed: u64, Violation(why): &Violation) -> ! {
    panic!("{kind:?}, seed {seed}: {why}");
}

/// Looks at runs that `make` makes, until `states` states were looked at.
fn look(states: u64, seed: u64, make: impl Fn(Kind, &mut fastrand::Rng) -> Run) -> Looked {
    let mut looked = Looked::default();
    let mut nth = 0;
    while looked.states < states {
        let seed = seed.wrapping_add(nth);
        let kind = if nth % 2 == 0 { Kind::File } else { Kind::Pmem };
        let mut random = fastrand::Rng::with_seed(seed);
        let run = make(kind, &mut random);
        if let Err(violation) = explore(&run, kind, &mut random, &mut looked) {
            report(kind, seed, &violation);
        }
        nth += 1;
    }
    looked
}

fn seed() -> u64 {
    let set = std::env::var("HOMENODE_CRASH_SEED").ok();
    set.map_or_else(
        || fastrand::u64(..),
        |seed| seed.parse().expect("HOMENODE_CRASH_SEED is a number"),
    )
}

#[test]
fn short_sequences_survive_every_crash() {
    let looked = look(states() / 2, seed(), |kind, random| {
        let mut run = begun(kind, random);
        for _ in 0..random.usize(1..=3) {
            run.step(any(random, OPERATIONS));
            if random.bool() {
                run.step(any(random, SYNCS));
            }
        }
        run
    });
    eprintln!("{looked:?}");
}

#[test]
fn long_runs_survive_every_crash() {
    let looked = look(states() / 2, seed(), |kind, random| {
        let mut run = begun(kind, random);
        for _ in 0..random.usize(10..=60) {
            let of = if random.u8(..) < 50 { SYNCS } else { OPERATIONS };
            run.step(any(random, of));
        }
        run
    });
    eprintln!("{looked:?}");
}
