//! The thread that writes a trace while a device is at work. What it cannot keep up with is lost: the next entry tells how much, and
//! the end of the thread, when there is none.

use crate::blk::trace::{Recorded, Recorder, header, recorder};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Requests of a queue that are not written yet, at most.
const ENTRIES: usize = 1 << 14;
/// How often it looks for new ones.
const PAUSE: Duration = Duration::from_millis(10);

/// Ends by itself when all recorders are gone.
#[derive(Debug)]
pub(super) struct TraceWriter(JoinHandle<io::Result<()>>);

impl TraceWriter {
    /// Writes what as many recorders record of a device of that size.
    pub(super) fn start(file: File, device_bytes: u64, recorders: usize) -> io::Result<(Vec<Recorder>, Self)> {
        let number = |index| u16::try_from(index).expect("a device has at most 65,535 queues");
        let pairs = (0..recorders).map(|index| recorder(number(index), ENTRIES));
        let (recorders, recorded): (_, Vec<Recorded>) = pairs.unzip();
        let write = move || write(file, device_bytes, recorded);
        let thread = thread::Builder::new().name("blktrace".into()).spawn(write)?;
        Ok((recorders, Self(thread)))
    }

    /// Waits until everything is written.
    pub(super) fn finish(self) -> io::Result<()> {
        self.0
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
    }
}

fn write(file: File, device_bytes: u64, mut recorded: Vec<Recorded>) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    file.write_all(&header(device_bytes))?;
    while !recorded.iter().all(Recorded::is_over) {
        for one in &mut recorded {
            while let Some(entry) = one.next_bytes() {
                file.write_all(&entry)?;
            }
        }
        file.flush()?;
        thread::sleep(PAUSE);
    }
    file.flush()?;
    match recorded.iter().map(|one| u64::from(one.lost())).sum() {
        0 => Ok(()),
        lost @ 1.. => Err(io::Error::other(format!(
            "its last {lost} requests are missing, for they came faster than they were written"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeId;
    use crate::blk::trace::{ENTRY_BYTES, Entry, read_header};
    use crate::blk::{Device, Limits, Null, Options, Request};
    use std::io::Read;

    #[test]
    fn the_trace_file_has_the_requests_of_all_cores() {
        let (mut reader, file) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(file));
        let (recorders, writer) = TraceWriter::start(file, 1 << 20, 2).unwrap();
        let device = Device::new(
            &Null::new(Limits::of_bytes(1 << 20), &[None; 2]),
            &[NodeId(0); 2],
            |_, _| 0,
            Options::default(),
        );
        let device = device.unwrap();
        for (index, recorder) in recorders.into_iter().enumerate() {
            let mut core = device.join(index).unwrap();
            core.record(Some(recorder));
            core.submit(Request::write(4096 * index as u64, 4096, 0)).unwrap();
            while core.pending() > 0 {
                core.run(7, |_| {});
            }
        }
        writer.finish().unwrap();
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        let (parts, rest) = bytes.as_chunks::<ENTRY_BYTES>();
        assert_eq!((rest.len(), read_header(&parts[0])), (0, Ok(1 << 20)));
        let mut entries: Vec<_> = parts[1..].iter().map(|part| Entry::from_bytes(part).unwrap()).collect();
        entries.sort_by_key(|entry| entry.core);
        let found: Vec<_> = entries.iter().map(|entry| (entry.core, entry.request.offset)).collect();
        assert_eq!(found, [(0, 0), (1, 4096)]);
    }
}
