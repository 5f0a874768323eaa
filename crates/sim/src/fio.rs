//! fio's parameters: jobs that read or write blocks of a file each.
//!
//! A job has a core of its own and writes each block of its file once, in random order, as fio does; or it reads or overwrites blocks
//! at random, for as long as it is told.

use crate::{Agenda, Contestant, Drawn, Files, Machine, PS_PER_S, Stream, random, random_of};
use homenode_policy::BLOCK_BYTES;
use rand::Rng;

/// Parameters, by fio's names where it has them.
#[derive(Clone, Debug, PartialEq)]
pub struct Fio {
    /// The core of each job.
    pub cores: Vec<u32>,
    /// `bs`.
    pub block_bytes: u64,
    /// `size` of each job's file.
    pub file_bytes: u64,
    /// Work of the jobs.
    pub work: Work,
    /// Core that reserves or writes all files before; `None` where each job's own writes do.
    pub laid_out_by: Option<u32>,
    /// Memory for files on each node; `None` for most of it.
    pub of_node_bytes: Option<u64>,
}

/// Work of the jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// `randwrite`: each block once.
    WriteOnce,
    /// Blocks at random, for a time; a percentage of the operations reads, the others overwrite (`rwmixread`).
    Mixed {
        /// Virtual time.
        seconds: f64,
        /// Reads among the operations.
        read_percent: u32,
    },
}

/// Results of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    /// Bytes read and written.
    pub bytes: u64,
    /// Virtual time, in picoseconds.
    pub span_ps: u64,
    /// Bytes that cores moved from and to memory of their own node.
    pub local_bytes: u64,
    /// Blocks that went to another node than their writer's.
    pub spilled_blocks: u64,
    /// Events of the simulation: operations.
    pub events: u64,
}

impl Done {
    /// MB/s of all jobs together.
    #[must_use]
    pub fn mb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e6 / (self.span_ps.max(1) as f64 / PS_PER_S as f64)
    }

    /// Percent of the bytes that were local.
    #[must_use]
    pub fn local_percent(&self) -> f64 {
        100.0 * self.local_bytes as f64 / self.bytes.max(1) as f64
    }
}

/// A node has no room for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the files do not fit into the machine's memory: take fewer jobs, smaller files, or a larger machine, such as \"node:4(memory=64GB) core:10 pu:1\""
)]
pub struct NoRoom;

impl Fio {
    /// Runs the jobs on a machine.
    ///
    /// # Errors
    /// When the files do not fit.
    ///
    /// # Panics
    /// When a core is not one of the machine's, or there is no job.
    pub fn run(&self, contestant: Contestant, machine: &mut Machine, drawn: &Drawn, seed: u64) -> Result<Done, NoRoom> {
        let jobs = self.cores.len() as u64;
        let room: u128 = (0..machine.nodes())
            .map(|node| u128::from(machine.memory_bytes(node)))
            .sum();
        if u128::from(self.file_bytes) * u128::from(jobs) > room {
            return Err(NoRoom);
        }
        let mut files = Files::new(contestant, machine, jobs, self.file_bytes, self.of_node_bytes);
        let reserved_by = (contestant == Contestant::TmpfsReserved).then_some(self.cores[0]);
        let one_core = self.laid_out_by.or(reserved_by);
        let mut server = (contestant == Contestant::Fuse).then(|| Server::on_first_cores_node(machine));
        let is_served = server.is_some();
        // The core whose first write places a block.
        let placing = |core: u32| if is_served { 0 } else { core };
        if one_core.is_some() || self.work != Work::WriteOnce {
            for (file, core) in (0..jobs).zip(&self.cores) {
                for block in 0..files.blocks() {
                    files
                        .write(machine, placing(one_core.unwrap_or(*core)), file, block)
                        .ok_or(NoRoom)?;
                }
            }
        }
        let costs = contestant.costs(drawn);
        let parts = (self.file_bytes / self.block_bytes).max(1);
        let mut orders: Vec<Order> = (0..jobs).map(|job| Order::new(parts, job, seed)).collect();
        let mut random = random(Stream::Run, seed);
        let (mut done, mut is_full) = (Done::default(), false);
        let pages = self.block_bytes.div_ceil(BLOCK_BYTES as u64);
        let end_ps = match self.work {
            Work::WriteOnce => u64::MAX,
            Work::Mixed { seconds, .. } => {
                // Only what comes again may be in a cache.
                machine.set_working_bytes(&self.cores, self.file_bytes);
                crate::constants::ps(seconds * 1e9)
            }
        };
        let mut agenda = Agenda::new(u32::try_from(jobs).expect("a job for each core"));
        done.events = agenda.run(end_ps, |now, job| {
            let (core, file) = (self.cores[job as usize], u64::from(job));
            let (part, reads) = match self.work {
                Work::WriteOnce => (orders[job as usize].next()?, false),
                Work::Mixed { read_percent, .. } => (
                    random.random_range(0..parts),
                    random.random_range(0..100) < read_percent,
                ),
            };
            let begin = part * self.block_bytes;
            let (mut at, end_at, mut first) = (begin, begin + self.block_bytes, 0);
            // Events are copies that begin, so that memories and links meet them in order; the software's time comes behind.
            let mut copied = now;
            while at < end_at {
                let page = at / BLOCK_BYTES as u64;
                let Some((home, is_first)) = files.write(machine, placing(core), file, page) else {
                    is_full = true;
                    return None;
                };
                first += u64::from(is_first);
                // All pages that follow on the same node are a copy.
                let mut next = page + 1;
                while next * (BLOCK_BYTES as u64) < end_at {
                    match files.write(machine, placing(core), file, next) {
                        Some((on, is_first)) if on == home => first += u64::from(is_first),
                        // A copy of its own; the block's first touch is counted here.
                        Some((_, is_first)) => {
                            first += u64::from(is_first);
                            break;
                        }
                        None => {
                            is_full = true;
                            return None;
                        }
                    }
                    next += 1;
                }
                let bytes = end_at.min(next * BLOCK_BYTES as u64) - at;
                let end = if reads {
                    machine.read(now, core, home, bytes)
                } else {
                    machine.write(now, core, home, bytes)
                };
                copied += end - now;
                if machine.node_of(core) == home {
                    done.local_bytes += bytes;
                }
                at += bytes;
            }
            let cost = costs.of(pages, first);
            let end = match &mut server {
                Some(server) => server.serve(copied, cost),
                None => copied + cost,
            };
            done.bytes += self.block_bytes;
            done.span_ps = done.span_ps.max(end);
            Some(end)
        });
        done.spilled_blocks = files.spilled_blocks();
        if is_full { Err(NoRoom) } else { Ok(done) }
    }
}

/// Cores of a server's node: each serves an operation after another.
#[derive(Debug)]
struct Server {
    /// When each core is free.
    free_ps: Vec<u64>,
}

impl Server {
    fn on_first_cores_node(machine: &Machine) -> Self {
        let cores = (0..machine.cores()).filter(|core| machine.node_of(*core) == machine.node_of(0));
        Self {
            free_ps: vec![0; cores.count()],
        }
    }

    /// End of an operation that takes so long, in picoseconds.
    fn serve(&mut self, now: u64, cost: u64) -> u64 {
        let earliest = self.free_ps.iter_mut().min().expect("the first core is one of them");
        *earliest = now.max(*earliest) + cost;
        *earliest
    }
}

/// Numbers below a bound, each once, in an order that looks random.
#[derive(Clone, Debug)]
struct Order {
    count: u64,
    /// A power of two that is not below `count`.
    period: u64,
    at: u64,
    left: u64,
    step: u64,
}

impl Order {
    fn new(count: u64, job: u64, seed: u64) -> Self {
        let mut random = random_of(Stream::Orders, job, seed);
        let period = count.next_power_of_two();
        Self {
            count,
            period,
            at: random.random_range(0..period),
            left: count,
            // Any odd step comes by all numbers below a power of two.
            step: random.random_range(0..period) | 1,
        }
    }

    fn next(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        loop {
            self.at = (self.at + self.step) % self.period;
            if self.at < self.count {
                return Some(self.at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Constants;
    use crate::shapes::{Shape, machine};
    use std::collections::BTreeSet;

    fn run(contestant: Contestant, work: Work, seed: u64) -> Done {
        let drawn = Constants::SERVER.draw(seed);
        let mut machine = Machine::new(&machine(4, 2, 1 << 30, Shape::Full, Vec::new()), &drawn).unwrap();
        let fio = Fio {
            cores: (0..8).collect(),
            block_bytes: 4096,
            file_bytes: 4 << 20,
            work,
            laid_out_by: None,
            of_node_bytes: None,
        };
        fio.run(contestant, &mut machine, &drawn, seed).unwrap()
    }

    #[test]
    fn an_order_names_each_number_once() {
        for count in [1, 2, 7, 1000, 1024] {
            let mut order = Order::new(count, 1, 3);
            let seen: BTreeSet<_> = std::iter::from_fn(|| order.next()).collect();
            assert_eq!(seen, (0..count).collect());
        }
    }

    #[test]
    fn reserved_files_are_remote_and_others_local() {
        let reserved = run(Contestant::TmpfsReserved, Work::WriteOnce, 1);
        assert_eq!(reserved.bytes, 8 * (4 << 20));
        assert_eq!(reserved.local_percent(), 25.0);
        let pool = run(Contestant::Library, Work::WriteOnce, 1);
        assert_eq!(
            (pool.local_percent(), pool.spilled_blocks, pool.events),
            (100.0, 0, 8 * 1025)
        );
        assert!(
            pool.mb_per_s() > 1.5 * reserved.mb_per_s(),
            "{} and {}",
            pool.mb_per_s(),
            reserved.mb_per_s()
        );
    }

    #[test]
    fn a_fuse_server_has_everything_on_its_node_and_no_more_cores_than_that() {
        let reads = Work::Mixed {
            seconds: 0.01,
            read_percent: 100,
        };
        let (served, mount) = (run(Contestant::Fuse, reads, 1), run(Contestant::Mount, reads, 1));
        assert!(
            (20.0..30.0).contains(&served.local_percent()),
            "{}",
            served.local_percent()
        );
        assert!(mount.mb_per_s() > 4.0 * served.mb_per_s());
        // Two cores for eight jobs, each operation at least 12 µs.
        assert!(served.mb_per_s() < 2.0 * 4096.0 / 12.0, "{}", served.mb_per_s());
        let cached = run(Contestant::PageCache, Work::WriteOnce, 1);
        assert_eq!(cached.local_percent(), 100.0);
    }

    #[test]
    fn the_same_seed_gives_the_same() {
        let work = Work::Mixed {
            seconds: 0.001,
            read_percent: 50,
        };
        assert_eq!(run(Contestant::Mount, work, 5), run(Contestant::Mount, work, 5));
        assert_ne!(run(Contestant::Mount, work, 5), run(Contestant::Mount, work, 6));
    }

    #[test]
    fn files_that_do_not_fit_are_refused() {
        let drawn = Constants::SERVER.draw(1);
        let mut machine = Machine::new(&machine(1, 1, 1 << 20, Shape::Full, Vec::new()), &drawn).unwrap();
        let fio = Fio {
            cores: vec![0],
            block_bytes: 1 << 20,
            file_bytes: 2 << 20,
            work: Work::WriteOnce,
            laid_out_by: None,
            of_node_bytes: None,
        };
        for contestant in Contestant::ALL {
            assert_eq!(fio.run(contestant, &mut machine, &drawn, 1), Err(NoRoom));
        }
    }
}
