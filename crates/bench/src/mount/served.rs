//! A pool mounted and served by a process of its own, as in life: the bench's side of [`super::serve`].
//!
//! The process has a group of its own, so that Ctrl-C reaches the bench only; it ends when its standard input does, so it
//! outlives nobody. Should it die first, what it left mounted is taken away here.

use super::cpu_time::CpuTime;
use crate::error::Error;
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How a pool is mounted and served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// Rings, everything else as `homenode up` has it.
    Uring,
    /// The device, everything else as `homenode up` has it.
    Classic,
    /// Rings, and the kernel collects buffered writes.
    WriteBack,
    /// Rings, and the kernel takes set-uid bits and capabilities from written files, for which it has to ask each time.
    NoKillPrivileges,
}

impl Variant {
    /// The first is what the cases are about; the others are its peers.
    pub(super) const ALL: [Self; 4] = [Self::Uring, Self::Classic, Self::WriteBack, Self::NoKillPrivileges];

    /// Name in tables and JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::Classic => "classic",
            Self::WriteBack => "write-back",
            Self::NoKillPrivileges => "no-killpriv",
        }
    }

    /// Name of its row in a case: the case's own for the variant the cases are about.
    pub(super) fn case(self, case: &str) -> String {
        match self {
            Self::Uring => case.to_owned(),
            other => format!("{case}/{}", other.name()),
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Uring => &["--transport=uring"],
            Self::Classic => &["--transport=classic"],
            Self::WriteBack => &["--transport=uring", "--write-back"],
            Self::NoKillPrivileges => &["--transport=uring", "--no-killpriv"],
        }
    }
}

/// Tells whether the kernel gives rings to servers that want them.
const URING_PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Time for a server to unmount and give its memory back.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const END_POLL: Duration = Duration::from_millis(5);

/// A serving process.
#[derive(Debug)]
pub(super) struct Served {
    variant: Variant,
    directory: PathBuf,
    child: Child,
    /// Closing it ends the process.
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Served {
    /// Starts it; when this returns the mount works.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when this machine has no rings for it; others are failures.
    pub(super) fn start(variant: Variant, pool_bytes: u64, node: u16) -> Result<Self, Error> {
        let unavailable = |reason| Error::Unavailable {
            contestant: variant.name(),
            reason,
        };
        if variant != Variant::Classic {
            uring_allowed(Path::new(URING_PARAMETER)).map_err(unavailable)?;
        }
        let directory = std::env::temp_dir().join(format!("homenode-bench-{}-{}", std::process::id(), variant.name()));
        let program = std::env::current_exe().map_err(|error| Error::system("finding this program", error))?;
        let mut child = Command::new(program)
            .args([
                "serve-mount",
                &format!("--pool-bytes={pool_bytes}"),
                &format!("--node={node}"),
            ])
            .args(variant.arguments())
            .arg(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| Error::system("starting a server of this program", error))?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().expect("it was asked for"));
        let mut served = Self {
            variant,
            directory,
            child,
            to,
            from,
        };
        let line = served.line()?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("ready", chosen) => {
                let (transport, reason) = chosen.split_once(' ').unwrap_or((chosen, ""));
                if (variant == Variant::Classic) == (transport == "classic") {
                    Ok(served)
                } else {
                    Err(unavailable(format!(
                        "it is served by the {transport} transport: {reason}"
                    )))
                }
            }
            (_, reason) => Err(served.failed(io::Error::other(reason.to_owned()))),
        }
    }

    pub(super) fn variant(&self) -> Variant {
        self.variant
    }

    /// Where it is mounted.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// CPU time of the process so far.
    pub(super) fn cpu_time(&self) -> Result<CpuTime, Error> {
        CpuTime::of(self.child.id())
    }

    /// Requests served so far.
    pub(super) fn requests(&mut self) -> Result<u64, Error> {
        let to = self.to.as_mut().expect("it is closed only when this is dropped");
        let asked = to.write_all(b"requests\n");
        asked.map_err(|error| self.failed(error))?;
        let line = self.line()?;
        line.parse().map_err(|error| self.failed(io::Error::other(error)))
    }

    fn line(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        match self.from.read_line(&mut line) {
            Ok(0) => Err(self.failed(io::Error::other("it has ended"))),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::system(format!("the server of the {} mount", self.variant.name()), error)
    }

    /// Whether the process has ended by itself within the timeout.
    fn ends(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < END_TIMEOUT {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return true;
            }
            thread::sleep(END_POLL);
        }
        false
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.to = None;
        if !self.ends() {
            eprintln!(
                "homenode-bench: {}",
                self.failed(io::Error::other("it does not end: it is killed"))
            );
            // Fails only if it has ended after all.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if self.directory.exists() || is_dead(&self.directory) {
            // EINVAL when it was not mounted.
            let _ = unmount(&self.directory, UnmountFlags::DETACH | UnmountFlags::FORCE);
            if let Err(error) = fs::remove_dir(&self.directory) {
                eprintln!("homenode-bench: removing {}: {error}", self.directory.display());
            }
        }
    }
}

/// Whether something is mounted there that nobody serves any more.
fn is_dead(directory: &Path) -> bool {
    fs::metadata(directory).is_err_and(|error| error.kind() != io::ErrorKind::NotFound)
}

/// Whether the parameter lets servers have rings; if not, why, and what to do.
fn uring_allowed(parameter: &Path) -> Result<(), String> {
    let path = parameter.display();
    match fs::read_to_string(parameter).as_deref().map(str::trim) {
        Ok("Y" | "1") => Ok(()),
        Ok(value) => Err(format!(
            "{path} is {value}: to enable FUSE over io_uring, echo Y > {path}"
        )),
        Err(error) => Err(format!(
            "{path}: {error}: FUSE over io_uring is in Linux 6.14 and newer, with CONFIG_FUSE_IO_URING"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_variant_has_the_name_of_the_case() {
        assert_eq!(Variant::ALL[0].case("4k/a"), "4k/a");
        assert_eq!(Variant::Classic.case("4k/a"), "4k/a/classic");
    }

    #[test]
    fn a_kernel_that_gives_no_rings_is_told_with_the_remedy() {
        let parameter = std::env::temp_dir().join(format!("homenode-bench-uring-{}", std::process::id()));
        let missing = uring_allowed(&parameter).unwrap_err();
        assert!(missing.contains("6.14"), "{missing}");
        fs::write(&parameter, "N\n").expect("a temporary file");
        let refused = uring_allowed(&parameter).unwrap_err();
        assert!(refused.contains("echo Y > "), "{refused}");
        fs::write(&parameter, "Y\n").expect("a temporary file");
        assert!(uring_allowed(&parameter).is_ok());
        fs::remove_file(&parameter).expect("we made it");
    }
}
