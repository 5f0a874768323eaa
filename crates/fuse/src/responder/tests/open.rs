//! Handles of opens, and what RELEASE does with them.

use super::{TestResponder, ask, create, encode, errno, request, responder};
use crate::wire::{Field, Opcode, OpenIn, OpenOut, ReleaseIn};
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
