//! Programs of disks in this machine's kernel.

use super::*;
use crate::affinity::sense::bpf::decode::{self, DiskCount};
use libbpf_rs::MapMut;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::thread;

const MIB: u64 = 1 << 20;

#[test]
fn programs_load_with_sufficient_rights() {
    let status = |mask: &str| may_load(&format!("Name:\tx\nCapPrm:\t{mask}\nCapEff:\t{mask}\nCapBnd:\tffff\n"));
    assert!(status("000001ffffffffff") && status("0000000000200000") && status("000000c000000000"));
    assert!(!status("0000000000000000") && !status("0000008000000000") && !status("0000004000000000"));
    assert!(!may_load("") && !status("x"));
}

/// Fallbacks are for kernels that lack what the first programs of a part hook into; here they would hide a program that
/// the verifier refuses.
#[test]
fn first_programs_of_each_part_load() {
    if let Some(why) = refusal() {
        crate::skip(format_args!("{why}"));
        return;
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(|byte: char| !byte.is_ascii_digit())
        .map(str::parse::<u32>);
    let mut number = || numbers.next().unwrap().unwrap();
    let release = (number(), number());
    let tree = Tree::new(Path::new("/"));
    for part in [Part::Threads, Part::Sockets, Part::Disks, Part::Mount, Part::Tmpfs] {
        let is_hooked = match part {
            Part::Threads | Part::Disks => true,
            Part::Sockets => release >= (6, 3),
            Part::Tmpfs => release >= (6, 6),
            // Of a module, perhaps, that is loaded with the first mount.
            Part::Mount => release >= (6, 9) && Path::new("/sys/module/fuse").exists(),
        };
        let constant = part.constant(&tree);
        let loaded = if is_hooked {
            Programs::attach(part, part.alternatives()[0], constant).map_err(|error| format!("{error:#}"))
        } else if part == Part::Sockets {
            Programs::load(part, constant)
        } else {
            crate::skip(format_args!("{part:?}: this kernel has no such functions"));
            continue;
        };
        match loaded {
            Ok(_) => (),
            // Some kernels let nobody hook into functions. The verifier's refusals are EACCES and EINVAL.
            Err(why) if matches!(part, Part::Mount | Part::Tmpfs) && why.contains("(os error 1)") => {
                crate::skip(format_args!("{part:?}: {why}"));
            }
            Err(why) => panic!("{part:?}: {why}"),
        }
    }
}

/// Unless this machine lets none be loaded.
fn disks(programs: &[&str]) -> Option<Programs> {
    if let Some(why) = refusal() {
        crate::skip(format_args!("{why}"));
        return None;
    }
    Some(Programs::attach(Part::Disks, programs, Part::Disks.constant(&Tree::new(Path::new("/")))).unwrap())
}

/// Not in a temporary directory, which may be in memory: the build's is on a disk.
fn directory() -> Option<tempfile::TempDir> {
    const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];
    let executable = std::env::current_exe().unwrap();
    let directory = tempfile::tempdir_in(executable.parent().unwrap()).unwrap();
    if IN_MEMORY.contains(&rustix::fs::statfs(directory.path()).unwrap().f_type) {
        crate::skip("the build's directory is in memory");
        return None;
    }
    Some(directory)
}

fn write(path: &Path, bytes: u64) -> File {
    let mut file = File::create(path).unwrap();
    for _ in 0..bytes / MIB {
        file.write_all(&[1; 1 << 20]).unwrap();
    }
    file
}

fn read(programs: &mut Programs) -> (u64, HashMap<u32, decode::DiskCounts>) {
    let mut bytes = Vec::new();
    programs.read(&mut bytes).unwrap();
    decode::disks(&bytes).unwrap()
}

#[test]
fn a_full_map_is_emptied_and_lost_entries_are_reported() {
    /// Beyond all threads.
    const FIRST: u32 = 1 << 30;
    let (Some(mut programs), Some(directory)) = (disks(&["at_dirty"]), directory()) else {
        return;
    };
    let fill = |map: &MapMut<'_>, index: u32| {
        let key = [(FIRST + index).to_le_bytes(), 77_u32.to_le_bytes()].concat();
        let value = [u64::from(index), 2, 3].map(u64::to_le_bytes).concat();
        map.update(&key, &value, MapFlags::NO_EXIST).is_ok()
    };
    let filled = {
        let counts = programs.object.maps_mut().find(|map| map.name() == "counts").unwrap();
        (0..).take_while(|index| fill(&counts, *index)).count()
    };
    assert!(filled > 30_000, "{filled}");
    // By a thread that has no entry yet.
    let missed = directory.path().join("missed");
    thread::spawn(move || write(&missed, MIB)).join().unwrap();
    let (missed, counts) = read(&mut programs);
    assert!(missed >= MIB, "{missed}");
    let of_ours = |thread: &u32| *thread >= FIRST;
    assert_eq!(counts.keys().filter(|thread| of_ours(thread)).count(), filled);
    for (index, thread) in (FIRST..).take(filled).enumerate() {
        let expected = DiskCount {
            read: index as u64,
            written: 2,
            dirtied: 3,
        };
        let [(_, count)] = counts[&thread][..] else {
            panic!("{thread}")
        };
        assert_eq!(count, expected);
    }
    let (missed, counts) = read(&mut programs);
    assert_eq!((missed, counts.keys().filter(|thread| of_ours(thread)).count()), (0, 0));
}

#[test]
fn dirtied_and_directly_written_bytes_are_counted() {
    const BYTES: u64 = 16 * MIB;
    let (Some(mut programs), Some(directory)) = (disks(&["at_request", "at_dirty"]), directory()) else {
        return;
    };
    let path = directory.path().join("data");
    let me = fs::read_link("/proc/thread-self").unwrap();
    let me: u32 = me.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let mut seen = || {
        let (_, counts) = read(&mut programs);
        let counts = counts.get(&me).cloned().unwrap_or_default().into_iter();
        counts.fold((0, 0), |(written, dirtied), (_, count)| {
            (written + count.written, dirtied + count.dirtied)
        })
    };
    let about = |bytes: u64, expected: u64| bytes.abs_diff(expected) <= BYTES / 20;
    seen();
    write(&path, BYTES).sync_all().unwrap();
    let (written, dirtied) = seen();
    assert!(about(dirtied, BYTES) && about(written, 0), "{dirtied}, {written}");
    let opened = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path);
    let mut file = opened.unwrap();
    let buffer = vec![1_u8; 2 << 20];
    let start = buffer.as_ptr().align_offset(4096);
    for _ in 0..BYTES / MIB {
        file.write_all(&buffer[start..start + (1 << 20)]).unwrap();
    }
    let (written, dirtied) = seen();
    assert!(about(written, BYTES) && about(dirtied, 0), "{written}, {dirtied}");
}
