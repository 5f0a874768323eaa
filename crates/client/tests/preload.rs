//! Programs with the library preloaded, on a real mount, beside programs without it. Needs root and /dev/fuse.
//!
//! A test runs its own executable again as the program, which [`program`] is.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

#[allow(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "it calls the C library as programs do: with numbers, and buffers with their lengths"
)]
mod program;
#[allow(dead_code, reason = "shared with the tests of faults, which use all of it")]
mod support;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::calls::digest;
use support::{Mounted, Program, library, punch};

/// The bytes of a file as a slow, obvious model.
struct Model(Vec<u8>);

impl Model {
    fn write(&mut self, at: usize, bytes: usize, value: u8) {
        self.0.resize(self.0.len().max(at + bytes), 0);
        self.0[at..at + bytes].fill(value);
    }

    /// Returns the answer of the program to a read.
    fn read(&self, at: usize, bytes: usize) -> String {
        let end = self.0.len().min(at + bytes);
        digest(self.0.get(at..end).unwrap_or(&[]))
    }
}

/// A program with the library and plain processes take turns; a model knows the result.
#[test]
fn every_result_equals_the_system_calls() {
    let Some(mounted) = Mounted::new() else { return };
    let (path, seed) = (mounted.path("file"), fastrand::u64(..));
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    fs::write(&path, vec![1; 300_000]).unwrap();
    let mut model = Model(vec![1; 300_000]);
    let plain = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut clients = [
        Program::start("commands", &path, true),
        Program::start("commands", &path, true),
    ];
    for round in 0..6000 {
        let (at, bytes) = (random.usize(..400_000), random.usize(1..9000));
        let value = random.u8(1..);
        let client = &mut clients[random.usize(..2)];
        // Files that are cut all the time are hardly ever copied from.
        let is_calm = round / 500 % 2 == 0 && random.u32(..20) > 0;
        match random.u32(if is_calm { 2..40 } else { 0..40 }) {
            7 if is_calm => {}
            0 => {
                let size = random.usize(..350_000);
                plain.set_len(size as u64).unwrap();
                model.0.resize(size, 0);
            }
            1 => {
                punch(&plain, at, bytes);
                let end = model.0.len().min(at + bytes);
                if at < end {
                    model.0[at..end].fill(0);
                }
            }
            2..6 => {
                plain.write_all_at(&vec![value; bytes], at as u64).unwrap();
                model.write(at, bytes, value);
            }
            6 => assert_eq!(client.ask("size"), model.0.len().to_string(), "round {round}"),
            7 => {
                let size = random.usize(..350_000);
                client.ask(&format!("truncate {size}"));
                model.0.resize(size, 0);
            }
            8..20 => {
                assert_eq!(
                    client.ask(&format!("write {at} {bytes} {value}")),
                    bytes.to_string(),
                    "round {round}"
                );
                model.write(at, bytes, value);
            }
            _ => {
                let answer = client.ask(&format!("read {at} {bytes}"));
                assert_eq!(answer, model.read(at, bytes), "round {round}: {bytes} at {at}");
            }
        }
        let mut seen = vec![0; bytes];
        let read = plain.read_at(&mut seen, at as u64).unwrap();
        assert_eq!(digest(&seen[..read]), model.read(at, bytes), "round {round}");
    }
    for client in clients {
        let (fast, slow) = client.end();
        assert!(fast > 300, "{fast} copies, {slow} system calls");
    }
}

/// Programs read and write as fast as they can, beside one that cuts the file and lets it grow. Nothing is seen that nobody has written.
#[test]
fn reads_return_only_written_bytes() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 300_000]).unwrap();
    let plain = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut clients: Vec<_> = (0..2).map(|_| Program::start("race", &path, true)).collect();
    let mut random = fastrand::Rng::new();
    for client in &mut clients {
        client.ask("begin");
    }
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        plain.set_len(random.u64(..300_000)).unwrap();
        punch(&plain, random.usize(..300_000), 5000);
        plain.write_all_at(&[b'b'; 4096], random.u64(..300_000)).unwrap();
    }
    for mut client in clients {
        assert_eq!(client.ask("end"), "0 odd");
        let (fast, _) = client.end();
        assert!(fast > 100, "{fast} copies");
    }
}

#[test]
fn reused_descriptors_refer_to_the_new_file() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 10_000]).unwrap();
    fs::write(mounted.path("file.other"), vec![b'b'; 10_000]).unwrap();
    let mut client = Program::start("descriptors", &path, true);
    assert_eq!(client.answer(), "done");
    assert!(client.end().0 > 100);
}

#[test]
fn a_process_that_becomes_another_user_sees_cuts() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 100_000]).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let mut client = Program::start("users", &path, true);
    assert_eq!(client.answer(), "done");
    assert!(client.end().0 > 300);
}

#[test]
fn threads_and_children_that_leave_something_get_system_calls() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 100_000]).unwrap();
    fs::write(mounted.path("file.other"), vec![b'b'; 10_000]).unwrap();
    // Of the first 50 calls alone.
    let tables = ["unshare", "close_range", "unshare's number", "close_range's number"].map(|how| (how, 10..=50));
    let children = [("children", 9000..=u64::MAX), ("spawns", 1000..=u64::MAX)];
    for (part, fast) in [("namespaces", 0..=0)].into_iter().chain(children).chain(tables) {
        let mut client = Program::start(part, &path, true);
        assert_eq!(client.answer(), "done", "{part}");
        let copies = client.end().0;
        assert!(fast.contains(&copies), "{part}: {copies} copies");
    }
}

#[test]
fn a_program_that_unshare_has_executed_can_make_children() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 100_000]).unwrap();
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--"]).arg(mounted.build("child")).arg(&path);
    let mut client = Program::of(&mut unshare, true);
    assert_eq!(client.answer(), "done");
    assert_eq!(client.end().0, 0, "copies");
}

#[test]
fn threads_copy_after_the_first_one_has_ended() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 100_000]).unwrap();
    let mut client = Program::of(Command::new(mounted.build("leader")).arg(&path), true);
    assert_eq!(client.answer(), "done");
    assert!(client.end().0 > 0, "some calls are copies");
}

#[test]
fn a_first_call_forgets_no_message_of_the_linker() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, b"a").unwrap();
    let mut client = Program::start("messages", &path, true);
    assert_eq!(client.answer(), "done");
    client.end();
}

#[test]
fn signal_handlers_of_the_program_still_run() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 100_000]).unwrap();
    let mut client = Program::start("signals", &path, true);
    assert_eq!(client.answer(), "done");
    let (fast, slow) = client.end();
    // Most of it is within a tick of a cut.
    assert!(fast > 10, "{fast} copies, {slow} system calls");
}

/// Handlers that leave copies in the middle.
#[test]
fn longjmp_out_of_a_copy_leaves_the_library_usable() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 100_000]).unwrap();
    let mut client = Program::of(Command::new(mounted.build("jumps")).arg(&path), true);
    assert_eq!(client.answer(), "done");
    assert!(client.end().0 > 1500);
}

#[test]
fn threads_that_end_within_calls_end_alone() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 100_000]).unwrap();
    let mut client = Program::of(Command::new(mounted.build("ends")).arg(&path), true);
    assert_eq!(client.answer(), "done");
    assert!(client.end().0 > 0, "some calls are copies");
}

#[test]
fn concurrent_closes_and_forks_harm_no_reader() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 1 << 20]).unwrap();
    let mut client = Program::start("threads", &path, true);
    assert_eq!(client.answer(), "done");
    assert!(client.end().0 > 0, "some calls are copies");
}

#[test]
fn files_learned_concurrently_stay_apart() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, b"").unwrap();
    let mut client = Program::start("learners", &path, true);
    assert_eq!(client.answer(), "done");
    assert!(client.end().0 > 1000);
}

#[test]
fn excess_threads_fall_back_to_system_calls() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 10_000]).unwrap();
    let mut client = Program::start("crowd", &path, true);
    assert_eq!(client.answer(), "done");
    assert!(client.end().1 > 40_000, "system calls");
}

/// A slot of a thread that has ended becomes another's, however many end, and while descriptors are replaced.
#[test]
fn threads_after_many_others_copy_as_the_first_did() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 10_000]).unwrap();
    let mut client = Program::start("successors", &path, true);
    assert_eq!(client.answer(), "done");
    let [fast, slow, others] = client.end_with_others();
    assert!(
        fast > 9 * (slow + others),
        "{fast} copies, {slow} and {others} system calls"
    );
}

#[test]
fn attached_files_keep_their_holes_after_mlockall() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, [b'a'; 4096]).unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    let mut program = Program::start("locked", &path, false);
    match &*program.answer() {
        "done" => assert_eq!(fs::metadata(&path).unwrap().blocks(), 8),
        // Past the test harness's capture.
        _ => drop(writeln!(io::stderr(), "SKIPPED: memory must not be locked here")),
    }
}

#[test]
fn writes_beside_dup2_go_to_one_file() {
    let Some(mounted) = Mounted::new() else { return };
    let mut client = Program::start("replacing", &mounted.path("file"), true);
    assert_eq!(client.answer(), "done");
    assert!(client.end().0 > 500, "writes are copies");
}

#[test]
fn reads_after_dup2_are_of_the_new_file() {
    let Some(mounted) = Mounted::new() else { return };
    let mut client = Program::start("exchanging", &mounted.path("file"), true);
    assert_eq!(client.answer(), "done");
    assert!(client.end().0 > 100, "some reads are copies");
}

/// The kernel goes on appending, and so do all calls of the program.
#[test]
fn files_that_lose_o_append_go_on_appending() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 10_000]).unwrap();
    let mut client = Program::start("appending", &path, true);
    assert_eq!(client.answer(), "done");
    assert!(client.end().0 > 100, "another file is read by copies");
}

#[test]
fn resource_limits_of_the_process_hold() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 10_000]).unwrap();
    let mut client = Program::start("limits", &path, true);
    assert_eq!(client.answer(), "done");
    assert!(client.end().0 > 50);
}

/// A program that has closed its files keeps nothing of the mount.
#[test]
fn mount_is_not_busy_after_close() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 10_000]).unwrap();
    let mut client = Program::start("commands", &path, true);
    (0..60).for_each(|_| drop(client.ask("read 0 100")));
    let unmount = || {
        Command::new("umount")
            .arg(mounted.directory.path())
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .success()
    };
    assert!(!unmount(), "the file is open");
    client.ask("close");
    assert!(unmount());
    assert!(client.end().0 > 20);
}

/// Reading a hole through a mapping would allocate it.
#[test]
fn reading_holes_allocates_no_space() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    let file = File::create(&path).unwrap();
    file.set_len(128 << 20).unwrap();
    file.write_all_at(&[1; 4096], 64 << 20).unwrap();
    let blocks = file.metadata().unwrap().blocks();
    let mut client = Program::start("commands", &path, true);
    for round in 0..2000 {
        let at = round * 61_440;
        client.ask(&format!("read {at} 4096"));
        client.ask(&format!("read {} 4096", 64 << 20));
    }
    assert_eq!(file.metadata().unwrap().blocks(), blocks);
    client.end();
}

/// Times are right to a tick of the kernel's clock (10 ms at most), each look shows a new one after a write, and set-uid goes with a write.
#[test]
fn times_and_set_uid_follow_writes() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 100_000]).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let mut client = Program::start_with("commands", &path, true, |command| {
        use std::os::unix::process::CommandExt;
        command.uid(65534).gid(65534);
    });
    let time = || {
        let status = fs::metadata(&path).unwrap();
        (status.mtime(), status.mtime_nsec())
    };
    for round in 0..300 {
        let before = time();
        std::thread::sleep(Duration::from_millis(11));
        // The first is a system call, the others are copies.
        (0..20).for_each(|_| drop(client.ask("write 100 50 7")));
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let (seconds, nanoseconds) = time();
        assert!((seconds, nanoseconds) > before, "round {round}");
        let late = now.saturating_sub(Duration::new(
            seconds.try_into().unwrap(),
            nanoseconds.try_into().unwrap(),
        ));
        // The commands themselves take some milliseconds on a busy machine.
        assert!(late < Duration::from_secs(1), "round {round}: {late:?} late");
        if round % 10 == 0 {
            fs::set_permissions(&path, Permissions::from_mode(0o4666)).unwrap();
            client.ask("write 100 50 7");
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o666, "round {round}");
        }
    }
    let (fast, _) = client.end();
    assert!(fast > 1000, "{fast} copies");
}

/// The kernel does not know what fallocate(2) has done to a file's blocks.
#[test]
fn blocks_follow_allocations_of_the_program() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 1 << 20]).unwrap();
    let mut client = Program::start("allocating", &path, true);
    assert_eq!(client.answer(), "done");
    client.end();
}

/// fstat(2) and stat(2) ask the server once in a tick. The size and the mode are always those that others have left; the time is true to a tick.
#[test]
fn attributes_are_fetched_once_a_tick_and_are_current() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 100_000]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut client = Program::start("commands", &path, true);
    (0..50).for_each(|_| drop(client.ask("read 100 50")));
    let before = mounted.asked("GetAttr");
    client.ask("status 20000");
    let asked = mounted.asked("GetAttr") - before;
    assert!((1..5000).contains(&asked), "{asked} requests for 20000 calls");
    for round in 0..200_u32 {
        let mode = 0o600 | (round % 64);
        let size = u64::from(round * 7919 % 200_000);
        match round % 3 {
            0 => file.set_len(size).unwrap(),
            1 => file.write_all_at(b"b", size).unwrap(),
            _ => file.set_permissions(Permissions::from_mode(mode)).unwrap(),
        }
        let told = client.ask("status 1");
        let status = file.metadata().unwrap();
        let wanted = format!("{} {:o} ", status.len(), status.mode() & 0o7777);
        assert!(told.starts_with(&wanted), "round {round}: {told}, not {wanted}");
    }
    // The kernel does not learn the mode that an access list of the program's leads to.
    for round in 0..200 {
        client.ask("status 1");
        client.ask(["list 7", "list 4", "list 6"][round % 3]);
        let told = client.ask("status 1");
        let wanted = format!("{:o}", file.metadata().unwrap().mode() & 0o7777);
        assert_eq!(told.split(' ').nth(1), Some(&*wanted), "round {round}");
    }
    client.end();
}

/// After a write of the program itself the time is one of this tick, at once.
#[test]
fn times_are_exact_to_a_tick_after_own_writes() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 100_000]).unwrap();
    let mut client = Program::start("commands", &path, true);
    (0..50).for_each(|_| drop(client.ask("read 100 50")));
    for round in 0..50 {
        std::thread::sleep(Duration::from_millis(11));
        client.ask("status 1");
        // One buffer, and more than are copied.
        client.ask(["write 99 50 7", "many 100 80 7"][round % 2]);
        let told = client.ask("status 1");
        let mut words = told.split(' ').skip(2).map(|word| word.parse::<i64>().unwrap());
        let told_ns = words.next().unwrap() * 1_000_000_000 + words.next().unwrap();
        let status = fs::metadata(&path).unwrap();
        let late_ns = status.mtime() * 1_000_000_000 + status.mtime_nsec() - told_ns;
        assert!((0..10_000_000).contains(&late_ns), "round {round}: {late_ns} ns late");
    }
    client.end();
}

/// A write that comes between the server's answer and the kernel makes the kernel forget the answer: what it knew before is not given again.
#[test]
fn times_never_go_back_beside_a_writer() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 100_000]).unwrap();
    let mut client = Program::start("commands", &path, true);
    (0..50).for_each(|_| drop(client.ask("read 100 50")));
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let ends = AtomicBool::new(false);
    let told = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                file.write_all_at(b"b", 0).unwrap();
            }
        });
        let told = client.ask("times 20000");
        ends.store(true, Ordering::Relaxed);
        told
    });
    assert_eq!(told, "0 times it went back");
    client.end();
}

/// Starts the program with so many bytes of address space.
fn start_limited(path: &Path, bytes: u64) -> Program {
    Program::start_with("commands", path, true, |command| {
        use std::os::unix::process::CommandExt;
        let limit = libc::rlimit {
            rlim_cur: bytes,
            rlim_max: bytes,
        };
        let set = move || {
            // SAFETY: takes a limit.
            match unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: it calls what may be called after fork(2).
        unsafe { command.pre_exec(set) };
    })
}

/// With little address space a part of the file is mapped, or nothing.
#[test]
fn little_address_space_is_enough() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 100 << 20]).unwrap();
    let limited = |bytes: u64| {
        let mut client = start_limited(&path, bytes);
        for at in [50, 51, 52, 53].into_iter().cycle().take(2000) {
            assert_eq!(client.ask(&format!("read {} 4096", at << 20)), digest(&[b'a'; 4096]));
        }
        client.end().0
    };
    assert!(limited(1 << 30) > 100);
    limited(256 << 20);
}

/// No part of a file that is read all over is worth more than another. In order, each part is.
#[test]
fn a_file_larger_than_its_mapping_is_mapped_anew_rarely() {
    const BYTES: usize = 100 << 20;
    const READS: u64 = 20_000;
    let Some(mounted) = Mounted::new() else { return };
    let (path, seed) = (mounted.path("file"), fastrand::u32(..));
    println!("seed {seed}");
    fs::write(&path, vec![b'a'; BYTES]).unwrap();
    for threads in [1, 4] {
        let mut client = start_limited(&path, 1 << 30);
        let before = mounted.asked("GetXattr");
        client.ask(&format!("scatter {threads} {} {BYTES} {seed}", READS / threads));
        // Each new mapping is a question.
        let asked = mounted.asked("GetXattr") - before;
        assert!(
            (1..READS / 100).contains(&asked),
            "{threads} threads: {asked} questions for {READS} reads"
        );
        let (fast, slow) = client.end();
        assert!(
            fast > READS / 20,
            "{threads} threads: {fast} copies, {slow} system calls"
        );
    }

    let mut client = start_limited(&path, 1 << 30);
    client.ask(&format!("scan {BYTES}"));
    let (fast, slow) = client.end();
    assert!(fast > slow, "{fast} copies, {slow} system calls");
}

/// Builds a C program that links the library, and runs it with a file of the mount. Returns its output, and its system calls that read or write, counted
/// by an outside judge.
fn run_linked(mounted: &Mounted, source: &str) -> (String, usize) {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    let library = library();
    let built = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-I"])
        .arg(own.join("include"))
        .arg(own.join(source))
        .arg("-L")
        .arg(library.parent().unwrap())
        .args(["-lhomenode", "-o"])
        .arg(&program)
        .status();
    assert!(built.unwrap().success());
    let calls = directory.path().join("calls");
    let said = Command::new("strace")
        .args(["--trace=pread64,pwrite64,preadv,pwritev", "--output"])
        .args([&calls, &program, &mounted.path("file")])
        .env("LD_LIBRARY_PATH", library.parent().unwrap())
        .output()
        .unwrap();
    let (out, errors) = (
        String::from_utf8_lossy(&said.stdout),
        String::from_utf8_lossy(&said.stderr),
    );
    assert!(said.status.success(), "{errors}");
    let calls = fs::read_to_string(calls).unwrap();
    let count = calls
        .lines()
        .filter(|line| line.contains("read") || line.contains("write"))
        .count();
    (out.into_owned(), count)
}

#[test]
fn c_program_reads_and_writes_by_copies() {
    let Some(mounted) = Mounted::new() else { return };
    let (out, count) = run_linked(&mounted, "examples/records.c");
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines[0], "4096000 bytes");
    // All of it lies on a node, and in huge pages perhaps.
    let on: u64 = lines[1..]
        .iter()
        .map(|line| line.split(' ').nth(2).unwrap().parse::<u64>().unwrap())
        .sum();
    assert!(on >= 4_096_000, "{out}");
    // Some a tick of the kernel's clock; the trace makes them slow.
    assert!(count < 200, "{count} of 2,000 reads and writes were system calls");
}

/// Calls that may change how any descriptor writes.
#[test]
fn c_program_goes_on_by_copies_after_calls_about_other_things() {
    let Some(mounted) = Mounted::new() else { return };
    let (_, count) = run_linked(&mounted, "tests/others.c");
    assert!(count < 200, "{count} of 4,000 writes were system calls");
}

/// The action for SIGBUS is the library's as long as the process lives, and calls the one that was there before.
#[test]
fn handlers_run_after_dlclose() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 10_000]).unwrap();
    let program = mounted.build("unload");
    let mut client = Program::of(Command::new(program).arg(library()).arg(&path), false);
    assert_eq!(client.answer(), "done");
    client.end_saying();
}

#[test]
fn statistics_give_a_reason_for_each_system_call() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![1; 8192]).unwrap();
    let mut program = Program::start("reasons", &path, true);
    assert_eq!(program.answer(), "done");
    let said = program.end_saying();
    let told = "descriptors left to the system: 1 no regular file, 2 open for writing alone, 1 open with O_SYNC or O_DSYNC, \
                1 open with O_DIRECT, 1 open with O_APPEND, 1 on no pool\n";
    assert!(said.contains(told), "{said}");

    // It was used too few times to be looked at.
    let mut program = Program::start("commands", &path, true);
    program.ask("read 0 1");
    let said = program.end_saying();
    assert!(
        said.contains("1 on others (descriptors are looked at with their 32nd call)"),
        "{said}"
    );
}
