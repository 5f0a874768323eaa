//! Members of durable pools come and go while files are in use.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use homenode::{Error, MemberId, MemberState, NewFile, OpenOptions, Placement, Pool, PoolError, PoolOptions, Size};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::{Files, KILLED, count_records, kills, read, record, start};

const MEMBER_BYTES: u64 = 32 << 20;
const UNWRITTEN: NewFile = NewFile {
    unwritten: true,
    direct: false,
    overwrites: false,
    made: None,
};
const RECORD_BYTES: usize = 3000;

fn options() -> PoolOptions {
    PoolOptions::new()
}

fn create(paths: &[PathBuf]) -> Pool {
    Pool::create_on(paths, &options()).unwrap()
}

fn open(paths: &[PathBuf]) -> Result<Pool, Error> {
    Pool::open_on(paths, &options())
}

fn drain(pool: &Pool, member: u16) -> Result<u64, Error> {
    pool.drain(MemberId(member), &mut |_, _| {})
}

/// Bytes that no other seed gives.
fn content(seed: u8, count: usize) -> Vec<u8> {
    (0..count).map(|at| seed ^ (at >> 8).to_le_bytes()[0]).collect()
}

#[test]
fn members_added_and_removed_under_writers_persist() {
    for dir in [std::env::temp_dir(), "/dev/shm".into()] {
        let files = Files::under(&dir, "under-writers");
        let [a, b] = ["a", "b"].map(|name| files.member(name, MEMBER_BYTES));
        let pool = create(std::slice::from_ref(&a));
        let still = content(3, 10 << 20);
        pool.create_file("still").unwrap().write_all_at(&still, 0).unwrap();
        let volume = pool.create_volume("volume", 1 << 20, Placement::Local).unwrap();
        volume.write_all_at(&content(4, 1 << 20), 0).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let file = pool.create_file("moving").unwrap();
                for round in (0..250).cycle() {
                    file.write_all_at(&content(round, 300_000), 0).unwrap();
                    let mut bytes = vec![0; 300_000];
                    file.read_exact_at(&mut bytes, 0).unwrap();
                    assert!(bytes == content(round, 300_000), "bytes are others");
                    if round % 3 == 0 {
                        file.sync().unwrap();
                    }
                    pool.create_file(format!("{round}")).unwrap();
                    pool.remove_file(format!("{round}")).unwrap();
                    if stop.load(Ordering::Relaxed) {
                        return round;
                    }
                }
                unreachable!()
            });
            for (round, path) in [&b, &a, &b].into_iter().enumerate() {
                let round = u16::try_from(round).unwrap();
                assert_eq!(pool.add_file(path, UNWRITTEN).unwrap(), MemberId(round + 1));
                assert!(drain(&pool, round).unwrap() >= 10 << 20, "the files lay there");
                pool.remove(MemberId(round)).unwrap();
                assert_eq!(pool.files(), std::slice::from_ref(path));
            }
            stop.store(true, Ordering::Relaxed);
            let last = writer.join().unwrap();
            assert!(read(&pool, "moving") == content(last, 300_000));
        });
        drop(volume);
        drop(pool);
        assert!(open(std::slice::from_ref(&a)).is_err(), "a removed member opens");
        let pool = open(std::slice::from_ref(&b)).unwrap();
        assert!(read(&pool, "still") == still);
        let mut bytes = vec![0; 1 << 20];
        pool.volume("volume").unwrap().read_at(&mut bytes, 0).unwrap();
        assert!(bytes == content(4, 1 << 20), "the volume has moved, too");
        // The file can be another pool's.
        drop(create(&[a]));
    }
}

#[test]
fn a_member_that_cannot_be_removed_stays_in_service() {
    let files = Files::new("stays");
    let (a, b) = (files.member("a", 2 * MEMBER_BYTES), files.member("b", MEMBER_BYTES));
    let pool = create(&[a, b]);
    assert!(matches!(pool.remove(MemberId(0)), Err(Error::NotDrained(_))));
    let bytes = content(1, 40 << 20);
    let file = pool.create_file("large").unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    let refused = drain(&pool, 0);
    assert!(
        matches!(refused, Err(Error::Pool(PoolError::NoSpace(_)))),
        "{refused:?}"
    );
    assert!(
        pool.status()
            .members
            .iter()
            .all(|member| member.state == MemberState::Candidate)
    );
    file.write_all_at(&bytes[..1 << 20], 42 << 20).unwrap();
    file.sync().unwrap();
    assert!(read(&pool, "large")[..bytes.len()] == bytes);
    drain(&pool, 1).unwrap();
    let last = drain(&pool, 0);
    assert!(matches!(last, Err(Error::Pool(PoolError::Last(_)))), "{last:?}");
    // It was drained as long as the pool was up.
    let paths = pool.files();
    drop((file, pool));
    let pool = open(&paths).unwrap();
    assert!(matches!(pool.remove(MemberId(1)), Err(Error::NotDrained(_))));
    drain(&pool, 1).unwrap();
    pool.remove(MemberId(1)).unwrap();
    assert!(matches!(
        pool.remove(MemberId(1)),
        Err(Error::Pool(PoolError::UnknownMember(_)))
    ));
    assert!(read(&pool, "large")[..bytes.len()] == bytes);
}

#[test]
fn unsuitable_files_are_refused_without_effect() {
    let files = Files::new("refused");
    let [a, b, c] = ["a", "b", "c"].map(|name| files.member(name, MEMBER_BYTES));
    let pool = create(std::slice::from_ref(&a));
    drop(create(std::slice::from_ref(&b)));
    let refused = |path: &Path| pool.add_file(path, UNWRITTEN).unwrap_err().to_string();
    assert!(refused(&a).contains("is in use"));
    assert!(refused(&b).contains("is a member of pool"));
    assert!(refused(&files.member("small", 1 << 20)).contains("needs"));
    assert!(refused(&files.0).contains("no regular file"));
    assert!(refused(Path::new("/nowhere")).contains("No such file"));
    fs::copy(&a, &b).unwrap();
    assert!(refused(&b).contains("is a member of pool"), "a copy of a member");
    let volatile = Pool::create(&options().size_per_node(Size::Bytes(4 << 20))).unwrap();
    assert!(matches!(volatile.add_file(&c, UNWRITTEN), Err(Error::VolatilePool)));
    assert_eq!(pool.files(), std::slice::from_ref(&a));
    pool.create_file("file").unwrap();
    drop(pool);
    assert_eq!(open(&[a]).unwrap().read_dir("/").unwrap().count(), 1);
}

#[test]
fn unlisted_member_files_are_left_alone_and_can_be_added_again() {
    let files = Files::new("left");
    let [a, b, c] = ["a", "b", "c"].map(|name| files.member(name, MEMBER_BYTES));
    let pool = create(&[a.clone(), b.clone()]);
    pool.create_file("file")
        .unwrap()
        .write_all_at(&content(1, 5 << 20), 0)
        .unwrap();
    drain(&pool, 1).unwrap();
    // As a crash leaves it: the pool does not list it, and it is not wiped.
    fs::copy(&b, &c).unwrap();
    pool.remove(MemberId(1)).unwrap();
    drop(pool);
    // Wiped, not wiped, never one, and not there.
    let all = [
        c.clone(),
        b,
        files.member("d", MEMBER_BYTES),
        files.0.join("e"),
        a.clone(),
    ];
    assert_eq!(homenode::find_members(&all).unwrap().members, std::slice::from_ref(&a));
    let pool = open(&all).unwrap();
    assert!(read(&pool, "file") == content(1, 5 << 20));
    pool.add_file(&c, UNWRITTEN).unwrap();
    drop(pool);
    assert!(matches!(open(std::slice::from_ref(&a)), Err(Error::MissingMembers(missing)) if missing == [MemberId(1)]));
    let pool = open(&[a, c]).unwrap();
    assert!(read(&pool, "file") == content(1, 5 << 20));
}

/// Appends records and tells each, while members come and go; for ever.
fn change_until_killed(dir: &Path) {
    let paths = ["a", "b", "c"].map(|name| dir.join(name));
    let pool = open(&paths).unwrap();
    println!("up");
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let pool = pool.clone();
            scope.spawn(move || {
                let both = OpenOptions::new().read(true).write(true).create(true);
                let file = pool.open(format!("file-{thread}"), &both).unwrap();
                let mut nth = file.metadata().len() / RECORD_BYTES as u64;
                loop {
                    if nth > 3000 {
                        println!("{thread} 0");
                        file.set_len(0).unwrap();
                        nth = 0;
                    }
                    file.write_all_at(&record::<RECORD_BYTES>(nth), nth * RECORD_BYTES as u64)
                        .unwrap();
                    nth += 1;
                    println!("{thread} {nth}");
                }
            });
        }
        loop {
            let mut files = pool.files();
            if let Some(path) = paths.iter().find(|path| !files.contains(path)) {
                // One that was being wiped when the process was killed may have bytes of its superblocks left.
                let file = NewFile {
                    overwrites: true,
                    ..UNWRITTEN
                };
                pool.add_file(path, file).unwrap();
                files = pool.files();
            }
            // The first one goes: others come to have the log, and the witness.
            if files.len() > 1 {
                let first = pool.status().members[0].id;
                pool.drain(first, &mut |_, _| {}).unwrap();
                pool.remove(first).unwrap();
                println!("2 1");
            }
        }
    });
}

#[test]
fn a_kill_during_member_changes_loses_nothing() {
    if let Some(dir) = std::env::var_os(KILLED) {
        return change_until_killed(Path::new(&dir));
    }
    let rounds = kills();
    let files = Files::new("killed");
    let paths = ["a", "b", "c"].map(|name| files.member(name, MEMBER_BYTES));
    drop(create(&paths[..2]));
    let mut removed = 0;
    for round in 0..rounds {
        let test = "a_kill_during_member_changes_loses_nothing";
        let (mut child, lines) = start(test, &[(KILLED, files.0.as_os_str())]);
        let reader = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(60 + round * 37 % 300));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut told = [0; 3];
        // Each line is one write to the pipe, so none is cut off; the last may be the one that takes the others back.
        for line in reader.join().unwrap() {
            let (who, nth) = line.split_once(' ').unwrap();
            let who: usize = who.parse().expect(&line);
            told[who] = if who == 2 {
                told[2] + 1
            } else {
                nth.parse().expect(&line)
            };
        }
        removed += told[2];
        let pool = open(&paths).unwrap();
        for (thread, told) in told[..2].iter().enumerate() {
            count_records::<RECORD_BYTES>(&pool, &format!("file-{thread}"), *told, round);
        }
    }
    assert!(removed > rounds / 4, "{removed} members went in {rounds} rounds");
    let checked = homenode::check(&paths).unwrap();
    assert!(checked.faults.is_empty(), "{:?}", checked.faults);
}
