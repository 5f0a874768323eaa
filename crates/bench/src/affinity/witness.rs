//! Where bytes are received and completions arrive, told by those who were there: the readers of the sockets, and the
//! kernel's counts of interrupts. Nothing of it comes from what `homenode affinity` senses.

use super::job::Shares;
use crate::cpus;
use crate::error::{During, Error};
use homenode_linux::cpu::possible_cpus;
use homenode_linux::topology::parse_list;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Instant;

/// The nodes of CPUs, and the disks that are looked at.
#[derive(Debug)]
pub(super) struct Machine {
    /// Node of each CPU, indexed by the CPU's number.
    pub(super) cpu_nodes: Vec<usize>,
    pub(super) disks: Vec<Disk>,
}

/// An NVMe disk.
#[derive(Debug)]
pub(super) struct Disk {
    /// Name in /dev, such as `nvme0n1`.
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) home: Option<usize>,
    /// Controller's name, such as `nvme0`: the interrupt of its first queue is `nvme0q1`.
    controller: String,
    /// The CPUs that submit to each queue.
    queues: Vec<Vec<usize>>,
}

/// Counts since boot, and since the upload began.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    pub(super) at: Instant,
    /// Bytes received, by the node that processed the packets, then by the reader's node.
    pub(super) received: Vec<Vec<u64>>,
    /// Writes submitted, by disk, then by CPU.
    pub(super) submitted: Vec<Vec<u64>>,
    pub(super) written_bytes: u64,
    /// Interrupts, by disk, queue and CPU.
    arrivals: Vec<Vec<BTreeMap<usize, u64>>>,
}

impl Machine {
    /// # Errors
    /// When there is no such NVMe disk.
    pub(super) fn read(disks: &[String]) -> Result<Self, Error> {
        Ok(Self {
            cpu_nodes: (0..possible_cpus()).map(|cpu| usize::from(cpus::node(cpu))).collect(),
            disks: disks.iter().map(|name| Disk::read(name)).collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn nodes(&self) -> usize {
        self.cpu_nodes.iter().max().map_or(1, |last| last + 1)
    }

    /// The kernel's counts beside those of the readers.
    pub(super) fn counts(
        &self,
        received: Vec<Vec<u64>>,
        submitted: Vec<Vec<u64>>,
        written: u64,
    ) -> Result<Counts, Error> {
        const INTERRUPTS: &str = "/proc/interrupts";
        let text = fs::read_to_string(INTERRUPTS).during(INTERRUPTS)?;
        let table = interrupts(&text);
        let of = |disk: &Disk| {
            let names = (1..=disk.queues.len()).map(|number| format!("{}q{number}", disk.controller));
            names
                .map(|name| table.get(&name).cloned().unwrap_or_default())
                .collect()
        };
        Ok(Counts {
            at: Instant::now(),
            received,
            submitted,
            written_bytes: written,
            arrivals: self.disks.iter().map(of).collect(),
        })
    }

    /// Returns the shares of the bytes and completions between two counts.
    pub(super) fn shares(&self, from: &Counts, to: &Counts) -> Shares {
        let (mut received, mut received_right) = (0, 0);
        for (processed, (from, to)) in from.received.iter().zip(&to.received).enumerate() {
            for (reader, bytes) in from.iter().zip(to).map(|(from, to)| to - from).enumerate() {
                received += bytes;
                received_right += if processed == reader { bytes } else { 0 };
            }
        }
        let (mut all, mut right, mut home) = (0.0, 0.0, 0.0);
        for (index, disk) in self.disks.iter().enumerate() {
            for (queue, cpus) in disk.queues.iter().enumerate() {
                let arrived = self.by_node(cpus_since(&from.arrivals[index][queue], &to.arrivals[index][queue]));
                let submitted = cpus.iter().map(|cpu| {
                    let count = to.submitted[index][*cpu] - from.submitted[index][*cpu];
                    (*cpu, count)
                });
                let mut submitters = self.by_node(submitted);
                if submitters.iter().all(|count| *count == 0.0) {
                    // Somebody else's: any of the queue's CPUs may have.
                    submitters = self.by_node(cpus.iter().map(|cpu| (*cpu, 1)));
                }
                let (arrivals, submissions): (f64, f64) = (arrived.iter().sum(), submitters.iter().sum());
                all += arrivals;
                let matched = |(arrived, submitted): (&f64, &f64)| arrived.min(arrivals * submitted / submissions);
                right += arrived.iter().zip(&submitters).map(matched).sum::<f64>();
                home += disk.home.map_or(0.0, |home| arrived[home]);
            }
        }
        let percent = |part: f64, all: f64| (all > 0.0).then(|| 100.0 * part / all);
        Shares {
            seconds: to.at.duration_since(from.at).as_secs_f64(),
            received_bytes: received as f64,
            received_right_percent: percent(received_right as f64, received as f64),
            written_bytes: (to.written_bytes - from.written_bytes) as f64,
            completions: all,
            completions_right_percent: percent(right, all),
            completions_home_percent: percent(home, all),
        }
    }

    fn by_node(&self, counts: impl IntoIterator<Item = (usize, u64)>) -> Vec<f64> {
        let mut sums = vec![0.0; self.nodes()];
        for (cpu, count) in counts {
            sums[self.cpu_nodes[cpu]] += count as f64;
        }
        sums
    }
}

impl Disk {
    fn read(name: &str) -> Result<Self, Error> {
        let path = format!("/sys/block/{name}");
        let text = |file: &str| {
            let file = format!("{path}/{file}");
            fs::read_to_string(&file).during(file)
        };
        let no_nvme = || Error::system(format!("{path}: it is no NVMe disk"), io::ErrorKind::InvalidInput);
        let controller = fs::read_link(format!("{path}/device")).map_err(|error| Error::system(&path, error))?;
        let controller = controller
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or_else(no_nvme)?;
        let sectors: u64 = text("size")?.trim().parse().map_err(|_| no_nvme())?;
        let home: i64 = text("device/device/numa_node")?.trim().parse().map_err(|_| no_nvme())?;
        let mut queues = Vec::new();
        while fs::exists(format!("{path}/mq/{}", queues.len())).unwrap_or(false) {
            let list = parse_list(&text(&format!("mq/{}/cpu_list", queues.len()))?).unwrap_or_default();
            queues.push(list.into_iter().map(|cpu| cpu as usize).collect());
        }
        Ok(Self {
            name: name.to_owned(),
            bytes: sectors * 512,
            home: usize::try_from(home).ok(),
            controller: controller.to_owned(),
            queues,
        })
    }
}

/// The lines of /proc/interrupts, by their last word: how often on each CPU that runs.
fn interrupts(text: &str) -> BTreeMap<String, BTreeMap<usize, u64>> {
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default().split_whitespace();
    let cpus: Vec<usize> = head.filter_map(|word| word.strip_prefix("CPU")?.parse().ok()).collect();
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let counts = cpus.iter().zip(words.get(1..)?);
        let counts = counts.map_while(|(cpu, word)| Some((*cpu, word.parse().ok()?)));
        Some(((*words.last()?).to_owned(), counts.collect()))
    };
    lines.filter_map(line).collect()
}

/// A CPU that came only later had none before.
fn cpus_since(from: &BTreeMap<usize, u64>, to: &BTreeMap<usize, u64>) -> Vec<(usize, u64)> {
    let before = |cpu: &usize| from.get(cpu).copied().unwrap_or(0);
    to.iter()
        .map(|(cpu, count)| (*cpu, count.saturating_sub(before(cpu))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "            CPU0       CPU1       CPU3
  24:          5          0          0  PCI-MSIX-0000:11:00.0   0-edge      nvme0q0
  25:          7          1          0  PCI-MSIX-0000:11:00.0   1-edge      nvme0q1
  26:          0          0          2  PCI-MSIX-0000:11:00.0   2-edge      nvme0q2
 NMI:          0          0          0   Non-maskable interrupts
 ERR:          0
";

    fn machine(queues: &[&[usize]]) -> Machine {
        Machine {
            cpu_nodes: vec![0, 0, 1, 1],
            disks: vec![Disk {
                name: "nvme0n1".into(),
                bytes: 1 << 20,
                home: Some(1),
                controller: "nvme0".into(),
                queues: queues.iter().map(|cpus| cpus.to_vec()).collect(),
            }],
        }
    }

    fn counts(machine: &Machine, interrupts_text: &str, received: [[u64; 2]; 2], submitted: [u64; 4]) -> Counts {
        let table = interrupts(interrupts_text);
        let of = |number: usize| table[&format!("nvme0q{number}")].clone();
        Counts {
            at: Instant::now(),
            received: received.map(Vec::from).into(),
            submitted: vec![submitted.to_vec()],
            written_bytes: submitted.iter().sum(),
            arrivals: vec![(1..=machine.disks[0].queues.len()).map(of).collect()],
        }
    }

    #[test]
    fn bytes_are_right_on_the_readers_node() {
        let machine = machine(&[]);
        let from = counts(&machine, BEFORE, [[1, 2], [3, 4]], [0; 4]);
        let to = counts(&machine, BEFORE, [[31, 12], [13, 54]], [0, 9, 0, 0]);
        let shares = machine.shares(&from, &to);
        assert_eq!(
            (shares.received_bytes, shares.received_right_percent),
            (100.0, Some(80.0))
        );
        assert_eq!((shares.written_bytes, shares.completions_right_percent), (9.0, None));
    }

    #[test]
    fn completions_are_right_on_the_submitters_node() {
        let machine = machine(&[&[0, 2], &[1, 3]]);
        let after = BEFORE.replace("          7          1          0", "         15          1          2");
        let from = counts(&machine, BEFORE, [[0; 2]; 2], [0; 4]);
        // All ten of the first queue were of CPU 2, on node 1; two of them arrived there, on CPU 3.
        let to = counts(&machine, &after, [[0; 2]; 2], [0, 0, 10, 0]);
        let shares = machine.shares(&from, &to);
        assert_eq!(shares.completions, 10.0);
        assert_eq!(shares.completions_right_percent, Some(20.0));
        assert_eq!(shares.completions_home_percent, Some(20.0));
        // Had both CPUs submitted alike, five would have been right on each node.
        let to = counts(&machine, &after, [[0; 2]; 2], [5, 0, 5, 0]);
        assert_eq!(machine.shares(&from, &to).completions_right_percent, Some(70.0));
    }

    #[test]
    fn completions_of_unknown_submitters_count_for_the_queues_cpus() {
        let machine = machine(&[&[0], &[3]]);
        let after = BEFORE.replace("          7          1          0", "         15          3          0");
        let from = counts(&machine, BEFORE, [[0; 2]; 2], [0; 4]);
        let to = counts(&machine, &after, [[0; 2]; 2], [0; 4]);
        let shares = machine.shares(&from, &to);
        assert_eq!(
            (shares.completions, shares.completions_right_percent),
            (10.0, Some(100.0))
        );
        assert_eq!(shares.completions_home_percent, Some(0.0));
    }
}
