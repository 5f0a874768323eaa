//! Operations whose memory fails in the middle: nothing is lost, nothing leaks, nothing half done is shown.

use crate::support::{
    BLOCK, Bytes, Caller, DISKS, Fault, ON_PURPOSE, POISON, RUN, TestFs, filesystem, filesystem_on, new_file, sized,
};
use homenode_engine::fs::{Error, Inode, Result, fallocate_mode as mode};
use homenode_engine::pool::PoolError;
use homenode_engine::{MemberId, NodeId};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Operation on a file that lies in a run, five blocks, a hole and 20 reserved blocks.
type Act = fn(&TestFs, &Caller, &Inode) -> Result<()>;

/// A short answer says that the rest failed.
fn whole(done: usize, wanted: usize) -> Result<()> {
    if done == wanted { Ok(()) } else { Err(Error::Io) }
}

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
            .and_then(|done| whole(done, 9000))
    }),
    ("a first write of a run", |fs, caller, inode| {
        fs.write(&caller.asking(), inode, 2 * RUN * BLOCK, &[1; RUN_BYTES], false)
            .and_then(|done| whole(done, RUN_BYTES))
    }),
    ("an overwrite", |fs, caller, inode| {
        fs.write(&caller.asking(), inode, RUN * BLOCK - 50, &[1; 100], false)
            .and_then(|done| whole(done, 100))
    }),
    ("an append", |fs, caller, inode| {
        fs.append(&caller.asking(), inode, &[1; 5000], false)
            .and_then(|(_, done)| whole(done, 5000))
    }),
    ("a read", |fs, caller, inode| {
        fs.read(&caller.asking(), inode, RUN * BLOCK - 50, &mut [0; 100])
            .map(drop)
    }),
    ("truncate", |fs, _, inode| {
        fs.set_attr(inode, &sized(RUN * BLOCK + 100)).map(drop)
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
            .and_then(|done| whole(done as usize, RUN_BYTES))
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

/// Runs every operation with accesses failing from each of its accesses on, or from each `step`th; `judge` gets what came of it.
fn with_faults(bytes: Bytes, step: usize, fault: Fault, judge: impl Fn(&str, std::thread::Result<Result<()>>)) {
    for (name, act) in ACTS {
        let mut failed = 0;
        for count in (1..).step_by(step) {
            let (fs, _) = filesystem_on(bytes, 2, 4 * RUN);
            let caller = Caller::on_node(&fs, 0);
            let inode = new_file(&fs, "file");
            prepare(&fs, &caller, &inode);
            let memory = fs.pool().memory().below();
            memory.fail_from(count as u64, fault);
            let result = catch_unwind(AssertUnwindSafe(|| act(&fs, &caller, &inode)));
            memory.fail_from(0, fault);
            fs.check_invariants();
            shows_no_fresh_memory(&fs, &caller, &inode);
            if memory.faults() == 0 {
                assert!(matches!(result, Ok(Ok(()))), "{name} failed by itself: {result:?}");
                break;
            }
            judge(name, result);
            failed += 1;
        }
        assert!(
            failed > 0 || name == "collapse range",
            "{name} never came to its memory"
        );
    }
}

fn shows_no_fresh_memory(fs: &TestFs, caller: &Caller, inode: &Inode) {
    let mut bytes = vec![0; fs.attr(inode).size as usize];
    assert_eq!(fs.read(&caller.asking(), inode, 0, &mut bytes), Ok(bytes.len()));
    let poison = POISON.to_le_bytes();
    let poisoned = bytes.chunks_exact(8).position(|word| word == poison);
    assert_eq!(poisoned, None, "unwritten bytes are shown");
}

#[test]
fn blocks_of_a_panicking_operation_are_freed() {
    with_faults(Bytes::Memory, 1, Fault::Panic, |name, result| {
        let panic = result.expect_err("accesses panic");
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        assert_eq!(text, Some(ON_PURPOSE), "{name} panicked by itself");
    });
}

#[test]
fn a_memory_failure_is_reported_without_partial_effects() {
    with_faults(Bytes::Memory, 1, Fault::Error, |name, result| match result {
        Ok(answer) => assert_eq!(answer, Err(Error::Io), "{name}"),
        Err(_) => panic!("{name} panicked"),
    });
}

/// Some accesses that fail are not the operation's own: write-back of earlier stores.
#[test]
fn a_memory_failure_below_a_cache_has_no_partial_effects() {
    with_faults(DISKS, 23, Fault::Error, |name, result| match result {
        Ok(answer) => assert!(matches!(answer, Ok(()) | Err(Error::Io)), "{name}: {answer:?}"),
        Err(_) => panic!("{name} panicked"),
    });
}

#[test]
fn frames_of_a_panicking_operation_are_freed() {
    with_faults(DISKS, 37, Fault::Panic, |name, result| {
        if let Err(panic) = result {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            assert_eq!(text, Some(ON_PURPOSE), "{name} panicked by itself");
        }
    });
}

#[test]
fn an_unreadable_member_is_not_drained() {
    let (fs, _) = filesystem(2, 4 * RUN);
    let caller = Caller::on_node(&fs, 0);
    let inode = new_file(&fs, "file");
    prepare(&fs, &caller, &inode);
    fs.pool().memory().below().fail_from(1, Fault::Error);
    let member = MemberId(0);
    let unread = PoolError::Unread(member, RUN + 5, inode.ino().0);
    assert_eq!(fs.drain(member, &mut |_, _| {}), Err(unread));
    fs.check_invariants();
    fs.pool().memory().below().fail_from(0, Fault::Error);
    assert_eq!(fs.drain(member, &mut |_, _| {}), Ok((RUN + 5) * BLOCK));
    fs.check_invariants();
}

/// A drain advises to remove files whose blocks cannot be read, and those only.
#[test]
fn a_drain_to_a_bad_member_blames_no_file() {
    let (fs, _) = filesystem(2, 4 * RUN);
    let caller = Caller::on_node(&fs, 0);
    let inode = new_file(&fs, "file");
    prepare(&fs, &caller, &inode);
    let member = MemberId(0);
    fs.pool().memory().below().fail_stores(MemberId(1));
    assert_eq!(fs.drain(member, &mut |_, _| {}), Err(PoolError::Io(member)));
    fs.check_invariants();
}
