//! The two commands of a FUSE ring, as entries of the submission queue.

use crate::wire::{Field, RingCommand};
use homenode_engine::CpuId;
use io_uring::squeue::Entry128;
use io_uring::{opcode, types};
use std::ptr;

/// Gives the kernel an entry's buffers, and asks for the first request.
const REGISTER: u32 = 1;
/// Answers a request, and asks for the next.
const COMMIT_AND_FETCH: u32 = 2;

/// The device, in the ring's table of files.
const DEVICE: types::Fixed = types::Fixed(0);

/// Where the submission entry of io_uring.h has its `len`.
const LEN_AT: usize = 24;

/// Registers the two buffers in `vectors` (header, payload), which must live until the command is submitted.
pub(super) fn register(cpu: CpuId, vectors: &[libc::iovec; 2], index: u64) -> Entry128 {
    let command = opcode::UringCmd80::new(DEVICE, REGISTER)
        .cmd(arguments(cpu, 0))
        .addr(Some(ptr::from_ref(vectors) as u64));
    let mut entry = command.build().user_data(index);
    let count = u32::try_from(vectors.len()).expect("there are two vectors");
    // SAFETY: in bounds: the entry is the kernel's structure of 128 bytes.
    let len = unsafe { ptr::from_mut(&mut entry).byte_add(LEN_AT) };
    // SAFETY: the field is an aligned u32 there, and any value is valid; the crate has no setter for this command.
    unsafe { len.cast::<u32>().write(count) };
    entry
}

/// Answers request `commit_id` with what is in its entry.
pub(super) fn commit(cpu: CpuId, commit_id: u64, index: u64) -> Entry128 {
    let command = opcode::UringCmd80::new(DEVICE, COMMIT_AND_FETCH).cmd(arguments(cpu, commit_id));
    command.build().user_data(index)
}

fn arguments(cpu: CpuId, commit_id: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    let command = RingCommand {
        commit_id,
        qid: u16::try_from(cpu.0).expect("Linux has at most 8192 CPUs"),
        ..RingCommand::default()
    };
    command.put(&mut &mut bytes[..]).expect("24 bytes fit into 80");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_offsets_match_the_kernels() {
        let vectors = [libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        }; 2];
        let bytes_of = |entry: &Entry128| -> [u8; 128] {
            // SAFETY: an entry is 128 initialised bytes.
            unsafe { ptr::from_ref(entry).cast::<[u8; 128]>().read() }
        };
        let word = |bytes: &[u8; 128], at: usize| u64::take(&mut &bytes[at..]).unwrap();
        let bytes = bytes_of(&register(CpuId(3), &vectors, 5));
        assert_eq!(bytes[0], 46, "IORING_OP_URING_CMD");
        assert_eq!(word(&bytes, 8), u64::from(REGISTER));
        assert_eq!(word(&bytes, 16), vectors.as_ptr() as u64);
        assert_eq!(word(&bytes, LEN_AT), 2, "two vectors, no flags");
        assert_eq!((word(&bytes, 32), word(&bytes, 64)), (5, 3));
        let bytes = bytes_of(&commit(CpuId(3), 0x0102_0304_0506_0708, 5));
        assert_eq!((word(&bytes, 8), word(&bytes, 56)), (2, 0x0102_0304_0506_0708));
    }
}
