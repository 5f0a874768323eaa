//! `homenode-bench fs`: random reads and writes of one block size, the library against tmpfs and a bare memcpy.
//!
//! What is alike for all contestants: the files' length, set by truncation before the pass (no fallocate); the random
//! order of blocks, each touched once; one buffer per thread that stays in its caches; threads pinned to CPUs of one
//! node, started by a barrier, in parts of their own. For `first` the file is emptied before each pass, for `overwrite`
//! and `read` it was filled in order before the first. What differs is each one's nature: tmpfs is called through
//! pread(2) and pwrite(2), the library by function, and the library's pool has its blocks populated before the first
//! pass, as a pool does ahead of use; the time that takes is printed.
//!
//! The rows `contended/…` are of [`contended`].

mod contended;
mod contestant;
mod requirements;
mod workloads;

use crate::arguments::Arguments;
use crate::cpus;
use crate::error::Error;
use crate::interrupt;
use crate::pass::{self, Blocks};
use crate::populated;
use crate::private_tmpfs::Pages;
use crate::report::{Row, Table};
use crate::required;
use crate::run::Run;
use crate::shuffle::permutation;
use contestant::Contestant;
use std::time::Instant;
use workloads::{Layout, Operation, SIZES};

/// Runs the bench.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let mut run = Run::new("fs", &arguments.common, &arguments.case)?;
    let check = run.common.check;
    let mut bench = Bench::prepare(&run)?;
    let groups = bench.groups(&run);
    let contended = contended::cases(|name| run.wants(name));
    if groups.is_empty() && contended.is_empty() {
        return Err(run.no_case());
    }
    run.begin(Table::new(&bench.peers()));
    for group in &groups {
        bench.run_group(&mut run, group)?;
    }
    // The files of the other cases are gone before these are made.
    drop(bench);
    let cannot_share = !contended.is_empty() && cpus::is_realtime()?;
    if cannot_share && check {
        return Err(Error::RealTime);
    } else if cannot_share {
        required::skip(format_args!(
            "contended: threads of a real-time policy do not share CPUs, and {} readers would keep them; run it without chrt",
            contended.iter().map(|case| case.readers()).max().unwrap_or(0)
        ));
    } else if !contended.is_empty() {
        let files = contended::Contended::prepare(run.common)?;
        for case in contended {
            run.show(files.run(&run, case)?);
        }
    }
    requirements::print_scaling(&run.report);
    run.findings = requirements::findings(&run.report);
    let missing = requirements::missing_peer(&run.report);
    let ended = run.end();
    match missing {
        Some(peer) if check => Err(Error::NoPeer(peer)),
        _ => ended,
    }
}

/// Cases of one size and operation: they run interleaved, so that their threads' scaling is of the same minutes.
#[derive(Debug)]
struct Group {
    size: &'static str,
    block_bytes: usize,
    operation: Operation,
    layouts: Vec<Layout>,
}

/// A timed pass: every block of every lane once.
#[derive(Debug)]
struct Pass<'a> {
    case: &'a str,
    operation: Operation,
    layout: Layout,
    block_bytes: usize,
    /// Decides the order of blocks and the bytes written; the same for all contestants of a round.
    seed: u64,
}

/// The contestants, ready to run.
struct Bench {
    file_bytes: usize,
    cpus: Vec<usize>,
    /// The library first, then its peers.
    contestants: Vec<Contestant>,
}

impl Bench {
    fn prepare(run: &Run<'_>) -> Result<Self, Error> {
        let file_bytes = if run.common.smoke { 4 << 20 } else { 64 << 20 };
        let cpus = cpus::choose()?;
        println!(
            "files of {} MiB, {} rounds, threads on CPUs {cpus:?}",
            file_bytes >> 20,
            run.rounds
        );
        if cpus.len() < cpus::THREADS_MAX {
            required::skip("cases of two threads: this process may use only one CPU");
        }
        let start = Instant::now();
        let pool = populated::pool(contestant::place_bytes(file_bytes), Some(cpus::node(cpus[0])))
            .map_err(Error::library("creating a populated pool"))?;
        let populated = pool.status().members.into_iter().map(|member| member.populated_bytes);
        println!(
            "populating {} MiB of the pool ahead of use took {:.2} s",
            populated.sum::<u64>() >> 20,
            start.elapsed().as_secs_f64()
        );
        let mut contestants = vec![Contestant::library(pool, file_bytes)?];
        for pages in [Pages::Default, Pages::Huge] {
            match Contestant::tmpfs(pages, file_bytes) {
                Ok(tmpfs) => contestants.push(tmpfs),
                Err(error) if run.common.check => return Err(error),
                Err(error) => required::skip(format_args!("a peer: {error}")),
            }
        }
        contestants.push(cpus::at_home(|| Contestant::memcpy(file_bytes))?);
        Ok(Self {
            file_bytes,
            cpus,
            contestants,
        })
    }

    fn peers(&self) -> Vec<&'static str> {
        self.contestants[1..].iter().map(|peer| peer.name).collect()
    }

    /// All groups with at least one case that is wanted.
    fn groups(&self, run: &Run<'_>) -> Vec<Group> {
        let mut groups = Vec::new();
        for (size, block_bytes) in SIZES {
            if run.common.smoke && !["4k", "64k"].contains(&size) {
                continue;
            }
            for operation in Operation::ALL {
                let runs = |layout: &Layout| {
                    layout.threads <= self.cpus.len() && run.wants(&workloads::name(size, operation, *layout))
                };
                let layouts: Vec<Layout> = Layout::ALL.into_iter().filter(runs).collect();
                if !layouts.is_empty() {
                    groups.push(Group {
                        size,
                        block_bytes,
                        operation,
                        layouts,
                    });
                }
            }
        }
        groups
    }

    fn run_group(&mut self, run: &mut Run<'_>, group: &Group) -> Result<(), Error> {
        if group.operation != Operation::First {
            self.fill_files()?;
        }
        let names: Vec<String> = group
            .layouts
            .iter()
            .map(|&layout| workloads::name(group.size, group.operation, layout))
            .collect();
        let samples = run.interleave(&names, self.contestants.len(), |round, case, contestant| {
            let pass = Pass {
                case: &names[case],
                operation: group.operation,
                layout: group.layouts[case],
                block_bytes: group.block_bytes,
                seed: (round * names.len() as u64 + case as u64) * 1000,
            };
            if group.operation == Operation::First {
                self.contestants[contestant].empty(pass.layout.file_count())?;
            }
            self.time(contestant, &pass)
        })?;
        for (name, samples) in names.into_iter().zip(&samples) {
            let peers: Vec<_> = self.peers().into_iter().zip(&samples[1..]).collect();
            run.show(Row::new(name, "ns/op", &samples[0], &peers));
        }
        Ok(())
    }

    /// Writes every file of every contestant from its start to its end.
    fn fill_files(&self) -> Result<(), Error> {
        self.contestants.iter().try_for_each(|contestant| {
            interrupt::check()?;
            cpus::at_home(|| contestant.fill())
        })
    }

    /// Runs the pass; returns ns per operation: the longest time of a thread over the operations of one thread.
    fn time(&mut self, contestant: usize, pass: &Pass<'_>) -> Result<f64, Error> {
        let (contestant, bytes) = (&mut self.contestants[contestant], pass.block_bytes);
        let operations = pass.layout.parts(self.file_bytes)[0].bytes / bytes;
        let (name, lanes) = (contestant.name, contestant.lanes(pass.layout));
        let threads: Vec<_> = lanes.into_iter().zip(&self.cpus).zip(pass.seed..).collect();
        let (ns, _) = pass::time(
            pass.case,
            name,
            threads,
            || (),
            |((mut lane, &cpu), seed)| {
                cpus::pin(cpu)?;
                // Warms whatever the contestant keeps per thread.
                lane.run(false, &[0], &mut vec![0; bytes])?;
                let order = permutation(operations, seed);
                Blocks::new(lane, pass.operation != Operation::Read, bytes, order, seed)
            },
        )?;
        Ok(ns / operations as f64)
    }
}
