//! Handles of opens, and what RELEASE does with them.

use super::{TestResponder, ask, create, encode, errno, request, responder, responder_with, ring};
use crate::call::{Later, ROOM_WAIT};
use crate::responder::{Answer, Incoming};
use crate::wire::{Field, Opcode, OpenIn, OpenOut, ReleaseIn, Reply, WriteIn};
use homenode_engine::BLOCK_BYTES;
use homenode_engine::fs::Ino;

fn open(responder: &TestResponder, nodeid: u64, flags: i32) -> u64 {
    let input = encode(OpenIn {
        flags: flags.cast_unsigned(),
        ..OpenIn::default()
    });
    let (errno, payload) = ask(responder, &request(Opcode::Open, nodeid, 0, &input)).unwrap();
    assert_eq!(errno, 0);
    OpenOut::take(&mut &payload[..]).unwrap().fh
}

fn release(responder: &TestResponder, nodeid: u64, fh: u64) {
    let input = encode(ReleaseIn {
        fh,
        ..ReleaseIn::default()
    });
    let answer = ask(responder, &request(Opcode::Release, nodeid, 0, &input));
    assert_eq!(answer, Some((0, vec![])));
}

fn counts(responder: &TestResponder, nodeid: u64) -> (u32, u32) {
    let fs = &responder.service.fs;
    fs.check_invariants();
    let opens = fs.opens(&fs.inode(Ino(nodeid)).unwrap());
    (opens.all, opens.writers)
}

#[test]
fn opens_are_counted_until_their_handles_are_released() {
    let responder = responder();
    let (nodeid, created) = create(&responder, Opcode::Create, libc::O_RDWR);
    assert_eq!(counts(&responder, nodeid), (1, 1));
    let reader = open(&responder, nodeid, libc::O_RDONLY | libc::O_DIRECT);
    let writer = open(&responder, nodeid, libc::O_WRONLY | libc::O_TRUNC);
    assert_eq!(counts(&responder, nodeid), (3, 2));
    release(&responder, nodeid, created);
    assert_eq!(counts(&responder, nodeid), (2, 1));
    release(&responder, nodeid, reader);
    assert_eq!(counts(&responder, nodeid), (1, 1));
    release(&responder, nodeid, writer);
    assert_eq!(counts(&responder, nodeid), (0, 0));
}

#[test]
fn unknown_handles_release_nothing() {
    let responder = responder();
    let (nodeid, fh) = create(&responder, Opcode::Create, libc::O_WRONLY);
    for odd in [0, 3, 1 << 32, u64::MAX] {
        release(&responder, nodeid, odd);
        release(&responder, 999, odd);
        release(&responder, 1, odd);
    }
    assert_eq!(counts(&responder, nodeid), (1, 1));
    for _ in 0..3 {
        release(&responder, nodeid, fh);
        assert_eq!(counts(&responder, nodeid), (0, 0));
    }
}

#[test]
fn a_file_forgotten_before_its_release_goes_with_the_release() {
    for opcode in [Opcode::Create, Opcode::TmpFile] {
        let responder = responder();
        let (nodeid, fh) = create(&responder, opcode, libc::O_RDWR);
        if opcode == Opcode::Create {
            errno(&responder, Opcode::Unlink, 1, b"file\0").unwrap();
        }
        errno(&responder, Opcode::Forget, nodeid, &encode(1_u64));
        assert_eq!(counts(&responder, nodeid), (1, 1));
        assert!(responder.service.fs.has_unlinked());
        release(&responder, nodeid, fh);
        assert!(responder.service.fs.inode(Ino(nodeid)).is_none());
        assert!(!responder.service.fs.has_unlinked());
    }
}

/// A ring's thread has others to serve, and a pool of memory no other thread for it.
#[test]
fn a_large_file_goes_by_steps_with_its_release_by_a_ring() {
    const BLOCKS: u64 = 20_000;
    let responder = responder_with(1, usize::try_from(BLOCKS).unwrap() + 1000);
    let (nodeid, fh) = create(&responder, Opcode::TmpFile, libc::O_RDWR);
    // A block and a hole in turns.
    for nth in 0..BLOCKS {
        let input = encode(WriteIn {
            offset: nth * 2 * BLOCK_BYTES as u64,
            size: 1,
            ..WriteIn::default()
        });
        let write = request(Opcode::Write, nodeid, 0, &[&input[..], &[7]].concat());
        assert_eq!(ask(&responder, &write).unwrap().0, 0);
    }
    errno(&responder, Opcode::Forget, nodeid, &encode(1_u64));
    let input = encode(ReleaseIn {
        fh,
        ..ReleaseIn::default()
    });
    let bytes = request(Opcode::Release, nodeid, 0, &input);
    let (mut done, mut steps, mut waited) = (0, 0, None);
    loop {
        let incoming = Incoming::parse(&bytes);
        match responder.carry_out(incoming, ring(waited, done), &mut Reply::new(&mut [0; 64])) {
            Answer::Later(Later::Step(so_far)) => (done, waited) = (so_far, Some(ROOM_WAIT)),
            Answer::Due(header) if header.error == 0 => break,
            other => panic!("{other:?}"),
        }
        steps += 1;
        assert!(responder.service.fs.has_unlinked(), "another step is to come");
    }
    assert!(steps > 1, "{steps} steps");
    assert!(responder.service.fs.inode(Ino(nodeid)).is_none());
    responder.service.fs.check_invariants();
}
