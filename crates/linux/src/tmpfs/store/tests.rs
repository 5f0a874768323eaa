use super::*;
use crate::memory::mapping::{HUGE_BYTES, Mapping};
use rustix::event::{PollFd, PollFlags};
use std::fs::File;
use std::os::fd::FromRawFd;
use std::sync::mpsc;
use std::time::Duration;

/// A store of 8 MiB; none without the right to mount.
fn store() -> Option<TmpfsStore> {
    let store = TmpfsStore::new(8 << 20, 4, false);
    if let Err(error) = &store {
        crate::skip(format_args!("no private tmpfs: {error}"));
    }
    store.ok()
}

#[test]
fn a_file_returns_its_bytes_size_and_space() {
    let Some(store) = store() else { return };
    let file = store.create().unwrap();
    assert_eq!(file.write(10_000, b"here").unwrap(), 4);
    let mut bytes = [9; 8];
    assert_eq!(file.read(9_998, &mut bytes).unwrap(), 6);
    assert_eq!(&bytes[..6], b"\0\0here");
    let status = file.status().unwrap();
    assert_eq!((status.size, status.blocks), (10_004, 1));
    assert_eq!(file.seek(0, Whence::Data).unwrap(), 8192);
    assert_eq!(file.seek(10_004, Whence::Data), Err(Error::NoData));
    file.set_times(Some(-1), None).unwrap();
    assert_eq!(file.status().unwrap().atime_ns, -1);
    assert_eq!(file.status().unwrap().mtime_ns, status.mtime_ns);
}

#[test]
fn appends_overwrite_nothing_that_others_append() {
    const EACH: usize = 5000;
    let Some(store) = store() else { return };
    let file = store.create().unwrap();
    let held = file.descriptor().unwrap();
    let other = rustix::fs::open(
        format!("/proc/self/fd/{}", held.as_raw_fd()),
        OFlags::WRONLY | OFlags::APPEND,
        rustix::fs::Mode::empty(),
    );
    let other = other.unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..EACH).for_each(|_| assert_eq!(rustix::io::write(&other, b"x"), Ok(1))));
        for _ in 0..EACH {
            let (offset, bytes) = file.append(b"yz").unwrap();
            let mut read = [0; 2];
            assert_eq!((bytes, file.read(offset, &mut read).unwrap(), &read), (2, 2, b"yz"));
        }
    });
    assert_eq!(file.status().unwrap().size, 3 * EACH as u64);
}

#[test]
fn holes_are_blocks_without_pages_at_any_file_end() {
    let Some(store) = store() else { return };
    let file = store.create().unwrap();
    file.write(5 * 4096 + 1, b"x").unwrap();
    // One, or a large page that covers it.
    let written = file.status().unwrap().blocks;
    file.allocate(20 * 4096, 3 * 4096).unwrap();
    let far = i64::MAX as u64 / 4096;
    assert_eq!(
        file.holes(&[0..10, 5..6, 6..7, 18..30, far - 1..far]).unwrap(),
        [10 - written, 0, 1, 9, 1]
    );
    file.punch(20 * 4096, 4096).unwrap();
    assert_eq!(file.holes(&[18..30, 0..1]).unwrap(), [10, 1]);
}

#[test]
fn filling_takes_room_and_moves_no_time() {
    let Some(store) = store() else { return };
    let (file, other) = (store.create().unwrap(), store.create().unwrap());
    file.write(5000, b"here").unwrap();
    file.set_size(5 << 20).unwrap();
    let before = file.status().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    file.map_part(0, &mut BTreeMap::new()).unwrap();
    file.fill(4096, 3 << 20).unwrap();
    let after = file.status().unwrap();
    assert_eq!(file.holes(&[1..769, 1300..1301]), Ok(vec![0, 1]));
    assert_eq!(
        after,
        BackingStatus {
            blocks: after.blocks,
            ..before
        }
    );
    let mut bytes = [9; 6];
    file.read(4999, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0here\0");
    other.write(0, &vec![1; 4 << 20]).unwrap();
    assert_eq!(file.fill(0, 5 << 20), Err(Error::NoSpace));
}

#[test]
fn a_discarded_file_is_removed_and_its_space_freed() {
    let Some(store) = store() else { return };
    let file = store.create().unwrap();
    file.write(0, &[1; 3 << 20]).unwrap();
    let held = file.descriptor().unwrap();
    assert_eq!(store.used_blocks(), 768);
    file.discard();
    assert_eq!(file.status(), Err(Error::Stale));
    assert_eq!(store.used_blocks(), 768, "an open file was removed");
    drop(held);
    assert_eq!(store.used_blocks(), 0);
}

#[test]
fn a_discarded_file_is_removed_after_its_last_operation() {
    let Some(store) = store() else { return };
    let root = &store.0;
    let new = || TmpfsFile {
        root: Arc::clone(root),
        name: root.add().unwrap(),
        using: Mutex::default(),
    };
    let (file, other) = (new(), new());
    file.write(0, &[1; 3 << 20]).unwrap();
    let (one, two) = (file.open().unwrap(), file.run().unwrap());
    other.discard();
    assert!(!store.has_leaving());
    file.discard();
    file.discard();
    assert!(store.has_leaving());
    assert_eq!(store.used_blocks(), 768);
    drop(one);
    assert!(store.has_leaving());
    drop(two);
    assert!(!store.has_leaving());
    assert_eq!((file.status(), store.used_blocks()), (Err(Error::Stale), 0));
    assert!(!store.has_leaving());
}

#[test]
fn files_share_one_limit_that_stays_above_their_use() {
    let Some(store) = store() else { return };
    let (one, other) = (store.create().unwrap(), store.create().unwrap());
    assert_eq!(one.write(0, &vec![1; 6 << 20]).unwrap(), 6 << 20);
    assert_eq!(other.write(0, &vec![1; 4 << 20]).unwrap(), 2 << 20);
    assert_eq!(other.write(4 << 20, b"x"), Err(Error::NoSpace));
    assert_eq!(store.resize(2047), Err(Error::NoSpace));
    store.resize(2049).unwrap();
    assert_eq!(other.write(4 << 20, b"x"), Ok(1));
    one.set_size(0).unwrap();
    store.resize(600).unwrap();
    assert_eq!(one.write(0, &vec![1; 1 << 20]).unwrap(), 87 * 4096);
}

#[test]
fn writers_are_opens_that_write_and_mappings_made_by_them() {
    let Some(store) = store() else { return };
    let file = store.create().unwrap();
    file.write(0, &[1; 8192]).unwrap();
    assert_eq!(file.has_writers(), Ok(false));
    let reader = file.descriptor().unwrap();
    assert_eq!(file.has_writers(), Ok(false));
    let writer = rustix::fs::open(
        format!("/proc/self/fd/{}", reader.as_raw_fd()),
        OFlags::RDWR | OFlags::CLOEXEC,
        OWNER_ONLY,
    )
    .unwrap();
    assert_eq!(file.has_writers(), Ok(true));
    let mapping = crate::memory::mapping::Mapping::reserve(crate::memory::mapping::HUGE_BYTES).unwrap();
    mapping.attach(writer.as_fd()).unwrap();
    drop(writer);
    assert_eq!(file.has_writers(), Ok(true), "a mapping counts as a writer");
    drop(mapping);
    assert_eq!(file.has_writers(), Ok(false));
}

#[test]
fn the_number_of_files_is_limited() {
    let Some(store) = store() else { return };
    let files: Vec<_> = (0..4).map(|_| store.create().unwrap()).collect();
    assert_eq!(store.create().unwrap_err(), Error::NoSpace);
    drop(files);
    store.create().unwrap();
}

#[test]
fn a_grown_file_gets_huge_pages_except_in_its_holes() {
    const HUGE: u64 = 2 << 20;
    if store().is_none() {
        return;
    }
    let part = vec![1; 64 << 10];
    let grown = || {
        let store = store().expect("there was one above");
        let file = store.create().unwrap();
        for at in (0..3 * HUGE + 100_000).step_by(part.len()) {
            file.write(at, &part).unwrap();
        }
        file.punch(HUGE + 8192, 4096).unwrap();
        let blocks = file.status().unwrap().blocks;
        let done = file.collapse(0..4 * HUGE);
        done.map(|()| (file.status().unwrap().blocks == blocks).then_some((store, file)))
    };
    // Beside others that write to some tmpfs a hole gets its page back now and then, before anybody has touched it: seen on Linux 6.18.
    let (_store, file) = match (0..4).find_map(|_| grown().transpose()).expect("holes are not filled") {
        Err(Error::NotSupported) => return crate::skip("there are no huge pages for files in memory"),
        file => file.unwrap(),
    };
    let mut data = vec![0; 4096];
    for at in [0, HUGE - 4096, HUGE + 4096, 2 * HUGE, 3 * HUGE] {
        file.read(at, &mut data).unwrap();
        assert_eq!(data, part[..4096], "at {at}");
    }
    let mapping = Mapping::reserve(6 << 20).unwrap();
    mapping.attach_to_read(file.descriptor().unwrap().as_fd(), 0).unwrap();
    mapping.populate_read(0, 6 << 20).unwrap();
    assert_eq!(mapping.huge_bytes(), Some(2 * HUGE), "the second 2 MiB had a hole");
}

/// Memory of this process that comes only when this is dropped: who reads it waits for a page until then.
struct Absent {
    faults: File,
    memory: Mapping,
}

impl Absent {
    /// Returns `None` without the right to have the kernel's own reads wait.
    fn new() -> Option<Self> {
        const UFFDIO_API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
        const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
        // SAFETY: takes a number.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        let Some(fd) = i32::try_from(fd).ok().filter(|fd| *fd >= 0) else {
            crate::skip(format_args!("no userfaultfd: {}", io::Error::last_os_error()));
            return None;
        };
        // SAFETY: a new descriptor that nobody else has.
        let faults = unsafe { File::from_raw_fd(fd) };
        let memory = Mapping::reserve(HUGE_BYTES).unwrap();
        memory.fill().unwrap();
        let mut api = [0xaa_u64, 0, 0];
        let mut missing = [memory.base().addr() as u64, HUGE_BYTES as u64, 1, 0];
        // SAFETY: the kernel reads and writes three words, which live until it returns.
        assert_eq!(unsafe { libc::ioctl(fd, UFFDIO_API, api.as_mut_ptr()) }, 0);
        // SAFETY: as above, with four words; the range is ours.
        assert_eq!(unsafe { libc::ioctl(fd, UFFDIO_REGISTER, missing.as_mut_ptr()) }, 0);
        Some(Self { faults, memory })
    }

    /// Waits until some thread waits for the memory.
    fn wait_for_reader(&self) {
        let mut faults = [PollFd::new(&self.faults, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut faults, Some(&timeout)), Ok(1), "nobody reads");
        let mut message = [0; 32];
        io::Read::read(&mut &self.faults, &mut message).unwrap();
    }
}

#[test]
fn a_writer_whose_memory_never_comes_delays_nobody() {
    const ROOM: Duration = Duration::from_secs(10);
    let (Some(store), Some(absent)) = (store(), Absent::new()) else {
        return;
    };
    let file = store.create().unwrap();
    file.write(HUGE_BYTES as u64, &vec![1; HUGE_BYTES]).unwrap();
    // Far behind a hole, which the keepers pass by larger and larger steps.
    let far = 3 << 39;
    file.write(far, &[1; 4096]).unwrap();
    let descriptor = file.descriptor().unwrap();
    let itself = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let writer = File::options().write(true).open(itself).unwrap();
    let source = absent.memory.base().addr();
    let writing = std::thread::spawn(move || {
        let source = std::ptr::with_exposed_provenance(source);
        // SAFETY: the mapping lives until this thread has ended.
        unsafe { libc::pwrite(writer.as_raw_fd(), source, 4096, 0) }
    });
    absent.wait_for_reader();
    let (done, is_done) = mpsc::channel();
    let looking = std::thread::spawn(move || {
        let (mut by_node, start, end) = (BTreeMap::new(), HUGE_BYTES as u64, 4 * HUGE_BYTES as u64);
        assert_eq!(file.status().unwrap().size, far + 4096);
        assert_eq!(file.next_taken(start, end), Ok(Some(start)));
        assert_eq!(file.next_taken(2 * start, end), Ok(None));
        assert_eq!(file.next_taken(2 * start, 2 * far), Ok(Some(far)));
        assert_eq!(file.holes(&[512..1024, 1024..1025]), Ok(vec![0, 1]));
        assert_eq!(file.fill(4096, 8192), Ok(()));
        let mut next = Some(0);
        while let Some(from) = next {
            next = file.map_part(from, &mut by_node).unwrap();
        }
        // The writer may have its page by now, and each that was written may be huge.
        let found = by_node.values().sum::<u64>();
        assert!((start + 4096..=3 * start).contains(&found), "{found} bytes");
        assert_eq!(file.has_writers(), Ok(true));
        file.place(Placement::Local, None).unwrap();
        let node = *by_node.keys().next().unwrap();
        assert_eq!(file.move_pages(None, node, &mut |_, _| {}), Ok(0));
        assert!(matches!(file.collapse(0..end), Ok(()) | Err(Error::NotSupported)));
        done.send(()).unwrap();
    });
    let in_time = is_done.recv_timeout(ROOM);
    drop(absent.faults);
    assert_eq!(writing.join().unwrap(), 4096);
    looking.join().unwrap();
    in_time.expect("the file's keepers wait for the writer");
}
