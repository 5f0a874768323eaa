//! Names and numbers as a person reads them.

pub(crate) use crate::failure::plain;
use homenode_linux::affinity::Unseen;
use homenode_linux::affinity::act::conflicts::Conflict;
use homenode_policy::affinity::{Snapshot, Target, Thread};

/// `1 thread`, `2 threads`.
pub(crate) fn count(count: usize, name: &str) -> String {
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

/// `3.0 s`.
pub(crate) fn seconds(ns: u64) -> String {
    let tenths = (ns + 50_000_000) / 100_000_000;
    format!("{}.{} s", tenths / 10, tenths % 10)
}

/// Bytes of a period, as bytes a second: `412.0 MB/s`.
pub(super) fn rate(bytes: u64, period_ns: u64) -> String {
    let per_second = u128::from(bytes) * 1_000_000_000 / u128::from(period_ns.max(1));
    let tenths = per_second / 100_000;
    format!("{}.{} MB/s", tenths / 10, tenths % 10)
}

/// `thread 4711 (reader of datanode)`, `interrupt 38 (virtio2-input.0)`.
pub(super) fn name(snapshot: &Snapshot, target: &Target) -> String {
    match name_alone(snapshot, target) {
        Some(name) => plain(&format!("{target} ({name})")),
        None => plain(&target.to_string()),
    }
}

/// The name that a thread or an interrupt has besides its number.
pub(super) fn name_alone(snapshot: &Snapshot, target: &Target) -> Option<String> {
    match target {
        Target::Thread(id) => {
            let found = snapshot.threads.binary_search_by_key(id, |thread| thread.id).ok()?;
            Some(of_thread(&snapshot.threads[found]))
        }
        Target::Interrupt(number) => {
            let interrupts = &snapshot.interrupts;
            let found = interrupts.binary_search_by_key(number, |interrupt| interrupt.number);
            Some(interrupts[found.ok()?].name.clone())
        }
        Target::Transmit { .. } | Target::Receive { .. } => None,
    }
}

/// `reader of datanode`, or `fio` where both have the same name.
pub(super) fn of_thread(thread: &Thread) -> String {
    if thread.name == thread.process_name {
        thread.name.clone()
    } else {
        format!("{} of {}", thread.name, thread.process_name)
    }
}

/// Other programs that set the same, under a heading; nothing where there are none.
pub(super) fn others(conflicts: &[Conflict]) -> String {
    if conflicts.is_empty() {
        return String::new();
    }
    let lines = conflicts.iter().map(|one| format!("  {}\n", plain(&one.to_string())));
    "other programs that set the same:\n".to_owned() + &lines.collect::<String>()
}

/// A line each, under a heading; nothing where all was seen.
pub(crate) fn unseen(unseen: &[Unseen]) -> String {
    if unseen.is_empty() {
        return String::new();
    }
    let lines = unseen.iter().map(|one| format!("  {}\n", plain(&one.to_string())));
    "could not be seen:\n".to_owned() + &lines.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(seconds(2_960_000_000), "3.0 s");
        assert_eq!(seconds(40_000_000), "0.0 s");
        assert_eq!(rate(450_000_000, 1_500_000_000), "300.0 MB/s");
        assert_eq!(rate(u64::MAX, 1), "18446744073709551615000.0 MB/s");
        assert_eq!(
            (count(1, "thread"), count(0, "thread")),
            ("1 thread".to_owned(), "0 threads".to_owned())
        );
    }
}
