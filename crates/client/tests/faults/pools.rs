//! Two pools that are mounted at once, and a program that copies from one to the other.

use crate::support::calls::{open, pread, pwrite, say};
use crate::support::{Mounted, Program};
use std::fs::{self, OpenOptions};
use std::io::BufRead;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const TO: &str = "HOMENODE_TEST_TO";
const BLOCK_BYTES: usize = 4096;
const BLOCKS: usize = 100;
const ROUNDS: usize = 20;
/// Reads of each file at last.
const LAST: usize = 10;
/// Size to which the test cuts the second file at last.
const CUT_BYTES: usize = 2 * BLOCK_BYTES + 1000;
/// Uses before a file is learned, the last of which learns it.
const USES: u64 = 32;

/// The program.
pub(crate) fn part(path: &Path) {
    let (from, to) = (open(path), open(&PathBuf::from(std::env::var_os(TO).unwrap())));
    for _ in 0..ROUNDS {
        for at in (0..BLOCKS).map(|block| block * BLOCK_BYTES) {
            let bytes = pread(from.as_raw_fd(), BLOCK_BYTES, at).unwrap();
            assert_eq!(pwrite(to.as_raw_fd(), &bytes, at), Ok(BLOCK_BYTES));
        }
    }
    say("copied");
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    // The second was cut meanwhile, and the first was not.
    let end = BLOCKS * BLOCK_BYTES;
    for _ in 0..LAST {
        assert_eq!(pread(to.as_raw_fd(), 200, CUT_BYTES - 100).unwrap().len(), 100);
        assert_eq!(pread(from.as_raw_fd(), 200, end - 200).unwrap().len(), 200);
    }
    say("done");
}

#[test]
fn program_uses_all_pools_or_only_the_given_one() {
    let Some(mounts) = Mounted::new().zip(Mounted::new()) else {
        return;
    };
    let (from, to) = (mounts.0.path("from"), mounts.1.path("to"));
    let content: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
        .take(BLOCKS * BLOCK_BYTES)
        .collect();
    fs::write(&from, &content).unwrap();
    let calls = (ROUNDS * BLOCKS + LAST) as u64;
    let run = |device: Option<u64>| {
        fs::write(&to, vec![0; content.len()]).unwrap();
        let mut program = Program::start_with("pools", &from, true, |command| {
            command.env(TO, &to);
            if let Some(device) = device {
                let device = format!("{}:{}", libc::major(device), libc::minor(device));
                command.env("HOMENODE_RUN_DEVICE", device);
            }
        });
        assert_eq!(program.answer(), "copied");
        assert!(fs::read(&to).unwrap() == content);
        let second = OpenOptions::new().write(true).open(&to).unwrap();
        second.set_len(CUT_BYTES as u64).unwrap();
        assert_eq!(program.ask(""), "done");
        let numbers = program.end_with_others();
        assert_eq!(numbers.iter().sum::<u64>(), 2 * calls, "some calls are not counted");
        numbers
    };
    let [copies, system_calls, others] = run(None);
    assert!(copies > calls, "{copies} copies, {system_calls} system calls");
    assert_eq!(others, 2 * USES);
    for path in [&from, &to] {
        let device = fs::metadata(path).unwrap().dev();
        let [copies, system_calls, others] = run(Some(device));
        assert!(
            copies > calls / 4 && copies < calls,
            "{copies} copies, {system_calls} system calls"
        );
        assert_eq!(others, calls + USES, "calls on the other pool and the first uses");
    }
    let [copies, system_calls, others] = run(Some(fs::metadata("/proc").unwrap().dev()));
    assert_eq!([copies, system_calls, others], [0, 0, 2 * calls], "on no pool");
}
