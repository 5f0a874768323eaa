//! Measures every way to copy to, from and zero a pool's memory, interleaved, in one run.
//!
//! `cargo run --release -p homenode-linux --example copy [ROUNDS [FILE]]`: median nanoseconds of a copy between a hot
//! buffer and random places in 64 MiB of a DRAM member. FILE, on a tmpfs mounted with `huge=always`, adds `pread` and
//! `pwrite` on it as a peer. `OFFSET=1` in the environment moves the places that many bytes on from a page's start, where
//! the buffer is.

use homenode_engine::{Block, MemberId, Memory, NodeId};
use homenode_linux::copy::{Method, methods};
use homenode_linux::cpu;
use homenode_linux::memory::NodeMemory;
use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::time::Instant;

const POOL_BYTES: usize = 64 << 20;
const SIZES: [usize; 9] = [
    1 << 10,
    2 << 10,
    4 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    2 << 20,
];
/// Bytes to copy before the clock is read again: long against reading it, short against being interrupted.
const BATCH_BYTES: usize = 4 << 20;
const BATCH_COPIES_MAX: usize = 500;

#[derive(Clone, Copy, Debug)]
enum Operation {
    Store,
    Load,
    Zero,
}

/// Way to do an operation.
enum Way {
    Copy(Method),
    File(File),
}

/// The pool's bytes, for every thread.
struct Pool(*mut u8);
// SAFETY: only the methods under test use the pointer, and they allow races.
unsafe impl Sync for Pool {}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let rounds: usize = arguments.next().map_or(Ok(21), |text| text.parse())?;
    let offset: usize = std::env::var("OFFSET").map_or(Ok(0), |text| text.parse())?;
    let memory = NodeMemory::new();
    let pool = Pool(populated(&memory)?.wrapping_add(offset));
    let mut ways: Vec<Way> = methods().into_iter().map(Way::Copy).collect();
    if let Some(path) = arguments.next() {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        file.write_all_at(&vec![1; POOL_BYTES], 0)?;
        ways.push(Way::File(file));
    }
    for threads in 1..=cpu::allowed_cpus()?.len().min(2) {
        for operation in [Operation::Store, Operation::Load, Operation::Zero] {
            table(&pool, &ways, operation, threads, rounds);
        }
    }
    Ok(())
}

/// 64 MiB (and a page for misaligned places) of node 0.
fn populated(memory: &NodeMemory) -> Result<*mut u8, Box<dyn Error>> {
    let member = MemberId(0);
    let bytes = POOL_BYTES + (2 << 20);
    let backing = memory.add(member, NodeId(0), bytes as u64)?;
    memory.populate(member, 0, bytes as u64 / 4096)?;
    let huge = memory.huge_bytes(member).unwrap_or(0);
    println!("{backing}; {} of {} MiB in 2 MiB pages", huge >> 20, bytes >> 20);
    Ok(memory.address(Block::new(member, 0), 0, bytes))
}

fn table(pool: &Pool, ways: &[Way], operation: Operation, threads: usize, rounds: usize) {
    println!("\n{operation:?}, {threads} threads, median ns");
    print!("{:16}", "");
    SIZES
        .iter()
        .for_each(|bytes| print!("{:>9}", format!("{}k", bytes >> 10)));
    println!();
    let mut times = vec![vec![Vec::with_capacity(rounds); SIZES.len()]; ways.len()];
    for round in 0..rounds {
        for (column, bytes) in SIZES.into_iter().enumerate() {
            // Each round starts elsewhere, so that what a way leaves in the caches is not always the same one's burden.
            for turn in 0..ways.len() {
                let row = (turn * 5 + round) % ways.len();
                times[row][column].push(batch(pool, &ways[row], operation, bytes, threads, round * 31 + turn));
            }
        }
    }
    for (way, columns) in ways.iter().zip(&mut times) {
        print!("{:16}", way.name());
        for nanoseconds in columns {
            nanoseconds.sort_by(f64::total_cmp);
            print!("{:>9.0}", nanoseconds[nanoseconds.len() / 2]);
        }
        println!();
    }
}

/// Nanoseconds of one copy, when each of `threads` copies at the same time; their mean.
fn batch(pool: &Pool, way: &Way, operation: Operation, bytes: usize, threads: usize, seed: usize) -> f64 {
    let barrier = Barrier::new(threads);
    let cpus = cpu::allowed_cpus().unwrap_or_default();
    let one = |thread: usize| {
        if let Some(cpu) = cpus.get(thread).filter(|_| threads > 1) {
            // Where it is refused, the scheduler spreads the threads.
            let _ = cpu::pin_to_cpu(*cpu);
        }
        let mut buffer = vec![7_u8; bytes + 4096];
        let page = buffer.as_ptr().align_offset(4096);
        barrier.wait();
        timed(
            pool,
            way,
            operation,
            &mut buffer[page..page + bytes],
            (seed * 8 + thread + 1) as u64,
        )
    };
    if threads == 1 {
        return one(0);
    }
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        handles
            .into_iter()
            .map(|handle| handle.join().expect("the thread does not panic"))
            .sum::<f64>()
            / threads as f64
    })
}

fn timed(pool: &Pool, way: &Way, operation: Operation, buffer: &mut [u8], seed: u64) -> f64 {
    let bytes = buffer.len();
    let places = POOL_BYTES / bytes;
    let copies = (BATCH_BYTES / bytes).clamp(2, BATCH_COPIES_MAX);
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let start = Instant::now();
    for _ in 0..copies {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let place = usize::try_from(random).unwrap_or(0) % places * bytes;
        match way {
            // SAFETY: the place and its bytes are within the populated member, the buffer is this thread's, and every
            // size is a line at least.
            Way::Copy(method) => unsafe { apply(method, operation, pool.0.wrapping_add(place), buffer) },
            Way::File(file) => match operation {
                Operation::Load => file.read_exact_at(buffer, place as u64).expect("the file is that long"),
                _ => file.write_all_at(buffer, place as u64).expect("the file is that long"),
            },
        }
    }
    black_box(buffer);
    start.elapsed().as_secs_f64() * 1e9 / copies as f64
}

/// # Safety
/// `place` is valid for as many bytes as the buffer has.
unsafe fn apply(method: &Method, operation: Operation, place: *mut u8, buffer: &mut [u8]) {
    match operation {
        // SAFETY: the place is, and the buffer is this thread's.
        Operation::Load => unsafe { (method.load)(buffer.as_mut_ptr(), place, buffer.len()) },
        // SAFETY: as above.
        Operation::Store => unsafe { (method.store)(place, buffer.as_ptr(), buffer.len()) },
        // SAFETY: as above.
        Operation::Zero => unsafe { (method.zero)(place, buffer.len()) },
    }
}

impl Way {
    fn name(&self) -> &'static str {
        match self {
            Self::Copy(method) => method.name,
            Self::File(_) => "pread/pwrite",
        }
    }
}
