//! A program that writes to all memory that it can reach of its mappings: it harms the files that it may write, and nobody else.

use crate::support::calls::{digest, errno, open, pread, pwrite, say};
use crate::support::{Mounted, Program};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

const FILE_BYTES: usize = 100_000;
/// Users of the program: one who may do little, and root, whom the kernel lets do all that the server allows.
const USERS: [u32; 2] = [65534, 0];

/// A mapping of a file in the mount.
struct Mapping {
    memory: Range<usize>,
    can_write: bool,
    /// Name in the mount.
    name: String,
}

fn mappings(directory: &Path) -> Vec<Mapping> {
    let directory = format!("{}/", directory.display());
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mapping = |line: &str| {
        let (_, name) = line.split_once(&directory)?;
        let mut words = line.split(' ');
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        Some(Mapping {
            memory: number(start)..number(end),
            can_write: words.next()?.contains('w'),
            name: name.to_owned(),
        })
    };
    maps.lines().filter_map(mapping).collect()
}

/// Returns the signal that ends a process which stores a byte, 0 for none.
fn signal_of_store(at: usize) -> i32 {
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: it is mapped, or a signal ends the process.
        unsafe { (at as *mut u8).write_volatile(0xFF) };
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    if libc::WIFSIGNALED(status) {
        libc::WTERMSIG(status)
    } else {
        0
    }
}

/// The program.
pub(crate) fn part(path: &Path) {
    let (directory, reader) = (path.parent().unwrap(), File::open(path.with_extension("read")).unwrap());
    let file = open(path);
    for _ in 0..50 {
        assert_eq!(pread(file.as_raw_fd(), 1, 0).unwrap().len(), 1);
        assert_eq!(pwrite(file.as_raw_fd(), b"x", 0), Ok(1));
        assert_eq!(pread(reader.as_raw_fd(), 1, 0).unwrap().len(), 1);
    }
    let all = mappings(directory);
    let names: Vec<_> = all.iter().map(|mapping| &*mapping.name).collect();
    assert_eq!(all.len(), 3, "{names:?}");
    for mapping in &all {
        let (start, bytes) = (mapping.memory.start, FILE_BYTES.next_multiple_of(4096));
        if mapping.can_write {
            assert!(path.ends_with(&mapping.name), "{names:?}");
            // To the end of the last page: what lies behind is no memory.
            // SAFETY: it is mapped for writing.
            unsafe { std::ptr::write_bytes(start as *mut u8, 0xFF, bytes) };
            assert_eq!(signal_of_store(start + bytes), libc::SIGBUS);
            continue;
        }
        // Mappings of the words, and of a file that may be read.
        for at in [start, start + 64, start + 4096, start + bytes - 1] {
            assert_eq!(signal_of_store(at), libc::SIGSEGV, "{}", mapping.name);
        }
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let protected = unsafe { libc::mprotect(start as *mut _, 4096, both) };
        assert_eq!((protected, errno()), (-1, libc::EACCES), "{}", mapping.name);
        let memory = OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
        assert!(memory.write_at(b"x", start as u64).is_err(), "{}", mapping.name);
        let removed = unsafe { libc::madvise(start as *mut _, 4096, libc::MADV_REMOVE) };
        assert_eq!(removed, -1, "{}", mapping.name);
    }
    spoil_words(&directory.join(format!(".homenode.words.{}", unsafe { libc::geteuid() })));
    say("done");
}

/// Tries what can be done to a file of words by its name.
fn spoil_words(path: &PathBuf) {
    assert!(OpenOptions::new().write(true).open(path).is_err());
    assert!(OpenOptions::new().read(true).write(true).open(path).is_err());
    assert!(fs::set_permissions(path, Permissions::from_mode(0o666)).is_err());
    assert!(fs::remove_file(path).is_err());
    assert!(fs::rename(path, path.with_extension("other")).is_err());
    assert!(fs::hard_link(path, path.with_file_name("link")).is_err());
    let name = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    assert_eq!(unsafe { libc::truncate(name.as_ptr(), 0) }, -1);
    let file = File::open(path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 4096 * 64);
    assert!(file.set_len(0).is_err());
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    assert!(OpenOptions::new().write(true).open(again).is_err());
}

#[test]
fn program_that_scribbles_over_its_mappings_harms_only_its_own_files() {
    let Some(mounted) = Mounted::new() else { return };
    USERS.into_iter().for_each(|user| harm(&mounted, user));
}

fn harm(mounted: &Mounted, user: u32) {
    let path = mounted.path("file");
    let others = ["read", "other"].map(|name| path.with_extension(name));
    for path in [&path, &others[0], &others[1]] {
        fs::write(path, vec![b'a'; FILE_BYTES]).unwrap();
    }
    fs::set_permissions(mounted.directory.path(), Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(&others[1], Permissions::from_mode(0o666)).unwrap();
    // Both are of the same user, and look at the same words.
    let start =
        |part: &str, path: &Path| Program::start_with(part, path, true, |command| _ = command.uid(user).gid(user));
    let mut clients = [start("commands", &path), start("commands", &others[1])];
    for client in &mut clients {
        (0..50).for_each(|at| assert_eq!(client.ask(&format!("read {at} 10")), digest(&[b'a'; 10])));
        (0..50).for_each(|at| assert_eq!(client.ask(&format!("write {at} 1 {}", b'a')), "1"));
    }
    let mut program = start("scribble", &path);
    assert_eq!(program.answer(), "done");
    program.end();
    let [first, second] = &mut clients;
    assert_eq!(fs::metadata(&path).unwrap().size(), FILE_BYTES as u64);
    assert_eq!(first.ask("size"), FILE_BYTES.to_string());
    assert_eq!(first.ask(&format!("read 0 {FILE_BYTES}")), digest(&[0xFF; FILE_BYTES]));
    for path in &others {
        assert!(fs::read(path).unwrap() == [b'a'; FILE_BYTES]);
    }
    // Answers of the server are right, and heard.
    for (client, path) in [(first, &path), (second, &others[1])] {
        let plain = OpenOptions::new().write(true).open(path).unwrap();
        for round in 0..20 {
            plain.write_all_at(&[b'b'; FILE_BYTES], 0).unwrap();
            (0..10).for_each(|at| assert_eq!(client.ask(&format!("read {at} 10")), digest(&[b'b'; 10])));
            plain.set_len(50_000 + round as u64).unwrap();
            let end = 49_990;
            assert_eq!(client.ask(&format!("read {end} 100")), digest(&vec![b'b'; 10 + round]));
        }
    }
    for client in clients {
        assert!(client.end().0 > 20);
    }
}
