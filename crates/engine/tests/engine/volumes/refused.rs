//! Refused volumes, and refused operations on volumes; each leaves everything as it was.

use crate::support::{BLOCK, Caller, assert_empty, filesystem};
use homenode_engine::NodeId;
use homenode_engine::fs::{Placement, VOLUME_BYTES_MAX, VolumeError};

#[test]
fn invalid_names_sizes_and_nodes_are_refused() {
    let (fs, _) = filesystem(2, 100);
    let make = |name: &str, bytes| fs.create_volume(name, bytes, Placement::Local).map(drop);
    let too_long = "n".repeat(256);
    for name in ["", ".", "..", "a/b", "/", "a\nb", "\u{7f}", "\u{85}", "a\0", &too_long] {
        let error = make(name, BLOCK).expect_err(name);
        assert!(matches!(error, VolumeError::Name(_)), "{name:?}: {error}");
    }
    assert_eq!(make("v", 0), Err(VolumeError::NoSize));
    assert_eq!(make("v", BLOCK + 1), Err(VolumeError::Misaligned(BLOCK + 1)));
    assert_eq!(make("v", u64::MAX), Err(VolumeError::TooLarge(u64::MAX)));
    assert_eq!(
        make("v", VOLUME_BYTES_MAX + BLOCK),
        Err(VolumeError::TooLarge(VOLUME_BYTES_MAX + BLOCK))
    );
    let on_7 = Placement::Node(NodeId(7));
    assert_eq!(
        fs.create_volume("v", BLOCK, on_7).map(drop),
        Err(VolumeError::NoMemberOn(NodeId(7)))
    );
    assert!(fs.volumes(|| true).is_empty());
    assert_empty(&fs);
}

#[test]
fn volume_names_are_unique_and_reusable() {
    let (fs, _) = filesystem(1, 100);
    for name in ["v", "ü", "...", " ", &"n".repeat(255)] {
        let volume = fs
            .create_volume(name, VOLUME_BYTES_MAX, Placement::Interleave)
            .expect(name);
        assert_eq!(
            fs.create_volume(name, BLOCK, Placement::Local).map(drop),
            Err(VolumeError::Exists)
        );
        assert_eq!(fs.volume(name).expect("it is there").size_bytes(), VOLUME_BYTES_MAX);
        fs.remove_volume(&volume).expect("the volume exists");
        assert_eq!(fs.volume(name).map(drop), Err(VolumeError::Unknown));
    }
    assert_empty(&fs);
}

#[test]
fn an_attached_volume_cannot_be_changed() {
    let (fs, _) = filesystem(1, 100);
    let volume = fs.create_volume("v", 4 * BLOCK, Placement::Local).expect("a new name");
    fs.attach_volume(&volume).expect("the volume is not attached");
    assert!(fs.volumes(|| true)[0].attached);
    assert_eq!(fs.attach_volume(&volume), Err(VolumeError::Attached));
    assert_eq!(fs.resize_volume(&volume, BLOCK, true), Err(VolumeError::Attached));
    assert_eq!(fs.remove_volume(&volume), Err(VolumeError::Attached));
    let caller = Caller::on_node(&fs, 0);
    assert_eq!(fs.write_volume(&caller.asking(), &volume, 4 * BLOCK - 1, b"x"), Ok(1));
    fs.detach_volume(&volume);
    fs.resize_volume(&volume, 8 * BLOCK, false).expect("it grows");
    fs.attach_volume(&volume).expect("again");
    fs.detach_volume(&volume);
    fs.remove_volume(&volume).expect("the volume is detached");
    assert_eq!(fs.attach_volume(&volume), Err(VolumeError::Unknown));
    assert_empty(&fs);
}

#[test]
fn a_volume_of_the_largest_size_works_at_its_end() {
    let (fs, _) = filesystem(1, 100);
    let volume = fs
        .create_volume("v", VOLUME_BYTES_MAX, Placement::Local)
        .expect("the name is new");
    let caller = Caller::on_node(&fs, 0);
    let asking = &caller.asking();
    let last = VOLUME_BYTES_MAX - BLOCK;
    assert_eq!(fs.write_volume(asking, &volume, last, &[7; BLOCK as usize]), Ok(4096));
    let mut back = [0; BLOCK as usize];
    assert_eq!(fs.read_volume(asking, &volume, last, &mut back), Ok(()));
    assert_eq!(back, [7; BLOCK as usize]);
    for offset in [last + 1, VOLUME_BYTES_MAX, u64::MAX] {
        let refused = |result: Result<(), VolumeError>| matches!(result, Err(VolumeError::OutOfRange { .. }));
        assert!(refused(fs.read_volume(asking, &volume, offset, &mut back)));
        assert!(refused(fs.write_volume(asking, &volume, offset, &back).map(drop)));
        assert!(refused(fs.discard_volume(asking, &volume, offset, BLOCK)));
        assert!(refused(fs.zero_volume(asking, &volume, offset, BLOCK)));
    }
    fs.zero_volume(asking, &volume, 0, VOLUME_BYTES_MAX).expect("all of it");
    assert_eq!(fs.volumes(|| true)[0].used_bytes, BLOCK, "the last block was freed");
    fs.read_volume(asking, &volume, last, &mut back).expect("within");
    assert_eq!(back, [0; BLOCK as usize]);
    fs.discard_volume(asking, &volume, 0, VOLUME_BYTES_MAX)
        .expect("the range is the whole volume");
    assert_eq!(fs.volumes(|| true)[0].used_bytes, 0);
    fs.remove_volume(&volume).expect("the volume exists");
    assert_empty(&fs);
}

#[test]
fn volume_blocks_follow_the_policy() {
    let (fs, _) = filesystem(2, 4 * 512);
    let run = vec![1; 512 * BLOCK as usize];
    let caller = Caller::on_node(&fs, 0);
    let asking = &caller.asking();
    let place = |placement| {
        let volume = fs
            .create_volume("v", 2 * 512 * BLOCK, placement)
            .expect("the name is free");
        for at in [0, 512 * BLOCK] {
            assert_eq!(fs.write_volume(asking, &volume, at, &run), Ok(run.len()));
        }
        let status = fs.volume_status(&volume, || true);
        assert_eq!(status.placement, placement);
        fs.remove_volume(&volume).expect("the volume exists");
        status.map
    };
    let bytes = 512 * BLOCK;
    assert_eq!(place(Placement::Local), [(NodeId(0), 2 * bytes)]);
    assert_eq!(place(Placement::Node(NodeId(1))), [(NodeId(1), 2 * bytes)]);
    assert_eq!(place(Placement::Interleave), [(NodeId(0), bytes), (NodeId(1), bytes)]);
    assert!(!fs.has_unlinked(), "a volume is no file that is about to go");
    assert_empty(&fs);
}
