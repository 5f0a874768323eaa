//! Any bytes as a trace of the block layer: each request in it is refused or completed once, never a panic.
//!
//! Input: a trace's file. The device has its size, does what it can, and takes at most 64 KiB at once.
#![no_main]

use homenode_engine::blk::trace::{ENTRY_BYTES, Entry, read_header};
use homenode_engine::blk::{Device, Limits, Null, Options, Refusal};
use homenode_policy::NodeId;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((header, entries)) = bytes.split_first_chunk::<ENTRY_BYTES>() else {
        return;
    };
    let Ok(device_bytes) = read_header(header) else {
        return;
    };
    let limits = Limits {
        transfer_bytes_max: 64 << 10,
        has_cache: true,
        can_discard: true,
        can_zero: true,
        ..Limits::of_bytes(device_bytes / 512 * 512)
    };
    let null = Null::new(limits, &[Some(NodeId(0))]);
    let device = Device::new(&null, &[NodeId(0)], |_, _| 10, Options::default()).expect("the limits are right");
    let mut core = device.join(0).expect("the core joins once");
    let (mut taken, mut completed, mut now) = (0_usize, 0, 0);
    for bytes in entries.chunks_exact(ENTRY_BYTES) {
        let Ok(entry) = Entry::from_bytes(bytes.try_into().expect("a chunk is an entry")) else {
            continue;
        };
        now = entry.time_ns.max(now);
        match core.submit(entry.request) {
            Ok(()) => taken += 1,
            Err(rejected) => {
                assert_eq!(rejected.request, entry.request, "a refused request is not returned");
                if rejected.why == Refusal::NoTag {
                    completed += core.run(now, |_| {});
                }
            }
        }
    }
    // Pieces of 64 KiB of requests below 2^31 bytes, all tags in use: so many runs at most.
    for _ in 0..1 << 24 {
        if core.is_idle() {
            break;
        }
        completed += core.run(now, |_| {});
    }
    core.check_invariants();
    assert_eq!(completed, taken, "a request is not completed once");
});
