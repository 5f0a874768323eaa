//! Crashes of durable pools at every point, on memory that forgets what was not made durable.
//!
//! `HOMENODE_CRASH_STATES` sets how many states are looked at; without it they take about a minute. Seeds are printed when a state is refused.

mod check;
mod full;
mod golden;
mod planted;
mod repair;
mod shared;
mod sim;
mod threads;
mod tree;
mod workload;

use check::{Looked, Violation, explore, flip_each};
use homenode_engine::fs::{Error, RenameMode};
use sim::{DISK, Disk, Event, Kind};
use std::ops::RangeInclusive;
use tree::Tree;
use workload::{FIRST_HISTORY, Operation, Range, Run, asking, format_of, history_from, open};

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
    Operation::Whiteout("a", "b"),
    Operation::Whiteout("d", "e"),
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
    Operation::OverwriteVolume(4096, 3000),
    Operation::DiscardVolume(0, 8192),
    Operation::ZeroVolume(4096, 5000),
    Operation::RemoveVolume,
    Operation::Tend,
    Operation::Tend,
];

/// Operations that make something durable.
const SYNCS: &[Operation] = &[
    Operation::Sync("a"),
    Operation::Sync("b"),
    Operation::SyncVolume,
    Operation::SyncAll,
    Operation::Snapshot,
];

const KINDS: &[Kind] = &[Kind::File, Kind::Pmem, DISK];

/// States that a test looks at, together with the others.
fn states() -> u64 {
    let set = std::env::var("HOMENODE_CRASH_STATES").ok();
    set.map_or(30_000, |count| {
        count.parse().expect("HOMENODE_CRASH_STATES is a number")
    })
}

/// Operations that change which members there are.
const MEMBERS: &[Operation] = &[
    Operation::AddMember,
    Operation::Drain { last: false },
    Operation::Drain { last: true },
    Operation::RemoveMember,
];

fn begun(kind: Kind, random: &mut fastrand::Rng) -> Run {
    begin(Run::new(kind), random)
}

/// A run that begins with a file that has bytes, some of them durable, and a directory.
fn begin(mut run: Run, random: &mut fastrand::Rng) -> Run {
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
    // Little is left: what is freed is soon used again.
    if random.u8(..) < 64 {
        run.step(Operation::Create("f"));
        run.step(Operation::Write("f", 0, random.usize(40..64) * 4096));
    }
    if random.bool() {
        run.step(Operation::SyncAll);
    }
    run
}

fn any(random: &mut fastrand::Rng, of: &[Operation]) -> Operation {
    of[random.usize(..of.len())]
}

/// Carries out so many steps: of 256, `syncs` make something durable.
fn mix(run: &mut Run, random: &mut fastrand::Rng, steps: RangeInclusive<usize>, syncs: u8, others: &[Operation]) {
    for _ in 0..random.usize(steps) {
        let of = if random.u8(..) < syncs { SYNCS } else { others };
        run.step(any(random, of));
    }
}

/// Looks at runs that `make` makes, each of a thread, until `states` states were looked at or one is refused.
fn look(
    kinds: &[Kind],
    states: u64,
    seed: u64,
    make: impl Fn(Kind, &mut fastrand::Rng) -> Vec<Run>,
) -> Result<Looked, Violation> {
    let mut looked = Looked::default();
    let mut nth = 0;
    while looked.states < states {
        let seed = seed.wrapping_add(nth);
        let mut random = fastrand::Rng::with_seed(seed);
        let kind = kinds[usize::try_from(nth).expect("the number is small") % kinds.len()].varied(&mut random);
        let runs = make(kind, &mut random);
        explore(&runs, kind, &mut random, &mut looked)
            .map_err(|Violation(why)| Violation(format!("{kind:?}, HOMENODE_CRASH_SEED={seed}: {why}")))?;
        nth += 1;
    }
    Ok(looked)
}

fn seed() -> u64 {
    let set = std::env::var("HOMENODE_CRASH_SEED").ok();
    set.map_or_else(
        || fastrand::u64(..),
        |seed| seed.parse().expect("HOMENODE_CRASH_SEED is a number"),
    )
}

/// At most three operations, each with or without one that makes something durable behind it.
fn short(kind: Kind, random: &mut fastrand::Rng) -> Run {
    let mut run = begun(kind, random);
    for _ in 0..random.usize(1..=3) {
        run.step(any(random, OPERATIONS));
        if random.bool() {
            run.step(any(random, SYNCS));
        }
    }
    run
}

fn long(kind: Kind, random: &mut fastrand::Rng) -> Run {
    let mut run = begun(kind, random);
    mix(&mut run, random, 10..=60, 50, OPERATIONS);
    run
}

/// Members come and go, and others work in between.
fn membered(kind: Kind, random: &mut fastrand::Rng) -> Run {
    let mut run = begin(Run::with_places(kind, 3), random);
    if random.u8(..) < 200 {
        run.step(Operation::AddMember);
    }
    if random.u8(..) < 40 {
        run.memory.fail_after(random.u64(..60), u64::MAX);
    }
    change_members(&mut run, random);
    run
}

/// A member comes, bytes are made durable, and a member goes.
fn leaving(kind: Kind, random: &mut fastrand::Rng) -> Run {
    let mut run = begin(Run::with_places(kind, 3), random);
    run.step(Operation::AddMember);
    run.step(Operation::Write("a", 0, 20_000));
    run.step(any(random, SYNCS));
    run.step(Operation::Drain { last: random.bool() });
    run.step(Operation::RemoveMember);
    run
}

fn change_members(run: &mut Run, random: &mut fastrand::Rng) {
    for _ in 0..random.usize(1..=8) {
        let of = match random.u8(..) {
            ..110 => MEMBERS,
            110..140 => SYNCS,
            _ => OPERATIONS,
        };
        run.step(any(random, of));
    }
}

/// Members come and go in a pool that was left by a crash while they did.
fn membered_again(kind: Kind, random: &mut fastrand::Rng) -> Run {
    let mut run = left_by_crash(kind, membered(kind, random), random);
    change_members(&mut run, random);
    run
}

/// A run on a pool that was left by a crash anywhere in another run.
fn second(kind: Kind, random: &mut fastrand::Rng) -> Run {
    let mut run = left_by_crash(kind, long(kind, random), random);
    mix(&mut run, random, 1..=12, 50, OPERATIONS);
    run
}

fn left_by_crash(kind: Kind, first: Run, random: &mut fastrand::Rng) -> Run {
    let events = first.memory.take_events();
    let begin = events.iter().position(|event| matches!(event, Event::Begin(..)));
    let until = random.usize(begin.expect("the run has operations")..=events.len());
    let mut disk = Disk::new(kind, first.base);
    events[..until].iter().for_each(|event| disk.play(event));
    Run::after_crash(kind, disk.after_crash(|_, stores| random.usize(..=stores)))
}

/// Bytes come and go in a pool that is nearly full, and little is made durable.
fn crowded(kind: Kind, random: &mut fastrand::Rng) -> Run {
    const OPERATIONS: &[Operation] = &[
        Operation::Truncate("a", 0),
        Operation::Truncate("b", 0),
        Operation::Write("a", 0, 20_000),
        Operation::Write("b", 0, 30_000),
        Operation::Write("b", 40_000, 20_000),
        Operation::Append("a", 9000),
        Operation::Allocate("a", Range::Punch, 0, 8192),
        Operation::Allocate("b", Range::Punch, 4096, 16_384),
        Operation::Rename("a", "b", RenameMode::Exchange),
        Operation::Unlink("b"),
        Operation::Create("b"),
    ];
    let mut run = Run::new(kind);
    for (path, blocks) in [("f", random.usize(30..50)), ("a", 5), ("b", 7)] {
        run.step(Operation::Create(path));
        run.step(Operation::Write(path, 0, blocks * 4096));
    }
    run.step(Operation::SyncAll);
    mix(&mut run, random, 4..=20, 20, OPERATIONS);
    run
}

/// Files that are not durable take the places of others, and one that is no part of it is synced.
fn replacing(kind: Kind, random: &mut fastrand::Rng) -> Run {
    let mut run = Run::new(kind);
    for path in ["a", "b", "f"] {
        run.step(Operation::Create(path));
        run.step(Operation::Write(path, 0, 5000));
    }
    run.step(Operation::SyncAll);
    for _ in 0..random.usize(1..=3) {
        for _ in 0..random.usize(1..=3) {
            run.step(Operation::Create("c"));
            run.step(Operation::Write("c", 0, random.usize(1..9000)));
            run.step(Operation::Rename(
                "c",
                if random.bool() { "a" } else { "b" },
                RenameMode::Replace,
            ));
        }
        run.step(Operation::Write("f", 0, 100));
        run.step(Operation::Sync("f"));
    }
    run
}

/// Names of a file come and go, and what is freed is used again.
fn linked(kind: Kind, random: &mut fastrand::Rng) -> Run {
    const OPERATIONS: &[Operation] = &[
        Operation::Link("a", "l"),
        Operation::Link("l", "b"),
        Operation::Unlink("a"),
        Operation::Unlink("l"),
        Operation::Unlink("b"),
        Operation::Create("a"),
        Operation::Rename("l", "a", RenameMode::Replace),
        Operation::Write("a", 0, 5000),
    ];
    let mut run = begun(kind, random);
    mix(&mut run, random, 4..=20, 70, OPERATIONS);
    run
}

/// Blocks move within a file whose bytes are overwritten, and little is made durable.
fn rewritten(kind: Kind, random: &mut fastrand::Rng) -> Run {
    const OPERATIONS: &[Operation] = &[
        Operation::Allocate("a", Range::Collapse, 0, 4096),
        Operation::Allocate("a", Range::Insert, 0, 4096),
        Operation::Allocate("a", Range::Punch, 1000, 6000),
        Operation::Write("a", 0, 9000),
        Operation::Write("a", 3000, 6000),
        Operation::Truncate("a", 2000),
        Operation::Append("a", 5000),
    ];
    let mut run = begun(kind, random);
    run.step(Operation::Write("a", 0, 20_000));
    run.step(Operation::Sync("a"));
    mix(&mut run, random, 2..=12, 40, OPERATIONS);
    run
}

/// A block device at work: writes, discards and flushes of a volume.
fn volume(kind: Kind, random: &mut fastrand::Rng) -> Run {
    let mut run = begun(kind, random);
    run.step(Operation::MakeVolume);
    for _ in 0..random.usize(4..=20) {
        let (offset, count) = (random.u64(0..50_000), random.usize(1..10_000));
        let bytes = count as u64;
        run.step(match random.u8(..10) {
            0..=2 => Operation::WriteVolume(offset, count),
            3..=4 => Operation::OverwriteVolume(offset, count),
            5 => Operation::DiscardVolume(offset, bytes),
            6 => Operation::ZeroVolume(offset, bytes),
            _ => Operation::SyncVolume,
        });
    }
    run
}

fn survives(make: impl Fn(Kind, &mut fastrand::Rng) -> Run) {
    survives_in(states() / 7, make);
}

fn survives_in(states: u64, make: impl Fn(Kind, &mut fastrand::Rng) -> Run) {
    survive(KINDS, states, |kind, random| vec![make(kind, random)]);
}

fn survive(kinds: &[Kind], states: u64, make: impl Fn(Kind, &mut fastrand::Rng) -> Vec<Run>) {
    match look(kinds, states, seed(), make) {
        Ok(Looked { states, points }) => eprintln!("{states} states at {points} points"),
        Err(Violation(why)) => panic!("{why}"),
    }
}

#[test]
fn short_sequences_survive_every_crash() {
    survives(short);
}

#[test]
fn long_runs_survive_every_crash() {
    survives(long);
}

#[test]
fn crowded_pools_survive_every_crash() {
    survives(crowded);
}

#[test]
fn replaced_files_survive_every_crash() {
    survives(replacing);
}

#[test]
fn linked_and_rewritten_files_survive_every_crash() {
    survives_in(states() / 14, linked);
    survives_in(states() / 14, rewritten);
}

#[test]
fn volumes_survive_every_crash() {
    survives(volume);
}

#[test]
fn crashed_pools_survive_every_further_crash() {
    survives(second);
}

#[test]
fn pools_survive_every_crash_while_members_come_and_go() {
    survives_in(states() / 10, membered);
    survives_in(states() / 10, membered_again);
    survives_in(states() / 20, leaving);
}

/// Bytes of one file lie on a disk and on persistent memory; some are synced, few at a time.
fn mixed(kind: Kind, random: &mut fastrand::Rng) -> Run {
    let mut run = Run::with_places(kind, 3);
    run.mixes = true;
    run.step(Operation::AddMember);
    run.step(Operation::Create("g"));
    // More than one of them has.
    for nth in 0..11 {
        run.step(Operation::Write("g", nth * 20 * 4096, 20 * 4096));
    }
    run.step(Operation::SyncAll);
    for _ in 0..random.usize(2..8) {
        run.step(match random.u8(..) {
            0..110 => Operation::Write("g", random.u64(0..210) * 4096, 3000),
            110..190 => Operation::Sync("g"),
            _ => Operation::SyncAll,
        });
    }
    run
}

#[test]
fn pools_of_disks_and_persistent_memory_survive_every_crash() {
    survive(&[Kind::File, DISK], states() / 7, |kind, random| {
        vec![mixed(kind, random)]
    });
}

#[test]
fn members_come_and_go() {
    for kind in KINDS.iter().copied() {
        let mut run = Run::with_places(kind, 2);
        assert!(!run.step(Operation::Drain { last: true }), "the only member");
        assert!(run.step(Operation::Create("a")));
        assert!(run.step(Operation::Write("a", 0, 40 * 4096)));
        for _ in 0..3 {
            assert!(run.step(Operation::AddMember));
            assert!(!run.step(Operation::RemoveMember), "an undrained member was removed");
            assert!(run.step(Operation::Drain { last: false }));
            assert!(!run.step(Operation::Drain { last: false }), "last member");
            assert!(run.step(Operation::RemoveMember));
            run.fs.check_invariants();
        }
        let members = run.fs.pool().status().members;
        assert_eq!(members.len(), 1);
        assert_eq!(run.trees.last(), Some(&run.trees[3]), "files are as they were");
    }
}

/// The disk fills, room comes back, and it fills again.
fn filling(kind: Kind, random: &mut fastrand::Rng) -> Run {
    const FILES: [&str; 4] = ["a", "b", "d/a", "f"];
    let mut run = begun(kind, random);
    run.step(Operation::Mkdir("d"));
    for _ in 0..random.usize(1..=3) {
        for path in FILES {
            run.step(Operation::Create(path));
            while run.step(Operation::Append(path, random.usize(1..12) * 4000)) && random.u8(..) > 8 {}
            if random.u8(..) < 100 {
                run.step(any(random, SYNCS));
            }
            run.step(any(random, OPERATIONS));
        }
        let gone = FILES[random.usize(..FILES.len())];
        let is_empty = !run.step(Operation::Unlink(gone));
        assert!(run.step(Operation::SyncAll), "a full pool makes things durable");
        assert!(is_empty || run.step(Operation::Create(gone)), "there is room again");
    }
    run
}

#[test]
fn filling_pools_survive_every_crash() {
    survives(filling);
}

/// The disk fails at some time: nothing is acknowledged as durable from then on, and what was stays. Below a cache it is known what it did not
/// write, and that may be written later.
fn failing(kind: Kind, random: &mut fastrand::Rng) -> Run {
    let mut run = begun(kind, random);
    // It may work again, as if nothing had been: the kernel tells of lost bytes once.
    let faults = if random.bool() { u64::MAX } else { random.u64(1..3) };
    let calls = if kind.is_disk() { 60 } else { 12 };
    run.memory.fail_after(random.u64(..calls), faults);
    let mut has_failed = false;
    for _ in 0..random.usize(5..=25) {
        let of = if random.u8(..) < 80 { SYNCS } else { OPERATIONS };
        let operation = any(random, of);
        let is_there = operation == Operation::SyncAll || run.has(operation);
        let is_done = run.step(operation);
        if SYNCS.contains(&operation) && is_there {
            assert!(!is_done || !has_failed, "a disk that failed acknowledges {operation:?}");
            has_failed |= !is_done && (!kind.is_disk() || run.fs.has_failed());
        }
    }
    run
}

#[test]
fn pools_on_a_failing_disk_keep_acknowledged_data() {
    survives(failing);
}

/// A thread that panics in the middle of a sync has bytes in hand that no other one makes durable any more.
#[test]
fn a_panic_in_a_sync_acknowledges_nothing() {
    for (kind, sync, calls) in KINDS
        .iter()
        .flat_map(|kind| [Operation::Sync("a"), Operation::SyncAll].map(|sync| (*kind, sync)))
        .flat_map(|(kind, sync)| (0..12).map(move |calls| (kind, sync, calls)))
    {
        let mut run = Run::new(kind);
        assert!(run.step(Operation::Create("a")) && run.step(Operation::Write("a", 0, 70_000)));
        run.memory.panic_after(calls);
        let step = std::panic::AssertUnwindSafe(|| run.step(sync));
        let is_done = std::panic::catch_unwind(step).is_ok();
        run.memory.fail_after(0, 0);
        let events = run.memory.take_events();
        let is_acknowledged = run.step(Operation::SyncAll);
        let events = [events, run.memory.take_events()].concat();
        let mut disk = Disk::new(kind, vec![0; run.memory.bytes().len()]);
        events.iter().for_each(|event| disk.play(event));
        let state = disk.after_crash(|_, _| 0);
        let (fs, _) = workload::open(kind, state, 9).expect("the log is whole");
        let is_there = bytes_of_a(&fs) == bytes_of_a(&run.fs);
        assert!(!is_acknowledged || is_there, "{kind:?}, {sync:?}, {calls}");
        assert!(
            is_acknowledged || !is_done,
            "{kind:?}, {sync:?}, {calls}: it fails without a panic"
        );
    }
}

/// The witness that all is there that was stored goes from all disks when one has lost bytes, as that one may show old bytes later.
#[test]
fn a_failed_disk_leaves_no_witness_on_the_others() {
    use homenode_engine::BLOCK_BYTES;
    use homenode_engine::log::Superblock;
    let witnesses = |run: &Run| {
        let bytes = run.memory.bytes();
        let copies = bytes.chunks(sim::MEMBER_BYTES).map(|member| {
            let first = member[..BLOCK_BYTES].try_into().expect("a block");
            Superblock::decode(first).expect("it is whole").witness
        });
        copies.collect::<Vec<_>>()
    };
    let write = Operation::Write("a", 0, 70_000);
    let replace = Operation::Rename("a", "b", RenameMode::Replace);
    // The last one is told of it: a sync of another file has to settle the one that took a name.
    for steps in [
        vec![write, Operation::SyncAll],
        vec![write, Operation::Sync("a")],
        vec![write, replace, Operation::Sync("c")],
    ] {
        let mut run = Run::with_places(Kind::File, 2);
        assert!(run.step(Operation::AddMember));
        assert!(["a", "b", "c"].iter().all(|name| run.step(Operation::Create(name))));
        assert!(run.step(Operation::SyncAll));
        assert_eq!(witnesses(&run), [1, 1]);
        run.memory.fail_place(0);
        let (last, before) = steps.split_last().expect("there are some");
        assert!(before.iter().all(|step| run.step(*step)));
        assert!(!run.step(*last));
        assert!(
            witnesses(&run).iter().all(|witness| *witness != 1),
            "{last:?}: {:?}",
            witnesses(&run)
        );
    }
}

/// A new segment of the log is made durable before it is used. When that fails nobody needs to sync to have the witness taken out: others are refused
/// from then on, and the process may be killed at any time.
#[test]
fn a_log_that_ends_without_a_sync_leaves_no_witness() {
    let run = Run::new(Kind::File);
    let witness = || {
        workload::newest_superblock(&run.memory.bytes())
            .expect("one is sound")
            .witness
    };
    run.memory.fail_after(0, 1);
    let mut creates = (0..).map(|nth: u32| {
        run.fs
            .create(&run.fs.root(), format!("n{nth}").as_bytes(), full::file())
    });
    assert!(creates.by_ref().take(100_000).any(|created| created.is_err()));
    assert_ne!(witness(), 1);
}

/// Devices of a killed server go on only with the history that they were served in.
#[test]
fn a_pool_has_another_history_once_an_opening_has_lost_something() {
    for kind in [Kind::File, DISK] {
        let run = Run::new(kind);
        let open = |bytes, witness| {
            let (fs, memory) = workload::open(kind, bytes, witness).expect("the pool is sound");
            (fs.history(), memory.bytes())
        };
        assert_eq!(run.fs.history(), Some(FIRST_HISTORY));
        let killed = run.memory.bytes();
        let (history, bytes) = open(killed.clone(), 1);
        assert_eq!(history, Some(FIRST_HISTORY), "all is there");
        assert_eq!(open(bytes, 1).0, Some(FIRST_HISTORY), "all is still there");
        let (history, bytes) = open(killed, 2);
        assert_eq!(history, Some(history_from(2)), "something may be lost");
        let (history, bytes) = open(bytes, 2);
        assert_eq!(history, Some(history_from(2)), "what was lost does not come back");
        let (fs, memory) = workload::open(kind, bytes, 2).expect("the pool is sound");
        fs.put_away(&fs.slots().claim().expect("the first slot is free"))
            .expect("the disk is sound");
        assert_eq!(open(memory.bytes(), 2).0, Some(history_from(2)));
        assert_eq!(open(memory.bytes(), 1).0, Some(history_from(1)));
    }
}

/// Bytes of the file `a`.
fn bytes_of_a(fs: &workload::SimFs) -> Option<Vec<u8>> {
    let inode = fs.lookup(&fs.root(), b"a").ok()?;
    let mut bytes = vec![0; 70_000];
    let slot = fs.slots().claim().expect("a slot is free");
    let read = fs.read(&workload::asking(&slot), &inode, 0, &mut bytes);
    bytes.truncate(read.expect("its blocks can be read"));
    Some(bytes)
}

/// Writes of a disk fail now and then, but those of the log. Nothing is lost that was acknowledged, the pool goes on, and in the end all is made durable.
fn unsteady(kind: Kind, random: &mut fastrand::Rng) -> Run {
    let mut run = begun(kind, random);
    run.memory.fail_often(random.u8(8..128));
    mix(&mut run, random, 5..=40, 60, OPERATIONS);
    run.memory.fail_often(0);
    let is_durable = run.step(Operation::SyncAll);
    // Superblocks are not the log's.
    assert!(is_durable || run.fs.has_failed(), "the disk takes all again");
    run
}

#[test]
fn pools_on_an_unsteady_disk_lose_nothing_and_stay_usable() {
    survive(&[DISK], states() / 7, |kind, random| vec![unsteady(kind, random)]);
}

/// Few writes of a disk succeed, so most commits fail: they settle files that are durable, and no other.
fn mostly_failing(kind: Kind, random: &mut fastrand::Rng) -> Run {
    let mut run = begun(kind, random);
    run.memory.fail_often(random.u8(128..240));
    for _ in 0..random.usize(3..=12) {
        mix(&mut run, random, 0..=4, 0, OPERATIONS);
        run.step(Operation::SyncAll);
    }
    run
}

#[test]
fn failed_commits_settle_nothing_that_is_not_durable() {
    survive(&[DISK], states() / 7, |kind, random| vec![mostly_failing(kind, random)]);
}

/// Flushes of a disk, which takes requests without any.
fn flushes(memory: &sim::SimMemory) -> usize {
    let events = memory.take_events();
    events
        .iter()
        .filter(|event| matches!(event, Event::Persist(..)))
        .count()
}

#[test]
fn a_sync_of_a_fragmented_file_flushes_its_disk_once_for_all_fragments() {
    const FRAGMENTS: u64 = 1000;
    let (fs, memory) = workload::format_of(Kind::Disk { frames: 8192 }, 4096, 64);
    let slot = fs.slots().claim().expect("the first slot is free");
    let [a, b] = ["a", "b"].map(|name| {
        let made = fs.create(&fs.root(), name.as_bytes(), full::file());
        made.expect("the pool is empty")
    });
    for at in 0..FRAGMENTS {
        for file in [&a, &b] {
            let written = fs.write(&asking(&slot), file, at * 4096, &[7; 4096], false);
            assert_eq!(written, Ok(4096));
        }
    }
    flushes(&memory);
    fs.sync(&slot, &a).expect("the disk is sound");
    let flushes = flushes(&memory);
    assert!((1..=4).contains(&flushes), "{flushes} flushes");
}

#[test]
fn a_sync_of_both_ends_of_a_file_leaves_what_is_between_alone() {
    const BYTES: usize = 1000 * 4096;
    for kind in [Kind::Pmem, Kind::File] {
        let (fs, memory) = workload::format_of(kind, 4096, 64);
        let slot = fs.slots().claim().expect("the first slot is free");
        let file = fs.create(&fs.root(), b"a", full::file()).expect("the pool is empty");
        let write = |at, bytes: usize| {
            let written = fs.write(&asking(&slot), &file, at, &vec![7; bytes], false);
            assert_eq!(written, Ok(bytes));
        };
        write(0, BYTES);
        fs.sync(&slot, &file).expect("the memory is sound");
        for at in [0, 4096, (BYTES - 4096) as u64] {
            write(at, 4096);
        }
        memory.take_events();
        fs.sync(&slot, &file).expect("the memory is sound");
        let bytes = memory.take_events().iter().fold(0, |all, event| match event {
            Event::Persist(_, bytes) => all + bytes,
            _ => all,
        });
        // Three blocks, by themselves or in the log, and segments of it.
        assert!(bytes < 64 << 10, "{kind:?}: {bytes} bytes");
    }
}

/// A disk that was left by a crash while its log held a block of each of many files, and the tree.
fn left_with_bytes_in_the_log() -> (Vec<u8>, Tree) {
    let (fs, memory) = workload::format_of(DISK, 4096, 64);
    let slot = fs.slots().claim().expect("the first slot is free");
    for nth in 0..50 {
        let name = format!("f{nth}");
        let file = fs
            .create(&fs.root(), name.as_bytes(), full::file())
            .expect("the pool has room");
        fs.write(&asking(&slot), &file, 0, &[nth; 4096], false)
            .expect("the pool has room");
        fs.sync(&slot, &file).expect("the disk is sound");
    }
    (memory.bytes(), Tree::of(&fs, &slot))
}

#[test]
fn an_opened_pool_flushes_its_disk_once_for_all_bytes_of_the_log() {
    let (bytes, tree) = left_with_bytes_in_the_log();
    let (fs, memory) = workload::open(DISK, bytes, 9).expect("the log is sound");
    let flushes = flushes(&memory);
    assert!((1..=12).contains(&flushes), "{flushes} flushes");
    assert!(tree == Tree::of(&fs, &fs.slots().claim().expect("the first slot is free")));
}

/// A killed process leaves stores in the processor's caches, which a later power cut loses.
#[test]
fn groups_of_a_killed_process_are_durable_before_others_follow() {
    let (fs, memory) = format_of(Kind::Pmem, 4096, 64);
    for nth in 0..500 {
        let made = fs.create(&fs.root(), nth.to_string().as_bytes(), full::file());
        made.expect("the pool has room");
    }
    let mut disk = Disk::new(Kind::Pmem, vec![0; memory.bytes().len()]);
    memory.take_events().iter().for_each(|event| disk.play(event));
    // Under another witness, as each is of a pool with disks.
    let (fs, memory) = open(Kind::Pmem, memory.bytes(), 9).expect("the log is sound");
    let slot = fs.slots().claim().expect("the first slot is free");
    let later = fs
        .create(&fs.root(), b"later", full::file())
        .expect("the pool has room");
    fs.sync(&slot, &later).expect("the memory works");
    memory.take_events().iter().for_each(|event| disk.play(event));
    let (fs, _) = open(Kind::Pmem, disk.after_crash(|_, _| 0), 10).expect("the log is sound");
    assert!(fs.lookup(&fs.root(), b"later").is_ok(), "a synced file is gone");
}

#[test]
fn a_pool_is_read_with_fewer_frames_than_blocks_in_its_log() {
    let (bytes, tree) = left_with_bytes_in_the_log();
    let (fs, _) = workload::open_as(DISK, bytes, 9, true).expect("the log is sound");
    assert!(tree == Tree::of(&fs, &fs.slots().claim().expect("the first slot is free")));
}

#[test]
fn a_pool_with_a_failed_log_is_read_only() {
    let mut run = Run::new(Kind::File);
    run.step(Operation::Create("a"));
    assert!(run.step(Operation::Write("a", 0, 5000)));
    run.memory.fail_after(0, 1);
    assert!(!run.step(Operation::Sync("a")));
    assert!(
        !run.step(Operation::Sync("a")),
        "the disk works again, and what it lost is not known"
    );
    let before = run.trees.last().expect("the run has operations").clone();
    for operation in OPERATIONS.iter().filter(|operation| **operation != Operation::Tend) {
        assert!(!run.step(*operation), "{operation:?}");
    }
    assert!(before == *run.trees.last().expect("it has operations"), "changed");
    let file = run.fs.lookup(&run.fs.root(), b"a").expect("the name exists");
    let written = run.fs.write(&asking(&run.slot), &file, 0, &[1; 10], false);
    assert_eq!(written, Err(Error::ReadOnly));
}

#[test]
fn a_flipped_bit_is_detected_or_ends_the_log() {
    for kind in KINDS.iter().copied() {
        let mut random = fastrand::Rng::with_seed(seed());
        // A log that ends before a collapse or an insert finds blocks where they were, with what was written to them since.
        let shifts =
            |operation: &Operation| matches!(operation, Operation::Allocate(_, Range::Collapse | Range::Insert, ..));
        let mut run = long(kind, &mut random);
        while run.operations.iter().any(shifts) {
            run = long(kind, &mut random);
        }
        match flip_each(&run, kind, &mut random) {
            Ok((opened, mended)) => {
                eprintln!("{opened} pools opened, {mended} mended");
                assert!(mended > 0, "no flipped bit was mended");
            }
            Err(Violation(why)) => panic!("{kind:?}, {why}"),
        }
    }
}
