//! Every row of the table of capabilities against the engine's own answer.

use crate::support::{BLOCK, Caller, TestFs, directory, filesystem, kernel_filesystem, of_mode, regular, sized};
use homenode_engine::NodeId;
use homenode_engine::fs::{
    BodyKind, Error, Inode, MAP_XATTR, Operation, Placement, Result, Volume, Whence, fallocate_mode as mode,
};
use std::sync::Arc;

/// An inode of a kind, with two blocks of data if it is a file or a volume.
enum Subject {
    Inode(Arc<Inode>),
    Volume(Arc<Volume>),
}

impl Subject {
    fn new(fs: &TestFs, caller: &Caller, kind: BodyKind) -> Self {
        let (root, asking) = (fs.root(), caller.asking());
        let name = kind.name().as_bytes();
        let made = match kind {
            BodyKind::File | BodyKind::KernelFile => fs.create(&root, name, regular(0o644)),
            BodyKind::Directory => fs.create(&root, name, directory(0o755)),
            BodyKind::Symlink => fs.symlink(&root, name, b"target", 0, 0),
            BodyKind::Special => fs.create(&root, name, of_mode(0o010_644)),
            BodyKind::Volume => {
                let volume = fs
                    .create_volume(kind.name(), 4 * BLOCK, Placement::Local)
                    .expect("the name is free");
                fs.write_volume(&asking, &volume, 0, &[7; 2 * BLOCK as usize])
                    .expect("the pool has room");
                return Self::Volume(volume);
            }
        };
        let inode = made.expect("the name is free");
        if matches!(kind, BodyKind::File | BodyKind::KernelFile) {
            fs.write(&asking, &inode, 0, &[7; 2 * BLOCK as usize], false)
                .expect("the pool has room");
        }
        Self::Inode(inode)
    }

    fn inode(&self) -> &Inode {
        match self {
            Self::Inode(inode) => inode,
            Self::Volume(volume) => volume.inode(),
        }
    }
}

/// Returns the engine's answer to `operation`, with arguments that only the kind of the body can make fail.
fn answer(fs: &TestFs, caller: &Caller, subject: &Subject, operation: Operation) -> Result<()> {
    let (asking, inode) = (caller.asking(), subject.inode());
    let other = fs
        .create(&fs.root(), operation.name().as_bytes(), regular(0o644))
        .expect("the name is free");
    fs.write(&asking, &other, 0, &[8; BLOCK as usize], false)
        .expect("the pool has room");
    let allocate = |mode| fs.fallocate(&asking, inode, mode, 0, BLOCK);
    let result = match operation {
        Operation::Read => fs.read(&asking, inode, 0, &mut [0; 100]).map(drop),
        Operation::Write => fs.write(&asking, inode, 0, &[1; 100], false).map(drop),
        Operation::Append => fs.append(&asking, inode, &[1; 100], false).map(drop),
        Operation::Truncate => fs.set_attr(inode, &sized(2 * BLOCK)).map(drop),
        Operation::Reserve => allocate(0),
        Operation::ReserveKeepSize => allocate(mode::KEEP_SIZE),
        Operation::PunchHole => allocate(mode::PUNCH_HOLE | mode::KEEP_SIZE),
        Operation::ZeroRange => allocate(mode::ZERO_RANGE),
        Operation::ZeroRangeKeepSize => allocate(mode::ZERO_RANGE | mode::KEEP_SIZE),
        Operation::CollapseRange => allocate(mode::COLLAPSE_RANGE),
        Operation::InsertRange => allocate(mode::INSERT_RANGE),
        Operation::Seek => fs.seek(&asking, inode, 0, Whence::Data).map(drop),
        Operation::CopyFrom => fs.copy_range(&asking, inode, 0, &other, 0, 100).map(drop),
        Operation::CopyTo => fs.copy_range(&asking, &other, 0, inode, 0, 100).map(drop),
        Operation::Map => {
            let is_mapped = !fs.map(inode).is_empty();
            let answer = fs.xattr(inode, MAP_XATTR).map(drop);
            assert_eq!(is_mapped, answer.is_ok(), "the two ways to ask for a map agree");
            answer
        }
        Operation::Move => fs.move_to(inode, NodeId(0), &mut |_, _| {}).map(drop),
    };
    let is_refused = |error: &Error| matches!(error, Error::NoSpace | Error::TooBig | Error::NoData);
    if let Some(error) = result.as_ref().err().filter(|error| is_refused(error)) {
        panic!(
            "{operation:?} of {} was asked for in a way that {error}",
            inode.kind().name()
        );
    }
    result
}

#[test]
fn every_kind_of_inode_follows_the_capability_table() {
    for kind in BodyKind::ALL {
        for operation in Operation::ALL {
            let fs = match kind {
                BodyKind::KernelFile => kernel_filesystem(1, 1024).0,
                _ => filesystem(1, 1024).0,
            };
            let caller = Caller::on_node(&fs, 0);
            let subject = Subject::new(&fs, &caller, kind);
            assert_eq!(subject.inode().kind(), kind);
            let answer = answer(&fs, &caller, &subject, operation);
            assert_eq!(
                answer,
                kind.supports(operation),
                "{} of a {}",
                operation.name(),
                kind.name()
            );
            fs.check_invariants();
        }
    }
}

#[test]
fn the_limits_page_shows_the_table() {
    let mut table = String::from("| |");
    BodyKind::ALL
        .iter()
        .for_each(|kind| table += &format!(" {} |", kind.name()));
    table += "\n|---|";
    BodyKind::ALL.iter().for_each(|_| table += "---|");
    for operation in Operation::ALL {
        table += &format!("\n| {} |", operation.name());
        for kind in BodyKind::ALL {
            let cell = match kind.supports(operation) {
                Ok(()) => "yes",
                Err(error) => error.name(),
            };
            table += &format!(" {cell} |");
        }
    }
    let limits = include_str!("../../../../docs/limits.md");
    assert!(
        limits.contains(&table),
        "docs/limits.md has another table than this:\n{table}"
    );
}

#[test]
fn volume_operations_stay_within_the_size() {
    let (fs, _) = filesystem(1, 1024);
    let caller = Caller::on_node(&fs, 0);
    let Subject::Volume(volume) = Subject::new(&fs, &caller, BodyKind::Volume) else {
        unreachable!("the table has no such operation");
    };
    let (asking, inode) = (caller.asking(), volume.inode());
    let beyond = 4 * BLOCK - 50;
    assert_eq!(fs.write(&asking, inode, beyond, &[1; 100], false), Err(Error::TooBig));
    for mode in [mode::PUNCH_HOLE, mode::ZERO_RANGE] {
        let answer = fs.fallocate(&asking, inode, mode | mode::KEEP_SIZE, beyond, 100);
        assert_eq!(answer, Err(Error::TooBig));
    }
    assert_eq!(volume.size_bytes(), 4 * BLOCK);
    fs.check_invariants();
}
