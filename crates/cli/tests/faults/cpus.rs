//! CPUs that go and come while a pool is mounted.

use super::load::Load;
use super::machine::*;
use crate::command::harness::*;
use rustix::process::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The last CPU that can be switched off.
fn switch() -> Option<(u32, PathBuf)> {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("cpu")?.parse::<u32>().ok();
    let cpus = fs::read_dir("/sys/devices/system/cpu").ok()?;
    let last = cpus.filter_map(|entry| number(entry.ok()?)).max()?;
    let path = PathBuf::from(format!("/sys/devices/system/cpu/cpu{last}/online"));
    let found = path.exists().then_some((last, path));
    if found.is_none() {
        skipped("needs a CPU that can be switched off");
    }
    found
}

/// The CPUs that the thread of a CPU's ring may use.
fn cpus_of_ring(server: Pid, cpu: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.as_raw_nonzero())).unwrap();
    let tasks = tasks.map(|task| task.unwrap().path());
    let name = format!("fuse-ring-{cpu}\n");
    let mut rings = tasks.filter(|task| fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm == name));
    let status = fs::read_to_string(rings.next().unwrap().join("status")).unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    allowed.unwrap().trim().to_owned()
}

fn works(dir: &Path) {
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    for index in 0..8 {
        let path = dir.join(format!("file-{index}"));
        fs::write(&path, &bytes).unwrap();
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
}

/// Makes and removes a file from that CPU.
fn asks_on(cpu: u32, dir: &Path) {
    let path = dir.join("asked");
    let script = r#": >"$1" && rm "$1""#;
    let mut command = std::process::Command::new("taskset");
    command
        .args(["-c", &cpu.to_string(), "sh", "-c", script, "asks"])
        .arg(path);
    succeed(&mut command);
}

#[test]
fn a_cpu_goes_offline_and_returns_under_load() {
    need_mounts!();
    let Some((cpu, switch)) = switch() else { return };
    let has_rings = has_rings();
    for transport in ["classic", "uring"].into_iter().take(1 + usize::from(has_rings)) {
        let scratch = Scratch::new("cpu");
        let dir = scratch.dir("pool");
        {
            let _undisturbed = as_it_is();
            up_by(transport, &dir);
        }
        let pid = server_pid(&dir).unwrap();
        let mut load = Load::start(&dir);
        {
            let Some(_offline) = Changed::new(&switch, "0") else {
                return;
            };
            works(&dir);
            assert!(load.operations_in(Duration::from_millis(300)) > 0, "work goes on");
        }
        works(&dir);
        assert!(load.operations_in(Duration::from_millis(300)) > 0, "work goes on");
        assert!(load.is_running(), "no call failed");
        if transport == "uring" {
            // A ring's thread looks where it is when it has something to do: it gets that on its CPU.
            let back = || {
                asks_on(cpu, &dir);
                cpus_of_ring(pid, cpu) == cpu.to_string()
            };
            wait_until("the ring's thread is back on its CPU", back);
        }
        drop(load);
        assert_eq!(status(&dir)["fuse"]["panics"], 0);
        down(&dir);
    }
}

/// It has a ring all the same, and comes into use when the CPU does.
#[test]
fn a_cpu_comes_online_after_the_pool_is_up() {
    need_mounts!();
    let Some((cpu, switch)) = switch() else { return };
    let has_rings = has_rings();
    for transport in ["classic", "uring"].into_iter().take(1 + usize::from(has_rings)) {
        let scratch = Scratch::new("cpu-offline");
        let dir = scratch.dir("pool");
        {
            let Some(_offline) = Changed::new(&switch, "0") else {
                return;
            };
            up_by(transport, &dir);
            works(&dir);
        }
        let pid = server_pid(&dir).unwrap();
        let back = || {
            works(&dir);
            transport == "classic" || cpus_of_ring(pid, cpu) == cpu.to_string()
        };
        wait_until("the ring's thread is on its CPU", back);
        down(&dir);
    }
}
