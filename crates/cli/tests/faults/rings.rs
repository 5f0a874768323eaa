//! Rings that the kernel breaks: what it answers is made up by strace.

use super::machine::*;
use crate::command::harness::*;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A server in the foreground that is answered `fault` to its system calls, once it is ready.
struct Traced(Child);

impl Traced {
    /// `fault` is strace's: `io_uring_enter:error=EIO:when=200`.
    fn up(fault: &str, dir: &Path) -> Self {
        let child = Command::new("strace")
            .args(["--follow-forks", "--output=/dev/null", "--trace=io_uring_enter"])
            .arg(format!("--inject={fault}"))
            .arg(env!("CARGO_BIN_EXE_homenode"))
            .args(["up", "--foreground", "--transport=uring", SIZE])
            .arg(dir)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    /// Waits for its end, twenty seconds at most.
    fn end(&mut self) -> ExitStatus {
        let ended = std::cell::Cell::new(None);
        let server = std::cell::RefCell::new(&mut self.0);
        wait_until("the server ends", || {
            ended.set(server.borrow_mut().try_wait().unwrap());
            ended.get().is_some()
        });
        ended.get().unwrap()
    }
}

/// Makes and removes files in `dir` until that fails, ten seconds at most. Whether it failed.
fn work(dir: &Path) -> bool {
    let script = "while echo content >file && rm file; do :; done; exit 1";
    let status = Command::new("timeout")
        .args(["--kill-after=1", "10", "sh", "-c", script])
        .current_dir(dir)
        .stderr(Stdio::null())
        .status();
    status.unwrap().code() == Some(1)
}

fn wait_until_mounted(scratch: &Scratch) {
    wait_until("it is mounted", || mounts_below(scratch.path()).len() == 1);
}

#[test]
fn a_broken_ring_ends_the_server_and_no_call_hangs() {
    with_rings("broken-ring", |scratch, dir| {
        let mut server = Traced::up("io_uring_enter:error=EIO:when=300", &dir);
        wait_until_mounted(scratch);
        assert!(work(&dir), "users get errors");
        assert!(!server.end().success());
        assert_nothing_mounted(scratch.path());
    });
}

#[test]
fn a_broken_ring_leaves_mounts_on_top_alone() {
    with_rings("covered-ring", |scratch, dir| {
        let mut server = Traced::up("io_uring_enter:error=EIO:when=300", &dir);
        wait_until_mounted(scratch);
        let below = fs::File::open(&dir).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&dir).status();
        assert!(mounted.unwrap().success());
        fs::write(dir.join("on top"), "of it").unwrap();
        let path = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            std::os::fd::AsRawFd::as_raw_fd(&below)
        );
        assert!(work(Path::new(&path)), "users get errors");
        assert!(!server.end().success());
        assert_eq!(fs::read(dir.join("on top")).unwrap(), b"of it");
        drop(below);
        let unmounted = Command::new("umount").arg(&dir).status();
        assert!(unmounted.unwrap().success());
        succeed(homenode(["down"]).arg(&dir));
        assert_nothing_mounted(scratch.path());
    });
}

#[test]
fn requests_are_retried_while_the_kernel_lacks_memory() {
    with_rings("again", |scratch, dir| {
        // Not the first call, which registers.
        let mut server = Traced::up("io_uring_enter:error=EAGAIN:when=20+7", &dir);
        wait_until_mounted(scratch);
        for number in 0..100 {
            let path = dir.join(format!("{number}"));
            fs::write(&path, vec![7; 10_000]).unwrap();
            assert_eq!(fs::read(&path).unwrap(), vec![7; 10_000]);
        }
        succeed(homenode(["down"]).arg(&dir));
        assert!(server.end().success());
    });
}

#[test]
fn a_ring_that_takes_too_few_entries_is_refused() {
    with_rings("short", |scratch, dir| {
        let mut server = Traced::up("io_uring_enter:retval=0:when=1", &dir);
        assert!(!server.end().success());
        assert_nothing_mounted(scratch.path());
        std::thread::sleep(Duration::from_millis(10));
        assert!(fs::read_dir(&dir).unwrap().next().is_none());
    });
}
