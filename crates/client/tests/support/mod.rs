//! Mounts, and programs with the library and without it: what the tests of this crate share.
//!
//! A program is the test's own executable, run again: a test named [`ENTRY`] in it does the part that [`PART`] names.

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "it calls the C library as programs do: with numbers, and buffers with their lengths"
)]
pub(crate) mod calls;

use homenode::{Data, Mount, MountOptions, Pool, PoolOptions, Size};
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

/// The test that is the program.
pub(crate) const ENTRY: &str = "program::program";
/// The program's part, and the file that it is about.
pub(crate) const PART: &str = "HOMENODE_TEST_PART";
pub(crate) const FILE: &str = "HOMENODE_TEST_FILE";

/// A seed that differs with every run, or the one of `HOMENODE_TEST_SEED`. Printed past the test harness's capture.
pub(crate) fn seed(what: &str) -> u64 {
    let seed = match std::env::var("HOMENODE_TEST_SEED") {
        Ok(text) => text.parse().expect("HOMENODE_TEST_SEED is a number below 2^64"),
        Err(_) => fastrand::u64(..),
    };
    // A failed write to standard error must not fail the test.
    let _ = writeln!(std::io::stderr(), "{what}: seed {seed}");
    seed
}

/// A mount whose files' bytes the kernel holds.
pub(crate) struct Mounted {
    _pool: Pool,
    mount: Option<Mount>,
    pub(crate) directory: tempfile::TempDir,
    /// For programs.
    pub(crate) built: tempfile::TempDir,
}

impl Mounted {
    pub(crate) fn new() -> Option<Self> {
        // SAFETY: takes nothing.
        if unsafe { libc::geteuid() } != 0 || !Path::new("/dev/fuse").exists() {
            let _ = writeln!(std::io::stderr(), "SKIPPED: mounting needs root and /dev/fuse");
            return None;
        }
        let pool = Pool::create(&PoolOptions::new().size_per_node(Size::Bytes(256 << 20))).unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let mut options = MountOptions::default();
        options.data = Data::Kernel;
        let mount = pool.mount_with(directory.path(), &options).unwrap();
        Some(Self {
            _pool: pool,
            mount: Some(mount),
            directory,
            built: tempfile::tempdir().unwrap(),
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Requests of a kind that the server has had: of `GetAttr` or `GetXattr`.
    pub(crate) fn asked(&self, kind: &str) -> u64 {
        let requests = self.mount.as_ref().expect("mounted").statistics().requests;
        let found = requests.iter().find(|(opcode, _)| format!("{opcode:?}") == kind);
        found.map_or(0, |(_, count)| *count)
    }

    /// Compiles a program in C that lies beside the tests.
    pub(crate) fn build(&self, name: &str) -> PathBuf {
        let program = self.built.path().join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.c"));
        let built = Command::new("cc")
            .args(["-O2", "-Wall", "-Werror", "-rdynamic", "-o"])
            .args([&program, &source])
            .status();
        assert!(built.unwrap().success());
        program
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.mount.take());
    }
}

/// The library: Cargo does not build it for tests, which cannot link it.
pub(crate) fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "homenode-client"])
            .status();
        assert!(built.unwrap().success());
        let own = std::env::current_exe().unwrap();
        own.parent().and_then(Path::parent).unwrap().join("libhomenode.so")
    })
}

/// A program at work.
pub(crate) struct Program {
    pub(crate) child: Child,
    /// Its standard input, until it is to end.
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Program {
    /// Runs a part of the program on a file, with the library or without it.
    pub(crate) fn start(part: &str, file: &Path, is_preloaded: bool) -> Self {
        Self::start_with(part, file, is_preloaded, |_| ())
    }

    pub(crate) fn start_with(part: &str, file: &Path, is_preloaded: bool, change: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([ENTRY, "--exact", "--nocapture", "--test-threads=1"]);
        command.env(PART, part).env(FILE, file);
        change(&mut command);
        Self::of(&mut command, is_preloaded)
    }

    pub(crate) fn of(command: &mut Command, is_preloaded: bool) -> Self {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if is_preloaded {
            command.env("LD_PRELOAD", library()).env("HOMENODE_RUN", "stats");
        }
        let mut child = command.spawn().unwrap();
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, to, from }
    }

    /// Sends a command.
    pub(crate) fn tell(&mut self, command: &str) {
        writeln!(self.to.as_ref().expect("`end` alone takes it"), "{command}").unwrap();
    }

    /// Sends a command; gives the answer.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    pub(crate) fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            if self.from.read_line(&mut line).unwrap() == 0 {
                let mut said = String::new();
                self.child.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
                panic!("the program has ended, {:?}: {said}", self.child.wait());
            }
            // The test harness of the program writes lines of its own.
            if let Some((_, answer)) = line.split_once("= ") {
                return answer.trim().to_owned();
            }
        }
    }

    /// Waits for its good end; gives its numbers of copies and of system calls on files of the pool.
    pub(crate) fn end(self) -> (u64, u64) {
        let [copies, system_calls, _] = self.end_with_others();
        (copies, system_calls)
    }

    /// Waits for its good end; gives what it said on standard error.
    pub(crate) fn end_saying(mut self) -> String {
        drop(self.to.take());
        // Its test harness has something to say, and needs somebody who listens.
        std::io::copy(&mut self.from, &mut std::io::sink()).unwrap();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {said}");
        said
    }

    /// [`Program::end`], and the number of system calls on other files.
    pub(crate) fn end_with_others(self) -> [u64; 3] {
        let said = self.end_saying();
        let Some((_, told)) = said.split_once("homenode run: process ") else {
            return [0; 3];
        };
        let numbers: Vec<u64> = told
            .split(|byte: char| !byte.is_ascii_digit())
            .filter_map(|word| word.parse().ok())
            .collect();
        // The process's own number is the first, and the sum the third.
        [numbers[1], numbers[3], numbers[4]]
    }
}

impl Drop for Program {
    /// After a test that has failed: no program outlives it.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn punch(file: &File, at: usize, bytes: usize) {
    assert_eq!(calls::allocate(file.as_raw_fd(), calls::PUNCH, at, bytes), 0);
}
