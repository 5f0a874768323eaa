//! truncate(2): lengths, and that cut bytes never come back.

use crate::observe::{sectors, size};
use crate::stage::{assert_errno, content, create, edit, open, read_at, stage, truncate, write_at};
use rustix::fs::{OFlags, ftruncate};
use rustix::io::Errno;

#[test]
fn a_file_grows_with_zeros_and_no_space() {
    let stage = stage!();
    let path = stage.file("f", b"content");
    truncate(&path, 1 << 40).unwrap();
    assert_eq!(size(&path), 1 << 40);
    assert_eq!(sectors(&path), 8);
    let fd = edit(&path);
    assert_eq!(read_at(&fd, 0, 4096), [&b"content"[..], &[0; 4089]].concat());
    assert_eq!(read_at(&fd, (1 << 40) - 5000, 10_000), [0; 5000]);
    truncate(&path, 7).unwrap();
    assert_eq!(content(&path), b"content");
}

#[test]
fn cut_bytes_do_not_come_back() {
    let stage = stage!();
    // Cut at, before and behind the borders of a block and of a 2 MiB run.
    const RUN: u64 = 2 << 20;
    for cut in [0, 1, 100, 4095, 4096, 4097, 8192, RUN - 1, RUN, RUN + 1, RUN + 4096] {
        let path = stage.at(cut.to_string());
        let fd = create(&path);
        let length = RUN + 10_000;
        write_at(&fd, 0, &vec![7; usize::try_from(length).unwrap()]);
        ftruncate(&fd, cut).unwrap();
        assert_eq!(size(&path), cut);
        ftruncate(&fd, length).unwrap();
        let all = content(&path);
        let cut = usize::try_from(cut).unwrap();
        assert!(
            all[..cut].iter().all(|&byte| byte == 7),
            "cut at {cut}: kept bytes are lost"
        );
        assert!(
            all[cut..].iter().all(|&byte| byte == 0),
            "cut at {cut}: old bytes came back"
        );
        let direct = open(&path, OFlags::RDONLY | OFlags::DIRECT).unwrap();
        assert!(
            read_at(&direct, 0, all.len()) == all,
            "cut at {cut}: cache and file differ"
        );
        rustix::fs::unlink(&path).unwrap();
    }
}

#[test]
fn writing_behind_the_end_leaves_zeros_between() {
    let stage = stage!();
    let path = stage.file("f", [9; 5000]);
    let fd = edit(&path);
    ftruncate(&fd, 3000).unwrap();
    write_at(&fd, 6000, b"end");
    let all = content(&path);
    assert_eq!(all[..3000], [9; 3000]);
    assert_eq!(
        all[3000..6000],
        [0; 3000],
        "cut bytes came back by a write behind the end"
    );
    assert_eq!(&all[6000..], b"end");
}

#[test]
fn cutting_frees_space() {
    let stage = stage!();
    let path = stage.file("f", vec![1; 1 << 20]);
    assert_eq!(sectors(&path), 2048);
    truncate(&path, (1 << 19) + 1).unwrap();
    assert_eq!(sectors(&path), 1024 + 8);
    truncate(&path, 0).unwrap();
    assert_eq!(sectors(&path), 0);
}

#[test]
fn truncate_refuses_bad_arguments() {
    let stage = stage!();
    let path = stage.file("f", b"content");
    assert_errno!(truncate(&path, -1), INVAL);
    assert_errno!(truncate(stage.path(), 0), ISDIR);
    assert_errno!(truncate(stage.at("none"), 0), NOENT);
    assert_errno!(truncate(path.join("x"), 0), NOTDIR);
    let fd = edit(&path);
    assert_errno!(ftruncate(&fd, u64::MAX), INVAL);
    let read_only = open(&path, OFlags::RDONLY).unwrap();
    assert_errno!(ftruncate(&read_only, 0), INVAL);
    assert_eq!(content(&path), b"content");
}

#[test]
fn the_largest_length_can_be_reached() {
    let stage = stage!();
    let path = stage.file("f", []);
    let fd = edit(&path);
    // The largest length is the filesystem's own; whatever it is, lengths work up to it and fail with EFBIG above.
    let mut works = 0_u64;
    for shift in (0..63).rev() {
        let length = works | 1 << shift;
        match ftruncate(&fd, length) {
            Ok(()) => works = length,
            Err(error) => assert_eq!(error, Errno::FBIG, "length {length}"),
        }
    }
    assert!(works >= 1 << 43, "the largest length is {works}");
    ftruncate(&fd, works).unwrap();
    assert_eq!(size(&path), works);
    write_at(&fd, works - 1, b"x");
    assert_eq!(read_at(&fd, works - 1, 1), b"x");
    assert!(sectors(&path) == 8 || stage.has_large_pages());
}

#[test]
fn the_file_size_limit_of_the_process_applies() {
    // RLIMIT_FSIZE belongs to the process, so a shell has it: EFBIG, and SIGXFSZ is ignored.
    let stage = stage!();
    let script = r#"trap '' XFSZ; ulimit -f 100; cd "$1"; truncate -s 1024 ok 2>/dev/null && ! truncate -s 100M big 2>err && cat err"#;
    let output = std::process::Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(stage.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("File too large"), "{text}");
}

#[test]
fn readers_see_written_bytes_or_zeros_while_a_file_is_cut_and_grown() {
    let stage = stage!();
    let path = stage.file("f", []);
    let fd = edit(&path);
    std::thread::scope(|scope| {
        let cutter = scope.spawn(|| {
            for _ in 0..300 {
                write_at(&fd, 0, &[5; 20_000]);
                ftruncate(&fd, 0).unwrap();
            }
        });
        let reader = edit(&path);
        while !cutter.is_finished() {
            let bytes = read_at(&reader, 0, 20_000);
            // Zeros only while a racing write is under way; never anything else.
            assert!(bytes.iter().all(|&byte| byte == 5 || byte == 0));
        }
    });
}
