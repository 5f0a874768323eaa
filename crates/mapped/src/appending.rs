//! Files by whose descriptors the kernel may go on to append when O_APPEND is taken away.
//!
//! The server's own file, which writes are passed to, was opened with the flags of that time. A descriptor that was opened with O_APPEND, and does
//! not show it any more, would be taken for one at whose offsets can be written. Nothing tells which descriptors have the same open file, so all
//! of the inode are left to the system from then on, also by children.

use crate::attributes;
use crate::errno::KeptErrno;
use crate::files::is_on;
use crate::pages::is_fuse;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Files that are told apart. Beyond, no descriptor of any file is learned.
const FILES_MAX: usize = 64;

/// Device and inode of each file.
static FILES: [[AtomicU64; 2]; FILES_MAX] = [const { [const { AtomicU64::new(0) }; 2] }; FILES_MAX];
/// Files that were noted.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Notes the file of a descriptor that is about to lose O_APPEND, if it has it.
pub fn stop_appending(fd: c_int) {
    if !is_on() {
        return;
    }
    let _errno = KeptErrno::now();
    // SAFETY: takes numbers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 || flags & libc::O_APPEND == 0 || !is_fuse(fd) {
        return;
    }
    let status = attributes::known(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_INO);
    let file = status.map(|status| {
        (
            libc::makedev(status.stx_dev_major, status.stx_dev_minor),
            status.stx_ino,
        )
    });
    match file {
        Some((device, inode)) if may_append(device, inode) => {}
        Some((device, inode)) => {
            let nth = COUNT.fetch_add(1, Ordering::SeqCst);
            if let Some(place) = FILES.get(nth) {
                place[1].store(inode, Ordering::Relaxed);
                place[0].store(device, Ordering::SeqCst);
            }
        }
        // It may be any.
        None => COUNT.store(FILES_MAX + 1, Ordering::SeqCst),
    }
}

/// Whether the kernel may append by a descriptor of a file that does not show O_APPEND. Asked after its flags were read.
pub(crate) fn may_append(device: u64, inode: u64) -> bool {
    let count = COUNT.load(Ordering::SeqCst);
    let is_it =
        |place: &[AtomicU64; 2]| place[0].load(Ordering::SeqCst) == device && place[1].load(Ordering::Relaxed) == inode;
    count > FILES_MAX || FILES.iter().take(count).any(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_beyond_the_table_are_all_left() {
        assert!(!may_append(1, 2));
        COUNT.store(FILES_MAX + 1, Ordering::SeqCst);
        assert!(may_append(1, 2));
    }
}
