//! Jericho's load: fio jobs on all cores over a cache of DRAM, which has fewer frames than the files have blocks.
//!
//! A thread has laid the files out before: the blocks of each file came into memory on the node where that thread ran then. The stock
//! kernel leaves threads and blocks where they are. Homenode's cache has a slice on each node ([`Slices`]), evicts by
//! [`Eviction`], and [`affinity::decide`] moves threads to their buffers once in a period.

use crate::scheduler::Scheduler;
use crate::{Agenda, Band, Drawn, Machine, MachineError, PS_PER_S, Stream, random};
use homenode_policy::BLOCK_BYTES;
use homenode_policy::affinity::{self, Config, Previous, Snapshot, Target, Thread};
use homenode_policy::eviction::{Eviction, Ghosts, Look};
use homenode_policy::slices::Slices;
use homenode_policy::topology::Topology;
use rand::Rng;
use rand::seq::SliceRandom;
use rand_distr::{Distribution, Zipf};

/// Kind of cache, and whether threads move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stack {
    /// The page cache of Linux: a block lies on the node of the core that missed it, and the oldest goes.
    PageCache,
    /// Homenode's slices; threads stay.
    Slices,
    /// Homenode's slices, and threads move to their buffers.
    Moving,
}

impl Stack {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::PageCache, Self::Slices, Self::Moving];

    /// Its name in figures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PageCache => "page cache",
            Self::Slices => "Homenode's slices, threads stay",
            Self::Moving => "Homenode's slices, threads move",
        }
    }
}

/// The load. A job runs on each of the first cores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cached {
    /// Jobs; at most a job for each core.
    pub jobs: u32,
    /// Blocks of each job's file.
    pub file_blocks: u64,
    /// Frames of the cache for each core.
    pub frames_per_core: u64,
    /// Exponent of the distribution of a job's reads over its blocks; 0 for equal chances.
    pub zipf: f64,
    /// Time of the disk for a missed block.
    pub disk_ns: Band,
    /// Periods; the last half of them is measured.
    pub periods: u32,
    /// Virtual time of each.
    pub period_s: f64,
}

/// Results of the measured periods.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    /// MB/s of all jobs.
    pub mb_per_s: f64,
    /// Percent of the bytes that were local.
    pub local_percent: f64,
    /// Percent of the reads that found their block in the cache.
    pub hit_percent: f64,
    /// Threads that moved, in all periods.
    pub moves: u64,
}

impl Cached {
    /// The abstract names fio and 64 cores; the files just fit here, so that placement is what is seen.
    pub const FIO: Self = Self {
        jobs: u32::MAX,
        file_blocks: 4096,
        frames_per_core: 4096,
        zipf: 0.0,
        disk_ns: Band::new(80_000.0, 120_000.0),
        periods: 8,
        period_s: 0.004,
    };

    /// Runs the jobs.
    ///
    /// # Errors
    /// When the topology is no machine.
    ///
    /// # Panics
    /// When a file has no block.
    pub fn run(&self, stack: Stack, topology: &Topology, drawn: &Drawn, seed: u64) -> Result<Done, MachineError> {
        let mut run = Run::new(self, stack, topology, drawn, seed)?;
        let config = Config {
            moves_files: false,
            ..Config::default()
        };
        let (mut previous, mut done) = (Previous::default(), Done::default());
        let period_ps = crate::constants::ps(self.period_s * 1e9);
        let mut sum = Counts::default();
        for period in 1..=self.periods {
            run.go_on(u64::from(period) * period_ps);
            let counts = std::mem::take(&mut run.counts);
            if period > self.periods / 2 {
                sum.add(&counts);
            }
            let snapshot = run.snapshot(topology, period_ps / crate::PS_PER_NS);
            if stack == Stack::Moving {
                let plan = affinity::decide(&snapshot, &config, &previous);
                for action in &plan.actions {
                    if let Target::Thread(id) = &action.target {
                        run.scheduler.allow(id.thread as usize - 1, &action.to);
                        done.moves += u64::from(action.moves());
                    }
                }
                previous = previous.after(&plan, &snapshot, &config);
            }
            run.scheduler.balance(&run.machine, u64::from(period) * period_ps);
        }
        let measured = self.periods - self.periods / 2;
        let seconds = (u64::from(measured) * period_ps) as f64 / PS_PER_S as f64;
        let bytes = sum.reads * BLOCK_BYTES as u64;
        done.mb_per_s = bytes as f64 / 1e6 / seconds;
        done.local_percent = 100.0 * sum.local as f64 / sum.reads.max(1) as f64;
        done.hit_percent = 100.0 * sum.hits as f64 / sum.reads.max(1) as f64;
        Ok(done)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    reads: u64,
    hits: u64,
    local: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.hits += other.hits;
        self.local += other.local;
    }
}

struct Run<'a> {
    load: &'a Cached,
    machine: Machine,
    scheduler: Scheduler,
    cache: Cache,
    costs_ps: u64,
    disk_ps: u64,
    zipf: Option<Zipf<f64>>,
    random: crate::Random,
    agenda: Agenda,
    /// Bytes of each thread by node, in this period.
    moved: Vec<Vec<u64>>,
    counts: Counts,
}

impl<'a> Run<'a> {
    fn new(
        load: &'a Cached,
        stack: Stack,
        topology: &Topology,
        drawn: &Drawn,
        seed: u64,
    ) -> Result<Self, MachineError> {
        let machine = Machine::new(topology, drawn)?;
        let disk_ns = load.disk_ns.draw(&mut random(Stream::Load, seed));
        let mut random = random(Stream::Run, seed);
        let (cores, nodes) = (machine.cores(), machine.nodes());
        let jobs = load.jobs.min(cores);
        let mut starts: Vec<u32> = (0..jobs).collect();
        starts.shuffle(&mut random);
        let frames = load.frames_per_core * u64::from(cores) / u64::from(nodes);
        let mut cache = Cache::new(stack, &machine, u64::from(jobs) * load.file_blocks, frames);
        // As many files for each node as it has cores, in a random order.
        let mut layers: Vec<u32> = (0..jobs).map(|core| machine.node_of(core)).collect();
        layers.shuffle(&mut random);
        for (job, node) in (0_u64..).zip(&layers) {
            for block in 0..load.file_blocks {
                cache.come(*node, job * load.file_blocks + block);
            }
        }
        Ok(Self {
            disk_ps: crate::constants::ps(disk_ns),
            costs_ps: drawn.page_cache.of(1, 0),
            zipf: (load.zipf > 0.0).then(|| {
                Zipf::new(load.file_blocks as f64, load.zipf).expect("a file has blocks, and the exponent is positive")
            }),
            scheduler: Scheduler::new(topology, cores, &starts),
            agenda: Agenda::new(jobs),
            moved: vec![vec![0; nodes as usize]; jobs as usize],
            counts: Counts::default(),
            load,
            machine,
            cache,
            random,
        })
    }

    fn go_on(&mut self, end_ps: u64) {
        let Self {
            load,
            machine,
            scheduler,
            cache,
            costs_ps,
            disk_ps,
            zipf,
            random,
            agenda,
            moved,
            counts,
        } = self;
        agenda.run(end_ps, |now, job| {
            let thread = job as usize;
            let core = match scheduler.run(machine, thread, now) {
                Ok(core) => core,
                Err(again) => return Some(again),
            };
            #[expect(clippy::cast_possible_truncation, reason = "a whole number from 1 to the blocks")]
            let block = match zipf {
                Some(zipf) => zipf.sample(random) as u64 - 1,
                None => random.random_range(0..load.file_blocks),
            };
            let key = u64::from(job) * load.file_blocks + block;
            let node = machine.node_of(core);
            counts.reads += 1;
            let (home, waits) = match cache.find(key) {
                Some(home) => {
                    counts.hits += 1;
                    (home, 0)
                }
                None => (cache.come(node, key), *disk_ps),
            };
            counts.local += u64::from(home == node);
            moved[thread][home as usize] += BLOCK_BYTES as u64;
            let end = machine.read(now, core, home, BLOCK_BYTES as u64) + *costs_ps;
            scheduler.occupy(core, end);
            scheduler.note(thread, end - now);
            Some(end + waits)
        });
    }

    fn snapshot(&mut self, topology: &Topology, period_ns: u64) -> Snapshot {
        let online = self.scheduler.cpus().to_vec();
        let threads = self.moved.iter_mut().enumerate().map(|(number, moved)| {
            let memory = (0_u32..).zip(moved.iter()).filter(|(_, bytes)| **bytes > 0);
            let memory = memory.map(|(node, bytes)| (self.machine.id(node), *bytes)).collect();
            moved.fill(0);
            Thread {
                memory,
                ..self.scheduler.tell(number, "fio")
            }
        });
        Snapshot {
            threads: threads.collect(),
            ..Snapshot::idle(topology.clone(), online, period_ns)
        }
    }
}

/// Frames of all nodes, and the block in each.
struct Cache {
    /// Frame of each block, and its slice; [`NOWHERE`] where it is not cached.
    places: Vec<(u8, u32)>,
    slices: Vec<Slice>,
    ghosts: Ghosts,
    /// Decides which slice; `None` for the node that missed.
    decides: Option<Slices>,
}

const NOWHERE: (u8, u32) = (u8::MAX, 0);

struct Slice {
    eviction: Eviction,
    free: Vec<u32>,
    frames: Vec<Frame>,
    /// Frames in the order in which they came, where the oldest goes.
    oldest: Option<usize>,
}

#[derive(Clone, Copy, Default)]
struct Frame {
    key: u64,
    is_hot: bool,
}

impl Cache {
    fn new(stack: Stack, machine: &Machine, blocks: u64, frames: u64) -> Self {
        let frames = u32::try_from(frames.max(1)).expect("a slice has fewer than 2^30 frames");
        let slice = |_| Slice {
            eviction: Eviction::new(frames),
            free: (0..frames).rev().collect(),
            frames: vec![Frame::default(); frames as usize],
            oldest: (stack == Stack::PageCache).then_some(0),
        };
        let nodes = machine.nodes();
        let each = vec![u64::from(frames); nodes as usize];
        Self {
            places: vec![NOWHERE; usize::try_from(blocks).expect("a table of blocks fits into memory")],
            slices: (0..nodes).map(slice).collect(),
            ghosts: Ghosts::new((frames * nodes) as usize),
            decides: (stack != Stack::PageCache).then(|| Slices::new(&each, &machine.latencies())),
        }
    }

    /// The node of a block that is cached.
    fn find(&mut self, key: u64) -> Option<u32> {
        let (slice, frame) = self.places[at(key)];
        (slice != u8::MAX).then(|| {
            self.slices[usize::from(slice)].frames[frame as usize].is_hot = true;
            u32::from(slice)
        })
    }

    /// A node has missed a block: it comes into a frame, whose node is returned.
    fn come(&mut self, node: u32, key: u64) -> u32 {
        let is_returned = self.ghosts.recall(key);
        let slices = &self.slices;
        let to = match &mut self.decides {
            Some(decides) => {
                if is_returned {
                    decides.note_returned(node as usize, 1);
                }
                decides.place(node as usize, 1, |slice| !slices[slice].free.is_empty())
            }
            // The kernel takes free memory of other nodes before it drops anything.
            None if slices[node as usize].free.is_empty() => (0..slices.len())
                .find(|slice| !slices[*slice].free.is_empty())
                .unwrap_or(node as usize),
            None => node as usize,
        };
        let frame = self.slices[to].free.pop().unwrap_or_else(|| self.evict(to));
        let slice = &mut self.slices[to];
        slice.frames[frame as usize] = Frame {
            key,
            is_hot: !is_returned,
        };
        if slice.oldest.is_none()
            && let Some(cool) = slice.eviction.insert(frame, is_returned)
        {
            slice.frames[cool as usize].is_hot = false;
        }
        self.places[at(key)] = (u8::try_from(to).expect("machines have fewer than 255 nodes"), frame);
        u32::try_from(to).expect("machines have fewer than 255 nodes")
    }

    fn evict(&mut self, from: usize) -> u32 {
        let Slice {
            eviction,
            frames,
            oldest,
            ..
        } = &mut self.slices[from];
        let frame = if let Some(hand) = oldest {
            let frame = *hand;
            *hand = (frame + 1) % frames.len();
            u32::try_from(frame).expect("a slice has fewer than 2^30 frames")
        } else {
            let mut look = |frame: u32| {
                let frame = &mut frames[frame as usize];
                if std::mem::take(&mut frame.is_hot) {
                    Look::Referenced
                } else {
                    Look::Unused
                }
            };
            // All were hot: they are cool now.
            let victim = eviction.evict(&mut look).or_else(|| eviction.evict(&mut look));
            let victim = victim.expect("cool frames may go, and no frame is busy");
            if victim.is_remembered {
                self.ghosts.remember(frames[victim.frame as usize].key);
            }
            victim.frame
        };
        self.places[at(self.slices[from].frames[frame as usize].key)] = NOWHERE;
        frame
    }
}

fn at(key: u64) -> usize {
    usize::try_from(key).expect("a table of blocks fits into memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Constants;
    use crate::shapes::{Shape, machine};

    #[test]
    fn threads_that_move_find_their_blocks_at_home() {
        let topology = machine(4, 4, 1 << 30, Shape::Full, Vec::new());
        let drawn = Constants::SERVER.draw(1);
        let load = Cached {
            file_blocks: 256,
            frames_per_core: 256,
            ..Cached::FIO
        };
        let [stock, stay, moving] = Stack::ALL.map(|stack| load.run(stack, &topology, &drawn, 1).unwrap());
        assert!(
            stock.local_percent < 60.0 && stay.local_percent < 60.0,
            "{stock:?} {stay:?}"
        );
        assert!(moving.local_percent > 90.0 && moving.moves > 0, "{moving:?}");
        assert!(moving.mb_per_s > stock.mb_per_s, "{moving:?} {stock:?}");
        assert_eq!(stock.hit_percent, 100.0);
        assert_eq!(load.run(Stack::Moving, &topology, &drawn, 1).unwrap(), moving);
    }

    #[test]
    fn a_small_cache_keeps_what_is_used_often() {
        let topology = machine(2, 2, 1 << 30, Shape::Full, Vec::new());
        let drawn = Constants::SERVER.draw(2);
        let load = Cached {
            file_blocks: 4096,
            frames_per_core: 512,
            zipf: 0.9,
            periods: 40,
            ..Cached::FIO
        };
        let of = |stack| load.run(stack, &topology, &drawn, 2).unwrap();
        let (stock, ours) = (of(Stack::PageCache), of(Stack::Slices));
        assert!(ours.hit_percent > stock.hit_percent + 1.0, "{ours:?} {stock:?}");
    }
}
