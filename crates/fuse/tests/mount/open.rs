//! Opens as the kernel tells of them: counted by access, and none left once everybody has closed or died.

use crate::support::{Mounted, eventually};
use homenode_engine::fs::Opens;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

fn opens(mounted: &Mounted, path: &Path) -> (u32, u32) {
    let ino = homenode_engine::fs::Ino(fs::metadata(path).unwrap().ino());
    let Opens { all, writers } = mounted.fs.opens(&mounted.fs.inode(ino).unwrap());
    (all, writers)
}

/// RELEASE comes after close(2) has returned, and FORGET of a file without a name after that: its space is free then.
fn all_closed(mounted: &Mounted) {
    let is_at_rest = || mounted.fs.open_count() == 0 && !mounted.fs.has_unlinked();
    eventually("nothing is open", is_at_rest);
    mounted.fs.check_invariants();
}

#[test]
fn every_open_is_counted_by_its_access_until_the_last_close() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    let created = File::create(&path).unwrap();
    assert_eq!(opens(&mounted, &path), (1, 1));
    let reader = File::open(&path).unwrap();
    let both = OpenOptions::new().read(true).append(true).open(&path).unwrap();
    let direct = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    assert_eq!(opens(&mounted, &path), (4, 2));
    let twin = both.try_clone().unwrap();
    drop(both);
    assert_eq!(opens(&mounted, &path), (4, 2), "a duplicate is the same open");
    drop((created, twin, direct));
    eventually("one reader is left", || opens(&mounted, &path) == (1, 0));
    drop(reader);
    all_closed(&mounted);
    mounted.finish();
}

#[test]
fn a_mapping_and_a_missing_name_keep_a_file_open() {
    let Some(mounted) = Mounted::new() else { return };
    let free = mounted.fs.statfs().free;
    let path = mounted.path("file");
    fs::write(&path, [7; 8192]).unwrap();
    let file = File::open(&path).unwrap();
    // Cached: a touch of the mapping must not wait for the server, which is in this process and may want memory mapped meanwhile.
    file.read_exact_at(&mut [0; 8192], 0).unwrap();
    // SAFETY: a new mapping of an open file, no address asked for.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            8192,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(map, libc::MAP_FAILED);
    drop(file);
    // A mapping of a file of the kernel keeps its inode, not the open it was made by.
    let mappings = u32::from(!mounted.is_kernel());
    eventually("the writer has closed", || opens(&mounted, &path) == (mappings, 0));
    fs::remove_file(&path).unwrap();
    // SAFETY: the first byte of the mapping, which is readable.
    assert_eq!(unsafe { map.cast::<u8>().read() }, 7);
    assert_eq!(mounted.fs.open_count(), u64::from(mappings));
    assert_ne!(mounted.fs.statfs().free, free, "the mapping keeps its bytes");
    // SAFETY: the mapping made above.
    assert_eq!(unsafe { libc::munmap(map, 8192) }, 0);
    all_closed(&mounted);
    eventually("its space is free", || mounted.fs.statfs().free == free);

    let flags = libc::O_TMPFILE;
    let unnamed = OpenOptions::new().write(true).custom_flags(flags).open(&mounted.dir);
    assert_eq!(mounted.fs.open_count(), 1);
    drop(unnamed.unwrap());
    all_closed(&mounted);
    mounted.finish();
}

#[test]
fn a_killed_program_leaves_nothing_open() {
    let Some(mounted) = Mounted::new() else { return };
    fs::write(mounted.path("file"), b"content").unwrap();
    all_closed(&mounted);
    let mut program = Command::new("sh")
        .args(["-c", "exec 3<file 4>>file 5>new; rm new; echo open; exec cat >&5"])
        .current_dir(&mounted.dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 5];
    std::io::Read::read_exact(program.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert_eq!((&said, mounted.fs.open_count()), (b"open\n", 3));
    program.kill().unwrap();
    program.wait().unwrap();
    all_closed(&mounted);
    eventually("the file without a name is gone", || !mounted.fs.has_unlinked());
    mounted.finish();
}
