//! Words by which clients copy through mappings: what raises them, what is told, and who may look.

use crate::support::{Mounted, as_nobody, eventually, options, set_xattr, xattr};
use homenode_fuse::Data;
use homenode_shared::{Line, Seen, Words};
use rustix::fs::FallocateFlags;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

/// An answer of the server.
struct Told {
    line: usize,
    cuts: u64,
    size: u64,
    pieces: Vec<u64>,
}

fn tell(path: &Path, offset: u64) -> Told {
    let value = xattr(path, &format!("user.homenode.words.{offset}")).unwrap();
    let words: Vec<_> = std::str::from_utf8(&value).unwrap().split(' ').collect();
    assert_eq!((words[0], words.len()), ("0", 22));
    let number = |nth: usize| words[nth].parse::<u64>().unwrap();
    assert_eq!(number(5), offset >> 26 << 10);
    Told {
        line: number(2).try_into().unwrap(),
        cuts: number(3),
        size: number(4),
        pieces: words[6..]
            .iter()
            .map(|bits| u64::from_str_radix(bits, 16).unwrap())
            .collect(),
    }
}

fn mounted() -> Option<Mounted> {
    let mut options = options();
    options.data = Data::Kernel;
    Mounted::with(&options)
}

fn map(mounted: &Mounted) -> Words {
    let file = File::open(mounted.path(".homenode.words.0")).unwrap();
    Words::map(file.as_fd(), 4096, false).unwrap()
}

fn look(line: &Line) -> Seen {
    line.look().expect("nothing is cut now")
}

/// Whether an operation changes (cuts, asks).
fn changes(line: &Line, operate: impl FnOnce()) -> (bool, bool) {
    let before = look(line);
    operate();
    let after = look(line);
    (before.cuts != after.cuts, before.asks != after.asks)
}

fn punch(file: &File, offset: u64, bytes: u64) {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, mode, offset, bytes).unwrap();
}

#[test]
fn words_change_when_bytes_are_removed_or_attributes_are_shown() {
    let Some(mounted) = mounted() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![7; 300_000]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let told = tell(&path, 0);
    let words = map(&mounted);
    let line = words.line(told.line).unwrap();
    assert_eq!((look(line).cuts, told.size), (told.cuts, 300_000));
    assert_eq!(
        told.pieces[0], 0x1F,
        "five pieces of 64 KiB, the last one as far as the file goes"
    );
    assert!(told.pieces[1..].iter().all(|bits| *bits == 0));

    assert_eq!(
        changes(line, || file.write_all_at(&[1; 5000], 299_000).unwrap()),
        (false, false)
    );
    assert!(changes(line, || file.set_len(200_000).unwrap()).0);
    assert!(changes(line, || punch(&file, 0, 4096)).0);
    assert!(
        changes(line, || drop(
            OpenOptions::new().write(true).truncate(true).open(&path).unwrap()
        ))
        .0
    );
    let stat = || assert!(file.metadata().unwrap().is_file());
    assert_eq!(changes(line, stat), (false, true));
    let mode = || fs::set_permissions(&path, Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(changes(line, mode), (false, true));
    // CAP_NET_RAW, effective and permitted (VFS_CAP_REVISION_2).
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let set = || set_xattr(&path, "security.capability", &capability).unwrap();
    assert_eq!(changes(line, set), (false, true));

    // Users that have lost the right to read see no more of the file.
    let fewer = || fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    assert!(changes(line, fewer).0);
    assert_eq!(tell(&path, 0).cuts, look(line).cuts);

    // The next file gets the line, when this one is closed.
    let before = look(line);
    drop(file);
    eventually("the line is given back", || look(line).cuts != before.cuts);
    let other = mounted.path("other");
    let open = File::create(&other).unwrap();
    let next = tell(&other, 0);
    assert_eq!((next.line, next.cuts, next.size), (told.line, look(line).cuts, 0));
    drop((open, words));
    mounted.finish();
}

#[test]
fn pieces_with_holes_are_not_reported_as_dense() {
    let Some(mounted) = mounted() else { return };
    let path = mounted.path("file");
    let file = File::create(&path).unwrap();
    // Far enough apart for the kernel's large pages.
    file.write_all_at(&[1; 64 << 10], 0).unwrap();
    file.write_all_at(&[1; 64 << 10], 90 << 16).unwrap();
    file.write_all_at(&[1; 64 << 10], (64 << 20) + (70 << 16)).unwrap();
    let is_dense = |told: &Told, piece: usize| told.pieces[piece / 64] >> (piece % 64) & 1 == 1;
    let told = tell(&path, 5);
    assert!(is_dense(&told, 0) && is_dense(&told, 90) && !is_dense(&told, 45) && !is_dense(&told, 1023));
    let told = tell(&path, (64 << 20) + 1);
    assert!(is_dense(&told, 70) && !is_dense(&told, 0) && !is_dense(&told, 71));
    // Beyond the end.
    assert!(tell(&path, 1 << 40).pieces.iter().all(|bits| *bits == 0));
    punch(&file, 90 << 16, 4096);
    let told = tell(&path, 5);
    assert!(is_dense(&told, 0) && !is_dense(&told, 90));
    drop(file);
    mounted.finish();
}

#[test]
fn words_are_private_to_their_user_and_read_only() {
    let Some(mounted) = mounted() else { return };
    fs::set_permissions(&mounted.dir, Permissions::from_mode(0o777)).unwrap();
    let path = mounted.path("file");
    let file = File::create(&path).unwrap();
    tell(&path, 0);
    let words = mounted.path(".homenode.words.0");
    assert_eq!(fs::metadata(&words).unwrap().len(), 4096 * 64);
    assert_eq!(fs::read_dir(&mounted.dir).unwrap().count(), 1, "words listed");
    assert!(OpenOptions::new().write(true).open(&words).is_err());
    assert!(fs::set_permissions(&words, Permissions::from_mode(0o666)).is_err());
    assert!(File::create(&words).is_err() && fs::remove_file(&words).is_err());
    assert!(fs::rename(&path, &words).is_err() && fs::hard_link(&words, mounted.path("link")).is_err());
    assert!(!as_nobody("cat \"$1\"", &words), "another user can read root's words");
    let own = "cat \"$1/.homenode.words.65534\" >/dev/null && ! cat \"$1/.homenode.words.65533\"";
    assert!(as_nobody(own, &mounted.dir));
    // A right to read it has to be there, and somebody who has it open.
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert!(!as_nobody("getfattr -n user.homenode.words.0 \"$1\"", &path));
    drop(file);
    eventually("it is closed", || xattr(&path, "user.homenode.words.0").is_err());
    mounted.finish();
}

#[test]
fn files_of_the_pool_have_no_words() {
    let mut options = options();
    options.data = Data::Pool;
    let Some(mounted) = Mounted::with(&options) else { return };
    let path = mounted.path("file");
    let file = File::create(&path).unwrap();
    assert_eq!(
        xattr(&path, "user.homenode.words.0").unwrap_err().raw_os_error(),
        Some(libc::ENODATA)
    );
    assert!(!mounted.path(".homenode.words.0").exists());
    drop(file);
    mounted.finish();
}
