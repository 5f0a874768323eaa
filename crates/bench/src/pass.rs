//! Threads that start together, and clients that read or write blocks of a file.
//!
//! Each thread reads its clock twice, not once per operation.

use crate::error::{During, Error};
use crate::place::{Open, whole};
use crate::shuffle::permutation;
use fastrand::Rng;
use memmap2::MmapMut;
use rustix::io::{pread, pwrite};
use std::panic::resume_unwind;
use std::sync::Barrier;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};
use std::{fs, io};

/// Blocks that are read back and compared after a pass that writes.
const VERIFIED_BLOCKS: usize = 8;

/// Work of threads that started together.
#[derive(Debug)]
pub(crate) struct Done<T, M> {
    /// Time from the first one's start to the last one's end.
    pub(crate) elapsed: Duration,
    /// Longest time of one.
    pub(crate) longest: Duration,
    pub(crate) results: Vec<T>,
    /// A meter, read while nobody works: before and after.
    pub(crate) meter: [M; 2],
}

/// Prepares each of `items` in a thread of its own, then runs all of them from the same moment.
///
/// Threads sleep until then: under a real-time priority spinning threads would keep each other, and servers, from ever running.
pub(crate) fn together<I: Send, F, T: Send, M>(
    items: Vec<I>,
    meter: impl Fn() -> M,
    prepare: impl Fn(I) -> Result<F, Error> + Sync,
) -> Result<Done<T, M>, Error>
where
    F: FnOnce() -> Result<T, Error>,
{
    let begin = Barrier::new(items.len() + 1);
    let run = |item| -> Result<_, Error> {
        let prepared = prepare(item);
        // Both on errors too, or the others would wait for ever.
        begin.wait();
        begin.wait();
        let work = prepared?;
        let start = Instant::now();
        let result = work()?;
        Ok(((start, Instant::now()), result))
    };
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || run(item))).collect();
        begin.wait();
        let before = meter();
        begin.wait();
        let join = |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        let done: Vec<Result<_, Error>> = threads.into_iter().map(join).collect();
        let meter = [before, meter()];
        let (times, results): (Vec<(Instant, Instant)>, _) = done.into_iter().collect::<Result<_, Error>>()?;
        let start = times.iter().map(|(start, _)| *start).min().expect("there is a thread");
        let ends = || times.iter().map(|(_, end)| *end);
        Ok(Done {
            elapsed: ends().max().expect("there is a thread") - start,
            longest: times.iter().map(|(start, end)| *end - *start).max().unwrap_or_default(),
            results,
            meter,
        })
    })
}

/// A client that is ready to work.
pub(crate) trait Client: Send {
    /// Does all of its work: this is timed.
    fn run(&mut self) -> Result<(), Error>;
    /// Returns whether the work had the effect it should have had.
    fn is_right(&mut self) -> Result<bool, Error>;
}

impl<C: Client + ?Sized> Client for Box<C> {
    fn run(&mut self) -> Result<(), Error> {
        (**self).run()
    }
    fn is_right(&mut self) -> Result<bool, Error> {
        (**self).is_right()
    }
}

/// Prepares a client of each of `items`, runs all together, and checks their work. Returns the longest time of one in ns, and the
/// meter before and after.
pub(crate) fn time<I: Send, C: Client, M>(
    case: &str,
    contestant: &'static str,
    items: Vec<I>,
    meter: impl Fn() -> M,
    prepare: impl Fn(I) -> Result<C, Error> + Sync,
) -> Result<(f64, [M; 2]), Error> {
    let checked = || {
        let done = together(items, meter, |item| {
            let mut client = prepare(item)?;
            Ok(move || client.run().map(|()| client))
        })?;
        for mut client in done.results {
            if !client.is_right()? {
                return Err(Error::WrongBytes {
                    case: case.to_owned(),
                    contestant,
                });
            }
        }
        Ok((done.longest.as_secs_f64() * 1e9, done.meter))
    };
    checked().map_err(|error| error.of(case, contestant))
}

/// A thread's part of a file.
#[derive(Debug)]
pub(crate) enum Lane<'a> {
    /// The part that begins at this byte.
    File(&'a Open, usize),
    Memory(&'a mut [u8]),
}

/// Reads and writes of a kind of file. They are inlined, so that their own cost is the same for all contestants: next to none.
trait ReadWrite {
    fn write(&mut self, from: &[u8], at: usize) -> io::Result<usize>;
    fn read(&mut self, to: &mut [u8], at: usize) -> io::Result<usize>;
}

impl ReadWrite for (&homenode::File, usize) {
    #[inline(always)]
    fn write(&mut self, from: &[u8], at: usize) -> io::Result<usize> {
        Ok(self.0.write_at(from, (self.1 + at) as u64)?)
    }
    #[inline(always)]
    fn read(&mut self, to: &mut [u8], at: usize) -> io::Result<usize> {
        Ok(self.0.read_at(to, (self.1 + at) as u64)?)
    }
}

impl ReadWrite for (&fs::File, usize) {
    #[inline(always)]
    fn write(&mut self, from: &[u8], at: usize) -> io::Result<usize> {
        Ok(pwrite(self.0, from, (self.1 + at) as u64)?)
    }
    #[inline(always)]
    fn read(&mut self, to: &mut [u8], at: usize) -> io::Result<usize> {
        Ok(pread(self.0, to, (self.1 + at) as u64)?)
    }
}

impl ReadWrite for &mut [u8] {
    #[inline(always)]
    fn write(&mut self, from: &[u8], at: usize) -> io::Result<usize> {
        self[at..at + from.len()].copy_from_slice(from);
        Ok(from.len())
    }
    #[inline(always)]
    fn read(&mut self, to: &mut [u8], at: usize) -> io::Result<usize> {
        to.copy_from_slice(&self[at..at + to.len()]);
        Ok(to.len())
    }
}

impl Lane<'_> {
    /// Writes `buffer` to these blocks of its length, or reads them into it, one after the other.
    pub(crate) fn run(&mut self, writes: bool, order: &[u32], buffer: &mut [u8]) -> Result<(), Error> {
        let done = match self {
            Self::File(Open::Pool(file), start) => pass(&mut (file, *start), writes, order, buffer),
            Self::File(Open::Directory(file), start) => pass(&mut (file, *start), writes, order, buffer),
            Self::Memory(memory) => pass(memory, writes, order, buffer),
        };
        done.map_err(|error| Error::system(if writes { "writing" } else { "reading" }, error))
    }
}

/// Each kind of file has a loop of its own: to ask for the kind in every turn costs reads of 1 KiB 6 %.
#[inline(never)]
fn pass<L: ReadWrite>(lane: &mut L, writes: bool, order: &[u32], buffer: &mut [u8]) -> io::Result<()> {
    let bytes = buffer.len();
    let mut blocks = order.iter().map(|&block| block as usize * bytes);
    if writes {
        blocks.try_for_each(|at| whole(lane.write(buffer, at)?, bytes))
    } else {
        blocks.try_for_each(|at| whole(lane.read(buffer, at)?, bytes))
    }
}

/// A client that reads or writes blocks, each at most once, by one buffer that stays in the caches of its CPU.
#[derive(Debug)]
pub(crate) struct Blocks<'a> {
    lane: Lane<'a>,
    writes: bool,
    order: Vec<u32>,
    /// A block, page-aligned as O_DIRECT needs it.
    buffer: MmapMut,
}

impl<'a> Blocks<'a> {
    /// Decides the bytes that are written.
    pub(crate) fn new(lane: Lane<'a>, writes: bool, bytes: usize, order: Vec<u32>, seed: u64) -> Result<Self, Error> {
        let mut buffer = MmapMut::map_anon(bytes).during("mapping a buffer")?;
        let mut random = Rng::with_seed(!seed);
        for word in buffer.chunks_exact_mut(8) {
            let written = if writes { random.u64(..) | 1 } else { 0 };
            word.copy_from_slice(&written.to_le_bytes());
        }
        Ok(Self {
            lane,
            writes,
            order,
            buffer,
        })
    }
}

impl Client for Blocks<'_> {
    fn run(&mut self) -> Result<(), Error> {
        self.lane.run(self.writes, &self.order, &mut self.buffer)
    }

    /// After writes: some blocks, read back, are what was written. After reads: the buffer, zeros before, holds what a
    /// writer left (writers' words are odd).
    fn is_right(&mut self) -> Result<bool, Error> {
        if !self.writes {
            return Ok(self.buffer.chunks_exact(8).all(|word| word[0] & 1 == 1));
        }
        let mut back = MmapMut::map_anon(self.buffer.len()).during("mapping a buffer")?;
        for &block in self.order.iter().rev().take(VERIFIED_BLOCKS) {
            self.lane.run(false, &[block], &mut back)?;
            if back[..] != self.buffer[..] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The blocks below `count`, in their own order or at random.
pub(crate) fn order(count: usize, sequential: bool, seed: u64) -> Vec<u32> {
    if sequential {
        (0..u32::try_from(count).expect("files have fewer than 2^32 blocks")).collect()
    } else {
        permutation(count, seed)
    }
}
