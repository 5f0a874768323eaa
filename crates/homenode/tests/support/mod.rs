//! Files of a test's durable pools, and processes of the test that are killed.
#![allow(dead_code, reason = "each test needs some of it")]

use homenode::{Error, NodeId, OpenOptions, Pool, PoolOptions, Size};
use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Environment variable that makes a test's own process the one that is killed.
pub(crate) const KILLED: &str = "HOMENODE_TEST_KILLED";

/// A directory that goes with the test.
pub(crate) struct Files(pub(crate) PathBuf);

impl Files {
    pub(crate) fn new(name: &str) -> Self {
        Self::under(&std::env::temp_dir(), name)
    }

    pub(crate) fn under(dir: &Path, name: &str) -> Self {
        let test = env!("CARGO_CRATE_NAME");
        let dir = dir.join(format!("homenode-{test}-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    pub(crate) fn member(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.0.join(name);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Mounted still when the test failed.
        let mut umount = Command::new("umount");
        let umount = umount.arg("-l").arg(self.0.join("mount"));
        let _ = umount.stderr(Stdio::null()).status();
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Prints that a test is skipped, past the test harness's capture, which holds what macros print.
pub(crate) fn skip(why: impl std::fmt::Display) {
    use std::io::Write as _;
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why} ({test})");
}

/// Says what is missing where pools cannot be mounted.
pub(crate) fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        skip("only root may mount, and /dev/fuse is needed");
    }
    can
}

/// A pool of memory of node 0.
pub(crate) fn pool(mib: u64) -> Pool {
    let size = Size::Bytes(mib << 20);
    Pool::create(&PoolOptions::new().size_per_node(size).node(NodeId(0))).unwrap()
}

/// Options of a pool past the page cache, below a cache of 8 MiB.
pub(crate) fn cached() -> PoolOptions {
    let mut options = PoolOptions::new().cache(8 << 20);
    options.direct = true;
    options
}

pub(crate) fn errno<T: Debug>(result: Result<T, Error>) -> i32 {
    result.unwrap_err().errno()
}

/// Flips bits of a byte.
pub(crate) fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x41], at).unwrap();
}

/// All bytes of a file in a pool.
pub(crate) fn read(pool: &Pool, name: &str) -> Vec<u8> {
    let file = pool.open(name, &OpenOptions::new().read(true)).unwrap();
    let mut bytes = vec![0; usize::try_from(file.metadata().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// The record `nth` of a file: its number again and again.
pub(crate) fn record<const BYTES: usize>(nth: u64) -> [u8; BYTES] {
    std::array::from_fn(|at| nth.to_le_bytes()[at % 8])
}

/// Number of records in a file of a pool that was opened after the kill of `round`: each as it was written, and `told` at least.
pub(crate) fn count_records<const BYTES: usize>(pool: &Pool, name: &str, told: u64, round: u64) -> u64 {
    if pool.metadata(name).is_err() {
        assert_eq!(told, 0, "round {round}: {name} is gone");
        return 0;
    }
    let bytes = read(pool, name);
    let records = bytes.as_chunks::<BYTES>().0;
    let count = records.len() as u64;
    assert!(count >= told, "round {round}: {told} of {name} told, {count} are there");
    for (nth, there) in (0..).zip(records) {
        assert!(
            *there == record(nth),
            "round {round}: record {nth} of {count} in {name} ({told} told) is {:?}",
            &there[..24]
        );
    }
    count
}

/// Rounds of kills.
pub(crate) fn kills() -> u64 {
    std::env::var("HOMENODE_TEST_KILLS").map_or(20, |rounds| rounds.parse().expect("HOMENODE_TEST_KILLS is a number"))
}

/// Starts `test` as the process that is killed; returns when it says that it is up, with the lines that it tells then.
pub(crate) fn start(test: &str, variables: &[(&str, &OsStr)]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_up = lines.by_ref().map_while(Result::ok).any(|line| line.ends_with("up"));
    assert!(is_up, "{test}: the process that is to be killed has not come up");
    (child, lines)
}
