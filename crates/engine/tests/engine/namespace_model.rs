//! Names against a slow, obvious model: random operations on a small tree, with the errors they must give.

mod model;

use crate::support::{TestFs, assert_empty, directory, empty_filesystem, regular, seeded};
use homenode_engine::fs::{Error, Inode, RenameMode, Result};
use model::{Id, Kind, Model};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const CASES: u32 = 400;
const OPERATIONS: usize = 250;
const _: () = assert!(CASES as usize * OPERATIONS >= 100_000);

/// Inode that an operation names, by its turn of creation; mostly a directory.
#[derive(Clone, Debug)]
struct Which {
    any: bool,
    index: Index,
}

#[derive(Clone, Debug)]
enum Operation {
    Create(Which, Name, Kind),
    Tmpfile(Which),
    Link(Which, Which, Name),
    Unlink(Which, Name),
    Rmdir(Which, Name),
    /// With a whiteout in place of the name or without.
    Rename(Which, Name, Which, Name, RenameMode, bool),
    Lookup(Which, Name),
    Pin(Which),
    Unpin(Which),
    Compare,
}

type Name = Vec<u8>;

fn name() -> impl Strategy<Value = Name> {
    let odd: Vec<Name> = vec![
        b"".to_vec(),
        b".".to_vec(),
        b"..".to_vec(),
        b"a/b".to_vec(),
        b"a\0".to_vec(),
        vec![b'x'; 255],
        vec![b'x'; 256],
        vec![0xff, 0xfe],
    ];
    prop_oneof![12 => (b'a'..b'f').prop_map(|letter| vec![letter]), 1 => select(odd)]
}

fn which() -> impl Strategy<Value = Which> {
    (0..12u8, any::<Index>()).prop_map(|(odd, index)| Which { any: odd == 0, index })
}

fn operation() -> impl Strategy<Value = Operation> {
    let kind = select(vec![
        Kind::Directory,
        Kind::Directory,
        Kind::File,
        Kind::Symlink,
        Kind::Fifo,
    ]);
    let mode = select(vec![
        RenameMode::Replace,
        RenameMode::Replace,
        RenameMode::Exchange,
        RenameMode::NoReplace,
    ]);
    prop_oneof![
        8 => (which(), name(), kind).prop_map(|(dir, name, kind)| Operation::Create(dir, name, kind)),
        1 => which().prop_map(Operation::Tmpfile),
        3 => (which(), which(), name()).prop_map(|(inode, dir, name)| Operation::Link(inode, dir, name)),
        3 => (which(), name()).prop_map(|(dir, name)| Operation::Unlink(dir, name)),
        3 => (which(), name()).prop_map(|(dir, name)| Operation::Rmdir(dir, name)),
        10 => (which(), name(), which(), name(), mode, prop::bool::weighted(0.2))
            .prop_map(|(from, name, to, new, mode, whiteout)| Operation::Rename(from, name, to, new, mode, whiteout)),
        3 => (which(), name()).prop_map(|(dir, name)| Operation::Lookup(dir, name)),
        1 => which().prop_map(Operation::Pin),
        1 => which().prop_map(Operation::Unpin),
        1 => Just(Operation::Compare),
    ]
}

#[test]
fn names_agree_with_the_model() {
    seeded::check(CASES, prop::collection::vec(operation(), OPERATIONS), |operations| {
        let mut run = Run::new();
        for operation in &operations {
            run.step(operation);
        }
        run.compare();
        run.finish();
        Ok(())
    });
}

/// The filesystem and the model, side by side; an inode has the same place in both lists.
struct Run {
    fs: TestFs,
    inodes: Vec<Arc<Inode>>,
    model: Model,
}

impl Run {
    fn new() -> Self {
        let (fs, _) = empty_filesystem(1);
        Self {
            inodes: vec![fs.root()],
            fs,
            model: Model::default(),
        }
    }

    fn id(&self, which: &Which) -> Id {
        if which.any {
            return which.index.index(self.inodes.len());
        }
        let directories = self.model.directories();
        directories[which.index.index(directories.len())]
    }

    /// The inode made, if one was.
    fn made(&mut self, made: Result<Arc<Inode>>, wanted: Result<Id>) {
        match made {
            Ok(inode) => {
                assert_eq!(Ok(self.inodes.len()), wanted);
                self.inodes.push(inode);
            }
            Err(error) => assert_eq!(Err(error), wanted),
        }
    }

    fn step(&mut self, operation: &Operation) {
        match operation {
            Operation::Create(dir, name, kind) => {
                let dir = self.id(dir);
                let made = make(&self.fs, &self.inodes[dir], name, *kind);
                let wanted = self.model.create(dir, name, *kind);
                self.made(made, wanted);
            }
            Operation::Tmpfile(dir) => {
                let dir = self.id(dir);
                let made = self.fs.tmpfile(&self.inodes[dir], regular(0o600));
                let wanted = self.model.tmpfile(dir);
                self.made(made, wanted);
            }
            Operation::Link(inode, dir, name) => {
                let (inode, dir) = (self.id(inode), self.id(dir));
                let done = self.fs.link(&self.inodes[inode], &self.inodes[dir], name);
                assert_eq!(done, self.model.link(inode, dir, name));
            }
            Operation::Unlink(dir, name) => {
                let dir = self.id(dir);
                assert_eq!(self.fs.unlink(&self.inodes[dir], name), self.model.unlink(dir, name));
            }
            Operation::Rmdir(dir, name) => {
                let dir = self.id(dir);
                assert_eq!(self.fs.rmdir(&self.inodes[dir], name), self.model.rmdir(dir, name));
            }
            Operation::Rename(from, name, to, new, mode, whiteout) => {
                let (from, to) = (self.id(from), self.id(to));
                let (source, target) = (&self.inodes[from], &self.inodes[to]);
                let done = match whiteout {
                    true => self.fs.rename_with_whiteout(source, name, target, new, *mode, (7, 8)),
                    false => self.fs.rename(source, name, target, new, *mode),
                };
                let wanted = self.model.rename((from, name), (to, new), *mode, *whiteout);
                assert_eq!(done, wanted.map(drop));
                if let Ok(Some(id)) = wanted {
                    assert_eq!(id, self.inodes.len());
                    let whiteout = self.fs.lookup(source, name).expect("the rename left a whiteout");
                    let attr = self.fs.attr(&whiteout);
                    let shown = (attr.mode, attr.uid, attr.gid, attr.rdev);
                    assert_eq!(shown, (0o020_000, 7, 8, 0));
                    self.inodes.push(whiteout);
                }
            }
            Operation::Lookup(dir, name) => {
                let dir = self.id(dir);
                let found = self.fs.lookup(&self.inodes[dir], name).map(|inode| inode.ino());
                let wanted = self.model.lookup(dir, name).map(|id| self.inodes[id].ino());
                assert_eq!(found, wanted);
            }
            Operation::Pin(inode) => {
                let inode = self.id(inode);
                assert_eq!(self.fs.pin(&self.inodes[inode]), self.model.pin(inode));
            }
            Operation::Unpin(inode) => {
                let inode = self.id(inode);
                if self.model.unpin(inode) {
                    self.fs.unpin(&self.inodes[inode], 1);
                }
            }
            Operation::Compare => self.compare(),
        }
    }

    /// Links, the table of inodes, parents, and what readdir shows.
    fn compare(&self) {
        let mut live = 0;
        for (id, inode) in self.inodes.iter().enumerate() {
            let lives = self.model.lives(id);
            live += u64::from(lives);
            assert_eq!(self.fs.inode(inode.ino()).is_some(), lives, "whether {id} lives");
            assert_eq!(self.fs.attr(inode).nlink, self.model.links(id), "links of {id}");
            let Some(entries) = self.model.entries(id) else {
                let error = self.fs.readdir(inode, 0, &mut |_| true);
                assert_eq!(error, Err(Error::NotDirectory));
                continue;
            };
            let listed = list(&self.fs, inode, 3);
            let wanted = entries.iter().map(|(name, id)| (name.clone(), self.inodes[*id].ino()));
            assert_eq!(listed, wanted.collect::<BTreeMap<_, _>>());
        }
        let statfs = self.fs.statfs();
        assert_eq!(statfs.files - statfs.files_free, live, "inodes in use");
    }

    /// Nothing is left when every name and pin is gone.
    fn finish(mut self) {
        for id in 0..self.inodes.len() {
            while self.model.unpin(id) {
                self.fs.unpin(&self.inodes[id], 1);
            }
        }
        let root = self.fs.root();
        remove_all(&self.fs, &root);
        assert_empty(&self.fs);
    }
}

fn make(fs: &TestFs, dir: &Arc<Inode>, name: &[u8], kind: Kind) -> Result<Arc<Inode>> {
    match kind {
        Kind::Directory => fs.create(dir, name, directory(0o755)),
        Kind::File => fs.create(dir, name, regular(0o644)),
        Kind::Whiteout => fs.create(dir, name, crate::support::of_mode(0o020_000)),
        Kind::Fifo => fs.create(dir, name, crate::support::of_mode(0o010_644)),
        Kind::Symlink => fs.symlink(dir, name, b"target", 0, 0),
    }
}

/// Reads a directory in pieces of `piece` entries, as getdents does with a small buffer; without `.` and `..`.
pub(crate) fn list(fs: &TestFs, dir: &Arc<Inode>, piece: usize) -> BTreeMap<Name, homenode_engine::fs::Ino> {
    let mut all = BTreeMap::new();
    let (mut from, mut dots) = (0, BTreeSet::new());
    loop {
        let mut left = piece;
        let mut next = None;
        fs.readdir(dir, from, &mut |entry| {
            if left == 0 {
                return false;
            }
            left -= 1;
            assert!(next.is_none_or(|before| before < entry.next), "offsets rise");
            next = Some(entry.next);
            let fresh = match entry.name {
                b"." | b".." => dots.insert(entry.name.to_vec()),
                name => all.insert(name.to_vec(), entry.inode.ino()).is_none(),
            };
            assert!(fresh, "{:?} is listed twice", entry.name);
            true
        })
        .expect("the inode is a directory");
        let Some(next) = next else { break };
        from = next;
    }
    assert_eq!(dots.len(), 2, "`.` and `..` are listed");
    all
}

pub(crate) fn remove_all(fs: &TestFs, dir: &Arc<Inode>) {
    for (name, ino) in list(fs, dir, 7) {
        let inode = fs.inode(ino).expect("the inode has a name");
        if inode.is_directory() {
            remove_all(fs, &inode);
            fs.rmdir(dir, &name).expect("the directory is empty now");
        } else {
            fs.unlink(dir, &name).expect("the name exists");
        }
    }
}

/// Every entry that is there from beginning to end is seen once, whatever comes and goes meanwhile.
#[test]
fn readdir_offsets_stay_valid_while_entries_change() {
    let (fs, _) = empty_filesystem(1);
    let root = fs.root();
    let stays: BTreeSet<Name> = (0..500).map(|i| format!("stays {i}").into_bytes()).collect();
    for name in &stays {
        fs.create(&root, name, regular(0o644)).expect("the name is new");
    }
    for i in 0..500 {
        fs.create(&root, format!("goes {i}").as_bytes(), regular(0o644))
            .expect("the name is new");
    }
    let mut seen = Vec::new();
    let mut from = 0;
    for turn in 0.. {
        let mut next = None;
        fs.readdir(&root, from, &mut |entry| {
            if next.is_some() {
                return false;
            }
            seen.push(entry.name.to_vec());
            next = Some(entry.next);
            true
        })
        .expect("the inode is a directory");
        let Some(next) = next else { break };
        from = next;
        fs.create(&root, format!("comes {turn}").as_bytes(), regular(0o644))
            .expect("the name is new");
        let goes = format!("goes {turn}");
        let _ = fs.unlink(&root, goes.as_bytes());
        assert!(turn < 10_000, "readdir never ends");
    }
    let seen_once: BTreeSet<Name> = seen.iter().cloned().collect();
    assert_eq!(seen.len(), seen_once.len(), "something was listed twice");
    assert!(seen_once.is_superset(&stays), "something that was there was not listed");
}
