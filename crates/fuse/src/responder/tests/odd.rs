//! Requests no kernel would send: none panics, and the books agree afterwards.

use super::{ask, encode, request, responder};
use crate::wire::{
    CopyFileRangeIn, CreateIn, EntryOut, FAllocateIn, Field, GetXattrIn, LSeekIn, LinkIn, MkDirIn, MkNodIn, Opcode,
    OpenIn, ReadIn, ReleaseIn, Rename2In, SetAttrIn, SetXattrIn, WriteIn,
};
use std::collections::BTreeSet;

#[test]
fn odd_arguments_do_not_panic() {
    let seed = std::env::var("HOMENODE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| {
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap();
            now.as_secs() << 20 | u64::from(now.subsec_micros())
        });
    println!("seed {seed} (HOMENODE_SEED={seed} repeats it)");
    let mut random = Random(seed | 1);
    let responder = responder();
    let (mut served, mut refused) = (BTreeSet::from([Opcode::Forget]), 0);
    // The inodes seen last, and some numbers that are none.
    let mut known: Vec<u64> = (0..40).collect();
    for step in 0..60_000 {
        let (opcode, nodeid, arguments) = odd_request(&mut random, &known);
        let uid = random.pick(&[0, 1000]);
        let described = || format!("step {step}: {opcode:?} on {nodeid} with {arguments:?}");
        match ask(&responder, &request(opcode, nodeid, uid, &arguments)) {
            Some((0, payload)) => {
                served.insert(opcode);
                if let Some(entry) = EntryOut::take(&mut &payload[..]).filter(|_| gives_entry(opcode)) {
                    let at = usize::try_from(random.below(known.len() as u64)).unwrap();
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
fn odd_request(random: &mut Random, known: &[u64]) -> (Opcode, u64, Vec<u8>) {
    let opcode = random.pick(OPCODES);
    let nodeid = if random.below(3) == 0 { 1 } else { random.pick(known) };
    let (offset, length) = (random.number(), random.number());
    let mode = random.pick(&[0o644, 0o4755, 0o10_2777, 0o04_1777, 0o06_0600, 0o17_7777, 0o12_0777]);
    let fixed = match opcode {
        Opcode::Forget => encode(random.below(3)),
        Opcode::SetAttr => encode(SetAttrIn {
            valid: random.small(4096),
            size: length,
            atime: random.signed(),
            mtime: random.signed(),
            mtimensec: random.small(u32::MAX),
            mode,
            ..SetAttrIn::default()
        }),
        Opcode::MkNod => encode(MkNodIn {
            mode,
            rdev: random.small(u32::MAX),
            umask: 0o22,
            ..MkNodIn::default()
        }),
        Opcode::MkDir => encode(MkDirIn { mode, umask: 0o77 }),
        Opcode::Rename2 => encode(Rename2In {
            newdir: random.pick(known),
            flags: random.small(5),
            ..Rename2In::default()
        }),
        Opcode::Link => encode(LinkIn {
            oldnodeid: random.pick(known),
        }),
        Opcode::Open | Opcode::Release | Opcode::Create | Opcode::TmpFile => odd_open(random, opcode, mode),
        Opcode::Read | Opcode::ReadDir | Opcode::ReadDirPlus => encode(ReadIn {
            offset,
            size: random.small(1 << 17),
            ..ReadIn::default()
        }),
        Opcode::Write => {
            let size = random.small(20_000);
            encode(WriteIn {
                offset,
                size,
                write_flags: random.small(8),
                ..WriteIn::default()
            })
        }
        Opcode::SetXattr => {
            let (size, flags) = (random.small(3000), random.small(4));
            encode(SetXattrIn {
                size,
                flags,
                setxattr_flags: random.small(2),
                ..SetXattrIn::default()
            })
        }
        Opcode::GetXattr | Opcode::ListXattr => encode(GetXattrIn {
            size: random.small(300),
            ..GetXattrIn::default()
        }),
        Opcode::FAllocate => encode(FAllocateIn {
            offset,
            length,
            // Half of them of the kinds there are, so that some succeed.
            mode: match random.pick(&[0, 1, 3, 0x10, 0x11, 0x80, 0x80, 0x80, 0x80, 0x80]) {
                0x80 => random.small(0x80),
                mode => mode,
            },
            ..FAllocateIn::default()
        }),
        Opcode::LSeek => encode(LSeekIn {
            offset,
            whence: random.small(6),
            ..LSeekIn::default()
        }),
        Opcode::CopyFileRange | Opcode::CopyFileRange64 => encode(CopyFileRangeIn {
            off_in: offset,
            nodeid_out: random.pick(known),
            off_out: random.number(),
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
fn odd_open(random: &mut Random, opcode: Opcode, mode: u32) -> Vec<u8> {
    let flags = random.small(1 << 16);
    match opcode {
        Opcode::Release => encode(ReleaseIn {
            fh: random.pick(&[0, 1, 1, 2, 2, 3, u64::MAX]),
            ..ReleaseIn::default()
        }),
        Opcode::Open => encode(OpenIn {
            flags,
            open_flags: random.small(2),
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
fn behind_fixed(random: &mut Random, opcode: Opcode) -> Vec<u8> {
    match opcode {
        Opcode::Write => vec![7; 20_000],
        Opcode::SetXattr => [&random.attribute()[..], &[1; 3000]].concat(),
        Opcode::GetXattr | Opcode::RemoveXattr => random.attribute(),
        _ => [random.name(), random.name()].concat(),
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

/// xorshift64*: enough to vary tests.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    fn small(&mut self, limit: u32) -> u32 {
        u32::try_from(self.below(limit.into())).unwrap()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }

    /// An offset or a length: usual, or at an edge.
    fn number(&mut self) -> u64 {
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
        if self.below(2) == 0 {
            self.below(100_000)
        } else {
            self.pick(EDGES)
        }
    }

    fn signed(&mut self) -> i64 {
        self.pick(&[0, 1, -1, i64::MAX, i64::MIN, 1 << 33, -(1 << 33)])
    }

    fn name(&mut self) -> Vec<u8> {
        let long = [b'n'; 256];
        let names: [&[u8]; 10] = [b"a", b"b", b"c", b"d", b"e", b"\xFF", b".", b"..", &long[1..], &long];
        [self.pick(&names), &[0]].concat()
    }

    fn attribute(&mut self) -> Vec<u8> {
        let names: [&[u8]; 7] = [
            b"user.a",
            b"security.capability",
            b"user.homenode.map",
            b"user.homenode.policy",
            b"system.posix_acl_access",
            b"system.posix_acl_default",
            b"trusted.t",
        ];
        [self.pick(&names), &[0]].concat()
    }
}
