//! `homenode fsck`.

use super::harness::*;
use homenode::{Pool, PoolOptions};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

fn member(scratch: &Scratch, name: &str) -> PathBuf {
    let path = scratch.path().join(name);
    File::create(&path).unwrap().set_len(32 << 20).unwrap();
    path
}

#[test]
fn fsck_exit_codes_tell_sound_used_damaged_and_missing_pools() {
    let scratch = Scratch::new("fsck");
    let members = [member(&scratch, "a"), member(&scratch, "b")];
    let none = fail(8, homenode(["fsck"]).args(&members));
    assert!(none.contains("no member of a pool"), "{none}");
    let pool = Pool::create_on(&members, &PoolOptions::new()).unwrap();
    let file = pool.create_file("file").unwrap();
    file.write_all_at(&[7; 10_000], 0).unwrap();
    let used = fail(8, homenode(["fsck"]).args(&members));
    assert!(used.contains("is in use"), "{used}");
    drop((file, pool));
    let missing = fail(8, homenode(["fsck"]).arg(&members[1]));
    assert!(
        missing.contains("member 0 is missing") && missing.contains("pool import"),
        "{missing}"
    );
    let bytes = |path: &PathBuf| std::fs::read(path).unwrap();
    let before = members.each_ref().map(bytes);
    let sound = succeed(homenode(["fsck"]).args(&members));
    assert!(sound.contains(": sound; 2 inodes, 12288 bytes of data"), "{sound}");
    assert_eq!(members.each_ref().map(bytes), before, "fsck wrote to a member");
    // The first group of the snapshot, whichever member it lies on.
    for (path, bytes) in members.iter().zip(&before) {
        for at in (0..bytes.len() - 4)
            .step_by(8)
            .filter(|at| bytes[*at..].starts_with(b"HNLG"))
        {
            File::options()
                .write(true)
                .open(path)
                .unwrap()
                .write_all_at(b"X", at as u64)
                .unwrap();
        }
    }
    let damaged = fail(4, homenode(["fsck"]).args(&members));
    assert!(damaged.contains("snapshot"), "{damaged}");
    fail(16, &mut homenode(["fsck"]));
    fail(16, &mut homenode(["fsck", "--no-such-option"]));
}
