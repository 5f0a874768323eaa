//! Slices: who takes whose frames, and when that changes.

mod seeded;

use homenode_policy::slices::{PERIOD_PART, Slices};
use proptest::prelude::*;

const FRAMES: u64 = 3200;

/// Nodes in a row, each with as many frames.
fn row(count: usize) -> Slices {
    let distances = |one: usize| {
        (0..count)
            .map(|other| 10 + 10 * u32::try_from(one.abs_diff(other)).expect("the number is small"))
            .collect()
    };
    let distances: Vec<Vec<u32>> = (0..count).map(distances).collect();
    Slices::new(&vec![FRAMES; count], &distances)
}

/// A period in which each node misses `missed` blocks of which `returned` do; how many blocks of each node came to each slice.
fn period(slices: &mut Slices, uses: &[(u64, u64)]) -> Vec<Vec<u64>> {
    let all: u64 = uses.iter().map(|(missed, _)| missed).sum();
    assert_eq!(all, FRAMES * uses.len() as u64 / PERIOD_PART, "a whole period");
    let mut came = vec![vec![0; uses.len()]; uses.len()];
    for (asking, (_, returned)) in uses.iter().enumerate() {
        slices.note_returned(asking, *returned);
    }
    // In turns, by what each has left.
    let mut left: Vec<u64> = uses.iter().map(|(missed, _)| *missed).collect();
    while let Some(asking) = (0..uses.len())
        .filter(|asking| left[*asking] > 0)
        .max_by_key(|asking| left[*asking])
    {
        came[asking][slices.place(asking, 1, |_| false)] += 1;
        left[asking] -= 1;
    }
    came
}

#[test]
fn a_node_with_returning_blocks_takes_frames_of_idle_nodes_evenly() {
    let mut slices = row(4);
    let use_of_one = [(400, 300), (0, 0), (0, 0), (0, 0)];
    assert_eq!(
        period(&mut slices, &use_of_one)[0],
        [400, 0, 0, 0],
        "no gain is known yet"
    );
    // Its own slice has a quarter more than the others.
    assert_eq!(period(&mut slices, &use_of_one)[0], [118, 94, 94, 94]);
}

#[test]
fn a_scan_stays_in_its_own_slice() {
    let mut slices = row(4);
    for returned in [0, 3] {
        let uses = [(300, returned), (50, 0), (50, 40), (0, 0)];
        period(&mut slices, &uses);
        assert!((1..4).all(|from| !slices.may_take(0, from)));
        assert_eq!(period(&mut slices, &uses)[0], [300, 0, 0, 0]);
    }
}

#[test]
fn equally_busy_nodes_take_no_frames() {
    let mut slices = row(4);
    for returned in [[40, 60, 50, 45], [60, 40, 45, 50], [31, 60, 31, 60]] {
        let came = period(&mut slices, &returned.map(|returned| (100, returned)));
        for (asking, came) in came.iter().enumerate() {
            assert_eq!(came[asking], 100, "{came:?}");
        }
    }
}

#[test]
fn a_node_starts_taking_at_twice_the_gain_and_continues_while_it_gains() {
    let mut slices = row(2);
    let may = |slices: &mut Slices, returned: u64, other: u64| {
        period(slices, &[(150, returned), (50, other)]);
        slices.may_take(0, 1)
    };
    assert!(!may(&mut slices, 40, 20), "twice is not more than twice");
    assert!(may(&mut slices, 41, 20));
    assert!(may(&mut slices, 21, 20), "taking did not continue");
    assert!(!may(&mut slices, 20, 20));
    assert!(!may(&mut slices, 39, 20), "taking started again");
}

#[test]
fn gains_and_transfers_are_per_frame() {
    let mut slices = Slices::new(&[800, 2400], &[vec![10, 20], vec![20, 10]]);
    let mut came = [0, 0];
    for step in 0..300 {
        // As many returns, of a third of the frames.
        if step % 3 == 0 {
            slices.note_returned(0, 1);
            slices.note_returned(1, 1);
        }
        let slice = slices.place(0, 1, |_| false);
        if step >= 200 {
            came[slice] += 1;
        }
    }
    assert!(slices.may_take(0, 1) && !slices.may_take(1, 0));
    assert!((20..=30).contains(&came[0]), "{came:?}");
}

#[test]
fn free_frames_come_first_own_then_nearest() {
    let mut slices = row(4);
    let place = |slices: &mut Slices, free: &[usize]| slices.place(1, 1, |slice| free.contains(&slice));
    assert_eq!(place(&mut slices, &[0, 1, 3]), 1);
    assert_eq!(place(&mut slices, &[0, 3]), 0);
    assert_eq!(place(&mut slices, &[0, 2]), 0, "the lowest of equal slices");
    assert_eq!(place(&mut slices, &[3]), 3);
    assert_eq!(place(&mut slices, &[]), 1);
}

#[test]
fn a_node_without_frames_uses_the_nearest() {
    let distances = [vec![10, 30, 20], vec![30, 10, 20], vec![20, 20, 10]];
    let mut slices = Slices::new(&[0, 100, 100], &distances);
    assert_eq!(slices.place(0, 1, |_| false), 2);
    let mut slices = Slices::new(&[0, 0, 0], &distances);
    assert_eq!(slices.place(1, 1, |_| false), 1, "slice 1 is the only one");
}

#[test]
fn nodes_never_swap_frames_and_decisions_are_reproducible() {
    let uses = proptest::collection::vec((0..4usize, 0..50u64, 0..60u64), 1..400);
    let frames = proptest::collection::vec(prop_oneof![Just(0u64), 1..2000u64], 4);
    seeded::check(300, (frames, uses), |(frames, uses)| {
        let distances = [
            vec![10, 20, 20, 30],
            vec![20, 10, 30, 20],
            vec![20, 30, 10, 20],
            vec![30, 20, 20, 10],
        ];
        let mut both = [0, 1].map(|_| Slices::new(&frames, &distances));
        for (asking, blocks, returned) in uses {
            let placed = both.each_mut().map(|slices| {
                slices.note_returned(asking, returned.min(blocks));
                slices.place(asking, blocks, |_| false)
            });
            prop_assert_eq!(placed[0], placed[1]);
            prop_assert!(frames[placed[0]] > 0 || frames.iter().all(|frames| *frames == 0));
            for (one, other) in (0..4).flat_map(|one| (0..4).map(move |other| (one, other))) {
                let [there, back] = [(one, other), (other, one)].map(|(asking, from)| both[0].may_take(asking, from));
                prop_assert!(!(there && back), "{} and {}", one, other);
            }
        }
        Ok(())
    });
}
