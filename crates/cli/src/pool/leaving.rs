//! Servers that have no mount any more, and put their pool away: umount(8) does not wait for them.

use crate::control::client::Connection;
use crate::holders;
use crate::mountinfo::{MountEntry, mounts};
use homenode::Error;
use homenode_linux::memory::MemberFileError;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for such a server: a large cache is written to slow disks.
const TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// Attempts something with the members of a pool, again and again while such a server has one of them.
pub(crate) fn wait<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let end = Instant::now() + TIMEOUT;
    let mut is_told = false;
    loop {
        let error = match attempt() {
            Err(error) => error,
            done => return done,
        };
        let Error::MemberFile(MemberFileError::InUse { path, .. }) = &error else {
            return Err(error);
        };
        match holder(path) {
            // It has let go meanwhile.
            Holder::Nobody => return attempt(),
            Holder::Leaving(name) if Instant::now() < end => {
                if !is_told {
                    complain!("homenode: waiting for {name}, which has a member of the pool and no mount here");
                    is_told = true;
                }
                thread::sleep(PAUSE);
            }
            _ => return Err(error),
        }
    }
}

enum Holder {
    Nobody,
    /// A server of which no mount is left.
    Leaving(String),
    Other,
}

fn holder(path: &Path) -> Holder {
    // A disk's may be a link.
    let holders = holders::of_lock(&std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()));
    let serving = || {
        let mounts = mounts().unwrap_or_default();
        let served = mounts.into_iter().filter(MountEntry::is_homenode);
        let pids = served.filter_map(|mount| Connection::open(mount.device).ok()?.server());
        pids.map(|pid| format!("homenode ({})", pid.as_raw_nonzero()))
            .collect::<Vec<_>>()
    };
    match holders.first() {
        None => Holder::Nobody,
        Some(name) if name.starts_with("homenode (") && !serving().contains(name) => Holder::Leaving(name.clone()),
        Some(_) => Holder::Other,
    }
}
