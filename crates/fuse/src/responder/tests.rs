//! Requests carried out on a filesystem in plain memory, without a kernel.

mod odd;
mod open;

use super::*;
use crate::aside::{Aside, Way};
use crate::call::{ROOM_TIMEOUT, ROOM_WAIT};
use crate::device::Device;
use crate::negotiate::Agreed;
use crate::statistics::Statistics;
use crate::tasks::{TaskCount, TaskCounts};
use crate::wire::{
    CopyFileRangeIn, CreateIn, EntryOut, FAllocateIn, ForgetOne, GetXattrIn, MkNodIn, OpenOut, ReadIn, ReleaseIn,
    WriteIn,
};
use crate::worker::Asked;
use homenode_engine::backing::BackingStore;
use homenode_engine::fs::{Fs, Ino, MAP_XATTR, NewInode};
use homenode_engine::pool::{Ahead, Machine, MemberKind};
use homenode_engine::{BLOCK_BYTES, Block, CpuId, MemberId, MemoryError, NodeId, Starved};
use std::io::{self, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const POOL_BLOCKS: usize = 1024;

/// A store of these bytes fails, as on a broken disk.
const UNWRITABLE: &[u8] = b"unwritable";

struct Bytes(Mutex<Vec<u8>>);

impl Bytes {
    fn with<R>(&self, at: Block, offset: usize, work: impl FnOnce(&mut [u8]) -> R) -> R {
        let start = usize::try_from(at.index()).unwrap() * BLOCK_BYTES + offset;
        work(&mut self.0.lock().unwrap()[start..])
    }
}

impl Memory for Bytes {
    fn load(&self, from: Block, offset: usize, to: &mut [u8]) -> Result<(), MemoryError> {
        self.with(from, offset, |bytes| to.copy_from_slice(&bytes[..to.len()]));
        Ok(())
    }

    fn store(&self, to: Block, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        if from.starts_with(UNWRITABLE) {
            return Err(MemoryError);
        }
        self.with(to, offset, |bytes| bytes[..from.len()].copy_from_slice(from));
        Ok(())
    }

    fn zero(&self, at: Block, offset: usize, count: usize) -> Result<(), MemoryError> {
        self.with(at, offset, |bytes| bytes[..count].fill(0));
        Ok(())
    }

    fn copy(&self, from: Block, to: Block, blocks: u64) -> Result<(), MemoryError> {
        let mut bytes = vec![0; usize::try_from(blocks).unwrap() * BLOCK_BYTES];
        self.load(from, 0, &mut bytes)?;
        self.store(to, 0, &bytes)?;
        Ok(())
    }

    fn populate(&self, _: MemberId, _: u64, _: u64) -> Result<(), Starved> {
        Ok(())
    }
}

struct Midnight;

impl Clock for Midnight {
    fn now_ns(&self) -> i64 {
        0
    }
}

/// Number of CPUs; this thread runs on the first one.
struct Cpus(usize);

impl Host for Cpus {
    fn current_cpu(&self) -> CpuId {
        CpuId(0)
    }

    fn possible_cpus(&self) -> usize {
        self.0
    }

    fn pin_to_cpu(&self, _: CpuId) -> std::io::Result<()> {
        Ok(())
    }

    fn pin_near_cpu(&self, _: CpuId) -> std::io::Result<()> {
        Ok(())
    }

    fn thread_cpu(&self, _: u32) -> Option<CpuId> {
        None
    }

    fn backing_store(&self, _: u64, _: u64, _: bool) -> std::io::Result<Arc<dyn BackingStore>> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

type TestResponder = Responder<Bytes, Midnight, Cpus>;

fn responder() -> TestResponder {
    responder_on(1)
}

/// On nodes of one CPU each, of which the last one has the member.
fn responder_on(nodes: u16) -> TestResponder {
    responder_with(nodes, POOL_BLOCKS)
}

/// With a member of so many blocks.
fn responder_with(nodes: u16, blocks: usize) -> TestResponder {
    let count = usize::from(nodes);
    let machine = Machine {
        cpu_nodes: (0..nodes).map(NodeId).collect(),
        nodes: (0..nodes).map(NodeId).collect(),
        latency: vec![vec![10; count]; count],
        files_max: 200,
    };
    let root = NewInode::of_root(0o755);
    let fs = Fs::new(
        &machine,
        Bytes(Mutex::new(vec![0xDB; blocks * BLOCK_BYTES])),
        Midnight,
        root,
    );
    let member = fs
        .pool()
        .add(MemberKind::Dram, NodeId(nodes - 1), blocks as u64)
        .unwrap();
    while fs.pool().populate_ahead(member, blocks as u64) == Ahead::More {}
    let slot = fs.slots().claim().unwrap();
    let agreed = Agreed {
        attribute_timeout: crate::Options::ATTRIBUTE_TIMEOUT,
        parallel_direct_io: true,
        passthrough: false,
        sees_writes: true,
    };
    let service = Service::new(
        Arc::new(fs),
        Arc::new(Cpus(count)),
        agreed,
        (std::sync::Weak::new(), None),
        1,
    );
    Responder::new(&Arc::new(service), slot)
}

/// A request with its header.
fn request(opcode: Opcode, nodeid: u64, uid: u32, arguments: &[u8]) -> Vec<u8> {
    let len = u32::try_from(InHeader::BYTES + arguments.len()).unwrap();
    let header = InHeader {
        len,
        opcode: opcode as u32,
        unique: 8,
        nodeid,
        uid,
        pid: 1,
        ..InHeader::default()
    };
    let mut bytes = encode(header);
    bytes.extend_from_slice(arguments);
    bytes
}

fn encode<F: Field>(field: F) -> Vec<u8> {
    let mut bytes = vec![0; F::BYTES];
    field.put(&mut &mut bytes[..]).unwrap();
    bytes
}

/// The errno of an answer (0: none) and its payload.
fn ask(responder: &TestResponder, bytes: &[u8]) -> Option<(i32, Vec<u8>)> {
    let mut message = vec![0; OutHeader::BYTES + (1 << 16)];
    let mut answer = responder.answer(bytes, None, &mut message);
    if let Answer::Later(_) = answer {
        // What takes long is a lane's.
        answer = responder.answer_wholly(bytes, &mut message);
    }
    let Answer::Due(header) = answer else {
        return None;
    };
    assert_eq!(header.unique, 8);
    Some((-header.error, message[OutHeader::BYTES..header.len as usize].to_vec()))
}

/// The errno of an answer to root (0: none).
fn errno(responder: &TestResponder, opcode: Opcode, nodeid: u64, arguments: &[u8]) -> Option<i32> {
    ask(responder, &request(opcode, nodeid, 0, arguments)).map(|(errno, _)| errno)
}

/// Makes a file of the root directory by MKNOD; gives its number.
fn make(responder: &TestResponder, name: &[u8]) -> u64 {
    let input = encode(MkNodIn {
        mode: libc::S_IFREG | 0o644,
        ..MkNodIn::default()
    });
    let made = ask(responder, &request(Opcode::MkNod, 1, 0, &[&input[..], name].concat()));
    let (errno, payload) = made.unwrap();
    assert_eq!((errno, payload.len()), (0, 128));
    EntryOut::take(&mut &payload[..]).unwrap().nodeid
}

/// Makes a file by CREATE or TMPFILE; gives its number and the handle of the open.
fn create(responder: &TestResponder, opcode: Opcode, flags: i32) -> (u64, u64) {
    let input = encode(CreateIn {
        flags: flags.cast_unsigned(),
        mode: 0o644,
        ..CreateIn::default()
    });
    let (errno, payload) = ask(responder, &request(opcode, 1, 0, &[&input[..], b"file\0"].concat())).unwrap();
    assert_eq!(errno, 0);
    let mut from = &payload[..];
    let entry = EntryOut::take(&mut from).unwrap();
    (entry.nodeid, OpenOut::take(&mut from).unwrap().fh)
}

fn write_request(nodeid: u64, bytes: usize) -> Vec<u8> {
    let input = encode(WriteIn {
        size: u32::try_from(bytes).unwrap(),
        ..WriteIn::default()
    });
    request(Opcode::Write, nodeid, 0, &[&input[..], &vec![7; bytes]].concat())
}

fn read_in(size: u32) -> Vec<u8> {
    encode(ReadIn {
        size,
        ..ReadIn::default()
    })
}

/// An attempt by a ring's thread.
fn ring(waited: Option<Duration>, done: u64) -> Origin {
    Origin::Ring {
        cpu: CpuId(0),
        is_aside: false,
        waited,
        is_new: waited.is_none(),
        done,
        may_fetch: false,
        is_reading: false,
    }
}

#[test]
fn requests_that_wait_to_free_files_count_as_room_to_come() {
    let Ok(device) = Device::open().map(Arc::new) else {
        // Past the test harness's capture.
        let _ = writeln!(io::stderr(), "SKIPPED: there is no /dev/fuse");
        return;
    };
    let responder = responder();
    let pool = responder.service.fs.pool();
    for (opcode, frees) in [
        (Opcode::Forget, true),
        (Opcode::BatchForget, true),
        (Opcode::Release, true),
        (Opcode::FAllocate, false),
    ] {
        let request = request(opcode, 2, 0, &[0; 32]);
        let aside = Aside::new();
        let asked = Asked::new(&request, 256, &device, Instant::now(), pool).unwrap();
        aside.send(asked, Way::Long);
        assert_eq!(pool.is_discarding(), frees, "{opcode:?}");
        drop(aside);
        assert!(!pool.is_discarding(), "{opcode:?}: it is done, or never will be");
    }
}

#[test]
fn unsupported_requests_get_an_errno() {
    let responder = responder();
    let errno = |opcode, nodeid, arguments: &[u8]| errno(&responder, opcode, nodeid, arguments);
    assert_eq!(errno(Opcode::IoCtl, 1, &[0; 32]), Some(libc::ENOSYS));
    assert_eq!(errno(Opcode::Interrupt, 0, &[0; 8]), Some(libc::ENOSYS));
    assert_eq!(errno(Opcode::GetAttr, 999, &[0; 16]), Some(libc::ESTALE));
    assert_eq!(errno(Opcode::Lookup, 1, b"a/b\0"), Some(libc::EIO));
    assert_eq!(errno(Opcode::Read, 1, &read_in(9)), Some(libc::EISDIR));
    assert_eq!(errno(Opcode::ReadDir, 1, &read_in(8)), Some(libc::EINVAL));
    assert_eq!(errno(Opcode::Forget, 999, &[1; 8]), None);
    assert_eq!(ask(&responder, &[0; 12]), None, "a short request has no sender");
}

#[test]
fn a_missing_name_may_be_cached() {
    let responder = responder();
    let (errno, payload) = ask(&responder, &request(Opcode::Lookup, 1, 0, b"missing\0")).unwrap();
    let entry = EntryOut::take(&mut &payload[..]).unwrap();
    assert_eq!((errno, entry.nodeid), (0, 0));
    assert!(entry.entry_valid > 0);
}

#[test]
fn looked_up_inodes_outlive_their_names() {
    let responder = responder();
    let nodeid = make(&responder, b"file\0");
    let errno = |opcode, nodeid, arguments: &[u8]| errno(&responder, opcode, nodeid, arguments);
    let alive = || errno(Opcode::GetAttr, nodeid, &[0; 16]).unwrap() == 0;
    errno(Opcode::Lookup, 1, b"file\0");
    assert_eq!(errno(Opcode::Unlink, 1, b"file\0"), Some(0));
    assert!(alive());
    assert_eq!(errno(Opcode::Forget, nodeid, &encode(1_u64)), None);
    assert!(alive(), "the inode has a lookup left");
    let one = ForgetOne { nodeid, nlookup: 1 };
    let batch = [encode(1_u32), encode(0_u32), encode(one)].concat();
    assert_eq!(errno(Opcode::BatchForget, 0, &batch), None);
    assert!(!alive());
}

/// The last reader of the device leaves them to another thread, which frees nothing before.
#[test]
fn ends_of_large_files_block_no_other_request() {
    let responder = responder_with(1, 20_000);
    let fs = &responder.service.fs;
    let removed = |blocks: u64, is_open: bool| {
        let (nodeid, fh) = create(&responder, Opcode::Create, 0);
        let release = encode(ReleaseIn {
            fh,
            ..ReleaseIn::default()
        });
        let length = blocks * BLOCK_BYTES as u64;
        let range = encode(FAllocateIn {
            length,
            ..FAllocateIn::default()
        });
        assert_eq!(errno(&responder, Opcode::FAllocate, nodeid, &range), Some(0));
        if !is_open {
            errno(&responder, Opcode::Release, nodeid, &release);
        }
        assert_eq!(errno(&responder, Opcode::Unlink, 1, b"file\0"), Some(0));
        (nodeid, release)
    };
    let forget = |nodeid| request(Opcode::Forget, nodeid, 0, &encode(1_u64));
    let forget_all = |nodeids: &[u64]| {
        let count = u32::try_from(nodeids.len()).unwrap();
        let ones = nodeids
            .iter()
            .flat_map(|&nodeid| encode(ForgetOne { nodeid, nlookup: 1 }));
        let batch: Vec<u8> = [encode(count), encode(0_u32)]
            .concat()
            .into_iter()
            .chain(ones)
            .collect();
        request(Opcode::BatchForget, 0, 0, &batch)
    };
    let answer = |request: &[u8], is_aside: bool| responder.answer(request, is_aside.then_some(0), &mut [0; 256]);
    let later = Answer::Later(Later::Disk(Way::Long));
    let is_gone = |nodeid| fs.inode(Ino(nodeid)).is_none();

    let (small, _) = removed(1000, false);
    assert_eq!((answer(&forget(small), false), is_gone(small)), (Answer::None, true));
    let (large, _) = removed(9000, false);
    assert_eq!((answer(&forget(large), false), is_gone(large)), (later, false));
    assert_eq!((answer(&forget(large), true), is_gone(large)), (Answer::None, true));
    let halves = [removed(6000, false).0, removed(6000, false).0];
    assert_eq!(
        (answer(&forget_all(&halves), false), is_gone(halves[0])),
        (later, false)
    );
    assert_eq!(answer(&forget_all(&halves), true), Answer::None);
    assert!(halves.into_iter().all(is_gone));
    // The kernel's words may come in any order.
    let (large, release) = removed(9000, true);
    assert_eq!((answer(&forget(large), false), is_gone(large)), (Answer::None, false));
    let release = request(Opcode::Release, large, 0, &release);
    assert_eq!((answer(&release, false), is_gone(large)), (later, false));
    assert!(matches!(answer(&release, true), Answer::Due(_)) && is_gone(large));
    assert_eq!(fs.statfs().free, 20_000);
}

#[test]
fn copied_bytes_count_for_the_calling_thread_by_home() {
    for (nodes, counts) in [(2, true), (1, false)] {
        let responder = responder_on(nodes);
        let all: Vec<NodeId> = (0..nodes).map(NodeId).collect();
        let take = || {
            let mut counts = TaskCounts::default();
            responder.counters.tasks.take(&all, &mut counts);
            counts.threads
        };
        assert_eq!(take(), []);
        let file = make(&responder, b"file\0");
        // The caller of both is thread 1.
        for bytes in [
            write_request(file, 3000),
            request(Opcode::Read, file, 0, &read_in(1000)),
        ] {
            assert_eq!(ask(&responder, &bytes).unwrap().0, 0);
        }
        let count = TaskCount {
            thread: 1,
            homes: vec![(NodeId(1), 4000)],
            files: vec![(file, 4000)],
        };
        assert_eq!(take(), if counts { vec![count] } else { vec![] });
    }
}

#[test]
fn a_ring_retries_where_a_device_reader_blocks() {
    let responder = responder();
    let (unlinked, kept) = (make(&responder, b"unlinked\0"), make(&responder, b"kept\0"));
    let all = write_request(unlinked, POOL_BLOCKS * BLOCK_BYTES);
    assert_eq!(ask(&responder, &all).unwrap().0, 0);
    errno(&responder, Opcode::Unlink, 1, b"unlinked\0").unwrap();
    let bytes = write_request(kept, BLOCK_BYTES);
    let through_ring =
        |waited| responder.carry_out(Incoming::parse(&bytes), ring(waited, 0), &mut Reply::new(&mut [0; 64]));
    let refused = |answer| matches!(answer, Answer::Due(header) if header.error == -libc::ENOSPC);
    let later = Answer::Later(Later::Room);
    assert_eq!(through_ring(None), later);
    for _ in 0..100 {
        assert_eq!(through_ring(Some(ROOM_WAIT)), later, "time counts, not tries");
    }
    assert!(refused(through_ring(Some(ROOM_TIMEOUT))), "ENOSPC after the timeout");
    errno(&responder, Opcode::Forget, unlinked, &encode(1_u64));
    assert!(matches!(through_ring(Some(ROOM_WAIT)), Answer::Due(header) if header.error == 0));
}

#[test]
fn few_maps_of_files_are_under_way_at_a_time() {
    let responder = responder();
    let (file, small) = (make(&responder, b"file\0"), make(&responder, b"small\0"));
    // A block and a hole in turns: more than a step looks at.
    for at in 0..600 {
        let input = encode(WriteIn {
            offset: at * 2 * BLOCK_BYTES as u64,
            size: 1,
            ..WriteIn::default()
        });
        let write = request(Opcode::Write, file, 0, &[&input[..], &[7]].concat());
        assert_eq!(ask(&responder, &write).unwrap().0, 0);
    }
    let asked = encode(GetXattrIn {
        size: 256,
        ..GetXattrIn::default()
    });
    let attempt = |unique: u64, file, uid, waited, done| {
        let arguments = [&asked[..], MAP_XATTR, b"\0"].concat();
        let mut bytes = request(Opcode::GetXattr, file, uid, &arguments);
        bytes[8..16].copy_from_slice(&unique.to_le_bytes());
        responder.carry_out(
            Incoming::parse(&bytes),
            ring(waited, done),
            &mut Reply::new(&mut [0; 256]),
        )
    };
    let is = |answer: &Answer, errno: i32| matches!(answer, Answer::Due(header) if header.error == -errno);
    let mut steps: Vec<u64> = [10, 20]
        .map(|unique| match attempt(unique, file, 1000, None, 0) {
            Answer::Later(Later::Step(done)) => done,
            other => panic!("{other:?}"),
        })
        .into();
    for file in [file, small] {
        assert!(is(&attempt(30, file, 1000, None, 0), libc::EAGAIN));
    }
    assert!(is(&attempt(40, small, 0, None, 0), 0), "root");
    // One of them ends.
    while let Answer::Later(Later::Step(done)) = attempt(10, file, 1000, Some(ROOM_WAIT), steps[0]) {
        steps[0] = done;
    }
    assert!(
        is(&attempt(50, 9999, 1000, None, 0), libc::ESTALE),
        "no file has this number"
    );
    assert!(is(&attempt(60, small, 1000, None, 0), 0));
}

/// A ring's thread has others to serve: what takes long comes back to it, and what comes meanwhile is carried out between.
#[test]
fn long_operations_on_a_ring_do_not_block_others() {
    let responder = responder();
    let (nodeid, _) = create(&responder, Opcode::Create, 0);
    let read_byte = || {
        ask(&responder, &request(Opcode::Read, nodeid, 0, &read_in(1)))
            .unwrap()
            .1
    };
    let fs = &responder.service.fs;
    let inode = fs.inode(homenode_engine::fs::Ino(nodeid)).unwrap();
    let caller = fs.slots().claim().unwrap();
    let asking = homenode_engine::fs::Asking {
        waits: true,
        user: Some(0),
        slot: &caller,
        cpu: CpuId(0),
        node: &|| NodeId(0),
    };
    let bytes = POOL_BLOCKS * BLOCK_BYTES;
    assert_eq!(fs.write(&asking, &inode, 0, &vec![7; bytes], false), Ok(bytes));
    let zero = request(
        Opcode::FAllocate,
        nodeid,
        0,
        &encode(FAllocateIn {
            length: bytes as u64,
            mode: 0x10,
            ..FAllocateIn::default()
        }),
    );
    let (mut done, mut steps, mut waited) = (0, 0, None);
    loop {
        let answer = responder.carry_out(
            Incoming::parse(&zero),
            ring(waited, done),
            &mut Reply::new(&mut [0; 64]),
        );
        steps += 1;
        let byte = if steps == 1 { 7 } else { 0 };
        assert_eq!(
            read_byte(),
            [byte],
            "the first step looks for room, the second has zeroed it, and nothing holds it up"
        );
        match answer {
            Answer::Later(Later::Step(so_far)) => {
                assert!(so_far > done);
                (done, waited) = (so_far, Some(ROOM_WAIT));
            }
            Answer::Due(header) => {
                assert_eq!(header.error, 0);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(steps >= POOL_BLOCKS / 512, "{steps} steps");
    let counted = Statistics::sum(std::iter::once(&*responder.counters)).requests;
    assert!(
        counted.contains(&(Opcode::FAllocate, 1)),
        "several steps count as one request"
    );
}

/// A copy of another user, which comes while a lane zeroes the file, still finds bytes at its end.
#[test]
fn a_long_operation_in_a_lane_does_not_block_another_user() {
    const BLOCKS: usize = 3000;
    let Ok(device) = Device::open().map(Arc::new) else {
        // Past the test harness's capture.
        let _ = writeln!(io::stderr(), "SKIPPED: there is no /dev/fuse");
        return;
    };
    let responder = responder_with(1, BLOCKS + 1);
    let (long, copy) = (make(&responder, b"long\0"), make(&responder, b"copy\0"));
    let bytes = BLOCKS * BLOCK_BYTES;
    assert_eq!(ask(&responder, &write_request(long, bytes)).unwrap().0, 0);
    let zero = FAllocateIn {
        length: bytes as u64,
        mode: 0x10,
        ..FAllocateIn::default()
    };
    let last = CopyFileRangeIn {
        off_in: (bytes - BLOCK_BYTES) as u64,
        nodeid_out: copy,
        len: BLOCK_BYTES as u64,
        ..CopyFileRangeIn::default()
    };
    let aside = Aside::new();
    for (opcode, user, arguments) in [
        (Opcode::FAllocate, 1, encode(zero)),
        (Opcode::CopyFileRange, 2, encode(last)),
    ] {
        let request = request(opcode, long, user, &arguments);
        let pool = responder.service.fs.pool();
        aside.send(
            Asked::new(&request, 256, &device, Instant::now(), pool).unwrap(),
            Way::Long,
        );
    }
    let lane = Arc::clone(&aside.lanes()[Way::Long as usize]);
    drop(aside);
    lane.serve(&responder);
    let last_byte = |nodeid, offset: usize| {
        let read = encode(ReadIn {
            offset: offset as u64,
            size: 1,
            ..ReadIn::default()
        });
        ask(&responder, &request(Opcode::Read, nodeid, 0, &read)).unwrap().1
    };
    assert_eq!(last_byte(long, bytes - 1), [0], "it came to its end");
    assert_eq!(last_byte(copy, BLOCK_BYTES - 1), [7]);
}

/// The kernel takes a short count of such pages for success.
#[test]
fn a_cut_write_of_pages_tells_the_error_of_the_rest() {
    let responder = responder();
    let ino = make(&responder, b"file\0");
    let write = |write_flags, data: &[u8]| {
        let input = encode(WriteIn {
            size: u32::try_from(data.len()).unwrap(),
            write_flags,
            ..WriteIn::default()
        });
        errno(&responder, Opcode::Write, ino, &[&input[..], data].concat())
    };
    let mut data = [1; 2 * BLOCK_BYTES];
    assert_eq!(write(0, &data[..BLOCK_BYTES]), Some(0));
    data[BLOCK_BYTES..][..UNWRITABLE.len()].copy_from_slice(UNWRITABLE);
    assert_eq!(write(0, &data), Some(0), "a short count");
    assert_eq!(write(crate::wire::flags::write::CACHE, &data), Some(libc::EIO));
}

#[test]
fn requests_of_the_kernel_take_no_turn_of_root() {
    let user_of = |pid, uid| {
        crate::worker::user_of(&InHeader {
            pid,
            uid,
            ..InHeader::default()
        })
    };
    assert_eq!((user_of(7, 0), user_of(0, 1000)), (0, 1000));
    assert_ne!(user_of(0, 0), 0);
}
