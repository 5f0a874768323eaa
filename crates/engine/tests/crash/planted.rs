//! Faults that are planted in the engine: the harness finds each.

use crate::sim::{DISK, Kind};
use crate::workload::Run;
use crate::{KINDS, crowded, leaving, linked, long, look, replacing, rewritten, short, unsteady};
use homenode_engine::log::planted::{Planted, plant};

/// Faults of the log's rules.
const OF_THE_LOG: &[Planted] = &[
    Planted::BytesNotPersisted,
    Planted::RecordBeforeBytes,
    Planted::LogNotForced,
    Planted::EarlyReuse,
    Planted::TornGroup,
    Planted::EarlySnapshot,
    Planted::SuperblockFirst,
    Planted::BothSuperblocks,
    Planted::EarlySize,
    Planted::EarlyRename,
    Planted::LinksCopied,
    Planted::DroppedComeBack,
    Planted::StaleBytes,
    Planted::ShiftUndone,
    Planted::ListedFirst,
    Planted::WipedFirst,
    Planted::ClaimedEarly,
];

/// Faults of the cache's.
const OF_THE_CACHE: &[Planted] = &[
    Planted::FailedIsClean,
    Planted::NotFlushed,
    Planted::DirtyEvicted,
    Planted::TailDropped,
];

/// Whether the harness finds a fault in pools whose members are of one kind: workloads take turns, as each shows some faults soon.
fn is_found(fault: Planted, kind: Kind) -> bool {
    type Make = fn(Kind, &mut fastrand::Rng) -> Run;
    let makes: &[Make] = match fault {
        Planted::ListedFirst | Planted::WipedFirst => &[leaving],
        Planted::ShiftUndone => &[rewritten],
        Planted::StaleBytes => &[linked],
        Planted::FailedIsClean => &[unsteady],
        _ => &[crowded, linked, replacing, rewritten, short, long],
    };
    plant(Some(fault));
    // Panics of the engine are findings too: its invariants are part of the oracle.
    let found = std::panic::catch_unwind(|| {
        let mut turns = (1..).zip(makes.iter().cycle()).take(200);
        turns.any(|(nth, make)| {
            let alone = |kind, random: &mut _| vec![make(kind, random)];
            look(&[kind], 500, nth << 32, alone).is_err()
        })
    });
    plant(None);
    let is_found = found.unwrap_or(true);
    eprintln!("{fault:?}, {kind:?}: {}", if is_found { "found" } else { "NOT FOUND" });
    is_found
}

#[test]
fn every_planted_fault_is_found_with_members_of_each_kind() {
    const NAME: &str = "planted";
    // Other tests' panics are told.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some(NAME) {
            hook(panic);
        }
    }));
    let everywhere = OF_THE_LOG
        .iter()
        .flat_map(|fault| KINDS.iter().map(move |kind| (*fault, *kind)));
    let cached = OF_THE_CACHE.iter().map(|fault| (*fault, DISK));
    let wanted = everywhere
        .filter(|(fault, kind)| has_meaning(*fault, *kind))
        .chain(cached);
    let wanted = std::sync::Mutex::new(wanted);
    // A fault is planted in a thread.
    let search = || {
        let next = || wanted.lock().expect("nothing panics in it").next();
        std::iter::from_fn(next)
            .filter(|(fault, kind)| !is_found(*fault, *kind))
            .collect::<Vec<_>>()
    };
    let missed: Vec<_> = std::thread::scope(|scope| {
        let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let workers: Vec<_> = (0..workers)
            .map(|_| {
                let named = std::thread::Builder::new().name(NAME.to_owned());
                named.spawn_scoped(scope, search).expect("there are threads")
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("findings are caught"))
            .collect()
    });
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// Whether members of a kind show a fault.
fn has_meaning(fault: Planted, kind: Kind) -> bool {
    match fault {
        // No bytes of files are in the log of persistent memory.
        Planted::StaleBytes => kind != Kind::Pmem,
        _ => true,
    }
}
