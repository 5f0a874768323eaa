//! What keeps data safe, tells of changes and runs programs: fsync(2) and its kin, inotify(7), execve(2), identity of files.

use crate::observe::{look, names};
use crate::stage::{assert_errno, content, create, edit, mode, open, run, stage, write_at};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{Advice, OFlags, StatxFlags};
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn synchronizing_succeeds() {
    let stage = stage!();
    let fd = create(stage.at("f"));
    write_at(&fd, 0, &[1; 100_000]);
    rustix::fs::fsync(&fd).unwrap();
    rustix::fs::fdatasync(&fd).unwrap();
    rustix::fs::syncfs(&fd).unwrap();
    // SAFETY: sync_file_range touches no memory of this process.
    let result = unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 4096, libc::SYNC_FILE_RANGE_WRITE) };
    assert_eq!(result, 0);
    let dir = open(stage.path(), OFlags::RDONLY).unwrap();
    rustix::fs::fsync(&dir).unwrap();
    rustix::fs::fdatasync(&dir).unwrap();
    rustix::fs::fsync(open(stage.at("f"), OFlags::RDONLY).unwrap()).unwrap();
    assert_errno!(rustix::fs::fsync(open(stage.at("f"), OFlags::PATH).unwrap()), BADF);
    assert_eq!(content(stage.at("f")), [1; 100_000]);
}

#[test]
fn advice_changes_nothing() {
    let stage = stage!();
    let path = stage.file("f", [3; 100_000]);
    let fd = edit(&path);
    let all = NonZeroU64::new(100_000);
    for advice in [
        Advice::Sequential,
        Advice::Random,
        Advice::WillNeed,
        Advice::NoReuse,
        Advice::Normal,
    ] {
        rustix::fs::fadvise(&fd, 0, all, advice).unwrap();
    }
    write_at(&fd, 0, b"dirty");
    rustix::fs::fadvise(&fd, 0, None, Advice::DontNeed).unwrap();
    assert_eq!(&content(&path)[..6], b"dirty\x03");
}

#[test]
fn an_inode_keeps_its_number() {
    let stage = stage!();
    let path = stage.file("f", []);
    let fd = edit(&path);
    let number = look(&path).st_ino;
    assert_ne!(number, 0);
    write_at(&fd, 0, &[1; 10_000]);
    rustix::fs::rename(&path, stage.at("g")).unwrap();
    rustix::fs::link(stage.at("g"), stage.at("h")).unwrap();
    for index in 0..500 {
        stage.file(index.to_string(), []);
    }
    assert_eq!(look(stage.at("g")).st_ino, number);
    assert_eq!(look(stage.at("h")).st_ino, number);
    let stat = rustix::fs::fstat(&fd).unwrap();
    assert_eq!((stat.st_ino, stat.st_dev), (number, look(stage.path()).st_dev));
    let flags = rustix::fs::AtFlags::empty();
    let statx = rustix::fs::statx(rustix::fs::CWD, stage.at("g"), flags, StatxFlags::BASIC_STATS).unwrap();
    assert_eq!((statx.stx_ino, statx.stx_nlink, statx.stx_size), (number, 2, 10_000));
    let numbers: std::collections::HashSet<_> =
        (0..500).map(|index| look(stage.at(index.to_string())).st_ino).collect();
    assert_eq!(numbers.len(), 500);
}

#[test]
fn inotify_watchers_are_notified() {
    let stage = stage!();
    let watcher = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    let events = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::MODIFY | WatchFlags::ATTRIB;
    inotify::add_watch(&watcher, stage.path(), events).unwrap();
    let path = stage.at("f");
    let fd = create(&path);
    write_at(&fd, 0, b"x");
    rustix::fs::fchmod(&fd, mode(0o600)).unwrap();
    rustix::fs::rename(&path, stage.at("g")).unwrap();
    rustix::fs::unlink(stage.at("g")).unwrap();
    stage.dir("d");
    rustix::fs::rmdir(stage.at("d")).unwrap();
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&watcher, &mut buffer);
    let mut seen = Vec::new();
    while let Ok(event) = reader.next() {
        let name = event
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        seen.push((event.events() - ReadFlags::ISDIR, name));
    }
    let expected = [
        (ReadFlags::CREATE, "f"),
        (ReadFlags::MODIFY, "f"),
        (ReadFlags::ATTRIB, "f"),
        (ReadFlags::MOVED_FROM, "f"),
        (ReadFlags::MOVED_TO, "g"),
        (ReadFlags::DELETE, "g"),
        (ReadFlags::CREATE, "d"),
        (ReadFlags::DELETE, "d"),
    ];
    let expected = expected.map(|(event, name)| (event, name.to_owned()));
    // fchmod and unlink of an open file tell of its attributes once more; only the order of the others is fixed.
    seen.retain(|event| event.0 != ReadFlags::ATTRIB || *event == expected[2]);
    seen.dedup();
    assert_eq!(seen, expected);
}

#[test]
fn programs_and_scripts_run_from_the_mount() {
    let stage = stage!();
    let program = stage.at("program");
    std::fs::copy("/bin/echo", &program).unwrap();
    let script = stage.file("script", "#!/bin/sh\necho \"$1 from a script\"\n");
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    for (path, expected) in [(program, "hello\n"), (script, "hello from a script\n")] {
        // A child that another test forked while the program was being written may hold it a moment longer.
        let output = loop {
            match Command::new(&path).arg("hello").output() {
                Ok(output) => break output,
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => continue,
                Err(error) => panic!("{}: {error}", path.display()),
            }
        };
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }
    let plain = stage.file("plain", "#!/bin/sh\n");
    let refused = Command::new(&plain).status().unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
}

#[test]
fn a_tree_is_packed_and_unpacked() {
    let stage = stage!();
    let (tree, copy) = (stage.dir("tree"), stage.dir("copy"));
    for index in 0..50_u8 {
        let dir = tree.join(format!("d{}", index % 7));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(format!("f{index}")), vec![index; usize::from(index) * 1000]).unwrap();
        rustix::fs::symlink(format!("f{index}"), dir.join(format!("l{index}"))).unwrap();
    }
    let script = r#"tar -C "$1" -cf - . | tar -C "$2" -xpf - && diff -r --no-dereference "$1" "$2""#;
    run(Command::new("sh").args(["-c", script, "sh"]).args([&tree, &copy]));
    assert_eq!(names(&copy).len(), 7);
}

/// Names that move and go, of files that the lower layer has: the upper layer keeps what hides them.
#[test]
fn an_overlay_may_have_its_upper_layer_on_the_mount() {
    let stage = stage!();
    let scratch = tempfile::tempdir().unwrap();
    let script = r#"set -e
        mount -t tmpfs tmpfs "$2"; mkdir "$1/upper" "$1/work" "$2/all" "$2/lower" "$2/upper" "$2/work"; cd "$2/lower"
        mkdir dir; for name in gone moved changed met dir/one dir/two dir/three; do echo "$name" >"$name"; done
        on() { mount -t overlay -o "lowerdir=$2/lower,upperdir=$1/upper,workdir=$1/work" overlay "$2/all"; }
        on "$2" "$2" || exit 77
        umount "$2/all"; on "$1" "$2"; cd "$2/all"
        rm gone; mv moved met; echo more >>changed; mv dir/one new; mv dir/two dir/renamed; rm dir/three
        echo again >dir/three; rm dir/three
        look() { ( cd "$1"; find . | sort; head -v changed met new dir/renamed ); }
        look "$2/all" >"$2/before"
        cd /; umount "$2/all"; on "$1" "$2"
        look "$2/all" >"$2/after"; diff "$2/before" "$2/after"; cat "$2/after"
        for name in gone moved dir/one dir/two dir/three; do test "$(stat -c %F:%t:%T "$1/upper/$name")" = "character special file:0:0"; done
        umount "$2/all"; rm -r "$1/upper" "$1/work""#;
    let output = Command::new("unshare")
        .args(["--mount", "--propagation=private", "sh", "-c", script, "sh"])
        .args([stage.path(), scratch.path()])
        .output()
        .unwrap();
    if output.status.code() == Some(77) {
        let message = String::from_utf8_lossy(&output.stderr);
        crate::mount::skip(&format!("this kernel mounts no overlay: {message}"));
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let expected = ". ./changed ./dir ./dir/renamed ./met ./new \
        ==> changed <== changed more ==> met <== moved ==> new <== dir/one ==> dir/renamed <== dir/two";
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.split_whitespace().eq(expected.split_whitespace()), "{shown}");
}

#[test]
fn an_overlay_may_have_its_lower_layer_on_the_mount() {
    let stage = stage!();
    let lower = stage.dir("lower");
    std::fs::write(lower.join("file"), "lower").unwrap();
    let scratch = tempfile::tempdir().unwrap();
    // In a namespace of its own, so that nothing stays mounted however the test ends.
    let script = r#"set -e
        mount -t tmpfs tmpfs "$2"; mkdir "$2/upper" "$2/work" "$2/all"
        mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" overlay "$2/all" || exit 77
        test "$(cat "$2/all/file")" = lower
        printf ' and more' >>"$2/all/file"
        cmp "$2/all/file" "$2/upper/file"
        test "$(cat "$2/all/file")" = "lower and more""#;
    let status = Command::new("unshare")
        .args(["--mount", "--propagation=private", "sh", "-c", script, "sh"])
        .args([&lower, &scratch.path().to_path_buf()])
        .status()
        .unwrap();
    if status.code() == Some(77) {
        crate::mount::skip("this kernel mounts no overlay");
        return;
    }
    assert!(status.success(), "{status}");
    assert_eq!(content(lower.join("file")), b"lower");
}
