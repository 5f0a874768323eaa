//! Files of a mount that a library user has attached: the mount's own, at the speed of copies.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use homenode::{Data, File, MountOptions, Pool, PoolOptions, Size};
use std::fs;
use std::os::unix::fs::FileExt;

/// Reads and writes that this thread has asked the kernel for.
fn system_calls() -> u64 {
    let told = fs::read_to_string("/proc/thread-self/io").unwrap();
    let count = |name: &str| told.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    ["syscr: ", "syscw: "]
        .iter()
        .map(|name| count(name).parse::<u64>().unwrap())
        .sum()
}

#[test]
fn attached_files_equal_the_mounts_files_and_need_no_system_calls() {
    if !support::can_mount() {
        return;
    }
    let pool = Pool::create(&PoolOptions::new().size_per_node(Size::Bytes(64 << 20))).unwrap();
    let files = support::Files::new("attached");
    let directory = files.0.join("mount");
    fs::create_dir(&directory).unwrap();
    let mut options = MountOptions::default();
    options.data = Data::Kernel;
    let mount = pool.mount_with(&directory, &options).unwrap();
    let path = directory.join("file");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let attached = File::attach(&path).unwrap();
    let plain = fs::File::options().read(true).write(true).open(&path).unwrap();
    let before = system_calls();
    let mut bytes = [0; 4096];
    for at in 0..1000_u64 {
        let offset = at % 256 * 4096;
        attached.write_all_at(&at.to_le_bytes(), offset).unwrap();
        attached.read_exact_at(&mut bytes, offset).unwrap();
        assert_eq!((&bytes[..8], bytes[8]), (&at.to_le_bytes()[..], 1));
    }
    // The first one of each kind in a tick of the kernel's clock.
    let count = system_calls() - before;
    assert!(count < 300, "{count} of 2,000 reads and writes were system calls");
    plain.read_exact_at(&mut bytes[..8], 255 * 4096).unwrap();
    assert_eq!(bytes[..8], 767_u64.to_le_bytes());
    plain.write_all_at(b"mine", 100).unwrap();
    attached.read_exact_at(&mut bytes[..4], 100).unwrap();
    assert_eq!(&bytes[..4], b"mine");
    // Bytes that others cut off are gone at once, and a file grows by zeros.
    plain.set_len(5000).unwrap();
    assert_eq!(attached.read_at(&mut bytes, 4096).unwrap(), 904);
    assert_eq!(attached.read_at(&mut bytes, 8192).unwrap(), 0);
    plain.set_len(1 << 20).unwrap();
    attached.read_exact_at(&mut bytes, 8192).unwrap();
    assert_eq!(bytes, [0; 4096]);
    assert!(attached.map().unwrap().iter().map(|(_, bytes)| bytes).sum::<u64>() > 0);
    // Functions of std::fs::File are there as well.
    assert_eq!(attached.metadata().unwrap().len(), 1 << 20);
    let error = attached.write_at(&[1], u64::MAX).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(22), "{error}");
    drop(attached);
    // Another file gets the number of its descriptor.
    let other = directory.join("other");
    fs::write(&other, b"other").unwrap();
    let other = homenode::Attached::from(fs::File::open(other).unwrap());
    assert_eq!(other.read_at(&mut bytes, 0).unwrap(), 5);
    assert_eq!(other.write_at(&[1], 0).unwrap_err().raw_os_error(), Some(9));
    drop((other, plain));
    // Nothing is mapped any more that keeps it busy.
    mount.unmount(false).unwrap();
}
