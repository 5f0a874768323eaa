//! Operations on volumes and files, and those of a pool with files only, at random.

use super::model::LARGEST;
use super::{FILES, NODES, OPERATIONS};
use crate::support::{BLOCK, RUN};
use homenode_engine::fs::{Placement, Whence, fallocate_mode as mode};
use proptest::prelude::*;
use proptest::sample::select;

#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// A volume, or behind them a file.
    pub(crate) what: usize,
    pub(crate) cpu: u32,
    pub(crate) operation: Operation,
}

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Write {
        offset: u64,
        bytes: u64,
        seed: u64,
    },
    Append {
        bytes: u64,
        seed: u64,
    },
    Read {
        offset: u64,
        bytes: u64,
    },
    Truncate {
        size: u64,
    },
    Fallocate {
        mode: u32,
        offset: u64,
        bytes: u64,
    },
    Seek {
        offset: u64,
        whence: Whence,
    },
    CopyRange {
        to: usize,
        from: u64,
        offset: u64,
        bytes: u64,
    },
    MoveTo {
        node: u16,
    },
    Policy {
        value: &'static str,
    },
    Replace,
    Discard {
        offset: u64,
        bytes: u64,
    },
    Zero {
        offset: u64,
        bytes: u64,
    },
    Resize {
        size: u64,
        may_discard: bool,
    },
    ReplaceVolume {
        size: u64,
        placement: Placement,
    },
    Drain {
        member: usize,
    },
    Compare,
}

/// Offsets near each other, at the edges of blocks, 2 MiB runs and the levels of the block map, and at the far end.
fn offset() -> impl Strategy<Value = u64> {
    let edge = select(vec![
        0,
        1,
        511,
        512,
        513,
        1024,
        512 * 512,
        512 * 512 * 512,
        LARGEST / BLOCK,
    ]);
    prop_oneof![
        4 => 0..20_000u64,
        4 => (0..64u64).prop_map(|block| block * BLOCK),
        3 => 0..3 * RUN * BLOCK,
        3 => (0..4u64).prop_map(|run| run * RUN * BLOCK),
        1 => (edge, 0..3 * BLOCK).prop_map(|(block, more)| block * BLOCK + more),
        1 => (0..20_000u64).prop_map(|before| LARGEST - before),
    ]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0..200u64,
        8 => 1..20_000u64,
        8 => (1..20u64).prop_map(|blocks| blocks * BLOCK),
        1 => Just(RUN * BLOCK),
        1 => 1..5 * RUN / 2 * BLOCK,
    ]
}

fn fallocate() -> impl Strategy<Value = Operation> {
    let modes = vec![
        0,
        mode::KEEP_SIZE,
        mode::PUNCH_HOLE | mode::KEEP_SIZE,
        mode::ZERO_RANGE,
        mode::ZERO_RANGE | mode::KEEP_SIZE,
        mode::UNSHARE_RANGE,
        mode::PUNCH_HOLE,
        1 << 7,
    ];
    let free = (select(modes), offset(), length()).prop_map(|(mode, offset, bytes)| Operation::Fallocate {
        mode,
        offset,
        bytes,
    });
    // Most of them aligned: the others are refused.
    let aligned = (0..8u64, prop_oneof![9 => 0..1500u64, 1 => Just(1u64 << 50)], 1..600u64);
    let shift = select(vec![mode::COLLAPSE_RANGE, mode::INSERT_RANGE]);
    let shifting = (shift, aligned).prop_map(|(mode, (odd, block, blocks))| Operation::Fallocate {
        mode,
        offset: block * BLOCK + u64::from(odd == 0),
        bytes: blocks * BLOCK,
    });
    prop_oneof![3 => free, 1 => shifting]
}

fn operation() -> impl Strategy<Value = Operation> {
    let whence = select(vec![Whence::Data, Whence::Hole]);
    let policy = select(vec!["local", "interleave", "node:0", "node:2"]);
    prop_oneof![
        24 => (offset(), length(), any::<u64>()).prop_map(|(offset, bytes, seed)| Operation::Write { offset, bytes, seed }),
        4 => (length(), any::<u64>()).prop_map(|(bytes, seed)| Operation::Append { bytes, seed }),
        10 => (offset(), length()).prop_map(|(offset, bytes)| Operation::Read { offset, bytes }),
        6 => offset().prop_map(|size| Operation::Truncate { size }),
        14 => fallocate(),
        4 => (offset(), whence).prop_map(|(offset, whence)| Operation::Seek { offset, whence }),
        4 => (0..FILES, offset(), offset(), prop_oneof![9 => length(), 1 => Just(u64::MAX)])
            .prop_map(|(to, from, offset, bytes)| Operation::CopyRange { to, from, offset, bytes }),
        2 => (0..NODES).prop_map(|node| Operation::MoveTo { node }),
        1 => policy.prop_map(|value| Operation::Policy { value }),
        2 => Just(Operation::Replace),
        1 => (0..usize::from(NODES)).prop_map(|member| Operation::Drain { member }),
        1 => Just(Operation::Compare),
    ]
}

pub(crate) fn steps() -> BoxedStrategy<Vec<Step>> {
    let step = (0..FILES, 0..u32::from(NODES) * 2, operation());
    let step = step.prop_map(|(what, cpu, operation)| Step { what, cpu, operation });
    prop::collection::vec(step, OPERATIONS).boxed()
}
