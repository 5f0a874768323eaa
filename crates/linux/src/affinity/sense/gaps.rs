//! Parts of a machine that cannot be seen, and why: sensing goes on without them, and says so.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;

/// Something that a snapshot does not have because it cannot be seen.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Unseen {
    /// Missing data: `disk bytes of threads`.
    pub what: String,
    /// Why, and what would help.
    pub why: String,
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

/// Collects them in one pass: what fails alike is told once.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    told: Vec<Unseen>,
    unreadable: BTreeMap<(&'static str, i32), (usize, String)>,
}

impl Gaps {
    pub(super) fn tell(&mut self, what: &str, why: &str) {
        self.told.push(Unseen {
            what: what.to_owned(),
            why: why.to_owned(),
        });
    }

    /// A file that is needed for `what` gave an error. One that has vanished with its thread or device leaves no gap.
    pub(super) fn unreadable(&mut self, what: &'static str, path: impl AsRef<Path>, error: &io::Error) {
        if has_vanished(error) {
            return;
        }
        let key = (what, error.raw_os_error().unwrap_or(0));
        let path = || path.as_ref().display().to_string();
        let (count, _) = self.unreadable.entry(key).or_insert_with(|| (0, path()));
        *count += 1;
    }

    pub(super) fn finish(self) -> Vec<Unseen> {
        let unreadable = self.unreadable.into_iter().map(|((what, errno), (count, path))| {
            let others = match count - 1 {
                0 => String::new(),
                others => format!(" and {others} more"),
            };
            let reason = match errno {
                0 => "it cannot be understood".to_owned(),
                errno => io::Error::from_raw_os_error(errno).to_string(),
            };
            let remedy = if errno == libc::EACCES || errno == libc::EPERM {
                "; root may read them"
            } else {
                ""
            };
            Unseen {
                what: what.to_owned(),
                why: format!("cannot read /{path}{others}: {reason}{remedy}"),
            }
        });
        self.told.into_iter().chain(unreadable).collect()
    }
}

/// Threads end and devices leave between the look at a directory and the look at what is in it.
pub(in crate::affinity) fn has_vanished(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENODEV)) || error.kind() == io::ErrorKind::NotFound
}
