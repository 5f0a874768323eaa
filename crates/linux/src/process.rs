//! Processes and threads: descriptors and mounts that started programs inherit, and the fields that /proc tells.

use rustix::mount::{MountPropagationFlags, mount_change};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::str;
use std::sync::atomic::{AtomicBool, Ordering};

/// Keeps every descriptor from `first` on out of the programs this process starts from now on: a server must not hold its
/// starter's pipes and locks.
///
/// # Errors
/// The errno of `close_range`: EINVAL before Linux 5.11.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: takes numbers only, and with this flag closes nothing now.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) })
}

/// User and process at the other end of a unix socket.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The user's number.
    pub user: u32,
    /// The process's number, which is never 0. `None` for a process outside of this PID namespace.
    pub process: Option<i32>,
}

/// Returns who made a connection, or who listened for it.
///
/// # Errors
/// The errno of getsockopt(2).
pub fn peer_of(socket: &UnixStream) -> io::Result<Peer> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = libc::socklen_t::try_from(size_of_val(&peer)).expect("twelve bytes");
    // SAFETY: the kernel fills at most `bytes` bytes of a structure that any bits are valid for.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    })?;
    Ok(Peer {
        user: peer.uid,
        process: (peer.pid > 0).then_some(peer.pid),
    })
}

/// Turns what a system call returns into a result: 0, or the errno.
pub(crate) fn check(status: impl Into<i64>) -> io::Result<()> {
    if status.into() == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Whether a signal is ignored, as what started this process may have set it.
#[must_use]
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only, into a sigaction.
    let told = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: all zero bits are one, if the call has not filled it.
    told == 0 && unsafe { action.assume_init_ref() }.sa_sigaction == libc::SIG_IGN
}

/// True if this process was started with SIGPIPE ignored, as systemd does with services.
static WAS_PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// Runs before the standard library, which ignores the signal from the start of each process on.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look_at_pipe_signal;

extern "C" fn look_at_pipe_signal() {
    // Relaxed: no other thread is there yet.
    WAS_PIPE_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
}

/// Has a command start with SIGPIPE ignored if this process did: the standard library gives it the default action.
pub fn keep_pipe_signal(command: &mut Command) {
    if !WAS_PIPE_IGNORED.load(Ordering::Relaxed) {
        return;
    }
    let ignore = || {
        // SAFETY: takes numbers.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        Ok(())
    };
    // SAFETY: the closure calls only signal(2), which may be called after fork(2).
    unsafe { command.pre_exec(ignore) };
}

/// Gives this thread, and the threads and programs that it starts from now on, a mount table of their own: nobody else sees what
/// they mount, and all of it goes with the last of them. What others unmount goes here too, where the machine shares its mounts.
///
/// # Errors
/// The errno of `unshare` or `mount`: EPERM without CAP_SYS_ADMIN.
pub fn own_mounts() -> io::Result<()> {
    // SAFETY: takes a number only, and every thread keeps its descriptors and memory.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let downstream = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    Ok(mount_change("/", downstream)?)
}

/// Tells the kernel that others' writes wait for this thread: when memory is short, it is not to wait for them. Only who has
/// CAP_SYS_RESOURCE may: nothing happens else.
pub fn serve_writes() {
    // Since Linux 5.6.
    let _ = rustix::process::configure_io_flusher_behavior(true);
}

/// Number of the calling thread.
#[must_use]
pub fn own_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

/// When process or thread `pid` was started, in clock ticks since the machine was; none when there is no such one.
#[must_use]
pub fn start_ticks(pid: u32) -> Option<u64> {
    let line = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    Stat::parse(&line).map(|stat| stat.started)
}

/// Whether process `pid` is there and not about to end: one that was killed may be there for long, as a zombie for example.
#[must_use]
pub fn goes_on(pid: u32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    Stat::parse(&line).is_some_and(|stat| stat.flags & Stat::EXITING == 0)
}

/// Fields of `/proc/PID/stat`, as proc_pid_stat(5) has them. Parsed without touching the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat<'a> {
    /// The thread's; at most 15 bytes, except for threads of the kernel.
    pub name: &'a str,
    /// `T` for a process that a signal has stopped, `t` for one that a debugger has.
    pub state: char,
    /// Parent of the thread's process.
    pub parent: u32,
    /// Session of the thread's process; 0 for none, and when the process ends just now.
    pub session: u32,
    /// The kernel's `PF_` flags.
    pub flags: u64,
    /// In user and kernel mode together, in clock ticks.
    pub run_ticks: u64,
    /// Number of threads of the thread's process.
    pub threads: u32,
    /// In clock ticks since boot.
    pub started: u64,
    /// The one that the thread last ran on.
    pub cpu: u32,
    /// From 1 to 99; 0 for a thread that is not scheduled in real time.
    pub real_time_priority: u32,
}

impl<'a> Stat<'a> {
    /// `include/linux/sched.h`: a thread of the kernel, or one whose mask the kernel lets nobody set (io_uring's workers).
    const KERNEL_THREAD: u64 = 0x0020_0000;
    const NO_SET_AFFINITY: u64 = 0x0400_0000;
    /// Likewise: set before the kernel takes anything away from a thread that ends, and never cleared.
    const EXITING: u64 = 0x4;

    /// Fields of a line. The name may hold spaces and parentheses; the last `)` is its end.
    #[must_use]
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        const STATE: usize = 3;
        const PARENT: usize = 4;
        const SESSION: usize = 6;
        const FLAGS: usize = 9;
        const UTIME: usize = 14;
        const STIME: usize = 15;
        const THREADS: usize = 20;
        const START: usize = 22;
        const PROCESSOR: usize = 39;
        const REAL_TIME_PRIORITY: usize = 40;
        let name_start = line.iter().position(|byte| *byte == b'(')? + 1;
        let name_end = line.iter().rposition(|byte| *byte == b')')?;
        let name = valid(line.get(name_start..name_end)?);
        let mut fields = str::from_utf8(&line[name_end + 1..]).ok()?.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let mut next = STATE + 1;
        let mut field = |number: usize| {
            let found = fields.nth(number - next)?;
            next = number + 1;
            // A process that ends has the session -1.
            if number == SESSION && found == "-1" {
                return Some(0);
            }
            found.parse::<u64>().ok()
        };
        Some(Self {
            name,
            state,
            parent: field(PARENT)?.try_into().ok()?,
            session: field(SESSION)?.try_into().ok()?,
            flags: field(FLAGS)?,
            run_ticks: field(UTIME)?.saturating_add(field(STIME)?),
            threads: field(THREADS)?.try_into().ok()?,
            started: field(START)?,
            cpu: field(PROCESSOR)?.try_into().ok()?,
            real_time_priority: field(REAL_TIME_PRIORITY)?.try_into().ok()?,
        })
    }

    /// Whether its CPUs are the kernel's business alone.
    pub(crate) fn is_the_kernels(&self) -> bool {
        self.flags & (Self::KERNEL_THREAD | Self::NO_SET_AFFINITY) != 0
    }
}

/// Names are cut at 15 bytes, perhaps in the middle of a character.
pub(crate) fn valid(name: &[u8]) -> &str {
    name.utf8_chunks().next().map_or("", |chunk| chunk.valid())
}

/// Nanoseconds on a CPU, of `/proc/PID/schedstat`.
#[must_use]
pub fn run_ns(line: &[u8]) -> Option<u64> {
    schedstat(line, 0)
}

/// Nanoseconds ready to run without a CPU, of `/proc/PID/schedstat`.
pub(crate) fn waited_ns(line: &[u8]) -> Option<u64> {
    schedstat(line, 1)
}

fn schedstat(line: &[u8], field: usize) -> Option<u64> {
    let mut fields = str::from_utf8(line).ok()?.split_ascii_whitespace();
    fields.nth(field)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::{FdFlags, fcntl_setfd};
    use std::os::fd::AsRawFd;
    use std::process::Command;

    const STAT: &str = "77 (a) b (c 1 2) S 1 77 77 0 -1 4194560 2 0 1 0 30 12 0 0 20 0 9 0 4711 \
                        5000 6 18446744073709551615 1 1 0 0 0 0 0 4096 17642 0 0 0 -1 5 20 2 0 0 0 1 1 1 1 1 1 1 0\n";

    #[test]
    fn stat_with_an_odd_process_name_is_parsed() {
        let expected = Stat {
            name: "a) b (c 1 2",
            state: 'S',
            parent: 1,
            session: 77,
            flags: 4_194_560,
            run_ticks: 42,
            threads: 9,
            started: 4711,
            cpu: 5,
            real_time_priority: 20,
        };
        assert_eq!(Stat::parse(STAT.as_bytes()), Some(expected));
        assert!(!expected.is_the_kernels());
        for flags in ["2097152", "67108864", "69238880"] {
            let stat = STAT.replace("4194560", flags);
            assert!(Stat::parse(stat.as_bytes()).unwrap().is_the_kernels());
        }
        for text in ["", "1 (x)", "1 (x) S 0", "1 x S 0", "1 )x( S 1", &STAT[..90]] {
            assert_eq!(Stat::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_process_name_cut_within_a_character_is_read() {
        let mut bytes = STAT.as_bytes().to_vec();
        bytes.splice(4..15, b"k\xc3\xa4\xc3".iter().copied());
        assert_eq!(Stat::parse(&bytes).unwrap().name, "k\u{e4}");
    }

    #[test]
    fn cpu_time_of_a_process_is_read() {
        assert_eq!(run_ns(b"123456789 42 7\n"), Some(123_456_789));
        assert_eq!(waited_ns(b"123456789 42 7\n"), Some(42));
        assert_eq!((run_ns(b"\n"), waited_ns(b"123\n")), (None, None));
    }

    #[test]
    fn a_process_is_distinguished_from_a_later_one_with_its_id() {
        let own = start_ticks(std::process::id()).unwrap();
        assert_eq!(start_ticks(std::process::id()), Some(own));
        assert!(start_ticks(1).unwrap() <= own);
        assert_eq!(start_ticks(u32::MAX), None);
        let thread = std::thread::spawn(|| (own_thread(), start_ticks(own_thread())));
        let (thread, started) = thread.join().unwrap();
        assert!(thread != std::process::id() && started.unwrap() >= own);
    }

    #[test]
    fn a_killed_process_does_not_go_on_though_nobody_has_waited_for_it() {
        assert!(goes_on(std::process::id()));
        assert!(!goes_on(u32::MAX), "there is none");
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(goes_on(child.id()));
        child.kill().unwrap();
        while goes_on(child.id()) {
            std::thread::yield_now();
        }
        assert!(start_ticks(child.id()).is_some(), "its number is still taken");
        child.wait().unwrap();
        assert!(!goes_on(child.id()));
    }

    #[test]
    fn a_descriptor_is_not_passed_on() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let fd = file.as_raw_fd();
        fcntl_setfd(&file, FdFlags::empty()).unwrap();
        let child_has_it = || {
            Command::new("test")
                .arg("-e")
                .arg(format!("/proc/self/fd/{fd}"))
                .status()
                .unwrap()
                .success()
        };
        assert!(child_has_it());
        close_on_exec_from(u32::try_from(fd).unwrap()).unwrap();
        assert!(!child_has_it());
    }
}
