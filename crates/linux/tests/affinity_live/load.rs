//! Load that is moved: a program that sends, writes files, and starts threads and processes all the time.

use crate::machine::BEYOND;
use crate::{DIRECTORY, directory, role};
use homenode_linux::cpu::pin_to_cpu;
use homenode_policy::CpuId;
use std::env;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

const READY: &str = "the load is at work";

/// Runs in a session of its own until it is dropped. Its output stays open: the test harness in it would end when it cannot write that a minute
/// has passed.
pub(crate) struct Load {
    child: Child,
    _output: BufReader<ChildStdout>,
}

impl Load {
    pub(crate) fn start() -> Self {
        let mut command = Command::new("setsid");
        command.arg(env::current_exe().unwrap()).args(role("work"));
        command.env(DIRECTORY, directory()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        assert!(output.by_ref().lines().any(|line| line.unwrap().contains(READY)));
        Self { child, _output: output }
    }

    pub(crate) fn session(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // What it has started last ends by itself.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Never returns: it is killed.
pub(crate) fn run(directory: &Path) {
    let spawn = |name: &str, work: Box<dyn FnMut() + Send>| {
        let mut work = work;
        let forever = move || {
            loop {
                work();
            }
        };
        thread::Builder::new().name(name.to_owned()).spawn(forever).unwrap();
    };
    for _ in 0..2 {
        let socket = UdpSocket::bind("10.77.0.1:0").unwrap();
        let send = move || {
            socket.send_to(&[7; 512], (BEYOND, 7777)).unwrap();
            thread::sleep(Duration::from_millis(2));
        };
        spawn("sends", Box::new(send));
    }
    let mut file = File::create(directory.join("written")).unwrap();
    let write = move || {
        file.write_all(&[7; 4096]).unwrap();
        thread::sleep(Duration::from_millis(5));
    };
    spawn("writes", Box::new(write));
    let (is_pinned, pinned) = std::sync::mpsc::channel();
    let pin = move || {
        pin_to_cpu(CpuId(0)).unwrap();
        is_pinned.send(()).unwrap();
        loop {
            thread::park();
        }
    };
    thread::Builder::new().name("pinned".to_owned()).spawn(pin).unwrap();
    pinned.recv().unwrap();
    let start = || {
        thread::spawn(|| thread::sleep(Duration::from_millis(20)));
        thread::sleep(Duration::from_millis(10));
    };
    spawn("starts threads", Box::new(start));
    println!("{READY}");
    loop {
        // The second sleep outlives its parent.
        let status = Command::new("sh").args(["-c", "sleep 0.06 & exec sleep 0.01"]).status();
        assert!(status.unwrap().success());
        thread::sleep(Duration::from_millis(10));
    }
}
