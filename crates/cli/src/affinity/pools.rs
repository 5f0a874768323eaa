//! Pools on this machine: what their servers tell of the threads that use them, and files that come to these.
//!
//! Every server with a socket is asked once a period, and has [`ANSWER_TIME`] to answer; one that needs longer is not asked anew before it has,
//! and is not waited for meanwhile. A server is believed about threads of its own user only, unless it is root's ([`seen_by`]): so nobody has another's threads
//! moved by what a server of his claims. Its files it can only move itself.

use crate::control::client::{ConnectError, Connection};
use crate::control::kept::{Kept, Unanswered};
use crate::control::protocol::{Outcome, Request};
use crate::control::tasks::{owner, seen_by};
use crate::control::{To, devices, hint};
use crate::mountinfo::{Device, mounts, shown};
use crate::topology::human_bytes;
use homenode_linux::affinity::{Ask, PoolTasks};
use homenode_policy::affinity::{FileId, MoveFile};
use std::collections::HashMap;
use std::time::Duration;

/// Time that a server has to answer. It needs some milliseconds.
const ANSWER_TIME: Duration = Duration::from_millis(300);
/// Threads that are looked at of one pool: a server tells no more.
const THREADS_MAX: usize = 8192;
/// Files that are looked at of one pool.
const FILES_MAX: usize = 64;
/// Silence of a server that moves a file and tells how far it is: then it is frozen, or hangs.
const SILENCE_MAX: Duration = Duration::from_secs(60);
const BUFFERS: &str = "bytes of threads in memory of pools";

/// A way to ask all servers, again and again.
pub(crate) fn ask() -> Ask {
    let mut servers: HashMap<Device, Kept> = HashMap::new();
    Box::new(move || {
        let devices = match devices() {
            Ok(devices) => devices,
            Err(failure) => return vec![unanswered(None, &failure.to_string())],
        };
        servers.retain(|device, _| devices.contains(device));
        let answers = devices.into_iter().filter_map(|device| {
            let server = servers.entry(device).or_insert_with(|| Kept::with(device, ANSWER_TIME));
            of_pool(device, server)
        });
        answers.collect()
    })
}

/// Asks the server of one pool; none where nobody serves it.
fn of_pool(device: Device, server: &mut Kept) -> Option<PoolTasks> {
    let why = match server.ask(&Request::Tasks) {
        Ok(Outcome::Tasks(tasks)) => {
            return Some(PoolTasks {
                pool: (device.major, device.minor),
                answered: true,
                ..believed(tasks, server.user()?, owner)
            });
        }
        Ok(_) => "its server has answered something else".to_owned(),
        // It has ended, or was killed.
        Err(Unanswered::Gone) => return None,
        Err(Unanswered::Unreachable(error)) => format!("{error}{}", hint(&error, To::Change)),
        Err(Unanswered::Late(_)) => "its server has not answered in time".to_owned(),
        Err(Unanswered::Silent(why)) => why,
    };
    Some(unanswered(Some(device), &why))
}

fn unanswered(device: Option<Device>, why: &str) -> PoolTasks {
    let why = device.map_or_else(|| why.to_owned(), |device| format!("{}: {why}", place(device)));
    PoolTasks {
        pool: device.map_or((0, 0), |device| (device.major, device.minor)),
        unseen: vec![(BUFFERS.to_owned(), why)],
        ..PoolTasks::default()
    }
}

/// Leaves what a server of user `uid` is believed about.
fn believed(mut tasks: PoolTasks, uid: u32, owner: impl Fn(u32) -> Option<u32>) -> PoolTasks {
    tasks.threads.truncate(THREADS_MAX);
    let mut tasks = seen_by(tasks, Some(uid), owner);
    tasks.files.truncate(FILES_MAX);
    tasks.threads.iter_mut().for_each(|task| task.files.truncate(FILES_MAX));
    if uid != 0 {
        // Words of a user's choice, in the log of root.
        tasks.unseen.clear();
    }
    tasks
}

/// Outcome for a file: the bytes moved, or why it stays.
pub(super) type FileMoved = Result<u64, String>;

/// Tells the outcome in words.
pub(super) fn moved_text(moved: &FileMoved) -> String {
    match moved {
        Ok(bytes) => format!("moved {}", human_bytes(*bytes)),
        Err(why) => format!("not moved: {why}"),
    }
}

/// Asks a pool's server to move a file.
pub(super) fn move_file(one: &MoveFile) -> FileMoved {
    let device = device(one.file);
    let connection = Connection::open(device).map_err(|error| match error {
        ConnectError::Dead => "its server has ended".to_owned(),
        ConnectError::Other(error) => format!("{error}{}", hint(&error, To::Change)),
    })?;
    let mut connection = connection.with_silence_max(SILENCE_MAX);
    let request = Request::FileMove {
        inode: one.file.inode,
        node: one.to.0,
    };
    match connection.request(&request, &mut |_, _| {}) {
        Ok(Outcome::Moved { bytes }) => Ok(bytes),
        Ok(other) => Err(crate::control::client::unexpected(&other).to_string()),
        Err(error) => Err(crate::failure::Failure::from(error).to_string()),
    }
}

/// `file 17 of /mnt`, as `find /mnt -inum 17` finds it; of a machine that was recorded, `file 17 of pool 0:45`.
pub(super) fn file_name(file: FileId, is_live: bool) -> String {
    match is_live {
        true => format!("file {} of {}", file.inode, place(device(file))),
        false => file.to_string(),
    }
}

fn device(file: FileId) -> Device {
    let (major, minor) = file.pool;
    Device { major, minor }
}

/// Where a pool is mounted, or its device number.
fn place(device: Device) -> String {
    let mounts = mounts().unwrap_or_default();
    let mount = mounts
        .iter()
        .find(|mount| mount.device == device && mount.is_homenode());
    mount.map_or_else(
        || format!("pool {}:{}", device.major, device.minor),
        |mount| shown(&mount.mount_point),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use homenode_linux::affinity::{FilePlace, TaskBytes};

    fn task(thread: u32) -> TaskBytes {
        TaskBytes {
            thread,
            started: 5,
            homes: vec![(2, 1 << 40)],
            files: vec![(u64::from(thread), 1 << 30)],
        }
    }

    fn tasks(threads: &[u32]) -> PoolTasks {
        PoolTasks {
            threads: threads.iter().copied().map(task).collect(),
            unseen: vec![("all".to_owned(), "for fun".to_owned())],
            files: threads
                .iter()
                .map(|thread| FilePlace {
                    inode: u64::from(*thread),
                    homes: vec![(2, 1)],
                })
                .collect(),
            ..PoolTasks::default()
        }
    }

    #[test]
    fn a_users_server_may_report_only_threads_of_that_user() {
        // Thread 1 is root's, 2 and 3 are of user 1000, 4 of user 1001; 5 has ended.
        let owner = |thread: u32| [0, 1000, 1000, 1001].get(thread as usize - 1).copied();
        let numbers = |tasks: &PoolTasks| tasks.threads.iter().map(|task| task.thread).collect::<Vec<_>>();
        let claimed = tasks(&[1, 2, 3, 4, 5]);
        let users = believed(claimed.clone(), 1000, owner);
        assert_eq!(numbers(&users), [2, 3]);
        assert_eq!(users.files.iter().map(|file| file.inode).collect::<Vec<_>>(), [2, 3]);
        assert!(users.unseen.is_empty());
        assert!(believed(claimed.clone(), 1002, owner).threads.is_empty());
        assert_eq!(believed(claimed.clone(), 0, owner), claimed);
        let many: Vec<u32> = (1..500).collect();
        assert_eq!(believed(tasks(&many), 0, owner).files.len(), FILES_MAX);
        let mut long = tasks(&[1]);
        long.threads[0].files = vec![(1, 1); 500];
        assert_eq!(believed(long, 0, owner).threads[0].files.len(), FILES_MAX);
    }
}
