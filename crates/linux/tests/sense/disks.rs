//! Bytes of disks, direct and buffered.

use crate::{MIB, named, sense_while, sensor, within_a_percent};
use homenode_linux::affinity::Sensed;
use homenode_policy::topology::{DeviceKind, Topology};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;

/// A directory on a disk of the machine, and the disk's name.
fn on_disk(topology: &Topology) -> Option<(tempfile::TempDir, String)> {
    let executable = std::env::current_exe().unwrap();
    let directory = tempfile::tempdir_in(executable.parent().unwrap()).unwrap();
    let mut disks = topology
        .devices()
        .iter()
        .filter(|device| device.kind == DeviceKind::Block);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let holds = |line: &&str| directory.path().starts_with(line.split(' ').nth(1).unwrap());
    let mount = mounts
        .lines()
        .filter(holds)
        .max_by_key(|line| line.split(' ').nth(1).unwrap().len());
    let source = fs::canonicalize(mount.unwrap().split(' ').next().unwrap()).ok();
    let disk = disks.find(|disk| {
        let prefix = format!("/dev/{}", disk.name);
        source
            .as_ref()
            .is_some_and(|source| source.to_string_lossy().starts_with(&prefix))
    });
    let name = disk.map(|disk| disk.name.clone());
    if name.is_none() {
        crate::skip(format_args!("{mount:?} is on no disk"));
    }
    Some((directory, name?))
}

fn aligned(bytes: usize) -> (Vec<u8>, usize) {
    let buffer = vec![1; bytes + 4096];
    let start = buffer.as_ptr().align_offset(4096);
    (buffer, start)
}

#[test]
fn direct_and_buffered_disk_bytes_are_counted() {
    const BYTES: usize = 16 * MIB;
    let Some((_alone, mut sensor, topology)) = sensor() else {
        return;
    };
    let Some((directory, disk)) = on_disk(&topology) else {
        return;
    };
    let path = directory.path().join("data");
    let writes = {
        let path = path.clone();
        move || {
            let mut file = File::create(path).unwrap();
            file.write_all(&vec![1; BYTES]).unwrap();
        }
    };
    let sensed = sense_while(&mut sensor, &topology, vec![("writes", Box::new(writes))]);
    let expect = |sensed: &Sensed, name: &str| {
        let thread = named(sensed, name);
        let [part] = &thread.disk[..] else { panic!("{thread:?}") };
        assert_eq!(part.device.as_deref(), Some(disk.as_str()), "{thread:?}");
        assert!(within_a_percent(part.bytes, BYTES), "{thread:?}");
    };
    expect(&sensed, "writes");
    // What was dirtied in an earlier period is not counted again, whoever sends it.
    let syncs = {
        let path = path.clone();
        move || File::open(path).unwrap().sync_all().unwrap()
    };
    let sensed = sense_while(&mut sensor, &topology, vec![("syncs", Box::new(syncs))]);
    let synced: u64 = named(&sensed, "syncs").disk.iter().map(|part| part.bytes).sum();
    assert!(synced < (BYTES / 100) as u64, "{synced}");
    let direct = move |write: bool| {
        let flags = libc::O_DIRECT;
        let opened = OpenOptions::new()
            .read(true)
            .write(write)
            .custom_flags(flags)
            .open(&path);
        let mut file = opened.unwrap();
        let (mut buffer, start) = aligned(MIB);
        for _ in 0..BYTES / MIB {
            let buffer = &mut buffer[start..start + MIB];
            if write {
                file.write_all(buffer).unwrap();
            } else {
                file.read_exact(buffer).unwrap();
            }
        }
    };
    let write = {
        let direct = direct.clone();
        move || direct(true)
    };
    let sensed = sense_while(&mut sensor, &topology, vec![("direct-w", Box::new(write))]);
    expect(&sensed, "direct-w");
    let sensed = sense_while(
        &mut sensor,
        &topology,
        vec![("direct-r", Box::new(move || direct(false)))],
    );
    expect(&sensed, "direct-r");
}
