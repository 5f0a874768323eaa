//! Files that are written on one node and read on others: the mover brings them to their readers, once a second.

use crate::fio::NoRoom;
use crate::{Agenda, Contestant, Drawn, Files, Machine, PS_PER_S, Stream, random};
use homenode_policy::mover::{Mover, Rates, Reason};
use homenode_policy::{BLOCK_BYTES, NodeId};
use rand::Rng;
use std::collections::BTreeMap;

/// Reads of a job that go to the file of the next job.
const OF_OTHERS_PERCENT: u32 = 15;

/// Reading jobs, each with a file that the first core has written.
#[derive(Clone, Debug, PartialEq)]
pub struct Moving {
    /// The core of each job.
    pub cores: Vec<u32>,
    /// Bytes of each file.
    pub file_bytes: u64,
    /// Seconds.
    pub seconds: u32,
    /// Part of each second that is simulated; rates are those of a whole second.
    pub simulated: f64,
}

impl Moving {
    /// Percent of the bytes that were local, in each second.
    ///
    /// # Errors
    /// When the files do not fit.
    ///
    /// # Panics
    /// When there is no job.
    pub fn run(&self, moves: bool, machine: &mut Machine, drawn: &Drawn, seed: u64) -> Result<Vec<f64>, NoRoom> {
        let mut random = random(Stream::Run, seed);
        let jobs = self.cores.len() as u64;
        let mut files = Files::new(Contestant::Mount, machine, jobs, self.file_bytes, None);
        for (file, block) in
            (0..jobs).flat_map(|file| (0..self.file_bytes.div_ceil(BLOCK_BYTES as u64)).map(move |block| (file, block)))
        {
            files.write(machine, self.cores[0], file, block).ok_or(NoRoom)?;
        }
        let cost_ps = drawn.mount.of(1, 0);
        let span_ps = crate::constants::ps(self.simulated * 1e9);
        let scale = PS_PER_S / span_ps.max(1);
        let mut agenda = Agenda::new(u32::try_from(jobs).expect("a job for each core"));
        let (mut mover, mut local) = (Mover::default(), Vec::new());
        for second in 0..u64::from(self.seconds) {
            let mut reached: BTreeMap<u64, BTreeMap<NodeId, u64>> = BTreeMap::new();
            let (mut all, mut near) = (0, 0);
            agenda.run((second + 1) * span_ps, |now, job| {
                let core = self.cores[job as usize];
                let is_other = random.random_range(0..100) < OF_OTHERS_PERCENT;
                let file = (u64::from(job) + u64::from(is_other)) % jobs;
                let home = files.home(file, random.random_range(0..files.blocks()))?;
                let node = machine.node_of(core);
                (all, near) = (all + 1, near + u64::from(node == home));
                let rates = reached.entry(file).or_default();
                *rates.entry(machine.id(node)).or_default() += BLOCK_BYTES as u64 * scale;
                Some(machine.read(now, core, home, BLOCK_BYTES as u64) + cost_ps)
            });
            local.push(100.0 * near as f64 / f64::from(u32::try_from(all).unwrap_or(u32::MAX)).max(1.0));
            if !moves {
                continue;
            }
            let reached = reached
                .into_iter()
                .map(|(file, rates)| (file, rates.into_iter().collect::<Rates>()));
            for file in mover.note(second, &reached.collect()) {
                let home = files.home(file, 0).unwrap_or(0);
                let lies = [(machine.id(home), self.file_bytes)];
                let decision = mover.decide(file, &lies, |_| u64::MAX);
                if let Some(decision) = decision.filter(|decision| decision.reason == Reason::Pays) {
                    let to = (0..machine.nodes()).find(|node| machine.id(*node) == decision.to);
                    files.move_to(file, to.unwrap_or(home));
                    mover.moved(second, file);
                }
            }
        }
        Ok(local)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Constants;
    use crate::shapes::{Shape, machine};

    #[test]
    fn files_come_to_their_readers() {
        let drawn = Constants::SERVER.draw(1);
        let load = Moving {
            cores: (0..8).collect(),
            file_bytes: 16 << 20,
            seconds: 8,
            simulated: 0.001,
        };
        let of = |moves| {
            let mut machine = Machine::new(&machine(4, 2, 1 << 30, Shape::Full, Vec::new()), &drawn).unwrap();
            load.run(moves, &mut machine, &drawn, 1).unwrap()
        };
        let (off, on) = (of(false), of(true));
        assert!(off.iter().all(|local| (15.0..35.0).contains(local)), "{off:?}");
        assert!(on[0] < 35.0 && on[7] > 85.0, "{on:?}");
    }
}
