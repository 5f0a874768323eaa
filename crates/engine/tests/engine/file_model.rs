//! Files and volumes against a slow, obvious model: random operations, then bytes, holes, names and the space they take must agree.

pub(crate) mod model;
mod operations;
mod volumes;

use crate::support::{
    BLOCK, Bytes, Caller, DISKS, TestFs, add_member, assert_empty, filesystem_on, new_file, pattern, remove_member,
    seeded, sized,
};
use homenode_engine::fs::{Error, Inode, Volume, Whence, XattrMode, fallocate_mode as mode};
use homenode_engine::pool::PoolError;
use homenode_engine::{MemberId, NodeId};
use model::{LARGEST, Model};
use operations::{Operation, Step, steps};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const CASES: u32 = 400;
/// With each number of frames.
const CACHED_CASES: u32 = 30;
const OPERATIONS: usize = 250;
const _: () = assert!(CASES as usize * OPERATIONS >= 100_000);

const NODES: u16 = 3;
const FILES: usize = 4;

/// Contents of a pool, and the operations on them.
struct Setup {
    /// Not a multiple of 2 MiB; and so few that the pool is often full.
    member_blocks: u64,
    volumes: usize,
    files: usize,
    steps: fn() -> BoxedStrategy<Vec<Step>>,
    /// Rare outcomes that must all happen for the property to mean anything.
    outcomes: &'static [&'static str],
    seen: Mutex<BTreeMap<&'static str, u64>>,
}

static OF_FILES: Setup = Setup {
    member_blocks: 1300,
    volumes: 0,
    files: FILES,
    steps,
    outcomes: &[
        "short write",
        "write without space",
        "fallocate without space",
        "collapse",
        "insert",
        "short copy",
        "move",
        "move without space",
        "drain",
        "drain without space",
    ],
    seen: Mutex::new(BTreeMap::new()),
};

#[test]
fn files_agree_with_the_model() {
    OF_FILES.agree(Bytes::Memory, CASES);
}

#[test]
fn files_below_a_cache_agree_with_the_model() {
    for bytes in [Bytes::Disks { frames: 6 }, DISKS, Bytes::Disks { frames: 700 }] {
        OF_FILES.agree(bytes, CACHED_CASES);
    }
}

impl Setup {
    fn agree(&'static self, bytes: Bytes, cases: u32) {
        seeded::check(cases, (self.steps)(), |steps| {
            let mut run = Run::new(self, bytes);
            for step in &steps {
                run.step(step);
            }
            run.finish();
            Ok(())
        });
        if bytes != Bytes::Memory {
            return;
        }
        for outcome in self.outcomes {
            let times = self.seen.lock().get(outcome).copied().unwrap_or(0);
            assert!(
                times >= 10,
                "{outcome}: {times} times only: the operations do not cover it"
            );
        }
    }

    fn seen(&self, outcome: &'static str) {
        *self.seen.lock().entry(outcome).or_default() += 1;
    }

    fn blocks(&self) -> u64 {
        u64::from(NODES) * self.member_blocks
    }
}

/// The filesystem and the model, side by side.
struct Run {
    setup: &'static Setup,
    fs: TestFs,
    callers: Vec<Caller>,
    volumes: Vec<Arc<Volume>>,
    files: Vec<Arc<Inode>>,
    /// Volumes, then files.
    model: Model,
    names: u64,
}

impl Run {
    fn new(setup: &'static Setup, bytes: Bytes) -> Self {
        let (fs, _) = filesystem_on(bytes, NODES, setup.member_blocks);
        let callers = (0..u32::from(NODES) * 2).map(|cpu| Caller::on_cpu(&fs, cpu)).collect();
        let files = (0..setup.files).map(|file| new_file(&fs, &format!("{file}"))).collect();
        let mut model = Model::new(setup.volumes + setup.files, setup.blocks());
        let volumes = volumes::create(&fs, &mut model.files[..setup.volumes]);
        Self {
            setup,
            fs,
            callers,
            volumes,
            files,
            model,
            names: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        match step.operation {
            Operation::Drain { member } => self.drain(member),
            Operation::Compare => self.compare(),
            _ if step.what < self.volumes.len() => self.on_volume(step.what, step.cpu, &step.operation),
            _ => self.on_file(step.what, step.cpu, &step.operation),
        }
        self.compare_space();
    }

    fn on_file(&mut self, number: usize, cpu: u32, operation: &Operation) {
        let (setup, fs, model, first) = (self.setup, &self.fs, &mut self.model, self.volumes.len());
        let inode = &*self.files[number - first];
        let asking = &self.callers[cpu as usize].asking();
        match *operation {
            Operation::Write { offset, bytes, seed } => {
                let data = pattern::bytes(seed, bytes as usize);
                let wanted = model.write(number, offset, &data);
                match wanted {
                    Ok(written) if written < data.len() && offset < LARGEST - bytes => setup.seen("short write"),
                    Err(Error::NoSpace) => setup.seen("write without space"),
                    _ => {}
                }
                assert_eq!(fs.write(asking, inode, offset, &data, false), wanted);
            }
            Operation::Append { bytes, seed } => {
                let data = pattern::bytes(seed, bytes as usize);
                let offset = model.files[number].size;
                let wanted = model.write(number, offset, &data).map(|written| (offset, written));
                assert_eq!(fs.append(asking, inode, &data, false), wanted);
            }
            Operation::Read { offset, bytes } => {
                let mut data = vec![0xaa; bytes as usize];
                let read = fs.read(asking, inode, offset, &mut data).expect("the inode is a file");
                assert!(
                    data[..read] == model.files[number].read(offset, bytes),
                    "read of other bytes"
                );
                assert!(
                    data[read..].iter().all(|byte| *byte == 0xaa),
                    "bytes behind the end were touched"
                );
            }
            // Of a volume's operations, what makes a file shorter.
            Operation::Truncate { size } | Operation::Discard { offset: size, .. } | Operation::Resize { size, .. } => {
                let size = size.min(LARGEST);
                model.files[number].truncate(size);
                let attr = fs.set_attr(inode, &sized(size)).expect("within the largest size");
                assert_eq!(attr.size, size);
            }
            Operation::Fallocate { mode, offset, bytes } => {
                let wanted = model.fallocate(number, mode, offset, bytes);
                match wanted {
                    Ok(()) if mode == mode::COLLAPSE_RANGE => setup.seen("collapse"),
                    Ok(()) if mode == mode::INSERT_RANGE => setup.seen("insert"),
                    Err(Error::NoSpace) => setup.seen("fallocate without space"),
                    _ => {}
                }
                assert_eq!(fs.fallocate(asking, inode, mode, offset, bytes), wanted);
            }
            Operation::Seek { offset, whence } => {
                let wanted = model.files[number].seek(offset, whence);
                assert_eq!(fs.seek(asking, inode, offset, whence), wanted);
            }
            Operation::CopyRange {
                to,
                from,
                offset,
                bytes,
            } => {
                let wanted = model.copy_range((number, from), (to, offset), bytes);
                let copied = fs.copy_range(asking, inode, from, &self.files[to - first], offset, bytes);
                assert_eq!(copied, wanted);
                if copied.is_ok_and(|copied| 0 < copied && copied < bytes) {
                    setup.seen("short copy");
                }
            }
            Operation::MoveTo { node } => self.move_to(number, NodeId(node)),
            Operation::Policy { value } => {
                let name = homenode_engine::fs::POLICY_XATTR;
                fs.set_xattr(inode, name, value.as_bytes(), XattrMode::Either, false)
                    .expect("every node has a member");
            }
            Operation::Replace => self.replace(number),
            Operation::Zero { .. } | Operation::ReplaceVolume { .. } => {}
            Operation::Drain { .. } | Operation::Compare => unreachable!("not on a file"),
        }
    }

    /// Contents stay; and when the move succeeds everything is there.
    fn move_to(&self, number: usize, node: NodeId) {
        let placed = self.model.files[number].placed.len() as u64;
        let inode = &self.files[number - self.volumes.len()];
        match self.fs.move_to(inode, node, &mut |done, all| assert!(done <= all)) {
            Ok(_) if placed == 0 => assert_eq!(self.fs.map(inode), []),
            Ok(_) => {
                self.setup.seen("move");
                assert_eq!(self.fs.map(inode), [(node, placed * BLOCK)]);
            }
            Err(error) => {
                self.setup.seen("move without space");
                assert_eq!(error, Error::NoSpace);
            }
        }
    }

    fn replace(&mut self, number: usize) {
        let file = number - self.volumes.len();
        let old = Arc::clone(&self.files[file]);
        self.names += 1;
        let new = new_file(&self.fs, &format!("new {}", self.names));
        let root = self.fs.root();
        let names = names_of(&self.fs, &old);
        assert_eq!(names.len(), 1);
        self.fs.unlink(&root, &names[0]).expect("the name exists");
        // Unlinked, and open still.
        self.compare();
        self.files[file] = new;
        self.fs.unpin(&old, 1);
        self.model.files[number] = model::File::default();
    }

    /// Succeeds exactly when what the others have free is enough; the member is replaced by a new one then.
    fn drain(&mut self, nth: usize) {
        let status = self.fs.pool().status();
        let (id, home) = (status.members[nth].id, status.members[nth].home);
        let fits = self.model.free() >= self.setup.member_blocks;
        match self.fs.drain(id, &mut |done, all| assert!(done <= all)) {
            Ok(bytes) => {
                self.setup.seen("drain");
                assert!(fits, "more was drained than there is room for");
                assert_eq!(bytes, status.members[nth].used * BLOCK);
                remove_member(&self.fs, id);
                add_member(&self.fs, home, self.setup.member_blocks);
            }
            Err(error) => {
                self.setup.seen("drain without space");
                assert_eq!(error, PoolError::NoSpace(id));
                assert!(!fits, "a drain of {id} failed with room: {status:?}");
                assert!(!self.fs.pool().status().members[nth].draining, "back in service");
            }
        }
    }

    /// Space of each volume, st_blocks of each file, and statfs.
    fn compare_space(&self) {
        self.compare_space_of_volumes();
        for (inode, file) in self.modelled_files() {
            let attr = self.fs.attr(inode);
            assert_eq!(attr.size, file.size);
            assert_eq!(attr.blocks, file.blocks() * (BLOCK / 512), "st_blocks");
        }
        let statfs = self.fs.statfs();
        assert_eq!(statfs.blocks, self.setup.blocks());
        assert_eq!(statfs.free, self.model.free(), "free blocks");
    }

    fn modelled_files(&self) -> impl Iterator<Item = (&Arc<Inode>, &model::File)> {
        self.files.iter().zip(&self.model.files[self.volumes.len()..])
    }

    /// All bytes, holes, names and books.
    fn compare(&self) {
        self.fs.check_invariants();
        self.compare_volumes();
        let asking = &self.callers[0].asking();
        for (inode, file) in self.modelled_files() {
            let mut page = [0; BLOCK as usize];
            for (at, bytes) in &file.placed {
                let read = self.fs.read(asking, inode, at * BLOCK, &mut page).expect("a file");
                assert_eq!(read as u64, BLOCK.min(file.size - at * BLOCK));
                assert!(page[..read] == bytes[..read], "block {at} has other bytes");
            }
            self.compare_holes(inode, file);
            let bytes: u64 = self.fs.map(inode).iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(bytes, file.placed.len() as u64 * BLOCK, "the map's bytes");
        }
        let mut entries = 0;
        let listed = self.fs.readdir(&self.fs.root(), 2, &mut |entry| {
            assert!(entry.inode.is_file());
            entries += 1;
            true
        });
        listed.expect("the inode is a directory");
        assert_eq!(entries, self.files.len(), "the tree has files only");
    }

    /// Walks through the file from hole to data to hole.
    fn compare_holes(&self, inode: &Inode, file: &model::File) {
        let asking = &self.callers[0].asking();
        let mut at = 0;
        let mut whence = Whence::Data;
        loop {
            let found = self.fs.seek(asking, inode, at, whence);
            assert_eq!(found, file.seek(at, whence), "{whence:?} from {at}");
            let Ok(next) = found else { break };
            at = next;
            whence = if whence == Whence::Data {
                Whence::Hole
            } else {
                Whence::Data
            };
        }
    }

    /// Everything is freed with the last of them.
    fn finish(mut self) {
        self.compare();
        self.remove_volumes();
        for inode in std::mem::take(&mut self.files) {
            for name in names_of(&self.fs, &inode) {
                self.fs.unlink(&self.fs.root(), &name).expect("the name exists");
            }
            self.fs.unpin(&inode, 1);
        }
        assert_empty(&self.fs);
        let used: Vec<MemberId> = self.fs.pool().status().members.iter().map(|member| member.id).collect();
        assert_eq!(used.len(), usize::from(NODES));
    }
}

fn names_of(fs: &TestFs, inode: &Arc<Inode>) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    fs.readdir(&fs.root(), 2, &mut |entry| {
        if entry.inode.ino() == inode.ino() {
            names.push(entry.name.to_vec());
        }
        true
    })
    .expect("the inode is a directory");
    names
}
