//! Threads: who is in a snapshot, and what is told of them.

use super::*;
use homenode_policy::affinity::{DeviceBytes, Thread, ThreadId};

const KERNEL_THREAD: u32 = 0x0020_8040;

#[derive(Clone, Copy)]
struct Counts {
    run_ns: u64,
    disk: u64,
    started: u64,
}

impl Made {
    fn thread(&self, process: u32, thread: u32, name: &str, counts: Counts) -> &Self {
        let Counts { run_ns, disk, started } = counts;
        let directory = format!("proc/{process}/task/{thread}");
        let stat = format!(
            "{thread} ({name}) S 1 1 1 0 -1 0 0 0 0 0 {} 0 0 0 20 0 1 0 {started} 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 2 0\n",
            run_ns / 10_000_000
        );
        self.file(&format!("{directory}/schedstat"), &format!("{run_ns} 5 5\n"))
            .file(&format!("{directory}/stat"), &stat)
            .file(
                &format!("{directory}/io"),
                &format!("rchar: 7\nread_bytes: {disk}\nwrite_bytes: 1\n"),
            )
            .file(
                &format!("{directory}/status"),
                &format!("Name:\t{name}\nCpus_allowed_list:\t0-3\n"),
            )
            .file(&format!("{directory}/cgroup"), "0::/a.service\n")
            .file(&format!("proc/{process}/comm"), "server\n")
    }

    fn status(&self, process: u32, thread: u32, allowed: &str) -> &Self {
        let text = format!("Name:\tx\nCpus_allowed_list:\t{allowed}\n");
        self.file(&format!("proc/{process}/task/{thread}/status"), &text)
    }
}

fn counts(run_ns: u64, disk: u64) -> Counts {
    let started = 50;
    Counts { run_ns, disk, started }
}

fn sense(sensor: &mut Sensor) -> Vec<Thread> {
    sensor.sense(&topology(&[])).unwrap().snapshot.threads
}

#[test]
fn wait_times_count_since_the_last_pass() {
    const RUN: u64 = 150_000_000;
    let machine = four_cpus();
    let look = |sensor: &mut Sensor, run_ns: u64, waited_ns: u64| {
        machine.thread(7, 7, "x", counts(run_ns, 0));
        machine.file("proc/7/task/7/schedstat", &format!("{run_ns} {waited_ns} 5\n"));
        sense(sensor).first().map(|thread| thread.waited_ns)
    };
    let mut sensor = machine.sensor();
    assert_eq!(look(&mut sensor, RUN, 1000), None);
    // The first time that it is asked tells nothing of the period.
    assert_eq!(look(&mut sensor, 2 * RUN, 3000), Some(0));
    assert_eq!(look(&mut sensor, 3 * RUN, 7000), Some(4000));
    // It is not asked after a short run, and what it waited until then is of no period.
    assert_eq!(look(&mut sensor, 3 * RUN + 1, 9000), Some(0));
    assert_eq!(look(&mut sensor, 4 * RUN + 1, 9500), Some(0));
    assert_eq!(look(&mut sensor, 5 * RUN + 1, 9600), Some(100));
}

/// Hundreds share its CPU: each runs for a moment, and waits for the others all the time.
#[test]
fn a_bound_thread_is_asked_how_long_it_waited_however_little_it_ran() {
    const RUN: u64 = 2_000_000;
    let machine = four_cpus();
    let mut sensor = machine.sensor();
    let mut waited = Vec::new();
    for pass in 1..4 {
        machine.uptime(&format!("{}.00", 100 + pass));
        machine.thread(7, 7, "x", counts(pass * RUN, 0));
        machine.status(7, 7, "0-1");
        machine.file(
            "proc/7/task/7/schedstat",
            &format!("{} {} 5\n", pass * RUN, pass * 900_000_000),
        );
        waited.extend(sense(&mut sensor).first().map(|thread| thread.waited_ns));
    }
    // The first time that it is asked tells nothing of the period.
    assert_eq!(waited, [0, 900_000_000]);
}

/// Its cpuset cannot be seen, and its mask is not taken for it: somebody may have pinned it.
#[test]
fn a_thread_of_a_group_whose_name_is_no_text_has_all_cpus_in_its_cpuset() {
    let machine = four_cpus();
    machine.thread(7, 7, "x", counts(1000, 0));
    let mut sensor = machine.sensor();
    machine.thread(7, 7, "x", counts(2000, 0));
    machine.status(7, 7, "0-1");
    machine.bytes("proc/7/task/7/cgroup", b"0::/user/\xff\n");
    let threads = sense(&mut sensor);
    assert_eq!(threads[0].cpuset[..], [0, 1, 2].map(CpuId), "{threads:?}");
}

#[test]
fn only_threads_that_ran_are_reported() {
    let machine = four_cpus();
    machine
        .thread(7, 7, "server", counts(1000, 10))
        .thread(7, 8, "io (1) ", counts(5, 0));
    machine.thread(9, 9, "idle", counts(5, 5));
    let mut sensor = machine.sensor();
    assert_eq!(sense(&mut sensor), []);
    machine.thread(7, 8, "io (1) ", counts(3005, 4096)).uptime("101.00");
    let id = ThreadId {
        process: 7,
        thread: 8,
        started: 50,
    };
    let expected = Thread {
        name: "io (1) ".to_owned(),
        process_name: "server".to_owned(),
        cpu_ns: 3000,
        disk: vec![DeviceBytes {
            device: None,
            bytes: 4096,
        }],
        // Nothing counts the bytes of its sockets here.
        is_unread: true,
        ..Thread::idle(id, CpuId(2), cpus(&[0, 1, 2]).into())
    };
    assert_eq!(sense(&mut sensor), [expected]);
    assert_eq!(sense(&mut sensor), []);
}

#[test]
fn new_ended_and_reused_thread_ids_are_distinguished() {
    let machine = four_cpus();
    let at = |started, run_ns| Counts {
        run_ns,
        disk: run_ns,
        started,
    };
    machine
        .thread(7, 7, "old", at(50, 1_000_000))
        .thread(8, 8, "ends", at(50, 9));
    let mut sensor = machine.sensor();
    fs::remove_dir_all(machine.root().join("proc/8")).unwrap();
    // 7's number is another's now, 10 began in the period, 11 was hidden until now.
    machine
        .thread(7, 7, "again", at(10_050, 300))
        .thread(10, 10, "new", at(10_020, 200))
        .thread(11, 11, "hidden", at(60, 100));
    machine.uptime("101.00");
    let told = |threads: Vec<Thread>| -> Vec<(u32, String, u64, u64, bool)> {
        let told = threads.into_iter().map(|thread| {
            let bytes = thread.disk.iter().map(|disk| disk.bytes).sum();
            (thread.id.thread, thread.name, thread.cpu_ns, bytes, thread.is_new)
        });
        told.collect()
    };
    let expected = [
        (7, "again".to_owned(), 300, 301, true),
        (10, "new".to_owned(), 200, 201, true),
    ];
    assert_eq!(told(sense(&mut sensor)), expected);
    machine.thread(11, 11, "hidden", at(60, 150)).uptime("102.00");
    assert_eq!(told(sense(&mut sensor)), [(11, "hidden".to_owned(), 50, 50, false)]);
}

#[test]
fn masks_and_cpusets_of_threads_are_read() {
    let machine = four_cpus();
    machine.file("sys/fs/cgroup/cgroup.controllers", "cpuset\n");
    machine.file("sys/fs/cgroup/a.service/cpuset.cpus.effective", "1-3\n");
    let numbers = [20, 21, 22];
    for number in numbers {
        machine.thread(number, number, "x", counts(1, 1));
    }
    let mut sensor = machine.sensor();
    for number in numbers {
        machine.thread(number, number, "x", counts(2, 2));
    }
    machine.status(21, 21, "1-3").status(22, 22, "2");
    machine.file("proc/22/task/22/cgroup", "0::/\n");
    let sets: Vec<_> = sense(&mut sensor)
        .into_iter()
        .map(|thread| (thread.allowed.to_vec(), thread.cpuset.to_vec()))
        .collect();
    let expected = [
        (cpus(&[0, 1, 2]), cpus(&[0, 1, 2])),
        (cpus(&[1, 2]), cpus(&[1, 2])),
        (cpus(&[2]), cpus(&[0, 1, 2])),
    ];
    assert_eq!(sets, expected);
}

#[test]
fn kernel_threads_are_left_out_until_their_id_is_reused() {
    let machine = four_cpus();
    let kernels = |run_ns| {
        machine.thread(2, 2, "kthreadd", counts(run_ns, 0));
        let path = machine.root().join("proc/2/task/2/stat");
        let stat = fs::read_to_string(&path).unwrap();
        fs::write(path, stat.replace("-1 0 0", &format!("-1 {KERNEL_THREAD} 0"))).unwrap();
    };
    kernels(5);
    let mut sensor = machine.sensor();
    for run_ns in 6..30 {
        kernels(run_ns);
        assert_eq!(sense(&mut sensor), []);
    }
    let mut began = counts(100, 0);
    began.started = 99_999;
    let seen = (0..16).any(|more| {
        began.run_ns += more;
        machine.thread(2, 2, "program", began);
        !sense(&mut sensor).is_empty()
    });
    assert!(seen);
}

#[test]
fn kernels_without_schedstat_report_ticks() {
    let machine = four_cpus();
    let set = |run_ns, schedstat: Option<&str>| {
        machine.thread(7, 7, "x", counts(run_ns, 0));
        let path = machine.root().join("proc/7/task/7/schedstat");
        match schedstat {
            Some(text) => fs::write(path, text).unwrap(),
            None => fs::remove_file(path).unwrap(),
        }
    };
    for schedstat in [None, Some("0 0 0\n")] {
        set(10_000_000, schedstat);
        let mut sensor = machine.sensor();
        set(50_000_000, schedstat);
        assert_eq!(sense(&mut sensor)[0].cpu_ns, 40_000_000);
    }
}

/// A thread whose files go one by one, as when it ends while it is looked at.
#[test]
fn threads_that_end_while_they_are_read_are_skipped() {
    for kept in ["", "schedstat", "schedstat stat", "schedstat stat io"] {
        let machine = four_cpus();
        machine
            .thread(7, 7, "x", counts(1, 1))
            .thread(7, 8, "stays", counts(1, 1));
        let mut sensor = machine.sensor();
        machine
            .thread(7, 7, "x", counts(2, 2))
            .thread(7, 8, "stays", counts(2, 2));
        for file in ["schedstat", "stat", "io", "status", "cgroup"] {
            if !kept.split(' ').any(|name| name == file) {
                fs::remove_file(machine.root().join(format!("proc/7/task/7/{file}"))).unwrap();
            }
        }
        fs::create_dir_all(machine.root().join("proc/12")).unwrap();
        let sensed = sensor.sense(&topology(&[])).unwrap();
        let numbers: Vec<u32> = sensed.snapshot.threads.iter().map(|thread| thread.id.thread).collect();
        assert_eq!(numbers, [8], "kept {kept:?}");
        assert!(
            sensed.unseen.iter().all(|unseen| !unseen.why.contains("proc/7")),
            "{:?}",
            sensed.unseen
        );
    }
}

#[test]
fn unreadable_thread_files_are_reported_once() {
    let machine = four_cpus();
    let unreadable = |path: &str| {
        let path = machine.root().join(path);
        fs::remove_file(&path).unwrap();
        fs::create_dir(path).unwrap();
    };
    let numbers = [7, 8, 9];
    for number in numbers {
        machine.thread(number, number, "x", counts(1, 1));
    }
    for number in [7, 8] {
        unreadable(&format!("proc/{number}/task/{number}/io"));
    }
    let mut sensor = machine.sensor();
    for number in numbers {
        let run = "2 0 0\n";
        machine.file(&format!("proc/{number}/task/{number}/schedstat"), run);
    }
    machine.file("proc/9/task/9/stat", "9 (x\n");
    let sensed = sensor.sense(&topology(&[])).unwrap();
    let threads: Vec<_> = sensed
        .snapshot
        .threads
        .iter()
        .map(|thread| (thread.id.thread, thread.disk.len()))
        .collect();
    assert_eq!(threads, [(7, 0), (8, 0)]);
    let told: Vec<String> = sensed.unseen.iter().map(ToString::to_string).collect();
    let disk = "disk bytes of threads: cannot read /proc/7/task/7/io and 1 more: Is a directory";
    assert!(told.iter().any(|line| line.starts_with(disk)), "{told:?}");
    let stat = "names and CPUs of threads: cannot read /proc/9/task/9/stat: it cannot be understood";
    assert!(told.iter().any(|line| line == stat), "{told:?}");
    assert!(told.iter().any(|line| line.contains("BPF")), "{told:?}");
}
