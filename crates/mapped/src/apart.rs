//! A function that runs in a process of its own, but in this one's memory: the descriptors that it opens take no numbers of this process.
//!
//! A program knows which of its threads open and close descriptors, and may count on a number that it has just closed: to get it with the next open(2), or to put another
//! file there by dup2(2). A descriptor that is opened here for a moment would be in its way. As posix_spawn(3) does, this thread waits until the other process ends.
//! That closes the files of this one first: a lock or a port that the program gives up meanwhile by close(2) would be held as long as a server does not answer.
//! Cost: some tens of microseconds.

use crate::faults::Quiet;
use std::ffi::{CStr, c_int, c_void};

/// Bytes of the function's stack.
const STACK_BYTES: usize = 256 << 10;

/// Runs `act`, which allocates nothing, closes nothing, and calls only what a signal's handler may call. False if there can be no other process, or it was killed.
pub(crate) fn apart<F: FnMut()>(mut act: F) -> bool {
    if !is_in_own_namespace() {
        return false;
    }
    let (both, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK,
    );
    // SAFETY: a new mapping at an address that the kernel chooses.
    let stack = unsafe { libc::mmap(std::ptr::null_mut(), STACK_BYTES, both, flags, -1, 0) };
    if stack == libc::MAP_FAILED {
        return false;
    }
    let top = stack.wrapping_byte_add(STACK_BYTES);
    // A handler of the program's would run in both. And it looks syscall(2) up, here and not in the other process.
    let quiet = Quiet::new();
    // It sends no signal when it ends, so that only who asks for such processes can wait for it.
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES;
    // SAFETY: this thread goes on when the other process has ended, which has a stack of its own.
    let process = unsafe { libc::clone(begin::<F>, top, flags, (&raw mut act).cast()) };
    let mut status = -1;
    if process > 0 {
        // Not by the function, in which a thread that is to be cancelled ends.
        // SAFETY: room for a status; no figures are wanted.
        unsafe { libc::syscall(libc::SYS_wait4, process, &raw mut status, libc::__WCLONE, 0) };
    }
    drop(quiet);
    // SAFETY: the mapping from above, which nobody uses any more.
    unsafe { libc::munmap(stack, STACK_BYTES) };
    status == 0
}

/// Whether a new process comes to this one's namespace of processes. Before unshare(1) executed a program it may have chosen another one: its first process would end there, and
/// with it the namespace.
fn is_in_own_namespace() -> bool {
    let of = |link: &CStr| {
        let mut target = [0_u8; 64];
        let (to, length) = (target.as_mut_ptr(), target.len());
        // SAFETY: a string that ends in NUL, and a buffer with its length.
        let bytes = unsafe { libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), to, length) };
        (bytes > 0).then_some(target)
    };
    let own = of(c"/proc/thread-self/ns/pid");
    own.is_some() && own == of(c"/proc/thread-self/ns/pid_for_children")
}

extern "C" fn begin<F: FnMut()>(act: *mut c_void) -> c_int {
    // Whatever ends the thread that waits: a server may not answer.
    // SAFETY: takes numbers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // A table of its own, which is empty: the kernel copies nothing that is to be closed.
    // SAFETY: takes numbers.
    if unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, libc::CLOSE_RANGE_UNSHARE) } != 0 {
        return 1;
    }
    // SAFETY: the closure of the thread that waits.
    let act = unsafe { &mut *act.cast::<F>() };
    act();
    0
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_of_the_other_process_is_not_open_here() {
        // Larger than those of other tests.
        const LARGE: c_int = 900;
        let (mut fd, mut is_there) = (-1, true);
        let is_done = apart(|| {
            // SAFETY: takes numbers.
            is_there = unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_GETFD) } >= 0;
            // SAFETY: a path with its end.
            let root = unsafe { libc::open(c"/".as_ptr(), libc::O_PATH) };
            // SAFETY: takes numbers.
            fd = unsafe { libc::fcntl(root, libc::F_DUPFD, LARGE) };
        });
        assert!(is_done && fd >= LARGE);
        assert!(!is_there, "files of this process are open in the other one");
        // SAFETY: takes numbers.
        assert!(unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_GETFD) } >= 0);
        // SAFETY: takes numbers.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, -1);
    }
}
