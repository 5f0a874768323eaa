//! Rows of results: printed as a table for people, written as JSON for machines. All benches share this format.

use crate::error::Error;
use crate::interleave::Samples;
use crate::output::Output;
use serde::Serialize;
use std::collections::BTreeMap;

/// The library under test, in every bench.
pub(crate) const HOMENODE: &str = "homenode";

/// Result of a case: homenode's value, each peer's, and how many times better homenode is.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// Name of the case, such as `4k/first/2t/same`.
    pub(crate) case: String,
    /// Unit of `homenode` and `peers`.
    pub(crate) unit: &'static str,
    /// Median over the runs.
    pub(crate) homenode: f64,
    /// Median over the runs, by name of the peer.
    pub(crate) peers: BTreeMap<&'static str, f64>,
    /// Ratio of the medians, by name of the peer; above 1, homenode is better.
    pub(crate) ratio: BTreeMap<&'static str, f64>,
    /// The least and the greatest ratio of a round, in which homenode and the peer ran one after the other.
    pub(crate) ratio_range: BTreeMap<&'static str, [f64; 2]>,
    /// The quartiles of these ratios.
    #[serde(skip)]
    pub(crate) ratio_middle: BTreeMap<&'static str, [f64; 2]>,
    /// Rounds that count.
    pub(crate) runs: usize,
    /// (p75 - p25) / median of the contestant for which that is largest.
    pub(crate) spread: f64,
    /// Median over the runs of the CPU time that homenode's server took for one operation, where it is a process of its
    /// own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server_cpu_ns: Option<f64>,
    /// How single operations were distributed, by contestant, where each was timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tails: Option<BTreeMap<&'static str, Tail>>,
}

/// The distribution of the times of single operations.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Tail {
    /// Half of the operations took at most this.
    pub(crate) p50_ns: u64,
    /// All but one of a thousand.
    pub(crate) p99_9_ns: u64,
    /// All.
    pub(crate) worst_ns: u64,
}

impl Tail {
    /// Sums up at least one operation; sorts them.
    pub(crate) fn of(all_ns: &mut [u64]) -> Self {
        all_ns.sort_unstable();
        let last = all_ns.len() - 1;
        Self {
            p50_ns: all_ns[last / 2],
            p99_9_ns: all_ns[last - all_ns.len() / 1000],
            worst_ns: all_ns[last],
        }
    }
}

impl Row {
    /// Sums up the samples of homenode and its peers in one case.
    pub(crate) fn new(
        case: String,
        unit: &'static str,
        homenode: &Samples,
        peers: &[(&'static str, &Samples)],
    ) -> Self {
        let value = homenode.median();
        let spread = peers
            .iter()
            .map(|(_, samples)| samples.spread())
            .fold(homenode.spread(), f64::max);
        Self {
            case,
            unit,
            homenode: rounded(value),
            peers: peers
                .iter()
                .map(|&(name, samples)| (name, rounded(samples.median())))
                .collect(),
            ratio: peers
                .iter()
                .map(|&(name, samples)| (name, rounded(samples.median() / value)))
                .collect(),
            ratio_range: peers
                .iter()
                .map(|&(name, samples)| (name, samples.over(homenode).range().map(rounded)))
                .collect(),
            ratio_middle: peers
                .iter()
                .map(|&(name, samples)| (name, samples.over(homenode).middle().map(rounded)))
                .collect(),
            runs: homenode.runs(),
            spread: rounded(spread),
            server_cpu_ns: None,
            tails: None,
        }
    }

    /// Like [`Row::new`], of a value that is better the larger it is.
    pub(crate) fn more_is_better(
        case: String,
        unit: &'static str,
        homenode: &Samples,
        peers: &[(&'static str, &Samples)],
    ) -> Self {
        let mut row = Self::new(case, unit, homenode, peers);
        for (name, samples) in peers {
            row.ratio.insert(name, rounded(homenode.median() / samples.median()));
            row.ratio_range
                .insert(name, homenode.over(samples).range().map(rounded));
            row.ratio_middle
                .insert(name, homenode.over(samples).middle().map(rounded));
        }
        row
    }

    /// Row of an idle server: the clock ticks and ns of CPU time used without requests.
    pub(crate) fn idle(case: String, ticks: u64, cpu_ns: u64) -> Self {
        Self {
            // The quotient of the median, which should be 0, means nothing.
            spread: 0.0,
            server_cpu_ns: Some(cpu_ns as f64),
            ..Self::new(case, "ticks", &(ticks as f64).into(), &[])
        }
    }

    /// Adds how single operations were distributed.
    pub(crate) fn with_tails(mut self, tails: BTreeMap<&'static str, Tail>) -> Self {
        self.tails = Some(tails);
        self
    }

    /// Adds what the server took for one operation.
    pub(crate) fn with_server_cpu(mut self, cpu_ns: &Samples) -> Self {
        self.server_cpu_ns = Some(rounded(cpu_ns.median()));
        self
    }
}

/// Everything one bench found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    output_version: u32,
    bench: &'static str,
    /// In the order they ran.
    pub(crate) rows: Vec<Row>,
}

impl Report {
    /// An empty report of the named bench.
    pub(crate) fn new(bench: &'static str) -> Self {
        Self {
            output_version: 1,
            bench,
            rows: Vec::new(),
        }
    }

    /// Writes the report as one JSON object, if there is a file for it.
    pub(crate) fn write_json(&self, file: Option<Output>) -> Result<(), Error> {
        let Some(file) = file else { return Ok(()) };
        let mut text = serde_json::to_string(self).expect("the report holds only numbers and strings");
        text.push('\n');
        file.write(&text)
    }

    /// The row of that case, if it ran.
    pub(crate) fn row(&self, case: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.case == case)
    }

    /// Homenode's value in that case, if it ran.
    pub(crate) fn value(&self, case: &str) -> Option<f64> {
        Some(self.row(case)?.homenode)
    }

    /// The ratio to that peer in that case, if both ran.
    pub(crate) fn ratio(&self, case: &str, peer: &str) -> Option<f64> {
        self.row(case)?.ratio.get(peer).copied()
    }
}

/// How rows are printed for people: a line each, a column for each peer.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    peers: Vec<&'static str>,
    case_width: usize,
    server_cpu: bool,
    /// Decimals of numbers below 1000.
    decimals: usize,
    /// The peer whose range of ratios is shown.
    range_of: Option<&'static str>,
}

impl Table {
    /// With a column for each of these peers; others are in the JSON only.
    pub(crate) fn new(peers: &[&'static str]) -> Self {
        Self {
            peers: peers.to_vec(),
            case_width: 26,
            server_cpu: false,
            decimals: 1,
            range_of: None,
        }
    }

    /// For longer names.
    pub(crate) fn with_case_width(mut self, case_width: usize) -> Self {
        self.case_width = case_width;
        self
    }

    /// For rows with the server's CPU time.
    pub(crate) fn with_server_cpu(mut self) -> Self {
        self.server_cpu = true;
        self
    }

    /// For numbers of which a tenth matters.
    pub(crate) fn with_decimals(mut self, decimals: usize) -> Self {
        self.decimals = decimals;
        self
    }

    /// With the range of the ratio to this peer over the rounds.
    pub(crate) fn with_range_of(mut self, peer: &'static str) -> Self {
        self.range_of = Some(peer);
        self
    }

    pub(crate) fn print_head(&self) {
        println!("{}", self.head());
    }

    fn head(&self) -> String {
        let width = self.case_width;
        let mut head = format!("{:<width$}{HOMENODE:>12}", "case");
        for peer in &self.peers {
            head.push_str(&format!("{peer:>12}{:>8}", "ratio"));
            if self.range_of == Some(*peer) {
                head.push_str(&format!("{:>12}", "range"));
            }
        }
        if self.server_cpu {
            head.push_str(&format!("{:>12}", "CPU ns"));
        }
        head + &format!("{:>9}  unit", "spread")
    }

    pub(crate) fn print_row(&self, row: &Row) {
        println!("{}", self.line(row));
        for (contestant, tail) in row.tails.iter().flatten() {
            let Tail {
                p50_ns,
                p99_9_ns,
                worst_ns,
            } = tail;
            println!("    {contestant}: p50 {p50_ns} ns, p99.9 {p99_9_ns} ns, worst {worst_ns} ns");
        }
    }

    fn line(&self, row: &Row) -> String {
        let width = self.case_width;
        let number = |value| number(value, self.decimals);
        let mut line = format!("{:<width$}{:>12}", row.case, number(row.homenode));
        for peer in &self.peers {
            let value = row.peers.get(peer).map_or("-".to_owned(), |&value| number(value));
            let ratio = row
                .ratio
                .get(peer)
                .map_or("-".to_owned(), |ratio| format!("{ratio:.2}x"));
            line.push_str(&format!("{value:>12}{ratio:>8}"));
            if self.range_of == Some(*peer) {
                let range = row.ratio_range.get(peer);
                let range = range.map_or("-".to_owned(), |[least, most]| format!("{least:.2}-{most:.2}"));
                line.push_str(&format!("{range:>12}"));
            }
        }
        if self.server_cpu {
            let server_cpu = row.server_cpu_ns.map_or("-".to_owned(), number);
            line.push_str(&format!("{server_cpu:>12}"));
        }
        let spread = format!("{:.0} %", row.spread * 100.0);
        line + &format!("{spread:>9}  {}", row.unit)
    }
}

/// Small numbers with decimals, large ones without.
fn number(value: f64, decimals: usize) -> String {
    if value < 1000.0 {
        format!("{value:.decimals$}")
    } else {
        format!("{value:.0}")
    }
}

/// Name of a size in the names of cases.
pub(crate) fn size_name(bytes: usize) -> String {
    match bytes {
        ..1024 => bytes.to_string(),
        1024..0x10_0000 => format!("{}k", bytes >> 10),
        _ => format!("{}m", bytes >> 20),
    }
}

/// Three decimals: more would only be noise in the file.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        values.iter().copied().collect()
    }

    #[test]
    fn latency_tail_covers_all_operations() {
        let mut all_ns: Vec<u64> = (1..=2000).rev().collect();
        let tail = Tail::of(&mut all_ns);
        assert_eq!((tail.p50_ns, tail.p99_9_ns, tail.worst_ns), (1000, 1998, 2000));
        let tail = Tail::of(&mut [7]);
        assert_eq!((tail.p50_ns, tail.p99_9_ns, tail.worst_ns), (7, 7, 7));
    }

    #[test]
    fn each_report_line_has_a_unit() {
        let of = |unit| Row::new("a".into(), unit, &samples(&[2.0]), &[("b", &samples(&[4.0]))]);
        let table = Table::new(&["b"]).with_case_width(4);
        assert_eq!(
            table.line(&of("ns")),
            "a            2.0         4.0   2.00x      0 %  ns"
        );
        let with_range = table.clone().with_range_of("b");
        let row = Row::more_is_better(
            "a".into(),
            "M IOPS",
            &samples(&[6.0, 4.0]),
            &[("b", &samples(&[1.0, 2.0]))],
        );
        assert_eq!(
            with_range.line(&row),
            "a            5.0         1.5   3.33x   2.00-6.00     33 %  M IOPS"
        );
        assert_eq!(
            with_range.head().len() + 1,
            with_range.line(&row).len() - " IOPS".len() + "unit".len()
        );
        let table = table.with_server_cpu();
        assert!(table.line(&of("k IOPS")).ends_with("-      0 %  k IOPS"));
        // Another unit than the line's.
        let idle = table.line(&Row::idle("a".into(), 3, 2500));
        assert!(idle.ends_with("2500      0 %  ticks"), "{idle}");
        assert!(table.head().ends_with("CPU ns   spread  unit"), "{}", table.head());
    }

    #[test]
    fn report_json_has_the_documented_shape() {
        let mut report = Report::new("fs");
        let tmpfs = samples(&[900.0, 1000.0, 1100.0]);
        let memcpy = samples(&[100.0, 100.0, 100.0]);
        let peers = [("tmpfs", &tmpfs), ("memcpy", &memcpy)];
        report.rows.push(Row::new(
            "4k/read/1t/same".into(),
            "ns/op",
            &samples(&[200.0, 200.0, 200.0]),
            &peers,
        ));
        let text = serde_json::to_string(&report).expect("the report holds only numbers and strings");
        assert_eq!(
            text,
            concat!(
                r#"{"output_version":1,"bench":"fs","rows":[{"case":"4k/read/1t/same","unit":"ns/op","homenode":200.0,"#,
                r#""peers":{"memcpy":100.0,"tmpfs":1000.0},"ratio":{"memcpy":0.5,"tmpfs":5.0},"#,
                r#""ratio_range":{"memcpy":[0.5,0.5],"tmpfs":[4.5,5.5]},"runs":3,"spread":0.1}]}"#
            )
        );
        let row = report.rows.remove(0).with_server_cpu(&samples(&[70.0, 80.0, 90.0]));
        let text = serde_json::to_string(&row).expect("the report holds only numbers and strings");
        assert!(text.ends_with(r#""spread":0.1,"server_cpu_ns":80.0}"#), "{text}");
    }
}
