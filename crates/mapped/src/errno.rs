//! errno, which what is done beside a call of the program's shall not change.

/// This thread's errno.
pub(crate) fn errno() -> i32 {
    // SAFETY: it has no conditions.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: it points to this thread's errno.
    unsafe { *at }
}

fn set_errno(errno: i32) {
    // SAFETY: it has no conditions.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: it points to this thread's errno.
    unsafe { *at = errno };
}

/// errno as it was, when dropped.
#[derive(Debug)]
pub struct KeptErrno(i32);

impl KeptErrno {
    /// Keeps it from now on.
    #[must_use]
    pub fn now() -> Self {
        Self(errno())
    }
}

impl Drop for KeptErrno {
    fn drop(&mut self) {
        set_errno(self.0);
    }
}
