//! The load: an upload from the network to disks, as a server of files does it. A thread for each connection reads from
//! its socket and writes to its part of a disk, past the page cache, in blocks.
//!
//! Each thread begins on a CPU that it is told, and may then run anywhere: its mask is nobody's wish. It counts where it
//! was when it read, and where its packets had been processed by the socket's word (`SO_INCOMING_CPU`): the last packet's
//! CPU counts for all bytes of a read.

use super::job::Shares;
use super::witness::{Counts, Disk, Machine};
use crate::cpus;
use crate::error::{During, Error};
use memmap2::MmapMut;
use rustix::fs::OFlags;
use rustix::net::sockopt::socket_incoming_cpu;
use rustix::thread::sched_getcpu;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Source, rate and block size of an upload.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Load {
    /// Address of the sender (see --source in docs/lab.md).
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "10.76.0.1:7600")]
    source: SocketAddr,
    /// Bytes per second for each connection; 0 means no limit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    rate: u64,
    /// Bytes of each write.
    #[arg(long, value_name = "N", default_value_t = 64 << 10)]
    block: usize,
}

/// An upload at work.
#[derive(Debug)]
pub(super) struct Upload {
    machine: Arc<Machine>,
    stop: Arc<AtomicBool>,
    readers: Vec<Arc<Seen>>,
    threads: Vec<JoinHandle<Result<(), Error>>>,
}

/// Counts of one thread. No other thread writes near them.
#[derive(Debug)]
#[repr(align(128))]
struct Seen {
    disk: usize,
    /// Bytes received, by the node that processed the packets, then by the reader's node.
    received: Vec<AtomicU64>,
    /// Writes submitted, by CPU.
    submitted: Vec<AtomicU64>,
    written: AtomicU64,
}

/// Reader of one connection, with its part of a disk.
#[derive(Debug)]
struct Reader {
    load: Load,
    machine: Arc<Machine>,
    seen: Arc<Seen>,
    /// Where it begins.
    cpu: usize,
    first_byte: u64,
    bytes: u64,
    stop: Arc<AtomicBool>,
}

/// Bytes that every thread writes before the work counts as steady.
const STEADY_BYTES: u64 = 1 << 20;
const STEADY_TIMEOUT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);
/// A sender that is silent for so long is gone.
const SILENCE: Duration = Duration::from_secs(60);
/// New memory after so many blocks, as a server's that gives its buffers back: it comes from where the thread runs then.
const BUFFER_BLOCKS: usize = 16;

impl Upload {
    /// Starts a thread for each connection, on these CPUs and disks in turn, and waits until all are at work.
    pub(super) fn start(load: &Load, machine: &Arc<Machine>, connections: usize, on: &[usize]) -> Result<Self, Error> {
        let mut upload = Self {
            machine: Arc::clone(machine),
            stop: Arc::default(),
            readers: Vec::new(),
            threads: Vec::new(),
        };
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        let disks = machine.disks.len();
        let parts = connections.div_ceil(disks) as u64;
        for number in 0..connections {
            let disk = number % disks;
            let bytes = machine.disks[disk].bytes / parts / load.block as u64 * load.block as u64;
            let seen = Arc::new(Seen {
                disk,
                received: zeros(machine.nodes() * machine.nodes()),
                submitted: zeros(machine.cpu_nodes.len()),
                written: AtomicU64::new(0),
            });
            let reader = Reader {
                load: load.clone(),
                machine: Arc::clone(machine),
                seen: Arc::clone(&seen),
                cpu: on[number % on.len()],
                first_byte: (number / disks) as u64 * bytes,
                bytes,
                stop: Arc::clone(&upload.stop),
            };
            let thread = Builder::new().name(format!("reader-{number}"));
            let started = thread.spawn(move || reader.run());
            upload.readers.push(seen);
            upload.threads.push(started.during("starting a thread")?);
        }
        upload.wait_steady()?;
        Ok(upload)
    }

    fn wait_steady(&mut self) -> Result<(), Error> {
        let begin = Instant::now();
        let written = |seen: &Arc<Seen>| seen.written.load(Ordering::Relaxed);
        while self.readers.iter().map(written).min() < Some(STEADY_BYTES) {
            self.check()?;
            if begin.elapsed() > STEADY_TIMEOUT {
                return Err(Error::system(
                    "the upload has not begun in time",
                    io::ErrorKind::TimedOut,
                ));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// An error if a thread has ended.
    fn check(&mut self) -> Result<(), Error> {
        match self.threads.iter().position(JoinHandle::is_finished) {
            None => Ok(()),
            Some(ended) => join(self.threads.swap_remove(ended)),
        }
    }

    /// Where bytes and completions go for a while.
    pub(super) fn measure(&mut self, length: Duration) -> Result<Shares, Error> {
        let from = self.counts()?;
        thread::sleep(length);
        let to = self.counts()?;
        self.check()?;
        Ok(self.machine.shares(&from, &to))
    }

    fn counts(&self) -> Result<Counts, Error> {
        let nodes = self.machine.nodes();
        let mut received = vec![vec![0; nodes]; nodes];
        let mut submitted = vec![vec![0; self.machine.cpu_nodes.len()]; self.machine.disks.len()];
        let mut written = 0;
        // Relaxed: recent values are enough.
        for seen in &self.readers {
            for (index, bytes) in seen.received.iter().enumerate() {
                received[index / nodes][index % nodes] += bytes.load(Ordering::Relaxed);
            }
            for (to, count) in submitted[seen.disk].iter_mut().zip(&seen.submitted) {
                *to += count.load(Ordering::Relaxed);
            }
            written += seen.written.load(Ordering::Relaxed);
        }
        self.machine.counts(received, submitted, written)
    }

    /// Ends it.
    pub(super) fn stop(mut self) -> Result<(), Error> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).try_for_each(join)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn join(thread: JoinHandle<Result<(), Error>>) -> Result<(), Error> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Reader {
    fn run(&self) -> Result<(), Error> {
        let everywhere = cpus::allowed()?;
        cpus::allow(&[self.cpu])?;
        let (mut stream, disk) = (self.connect()?, self.open()?);
        let mut buffer = self.buffer()?;
        let blocks = (self.bytes / self.load.block as u64).max(1);
        for block in 0_u64.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            if block == 1 {
                cpus::allow(&everywhere)?;
            }
            if block % BUFFER_BLOCKS as u64 == 0 {
                buffer = self.buffer()?;
            }
            self.receive(&mut stream, &mut buffer)?;
            self.write(
                &disk,
                &buffer,
                self.first_byte + block % blocks * self.load.block as u64,
            )?;
        }
        Ok(())
    }

    fn disk(&self) -> &Disk {
        &self.machine.disks[self.seen.disk]
    }

    fn connect(&self) -> Result<TcpStream, Error> {
        let connecting = |error| {
            let what = format!("connecting to {}, which lab/run --source has", self.load.source);
            Error::system(what, error)
        };
        let mut stream = TcpStream::connect(self.load.source).map_err(connecting)?;
        stream.set_read_timeout(Some(SILENCE)).map_err(connecting)?;
        writeln!(stream, "{}", self.load.rate).map_err(connecting)?;
        Ok(stream)
    }

    fn open(&self) -> Result<File, Error> {
        let path = format!("/dev/{}", self.disk().name);
        let direct = OFlags::DIRECT.bits().cast_signed();
        let opened = OpenOptions::new().write(true).custom_flags(direct).open(&path);
        opened.during(format_args!("opening {path}"))
    }

    fn buffer(&self) -> Result<MmapMut, Error> {
        MmapMut::map_anon(self.load.block).during("mapping a buffer")
    }

    fn receive(&self, stream: &mut TcpStream, buffer: &mut [u8]) -> Result<(), Error> {
        let receiving = |error| Error::system(format!("receiving from {}", self.load.source), error);
        let mut filled = 0;
        while filled < buffer.len() {
            let bytes = stream.read(&mut buffer[filled..]).map_err(receiving)?;
            if bytes == 0 {
                return Err(receiving(io::ErrorKind::UnexpectedEof.into()));
            }
            filled += bytes;
            let processed = socket_incoming_cpu(&*stream).map_err(|error| receiving(error.into()))?;
            let nodes = &self.machine.cpu_nodes;
            let processed = usize::try_from(processed).ok().and_then(|cpu| nodes.get(cpu));
            // A socket that has received knows.
            let processed = processed.ok_or_else(|| receiving(io::Error::other("the kernel names no CPU")))?;
            let cell = processed * self.machine.nodes() + nodes[sched_getcpu()];
            self.seen.received[cell].fetch_add(bytes as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    fn write(&self, disk: &File, buffer: &[u8], offset: u64) -> Result<(), Error> {
        self.seen.submitted[sched_getcpu()].fetch_add(1, Ordering::Relaxed);
        let written = disk.write_all_at(buffer, offset);
        written.during(format_args!("writing to {}", self.disk().name))?;
        self.seen.written.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}
