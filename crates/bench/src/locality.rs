//! `homenode-bench locality`: how many accesses stay on their node, in guests of the lab, counted by the emulator.
//!
//! One job for everyone: a process pinned to each node writes, then reads, blocks of its own file at random. It is fio's
//! job on tmpfs as fio and tmpfs are by default, on tmpfs with `fallocate=none`, and, with fio's defaults, on a mount by
//! each transport, by `O_DIRECT`, with files of the kernel, and under `homenode run` on these (shares only: nobody counts the
//! bytes of its copies), and on tmpfs beside `homenode steer`, whose mover has had time to move files; the library's threads do
//! the same. Each file is written once by such a job before anything is counted.
//!
//! The share is of everything the machine accessed in an interval of steady work: by users and kernel, on all CPUs, behind a
//! model of each CPU's cache (also behind a direct-mapped one; and raw, of every load and store). How much was moved in an
//! interval is the kernel's count.
//!
//! `modelled` rows come from guests where a remote access that misses takes longer: a model, as the lab's documentation
//! says. So are `scaling` rows: what was counted on 1 to 4 nodes, each access at a price.

mod fio;
pub(crate) mod guest;
mod job;
mod lab;
mod model;
mod requirements;
mod threads;

use crate::affinity::command;
use crate::arguments::GuestArguments;
use crate::error::Error;
use crate::interleave::Samples;
use crate::interrupt;
use crate::lab::Lab;
use crate::report::{Row, Table};
use crate::run::{Run, progress};
use job::{Contestant, SIZES, Size};
use lab::{Counts, Homes, Interval};
use std::path::PathBuf;

/// Arguments of `homenode-bench locality`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("smoke", |smoke| smoke.help("Use two nodes and one short interval, to check that the bench works")))]
pub(crate) struct Arguments {
    #[command(flatten)]
    guests: GuestArguments,
    /// Run only this part; may be given several times.
    #[arg(long, value_name = "PART", conflicts_with = "check")]
    only: Vec<Part>,
    /// Numbers of nodes of the guests, except in part scaling.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [4, 8], conflicts_with = "check",
          value_parser = clap::value_parser!(u32).range(1..=8))]
    nodes: Vec<u32>,
}

/// Part of the bench that boots guests of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Shares of local accesses.
    Shares,
    /// Modelled throughput.
    Modelled,
    /// Modelled scaling.
    Scaling,
}

/// End of a row's name, and the accesses that the row's share is of.
type Filter = (&'static str, fn(&Counts) -> Homes);
const FILTERS: [Filter; 3] = [
    ("", |counts| counts.missed),
    ("/direct-mapped", |counts| counts.direct_missed),
    ("/raw", |counts| counts.raw),
];

/// Scaling is modelled from one node to so many.
const SCALING_NODES_MAX: u32 = 4;

/// Runs the bench.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let guests = &arguments.guests;
    let mut run = Run::new("locality", &guests.common, &[])?;
    run.begin(Table::new(&["tmpfs", "tmpfs-none"]).with_case_width(36));
    let lab = Lab::find(&guests.lab)?;
    let mut bench = Bench {
        lab,
        command: command::find(guests.command.as_deref())?,
        rounds: guests.common.rounds,
        interval_ms: 2000,
        run,
    };
    if guests.common.smoke {
        (bench.rounds, bench.interval_ms) = (1, 1000);
        bench.shares(2, &SIZES[..1])?;
        bench.modelled(2, &SIZES[..1], guests.delay_ns)?;
        bench.scaling(2, guests.delay_ns)?;
    } else {
        let is_wanted = |part| arguments.only.is_empty() || arguments.only.contains(&part);
        for &nodes in &arguments.nodes {
            if is_wanted(Part::Shares) {
                bench.shares(nodes, &SIZES)?;
            }
            if is_wanted(Part::Modelled) {
                bench.modelled(nodes, &SIZES, guests.delay_ns)?;
            }
        }
        if is_wanted(Part::Scaling) {
            bench.scaling(SCALING_NODES_MAX, guests.delay_ns)?;
        }
    }
    bench.run.findings = requirements::findings(&bench.run.report);
    bench.run.end()
}

struct Bench<'a> {
    lab: Lab,
    command: PathBuf,
    rounds: u32,
    interval_ms: u32,
    run: Run<'a>,
}

impl Bench<'_> {
    /// Shares of local accesses on a machine of so many nodes.
    fn shares(&mut self, nodes: u32, sizes: &[Size]) -> Result<(), Error> {
        let (intervals, rounds) = (self.measure(nodes, sizes, 0)?, self.rounds);
        for &size in sizes {
            for (end, of) in FILTERS {
                let shares = samples(&intervals, size, rounds, |pair| {
                    of(&pair.iter().map(|interval| interval.counts()).sum()).local_percent()
                });
                self.push(
                    "% local",
                    &shares,
                    |_| true,
                    |contestant| format!("{nodes}n/{}/{}{end}", size.name, contestant.name()),
                );
            }
        }
        Ok(())
    }

    /// Throughput where remote accesses take longer.
    fn modelled(&mut self, nodes: u32, sizes: &[Size], delay_ns: u32) -> Result<(), Error> {
        let intervals = self.measure(nodes, sizes, delay_ns)?;
        for &size in sizes {
            let rates = samples(&intervals, size, self.rounds, |pair| {
                let (bytes, seconds) = pair.iter().fold((0.0, 0.0), |(bytes, seconds), interval| {
                    (bytes + interval.bytes, seconds + interval.seconds)
                });
                bytes / seconds / f64::from(1 << 20)
            });
            let case = |contestant: Contestant| format!("{nodes}n/{}/{}/modelled", size.name, contestant.name());
            self.push("modelled MiB/s", &rates, is_counted, case);
        }
        Ok(())
    }

    /// Strong scaling (MBS-LVM, figure 5b): how much sooner the same work is done by more nodes, when the one that takes
    /// longest has done its part. As many bytes are written as are read.
    fn scaling(&mut self, nodes_max: u32, delay_ns: u32) -> Result<(), Error> {
        let size = SIZES[0];
        let mut one_node = Vec::new();
        for nodes in 1..=nodes_max {
            let intervals = self.measure(nodes, &[size], 0)?;
            let times = samples(&intervals, size, self.rounds, |pair| {
                let ns_per_byte =
                    |interval: &&Interval| model::ns(&interval.by_node, f64::from(delay_ns)) / interval.bytes;
                pair.iter().map(ns_per_byte).sum()
            });
            if one_node.is_empty() {
                one_node = times.iter().map(Samples::median).collect();
            }
            let speed = |(times, one): (&Samples, &f64)| times.map(|ns| one / ns);
            let speeds: Vec<Samples> = times.iter().zip(&one_node).map(speed).collect();
            self.push("modelled x of one node", &speeds, is_counted, |contestant| {
                format!("scaling/{nodes}n/{}", contestant.name())
            });
        }
        Ok(())
    }

    /// Boots a guest and has it measure everyone.
    fn measure(&self, nodes: u32, sizes: &[Size], delay_ns: u32) -> Result<Vec<Interval>, Error> {
        interrupt::check()?;
        let all = Contestant::ALL.len() * sizes.len() * 2 * self.rounds as usize;
        let progress = progress(all);
        progress.set_message(format!("{nodes} nodes"));
        let measured = lab::measure(
            &self.lab,
            &lab::Guest {
                nodes,
                sizes,
                rounds: self.rounds,
                interval_ms: self.interval_ms,
                delay_ns,
                command: &self.command,
            },
            || progress.inc(1),
        );
        progress.finish_and_clear();
        measured
    }

    /// A row for each contestant of ours that is wanted, beside what the peers have.
    fn push(
        &mut self,
        unit: &'static str,
        values: &[Samples],
        is_wanted: impl Fn(&Contestant) -> bool,
        case: impl Fn(Contestant) -> String,
    ) {
        let of = |contestant: Contestant| &values[contestant as usize];
        let peers = Contestant::PEERS.map(|peer| (peer.name(), of(peer)));
        let ours = Contestant::ALL.into_iter().skip(Contestant::PEERS.len());
        for contestant in ours.filter(is_wanted) {
            self.run
                .show(Row::more_is_better(case(contestant), unit, of(contestant), &peers));
        }
    }
}

/// Returns true if a contestant's bytes are known, without which there is no throughput.
fn is_counted(contestant: &Contestant) -> bool {
    *contestant != Contestant::Run
}

/// A value for each round of each contestant, from its intervals of writing and of reading, in the order of
/// [`Contestant::ALL`].
fn samples(intervals: &[Interval], size: Size, rounds: u32, value: impl Fn(&[&Interval]) -> f64) -> Vec<Samples> {
    let of = |contestant: Contestant| {
        let of_round = |round| {
            let is_its = |interval: &&Interval| {
                let work = &interval.work;
                (work.round, work.contestant, work.block_bytes) == (round, contestant, size.bytes)
            };
            value(&intervals.iter().filter(is_its).collect::<Vec<_>>())
        };
        (0..rounds).map(of_round).collect()
    };
    Contestant::ALL.map(of).into()
}
