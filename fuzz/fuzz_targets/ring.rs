//! Any bytes as a ring's entry, the header and behind it the payload: parsed or refused, never a panic, and nothing borrowed
//! from outside of both. What is answered keeps the number that the kernel knows the request by.
#![no_main]

use homenode_fuse::wire::{Field, InHeader, OutHeader, RING_HEADER_BYTES, RingEntry, RingHeader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((header, payload)) = bytes.split_first_chunk::<RING_HEADER_BYTES>() else {
        return;
    };
    let header = RingHeader(*header);
    // As it is, and with the lengths corrected, so that the fuzzer gets past the first check more often.
    check(header, payload);
    if let Some(corrected) = corrected(header, payload.len()) {
        check(corrected, payload);
    }
});

/// Returns the header with the payload's real length; the fixed part keeps its stated length.
fn corrected(header: RingHeader, payload_bytes: usize) -> Option<RingHeader> {
    let (request, entry) = (header.request(), header.entry());
    let fixed_bytes = request.len.wrapping_sub(entry.payload_sz) % 256;
    let payload_sz = u32::try_from(payload_bytes).ok()?;
    let len = fixed_bytes.checked_add(payload_sz)?;
    RingHeader::of_request(
        InHeader { len, ..request },
        header.arguments(),
        RingEntry { payload_sz, ..entry },
    )
}

fn check(mut header: RingHeader, payload: &[u8]) {
    let entry = header.entry();
    if let Ok(incoming) = header.parse(payload) {
        assert!(entry.payload_sz as usize <= payload.len());
        homenode_fuzz::check(incoming.request, &[header.0.as_ptr_range(), payload.as_ptr_range()]);
    }
    let out = OutHeader {
        len: 16,
        error: -5,
        unique: entry.commit_id,
    };
    header.answer(out, 7);
    assert_eq!(
        (header.entry().commit_id, header.entry().payload_sz),
        (entry.commit_id, 7)
    );
    assert_eq!(OutHeader::take(&mut &header.0[..]), Some(out));
}
