//! Disks driven by threads that are pinned to CPUs, through the block layer, and their data verified.
//!
//! `disks [--poll] BYTES DISK=CPU[,CPU...]...`: each disk gets a hardware queue for each of its CPUs, and from each CPU BYTES
//! bytes (no multiple of 20 KiB), in blocks that name their disk and their number; they are read back and compared. What was on the disks is lost. Tells
//! `DISK REQUESTS` of each. With `--poll` completions are polled for where the disk has queues for that.

use homenode::blk::{Arena, Completion, Core, Device, DriverQueue, Options, Request, UringFile, UringOptions};
use homenode::{CpuId, NodeId};
use homenode_linux::cpu::pin_to_cpu;
use std::error::Error;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use std::{env, thread};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const BLOCK: u32 = 4096;
const DEPTH: u16 = 32;

fn main() -> Result<()> {
    let mut words: Vec<String> = env::args().skip(1).collect();
    let poll = words.first().is_some_and(|word| word == "--poll");
    words.drain(..usize::from(poll));
    let [bytes, disks @ ..] = &words[..] else {
        return Err("disks [--poll] BYTES DISK=CPU[,CPU...]...".into());
    };
    let blocks = bytes.parse::<u64>()? / u64::from(BLOCK);
    thread::scope(|scope| {
        let start = |disk| scope.spawn(move || drive(disk, blocks, poll));
        let threads: Vec<_> = disks.iter().map(String::as_str).map(start).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("the thread does not panic"))
    })
}

/// Drives a disk by a thread on each of its CPUs.
fn drive(word: &str, blocks: u64, poll: bool) -> Result<()> {
    let (disk, cpus) = word.split_once('=').ok_or("a disk is PATH=CPU[,CPU...]")?;
    let cpus: Vec<CpuId> = cpus
        .split(',')
        .map(|cpu| Ok(CpuId(cpu.parse()?)))
        .collect::<Result<_>>()?;
    let buffers = Arena::new(cpus.len() as u64 * u64::from(DEPTH) * u64::from(BLOCK), None)?;
    let options = UringOptions {
        direct: true,
        read_only: false,
        poll,
        queues: cpus.len(),
        depth: DEPTH,
    };
    let driver = UringFile::open(Path::new(disk), Arc::clone(&buffers), options)?;
    // As if all were on one node: each thread then has a hardware queue of its own.
    let device = Device::new(&driver, &vec![NodeId(0); cpus.len()], |_, _| 10, Options::default())?;
    thread::scope(|scope| {
        let start = |(index, cpu)| {
            let (device, buffers) = (&device, &*buffers);
            scope.spawn(move || -> Result<()> {
                pin_to_cpu(cpu)?;
                let mut core = device.join(index)?;
                let index = index as u64;
                let part = index * blocks..(index + 1) * blocks;
                let own = index * u64::from(DEPTH)..(index + 1) * u64::from(DEPTH);
                pass(&mut core, buffers, disk, part.clone(), own.clone(), true)?;
                pass(&mut core, buffers, disk, part, own, false)
            })
        };
        let threads: Vec<_> = cpus.into_iter().enumerate().map(start).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("the thread does not panic"))
    })?;
    let requests: u64 = device.hardware_counts().iter().map(|counts| counts.requests).sum();
    println!("{disk} {requests}");
    Ok(())
}

/// Writes blocks of the disk, or reads and compares them, a buffer of `free` for each that is under way.
fn pass<Q: DriverQueue>(
    core: &mut Core<Q>,
    buffers: &Arena,
    disk: &str,
    blocks: Range<u64>,
    free: Range<u64>,
    is_write: bool,
) -> Result<()> {
    let clock = Instant::now();
    let count = usize::try_from(blocks.end - blocks.start)?;
    // No two neighbours in a row: none is merged.
    let mut blocks = (0..count).map(|index| blocks.start + (index * 5 % count) as u64);
    let mut free: Vec<u64> = free.collect();
    let place = |buffer: u64| buffer * u64::from(BLOCK);
    while blocks.len() > 0 || core.pending() > 0 {
        while blocks.len() > 0
            && let Some(buffer) = free.pop()
            && let Some(block) = blocks.next()
        {
            let offset = block * u64::from(BLOCK);
            let request = if is_write {
                buffers.write(place(buffer), &content(disk, block));
                Request::write(offset, BLOCK, place(buffer))
            } else {
                Request::read(offset, BLOCK, place(buffer))
            };
            core.submit(request.user(block << 16 | buffer))?;
        }
        let mut wrong = None;
        let now = u64::try_from(clock.elapsed().as_nanos())?;
        core.run(now, |Completion { user, outcome }| {
            let (block, buffer) = (user >> 16, user & 0xffff);
            let mut found = vec![0; BLOCK as usize];
            buffers.read(place(buffer), &mut found);
            match outcome {
                Err(errno) => wrong = Some(format!("{disk}: block {block}: {errno}")),
                Ok(_) if found != content(disk, block) => wrong = Some(format!("{disk}: block {block} is another's")),
                Ok(_) => free.push(buffer),
            }
        });
        if let Some(wrong) = wrong {
            return Err(wrong.into());
        }
    }
    Ok(())
}

/// Bytes that no other block has, of this disk or another.
fn content(disk: &str, block: u64) -> Vec<u8> {
    let line = format!("{disk} {block:016x} ");
    line.bytes().cycle().take(BLOCK as usize).collect()
}
