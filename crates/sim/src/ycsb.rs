//! YCSB's workload A: half reads, half updates of records that a Zipf distribution chooses, by a database over files.
//!
//! Loading threads insert the records; then clients run on all cores. An operation takes CPU time of the database, follows a few
//! pointers in the index, and reads or writes a record. Files of the database are reserved ahead by one of its threads, where the
//! filesystem lets that place them.

use crate::fio::NoRoom;
use crate::{Agenda, Band, Contestant, Drawn, Files, Machine, PS_PER_S, Stream, random};
use homenode_policy::BLOCK_BYTES;
use rand::Rng;
use rand_distr::{Distribution, Zipf};

/// Exponent of YCSB's distribution.
const ZIPF: f64 = 0.99;

/// A database and its load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ycsb {
    /// Number of records.
    pub records: u64,
    /// Bytes of each.
    pub record_bytes: u64,
    /// Lines of the index that an operation reads, one after another.
    pub index_lines: u64,
    /// CPU time of the database for an operation.
    pub operation_ns: Band,
    /// Operations that read; the others update.
    pub read_percent: u32,
    /// Operations in all.
    pub operations: u64,
}

/// Results of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    /// Operations a second of all clients.
    pub per_s: f64,
    /// Mean time of a read, in microseconds.
    pub read_us: f64,
    /// Mean time of an update, in microseconds.
    pub update_us: f64,
    /// Percent of the bytes that were local.
    pub local_percent: f64,
}

impl Ycsb {
    /// Workload A of YCSB over documents of MongoDB's time: the paper's 2 million records.
    pub const A: Self = Self {
        records: 2_000_000,
        record_bytes: 1024,
        index_lines: 24,
        operation_ns: Band::new(10_000.0, 40_000.0),
        read_percent: 50,
        operations: 400_000,
    };

    /// Runs a client on each core.
    ///
    /// # Errors
    /// When the records do not fit into memory.
    ///
    /// # Panics
    /// When there is no record.
    pub fn run(&self, contestant: Contestant, machine: &mut Machine, drawn: &Drawn, seed: u64) -> Result<Done, NoRoom> {
        let cpu_ns = self.operation_ns.draw(&mut random(Stream::Load, seed));
        // What contestants do not decide is the same for all of them.
        let mut random = random(Stream::Run, seed);
        let cores = machine.cores();
        let of_block = (BLOCK_BYTES as u64 / self.record_bytes).max(1);
        let mut files = Files::new(
            contestant,
            machine,
            1,
            self.records / of_block * BLOCK_BYTES as u64,
            None,
        );
        for block in 0..files.blocks() {
            let reserves = contestant == Contestant::TmpfsReserved;
            let loader = random.random_range(0..cores);
            let core = if reserves { 0 } else { loader };
            files.write(machine, core, 0, block).ok_or(NoRoom)?;
        }
        let costs = contestant.costs(drawn);
        let zipf = Zipf::new(self.records as f64, ZIPF).expect("there are records, and the exponent is positive");
        let (mut left, mut spent) = (self.operations, [(0_u64, 0_u64); 2]);
        let mut end_ps = 1;
        let _ = machine.take_traffic();
        Agenda::new(cores).run(u64::MAX, |now, core| {
            left = left.checked_sub(1)?;
            // Numbers of YCSB are scattered over the records.
            #[expect(clippy::cast_possible_truncation, reason = "a whole number from 1 to `records`")]
            let rank = zipf.sample(&mut random) as u64;
            let record = rank.wrapping_mul(0x9E37_79B9_7F4A_7C15) % self.records;
            let home = files.home(0, (record / of_block).min(files.blocks() - 1)).unwrap_or(0);
            let is_read = random.random_range(0..100) < self.read_percent;
            let exponential = -random.random_range(f64::MIN_POSITIVE..1.0).ln();
            // Memories and links meet events in order, so the record takes its turn now, and its time comes behind the index's; the
            // database's time comes last.
            let found = machine.chase(now, core, home, self.index_lines);
            let accessed = if is_read {
                machine.read(now, core, home, self.record_bytes)
            } else {
                machine.write(now, core, home, self.record_bytes)
            };
            let end = found + (accessed - now) + crate::constants::ps(cpu_ns * exponential) + costs.of(1, 0);
            let sum = &mut spent[usize::from(!is_read)];
            *sum = (sum.0 + 1, sum.1 + (end - now));
            end_ps = end_ps.max(end);
            Some(end)
        });
        let traffic = machine.take_traffic();
        let mean = |(count, time): (u64, u64)| time as f64 / 1e6 / count.max(1) as f64;
        let all = (traffic.local_bytes + traffic.remote_bytes).max(1);
        Ok(Done {
            per_s: self.operations as f64 / (end_ps as f64 / PS_PER_S as f64),
            read_us: mean(spent[0]),
            update_us: mean(spent[1]),
            local_percent: 100.0 * traffic.local_bytes as f64 / all as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Constants;
    use crate::shapes::{Shape, machine};

    #[test]
    fn records_are_as_local_as_their_loaders_were() {
        let drawn = Constants::SERVER.draw(3);
        let load = Ycsb {
            records: 20_000,
            operations: 20_000,
            // So little that memories are what is waited for.
            operation_ns: Band::known(100.0),
            ..Ycsb::A
        };
        let of = |contestant| {
            let mut machine = Machine::new(&machine(4, 4, 1 << 30, Shape::Full, Vec::new()), &drawn).unwrap();
            load.run(contestant, &mut machine, &drawn, 3).unwrap()
        };
        let (one, spread) = (of(Contestant::TmpfsReserved), of(Contestant::Mount));
        for done in [one, spread] {
            assert!((20.0..45.0).contains(&done.local_percent), "{done:?}");
            assert!(done.read_us > 1.0 && done.update_us > 1.0, "{done:?}");
        }
        // A quarter is local either way.
        assert!(
            (0.8..1.25).contains(&(spread.per_s / one.per_s)),
            "{spread:?} and {one:?}"
        );
    }
}
