//! How a filesystem is mounted and served.

/// Choices of a mount; `Options::default()` is what `homenode up` takes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// What /proc/mounts shows as the mounted thing.
    pub source: String,
    /// Server threads; `None`: one for each CPU this process may use, and at least two, so that one long request
    /// does not hold up the rest.
    pub threads: Option<usize>,
    /// How far the kernel reads ahead of a sequential reader, in bytes (0: the kernel's default of 128 KiB).
    pub read_ahead_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            source: "homenode".to_owned(),
            threads: None,
            read_ahead_bytes: 1 << 20,
        }
    }
}

impl Options {
    /// Threads to start.
    pub(crate) fn thread_count(&self) -> usize {
        const THREADS_MIN: usize = 2;
        let allowed = || {
            std::thread::available_parallelism()
                .map_or(THREADS_MIN, usize::from)
                .max(THREADS_MIN)
        };
        self.threads.unwrap_or_else(allowed).max(1)
    }
}
