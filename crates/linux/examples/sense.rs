//! Shows what one second of this machine looks like to core affinity, or what a recording holds:
//! `sense`, `sense record DIR`, `sense show DIR`, `sense placement PROCESS`.

use homenode_linux::affinity::{self, Sensed, Sensor};
use homenode_linux::topology::{self, Source};
use homenode_policy::CpuId;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

const PERIOD: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = Path::new("/");
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let topology = topology::read(&Source::Live)?;
            let mut sensor = Sensor::new(root, Box::new(Vec::new))?;
            std::thread::sleep(PERIOD);
            show(&sensor.sense(&topology)?);
        }
        ["record", directory] => show(&affinity::record(
            &Source::Live,
            root,
            directory.as_ref(),
            PERIOD,
            Box::new(Vec::new),
        )?),
        ["show", directory] => show(&affinity::recorded(directory.as_ref())?),
        ["placement", process] => println!("{:#?}", affinity::placement(root, process.parse()?)?),
        _ => return Err("usage: sense [record DIR | show DIR | placement PROCESS]".into()),
    }
    Ok(())
}

fn show(sensed: &Sensed) {
    let snapshot = &sensed.snapshot;
    println!(
        "{} ms on CPUs {}",
        snapshot.period_ns / 1_000_000,
        list(&snapshot.online)
    );
    for interrupt in &snapshot.interrupts {
        let arrived: u64 = interrupt.arrivals.iter().map(|(_, count)| count).sum();
        println!(
            "interrupt {} {} of {}: {arrived} arrived, may on {}, does on {}{}",
            interrupt.number,
            interrupt.name,
            interrupt.device.as_deref().unwrap_or("-"),
            list(&interrupt.affinity),
            list(&interrupt.effective),
            if interrupt.managed { ", managed" } else { "" }
        );
    }
    for queue in &snapshot.queues {
        println!(
            "queue {} {:?} {}: interrupt {}, CPUs {}{}",
            queue.device,
            queue.kind,
            queue.index,
            queue.interrupt.map_or("-".to_owned(), |number| number.to_string()),
            list(&queue.cpus),
            if queue.movable { ", movable" } else { "" }
        );
    }
    for thread in &snapshot.threads {
        println!(
            "thread {}/{} {}/{} on CPU {}: {} us, bytes of disks {}, received by CPU {}, sent {}, mask {}, cpuset {}",
            thread.id.process,
            thread.id.thread,
            thread.process_name,
            thread.name,
            thread.cpu.0,
            thread.cpu_ns / 1000,
            shares(&thread.disk, |disk| (disk.device.clone(), disk.bytes)),
            shares(&thread.received, |it| (it.cpu.map(|cpu| cpu.0.to_string()), it.bytes)),
            thread.sent_bytes(),
            list(&thread.allowed),
            list(&thread.cpuset)
        );
    }
    for unseen in &sensed.unseen {
        println!("unseen: {unseen}");
    }
}

/// `[vda 4096, ? 512]`
fn shares<T>(all: &[T], share: impl Fn(&T) -> (Option<String>, u64)) -> String {
    let words = all.iter().map(share);
    let words: Vec<String> = words
        .map(|(of, bytes)| format!("{} {bytes}", of.unwrap_or_else(|| "?".to_owned())))
        .collect();
    format!("[{}]", words.join(", "))
}

fn list(cpus: &[CpuId]) -> String {
    let numbers: Vec<String> = cpus.iter().map(|cpu| cpu.0.to_string()).collect();
    format!("[{}]", numbers.join(" "))
}
