//! fio's job by threads of this process that call the library, which fio cannot.

use super::job::FILE_BYTES;
use crate::cpus;
use crate::error::{During, Error};
use crate::populated;
use crate::shuffle::permutation;
use fastrand::Rng;
use homenode::{File, OpenOptions, Pool};
use memmap2::MmapMut;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

/// A pool over all nodes, populated.
#[derive(Debug)]
pub(super) struct Library {
    pool: Pool,
}

/// Threads at work, each on a file of its own.
#[derive(Debug)]
pub(super) struct Running {
    stop: Arc<AtomicBool>,
    moved: Vec<Arc<Moved>>,
    threads: Vec<JoinHandle<Result<(), Error>>>,
}

/// Bytes; nobody else writes near it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Moved(AtomicU64);

/// Work of one thread.
#[derive(Debug)]
struct Job {
    file: File,
    cpu: usize,
    block_bytes: u64,
    write: bool,
    once: bool,
    stop: Arc<AtomicBool>,
    moved: Arc<Moved>,
}

impl Library {
    pub(super) fn new(node_bytes: u64) -> Result<Self, Error> {
        let pool = populated::pool(node_bytes, None).map_err(Error::library("creating a populated pool"))?;
        Ok(Self { pool })
    }

    pub(super) fn start(&self, cpus: &[usize], block_bytes: u64, write: bool, once: bool) -> Result<Running, Error> {
        let mut running = Running {
            stop: Arc::default(),
            moved: Vec::new(),
            threads: Vec::new(),
        };
        for (number, &cpu) in cpus.iter().enumerate() {
            let options = OpenOptions::new().read(true).write(true).create(true);
            let job = Job {
                file: self
                    .pool
                    .open(format!("/{block_bytes}.{number}"), &options)
                    .map_err(Error::library("opening a file"))?,
                cpu,
                block_bytes,
                write,
                once,
                stop: Arc::clone(&running.stop),
                moved: Arc::default(),
            };
            running.moved.push(Arc::clone(&job.moved));
            running.threads.push(thread::spawn(move || job.run()));
        }
        Ok(running)
    }
}

impl Running {
    pub(super) fn bytes(&self) -> Vec<f64> {
        // Relaxed: a recent value is enough.
        let bytes = |moved: &Arc<Moved>| moved.0.load(Ordering::Relaxed);
        self.moved.iter().map(|moved| bytes(moved) as f64).collect()
    }

    pub(super) fn stop(self) -> Result<(), Error> {
        self.stop.store(true, Ordering::Relaxed);
        self.finish()
    }

    pub(super) fn finish(self) -> Result<(), Error> {
        let join = |thread: JoinHandle<_>| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.threads.into_iter().try_for_each(join)
    }
}

impl Job {
    fn run(&self) -> Result<(), Error> {
        cpus::pin(self.cpu)?;
        let block = usize::try_from(self.block_bytes).expect("a block fits in memory");
        let blocks = usize::try_from(FILE_BYTES / self.block_bytes).expect("a file has few blocks");
        // Pages of its own, which nobody on another node has used before.
        let mut buffer = MmapMut::map_anon(block).during("mapping a buffer")?;
        buffer.fill(1);
        if self.once {
            return permutation(blocks, self.cpu as u64)
                .into_iter()
                .try_for_each(|at| self.transfer(&mut buffer, u64::from(at)));
        }
        let mut random = Rng::with_seed(self.cpu as u64);
        while !self.stop.load(Ordering::Relaxed) {
            self.transfer(&mut buffer, random.usize(..blocks) as u64)?;
        }
        Ok(())
    }

    fn transfer(&self, buffer: &mut [u8], block: u64) -> Result<(), Error> {
        let offset = block * self.block_bytes;
        let done = if self.write {
            self.file.write_at(buffer, offset).map_err(Error::library("writing"))?
        } else {
            self.file.read_at(buffer, offset).map_err(Error::library("reading"))?
        };
        if done != buffer.len() {
            return Err(Error::system("the library's file", io::ErrorKind::UnexpectedEof));
        }
        self.moved.0.fetch_add(done as u64, Ordering::Relaxed);
        Ok(())
    }
}
