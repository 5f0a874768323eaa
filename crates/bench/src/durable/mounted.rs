//! A mounted durable pool: how long others wait while a thread of their CPU syncs.

use crate::cpus;
use crate::error::Error;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

const BLOCK: usize = 4096;

/// The 99th percentile of `count` reads of 4 KiB in `directory`, past the page cache, in ns. With `beside` another thread of the same CPU
/// appends 4 KiB to a file there and syncs, again and again.
pub(super) fn read_beside(directory: &Path, beside: Option<&Path>, count: usize) -> Result<f64, Error> {
    let cpu = *cpus::choose()?.first().expect("at least one CPU is usable");
    let failed = |doing: &'static str| move |error| Error::system(doing, error);
    let path = directory.join("read");
    std::fs::write(&path, [5; BLOCK]).map_err(failed("writing the file to read"))?;
    let flags = i32::try_from(OFlags::DIRECT.bits()).expect("a bit of an int");
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(failed("opening the file to read"))?;
    let is_over = AtomicBool::new(false);
    let sync = || -> Result<(), Error> {
        let Some(beside) = beside else { return Ok(()) };
        cpus::pin(cpu)?;
        let synced = File::create(beside.join("synced")).map_err(failed("making the file to sync"))?;
        for at in (0..).step_by(BLOCK).take_while(|_| !is_over.load(Ordering::Relaxed)) {
            synced.write_all_at(&[6; BLOCK], at).map_err(failed("writing"))?;
            synced.sync_all().map_err(failed("making a file durable"))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let syncing = scope.spawn(sync);
        let reading = scope.spawn(|| -> Result<u64, Error> {
            cpus::pin(cpu)?;
            let mut bytes = vec![0; BLOCK];
            let mut times = Vec::with_capacity(count);
            for _ in 0..count {
                let start = Instant::now();
                file.read_exact_at(&mut bytes, 0).map_err(failed("reading"))?;
                times.push(u64::try_from(start.elapsed().as_nanos()).expect("the time in ns fits 64 bits"));
            }
            times.sort_unstable();
            Ok(times[count * 99 / 100])
        });
        let times = reading.join().expect("the thread does not panic");
        is_over.store(true, Ordering::Relaxed);
        syncing.join().expect("the thread does not panic")?;
        times.map(|time| time as f64)
    })
}
