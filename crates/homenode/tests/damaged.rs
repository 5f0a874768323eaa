//! Durable pools that are only read, of which members are missing, that need too much memory, or whose files are damaged or mixed up.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use homenode::{Error, MemberId, NewFile, OpenOptions, Pool, PoolOptions, Size};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use support::{Files, flip};

const MEMBER_BYTES: u64 = 64 << 20;
const BLOCK: u64 = 4096;
const EIO: i32 = 5;
const EROFS: i32 = 30;

fn read_only() -> PoolOptions {
    PoolOptions {
        read_only: true,
        ..PoolOptions::new()
    }
}

fn degraded() -> PoolOptions {
    PoolOptions {
        degraded: true,
        ..PoolOptions::new()
    }
}

fn open(paths: &[PathBuf], options: &PoolOptions) -> Result<Pool, Error> {
    Pool::open_on(paths, options)
}

fn refused(paths: &[PathBuf], options: &PoolOptions) -> Error {
    open(paths, options).map(drop).unwrap_err()
}

fn read(pool: &Pool, path: &str, offset: u64) -> Result<u8, Error> {
    let file = pool.open(path, &OpenOptions::new().read(true)).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).map(|_| byte[0])
}

#[test]
fn a_read_only_pool_is_not_written() {
    let files = Files::new("read");
    let member = [files.member("a", MEMBER_BYTES)];
    let pool = Pool::create_on(&member, &PoolOptions::new()).unwrap();
    let file = pool.create_file("file").unwrap();
    file.write_all_at(&[7; 10_000], 0).unwrap();
    file.sync().unwrap();
    drop((file, pool));
    let before = fs::read(&member[0]).unwrap();
    fs::set_permissions(&member[0], Permissions::from_mode(0o400)).unwrap();
    let pool = open(&member, &read_only()).unwrap();
    let beside = open(&member, &read_only()).unwrap();
    assert!(pool.is_read_only());
    assert!(refused(&member, &PoolOptions::new()).to_string().contains("in use"));
    assert_eq!(read(&pool, "file", 9_999).unwrap(), 7);
    assert_eq!(read(&beside, "file", 0).unwrap(), 7);
    let errno = |result: Result<(), Error>| result.unwrap_err().errno();
    assert_eq!(errno(pool.create_file("new").map(drop)), EROFS);
    assert_eq!(errno(pool.remove_file("file")), EROFS);
    assert_eq!(errno(pool.rename("file", "other")), EROFS);
    assert_eq!(errno(pool.set_permissions("file", 0o600)), EROFS);
    assert_eq!(errno(pool.set_xattr("file", "user.a", b"b")), EROFS);
    let file = pool.open("file", &OpenOptions::new().read(true).write(true)).unwrap();
    assert_eq!(errno(file.write_all_at(&[1; 4096], 0)), EROFS);
    assert_eq!(errno(file.write_all_at(&[1; 10], 20_000)), EROFS);
    assert_eq!(errno(file.set_len(5)), EROFS);
    file.sync().unwrap();
    pool.sync().unwrap();
    drop((file, pool, beside));
    assert!(fs::read(&member[0]).unwrap() == before, "the member was written");
    fs::set_permissions(&member[0], Permissions::from_mode(0o600)).unwrap();
    // One that writes keeps readers away.
    let pool = open(&member, &PoolOptions::new()).unwrap();
    assert!(refused(&member, &read_only()).to_string().contains("in use"));
    drop(pool);
}

#[test]
fn reads_of_missing_members_fail_and_other_reads_succeed() {
    let files = Files::new("missing");
    let members = [files.member("a", MEMBER_BYTES), files.member("b", MEMBER_BYTES)];
    let pool = Pool::create_on(&members, &PoolOptions::new()).unwrap();
    pool.create_dir("dir").unwrap();
    let file = pool.create_file("dir/large").unwrap();
    let mut bytes = 0;
    while bytes < MEMBER_BYTES * 5 / 4 {
        file.write_all_at(&[9; 1 << 20], bytes).unwrap();
        bytes += 1 << 20;
    }
    drop((file, pool));
    let missing = refused(&members[..1], &PoolOptions::new());
    assert!(matches!(&missing, Error::MissingMembers(all) if all == &[MemberId(1)]));
    assert!(missing.to_string().contains("member 1"), "{missing}");
    let pool = open(&[members[0].clone(), files.0.join("gone")], &degraded()).unwrap();
    assert!(pool.is_read_only());
    assert_eq!(pool.metadata("dir/large").unwrap().len(), bytes);
    let blocks = (0..bytes).step_by(1 << 20);
    let (there, lost): (Vec<u64>, Vec<u64>) = blocks.partition(|at| read(&pool, "dir/large", *at).is_ok());
    assert!(there.len() > 10 && lost.len() > 10, "{there:?}, {lost:?}");
    assert!(there.iter().all(|at| read(&pool, "dir/large", *at).unwrap() == 9));
    assert!(
        lost.iter()
            .all(|at| read(&pool, "dir/large", *at).unwrap_err().errno() == EIO)
    );
    assert_eq!(pool.create_dir("new").unwrap_err().errno(), EROFS);
    drop(pool);
    let without_log = refused(&members[1..], &degraded());
    assert!(matches!(without_log, Error::LogMissing(MemberId(0))), "{without_log}");
    assert!(matches!(refused(&[], &degraded()), Error::NoMembers));
    // With all of them it is as ever.
    let pool = open(&members, &PoolOptions::new()).unwrap();
    assert_eq!(read(&pool, "dir/large", bytes - 1).unwrap(), 9);
}

#[test]
fn a_pool_over_its_metadata_limit_tells_the_needed_size() {
    let files = Files::new("metadata");
    let member = [files.member("a", MEMBER_BYTES)];
    let pool = Pool::create_on(&member, &PoolOptions::new()).unwrap();
    for nth in 0..500 {
        let file = pool.create_file(format!("{nth}")).unwrap();
        // Maps of several kinds: inline, a node, nodes that are far from each other, and a run.
        let offset = [0, 9, 600, 1 << 30][nth % 4] * BLOCK;
        file.write_all_at(&[1; 5000], offset).unwrap();
        pool.set_xattr(format!("{nth}"), "user.a", &[2; 100]).unwrap();
    }
    pool.create_file("run")
        .unwrap()
        .write_all_at(&vec![3; 5 << 20], 0)
        .unwrap();
    pool.symlink("target", "link").unwrap();
    drop(pool);
    let limited = |bytes| PoolOptions::new().metadata(Size::Bytes(bytes));
    let error = refused(&member, &limited(1 << 16));
    let text = error.to_string();
    let Error::Open(homenode_engine::fs::OpenError::Metadata { needs, limit }) = error else {
        panic!("{text}");
    };
    assert_eq!(limit, 1 << 16);
    assert!(
        text.contains(&format!("--metadata {}M", (2 * needs).div_ceil(1 << 20))),
        "{text}"
    );
    assert!(matches!(refused(&member, &limited(needs - 1)), Error::Open(_)));
    let pool = open(&member, &limited(needs)).unwrap();
    let used = pool.status().metadata_used_bytes;
    assert!(used <= needs && used >= needs - needs / 20, "{used} of {needs}");
    assert_eq!(read(&pool, "run", 5 << 19).unwrap(), 3);
}

#[test]
fn member_files_of_different_pools_are_refused_by_name() {
    let files = Files::new("mixed");
    let [a, b, other] = ["a", "b", "other"].map(|name| files.member(name, MEMBER_BYTES));
    drop(Pool::create_on(&[a.clone(), b.clone()], &PoolOptions::new()).unwrap());
    drop(Pool::create_on(std::slice::from_ref(&other), &PoolOptions::new()).unwrap());
    let both = [a.clone(), b.clone()];
    let earlier = fs::read(&b).unwrap();
    drop(open(&both, &PoolOptions::new()).unwrap());
    let last = fs::read(&b).unwrap();
    for options in [PoolOptions::new(), read_only(), degraded()] {
        let is = |paths: &[PathBuf], expected: fn(&Error) -> bool| {
            let error = refused(paths, &options);
            assert!(expected(&error), "{error}");
        };
        is(&[a.clone(), other.clone()], |error| {
            matches!(error, Error::OtherPoolsMember { .. })
        });
        is(&[a.clone(), b.clone(), a.clone()], |error| {
            matches!(error, Error::GivenTwice(_))
        });
        let copy = files.0.join("copy");
        fs::copy(&a, &copy).unwrap();
        is(&[a.clone(), b.clone(), copy], |error| {
            matches!(
                error,
                Error::SameMember {
                    member: MemberId(0),
                    ..
                }
            )
        });
        fs::write(&b, &earlier).unwrap();
        is(&both, |error| matches!(error, Error::OldMember(_)));
        fs::write(&b, &last).unwrap();
        // Shorter and longer.
        for bytes in [MEMBER_BYTES - BLOCK, MEMBER_BYTES / 2, MEMBER_BYTES + BLOCK] {
            let end = fs::read(&b).unwrap();
            let file = File::options().write(true).open(&b).unwrap();
            file.set_len(bytes).unwrap();
            let is_other = |error: &Error| matches!(error, Error::SmallFile { .. } | Error::GrownFile { .. });
            is(&both, is_other);
            assert!(homenode::check(&both).is_err_and(|error| is_other(&error)));
            fs::write(&b, end).unwrap();
        }
    }
    drop(open(&both, &PoolOptions::new()).unwrap());
}

#[test]
fn a_member_missing_during_the_last_use_is_refused() {
    let files = Files::new("away");
    let both = ["a", "b"].map(|name| files.member(name, MEMBER_BYTES));
    drop(Pool::create_on(&both, &PoolOptions::new()).unwrap());
    let earlier = fs::read(&both[1]).unwrap();
    let pool = open(&both, &PoolOptions::new()).unwrap();
    let file = pool.create_file("file").unwrap();
    file.write_all_at(&[7; 4096], 0).unwrap();
    file.sync().unwrap();
    // As a killed process leaves it.
    let killed = both.each_ref().map(|path| fs::read(path).unwrap());
    drop((file, pool));
    fs::write(&both[0], &killed[0]).unwrap();
    fs::write(&both[1], &earlier).unwrap();
    assert!(matches!(refused(&both, &PoolOptions::new()), Error::OldMember(path) if path == both[1]));
    fs::write(&both[1], &killed[1]).unwrap();
    let pool = open(&both, &PoolOptions::new()).unwrap();
    assert_eq!(read(&pool, "file", 4095).unwrap(), 7);
}

#[test]
fn a_read_only_pool_keeps_its_name_and_its_bytes() {
    let files = Files::new("only-read");
    let [a, c] = ["a", "c"].map(|name| files.member(name, MEMBER_BYTES));
    let pool = Pool::create_on(std::slice::from_ref(&a), &PoolOptions::new()).unwrap();
    pool.create_volume("volume", 1 << 20, homenode::Placement::Local)
        .unwrap();
    let uuid = pool.uuid();
    drop(pool);
    let pool = open(std::slice::from_ref(&a), &read_only()).unwrap();
    assert_eq!(pool.uuid(), uuid);
    let volume = pool.volume("volume").unwrap();
    assert!(volume.resize_discarding(8192).is_err());
    assert!(
        pool.add_file(&c, NewFile::default())
            .unwrap_err()
            .to_string()
            .contains("read-only")
    );
    use std::os::unix::fs::MetadataExt;
    assert_eq!(fs::metadata(&c).unwrap().blocks(), 0, "the member was written");
    assert!(pool.drain(MemberId(0), &mut |_, _| {}).is_err());
}

#[test]
fn damage_to_the_log_of_a_closed_pool_is_reported() {
    let files = Files::new("cut");
    let member = [files.member("a", MEMBER_BYTES)];
    let pool = Pool::create_on(&member, &PoolOptions::new()).unwrap();
    for nth in 0..50 {
        pool.create_file(format!("{nth}")).unwrap();
    }
    pool.put_away().unwrap();
    let image = fs::read(&member[0]).unwrap();
    drop(pool);
    fs::write(&member[0], &image).unwrap();
    assert_eq!(open(&member, &read_only()).unwrap().read_dir("/").unwrap().count(), 50);
    // Each group of the tail by itself.
    let mut refusals = 0;
    for at in found(&member[0], b"HNLG") {
        let mut flipped = image.clone();
        flipped[usize::try_from(at).unwrap() + 40] ^= 1;
        fs::write(&member[0], &flipped).unwrap();
        let is_told = homenode::check(&member).map_or(true, |checked| !checked.faults.is_empty());
        match open(&member, &read_only()) {
            Ok(pool) => assert_eq!(pool.read_dir("/").unwrap().count(), 50, "byte {at}"),
            Err(error) => {
                assert!(is_told, "byte {at}: {error}");
                refusals += 1;
            }
        }
        fs::write(&member[0], &image).unwrap();
    }
    assert!(refusals >= 50, "{refusals}");
    let first = found(&member[0], b"HNLG")[0];
    let mut flipped = image;
    flipped[usize::try_from(first).unwrap() + 40] ^= 1;
    fs::write(&member[0], &flipped).unwrap();
    assert!(!homenode::repair(&member, true).unwrap().faults.is_empty());
    assert!(homenode::check(&member).unwrap().faults.is_empty());
    drop(open(&member, &PoolOptions::new()).unwrap());
}

/// A pool as a power cut leaves it, in a file that is not the killed process's, its bytes, and its log's groups in their order.
fn crashed(files: &Files, make: impl FnOnce(&Pool)) -> ([PathBuf; 1], Vec<u8>, Vec<u64>) {
    let member = [files.member("a", MEMBER_BYTES)];
    let options = PoolOptions {
        commit_period: Some(std::time::Duration::from_secs(300)),
        ..PoolOptions::new()
    };
    let pool = Pool::create_on(&member, &options).unwrap();
    make(&pool);
    let copy = [files.member("b", MEMBER_BYTES)];
    let image = fs::read(&member[0]).unwrap();
    drop(pool);
    fs::write(&copy[0], &image).unwrap();
    let mut groups = found(&copy[0], b"HNLG");
    groups.sort_by_key(|at| number(&image, at + 8));
    let nonce = number(&image, groups.last().unwrap() + 16);
    groups.retain(|at| number(&image, at + 16) == nonce);
    (copy, image, groups)
}

fn number(image: &[u8], at: u64) -> u64 {
    let at = usize::try_from(at).unwrap();
    u64::from_le_bytes(image[at..at + 8].try_into().unwrap())
}

#[test]
fn damage_to_the_log_after_a_crash_is_reported_if_groups_follow() {
    const FILES: usize = 20;
    let files = Files::new("crashed");
    let (copy, _, groups) = crashed(&files, |pool| {
        for nth in 0..FILES {
            pool.create_file(format!("{nth}")).unwrap().sync().unwrap();
        }
    });
    assert_eq!(open(&copy, &read_only()).unwrap().read_dir("/").unwrap().count(), FILES);
    let told = groups.len() - 2;
    // Nothing tells damage to the last two from a torn end. Each field of a header, and the records.
    for (at, must_be_told) in groups.iter().enumerate().map(|(nth, at)| (at, nth < told)) {
        for byte in [0, 4, 8, 16, 24, 32, 36, 40] {
            flip(&copy[0], at + byte);
            match open(&copy, &read_only()) {
                Err(_) => assert!(!homenode::check(&copy).is_ok_and(|checked| checked.faults.is_empty())),
                Ok(pool) => {
                    let count = pool.read_dir("/").unwrap().count();
                    assert!(count == FILES || !must_be_told, "byte {byte} of {at}: {count} files");
                }
            }
            flip(&copy[0], at + byte);
        }
    }
}

#[test]
fn damage_many_groups_and_a_segment_before_a_sync_is_reported() {
    let files = Files::new("long");
    let (copy, _, groups) = crashed(&files, |pool| {
        let long = (0..2000).map(|nth| format!("{nth:0200}"));
        long.for_each(|name| drop(pool.create_file(name).unwrap()));
        let short = (0..20).map(|nth| format!("{nth}"));
        short.for_each(|name| pool.create_file(name).unwrap().sync().unwrap());
    });
    assert_eq!(open(&copy, &read_only()).unwrap().read_dir("/").unwrap().count(), 2020);
    for nth in [15, 100, 500, 1500, groups.len() - 5] {
        flip(&copy[0], groups[nth] + 40);
        assert!(open(&copy, &read_only()).is_err(), "group {nth} of {}", groups.len());
        flip(&copy[0], groups[nth] + 40);
    }
}

#[test]
fn a_group_that_points_to_its_own_segment_does_not_loop() {
    let files = Files::new("circle");
    let (copy, image, groups) = crashed(&files, |pool| pool.create_file("file").unwrap().sync().unwrap());
    let last = *groups.last().unwrap();
    let bytes = number(&image, last) >> 32;
    // The superblock's head of the log, of which the end is in the first segment.
    let mut group = [b"HNLG".as_slice(), &53_u32.to_le_bytes()].concat();
    group.extend((number(&image, last + 8) + 1).to_le_bytes());
    group.extend(number(&image, last + 16).to_le_bytes());
    group.extend([0; 16]);
    group.push(20);
    group.extend(&image[104..116]);
    let file = File::options().write(true).open(&copy[0]).unwrap();
    file.write_all_at(&group, last + bytes.next_multiple_of(8)).unwrap();
    assert_eq!(open(&copy, &read_only()).unwrap().read_dir("/").unwrap().count(), 1);
}

#[test]
fn groups_after_a_lost_snapshot_are_kept() {
    let files = Files::new("no-snapshot");
    let member = [files.member("a", MEMBER_BYTES)];
    let pool = Pool::create_on(&member, &PoolOptions::new()).unwrap();
    for nth in 0..20 {
        pool.create_file(format!("{nth}")).unwrap().sync().unwrap();
    }
    let image = fs::read(&member[0]).unwrap();
    drop(pool);
    fs::write(&member[0], &image).unwrap();
    // The first group of each log: a snapshot of nothing but the root, and what followed.
    let snapshot = found(&member[0], b"HNLG")
        .into_iter()
        .filter(|at| number(&image, at + 8) == 1);
    snapshot.for_each(|at| flip(&member[0], at));
    assert!(open(&member, &read_only()).is_err());
    assert!(!homenode::repair(&member, true).unwrap().faults.is_empty());
    assert!(homenode::check(&member).unwrap().faults.is_empty());
    let pool = open(&member, &read_only()).unwrap();
    let kept = (0..20).filter(|nth| pool.metadata(format!("{nth}")).is_ok()).count();
    assert_eq!(kept, 20);
}

/// Offsets of a word in a file.
fn found(path: &Path, word: &[u8]) -> Vec<u64> {
    let bytes = fs::read(path).unwrap();
    // Groups and superblocks begin at multiples of 8.
    let starts = bytes.chunks_exact(8).zip(0_u64..);
    let starts = starts.filter(|(chunk, _)| chunk.starts_with(word));
    starts.map(|(_, nth)| nth * 8).collect()
}

/// Mends a pool of `count` files, and checks what is there of those that nothing is told of; false when it is refused.
fn is_mended(members: &[PathBuf], at: u64) -> bool {
    let Ok(mended) = homenode::repair(members, true) else {
        return false;
    };
    let told: Vec<String> = mended.faults.iter().map(ToString::to_string).collect();
    let again = homenode::check(members).unwrap();
    assert!(again.faults.is_empty(), "byte {at}: {:?}", again.faults);
    let pool = open(members, &read_only()).unwrap();
    for entry in pool.read_dir("/").unwrap() {
        let name = entry.unwrap().name().to_str().unwrap().to_owned();
        let ino = pool.metadata(&name).unwrap().ino();
        let is_told = told.iter().any(|text| text.starts_with(&format!("inode {ino} ")));
        if let Some((_, nth)) = name.rsplit_once('-')
            && !is_told
        {
            check_file(&pool, &name, nth.parse().unwrap(), at);
        }
    }
    true
}

fn check_file(pool: &Pool, name: &str, nth: u64, at: u64) {
    let byte = read(pool, name, 4999);
    assert_eq!(u64::from(byte.unwrap()), nth % 200 + 1, "{name}, byte {at}");
}

#[test]
fn flipped_bytes_of_superblocks_and_log_are_detected_and_repaired() {
    const FILES: u64 = 300;
    let files = Files::new("flipped");
    let members = ["a", "b"].map(|name| files.member(name, 16 << 20));
    let pool = Pool::create_on(&members, &PoolOptions::new()).unwrap();
    for nth in 0..FILES {
        let file = pool.create_file(format!("a-file-with-a-long-name-{nth}")).unwrap();
        file.write_all_at(&[u8::try_from(nth % 200).unwrap() + 1; 5000], 0)
            .unwrap();
    }
    drop(pool);
    // Every byte is flipped in the engine's crash harness; here it is the way through files that counts.
    let mut places = Vec::new();
    for member in &members {
        for at in found(member, b"HomeNode") {
            places.extend([0, 33, 120, 4095].map(|byte| (member, at + byte)));
        }
        let groups = found(member, b"HNLG");
        for at in groups.iter().rev().take(8) {
            places.extend([4, 36, 41].map(|byte| (member, at + byte)));
        }
    }
    let before: Vec<Vec<u8>> = members.iter().map(|member| fs::read(member).unwrap()).collect();
    let (mut clean, mut mended, mut left) = (0, 0, 0);
    for (member, at) in places {
        flip(member, at);
        let opened = open(&members, &read_only());
        let checked = homenode::check(&members);
        if let Ok(pool) = &opened {
            (0..FILES).for_each(|nth| check_file(pool, &format!("a-file-with-a-long-name-{nth}"), nth, at));
        }
        let is_sound = checked.as_ref().is_ok_and(|checked| checked.faults.is_empty());
        assert!(
            opened.is_ok() || !is_sound,
            "byte {at}: checked as sound, and not opened"
        );
        drop(opened);
        match (is_sound, is_mended(&members, at)) {
            (true, _) => clean += 1,
            (false, true) => mended += 1,
            (false, false) => left += 1,
        }
        for (member, bytes) in members.iter().zip(&before) {
            fs::write(member, bytes).unwrap();
        }
    }
    eprintln!("{clean} clean, {mended} mended, {left} left");
    assert!(clean > 0 && mended > 0);
}
