//! The program that tests run with the library preloaded. It uses the C library as programs do, and knows nothing of the library.

use crate::support::calls::{PUNCH, allocate, commands, errno, open, pread, pwrite, say, status};
use crate::support::{FILE, PART};
use std::ffi::{CStr, CString, c_int, c_long};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Does its part, if this process was started for one.
#[test]
fn program() {
    let Ok(part) = std::env::var(PART) else { return };
    let path = PathBuf::from(std::env::var_os(FILE).unwrap());
    match &*part {
        "commands" => commands(&path),
        "race" => race(&path),
        "descriptors" => descriptors(&path),
        "signals" => signals(&path),
        "threads" => threads(&path),
        "learners" => learners(&path),
        "limits" => limits(&path),
        "crowd" => crowd(&path),
        "successors" => successors(&path),
        "appending" => appending(&path),
        "replacing" => replacing(&path),
        "exchanging" => exchanging(&path),
        "allocating" => allocating(&path),
        "locked" => locked(&path),
        "reasons" => reasons(&path),
        "users" => users(&path),
        "namespaces" => namespaces(&path),
        part if LEAVE.iter().any(|(how, _)| *how == part) => table(&path, part),
        "children" => children(&path),
        "spawns" => spawns(&path),
        "messages" => messages(&path),
        other => panic!("no part {other}"),
    }
}

/// Reads and writes at random until it is told to end; counts bytes that nobody writes.
fn race(path: &Path) {
    static ENDS: AtomicBool = AtomicBool::new(false);
    let file = open(path);
    let lines = &mut std::io::stdin().lines();
    lines.next().unwrap().unwrap();
    say("begun");
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            let (mut random, mut odd, mut round) = (fastrand::Rng::new(), 0, 0_u64);
            while !ENDS.load(Ordering::Relaxed) {
                let at = random.usize(..300_000);
                if round % 2 == 0 {
                    let read = pread(file.as_raw_fd(), 8192, at).unwrap();
                    odd += u64::from(read.iter().any(|byte| !matches!(byte, 0 | b'a' | b'b' | b'c')));
                } else {
                    assert_eq!(pwrite(file.as_raw_fd(), &[b'c'; 4096], at), Ok(4096));
                }
                round += 1;
            }
            odd
        });
        lines.next().unwrap().unwrap();
        ENDS.store(true, Ordering::Relaxed);
        say(&format!("{} odd", work.join().unwrap()));
    });
}

/// Uses a descriptor often enough for it to be mapped, and sees what is in the file.
fn use_as(fd: c_int, byte: u8) {
    for _ in 0..50 {
        assert_eq!(pread(fd, 100, 50), Ok(vec![byte; 100]), "descriptor {fd}");
    }
}

/// Each way to close, replace and duplicate descriptors.
fn descriptors(path: &Path) {
    // A stream of memory has none.
    let (mut bytes, mut count) = (std::ptr::null_mut(), 0);
    // SAFETY: room for a place and a number; the stream is closed once.
    let closed = unsafe {
        let stream = libc::open_memstream(&raw mut bytes, &raw mut count);
        *libc::__errno_location() = 0;
        libc::fclose(stream)
    };
    assert_eq!((closed, errno()), (0, 0));
    let other = path.with_extension("other");
    let open_as = |path: &Path, wanted: c_int| {
        let fd = open(path).into_raw_fd();
        assert_eq!(fd, wanted, "the lowest number that is free");
    };
    let first = open(path).into_raw_fd();
    let close_by: [(&str, &dyn Fn()); 6] = [
        ("close", &|| assert_eq!(unsafe { libc::close(first) }, 0)),
        ("close_range", &|| {
            assert_eq!(
                unsafe { libc::close_range(first.cast_unsigned(), first.cast_unsigned(), 0) },
                0
            );
        }),
        ("syscall", &|| {
            assert_eq!(unsafe { libc::syscall(libc::SYS_close, first) }, 0)
        }),
        ("fclose", &|| {
            // SAFETY: a descriptor that is the stream's from now on.
            let stream = unsafe { libc::fdopen(first, c"r+".as_ptr()) };
            // SAFETY: the stream that was just made.
            assert_eq!(unsafe { libc::fclose(stream) }, 0);
        }),
        ("closefrom", &|| unsafe { closefrom(first) }),
        ("drop", &|| {
            drop(unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(first) })
        }),
    ];
    for (how, close) in close_by {
        use_as(first, b'a');
        close();
        open_as(&other, first);
        use_as(first, b'b');
        close();
        // Not a file at all: made past all that opens files.
        let mut ends = [0; 2];
        // SAFETY: room for two.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        assert_eq!(ends[0], first, "{how}");
        assert_eq!(pread(first, 100, 50), Err(libc::ESPIPE), "{how}");
        // SAFETY: both are this function's.
        unsafe { libc::close(ends[1]) };
        unsafe { libc::close(first) };
        open_as(path, first);
    }
    use_as(first, b'a');
    let second = open(&other).into_raw_fd();
    use_as(second, b'b');
    // SAFETY: takes numbers.
    assert_eq!(unsafe { libc::dup2(second, first) }, first);
    use_as(first, b'b');
    // SAFETY: takes numbers.
    let third = unsafe { libc::fcntl(second, libc::F_DUPFD, 20) };
    use_as(third, b'b');
    // Another flag of the open file, by another of its descriptors.
    assert_eq!(pwrite(third, &[b'b'; 10], 0), Ok(10));
    // SAFETY: takes numbers.
    assert_eq!(unsafe { libc::fcntl(first, libc::F_SETFL, libc::O_APPEND) }, 0);
    (0..40).for_each(|_| assert_eq!(pwrite(third, b"z", 0), Ok(1)));
    assert_eq!(pread(second, 1, 0), Ok(vec![b'b']), "the write did not append");
    assert_eq!(pread(second, 50, 10_000), Ok(vec![b'z'; 40]));
    // What cannot be written, read, or is not open.
    let reader = File::open(path).unwrap();
    use_as(reader.as_raw_fd(), b'a');
    assert_eq!(pwrite(reader.as_raw_fd(), b"z", 0), Err(libc::EBADF));
    let writer = OpenOptions::new().write(true).open(path).unwrap();
    (0..40).for_each(|_| assert_eq!(pread(writer.as_raw_fd(), 1, 0), Err(libc::EBADF)));
    assert_eq!(pread(999, 1, 0), Err(libc::EBADF));
    assert_eq!(pread(-1, 1, 0), Err(libc::EBADF));
    // SAFETY: no bytes are read.
    assert_eq!(
        unsafe { libc::pread64(reader.as_raw_fd(), std::ptr::null_mut(), 0, 0) },
        0
    );
    // SAFETY: a buffer of one byte, and an offset that is none.
    assert_eq!(
        unsafe { libc::pread64(reader.as_raw_fd(), [0_u8].as_mut_ptr().cast(), 1, -1) },
        -1
    );
    assert_eq!(errno(), libc::EINVAL);
    // No path is no file, also where the directory was just asked about.
    std::env::set_current_dir(path.parent().unwrap()).unwrap();
    let names = |path: &CStr| {
        let mut status = std::mem::MaybeUninit::<libc::stat64>::uninit();
        match unsafe { libc::stat64(path.as_ptr(), status.as_mut_ptr()) } {
            // SAFETY: the call has filled it.
            0 => Ok(unsafe { status.assume_init() }.st_nlink),
            _ => Err(errno()),
        }
    };
    for round in 0..50 {
        let before = names(c".").unwrap();
        std::fs::create_dir(format!("directory-{round}")).unwrap();
        assert_eq!(names(c"."), Ok(before + 1), "a directory in it more, in the same tick");
    }
    assert_eq!(names(c""), Err(libc::ENOENT));
    // Mapped by another name of the same file: rename and removal change nothing.
    std::fs::rename(path, path.with_extension("renamed")).unwrap();
    use_as(reader.as_raw_fd(), b'a');
    std::fs::remove_file(path.with_extension("renamed")).unwrap();
    use_as(reader.as_raw_fd(), b'a');
    say("done");
}

unsafe extern "C" {
    fn closefrom(first: c_int);
}

static CAUGHT: AtomicUsize = AtomicUsize::new(0);
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// The program's own handler: gives a page of zeros where its own mapping has none.
extern "C" fn on_bus_error(_: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
    // SAFETY: an action with SA_SIGINFO gets one.
    let address = unsafe { (*info).si_addr() } as usize;
    let page = address / 4096 * 4096;
    assert!(page >= MAPPED.load(Ordering::Relaxed));
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: a page of the program's own mapping.
    unsafe { libc::mmap(page as *mut _, 4096, libc::PROT_READ, flags, -1, 0) };
}

/// sigset(3)'s handler that is none.
const SIG_HOLD: usize = 2;

unsafe extern "C" {
    fn sigset(number: libc::c_int, handler: usize) -> usize;
}

fn signals(path: &Path) {
    let file = open(path);
    let fd = file.as_raw_fd();
    (0..50).for_each(|_| assert_eq!(pread(fd, 100, 90_000), Ok(vec![b'a'; 100])));
    // Everything is blocked: a page that is gone must not kill.
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: room for a mask.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: a mask.
    assert_eq!(
        unsafe { libc::sigprocmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut()) },
        0
    );
    // SAFETY: likewise.
    assert_eq!(
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) },
        0
    );
    // Cut by a process without the library, as often as it can.
    let cut = |size: u64| {
        let status = std::process::Command::new("truncate")
            .env_remove("LD_PRELOAD")
            .args(["-s", &size.to_string()])
            .arg(path)
            .status();
        assert!(status.unwrap().success());
    };
    for _ in 0..5 {
        cut(50_000);
        assert_eq!(pread(fd, 100, 90_000), Ok(vec![]));
        assert_eq!(pread(fd, 100, 49_990).unwrap().len(), 10);
        cut(100_000);
        assert_eq!(pread(fd, 100, 90_000), Ok(vec![0; 100]));
        (0..50).for_each(|_| assert_eq!(pwrite(fd, &[b'a'; 100], 90_000), Ok(100)));
    }
    // SAFETY: a mask.
    assert_eq!(
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, all.as_ptr(), std::ptr::null_mut()) },
        0
    );

    // Held, it is not blocked either, and nothing of the library is told.
    // SAFETY: takes numbers.
    let before = unsafe { sigset(libc::SIGBUS, SIG_HOLD) };
    // SAFETY: all zero bits are a sigaction.
    let mut told: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: room for a sigaction.
    assert_eq!(
        unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut told) },
        0
    );
    assert_eq!(before, told.sa_sigaction);
    cut(50_000);
    assert_eq!(pread(fd, 100, 90_000), Ok(vec![]));
    cut(100_000);
    assert_eq!(pread(fd, 100, 90_000), Ok(vec![0; 100]));
    // SAFETY: an error, which it tells.
    assert_eq!(unsafe { libc::closedir(std::ptr::null_mut()) }, -1);

    // The program's own action is its own, and is told as it was set.
    // SAFETY: all zero bits are a sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_bus_error as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: a sigaction.
    assert_eq!(
        unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) },
        0
    );
    // SAFETY: all zero bits are a sigaction.
    let mut told: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: room for a sigaction.
    assert_eq!(
        unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut told) },
        0
    );
    assert_eq!(told.sa_sigaction, action.sa_sigaction);
    let (both, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping.
    let own = unsafe { libc::mmap(std::ptr::null_mut(), 200_704, both, shared, fd, 0) };
    assert_ne!(own, libc::MAP_FAILED);
    MAPPED.store(own as usize, Ordering::Relaxed);
    // SAFETY: within the mapping, beyond the file: the handler makes it readable.
    assert_eq!(unsafe { own.cast::<u8>().add(150_000).read_volatile() }, 0);
    assert_eq!(CAUGHT.load(Ordering::Relaxed), 1);
    // Into such a page: the program's handler is not asked for a copy, and what the system call says counts.
    // SAFETY: within the mapping.
    let gone = unsafe { own.cast::<u8>().add(180_000) };
    // SAFETY: within the mapping.
    let read = unsafe { libc::pread64(fd, gone.cast(), 100, 0) };
    assert_eq!((read, errno()), (-1, libc::EFAULT));
    assert_eq!(CAUGHT.load(Ordering::Relaxed), 1);
    say("done");
}

/// Tells other threads to end, when it is dropped.
struct Ends(&'static AtomicBool);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Some threads read by descriptors that another one closes and opens, and that forks meanwhile.
fn threads(path: &Path) {
    static ENDS: AtomicBool = AtomicBool::new(false);
    let name = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    let fds: Vec<c_int> = (0..4).map(|_| open(path).into_raw_fd()).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut random = fastrand::Rng::new();
                while !ENDS.load(Ordering::Relaxed) {
                    let fd = fds[random.usize(..4)];
                    match pread(fd, 4096, random.usize(..250) * 4096) {
                        Ok(read) => assert!(read.is_empty() || read == [b'a'; 4096]),
                        Err(errno) => assert_eq!(errno, libc::EBADF),
                    }
                    if random.u32(..4) == 0 {
                        let _ = pwrite(fd, &[b'a'; 4096], random.usize(..250) * 4096);
                    }
                }
            });
        }
        // However this thread ends.
        let _ends = Ends(&ENDS);
        for round in 0..400 {
            let fd = fds[round % 4];
            // SAFETY: this thread alone closes and opens.
            unsafe { libc::close(fd) };
            // SAFETY: a string that ends in NUL.
            let opened = unsafe { libc::open(name.as_ptr(), libc::O_RDWR) };
            if opened != fd {
                // SAFETY: takes numbers.
                unsafe { libc::dup2(opened, fd) };
                // SAFETY: it was opened above.
                unsafe { libc::close(opened) };
            }
            (0..10).for_each(|_| assert_eq!(pread(fd, 10, 5).unwrap(), [b'a'; 10]));
            if round % 20 == 0 {
                // SAFETY: the child calls what may be called in one.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    let mut bytes = [0_u8; 4096];
                    let mut good = true;
                    for _ in 0..50 {
                        // SAFETY: a buffer with its length.
                        good &= unsafe { libc::pread64(fd, bytes.as_mut_ptr().cast(), 4096, 8192) } == 4096;
                        good &= bytes == [b'a'; 4096];
                        // SAFETY: a buffer with its length.
                        good &= unsafe { libc::pwrite64(fd, bytes.as_ptr().cast(), 4096, 8192) } == 4096;
                    }
                    // SAFETY: ends the child at once.
                    unsafe { libc::_exit(i32::from(!good)) };
                }
                let mut status = 0;
                // SAFETY: room for a status.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
    });
    say("done");
}

/// Many threads, each with a file of its own, come to be mapped at the same time, again and again.
fn learners(path: &Path) {
    std::thread::scope(|scope| {
        for byte in 0..32_u8 {
            scope.spawn(move || {
                for round in 0..30 {
                    let own = path.with_extension((usize::from(byte) + 32 * (round % 3)).to_string());
                    std::fs::write(&own, vec![byte; 20_000]).unwrap();
                    let file = open(&own);
                    for at in 0..40 {
                        assert_eq!(pread(file.as_raw_fd(), 100, at * 400), Ok(vec![byte; 100]));
                        assert_eq!(pwrite(file.as_raw_fd(), &[byte; 50], at * 400), Ok(50));
                    }
                }
            });
        }
    });
    say("done");
}

/// Limits of the process that system calls look at.
fn limits(path: &Path) {
    let file = open(path);
    let fd = file.as_raw_fd();
    use_as(fd, b'a');
    (0..20).for_each(|_| assert_eq!(pwrite(fd, b"a", 5000), Ok(1)));
    // SAFETY: a signal and no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let limit = libc::rlimit {
        rlim_cur: 4000,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: a limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
    for _ in 0..20 {
        assert_eq!(pwrite(fd, b"a", 5000), Err(libc::EFBIG));
        assert_eq!(pwrite(fd, b"aa", 3999), Ok(1));
        assert_eq!(pwrite(fd, b"a", 3000), Ok(1));
    }
    use_as(fd, b'a');
    // The same by the number of the system call.
    let no_limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        ..limit
    };
    let set_limit = |limit: libc::rlimit| {
        // SAFETY: a limit.
        let set = unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, &raw const limit, 0) };
        assert_eq!(set, 0);
    };
    set_limit(no_limit);
    let file = open(path);
    let fd = file.as_raw_fd();
    (0..50).for_each(|_| assert_eq!(pwrite(fd, b"a", 5000), Ok(1)));
    set_limit(limit);
    (0..50).for_each(|_| assert_eq!(pwrite(fd, b"a", 5000), Err(libc::EFBIG)));
    // SAFETY: takes a number.
    if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } == 0 {
        use_as(fd, b'a');
    }
    say("done");
}

/// A file is cut while the process is another user than the one as whom it was mapped.
fn users(path: &Path) {
    let become_user = |user| assert_eq!(unsafe { libc::seteuid(user) }, 0);
    let mut bytes = 100_000;
    let file = open(path);
    let mut cut = || {
        bytes -= 1;
        file.set_len(bytes as u64).unwrap();
        bytes
    };
    // The other user's count of cuts is some ahead of root's.
    become_user(65534);
    let other = open(path);
    use_as(other.as_raw_fd(), b'a');
    (0..10).for_each(|_| _ = cut());
    for cuts in 1..20 {
        become_user(0);
        let own = open(path);
        use_as(own.as_raw_fd(), b'a');
        become_user(65534);
        cut();
        // The server is asked once in a tick.
        std::thread::sleep(std::time::Duration::from_millis(20));
        use_as(own.as_raw_fd(), b'a');
        let mut end = 0;
        (0..cuts).for_each(|_| end = cut());
        for _ in 0..10 {
            let read = pread(own.as_raw_fd(), 10 + cuts, end - 10);
            assert_eq!(read, Ok(vec![b'a'; 10]), "{cuts} cuts later");
        }
    }
    say("done");
}

/// A new PID namespace for children: its first process is the program's own child.
fn namespaces(path: &Path) {
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0);
    let file = open(path);
    use_as(file.as_raw_fd(), b'a');
    ends_well(|| {
        use_as(file.as_raw_fd(), b'a');
        // SAFETY: it has no conditions.
        unsafe { libc::getpid() == 1 }
    });
    say("done");
}

/// Runs `act` in a child of fork(2), where it has to return true.
fn ends_well(act: impl Fn() -> bool) {
    // SAFETY: this thread alone goes on in the child.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: error {}", errno());
    wait_for(child, act);
}

/// The rest of [`ends_well`]: `child` is 0 in it.
fn wait_for(child: libc::pid_t, act: impl Fn() -> bool) {
    if child == 0 {
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_or(false);
        // It tells no counts: the program's are looked at.
        // SAFETY: ends the child at once.
        unsafe { libc::syscall(libc::SYS_exit_group, i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: room for a status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// A way by which a thread comes to a table of descriptors of its own, and its name.
type Leave = (&'static str, fn() -> c_long);

const LEAVE: [Leave; 4] = [
    ("unshare", || c_long::from(unsafe { libc::unshare(libc::CLONE_FILES) })),
    ("close_range", || {
        c_long::from(unsafe { libc::close_range(900, 901, libc::CLOSE_RANGE_UNSHARE.cast_signed()) })
    }),
    ("unshare's number", || unsafe {
        libc::syscall(libc::SYS_unshare, libc::CLONE_FILES)
    }),
    ("close_range's number", || unsafe {
        libc::syscall(libc::SYS_close_range, 900, 901, libc::CLOSE_RANGE_UNSHARE)
    }),
];

/// A thread with a table of descriptors of its own, where a number is another file.
fn table(path: &Path, how: &str) {
    let file = open(path);
    let fd = file.as_raw_fd();
    use_as(fd, b'a');
    let (_, leave) = LEAVE.iter().find(|(name, _)| *name == how).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(leave(), 0);
            let other = open(&path.with_extension("other"));
            // Not by a function of the C library.
            assert_eq!(raw_dup(other.as_raw_fd(), fd), fd);
            use_as(fd, b'b');
        });
    });
    use_as(fd, b'a');
    // Functions of signals agree on the program's action, also when no file is mapped any more.
    let handler = on_bus_error as *const () as usize;
    // SAFETY: all zero bits are a sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    (action.sa_sigaction, action.sa_flags) = (handler, libc::SA_SIGINFO);
    // SAFETY: an action, and room for none.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
    // SAFETY: takes numbers.
    assert_eq!(
        (set, unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) }),
        (0, handler)
    );
    say("done");
}

#[cfg(not(target_arch = "x86_64"))]
use libc::dup2 as raw_dup;

/// dup3(2) by an instruction.
#[cfg(target_arch = "x86_64")]
fn raw_dup(from: c_int, to: c_int) -> c_int {
    let result: i64;
    // SAFETY: a system call that takes numbers.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_dup3 => result,
            in("rdi") from,
            in("rsi") to,
            in("rdx") 0,
            out("rcx") _,
            out("r11") _,
        );
    }
    c_int::try_from(result).unwrap_or(-1)
}

/// A message that dlerror(3) is to tell outlives the first call of a function.
fn messages(path: &Path) {
    let file = open(path);
    // SAFETY: strings that end in NUL, and numbers.
    let said = unsafe {
        assert!(libc::dlopen(c"/nowhere/library.so".as_ptr(), libc::RTLD_NOW).is_null());
        libc::preadv2(file.as_raw_fd(), std::ptr::null(), 0, 0, 0);
        libc::dlerror()
    };
    assert!(!said.is_null());
    say("done");
}

/// Runs `act` in a child that has this process's memory, as after vfork(2).
fn in_vfork(act: extern "C" fn(*mut libc::c_void) -> c_int, argument: *mut libc::c_void) {
    in_clone(libc::CLONE_VM | libc::CLONE_VFORK, act, argument);
}

/// Runs `act` in a child that clone(2) makes.
fn in_clone(flags: c_int, act: extern "C" fn(*mut libc::c_void) -> c_int, argument: *mut libc::c_void) {
    let mut stack = vec![0_u128; 8192];
    let flags = flags | libc::SIGCHLD;
    // SAFETY: this thread goes on when the child, which has a stack of its own, has ended.
    let child = unsafe { libc::clone(act, stack.as_mut_ptr_range().end.cast(), flags, argument) };
    assert!(child > 0);
    wait_for(child, || true);
}

/// Children that close all descriptors before they execute a program, between a few reads each.
fn spawns(path: &Path) {
    extern "C" fn close_all(_: *mut libc::c_void) -> c_int {
        // SAFETY: takes numbers.
        unsafe { libc::close_range(3, 200, 0) + libc::close(201).min(0) + 1 }
    }
    let file = open(path);
    use_as(file.as_raw_fd(), b'a');
    for _ in 0..100 {
        in_vfork(close_all, std::ptr::null_mut());
        (0..10).for_each(|_| assert_eq!(pread(file.as_raw_fd(), 1, 50), Ok(vec![b'a'])));
    }
    say("done");
}

/// Long enough for a race to be lost.
const TIME: Duration = Duration::from_millis(300);

/// Each child changes only what is its own.
fn children(path: &Path) {
    let file = open(path);
    let fd = file.as_raw_fd();
    use_as(fd, b'a');
    // SAFETY: all zero bits are a sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_bus_error as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: a sigaction.
    assert_eq!(
        unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) },
        0
    );
    extern "C" fn reset(_: *mut libc::c_void) -> c_int {
        // SAFETY: takes numbers.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        // Not for the parent.
        // SAFETY: takes a number.
        unsafe { libc::mlockall(0) };
        0
    }
    in_vfork(reset, std::ptr::null_mut());
    // The kernel's action stays in a child with a copy of the memory: its copies may need it.
    extern "C" fn reset_own(_: *mut libc::c_void) -> c_int {
        const MASK_BYTES: usize = 8;
        let mut action = [0_usize; 8];
        // SAFETY: takes numbers, and room for the kernel's sigaction.
        unsafe {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            libc::syscall(
                libc::SYS_rt_sigaction,
                libc::SIGBUS,
                0_usize,
                action.as_mut_ptr(),
                MASK_BYTES,
            );
        }
        c_int::from(action[0] == libc::SIG_DFL)
    }
    in_clone(0, reset_own, std::ptr::null_mut());
    copy_in_threads(&path.with_extension("long"));
    // By their numbers, on this stack.
    for number in [
        (libc::SYS_vfork, 0),
        (libc::SYS_clone, libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD),
    ] {
        // SAFETY: the child has a copy of the memory, and ends at once.
        let child = unsafe { libc::syscall(number.0, number.1, 0, 0, 0, 0) };
        wait_for(libc::pid_t::try_from(child).unwrap(), || true);
        use_as(fd, b'a');
    }
    // In the child the number is another file's, and used often.
    extern "C" fn use_other(fds: *mut libc::c_void) -> c_int {
        let [fd, other] = unsafe { *fds.cast::<[c_int; 2]>() };
        // SAFETY: takes numbers.
        let done = unsafe { libc::dup2(other, fd) };
        c_int::from(done != fd || !(0..50).all(|_| pread(fd, 1, 50) == Ok(vec![b'b'])))
    }
    let other = open(&path.with_extension("other"));
    let mut fds = [fd, other.as_raw_fd()];
    in_vfork(use_other, fds.as_mut_ptr().cast());
    use_as(fd, b'a');
    // SAFETY: all zero bits are a sigaction.
    let mut told: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: room for a sigaction.
    assert_eq!(
        unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut told) },
        0
    );
    assert_eq!(told.sa_sigaction, action.sa_sigaction);
    (0..200).for_each(|_| use_as(fd, b'a'));
    // The standard input of a child on a new terminal.
    // SAFETY: takes numbers.
    assert_eq!(unsafe { libc::dup2(fd, 0) }, 0);
    use_as(0, b'a');
    let mut terminal = -1;
    // SAFETY: room for a descriptor, and nothing else.
    let child = unsafe {
        libc::forkpty(
            &raw mut terminal,
            std::ptr::null_mut(),
            std::ptr::null(),
            std::ptr::null(),
        )
    };
    wait_for(child, || (0..50).all(|_| pread(0, 100, 50) == Err(libc::ESPIPE)));
    // SAFETY: this thread alone goes on in the child.
    wait_for(unsafe { _Fork() }, || {
        use_as(open(path).as_raw_fd(), b'a');
        true
    });
    say("done");
}

/// Threads of a child with a copy of the memory: the first one copies all the time, as it did in the parent, and another one closes a file that a third one copies.
fn copy_in_threads(path: &Path) {
    const BYTES: usize = 1 << 20;
    std::fs::write(path, vec![b'a'; BYTES]).unwrap();
    extern "C" fn in_threads(files: *mut libc::c_void) -> c_int {
        // SAFETY: the parent's, a copy of which is here.
        let (path, own, shared) = unsafe { &*files.cast::<(PathBuf, c_int, c_int)>() };
        let (own, shared, end) = (*own, *shared, Instant::now() + TIME);
        let work = |fd: c_int, may_be_closed: bool| {
            while Instant::now() < end {
                let read = pread(fd, BYTES, 0);
                assert!(read == Ok(vec![b'a'; BYTES]) || may_be_closed && read == Err(libc::EBADF));
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| work(shared, true));
            std::thread::sleep(TIME / 10);
            scope.spawn(|| {
                while Instant::now() < end {
                    use_as(shared, b'a');
                    // SAFETY: it is this thread's to close.
                    assert_eq!(unsafe { libc::close(shared) }, 0);
                    assert_eq!(open(path).into_raw_fd(), shared, "the lowest number that is free");
                }
            });
            work(own, false);
        });
        0
    }
    let copied = [open(path), open(path)];
    copied.iter().for_each(|file| use_as(file.as_raw_fd(), b'a'));
    let mut files = (path.to_owned(), copied[0].as_raw_fd(), copied[1].as_raw_fd());
    in_clone(0, in_threads, (&raw mut files).cast());
    drop(copied);
}

unsafe extern "C" {
    fn _Fork() -> libc::pid_t;
}

/// Descriptors that are left to the system, each for another reason.
fn reasons(path: &Path) {
    use std::os::unix::fs::OpenOptionsExt;
    let opened = |can_read, flags, path: &Path| {
        let mut options = std::fs::OpenOptions::new();
        options
            .read(can_read)
            .write(true)
            .custom_flags(flags)
            .open(path)
            .unwrap()
    };
    let files = [
        opened(false, 0, path),
        opened(false, 0, path),
        opened(true, libc::O_SYNC, path),
        opened(true, libc::O_DIRECT, path),
        opened(true, libc::O_APPEND, path),
        opened(true, 0, Path::new("/dev/null")),
        tempfile::tempfile().unwrap(),
    ];
    for file in &files {
        for _ in 0..40 {
            // Whatever comes of it, it is a call.
            let _ = pwrite(file.as_raw_fd(), b"a", 0);
        }
    }
    say("done");
}

/// More threads than can copy at a time: the others make system calls, and no more than one each.
fn crowd(path: &Path) {
    const THREADS: usize = 1100;
    static READY: AtomicUsize = AtomicUsize::new(0);
    static ENDS: AtomicBool = AtomicBool::new(false);
    let file = open(path);
    let fd = file.as_raw_fd();
    use_as(fd, b'a');
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let thread = std::thread::Builder::new().stack_size(64 << 10);
            let wait = move || {
                assert_eq!(pread(fd, 10, 0), Ok(vec![b'a'; 10]));
                READY.fetch_add(1, Ordering::Relaxed);
                while !ENDS.load(Ordering::Relaxed) {
                    std::thread::park_timeout(std::time::Duration::from_millis(500));
                }
            };
            thread.spawn_scoped(scope, wait).unwrap();
        }
        while READY.load(Ordering::Relaxed) < THREADS {
            std::thread::yield_now();
        }
        let late = scope.spawn(move || {
            let start = std::time::Instant::now();
            for _ in 0..50_000 {
                assert_eq!(pread(fd, 10, 0).unwrap().len(), 10);
            }
            start.elapsed()
        });
        let elapsed = late.join().unwrap();
        ENDS.store(true, Ordering::Relaxed);
        // A look at all threads takes a tenth of a millisecond and more: with one in each call it is five seconds.
        assert!(elapsed < std::time::Duration::from_secs(3), "{elapsed:?}");
    });
    say("done");
}

/// Threads follow each other, a few at a time, while their descriptor becomes another one of the file now and then.
fn successors(path: &Path) {
    const ROUNDS: usize = 750;
    const AT_ONCE: usize = 4;
    let file = open(path);
    let fd = file.as_raw_fd();
    use_as(fd, b'a');
    for round in 0..ROUNDS {
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| (0..100).for_each(|_| assert_eq!(pread(fd, 10, 0), Ok(vec![b'a'; 10]))));
            }
            if round % 50 == 0 {
                let other = open(path);
                // SAFETY: takes numbers.
                assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
            }
        });
    }
    say("done");
}

/// A file is attached once all that is mapped is to be kept in memory.
fn locked(path: &Path) {
    // SAFETY: takes a number.
    if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
        return say("no");
    }
    let file = homenode::File::attach(path).unwrap();
    let mut bytes = [0; 100];
    for _ in 0..50 {
        file.read_exact_at(&mut bytes, 0).unwrap();
    }
    assert_eq!(bytes, [b'a'; 100]);
    say("done");
}

/// A descriptor becomes another file's while a thread writes to it: each write goes to one of the two.
fn replacing(path: &Path) {
    const ROUNDS: u64 = 60;
    const BYTES: usize = 32 << 20;
    let (old, new) = (path.with_extension("old"), path.with_extension("new"));
    let written = vec![b'x'; BYTES];
    for round in 0..ROUNDS {
        std::fs::write(&old, vec![b'o'; BYTES]).unwrap();
        std::fs::write(&new, b"").unwrap();
        let file = open(&old);
        let fd = file.as_raw_fd();
        let other = open(&new);
        (0..50).for_each(|_| assert_eq!(pwrite(fd, b"o", 0), Ok(1)));
        let begins = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begins.wait();
                assert_eq!(pwrite(fd, b"o", 0), Ok(1));
                assert_eq!(pwrite(fd, &written, 0), Ok(BYTES));
            });
            begins.wait();
            std::thread::sleep(std::time::Duration::from_micros(round * 50));
            // SAFETY: takes numbers.
            assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
        });
        let is_in_old = std::fs::read(&old).unwrap().ends_with(b"x");
        let is_in_new = std::fs::read(&new).unwrap().contains(&b'x');
        assert!(
            is_in_old != is_in_new,
            "round {round}: in the old file {is_in_old}, in the new one {is_in_new}"
        );
    }
    say("done");
}

/// A descriptor becomes another file's, and back, while one thread reads by it and another makes all descriptors unknown.
fn exchanging(path: &Path) {
    static ENDS: AtomicBool = AtomicBool::new(false);
    let files = [b'x', b'y'].map(|byte| {
        let path = path.with_extension((byte as char).to_string());
        std::fs::write(&path, [byte]).unwrap();
        (byte, open(&path))
    });
    let own = files[0].1.try_clone().unwrap();
    let fd = own.as_raw_fd();
    (0..50).for_each(|_| assert_eq!(pread(fd, 1, 0), Ok(vec![b'x'])));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ENDS.load(Ordering::Relaxed) {
                pread(fd, 1, 0).unwrap();
            }
        });
        scope.spawn(|| {
            let mut limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            while !ENDS.load(Ordering::Relaxed) {
                // SAFETY: there is a limit.
                let same = unsafe {
                    (
                        libc::getrlimit(libc::RLIMIT_CORE, &raw mut limit),
                        libc::setrlimit(libc::RLIMIT_CORE, &raw const limit),
                    )
                };
                assert_eq!(same, (0, 0));
            }
        });
        let start = std::time::Instant::now();
        while start.elapsed() < std::time::Duration::from_secs(3) {
            for (byte, file) in &files {
                // SAFETY: takes numbers.
                assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), fd) }, fd);
                let read = [pread(fd, 1, 0), pread(fd, 1, 0)];
                if read != [Ok(vec![*byte]), Ok(vec![*byte])] {
                    ENDS.store(true, Ordering::Relaxed);
                    panic!("{read:?} of the file of {}", *byte as char);
                }
            }
        }
        ENDS.store(true, Ordering::Relaxed);
    });
    say("done");
}

/// The file loses its bytes, and gets room for them, each time just after its blocks were looked at.
fn allocating(path: &Path) {
    const BYTES: usize = 1 << 20;
    let file = open(path);
    let fd = file.as_raw_fd();
    use_as(fd, b'a');
    for round in 0..50 {
        // In a tick: the first look is the server's answer.
        let blocks = || [status(fd).st_blocks, status(fd).st_blocks][1];
        file.write_all_at(&vec![b'a'; BYTES], 0).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(11));
        assert_eq!(blocks(), 2048, "round {round}, written");
        assert_eq!(allocate(fd, PUNCH, 0, BYTES), 0);
        assert_eq!(blocks(), 0, "round {round}, punched");
        let room = unsafe { libc::posix_fallocate(fd, 0, BYTES as i64) };
        assert_eq!((room, blocks()), (0, 2048), "round {round}, with room");
        assert_eq!(unsafe { libc::syscall(libc::SYS_fallocate, fd, PUNCH, 0, BYTES) }, 0);
        assert_eq!(blocks(), 0, "round {round}, punched by the number of the call");
    }
    say("done");
}

/// Descriptors of a file that was opened with O_APPEND, which it loses.
fn appending(path: &Path) {
    let file = OpenOptions::new().read(true).append(true).open(path).unwrap();
    let fd = file.as_raw_fd();
    // SAFETY: takes numbers, here and below.
    let before = unsafe { libc::dup(fd) };
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, 0) }, 0);
    let after = [unsafe { libc::dup(fd) }, unsafe { libc::dup2(fd, 100) }, unsafe {
        libc::fcntl(fd, libc::F_DUPFD, 100)
    }];
    // Files of other filesystems take no place in the table.
    for _ in 0..100 {
        let other = tempfile::tempfile().unwrap();
        for flags in [libc::O_APPEND, 0] {
            assert_eq!(unsafe { libc::fcntl(other.as_raw_fd(), libc::F_SETFL, flags) }, 0);
        }
    }
    let mut bytes = file.metadata().unwrap().len();
    for (nth, fd) in [fd, before].into_iter().chain(after).enumerate() {
        // What makes all other descriptors unknown.
        let core = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const core) }, 0);
        let marked = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        assert_eq!(marked, 0);
        (0..100).for_each(|_| assert_eq!(pwrite(fd, b"z", 0), Ok(1)));
        bytes += 100;
        assert_eq!(file.metadata().unwrap().len(), bytes, "descriptor {nth}");
    }
    assert_eq!(pread(fd, 1, 0), Ok(vec![b'a']));
    // Its number is another file's.
    let other = open(path);
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
    (0..100).for_each(|_| assert_eq!(pwrite(fd, b"b", 0), Ok(1)));
    assert_eq!(pread(fd, 1, 0), Ok(vec![b'b']));
    let second = path.with_extension("second");
    std::fs::write(&second, [b'c'; 10_000]).unwrap();
    let second = open(&second);
    (0..200).for_each(|_| assert_eq!(pread(second.as_raw_fd(), 1, 0), Ok(vec![b'c'])));
    say("done");
}
