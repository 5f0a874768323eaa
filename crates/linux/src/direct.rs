//! Direct I/O, past the page cache: which blocks a file or disk takes.

use rustix::fs::{AtFlags, StatxFlags};
use std::fs::File;
use std::io;

/// Blocks where the filesystem does not tell: no disk has larger ones.
const UNTOLD_BYTES: u32 = 4096;
/// No disk has smaller ones.
const BYTES_MIN: u32 = 512;

/// Bytes that offset, length and address of each request are multiples of, a power of two; `None` when there is no direct I/O.
pub(crate) fn block_bytes(file: &File, is_disk: bool) -> io::Result<Option<u32>> {
    let told = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
    if told.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        let sector_bytes = is_disk.then(|| rustix::fs::ioctl_blksszget(file)).transpose()?;
        return Ok(Some(sector_bytes.unwrap_or(UNTOLD_BYTES)));
    }
    let align = told.stx_dio_offset_align.max(told.stx_dio_mem_align);
    Ok((told.stx_dio_offset_align > 0).then(|| align.max(BYTES_MIN).next_power_of_two()))
}
