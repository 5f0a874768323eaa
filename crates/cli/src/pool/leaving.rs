//! Servers that have no mount any more, and put their pool away: umount(8) does not wait for them.

use crate::control::client::Connection;
use crate::holders;
use crate::mountinfo::mounts;
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
    loop {
        match attempt() {
            Err(Error::MemberFile(MemberFileError::InUse { path, .. }))
                if Instant::now() < end && is_of_leaving(&path) =>
            {
                thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}

/// Whether a server has the file, and no mount that is seen here is its own.
fn is_of_leaving(path: &Path) -> bool {
    let mounts = mounts().unwrap_or_default();
    let served = mounts.iter().filter(|mount| mount.is_homenode());
    let serving: Vec<_> = served
        .filter_map(|mount| Connection::open(mount.device).ok()?.server())
        .map(|pid| format!("homenode ({})", pid.as_raw_nonzero()))
        .collect();
    let holders = [holders::of_lock, holders::of_file].map(|of| of(path)).concat();
    let is_leaving = |holder: &&String| holder.starts_with("homenode (") && !serving.contains(holder);
    holders.iter().any(|holder| is_leaving(&holder))
}
