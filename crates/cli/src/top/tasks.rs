//! Busiest threads and files of a pool: what its server counts, asked for as long as somebody looks.

use crate::control::client::unexpected;
use crate::control::kept::{Kept, Unanswered};
use crate::control::protocol::{Outcome, Request};
use crate::control::{To, hint};
use crate::mountinfo::Device;
use homenode::tasks::{PoolTasks, TaskBytes};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

const PERIOD: Duration = Duration::from_secs(1);

/// Threads that move bytes with a pool. Nobody asks any more when this is dropped.
#[derive(Debug)]
pub(super) struct Tasks {
    pub(super) device: Device,
    told: Arc<Mutex<Told>>,
}

/// Who moved how much in the last period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// The busiest first.
    pub(super) threads: Vec<Busy>,
    /// Inodes of the files with which these threads move most, with bytes a second; the busiest first.
    pub(super) files: Vec<(u64, u64)>,
    /// Data that is missing, and why.
    pub(super) unseen: Vec<String>,
    /// Two answers have come.
    pub(super) is_known: bool,
}

/// A thread that moved bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Busy {
    pub(super) thread: u32,
    /// Its name; empty when it has ended.
    pub(super) name: String,
    /// Bytes a second.
    pub(super) rate: u64,
    /// Bytes a second by home, the greatest first.
    pub(super) homes: Vec<(u16, u64)>,
    /// Inode of the file of which it moved most.
    pub(super) file: Option<u64>,
}

impl Tasks {
    /// Asks the server of a device from now on.
    pub(super) fn of(device: Device) -> Self {
        let told = Arc::new(Mutex::new(Told::default()));
        let weak = Arc::downgrade(&told);
        let spawned = thread::Builder::new()
            .name("tasks".into())
            .spawn(move || follow(device, &weak));
        if let Err(error) = spawned {
            told.lock().unseen.push(format!("threads: {error}"));
        }
        Self { device, told }
    }

    /// A picture without a server.
    #[cfg(test)]
    pub(super) fn told_by(device: Device, told: Told) -> Self {
        let told = Arc::new(Mutex::new(told));
        Self { device, told }
    }

    pub(super) fn told(&self) -> Told {
        self.told.lock().clone()
    }
}

fn follow(device: Device, told: &Weak<Mutex<Told>>) {
    let (mut before, mut server) = (None::<PoolTasks>, Kept::new(device));
    while let Some(told) = told.upgrade() {
        match ask(&mut server) {
            Ok(tasks) => {
                let is_newer = |earlier: &&PoolTasks| tasks.counted_ms > earlier.counted_ms;
                if let Some(earlier) = before.as_ref().filter(is_newer) {
                    *told.lock() = between(earlier, &tasks, &name_of);
                }
                // The server has counted nothing since.
                if before.as_ref().is_none_or(|earlier| is_newer(&earlier)) {
                    before = Some(tasks);
                }
            }
            Err(why) => {
                *told.lock() = Told {
                    unseen: vec![why],
                    ..Told::default()
                };
            }
        }
        drop(told);
        thread::sleep(PERIOD);
    }
}

fn ask(server: &mut Kept) -> Result<PoolTasks, String> {
    match server.ask(&Request::Tasks) {
        Ok(Outcome::Tasks(tasks)) => Ok(tasks),
        Ok(other) => Err(unexpected(&other).to_string()),
        Err(Unanswered::Gone) => Err("the server has ended".to_owned()),
        Err(Unanswered::Unreachable(error)) => Err(format!("{error}{}", hint(&error, To::Change))),
        Err(Unanswered::Silent(why) | Unanswered::Late(why)) => Err(why),
    }
}

fn name_of(thread: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
    name.trim_end()
        .chars()
        .map(|one| if one.is_control() { '?' } else { one })
        .collect()
}

/// Bytes that were moved between two answers.
fn between(before: &PoolTasks, after: &PoolTasks, name_of: &dyn Fn(u32) -> String) -> Told {
    let earlier: BTreeMap<_, _> = before
        .threads
        .iter()
        .map(|task| ((task.thread, task.started), task))
        .collect();
    let span_ms = after.counted_ms.saturating_sub(before.counted_ms).max(1);
    let rate = |bytes: u64| u64::try_from(u128::from(bytes) * 1000 / u128::from(span_ms)).unwrap_or(u64::MAX);
    let mut files: BTreeMap<u64, u64> = BTreeMap::new();
    let busy = |task: &TaskBytes| {
        let before = earlier.get(&(task.thread, task.started));
        let earlier = |node: u16| {
            let mut homes = before.into_iter().flat_map(|task| &task.homes);
            homes.find(|(home, _)| *home == node).map_or(0, |(_, bytes)| *bytes)
        };
        let homes = task.homes.iter();
        let homes = homes.map(|&(node, bytes)| (node, rate(bytes.saturating_sub(earlier(node)))));
        let mut homes: Vec<_> = homes.filter(|(_, rate)| *rate > 0).collect();
        homes.sort_by_key(|(node, rate)| (Reverse(*rate), *node));
        let rate = homes.iter().map(|(_, rate)| rate).sum();
        if rate > 0 {
            task.files
                .iter()
                .for_each(|(file, rate)| *files.entry(*file).or_default() += rate);
        }
        (rate > 0).then(|| Busy {
            thread: task.thread,
            name: name_of(task.thread),
            rate,
            homes,
            file: task.files.iter().max_by_key(|(_, rate)| *rate).map(|(file, _)| *file),
        })
    };
    let mut threads: Vec<Busy> = after.threads.iter().filter_map(busy).collect();
    threads.sort_by_key(|busy| (Reverse(busy.rate), busy.thread));
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_by_key(|(file, rate)| (Reverse(*rate), *file));
    Told {
        threads,
        files,
        unseen: after
            .unseen
            .iter()
            .map(|(what, why)| format!("{what}: {why}"))
            .collect(),
        is_known: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(thread: u32, started: u64, homes: &[(u16, u64)], files: &[(u64, u64)]) -> TaskBytes {
        TaskBytes {
            thread,
            started,
            homes: homes.to_vec(),
            files: files.to_vec(),
        }
    }

    #[test]
    fn threads_are_told_by_what_they_moved_since_the_last_answer() {
        let of = |counted_ms, threads| PoolTasks {
            counted_ms,
            threads,
            ..PoolTasks::default()
        };
        let before = of(
            5000,
            vec![
                task(1, 1, &[(0, 100), (1, 50)], &[(7, 100), (8, 50)]),
                task(2, 1, &[(0, 900)], &[]),
                // Its number is another thread's afterwards.
                task(3, 1, &[(0, 1000)], &[(9, 1000)]),
            ],
        );
        let after = of(
            7000,
            vec![
                task(1, 1, &[(0, 300), (1, 1050)], &[(7, 300), (8, 1050)]),
                task(2, 1, &[(0, 900)], &[]),
                task(3, 2, &[(0, 600)], &[(9, 600)]),
            ],
        );
        let told = between(&before, &after, &|thread| format!("t{thread}"));
        assert_eq!(told.files, [(8, 1050), (9, 600), (7, 300)]);
        let expected = [
            (1, "t1", 600, vec![(1, 500), (0, 100)], Some(8)),
            (3, "t3", 300, vec![(0, 300)], Some(9)),
        ];
        let told: Vec<_> = told
            .threads
            .iter()
            .map(|busy| (busy.thread, &*busy.name, busy.rate, busy.homes.clone(), busy.file))
            .collect();
        assert_eq!(told, expected);
    }
}
