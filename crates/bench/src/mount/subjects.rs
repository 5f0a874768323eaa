//! The cases of the mount bench and their names: SUBJECT/OP/CLIENTS/PINNING, such as `4k/direct-read/1c/pinned`.

use super::served::Variant;
use crate::report::size_name;

/// Most operations of one pass: a few dozen milliseconds, so that contestants alternate quickly.
const OPERATIONS_MAX: usize = 1024;
const OPERATIONS_SMOKE: usize = 64;

/// How a file is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) block_bytes: usize,
    /// With `O_DIRECT`; else through the kernel's page cache, which is emptied before each pass.
    pub(super) direct: bool,
    /// In the file's order, else at random.
    pub(super) sequential: bool,
    pub(super) write: bool,
}

/// Operations on files by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// Asks for attributes, of the server even where the kernel knows them.
    Stat,
    OpenClose,
    CreateUnlink,
    /// fsync(2) of a file that has nothing to write back: the request alone.
    Sync,
    /// The first three at random, one as often as another.
    Storm,
}

/// Work of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Transfer(Transfer),
    Names(Names),
}

/// A case: the same work for every contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) work: Work,
    pub(super) clients: usize,
    /// Whether each client is kept on a CPU of its own.
    pub(super) pinned: bool,
}

const KIB_4: usize = 4 << 10;
const KIB_128: usize = 128 << 10;
const MIB_1: usize = 1 << 20;

/// Small buffered writes in the file's order: shows whether a variant is in effect.
pub(super) const SMALL_WRITES: Case = Case {
    work: sequential(KIB_4, false, true),
    clients: 1,
    pinned: true,
};

/// Every case, in the order they run.
pub(super) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut push = |work, clients, pinned| cases.push(Case { work, clients, pinned });
    for write in [false, true] {
        for (clients, pinned) in [(1, true), (1, false), (2, true), (2, false)] {
            push(random(KIB_4, true, write), clients, pinned);
        }
    }
    for write in [false, true] {
        push(random(KIB_128, true, write), 1, true);
    }
    push(random(KIB_4, false, true), 1, true);
    cases.push(SMALL_WRITES);
    let mut push = |work, clients, pinned| cases.push(Case { work, clients, pinned });
    for direct in [true, false] {
        for write in [false, true] {
            push(sequential(MIB_1, direct, write), 1, true);
        }
    }
    for names in [
        Names::Stat,
        Names::OpenClose,
        Names::CreateUnlink,
        Names::Storm,
        Names::Sync,
    ] {
        push(Work::Names(names), 1, true);
    }
    cases
}

const fn random(block_bytes: usize, direct: bool, write: bool) -> Work {
    Work::Transfer(Transfer {
        block_bytes,
        direct,
        sequential: false,
        write,
    })
}

const fn sequential(block_bytes: usize, direct: bool, write: bool) -> Work {
    Work::Transfer(Transfer {
        block_bytes,
        direct,
        sequential: true,
        write,
    })
}

impl Case {
    pub(super) fn name(&self) -> String {
        let pinning = if self.pinned { "pinned" } else { "unpinned" };
        format!("{}/{}c/{pinning}", self.work.name(), self.clients)
    }

    /// Whether a served contestant of this variant differs here from the others.
    pub(super) fn concerns(&self, variant: Variant) -> bool {
        match variant {
            Variant::Uring | Variant::Classic => true,
            Variant::Kernel | Variant::Auto => false,
            Variant::NoKillPrivileges => self.work == random(KIB_4, false, true),
        }
    }
}

impl Work {
    fn name(self) -> String {
        match self {
            Self::Transfer(transfer) => {
                let size = size_name(transfer.block_bytes);
                let order = if transfer.sequential { "sequential-" } else { "" };
                let path = if transfer.direct { "direct" } else { "buffered" };
                let operation = if transfer.write { "write" } else { "read" };
                format!("{size}/{order}{path}-{operation}")
            }
            Self::Names(Names::Stat) => "metadata/stat".to_owned(),
            Self::Names(Names::OpenClose) => "metadata/open-close".to_owned(),
            Self::Names(Names::CreateUnlink) => "metadata/create-unlink".to_owned(),
            Self::Names(Names::Storm) => "metadata/storm".to_owned(),
            Self::Names(Names::Sync) => "metadata/fsync".to_owned(),
        }
    }

    /// Operations of one client in one pass over files of `file_bytes`.
    pub(super) fn operations(self, file_bytes: usize, smoke: bool) -> usize {
        let most = if smoke { OPERATIONS_SMOKE } else { OPERATIONS_MAX };
        match self {
            Self::Transfer(transfer) => most.min(file_bytes / transfer.block_bytes),
            Self::Names(_) => most,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn case_names_are_unique() {
        let cases = all();
        let names: BTreeSet<String> = cases.iter().map(Case::name).collect();
        assert_eq!(names.len(), cases.len());
        for name in [
            "4k/direct-read/1c/pinned",
            "4k/direct-write/2c/unpinned",
            "128k/direct-write/1c/pinned",
            "4k/buffered-write/1c/pinned",
            "1m/sequential-buffered-read/1c/pinned",
            "metadata/storm/1c/pinned",
            "metadata/fsync/1c/pinned",
        ] {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn variants_run_only_in_cases_where_they_differ() {
        let concerned = |variant| -> Vec<String> {
            let cases = all();
            let concerned = cases.iter().filter(|case| case.concerns(variant));
            concerned.map(Case::name).collect()
        };
        assert_eq!(concerned(Variant::Uring).len(), all().len());
        assert_eq!(concerned(Variant::NoKillPrivileges), ["4k/buffered-write/1c/pinned"]);
    }

    #[test]
    fn a_pass_stays_within_the_files_size() {
        for case in all() {
            for (file_bytes, smoke) in [(4 << 20, true), (64 << 20, false)] {
                let operations = case.work.operations(file_bytes, smoke);
                assert!(operations > 0);
                if let Work::Transfer(transfer) = case.work {
                    assert!(operations * transfer.block_bytes <= file_bytes);
                }
            }
        }
    }
}
