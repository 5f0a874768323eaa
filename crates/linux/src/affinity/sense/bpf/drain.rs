//! Takes everything out of a map of counts.
//!
//! The kernel returns fewer entries than there is room for where the next of its buckets does not fit, so only its word
//! that there are no more is the end; libbpf-rs takes the first short batch, and any error, as one.
//!
//! Invariant: it ends, however fast entries come back: each call goes on with the bucket after the last one.
//!
//! Source: `__htab_map_lookup_and_delete_batch` in the kernel.

use libbpf_rs::{MapCore, libbpf_sys};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

/// Entries taken out at once; far more than ever share a bucket.
const BATCH: u32 = 1024;

/// Appends every key with its value to `bytes`, and takes them out of a hash map.
///
/// # Errors
/// The kernel does not let us. Some entries may be gone by then.
pub(super) fn drain(map: &impl MapCore, bytes: &mut Vec<u8>) -> io::Result<()> {
    assert!(map.map_type().is_hash_map() && !map.map_type().is_percpu());
    let (key_bytes, value_bytes) = (map.key_size() as usize, map.value_size() as usize);
    let mut keys = vec![0_u8; key_bytes * BATCH as usize];
    let mut values = vec![0_u8; value_bytes * BATCH as usize];
    let options = libbpf_sys::bpf_map_batch_opts {
        sz: size_of::<libbpf_sys::bpf_map_batch_opts>() as u64,
        ..Default::default()
    };
    // The kernel's note of the bucket to go on with; of the first call, none.
    let mut place: Option<u32> = None;
    loop {
        let mut next = 0_u32;
        let mut count = BATCH;
        let from = place.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: the map is open. Of a hash map, `from`, which may be null, and `next` are of 4 bytes, and both are valid
        // during the call, as `options` is. The buffers have room for `count` keys and values, and the kernel writes none
        // beyond; a value of a map that is not per CPU has the bytes that the map says.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_and_delete_batch(
                map.as_fd().as_raw_fd(),
                from.cast(),
                ptr::from_mut(&mut next).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                &raw const options,
            )
        };
        let error = (result < 0).then(|| io::Error::from_raw_os_error(-result));
        let is_last = match error {
            None => false,
            Some(error) if error.kind() == io::ErrorKind::NotFound => true,
            Some(error) => return Err(error),
        };
        let taken = keys.chunks_exact(key_bytes).zip(values.chunks_exact(value_bytes));
        for (key, value) in taken.take(count as usize) {
            bytes.extend(key);
            bytes.extend(value);
        }
        if is_last {
            return Ok(());
        }
        place = Some(next);
    }
}
