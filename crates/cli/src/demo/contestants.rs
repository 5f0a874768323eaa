//! Contestants and cases of the measurement.

use serde::Serialize;

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Contestant {
    Tmpfs,
    TmpfsHuge,
    /// A mount whose files are the kernel's.
    Kernel,
    /// A program under `homenode run` on that mount.
    Run,
    /// A mount whose bytes are in the pool's blocks.
    Pool,
    Library,
    /// The library, with a pool on a disk, which is in its cache.
    Cached,
}

impl Contestant {
    pub(super) const PEERS: [Self; 2] = [Self::Tmpfs, Self::TmpfsHuge];
    pub(super) const MOUNTS: [Self; 2] = [Self::Kernel, Self::Pool];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::TmpfsHuge => "tmpfs huge=always",
            Self::Kernel => "mount",
            Self::Run => "homenode run",
            Self::Pool => "mount, pool",
            Self::Library => "library",
            Self::Cached => "library, disk",
        }
    }

    /// For a column.
    pub(super) const fn short_name(self) -> &'static str {
        match self {
            Self::TmpfsHuge => "huge",
            other => other.name(),
        }
    }

    pub(super) const fn is_ours(self) -> bool {
        !matches!(self, Self::Tmpfs | Self::TmpfsHuge)
    }
}

/// Rows that are measured in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Section {
    /// fio through the kernel, with its page cache.
    Fio,
    /// fio past the page cache.
    FioDirect,
    /// A loop in the demo's own process.
    InProcess,
    /// rsync of real trees.
    Copy,
}

impl Section {
    pub(super) const ALL: [Self; 4] = [Self::InProcess, Self::Fio, Self::FioDirect, Self::Copy];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Fio => "Any program, through the mount (fio, buffered)",
            Self::FioDirect => "The same past the page cache (fio, O_DIRECT)",
            Self::InProcess => "Inside one process (library calls; pread and pwrite on tmpfs)",
            Self::Copy => "Real trees (rsync -aHAX)",
        }
    }

    /// Returns the explanation of the section's rows for the reader.
    pub(super) const fn note(self) -> &'static str {
        match self {
            Self::Fio => {
                "`mount` is what `homenode up` gives: the kernel reads and writes the files itself, where Homenode has placed them. \
                 `mount, pool` keeps bytes in the pool's blocks, as older kernels do: its writes reach the server, and its reads are \
                 answered by the kernel's page cache, which holds what was written. `homenode run` is `mount` once more, for a program whose \
                 reads and writes at an offset become copies by its own threads."
            }
            Self::FioDirect => {
                "With bytes in the pool's blocks each call crosses the transport to the server and back: this is what the transport \
                 costs. tmpfs and the kernel's files have no cache to go past."
            }
            Self::InProcess => {
                "The same loop for all: threads, random offsets, one buffer each, no fio in between. A library call is a \
                 copy by the calling thread, without a system call. `library, disk` is a durable pool in a file that is reached past \
                 the page cache; all that is read is in the pool's own cache, and what is written is not synced."
            }
            Self::Copy => {
                "Many small files: what counts is the cost of a create, not of a byte. Not on huge=always, where each small \
                 file would first clear 2 MiB."
            }
        }
    }

    /// Who can take part.
    pub(super) const fn contestants(self) -> &'static [Contestant] {
        use Contestant::{Cached, Kernel, Library, Pool, Run, Tmpfs, TmpfsHuge};
        match self {
            Self::Fio => &[Tmpfs, TmpfsHuge, Kernel, Run, Pool],
            Self::FioDirect => &[Tmpfs, TmpfsHuge, Kernel, Pool],
            Self::InProcess => &[Tmpfs, TmpfsHuge, Library, Cached],
            Self::Copy => &[Tmpfs, Kernel, Pool],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Operation {
    Write,
    Read,
}

/// Unit of a row's numbers. More is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Unit {
    /// 10^6 bytes a second.
    #[serde(rename = "MB/s")]
    MegabytesPerSecond,
    /// Thousands of operations a second.
    #[serde(rename = "kIOPS")]
    Kiops,
}

impl Unit {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::MegabytesPerSecond => "MB/s",
            Self::Kiops => "kIOPS",
        }
    }
}

/// Row of the table: the operation, the block size, and the number of threads at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Case {
    pub(super) section: Section,
    pub(super) operation: Operation,
    pub(super) block_bytes: usize,
    pub(super) jobs: usize,
    /// Tree that is copied, for rows of [`Section::Copy`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tree: Option<String>,
}

impl Case {
    /// Every combination of `section`, small blocks first.
    pub(super) fn all(section: Section) -> Vec<Self> {
        let blocks: &[usize] = if section == Section::FioDirect {
            &[4 << 10]
        } else {
            &[4 << 10, 1 << 20]
        };
        let mut cases = Vec::new();
        for &block_bytes in blocks {
            for operation in [Operation::Write, Operation::Read] {
                for jobs in [1, super::JOBS_MAX] {
                    cases.push(Self {
                        section,
                        operation,
                        block_bytes,
                        jobs,
                        tree: None,
                    });
                }
            }
        }
        cases
    }

    pub(super) fn title(&self) -> String {
        if let Some(tree) = &self.tree {
            return format!("copy {tree}");
        }
        let block = if self.block_bytes >= 1 << 20 {
            format!("{}M", self.block_bytes >> 20)
        } else {
            format!("{}k", self.block_bytes >> 10)
        };
        let operation = match self.operation {
            Operation::Write => "write",
            Operation::Read => "read",
        };
        let jobs = if self.jobs == 1 {
            "1 job".to_owned()
        } else {
            format!("{} jobs", self.jobs)
        };
        format!("{block} random {operation}, {jobs}")
    }

    pub(super) fn unit(&self) -> Unit {
        if self.tree.is_none() && self.block_bytes < 1 << 20 {
            Unit::Kiops
        } else {
            Unit::MegabytesPerSecond
        }
    }

    pub(super) fn rate(&self, operations: f64, seconds: f64) -> f64 {
        match self.unit() {
            Unit::Kiops => operations / seconds / 1e3,
            Unit::MegabytesPerSecond => operations * self.block_bytes as f64 / seconds / 1e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_in_the_unit_of_the_row() {
        let cases = Case::all(Section::InProcess);
        assert_eq!(cases.len(), 8);
        assert_eq!(cases[0].title(), "4k random write, 1 job");
        assert_eq!((cases[0].unit(), cases[0].rate(5000.0, 0.5)), (Unit::Kiops, 10.0));
        let large = cases.last().unwrap();
        assert_eq!(large.title(), "1M random read, 2 jobs");
        assert_eq!(large.rate(10.0, 2.0), 5.24288);
        assert!(
            Case::all(Section::FioDirect)
                .iter()
                .all(|case| case.block_bytes == 4096)
        );
    }
}
