//! Members on the machine's own nodes. What needs privilege or huge pages says SKIPPED where they lack.

use super::*;
use crate::skip;
use homenode_shared::MountLine;
use std::fs::File;
use std::io;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

const HOME: NodeId = NodeId(0);
const ONE: MemberId = MemberId(1);
const RUN_BLOCKS: u64 = (HUGE_BYTES / BLOCK_BYTES) as u64;
const RUN_STEP: usize = HUGE_BYTES / BLOCK_BYTES;
const MIB: u64 = 1 << 20;

fn member(memory: &NodeMemory, id: MemberId, bytes: u64) {
    memory.add(id, HOME, bytes).unwrap();
    let blocks = bytes / BLOCK_BYTES as u64;
    for first in (0..blocks).step_by(RUN_STEP) {
        memory.populate(id, first, RUN_BLOCKS.min(blocks - first)).unwrap();
    }
}

fn bytes_from(seed: usize, count: usize) -> Vec<u8> {
    (seed..seed + count)
        .map(|n| (n * 31 + n / 251).to_le_bytes()[0])
        .collect()
}

/// The private tmpfs, as far as this process may have one.
fn is_private_tmpfs(memory: &NodeMemory, id: MemberId) -> bool {
    match memory.backing(id).unwrap() {
        Backing::HugeTmpfs { .. } => true,
        other => {
            skip(format_args!("needs a private tmpfs of huge pages, got {other}"));
            false
        }
    }
}

#[test]
fn bytes_written_across_blocks_are_read_back() {
    let memory = NodeMemory::new();
    member(&memory, ONE, 8 * MIB);
    let mut at = 1;
    for count in [0, 1, 63, 64, 4095, 4096, 4097, 65_537, 2 << 20] {
        let written = bytes_from(at, count);
        let block = Block::new(ONE, (at / BLOCK_BYTES) as u64);
        memory.store(block, at % BLOCK_BYTES, &written).unwrap();
        let mut read = vec![0; count];
        memory.load(block, at % BLOCK_BYTES, &mut read).unwrap();
        assert!(read == written, "{count} bytes at {at}");
        at += count + 7;
    }
}

#[test]
fn zeroing_touches_its_range_only() {
    let memory = NodeMemory::new();
    member(&memory, ONE, 2 * MIB);
    let start = Block::new(ONE, 0);
    memory.store(start, 0, &[0xff; 3 * BLOCK_BYTES]).unwrap();
    memory.zero(Block::new(ONE, 1), 5, BLOCK_BYTES).unwrap();
    let mut read = vec![1; 3 * BLOCK_BYTES];
    memory.load(start, 0, &mut read).unwrap();
    let (first, last) = (BLOCK_BYTES + 5, 2 * BLOCK_BYTES + 5);
    assert!(read[..first].iter().all(|byte| *byte == 0xff));
    assert!(read[first..last].iter().all(|byte| *byte == 0));
    assert!(read[last..].iter().all(|byte| *byte == 0xff));
}

#[test]
fn blocks_move_between_members() {
    let memory = NodeMemory::new();
    let two = MemberId(4095);
    member(&memory, ONE, 4 * MIB);
    member(&memory, two, 4 * MIB);
    let written = bytes_from(3, 512 * BLOCK_BYTES);
    memory.store(Block::new(ONE, 7), 0, &written).unwrap();
    memory.copy(Block::new(ONE, 7), Block::new(two, 100), 512).unwrap();
    let mut read = vec![0; written.len()];
    memory.load(Block::new(two, 100), 0, &mut read).unwrap();
    assert!(read == written);
}

#[test]
fn new_memory_is_zero_and_has_whole_blocks() {
    let memory = NodeMemory::new();
    member(&memory, ONE, 3 * BLOCK_BYTES as u64);
    let mut read = [1; 3 * BLOCK_BYTES];
    memory.load(Block::new(ONE, 0), 0, &mut read).unwrap();
    assert!(read.iter().all(|byte| *byte == 0));
    panics(|| memory.zero(Block::new(ONE, 3), 0, 1));
}

#[test]
fn accesses_to_wrong_blocks_panic() {
    let memory = NodeMemory::new();
    member(&memory, ONE, 2 * MIB);
    let end = Block::new(ONE, RUN_BLOCKS);
    memory.zero(end, 0, 0).unwrap();
    panics(|| memory.zero(end, 0, 1));
    panics(|| memory.zero(Block::new(ONE, 0), 2 << 20, 1));
    panics(|| memory.zero(Block::new(ONE, 0), usize::MAX, 1));
    panics(|| memory.zero(Block::new(ONE, 0), 1, usize::MAX));
    panics(|| memory.zero(Block::new(ONE, (1 << 48) - 1), usize::MAX, 2));
    panics(|| memory.load(Block::new(ONE, RUN_BLOCKS - 1), 1, &mut [0; BLOCK_BYTES]));
    panics(|| memory.store(Block::new(MemberId(2), 0), 0, &[0]));
    panics(|| memory.store(Block::new(MemberId(4096), 0), 0, &[0]));
    panics(|| memory.copy(Block::new(ONE, 0), Block::new(ONE, 511), 2));
    panics(|| memory.copy(Block::new(ONE, 0), Block::new(ONE, 0), u64::MAX));
    panics(|| memory.populate(ONE, RUN_BLOCKS, 1).unwrap_or(()));
    panics(|| memory.populate(ONE, 0, u64::MAX).unwrap_or(()));
}

fn panics<R>(operation: impl FnOnce() -> R) {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(operation));
    assert!(outcome.is_err(), "reached memory outside its member");
}

#[test]
fn accesses_to_removed_members_panic_and_addresses_stay_reserved() {
    let memory = NodeMemory::new();
    member(&memory, ONE, 2 * MIB);
    let base = memory.address(Block::new(ONE, 0), 0, 1);
    memory.remove(ONE).unwrap();
    panics(|| memory.zero(Block::new(ONE, 0), 0, 1));
    assert_eq!(memory.backing(ONE), None);
    assert_eq!(memory.populate(ONE, 0, 1), Err(Starved));
    assert!(matches!(memory.remove(ONE), Err(Error::Absent(ONE))));
    member(&memory, ONE, 2 * MIB);
    assert_ne!(memory.address(Block::new(ONE, 0), 0, 1), base);
    memory.store(Block::new(ONE, 0), 0, &[1]).unwrap();
}

#[test]
fn members_change_beside_copies() {
    let memory = NodeMemory::new();
    member(&memory, ONE, 2 * MIB);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (written, mut read) = (bytes_from(9, 5000), vec![0; 5000]);
            while !done.load(Ordering::Relaxed) {
                memory.store(Block::new(ONE, 3), 17, &written).unwrap();
                memory.load(Block::new(ONE, 3), 17, &mut read).unwrap();
                assert!(read == written);
            }
        });
        for id in (2..30).map(MemberId) {
            member(&memory, id, 2 * MIB);
            memory.zero(Block::new(id, 0), 0, 2 << 20).unwrap();
            memory.remove(id).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn removing_a_durable_member_in_use_does_not_block_others() {
    const TWO: MemberId = MemberId(2);
    const SOON: Duration = Duration::from_secs(10);
    let directory = tempfile::tempdir().unwrap();
    let memory = NodeMemory::new();
    for id in [ONE, TWO] {
        let path = directory.path().join(id.to_string());
        File::create(&path).unwrap().set_len(MIB).unwrap();
        let file = MemberFile::open(&path).unwrap();
        memory.attach(id, MemberKind::File, file).unwrap();
    }
    // As of a sync that waits for its disk.
    let inside = memory.durable(ONE).unwrap();
    std::thread::scope(|scope| {
        let remover = scope.spawn(|| memory.remove(ONE));
        let other = scope.spawn(|| {
            while memory.file(ONE).is_some() {
                std::thread::yield_now();
            }
            memory.persist(Block::new(TWO, 0), 0, BLOCK_BYTES).unwrap();
        });
        let end = Instant::now() + SOON;
        while !other.is_finished() && Instant::now() < end {
            std::thread::sleep(POLL);
        }
        let (is_served, waits) = (other.is_finished(), !remover.is_finished());
        drop(inside);
        remover.join().unwrap().unwrap();
        assert!(is_served, "the other member could not be synced");
        assert!(waits, "the member was unmapped during a sync");
    });
    assert_eq!(memory.members.read().vacant_durable.len(), 1);
}

#[test]
fn impossible_members_are_refused_with_the_reason() {
    let memory = NodeMemory::new();
    let refused = |id, home, bytes| memory.add(MemberId(id), NodeId(home), bytes).unwrap_err();
    assert!(matches!(refused(1, 999, 2 * MIB), Error::UnknownNode(NodeId(999))));
    assert!(matches!(refused(1, 0, 1 << 50), Error::Room { .. }));
    assert!(matches!(refused(1, 0, 0), Error::Size { .. }));
    assert!(matches!(refused(1, 0, 4097), Error::Size { .. }));
    assert!(matches!(refused(4096, 0, 4096), Error::Number(_)));
    memory.add(ONE, HOME, 2 * MIB).unwrap();
    assert!(matches!(refused(1, 0, 2 * MIB), Error::Present(ONE)));
    let text = refused(2, 0, 1 << 50).to_string();
    assert!(
        text.starts_with("node 0 can give ") && text.contains("not 1073741824 MiB"),
        "{text}"
    );
}

#[test]
fn memory_promised_to_members_is_not_promised_again() {
    let memory = NodeMemory::new();
    let most = free_bytes(HOME).unwrap() / 10 * 6 / MIB * MIB;
    memory.add(ONE, HOME, most).unwrap();
    assert!(matches!(memory.add(MemberId(2), HOME, most), Err(Error::Room { .. })));
    memory.remove(ONE).unwrap();
    memory.add(MemberId(2), HOME, most).unwrap();
}

#[test]
fn populating_takes_memory_and_removing_gives_it_back() {
    const BYTES: u64 = 192 * MIB;
    let shmem = || -> u64 {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("RssShmem:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    };
    let memory = NodeMemory::new();
    memory.add(ONE, HOME, BYTES).unwrap();
    let owed = || memory.members.read().present[&ONE].owed_bytes();
    assert_eq!(owed(), BYTES);
    for first in (0..BYTES / BLOCK_BYTES as u64).step_by(RUN_STEP) {
        memory.populate(ONE, first, RUN_BLOCKS).unwrap();
    }
    assert_eq!(owed(), 0);
    // Other tests of this process take and give a few MiB meanwhile.
    let populated = shmem();
    assert!(populated >= BYTES, "{populated}");
    memory.remove(ONE).unwrap();
    let removed = shmem();
    assert!(removed + BYTES / 2 <= populated, "{populated} then {removed}");
    assert_eq!(memory.huge_bytes(ONE), None);
}

#[test]
fn a_member_without_room_starves_alone() {
    let group = std::env::temp_dir().join(format!("homenode-full-group-{}", std::process::id()));
    std::fs::create_dir_all(&group).unwrap();
    let write = |name: &str, text: &str| std::fs::write(group.join(name), text).unwrap();
    write("memory.max", "1000000000");
    write("memory.current", "999999999");
    let memory = NodeMemory::new();
    let headroom = Headroom::new(HOME, Arc::new(Groups::new(Limits::of(std::slice::from_ref(&group)))));
    memory.members.write().nodes.insert(HOME, Arc::new(headroom));
    memory.add(ONE, HOME, 4 * MIB).unwrap();
    assert_eq!(memory.populate(ONE, 0, RUN_BLOCKS), Err(Starved));
    write("memory.current", "0");
    assert_eq!(memory.populate(ONE, 0, RUN_BLOCKS), Ok(()));
    memory.store(Block::new(ONE, 0), 0, &[5]).unwrap();
    write("memory.current", "999999999");
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(memory.populate(ONE, RUN_BLOCKS, RUN_BLOCKS), Err(Starved));
    let mut read = [0];
    memory.load(Block::new(ONE, 0), 0, &mut read).unwrap();
    assert_eq!(read, [5]);
    std::fs::remove_dir_all(&group).unwrap();
}

#[test]
fn members_use_huge_pages() {
    let memory = NodeMemory::new();
    member(&memory, ONE, 16 * MIB);
    if is_private_tmpfs(&memory, ONE) {
        assert_eq!(memory.huge_bytes(ONE), Some(16 * MIB));
    }
}

#[test]
fn the_private_tmpfs_is_not_in_the_mount_table() {
    let tmpfs = match backing::tmpfs(None, 2 * MIB) {
        Ok(tmpfs) => tmpfs,
        Err(error) => return skip(format_args!("no private tmpfs here: {error}")),
    };
    // By its device: other tests mount and unmount meanwhile.
    let device = rustix::fs::fstat(&tmpfs.file).unwrap().st_dev;
    let device = (rustix::fs::major(device), rustix::fs::minor(device));
    let table = std::fs::read("/proc/self/mountinfo").unwrap();
    assert_eq!(MountLine::all(&table).find(|mount| mount.device == device), None);
}

#[test]
fn a_memfd_is_used_without_permission_to_mount() {
    let refused: Preferred = |_, _| Err(io::Error::from_raw_os_error(libc::EPERM));
    let memory = NodeMemory::new();
    let backing = memory.add_on(ONE, HOME, 4 * MIB, refused).unwrap();
    assert!(
        matches!(
            backing,
            Backing::Memfd {
                refusal: libc::EPERM,
                ..
            }
        ),
        "{backing:?}"
    );
    assert_eq!(memory.backing(ONE), Some(backing));
    let text = backing.to_string();
    assert!(
        text.starts_with("memfd (") && text.contains("Operation not permitted"),
        "{text}"
    );
    memory.populate(ONE, 0, RUN_BLOCKS).unwrap();
    memory.store(Block::new(ONE, 1), 1, b"bytes").unwrap();
    let mut read = [0; 5];
    memory.load(Block::new(ONE, 1), 1, &mut read).unwrap();
    assert_eq!(&read, b"bytes");
}

#[test]
fn pages_lie_on_the_members_home() {
    let nodes = (0..64)
        .map(NodeId)
        .filter(|node| total_bytes(*node).is_ok_and(|bytes| bytes > 0));
    let memory = NodeMemory::new();
    for (number, home) in (1..).zip(nodes) {
        for (id, preferred) in [
            (number, backing::tmpfs as Preferred),
            (100 + number, |_, _| Err(io::ErrorKind::Other.into())),
        ] {
            let id = MemberId(id);
            memory.add_on(id, home, 2 * MIB, preferred).unwrap();
            memory.populate(id, 0, RUN_BLOCKS).unwrap();
            for block in [0, 1, RUN_BLOCKS - 1] {
                let found = node_of(memory.address(Block::new(id, block), 0, 1));
                assert_eq!(
                    found,
                    Some(home),
                    "block {block} of {id}, {}",
                    memory.backing(id).unwrap()
                );
            }
        }
    }
}

/// The node a present page lies on; none on a kernel without NUMA.
fn node_of(address: *mut u8) -> Option<NodeId> {
    let mut node: i32 = -1;
    let pages = [address];
    // SAFETY: one page to ask about, no nodes to move to, one status to write.
    let status = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            1_usize,
            pages.as_ptr(),
            std::ptr::null::<i32>(),
            &raw mut node,
            0,
        )
    };
    (status == 0).then(|| NodeId(u16::try_from(node).unwrap()))
}

#[test]
fn a_node_is_never_filled_completely() {
    let small = |node: &NodeId| total_bytes(*node).is_ok_and(|bytes| bytes > 0 && bytes < 2 << 30);
    let Some(home) = (1..64).map(NodeId).find(small) else {
        skip("needs a second node, of less than 2 GiB");
        return;
    };
    let memory = NodeMemory::new();
    let room = free_bytes(home).unwrap();
    let mut populated = 0;
    for id in (1..1000).map(MemberId) {
        // Another process may take what was free a moment ago.
        if memory.add(id, home, 8 * MIB).is_err() {
            break;
        }
        let runs = (0..4).take_while(|run| memory.populate(id, run * RUN_BLOCKS, RUN_BLOCKS).is_ok());
        populated += runs.count() as u64 * 2 * MIB;
    }
    println!("{home}: {} MiB of {} MiB room populated", populated / MIB, room / MIB);
    assert!(populated > room / 4 * 3, "{populated} of {room}");
    let text = std::fs::read_to_string(format!("/sys/devices/system/node/node{}/meminfo", home.0)).unwrap();
    let line = text.lines().find_map(|line| line.split_once("MemFree:")).unwrap();
    let free = line.1.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024;
    assert!(free > 16 * MIB, "{free} bytes free");
    let other = NodeId(0);
    memory.add(MemberId(2000), other, 2 * MIB).unwrap();
    memory.populate(MemberId(2000), 0, RUN_BLOCKS).unwrap();
}
