//! Files of the largest size in a durable pool: what is told to the log of them can be read back.

use crate::support::{BLOCK, Caller, TestFs, after_power_cut, durable_on, new_file, sized};
use homenode_engine::fs::{Inode, RenameMode, fallocate_mode};

const FRAMES: u32 = 64;
const POOL_BLOCKS: u64 = 10_000;
const LARGEST: u64 = i64::MAX as u64;

fn byte_at(fs: &TestFs, inode: &Inode, offset: u64) -> Option<u8> {
    let caller = Caller::on_node(fs, 0);
    let mut byte = [0];
    let read = fs.read(&caller.asking(), inode, offset, &mut byte);
    (read == Ok(1)).then_some(byte[0])
}

/// The pool after a power cut, all of it synced before.
fn opened_again(fs: &TestFs) -> TestFs {
    let slot = fs.slots().claim().expect("slots are free");
    assert_eq!(fs.sync_all(&slot), Ok(()));
    let opened = after_power_cut(fs, FRAMES, 1, POOL_BLOCKS);
    opened.check_invariants();
    opened
}

#[test]
fn files_cut_to_about_the_largest_size_harm_no_log() {
    let fs = durable_on(FRAMES, 1, POOL_BLOCKS);
    let (file, other) = (new_file(&fs, "file"), new_file(&fs, "other"));
    for size in [
        LARGEST,
        LARGEST - 1,
        LARGEST - BLOCK,
        LARGEST - BLOCK + 1,
        LARGEST - 2 * BLOCK,
        LARGEST,
    ] {
        assert!(fs.set_attr(&file, &sized(size)).is_ok(), "{size}");
        // Once more, which cuts nothing off.
        assert!(fs.set_attr(&file, &sized(size)).is_ok(), "{size}");
    }
    let caller = Caller::on_node(&fs, 0);
    assert_eq!(fs.write(&caller.asking(), &other, 0, b"kept", false), Ok(4));
    let opened = opened_again(&fs);
    let find = |name: &[u8]| opened.lookup(&opened.root(), name).expect("it is durable");
    assert_eq!(opened.attr(&find(b"file")).size, LARGEST);
    assert_eq!(byte_at(&opened, &find(b"other"), 3), Some(b't'));
}

/// A rename needs what was written before, and says so to the log.
#[test]
fn the_last_block_of_the_largest_file_outlives_a_rename_over_another() {
    let fs = durable_on(FRAMES, 1, POOL_BLOCKS);
    let (file, _met) = (new_file(&fs, "file"), new_file(&fs, "met"));
    let caller = Caller::on_node(&fs, 0);
    assert_eq!(fs.write(&caller.asking(), &file, LARGEST - 1, b"x", false), Ok(1));
    let punched = fallocate_mode::PUNCH_HOLE | fallocate_mode::KEEP_SIZE;
    assert_eq!(
        fs.fallocate(&caller.asking(), &file, punched, 0, LARGEST - BLOCK),
        Ok(())
    );
    let root = fs.root();
    assert_eq!(fs.rename(&root, b"file", &root, b"met", RenameMode::Replace), Ok(()));
    let opened = opened_again(&fs);
    let met = opened.lookup(&opened.root(), b"met").expect("it is durable");
    assert_eq!(byte_at(&opened, &met, LARGEST - 1), Some(b'x'));
}
