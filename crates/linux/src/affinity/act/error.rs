//! Why a plan cannot be carried out or taken back at all.

use std::io;
use std::path::{Path, PathBuf};

/// Nothing was changed that is not in the journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another program acts.
    #[error("{} already{}: only one program may do so at a time: stop it first (homenode affinity run, or an apply that is still at work)", who(holder.as_ref()), with(holder.as_ref()))]
    Locked {
        /// Its process and its journal, as far as they are known.
        holder: Option<(u32, PathBuf)>,
    },
    /// A file that this program has not written, or another version of it.
    #[error("{path} is no journal of this version: {problem}: name another file, or revert with the version that wrote it", path = path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Difference from a journal of this version.
        problem: String,
    },
    /// A file without a byte, which this program never leaves.
    #[error("the journal {path} is empty, so it was not written completely: its changes, if any, are not reverted. Remove it to start again", path = path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A journal whose middle is not what was written.
    #[error("{path} is damaged: line {line}: {problem}: none of it was used; old masks in it can still be read by eye. Move it away to start again", path = path.display())]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Fault of the line.
        problem: String,
    },
    /// A journal of this boot whose numbers of threads and names of cards are those of other namespaces.
    #[error("{path} was written in other namespaces ({there}; here: {here}): it names threads and cards of those namespaces: run the command there (nsenter --all --target PROCESS, with a process of there), or name another file", path = path.display())]
    Elsewhere {
        /// The journal.
        path: PathBuf,
        /// The namespaces it was written in.
        there: String,
        /// Namespaces of this process.
        here: String,
    },
    /// The journal cannot be read or written.
    #[error("cannot {what} {path}: {source}{remedy}", path = path.display(), remedy = remedy(source))]
    Journal {
        /// `read`, `write`.
        what: &'static str,
        /// The journal.
        path: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
    /// The lock that keeps two programs from acting on one machine cannot be taken.
    #[error("cannot take the lock of this machine, {path}: {source}: {remedy}", path = path.display(), remedy = machine_remedy(path, source))]
    Machine {
        /// The lock's file.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// Something without which nothing can be done.
    #[error("cannot read {what}: {source}{remedy}", remedy = kernel_remedy(source))]
    Kernel {
        /// Object that cannot be read.
        what: &'static str,
        /// The errno.
        source: io::Error,
    },
}

impl Error {
    pub(super) fn kernel(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Kernel { what, source }
    }
}

fn who(holder: Option<&(u32, PathBuf)>) -> String {
    let process = holder.map_or_else(
        || "another process".to_owned(),
        |(process, _)| format!("process {process}"),
    );
    format!("{process} moves interrupts and threads")
}

fn with(holder: Option<&(u32, PathBuf)>) -> String {
    holder.map_or_else(String::new, |(_, journal)| {
        format!(", with the journal {}", journal.display())
    })
}

/// Returns a remedy that keeps the journal: another journal would not take back the changes in this one.
fn remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => ": run it as root",
        Some(libc::EROFS) => ": make that file system writable",
        Some(libc::ENOSPC | libc::EDQUOT) => ": make room there",
        _ => "",
    }
}

fn machine_remedy(path: &Path, source: &io::Error) -> String {
    let directory = path.parent().unwrap_or(path).display();
    match source.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => format!("make room in {directory}"),
        _ => format!("make {directory} a writable directory, or remove it"),
    }
}

fn kernel_remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => ": run it as root, where nothing of /proc and /sys is hidden from it",
        Some(libc::ENOENT) => ": are /proc and /sys of the machine there?",
        _ => "",
    }
}
