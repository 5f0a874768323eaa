//! A server with a cache whose memory control group is at its limit, because of others in it.

use super::disks::Disk;
use super::*;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use std::thread;

const MIB: u64 = 1 << 20;
/// Room that is left to the group above what the server has: 4 MiB that its rings may yet take, and what the others get.
const ROOM: u64 = 8 * MIB;
/// Written through the mount by each of two threads: together more than the cache has.
const FILE_BYTES: u64 = 12 * MIB;
const WRITE_BYTES: usize = 64 << 10;

/// Fills the group with page cache again and again, until dropped.
struct Others(Child);

impl Others {
    fn start(pools: &Pools, group: &ControlGroup) -> Self {
        let mut fill = Command::new("sh");
        fill.args([
            "-c",
            "while :; do dd if=/dev/zero of=others bs=1M count=48 status=none; done",
        ]);
        let mut fill = group.run(fill.current_dir(pools.0.path()));
        // A group of processes, so that all of them end.
        Self(fill.process_group(0).stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
    }
}

fn byte_of(thread: u64, at: u64) -> u8 {
    (at / 512 * 3 + thread * 7).to_le_bytes()[0]
}

fn bytes_at(thread: u64, at: u64) -> Vec<u8> {
    (at..at + WRITE_BYTES as u64).map(|at| byte_of(thread, at)).collect()
}

#[test]
fn a_server_in_a_memory_group_at_its_limit_writes_back_and_serves() {
    need_mounts!();
    let pools = Pools::new("squeezed");
    if rustix::fs::statfs(pools.0.path()).unwrap().f_type == 0x0102_1994 {
        skipped("others fill page cache of a disk, and the temporary directory is a tmpfs");
        return;
    }
    let Some(group) = ControlGroup::of_memory() else { return };
    let mount = pools.0.dir("mount");
    let disk = Disk::new(&pools, "disk", 64 * MIB, &[]);
    succeed(pools.homenode("pool create tank").arg(&disk.0));
    succeed(&mut group.run(&pools.homenode("up tank mount --cache 8M --buffers 4M")));
    let server = server_pid(&mount).unwrap();
    assert!(group.read("cgroup.procs").contains(&server.as_raw_pid().to_string()));
    let used: u64 = group.read(group.usage).trim().parse().unwrap();
    group.write(group.limit, &(used + ROOM).to_string()).unwrap();
    let others = Others::start(&pools, &group);
    wait_until("the group is at its limit", || group.times_met() > 20);
    let before = group.times_met();
    for round in 0..3 {
        thread::scope(|scope| {
            for thread in 0..2 {
                let path = mount.join(format!("{thread}"));
                scope.spawn(move || {
                    let file = File::options()
                        .read(true)
                        .write(true)
                        .create(true)
                        .truncate(false)
                        .open(path)
                        .unwrap();
                    let mut back = vec![0; WRITE_BYTES];
                    for at in (0..FILE_BYTES).step_by(WRITE_BYTES) {
                        file.write_all_at(&bytes_at(thread + round, at), at).unwrap();
                    }
                    file.sync_all().unwrap();
                    for at in (0..FILE_BYTES).step_by(WRITE_BYTES) {
                        file.read_exact_at(&mut back, at).unwrap();
                        assert!(back == bytes_at(thread + round, at), "bytes at {at} in round {round}");
                    }
                });
            }
        });
    }
    assert!(group.times_met() > before, "the group never met its limit");
    drop(others);
    assert_eq!(server_pid(&mount), Some(server), "the server was killed");
    down(&mount);
    pools.run("up tank mount --cache 8M --buffers 4M");
    let read = fs::read(mount.join("1")).unwrap();
    assert!(read == (0..FILE_BYTES).map(|at| byte_of(3, at)).collect::<Vec<u8>>());
    down(&mount);
}
