//! Bytes of sockets, and where they were processed.

use crate::namespaces::{ADDRESSES, ADDRESSES_V6, Namespaces, OWN_ADDRESSES, enter, has_v6};
use crate::{MIB, Work, named, sense_while, sensor, within_a_percent};
use homenode_linux::affinity::{Sensed, Sensor, record, recorded};
use homenode_linux::topology::Source;
use homenode_policy::affinity::Thread;
use homenode_policy::topology::Topology;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

const SENT: usize = 32 * MIB;

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
fn socket_bytes_are_counted_by_processing_cpu() {
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
        crate::skip("IPv6: this kernel does not have it");
    }
    for (index, cpu) in online.into_iter().cycle().take(2 * families.len()).enumerate() {
        let [_, address] = families[index / 2];
        namespaces.steer(1, cpu);
        let sensed = stream(&mut sensor, &topology, address, [in_namespace(1), in_namespace(0)]);
        let receiver = named(&sensed, "receiver");
        let [way] = &receiver.received[..] else {
            panic!("not on CPU {} alone: {receiver:?}", cpu.0)
        };
        assert_eq!((way.cpu, &way.queue), (Some(cpu), &None));
        assert!(within_a_percent(way.bytes, SENT), "{receiver:?}");
        assert!(
            within_a_percent(named(&sensed, "sender").sent_bytes(), SENT),
            "{sensed:?}"
        );
    }
    // From one of its own addresses to itself: through the loopback.
    let here = [in_namespace(0), in_namespace(0)];
    let sensed = stream(&mut sensor, &topology, ADDRESSES[0], here);
    for name in ["receiver", "sender"] {
        let thread = named(&sensed, name);
        assert_eq!((&thread.received[..], thread.sent_bytes()), (&[][..], 0), "{thread:?}");
    }
}

/// Cards are numbered in each namespace anew: only those of this one are told.
#[test]
fn socket_bytes_are_counted_by_card_and_queue() {
    let Some((_alone, mut sensor, topology)) = sensor() else {
        return;
    };
    let namespaces = Namespaces::new();
    let card = namespaces.own_card();
    sensor.settings_changed();
    let in_namespace = |end: usize| -> Work {
        let name = namespaces.names[end].clone();
        Box::new(move || enter(&name))
    };
    let here = || -> Work { Box::new(|| {}) };
    let sensed = stream(&mut sensor, &topology, OWN_ADDRESSES[1], [here(), in_namespace(0)]);
    let receiver = named(&sensed, "receiver");
    assert_eq!(queues(receiver), BTreeSet::from([Some((card.clone(), 0))]));
    assert!(within_a_percent(received(receiver), SENT), "{receiver:?}");
    let told = sensed.cards.iter().find(|told| told.device == card).unwrap();
    let counts = told.queues.unwrap();
    assert_eq!((counts.is_separate(), counts.receive.now, counts.max()), (true, 2, 2));
    assert!(told.table.is_none() && told.filters.is_none(), "{told:?}");
    let sender = named(&sensed, "sender");
    assert!(sender.sent.iter().all(|it| it.device.is_none()), "{sender:?}");

    // The same card's other end has a number in its own namespace, which may be that of a card here.
    let sensed = stream(&mut sensor, &topology, OWN_ADDRESSES[0], [in_namespace(0), here()]);
    let receiver = named(&sensed, "receiver");
    assert_eq!(queues(receiver), BTreeSet::from([None]));
    assert!(within_a_percent(received(receiver), SENT), "{receiver:?}");

    let sender = named(&sensed, "sender");
    let [sent] = &sender.sent[..] else {
        panic!("not by one card: {sender:?}")
    };
    assert_eq!(sent.device.as_ref(), Some(&card));
    assert!(within_a_percent(sent.bytes, SENT), "{sender:?}");

    // Where there is no room for another queue, the CPU is known still.
    let fill = || -> Work { Box::new(|| fill(&map("counts_by_queue"))) };
    let sensed = stream(&mut sensor, &topology, OWN_ADDRESSES[1], [fill(), in_namespace(0)]);
    let receiver = named(&sensed, "receiver");
    assert_eq!(queues(receiver), BTreeSet::from([None]));
    assert!(receiver.received.iter().all(|way| way.cpu.is_some()), "{receiver:?}");
    assert!(within_a_percent(received(receiver), SENT), "{receiver:?}");
    let sensed = stream(&mut sensor, &topology, OWN_ADDRESSES[1], [here(), in_namespace(0)]);
    let receiver = named(&sensed, "receiver");
    assert_eq!(
        queues(receiver),
        BTreeSet::from([Some((card, 0))]),
        "the map was not emptied"
    );
}

fn received(thread: &Thread) -> u64 {
    thread.received.iter().map(|way| way.bytes).sum()
}

fn queues(thread: &Thread) -> BTreeSet<Option<(String, u32)>> {
    thread.received.iter().map(|way| way.queue.clone()).collect()
}

/// The map of this name that this process has open.
fn map(name: &str) -> MapHandle {
    let files = fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let number = |text: String| {
        text.lines()
            .find_map(|line| line.strip_prefix("map_id:")?.trim().parse().ok())
    };
    let numbers = files.filter_map(|file| number(fs::read_to_string(file.path()).ok()?));
    let mut maps = numbers.map(|number| MapHandle::from_map_id(number).unwrap());
    maps.find(|map| map.name() == name).unwrap()
}

/// With entries of threads that there are none of.
fn fill(map: &MapHandle) {
    const BEYOND_ALL: u32 = 1 << 30;
    let is_taken = |thread: &u32| {
        let key = [*thread, 0, 1, 0].map(u32::to_le_bytes).concat();
        map.update(&key, &[0; 16], MapFlags::NO_EXIST).is_ok()
    };
    let taken = (BEYOND_ALL..).take_while(is_taken).count();
    assert!(taken > 30_000, "{taken}");
}

/// A recording reads as what was sensed while it was made, with what the programs counted.
#[test]
fn a_recording_keeps_the_counts() {
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
            Box::new(Vec::new),
        )
        .unwrap();
        assert_eq!(recorded(directory.path()).unwrap(), sensed);
        let threads = sensed.snapshot.threads.iter();
        let mut receivers = threads.filter(|thread| thread.name == "receiver");
        receivers.any(|thread| thread.received.iter().any(|way| way.cpu.is_some() && way.bytes >= 4096))
    });
    // Relaxed: nothing else is told by it.
    stop.store(true, Ordering::Relaxed);
    sender.join().unwrap();
    receiver.unwrap().join().unwrap();
    assert!(seen);
}

#[test]
fn local_traffic_is_not_network_traffic() {
    let Some((_alone, mut sensor, topology)) = sensor() else {
        return;
    };
    let nothing = || -> Work { Box::new(|| {}) };
    for address in ["127.0.0.1", "::1"] {
        if TcpListener::bind((address, 0)).is_err() {
            crate::skip(format_args!("{address}: this machine does not have it"));
            continue;
        }
        let sensed = stream(&mut sensor, &topology, address, [nothing(), nothing()]);
        for name in ["receiver", "sender"] {
            let thread = named(&sensed, name);
            assert_eq!((&thread.received[..], thread.sent_bytes()), (&[][..], 0), "{thread:?}");
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
