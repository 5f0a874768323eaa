//! Counts by programs in the kernel, as a recording has them.

use super::*;
use homenode_policy::NodeId;
use homenode_policy::affinity::{DeviceBytes, FileId, PoolFile, Received, Thread, ThreadId};

#[derive(Clone, Copy)]
struct Counts {
    thread: u32,
    run_ns: u64,
    written: u64,
    mask: u64,
}

impl Made {
    /// Threads of process 7, which began at tick 5.
    fn threads(&self, threads: &[Counts]) -> &Self {
        let mut bytes = Vec::new();
        for counts in threads {
            bytes.extend([7, counts.thread].iter().flat_map(|number| number.to_le_bytes()));
            let longs = [50_000_000, counts.run_ns, 0, counts.written, counts.mask];
            bytes.extend(longs.iter().flat_map(|long: &u64| long.to_le_bytes()));
            bytes.extend(2_u32.to_le_bytes());
            bytes.extend([1, 1].iter().flat_map(|short: &u16| short.to_le_bytes()));
            bytes.extend(*b"io\xc3\0\0\0\0\0\0\0\0\0\0\0\0\0");
            bytes.extend(*b"server\0\0\0\0\0\0\0\0\0\0");
            bytes.extend(counts.mask.to_le_bytes());
        }
        self.bytes("proc/bpf/threads", &bytes)
    }

    fn counts(&self, part: &str, missed: u64, entries: &[(&[u32], &[u64])]) -> &Self {
        let mut bytes = missed.to_le_bytes().to_vec();
        for (key, counts) in entries {
            bytes.extend(key.iter().flat_map(|number| number.to_le_bytes()));
            bytes.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
        }
        self.bytes(&format!("proc/bpf/{part}"), &bytes)
    }
}

fn counts(thread: u32, run_ns: u64, written: u64, mask: u64) -> Counts {
    Counts {
        thread,
        run_ns,
        written,
        mask,
    }
}

fn machine() -> Made {
    let machine = four_cpus();
    machine.file("sys/fs/cgroup/cgroup.controllers", "cpuset\n");
    machine.file("sys/fs/cgroup/a.service/cpuset.cpus.effective", "1-2\n");
    machine.file("proc/7/task/9/cgroup", "0::/a.service\n");
    machine.threads(&[counts(8, 100, 0, 15), counts(9, 100, 50, 6), counts(10, 100, 0, 15)]);
    machine.counts("sockets", 0, &[]).counts("disks", 0, &[]);
    machine
}

#[test]
fn threads_have_their_sockets_and_disks() {
    let machine = machine();
    let disk = machine.place("sys/devices/sda/size");
    machine.link("sys/dev/block/8:0", disk.parent().unwrap().to_str().unwrap());
    machine.file("sys/class/net/eth0/ifindex", "3\n");
    let mut sensor = machine.sensor();
    machine.uptime("101.00");
    machine.threads(&[counts(8, 150, 0, 15), counts(9, 300, 4146, 6), counts(10, 100, 0, 15)]);
    machine.counts(
        "sockets",
        0,
        &[
            (&[8, 2, 3, 1], &[1000, 0]),
            (&[8, 2, 9, 1], &[10, 0]),
            (&[8, u32::MAX, 0, 0], &[7, 30]),
            (&[8, u32::MAX, 3, 0], &[0, 20]),
            (&[44, 1, 0, 0], &[9, 9]),
        ],
    );
    machine.counts("disks", 0, &[(&[9, 8 << 20], &[0, 0, 4096])]);
    let sensed = sensor
        .sense(&topology(&[("eth0", DeviceKind::Network), ("sda", DeviceKind::Block)]))
        .unwrap();
    let id = |thread| ThreadId {
        process: 7,
        thread,
        started: 5,
    };
    let thread = |thread, cpu_ns| Thread {
        name: "io".to_owned(),
        process_name: "server".to_owned(),
        cpu_ns,
        ..Thread::idle(id(thread), CpuId(2), cpus(&[0, 1, 2]).into())
    };
    let sent = |device, bytes| DeviceBytes { device, bytes };
    let received = |cpu, queue, bytes| Received { cpu, queue, bytes };
    let receiver = Thread {
        received: vec![
            received(Some(CpuId(2)), Some(("eth0".to_owned(), 1)), 1000),
            // The kernel's other card is not one of those that are looked at.
            received(Some(CpuId(2)), None, 10),
            received(None, None, 7),
        ],
        sent: vec![sent(None, 30), sent(Some("eth0".to_owned()), 20)],
        ..thread(8, 50)
    };
    let writer = Thread {
        allowed: cpus(&[1, 2]).into(),
        cpuset: cpus(&[1, 2]).into(),
        disk: vec![DeviceBytes {
            device: Some("sda".to_owned()),
            bytes: 4096,
        }],
        ..thread(9, 200)
    };
    assert_eq!(sensed.snapshot.threads, [receiver, writer]);
    assert_eq!(sensed.unseen, []);
}

#[test]
fn a_cpuset_is_read_from_any_of_its_threads() {
    let machine = machine();
    let mut sensor = machine.sensor();
    // 8 has no files any more, and 10 is asked in its place for the cpuset of both.
    machine.file("proc/7/task/10/cgroup", "0::/a.service\n");
    machine.threads(&[counts(8, 101, 0, 2), counts(10, 101, 0, 2)]);
    let threads = sensor.sense(&topology(&[])).unwrap().snapshot.threads;
    let cpusets: Vec<_> = threads.into_iter().map(|thread| thread.cpuset.to_vec()).collect();
    assert_eq!(cpusets, [cpus(&[1]), cpus(&[1, 2])]);
}

#[test]
fn threads_with_unknown_bytes_are_marked() {
    let unread = |files: &[&str]| -> Vec<bool> {
        let machine = machine();
        let mut sensor = machine.sensor();
        for file in files {
            fs::remove_file(machine.root().join("proc/bpf").join(file)).unwrap();
        }
        machine.threads(&[counts(8, 101, 0, 15)]);
        let threads = sensor.sense(&topology(&[])).unwrap().snapshot.threads;
        threads.iter().map(|thread| thread.is_unread).collect()
    };
    assert_eq!(unread(&[]), [false]);
    // How many bytes of disks they are is counted besides.
    assert_eq!(unread(&["disks"]), [false]);
    assert_eq!(unread(&["sockets"]), [true]);
}

/// A user can fill the map; threads of others then count as not seen, and keep their masks.
#[test]
fn threads_without_room_for_their_sockets_are_marked() {
    let machine = machine();
    let mut sensor = machine.sensor();
    machine.threads(&[counts(8, 101, 0, 15), counts(10, 101, 0, 15)]);
    machine.counts("sockets", 4711, &[(&[8, 2, 3, 1], &[1000, 0])]);
    let threads = sensor.sense(&topology(&[])).unwrap().snapshot.threads;
    let unread: Vec<_> = threads
        .iter()
        .map(|thread| (thread.id.thread, thread.is_unread))
        .collect();
    assert_eq!(unread, [(8, false), (10, true)]);
}

#[test]
fn lost_and_uncounted_entries_are_reported() {
    let machine = machine();
    let mut sensor = machine.sensor();
    machine.counts("sockets", 4711, &[]);
    fs::remove_file(machine.root().join("proc/bpf/disks")).unwrap();
    machine.file("proc/bpf/disks.unseen", "the kernel is in a bad mood");
    let mut told = |what: &str| -> Vec<String> {
        let unseen = sensor.sense(&topology(&[])).unwrap().unseen.into_iter();
        let about = unseen.filter(|unseen| unseen.what.contains(what));
        let whys = about.map(|unseen| unseen.why.split(';').next().unwrap().to_owned());
        whys.collect()
    };
    let [sockets] = &told("received and sent")[..] else {
        panic!("expected one line")
    };
    assert!(sockets.starts_with("4711 more"), "{sockets}");
    assert_eq!(told("which disks"), ["the kernel is in a bad mood"]);
    for damaged in ["sockets", "disks"] {
        machine.file(&format!("proc/bpf/{damaged}"), "123");
    }
    assert_eq!(told("which disks"), ["proc/bpf/disks cannot be understood"]);
    assert_eq!(told("received and sent").len(), 1);
}

/// A thread by its number and start, with bytes by home.
type Told<'a> = (u32, u64, &'a [(u16, u64)]);

/// Answer of the server of pool 0:45.
fn told(threads: &[Told<'_>]) -> PoolTasks {
    let task = |(thread, started, homes): &Told<'_>| TaskBytes {
        thread: *thread,
        started: *started,
        homes: homes.to_vec(),
        files: vec![(3, 1000)],
    };
    PoolTasks {
        pool: (0, 45),
        answered: true,
        counted_ms: 0,
        threads: threads.iter().map(task).collect(),
        files: vec![FilePlace {
            inode: 3,
            homes: vec![(1, 500)],
        }],
        room: vec![(0, 900)],
        unseen: vec![("reads".to_owned(), "cached".to_owned())],
    }
}

/// Memory of threads 8, 9 and 10 after a second period in which all run and servers tell this, counted up to its end.
fn memory_after(first: &[PoolTasks], second: &[PoolTasks]) -> ([Vec<(NodeId, u64)>; 3], Sensed) {
    let machine = machine();
    machine.bytes("proc/homenode/tasks", &serde_json::to_vec(first).unwrap());
    let mut sensor = machine.sensor();
    machine.uptime("101.00");
    let mut second = second.to_vec();
    second.iter_mut().for_each(|one| one.counted_ms = 1000);
    machine.bytes("proc/homenode/tasks", &serde_json::to_vec(&second).unwrap());
    machine.threads(&[8, 9, 10].map(|thread| counts(thread, 200, 0, 15)));
    let sensed = sensor.sense(&topology(&[])).unwrap();
    let memory = [0, 1, 2].map(|index| sensed.snapshot.threads[index].memory.clone());
    (memory, sensed)
}

#[test]
fn buffers_are_joined_by_number_and_start() {
    let first = told(&[(8, 5, &[(0, 100), (1, 7)]), (9, 5, &[(1, 50)])]);
    let second = told(&[
        (8, 5, &[(0, 100), (1, 20), (4, 9)]),
        // Another thread had the number.
        (9, 4, &[(1, 5000)]),
        // New to the server, so all of it is of the period.
        (10, 5, &[(1, 70)]),
        (11, 5, &[(1, 70)]),
    ]);
    let (memory, sensed) = memory_after(&[first], &[second]);
    let node = NodeId;
    assert_eq!(memory, [vec![(node(1), 13), (node(4), 9)], vec![], vec![(node(1), 70)]]);
    let id = FileId {
        pool: (0, 45),
        inode: 3,
    };
    assert_eq!(sensed.snapshot.threads[0].files, [(id, 1000)]);
    assert_eq!(
        sensed.snapshot.files,
        [PoolFile {
            id,
            lies: vec![(node(1), 500)],
            room: vec![(node(0), 900)]
        }]
    );
    let unseen: Vec<String> = sensed.unseen.iter().map(ToString::to_string).collect();
    assert!(
        unseen.contains(&"reads on device 0:45: cached".to_owned()),
        "{unseen:?}"
    );
}

#[test]
fn counts_of_an_unknown_time_are_not_used() {
    let second = told(&[(8, 5, &[(0, 100)])]);
    let silent = PoolTasks {
        answered: false,
        threads: vec![],
        ..second.clone()
    };
    for first in [&[][..], &[silent]] {
        let (memory, _) = memory_after(first, std::slice::from_ref(&second));
        assert_eq!(memory[0], []);
    }
    // A server that began anew has counted less.
    let (memory, _) = memory_after(&[told(&[(8, 5, &[(0, 500)])])], &[second]);
    assert_eq!(memory[0], [(NodeId(0), 100)]);
}

#[test]
fn periods_without_an_answer_get_their_share_of_known_counts() {
    let machine = machine();
    let silent = PoolTasks {
        pool: (0, 45),
        ..PoolTasks::default()
    };
    let answer = |counted_ms, bytes| PoolTasks {
        counted_ms,
        ..told(&[(8, 5, &[(1, bytes)])])
    };
    let tell = |one: &PoolTasks| {
        let told = serde_json::to_vec(std::slice::from_ref(one)).unwrap();
        machine.bytes("proc/homenode/tasks", &told);
    };
    tell(&answer(5000, 1000));
    let mut sensor = machine.sensor();
    let mut run_ns = 100;
    let mut moved_at = |uptime: &str, one: &PoolTasks| {
        machine.uptime(uptime);
        tell(one);
        // A thread that does not run has no buffers.
        run_ns += 100;
        machine.threads(&[counts(8, run_ns, 0, 15)]);
        let threads = sensor.sense(&topology(&[])).unwrap().snapshot.threads;
        threads[0].memory.first().map(|(_, bytes)| *bytes)
    };
    assert_eq!(moved_at("101.00", &silent), None);
    assert_eq!(moved_at("102.00", &answer(7000, 5000)), Some(2000));
    assert_eq!(moved_at("103.00", &silent), Some(2000));
    // More than is counted up to that time counts with the next answer.
    assert_eq!(moved_at("104.00", &answer(7000, 5400)), Some(2000));
    assert_eq!(moved_at("106.00", &answer(8000, 5500)), Some(1000));
    assert_eq!(moved_at("165.00", &silent), Some(500 * 59));
    assert_eq!(moved_at("166.00", &silent), None);
}

/// A user's server may say so, and whoever asks it is root's.
#[test]
fn answers_with_very_many_homes_are_merged_quickly() {
    let homes: Vec<(u16, u64)> = (0..8).flat_map(|_| (0..=u16::MAX).map(|node| (node, 7))).collect();
    let answer = told(&[(8, 5, &homes)]);
    let start = std::time::Instant::now();
    let (memory, _) = memory_after(std::slice::from_ref(&answer), std::slice::from_ref(&answer));
    assert_eq!(memory[0], []);
    let taken = start.elapsed();
    assert!(taken.as_secs() < 5, "{taken:?}");
}

/// Thread by thread, the masks of 20,000 threads on 256 CPUs would take 40 MB.
#[test]
fn equal_masks_are_held_once() {
    const THREADS: u32 = 20_000;
    let machine = four_cpus();
    machine.file(ONLINE, "0-255\n").file("proc/7/task/1/cgroup", "0::/\n");
    let count = |run_ns: u64| {
        let mut bytes = Vec::new();
        for thread in 0..THREADS {
            let narrow = thread % 20 == 1;
            bytes.extend([7, thread].iter().flat_map(|number: &u32| number.to_le_bytes()));
            let longs = [50_000_000, run_ns, 0, 0, 1];
            bytes.extend(longs.iter().flat_map(|long: &u64| long.to_le_bytes()));
            bytes.extend(2_u32.to_le_bytes());
            bytes.extend([1, 4].iter().flat_map(|short: &u16| short.to_le_bytes()));
            bytes.extend(*b"io\0\0\0\0\0\0\0\0\0\0\0\0\0\0server\0\0\0\0\0\0\0\0\0\0");
            let mask = if narrow {
                [0xff << (thread / 20 % 8 * 8), 0, 0, 0]
            } else {
                [u64::MAX; 4]
            };
            bytes.extend(mask.iter().flat_map(|long| long.to_le_bytes()));
        }
        machine.bytes("proc/bpf/threads", &bytes);
    };
    count(1);
    let mut sensor = machine.sensor();
    count(2);
    let start = std::time::Instant::now();
    let threads = sensor.sense(&topology(&[])).unwrap().snapshot.threads;
    println!("{THREADS} threads sensed in {:?}", start.elapsed());
    assert_eq!(threads.len(), THREADS as usize);
    let masks = threads.iter().flat_map(|thread| [&thread.allowed, &thread.cpuset]);
    let masks: BTreeMap<usize, usize> = masks
        .map(|mask| (mask.as_ptr().addr(), size_of_val(&mask[..])))
        .collect();
    let bytes: usize = masks.values().sum();
    assert!(bytes < 10_000, "{bytes} bytes in {} masks", masks.len());
}
