//! fio as an outside judge of what goes through the kernel.

use super::contestants::{Case, Contestant, Operation};
use super::program;
use crate::failure::{Failure, Result};
use crate::run::preload;
use crate::topology::ranges;
use homenode_policy::CpuId;
use serde_json::Value;
use std::iter;
use std::path::PathBuf;
use std::process::Command;

/// Participant of a fio run, with its directory and way of access.
#[derive(Clone, Debug)]
pub(super) struct Entrant {
    pub(super) contestant: Contestant,
    pub(super) directory: &'static str,
    /// Whether fio uses O_DIRECT.
    pub(super) direct: bool,
}

impl Entrant {
    /// Direct writes throw out what the page cache has of a file, so they get files of their own.
    fn files(&self) -> &'static str {
        FILES[usize::from(self.direct)]
    }

    /// Whether fio has the library of `homenode run`. The files are another entrant's then.
    fn is_preloaded(&self) -> bool {
        self.contestant == Contestant::Run
    }
}

/// Beginning of the names of all files that fio makes.
pub(super) const FILES: [&str; 2] = ["buffered.", "direct."];

/// Runs fio. Each job keeps to its CPUs, if it has some.
#[derive(Debug)]
pub(super) struct Fio {
    /// Library of `homenode run`, if there is one.
    pub(super) library: Option<PathBuf>,
    /// Directory of all entrants' directories.
    pub(super) above: PathBuf,
    pub(super) file_bytes: u64,
    pub(super) cpus_by_job: Vec<Option<Vec<CpuId>>>,
}

impl Fio {
    /// Writes the files of every entrant, once, in order.
    pub(super) fn lay_out(&self, entrants: &[Entrant]) -> Result<()> {
        let mut command = self.command();
        command.args(["--rw=write", "--bs=1M"]);
        for entrant in entrants.iter().filter(|one| !one.is_preloaded()) {
            // By the page cache, so that it holds what is read later.
            self.add_jobs(&mut command, entrant, self.cpus_by_job.len(), false);
        }
        program::run(&mut command).map(drop)
    }

    /// Runs `case` on every entrant in turn, `seconds` each: in one process, and in one more for those that have the library. Gives the
    /// rates in the order of `entrants`.
    pub(super) fn measure(&self, case: &Case, entrants: &[&Entrant], seconds: f64) -> Result<Vec<f64>> {
        let mut measured = vec![0.0; entrants.len()];
        for library in iter::once(None).chain(self.library.iter().map(Some)) {
            let is_one = |place: &usize| entrants[*place].is_preloaded() == library.is_some();
            let places: Vec<usize> = (0..entrants.len()).filter(is_one).collect();
            let mut command = self.command();
            if let Some(library) = library {
                preload(&mut command, library, false, None);
            }
            command.arg(match case.operation {
                Operation::Write => "--rw=randwrite",
                Operation::Read => "--rw=randread",
            });
            command.arg(format!("--bs={}", case.block_bytes));
            command.args(["--time_based".to_owned(), format!("--runtime={:.0}ms", seconds * 1e3)]);
            for place in &places {
                self.add_jobs(&mut command, entrants[*place], case.jobs, entrants[*place].direct);
            }
            let ended = program::run(&mut command)?;
            let output = String::from_utf8_lossy(&ended.output);
            let rates = rates(&output, case, places.len())
                .ok_or_else(|| Failure::new(format!("fio's output is not understood: {}", output.trim())))?;
            for (place, rate) in places.into_iter().zip(rates) {
                measured[place] = rate;
            }
        }
        Ok(measured)
    }

    fn command(&self) -> Command {
        let mut command = Command::new("fio");
        // gtod_reduce: no clock is read around each call. norandommap: no record of which blocks had their turn.
        // invalidate=0: the page cache is left as it is.
        command.args(["--ioengine=psync", "--fallocate=none", "--thread", "--group_reporting"]);
        command.args([
            "--gtod_reduce=1",
            "--norandommap",
            "--invalidate=0",
            "--output-format=json",
        ]);
        command.arg(format!("--size={}", self.file_bytes));
        // fio takes a path with a colon for two.
        command.current_dir(&self.above);
        command
    }

    /// Jobs that start together when those before them have ended: a group, reported as one.
    fn add_jobs(&self, command: &mut Command, entrant: &Entrant, jobs: usize, direct: bool) {
        for (job, cpus) in self.cpus_by_job.iter().enumerate().take(jobs) {
            let file = format!("{}{job}", entrant.files());
            command.arg(format!("--name={file}"));
            if job == 0 {
                command.arg("--stonewall");
            }
            command.arg(format!("--directory={}", entrant.directory));
            command.arg(format!("--filename={file}"));
            command.arg(format!("--direct={}", u8::from(direct)));
            if let Some(cpus) = cpus {
                command.arg(format!("--cpus_allowed={}", ranges(cpus)));
            }
        }
    }
}

/// Parses the rate of each job from fio's JSON; warnings may come before the JSON.
fn rates(output: &str, case: &Case, jobs: usize) -> Option<Vec<f64>> {
    let json: Value = serde_json::from_str(&output[output.find('{')?..]).ok()?;
    let direction = match case.operation {
        Operation::Write => "write",
        Operation::Read => "read",
    };
    let rate = |job: &Value| {
        let operations = job[direction]["total_ios"].as_f64()?;
        let seconds = job[direction]["runtime"].as_f64()? / 1e3;
        (seconds > 0.0).then(|| case.rate(operations, seconds))
    };
    let rates: Vec<f64> = json["jobs"].as_array()?.iter().map(rate).collect::<Option<_>>()?;
    (rates.len() == jobs).then_some(rates)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::contestants::Section;

    #[test]
    fn rates_from_json() {
        let case = &Case::all(Section::Fio)[0];
        let output = "fio: a warning\n{\"jobs\":[{\"write\":{\"total_ios\":4000,\"runtime\":500}},\
                      {\"write\":{\"total_ios\":1000,\"runtime\":1000}}]}";
        assert_eq!(rates(output, case, 2), Some(vec![8.0, 1.0]));
        assert_eq!(rates(output, case, 3), None, "a job is missing");
        assert_eq!(rates("fio: no", case, 1), None);
        assert_eq!(
            rates("{\"jobs\":[{\"write\":{\"total_ios\":1,\"runtime\":0}}]}", case, 1),
            None
        );
    }
}
