//! The memory of map nodes: bounded, and the kernel's again when they are freed. (A process of its own: the memory is
//! measured.)

#![allow(clippy::cast_possible_truncation, reason = "sizes of a test")]

use homenode_policy::{Block, MemberId};
use homenode_shared::{BlockMap, Nodes, NodesExhausted, RUN_BLOCKS};
use std::io::Write;

const MAPS: u64 = 8000;

/// Bytes of this process's memory that no file is behind.
fn resident_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:"))?;
    let kib: usize = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

fn fill(nodes: &Nodes, map: &BlockMap, at: u64) -> Result<(), NodesExhausted> {
    if let Some(places) = map.lock_empty(nodes, 0, at, 1)? {
        places.publish(Block::new(MemberId(0), at));
    }
    Ok(())
}

fn empty(nodes: &Nodes, map: &BlockMap) {
    map.remove(nodes, 0, 0..BlockMap::LIMIT, &mut |_, _| {})
        .expect("no run is split");
}

#[test]
#[cfg(not(miri))]
fn freed_map_nodes_return_to_the_kernel() {
    let nodes = Nodes::new(1);
    let maps: Vec<BlockMap> = (0..MAPS).map(|_| BlockMap::default()).collect();
    let bytes = MAPS as usize * Nodes::NODE_BYTES;
    let Some(before) = resident_bytes() else {
        // Past the test harness's capture.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: /proc/self/status does not tell resident memory"
        );
        return;
    };
    // Twice: what went back is of use again.
    for round in 0..2 {
        maps.iter().for_each(|map| fill(&nodes, map, 100).expect("no limit"));
        assert_eq!(nodes.used(), maps.len());
        let full = resident_bytes().expect("the resident size can be read");
        assert!(
            full - before > bytes * 9 / 10,
            "round {round}: {before} then {full}: not measured"
        );
        // Neither in the order of their addresses nor against it.
        (0..MAPS).for_each(|i| empty(&nodes, &maps[(i * 4001 % MAPS) as usize]));
        assert_eq!(nodes.used(), 0);
        let left = resident_bytes().expect("as before").saturating_sub(before);
        assert!(left < bytes / 10, "round {round}: {left} bytes of {bytes} stay");
    }
}

/// Small files take no node; beyond the limit nothing grows, and everything can be taken away.
#[test]
fn the_limit_holds_except_for_whole_runs() {
    let nodes = Nodes::new(1);
    let small = BlockMap::default();
    (0..8).for_each(|at| fill(&nodes, &small, at).expect("a small map takes no map node"));
    assert_eq!(nodes.used(), 0);
    let large = BlockMap::default();
    let run = large.lock_empty_run(&nodes, 0, 0).expect("no limit yet");
    run.expect("the place is empty").publish(Block::new(MemberId(0), 0));
    assert_eq!(nodes.used(), 1);

    nodes.set_limit(1);
    assert_eq!(nodes.limit(), 1);
    assert_eq!(fill(&nodes, &small, 8), Err(NodesExhausted));
    assert_eq!(small.find_one(&nodes, 7), Some(Block::new(MemberId(0), 7)));
    assert_eq!(fill(&nodes, &large, RUN_BLOCKS * RUN_BLOCKS), Err(NodesExhausted));
    let mut taken = 0;
    let mut take = |range| large.remove(&nodes, 0, range, &mut |_, _| taken += 1);
    assert_eq!(take(5..6), Err(NodesExhausted), "a part of a run needs a node");
    assert_eq!(take(0..RUN_BLOCKS), Ok(()), "a whole run needs none");
    assert_eq!((taken, nodes.used()), (1, 0));
    empty(&nodes, &large);
    empty(&nodes, &small);
    assert_eq!(nodes.used(), 0);
    fill(&nodes, &small, 8).expect("below the limit again");
}
