//! The tree that a filesystem shows, as plain data.

use crate::workload::{SimFs, asking};
use homenode_engine::fs::{Inode, MAP_XATTR, SetAttr};
use homenode_shared::Slot;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Everything a user sees but times and places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    /// Files and directories by path.
    pub(crate) names: BTreeMap<Vec<u8>, Entry>,
    /// Names of volumes, each with its inode.
    pub(crate) volumes: BTreeMap<String, u64>,
    /// Bytes of files and volumes by inode.
    pub(crate) bytes: BTreeMap<u64, Arc<Vec<u8>>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) ino: u64,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) links: u32,
    pub(crate) birth_ns: i64,
    /// Last change of a directory: its names alone move it.
    pub(crate) changed_ns: Option<i64>,
    pub(crate) target: Option<Vec<u8>>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Tree {
    /// The tree that `fs` shows now.
    pub(crate) fn of(fs: &SimFs, slot: &Slot) -> Self {
        let mut tree = Self::below(fs, slot, fs.root());
        for status in fs.volumes(|| true) {
            let volume = fs.volume(&status.name).expect("the list has its name");
            let ino = volume.inode().ino().0;
            tree.volumes.insert(status.name.into(), ino);
            tree.bytes.insert(ino, bytes(fs, slot, volume.inode()));
        }
        tree
    }

    /// The tree below a directory.
    pub(crate) fn below(fs: &SimFs, slot: &Slot, root: Arc<Inode>) -> Self {
        let mut tree = Self::default();
        tree.names.insert(Vec::new(), entry(fs, &root));
        let mut to_visit = vec![(Vec::new(), root)];
        while let Some((path, dir)) = to_visit.pop() {
            let mut found = Vec::new();
            fs.readdir(&dir, 2, &mut |entry| {
                found.push((entry.name.to_vec(), Arc::clone(entry.inode)));
                true
            })
            .expect("the inode is a directory");
            for (name, inode) in found {
                let path = [&path[..], b"/", &name].concat();
                tree.names.insert(path.clone(), entry(fs, &inode));
                if inode.is_file() {
                    tree.bytes
                        .entry(inode.ino().0)
                        .or_insert_with(|| bytes(fs, slot, &inode));
                }
                if inode.is_directory() {
                    to_visit.push((path, inode));
                }
            }
        }
        tree
    }

    /// Whether both have the same names with the same attributes.
    pub(crate) fn has_names_of(&self, other: &Self) -> bool {
        self.names == other.names && self.volumes == other.volumes
    }
}

/// Grows all files: what was behind an end must be zeros, whatever a write left there that the crash interrupted.
pub(crate) fn grow_all(fs: &SimFs, slot: &Slot) -> Result<(), String> {
    const MORE_BYTES: u64 = 16 * 4096;
    let mut to_visit = vec![fs.root()];
    while let Some(dir) = to_visit.pop() {
        let mut found = Vec::new();
        fs.readdir(&dir, 2, &mut |entry| {
            found.push(Arc::clone(entry.inode));
            true
        })
        .expect("the inode is a directory");
        for inode in found {
            let before = fs.attr(&inode).size;
            let more = SetAttr {
                size: Some(before + MORE_BYTES),
                ..SetAttr::default()
            };
            if inode.is_directory() {
                to_visit.push(inode);
            } else if inode.is_file() && fs.set_attr(&inode, &more).is_ok() {
                let bytes = bytes(fs, slot, &inode);
                let mut behind = bytes
                    .iter()
                    .enumerate()
                    .skip(usize::try_from(before).expect("files are small"));
                if let Some((at, byte)) = behind.find(|(_, byte)| **byte != 0) {
                    return Err(format!(
                        "inode {} grew from {before} bytes, and has {byte} at {at}",
                        inode.ino().0
                    ));
                }
            }
        }
    }
    Ok(())
}

fn entry(fs: &SimFs, inode: &Arc<Inode>) -> Entry {
    let attr = fs.attr(inode);
    let listed = fs.xattr_names(inode);
    let names = listed
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty() && *name != MAP_XATTR);
    let xattrs = names.map(|name| (name.to_vec(), fs.xattr(inode, name).expect("the list has its name")));
    Entry {
        ino: attr.ino.0,
        mode: attr.mode,
        owner: (attr.uid, attr.gid),
        links: attr.nlink,
        birth_ns: attr.btime_ns,
        changed_ns: inode.is_directory().then_some(attr.mtime_ns),
        target: fs.readlink(inode).ok().map(Vec::from),
        xattrs: xattrs.collect(),
    }
}

fn bytes(fs: &SimFs, slot: &Slot, inode: &Inode) -> Arc<Vec<u8>> {
    let size = usize::try_from(fs.attr(inode).size).expect("files are small here");
    let mut bytes = vec![0; size];
    let count = fs.read(&asking(slot), inode, 0, &mut bytes).expect("it has bytes");
    assert_eq!(count, size, "a short read of inode {}", inode.ino().0);
    Arc::new(bytes)
}
