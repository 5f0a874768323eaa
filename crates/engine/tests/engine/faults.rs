//! Operations whose memory fails in the middle: nothing is lost, nothing leaks, nothing half done is shown.

use crate::support::{BLOCK, Caller, ON_PURPOSE, RUN, TestFs, filesystem, new_file};
use homenode_engine::NodeId;
use homenode_engine::fs::{Inode, Result, SetAttr, fallocate_mode as mode};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// One operation, on a file that lies in a run, five blocks, a hole and 20 reserved blocks.
type Act = fn(&TestFs, &Caller, &Inode) -> Result<()>;

const HOLE: u64 = (RUN + 6) * BLOCK;
const RESERVED: u64 = (RUN + 10) * BLOCK;
const RUN_BYTES: usize = (RUN * BLOCK) as usize;

const ACTS: [(&str, Act); 12] = [
    ("a first write of parts of blocks", |fs, caller, inode| {
        fs.write(&caller.asking(), inode, HOLE + 100, &[1; 10_000], false)
            .map(drop)
    }),
    ("a first write of reserved blocks", |fs, caller, inode| {
        fs.write(&caller.asking(), inode, RESERVED + 5, &[1; 9000], false)
            .map(drop)
    }),
    ("a first write of a run", |fs, caller, inode| {
        fs.write(&caller.asking(), inode, 2 * RUN * BLOCK, &[1; RUN_BYTES], false)
            .map(drop)
    }),
    ("an overwrite", |fs, caller, inode| {
        fs.write(&caller.asking(), inode, RUN * BLOCK - 50, &[1; 100], false)
            .map(drop)
    }),
    ("an append", |fs, caller, inode| {
        fs.append(&caller.asking(), inode, &[1; 5000], false).map(drop)
    }),
    ("a read", |fs, caller, inode| {
        fs.read(&caller.asking(), inode, RUN * BLOCK - 50, &mut [0; 100])
            .map(drop)
    }),
    ("truncate", |fs, _, inode| {
        let set = SetAttr {
            size: Some(RUN * BLOCK + 100),
            ..SetAttr::default()
        };
        fs.set_attr(inode, &set).map(drop)
    }),
    ("punch hole", |fs, caller, inode| {
        let mode = mode::PUNCH_HOLE | mode::KEEP_SIZE;
        fs.fallocate(&caller.asking(), inode, mode, 100, 3 * BLOCK)
    }),
    ("zero range", |fs, caller, inode| {
        fs.fallocate(&caller.asking(), inode, mode::ZERO_RANGE, 100, RUN * BLOCK + 9000)
    }),
    ("collapse range", |fs, caller, inode| {
        fs.fallocate(&caller.asking(), inode, mode::COLLAPSE_RANGE, BLOCK, BLOCK)
    }),
    ("copy range", |fs, caller, inode| {
        fs.copy_range(&caller.asking(), inode, 0, inode, 3 * RUN * BLOCK, RUN * BLOCK)
            .map(drop)
    }),
    ("move", |fs, _, inode| {
        fs.move_to(inode, NodeId(1), &mut |_, _| {}).map(drop)
    }),
];

fn prepare(fs: &TestFs, caller: &Caller, inode: &Inode) {
    let asking = caller.asking();
    let write = |offset, bytes: usize| {
        let written = fs.write(&asking, inode, offset, &vec![7; bytes], false);
        assert_eq!(written, Ok(bytes));
    };
    write(0, RUN_BYTES);
    write(RUN * BLOCK, 5 * BLOCK as usize);
    fs.fallocate(&asking, inode, 0, RESERVED, 20 * BLOCK)
        .expect("the pool has room");
}

#[test]
fn blocks_of_an_operation_that_panics_come_back() {
    for (name, act) in ACTS {
        let mut failed = 0;
        for count in 1.. {
            let (fs, _) = filesystem(2, 4 * RUN);
            let caller = Caller::on_node(&fs, 0);
            let inode = new_file(&fs, "file");
            prepare(&fs, &caller, &inode);
            fs.pool().memory().fail_at(count);
            let result = catch_unwind(AssertUnwindSafe(|| act(&fs, &caller, &inode)));
            let reached = !fs.pool().memory().is_to_fail();
            fs.pool().memory().fail_at(0);
            fs.check_invariants();
            if let Err(panic) = &result {
                let text = panic.downcast_ref::<String>().expect("assert_ne formats");
                assert!(text.contains(ON_PURPOSE), "{name} panicked by itself: {text}");
            }
            if !reached {
                break;
            }
            failed += 1;
        }
        assert!(
            failed > 0 || name == "collapse range",
            "{name} never came to its memory"
        );
    }
}
