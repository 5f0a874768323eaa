//! Reads beside a long request of the same CPU: a thread reads 4 KiB past the page cache while another writes a
//! file and has the server zero it, again and again. Both are bound to one CPU, so by rings one thread of the server serves them.
//!
//! tmpfs takes no part: it refuses FALLOC_FL_ZERO_RANGE.

use super::contestant::Contestant;
use super::served::{Served, Variant};
use crate::cpus;
use crate::error::{During, Error};
use crate::place::{Open, Place};
use crate::report::{HOMENODE, Row, Tail};
use crate::run::Run;
use memmap2::MmapMut;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Name of the case.
pub(super) const CASE: &str = "4k/direct-read/beside-zero";

const READ_BYTES: usize = 4096;
const ROUND: Duration = Duration::from_millis(500);
const ROUND_SMOKE: Duration = Duration::from_millis(20);
/// Requests that must end meanwhile: a busy machine gets no farther than to write what they zero. And how long that may take.
const ZEROINGS: u64 = 2;
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that are zeroed: more than any memory takes within the time that a read may wait.
const ZEROED_BYTES: usize = 512 << 20;
const ZEROED_BYTES_SMOKE: usize = 4 << 20;

/// A mount of its own, with a file that is read and one that is zeroed.
struct Subject {
    variant: Variant,
    bytes: usize,
    served: Served,
}

impl Subject {
    fn new(variant: Variant, bytes: usize, node: u16) -> Result<Self, Error> {
        let served = Served::start(variant, bytes as u64 + (16 << 20), Some(node))?;
        let place = Place::Directory(served.directory().to_owned());
        place.create("read")?.fill(7, READ_BYTES.next_multiple_of(1 << 20))?;
        place.create("zeroed")?.fill(7, bytes)?;
        Ok(Self { variant, bytes, served })
    }
}

/// Measures each of `contestants` that a server serves by a transport's defaults; a row for each. Both threads are on this CPU.
pub(super) fn rows(run: &mut Run<'_>, contestants: &[Contestant], cpu: usize) -> Result<(), Error> {
    let is_standard = |variant: &Variant| matches!(variant, Variant::Uring | Variant::Classic);
    let variants = contestants.iter().filter_map(Contestant::variant).filter(is_standard);
    let (time, bytes) = match run.common.smoke {
        true => (ROUND_SMOKE, ZEROED_BYTES_SMOKE),
        false => (ROUND, ZEROED_BYTES),
    };
    let subjects: Vec<Subject> = variants
        .map(|variant| Subject::new(variant, bytes, cpus::node(cpu)))
        .collect::<Result<_, _>>()?;
    let mut all_ns = vec![Vec::new(); subjects.len()];
    let samples = run.take_turns(CASE, subjects.len(), |round, turn| {
        let reads_ns = reads(&subjects[turn], cpu, time)?;
        let mean_ns = reads_ns.iter().sum::<u64>() as f64 / reads_ns.len() as f64;
        // The runner drops the first round too.
        if round > 0 {
            all_ns[turn].extend(reads_ns);
        }
        Ok(mean_ns)
    })?;
    for ((subject, samples), all_ns) in subjects.iter().zip(&samples).zip(&mut all_ns) {
        let row = Row::new(subject.variant.case(CASE), "ns/op", samples, &[]);
        run.show(row.with_tails([(HOMENODE, Tail::of(all_ns))].into()));
    }
    Ok(())
}

/// Times of all reads of one round, in ns; there is at least one.
fn reads(subject: &Subject, cpu: usize, time: Duration) -> Result<Vec<u64>, Error> {
    let system = |error| Error::system(format!("{CASE} on {}", subject.variant.name()), error);
    let root = subject.served.directory();
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = open(root.join("read"), flags, Mode::empty()).map_err(system)?;
    let place = Place::Directory(root.to_owned()).open("zeroed")?;
    let Open::Directory(zeroed) = &place else {
        unreachable!("a place that is a directory")
    };
    let mut page = MmapMut::map_anon(READ_BYTES).during("mapping a buffer")?;
    let (over, zeroings) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let zeroing = scope.spawn(|| {
            cpus::pin(cpu)?;
            // Relaxed: joining orders the rest.
            while !over.load(Ordering::Relaxed) {
                // Where nothing was written since there is nothing to zero.
                place.fill(7, subject.bytes)?;
                fallocate(zeroed, FallocateFlags::ZERO_RANGE, 0, subject.bytes as u64).map_err(system)?;
                zeroings.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, Error>(())
        });
        let read = || {
            cpus::pin(cpu)?;
            let mut all_ns = Vec::new();
            let begin = Instant::now();
            while begin.elapsed() < time || zeroings.load(Ordering::Relaxed) < ZEROINGS {
                let start = Instant::now();
                if start - begin > PATIENCE {
                    return Err(system(Errno::TIMEDOUT));
                }
                rustix::io::pread(&file, &mut page[..], 0).map_err(system)?;
                all_ns.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
            }
            Ok(all_ns)
        };
        let all_ns = scope.spawn(read).join().expect("reading does not panic");
        over.store(true, Ordering::Relaxed);
        zeroing.join().expect("zeroing does not panic")?;
        all_ns
    })
}
