//! Disks by io_uring: loop devices, which need root.

use crate::file::{Small, buffers, disk, keeps, make, skip};
use crate::whole;
use homenode_engine::blk::{Driver, Durability, Errno, Outcome, Request};
use homenode_linux::driver::{OpenError, UringFile, UringOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// A loop device over a file, which ends with the test.
struct Loop {
    path: PathBuf,
    _directory: TempDir,
}

impl Loop {
    fn new(arguments: &[&str]) -> Option<Self> {
        Self::within(&disk(), arguments)
    }

    fn within(parent: &str, arguments: &[&str]) -> Option<Self> {
        let (directory, file) = make(parent, 8 * MIB);
        let mut command = Command::new("losetup");
        let output = command
            .args(["--find", "--show"])
            .args(arguments)
            .arg(file)
            .output()
            .ok()?;
        if !output.status.success() {
            skip("needs permission to make a loop device");
            return None;
        }
        let path: PathBuf = String::from_utf8(output.stdout).unwrap().trim().into();
        if !arguments.contains(&"--read-only") {
            // Somebody may have set that for whatever file the device has.
            let _ = Command::new("blockdev").arg("--setrw").arg(&path).status();
        }
        Some(Self {
            path,
            _directory: directory,
        })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

#[test]
fn flushes_of_all_queues_fail_after_bytes_that_could_not_be_written() {
    let Some(small) = Small::new() else { return };
    let Some(disk) = Loop::within(small.path().to_str().unwrap(), &[]) else {
        return;
    };
    let file = open(&disk.path, false).unwrap();
    let device = whole::device(&file, 2);
    let [mut one, mut other] = [0, 1].map(|core| device.join(core).unwrap());
    for nth in 0..128 {
        let write = Request::write(nth * 65_536, 65_536, 0);
        assert_eq!(whole::one(&mut one, write), Ok(65_536), "the page cache takes it");
    }
    for _ in 0..2 {
        assert_eq!(whole::one(&mut one, Request::flush()), Err(Errno::IO));
        assert_eq!(whole::one(&mut other, Request::flush()), Err(Errno::IO));
    }
    let first = Request::write(0, 4096, 0);
    assert_eq!(whole::one(&mut one, first), Ok(4096));
    assert_eq!(
        whole::one(
            &mut one,
            Request {
                durability: Durability::Forced,
                ..first
            }
        ),
        Err(Errno::IO)
    );
}

fn open(path: &Path, direct: bool) -> Result<UringFile, OpenError> {
    let options = UringOptions {
        direct,
        read_only: false,
        // No loop device has it.
        poll: true,
        queues: 2,
        depth: 32,
    };
    UringFile::open(path, buffers(), options)
}

#[test]
fn the_driver_conforms() {
    for sector in ["512", "4096"] {
        for direct in [false, true] {
            let Some(disk) = Loop::new(&["--sector-size", sector]) else {
                return;
            };
            let memory = buffers();
            let options = UringOptions {
                direct,
                queues: 2,
                depth: 32,
                ..UringOptions::default()
            };
            let file = UringFile::open(&disk.path, Arc::clone(&memory), options).unwrap();
            let limits = file.limits();
            assert_eq!(limits.device_bytes, 8 * MIB);
            assert!(limits.block_bytes.to_string() == sector, "{limits:?}");
            assert!(limits.can_zero);
            keeps(&file, &memory);
            whole::two_cores(&file, &memory, 2000);
        }
    }
}

#[test]
fn every_advertised_operation_works() {
    let Some(disk) = Loop::new(&[]) else {
        return;
    };
    let file = open(&disk.path, true).unwrap();
    let mut requests = vec![Request::write_zeroes(0, 65_536), Request::flush()];
    let mut expected: Vec<Outcome> = vec![Ok(65_536), Ok(0)];
    if file.limits().can_discard {
        requests.push(Request::discard(0, 65_536));
        expected.push(Ok(65_536));
    }
    assert_eq!(whole::carry_out(&file, &requests), expected);
}

#[test]
fn a_disk_is_released_with_its_last_queue() {
    let Some(disk) = Loop::new(&[]) else {
        return;
    };
    for _ in 0..20 {
        let file = open(&disk.path, true).unwrap();
        assert_eq!(whole::carry_out(&file, &[Request::write(0, 4096, 0)]), [Ok(4096)]);
        // What is under way is waited for.
        let mut core = whole::device(&file, 1).join(0).unwrap();
        core.submit(Request::read(0, 4096, 0)).unwrap();
        core.run(0, |_| {});
    }
}

#[test]
fn disks_in_use_and_read_only_ones_are_refused_with_the_reason() {
    let (Some(disk), Some(read_only)) = (Loop::new(&[]), Loop::new(&["--read-only"])) else {
        return;
    };
    let first = open(&disk.path, false).unwrap();
    let text = open(&disk.path, false).unwrap_err().to_string();
    assert!(
        text.ends_with("it is mounted, or another program uses it; choose another one, or end that use"),
        "{text}"
    );
    drop(first);
    assert!(open(&disk.path, false).is_ok());
    let text = open(&read_only.path, false).unwrap_err().to_string();
    assert!(text.contains("read-only") || text.contains("Read-only"), "{text}");
    let options = UringOptions {
        read_only: true,
        ..UringOptions::default()
    };
    let reader = UringFile::open(&read_only.path, buffers(), options).unwrap();
    let requests = [Request::read(0, 4096, 0), Request::flush(), Request::write(0, 4096, 0)];
    let done = whole::carry_out(&reader, &requests);
    assert_eq!(done, [Ok(4096), Ok(0), Err(Errno(libc::EBADF))]);
    assert!(!reader.limits().can_discard && !reader.limits().can_zero);
}
