//! Requests are recorded in the trace, and can be read again.

use super::memory::Memory;
use homenode_engine::NodeId;
use homenode_engine::blk::trace::{ENTRY_BYTES, Entry, TraceError, header, read_header, recorder};
use homenode_engine::blk::{Device, Durability, Limits, Options, Request};
use proptest::prelude::*;

fn entry() -> impl Strategy<Value = Entry> {
    let numbers = (
        any::<u64>(),
        any::<u64>(),
        any::<u32>(),
        any::<u16>(),
        any::<u16>(),
        any::<u32>(),
    );
    (numbers, 0..5_usize, 0..4_usize).prop_map(
        |((time_ns, offset, bytes, stream, core, lost), operation, durability)| Entry {
            time_ns,
            request: Request {
                operation: homenode_engine::blk::Operation::ALL[operation],
                durability: Durability::ALL[durability],
                stream,
                bytes,
                offset,
                buffer: 0,
                user: 0,
            },
            core,
            lost,
        },
    )
}

proptest! {
    #[test]
    fn a_trace_entry_survives_encoding(entry in entry()) {
        prop_assert_eq!(Entry::from_bytes(&entry.to_bytes()), Ok(entry));
    }

    /// Whatever the bytes: an entry that is written as them, but for what has no meaning, or an error.
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in any::<[u8; ENTRY_BYTES]>()) {
        if let Ok(entry) = Entry::from_bytes(&bytes) {
            let mut expected = bytes;
            expected[26..28].fill(0);
            prop_assert_eq!(entry.to_bytes(), expected);
        }
        let _ = read_header(&bytes);
    }
}

#[test]
fn headers() {
    assert_eq!(read_header(&header(1 << 40)), Ok(1 << 40));
    assert_eq!(read_header(&[0; ENTRY_BYTES]), Err(TraceError::NoTrace));
    let mut later = header(1);
    later[8] = 2;
    assert_eq!(read_header(&later), Err(TraceError::Version(2)));
}

#[test]
fn entries_lost_at_the_end_are_reported() {
    let memory = Memory::new(Limits::of_bytes(1 << 20), &[None], 1 << 20);
    let device = Device::new(&memory, &[NodeId(0)], |_, _| 10, Options::default()).unwrap();
    let mut core = device.join(0).unwrap();
    let (recorder, mut recorded) = recorder(0, 4);
    core.record(Some(recorder));
    for block in 0..6 {
        core.submit(Request::read(block * 512, 512, 0)).unwrap();
    }
    core.record(None);
    let recorded_requests = std::iter::from_fn(|| recorded.next_bytes()).count();
    assert!(recorded.is_over());
    assert_eq!((recorded_requests, recorded.lost()), (4, 2));
}

#[test]
fn every_request_is_recorded_or_counted_as_lost() {
    let memory = Memory::new(Limits::of_bytes(1 << 20), &[None], 1 << 20);
    let device = Device::new(&memory, &[NodeId(0)], |_, _| 10, Options::default()).unwrap();
    let mut core = device.join(0).unwrap();
    let (recorder, mut recorded) = recorder(7, 4);
    core.run(1000, |_| {});
    core.record(Some(recorder));
    let write = |block: u64| {
        Request::write(block * 512, 512, block * 512)
            .durability(Durability::Forced)
            .user(block)
    };
    for block in 0..6 {
        core.submit(write(block)).unwrap();
    }
    core.run(2000, |_| {});
    let mut entries = Vec::new();
    let mut read = |entries: &mut Vec<Entry>| {
        while let Some(bytes) = recorded.next_bytes() {
            entries.push(Entry::from_bytes(&bytes).unwrap());
        }
        recorded.is_over()
    };
    read(&mut entries);
    core.submit(write(9)).unwrap();
    core.run(3000, |_| {});
    core.record(None);
    assert!(read(&mut entries));
    let found: Vec<_> = entries
        .iter()
        .map(|entry| (entry.time_ns, entry.request.offset / 512, entry.lost))
        .collect();
    assert_eq!(
        found,
        [(1000, 0, 0), (1000, 1, 0), (1000, 2, 0), (1000, 3, 0), (2000, 9, 2)]
    );
    assert!(
        entries
            .iter()
            .all(|entry| entry.core == 7 && entry.request.durability == Durability::Forced)
    );
}
