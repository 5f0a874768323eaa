//! A process that writes to a disk, may use every CPU, and is the only one that its configuration lets be moved.

use super::harness::*;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

/// Writes a file over and over, until the file `pause` is there; has a child that runs now and then, and moves nothing, once
/// the file `fork` is there.
const PROGRAM: &str = r#"
use Fcntl; $0 = $ARGV[0]; $| = 1;
sysopen(my $file, "$ARGV[1]/data", O_RDWR | O_CREAT | O_SYNC) or die $!;
my $forked;
while (1) {
    select(undef, undef, undef, 0.005);
    if (!-e "$ARGV[1]/pause") { sysseek($file, 0, 0); syswrite($file, "x" x 65536) or die $!; }
    if (!$forked && -e "$ARGV[1]/fork") { $forked = fork(); if (!$forked) { select(undef, undef, undef, 0.01) while getppid() > 1; exit } }
    if ($forked && !-e "$ARGV[1]/child") { open(my $out, ">", "$ARGV[1]/child.new"); print $out $forked; close $out; rename("$ARGV[1]/child.new", "$ARGV[1]/child"); }
}
"#;

/// Process that writes, until it is dropped.
pub(crate) struct Writer(Child);

impl Writer {
    fn start(name: &str, directory: &Path) -> Self {
        // A session of its own: whoever has its mask in its session counts as a child, and programs that read the hardware
        // have all kinds of masks for a moment.
        let mut command = Command::new("setsid");
        command.args(["perl", "-e", PROGRAM, name]).arg(directory);
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) struct Load {
    process: Writer,
    name: String,
    directory: tempfile::TempDir,
    _alone: File,
}

impl Load {
    /// Returns `None` without root, a second CPU, or counted disk bytes.
    pub(crate) fn start() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            skipped("root");
            return None;
        }
        if thread::available_parallelism().unwrap().get() < 2 {
            skipped("two CPUs");
            return None;
        }
        let alone = alone();
        // Names of threads have 15 bytes.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("hn{}-{number}", std::process::id());
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let load = Self {
            process: Writer::start(&name, directory.path()),
            name,
            directory,
            _alone: alone,
        };
        let config = format!(
            "policy = \"off\"\nrate_bytes_per_s_min = 1\n[processes]\n{} = \"single-core\"\n",
            load.name
        );
        fs::write(load.config(), config).unwrap();
        let writes = || {
            let io = fs::read_to_string(format!("/proc/{}/io", load.id())).unwrap();
            !io.contains("\nwrite_bytes: 0\n")
        };
        let until = Instant::now() + Duration::from_secs(5);
        while !writes() {
            if Instant::now() > until {
                skipped("a target directory on a disk, for bytes to be counted");
                return None;
            }
            thread::sleep(Duration::from_millis(10));
        }
        Some(load)
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.0.id()
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.path().join("affinity.toml")
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.path().join("state/journal")
    }

    /// A verb with this configuration, if it takes one, and this journal.
    pub(crate) fn affinity(&self, verb: &[&str]) -> Command {
        let mut command = affinity(verb);
        command.arg("--journal").arg(self.journal());
        if verb[0] != "revert" {
            command.arg("--config").arg(self.config());
        }
        command
    }

    pub(crate) fn mask(&self) -> String {
        mask(self.id())
    }

    pub(crate) fn is_moved(&self) -> bool {
        !self.mask().contains(['-', ','])
    }

    /// Another one, of that name.
    pub(crate) fn another(&self, name: &str) -> Writer {
        Writer::start(name, self.path())
    }

    /// Has it write nothing from now on.
    pub(crate) fn pause(&self) {
        fs::write(self.path().join("pause"), "").unwrap();
    }

    /// A child that is started now.
    pub(crate) fn fork(&self) -> u32 {
        fs::write(self.path().join("fork"), "").unwrap();
        let child = self.path().join("child");
        wait_until("a child", || child.exists());
        fs::read_to_string(child).unwrap().parse().unwrap()
    }
}

pub(crate) fn mask(process: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let mut lines = status.lines();
    lines
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap()
        .trim()
        .to_owned()
}

#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}: not after {PATIENCE:?}");
        thread::sleep(Duration::from_millis(20));
    }
}
