//! What a process passes on to the programs it starts.

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::process::Command;

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
