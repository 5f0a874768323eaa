//! The buddy allocator against a slow, obvious model: one flag a block.

#![allow(clippy::cast_possible_truncation, reason = "sizes of a test")]

mod seeded;

use homenode_policy::pool::{Buddy, HUGE_ORDER, MAX_ORDER};
use proptest::prelude::*;

const CASES: u32 = 300;
const OPERATIONS: usize = 400;
const _: () = assert!(CASES as usize * OPERATIONS >= 100_000);

#[derive(Clone, Debug)]
enum Operation {
    Allocate {
        order: u32,
    },
    UpTo {
        blocks: u64,
        least: u64,
    },
    Smallest {
        most: u64,
    },
    /// Frees up to `blocks` used blocks from the first used one at or behind `from`.
    Free {
        from: u64,
        blocks: u64,
    },
}

fn operation() -> impl Strategy<Value = Operation> {
    let length = prop_oneof![6 => 1..16u64, 2 => 1..600u64, 1 => 400..3000u64];
    prop_oneof![
        2 => (0..13u32).prop_map(|order| Operation::Allocate { order }),
        3 => (length.clone(), 1..40u64).prop_map(|(blocks, least)| Operation::UpTo { blocks, least }),
        2 => (1..40u64).prop_map(|most| Operation::Smallest { most }),
        4 => (any::<u64>(), length).prop_map(|(from, blocks)| Operation::Free { from, blocks }),
    ]
}

/// `free[i]`: block i is free.
struct Model {
    free: Vec<bool>,
}

impl Model {
    /// The free space as a buddy system holds it: the largest aligned runs that fit, as (order, start), smallest and
    /// lowest first.
    fn runs(&self) -> Vec<(u32, u64)> {
        let mut rest = self.free.clone();
        let mut runs = Vec::new();
        for order in (0..=MAX_ORDER).rev() {
            let size = 1 << order;
            for start in (0..rest.len()).step_by(size) {
                if start + size <= rest.len() && rest[start..start + size].iter().all(|free| *free) {
                    rest[start..start + size].fill(false);
                    runs.push((order, start as u64));
                }
            }
        }
        runs.sort_unstable();
        runs
    }

    fn expect(&self, order: u32) -> Option<u64> {
        self.runs()
            .into_iter()
            .find(|(from, _)| *from >= order)
            .map(|(_, start)| start)
    }

    fn expect_up_to(&self, blocks: u64, least: u64) -> Option<(u64, u64)> {
        let wanted = blocks.ilog2();
        let orders: Vec<u32> = self.runs().into_iter().map(|(order, _)| order).collect();
        let smaller = orders.iter().copied().filter(|order| *order < wanted).max();
        let sufficient = orders.iter().copied().find(|order| *order >= wanted);
        let order = match (sufficient, smaller) {
            (Some(order), Some(smaller)) if wanted < HUGE_ORDER && order >= HUGE_ORDER && smaller >= least.ilog2() => {
                smaller
            }
            (Some(_), _) => wanted,
            (None, smaller) => smaller?,
        };
        self.expect(order).map(|start| (start, 1 << order))
    }

    fn expect_smallest(&self, most: u64) -> Option<(u64, u64)> {
        let (order, start) = self.runs().first().copied()?;
        Some((start, 1 << order.min(most.ilog2())))
    }

    fn set(&mut self, start: u64, blocks: u64, free: bool) {
        for flag in &mut self.free[start as usize..(start + blocks) as usize] {
            assert_ne!(*flag, free, "block given twice or taken twice");
            *flag = free;
        }
    }

    fn used_run(&self, from: u64, blocks: u64) -> Option<(u64, u64)> {
        let from = from as usize % self.free.len();
        let start = from + self.free[from..].iter().position(|free| !free)?;
        let used = self.free[start..].iter().take_while(|free| !**free).count();
        Some((start as u64, blocks.min(used as u64)))
    }
}

fn apply(buddy: &mut Buddy, model: &mut Model, operation: &Operation) -> Result<(), TestCaseError> {
    match *operation {
        Operation::Allocate { order } => {
            let start = buddy.allocate(order);
            prop_assert_eq!(start, model.expect(order));
            if let Some(start) = start {
                prop_assert_eq!(start % (1 << order), 0);
                model.set(start, 1 << order, false);
            }
        }
        Operation::UpTo { blocks, least } => {
            let run = match least {
                1 => buddy.allocate_up_to(blocks),
                least => buddy.allocate_some(blocks, least),
            };
            prop_assert_eq!(run, model.expect_up_to(blocks, least));
            if let Some((start, taken)) = run {
                prop_assert!(taken <= blocks);
                prop_assert!(taken < 512 || start % 512 == 0, "2 MiB and more are aligned to 2 MiB");
                model.set(start, taken, false);
            }
        }
        Operation::Smallest { most } => {
            let run = buddy.allocate_smallest(most);
            prop_assert_eq!(run, model.expect_smallest(most));
            if let Some((start, taken)) = run {
                model.set(start, taken, false);
            }
        }
        Operation::Free { from, blocks } => {
            if let Some((start, blocks)) = model.used_run(from, blocks) {
                buddy.free(start, blocks);
                model.set(start, blocks, true);
            }
        }
    }
    let free = model.free.iter().filter(|free| **free).count() as u64;
    prop_assert_eq!(buddy.free_blocks(), free);
    let runs = model.runs();
    prop_assert_eq!(buddy.largest_order(), runs.last().map(|(order, _)| *order));
    let whole = runs.iter().filter(|(order, _)| *order >= HUGE_ORDER);
    prop_assert_eq!(buddy.whole_blocks(), whole.map(|(order, _)| 1 << order).sum::<u64>());
    buddy.check_invariants();
    Ok(())
}

#[test]
fn the_buddy_allocator_agrees_with_a_flag_per_block() {
    let operations = proptest::collection::vec(operation(), OPERATIONS);
    seeded::check(CASES, (1..5000u64, operations), |(blocks, operations)| {
        let mut buddy = Buddy::new(blocks);
        let mut model = Model {
            free: vec![false; blocks as usize],
        };
        // As in a pool: at first only a part is there, the rest comes in later frees.
        buddy.free(0, blocks / 2);
        model.set(0, blocks / 2, true);
        for operation in &operations {
            apply(&mut buddy, &mut model, operation)?;
        }
        Ok(())
    });
}
