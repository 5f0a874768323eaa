//! Volumes beside files, in a pool that is often full: their own operations and checks.

use super::model::File;
use super::operations::{Operation, Step};
use super::{NODES, OPERATIONS, Run, Setup};
use crate::support::{BLOCK, Bytes, DISKS, RUN, TestFs, pattern};
use homenode_engine::NodeId;
use homenode_engine::fs::{Error, Placement, Volume, VolumeError};
use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeMap;
use std::sync::Arc;

const CASES: u32 = 120;
const FILES: usize = 2;
const VOLUMES: usize = 3;
const SIZE_MAX: u64 = 5 * RUN * BLOCK;

static OF_VOLUMES: Setup = Setup {
    member_blocks: 700,
    volumes: VOLUMES,
    files: FILES,
    steps,
    outcomes: &[
        "short write to a volume",
        "write to a volume without space",
        "out of range",
        "shrinks over data",
        "refuses to",
        "drain",
    ],
    seen: Mutex::new(BTreeMap::new()),
};

#[test]
fn volumes_agree_with_the_model() {
    OF_VOLUMES.agree(Bytes::Memory, CASES);
}

#[test]
fn volumes_below_a_cache_agree_with_the_model() {
    OF_VOLUMES.agree(DISKS, CASES / 3);
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..20_000_u64,
        4 => (0..64_u64).prop_map(|block| block * BLOCK),
        4 => 0..SIZE_MAX,
        3 => (0..5_u64).prop_map(|run| run * RUN * BLOCK),
    ]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0..200_u64,
        6 => 1..20_000_u64,
        6 => (1..20_u64).prop_map(|blocks| blocks * BLOCK),
        2 => Just(RUN * BLOCK),
        3 => 1..5 * RUN / 2 * BLOCK,
    ]
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (1..SIZE_MAX / BLOCK).prop_map(|blocks| blocks * BLOCK),
        1 => Just(1 << 60),
    ]
}

fn steps() -> BoxedStrategy<Vec<Step>> {
    let placement = select(vec![
        Placement::Local,
        Placement::Interleave,
        Placement::Node(NodeId(0)),
        Placement::Node(NodeId(2)),
    ]);
    let operation = prop_oneof![
        20 => (offset(), length(), any::<u64>()).prop_map(|(offset, bytes, seed)| Operation::Write { offset, bytes, seed }),
        8 => (offset(), length()).prop_map(|(offset, bytes)| Operation::Read { offset, bytes }),
        6 => (offset(), length()).prop_map(|(offset, bytes)| Operation::Discard { offset, bytes }),
        4 => (offset(), length()).prop_map(|(offset, bytes)| Operation::Zero { offset, bytes }),
        6 => (size(), any::<bool>()).prop_map(|(size, may_discard)| Operation::Resize { size, may_discard }),
        2 => (size(), placement).prop_map(|(size, placement)| Operation::ReplaceVolume { size, placement }),
        1 => (0..usize::from(NODES)).prop_map(|member| Operation::Drain { member }),
        1 => Just(Operation::Compare),
    ];
    let cpu = 0..u32::from(NODES) * 2;
    let step = (0..VOLUMES + FILES, cpu, operation).prop_map(|(what, cpu, operation)| Step { what, cpu, operation });
    prop::collection::vec(step, OPERATIONS).boxed()
}

fn name(number: usize) -> String {
    format!("volume {number}")
}

/// Makes volumes, and tells their models.
pub(super) fn create(fs: &TestFs, models: &mut [File]) -> Vec<Arc<Volume>> {
    let make = |(number, model): (usize, &mut File)| {
        model.size = SIZE_MAX;
        fs.create_volume(&name(number), SIZE_MAX, Placement::Local)
            .expect("the name is new")
    };
    models.iter_mut().enumerate().map(make).collect()
}

impl Run {
    pub(super) fn on_volume(&mut self, number: usize, cpu: u32, operation: &Operation) {
        let (setup, fs, model) = (self.setup, &self.fs, &mut self.model);
        let volume = &*self.volumes[number];
        let asking = &self.callers[cpu as usize].asking();
        let size_bytes = model.files[number].size;
        let in_range = |offset: u64, bytes: u64| {
            if offset + bytes <= size_bytes {
                return Ok(());
            }
            setup.seen("out of range");
            Err(VolumeError::OutOfRange {
                offset,
                bytes,
                size_bytes,
            })
        };
        match *operation {
            Operation::Write { offset, bytes, seed } => {
                let data = pattern::bytes(seed, bytes as usize);
                let wanted = in_range(offset, bytes).and_then(|()| Ok(model.write(number, offset, &data)?));
                match wanted {
                    Ok(written) if written < data.len() => setup.seen("short write to a volume"),
                    Err(VolumeError::Filesystem(Error::NoSpace)) => setup.seen("write to a volume without space"),
                    _ => {}
                }
                assert_eq!(fs.write_volume(asking, volume, offset, &data), wanted);
            }
            Operation::Read { offset, bytes } => {
                let mut data = vec![0xaa; bytes as usize];
                let wanted = in_range(offset, bytes);
                assert_eq!(fs.read_volume(asking, volume, offset, &mut data), wanted);
                if wanted.is_ok() {
                    assert!(data == model.files[number].read(offset, bytes), "read of other bytes");
                }
            }
            Operation::Discard { offset, bytes } => {
                let wanted = in_range(offset, bytes);
                assert_eq!(fs.discard_volume(asking, volume, offset, bytes), wanted);
                if wanted.is_ok() {
                    model.files[number].punch(offset, offset + bytes);
                }
            }
            Operation::Zero { offset, bytes } => {
                let wanted = in_range(offset, bytes);
                assert_eq!(fs.zero_volume(asking, volume, offset, bytes), wanted);
                if wanted.is_ok() {
                    let file = &mut model.files[number];
                    for block in offset / BLOCK..(offset + bytes).div_ceil(BLOCK) {
                        file.zero(offset.max(block * BLOCK), (offset + bytes).min((block + 1) * BLOCK));
                    }
                }
            }
            Operation::Resize { size, may_discard } => {
                let file = &mut model.files[number];
                let bytes = file.placed.range(size / BLOCK..).count() as u64 * BLOCK;
                let wanted = if bytes > 0 && !may_discard {
                    setup.seen("refuses to");
                    Err(VolumeError::HoldsData { bytes })
                } else {
                    if bytes > 0 {
                        setup.seen("shrinks over data");
                    }
                    file.truncate(size);
                    Ok(())
                };
                assert_eq!(fs.resize_volume(volume, size, may_discard), wanted);
            }
            Operation::ReplaceVolume { size, placement } => self.replace_volume(number, size, placement),
            _ => unreachable!("not on a volume"),
        }
    }

    /// Replaces a volume by a new one of the same name; the old volume has nothing any more.
    fn replace_volume(&mut self, number: usize, size: u64, placement: Placement) {
        let (fs, name) = (&self.fs, name(number));
        fs.remove_volume(&self.volumes[number]).expect("the volume exists");
        assert_eq!(fs.volume(&name).err(), Some(VolumeError::Unknown));
        let old = Arc::clone(&self.volumes[number]);
        self.volumes[number] = fs.create_volume(&name, size, placement).expect("the name is free");
        let asking = &self.callers[0].asking();
        assert_eq!(old.size_bytes(), 0);
        assert!(fs.read_volume(asking, &old, 0, &mut [0]).is_err());
        assert!(fs.write_volume(asking, &old, 0, &[1]).is_err());
        assert_eq!(fs.resize_volume(&old, BLOCK, true), Err(VolumeError::Unknown));
        assert_eq!(fs.remove_volume(&old), Err(VolumeError::Unknown));
        self.model.files[number].truncate(0);
        self.model.files[number].size = size;
    }

    pub(super) fn compare_space_of_volumes(&self) {
        for (volume, model) in self.volumes.iter().zip(&self.model.files) {
            let status = self.fs.volume_status(volume, || true);
            assert_eq!(
                (status.size_bytes, status.used_bytes),
                (model.size, model.blocks() * BLOCK)
            );
        }
    }

    /// All bytes and names.
    pub(super) fn compare_volumes(&self) {
        let asking = &self.callers[0].asking();
        for (volume, model) in self.volumes.iter().zip(&self.model.files) {
            let mut page = [0; BLOCK as usize];
            for (at, bytes) in &model.placed {
                self.fs
                    .read_volume(asking, volume, at * BLOCK, &mut page)
                    .expect("the range is within the volume");
                assert!(page == bytes[..], "block {at} of {} has other bytes", volume.name());
            }
            let status = self.fs.volume_status(volume, || true);
            let mapped: u64 = status.map.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(mapped, status.used_bytes, "the map's bytes");
        }
        let listed = self.fs.volumes(|| true);
        let names = (0..self.volumes.len()).map(name);
        assert!(names.eq(listed.iter().map(|status| &*status.name)), "{listed:?}");
    }

    pub(super) fn remove_volumes(&self) {
        for volume in &self.volumes {
            let ino = volume.inode().ino();
            assert!(self.fs.inode(ino).is_none(), "no number leads to a volume");
            self.fs.remove_volume(volume).expect("the volume exists");
        }
    }
}
