//! Any bytes as a request from the device: parsed or refused, never a panic, and nothing borrowed from outside the input.
#![no_main]

use homenode_fuse::wire::Incoming;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // As it is, and with the length corrected, so that the fuzzer gets past the first check more often.
    check(bytes);
    if let (Some((_, rest)), Ok(length)) = (bytes.split_first_chunk::<4>(), u32::try_from(bytes.len())) {
        check(&[&length.to_ne_bytes()[..], rest].concat());
    }
});

fn check(bytes: &[u8]) {
    let Ok(incoming) = Incoming::parse(bytes) else { return };
    assert_eq!(incoming.header.len as usize, bytes.len());
    homenode_fuzz::check(incoming.request, &[bytes.as_ptr_range()]);
}
