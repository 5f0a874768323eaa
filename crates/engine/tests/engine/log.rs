//! The log hears every change: what is played from it is the filesystem's tree.

use crate::support::pattern::Random;
use crate::support::{ManualClock, RUN, TestMemory, directory, machine, of_mode, regular, seeded};
use homenode_engine::fs::fallocate_mode::{COLLAPSE_RANGE, INSERT_RANGE, KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE};
use homenode_engine::fs::{Asking, Fs, Ino, Inode, NewInode, Placement, RenameMode, SetAttr, SetTime, XattrMode};
use homenode_engine::log::{Attributes, Change, Log};
use homenode_engine::pool::MemberKind;
use homenode_engine::{Block, CpuId, Memory, NodeId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Blocks of the pool: fewer than the operations ask for, so some find it full.
const BLOCKS: u64 = 16 * RUN;
const RUNS: u64 = 40;
const OPERATIONS: u64 = 400;

/// Values by what they belong to, as a reader of the log keeps them.
#[derive(Clone, Debug, Default)]
struct Played {
    attributes: HashMap<u64, Attributes>,
    /// Access, modification, change; those that somebody set.
    times: HashMap<u64, [Option<i64>; 3]>,
    targets: HashMap<u64, Vec<u8>>,
    names: BTreeMap<(u64, Vec<u8>), u64>,
    xattrs: BTreeMap<(u64, Vec<u8>), Vec<u8>>,
    /// Blocks of the pool by the file's own; `None`: promised only.
    extents: HashMap<u64, BTreeMap<u64, Option<Block>>>,
    sizes: HashMap<u64, u64>,
    volumes: BTreeMap<String, u64>,
}

impl Played {
    fn play(&mut self, change: &Change<'_>) {
        match *change {
            Change::Inode { ino, attributes } => drop(self.attributes.insert(ino.0, attributes)),
            Change::Times {
                ino,
                atime_ns,
                mtime_ns,
                ctime_ns,
            } => {
                let times = self.times.entry(ino.0).or_default();
                for (time, new) in times.iter_mut().zip([atime_ns, mtime_ns, ctime_ns]) {
                    *time = new.or(*time);
                }
            }
            Change::Target { ino, target } => drop(self.targets.insert(ino.0, target.into())),
            Change::Name { dir, name, ino } => drop(self.names.insert((dir.0, name.into()), ino.0)),
            Change::NoName { dir, name } => {
                self.names
                    .remove(&(dir.0, name.into()))
                    .expect("a name that goes was there");
            }
            Change::Xattr { ino, name, value } => drop(self.xattrs.insert((ino.0, name.into()), value.into())),
            Change::NoXattr { ino, name } => drop(self.xattrs.remove(&(ino.0, name.into()))),
            Change::Extent { ino, at, blocks, first } => {
                let file = self.extents.entry(ino.0).or_default();
                file.extend((0..blocks).map(|i| (at + i, first.map(|first| first.plus(i)))));
            }
            Change::NoExtents { ino, at, blocks } => {
                let file = self.extents.entry(ino.0).or_default();
                file.retain(|block, _| !(at..at + blocks).contains(block));
            }
            Change::Size { ino, bytes } => drop(self.sizes.insert(ino.0, bytes)),
            Change::Grown { ino, bytes } => {
                let size = self.sizes.entry(ino.0).or_default();
                *size = bytes.max(*size);
            }
            Change::Volume { name, ino } => drop(self.volumes.insert(name.to_owned(), ino.0)),
            Change::NoVolume { name } => drop(self.volumes.remove(name).expect("a volume that goes was there")),
        }
    }

    fn links(&self, ino: u64) -> u32 {
        let names = self.names.values().filter(|named| **named == ino).count();
        let is_directory = |ino: &u64| self.attributes[ino].mode & 0o170_000 == 0o040_000;
        let below = self
            .names
            .iter()
            .filter(|((dir, _), named)| *dir == ino && is_directory(named));
        let own = if is_directory(&ino) { 2 } else { names };
        u32::try_from(own + below.count()).expect("few")
    }
}

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Played>>);

impl Log for Recorder {
    fn append(&self, changes: &[Change<'_>]) {
        let mut played = self.0.lock();
        changes.iter().for_each(|change| played.play(change));
    }
}

type LoggedFs = Fs<TestMemory, ManualClock, Recorder>;

#[test]
fn what_the_log_hears_is_the_tree() {
    let seed = seeded::seed();
    for run in 0..RUNS {
        let (log, clock) = (Recorder::default(), ManualClock::default());
        let fs: LoggedFs = Fs::with_log(
            &machine(1),
            TestMemory::default(),
            clock.clone(),
            log.clone(),
            directory(0o755),
        );
        fs.pool().memory().add(fs.pool().next_member(), BLOCKS);
        fs.pool()
            .add(MemberKind::Dram, NodeId(0), BLOCKS)
            .expect("a first member");
        let slot = fs.slots().claim().expect("a first slot");
        let asking = Asking {
            user: Some(0),
            slot: &slot,
            cpu: CpuId(0),
            node: &|| NodeId(0),
        };
        let mut random = Random::new(seed ^ run);
        let mut all = vec![fs.root()];
        for _ in 0..OPERATIONS {
            clock.advance_ns(1);
            if random.below(2) == 0 {
                step(&fs, &mut random, &mut all);
            } else {
                change_bytes(&fs, &asking, &mut random, &all);
            }
        }
        let played = log.0.lock().clone();
        compare(&fs, &played);
        compare_bytes(&fs, &asking, &played, &all);
        fs.check_invariants();
    }
}

fn name(random: &mut Random) -> [u8; 1] {
    [b'a' + random.below(5) as u8]
}

/// Tries a random operation; a refused operation changes nothing and must not be heard.
fn step(fs: &LoggedFs, random: &mut Random, all: &mut Vec<Arc<Inode>>) {
    let directories: Vec<_> = all.iter().filter(|inode| inode.is_directory()).cloned().collect();
    let (dir, inode) = (random.pick(&directories).clone(), random.pick(all).clone());
    let (name, other) = (name(random), name(random));
    let with_mask = |new: NewInode| NewInode {
        umask: 0o022,
        uid: 7,
        gid: 8,
        ..new
    };
    match random.below(16) {
        0..=2 => all.extend(fs.create(&dir, &name, with_mask(directory(0o2777)))),
        3..=4 => all.extend(fs.create(&dir, &name, with_mask(regular(0o6777)))),
        5 => all.extend(fs.create(&dir, &name, of_mode(0o020_644))),
        6 => all.extend(fs.symlink(&dir, &name, b"target", 1, 2)),
        7 => {
            let _ = fs.link(&inode, &dir, &name);
        }
        8 => {
            let _ = fs.unlink(&dir, &name);
        }
        9 => {
            let _ = fs.rmdir(&dir, &name);
        }
        10..=11 => {
            let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
            let to = random.pick(&directories).clone();
            let _ = fs.rename(&dir, &name, &to, &other, *random.pick(&modes));
        }
        12 => {
            let set = SetAttr {
                mode: Some(0o7777 & random.next() as u32),
                uid: Some(random.below(9) as u32),
                mtime: Some(SetTime::At(random.below(1000) as i64)),
                kill_priv: random.below(2) == 0,
                ..SetAttr::default()
            };
            fs.set_attr(&inode, &set).expect("without a size it cannot fail");
        }
        13 => {
            let values: [(&[u8], &[u8]); 5] = [
                (b"user.a", b"value"),
                (b"security.capability", b"all"),
                (b"user.homenode.policy", b"interleave"),
                (b"system.posix_acl_access", ACL),
                (b"system.posix_acl_default", ACL),
            ];
            let (name, value) = random.pick(&values);
            let _ = fs.set_xattr(&inode, name, value, XattrMode::Either, random.below(2) == 0);
        }
        14 => {
            let _ = fs.remove_xattr(&inode, b"user.a");
        }
        _ => {
            let _ = fs.remove_xattr(&inode, b"user.homenode.policy");
        }
    }
}

/// Changes a file's bytes by a random operation; files are a few runs long, so maps have levels.
fn change_bytes(fs: &LoggedFs, asking: &Asking<'_>, random: &mut Random, all: &[Arc<Inode>]) {
    let inode = random.pick(all);
    if fs.inode(inode.ino()).is_none() {
        // Nobody may write to what nothing keeps.
        return;
    }
    let offset = random.below(6 << 20) & if random.below(2) == 0 { !0xfff } else { !0 };
    let most = if random.below(4) == 0 { 3 << 20 } else { 40_000 };
    let bytes = random.below(most) + 1;
    match random.below(8) {
        0..=2 => drop(fs.write(asking, inode, offset, &vec![random.next() as u8; bytes as usize], false)),
        3 => drop(fs.append(asking, inode, &vec![random.next() as u8; bytes as usize], false)),
        4 => {
            let set = SetAttr {
                size: Some(offset),
                ..SetAttr::default()
            };
            let _ = fs.set_attr(inode, &set);
        }
        5 => {
            let volume = fs
                .volume("v")
                .or_else(|_| fs.create_volume("v", 1 << 20, Placement::Local));
            let volume = volume.expect("there is room for an inode");
            let _ = fs.write_volume(asking, &volume, offset % (1 << 20), &[9; 100]);
            let _ = fs.resize_volume(&volume, (1 + random.below(9)) << 18, true);
            if random.below(4) == 0 {
                fs.remove_volume(&volume).expect("it is idle");
            }
        }
        _ => {
            let modes = [
                0,
                KEEP_SIZE,
                PUNCH_HOLE | KEEP_SIZE,
                ZERO_RANGE,
                COLLAPSE_RANGE,
                INSERT_RANGE,
            ];
            let bytes = bytes.next_multiple_of(4096);
            let _ = fs.fallocate(asking, inode, *random.pick(&modes), offset & !0xfff, bytes);
        }
    }
}

/// Sizes and bytes that the filesystem shows, and those that the played extents lead to.
fn compare_bytes(fs: &LoggedFs, asking: &Asking<'_>, played: &Played, all: &[Arc<Inode>]) {
    let alive = all
        .iter()
        .filter(|inode| inode.is_file() && fs.inode(inode.ino()).is_some());
    for inode in alive {
        let attr = fs.attr(inode);
        let ino = inode.ino().0;
        assert_eq!(attr.size, played.sizes.get(&ino).copied().unwrap_or(0), "size of {ino}");
        let extents = played.extents.get(&ino).cloned().unwrap_or_default();
        assert_eq!(attr.blocks, extents.len() as u64 * 8, "blocks of {ino}");
        for (at, block) in extents.iter().filter(|(at, _)| **at * 4096 < attr.size) {
            let (mut shown, mut heard) = ([0; 4096], [0; 4096]);
            let count = fs.read(asking, inode, at * 4096, &mut shown).expect("it is a file");
            if let Some(block) = block {
                fs.pool()
                    .memory()
                    .load(*block, 0, &mut heard)
                    .expect("it does not fail");
            }
            assert_eq!(shown[..count], heard[..count], "block {at} of {ino}");
        }
    }
    let volumes: Vec<_> = fs
        .volumes()
        .into_iter()
        .map(|volume| volume.name.into_string())
        .collect();
    assert_eq!(volumes, played.volumes.keys().cloned().collect::<Vec<_>>());
    for volume in fs.volumes() {
        let ino = played.volumes[&*volume.name];
        assert_eq!(volume.size_bytes, played.sizes[&ino]);
        let placed = played.extents.get(&ino).map_or(0, BTreeMap::len);
        assert_eq!(volume.used_bytes, placed as u64 * 4096);
    }
}

/// An access list with a named user, in the kernel's form: owner, user 5, group, mask, others.
const ACL: &[u8] = &[
    2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 6, 0, 5, 0, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255, 16, 0, 6, 0,
    255, 255, 255, 255, 32, 0, 1, 0, 255, 255, 255, 255,
];

/// The tree that the filesystem shows, and the one that was heard.
fn compare(fs: &LoggedFs, played: &Played) {
    let mut names = BTreeMap::new();
    let mut to_visit = vec![fs.root()];
    while let Some(dir) = to_visit.pop() {
        fs.readdir(&dir, 2, &mut |entry| {
            names.insert((dir.ino().0, entry.name.to_vec()), entry.inode.ino().0);
            if entry.inode.is_directory() {
                to_visit.push(Arc::clone(entry.inode));
            }
            true
        })
        .expect("a directory");
    }
    assert_eq!(names, played.names);
    for ino in names.values().chain([&1]) {
        let inode = fs.inode(Ino(*ino)).expect("it has a name");
        let (attr, heard) = (fs.attr(&inode), &played.attributes[ino]);
        let owner = (attr.mode, attr.uid, attr.gid, attr.rdev);
        assert_eq!(owner, (heard.mode, heard.uid, heard.gid, heard.rdev));
        assert_eq!(attr.nlink, played.links(*ino), "links of {ino} follow from names");
        if let Some([_, Some(mtime_ns), _]) = played.times.get(ino)
            && !inode.is_directory()
        {
            // Or later: writes move it, and tell nobody.
            assert!(attr.mtime_ns >= *mtime_ns);
        }
        let target = fs.readlink(&inode).ok().map(Vec::from);
        assert_eq!(target.as_ref(), played.targets.get(ino));
        let policy = fs.xattr(&inode, b"user.homenode.policy").ok();
        assert_eq!(
            policy,
            heard.placement.map(|placement| placement.to_string().into_bytes())
        );
        let listed = fs.xattr_names(&inode);
        let listed = listed
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty() && !name.starts_with(b"user.homenode"));
        let stored: BTreeMap<_, _> = listed
            .map(|name| ((*ino, name.to_vec()), fs.xattr(&inode, name).expect("it is listed")))
            .collect();
        let of_ino = played.xattrs.range((*ino, vec![])..(*ino + 1, vec![]));
        assert_eq!(
            stored,
            of_ino.map(|(key, value)| (key.clone(), value.clone())).collect()
        );
    }
}
