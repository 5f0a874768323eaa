//! A mount whose user writes from memory that never comes.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use homenode::{Data, MountOptions, NodeId, Pool, PoolOptions, Size};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Promises 128 MiB beyond the end of a file, and writes to the file from memory whose faults nobody serves.
const WRITER: &str = r#"
import ctypes, fcntl, mmap, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
memory = mmap.mmap(-1, 2 << 20)
number = {"x86_64": 323, "aarch64": 282}.get(os.uname().machine, -1)
faults = libc.syscall(number, os.O_CLOEXEC)
if faults < 0:
    sys.exit("no userfaultfd")
fcntl.ioctl(faults, 0xc018aa3f, struct.pack("QQQ", 0xaa, 0, 0))
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
fcntl.ioctl(faults, 0xc020aa00, struct.pack("QQQQ", start, 2 << 20, 1, 0))
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
size = ctypes.c_long(128 << 20)
assert libc.fallocate(file, 1, ctypes.c_long(0), size) == 0
print("up", flush=True)
os.pwrite(file, memoryview(memory)[:4096], 0)
"#;

/// The writer's process; dropping it ends it, and with it the wait of the keeper.
struct Writer(Child);

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Writer {
    /// Whether it waits for its memory, inside its write.
    fn is_hung(&self) -> bool {
        fs::read_to_string(format!("/proc/{}/wchan", self.0.id()))
            .is_ok_and(|place| place.starts_with("handle_userfault"))
    }
}

/// Looks whether `is_so` for at most 10 s; returns whether it came to that.
fn waits_until(is_so: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() >= Duration::from_secs(10) {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}

/// State of this process's thread of that name: 'D' while it waits in the kernel for what no signal ends.
fn state(name: &str) -> Option<char> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let mut states = stats.filter_map(|stat| stat.split_once(&format!("({name}) "))?.1.chars().next());
    states.next()
}

/// The writer holds the kernel's lock of its file, for which the keeper of the promise waits.
#[test]
fn a_mount_is_taken_down_while_a_keeper_waits_for_a_writer() {
    if !support::can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let options = PoolOptions::new().size_per_node(Size::Bytes(256 << 20)).node(NodeId(0));
    let pool = Pool::create(&options).unwrap();
    let mut with_files = MountOptions::default();
    with_files.data = Data::Auto;
    let mount = pool.mount_with(dir.path(), &with_files).unwrap();
    if mount.data().data != Data::Kernel {
        return support::skip(format_args!("files are not the kernel's: {}", mount.data().reason));
    }
    let writer = Command::new("python3")
        .args(["-B", "-c", WRITER])
        .arg(dir.path().join("file"))
        .stdout(Stdio::piped())
        .spawn();
    let Ok(writer) = writer else {
        return support::skip("there is no python3");
    };
    let mut writer = Writer(writer);
    let mut line = String::new();
    BufReader::new(writer.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    if line != "up\n" {
        return support::skip("no userfaultfd");
    }
    assert!(waits_until(|| writer.is_hung()), "the writer waits for nothing");
    fs::write(dir.path().join("greedy"), vec![1; 64 << 20]).unwrap();
    let waits = waits_until(|| state("beyond") == Some('D'));
    let (done, is_down) = mpsc::channel();
    let ending = thread::spawn(move || {
        drop(mount);
        pool.give_up_files();
        done.send(()).unwrap();
    });
    let in_time = is_down.recv_timeout(Duration::from_secs(10));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let is_mounted = mounts.contains(dir.path().to_str().unwrap());
    drop(writer);
    ending.join().unwrap();
    assert!(waits, "the keeper waits for nobody: this tests nothing");
    in_time.expect("the end of the mount waits for the writer");
    assert!(!is_mounted);
}
