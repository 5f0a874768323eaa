//! The papers' figures, simulated.
//!
//! Each figure draws the constants of the machine anew for each run, and tells for each point the median and the range of all runs. The
//! machines are those that the papers name; [`Constants::SERVER`] has the bands.

use crate::cached::{Cached, Stack};
use crate::fio::{Fio, Work};
use crate::moving::Moving;
use crate::queues::{Design, Requests};
use crate::shapes::{Shape, machine};
use crate::upload::{Placing, Upload};
use crate::ycsb::Ycsb;
use crate::{Constants, Contestant, Drawn, Machine};
use homenode_policy::topology::Topology;

/// Points of several series, and what the paper has in their place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// Quantity that is shown, and the machine.
    pub title: String,
    /// Name and unit of the axes.
    pub axes: [&'static str; 2],
    /// Whether each axis is logarithmic.
    pub is_logarithmic: [bool; 2],
    /// Names of the values of x, 0 and up; empty where these are numbers.
    pub categories: Vec<String>,
    /// Numbers of the paper's text, and why ours differ.
    pub paper: &'static str,
    /// Series, in the order of the legend.
    pub series: Vec<Series>,
}

/// Points of one contestant.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Ascending by x.
    pub points: Vec<Point>,
}

/// A value, and how far it depends on constants that are not known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Where it stands.
    pub x: f64,
    /// Least of all runs.
    pub low: f64,
    /// Median.
    pub median: f64,
    /// Most.
    pub high: f64,
}

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Runs for each point, each with constants of its own.
    pub draws: u64,
    /// First of their seeds.
    pub seed: u64,
    /// A smaller load, for tests.
    pub is_small: bool,
}

/// Makes a figure.
pub type Make = fn(&Effort) -> Figure;

/// All figures, by name.
pub const ALL: [(&str, Make); 11] = [
    ("mbs-lvm-1a", mbs_1a),
    ("mbs-lvm-5a", mbs_5a),
    ("mbs-lvm-5b", mbs_5b),
    ("mbs-lvm-5c", mbs_5c),
    ("mbs-lvm-5d", mbs_5d),
    ("mbs-lvm-spill", spill),
    ("mbs-lvm-moving", moving),
    ("blk-mq-4", blk_mq_4),
    ("jericho-local", jericho_local),
    ("jericho-speed", jericho_speed),
    ("core-affinity-upload", upload),
];

impl Figure {
    /// Rows of the figure as comma-separated values.
    #[must_use]
    pub fn rows(&self) -> String {
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let mut rows = format!("series,{},low,median,high\n", quoted(self.axes[0]));
        for series in &self.series {
            for point in &series.points {
                // Categories are few, and numbered.
                #[expect(clippy::cast_possible_truncation, reason = "a small whole number")]
                let x = self
                    .categories
                    .get(point.x as usize)
                    .map_or_else(|| point.x.to_string(), |name| quoted(name));
                rows.push_str(&format!(
                    "{},{x},{:.4},{:.4},{:.4}\n",
                    quoted(&series.name),
                    point.low,
                    point.median,
                    point.high
                ));
            }
        }
        rows
    }
}

impl Point {
    /// Sums up a value of each run.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn of(x: f64, mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self {
            x,
            low: values[0],
            median: values[values.len() / 2],
            high: values[values.len() - 1],
        }
    }
}

impl Effort {
    fn seeds(&self) -> std::ops::Range<u64> {
        self.seed..self.seed + self.draws.max(1)
    }

    /// Points at each x, of values over all draws.
    fn line<X: Copy + Into<f64>>(
        &self,
        xs: impl IntoIterator<Item = X>,
        value: impl Fn(X, &Drawn, u64) -> f64,
    ) -> Vec<Point> {
        let point = |x: X| {
            let values = self.seeds().map(|seed| value(x, &Constants::SERVER.draw(seed), seed));
            Point::of(x.into(), values.collect())
        };
        xs.into_iter().map(point).collect()
    }

    fn file_bytes(&self) -> u64 {
        if self.is_small { 2 << 20 } else { 16 << 20 }
    }
}

/// The testbed of MBS-LVM: four CPUs of ten cores, 64 GiB of storage in four parts. Each part is as large here as the files need.
fn testbed() -> Topology {
    machine(4, 10, 16 << 30, Shape::Full, Vec::new())
}

fn series<'a, T: Copy + 'a>(all: &'a [T], name: impl Fn(T) -> String, points: impl Fn(T) -> Vec<Point>) -> Vec<Series> {
    let one = |item: &T| Series {
        name: name(*item),
        points: points(*item),
    };
    all.iter().map(one).collect()
}

fn hardware(topology: &Topology, drawn: &Drawn) -> Machine {
    Machine::new(topology, drawn).expect("the papers' machines have CPUs and memory")
}

/// Jobs of one thread on each of the cores.
fn fio(cores: std::ops::Range<u32>, block_bytes: u64, file_bytes: u64) -> Fio {
    Fio {
        cores: cores.collect(),
        block_bytes,
        file_bytes: file_bytes.max(block_bytes),
        work: Work::WriteOnce,
        laid_out_by: None,
        of_node_bytes: None,
    }
}

fn done(load: &Fio, contestant: Contestant, drawn: &Drawn, seed: u64) -> crate::fio::Done {
    let done = load.run(contestant, &mut hardware(&testbed(), drawn), drawn, seed);
    done.expect("the files fit")
}

fn mbs_1a(effort: &Effort) -> Figure {
    let points = |block_bytes: u64| {
        effort.line(0..4_u32, |node, drawn, seed| {
            let load = Fio {
                laid_out_by: Some(0),
                ..fio(node * 10..node * 10 + 10, block_bytes, effort.file_bytes())
            };
            done(&load, Contestant::Tmpfs, drawn, seed).mb_per_s()
        })
    };
    Figure {
        title: "Random write to storage of node 0, by the node of ten writers (4 x 10 cores)".to_owned(),
        axes: ["node of the writers", "MB/s"],
        categories: (0..4).map(|node| format!("node {node}")).collect(),
        paper: "The paper's text has no numbers for this figure: it says that throughput improves if access is local.",
        series: series(&[4 << 10, 128 << 10], |bytes| format!("{} KiB", bytes >> 10), points),
        ..Figure::default()
    }
}

fn mbs_5a(effort: &Effort) -> Figure {
    let points = |contestant| {
        effort.line((0..12).map(|shift| 1_u32 << shift), |kib, drawn, seed| {
            let load = fio(0..40, u64::from(kib) << 10, effort.file_bytes());
            done(&load, contestant, drawn, seed).mb_per_s()
        })
    };
    Figure {
        title: "Random write by block size, 40 threads (4 x 10 cores)".to_owned(),
        axes: ["block size in KiB", "MB/s"],
        is_logarithmic: [true, false],
        paper: "The paper: about 20 times tmpfs, the most at 4 KiB. Here files that one thread reserved lose by the bandwidth of one memory \
                and its links: four times, at any block size. The paper does not say what else its tmpfs waited for; kernel locks are not modelled.",
        series: series(&Contestant::OF_PAPER, |one| one.name().to_owned(), points),
        ..Figure::default()
    }
}

fn mbs_5b(effort: &Effort) -> Figure {
    let points = |contestant| {
        effort.line(1..=4_u32, |nodes, drawn, seed| {
            // The work is the same, whatever the number of threads.
            let file_bytes = effort.file_bytes() * 4 / u64::from(nodes);
            let load = fio(0..10 * nodes, 4096, file_bytes);
            done(&load, contestant, drawn, seed).mb_per_s()
        })
    };
    Figure {
        title: "Strong scaling: random write of 4 KiB by ten threads on each of 1 to 4 nodes".to_owned(),
        axes: ["nodes", "MB/s"],
        paper: "The paper: mbsfs scales well up to four nodes, tmpfs does not. Here the files that one thread reserved do not; a tmpfs whose \
                threads place their own bytes scales as Homenode does.",
        series: series(&Contestant::OF_PAPER, |one| one.name().to_owned(), points),
        ..Figure::default()
    }
}

const OF_DATABASE: [Contestant; 3] = [Contestant::TmpfsReserved, Contestant::Tmpfs, Contestant::Mount];

fn ycsb(effort: &Effort, of: fn(crate::ycsb::Done) -> f64) -> Vec<Point> {
    let load = if effort.is_small {
        Ycsb {
            records: 20_000,
            operations: 20_000,
            ..Ycsb::A
        }
    } else {
        Ycsb::A
    };
    effort.line(0..3_u8, |place, drawn, seed| {
        let contestant = OF_DATABASE[usize::from(place)];
        let done = load.run(contestant, &mut hardware(&testbed(), drawn), drawn, seed);
        of(done.expect("the records fit"))
    })
}

fn mbs_5c(effort: &Effort) -> Figure {
    Figure {
        title: "YCSB-A: throughput of a database with 40 clients, 2 million records (4 x 10 cores)".to_owned(),
        axes: ["filesystem", "1000 operations/s"],
        categories: OF_DATABASE.iter().map(|one| one.name().to_owned()).collect(),
        paper: "The paper: up to 10 % more than tmpfs. Here there is no gain: the records are read from all nodes alike, so a quarter is local \
                either way, and one memory serves 40 clients of a database. The range is that of the database's CPU time, 10 to 40 µs.",
        series: vec![Series {
            name: "throughput".to_owned(),
            points: ycsb(effort, |done| done.per_s / 1000.0),
        }],
        ..Figure::default()
    }
}

fn mbs_5d(effort: &Effort) -> Figure {
    Figure {
        title: "YCSB-A: mean latency (4 x 10 cores)".to_owned(),
        axes: ["filesystem", "µs"],
        categories: OF_DATABASE.iter().map(|one| one.name().to_owned()).collect(),
        paper: "The paper: lower than tmpfs, also for reads. Here all are equal, for the reason at 5c.",
        series: vec![
            Series {
                name: "read".to_owned(),
                points: ycsb(effort, |done| done.read_us),
            },
            Series {
                name: "update".to_owned(),
                points: ycsb(effort, |done| done.update_us),
            },
        ],
        ..Figure::default()
    }
}

fn spill(effort: &Effort) -> Figure {
    let of_node: u64 = 512 << 20;
    let points = |contestant| {
        effort.line((50..=300_u32).step_by(10), |percent, drawn, seed| {
            let load = Fio {
                of_node_bytes: Some(of_node),
                ..fio(0..4, 1 << 20, of_node * u64::from(percent) / 400)
            };
            done(&load, contestant, drawn, seed).local_percent()
        })
    };
    Figure {
        title: "Local share of writes on node 0, by what they fill of it".to_owned(),
        axes: ["bytes written, percent of the node's room", "percent local"],
        paper: "The paper (section 2.4, figure 4) describes this and has no numbers: the local storage until it is full, then the nearest.",
        series: series(
            &[Contestant::Tmpfs, Contestant::Library],
            |one| one.name().to_owned(),
            points,
        ),
        ..Figure::default()
    }
}

fn moving(effort: &Effort) -> Figure {
    let seconds = 16;
    let load = Moving {
        cores: (0..40).step_by(5).collect(),
        file_bytes: 64 << 20,
        seconds,
        simulated: 0.0005,
    };
    let points = |moves: bool| {
        let run = |seed| {
            let drawn = Constants::SERVER.draw(seed);
            let local = load.run(moves, &mut hardware(&testbed(), &drawn), &drawn, seed);
            local.expect("the files fit")
        };
        let runs: Vec<Vec<f64>> = effort.seeds().map(run).collect();
        let of_second =
            |second: u32| Point::of(f64::from(second), runs.iter().map(|run| run[second as usize]).collect());
        (0..seconds).map(of_second).collect()
    };
    Figure {
        title: "Local share of reads of files that node 0 wrote, by time (4 x 10 cores)".to_owned(),
        axes: ["second", "percent local"],
        paper: "The paper leaves reads to future work (section 4).",
        series: series(
            &[false, true],
            |moves| (if moves { "up --mover on" } else { "up --mover off" }).to_owned(),
            points,
        ),
        ..Figure::default()
    }
}

/// Sockets, cores of each, and how they are joined.
const SERVERS: [(u16, u32, Shape); 4] = [
    (1, 6, Shape::Full),
    (2, 6, Shape::Full),
    (4, 8, Shape::Full),
    (8, 10, Shape::Cube),
];

fn blk_mq_4(effort: &Effort) -> Figure {
    let load = Requests {
        seconds: if effort.is_small {
            0.001
        } else {
            Requests::LINUX.seconds
        },
        ..Requests::LINUX
    };
    let runs: Vec<_> = SERVERS
        .iter()
        .flat_map(|server| [(*server, false), (*server, true)])
        .collect();
    let points = |((sockets, cores, shape), is_two_level): ((u16, u32, Shape), bool)| {
        let topology = machine(sockets, cores, 16 << 30, shape, Vec::new());
        let all = u32::from(sockets) * cores;
        let design = if is_two_level {
            Design::TwoLevel {
                hardware_queues: 32.min(all),
            }
        } else {
            Design::SingleLock
        };
        let counts = (1..=all).filter(|count| *count <= 8 || count.is_multiple_of(4) || *count == all);
        effort.line(counts, |count, drawn, seed| {
            load.run(design, &hardware(&topology, drawn), count, seed) / 1e6
        })
    };
    let name = |((sockets, ..), is_two_level): ((u16, u32, Shape), bool)| {
        let design = if is_two_level { "two levels" } else { "single lock" };
        format!(
            "{sockets} {}, {design}",
            if sockets == 1 { "socket" } else { "sockets" }
        )
    };
    Figure {
        title: "512-byte requests to a no-op device, by cores (1 x 6, 2 x 6, 4 x 8, 8 x 10 cores)".to_owned(),
        axes: ["cores", "million IOPS"],
        is_logarithmic: [false, true],
        paper: "The paper: a core sustains about 0.8 million IOPS; the single queue never exceeds 1 million, and falls to about 0.125 on four and eight \
                sockets; two levels reach 10 million. Here the single lock falls to some 0.3: the model has one lock and one line, and the old block \
                layer touched several. Two levels go on to 60 million, as the model's device and its completions cost nothing.",
        series: series(&runs, name, points),
        ..Figure::default()
    }
}

fn cached(effort: &Effort, nodes: u32, stack: Stack, drawn: &Drawn, seed: u64) -> crate::cached::Done {
    let blocks = if effort.is_small { 256 } else { 4096 };
    // Files are somewhat larger than the cache, and read unevenly.
    let load = Cached {
        jobs: nodes * 8,
        file_blocks: blocks,
        frames_per_core: blocks * 7 / 8,
        zipf: 0.9,
        ..Cached::FIO
    };
    let nodes = u16::try_from(nodes).expect("machines are small");
    let topology = machine(
        nodes,
        8,
        16 << 30,
        if nodes == 8 { Shape::Cube } else { Shape::Full },
        Vec::new(),
    );
    load.run(stack, &topology, drawn, seed)
        .expect("the machine has CPUs and memory")
}

fn jericho(effort: &Effort, of: fn(crate::cached::Done) -> f64) -> Vec<Series> {
    let points = |stack| {
        let cores: &[u32] = if effort.is_small { &[16, 32] } else { &[8, 16, 32, 64] };
        effort.line(cores.iter().copied(), |cores, drawn, seed| {
            of(cached(effort, cores / 8, stack, drawn, seed))
        })
    };
    series(&Stack::ALL, |stack| stack.name().to_owned(), points)
}

fn jericho_local(effort: &Effort) -> Figure {
    Figure {
        title: "Local share of fio's reads through a DRAM cache, by cores (nodes of 8 cores)".to_owned(),
        axes: ["cores", "percent local"],
        paper: "The paper's abstract, 64 cores: 5 % local with an unmodified kernel, more than 95 % with Jericho. Here files were laid out by a \
                thread that ran on each node equally often: one part in eight is local by chance, and blocks that are missed come back local. The paper's \
                kernel was worse than that.",
        series: jericho(effort, |done| done.local_percent),
        ..Figure::default()
    }
}

fn jericho_speed(effort: &Effort) -> Figure {
    Figure {
        title: "fio's reads through a DRAM cache, by cores (nodes of 8 cores)".to_owned(),
        axes: ["cores", "GB/s"],
        paper: "The paper's abstract, 64 cores: twice the throughput of an unmodified kernel; here 1.4 to 1.5 times. All three take the page cache's own \
                time for a hit; the stock page cache is a queue here, which costs it a few hits.",
        series: jericho(effort, |done| done.mb_per_s / 1000.0),
        ..Figure::default()
    }
}

fn upload(effort: &Effort) -> Figure {
    let load = Upload {
        periods: if effort.is_small { 8 } else { Upload::HDFS.periods },
        ..Upload::HDFS
    };
    let points = |placing| {
        let counts: &[u32] = if effort.is_small {
            &[4, 12]
        } else {
            &[2, 4, 6, 8, 10, 12, 16, 20, 24]
        };
        effort.line(counts.iter().copied(), |cores, drawn, seed| {
            let done = load.run(placing, cores, drawn, seed);
            done.expect("the machine has CPUs and memory").mb_per_s
        })
    };
    Figure {
        title: "HDFS upload by cores, 16 connections, a card of 8 queues and an NVMe disk on different nodes of two"
            .to_owned(),
        axes: ["cores", "MB/s"],
        paper: "The paper's abstract: up to 32 % more than without dynamic core affinity, and better scaling with cores. Here `local` has 2 to 5 % \
                more than interrupts that are spread over the nodes already, while CPUs are the limit: most of a chunk's time is a CPU's own work, \
                wherever the bytes lie. From 10 cores on the disk is the limit. With all interrupts on CPU 0 an upload stops at two thirds.",
        series: series(&Placing::ALL, Placing::name, points),
        ..Figure::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Effort = Effort {
        draws: 1,
        seed: 7,
        is_small: true,
    };

    fn median(figure: &Figure, name: &str, at: f64) -> f64 {
        let series = figure.series.iter().find(|series| series.name == name);
        let points = &series
            .unwrap_or_else(|| panic!("{} has no {name}", figure.title))
            .points;
        points.iter().find(|point| point.x == at).unwrap().median
    }

    #[test]
    fn every_figure_has_its_series_and_repeats() {
        for (name, make) in ALL {
            let figure = make(&SMALL);
            assert!(
                !figure.series.is_empty() && figure.series.iter().all(|series| !series.points.is_empty()),
                "{name}"
            );
            let all = figure.series.iter().flat_map(|series| &series.points);
            assert!(
                all.into_iter()
                    .all(|point| point.low <= point.median && point.median <= point.high && point.high > 0.0),
                "{name}"
            );
            assert_eq!(make(&SMALL), figure, "{name}");
            assert_eq!(
                figure.rows().lines().count(),
                1 + figure.series.iter().map(|series| series.points.len()).sum::<usize>()
            );
        }
    }

    #[test]
    fn figures_go_where_the_papers_go() {
        let (sizes, scaling) = (mbs_5a(&SMALL), mbs_5b(&SMALL));
        assert!(
            median(&sizes, "Homenode library", 4.0) > 2.0 * median(&sizes, "tmpfs, files reserved by one thread", 4.0)
        );
        assert!(median(&scaling, "Homenode library", 4.0) > 3.0 * median(&scaling, "Homenode library", 1.0));
        let queues = blk_mq_4(&SMALL);
        assert!(median(&queues, "8 sockets, single lock", 80.0) < 0.45);
        assert!(median(&queues, "8 sockets, two levels", 80.0) > 10.0);
        let local = jericho_local(&SMALL);
        assert!(median(&local, "Homenode's slices, threads move", 32.0) > 85.0);
        let upload = upload(&SMALL);
        assert!(median(&upload, "Homenode: local", 12.0) > median(&upload, "interrupts on CPU 0", 12.0));
    }
}
