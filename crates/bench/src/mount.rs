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

use crate::arguments::Arguments;
use crate::cpu_time::CpuTime;
use crate::error::Error;
use crate::interleave::Samples;
use crate::private_tmpfs::{self, Pages};
use crate::report::{Row, Table};
use crate::required;
use crate::run::Run;
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
    let mut run = Run::new("mount", &arguments.common, &arguments.case)?;
    let check = run.common.check;
    let mut cases = subjects::all();
    cases.retain(|case| run.wants(&case.name()));
    let is_kernel_wanted = kernel::is_wanted(&run);
    if cases.is_empty() && !run.wants(IDLE_CASE) && !run.wants(beside::CASE) && !is_kernel_wanted {
        return Err(run.no_case());
    }
    if let Err(reason) = can_mount() {
        if check {
            return Err(Error::NoMount(reason));
        }
        required::skip(format_args!("nothing can be mounted: {reason}"));
        return Ok(());
    }
    let mut bench = Bench::prepare(&run, &mut cases)?;
    let table = Table::new(&["tmpfs", "tmpfs-huge", "classic"]);
    run.begin(table.with_case_width(CASE_WIDTH).with_server_cpu());
    for case in &cases {
        bench.run_case(&mut run, case)?;
    }
    if run.wants(beside::CASE) {
        beside::rows(&mut run, &bench.contestants, bench.cpus[0])?;
    }
    if run.wants(IDLE_CASE) {
        let rows = bench.watch_idle(run.common.smoke)?;
        rows.into_iter().for_each(|row| run.show(row));
    }
    if is_kernel_wanted {
        run.begin(Table::new(&["tmpfs", "tmpfs-huge", "tmpfs-within-size", "pool"]));
        match kernel::run(&mut run, bench.file_bytes, &bench.cpus) {
            Err(error @ Error::Unavailable { .. }) => bench.leave_out(error),
            ran => ran?,
        }
    }
    run.findings = requirements::findings(&run.report);
    let ended = run.end();
    // Who could not take part is a number not reached.
    match bench.left_out.pop() {
        Some(error) if check => Err(error),
        _ => ended,
    }
}

/// Whether this process may mount anything, and FUSE in particular. If not, why.
pub(crate) fn can_mount() -> Result<(), String> {
    private_tmpfs::mount(Pages::Default, 1 << 20).map_err(|error| error.to_string())?;
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.map(drop).map_err(|error| format!("/dev/fuse: {error}"))
}

/// The contestants, ready to run.
struct Bench {
    file_bytes: usize,
    cpus: Vec<usize>,
    /// The served ones first, in the order of [`Variant::ALL`].
    contestants: Vec<Contestant>,
    left_out: Vec<Error>,
}

impl Bench {
    /// Starts everyone who takes part in one of the cases; drops the cases that need more CPUs than there are.
    fn prepare(run: &Run<'_>, cases: &mut Vec<Case>) -> Result<Self, Error> {
        let mut bench = Self {
            file_bytes: if run.common.smoke { 4 << 20 } else { 64 << 20 },
            cpus: cpus::choose()?,
            contestants: Vec::new(),
            left_out: Vec::new(),
        };
        let (file_bytes, cpus) = (bench.file_bytes, bench.cpus.clone());
        println!(
            "files of {} MiB, {} rounds, clients on CPUs {cpus:?}",
            file_bytes >> 20,
            run.rounds
        );
        if cpus.len() < cpus::THREADS_MAX {
            required::skip("cases of two clients: this process may use only one CPU");
            cases.retain(|case| case.clients <= cpus.len());
        }
        for variant in Variant::ALL {
            let is_standard = matches!(variant, Variant::Uring | Variant::Classic);
            if !is_standard && !cases.iter().any(|case| case.concerns(variant)) {
                continue;
            }
            interrupt::check()?;
            match start(variant, file_bytes, &cpus) {
                Err(error @ Error::Unavailable { .. }) => bench.leave_out(error),
                contestant => bench.contestants.push(contestant?),
            }
        }
        for pages in [Pages::Default, Pages::Huge] {
            bench.contestants.push(Contestant::tmpfs(pages, file_bytes)?);
        }
        Ok(bench)
    }

    fn leave_out(&mut self, error: Error) {
        required::skip(&error);
        self.left_out.push(error);
    }

    /// A row for each served contestant that the case concerns.
    fn run_case(&mut self, run: &mut Run<'_>, case: &Case) -> Result<(), Error> {
        let name = case.name();
        let mut contestants: Vec<&mut Contestant> = self
            .contestants
            .iter_mut()
            .filter(|contestant| contestant.variant().is_none_or(|variant| case.concerns(variant)))
            .collect();
        let mut cpu_ns = vec![Samples::default(); contestants.len()];
        let samples = run.take_turns(&name, contestants.len(), |round, contestant| {
            let pass = Pass {
                case,
                name: &name,
                file_bytes: self.file_bytes,
                operations: case.work.operations(self.file_bytes, run.common.smoke),
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
        for (index, contestant) in contestants.iter().enumerate() {
            let Some(variant) = contestant.variant() else { continue };
            // The variant that the case is about is compared with everyone, the others with tmpfs.
            let is_peer = |&(other, peer): &(usize, &&mut Contestant)| {
                other != index && (variant == Variant::ALL[0] || peer.variant().is_none())
            };
            let peers = contestants.iter().enumerate().filter(is_peer);
            let peers: Vec<_> = peers.map(|(other, peer)| (peer.name(), &samples[other])).collect();
            let row = Row::new(variant.case(&name), "ns/op", &samples[index], &peers);
            run.show(row.with_server_cpu(&cpu_ns[index]));
        }
        Ok(())
    }

    /// Watches all servers while nobody asks them anything: ticks of the CPU that they took all the same.
    fn watch_idle(&self, smoke: bool) -> Result<Vec<Row>, Error> {
        self.contestants.iter().try_for_each(Contestant::settle)?;
        thread::sleep(SETTLE);
        let cpu_times = || {
            self.contestants
                .iter()
                .map(Contestant::cpu_time)
                .collect::<Result<Vec<_>, _>>()
        };
        let before = cpu_times()?;
        thread::sleep(if smoke { IDLE_SMOKE } else { IDLE });
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
