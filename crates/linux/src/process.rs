//! Descriptors that started programs inherit, and start times, which distinguish processes of one number.

use std::io;

/// Keeps every descriptor from `first` on out of the programs this process starts from now on: a server must not hold its
/// starter's pipes and locks.
///
/// # Errors
/// The errno of `close_range`: EINVAL before Linux 5.11.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: takes numbers only, and with this flag closes nothing now.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Tells the kernel that others' writes wait for this thread: when memory is short, it is not to wait for them. Only who has
/// CAP_SYS_RESOURCE may: nothing happens else.
pub fn serve_writes() {
    /// Since Linux 5.6; libc has no name for it.
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: takes numbers only.
    let _ = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}

/// Number of the calling thread.
#[must_use]
pub fn own_thread() -> u32 {
    // SAFETY: takes nothing and touches no memory of ours.
    unsafe { libc::gettid() }.cast_unsigned()
}

/// When process or thread `pid` was started, in clock ticks since the machine was; none when there is no such one.
#[must_use]
pub fn start_ticks(pid: u32) -> Option<u64> {
    const START: usize = 22;
    const FIRST_AFTER_NAME: usize = 3;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold spaces and parentheses, but the last `)` is its end.
    let (_, behind_name) = stat.rsplit_once(')')?;
    let field = behind_name.split_whitespace().nth(START - FIRST_AFTER_NAME)?;
    field.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::process::Command;

    #[test]
    fn a_process_is_told_from_a_later_one() {
        let own = start_ticks(std::process::id()).unwrap();
        assert_eq!(start_ticks(std::process::id()), Some(own));
        assert!(start_ticks(1).unwrap() <= own);
        assert_eq!(start_ticks(u32::MAX), None);
        let thread = std::thread::spawn(|| (own_thread(), start_ticks(own_thread())));
        let (thread, started) = thread.join().unwrap();
        assert!(thread != std::process::id() && started.unwrap() >= own);
    }

    #[test]
    fn a_descriptor_is_not_passed_on() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let fd = file.as_raw_fd();
        // SAFETY: clears the flag that the standard library set on our own descriptor.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }, 0);
        let child_has_it = || {
            Command::new("test")
                .arg("-e")
                .arg(format!("/proc/self/fd/{fd}"))
                .status()
                .unwrap()
                .success()
        };
        assert!(child_has_it());
        close_on_exec_from(u32::try_from(fd).unwrap()).unwrap();
        assert!(!child_has_it());
    }
}
