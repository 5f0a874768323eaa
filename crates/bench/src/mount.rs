//! `homenode-bench mount`: a mounted pool through rings, through the classic device, and tmpfs.
//!
//! Every mounted contestant is a pool of its own, all of it populated, served by a process of its own, as in life; so what
//! its server takes of the CPUs is read from /proc and told per operation. Clients are threads that call pread(2),
//! pwrite(2), openat(2) and the like. All contestants keep the same files, written in order before; random passes touch
//! each block at most once. `direct` is `O_DIRECT`; `buffered` goes through the kernel's page cache, which is emptied
//! before each pass, and writes end with fdatasync(2). tmpfs is its own page cache: for it the two are the same.
//!
//! A pass during which fewer requests reached the server than there were operations ends the bench: it would measure the
//! kernel's caches.

mod beside;
mod contestant;
mod kernel;
mod names;
mod pass;
mod requirements;
pub(crate) mod serve;
pub(crate) mod served;
mod subjects;
mod transfer;

use crate::arguments::{self, Arguments, Common};
use crate::cpu_time::CpuTime;
use crate::error::Error;
use crate::interleave::{Samples, take_turns};
use crate::private_tmpfs::{self, Pages};
use crate::report::{Report, Row, Table};
use crate::run::progress;
use crate::{cpus, interrupt};
use contestant::Contestant;
use pass::Pass;
use served::Variant;
use std::fs::OpenOptions;
use std::thread;
use std::time::Duration;
use subjects::Case;

/// The row that says what servers do while nobody asks anything, and for how long they are watched.
const IDLE_CASE: &str = "idle/server-cpu";
const IDLE: Duration = Duration::from_secs(2);
const IDLE_SMOKE: Duration = Duration::from_millis(100);
/// Time for what a server does after its last request, such as closing files.
const SETTLE: Duration = Duration::from_millis(100);

/// Writes that show whether a variant is in effect; many against what a pass asks a server besides.
const TRIED_WRITES: usize = 64;

/// Wide enough for the longest name of a case and a variant.
const CASE_WIDTH: usize = 50;

/// Runs the bench.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let common = &arguments.common;
    let json = common.begin()?;
    let is_wanted = |name: &str| arguments::is_wanted(&arguments.case, name);
    let mut cases = subjects::all();
    cases.retain(|case| is_wanted(&case.name()));
    let is_kernel_wanted = kernel::is_wanted(&arguments.case);
    if cases.is_empty() && !is_wanted(IDLE_CASE) && !is_wanted(beside::CASE) && !is_kernel_wanted {
        return Err(Error::NoCase(arguments.case.join(" or ")));
    }
    if let Err(reason) = can_mount() {
        if common.check {
            return Err(Error::NoMount(reason));
        }
        println!("SKIPPED: nothing can be mounted: {reason}");
        return Ok(());
    }
    let mut bench = Bench::prepare(common, &mut cases)?;
    let table = Table::new(&["tmpfs", "tmpfs-huge", "classic"])
        .with_case_width(CASE_WIDTH)
        .with_server_cpu();
    if !cases.is_empty() {
        table.print_head();
    }
    let progress = progress(cases.len());
    let mut report = Report::new("mount");
    for case in &cases {
        progress.set_message(case.name());
        let rows = bench.run_case(case)?;
        progress.suspend(|| rows.iter().for_each(|row| table.print_row(row)));
        report.rows.extend(rows);
        progress.inc(1);
    }
    progress.finish_and_clear();
    if is_wanted(beside::CASE) {
        let rows = beside::rows(&bench.contestants, bench.beside())?;
        rows.iter().for_each(|row| table.print_row(row));
        report.rows.extend(rows);
    }
    if is_wanted(IDLE_CASE) {
        let rows = bench.watch_idle()?;
        rows.iter().for_each(|row| table.print_row(row));
        report.rows.extend(rows);
    }
    if is_kernel_wanted {
        bench.run_kernel(&mut report, &arguments.case)?;
    }
    let judged = common.end(json, &report, &requirements::findings(&report));
    // Who could not take part is a number not reached.
    match bench.left_out.pop() {
        Some(error) if common.check => Err(error),
        _ => judged,
    }
}

/// Whether this process may mount anything, and FUSE in particular. If not, why.
fn can_mount() -> Result<(), String> {
    private_tmpfs::mount(Pages::Default, 1 << 20).map_err(|error| error.to_string())?;
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.map(drop).map_err(|error| format!("/dev/fuse: {error}"))
}

/// The contestants, ready to run.
struct Bench {
    smoke: bool,
    rounds: usize,
    file_bytes: usize,
    cpus: Vec<usize>,
    /// The served ones first, in the order of [`Variant::ALL`].
    contestants: Vec<Contestant>,
    left_out: Vec<Error>,
}

impl Bench {
    /// Starts everyone who takes part in one of the cases; drops the cases that need more CPUs than there are.
    fn prepare(common: &Common, cases: &mut Vec<Case>) -> Result<Self, Error> {
        let file_bytes = if common.smoke { 4 << 20 } else { 64 << 20 };
        let rounds = if common.smoke { 1 } else { common.rounds as usize };
        let cpus = cpus::choose()?;
        println!(
            "files of {} MiB, {rounds} rounds, clients on CPUs {cpus:?}",
            file_bytes >> 20
        );
        if cpus.len() < cpus::THREADS_MAX {
            println!("SKIPPED: cases of two clients: this process may use only one CPU");
            cases.retain(|case| case.clients <= cpus.len());
        }
        let (mut contestants, mut left_out) = (Vec::new(), Vec::new());
        for variant in Variant::ALL {
            let is_standard = matches!(variant, Variant::Uring | Variant::Classic);
            if !is_standard && !cases.iter().any(|case| case.concerns(variant)) {
                continue;
            }
            interrupt::check()?;
            match start(variant, file_bytes, &cpus) {
                Ok(contestant) => contestants.push(contestant),
                Err(error @ Error::Unavailable { .. }) => {
                    println!("SKIPPED: {error}");
                    left_out.push(error);
                }
                Err(error) => return Err(error),
            }
        }
        for pages in [Pages::Default, Pages::Huge] {
            contestants.push(Contestant::tmpfs(pages, file_bytes)?);
        }
        Ok(Self {
            smoke: common.smoke,
            rounds,
            file_bytes,
            cpus,
            contestants,
            left_out,
        })
    }

    /// A row for each served contestant that the case concerns.
    fn run_case(&mut self, case: &Case) -> Result<Vec<Row>, Error> {
        let name = case.name();
        let mut contestants: Vec<&mut Contestant> = self
            .contestants
            .iter_mut()
            .filter(|contestant| contestant.variant().is_none_or(|variant| case.concerns(variant)))
            .collect();
        let mut cpu_ns = vec![Samples::default(); contestants.len()];
        let samples = take_turns(contestants.len(), self.rounds, |round, contestant| {
            let pass = Pass {
                case,
                name: &name,
                file_bytes: self.file_bytes,
                operations: case.work.operations(self.file_bytes, self.smoke),
                cpus: &self.cpus,
                seed: round * 1000,
            };
            let outcome = pass::time(contestants[contestant], &pass)?;
            // The runner drops the first round too.
            if let Some(ns) = outcome.server_cpu_ns.filter(|_| round > 0) {
                cpu_ns[contestant].push(ns);
            }
            Ok(outcome.ns)
        })?;
        let rows = contestants.iter().enumerate().filter_map(|(index, contestant)| {
            let variant = contestant.variant()?;
            // The variant that the case is about is compared with everyone, the others with tmpfs.
            let is_peer = |&(other, peer): &(usize, &&mut Contestant)| {
                other != index && (variant == Variant::ALL[0] || peer.variant().is_none())
            };
            let peers = contestants.iter().enumerate().filter(is_peer);
            let peers: Vec<_> = peers.map(|(other, peer)| (peer.name(), &samples[other])).collect();
            let row = Row::new(variant.case(&name), "ns/op", &samples[index], &peers);
            Some(row.with_server_cpu(&cpu_ns[index]))
        });
        Ok(rows.collect())
    }

    /// Runs the cases of files of the kernel.
    fn run_kernel(&mut self, report: &mut Report, wanted: &[String]) -> Result<(), Error> {
        let table = Table::new(&["tmpfs", "tmpfs-huge", "tmpfs-within-size", "pool"]);
        table.print_head();
        let bench = kernel::Bench {
            rounds: self.rounds,
            file_bytes: self.file_bytes,
            cpus: &self.cpus,
            wanted,
        };
        let ran = kernel::run(&bench, |row| {
            table.print_row(&row);
            report.rows.push(row);
        });
        match ran {
            Err(error @ Error::Unavailable { .. }) => {
                println!("SKIPPED: {error}");
                self.left_out.push(error);
                Ok(())
            }
            ran => ran,
        }
    }

    /// The rounds of reads beside long requests.
    fn beside(&self) -> beside::Bench {
        beside::Bench {
            rounds: self.rounds,
            smoke: self.smoke,
            file_bytes: self.file_bytes,
            cpu: self.cpus[0],
        }
    }

    /// Watches all servers while nobody asks them anything: ticks of the CPU that they took all the same.
    fn watch_idle(&self) -> Result<Vec<Row>, Error> {
        self.contestants.iter().try_for_each(Contestant::settle)?;
        thread::sleep(SETTLE);
        let cpu_times = || {
            self.contestants
                .iter()
                .map(Contestant::cpu_time)
                .collect::<Result<Vec<_>, _>>()
        };
        let before = cpu_times()?;
        thread::sleep(if self.smoke { IDLE_SMOKE } else { IDLE });
        let after = cpu_times()?;
        interrupt::check()?;
        let used = before.into_iter().zip(after);
        let row = |(contestant, (before, after)): (&Contestant, (Option<CpuTime>, Option<CpuTime>))| {
            let used = after?.since(before?);
            Some(Row::idle(contestant.variant()?.case(IDLE_CASE), used.ticks, used.ns))
        };
        Ok(self.contestants.iter().zip(used).filter_map(row).collect())
    }
}

/// Starts a contestant, and sees that its variant is in effect.
fn start(variant: Variant, file_bytes: usize, cpus: &[usize]) -> Result<Contestant, Error> {
    let mut contestant = Contestant::served(variant, file_bytes, cpus::node(cpus[0]))?;
    let pass = Pass {
        case: &subjects::SMALL_WRITES,
        name: "trying small writes",
        file_bytes,
        operations: TRIED_WRITES,
        cpus,
        seed: 0,
    };
    let requests = pass::time(&mut contestant, &pass)?.requests.unwrap_or(0);
    let is_in_effect = match variant {
        Variant::Uring | Variant::Classic | Variant::Kernel | Variant::Auto => true,
        // The kernel asks once before each write.
        Variant::NoKillPrivileges => requests >= 2 * TRIED_WRITES as u64,
    };
    if is_in_effect {
        Ok(contestant)
    } else {
        Err(Error::Unavailable {
            contestant: variant.name(),
            reason: format!("{TRIED_WRITES} small writes came as {requests} requests: it has no effect"),
        })
    }
}
