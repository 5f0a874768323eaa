//! Two threads write to one device in memory and read it back, without a lock; what they asked for is counted and traced.
//!
//! `cargo run --release -p homenode --example blk [TRACE]`; `homenode blk replay TRACE` does it again.

use homenode::NodeId;
use homenode::blk::trace::{Recorded, header, recorder};
use homenode::blk::{Arena, Core, Device, DriverQueue, Errno, Options, Ram, Request, Storage};
use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

const DEVICE_BYTES: u64 = 64 << 20;
const THREADS: usize = 2;
/// Requests of a thread, each of a block.
const REQUESTS: u64 = 4096;
const BLOCK: u32 = 4096;
/// Requests of a thread that the trace has room for: all of them.
const TRACED: usize = 1 << 14;

fn main() -> Result<(), Box<dyn Error>> {
    // The memory that requests name by numbers: a block for each tag of each thread.
    let buffers = Arena::new(2 * THREADS as u64 * 256 * u64::from(BLOCK), None)?;
    let storage = Storage::Arena(Arena::new(DEVICE_BYTES, None)?);
    let ram = Ram::new(storage, Arc::clone(&buffers), &[None; THREADS]);
    let device = Device::new(&ram, &[NodeId(0); THREADS], |_, _| 10, Options::default())?;
    let traces: Vec<Recorded> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|index| {
                let (device, buffers) = (&device, &buffers);
                scope.spawn(move || -> Result<Recorded, String> {
                    let mut core = device.join(index).map_err(|error| error.to_string())?;
                    let (recorder, recorded) = recorder(u16::try_from(index).unwrap_or(u16::MAX), TRACED);
                    core.record(Some(recorder));
                    work(&mut core, buffers, index as u64).map_err(|error| error.to_string())?;
                    Ok(recorded)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("the thread does not panic"))
            .collect::<Result<_, _>>()
    })?;
    for (core, counts) in device.software_counts().iter().enumerate() {
        let [read, write, ..] = counts.operations;
        println!(
            "core {core}: {} reads, {} writes, {} of them merged",
            read.requests, write.requests, counts.merged
        );
    }
    if let Some(path) = std::env::args_os().nth(1) {
        let mut file = std::fs::File::create(path)?;
        file.write_all(&header(DEVICE_BYTES))?;
        for mut trace in traces {
            while let Some(entry) = trace.next_bytes() {
                file.write_all(&entry)?;
            }
        }
    }
    Ok(())
}

/// Writes this thread's part of the device, each block with its own bytes, and reads it back.
fn work<Q: DriverQueue>(core: &mut Core<Q>, buffers: &Arena, index: u64) -> Result<(), Box<dyn Error>> {
    let clock = Instant::now();
    let bytes_of = |block: u64| [u8::try_from((block * 7 + index) % 251).unwrap_or(0); BLOCK as usize];
    for is_write in [true, false] {
        let mut free: Vec<u64> = (index * 256..(index + 1) * 256).collect();
        let (mut next, mut done) = (0, 0);
        let mut failed: Option<Errno> = None;
        while done < REQUESTS {
            while let Some(buffer) = free.pop().filter(|_| next < REQUESTS) {
                let at = buffer * u64::from(BLOCK);
                let offset = (index * REQUESTS + next) * u64::from(BLOCK);
                let request = if is_write {
                    buffers.write(at, &bytes_of(next));
                    Request::write(offset, BLOCK, at)
                } else {
                    Request::read(offset, BLOCK, at)
                };
                core.submit(request.user(next << 16 | buffer))?;
                next += 1;
            }
            let now = u64::try_from(clock.elapsed().as_nanos())?;
            let mut wrong = 0;
            done += core.run(now, |completion| {
                let (block, buffer) = (completion.user >> 16, completion.user & 0xffff);
                failed = failed.or(completion.outcome.err());
                let mut found = [0; BLOCK as usize];
                buffers.read(buffer * u64::from(BLOCK), &mut found);
                wrong += u64::from(found != bytes_of(block));
                free.push(buffer);
            }) as u64;
            if let Some(errno) = failed {
                return Err(errno.into());
            }
            assert_eq!(wrong, 0, "blocks read back wrong");
        }
    }
    Ok(())
}
