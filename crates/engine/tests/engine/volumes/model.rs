//! Random operations on volumes and files of one pool; then bytes, names and the space they take must agree with the model.

use crate::file_model::model::Model;
use crate::support::{
    BLOCK, Bytes, Caller, DISKS, RUN, TestFs, add_member, assert_empty, filesystem_on, new_file, pattern,
    remove_member, seeded,
};
use homenode_engine::NodeId;
use homenode_engine::fs::{Error, Inode, Placement, SetAttr, Volume, VolumeError};
use homenode_engine::pool::PoolError;
use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeMap;
use std::sync::Arc;

const CASES: u32 = 120;
const OPERATIONS: usize = 250;

const NODES: u16 = 3;
/// Not a multiple of 2 MiB; and so few that the pool is often full.
const MEMBER_BLOCKS: u64 = 700;
const FILES: usize = 2;
const VOLUMES: usize = 3;
const SIZE_MAX: u64 = 5 * RUN * BLOCK;

#[derive(Clone, Debug)]
struct Step {
    /// A volume, or behind them a file.
    what: usize,
    cpu: u32,
    operation: Operation,
}

#[derive(Clone, Debug)]
enum Operation {
    Write { offset: u64, bytes: u64, seed: u64 },
    Read { offset: u64, bytes: u64 },
    Discard { offset: u64, bytes: u64 },
    Zero { offset: u64, bytes: u64 },
    Resize { size: u64, may_discard: bool },
    Replace { size: u64, placement: Placement },
    Drain { member: usize },
    Compare,
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

fn step() -> impl Strategy<Value = Step> {
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
        2 => (size(), placement).prop_map(|(size, placement)| Operation::Replace { size, placement }),
        1 => (0..usize::from(NODES)).prop_map(|member| Operation::Drain { member }),
        1 => Just(Operation::Compare),
    ];
    let cpu = 0..u32::from(NODES) * 2;
    (0..VOLUMES + FILES, cpu, operation).prop_map(|(what, cpu, operation)| Step { what, cpu, operation })
}

#[test]
fn volumes_agree_with_the_model() {
    agree(Bytes::Memory, CASES);
}

#[test]
fn volumes_below_a_cache_agree_with_the_model() {
    agree(DISKS, CASES / 3);
}

fn agree(bytes: Bytes, cases: u32) {
    seeded::check(cases, prop::collection::vec(step(), OPERATIONS), |steps| {
        let mut run = Run::new(bytes);
        for step in &steps {
            run.step(step);
        }
        run.finish();
        Ok(())
    });
    if bytes != Bytes::Memory {
        return;
    }
    for outcome in [
        "short write",
        "write without space",
        "out of range",
        "shrinks over data",
        "refuses to",
        "drain",
    ] {
        let times = SEEN.lock().get(outcome).copied().unwrap_or(0);
        assert!(
            times >= 10,
            "{outcome}: {times} times only: the operations do not cover it"
        );
    }
}

static SEEN: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

fn seen(outcome: &'static str) {
    *SEEN.lock().entry(outcome).or_default() += 1;
}

struct Run {
    fs: TestFs,
    callers: Vec<Caller>,
    volumes: Vec<Arc<Volume>>,
    files: Vec<Arc<Inode>>,
    /// Volumes, then files.
    model: Model,
}

impl Run {
    fn new(bytes: Bytes) -> Self {
        let (fs, _) = filesystem_on(bytes, NODES, MEMBER_BLOCKS);
        let callers = (0..u32::from(NODES) * 2).map(|cpu| Caller::on_cpu(&fs, cpu)).collect();
        let files = (0..FILES).map(|file| new_file(&fs, &format!("{file}"))).collect();
        let mut model = Model::new(VOLUMES + FILES, u64::from(NODES) * MEMBER_BLOCKS);
        let make = |number: usize| {
            model.files[number].size = SIZE_MAX;
            fs.create_volume(&name(number), SIZE_MAX, Placement::Local)
                .expect("the name is new")
        };
        let volumes = (0..VOLUMES).map(make).collect();
        Self {
            fs,
            callers,
            volumes,
            files,
            model,
        }
    }

    fn step(&mut self, step: &Step) {
        match step.operation {
            Operation::Drain { member } => self.drain(member),
            Operation::Compare => self.compare(),
            _ if step.what < VOLUMES => self.on_volume(step.what, step.cpu, &step.operation),
            _ => self.on_file(step.what, step.cpu, &step.operation),
        }
        self.compare_space();
    }

    fn on_volume(&mut self, number: usize, cpu: u32, operation: &Operation) {
        let (fs, volume, model) = (&self.fs, &*self.volumes[number], &mut self.model);
        let asking = &self.callers[cpu as usize].asking();
        let size_bytes = model.files[number].size;
        let in_range = |offset: u64, bytes: u64| {
            if offset + bytes <= size_bytes {
                return Ok(());
            }
            seen("out of range");
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
                    Ok(written) if written < data.len() => seen("short write"),
                    Err(VolumeError::Filesystem(Error::NoSpace)) => seen("write without space"),
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
                    seen("refuses to");
                    Err(VolumeError::HoldsData { bytes })
                } else {
                    if bytes > 0 {
                        seen("shrinks over data");
                    }
                    file.truncate(size);
                    Ok(())
                };
                assert_eq!(fs.resize_volume(volume, size, may_discard), wanted);
            }
            Operation::Replace { size, placement } => self.replace(number, size, placement),
            Operation::Drain { .. } | Operation::Compare => unreachable!("not on a volume"),
        }
    }

    /// Replaces a volume by a new one of the same name; the old volume has nothing any more.
    fn replace(&mut self, number: usize, size: u64, placement: Placement) {
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

    /// A few things with files: their blocks become volumes' and the other way round.
    fn on_file(&mut self, number: usize, cpu: u32, operation: &Operation) {
        let (fs, inode, model) = (&self.fs, &*self.files[number - VOLUMES], &mut self.model);
        let asking = &self.callers[cpu as usize].asking();
        match *operation {
            Operation::Write { offset, bytes, seed } => {
                let data = pattern::bytes(seed, bytes as usize);
                let wanted = model.write(number, offset, &data);
                assert_eq!(fs.write(asking, inode, offset, &data, false), wanted);
            }
            Operation::Read { offset, bytes } => {
                let mut data = vec![0xaa; bytes as usize];
                let read = fs.read(asking, inode, offset, &mut data).expect("the inode is a file");
                assert!(
                    data[..read] == model.files[number].read(offset, bytes),
                    "read of other bytes"
                );
            }
            Operation::Discard { offset: size, .. } | Operation::Resize { size, .. } => {
                model.files[number].truncate(size);
                let set = SetAttr {
                    size: Some(size),
                    ..SetAttr::default()
                };
                fs.set_attr(inode, &set).expect("within the largest size");
            }
            _ => {}
        }
    }

    /// Succeeds exactly when what the others have free is enough.
    fn drain(&self, nth: usize) {
        let status = self.fs.pool().status();
        let (id, home) = (status.members[nth].id, status.members[nth].home);
        match self.fs.drain(id, &mut |_, _| {}) {
            Ok(_) => {
                seen("drain");
                remove_member(&self.fs, id);
                add_member(&self.fs, home, MEMBER_BLOCKS);
            }
            Err(error) => {
                assert_eq!(error, PoolError::NoSpace(id));
                assert!(
                    self.model.free() < MEMBER_BLOCKS,
                    "a drain of {id} failed with room: {status:?}"
                );
            }
        }
    }

    fn compare_space(&self) {
        for (volume, model) in self.volumes.iter().zip(&self.model.files) {
            let status = self.fs.volume_status(volume, || true);
            assert_eq!(
                (status.size_bytes, status.used_bytes),
                (model.size, model.blocks() * BLOCK)
            );
        }
        let statfs = self.fs.statfs();
        assert_eq!(statfs.blocks, u64::from(NODES) * MEMBER_BLOCKS);
        assert_eq!(statfs.free, self.model.free(), "free blocks");
    }

    /// All bytes, names and books.
    fn compare(&self) {
        self.fs.check_invariants();
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
        let names: Vec<&str> = listed.iter().map(|status| &*status.name).collect();
        assert_eq!(names, ["volume 0", "volume 1", "volume 2"]);
        let mut entries = 0;
        self.fs
            .readdir(&self.fs.root(), 2, &mut |entry| {
                assert!(entry.inode.is_file());
                entries += 1;
                true
            })
            .expect("the inode is a directory");
        assert_eq!(entries, FILES, "the tree has files only");
    }

    /// Everything is freed with the last of them.
    fn finish(self) {
        self.compare();
        for volume in &self.volumes {
            let ino = volume.inode().ino();
            assert!(self.fs.inode(ino).is_none(), "no number leads to a volume");
            self.fs.remove_volume(volume).expect("the volume exists");
        }
        for (file, inode) in self.files.iter().enumerate() {
            self.fs
                .unlink(&self.fs.root(), file.to_string().as_bytes())
                .expect("the name exists");
            self.fs.unpin(inode, 1);
        }
        assert_empty(&self.fs);
    }
}

fn name(number: usize) -> String {
    format!("volume {number}")
}
