//! Damaged pools: each fault is told and mended, a crash while that is done leaves the old state or the new one, and what is mended is sound.
//!
//! The logs are written here byte for byte by docs/format.md, so that they can tell what no filesystem does.

use crate::full::file;
use crate::sim::{Disk, Event, Kind, SimMemory};
use crate::tree::Tree;
use crate::workload::{BLOCKS, FIRST_HISTORY, SimFs, asking, format, format_of, newest_superblock, open, open_on};
use homenode_engine::fs::{OpenError, Repair, Replayed};
use homenode_engine::log::{Head, Superblock};
use homenode_engine::{BLOCK_BYTES, Block, MemberId};

/// First block of the snapshot, of the tail, and blocks of each.
const SNAPSHOT: u64 = 100;
const TAIL: u64 = 108;
const SEGMENT_BLOCKS: u32 = 8;
/// Segment that the tail goes on in.
const ONWARD: u64 = TAIL + SEGMENT_BLOCKS as u64;
const NONCE: u64 = 77;

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const DEVICE: u32 = 0o060_000;

/// Bytes of a record.
fn record(kind: u8, words: &[u64], rest: &[u8]) -> Vec<u8> {
    let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    [&[kind], &words[..], rest].concat()
}

fn short(name: &str) -> Vec<u8> {
    [&[u8::try_from(name.len()).expect("the text is short")], name.as_bytes()].concat()
}

fn inode(ino: u64, mode: u32) -> Vec<u8> {
    let fields = [mode, 8, 9, 0, 0].map(u32::to_le_bytes).concat();
    record(1, &[ino], &fields)
}

fn named(dir: u64, ino: u64, name: &str) -> Vec<u8> {
    record(4, &[dir, ino], &short(name))
}

fn extent(ino: u64, at: u64, blocks: u64, first: u64) -> Vec<u8> {
    record(8, &[ino, at, blocks, first], &[])
}

fn size(ino: u64, bytes: u64) -> Vec<u8> {
    record(11, &[ino, bytes], &[])
}

fn volume(ino: u64, name: &str) -> Vec<u8> {
    record(13, &[ino], &short(name))
}

fn target(ino: u64, text: &str) -> Vec<u8> {
    let count = u32::try_from(text.len()).expect("the text is short").to_le_bytes();
    record(2, &[ino], &[&count, text.as_bytes()].concat())
}

fn end() -> Vec<u8> {
    record(23, &[], &[])
}

/// A group of the log, and its checksum.
fn group(head: &Head, sequence: u64, seed: u32, records: &[Vec<u8>]) -> (Vec<u8>, u32) {
    let records = records.concat();
    let count = u32::try_from(40 + records.len()).expect("the number is small");
    let mut bytes = [b"HNLG".as_slice(), &count.to_le_bytes(), &sequence.to_le_bytes()].concat();
    bytes.extend([head.nonce.to_le_bytes(), 5_i64.to_le_bytes()].concat());
    bytes.extend(0_u32.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c_append(seed, &bytes), &records);
    bytes.extend(crc.to_le_bytes());
    bytes.extend(records);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    (bytes, crc)
}

fn head(first: u64, nonce: u64) -> Head {
    Head {
        first: Block::from_raw(first),
        blocks: SEGMENT_BLOCKS,
        sequence: 1,
        nonce,
        seed: 9,
    }
}

fn put(bytes: &mut [u8], block: u64, offset: usize, new: &[u8]) {
    let at = usize::try_from(block).expect("the number is small") * BLOCK_BYTES + offset;
    bytes[at..at + new.len()].copy_from_slice(new);
}

/// A pool whose snapshot is these groups, each of some records, and whose tail is these. Each block holds its number.
fn pool(snapshot: &[Vec<Vec<u8>>], tail: &[Vec<Vec<u8>>]) -> Vec<u8> {
    let (_, memory) = format(Kind::File, 1);
    let mut bytes = memory.bytes();
    let old = newest_superblock(&bytes).expect("the superblock was made above");
    for block in 1..BLOCKS as u64 - 1 {
        put(&mut bytes, block, 0, &[u8::try_from(block).expect("few"); BLOCK_BYTES]);
    }
    let heads = [head(SNAPSHOT, NONCE + 1), head(TAIL, NONCE)];
    for (head, groups) in heads.iter().zip([snapshot, tail]) {
        let (mut at, mut seed) = (0, head.seed);
        for (sequence, records) in (1..).zip(groups) {
            let (group, crc) = group(head, sequence, seed, records);
            put(&mut bytes, head.first.index(), at, &group);
            (at, seed) = (at + group.len(), crc);
        }
    }
    let superblock = Superblock {
        generation: old.generation + 1,
        end: 0,
        snapshot: heads[0],
        tail: heads[1],
        ..old
    };
    for block in [0, BLOCKS as u64 - 1] {
        put(&mut bytes, block, 0, &superblock.encode()[..]);
    }
    bytes
}

/// A pool with nothing in its tail, and these records behind a root in its snapshot.
fn of_records(records: &[Vec<u8>]) -> Vec<u8> {
    pool(&[[&[inode(1, DIRECTORY)], records, &[end()]].concat()], &[])
}

pub(crate) fn plan(memory: &SimMemory, superblock: &Superblock) -> Result<Repair, OpenError> {
    Repair::plan(memory, superblock, 2, SEGMENT_BLOCKS, 1000)
}

fn told(repair: &Repair) -> Vec<String> {
    repair.mended().iter().map(ToString::to_string).collect()
}

/// Mends a pool; returns what was told, and the bytes.
pub(crate) fn mend(bytes: Vec<u8>) -> Result<(Vec<String>, SimMemory), OpenError> {
    let superblock = newest_superblock(&bytes).expect("one superblock is sound");
    let memory = SimMemory::new(Kind::File, bytes);
    let repair = plan(&memory, &superblock)?;
    assert!(memory.take_events().is_empty(), "a plan writes");
    let told = told(&repair);
    repair.carry_out(&memory, &superblock, 2, 4711)?;
    Ok((told, memory))
}

fn history(bytes: &[u8]) -> u64 {
    newest_superblock(bytes).expect("one superblock is sound").history
}

/// The tree of a pool that has no fault.
pub(crate) fn tree(bytes: Vec<u8>) -> Tree {
    let superblock = newest_superblock(&bytes).expect("one superblock is sound");
    let memory = SimMemory::new(Kind::File, bytes.clone());
    let again = plan(&memory, &superblock).expect("the pool can be read");
    assert_eq!(told(&again), [""; 0], "a second look finds more");
    let (fs, _) = open(Kind::File, bytes, 3).expect("the pool is sound");
    fs.check_invariants();
    let slot = fs.slots().claim().expect("the first slot is free");
    Tree::of(&fs, &slot)
}

/// Paths with inode, type, permissions and owner.
fn paths(tree: &Tree) -> Vec<String> {
    let named = tree.names.iter().map(|(path, entry)| {
        let path = String::from_utf8_lossy(path);
        format!("{path} {} {:o} {}", entry.ino, entry.mode, entry.owner.0)
    });
    let volumes = tree.volumes.iter().map(|(name, ino)| format!("volume {name} {ino}"));
    named.skip(1).chain(volumes).collect()
}

struct Case {
    records: Vec<Vec<u8>>,
    told: &'static [&'static str],
    paths: &'static [&'static str],
    /// Inodes with their bytes, each block one.
    bytes: &'static [(u64, &'static [u8])],
}

const LOST: &str = "/lost+found 10 40700 0";

#[expect(clippy::too_many_lines, reason = "a table")]
fn cases() -> Vec<Case> {
    let case = |records: &[Vec<u8>], told, paths, bytes| Case {
        records: records.to_vec(),
        told,
        paths,
        bytes,
    };
    let block = BLOCK_BYTES as u64;
    vec![
        case(
            &[named(1, 5, "gone"), named(1, 9, "here"), inode(9, FILE)],
            &[
                "inode 5 has no attributes: the inode is dropped",
                "`gone` in directory 1 names inode 5, which does not exist: the name is dropped",
            ],
            &["/here 9 100644 8"],
            &[],
        ),
        // Names in a file; one of them is the only one.
        case(
            &[
                named(1, 2, "file"),
                inode(2, FILE),
                named(2, 2, "a"),
                named(2, 9, "b"),
                inode(9, FILE),
            ],
            &[
                "inode 2 holds names but is not a directory: they are dropped",
                "inode 9 has no name: it is named `#9` in lost+found",
            ],
            &["/file 2 100644 8", LOST, "/lost+found/#9 9 100644 8"],
            &[],
        ),
        // A directory of which nothing but its names is left.
        case(
            &[named(5, 9, "kept"), inode(9, FILE)],
            &[
                "inode 5 has no attributes: it becomes a directory owned by root",
                "directory 5 is not reached from the root by exactly one path: it is named `#5` in lost+found",
            ],
            &[LOST, "/lost+found/#5 5 40700 0", "/lost+found/#5/kept 9 100644 8"],
            &[],
        ),
        // Two names of a directory, one of the root, and a circle.
        case(
            &[
                named(1, 2, "one"),
                named(1, 2, "two"),
                inode(2, DIRECTORY),
                named(2, 1, "root"),
                named(3, 9, "down"),
                named(9, 3, "up"),
                inode(3, DIRECTORY),
                inode(9, DIRECTORY),
            ],
            &[
                "directory 1 is not reached from the root by exactly one path: the name is dropped",
                "directory 2 is not reached from the root by exactly one path: the name is dropped",
                "directory 3 is not reached from the root by exactly one path: it is named `#3` in lost+found",
                "directory 3 is not reached from the root by exactly one path: the name is dropped",
            ],
            &[
                LOST,
                "/lost+found/#3 3 40755 8",
                "/lost+found/#3/down 9 40755 8",
                "/one 2 40755 8",
            ],
            &[],
        ),
        // Something else is called lost+found, and a name is none.
        case(
            &[
                named(1, 2, "lost+found"),
                inode(2, FILE),
                named(1, 9, "a/b"),
                named(1, 9, ".."),
                inode(9, FILE),
            ],
            &[
                "directory 1 has the invalid name `..`: the name is dropped",
                "directory 1 has the invalid name `a/b`: the name is dropped",
                "inode 9 has no name: it is named `#9` in lost+found",
            ],
            &[
                "/lost+found 2 100644 8",
                "/lost+found-2 10 40700 0",
                "/lost+found-2/#9 9 100644 8",
            ],
            &[],
        ),
        // Types: none but bytes, one that is not, bytes of a directory, a link without a target, a size out of reach.
        case(
            &[
                named(1, 2, "bytes"),
                extent(2, 0, 1, 20),
                size(2, block),
                named(1, 3, "odd"),
                inode(3, 0o030_640),
                named(1, 4, "dir"),
                inode(4, DIRECTORY),
                extent(4, 0, 1, 21),
                named(1, 5, "link"),
                inode(5, 0o120_777),
                named(1, 6, "large"),
                inode(6, FILE),
                extent(6, 0, 2, 22),
                size(6, u64::MAX),
                named(1, 7, "target"),
                target(7, "to"),
                named(1, 9, "device"),
                inode(9, DEVICE),
                extent(9, 0, 1, 24),
            ],
            &[
                "inode 2 has no attributes: it becomes a file owned by root",
                "inode 3 has an invalid type, size or blocks: it becomes a file",
                "inode 4 has an invalid type, size or blocks: its bytes are dropped",
                "inode 5 has an invalid type, size or blocks: the inode is dropped",
                "inode 6 has an invalid type, size or blocks: its size is set to 8192 bytes",
                "inode 7 has no attributes: it becomes a symbolic link owned by root",
                "inode 9 has an invalid type, size or blocks: its bytes are dropped",
                "`link` in directory 1 names inode 5, which does not exist: the name is dropped",
            ],
            &[
                "/bytes 2 100600 0",
                "/device 9 60000 8",
                "/dir 4 40755 8",
                "/large 6 100644 8",
                "/odd 3 100640 8",
                "/target 7 120777 0",
            ],
            &[(2, &[20]), (6, &[22, 23])],
        ),
        // Volumes: of nothing, of a file, of another's inode, with a bad name, with a bad size, and one that a directory names.
        case(
            &[
                volume(2, "nothing"),
                volume(3, "file"),
                inode(3, FILE),
                inode(4, DEVICE),
                size(4, block),
                volume(4, "good"),
                volume(4, "same"),
                inode(5, DEVICE),
                size(5, block),
                volume(5, "a/b"),
                inode(9, DEVICE),
                size(9, 5000),
                extent(9, 2, 1, 30),
                volume(9, "odd"),
                named(1, 4, "named"),
            ],
            &[
                "inode 9 has an invalid type, size or blocks: its size is set to 12288 bytes",
                "volume `a/b` has no inode of its own: it is renamed to `recovered-5`",
                "volume `file` has no inode of its own: the name is dropped",
                "volume `good` has no inode of its own: the name is dropped",
                "volume `nothing` has no inode of its own: the name is dropped",
                "volume `same` has no inode of its own: the name is dropped",
                "inode 3 has no name: it is named `#3` in lost+found",
            ],
            &[
                LOST,
                "/lost+found/#3 3 100644 8",
                "volume good 4",
                "volume odd 9",
                "volume recovered-5 5",
            ],
            &[(9, &[0, 0, 30])],
        ),
        // Blocks of the log, of no member, behind the end; and blocks that two files have: what came later in the log keeps them.
        case(
            &[
                named(1, 2, "log"),
                inode(2, FILE),
                extent(2, 0, 4, SNAPSHOT - 2),
                extent(2, 4, 1, 1 << 50),
                extent(2, 5, 2, BLOCKS as u64 - 2),
                size(2, 7 * block),
                named(1, 3, "later"),
                named(1, 9, "first"),
                inode(9, FILE),
                extent(9, 0, 4, 40),
                size(9, 4 * block),
                inode(3, FILE),
                extent(3, 0, 4, 42),
                size(3, 4 * block),
            ],
            &[
                "file 2 has 1 blocks from block 0 of member 4 on, which no file may have: 1 of them read as zeros from now on",
                "file 2 has 2 blocks from block 158 of member 0 on, which no file may have: 1 of them read as zeros from now on",
                "file 2 has 4 blocks from block 98 of member 0 on, which no file may have: 2 of them read as zeros from now on",
                "file 9 has 4 blocks from block 40 of member 0 on, some of which another file has too: 2 of them read as zeros from now on",
            ],
            &["/first 9 100644 8", "/later 3 100644 8", "/log 2 100644 8"],
            &[
                (2, &[98, 99, 0, 0, 0, 158, 0]),
                (3, &[42, 43, 44, 45]),
                (9, &[40, 41, 0, 0]),
            ],
        ),
        // Promises of more than there is.
        case(
            &[
                named(1, 9, "promised"),
                inode(9, FILE),
                extent(9, 0, 1, 50),
                record(9, &[9, 1, 1000], &[]),
                size(9, block),
            ],
            &["1000 blocks are promised to files, more than the pool has room for: the promises are dropped"],
            &["/promised 9 100644 8"],
            &[(9, &[50])],
        ),
    ]
}

/// Checks a mended pool against what a case says.
fn check(case: &Case, tree: &Tree) {
    assert_eq!(paths(tree), case.paths);
    for (ino, blocks) in case.bytes {
        let firsts: Vec<u8> = tree.bytes[ino].iter().copied().step_by(BLOCK_BYTES).collect();
        assert_eq!(firsts, *blocks, "blocks of inode {ino}");
    }
}

#[test]
fn each_fault_is_reported_and_repaired() {
    for case in cases() {
        let bytes = of_records(&case.records);
        let refused = open(Kind::File, bytes.clone(), 2).map(drop).expect_err("it has faults");
        assert!(matches!(refused, OpenError::Damaged(_)), "{refused}");
        let (mut told, memory) = mend(bytes.clone()).expect("the pool can be repaired");
        assert_ne!(history(&memory.bytes()), history(&bytes), "{told:?}");
        told.sort();
        let mut expected = case.told.to_vec();
        expected.sort_unstable();
        assert_eq!(told, expected);
        check(&case, &tree(memory.bytes()));
    }
}

#[test]
fn a_pool_without_a_root_gets_one() {
    let records = [named(1, 9, "kept"), inode(9, FILE), end()];
    let (told, memory) = mend(pool(&[records.to_vec()], &[])).expect("the pool can be repaired");
    assert_eq!(
        told,
        ["there is no root directory: it becomes a directory owned by root"]
    );
    let tree = tree(memory.bytes());
    assert_eq!(tree.names[&b""[..]].mode, 0o040_700);
    assert_eq!(paths(&tree), ["/kept 9 100644 8"]);
}

#[test]
fn a_sound_pool_is_left_alone() {
    let bytes = of_records(&[named(1, 9, "file"), inode(9, FILE)]);
    let (told, memory) = mend(bytes).expect("the pool is sound");
    assert_eq!(told, [""; 0]);
    assert!(memory.take_events().is_empty(), "a sound pool was written");
}

/// A pool with three groups in its snapshot and one in its tail.
fn grouped() -> Vec<u8> {
    let snapshot = [
        vec![inode(1, DIRECTORY), named(1, 2, "dir"), inode(2, DIRECTORY)],
        vec![named(2, 3, "lost"), named(2, 4, "kept"), inode(3, FILE)],
        vec![inode(4, FILE), extent(4, 0, 1, 20), size(4, 4096), inode(5, FILE)],
        vec![end()],
    ];
    pool(
        &snapshot,
        &[vec![named(1, 9, "new"), inode(9, FILE), named(2, 5, "five")]],
    )
}

#[test]
fn sound_parts_of_a_damaged_snapshot_are_kept() {
    let mut bytes = grouped();
    let second = bytes.windows(4).position(|word| word == b"lost").expect("it is there");
    bytes[second] ^= 1;
    let refused = open(Kind::File, bytes.clone(), 2).map(drop).expect_err("it is damaged");
    assert_eq!(refused, OpenError::NoSnapshot);
    let (told, memory) = mend(bytes).expect("most of the log can be read");
    assert_eq!(
        told,
        [
            "the log is damaged: 1 of the snapshot's groups cannot be read, and their records are lost: the rest is kept",
            "inode 2 has lost a part of its log records: its known parts are kept for its owner alone, and missing bytes read as zeros",
            "inode 4 has no name: it is named `#4` in lost+found",
        ]
    );
    assert_eq!(
        paths(&tree(memory.bytes())),
        [
            "/dir 2 40700 8",
            "/dir/five 5 100644 8",
            LOST,
            "/lost+found/#4 4 100644 8",
            "/new 9 100644 8"
        ]
    );
    // The header of the second group is damaged: the third one's checksum cannot be told, and what follows it is found.
    let mut bytes = grouped();
    let magics = bytes.windows(4).enumerate().filter(|(_, word)| word == b"HNLG");
    let second = magics
        .map(|(at, _)| at)
        .find(|at| *at > 100 * BLOCK_BYTES)
        .expect("the bytes are in the image");
    bytes[second] ^= 1;
    let (told, memory) = mend(bytes).expect("some of the log can be read");
    assert!(
        told[0].contains("2 of the snapshot's groups cannot be read, and their records are lost"),
        "{told:?}"
    );
    let kept = paths(&tree(memory.bytes()));
    assert!(
        kept.contains(&"/new 9 100644 8".to_owned()) && kept.contains(&"/dir 2 40700 8".to_owned()),
        "{kept:?}"
    );
}

/// A block of a snapshot of some segments is lost, with a header in it or without: but for the last blocks of a segment, which lead to the next one, little
/// is lost besides what was in it.
#[test]
fn a_lost_block_of_a_snapshot_loses_little_else() {
    const FILES: usize = 3000;
    const BLOCKS: usize = 32;
    let (fs, memory) = format_of(Kind::File, 2000, 32);
    for nth in 0..FILES {
        let name = format!("{nth:0>20}");
        fs.create(&fs.root(), name.as_bytes(), file()).expect("there is room");
    }
    let slot = fs.slots().claim().expect("the first slot is free");
    fs.compact(&slot).expect("the disk works");
    fs.put_away(&slot).expect("the disk works");
    let bytes = memory.bytes();
    let superblock = newest_superblock(&bytes).expect("one superblock is sound");
    let first = usize::try_from(superblock.snapshot.first.index()).expect("the number is small");
    let lost = (first..first + BLOCKS).map(|block| {
        let mut bytes = bytes.clone();
        bytes[block * BLOCK_BYTES..][..BLOCK_BYTES].fill(0);
        let memory = SimMemory::new(Kind::File, bytes);
        let repair = Repair::plan(&memory, &superblock, 2, 32, 1000).expect("most can be read");
        repair.carry_out(&memory, &superblock, 2, 4711).expect("there is room");
        let (fs, _) = open(Kind::File, memory.bytes(), 3).expect("the pool is sound");
        let slot = fs.slots().claim().expect("the first slot is free");
        FILES.saturating_sub(Tree::of(&fs, &slot).names.len())
    });
    // Two groups of 16 KiB have some 600 inodes.
    let (few, many): (Vec<usize>, Vec<usize>) = lost.partition(|lost| *lost < 800);
    assert!(few.len() >= BLOCKS - 3, "{few:?} {many:?}");
}

/// A crash left groups behind the end of the tail that bear each other out, and blocks of theirs are others' by now.
#[test]
fn groups_that_a_crash_left_are_not_believed_beside_a_damaged_snapshot() {
    let damaged = || {
        let mut bytes = grouped();
        let second = bytes.windows(4).position(|word| word == b"lost").expect("it is there");
        bytes[second] ^= 1;
        bytes
    };
    let (plain, memory) = mend(damaged()).expect("most of the log can be read");
    let mut bytes = damaged();
    let (mut at, mut seed) = (2 * BLOCK_BYTES, 1234);
    for sequence in [2, 3, 4] {
        let (group, crc) = group(&head(TAIL, NONCE), sequence, seed, &[extent(9, sequence, 1, 20)]);
        put(&mut bytes, TAIL, at, &group);
        (at, seed) = (at + group.len(), crc);
    }
    let (told, with_left) = mend(bytes).expect("most of the log can be read");
    assert_eq!(told, plain);
    assert!(tree(with_left.bytes()) == tree(memory.bytes()));
}

/// Its log says nothing but that all is settled: an empty pool in its place would only look repaired.
#[test]
fn a_pool_without_a_readable_snapshot_is_not_replaced_by_an_empty_one() {
    let (fs, memory) = format_of(Kind::File, 600, 32);
    for name in ["a", "b"] {
        fs.create(&fs.root(), name.as_bytes(), file()).expect("there is room");
    }
    let slot = fs.slots().claim().expect("the first slot is free");
    fs.compact(&slot).expect("the disk works");
    fs.put_away(&slot).expect("the disk works");
    let mut bytes = memory.bytes();
    let superblock = newest_superblock(&bytes).expect("one superblock is sound");
    put(&mut bytes, superblock.snapshot.first.index(), 0, &[0; BLOCK_BYTES]);
    let memory = SimMemory::new(Kind::File, bytes);
    let planned = Repair::plan(&memory, &superblock, 2, 32, 1000);
    let planned = planned.map(|repair| told(&repair));
    assert_eq!(planned, Err(OpenError::NoSnapshot));
}

/// Many names in a pool without a free block: it has room for its log once more, and no more.
#[test]
fn a_damaged_pool_that_is_full_is_repaired() {
    let (fs, memory) = format_of(Kind::File, 8192, 64);
    let (root, slot) = (fs.root(), fs.slots().claim().expect("the first slot is free"));
    for nth in 0..14_000 {
        let name = format!("{nth:0>120}");
        fs.create(&root, name.as_bytes(), file()).expect("there is room");
        if nth % 1000 == 0 {
            fs.tend_log(&slot).expect("the disk works");
        }
    }
    let filler = fs
        .lookup(&root, format!("{:0>120}", 7).as_bytes())
        .expect("it was made");
    while fs.append(&asking(&slot), &filler, &[1; 20_000], false).is_ok() {}
    drop(filler);
    fs.compact(&slot).expect("the log has room for a snapshot");
    fs.put_away(&slot).expect("the disk works");
    let mut bytes = memory.bytes();
    let damaged = format!("{:0>120}", 13_777);
    // Names come in the order of their hashes or bytes: whichever it is, this one is in the newest snapshot.
    let superblock = newest_superblock(&bytes).expect("one superblock is sound");
    for at in memchr_all(&bytes, damaged.as_bytes()) {
        bytes[at] ^= 1;
    }
    for segment_blocks in [64, 256] {
        let memory = SimMemory::new(Kind::File, bytes.clone());
        let repair = Repair::plan(&memory, &superblock, 2, segment_blocks, 1000).expect("it can be read");
        assert!(
            told(&repair)[0].contains("groups cannot be read"),
            "{:?}",
            told(&repair)
        );
        repair
            .carry_out(&memory, &superblock, 2, 4711)
            .expect("it has room for its log");
        let (fs, _) = open(Kind::File, memory.bytes(), 3).expect("the pool is sound");
        fs.check_invariants();
    }
}

fn memchr_all(bytes: &[u8], what: &[u8]) -> Vec<usize> {
    let found = bytes
        .windows(what.len())
        .enumerate()
        .filter(|(_, found)| *found == what);
    found.map(|(at, _)| at).collect()
}

/// Any user may make them in a directory that others may write to.
#[test]
fn names_like_lost_and_found_hinder_no_repair() {
    let names = (1..21).flat_map(|nth| {
        let name = if nth == 1 {
            "lost+found".to_owned()
        } else {
            format!("lost+found-{nth}")
        };
        [named(1, 10 + nth, &name), inode(10 + nth, FILE)]
    });
    let records: Vec<Vec<u8>> = names.chain([named(1, 900, "a/b"), inode(900, FILE)]).collect();
    let (told, memory) = mend(of_records(&records)).expect("it can be read");
    assert_eq!(told[1], "inode 900 has no name: it is named `#900` in lost+found");
    let kept = paths(&tree(memory.bytes()));
    assert!(
        kept.contains(&"/lost+found-21/#900 900 100644 8".to_owned()),
        "{kept:?}"
    );
}

#[test]
fn files_that_lose_a_part_with_a_group_are_reported() {
    let snapshot = [
        vec![
            inode(1, DIRECTORY),
            named(1, 4, "file"),
            inode(4, FILE),
            extent(4, 0, 1, 20),
        ],
        vec![extent(4, 1, 1, 21)],
        vec![size(4, 8192)],
        vec![inode(5, FILE), end()],
    ];
    let headers = |bytes: &[u8]| -> Vec<usize> {
        let magics = bytes.windows(4).enumerate().filter(|(_, word)| *word == b"HNLG");
        magics.map(|(at, _)| at).filter(|at| *at >= 100 * BLOCK_BYTES).collect()
    };
    for (group, whole) in [(1, [20, 0]), (2, [20, 21])] {
        let mut bytes = pool(&snapshot, &[]);
        let at = headers(&bytes)[group] + 41;
        bytes[at] ^= 1;
        let (told, memory) = mend(bytes).expect("most of the log can be read");
        let torn = "inode 4 has lost a part of its log records: its known parts are kept for its owner alone, and missing bytes read as zeros";
        assert!(told.iter().any(|text| text == torn), "{told:?}");
        let tree = tree(memory.bytes());
        // There may have been an ACL.
        assert_eq!(paths(&tree)[0], format!("/file 4 {:o} 8", FILE & !0o077));
        let bytes = &tree.bytes[&4];
        assert_eq!(bytes.iter().copied().step_by(BLOCK_BYTES).collect::<Vec<u8>>(), whole);
    }
}

#[test]
fn volumes_that_lose_their_name_with_a_group_get_another() {
    let data = |ino| [inode(ino, DEVICE), extent(ino, 0, 1, 20 + ino), size(ino, 4096)].concat();
    let snapshot = [
        vec![inode(1, DIRECTORY), data(4), data(5), inode(6, DEVICE)],
        // So the other one's new name is taken.
        vec![volume(5, "recovered-4")],
        vec![volume(4, "mine")],
        vec![end()],
    ];
    let mut bytes = pool(&snapshot, &[]);
    let at = bytes
        .windows(4)
        .position(|word| word == b"mine")
        .expect("it is written");
    bytes[at] ^= 1;
    let (told, memory) = mend(bytes).expect("most of the log can be read");
    let renamed = "inode 4 has no name: it is renamed to `recovered-4-2`";
    assert!(told.iter().any(|text| text == renamed), "{told:?}");
    let (fs, _) = open(Kind::File, memory.bytes(), 2).expect("it is sound");
    let names: Vec<_> = fs.volumes(|| true).into_iter().map(|volume| volume.name).collect();
    assert_eq!(names, ["recovered-4", "recovered-4-2"].map(Into::into));
    assert_eq!(tree(memory.bytes()).bytes[&4].as_slice(), [24; BLOCK_BYTES]);
}

#[test]
fn what_is_found_is_put_where_nobody_else_may_look() {
    for (mode, uid) in [(DIRECTORY, 0_u32), (0o040_700, 8)] {
        let mut made = inode(2, mode);
        made[13..17].copy_from_slice(&uid.to_le_bytes());
        let bytes = of_records(&[made, named(1, 2, "lost+found"), inode(9, FILE), named(7, 9, "kept")]);
        let (told, memory) = mend(bytes).expect("the log can be read");
        let all = paths(&tree(memory.bytes()));
        assert!(
            all.iter().any(|path| path.starts_with("/lost+found-2/#")),
            "{told:?} {all:?}"
        );
    }
}

#[test]
fn segments_that_no_log_has_take_no_memory() {
    let (_, memory) = format_of(Kind::File, 8192, 64);
    let mut superblock = newest_superblock(&memory.bytes()).expect("it was made above");
    let read = |superblock: &Superblock| Replayed::read(&memory, superblock, 2).map(drop);
    read(&superblock).expect("it is sound");
    (superblock.snapshot.first, superblock.snapshot.blocks) = (Block::from_raw(1), 5000);
    let refused = read(&superblock).expect_err("no segment is as large");
    assert!(matches!(refused, OpenError::Log(_)), "{refused}");
}

/// A group in the middle of the log is damaged, and one behind it gave a block to another user's file, which has written there.
#[test]
fn bytes_of_lost_changes_show_in_no_other_file() {
    let snapshot = [
        vec![inode(1, DIRECTORY), named(1, 4, "old"), inode(4, FILE)],
        vec![extent(4, 0, 3, 20), size(4, 3 * 4096), end()],
    ];
    let tail = [
        vec![inode(5, FILE), named(1, 5, "mine"), extent(5, 0, 1, 30), size(5, 4096)],
        vec![named(1, 6, "damaged"), inode(6, FILE)],
        // The same place once more is no news.
        vec![inode(7, FILE), extent(7, 0, 1, 21), extent(5, 0, 1, 30)],
        vec![named(1, 7, "new")],
    ];
    // The last two groups lie in the same segment, or in the next one, the first or the second of them too.
    for onward in [None, Some(2), Some(3)] {
        let mut bytes = pool(&snapshot, &tail);
        if let Some(nth) = onward {
            lead_on(&mut bytes, &tail, nth);
        }
        lose(&mut bytes);
        let (told, memory) = mend(bytes).expect("most of the log can be read");
        let hole = "file 4 had 3 blocks from block 20 of member 0 on, which changes that are lost gave to another file: \
                    1 of them read as zeros from now on";
        assert_eq!(told[1..], [hole], "{told:?}");
        let (fs, _) = open(Kind::File, memory.bytes(), 2).expect("it was mended");
        let slot = fs.slots().claim().expect("the first slot is free");
        let blocks = |name: &[u8]| {
            let (inode, mut read) = (fs.lookup(&fs.root(), name).expect("it is kept"), vec![1; 3 * 4096]);
            let count = fs.read(&crate::workload::asking(&slot), &inode, 0, &mut read);
            read.truncate(count.expect("it can be read"));
            read.chunks(4096).map(|block| block[0]).collect::<Vec<_>>()
        };
        assert_eq!((blocks(b"old"), blocks(b"mine")), (vec![20, 0, 22], vec![30]));
    }
}

/// A group in the middle of the log is damaged, and the log goes on behind it in blocks that an older file had before.
#[test]
fn bytes_of_the_log_show_in_no_file() {
    let blocks = u64::from(SEGMENT_BLOCKS);
    let snapshot = [
        vec![inode(1, DIRECTORY), named(1, 4, "old"), inode(4, FILE)],
        vec![extent(4, 0, blocks, ONWARD), size(4, blocks * 4096), end()],
    ];
    let tail = [
        vec![named(1, 5, "mine"), inode(5, FILE)],
        vec![named(1, 6, "damaged"), inode(6, FILE)],
        vec![named(1, 7, "new"), inode(7, FILE)],
    ];
    for nth in [2, 3] {
        let mut bytes = pool(&snapshot, &tail);
        lead_on(&mut bytes, &tail, nth);
        lose(&mut bytes);
        let (told, memory) = mend(bytes).expect("most of the log can be read");
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[1].ends_with("8 of them read as zeros from now on"), "{told:?}");
        let old = &tree(memory.bytes()).bytes[&4];
        assert!(old.iter().all(|byte| *byte == 0), "the log shows in a file");
    }
}

/// Groups of before a crash, behind the log's end, are of no other log, whatever their numbers.
#[test]
fn groups_of_before_a_crash_give_no_blocks_away() {
    let snapshot = [
        vec![inode(1, DIRECTORY), named(1, 4, "old"), inode(4, FILE)],
        vec![extent(4, 0, 3, 20), size(4, 3 * 4096), end()],
    ];
    let tail = [
        vec![inode(5, FILE), named(1, 5, "mine")],
        vec![named(1, 6, "damaged"), inode(6, FILE)],
        vec![named(1, 7, "new"), inode(7, FILE)],
    ];
    let mut bytes = pool(&snapshot, &tail);
    let at: usize = lay(&tail).iter().map(|(group, _)| group.len()).sum();
    // Of another log, and with the numbers that come next.
    let of_before = head(TAIL, NONCE);
    let (first, crc) = group(&of_before, 3, 1, &[named(1, 8, "before")]);
    let (second, _) = group(&of_before, 4, crc, &[inode(8, FILE), extent(8, 0, 1, 21)]);
    put(&mut bytes, TAIL, at, &[first, second].concat());
    lose(&mut bytes);
    let (told, _) = mend(bytes).expect("most of the log can be read");
    assert_eq!(told.len(), 1, "{told:?}");
}

/// The groups of a tail, each with its checksum.
fn lay(tail: &[Vec<Vec<u8>>]) -> Vec<(Vec<u8>, u32)> {
    let (head, mut seed) = (head(TAIL, NONCE), 9);
    let groups = (1..).zip(tail).map(|(sequence, records)| {
        let (group, crc) = group(&head, sequence, seed, records);
        seed = crc;
        (group, crc)
    });
    groups.collect()
}

/// Has the groups of a tail from the `nth` on lie in a segment of their own.
fn lead_on(bytes: &mut [u8], tail: &[Vec<Vec<u8>>], nth: usize) {
    let next = record(20, &[ONWARD], &SEGMENT_BLOCKS.to_le_bytes());
    let mut groups = tail.to_vec();
    groups.insert(nth, vec![next]);
    let groups = lay(&groups);
    let (before, onward) = groups.split_at(nth + 1);
    let join = |groups: &[(Vec<u8>, u32)]| groups.iter().flat_map(|(group, _)| group.clone()).collect::<Vec<_>>();
    put(bytes, TAIL, 0, &[0; SEGMENT_BLOCKS as usize * BLOCK_BYTES]);
    put(bytes, TAIL, 0, &join(before));
    put(bytes, ONWARD, 0, &[0; SEGMENT_BLOCKS as usize * BLOCK_BYTES]);
    put(bytes, ONWARD, 0, &join(onward));
}

/// Damages the group with that word, though the superblocks say that the log is durable behind it.
fn lose(bytes: &mut [u8]) {
    let mut superblock = newest_superblock(bytes).expect("it was made above");
    superblock.end = 3;
    for block in [0, BLOCKS as u64 - 1] {
        put(bytes, block, 0, &superblock.encode()[..]);
    }
    let name = bytes.windows(7).position(|word| word == b"damaged");
    bytes[name.expect("it is there")] ^= 1;
}

#[test]
fn a_log_ends_at_a_wrong_link() {
    let mut bytes = grouped();
    // As the only group of the tail: on to what no member has.
    let (astray, _) = group(&head(TAIL, NONCE), 1, 9, &[record(20, &[5000], &8_u32.to_le_bytes())]);
    put(&mut bytes, TAIL, 0, &astray);
    let refused = open(Kind::File, bytes.clone(), 2).map(drop).expect_err("it is damaged");
    assert!(matches!(refused, OpenError::Log(_)), "{refused}");
    let (told, memory) = mend(bytes).expect("the snapshot is sound");
    assert!(
        told[0].contains("records of the log after group 0 are lost"),
        "{told:?}"
    );
    assert_eq!(
        paths(&tree(memory.bytes())),
        ["/dir 2 40755 8", "/dir/kept 4 100644 8", "/dir/lost 3 100644 8"]
    );
}

#[test]
fn an_unreadable_log_is_refused() {
    let mut bytes = grouped();
    put(&mut bytes, SNAPSHOT, 0, &[0; BLOCK_BYTES]);
    let (told, memory) = mend(bytes.clone()).expect("the tail can be read");
    assert!(!told.is_empty());
    assert!(paths(&tree(memory.bytes())).contains(&"/new 9 100644 8".to_owned()));
    put(&mut bytes, TAIL, 0, &[0; 4]);
    assert_eq!(
        mend(bytes).map(drop).expect_err("no log is left"),
        OpenError::NoSnapshot
    );
}

/// Opens a pool some of whose blocks cannot be read.
fn open_spoiled(kind: Kind, bytes: Vec<u8>, spoiled: &[u64]) -> Result<(SimFs, SimMemory), OpenError> {
    let memory = SimMemory::new(kind, bytes);
    for block in spoiled {
        memory.spoil(usize::try_from(*block).expect("a small pool"));
    }
    open_on(kind, memory, (2, SEGMENT_BLOCKS), false)
}

/// Groups end in the first block of each segment.
#[test]
fn blocks_behind_the_end_of_the_log_need_not_be_readable() {
    let sound = paths(&tree(grouped()));
    for spoiled in [&[SNAPSHOT + 7][..], &[TAIL + 7], &[TAIL + 1, SNAPSHOT + 1]] {
        let (fs, memory) = open_spoiled(Kind::File, grouped(), spoiled).expect("all of the log can be read");
        let slot = fs.slots().claim().expect("the first slot is free");
        assert_eq!(paths(&Tree::of(&fs, &slot)), sound);
        // More than fits into one segment of the log.
        for nth in 0..200 {
            let name = format!("v-{nth:0200}");
            let made = fs.create(&fs.root(), name.as_bytes(), file());
            made.expect("there is room in the log");
        }
        fs.sync_all(&slot).expect("no such block is written in part");
        let (names, bytes) = (paths(&Tree::of(&fs, &slot)), memory.bytes());
        let (again, _) = open(Kind::File, bytes, 2).expect("the log goes on elsewhere");
        let slot = again.slots().claim().expect("the first slot is free");
        assert_eq!(paths(&Tree::of(&again, &slot)), names);
    }
    // There nobody knows whether the log goes on.
    let refused = open_spoiled(Kind::File, grouped(), &[TAIL]).map(drop);
    assert_eq!(
        refused.expect_err("its end may be lost"),
        OpenError::Unreadable(MemberId(0))
    );
}

/// A power cut tears what is being written in place, and the log has it.
#[test]
fn synced_bytes_in_the_log_go_where_nothing_can_be_read() {
    let count = u32::try_from(BLOCK_BYTES).expect("a block is small").to_le_bytes();
    let bytes = record(18, &[4, 0], &[&count[..], &[0x6b; BLOCK_BYTES]].concat());
    let pool = pool(
        &[vec![
            inode(1, DIRECTORY),
            named(1, 4, "file"),
            inode(4, FILE),
            extent(4, 0, 1, 20),
            size(4, 4096),
            end(),
        ]],
        &[vec![bytes]],
    );
    let (fs, _) = open_spoiled(Kind::File, pool, &[20]).expect("the block is written as a whole");
    let slot = fs.slots().claim().expect("the first slot is free");
    assert_eq!(**Tree::of(&fs, &slot).bytes[&4], [0x6b; BLOCK_BYTES]);
}

#[test]
fn a_damaged_superblock_is_rewritten_from_the_other_one() {
    for (damaged, word) in [(0, "start"), (BLOCKS as u64 - 1, "end")] {
        let mut bytes = grouped();
        put(&mut bytes, damaged, 100, &[1, 2, 3]);
        let (told, memory) = mend(bytes).expect("the other superblock is sound");
        assert_eq!(
            told,
            [format!(
                "the superblock at the {word} of member 0 is damaged: it is written again"
            )]
        );
        let bytes = memory.bytes();
        assert!(
            bytes[..BLOCK_BYTES] == bytes[(BLOCKS - 1) * BLOCK_BYTES..],
            "the superblocks differ"
        );
        assert_eq!(history(&bytes), FIRST_HISTORY, "nothing is lost");
        tree(bytes);
    }
}

#[test]
fn a_pool_with_an_unknown_checksum_feature_is_read_only() {
    let mut bytes = grouped();
    for block in [0, BLOCKS as u64 - 1] {
        let mut superblock = newest_superblock(&bytes).expect("one superblock is sound");
        superblock.features.read_only = 1;
        put(&mut bytes, block, 0, &superblock.encode()[..]);
    }
    let refused = open(Kind::File, bytes.clone(), 2)
        .map(drop)
        .expect_err("the pool would be written");
    assert_eq!(refused, OpenError::ReadOnly("data-sums".into()));
    let superblock = newest_superblock(&bytes).expect("one superblock is sound");
    let read = plan(&SimMemory::new(Kind::File, bytes), &superblock).expect("the pool can be read");
    assert!(told(&read).is_empty());
}

#[test]
fn a_crash_during_a_repair_leaves_the_old_or_the_new_state() {
    let mut random = fastrand::Rng::with_seed(5);
    for case in cases() {
        let bytes = of_records(&case.records);
        let superblock = newest_superblock(&bytes).expect("one superblock is sound");
        let old = told(&plan(&SimMemory::new(Kind::File, bytes.clone()), &superblock).expect("the pool can be read"));
        let (_, memory) = mend(bytes.clone()).expect("the pool can be repaired");
        let events = memory.take_events();
        let mut disk = Disk::new(Kind::File, bytes);
        let (mut left_old, mut left_new) = (0, 0);
        for event in &events {
            for _ in 0..8 {
                let bytes = disk.after_crash(|_, stores| random.usize(..=stores));
                let superblock = newest_superblock(&bytes).expect("one superblock is sound");
                let again = plan(&SimMemory::new(Kind::File, bytes.clone()), &superblock).expect("it can be read");
                let again: Vec<String> = told(&again);
                // A superblock may have been torn.
                let again: Vec<_> = again.into_iter().filter(|text| !text.contains("superblock")).collect();
                if again.is_empty() {
                    left_new += 1;
                } else {
                    assert_eq!(again, old, "the state is neither old nor new");
                    left_old += 1;
                }
                let (_, memory) = mend(bytes).expect("the pool can be repaired again");
                check(&case, &tree(memory.bytes()));
            }
            disk.play(event);
            assert!(!matches!(event, Event::Begin(..) | Event::End(..)));
        }
        assert!(left_old > 0 && left_new > 0, "{left_old} old, {left_new} new");
        check(&case, &tree(disk.after_crash(|_, _| 0)));
    }
}
