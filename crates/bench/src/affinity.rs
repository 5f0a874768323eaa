//! `homenode-bench affinity`: where an upload's bytes and completions go under each policy, in guests of the lab, and what
//! the daemon costs on this machine.
//!
//! The upload comes through a card of 4 queues on node 1 and goes to two NVMe disks on nodes 1 and 3. Its threads begin on
//! nodes that have none of these. Right are bytes that were processed on the node of the CPU that read them from the
//! socket, and completions that arrived on the node that had submitted; `completions-home` are those on the disk's node.
//! `witness` tells who says so. `off` is the machine without the daemon.
//!
//! `modelled` rows come from guests where a remote access that misses takes longer: a model, as the lab's documentation
//! says. An emulated CPU is as fast for remote memory as for local memory, so throughput is not measured.

pub(crate) mod command;
mod daemon;
pub(crate) mod guest;
mod job;
mod movers;
pub(crate) mod play;
mod requirements;
mod upload;
mod witness;

use crate::arguments::GuestArguments;
use crate::error::Error;
use crate::interleave::Samples;
use crate::interrupt;
use crate::lab::Lab;
use crate::report::{Row, Table};
use crate::required;
use crate::run::{Run, progress};
use job::{Done, Policy, Shares};
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `homenode-bench affinity`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("smoke", |smoke| smoke.help("Measure policies off and local once, with four connections and short intervals, to check that the bench works")))]
pub(crate) struct Arguments {
    #[command(flatten)]
    guests: GuestArguments,
    /// Run only this part; may be given several times.
    #[arg(long, value_name = "PART", conflicts_with = "check")]
    only: Vec<Part>,
    /// Numbers of connections of the upload; each connection has a thread.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 4, 8], conflicts_with = "check",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    connections: Vec<u32>,
    /// Kernel version of the guests.
    #[arg(long, value_name = "VERSION", default_value = "6.18")]
    kernel: String,
}

/// Part of the bench that can be run alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Shares of local bytes and completions, in a guest.
    Shares,
    /// Modelled throughput, in a guest.
    Modelled,
    /// The daemon's CPU time beside 1,000 threads, and its cost to threads that move bytes, on this machine.
    Daemon,
}

/// How the names of rows end, or begin.
const BYTES: &str = "/bytes";
const COMPLETIONS: &str = "/completions";
const DAEMON: &str = "daemon/";
const MESSAGE: &str = "message/";

/// Row made from an interval's shares: the end of its name, its unit, and its value.
type Column = (&'static str, &'static str, fn(&Shares) -> Option<f64>);
const SHARES: [Column; 3] = [
    (BYTES, "% on the reader's node", |shares| shares.received_right_percent),
    (COMPLETIONS, "% on the submitter's node", |shares| {
        shares.completions_right_percent
    }),
    ("/completions-home", "% on the disk's node", |shares| {
        shares.completions_home_percent
    }),
];
const MODELLED: [Column; 1] = [("/modelled", "modelled MiB/s", |shares| {
    Some(shares.written_bytes / shares.seconds / f64::from(1 << 20))
})];

/// Nodes of every guest that this bench boots.
const NODES: u32 = 4;
const DEVICES: [&str; 3] = [
    "--net=node=1,queues=4",
    "--nvme=node=1,queues=8",
    "--nvme=node=3,queues=8",
];
/// Bytes a second of a connection: what emulated CPUs take beside the emulator's devices. Where throughput is modelled
/// there is no limit.
const RATE: u64 = 4 << 20;

/// Runs the bench.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let guests = &arguments.guests;
    let mut run = Run::new("affinity", &guests.common, &[])?;
    run.begin(Table::new(&[Policy::Off.name()]).with_case_width(40));
    let mut bench = Bench {
        command: command::find(guests.command.as_deref())?,
        kernel: arguments.kernel.clone(),
        policies: Policy::ALL.to_vec(),
        connections: arguments.connections.clone(),
        rounds: guests.common.rounds,
        settle: Duration::from_secs(12),
        interval: Duration::from_secs(5),
        run,
    };
    if guests.common.smoke {
        bench.policies = vec![Policy::Off, Policy::Local];
        bench.connections = vec![4];
        bench.rounds = 1;
        bench.interval = Duration::from_secs(2);
    }
    let is_wanted = |part| arguments.only.is_empty() || arguments.only.contains(&part);
    let in_guests = is_wanted(Part::Shares) || is_wanted(Part::Modelled);
    let lab = in_guests.then(|| Lab::find(&guests.lab)).transpose()?;
    if is_wanted(Part::Daemon) {
        bench.daemon()?;
    }
    if let Some(lab) = &lab {
        if is_wanted(Part::Shares) {
            bench.upload(lab, &SHARES, RATE, 0)?;
        }
        if is_wanted(Part::Modelled) {
            bench.upload(lab, &MODELLED, 0, guests.delay_ns)?;
        }
    }
    bench.run.findings = requirements::findings(&bench.run.report);
    bench.run.end()
}

struct Bench<'a> {
    command: PathBuf,
    kernel: String,
    policies: Vec<Policy>,
    connections: Vec<u32>,
    rounds: u32,
    /// Until everything is where the daemon wants it.
    settle: Duration,
    interval: Duration,
    run: Run<'a>,
}

impl Bench<'_> {
    /// The daemon's CPU time beside threads that move bytes, run, or do not; and what those that move bytes pay for it.
    fn daemon(&mut self) -> Result<(), Error> {
        for crowd in daemon::CROWDS {
            let (mut daemon, mut with, mut without) = <(Samples, Samples, Samples)>::default();
            for round in 0..self.rounds {
                // Who is first alternates.
                let both = if round % 2 == 0 { [true, false] } else { [false, true] };
                for has_daemon in both.into_iter().filter(|has_daemon| *has_daemon || crowd.moves_bytes()) {
                    let command = has_daemon.then_some(&*self.command);
                    let cost = crowd.cost(command, self.interval)?;
                    if has_daemon {
                        daemon.push(cost.daemon_percent);
                    }
                    if crowd.moves_bytes() {
                        let messages = if has_daemon { &mut with } else { &mut without };
                        messages.push(cost.message_ns()?);
                    }
                }
            }
            let case = format!("1000-threads/{}", crowd.name);
            self.push(Row::new(format!("{DAEMON}{case}"), "% of a CPU", &daemon, &[]));
            if crowd.moves_bytes() {
                let peers = [(Policy::Off.name(), &without)];
                self.push(Row::new(
                    format!("{MESSAGE}{case}"),
                    "ns of CPU a message",
                    &with,
                    &peers,
                ));
            }
        }
        Ok(())
    }

    /// Boots a guest and has it measure every policy; tells these columns of it.
    fn upload(&mut self, lab: &Lab, columns: &[Column], rate: u64, delay_ns: u32) -> Result<(), Error> {
        let done = self.measure(lab, rate, delay_ns)?;
        for &connections in &self.connections.clone() {
            for (end, unit, value) in columns {
                let of = |policy: Policy| {
                    let its = done
                        .iter()
                        .filter(|done| (done.work.connections, done.work.policy) == (connections, policy));
                    its.filter_map(|done| value(&done.shares)).collect::<Samples>()
                };
                let off = of(Policy::Off);
                let found = of(Policy::Local).runs();
                if found < self.rounds as usize {
                    required::skip(format_args!(
                        "{connections}c{end}: {found} of {} rounds have shares",
                        self.rounds
                    ));
                }
                for policy in self.policies.clone() {
                    let peers = [(Policy::Off.name(), &off)];
                    let peers = if policy == Policy::Off { &[] } else { &peers[..] };
                    let case = format!("{NODES}n/upload/{}/{connections}c{end}", policy.name());
                    self.push(Row::more_is_better(case, unit, &of(policy), peers));
                }
            }
        }
        Ok(())
    }

    fn measure(&self, lab: &Lab, rate: u64, delay_ns: u32) -> Result<Vec<Done>, Error> {
        interrupt::check()?;
        let all = self.policies.len() * self.connections.len() * self.rounds as usize;
        let progress = progress(all);
        progress.set_message("uploads");
        let mut options: Vec<String> = DEVICES.map(str::to_owned).into();
        options.extend(["--source".to_owned(), format!("--kernel={}", self.kernel)]);
        if delay_ns > 0 {
            options.push(format!("--delay-ns={delay_ns}"));
        }
        let list = |words: Vec<String>| words.join(",");
        let words = [
            "measure-affinity".to_owned(),
            format!("--command={}", self.command.display()),
            format!(
                "--policies={}",
                list(self.policies.iter().map(|policy| policy.name().to_owned()).collect())
            ),
            format!(
                "--connections={}",
                list(self.connections.iter().map(u32::to_string).collect())
            ),
            format!("--rounds={}", self.rounds),
            format!("--settle-ms={}", self.settle.as_millis()),
            format!("--interval-ms={}", self.interval.as_millis()),
            format!("--rate={rate}"),
        ];
        let guest = lab.guest(NODES, &options, &[&self.command], &words);
        let done: Vec<Done> = lab.told(guest, || progress.inc(1))?;
        progress.finish_and_clear();
        if done.len() == all {
            return Ok(done);
        }
        let what = format!("{} of {all} uploads were told of", done.len());
        Err(Error::system("the guest", std::io::Error::other(what)))
    }

    /// A share of `off` may be 0, of which there is no multiple.
    fn push(&mut self, mut row: Row) {
        row.ratio.retain(|_, ratio| ratio.is_finite());
        if !row.spread.is_finite() {
            row.spread = 0.0;
        }
        self.run.show(row);
    }
}
