//! Whose a device is: the driver keeps a number for its server, and so for whoever comes after it. From the highest bit on: `HN`,
//! the server's process, and when that was started, so that another process of its number is not taken for it.

use crate::process::start_ticks;

const MAGIC: u64 = 0x484e;
/// Linux has no larger process numbers.
const PID_BITS: u32 = 22;
const START_BITS: u32 = 26;
const _: () = assert!(16 + PID_BITS + START_BITS == u64::BITS);

/// The mark of this process's devices.
pub(super) fn own() -> u64 {
    of(std::process::id(), start_ticks(std::process::id()).unwrap_or(0))
}

/// Whether a server like this one made the device.
pub(super) fn is_ours(mark: u64) -> bool {
    mark >> (PID_BITS + START_BITS) == MAGIC
}

/// Whether a server like this one made the device, and has ended.
pub(super) fn is_of_the_dead(mark: u64) -> bool {
    if !is_ours(mark) {
        return false;
    }
    let pid = u32::try_from(mark >> START_BITS & ((1 << PID_BITS) - 1)).expect("PID_BITS is 22");
    start_ticks(pid).is_none_or(|start| of(pid, start) != mark)
}

fn of(pid: u32, start_ticks: u64) -> u64 {
    let pid = u64::from(pid) & ((1 << PID_BITS) - 1);
    let start = start_ticks & ((1 << START_BITS) - 1);
    MAGIC << (PID_BITS + START_BITS) | pid << START_BITS | start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_live_processes_are_not_dead() {
        assert!(!is_of_the_dead(own()), "this process lives");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        let mark = of(pid, start_ticks(pid).unwrap());
        assert!(!is_of_the_dead(mark), "a zombie counts as alive");
        child.wait().unwrap();
        assert!(is_of_the_dead(mark));
        // A process of that number that was started at another time.
        assert!(is_of_the_dead(own() ^ 1));
        // Other people's.
        for foreign in [0, 1, mark ^ 1 << 63, u64::MAX, u64::from(pid)] {
            assert!(!is_of_the_dead(foreign), "{foreign:x}");
        }
    }
}
