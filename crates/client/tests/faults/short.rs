//! Many short-lived programs, some of which are killed at work: afterwards the server has what it had before.

use crate::support::calls::say;
use crate::support::{Mounted, Program, library};
use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Programs in all, at a time, and those that the server's state is compared after.
const PROGRAMS: u32 = 1000;
const AT_ONCE: usize = 20;
const BEFORE: u32 = 100;
/// Memory by which the server may vary: freed memory is given back in pieces.
const MEMORY_KIB_MAX: u64 = 8 << 10;
/// Files that are open at the same time, more than programs have at once: their lines tell how many are given away for good.
const OPEN: usize = 100;
const WAIT: Duration = Duration::from_secs(20);

/// The server: mounts, until its input ends.
pub(crate) fn part() {
    let mounted = Mounted::new().unwrap();
    say(&mounted.directory.path().display().to_string());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// A server in a process of its own, so that what it has can be counted.
struct Server {
    program: Option<Program>,
    directory: PathBuf,
}

/// Descriptors and memory of a server.
#[derive(Clone, Copy, Debug)]
struct State {
    descriptors: usize,
    memory_kib: u64,
    free_blocks: u64,
}

impl Server {
    fn start() -> Self {
        let mut program = Program::start("serve", Path::new(""), false);
        let directory = PathBuf::from(program.answer());
        Self {
            program: Some(program),
            directory,
        }
    }

    fn state(&self) -> State {
        let process = self.program.as_ref().unwrap().child.id();
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let name = CString::new(self.directory.as_os_str().as_encoded_bytes()).unwrap();
        let mut system: libc::statfs = unsafe { std::mem::zeroed() };
        assert_eq!(unsafe { libc::statfs(name.as_ptr(), &raw mut system) }, 0);
        State {
            descriptors: fs::read_dir(format!("/proc/{process}/fd")).unwrap().count(),
            memory_kib: memory.trim().trim_end_matches(" kB").parse().unwrap(),
            free_blocks: system.f_bfree,
        }
    }

    /// Waits until the server has what it had before: the kernel tells it late that files are closed.
    fn wait_for(&self, before: &State) {
        let end = Instant::now() + WAIT;
        loop {
            let now = self.state();
            let is_back = now.descriptors <= before.descriptors
                && now.memory_kib <= before.memory_kib + MEMORY_KIB_MAX
                && now.free_blocks >= before.free_blocks;
            if is_back {
                return;
            }
            assert!(Instant::now() < end, "{now:?}, before {before:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs programs, a few at a time, and removes what they leave.
    fn run(&self, program: &Path, numbers: std::ops::Range<u32>) {
        let mut running = VecDeque::new();
        for number in numbers {
            if running.len() == AT_ONCE {
                running.pop_front().into_iter().for_each(end);
            }
            let (shared, own) = (self.directory.join("shared"), self.directory.join("own"));
            let mut command = Command::new(program);
            command
                .arg(shared)
                .arg(own)
                .arg(number.to_string())
                .stdin(Stdio::null());
            command.env("LD_PRELOAD", library()).env("HOMENODE_RUN", "on");
            running.push_back((number, command.spawn().unwrap()));
        }
        running.into_iter().for_each(end);
        for entry in fs::read_dir(&self.directory).unwrap() {
            let path = entry.unwrap().path();
            if !path.ends_with("shared") {
                fs::remove_file(path).unwrap();
            }
        }
    }

    /// Lines that many open files have at the same time.
    fn lines(&self) -> Vec<usize> {
        use std::os::fd::AsRawFd;
        let line = |file: &File| {
            let mut value = [0_u8; 512];
            let name = c"user.homenode.words.0";
            let bytes =
                unsafe { libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
            let value = std::str::from_utf8(&value[..usize::try_from(bytes).unwrap()]).unwrap();
            value.split(' ').nth(2).and_then(|line| line.parse().ok()).unwrap()
        };
        let path = |nth: usize| self.directory.join(format!("open.{nth}"));
        let files: Vec<_> = (0..OPEN).map(|nth| File::create(path(nth)).unwrap()).collect();
        let lines = files.iter().map(line).collect();
        (0..OPEN).for_each(|nth| fs::remove_file(path(nth)).unwrap());
        lines
    }
}

fn end((number, mut child): (u32, Child)) {
    use std::os::unix::process::ExitStatusExt;
    let status = child.wait().unwrap();
    let is_killed = status.signal() == Some(libc::SIGKILL);
    assert_eq!(
        (is_killed, status.success()),
        (number % 4 == 3, number % 4 != 3),
        "{status}"
    );
}

impl Drop for Server {
    /// Takes the mount away, whatever has become of the server.
    fn drop(&mut self) {
        drop(self.program.take());
        let _ = Command::new("umount")
            .arg("-l")
            .arg(&self.directory)
            .stderr(Stdio::null())
            .status();
        let _ = fs::remove_dir(&self.directory);
    }
}

#[test]
fn short_lived_programs_leave_nothing_with_the_server() {
    let Some(mounted) = Mounted::new() else { return };
    let (program, mut server) = (mounted.build("short"), Server::start());
    fs::write(server.directory.join("shared"), vec![b'a'; 100_000]).unwrap();
    server.run(&program, 0..BEFORE);
    let before = server.state();
    server.run(&program, BEFORE..BEFORE + PROGRAMS);
    server.wait_for(&before);
    let lines = server.lines();
    let all_at_once = OPEN.max(2 * AT_ONCE);
    // A line that was not given back when all files were closed is no other file's.
    assert!(lines.iter().all(|line| *line < all_at_once + AT_ONCE), "{lines:?}");
    server.wait_for(&before);
    let umount = || {
        let mut command = Command::new("umount");
        let status = command.arg(&server.directory).stderr(Stdio::null()).status();
        status.unwrap().success()
    };
    let end = Instant::now() + WAIT;
    while !umount() {
        assert!(Instant::now() < end, "the mount is busy");
        std::thread::sleep(Duration::from_millis(10));
    }
    server.program.take().unwrap().end();
}
