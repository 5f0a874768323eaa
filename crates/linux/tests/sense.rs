//! Bytes of sockets and disks of threads of this machine, as BPF programs count them: real sockets between network
//! namespaces, and real files.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use homenode_linux::affinity::{Sensed, Sensor, record, recorded};
use homenode_linux::topology::{self, Source};
use homenode_policy::CpuId;
use homenode_policy::affinity::Thread;
use homenode_policy::topology::{DeviceKind, Topology};
use parking_lot::{Mutex, MutexGuard};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

const MIB: usize = 1 << 20;
const SENT: usize = 32 * MIB;

type Work = Box<dyn FnOnce() + Send>;

/// One test at a time: they look at all of this process.
static ALONE: Mutex<()> = Mutex::new(());

/// A sensor, unless this machine lets no programs be loaded.
fn sensor() -> Option<(MutexGuard<'static, ()>, Sensor, Topology)> {
    let alone = ALONE.lock();
    let topology = topology::read(&Source::Live).unwrap();
    let mut sensor = Sensor::new(Path::new("/")).unwrap();
    let unseen = sensor.sense(&topology).unwrap().unseen;
    let mut reasons = unseen.iter().filter(|unseen| unseen.why.contains("BPF"));
    if let Some(reason) = reasons.next() {
        eprintln!("SKIPPED: {reason}");
        return None;
    }
    Some((alone, sensor, topology))
}

fn named<'a>(sensed: &'a Sensed, name: &str) -> &'a Thread {
    let mine = |thread: &&Thread| thread.id.process == std::process::id() && thread.name == name;
    let threads = &sensed.snapshot.threads;
    threads
        .iter()
        .find(mine)
        .unwrap_or_else(|| panic!("no {name} among {threads:?}"))
}

/// Runs `work` on a thread of this name, which stays until its period has been sensed.
fn sense_while(sensor: &mut Sensor, topology: &Topology, workers: Vec<(&str, Work)>) -> Sensed {
    let (done, all_done) = mpsc::channel();
    let mut ends = Vec::new();
    let mut threads = Vec::new();
    for (name, work) in workers {
        let (end, ended) = mpsc::channel::<()>();
        ends.push(end);
        let done = done.clone();
        let run = move || {
            work();
            done.send(()).unwrap();
            // An error is the end, too.
            let _ = ended.recv();
        };
        threads.push(thread::Builder::new().name(name.to_owned()).spawn(run).unwrap());
    }
    drop(done);
    for _ in &threads {
        all_done.recv().unwrap();
    }
    let sensed = sensor.sense(topology).unwrap();
    drop(ends);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    sensed
}

fn within_a_percent(bytes: u64, expected: usize) -> bool {
    let expected = expected as u64;
    bytes.abs_diff(expected) <= expected / 100
}

/// Two network namespaces with a pair of interfaces between them. They go when this does.
struct Namespaces {
    names: [String; 2],
}

const ADDRESSES: [&str; 2] = ["198.18.77.1", "198.18.77.2"];
const ADDRESSES_V6: [&str; 2] = ["fd77::1", "fd77::2"];

fn has_v6() -> bool {
    Path::new("/proc/sys/net/ipv6").exists()
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

impl Namespaces {
    fn new() -> Self {
        let names = ["a", "b"].map(|end| format!("homenode-{}-{end}", std::process::id()));
        let made = Self { names };
        let [a, b] = &made.names;
        made.names.iter().for_each(|name| ip(&format!("netns add {name}")));
        ip(&format!(
            "link add veth0 numrxqueues 2 numtxqueues 2 netns {a} type veth peer name veth0 numrxqueues 2 numtxqueues 2 netns {b}"
        ));
        for (end, name) in made.names.iter().enumerate() {
            ip(&format!("-n {name} address add {}/24 dev veth0", ADDRESSES[end]));
            if has_v6() {
                ip(&format!(
                    "-n {name} address add {}/64 dev veth0 nodad",
                    ADDRESSES_V6[end]
                ));
            }
            ip(&format!("-n {name} link set veth0 up"));
            ip(&format!("-n {name} link set lo up"));
        }
        made
    }

    /// Has packets that come in at one end processed on this CPU.
    fn steer(&self, end: usize, cpu: CpuId) {
        let command = format!(
            "for f in /sys/class/net/veth0/queues/rx-*/rps_cpus; do echo {:x} >$f; done",
            1 << cpu.0
        );
        let netns = ["netns", "exec", &self.names[end], "sh", "-ec", &command];
        let output = Command::new("ip").args(netns).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            // They may be incomplete when the test failed early.
            let _ = Command::new("ip").args(["netns", "delete", name]).output();
        }
    }
}

/// Takes the calling thread into a namespace.
fn enter(name: &str) {
    let file = File::open(format!("/run/netns/{name}")).unwrap();
    // SAFETY: the descriptor is open during the call, which touches no memory of ours.
    let entered = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(entered, 0, "{}", std::io::Error::last_os_error());
}

fn receive(mut stream: impl Read) {
    let mut buffer = vec![0; 64 << 10];
    let mut received = 0;
    while received < SENT {
        received += stream.read(&mut buffer).unwrap();
    }
}

fn send(mut stream: impl Write) {
    let buffer = vec![1; 64 << 10];
    for _ in 0..SENT / buffer.len() {
        stream.write_all(&buffer).unwrap();
    }
}

/// Bytes on their way through TCP between two threads, each of which begins in its own way.
fn stream(sensor: &mut Sensor, topology: &Topology, address: &str, begin: [Work; 2]) -> Sensed {
    let (tell, told) = mpsc::channel();
    let [begin_receiver, begin_sender] = begin;
    let address = address.to_owned();
    let receiver = move || {
        begin_receiver();
        let listener = TcpListener::bind((address.as_str(), 0)).unwrap();
        tell.send(listener.local_addr().unwrap()).unwrap();
        receive(listener.accept().unwrap().0);
    };
    let sender = move || {
        begin_sender();
        send(TcpStream::connect(told.recv().unwrap()).unwrap());
    };
    sense_while(
        sensor,
        topology,
        vec![("receiver", Box::new(receiver)), ("sender", Box::new(sender))],
    )
}

#[test]
fn bytes_of_sockets_with_the_cpu_that_processed_them() {
    let Some((_alone, mut sensor, topology)) = sensor() else {
        return;
    };
    let namespaces = Namespaces::new();
    let in_namespace = |end: usize| -> Work {
        let name = namespaces.names[end].clone();
        Box::new(move || enter(&name))
    };
    let online = homenode_linux::cpu::allowed_cpus().unwrap();
    let mut families = vec![ADDRESSES];
    if has_v6() {
        families.push(ADDRESSES_V6);
    } else {
        eprintln!("SKIPPED: IPv6: this kernel does not have it");
    }
    for (index, cpu) in online.into_iter().cycle().take(2 * families.len()).enumerate() {
        let [_, address] = families[index / 2];
        namespaces.steer(1, cpu);
        let sensed = stream(&mut sensor, &topology, address, [in_namespace(1), in_namespace(0)]);
        let receiver = named(&sensed, "receiver");
        let [(processed, bytes)] = receiver.received[..] else {
            panic!("not on CPU {} alone: {receiver:?}", cpu.0)
        };
        assert_eq!(processed, Some(cpu));
        assert!(within_a_percent(bytes, SENT), "{receiver:?}");
        assert!(
            within_a_percent(named(&sensed, "sender").sent_bytes, SENT),
            "{sensed:?}"
        );
    }
    // From one of its own addresses to itself: through the loopback.
    let here = [in_namespace(0), in_namespace(0)];
    let sensed = stream(&mut sensor, &topology, ADDRESSES[0], here);
    for name in ["receiver", "sender"] {
        let thread = named(&sensed, name);
        assert_eq!((&thread.received[..], thread.sent_bytes), (&[][..], 0), "{thread:?}");
    }
}

/// A recording reads as what was sensed while it was made, with what the programs counted.
#[test]
fn a_recording_has_what_was_counted() {
    let Some((_alone, _, _)) = sensor() else { return };
    let namespaces = Namespaces::new();
    let [there, here] = namespaces.names.clone();
    let (tell, told) = mpsc::channel();
    let receiver = thread::Builder::new().name("receiver".to_owned());
    let receiver = receiver.spawn(move || {
        enter(&here);
        let listener = TcpListener::bind((ADDRESSES[1], 0)).unwrap();
        tell.send(listener.local_addr().unwrap()).unwrap();
        // Until the other end closes.
        std::io::copy(&mut listener.accept().unwrap().0, &mut std::io::sink()).unwrap();
    });
    let stop = Arc::new(AtomicBool::new(false));
    let stops = stop.clone();
    let sender = thread::spawn(move || {
        enter(&there);
        let mut stream = TcpStream::connect(told.recv().unwrap()).unwrap();
        // Relaxed: nothing else is told by it.
        while !stops.load(Ordering::Relaxed) {
            stream.write_all(&[1; 4096]).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
    });
    // On a machine that is busy with other things, nobody may come to receive in a period.
    let mut periods = 0..50;
    let seen = periods.any(|_| {
        let directory = tempfile::tempdir().unwrap();
        let sensed = record(
            &Source::Live,
            Path::new("/"),
            directory.path(),
            Duration::from_millis(100),
        )
        .unwrap();
        assert_eq!(recorded(directory.path()).unwrap(), sensed);
        let threads = sensed.snapshot.threads.iter();
        let mut receivers = threads.filter(|thread| thread.name == "receiver");
        receivers.any(|thread| {
            thread
                .received
                .iter()
                .any(|(cpu, bytes)| cpu.is_some() && *bytes >= 4096)
        })
    });
    // Relaxed: nothing else is told by it.
    stop.store(true, Ordering::Relaxed);
    sender.join().unwrap();
    receiver.unwrap().join().unwrap();
    assert!(seen);
}

#[test]
fn what_stays_in_the_machine_is_not_of_the_network() {
    let Some((_alone, mut sensor, topology)) = sensor() else {
        return;
    };
    let nothing = || -> Work { Box::new(|| {}) };
    for address in ["127.0.0.1", "::1"] {
        if TcpListener::bind((address, 0)).is_err() {
            eprintln!("SKIPPED: {address}: this machine does not have it");
            continue;
        }
        let sensed = stream(&mut sensor, &topology, address, [nothing(), nothing()]);
        for name in ["receiver", "sender"] {
            let thread = named(&sensed, name);
            assert_eq!((&thread.received[..], thread.sent_bytes), (&[][..], 0), "{thread:?}");
        }
    }
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let workers: Vec<(&str, Work)> = vec![
        ("receiver", Box::new(move || receive(one))),
        ("sender", Box::new(move || send(other))),
    ];
    let sensed = sense_while(&mut sensor, &topology, workers);
    assert_eq!(named(&sensed, "receiver").received, []);
}

#[test]
fn programs_go_with_the_sensor() {
    let loaded = || {
        let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let links = open.filter_map(|entry| fs::read_link(entry.path()).ok());
        links.filter(|link| link.to_string_lossy().contains("bpf")).count()
    };
    let Some((_alone, sensor, _)) = sensor() else { return };
    let with = loaded();
    drop(sensor);
    assert!(with > loaded());
}

/// A directory on a disk of the machine, and the disk's name.
fn on_disk(topology: &Topology) -> Option<(tempfile::TempDir, String)> {
    let executable = std::env::current_exe().unwrap();
    let directory = tempfile::tempdir_in(executable.parent().unwrap()).unwrap();
    let mut disks = topology
        .devices()
        .iter()
        .filter(|device| device.kind == DeviceKind::Block);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let holds = |line: &&str| directory.path().starts_with(line.split(' ').nth(1).unwrap());
    let mount = mounts
        .lines()
        .filter(holds)
        .max_by_key(|line| line.split(' ').nth(1).unwrap().len());
    let source = fs::canonicalize(mount.unwrap().split(' ').next().unwrap()).ok();
    let disk = disks.find(|disk| {
        let prefix = format!("/dev/{}", disk.name);
        source
            .as_ref()
            .is_some_and(|source| source.to_string_lossy().starts_with(&prefix))
    });
    let name = disk.map(|disk| disk.name.clone());
    if name.is_none() {
        eprintln!("SKIPPED: {mount:?} is on no disk");
    }
    Some((directory, name?))
}

fn aligned(bytes: usize) -> (Vec<u8>, usize) {
    let buffer = vec![1; bytes + 4096];
    let start = buffer.as_ptr().align_offset(4096);
    (buffer, start)
}

#[test]
fn bytes_of_disks_direct_and_buffered() {
    const BYTES: usize = 16 * MIB;
    let Some((_alone, mut sensor, topology)) = sensor() else {
        return;
    };
    let Some((directory, disk)) = on_disk(&topology) else {
        return;
    };
    let path = directory.path().join("data");
    let writes = {
        let path = path.clone();
        move || {
            let mut file = File::create(path).unwrap();
            file.write_all(&vec![1; BYTES]).unwrap();
        }
    };
    let sensed = sense_while(&mut sensor, &topology, vec![("writes", Box::new(writes))]);
    let expect = |sensed: &Sensed, name: &str| {
        let thread = named(sensed, name);
        let [part] = &thread.disk[..] else { panic!("{thread:?}") };
        assert_eq!(part.device.as_deref(), Some(disk.as_str()), "{thread:?}");
        assert!(within_a_percent(part.bytes, BYTES), "{thread:?}");
    };
    expect(&sensed, "writes");
    // What was dirtied in an earlier period is not counted again, whoever sends it.
    let syncs = {
        let path = path.clone();
        move || File::open(path).unwrap().sync_all().unwrap()
    };
    let sensed = sense_while(&mut sensor, &topology, vec![("syncs", Box::new(syncs))]);
    let synced: u64 = named(&sensed, "syncs").disk.iter().map(|part| part.bytes).sum();
    assert!(synced < (BYTES / 100) as u64, "{synced}");
    let direct = move |write: bool| {
        let flags = libc::O_DIRECT;
        let opened = OpenOptions::new()
            .read(true)
            .write(write)
            .custom_flags(flags)
            .open(&path);
        let mut file = opened.unwrap();
        let (mut buffer, start) = aligned(MIB);
        for _ in 0..BYTES / MIB {
            let buffer = &mut buffer[start..start + MIB];
            if write {
                file.write_all(buffer).unwrap();
            } else {
                file.read_exact(buffer).unwrap();
            }
        }
    };
    let write = {
        let direct = direct.clone();
        move || direct(true)
    };
    let sensed = sense_while(&mut sensor, &topology, vec![("direct-w", Box::new(write))]);
    expect(&sensed, "direct-w");
    let sensed = sense_while(
        &mut sensor,
        &topology,
        vec![("direct-r", Box::new(move || direct(false)))],
    );
    expect(&sensed, "direct-r");
}
