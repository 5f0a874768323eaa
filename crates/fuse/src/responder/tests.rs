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
use crate::wire::{CreateIn, EntryOut, FAllocateIn, ForgetOne, MkNodIn, OpenOut, ReadIn, ReleaseIn, WriteIn};
use crate::worker::Asked;
use homenode_engine::backing::BackingStore;
use homenode_engine::fs::{Fs, Ino, NewInode};
use homenode_engine::pool::{Ahead, Machine, MemberKind};
use homenode_engine::{BLOCK_BYTES, Block, CpuId, MemberId, MemoryError, NodeId, Starved};
use std::sync::Mutex;
use std::time::Instant;

const POOL_BLOCKS: usize = 1024;

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

fn responder() -> Responder<Bytes, Midnight, Cpus> {
    responder_on(1)
}

/// On nodes of one CPU each, of which the last one has the member.
fn responder_on(nodes: u16) -> Responder<Bytes, Midnight, Cpus> {
    responder_with(nodes, POOL_BLOCKS)
}

/// With a member of so many blocks.
fn responder_with(nodes: u16, blocks: usize) -> Responder<Bytes, Midnight, Cpus> {
    let count = usize::from(nodes);
    let machine = Machine {
        cpu_nodes: (0..nodes).map(NodeId).collect(),
        nodes: (0..nodes).map(NodeId).collect(),
        latency: vec![vec![10; count]; count],
        files_max: 200,
    };
    let root = NewInode {
        mode: 0o755,
        umask: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
    };
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
        silent_opendir: false,
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
    Responder {
        fetches: std::cell::RefCell::default(),
        service: Arc::new(service),
        slot,
        counters: Arc::default(),
    }
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
fn ask(responder: &Responder<Bytes, Midnight, Cpus>, bytes: &[u8]) -> Option<(i32, Vec<u8>)> {
    let mut message = vec![0; OutHeader::BYTES + (1 << 16)];
    let mut answer = responder.answer(bytes, false, &mut message);
    if let Answer::Later(_) = answer {
        // What takes long is a lane's.
        answer = responder.answer(bytes, true, &mut message);
    }
    let Answer::Due(header) = answer else {
        return None;
    };
    assert_eq!(header.unique, 8);
    Some((-header.error, message[OutHeader::BYTES..header.len as usize].to_vec()))
}

#[test]
fn requests_that_wait_to_free_files_count_as_room_to_come() {
    let Ok(device) = Device::open().map(Arc::new) else {
        return eprintln!("SKIPPED: there is no /dev/fuse");
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
    let errno = |bytes: &[u8]| ask(&responder, bytes).map(|(errno, _)| errno);
    assert_eq!(errno(&request(Opcode::IoCtl, 1, 0, &[0; 32])), Some(libc::ENOSYS));
    assert_eq!(errno(&request(Opcode::Interrupt, 0, 0, &[0; 8])), Some(libc::ENOSYS));
    assert_eq!(errno(&request(Opcode::GetAttr, 999, 0, &[0; 16])), Some(libc::ESTALE));
    assert_eq!(errno(&request(Opcode::Lookup, 1, 0, b"a/b\0")), Some(libc::EIO));
    assert_eq!(
        errno(&request(
            Opcode::Read,
            1,
            0,
            &encode(ReadIn {
                size: 9,
                ..ReadIn::default()
            })
        )),
        Some(libc::EISDIR)
    );
    assert_eq!(
        errno(&request(
            Opcode::ReadDir,
            1,
            0,
            &encode(ReadIn {
                size: 8,
                ..ReadIn::default()
            })
        )),
        Some(libc::EINVAL)
    );
    assert_eq!(errno(&request(Opcode::Forget, 999, 0, &[1; 8])), None);
    assert_eq!(errno(&[0; 12]), None, "a short request has no sender");
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
    let make = encode(MkNodIn {
        mode: libc::S_IFREG | 0o644,
        ..MkNodIn::default()
    });
    let (errno, payload) = ask(
        &responder,
        &request(Opcode::MkNod, 1, 0, &[&make[..], b"file\0"].concat()),
    )
    .unwrap();
    let entry = EntryOut::take(&mut &payload[..]).unwrap();
    assert_eq!((errno, payload.len()), (0, 128));
    let alive = || {
        ask(&responder, &request(Opcode::GetAttr, entry.nodeid, 0, &[0; 16]))
            .unwrap()
            .0
            == 0
    };
    ask(&responder, &request(Opcode::Lookup, 1, 0, b"file\0"));
    assert_eq!(ask(&responder, &request(Opcode::Unlink, 1, 0, b"file\0")).unwrap().0, 0);
    assert!(alive());
    let forget = |nlookup: u64| ask(&responder, &request(Opcode::Forget, entry.nodeid, 0, &encode(nlookup)));
    assert_eq!(forget(1), None);
    assert!(alive(), "the inode has a lookup left");
    let one = ForgetOne {
        nodeid: entry.nodeid,
        nlookup: 1,
    };
    let batch = [encode(1_u32), encode(0_u32), encode(one)].concat();
    assert_eq!(ask(&responder, &request(Opcode::BatchForget, 0, 0, &batch)), None);
    assert!(!alive());
}

/// The last reader of the device leaves them to another thread, which frees nothing before.
#[test]
fn ends_of_large_files_block_no_other_request() {
    let responder = responder_with(1, 20_000);
    let fs = &responder.service.fs;
    let removed = |blocks: u64, is_open: bool| {
        let input = [&encode(CreateIn::default())[..], b"file\0"].concat();
        let created = ask(&responder, &request(Opcode::Create, 1, 0, &input)).unwrap().1;
        let nodeid = EntryOut::take(&mut &created[..]).unwrap().nodeid;
        let opened = OpenOut::take(&mut &created[EntryOut::BYTES..]).unwrap();
        let release = encode(ReleaseIn {
            fh: opened.fh,
            ..ReleaseIn::default()
        });
        let length = blocks * BLOCK_BYTES as u64;
        let range = encode(FAllocateIn {
            length,
            ..FAllocateIn::default()
        });
        assert_eq!(
            ask(&responder, &request(Opcode::FAllocate, nodeid, 0, &range))
                .unwrap()
                .0,
            0
        );
        if !is_open {
            ask(&responder, &request(Opcode::Release, nodeid, 0, &release));
        }
        assert_eq!(ask(&responder, &request(Opcode::Unlink, 1, 0, b"file\0")).unwrap().0, 0);
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
    let answer = |request: &[u8], is_aside| responder.answer(request, is_aside, &mut [0; 256]);
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
        let make = encode(MkNodIn {
            mode: libc::S_IFREG | 0o644,
            ..MkNodIn::default()
        });
        let made = ask(
            &responder,
            &request(Opcode::MkNod, 1, 0, &[&make[..], b"file\0"].concat()),
        );
        let file = EntryOut::take(&mut &made.unwrap().1[..]).unwrap().nodeid;
        let write = encode(WriteIn {
            size: 3000,
            ..WriteIn::default()
        });
        let read = encode(ReadIn {
            size: 1000,
            ..ReadIn::default()
        });
        // The caller of both is thread 1.
        for bytes in [
            request(Opcode::Write, file, 0, &[&write[..], &[7; 3000]].concat()),
            request(Opcode::Read, file, 0, &read),
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
    let make = encode(MkNodIn {
        mode: libc::S_IFREG | 0o644,
        ..MkNodIn::default()
    });
    let nodeid = |name: &[u8]| {
        let bytes = request(Opcode::MkNod, 1, 0, &[&make[..], name].concat());
        EntryOut::take(&mut &ask(&responder, &bytes).unwrap().1[..])
            .unwrap()
            .nodeid
    };
    let (unlinked, kept) = (nodeid(b"unlinked\0"), nodeid(b"kept\0"));
    let write = |nodeid: u64, blocks: usize| {
        let size = blocks * BLOCK_BYTES;
        let input = encode(WriteIn {
            size: u32::try_from(size).unwrap(),
            ..WriteIn::default()
        });
        request(Opcode::Write, nodeid, 0, &[&input[..], &vec![7; size]].concat())
    };
    assert_eq!(ask(&responder, &write(unlinked, POOL_BLOCKS)).unwrap().0, 0);
    ask(&responder, &request(Opcode::Unlink, 1, 0, b"unlinked\0")).unwrap();
    let bytes = write(kept, 1);
    let through_ring = |waited| {
        let mut payload = [0; 64];
        let cpu = CpuId(0);
        responder.carry_out(
            Incoming::parse(&bytes),
            Origin::Ring {
                cpu,
                is_aside: false,
                waited,
                is_new: waited.is_none(),
                done: 0,
                may_fetch: false,
                is_reading: false,
            },
            &mut Reply::new(&mut payload),
        )
    };
    let refused = |answer| matches!(answer, Answer::Due(header) if header.error == -libc::ENOSPC);
    let later = Answer::Later(Later::Room);
    assert_eq!(through_ring(None), later);
    for _ in 0..100 {
        assert_eq!(through_ring(Some(ROOM_WAIT)), later, "time counts, not tries");
    }
    assert!(refused(through_ring(Some(ROOM_TIMEOUT))), "ENOSPC after the timeout");
    ask(&responder, &request(Opcode::Forget, unlinked, 0, &encode(1_u64)));
    assert!(matches!(through_ring(Some(ROOM_WAIT)), Answer::Due(header) if header.error == 0));
}

/// A ring's thread has others to serve: what takes long comes back to it, and what comes meanwhile is carried out between.
#[test]
fn long_operations_on_a_ring_do_not_block_others() {
    let responder = responder();
    let created = ask(
        &responder,
        &request(
            Opcode::Create,
            1,
            0,
            &[&encode(CreateIn::default())[..], b"a\0"].concat(),
        ),
    );
    let nodeid = EntryOut::take(&mut &created.unwrap().1[..]).unwrap().nodeid;
    let read_byte = || {
        let input = encode(ReadIn {
            size: 1,
            ..ReadIn::default()
        });
        ask(&responder, &request(Opcode::Read, nodeid, 0, &input)).unwrap().1
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
        let mut payload = [0; 64];
        let cpu = CpuId(0);
        let is_new = waited.is_none();
        let origin = Origin::Ring {
            cpu,
            is_aside: false,
            waited,
            is_new,
            done,
            may_fetch: false,
            is_reading: false,
        };
        let answer = responder.carry_out(Incoming::parse(&zero), origin, &mut Reply::new(&mut payload));
        steps += 1;
        assert_eq!(
            read_byte(),
            [0],
            "the first step has zeroed it, and nothing holds it up"
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
