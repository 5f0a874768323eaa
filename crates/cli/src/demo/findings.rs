//! Findings as sentences, all computed from the numbers.

use super::contestants::{Contestant, Operation, Section};
use super::outcome::{Outcome, PoolReport, Row};
use crate::topology::human_bytes;
use homenode_policy::topology::NodeKind;

/// Some rows' ratios, ascending.
pub(super) struct Ratios<'a>(Vec<(f64, &'a Row)>);

impl<'a> Ratios<'a> {
    pub(super) fn of(
        outcome: &'a Outcome,
        sections: &[Section],
        contestants: &[Contestant],
        peer: Contestant,
    ) -> Option<Self> {
        let rows = outcome.rows.iter().filter(|row| sections.contains(&row.case.section));
        Self::of_rows(rows, contestants, peer)
    }

    fn of_rows(rows: impl Iterator<Item = &'a Row>, contestants: &[Contestant], peer: Contestant) -> Option<Self> {
        let best = |row: &'a Row| {
            let ratios = contestants.iter().filter_map(|one| row.ratio(*one, peer));
            Some((ratios.max_by(f64::total_cmp)?, row))
        };
        let mut ratios: Vec<_> = rows.filter_map(best).collect();
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        (!ratios.is_empty()).then_some(Self(ratios))
    }

    fn least(&self) -> (f64, &'a Row) {
        self.0[0]
    }

    fn most(&self) -> (f64, &'a Row) {
        self.0[self.0.len() - 1]
    }

    /// The mean of factors: the root of their product.
    pub(super) fn mean(&self) -> f64 {
        (self.0.iter().map(|(ratio, _)| ratio.ln()).sum::<f64>() / self.0.len() as f64).exp()
    }

    /// `The mount: most in 4k random read, 1 job (3.1×); least in 1M random write, 2 jobs (0.42×).`
    fn extremes(&self, of: &str) -> String {
        let (most, least) = (extreme("most in", self.most()), extreme("least in", self.least()));
        format!("{of}: {most}; {least}.")
    }

    /// `0.42× to 3.1×`.
    pub(super) fn range(&self) -> String {
        let (least, most) = (times(self.least().0), times(self.most().0));
        if least == most {
            least
        } else {
            format!("{least} to {most}")
        }
    }
}

/// `0.42×`, `3.1×`, `17×`: three digits at most, so that nobody takes them for more exact than they are.
pub(super) fn times(ratio: f64) -> String {
    let decimals = match ratio {
        _ if ratio >= 9.95 => 0,
        _ if ratio >= 0.995 => 1,
        _ => 2,
    };
    format!("{ratio:.decimals$}×")
}

/// The peer of sentences: the tmpfs that was the faster one here.
pub(super) fn peer(outcome: &Outcome) -> Contestant {
    let huge = Ratios::of_rows(outcome.rows.iter(), &[Contestant::TmpfsHuge], Contestant::Tmpfs);
    if huge.is_some_and(|huge| huge.mean() > 1.0) {
        Contestant::TmpfsHuge
    } else {
        Contestant::Tmpfs
    }
}

/// The one sentence.
pub(super) fn headline(outcome: &Outcome) -> String {
    let peer = peer(outcome);
    let mut parts = Vec::new();
    if let Some(library) = Ratios::of(outcome, &[Section::InProcess], &[Contestant::Library], peer) {
        parts.push(format!(
            "inside one process the library runs at {} the rate of {} ({})",
            times(library.mean()),
            peer.name(),
            library.range()
        ));
    }
    let kernel = Ratios::of(outcome, &[Section::Fio], &[Contestant::Kernel], peer);
    let pool = |is_cached: bool, what: &str| {
        let rows = outcome.rows.iter().filter(|row| match row.case.section {
            Section::Fio => is_cached == (row.case.operation == Operation::Read),
            Section::FioDirect => !is_cached,
            Section::InProcess | Section::Copy => false,
        });
        let ratios = Ratios::of_rows(rows, &[Contestant::Pool], peer)?;
        Some(format!("{} of it {what}", ratios.range()))
    };
    let mount = match kernel {
        Some(kernel) => vec![format!("{} of it ({})", times(kernel.mean()), kernel.range())],
        None => [
            pool(true, "where the page cache answers"),
            pool(false, "where the server does"),
        ]
        .into_iter()
        .flatten()
        .collect(),
    };
    if !mount.is_empty() {
        parts.push(format!("through the mount any program gets {}", mount.join(", ")));
    }
    parts.push(if one_node(outcome) {
        "there is one node, so every byte is local and nothing had to be placed".to_owned()
    } else {
        format!(
            "of the bytes copied, {} were local to the CPU that copied",
            local_shares(outcome)
        )
    });
    let mut sentence = parts.join("; ");
    if let Some(first) = sentence.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    sentence + "."
}

/// Returns the findings besides the headline.
pub(super) fn all(outcome: &Outcome) -> Vec<String> {
    let peer = peer(outcome);
    let mut findings = Vec::new();
    if let Some(library) = Ratios::of(outcome, &[Section::InProcess], &[Contestant::Library], peer) {
        findings.push(format!("{} Against {}.", library.extremes("The library"), peer.name()));
    }
    for contestant in Contestant::MOUNTS {
        if let Some(mount) = Ratios::of(outcome, &[Section::Fio, Section::FioDirect], &[contestant], peer) {
            findings.push(mount.extremes(&format!("The {}", contestant.name())));
        }
    }
    if let Some(run) = Ratios::of(outcome, &[Section::Fio], &[Contestant::Run], peer) {
        findings.push(run.extremes("A program under `homenode run` on the mount"));
    }
    findings.extend(kernel_absent(outcome));
    if outcome.machine.enable_uring == "N" {
        findings.push(
            "Rings (FUSE over io_uring) are off, so each call that reaches a server costs two switches of threads: `echo Y > \
             /sys/module/fuse/parameters/enable_uring`, or `make run RING=1`, allows them."
                .to_owned(),
        );
    }
    findings.extend(copies(outcome));
    findings.push(places(outcome));
    let spilled: u64 = outcome.pools.iter().map(|pool| pool.state.spilled_bytes()).sum();
    findings.push(if spilled == 0 {
        "Nothing spilled: no writer had to go to another node because its own was full.".to_owned()
    } else {
        format!(
            "{} spilled to other nodes, because the writers' own were full.",
            human_bytes(spilled)
        )
    });
    findings
}

fn extreme(word: &str, (ratio, row): (f64, &Row)) -> String {
    let section = match row.case.section {
        Section::FioDirect => " past the page cache",
        _ => "",
    };
    format!("{word} {}{section} ({})", row.title, times(ratio))
}

fn kernel_absent(outcome: &Outcome) -> Option<String> {
    let mut absent = outcome.absent.iter();
    let absent = absent.find(|absent| absent.contestant == Contestant::Kernel)?;
    Some(format!("Files of the kernel could not take part: {}.", absent.reason))
}

fn copies(outcome: &Outcome) -> Option<String> {
    let entries: usize = outcome.trees.iter().map(|tree| tree.entries).sum();
    let bytes: u64 = outcome.trees.iter().map(|tree| tree.bytes).sum();
    let mounts = outcome.trees.first()?.verified_on.len();
    Some(format!(
        "{entries} files, directories and links ({}) were copied by rsync to {}; comparing content, links, modes, owners, \
         times, ACLs and attributes, it found no difference.",
        human_bytes(bytes),
        if mounts == 1 {
            "the mount".to_owned()
        } else {
            format!("{mounts} mounts")
        }
    ))
}

fn places(outcome: &Outcome) -> String {
    let pinned = outcome
        .pools
        .iter()
        .flat_map(|pool| &pool.files)
        .filter_map(|files| Some((files.written_from?, files)));
    let (mut at_home, mut written) = (0, 0);
    for (node, files) in pinned {
        at_home += files.bytes_by_node.get(&node).copied().unwrap_or(0);
        written += files.bytes_by_node.values().sum::<u64>();
    }
    let all: u64 = outcome
        .pools
        .iter()
        .map(|pool| pool.state.local_and_all_bytes().1)
        .sum();
    if one_node(outcome) {
        return format!(
            "Local: all {}, copied in and out, because there is but one node.",
            human_bytes(all)
        );
    }
    let nodes = outcome
        .topology
        .nodes()
        .iter()
        .filter(|node| node.kind() != NodeKind::Empty)
        .count();
    format!(
        "Local: of what threads pinned to each of {nodes} nodes wrote, {} lies on their own node; of all {} copied in and \
         out, {} were local to the CPU that copied.",
        percent(at_home, written),
        human_bytes(all),
        local_shares(outcome)
    )
}

pub(super) fn one_node(outcome: &Outcome) -> bool {
    outcome.topology.nodes().len() == 1
}

/// `97.1 % (mount, pool), 100 % (library)`.
fn local_shares(outcome: &Outcome) -> String {
    let share = |pool: &PoolReport| {
        let (local, all) = pool.state.local_and_all_bytes();
        format!("{} ({})", percent(local, all), pool.contestant.name())
    };
    outcome.pools.iter().map(share).collect::<Vec<_>>().join(", ")
}

/// Never `100 %` of what is not all.
pub(super) fn percent(part: u64, whole: u64) -> String {
    if part == whole {
        return if whole == 0 {
            "nothing".to_owned()
        } else {
            "100\u{a0}%".to_owned()
        };
    }
    let tenths = u128::from(part) * 1000 / u128::from(whole.max(1));
    format!("{}.{}\u{a0}%", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::outcome::Samples;
    use crate::demo::page::sample;
    use crate::says::says;

    #[test]
    fn factors_and_shares_are_rounded() {
        assert_eq!(
            [0.042, 0.996, 2.34, 9.96, 123.4].map(times),
            ["0.04×", "1.0×", "2.3×", "10×", "123×"]
        );
        assert_eq!(percent(1, 1), "100\u{a0}%");
        assert_eq!(percent(999_999, 1_000_000), "99.9\u{a0}%");
        assert_eq!(percent(0, 0), "nothing");
        assert_eq!(percent(1, 3), "33.3\u{a0}%");
    }

    #[test]
    fn headline_depends_on_the_numbers() {
        let outcome = sample::outcome("node:2 pu:2");
        let text = headline(&outcome);
        // 8.0 by 4.0 in one row and 2.0 by 4.0 in the other: the mean of 2 and 0.5 is 1.
        says(
            &text,
            &["the library runs at 1.0× the rate of tmpfs huge=always (0.50× to 2.0×)"],
        );
        assert!(
            text.contains("any program gets 0.25× to 0.50× of it where the server does;"),
            "no read from the page cache: {text}"
        );
        assert!(text.starts_with("Inside"), "{text}");
        says(&text, &["of the bytes copied, 75.0\u{a0}% (mount, pool) were local"]);
        let one_node = headline(&sample::outcome("node:1 pu:2"));
        assert!(!one_node.contains('%'), "{one_node}");
        says(&one_node, &["there is one node"]);
        let findings = all(&outcome).join("\n");
        assert!(findings.contains("2 MiB spilled"), "{findings}");
        says(&findings, &["wrote, 50.0\u{a0}% lies on their own node"]);
    }

    #[test]
    fn a_single_round_is_not_compared() {
        let mut outcome = sample::outcome("node:1 pu:2");
        for samples in outcome.rows.iter_mut().flat_map(|row| row.cells.values_mut()) {
            *samples = Samples::first(samples.median());
        }
        let text = headline(&outcome) + &all(&outcome).join("\n");
        assert!(!text.contains('×') && text.contains("one node"), "{text}");
    }

    #[test]
    fn page_cache_reads_are_reported_apart() {
        let mut outcome = sample::outcome("node:2 pu:2");
        let direct = outcome.rows.last_mut().unwrap();
        (direct.case.section, direct.case.operation) = (Section::Fio, Operation::Read);
        let text = headline(&outcome);
        let parts = "gets 0.25× of it where the page cache answers, 0.50× of it where the server does;";
        assert!(text.contains(parts), "{text}");
    }

    #[test]
    fn the_faster_tmpfs_is_the_peer() {
        let mut outcome = sample::outcome("node:1 pu:2");
        assert_eq!(peer(&outcome), Contestant::TmpfsHuge);
        for samples in outcome
            .rows
            .iter_mut()
            .filter_map(|row| row.cells.get_mut(&Contestant::TmpfsHuge))
        {
            *samples = Samples::first(1.0);
            samples.push(1.0);
        }
        assert_eq!(peer(&outcome), Contestant::Tmpfs);
        for row in &mut outcome.rows {
            row.cells.remove(&Contestant::TmpfsHuge);
        }
        assert_eq!(peer(&outcome), Contestant::Tmpfs, "there is no other");
    }
}
