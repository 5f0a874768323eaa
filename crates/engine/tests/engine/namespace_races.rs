//! Threads that rename, make and remove in the same few directories: none waits for ever, and the tree stays a tree.

use crate::namespace_model::{list, remove_all};
use crate::support::{FILES_MAX, TestFs, assert_empty, directory, empty_filesystem, regular, seeded, threads};
use fastrand::Rng;
use homenode_engine::fs::{Error, Inode, RenameMode};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const RUN_FOR: Duration = Duration::from_secs(3);
const THREADS: u64 = 4;
const DEPTH: u64 = 5;
/// About as many are there at a time: the tree must not become too deep to be walked.
const INODES: u64 = 200;

#[test]
fn renames_among_nested_directories_neither_deadlock_nor_lose_anything() {
    let seed = seeded::seed();
    let (fs, _) = empty_filesystem(1);
    let fs = Arc::new(fs);
    let rename = |thread: u64| -> Box<dyn FnOnce() -> u64 + Send> {
        let fs = Arc::clone(&fs);
        Box::new(move || {
            let mut random = Rng::with_seed(seed ^ thread);
            let end = Instant::now() + RUN_FOR;
            let mut renames = 0;
            while Instant::now() < end {
                renames += u64::from(step(&fs, &mut random));
            }
            renames
        })
    };
    let renames = threads::run_all((0..THREADS).map(rename).collect());
    assert!(
        renames.iter().all(|renames| *renames > 100),
        "too few renames succeeded: {renames:?}"
    );
    check_tree(&fs);
}

/// A directory's links and those of the one above it change together, whichever thread removes first.
#[test]
fn removing_a_directory_and_its_parent_concurrently_keeps_link_counts() {
    let (fs, _) = empty_filesystem(1);
    let fs = Arc::new(fs);
    let work = |maker: bool| -> Box<dyn FnOnce() -> u64 + Send> {
        let fs = Arc::clone(&fs);
        Box::new(move || {
            let (root, end) = (fs.root(), Instant::now() + RUN_FOR);
            let mut removed = 0;
            while Instant::now() < end {
                if maker {
                    let _ = fs.create(&root, b"d", directory(0o755));
                }
                if let Ok(dir) = fs.lookup(&root, b"d") {
                    if maker {
                        let _ = fs.create(&dir, b"x", directory(0o755));
                    }
                    let _ = fs.rmdir(&dir, b"x");
                    assert!(fs.attr(&dir).nlink <= 3, "links of d: {}", fs.attr(&dir).nlink);
                }
                removed += u64::from(fs.rmdir(&root, b"d").is_ok());
                assert!((2..=3).contains(&fs.attr(&root).nlink), "links of the root");
            }
            removed
        })
    };
    let removed: u64 = threads::run_all(vec![work(true), work(false), work(true), work(false)])
        .iter()
        .sum();
    assert!(removed > 1000, "too few directories were removed: {removed}");
    check_tree(&fs);
}

fn name(random: &mut Rng) -> [u8; 1] {
    [b'a' + random.u64(..4) as u8]
}

/// A directory somewhere in the tree, if it is still there.
fn walk(fs: &TestFs, random: &mut Rng) -> Arc<Inode> {
    let mut at = fs.root();
    for _ in 0..random.u64(..DEPTH) {
        match fs.lookup(&at, &name(random)) {
            Ok(next) if next.is_directory() => at = next,
            _ => break,
        }
    }
    at
}

/// Tries a random operation; returns true if it was a rename that succeeded.
fn step(fs: &TestFs, random: &mut Rng) -> bool {
    let dir = walk(fs, random);
    let name = name(random);
    let is_crowded = fs.statfs().files_free < FILES_MAX - INODES;
    match random.u64(..16) {
        0..=3 if is_crowded => expect(
            fs.rmdir(&dir, &name),
            &[Error::NotFound, Error::NotEmpty, Error::NotDirectory],
        ),
        0..=3 => expect(
            fs.create(&dir, &name, directory(0o755)),
            &[Error::Exists, Error::NotFound],
        ),
        4 => expect(
            fs.create(&dir, &name, regular(0o644)),
            &[Error::Exists, Error::NotFound],
        ),
        5 => expect(
            fs.rmdir(&dir, &name),
            &[Error::NotFound, Error::NotEmpty, Error::NotDirectory],
        ),
        6 => expect(fs.unlink(&dir, &name), &[Error::NotFound, Error::IsDirectory]),
        7 => {
            // As readdirplus: attributes of what is listed, with the directory's lock held.
            let listed = fs.readdir(&dir, 0, &mut |entry| fs.attr(entry.inode).ino == entry.inode.ino());
            expect(listed, &[])
        }
        _ => {
            let (to, new) = (walk(fs, random), self::name(random));
            let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
            let errors = [
                Error::NotFound,
                Error::Exists,
                Error::NotEmpty,
                Error::Invalid,
                Error::IsDirectory,
                Error::NotDirectory,
            ];
            let renamed = fs.rename(&dir, &name, &to, &new, modes[random.usize(..modes.len())]);
            let ok = renamed.is_ok();
            expect(renamed, &errors);
            return ok;
        }
    }
    false
}

fn expect<T: std::fmt::Debug>(done: Result<T, Error>, errors: &[Error]) {
    if let Err(error) = &done {
        assert!(errors.contains(error), "unexpected: {error}");
    }
}

/// Every inode has the links that the tree shows, every directory one name and the right parent; then removes all.
fn check_tree(fs: &TestFs) {
    let mut names = HashMap::new();
    check_directory(fs, &fs.root(), &mut names);
    let statfs = fs.statfs();
    assert_eq!(
        statfs.files - statfs.files_free,
        names.len() as u64 + 1,
        "inodes that no name leads to"
    );
    remove_all(fs, &fs.root());
    assert_empty(fs);
}

fn check_directory(fs: &TestFs, dir: &Arc<Inode>, names: &mut HashMap<u64, u32>) {
    let mut subdirectories = 0;
    for ino in list(fs, dir, 100).into_values() {
        let inode = fs.inode(ino).expect("the inode has a name");
        *names.entry(ino.0).or_default() += 1;
        if inode.is_directory() {
            subdirectories += 1;
            assert_eq!(names[&ino.0], 1, "a directory has two names");
            assert_eq!(fs.lookup(&inode, b"..").map(|up| up.ino()), Ok(dir.ino()));
            check_directory(fs, &inode, names);
        } else {
            assert_eq!(fs.attr(&inode).nlink, 1);
        }
    }
    assert_eq!(fs.attr(dir).nlink, 2 + subdirectories, "links of a directory");
}
