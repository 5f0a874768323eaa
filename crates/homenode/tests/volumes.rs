//! Volumes as a program uses them.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use homenode::{Error, NodeId, Placement, Size, VOLUME_BYTES_MAX};
use std::thread;
use support::{errno, pool};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;

const ENOENT: i32 = 2;
const ENXIO: i32 = 6;
const EEXIST: i32 = 17;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const EFBIG: i32 = 27;
const ENOSPC: i32 = 28;
const ENOTEMPTY: i32 = 39;

#[test]
fn volume_bytes_are_read_back_until_discarded() {
    let pool = pool(8);
    let volume = pool.create_volume("disk", 1 << 40, Placement::Local).unwrap();
    assert_eq!((volume.name(), volume.size_bytes()), ("disk", 1 << 40));
    assert_eq!(pool.status().used_bytes, 0, "a new volume takes no space");
    volume.write_all_at(&[7; 3 * BLOCK], 1 << 39).unwrap();
    volume.write_all_at(b"again", 1 << 39).unwrap();
    let mut back = [1; BLOCK];
    volume.read_at(&mut back, 1 << 39).unwrap();
    assert!(back.starts_with(b"again\x07"));
    volume.read_at(&mut back, 0).unwrap();
    assert_eq!(back, [0; BLOCK]);
    assert_eq!(volume.map(), [(NodeId(0), 3 * BLOCK as u64)]);

    volume.zero(1 << 39, BLOCK as u64).unwrap();
    assert_eq!(pool.status().used_bytes, 3 * BLOCK as u64);
    volume.read_at(&mut back, 1 << 39).unwrap();
    assert_eq!(back, [0; BLOCK]);
    volume.discard(0, 1 << 40).unwrap();
    assert_eq!(pool.status().used_bytes, 0);
    assert_eq!(errno(volume.read_at(&mut back, (1 << 40) - 1)), ENXIO);
    assert_eq!(errno(volume.write_at(&back, 1 << 40)), ENXIO);
    assert_eq!(errno(volume.discard(u64::MAX, 1)), ENXIO);
    assert_eq!(errno(volume.zero(1 << 40, 1)), ENXIO);
}

#[test]
fn volumes_are_listed_found_resized_and_removed() {
    let pool = pool(8);
    let volume = pool.create_volume("b", 2 * MIB, Placement::Interleave).unwrap();
    pool.create_volume("a", VOLUME_BYTES_MAX, Placement::Node(NodeId(0)))
        .unwrap();
    volume.write_all_at(&[1; BLOCK], MIB).unwrap();
    let listed: Vec<_> = pool
        .volumes()
        .into_iter()
        .map(|status| (status.name.to_string(), status.used_bytes, status.placement.to_string()))
        .collect();
    let expected = [("a", 0, "node:0"), ("b", BLOCK as u64, "interleave")];
    assert_eq!(
        listed,
        expected.map(|(name, bytes, policy)| (name.to_owned(), bytes, policy.to_owned()))
    );
    assert!(!volume.status().attached);
    assert_eq!(pool.read_dir("/").unwrap().count(), 0, "no directory shows them");

    assert_eq!(errno(volume.resize(MIB)), ENOTEMPTY);
    volume.resize(MIB + BLOCK as u64).unwrap();
    volume.resize_discarding(MIB).unwrap();
    assert_eq!(pool.status().used_bytes, 0);
    volume.resize(4 * MIB).unwrap();
    let mut back = [1; BLOCK];
    volume.read_at(&mut back, MIB).unwrap();
    assert_eq!(back, [0; BLOCK], "cut bytes came back");

    let found = pool.volume("b").unwrap();
    found.write_all_at(&[1; BLOCK], 0).unwrap();
    volume.remove().unwrap();
    assert_eq!(pool.status().used_bytes, 0);
    assert_eq!(found.size_bytes(), 0);
    assert_eq!(errno(found.write_at(&back, 0)), ENXIO);
    assert_eq!(errno(found.resize(MIB)), ENOENT);
    assert_eq!(errno(found.remove()), ENOENT);
    assert_eq!(errno(pool.volume("b")), ENOENT);
}

#[test]
fn volume_errors_name_the_volume() {
    let pool = pool(4);
    let make = |name: &str, bytes, placement| pool.create_volume(name, bytes, placement);
    make("v", MIB, Placement::Local).unwrap();
    let told = |result: Result<homenode::Volume, Error>, number, part: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.errno(), number, "{error}");
        assert!(error.to_string().contains(part), "{part} is missing in: {error}");
    };
    told(make("v", MIB, Placement::Local), EEXIST, "create the volume v:");
    told(make("a\nb", MIB, Placement::Local), EINVAL, r"a\nb");
    told(make("a/b", MIB, Placement::Local), EINVAL, "slash");
    told(make("w", 1000, Placement::Local), EINVAL, "take 4096");
    told(make("w", 1 << 63, Placement::Local), EFBIG, "9223372036854771712");
    told(make("w", MIB, Placement::Node(NodeId(999))), ENODEV, "node 999");
    told(pool.volume("w"), ENOENT, "find the volume w:");
    assert_eq!(pool.volumes().len(), 1);
    assert_eq!(errno(pool.open_inode(2)), 116, "a volume's inode can be opened");
}

#[test]
fn a_full_pool_fails_only_the_writer() {
    let pool = pool(4);
    let greedy = pool.create_volume("greedy", 64 * MIB, Placement::Local).unwrap();
    let modest = pool.create_volume("modest", 64 * MIB, Placement::Local).unwrap();
    modest.write_all_at(&[1; BLOCK], 0).unwrap();
    assert_eq!(errno(greedy.write_all_at(&vec![2; 5 << 20], 0)), ENOSPC);
    assert_eq!(pool.status().free_bytes, 0);
    // In place, past the one that failed.
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..100 {
                modest.write_all_at(&[round; BLOCK], 0).unwrap();
                assert_eq!(errno(greedy.write_at(&[3; BLOCK], 32 * MIB)), ENOSPC);
                greedy.zero(32 * MIB, MIB).unwrap();
            }
        });
    });
    let mut back = [0; BLOCK];
    modest.read_at(&mut back, 0).unwrap();
    assert_eq!(back, [99; BLOCK]);
    greedy.discard(0, BLOCK as u64).unwrap();
    modest.write_all_at(&[4; BLOCK], MIB).unwrap();
}

#[test]
fn volumes_move_when_a_member_is_drained() {
    let pool = pool(8);
    let volume = pool.create_volume("v", 8 * MIB, Placement::Local).unwrap();
    let content: Vec<u8> = (0..3 * MIB).map(|at| (at % 253) as u8).collect();
    volume.write_all_at(&content, MIB).unwrap();
    let first = pool.status().members[0].id;
    pool.add_member(NodeId(0), Size::Bytes(8 * MIB)).unwrap();
    pool.drain(first, &mut |_, _| {}).unwrap();
    pool.remove(first).unwrap();
    let mut back = vec![0; content.len()];
    volume.read_at(&mut back, MIB).unwrap();
    assert!(back == content, "other bytes");
}
