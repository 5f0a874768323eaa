//! The codec against bytes: what the kernel sends is understood, anything else is refused, nothing panics.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

use fastrand::Rng;
use homenode_fuse::wire::{
    EntryOut, Field, ForgetOne, Incoming, Malformed, Opcode, OutHeader, RING_HEADER_BYTES, Reply, Request, RingHeader,
    WriteIn, WriteOut,
};

const HEADER_BYTES: usize = 40;

/// A request with that opcode and those arguments, header included.
fn message(opcode: u32, arguments: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    let length = u32::try_from(HEADER_BYTES + arguments.len()).unwrap();
    let mut to = &mut bytes[..];
    for field in [length, opcode] {
        field.put(&mut to).unwrap();
    }
    for field in [77_u64, 5] {
        field.put(&mut to).unwrap();
    }
    for field in [1000_u32, 100, 4242, 0] {
        field.put(&mut to).unwrap();
    }
    bytes.extend_from_slice(arguments);
    bytes
}

fn bytes_of(record: impl Field, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    record.put(&mut &mut bytes[..]).unwrap();
    bytes
}

#[test]
fn header_and_names() {
    let mut arguments = bytes_of(9_u64, 8);
    arguments.extend_from_slice(&bytes_of(1_u64, 8));
    arguments.extend_from_slice(b"old name\0new\0");
    let bytes = message(Opcode::Rename2 as u32, &arguments);
    let incoming = Incoming::parse(&bytes).unwrap();
    let header = incoming.header;
    assert_eq!(
        (header.unique, header.nodeid, header.uid, header.gid, header.pid),
        (77, 5, 1000, 100, 4242)
    );
    let Request::Rename { input, name, new_name } = incoming.request else {
        panic!("{incoming:?}")
    };
    assert_eq!(
        (input.newdir, input.flags, name, new_name),
        (9, 1, &b"old name"[..], &b"new"[..])
    );
}

#[test]
fn the_data_of_a_write_is_decoded() {
    let input = WriteIn {
        offset: 4096,
        size: 5,
        write_flags: 4,
        ..WriteIn::default()
    };
    let mut arguments = bytes_of(input, WriteIn::BYTES);
    arguments.extend_from_slice(b"hello");
    let bytes = message(Opcode::Write as u32, &arguments);
    let Ok(Incoming {
        request: Request::Write { input, data },
        ..
    }) = Incoming::parse(&bytes)
    else {
        panic!()
    };
    assert_eq!((input.offset, data), (4096, &b"hello"[..]));

    let short = message(Opcode::Write as u32, &arguments[..arguments.len() - 1]);
    let refused = Incoming::parse(&short).unwrap_err();
    assert_eq!(
        refused,
        Malformed::Arguments {
            unique: 77,
            opcode: Opcode::Write
        }
    );
}

#[test]
fn a_batch_of_forgets_has_the_declared_length() {
    let mut arguments = bytes_of(2_u32, 8);
    for one in [ForgetOne { nodeid: 3, nlookup: 1 }, ForgetOne { nodeid: 4, nlookup: 9 }] {
        arguments.extend_from_slice(&bytes_of(one, ForgetOne::BYTES));
    }
    let bytes = message(Opcode::BatchForget as u32, &arguments);
    let Ok(Incoming {
        request: Request::BatchForget(forgets),
        ..
    }) = Incoming::parse(&bytes)
    else {
        panic!()
    };
    assert_eq!(
        forgets.map(|one| (one.nodeid, one.nlookup)).collect::<Vec<_>>(),
        [(3, 1), (4, 9)]
    );

    let mut huge = arguments.clone();
    u32::MAX.put(&mut &mut huge[..]).unwrap();
    assert!(Incoming::parse(&message(Opcode::BatchForget as u32, &huge)).is_err());
}

#[test]
fn invalid_names_are_refused() {
    for name in [&b""[..], b"\0", b"unended", b"a/b\0"] {
        assert!(
            Incoming::parse(&message(Opcode::Lookup as u32, name)).is_err(),
            "{name:?}"
        );
    }
    assert!(
        Incoming::parse(&message(Opcode::Lookup as u32, b"a\xFFb\0")).is_ok(),
        "names are bytes"
    );
    assert!(
        Incoming::parse(&message(Opcode::SymLink as u32, b"name\0../x/y\0")).is_ok(),
        "targets are paths"
    );
}

#[test]
fn lengths_are_checked() {
    let bytes = message(Opcode::GetAttr as u32, &[0; 16]);
    assert!(Incoming::parse(&bytes).is_ok());
    assert_eq!(Incoming::parse(&bytes[..39]).unwrap_err(), Malformed::Header(39));
    assert!(matches!(
        Incoming::parse(&bytes[..55]),
        Err(Malformed::Length {
            unique: 77,
            said: 56,
            came: 55
        })
    ));
    // Extensions longer than the request.
    let mut extended = bytes.clone();
    extended[36] = 200;
    assert!(matches!(Incoming::parse(&extended), Err(Malformed::Arguments { .. })));
}

#[test]
fn unknown_operations_are_decoded_without_error() {
    for number in [0, 7, 40, 54, 4096, u32::MAX] {
        let bytes = message(number, b"whatever");
        let incoming = Incoming::parse(&bytes).unwrap();
        assert!(
            matches!(incoming.request, Request::Unserved(same) if same == number),
            "{incoming:?}"
        );
    }
}

#[test]
fn directory_entries_fill_the_buffer_exactly() {
    let mut memory = [0xEE; 512];
    let mut reply = Reply::new(&mut memory).limited(Reply::dir_entry_bytes(3, false) + Reply::dir_entry_bytes(8, true));
    reply.put_dir_entry(11, 1, 0o10_0644, b"abc").unwrap();
    let entry = EntryOut {
        nodeid: 12,
        attr: homenode_fuse::wire::AttrRecord {
            ino: 12,
            ..Default::default()
        },
        ..EntryOut::default()
    };
    reply.put_dir_entry_plus(entry, 2, 0o04_0755, b"eight888").unwrap();
    assert!(reply.put_dir_entry(13, 3, 0, b"").is_err());
    assert_eq!(reply.used(), 32 + 128 + 32);
    assert_eq!(&memory[24..27], b"abc");
    assert_eq!(&memory[27..32], [0; 5], "padding is cleared");
    let mut kind = &memory[32 + 128 + 20..];
    assert_eq!(u32::take(&mut kind), Some(4), "DT_DIR");
    assert_eq!(memory[32 + 128 + 32], 0xEE, "bytes behind the buffer changed");
}

#[test]
fn a_full_reply_is_unchanged_by_a_further_entry() {
    let mut memory = [0; 20];
    let mut reply = Reply::new(&mut memory);
    reply
        .put(WriteOut {
            size: 3,
            ..WriteOut::default()
        })
        .unwrap();
    assert!(reply.put(OutHeader::default()).is_err());
    assert!(reply.put_bytes(&[1; 13]).is_err());
    assert!(reply.advance(13).is_err());
    assert_eq!(reply.used(), 8);
    reply.put_bytes(&[1; 12]).unwrap();
}

/// Recorded requests of a kernel, from the device and as a ring brings them: what the fuzz targets start from.
#[test]
fn recorded_requests_are_decoded() {
    let seeds = |target: &str| {
        let directory = format!("{}/../../fuzz/seeds/{target}", env!("CARGO_MANIFEST_DIR"));
        let mut paths: Vec<_> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort_unstable();
        paths
    };
    let (requests, rings) = (seeds("request"), seeds("ring"));
    assert!(requests.len() > 30 && rings.len() == requests.len());
    for (request, ring) in requests.into_iter().zip(rings) {
        assert_eq!(request.file_name(), ring.file_name());
        let (bytes, entry) = (std::fs::read(&request).unwrap(), std::fs::read(&ring).unwrap());
        let incoming = Incoming::parse(&bytes).unwrap();
        assert!(!matches!(incoming.request, Request::Unserved(_)), "{request:?}");
        let (header, payload) = entry.split_first_chunk::<RING_HEADER_BYTES>().unwrap();
        let header = RingHeader(*header);
        let through_ring = header.parse(payload).unwrap();
        assert_eq!(
            format!("{:?}", (through_ring.header, through_ring.request)),
            format!("{:?}", (incoming.header, incoming.request)),
            "{ring:?}"
        );
    }
}

/// Requests of every kind, mutated: parsing ends without a panic, and what is borrowed lies in the buffer.
#[test]
fn arbitrary_bytes_do_not_panic_the_decoder() {
    let seed = std::env::var("HOMENODE_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("seed {seed} (HOMENODE_SEED={seed} repeats it)");
    let mut random = Rng::with_seed(seed);
    let (mut understood, mut refused) = (0, 0);
    for _ in 0..200_000 {
        let mut arguments: Vec<u8> = (0..random.u32(..120)).map(|_| odd_byte(&mut random)).collect();
        let mut bytes = message(random.u32(..56), &arguments);
        for _ in 0..random.u32(..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = odd_byte(&mut random);
        }
        if random.u32(..8) == 0 {
            bytes.truncate(random.usize(..=bytes.len()));
        }
        match Incoming::parse(&bytes) {
            Ok(incoming) => {
                understood += 1;
                consume(&incoming, &mut arguments);
            }
            Err(malformed) => {
                refused += 1;
                assert!(!malformed.to_string().is_empty());
            }
        }
    }
    assert!(
        understood > 10_000 && refused > 10_000,
        "{understood} understood, {refused} refused: the mix is off"
    );
}

/// Touches everything borrowed.
fn consume(incoming: &Incoming<'_>, scratch: &mut Vec<u8>) {
    scratch.clear();
    match incoming.request {
        Request::BatchForget(forgets) => assert!(forgets.count() <= 10),
        Request::Write { data, input } => assert_eq!(data.len(), input.size as usize),
        Request::SetXattr { name, value, input } => {
            assert_eq!(value.len(), input.size as usize);
            scratch.extend_from_slice(name);
        }
        Request::Rename { name, new_name, .. } => {
            scratch.extend_from_slice(name);
            scratch.extend_from_slice(new_name);
        }
        Request::Lookup { name } => scratch.extend_from_slice(name),
        _ => {}
    }
    assert!(!scratch.contains(&0), "names end at their NUL");
}

/// Zero often: small numbers and ends of names make it further.
fn odd_byte(random: &mut Rng) -> u8 {
    if random.bool() { 0 } else { random.u8(..) }
}
