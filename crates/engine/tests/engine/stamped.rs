//! Many threads on the same few files, every word stamped with the file and the place it was written for: whatever is
//! truncated, punched, moved and drained meanwhile, nobody ever reads a word of another file or place, nor memory that
//! nobody wrote; and what one thread alone writes is read back exactly.

mod world;

use crate::support::{Bytes, Caller, DISKS, add_member, remove_member, seeded, sized, tend, threads};
use fastrand::Rng;
use homenode_engine::fs::{Error, Whence, fallocate_mode as mode};
use homenode_engine::pool::PoolError;
use homenode_engine::{Memory, NodeId};
use std::sync::Arc;
use std::time::Duration;
use world::{FILES, MEMBER_BLOCKS, NODES, OWNERS, SHARED, SIZE, WORD, World, assert_own, region};

type Job = Box<dyn FnOnce() -> u64 + Send>;

#[test]
fn reads_return_no_foreign_or_stale_byte() {
    race(Bytes::Memory);
}

#[test]
fn reads_below_a_cache_return_no_foreign_or_stale_byte() {
    for bytes in [DISKS, Bytes::Disks { frames: 512 }] {
        race(bytes);
    }
}

fn race(bytes: Bytes) {
    let seed = seeded::seed();
    let world = Arc::new(World::new(bytes));
    let with = |number: u64, work: fn(&World, &Caller, &mut Rng, u64) -> u64| -> Job {
        let world = Arc::clone(&world);
        let random = Rng::with_seed(seed ^ number << 32);
        Box::new(move || world.work(number, random, work))
    };
    let mut jobs: Vec<Job> = (0..OWNERS).map(|number| with(number, own)).collect();
    jobs.extend((0..2).map(|number| with(OWNERS + number, overlap)));
    jobs.push(with(10, destroy));
    jobs.push(with(11, relocate));
    jobs.push(with(12, drain));
    jobs.push(with(13, read));
    jobs.push(with(14, recycle));
    jobs.push(with(15, keep));
    let rounds = threads::run_all(jobs);
    println!("rounds of each thread: {rounds:?}");
    assert!(
        rounds.iter().all(|rounds| *rounds >= world::ROUNDS_MIN),
        "too few rounds: {rounds:?}"
    );
    world.finish();
}

/// Writes, punches and reads a region of each file that nobody else writes.
fn own(world: &World, caller: &Caller, random: &mut Rng, number: u64) -> u64 {
    let region = region(number);
    let words = ((region.end - region.start) / WORD) as usize;
    let mut model = vec![vec![0_u64; words]; FILES];
    let rounds = world.repeat(|| {
        let file = random.u64(..FILES as u64) as usize;
        let (inode, own) = (&world.files[file], &mut model[file]);
        let (from, to) = world::stretch(random, &region);
        let span = ((from - region.start) / WORD) as usize..((to - region.start) / WORD) as usize;
        let asking = &caller.asking();
        match random.u64(..10) {
            0..=3 => {
                let stamps = world::stamps(file, number, from, to, random.u64(..));
                let written = world.fs.write(asking, inode, from, &world::to_bytes(&stamps), false);
                assert_eq!(written, Ok((to - from) as usize), "the pool has room");
                own[span].copy_from_slice(&stamps);
            }
            choice @ 4..=5 => {
                let how = [mode::PUNCH_HOLE, mode::ZERO_RANGE][usize::from(choice == 5)];
                world.clear(asking, inode, how, from, to);
                own[span].fill(0);
            }
            _ => {
                let read = world.read(asking, inode, from, to);
                assert_own(&read, &own[span], file, from);
            }
        }
    });
    for (file, own) in model.iter().enumerate() {
        let read = world.read(&caller.asking(), &world.files[file], region.start, region.end);
        assert_own(&read, own, file, region.start);
    }
    rounds
}

/// Writes where others write and take away.
fn overlap(world: &World, caller: &Caller, random: &mut Rng, number: u64) -> u64 {
    world.repeat(|| {
        let file = random.u64(..FILES as u64) as usize;
        let (from, to) = world::stretch(random, &SHARED);
        let stamps = world::to_bytes(&world::stamps(file, number, from, to, random.u64(..)));
        let written = world
            .fs
            .write(&caller.asking(), &world.files[file], from, &stamps, false);
        assert_eq!(written, Ok(stamps.len()), "the pool has room");
    })
}

/// Truncates within the shared part, extends again, punches.
fn destroy(world: &World, caller: &Caller, random: &mut Rng, _: u64) -> u64 {
    world.repeat(|| {
        let inode = &world.files[random.u64(..FILES as u64) as usize];
        let (from, to) = world::stretch(random, &SHARED);
        let truncate = |size| {
            world.fs.set_attr(inode, &sized(size)).expect("the inode is a file");
        };
        if random.u64(..2) == 0 {
            truncate(from);
            truncate(SIZE);
        } else {
            world.clear(&caller.asking(), inode, mode::PUNCH_HOLE, from, to);
        }
        std::thread::sleep(Duration::from_micros(random.u64(..2000)));
    })
}

/// Moves files to and fro.
fn relocate(world: &World, _: &Caller, random: &mut Rng, _: u64) -> u64 {
    world.repeat_if(|| {
        let inode = &world.files[random.u64(..FILES as u64) as usize];
        let node = NodeId(random.u64(..u64::from(NODES)) as u16);
        match world.fs.move_to(inode, node, &mut |_, _| {}) {
            Ok(_) => true,
            // Its only member is being drained, or is full.
            Err(Error::Invalid | Error::NoSpace) => false,
            Err(error) => panic!("move to {node}: {error}"),
        }
    })
}

/// Replaces one member after the other.
fn drain(world: &World, _: &Caller, random: &mut Rng, _: u64) -> u64 {
    world.repeat_if(|| {
        let members = world.fs.pool().status().members;
        let member = &members[random.usize(..members.len())];
        let drained = world.fs.drain(member.id, &mut |_, _| {});
        match &drained {
            Ok(_) => {
                remove_member(&world.fs, member.id);
                add_member(&world.fs, member.home, MEMBER_BLOCKS);
            }
            Err(PoolError::NoSpace(_)) => {}
            Err(error) => panic!("drain: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
        drained.is_ok()
    })
}

/// Reads everything all the time, and asks where it lies.
fn read(world: &World, caller: &Caller, random: &mut Rng, _: u64) -> u64 {
    world.repeat(|| {
        let file = random.u64(..FILES as u64) as usize;
        let (from, to) = world::stretch(random, &(0..SIZE));
        let asking = &caller.asking();
        let read = world.read(asking, &world.files[file], from, to);
        world::assert_stamps(&read, file, from);
        match world.fs.seek(asking, &world.files[file], from, Whence::Data) {
            Ok(at) => assert!(at >= from),
            Err(error) => assert_eq!(error, Error::NoData),
        }
        let mapped: u64 = world.fs.map(&world.files[file]).iter().map(|(_, bytes)| bytes).sum();
        assert!(mapped <= SIZE, "more is mapped than was ever written: {mapped}");
    })
}

/// Tends the cache, where there is one, and makes all durable that is in it.
fn keep(world: &World, _: &Caller, random: &mut Rng, _: u64) -> u64 {
    world.repeat(|| {
        tend(&world.fs);
        if random.u64(..50) == 0 {
            let memory = world.fs.pool().memory();
            for member in world.fs.pool().status().members {
                // One that is being taken away.
                let _ = memory.persist_all(member.id);
            }
        }
    })
}

/// Makes files, fills them and removes them, so that blocks go from file to file.
fn recycle(world: &World, caller: &Caller, random: &mut Rng, number: u64) -> u64 {
    let file = 0x40;
    let (fs, root) = (&world.fs, world.fs.root());
    world.repeat(|| {
        let inode = crate::support::new_file(fs, "recycled");
        let (from, to) = world::stretch(random, &(0..4 << 20));
        let stamps = world::stamps(file, number, from, to, random.u64(..));
        let asking = &caller.asking();
        let written = fs.append(asking, &inode, &vec![0; from as usize], false);
        assert!(from == 0 || written == Ok((0, from as usize)));
        let written = fs.append(asking, &inode, &world::to_bytes(&stamps), false);
        assert_eq!(written, Ok((from, (to - from) as usize)), "the pool has room");
        if random.u64(..2) == 0 {
            fs.unlink(&root, b"recycled").expect("the name exists");
        }
        assert_own(&world.read(asking, &inode, from, to), &stamps, file, from);
        // Unlinked or not.
        let _ = fs.unlink(&root, b"recycled");
        fs.unpin(&inode, 1);
    })
}
