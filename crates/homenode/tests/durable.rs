//! Durable pools on files: made, opened, refused, and opened after their process was killed.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use homenode::{
    Allocate, Error, MemberKind, MountOptions, NewFile, OpenOptions, Placement, Pool, PoolOptions, Transport,
};
use homenode_linux::memory::{MemberFile, MemberFileError};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use support::{Files, KILLED, count_records, flip, kills, read, start};

const MEMBER_BYTES: u64 = 64 << 20;
/// Threads of the process that is killed.
const THREADS: usize = 3;
/// Bytes that a record of it has.
const RECORD_BYTES: usize = 200;

fn options() -> PoolOptions {
    PoolOptions::new()
}

/// Way in which the processes that are killed reach their member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Mapped: the kernel has each store.
    Mapped,
    /// Reached by requests, below a cache that goes with the process.
    Disk,
}

/// Environment variable that tells such a process that its member is a disk, and the version up to which [`overwrite`] has synced.
const SYNCED: &str = "HOMENODE_TEST_SYNCED";

impl Kind {
    const ALL: [Self; 2] = [Self::Mapped, Self::Disk];

    /// That of the process itself.
    fn own() -> Self {
        match std::env::var_os(SYNCED) {
            Some(_) => Self::Disk,
            None => Self::Mapped,
        }
    }

    fn options(self) -> PoolOptions {
        match self {
            Self::Mapped => options(),
            Self::Disk => support::cached(),
        }
    }

    /// A tmpfs has no page cache that could be passed by.
    fn files(self, name: &str) -> Files {
        match self {
            Self::Mapped => Files::new(name),
            Self::Disk => Files::under(Path::new(env!("CARGO_TARGET_TMPDIR")), name),
        }
    }
}

/// Runs of a file that is overwritten in place, far more than the cache has, and bytes of each.
const RUNS: usize = 384;
const RUN_BYTES: usize = 64 << 10;

/// Where the write of a version goes.
fn run_of(version: u64) -> usize {
    let run = (version.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % RUNS as u64;
    usize::try_from(run).unwrap()
}

/// Overwrites runs of a file, each word with the version, and syncs now and then, from the version behind the last that was synced on. Returns the last that
/// was when something fails.
fn overwrite(
    mut synced: u64,
    write: impl Fn(&[u8], u64) -> bool,
    sync: impl Fn() -> bool,
    mut tell: impl FnMut(u64),
) -> u64 {
    for version in synced + 1.. {
        let bytes = version.to_le_bytes().repeat(RUN_BYTES / 8);
        if !write(&bytes, (run_of(version) * RUN_BYTES) as u64) {
            break;
        }
        if version.is_multiple_of(40) {
            if !sync() {
                break;
            }
            synced = version;
            tell(version);
        }
    }
    synced
}

/// Checks that a file has the version of each run that was `synced`, or newer ones, and no other bytes.
fn check_overwritten(pool: &Pool, synced: u64) {
    if synced == 0 && pool.metadata("big").is_err() {
        return;
    }
    let bytes = read(pool, "big");
    let mut least = vec![0; RUNS];
    (1..=synced).for_each(|version| least[run_of(version)] = version);
    for (run, least) in least.into_iter().enumerate() {
        let start = (run * RUN_BYTES).min(bytes.len());
        let words = bytes[start..(start + RUN_BYTES).min(bytes.len())].as_chunks().0;
        assert!(least == 0 || words.len() == RUN_BYTES / 8, "run {run} is cut off");
        for (at, word) in words.iter().enumerate() {
            let version = u64::from_le_bytes(*word);
            let is_own = version == 0 || run_of(version) == run;
            assert!(
                version >= least && is_own,
                "word {at} of run {run} is of version {version}, {least} was synced"
            );
        }
    }
}

/// Calls `open` until the files are not in use: a child that another test is just starting has them too until it begins its program.
fn unlocked<T>(open: impl Fn() -> Result<T, Error>) -> T {
    let start = Instant::now();
    loop {
        match open() {
            Err(Error::MemberFile(MemberFileError::InUse { .. })) if start.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened.unwrap(),
        }
    }
}

#[test]
fn written_bytes_are_there_when_the_pool_is_reopened() {
    for (kind, dir) in [
        (MemberKind::File, std::env::temp_dir()),
        (MemberKind::Pmem, "/dev/shm".into()),
    ] {
        let files = Files::under(&dir, &format!("again-{}", kind.name()));
        let members = [files.member("a", MEMBER_BYTES), files.member("b", MEMBER_BYTES)];
        let pool = Pool::create_on(&members, &options()).unwrap();
        pool.create_dir("dir").unwrap();
        let file = pool.create_file("dir/file").unwrap();
        let bytes: Vec<u8> = (0..20_u32 << 20).map(|at| (at >> 12).to_le_bytes()[0]).collect();
        file.write_all_at(&bytes, 10).unwrap();
        file.sync().unwrap();
        pool.rename("dir/file", "moved").unwrap();
        pool.sync().unwrap();
        drop((file, pool));
        // In another order, and twice.
        for _ in 0..2 {
            let pool = Pool::open_on(&[members[1].clone(), members[0].clone()], &options()).unwrap();
            let mut read = vec![0; bytes.len()];
            let file = pool.open("moved", &OpenOptions::new().read(true)).unwrap();
            file.read_exact_at(&mut read, 10).unwrap();
            assert!(read == bytes, "bytes are others");
            let status = pool.status();
            assert_eq!(status.members.len(), 2);
            let is_tmpfs = rustix::fs::statfs(&files.0).unwrap().f_type == 0x0102_1994;
            assert!(status.members.iter().all(|member| member.kind == kind) || is_tmpfs);
            let node = status.members[0].home;
            assert!(matches!(
                pool.add_member(node, homenode::Size::Bytes(64 << 20)),
                Err(Error::DurablePool)
            ));
        }
    }
}

#[test]
fn a_full_pool_can_be_emptied_and_filled_again() {
    let files = Files::new("full");
    let member = files.member("a", MEMBER_BYTES);
    let pool = Pool::create_on(std::slice::from_ref(&member), &options()).unwrap();
    let mut first_round = None;
    for round in 0..3 {
        let full = pool.create_file("full").unwrap();
        let mut bytes = 0;
        while let Ok(written @ 1..) = full.write_at(&[round; 1 << 20], bytes) {
            bytes += written as u64;
        }
        let names = (0..)
            .take_while(|nth| pool.create_file(format!("{nth}")).is_ok())
            .count();
        // Each way of taking away works in a pool that is full.
        full.allocate(Allocate::PunchHole, 0, 4096).unwrap();
        full.set_len(bytes - 8192).unwrap();
        drop(full);
        (0..names).for_each(|nth| pool.remove_file(format!("{nth}")).unwrap());
        pool.remove_file("full").unwrap();
        pool.sync().unwrap();
        let first = *first_round.get_or_insert(bytes);
        assert!(
            bytes >= first * 9 / 10,
            "{bytes} B in round {round}, {first} B in the first"
        );
    }
    drop(pool);
    assert_eq!(
        Pool::open_on(&[member], &options())
            .unwrap()
            .read_dir("/")
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn files_that_are_not_members_of_one_pool_are_refused() {
    let files = Files::new("refused");
    let (a, b) = (files.member("a", MEMBER_BYTES), files.member("b", MEMBER_BYTES));
    let small = files.member("small", 1 << 20);
    let create = |paths: &[PathBuf]| Pool::create_on(paths, &options());
    let open = |paths: &[PathBuf]| Pool::open_on(paths, &options()).map(drop).unwrap_err();
    assert!(matches!(create(&[]), Err(Error::NoMembers)));
    assert!(matches!(create(&[small]), Err(Error::SmallFile { .. })));
    assert!(
        open(std::slice::from_ref(&a))
            .to_string()
            .contains("no member of a pool"),
        "an empty file"
    );
    assert!(create(std::slice::from_ref(&files.0)).is_err(), "a directory");
    let pool = create(std::slice::from_ref(&a)).unwrap();
    assert!(open(std::slice::from_ref(&a)).to_string().contains("is in use"));
    drop(pool);
    let taken = create(std::slice::from_ref(&a)).map(drop).unwrap_err().to_string();
    assert!(taken.contains("is a member of pool"), "{taken}");
    drop(create(std::slice::from_ref(&b)).unwrap());
    assert!(matches!(open(&[a.clone(), b.clone()]), Error::OtherPoolsMember { .. }));
    let (c, d) = (files.member("c", MEMBER_BYTES), files.member("d", MEMBER_BYTES));
    drop(create(&[c.clone(), d.clone()]).unwrap());
    assert!(matches!(open(std::slice::from_ref(&d)), Error::MissingMembers(missing) if missing.len() == 1));
    assert!(matches!(open(&[d.clone(), d]), Error::GivenTwice(_)));
    // A byte of each of both superblocks is another: the one that is whole counts, and none does when none is.
    flip(&b, 100);
    drop(Pool::open_on(std::slice::from_ref(&b), &options()).unwrap());
    flip(&b, 100);
    flip(&b, MEMBER_BYTES - 4096 + 100);
    assert!(open(&[b]).to_string().contains("superblock is damaged"));
}

/// Also what has come to be at a path since somebody looked is not overwritten.
#[test]
fn a_file_with_data_or_in_the_place_of_another_is_refused() {
    let files = Files::new("in-the-place");
    let [a, b] = ["a", "b"].map(|name| files.member(name, MEMBER_BYTES));
    let refuse = |result: Result<(), Error>, text: &str| {
        let told = result.unwrap_err().to_string();
        assert!(told.contains(text), "{told}");
    };
    let create = |path: &PathBuf, options: &PoolOptions| Pool::create_on(std::slice::from_ref(path), options).map(drop);
    flip(&a, MEMBER_BYTES - 100);
    refuse(create(&a, &options()), "holds data");
    assert!(fs::read(&a).unwrap().starts_with(&[0; 4096]), "it was written to");
    let of = |path: &PathBuf| Arc::new(File::options().read(true).write(true).open(path).unwrap());
    let made = |file| PoolOptions {
        overwrites: true,
        made: vec![Some(file)],
        ..options()
    };
    refuse(create(&a, &made(of(&b))), "has taken the place of");
    create(&a, &made(of(&a))).unwrap();
    let pool = Pool::open_on(std::slice::from_ref(&a), &options()).unwrap();
    flip(&b, 100);
    let add = |new: NewFile| pool.add_file(&b, new).map(drop);
    refuse(add(NewFile::default()), "holds data");
    let overwrites = |made| NewFile {
        overwrites: true,
        made: Some(made),
        ..NewFile::default()
    };
    refuse(add(overwrites(of(&a))), "has taken the place of");
    assert_eq!(pool.status().members.len(), 1);
    add(overwrites(of(&b))).unwrap();
}

/// Environment variable that makes this test's own process the server that is killed: where it mounts the pool.
const SERVER: &str = "HOMENODE_TEST_SERVER";

/// Environment variable with which that server reads /dev/fuse.
const CLASSIC: &str = "HOMENODE_TEST_CLASSIC";

/// Serves the pool on a mount until it is killed.
fn serve_until_killed(member: &Path, directory: &Path) -> ! {
    let pool = Pool::open_on(&[member.to_owned()], &Kind::own().options()).unwrap();
    let mut mounting = MountOptions::default();
    if std::env::var_os(CLASSIC).is_some() {
        mounting.transport = Transport::Classic;
    }
    let _mount = pool.mount_with(directory, &mounting).unwrap();
    println!("up");
    loop {
        std::thread::park();
    }
}

/// Replaces a file through the mount again and again, until the server is gone: a new one of two records, synced and renamed over the old one. Returns the
/// last that must be there: that was renamed, and on a disk before a sync.
fn replace_while_served(kind: Kind, directory: &Path) -> Option<u64> {
    let (new, kept) = (directory.join("new"), directory.join("kept"));
    let first = stamp(&fs::read(&kept).unwrap_or_default()).map_or(0, |nth| nth + 1);
    let (mut renamed, mut last) = (None, None);
    let mut replace = |nth: u64| -> std::io::Result<()> {
        let file = File::create(&new)?;
        (&file).write_all(&record(nth))?;
        if nth.is_multiple_of(3) {
            file.sync_all()?;
            last = renamed;
        }
        (&file).write_all(&record(nth))?;
        fs::rename(&new, &kept)?;
        renamed = Some(nth);
        Ok(())
    };
    let _ = (first..).try_for_each(&mut replace);
    match kind {
        Kind::Mapped => renamed,
        Kind::Disk => last,
    }
}

/// Overwrites a large file through the mount until the server is gone; returns the last version that was synced.
fn overwrite_while_served(directory: &Path, synced: u64) -> u64 {
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(directory.join("big"));
    let Ok(file) = file else { return synced };
    let write = |bytes: &[u8], at| file.write_all_at(bytes, at).is_ok();
    overwrite(synced, write, || file.sync_all().is_ok(), |_| ())
}

/// The number that a file of two records has; `None` of an empty one.
fn stamp(bytes: &[u8]) -> Option<u64> {
    let nth = u64::from_le_bytes(bytes.get(..8)?.try_into().unwrap());
    assert!(
        bytes == [record(nth), record(nth)].concat(),
        "another file's bytes: {:?}",
        &bytes[..24]
    );
    Some(nth)
}

/// Appends records through the mount and syncs some, until the server is gone; returns how many must be there: that were written, and on a disk synced.
fn write_while_served(kind: Kind, directory: &Path) -> u64 {
    let path = directory.join("file");
    let Ok(file) = File::options().append(true).create(true).open(path) else {
        return 0;
    };
    let mut nth = file.metadata().map_or(0, |metadata| metadata.len()) / RECORD_BYTES as u64;
    // The kernel sends a write over the end of a page as two: one of them may have come before the kill.
    if file.set_len(nth * RECORD_BYTES as u64).is_err() {
        return 0;
    }
    let mut synced = 0;
    let mut step = |nth: u64| -> std::io::Result<()> {
        (&file).write_all(&record(nth))?;
        if nth.is_multiple_of(7) {
            file.sync_data()?;
            synced = nth + 1;
        }
        Ok(())
    };
    while step(nth).is_ok() {
        nth += 1;
    }
    match kind {
        Kind::Mapped => nth,
        Kind::Disk => synced,
    }
}

#[test]
fn no_written_byte_is_lost_when_a_mounts_server_is_killed() {
    if let (Some(member), Some(directory)) = (std::env::var_os(KILLED), std::env::var_os(SERVER)) {
        serve_until_killed(Path::new(&member), Path::new(&directory));
    }
    if !support::can_mount() {
        return;
    }
    Kind::ALL.into_iter().for_each(kill_servers);
}

/// Kills servers of a mount whose member is reached in such a way.
fn kill_servers(kind: Kind) {
    let files = kind.files("served");
    let (member, directory) = (files.member("a", MEMBER_BYTES), files.0.join("mount"));
    fs::create_dir(&directory).unwrap();
    let pool = Pool::create_on(std::slice::from_ref(&member), &kind.options()).unwrap();
    // So that each rename replaces a file: a disk keeps what is not synced only then.
    let kept = pool.create_file("kept").unwrap();
    kept.write_all_at(&[record(0), record(0)].concat(), 0).unwrap();
    drop((kept, pool));
    let (rounds, mut most, mut replaced) = (kills(), 0, 0);
    let mut synced = 0;
    if fs::read_to_string("/sys/module/fuse/parameters/enable_uring").map_or(true, |switch| switch.trim() != "Y") {
        support::skip("kills of mounts by rings: they are not there, or off");
    }
    for round in 0..rounds {
        let mut variables = vec![(KILLED, member.as_os_str()), (SERVER, directory.as_os_str())];
        let from = synced.to_string();
        if kind == Kind::Disk {
            variables.push((SYNCED, OsStr::new(&from)));
        }
        if round.is_multiple_of(2) {
            variables.push((CLASSIC, OsStr::new("1")));
        }
        let test = "no_written_byte_is_lost_when_a_mounts_server_is_killed";
        let (mut child, _lines) = start(test, &variables);
        let (written, last, overwritten) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_while_served(kind, &directory));
            let replacer = scope.spawn(|| replace_while_served(kind, &directory));
            let overwriter = (kind == Kind::Disk).then(|| scope.spawn(|| overwrite_while_served(&directory, synced)));
            std::thread::sleep(Duration::from_millis(20 + round * 7 % 90));
            child.kill().unwrap();
            child.wait().unwrap();
            let overwritten = overwriter.map_or(0, |overwriter| overwriter.join().unwrap());
            (writer.join().unwrap(), replacer.join().unwrap(), overwritten)
        });
        synced = overwritten;
        let unmounted = Command::new("umount").arg("-l").arg(&directory).status().unwrap();
        assert!(unmounted.success(), "round {round}: the dead mount stays");
        let checked = unlocked(|| homenode::check(std::slice::from_ref(&member)));
        assert!(checked.faults.is_empty(), "round {round}: {:?}", checked.faults);
        let pool = unlocked(|| Pool::open_on(std::slice::from_ref(&member), &kind.options()));
        if let Some(last) = last {
            let kept = stamp(&read(&pool, "kept"));
            // One more when the rename was carried out and its answer did not come; on a disk, when a commit came.
            let most = if kind == Kind::Mapped { last + 1 } else { u64::MAX };
            assert!(
                kept.is_some_and(|kept| (last..=most).contains(&kept)),
                "{kind:?}, round {round}: {last} was renamed, {kept:?} is there"
            );
            replaced = replaced.max(last);
        }
        let count = count_records::<RECORD_BYTES>(&pool, "file", written, round);
        most = most.max(count);
        if count > 30_000 {
            pool.remove_file("file").unwrap();
        }
        check_overwritten(&pool, synced);
    }
    assert!(most > rounds, "{most} records in {rounds} rounds: it was not at work");
    assert!(
        replaced > rounds,
        "{replaced} renames in {rounds} rounds: it was not at work"
    );
    assert!(
        kind == Kind::Mapped || synced > rounds,
        "{synced} overwrites in {rounds} rounds: it was not at work"
    );
    eprintln!("{kind:?}: {rounds} rounds, up to {most} records in a file, {replaced} renames, {synced} overwrites");
}

fn record(nth: u64) -> [u8; RECORD_BYTES] {
    support::record(nth)
}

/// Appends records, syncs every few, and tells after each that it is there; for ever.
fn write_until_killed(member: &Path) {
    let kind = Kind::own();
    let pool = Pool::open_on(&[member.to_owned()], &kind.options()).unwrap();
    println!("up");
    let write = |thread: usize| {
        let name = format!("file-{thread}");
        let both = OpenOptions::new().read(true).write(true).create(true);
        let file = pool.open(&name, &both).unwrap();
        let mut nth = file.metadata().len() / RECORD_BYTES as u64;
        loop {
            file.write_all_at(&record(nth), nth * RECORD_BYTES as u64).unwrap();
            nth += 1;
            // What names a file comes and goes beside.
            let other = format!("{name}-{nth}");
            pool.create_file(&other).unwrap();
            // And one takes another's name.
            let new = pool.create_file(format!("{name}-new")).unwrap();
            new.write_all_at(&[record(nth), record(nth)].concat(), 0).unwrap();
            pool.rename(format!("{name}-new"), format!("{name}-kept")).unwrap();
            if nth > 3 {
                // Not there when it was killed before it made that one.
                let _ = pool.remove_file(format!("{name}-{}", nth - 3));
            }
            let is_synced = nth.is_multiple_of(thread as u64 * 5 + 1);
            if is_synced {
                file.sync().unwrap();
            }
            if is_synced || kind == Kind::Mapped {
                println!("{thread} {nth}");
            }
        }
    };
    let overwrite_big = || {
        let both = OpenOptions::new().read(true).write(true).create(true);
        let file = pool.open("big", &both).unwrap();
        let synced = std::env::var(SYNCED).unwrap().parse().unwrap();
        let write = |bytes: &[u8], at| file.write_all_at(bytes, at).is_ok();
        overwrite(
            synced,
            write,
            || file.sync().is_ok(),
            |version| println!("{THREADS} {version}"),
        );
        unreachable!("the child works until it is killed");
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || write(thread));
        }
        if kind == Kind::Disk {
            scope.spawn(overwrite_big);
        }
    });
}

#[test]
fn no_acknowledged_byte_is_lost_when_the_process_is_killed() {
    if let Some(member) = std::env::var_os(KILLED) {
        return write_until_killed(Path::new(&member));
    }
    Kind::ALL.into_iter().for_each(kill_writers);
}

/// Number of the history of a member's pool.
fn history_of(member: &Path) -> u64 {
    MemberFile::look(member).unwrap().superblock().unwrap().history
}

#[test]
fn a_copy_of_a_pool_has_another_history() {
    let files = Files::new("copied");
    let [member, copy] = ["a", "b"].map(|name| files.member(name, MEMBER_BYTES));
    drop(Pool::create_on(std::slice::from_ref(&member), &options()).unwrap());
    fs::copy(&member, &copy).unwrap();
    assert_eq!(history_of(&copy), history_of(&member));
    for path in [&member, &copy] {
        Pool::open_on(std::slice::from_ref(path), &options())
            .unwrap()
            .put_away()
            .unwrap();
    }
    assert_ne!(history_of(&copy), history_of(&member));
    let before = history_of(&member);
    drop(Pool::open_on(std::slice::from_ref(&member), &options()).unwrap());
    assert_eq!(history_of(&member), before, "nothing was lost in the original");
}

/// Kills processes that write to a member that is reached in such a way.
fn kill_writers(kind: Kind) {
    let rounds = kills();
    let files = kind.files("killed");
    let member = files.member("a", MEMBER_BYTES);
    drop(Pool::create_on(std::slice::from_ref(&member), &kind.options()).unwrap());
    let (mut written, mut synced) = (0, 0);
    let mut history = history_of(&member);
    for round in 0..rounds {
        let test = "no_acknowledged_byte_is_lost_when_the_process_is_killed";
        let mut variables = vec![(KILLED, member.as_os_str())];
        let from = synced.to_string();
        if kind == Kind::Disk {
            variables.push((SYNCED, OsStr::new(&from)));
        }
        let (mut child, mut lines) = start(test, &variables);
        let mut told = [0; THREADS + 1];
        let until = Instant::now() + Duration::from_millis(20 + round * 7 % 90);
        let note = |told: &mut [u64], line: &str| {
            if let Some((thread, nth)) = line.split_once(' ') {
                let thread: usize = thread.parse().expect(line);
                told[thread] = nth.parse().expect(line);
            }
        };
        while Instant::now() < until {
            let line = lines.next().expect("it goes on until it is killed").unwrap();
            note(&mut told, &line);
        }
        child.kill().unwrap();
        // Each line is one write to the pipe, so none is cut off.
        lines.map_while(Result::ok).for_each(|line| note(&mut told, &line));
        child.wait().unwrap();
        let pool = unlocked(|| Pool::open_on(std::slice::from_ref(&member), &kind.options()));
        let before = std::mem::replace(&mut history, history_of(&member));
        assert_eq!(
            history == before,
            kind == Kind::Mapped,
            "{kind:?}: block devices may go on where nothing is lost"
        );
        synced = told[THREADS].max(synced);
        check_overwritten(&pool, synced);
        for (thread, told) in told[..THREADS].iter().enumerate() {
            let count = count_records::<RECORD_BYTES>(&pool, &format!("file-{thread}"), *told, round);
            written = written.max(count);
            // The first one replaced none, for which its bytes would be settled.
            if *told > 1 {
                let kept = stamp(&read(&pool, &format!("file-{thread}-kept"))).unwrap();
                assert!(kept >= *told, "round {round}: {told} was renamed, {kept} is there");
                // It is removed three records later: on a disk more are told only with the next sync.
                let later = if kind == Kind::Mapped { 1 } else { 20 };
                assert!(
                    (*told..=told + later).any(|nth| pool.metadata(format!("file-{thread}-{nth}")).is_ok()),
                    "round {round}: file-{thread}-{told} is gone"
                );
            }
            // Before the pool is full.
            if count > 30_000 {
                pool.remove_file(format!("file-{thread}")).unwrap();
            }
        }
    }
    assert!(
        written > rounds * 10,
        "{written} records in {rounds} rounds: it was not at work"
    );
    assert!(
        kind == Kind::Mapped || synced > rounds,
        "{synced} overwrites in {rounds} rounds: it was not at work"
    );
    eprintln!("{kind:?}: {rounds} rounds, {written} records in a file, {synced} overwrites");
}

/// Blocks that were freed are kept back until a commit, so they tell when there was one.
#[test]
fn commits_follow_the_given_period() {
    const BYTES: u64 = 8 << 20;
    let files = Files::new("commits");
    let is_freed_within = |period: Option<Duration>, time: Duration| {
        let mut options = options();
        options.commit_period = period;
        let member = files.member(&format!("{period:?}"), MEMBER_BYTES);
        let pool = Pool::create_on(&[member], &options).unwrap();
        let file = pool.create_file("file").unwrap();
        file.write_all_at(&vec![7; usize::try_from(BYTES).unwrap()], 0).unwrap();
        pool.sync().unwrap();
        drop(file);
        let before = pool.status().free_bytes;
        pool.remove_file("file").unwrap();
        let start = Instant::now();
        // Some blocks of the log come and go.
        while pool.status().free_bytes < before + BYTES / 2 {
            if start.elapsed() > time {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    };
    assert!(is_freed_within(None, Duration::from_secs(20)));
    assert!(!is_freed_within(Some(Duration::from_secs(300)), Duration::from_secs(3)));
    let refused = Pool::create(&options().commit_period(Duration::from_secs(5)));
    assert!(matches!(refused, Err(Error::CommitOfMemory)));
}

/// Threads of the crowd: many more than CPUs.
const CROWD: u64 = 64;
/// Time that the crowd works, and that it may take to end.
const CROWD_TIME: Duration = Duration::from_secs(3);
const CROWD_TIMEOUT: Duration = Duration::from_secs(100);

/// How long a thread of the crowd may wait for one fsync on a busy machine.
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);

/// Many more threads than the server has, or entries in its rings: each comes to its turn.
#[test]
fn many_syncing_threads_on_a_mount_progress_without_blocking_others() {
    if !support::can_mount() {
        return;
    }
    for transport in [Transport::Auto, Transport::Classic] {
        let files = Files::new("crowd-on-a-mount");
        let (member, directory) = (files.member("a", MEMBER_BYTES), files.0.join("mount"));
        fs::create_dir(&directory).unwrap();
        let pool = Pool::create_on(&[member], &options()).unwrap();
        let mut mounting = MountOptions::default();
        mounting.transport = transport;
        let mount = pool.mount_with(&directory, &mounting).unwrap();
        let end = Instant::now() + CROWD_TIME;
        // How often, and the longest wait.
        let until_end = |act: &dyn Fn(u64)| {
            let (mut count, mut worst) = (0, Duration::ZERO);
            while Instant::now() < end {
                let start = Instant::now();
                act(count);
                (count, worst) = (count + 1, worst.max(start.elapsed()));
            }
            (count, worst)
        };
        let sync = |thread: u64| {
            let file = File::create(directory.join(format!("file-{thread}"))).unwrap();
            until_end(&|nth| {
                file.write_all_at(&[7; 4096], nth % 64 * 4096).unwrap();
                file.sync_all().unwrap();
            })
        };
        let make = || until_end(&|nth| drop(File::create(directory.join(format!("made-{}", nth % 100))).unwrap()));
        let (syncs, (made, worst_made)) = std::thread::scope(|scope| {
            let maker = scope.spawn(make);
            let sync = &sync;
            let syncs: Vec<_> = (0..CROWD).map(|thread| scope.spawn(move || sync(thread))).collect();
            let syncs: Vec<_> = syncs.into_iter().map(|sync| sync.join().unwrap()).collect();
            (syncs, maker.join().unwrap())
        });
        let (least, total) = (
            syncs.iter().map(|sync| sync.0).min().unwrap(),
            syncs.iter().map(|sync| sync.0).sum::<u64>(),
        );
        let worst = syncs.iter().map(|sync| sync.1).max().unwrap();
        eprintln!(
            "{}: {total} fsyncs of {CROWD} threads, {least} at least, the longest wait {worst:?}; beside them {made} files made, {worst_made:?}",
            mount.transport().transport
        );
        assert!(
            least > 0 && worst < SYNC_TIMEOUT,
            "{least} fsyncs of one thread, {worst:?}"
        );
        assert!(made > 0 && worst_made < SYNC_TIMEOUT, "{made} files, {worst_made:?}");
        mount.unmount(false).unwrap();
        mount.wait().unwrap();
    }
}

/// Changes files that all threads share, until `end`.
fn disturb(pool: &Pool, thread: u64, end: Instant) {
    let mut random = fastrand::Rng::with_seed(thread);
    let both = OpenOptions::new().read(true).write(true).create(true);
    while Instant::now() < end {
        let name = |random: &mut fastrand::Rng| format!("shared-{}", random.u8(..4));
        let file = pool.open(name(&mut random), &both).unwrap();
        let at = random.u64(..64) * 4096;
        // A full pool or a range that is not there may refuse any of these.
        let _ = match random.u8(..10) {
            0..=3 => file.write_all_at(&vec![7; random.usize(1..60_000)], at + 9),
            4 => file.allocate(Allocate::CollapseRange, at, 8192),
            5 => file.allocate(Allocate::InsertRange, at, 4096),
            6 => file.allocate(Allocate::PunchHole, at + 100, 20_000),
            7 => file.set_len(at + random.u64(..4096)),
            8 => pool.rename(name(&mut random), name(&mut random)),
            _ => file.sync(),
        };
    }
}

/// Appends to a file of its own, and puts a new one in its place again and again, until `end`; returns how many records the last one has.
fn append(pool: &Pool, thread: u64, end: Instant) -> u64 {
    let (name, new) = (format!("own-{thread}"), format!("new-{thread}"));
    let mut count = 0;
    let mut file = pool.create_file(&name).unwrap();
    while Instant::now() < end {
        if count == 300 {
            file = pool.create_file(&new).unwrap();
            file.write_all_at(&record(0), 0).unwrap();
            pool.rename(&new, &name).unwrap();
            count = 1;
        }
        file.write_all_at(&record(count), count * RECORD_BYTES as u64).unwrap();
        count += 1;
        if count.is_multiple_of(thread + 5) {
            file.sync().unwrap();
        }
    }
    count
}

#[test]
fn many_threads_do_not_deadlock_and_lose_no_record() {
    for dir in [std::env::temp_dir(), "/dev/shm".into()] {
        let files = Files::under(&dir, "crowd");
        let member = files.member("a", MEMBER_BYTES);
        let pool = Pool::create_on(std::slice::from_ref(&member), &options()).unwrap();
        let (done, is_done) = mpsc::channel::<()>();
        let watch = std::thread::spawn(move || {
            if is_done.recv_timeout(CROWD_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("the threads block each other");
                std::process::abort();
            }
        });
        let end = Instant::now() + CROWD_TIME;
        let pool = &pool;
        let counts: Vec<u64> = std::thread::scope(|scope| {
            let disturbers: Vec<_> = (0..CROWD / 2)
                .map(|thread| scope.spawn(move || disturb(pool, thread, end)))
                .collect();
            let writers: Vec<_> = (0..CROWD / 2)
                .map(|thread| scope.spawn(move || append(pool, thread, end)))
                .collect();
            disturbers.into_iter().for_each(|thread| thread.join().unwrap());
            writers.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        drop(done);
        watch.join().unwrap();
        // As after a power cut: a copy of the file while the pool is up, and its log at rest after two more commits.
        let copy = files.0.join("copy");
        pool.sync().unwrap();
        std::thread::sleep(Duration::from_millis(2500));
        fs::copy(&member, &copy).unwrap();
        for path in [copy, member] {
            let opened;
            let pool = if path.ends_with("copy") {
                opened =
                    Pool::open_on(std::slice::from_ref(&path), &options()).unwrap_or_else(|error| panic!("{error}"));
                &opened
            } else {
                pool
            };
            for (thread, count) in counts.iter().enumerate() {
                let records: Vec<u8> = (0..*count).flat_map(record).collect();
                assert!(read(pool, &format!("own-{thread}")) == records, "thread {thread}");
            }
        }
    }
}

#[test]
fn writes_are_complete_while_freed_blocks_wait_for_a_commit() {
    let files = Files::new("waiting");
    let member = files.member("a", MEMBER_BYTES);
    let mut options = options();
    options.commit_period = Some(std::time::Duration::from_secs(300));
    let pool = Pool::create_on(std::slice::from_ref(&member), &options).unwrap();
    let file = pool.create_file("file").unwrap();
    // What each round frees is still held when the pool has nothing else left, most likely in the middle of a write.
    let bytes = vec![7; (1 << 20) - 4096];
    for round in 0..2 * MEMBER_BYTES / (8 << 20) {
        file.set_len(0).unwrap();
        for at in 0..8 {
            let written = file.write_at(&bytes, at * bytes.len() as u64).unwrap();
            assert_eq!(written, bytes.len(), "write {at} of round {round}");
            file.sync().unwrap();
        }
    }
}

#[test]
fn an_unreadable_member_fails_its_reads_and_no_others() {
    const MEBIBYTE: u64 = 1 << 20;
    let files = Files::new("lost");
    let member = files.member("a", MEMBER_BYTES);
    let pool = Pool::create_on(std::slice::from_ref(&member), &options()).unwrap();
    let file = pool.create_file("file").unwrap();
    file.write_all_at(&vec![1; 30 << 20], 0).unwrap();
    let volume = pool.create_volume("volume", 16 << 20, Placement::Local).unwrap();
    volume.write_at(&vec![3; 16 << 20], 0).unwrap();
    pool.sync().unwrap();
    // Somebody cuts the member off. A disk that fails is met in the same way.
    let cut = File::options().write(true).open(&member).unwrap();
    cut.set_len(40 << 20).unwrap();
    let mut bytes = [0; 4096];
    let is_eio = |result: Result<(), Error>| result.unwrap_err().errno() == 5;
    let (mut lost, mut there) = (Vec::new(), Vec::new());
    for offset in (0..30).map(|nth| nth * MEBIBYTE) {
        match file.read_exact_at(&mut bytes, offset) {
            Ok(_) => there.push(offset),
            Err(error) if error.errno() == 5 => lost.push(offset),
            Err(error) => panic!("{error}"),
        }
        assert!(lost.contains(&offset) || bytes == [1; 4096]);
    }
    let is_lost = |nth: u64| volume.read_at(&mut [0; 4096], nth * MEBIBYTE).is_err();
    let lost_of_volume = (0..16).filter(|nth| is_lost(*nth)).count();
    let all = lost.len() + lost_of_volume;
    assert!(
        (10..40).contains(&all) && !there.is_empty(),
        "{lost:?}, {lost_of_volume} of the volume"
    );
    if let Some(offset) = lost.first() {
        assert!(is_eio(file.write_all_at(&[4; 4096], *offset)));
        assert!(is_eio(file.read_exact_at(&mut bytes, *offset).map(drop)), "again");
        assert!(is_eio(file.sync()), "a sync of unwritten bytes succeeded");
    }
    let other = pool.create_file("other");
    assert!(other.is_ok(), "{other:?}");
    file.write_all_at(&[5; 4096], there[0]).unwrap();
    file.read_exact_at(&mut bytes, there[0]).unwrap();
    assert_eq!(bytes, [5; 4096]);
}

/// A part that was cut off a file cannot be read, as a bad sector.
#[test]
fn a_superblock_of_a_file_that_cannot_be_read_is_written_before_it_is_mapped() {
    let files = Files::new("superblock");
    let path = files.member("a", MEMBER_BYTES);
    drop(Pool::create_on(std::slice::from_ref(&path), &options()).unwrap());
    let member = MemberFile::open(&path).unwrap();
    let superblock = member.superblock().unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(MEMBER_BYTES - 4096).unwrap();
    member.heal(&superblock).unwrap();
    drop(member);
    let (mut first, mut last) = ([0; 4096], [1; 4096]);
    let file = File::open(&path).unwrap();
    file.read_exact_at(&mut first, 0).unwrap();
    file.read_exact_at(&mut last, MEMBER_BYTES - 4096).unwrap();
    assert!(first == last && first == superblock.encode()[..]);
    Pool::open_on(&[path], &options()).unwrap();
}
