//! Any bytes as a FUSE request: parsed or refused, never a panic, and nothing borrowed from outside the input.
#![no_main]

use homenode_fuse::wire::{Incoming, Request};
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
    let inside = |part: &[u8]| assert!(part.is_empty() || bytes.as_ptr_range().contains(&part.as_ptr()));
    let name = |part: &[u8]| {
        inside(part);
        assert!(!part.is_empty() && !part.contains(&b'/') && !part.contains(&0));
    };
    match incoming.request {
        Request::Lookup { name: one } | Request::MkDir { name: one, .. } | Request::Unlink { name: one } => name(one),
        Request::Rename { name: one, new_name: two, .. } => {
            name(one);
            name(two);
        }
        Request::SymLink { name: one, target } => {
            name(one);
            inside(target);
        }
        Request::Write { input, data } => {
            inside(data);
            assert_eq!(data.len(), input.size as usize);
        }
        Request::SetXattr { input, name, value } => {
            inside(name);
            inside(value);
            assert_eq!(value.len(), input.size as usize);
        }
        Request::BatchForget(forgets) => assert!(forgets.count() * 16 < bytes.len()),
        _ => {}
    }
}
