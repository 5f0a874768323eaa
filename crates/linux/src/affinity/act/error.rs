//! Why a plan cannot be carried out or taken back at all.

use std::io;
use std::path::PathBuf;

/// Nothing was changed that is not in the journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another program acts.
    #[error("{path} is in use by process {process}: only one program may move interrupts and threads at a time: stop it first (homenode affinity run, or an apply that is still at work)", path = path.display())]
    Locked {
        /// The journal.
        path: PathBuf,
        /// Who has it; as its lock says.
        process: String,
    },
    /// A file that this program has not written, or another version of it.
    #[error("{path} is no journal of this version: {problem}: name another file, or revert with the version that wrote it", path = path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it has instead.
        problem: String,
    },
    /// A journal whose middle is not what was written.
    #[error("{path} is damaged: line {line}: {problem}: nothing of it was used; what it tells of old masks can still be read by eye. Move it away to begin anew", path = path.display())]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// A journal of this boot whose numbers of threads and names of cards are those of other namespaces.
    #[error("{path} was written in other namespaces ({there}; here: {here}): what it names are not the threads and cards of here: run it where it was written", path = path.display())]
    Elsewhere {
        /// The journal.
        path: PathBuf,
        /// The namespaces it was written in.
        there: String,
        /// Those of this process.
        here: String,
    },
    /// The journal cannot be read or written.
    #[error("cannot {what} {path}: {source}: nothing is changed without a journal", path = path.display())]
    Journal {
        /// `read`, `write`.
        what: &'static str,
        /// The journal.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Something without which nothing can be done.
    #[error("cannot read {what}: {source}")]
    Kernel {
        /// What.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Error {
    pub(super) fn kernel(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Kernel { what, source }
    }
}
