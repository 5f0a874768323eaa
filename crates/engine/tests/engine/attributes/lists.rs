//! Access control lists against acl(5): permission bits and lists say the same, defaults are inherited.

use crate::support::{TestFs, directory, empty_filesystem, of_mode, regular};
use homenode_engine::fs::{Error, Inode, NewInode, SetAttr, XattrMode};
use std::sync::Arc;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

/// The attribute's bytes; the id is that of entries without one unless they name a user or group.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        let id = if matches!(*tag, USER | GROUP) { *id } else { u32::MAX };
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Owner, one named user, group, one named group, mask, others.
fn extended(owner: u16, user: u16, group: u16, named: u16, mask: u16, other: u16) -> Vec<u8> {
    list(&[
        (USER_OBJ, owner, 0),
        (USER, user, 1000),
        (GROUP_OBJ, group, 0),
        (GROUP, named, 100),
        (MASK, mask, 0),
        (OTHER, other, 0),
    ])
}

fn minimal(owner: u16, group: u16, other: u16) -> Vec<u8> {
    list(&[(USER_OBJ, owner, 0), (GROUP_OBJ, group, 0), (OTHER, other, 0)])
}

fn set(fs: &TestFs, inode: &Inode, name: &[u8], value: &[u8]) -> Result<(), Error> {
    fs.set_xattr(inode, name, value, XattrMode::Either, false)
}

fn permissions(inode: &Inode) -> u32 {
    inode.mode() & 0o7777
}

fn chmod(fs: &TestFs, inode: &Inode, mode: u32) {
    let set = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    fs.set_attr(inode, &set).expect("the call always succeeds");
}

fn file(fs: &TestFs) -> Arc<Inode> {
    fs.create(&fs.root(), b"file", regular(0o644)).expect("the name is new")
}

#[test]
fn a_list_sets_the_permission_bits_and_chmod_sets_the_mask() {
    let (fs, _) = empty_filesystem(1);
    let file = file(&fs);
    chmod(&fs, &file, 0o4644);
    set(&fs, &file, ACCESS, &extended(7, 6, 4, 5, 6, 1)).expect("the list is valid");
    assert_eq!(permissions(&file), 0o4761, "the group bits are the mask's");
    assert_eq!(fs.xattr(&file, ACCESS), Ok(extended(7, 6, 4, 5, 6, 1)));

    chmod(&fs, &file, 0o512);
    assert_eq!(permissions(&file), 0o512);
    let wanted = extended(5, 6, 4, 5, 1, 2);
    assert_eq!(
        fs.xattr(&file, ACCESS),
        Ok(wanted),
        "the owning group and the named stay"
    );
}

#[test]
fn a_list_equal_to_the_permission_bits_is_not_stored() {
    let (fs, _) = empty_filesystem(1);
    let file = file(&fs);
    set(&fs, &file, ACCESS, &minimal(7, 5, 1)).expect("the list is valid");
    assert_eq!(permissions(&file), 0o751);
    assert_eq!(fs.xattr(&file, ACCESS), Err(Error::NoAttribute));
    assert_eq!(fs.xattr_names(&file), b"");

    // It also replaces one that says more.
    set(&fs, &file, ACCESS, &extended(7, 6, 4, 5, 6, 1)).expect("the list is valid");
    set(&fs, &file, ACCESS, &minimal(6, 4, 0)).expect("the list is valid");
    assert_eq!((permissions(&file), fs.xattr_names(&file)), (0o640, Vec::new()));
}

#[test]
fn removing_a_list_keeps_the_bits() {
    let (fs, _) = empty_filesystem(1);
    let file = file(&fs);
    for remove_by_empty_list in [false, true] {
        set(&fs, &file, ACCESS, &extended(7, 6, 4, 5, 6, 1)).expect("the list is valid");
        if remove_by_empty_list {
            set(&fs, &file, ACCESS, &list(&[])).expect("removes it");
        } else {
            fs.remove_xattr(&file, ACCESS).expect("the attribute exists");
        }
        assert_eq!(fs.xattr(&file, ACCESS), Err(Error::NoAttribute));
        assert_eq!(permissions(&file), 0o761);
    }
    assert_eq!(fs.remove_xattr(&file, ACCESS), Ok(()), "as on a tmpfs");
}

#[test]
fn set_gid_is_cleared_with_a_list_when_asked() {
    let (fs, _) = empty_filesystem(1);
    let file = file(&fs);
    chmod(&fs, &file, 0o6755);
    set(&fs, &file, ACCESS, &minimal(7, 5, 5)).expect("the list is valid");
    assert_eq!(permissions(&file), 0o6755);
    fs.set_xattr(&file, ACCESS, &minimal(7, 5, 5), XattrMode::Either, true)
        .expect("the list is valid");
    assert_eq!(permissions(&file), 0o4755);
}

#[test]
fn a_malformed_list_is_refused_without_effect() {
    let (fs, _) = empty_filesystem(1);
    let file = file(&fs);
    let (owner, group, other) = ((USER_OBJ, 7, 0), (GROUP_OBJ, 5, 0), (OTHER, 0, 0));
    let mut long = minimal(7, 5, 0);
    long.push(0);
    let wrong = [
        long,
        vec![2, 0, 0],
        Vec::new(),
        list(&[owner, group]),
        list(&[owner, owner, group, other]),
        list(&[group, owner, other]),
        list(&[owner, group, other, (MASK, 7, 0)]),
        // Named, and no mask.
        list(&[owner, (USER, 7, 5), group, other]),
        list(&[owner, group, (GROUP, 7, 5), other]),
        list(&[owner, (USER, 7, 5), group, (MASK, 7, 0), (MASK, 7, 0), other]),
        // A user that is none.
        list(&[owner, (USER, 7, u32::MAX), group, (MASK, 7, 0), other]),
        list(&[(USER_OBJ, 8, 0), group, other]),
        list(&[owner, group, (64, 7, 0)]),
        list(&[owner, group, other, (64, 7, 0)]),
    ];
    for bytes in wrong {
        assert_eq!(set(&fs, &file, ACCESS, &bytes), Err(Error::Invalid), "{bytes:?}");
    }
    let mut version = minimal(7, 5, 0);
    version[0] = 3;
    assert_eq!(set(&fs, &file, ACCESS, &version), Err(Error::NotSupported));
    assert_eq!(set(&fs, &file, DEFAULT, &minimal(7, 5, 0)), Err(Error::NotPermitted));
    assert_eq!((permissions(&file), fs.xattr_names(&file)), (0o644, Vec::new()));
}

fn new(mode: u32) -> NewInode {
    NewInode {
        umask: 0o077,
        ..of_mode(mode)
    }
}

#[test]
fn a_default_list_is_inherited_instead_of_the_umask() {
    let (fs, _) = empty_filesystem(1);
    let dir = fs.create(&fs.root(), b"dir", directory(0o755)).expect("a new name");
    let default = extended(7, 6, 5, 3, 7, 4);
    set(&fs, &dir, DEFAULT, &default).expect("the list is valid");
    assert_eq!(
        permissions(&dir),
        0o755,
        "a default list says nothing of the directory itself"
    );

    let file = fs.create(&dir, b"file", new(0o100_666)).expect("the name is new");
    assert_eq!(permissions(&file), 0o664, "mode and list both limit; no umask");
    let wanted = extended(6, 6, 5, 3, 6, 4);
    assert_eq!(fs.xattr(&file, ACCESS), Ok(wanted));
    assert_eq!(fs.xattr(&file, DEFAULT), Err(Error::NoAttribute));

    let below = fs.create(&dir, b"below", new(0o040_700)).expect("the name is new");
    assert_eq!(permissions(&below), 0o700);
    assert_eq!(fs.xattr(&below, ACCESS), Ok(extended(7, 6, 5, 3, 0, 0)));
    assert_eq!(fs.xattr(&below, DEFAULT), Ok(default));
    let names = [ACCESS, b"\0", DEFAULT, b"\0"].concat();
    assert_eq!(fs.xattr_names(&below), names);

    let fifo = fs.create(&dir, b"fifo", new(0o010_666)).expect("the name is new");
    assert_eq!(permissions(&fifo), 0o664);
    let link = fs.symlink(&dir, b"link", b"target", 0, 0).expect("the name is new");
    assert_eq!((permissions(&link), fs.xattr_names(&link)), (0o777, Vec::new()));
}

#[test]
fn a_minimal_inherited_list_is_not_stored() {
    let (fs, _) = empty_filesystem(1);
    let dir = fs.create(&fs.root(), b"dir", directory(0o755)).expect("a new name");
    set(&fs, &dir, DEFAULT, &minimal(7, 5, 0)).expect("the list is valid");
    let file = fs.create(&dir, b"file", new(0o100_666)).expect("the name is new");
    assert_eq!((permissions(&file), fs.xattr_names(&file)), (0o640, Vec::new()));
    let below = fs.create(&dir, b"below", new(0o041_777)).expect("the name is new");
    assert_eq!(permissions(&below), 0o1750, "the sticky bit is not the list's");
    assert_eq!(fs.xattr(&below, DEFAULT), Ok(minimal(7, 5, 0)));

    fs.remove_xattr(&dir, DEFAULT).expect("the attribute exists");
    let later = fs.create(&dir, b"later", new(0o100_666)).expect("the name is new");
    assert_eq!(permissions(&later), 0o600, "the umask again");
}
