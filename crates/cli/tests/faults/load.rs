//! A program at work on a mount: a process that can be killed and stopped, and tells what ended it.

use rustix::process::{Pid, Signal};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// In this time a program has heard that its server is gone.
pub(crate) const BOUND: Duration = Duration::from_secs(10);

/// Set in the process that does the work: where.
const DIRECTORY: &str = "HOMENODE_TEST_LOAD";
const O_DIRECT: i32 = 0o40000;
/// Blocks of 4 KiB in each written file.
const FILE_BLOCKS: u64 = 256;

/// The process. Dropping it kills it.
pub(crate) struct Load {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Load {
    /// Starts one and waits until it is at work.
    pub(crate) fn start(directory: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "faults::load::at_work", "--ignored", "--nocapture"])
            .current_dir(directory)
            .env(DIRECTORY, ".")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("at work") {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "the load did not start");
        }
        Self { child, output }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// SIGKILL in the middle of whatever it does; then removes what it left.
    pub(crate) fn kill(self, directory: &Path) {
        let pid = self.child.id();
        drop(self);
        for kind in ["buffered", "direct", "names"] {
            let path = directory.join(format!("{kind}-{pid}"));
            match fs::metadata(&path) {
                Ok(found) if found.is_dir() => fs::remove_dir_all(path).unwrap(),
                Ok(_) => fs::remove_file(path).unwrap(),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
            }
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn operations_in(&mut self, time: Duration) -> u64 {
        let mut last = || {
            self.signal(Signal::USR1);
            loop {
                let mut line = String::new();
                self.output.read_line(&mut line).unwrap();
                // The load is a test itself, whose harness tells when it has taken a minute.
                if line.starts_with("test ") {
                    continue;
                }
                let count = line.trim().parse::<u64>();
                break count.unwrap_or_else(|_| panic!("a count: {line:?}"));
            }
        };
        let before = last();
        thread::sleep(time);
        last() - before
    }

    /// Waits for its end; gives the errno that ended each of its threads. Fails when that takes longer than [`BOUND`].
    pub(crate) fn ended_by(mut self) -> Vec<i32> {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < BOUND, "a call on the mount hangs");
            thread::sleep(Duration::from_millis(5));
        }
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        assert!(!said.contains("panicked"), "{said}");
        said.lines()
            .filter_map(|line| line.strip_prefix("errno ")?.parse().ok())
            .collect()
    }

    /// Waits as [`Self::ended_by`]; fails unless each thread was told that its server is gone.
    pub(crate) fn ended_by_loss_of_server(self) {
        let errors = self.ended_by();
        // ENOTCONN, ECONNABORTED, and ECANCELED of a ring whose thread has just died.
        let expected = |errno: &i32| [107, 103, 125].contains(errno);
        assert!(errors.len() == 3 && errors.iter().all(expected), "{errors:?}");
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // Ended already, perhaps.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process's side: works until something fails.
#[test]
#[ignore = "the work of other tests"]
fn at_work() {
    static OPERATIONS: AtomicU64 = AtomicU64::new(0);
    if std::env::var_os(DIRECTORY).is_none() {
        return;
    }
    let mut asked = signal_hook::iterator::Signals::new([signal_hook::consts::SIGUSR1]).unwrap();
    let mine = std::process::id();
    let own = move |kind: &str| format!("{kind}-{mine}");
    let workers = [
        thread::spawn(move || write_and_verify(&own("buffered"), 0, &OPERATIONS)),
        thread::spawn(move || write_and_verify(&own("direct"), O_DIRECT, &OPERATIONS)),
        thread::spawn(move || make_and_remove(&own("names"), &OPERATIONS)),
    ];
    println!("\nat work");
    thread::spawn(move || {
        for _ in asked.forever() {
            println!("{}", OPERATIONS.load(Ordering::Relaxed));
        }
    });
    for worker in workers {
        match worker.join() {
            Ok(error) => println!("errno {}", error.raw_os_error().unwrap_or(0)),
            Err(_) => println!("a worker panicked"),
        }
    }
    io::stdout().flush().unwrap();
}

/// Writes runs of blocks, each with its stamp, reads them back, and begins a new file now and then while the old one is open.
fn write_and_verify(name: &str, flags: i32, operations: &AtomicU64) -> io::Error {
    let mut random = fastrand::Rng::new();
    let mut work = || -> io::Result<()> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(flags);
        let file = options.open(name)?;
        for _ in 0..64 {
            let first = random.u64(..FILE_BLOCKS);
            let count = random.u64(1..=FILE_BLOCKS - first).min(64);
            let stamp = random.u64(..);
            let bytes = aligned(count, |word| stamp ^ word);
            file.write_all_at(&bytes.0[bytes.1..][..bytes.2], first * 4096)?;
            let mut back = aligned(count, |_| 0);
            file.read_exact_at(&mut back.0[back.1..][..back.2], first * 4096)?;
            assert!(
                bytes.0[bytes.1..][..bytes.2] == back.0[back.1..][..back.2],
                "{name}: blocks {first} and {count} on are not as they were written"
            );
            operations.fetch_add(2, Ordering::Relaxed);
        }
        fs::remove_file(name)
    };
    loop {
        if let Err(error) = work() {
            return error;
        }
    }
}

/// Memory of whole blocks that direct I/O takes, with where it starts and how long it is.
fn aligned(blocks: u64, word: impl Fn(u64) -> u64) -> (Vec<u8>, usize, usize) {
    let length = usize::try_from(blocks * 4096).unwrap();
    let mut bytes = vec![0_u8; length + 4096];
    let start = bytes.as_ptr().align_offset(4096);
    for (index, chunk) in (0..).zip(bytes[start..][..length].chunks_exact_mut(8)) {
        chunk.copy_from_slice(&word(index).to_le_bytes());
    }
    (bytes, start, length)
}

/// Makes, lists, renames and removes names.
fn make_and_remove(name: &str, operations: &AtomicU64) -> io::Error {
    let work = || -> io::Result<()> {
        fs::create_dir(name)?;
        for index in 0..16 {
            let (one, two) = (format!("{name}/{index}"), format!("{name}/renamed-{index}"));
            File::create(&one)?.write_all(one.as_bytes())?;
            fs::rename(&one, &two)?;
            assert_eq!(fs::read(&two)?, one.as_bytes());
            operations.fetch_add(4, Ordering::Relaxed);
        }
        let names: Vec<_> = fs::read_dir(name)?.collect::<io::Result<_>>()?;
        assert_eq!(names.len(), 16);
        fs::remove_dir_all(name)
    };
    loop {
        if let Err(error) = work() {
            return error;
        }
    }
}
