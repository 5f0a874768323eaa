//! The cases of the fs bench and their names: SIZE/OP/THREADS/FILES, such as `4k/first/2t/same`.

/// Block sizes that are measured, with the names they have in cases.
pub(super) const SIZES: [(&str, usize); 7] = [
    ("1k", 1 << 10),
    ("4k", 4 << 10),
    ("16k", 16 << 10),
    ("64k", 64 << 10),
    ("256k", 256 << 10),
    ("1m", 1 << 20),
    ("2m", 2 << 20),
];

/// Operation on the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Writes to an empty file that was only extended: every block is placed by this write.
    First,
    /// Writes to blocks that hold data.
    Overwrite,
    /// Reads blocks that hold data.
    Read,
}

impl Operation {
    pub(super) const ALL: [Self; 3] = [Self::First, Self::Overwrite, Self::Read];

    /// Returns the operation's name in the name of a case.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Overwrite => "overwrite",
            Self::Read => "read",
        }
    }
}

/// How threads share files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Files {
    /// A single file, each thread in a part of its own.
    Same,
    /// A file for each thread.
    Separate,
}

/// How many threads, on which files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) threads: usize,
    pub(super) files: Files,
}

impl Layout {
    /// All that are measured. With one thread `same` and `separate` are the same work under two names.
    pub(super) const ALL: [Self; 4] = [
        Self {
            threads: 1,
            files: Files::Same,
        },
        Self {
            threads: 1,
            files: Files::Separate,
        },
        Self {
            threads: 2,
            files: Files::Same,
        },
        Self {
            threads: 2,
            files: Files::Separate,
        },
    ];

    /// Number of files that are touched: the first ones of the set.
    pub(super) fn file_count(self) -> usize {
        match self.files {
            Files::Same => 1,
            Files::Separate => self.threads,
        }
    }

    /// For each thread its file and the part of that file, in bytes from the start, that is its own.
    pub(super) fn parts(self, file_bytes: usize) -> Vec<Part> {
        let part = |thread| match self.files {
            Files::Same => {
                let bytes = file_bytes / self.threads;
                Part {
                    file: 0,
                    start: thread * bytes,
                    bytes,
                }
            }
            Files::Separate => Part {
                file: thread,
                start: 0,
                bytes: file_bytes,
            },
        };
        (0..self.threads).map(part).collect()
    }
}

/// Part of a file that belongs to one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) file: usize,
    pub(super) start: usize,
    pub(super) bytes: usize,
}

/// The name of a case.
pub(super) fn name(size: &str, operation: Operation, layout: Layout) -> String {
    let files = match layout.files {
        Files::Same => "same",
        Files::Separate => "separate",
    };
    format!("{size}/{}/{}t/{files}", operation.name(), layout.threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_never_overlap_and_cover_the_files() {
        for layout in Layout::ALL {
            let parts = layout.parts(8 << 20);
            assert_eq!(parts.len(), layout.threads);
            assert_eq!(
                parts.iter().map(|part| part.bytes).sum::<usize>(),
                layout.file_count() * (8 << 20)
            );
            let mut starts: Vec<_> = parts.iter().map(|part| (part.file, part.start)).collect();
            starts.dedup();
            assert_eq!(starts.len(), layout.threads);
        }
    }

    #[test]
    fn names_are_size_operation_threads_files() {
        let layout = Layout {
            threads: 2,
            files: Files::Same,
        };
        assert_eq!(name("4k", Operation::First, layout), "4k/first/2t/same");
    }
}
