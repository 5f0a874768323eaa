//! Requests no kernel would send: none panics, and the books agree afterwards.

use super::{ask, encode, request, responder};
use crate::wire::{
    CopyFileRangeIn, CreateIn, EntryOut, FAllocateIn, Field, GetXattrIn, LSeekIn, LinkIn, MkDirIn, MkNodIn, Opcode,
    OpenIn, ReadIn, ReleaseIn, Rename2In, SetAttrIn, SetXattrIn, WriteIn,
};
use fastrand::Rng;
use std::collections::BTreeSet;

#[test]
fn odd_arguments_do_not_panic() {
    let seed = std::env::var("HOMENODE_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("seed {seed} (HOMENODE_SEED={seed} repeats it)");
    let mut random = Rng::with_seed(seed);
    let responder = responder();
    let (mut served, mut refused) = (BTreeSet::from([Opcode::Forget]), 0);
    // The inodes seen last, and some numbers that are none.
    let mut known: Vec<u64> = (0..40).collect();
    for step in 0..60_000 {
        let (opcode, nodeid, arguments) = odd_request(&mut random, &known);
        let uid = pick(&mut random, &[0, 1000]);
        let described = || format!("step {step}: {opcode:?} on {nodeid} with {arguments:?}");
        match ask(&responder, &request(opcode, nodeid, uid, &arguments)) {
            Some((0, payload)) => {
                served.insert(opcode);
                if let Some(entry) = EntryOut::take(&mut &payload[..]).filter(|_| gives_entry(opcode)) {
                    let at = random.usize(..known.len());
                    known[at] = entry.nodeid;
                }
            }
            Some((errno, _)) => {
                assert!((1..134).contains(&errno), "errno {errno}: {}", described());
                refused += 1;
            }
            None => assert!(matches!(opcode, Opcode::Forget), "{}", described()),
        }
        let panics = crate::Statistics::sum([responder.counters.as_ref()].into_iter()).panics;
        assert_eq!(panics, 0, "{}", described());
        if step % 1000 == 0 {
            responder.service.fs.check_invariants();
        }
    }
    responder.service.fs.check_invariants();
    assert_eq!(
        served,
        OPCODES.iter().copied().collect(),
        "an operation never succeeded"
    );
    assert!(refused > 5000, "{refused} refused: the mix is off");
}

const OPCODES: &[Opcode] = &[
    Opcode::Lookup,
    Opcode::Forget,
    Opcode::GetAttr,
    Opcode::StatX,
    Opcode::SetAttr,
    Opcode::ReadLink,
    Opcode::SymLink,
    Opcode::MkNod,
    Opcode::MkDir,
    Opcode::Unlink,
    Opcode::RmDir,
    Opcode::Rename2,
    Opcode::Link,
    Opcode::Open,
    Opcode::Release,
    Opcode::Read,
    Opcode::Write,
    Opcode::StatFs,
    Opcode::SetXattr,
    Opcode::GetXattr,
    Opcode::ListXattr,
    Opcode::RemoveXattr,
    Opcode::ReadDir,
    Opcode::ReadDirPlus,
    Opcode::Create,
    Opcode::TmpFile,
    Opcode::FAllocate,
    Opcode::LSeek,
    Opcode::CopyFileRange,
    Opcode::CopyFileRange64,
];

/// Makes an operation on few inodes and names, with numbers at the edges.
fn odd_request(random: &mut Rng, known: &[u64]) -> (Opcode, u64, Vec<u8>) {
    let opcode = pick(random, OPCODES);
    let nodeid = if random.u64(..3) == 0 { 1 } else { pick(random, known) };
    let (offset, length) = (number(random), number(random));
    let mode = pick(
        random,
        &[0o644, 0o4755, 0o10_2777, 0o04_1777, 0o06_0600, 0o17_7777, 0o12_0777],
    );
    let fixed = match opcode {
        Opcode::Forget => encode(random.u64(..3)),
        Opcode::SetAttr => encode(SetAttrIn {
            valid: random.u32(..4096),
            size: length,
            atime: signed(random),
            mtime: signed(random),
            mtimensec: random.u32(..u32::MAX),
            mode,
            ..SetAttrIn::default()
        }),
        Opcode::MkNod => encode(MkNodIn {
            mode,
            rdev: random.u32(..u32::MAX),
            umask: 0o22,
            ..MkNodIn::default()
        }),
        Opcode::MkDir => encode(MkDirIn { mode, umask: 0o77 }),
        Opcode::Rename2 => encode(Rename2In {
            newdir: pick(random, known),
            flags: random.u32(..5),
            ..Rename2In::default()
        }),
        Opcode::Link => encode(LinkIn {
            oldnodeid: pick(random, known),
        }),
        Opcode::Open | Opcode::Release | Opcode::Create | Opcode::TmpFile => odd_open(random, opcode, mode),
        Opcode::Read | Opcode::ReadDir | Opcode::ReadDirPlus => encode(ReadIn {
            offset,
            size: random.u32(..1 << 17),
            ..ReadIn::default()
        }),
        Opcode::Write => {
            let size = random.u32(..20_000);
            encode(WriteIn {
                offset,
                size,
                write_flags: random.u32(..8),
                ..WriteIn::default()
            })
        }
        Opcode::SetXattr => {
            let (size, flags) = (random.u32(..3000), random.u32(..4));
            encode(SetXattrIn {
                size,
                flags,
                setxattr_flags: random.u32(..2),
                ..SetXattrIn::default()
            })
        }
        Opcode::GetXattr | Opcode::ListXattr => encode(GetXattrIn {
            size: random.u32(..300),
            ..GetXattrIn::default()
        }),
        Opcode::FAllocate => encode(FAllocateIn {
            offset,
            length,
            // Half of them of the kinds there are, so that some succeed.
            mode: match pick(random, &[0, 1, 3, 0x10, 0x11, 0x80, 0x80, 0x80, 0x80, 0x80]) {
                0x80 => random.u32(..0x80),
                mode => mode,
            },
            ..FAllocateIn::default()
        }),
        Opcode::LSeek => encode(LSeekIn {
            offset,
            whence: random.u32(..6),
            ..LSeekIn::default()
        }),
        Opcode::CopyFileRange | Opcode::CopyFileRange64 => encode(CopyFileRangeIn {
            off_in: offset,
            nodeid_out: pick(random, known),
            off_out: number(random),
            len: length,
            ..CopyFileRangeIn::default()
        }),
        _ => vec![0; 32],
    };
    let behind = behind_fixed(random, opcode);
    let names_only = matches!(
        opcode,
        Opcode::Lookup | Opcode::SymLink | Opcode::Unlink | Opcode::RmDir | Opcode::RemoveXattr
    );
    (
        opcode,
        nodeid,
        if names_only { behind } else { [fixed, behind].concat() },
    )
}

/// The fixed part of what opens and releases.
fn odd_open(random: &mut Rng, opcode: Opcode, mode: u32) -> Vec<u8> {
    let flags = random.u32(..1 << 16);
    match opcode {
        Opcode::Release => encode(ReleaseIn {
            fh: pick(random, &[0, 1, 1, 2, 2, 3, u64::MAX]),
            ..ReleaseIn::default()
        }),
        Opcode::Open => encode(OpenIn {
            flags,
            open_flags: random.u32(..2),
        }),
        _ => encode(CreateIn {
            flags,
            mode,
            umask: 0,
            open_flags: 1,
        }),
    }
}

/// Names or data, as the operation wants them.
fn behind_fixed(random: &mut Rng, opcode: Opcode) -> Vec<u8> {
    match opcode {
        Opcode::Write => vec![7; 20_000],
        Opcode::SetXattr => [&attribute(random)[..], &[1; 3000]].concat(),
        Opcode::GetXattr | Opcode::RemoveXattr => attribute(random),
        _ => [name(random), name(random)].concat(),
    }
}

fn gives_entry(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Lookup
            | Opcode::SymLink
            | Opcode::MkNod
            | Opcode::MkDir
            | Opcode::Link
            | Opcode::Create
            | Opcode::TmpFile
    )
}

fn pick<T: Copy>(random: &mut Rng, from: &[T]) -> T {
    from[random.usize(..from.len())]
}

/// An offset or a length: usual, or at an edge.
fn number(random: &mut Rng) -> u64 {
    const EDGES: &[u64] = &[
        0,
        1,
        4095,
        4096,
        4097,
        (2 << 20) - 1,
        2 << 20,
        1 << 31,
        1 << 32,
        1 << 40,
        i64::MAX as u64 - 4096,
        i64::MAX as u64 - 1,
        i64::MAX as u64,
        1 << 63,
        u64::MAX - 4095,
        u64::MAX,
    ];
    if random.u64(..2) == 0 {
        random.u64(..100_000)
    } else {
        pick(random, EDGES)
    }
}

fn signed(random: &mut Rng) -> i64 {
    pick(random, &[0, 1, -1, i64::MAX, i64::MIN, 1 << 33, -(1 << 33)])
}

fn name(random: &mut Rng) -> Vec<u8> {
    let long = [b'n'; 256];
    let names: [&[u8]; 10] = [b"a", b"b", b"c", b"d", b"e", b"\xFF", b".", b"..", &long[1..], &long];
    [pick(random, &names), &[0]].concat()
}

fn attribute(random: &mut Rng) -> Vec<u8> {
    let names: [&[u8]; 7] = [
        b"user.a",
        b"security.capability",
        b"user.homenode.map",
        b"user.homenode.policy",
        b"system.posix_acl_access",
        b"system.posix_acl_default",
        b"trusted.t",
    ];
    [pick(random, &names), &[0]].concat()
}
