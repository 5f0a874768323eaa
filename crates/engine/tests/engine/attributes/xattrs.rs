//! Extended attributes: modes, limits, and those of the filesystem's own.

use crate::support::{BLOCK, Caller, TestFs, empty_filesystem, filesystem, new_file};
use homenode_engine::fs::{Error, Inode, MAP_XATTR, POLICY_XATTR, XattrMode};

fn set(fs: &TestFs, inode: &Inode, name: &[u8], value: &[u8]) -> Result<(), Error> {
    fs.set_xattr(inode, name, value, XattrMode::Either, false)
}

#[test]
fn attributes_can_be_set_replaced_listed_and_removed() {
    let (fs, _) = empty_filesystem(1);
    let inode = new_file(&fs, "a");
    let with = |value: &[u8], mode| fs.set_xattr(&inode, b"user.a", value, mode, false);
    assert_eq!(with(b"1", XattrMode::Replace), Err(Error::NoAttribute));
    assert_eq!(with(b"1", XattrMode::Create), Ok(()));
    assert_eq!(with(b"2", XattrMode::Create), Err(Error::Exists));
    assert_eq!(fs.xattr(&inode, b"user.a"), Ok(b"1".to_vec()));
    assert_eq!(with(b"", XattrMode::Replace), Ok(()));
    assert_eq!(fs.xattr(&inode, b"user.a"), Ok(Vec::new()), "an empty value is a value");
    assert_eq!(set(&fs, &inode, b"trusted.b", b"x"), Ok(()));
    assert_eq!(fs.xattr_names(&inode), b"trusted.b\0user.a\0");
    assert_eq!(fs.remove_xattr(&inode, b"user.a"), Ok(()));
    assert_eq!(fs.remove_xattr(&inode, b"user.a"), Err(Error::NoAttribute));
    assert_eq!(fs.xattr(&inode, b"user.a"), Err(Error::NoAttribute));
    assert_eq!(fs.xattr_names(&inode), b"trusted.b\0");
}

#[test]
fn names_fit_into_one_list() {
    let (fs, _) = empty_filesystem(1);
    let inode = new_file(&fs, "a");
    let name = |nth: u32| format!("user.{nth:09}").into_bytes();
    let room = (0..)
        .take_while(|nth| set(&fs, &inode, &name(*nth), b"").is_ok())
        .count();
    let listed = fs.xattr_names(&inode).len();
    assert!(room > 4000 && listed <= 64 << 10, "{room} names, {listed} bytes");
    assert_eq!(set(&fs, &inode, &name(999_999_999), b""), Err(Error::NoSpace));
    assert_eq!(set(&fs, &inode, &name(0), b"x"), Ok(()), "it is there already");
}

#[test]
fn names_and_values_have_limits() {
    let (fs, _) = empty_filesystem(1);
    let inode = new_file(&fs, "a");
    let largest = vec![1; 64 << 10];
    assert_eq!(set(&fs, &inode, b"user.large", &largest), Ok(()));
    let larger = vec![1; (64 << 10) + 1];
    assert_eq!(set(&fs, &inode, b"user.large", &larger), Err(Error::AttributeTooBig));
    assert_eq!(
        fs.xattr(&inode, b"user.large"),
        Ok(largest.clone()),
        "the old value stays"
    );
    let long = |bytes: usize| format!("user.{}", "n".repeat(bytes - 5)).into_bytes();
    assert_eq!(set(&fs, &inode, &long(255), b""), Ok(()));
    assert_eq!(set(&fs, &inode, &long(256), b""), Err(Error::Invalid));
    assert_eq!(set(&fs, &inode, b"", b""), Err(Error::Invalid));
    assert_eq!(
        set(&fs, &inode, b"nobody.a", b""),
        Err(Error::NotSupported),
        "no such class"
    );

    // All of one inode's together.
    let fits = (0..100).take_while(|i| set(&fs, &inode, format!("user.{i}").as_bytes(), &largest).is_ok());
    assert_eq!(fits.count(), 14, "1 MiB, with names");
    assert_eq!(set(&fs, &inode, b"user.more", &largest), Err(Error::NoSpace));
    assert_eq!(
        set(&fs, &inode, b"user.large", &largest),
        Ok(()),
        "replacing needs no more room"
    );
    assert_eq!(set(&fs, &new_file(&fs, "b"), b"user.more", &largest), Ok(()));
}

#[test]
fn the_map_attribute_is_read_only() {
    let (fs, _) = filesystem(3, 100);
    let inode = new_file(&fs, "a");
    assert_eq!(fs.xattr(&inode, MAP_XATTR), Ok(Vec::new()));
    for (node, blocks) in [(2, 3), (0, 1)] {
        let data = vec![1; blocks * BLOCK as usize];
        let caller = Caller::on_node(&fs, node);
        fs.append(&caller.asking(), &inode, &data, false)
            .expect("the pool has room");
    }
    assert_eq!(fs.xattr(&inode, MAP_XATTR), Ok(b"0=4096,2=12288".to_vec()));
    assert_eq!(fs.xattr_names(&inode), b"", "rsync -X would copy it");
    assert_eq!(set(&fs, &inode, MAP_XATTR, b"0=4096"), Err(Error::NotPermitted));
    assert_eq!(fs.remove_xattr(&inode, MAP_XATTR), Err(Error::NotPermitted));
    assert_eq!(fs.xattr(&fs.root(), MAP_XATTR), Err(Error::NoAttribute));
}

#[test]
fn the_policy_is_an_attribute_like_others() {
    let (fs, _) = filesystem(2, 100);
    let inode = new_file(&fs, "a");
    let with = |value: &[u8], mode| fs.set_xattr(&inode, POLICY_XATTR, value, mode, false);
    assert_eq!(fs.xattr(&inode, POLICY_XATTR), Err(Error::NoAttribute));
    assert_eq!(fs.remove_xattr(&inode, POLICY_XATTR), Err(Error::NoAttribute));
    assert_eq!(with(b"local", XattrMode::Replace), Err(Error::NoAttribute));
    assert_eq!(with(b"interleave", XattrMode::Create), Ok(()));
    assert_eq!(with(b"local", XattrMode::Create), Err(Error::Exists));
    assert_eq!(with(b"node:1", XattrMode::Replace), Ok(()));
    assert_eq!(
        with(b"node:2", XattrMode::Either),
        Err(Error::Invalid),
        "node 2 has no member"
    );
    assert_eq!(fs.xattr(&inode, POLICY_XATTR), Ok(b"node:1".to_vec()));
    assert_eq!(fs.xattr_names(&inode), b"user.homenode.policy\0");
    assert_eq!(fs.remove_xattr(&inode, POLICY_XATTR), Ok(()));
    assert_eq!(fs.xattr_names(&inode), b"");
}
