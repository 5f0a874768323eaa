//! /proc/interrupts: which interrupts there are, and how often each arrived on each CPU since boot.

use homenode_policy::CpuId;
use std::collections::BTreeMap;

/// Counts of one reading of /proc/interrupts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::affinity) struct Counts {
    /// The columns: the CPUs that were online.
    pub(in crate::affinity) cpus: Vec<CpuId>,
    /// Interrupts that a driver has asked for, by number.
    pub(in crate::affinity) lines: BTreeMap<u32, Line>,
}

/// An interrupt with its counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::affinity) struct Line {
    /// Name that drivers give the interrupt; several drivers share it as `nvme0q0, nvme0q1`.
    pub(in crate::affinity) name: String,
    /// Count of each column (CPU).
    pub(in crate::affinity) counts: Vec<u64>,
}

impl Counts {
    /// Parses /proc/interrupts; none when the text does not begin with a line of CPUs. Lines of the processor's own
    /// interrupts (`LOC:`), and of interrupts that nobody has asked for, are left out.
    pub(in crate::affinity) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let cpu = |word: &str| word.strip_prefix("CPU")?.parse().ok().map(CpuId);
        let cpus: Vec<CpuId> = lines.next()?.split_whitespace().map(cpu).collect::<Option<_>>()?;
        let parsed = lines.filter_map(|line| parse_line(line, cpus.len()));
        let lines = parsed.collect();
        (!cpus.is_empty()).then_some(Self { cpus, lines })
    }

    /// How often an interrupt has arrived since `before`, by CPU, where it has. A CPU that has come online since begins
    /// with this reading, as its earlier count was not shown; an interrupt under another name is another one.
    pub(super) fn since(&self, before: &Self, number: u32) -> Vec<(CpuId, u64)> {
        let Some(line) = self.lines.get(&number) else {
            return Vec::new();
        };
        let earlier = before.lines.get(&number).filter(|earlier| earlier.name == line.name);
        let delta = |(cpu, count): (&CpuId, &u64)| {
            let column = before.cpus.binary_search(cpu).ok()?;
            let earlier = earlier.map_or(0, |earlier| earlier.counts[column]);
            // A driver that was loaded anew counts from 0.
            let arrived = count.checked_sub(earlier).unwrap_or(*count);
            (arrived > 0).then_some((*cpu, arrived))
        };
        self.cpus.iter().zip(&line.counts).filter_map(delta).collect()
    }
}

/// ` 38:      28622      26384 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0`
fn parse_line(line: &str, columns: usize) -> Option<(u32, Line)> {
    let (number, rest) = line.split_once(':')?;
    let number = number.trim().parse().ok()?;
    let mut words = rest.split_ascii_whitespace();
    let counts: Vec<u64> = words
        .by_ref()
        .take(columns)
        .map(|word| word.parse().ok())
        .collect::<Option<_>>()?;
    let name = name(words);
    (counts.len() == columns && !name.is_empty()).then_some((number, Line { name, counts }))
}

/// The names begin behind the controller's name, which may have spaces, and the controller's number of the interrupt:
/// `PCI-MSI 524288-edge`, `IO-APIC   4-edge`, `GICv3  30 Level`, and behind some a further word, `[type]`.
fn name<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<&str> = words.collect();
    let is_trigger = |word: &&str| {
        let trigger = word.rsplit('-').next().unwrap_or(word);
        ["edge", "level", "fasteoi"]
            .iter()
            .any(|kind| trigger.eq_ignore_ascii_case(kind))
    };
    // Without a trigger: the controller's name and its number of the interrupt are one word each.
    let first = words.iter().position(is_trigger).map_or(2, |trigger| trigger + 1);
    words.get(first..).unwrap_or_default().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "\
           CPU0       CPU2       CPU3       \n\
  0:         17          0          0   IO-APIC   2-edge      timer\n\
 16:          5          0          0   IO-APIC  16-fasteoi   ehci_hcd:usb1, snd\n\
 30:          1          2          3  PCI-MSI 524288-edge      nvme0q0, nvme0q1\n\
 31:          0         10          0  PCI-MSIX-0000:00:05.0   1-edge      virtio2-input.0\n\
 32:          7          7          7  ITS-MSI 16384 Edge      eth0-TxRx-0\n\
 33:          7          7          7  IR-PCI-MSI 5-edge\n\
NMI:          0          0          0   Non-maskable interrupts\n\
LOC:    6974939    7377644          1   Local timer interrupts\n\
ERR:          0\n";

    #[test]
    fn interrupt_names_and_columns_are_parsed() {
        let counts = Counts::parse(FIRST).unwrap();
        assert_eq!(counts.cpus, [0, 2, 3].map(CpuId));
        let names: Vec<_> = counts
            .lines
            .iter()
            .map(|(number, line)| (*number, line.name.as_str()))
            .collect();
        let expected = [
            (0, "timer"),
            (16, "ehci_hcd:usb1, snd"),
            (30, "nvme0q0, nvme0q1"),
            (31, "virtio2-input.0"),
            (32, "eth0-TxRx-0"),
        ];
        assert_eq!(names, expected);
        assert_eq!(counts.lines[&30].counts, [1, 2, 3]);
    }

    #[test]
    fn malformed_interrupt_tables_are_refused() {
        for text in ["", "\n", "CPU0 x\n", "  1: 5 IO-APIC 2-edge timer\n"] {
            assert_eq!(Counts::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn counts_between_two_readings_follow_cpus_and_drivers() {
        let first = Counts::parse(FIRST).unwrap();
        // CPU 2 went away, CPU 4 came; 31 arrived; 32 was asked for by another driver; 40 is new.
        let second = Counts::parse(
            "           CPU0       CPU3       CPU4\n\
             30:          1          3         50  PCI-MSI 524288-edge      nvme0q0, nvme0q1\n\
             31:          4         10          0  PCI-MSIX-0000:00:05.0   1-edge      virtio2-input.0\n\
             32:          8          0          0  ITS-MSI 16384 Edge      eth1-TxRx-0\n\
             40:          2          0          9  PCI-MSI 1-edge      nvme1q1\n",
        )
        .unwrap();
        assert_eq!(second.since(&first, 30), []);
        assert_eq!(second.since(&first, 31), [(CpuId(0), 4), (CpuId(3), 10)]);
        assert_eq!(second.since(&first, 32), [(CpuId(0), 8)]);
        assert_eq!(second.since(&first, 40), [(CpuId(0), 2)]);
        assert_eq!(second.since(&first, 99), []);
    }
}
