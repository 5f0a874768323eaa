//! Images of pools in each version of the format: they open, and show what they did when they were made.
//!
//! An image is kept as its sectors that are not zero, each behind its number. `HOMENODE_WRITE_GOLDEN=DIR` writes the image of this version, and what
//! it shows when the process was killed and when the machine lost power; once a version is released its files do not change.

use crate::sim::Kind;
use crate::tree::Tree;
use crate::workload::{BLOCKS, Operation, Run, open};
use homenode_engine::BLOCK_BYTES;
use std::fmt::Write;
use std::path::Path;

const SECTOR: usize = 512;
/// Image of each version, and the tree that it shows.
const VERSIONS: &[(&str, &[u8], &str)] = &[("v1", include_bytes!("golden/v1.sectors"), include_str!("golden/v1.txt"))];

fn pack(bytes: &[u8]) -> Vec<u8> {
    let sectors = bytes.chunks(SECTOR).enumerate();
    let used = sectors.filter(|(_, sector)| sector.iter().any(|byte| *byte != 0));
    used.flat_map(|(nth, sector)| [&(nth as u64).to_le_bytes(), sector].concat())
        .collect()
}

fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; BLOCKS * BLOCK_BYTES];
    for entry in packed.chunks_exact(8 + SECTOR) {
        let (nth, sector) = entry.split_at(8);
        let nth = u64::from_le_bytes(nth.try_into().expect("eight bytes"));
        let start = usize::try_from(nth).expect("the number is small") * SECTOR;
        bytes[start..start + SECTOR].copy_from_slice(sector);
    }
    bytes
}

/// Names with attributes, and sizes with the sums of bytes, as text.
fn describe(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (crash, witness) in [("killed", 1), ("power cut", 2)] {
        let (fs, _) = open(Kind::File, bytes.to_vec(), witness).expect("the image is a pool");
        fs.check_invariants();
        let slot = fs.slots().claim().expect("the first slot is free");
        let tree = Tree::of(&fs, &slot);
        writeln!(text, "{crash}").expect("writing to a string cannot fail");
        for (path, entry) in &tree.names {
            writeln!(text, "{} {entry:?}", String::from_utf8_lossy(path)).expect("writing to a string cannot fail");
        }
        for (ino, bytes) in &tree.bytes {
            let sum: u64 = bytes.iter().zip(1..).map(|(byte, nth)| u64::from(*byte) * nth).sum();
            writeln!(text, "{ino}: {} bytes, {sum}", bytes.len()).expect("writing to a string cannot fail");
        }
        writeln!(text, "{:?}", tree.volumes).expect("writing to a string cannot fail");
    }
    text
}

/// A pool with every kind of record, before and behind its snapshot.
fn image() -> Vec<u8> {
    let mut run = Run::new(Kind::File);
    let every = |run: &mut Run| {
        for operation in crate::OPERATIONS {
            run.step(*operation);
        }
    };
    run.step(Operation::Create("a"));
    run.step(Operation::Write("a", 0, 9000));
    run.step(Operation::Sync("a"));
    every(&mut run);
    run.step(Operation::Snapshot);
    for path in ["b", "d/a"] {
        run.step(Operation::Create(path));
        run.step(Operation::Write(path, 10, 5000));
        run.step(Operation::Sync(path));
    }
    run.step(Operation::MakeVolume);
    run.step(Operation::Create("a"));
    every(&mut run);
    run.step(Operation::Symlink("t"));
    run.step(Operation::Create("last"));
    run.step(Operation::Write("last", 0, 300));
    run.memory.bytes()
}

#[test]
fn images_of_all_versions_open_with_the_same_contents() {
    if let Some(dir) = std::env::var_os("HOMENODE_WRITE_GOLDEN") {
        let (dir, bytes) = (Path::new(&dir), image());
        std::fs::write(dir.join("v1.sectors"), pack(&bytes)).expect("the directory is there");
        std::fs::write(dir.join("v1.txt"), describe(&bytes)).expect("the directory is there");
        return;
    }
    for (version, packed, shown) in VERSIONS {
        assert_eq!(describe(&unpack(packed)), *shown, "{version}");
    }
}
