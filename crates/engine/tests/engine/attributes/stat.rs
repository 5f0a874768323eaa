//! stat(2)'s fields: who changes which, and when.

use crate::support::{BLOCK, Caller, ManualClock, TestFs, TestMemory, sized};
use crate::support::{assert_empty, directory, empty_filesystem, filesystem, machine, new_file, of_mode, regular};
use homenode_engine::cache::Cached;
use homenode_engine::fs::{Attr, Error, Fs, Inode, NewInode, RenameMode, SetAttr, SetTime, XattrMode};
use homenode_engine::pool::Machine;
use std::sync::Arc;

const SECOND_NS: i64 = 1_000_000_000;
const DAY_NS: i64 = 24 * 3600 * SECOND_NS;
const CAPABILITY: &[u8] = b"security.capability";

fn change(fs: &TestFs, inode: &Inode, set: SetAttr) -> Result<Attr, Error> {
    fs.set_attr(inode, &set)
}

fn with_mode(mode: u32) -> SetAttr {
    SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    }
}

#[test]
fn umask_and_set_gid_directories_are_applied() {
    let (fs, _) = empty_filesystem(1);
    let new = |mode| NewInode {
        umask: 0o027,
        uid: 7,
        gid: 8,
        ..of_mode(mode)
    };
    let root = fs.root();
    let plain = fs.create(&root, b"plain", new(0o104_777)).expect("the name is new");
    let attr = fs.attr(&plain);
    assert_eq!((attr.mode, attr.uid, attr.gid, attr.nlink), (0o104_750, 7, 8, 1));
    let untyped = fs.create(&root, b"untyped", new(0o600)).expect("the name is new");
    assert!(untyped.is_file(), "mknod without a type makes a file");

    let shared = fs.create(&root, b"shared", directory(0o2775)).expect("the name is new");
    let set = SetAttr {
        gid: Some(100),
        ..SetAttr::default()
    };
    change(&fs, &shared, set).expect("a group");
    let file = fs.attr(&fs.create(&shared, b"file", new(0o100_666)).expect("the name is new"));
    assert_eq!((file.mode, file.gid), (0o100_640, 100), "the directory's group");
    let below = fs.attr(&fs.create(&shared, b"below", new(0o040_777)).expect("the name is new"));
    assert_eq!((below.mode, below.gid), (0o042_750, 100), "inherits set-gid");

    let device = NewInode {
        rdev: 0x0102_0003,
        ..of_mode(0o020_600)
    };
    let device = fs.attr(&fs.create(&root, b"device", device).expect("the name is new"));
    assert_eq!((device.mode, device.rdev, device.size), (0o020_600, 0x0102_0003, 0));
}

#[test]
fn writing_clears_privileges_when_asked() {
    let (fs, _) = filesystem(1, 100);
    let caller = Caller::on_node(&fs, 0);
    let asking = &caller.asking();
    let inode = new_file(&fs, "a");
    let prepare = |mode| {
        change(&fs, &inode, with_mode(mode)).expect("a mode");
        fs.set_xattr(&inode, CAPABILITY, b"caps", XattrMode::Either, false)
            .expect("the value is small");
    };
    // With and without a block, which take different paths.
    for _ in 0..2 {
        prepare(0o6755);
        fs.write(asking, &inode, 0, b"x", false).expect("the pool has room");
        assert_eq!(inode.mode() & 0o7777, 0o6755);
        assert!(fs.xattr(&inode, CAPABILITY).is_ok());
        fs.write(asking, &inode, 0, b"x", true).expect("the pool has room");
        assert_eq!(inode.mode() & 0o7777, 0o755);
        assert_eq!(fs.xattr(&inode, CAPABILITY), Err(Error::NoAttribute));
        // Set-gid without execution by the group is mandatory locking.
        prepare(0o6745);
        fs.append(asking, &inode, b"x", true).expect("the pool has room");
        assert_eq!(inode.mode() & 0o7777, 0o2745);
    }
    prepare(0o6755);
    let set = SetAttr {
        kill_priv: true,
        ..sized(0)
    };
    assert_eq!(change(&fs, &inode, set).expect("a file inode").mode & 0o7777, 0o755);
    assert_eq!(fs.xattr_names(&inode), b"");
}

#[test]
fn each_operation_updates_its_times() {
    let (fs, clock) = filesystem(1, 100);
    let caller = Caller::on_node(&fs, 0);
    let asking = &caller.asking();
    let inode = new_file(&fs, "a");
    let born = fs.attr(&inode).btime_ns;
    let times = |inode: &Inode| {
        let attr = fs.attr(inode);
        [attr.atime_ns, attr.mtime_ns, attr.ctime_ns].map(|time| (time - born) / SECOND_NS)
    };
    let tick = || clock.advance_ns(SECOND_NS);
    assert_eq!(times(&inode), [0, 0, 0]);
    tick();
    fs.write(asking, &inode, 0, &[1; 100], false).expect("there is room");
    assert_eq!(times(&inode), [0, 1, 1]);
    tick();
    fs.write(asking, &inode, 0, &[1; 100], false).expect("overwritten");
    assert_eq!(times(&inode), [0, 2, 2]);
    tick();
    change(&fs, &inode, with_mode(0o600)).expect("a mode");
    assert_eq!(times(&inode), [0, 2, 3]);
    tick();
    change(&fs, &inode, sized(10)).expect("the inode is a file");
    assert_eq!(times(&inode), [0, 4, 4]);
    tick();
    fs.link(&inode, &fs.root(), b"b").expect("the name is new");
    assert_eq!(times(&inode), [0, 4, 5]);
    tick();
    fs.rename(&fs.root(), b"b", &fs.root(), b"c", RenameMode::Replace)
        .expect("the name exists");
    assert_eq!(times(&inode), [0, 4, 6]);
    assert_eq!(times(&fs.root())[1..], [6, 6]);
    tick();
    fs.unlink(&fs.root(), b"c").expect("the name exists");
    assert_eq!((times(&inode), fs.attr(&inode).nlink), ([0, 4, 7], 1));
    assert_eq!(times(&fs.root())[1..], [7, 7]);
    tick();
    fs.set_xattr(&inode, b"user.a", b"", XattrMode::Either, false)
        .expect("the value is small");
    assert_eq!(times(&inode), [0, 4, 8]);
    let set = SetAttr {
        atime: Some(SetTime::At(born - 5 * SECOND_NS)),
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    tick();
    change(&fs, &inode, set).expect("times");
    assert_eq!(times(&inode), [-5, 9, 9]);
    assert_eq!(fs.attr(&inode).btime_ns, born);
}

/// Access times are kept as on a mount with relatime.
#[test]
fn reading_updates_the_access_time_after_a_change_or_a_day() {
    let (fs, clock) = filesystem(1, 100);
    let caller = Caller::on_node(&fs, 0);
    let inode = new_file(&fs, "a");
    fs.write(&caller.asking(), &inode, 0, &[1; 100], false)
        .expect("the pool has room");
    let start = fs.attr(&inode).mtime_ns;
    let read = |bytes: usize| {
        let mut data = vec![0; bytes];
        fs.read(&caller.asking(), &inode, 0, &mut data).expect("a file inode");
        (fs.attr(&inode).atime_ns - start) / SECOND_NS
    };
    clock.advance_ns(SECOND_NS);
    assert_eq!(read(10), 1);
    clock.advance_ns(SECOND_NS);
    assert_eq!(read(10), 1, "nothing changed since");
    assert_eq!(read(1000), 1, "reading at the end");
    fs.write(&caller.asking(), &inode, 0, b"x", false).expect("overwritten");
    clock.advance_ns(SECOND_NS);
    assert_eq!(read(1000), 3);
    clock.advance_ns(DAY_NS);
    // A few reads may pass before anybody looks at the clock.
    let mut last = None;
    (0..200).for_each(|_| last = Some(read(10)));
    assert_eq!(last, Some(3 + DAY_NS / SECOND_NS));
}

#[test]
fn only_files_take_a_size_within_the_offset_range() {
    let (fs, _) = filesystem(1, 100);
    let caller = Caller::on_node(&fs, 0);
    let asking = &caller.asking();
    let root = fs.root();
    let inode = new_file(&fs, "a");
    assert_eq!(change(&fs, &inode, sized(1 << 63)), Err(Error::TooBig));
    assert_eq!(fs.attr(&inode).size, 0);
    assert_eq!(
        change(&fs, &inode, sized(i64::MAX as u64)).map(|attr| attr.size),
        Ok(i64::MAX as u64)
    );
    assert_eq!(
        fs.write(asking, &inode, i64::MAX as u64, b"x", false),
        Err(Error::TooBig)
    );
    assert_eq!(fs.append(asking, &inode, b"x", false), Err(Error::TooBig));
    assert_eq!(fs.write(asking, &inode, i64::MAX as u64 - 1, b"xyz", false), Ok(1));
    assert_eq!(fs.write(asking, &inode, u64::MAX, b"x", false), Err(Error::TooBig));
    assert_eq!(fs.read(asking, &inode, u64::MAX, &mut [0]), Ok(0));

    let link = fs.symlink(&root, b"link", b"target", 0, 0).expect("the name is new");
    let fifo = fs.create(&root, b"fifo", of_mode(0o010_600)).expect("the name is new");
    for (other, error) in [
        (&root, Error::IsDirectory),
        (&link, Error::Invalid),
        (&fifo, Error::Invalid),
    ] {
        assert_eq!(change(&fs, other, sized(0)), Err(error));
        assert_eq!(fs.read(asking, other, 0, &mut [0]), Err(error));
        assert_eq!(fs.write(asking, other, 0, b"x", false), Err(error));
        assert_eq!(fs.append(asking, other, b"x", false), Err(error));
    }
    assert_eq!(fs.attr(&link).size, 6);
    assert_eq!(fs.readlink(&link).as_deref(), Ok(&b"target"[..]));
    assert_eq!(fs.readlink(&inode), Err(Error::Invalid));
}

#[test]
fn an_open_file_outlives_its_name() {
    let (fs, _) = filesystem(1, 100);
    let caller = Caller::on_node(&fs, 0);
    let inode = new_file(&fs, "a");
    fs.write(&caller.asking(), &inode, 0, &[7; 5000], false)
        .expect("the pool has room");
    fs.unlink(&fs.root(), b"a").expect("the name exists");
    assert_eq!(fs.attr(&inode).nlink, 0);
    fs.append(&caller.asking(), &inode, &[8; 100], false)
        .expect("the pool has room");
    let mut data = [0; 5100];
    assert_eq!(fs.read(&caller.asking(), &inode, 0, &mut data), Ok(5100));
    assert_eq!((data[0], data[5099]), (7, 8));
    fs.check_invariants();
    fs.unpin(&inode, 1);
    assert_eq!(fs.pin(&inode), Err(Error::Stale));
    assert_eq!(fs.link(&inode, &fs.root(), b"b"), Err(Error::NotFound));
    assert_empty(&fs);

    // O_TMPFILE, which gets its first name later.
    let unnamed = fs.tmpfile(&fs.root(), regular(0o600)).expect("it always succeeds");
    fs.write(&caller.asking(), &unnamed, 0, &[9; 10], false)
        .expect("the pool has room");
    fs.link(&unnamed, &fs.root(), b"named").expect("the name is new");
    fs.unpin(&unnamed, 1);
    assert_eq!(
        fs.lookup(&fs.root(), b"named").map(|inode| inode.ino()),
        Ok(unnamed.ino())
    );
    assert_eq!(fs.attr(&unnamed).blocks, BLOCK / 512);
    fs.unlink(&fs.root(), b"named").expect("the name exists");
    assert_empty(&fs);
}

#[test]
fn the_inode_limit_is_enforced() {
    let small = Machine {
        files_max: 3,
        ..machine(1)
    };
    let fs: TestFs = Fs::new(
        &small,
        Cached::without_cache(TestMemory::default()),
        ManualClock::default(),
        directory(0o755),
    );
    let root = fs.root();
    fs.create(&root, b"a", regular(0o644)).expect("the second");
    fs.symlink(&root, b"b", b"target", 0, 0).expect("the third");
    assert_eq!(fs.statfs().files_free, 0);
    assert_eq!(
        fs.create(&root, b"c", regular(0o644))
            .map(|inode: Arc<Inode>| inode.ino()),
        Err(Error::NoInodes)
    );
    assert_eq!(fs.metadata_refused(), 1);
    fs.unlink(&root, b"b").expect("the name exists");
    fs.create(&root, b"c", regular(0o644)).expect("there is room again");
}

#[test]
fn a_user_leaves_inodes_to_others() {
    let small = Machine {
        files_max: 64,
        ..machine(1)
    };
    let fs: TestFs = Fs::new(
        &small,
        Cached::without_cache(TestMemory::default()),
        ManualClock::default(),
        directory(0o777),
    );
    let of = |uid: u32| NewInode { uid, ..regular(0o644) };
    let make = |uid: u32, nth: u32| {
        fs.create(&fs.root(), format!("{uid}-{nth}").as_bytes(), of(uid))
            .map(|inode| fs.unpin(&inode, 1))
    };
    let made = |uid: u32| (0..64).take_while(|nth| make(uid, *nth).is_ok()).count();
    // Two are left to root, and one is the root directory: half of what is left, half of the rest, and so on. Then root's.
    assert_eq!([7, 8, 9, 0].map(made), [30, 15, 8, 10]);
    for nth in 0..30 {
        fs.unlink(&fs.root(), format!("7-{nth}").as_bytes())
            .expect("it was made");
    }
    make(8, 64).expect("there is room again");
    fs.check_invariants();
}
