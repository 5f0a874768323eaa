//! Threads that somebody may be told of, and believed about: all for root, else those of the same user.

use homenode_linux::affinity::PoolTasks;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// User of a thread; none where it is not there, or hidden from us. That of a program with privileges of its own is root.
pub(crate) fn owner(thread: u32) -> Option<u32> {
    Some(fs::metadata(format!("/proc/{thread}")).ok()?.uid())
}

/// Leaves what the user `uid` may be told, nothing for one that is not known: of threads of others, and of files that only they use, not even
/// the numbers.
pub(crate) fn seen_by(mut tasks: PoolTasks, uid: Option<u32>, owner: impl Fn(u32) -> Option<u32>) -> PoolTasks {
    if uid == Some(0) {
        return tasks;
    }
    tasks
        .threads
        .retain(|task| uid.is_some_and(|uid| owner(task.thread) == Some(uid)));
    let used = tasks.threads.iter().flat_map(|task| &task.files);
    let used: BTreeSet<u64> = used.map(|(inode, _)| *inode).collect();
    tasks.files.retain(|file| used.contains(&file.inode));
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;
    use homenode_linux::affinity::{FilePlace, TaskBytes};

    #[test]
    fn users_see_only_their_own_threads() {
        let task = |thread, file| TaskBytes {
            thread,
            files: vec![(file, 1)],
            ..TaskBytes::default()
        };
        let place = |inode| FilePlace {
            inode,
            homes: Vec::new(),
        };
        let all = PoolTasks {
            threads: vec![task(1, 10), task(2, 20), task(3, 20), task(4, 30)],
            files: vec![place(10), place(20), place(30)],
            ..PoolTasks::default()
        };
        let owner = |thread: u32| (thread < 4).then_some(if thread == 1 { 0 } else { 997 + thread });
        let seen = |uid| {
            let seen = seen_by(all.clone(), uid, owner);
            let threads: Vec<u32> = seen.threads.iter().map(|task| task.thread).collect();
            let files: Vec<u64> = seen.files.iter().map(|file| file.inode).collect();
            (threads, files)
        };
        assert_eq!(seen(Some(0)), (vec![1, 2, 3, 4], vec![10, 20, 30]));
        assert_eq!(seen(Some(999)), (vec![2], vec![20]));
        assert_eq!(seen(Some(1000)), (vec![3], vec![20]));
        assert_eq!(seen(Some(1)), (vec![], vec![]));
        assert_eq!(seen(None), (vec![], vec![]));
    }

    #[test]
    fn existing_threads_have_an_owner() {
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(super::owner(std::process::id()), Some(own));
        assert_eq!(super::owner(u32::MAX), None);
    }
}
