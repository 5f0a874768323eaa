//! `homenode-bench measure-affinity`: the guest's part of `homenode-bench affinity`.
//!
//! For each policy: an upload whose threads begin on nodes that have neither the card nor a disk, and may run anywhere; the
//! daemon with that policy, or none; and once they have had some time, where bytes and completions go. A line of JSON each.
//! The card's interrupts are on its own node, where vendors' scripts put them.

use super::command::Daemon;
use super::job::{Done, Policy, Work};
use super::upload::{Load, Upload};
use super::witness::Machine;
use crate::cpus;
use crate::error::{During, Error};
use crate::lab;
use crate::output::tell;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Arguments of `homenode-bench measure-affinity`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    load: Load,
    #[arg(long)]
    command: PathBuf,
    #[arg(long, value_delimiter = ',')]
    policies: Vec<Policy>,
    #[arg(long, value_delimiter = ',')]
    connections: Vec<u32>,
    #[arg(long)]
    rounds: u32,
    /// Until everything is where the daemon wants it.
    #[arg(long)]
    settle_ms: u64,
    /// Length of an interval.
    #[arg(long)]
    interval_ms: u64,
}

const CARD: &str = "eth0";

/// Measures every policy, round after round.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    lab::require_guest("affinity")?;
    let machine = Arc::new(Machine::read(&disks()?)?);
    let card = Card::read()?;
    card.gather(&machine)?;
    let far = far_cpus(&machine, card.home)?;
    let [settle, length] = [arguments.settle_ms, arguments.interval_ms].map(Duration::from_millis);
    for round in 0..arguments.rounds {
        for &connections in &arguments.connections {
            for &policy in &arguments.policies {
                let mut upload = Upload::start(&arguments.load, &machine, connections as usize, &far)?;
                let daemon = match policy {
                    Policy::Off => None,
                    _ => Some(Daemon::start(&arguments.command, &configuration(policy))?),
                };
                thread::sleep(settle);
                let done = Done {
                    work: Work {
                        round,
                        connections,
                        policy,
                    },
                    shares: upload.measure(length)?,
                };
                daemon.map_or(Ok(()), Daemon::stop)?;
                upload.stop()?;
                tell(serde_json::to_string(&done).expect("it holds only numbers and names"))?;
            }
        }
    }
    Ok(())
}

/// Returns the configuration that applies one policy to everything.
fn configuration(policy: Policy) -> String {
    format!("policy = \"{}\"\n", policy.name())
}

/// All NVMe disks of the guest.
fn disks() -> Result<Vec<String>, Error> {
    let names = fs::read_dir("/sys/block").during("/sys/block")?;
    let names = names.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("nvme")).collect();
    names.sort();
    Ok(names)
}

/// The CPUs of nodes without any of the devices; one of each node in turn.
fn far_cpus(machine: &Machine, card: Option<usize>) -> Result<Vec<usize>, Error> {
    let is_far = |cpu: &usize| {
        let node = Some(machine.cpu_nodes[*cpu]);
        node != card && machine.disks.iter().all(|disk| disk.home != node)
    };
    let mut far: Vec<usize> = cpus::allowed()?.into_iter().filter(is_far).collect();
    if far.is_empty() {
        let what = "every node of the guest has a disk or the card: give it one more";
        return Err(Error::system(what, io::ErrorKind::Unsupported));
    }
    // The first of each node, then the second of each.
    far.sort_by_key(|cpu| {
        (
            machine.cpu_nodes[..*cpu]
                .iter()
                .filter(|node| **node == machine.cpu_nodes[*cpu])
                .count(),
            *cpu,
        )
    });
    Ok(far)
}

/// The network card.
#[derive(Debug)]
struct Card {
    /// Name of the device, with which the names of its interrupts begin.
    device: String,
    home: Option<usize>,
}

impl Card {
    fn read() -> Result<Self, Error> {
        let path = format!("/sys/class/net/{CARD}/device");
        let failed = |error| Error::system(format!("{path}: is there a card?"), error);
        let device = fs::read_link(&path).map_err(failed)?;
        let device = device.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let home = fs::read_to_string(format!("{path}/../numa_node")).map_err(failed)?;
        Ok(Self {
            device: device.to_owned(),
            home: home.trim().parse().ok(),
        })
    }

    /// Puts its interrupts on its own node, one CPU after the other.
    fn gather(&self, machine: &Machine) -> Result<(), Error> {
        let own: Vec<usize> = (0..machine.cpu_nodes.len())
            .filter(|cpu| Some(machine.cpu_nodes[*cpu]) == self.home)
            .collect();
        let text = fs::read_to_string("/proc/interrupts").during("/proc/interrupts")?;
        let is_its = |line: &&str| {
            line.split_whitespace()
                .last()
                .is_some_and(|name| name.starts_with(&format!("{}-", self.device)))
        };
        let numbers = text.lines().filter(is_its).filter_map(|line| line.split(':').next());
        for (number, cpu) in numbers.map(str::trim).zip(own.iter().cycle()) {
            let path = format!("/proc/irq/{number}/smp_affinity_list");
            fs::write(&path, cpu.to_string()).during(format_args!("writing to {path}"))?;
        }
        Ok(())
    }
}
