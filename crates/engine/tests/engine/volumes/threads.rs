//! Threads that write and read a volume while others shrink, grow, discard and replace it, and write files: nobody reads a
//! byte that was not written for that place, and in the end the books agree.

use crate::support::{
    BLOCK, Bytes, Caller, DISKS, TestFs, assert_empty, filesystem_on, new_file, seeded, sized, tend, threads,
};
use fastrand::Rng;
use homenode_engine::fs::{Placement, Volume, VolumeError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SIZE: u64 = 6 << 20;
const RUN_FOR: Duration = Duration::from_secs(3);
const VOLUME_STAMP: u64 = 0xb10c << 48;
const FILE_STAMP: u64 = 0xf11e << 48;

struct World {
    fs: TestFs,
    end: Instant,
}

/// Round of a thread; returns whether the thread did anything.
type Work = fn(&World, &Caller, &mut Rng) -> bool;
type Job = Box<dyn FnOnce() -> u64 + Send>;

#[test]
fn volume_accesses_stay_within_a_changing_size() {
    race(Bytes::Memory);
}

#[test]
fn volume_accesses_below_a_cache_stay_within_a_changing_size() {
    race(DISKS);
}

fn race(bytes: Bytes) {
    let seed = seeded::seed();
    let (fs, _) = filesystem_on(bytes, 2, 16 << 8);
    fs.create_volume("v", SIZE, Placement::Local).expect("the name is new");
    let world = Arc::new(World {
        fs,
        end: Instant::now() + RUN_FOR,
    });
    let works: [Work; 7] = [write, write, read, resize, discard, recycle, keep];
    let job = |(number, work): (usize, Work)| -> Job {
        let world = Arc::clone(&world);
        let mut random = Rng::with_seed(seed ^ (number as u64) << 32);
        Box::new(move || {
            let caller = Caller::on_cpu(&world.fs, number as u32);
            let mut rounds = 0;
            while Instant::now() < world.end {
                rounds += u64::from(work(&world, &caller, &mut random));
            }
            rounds
        })
    };
    let rounds = threads::run_all(works.into_iter().enumerate().map(job).collect());
    println!("rounds of each thread: {rounds:?}");
    assert!(rounds.iter().all(|rounds| *rounds > 5), "too few rounds: {rounds:?}");
    let fs = &world.fs;
    fs.check_invariants();
    fs.remove_volume(&volume(&world)).expect("the volume exists");
    assert_empty(fs);
}

/// Tends the cache, where there is one.
fn keep(world: &World, _: &Caller, _: &mut Rng) -> bool {
    tend(&world.fs);
    true
}

fn volume(world: &World) -> Arc<Volume> {
    loop {
        // Another thread is just replacing it.
        if let Ok(volume) = world.fs.volume("v") {
            return volume;
        }
    }
}

/// Some words, in place.
fn stretch(random: &mut Rng) -> (u64, Vec<u8>) {
    let words = if random.u64(..10) == 0 {
        512 * 512
    } else {
        1 + random.u64(..3000)
    };
    let first = random.u64(..SIZE / 8 - words);
    let stamped = (first..first + words).flat_map(|place| (VOLUME_STAMP | place).to_le_bytes());
    (first * 8, stamped.collect())
}

fn within<T: std::fmt::Debug>(result: Result<T, VolumeError>) -> bool {
    match result {
        Ok(_) => true,
        Err(VolumeError::OutOfRange { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

fn write(world: &World, caller: &Caller, random: &mut Rng) -> bool {
    let (at, bytes) = stretch(random);
    within(world.fs.write_volume(&caller.asking(), &volume(world), at, &bytes))
}

fn read(world: &World, caller: &Caller, random: &mut Rng) -> bool {
    let (at, mut bytes) = stretch(random);
    let done = within(world.fs.read_volume(&caller.asking(), &volume(world), at, &mut bytes));
    for (word, place) in bytes.as_chunks().0.iter().zip(at / 8..) {
        let word = u64::from_le_bytes(*word);
        assert!(
            word == 0 || word == VOLUME_STAMP | place,
            "{word:#x} at word {place:#x} of the volume"
        );
    }
    done
}

fn resize(world: &World, _: &Caller, random: &mut Rng) -> bool {
    let (fs, volume) = (&world.fs, volume(world));
    if random.u64(..4) == 0 {
        fs.remove_volume(&volume).expect("no other thread changes the volume");
        assert_eq!(volume.size_bytes(), 0);
        // Some go before a first write, or beside it.
        for _ in 0..random.u64(..8) {
            let fresh = fs.create_volume("v", SIZE, Placement::Local).expect("nobody else does");
            fs.remove_volume(&fresh).expect("no other thread changes the volume");
        }
        fs.create_volume("v", SIZE, Placement::Interleave)
            .expect("no other thread changes the volume");
    } else {
        let size = (1 + random.u64(..SIZE / BLOCK)) * BLOCK;
        fs.resize_volume(&volume, size, true).expect("no other thread does");
        fs.resize_volume(&volume, SIZE, false).expect("it grows");
    }
    std::thread::sleep(Duration::from_micros(random.u64(..2000)));
    true
}

fn discard(world: &World, caller: &Caller, random: &mut Rng) -> bool {
    let (at, bytes) = stretch(random);
    let (asking, volume, bytes) = (&caller.asking(), volume(world), bytes.len() as u64);
    if random.u64(..2) == 0 {
        within(world.fs.discard_volume(asking, &volume, at, bytes))
    } else {
        within(world.fs.zero_volume(asking, &volume, at, bytes))
    }
}

/// A file takes blocks that were the volume's, and gives them back.
fn recycle(world: &World, caller: &Caller, random: &mut Rng) -> bool {
    let (fs, asking) = (&world.fs, &caller.asking());
    let inode = new_file(fs, "recycled");
    let words = 1 + random.u64(..100_000);
    let bytes: Vec<u8> = (0..words)
        .flat_map(|place| (FILE_STAMP | place).to_le_bytes())
        .collect();
    assert_eq!(fs.append(asking, &inode, &bytes, false), Ok((0, bytes.len())));
    let mut back = vec![0; bytes.len()];
    assert_eq!(fs.read(asking, &inode, 0, &mut back), Ok(bytes.len()));
    assert!(back == bytes, "the file has other bytes");
    fs.set_attr(&inode, &sized(0)).expect("the inode is a file");
    fs.unlink(&fs.root(), b"recycled").expect("the name exists");
    fs.unpin(&inode, 1);
    true
}

/// A copy under way keeps the resize waiting, and the status of the volume is told meanwhile.
#[test]
fn status_of_a_volume_does_not_wait_for_a_resize() {
    let (fs, _) = filesystem_on(Bytes::Memory, 1, 16 << 8);
    let fs = Arc::new(fs);
    let volume = fs.create_volume("v", SIZE, Placement::Local).expect("the name is new");
    let caller = Caller::on_cpu(&fs, 0);
    let asking = caller.asking();
    let (begin, begun) = channel();
    let resize = {
        let (fs, volume) = (Arc::clone(&fs), Arc::clone(&volume));
        std::thread::spawn(move || {
            begun.recv().expect("the copy begins");
            fs.resize_volume(&volume, BLOCK, true)
        })
    };
    let mut told = None;
    let place = (asking.slot.number(), asking.cpu);
    let read = fs.read_straight(place, &volume, 0, BLOCK as usize, |_, _| {
        begin.send(()).expect("the thread waits");
        std::thread::sleep(Duration::from_millis(200));
        let (tell, telling) = channel();
        let (fs, volume) = (Arc::clone(&fs), Arc::clone(&volume));
        std::thread::spawn(move || tell.send(fs.volume_status(&volume, || false)));
        told = telling.recv_timeout(Duration::from_secs(10)).ok();
    });
    assert_eq!(read, BLOCK as usize);
    resize.join().expect("it does not panic").expect("nothing refuses it");
    let told = told.expect("the status waits for the resize");
    assert_eq!((told.size_bytes, told.attached), (SIZE, false));
    assert_eq!(volume.size_bytes(), BLOCK);
}

#[test]
fn a_volume_shrinks_in_steps() {
    const RUN_BYTES: u64 = 2 << 20;
    const RUNS: u64 = 256;
    let (fs, _) = filesystem_on(Bytes::Memory, 1, 16 << 8);
    let volume = fs
        .create_volume("v", RUNS * RUN_BYTES, Placement::Local)
        .expect("the name is new");
    let caller = Caller::on_cpu(&fs, 0);
    let (ends, seen) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                if (2 * BLOCK..RUNS * RUN_BYTES).contains(&volume.size_bytes()) {
                    seen.store(true, Ordering::Relaxed);
                }
            }
        });
        let end = Instant::now() + Duration::from_secs(20);
        while !seen.load(Ordering::Relaxed) && Instant::now() < end {
            for run in 0..RUNS {
                assert!(within(fs.write_volume(
                    &caller.asking(),
                    &volume,
                    run * RUN_BYTES,
                    b"x"
                )));
            }
            fs.resize_volume(&volume, BLOCK, true).expect("nothing refuses it");
            assert_eq!(volume.size_bytes(), BLOCK);
            assert_eq!(fs.volume_status(&volume, || true).used_bytes, BLOCK);
            fs.resize_volume(&volume, RUNS * RUN_BYTES, false).expect("it grows");
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert!(seen.into_inner(), "it was cut at once");
    fs.remove_volume(&volume).expect("the volume exists");
    assert_empty(&fs);
}

#[test]
fn a_write_concurrent_with_a_volumes_removal_leaks_no_block() {
    let mut random = Rng::with_seed(seeded::seed());
    let (fs, _) = filesystem_on(Bytes::Memory, 1, 16 << 8);
    let fs = Arc::new(fs);
    let current: Arc<Mutex<Option<Arc<Volume>>>> = Arc::default();
    let writer = {
        let (fs, current) = (Arc::clone(&fs), Arc::clone(&current));
        std::thread::spawn(move || {
            let caller = Caller::on_cpu(&fs, 0);
            let mut written = 0;
            while let Ok(volume) = current.lock().map(|volume| volume.clone()) {
                match volume {
                    Some(volume) => written += u64::from(within(fs.write_volume(&caller.asking(), &volume, 0, b"x"))),
                    None if Arc::strong_count(&current) == 1 => break,
                    None => {}
                }
            }
            written
        })
    };
    for _ in 0..20_000 {
        let volume = fs.create_volume("v", SIZE, Placement::Local).expect("the name is new");
        *current.lock().expect("no thread panics while it holds the lock") = Some(Arc::clone(&volume));
        (0..random.u64(..300)).for_each(|_| std::hint::spin_loop());
        fs.remove_volume(&volume).expect("no other thread changes the volume");
        *current.lock().expect("no thread panics while it holds the lock") = None;
    }
    drop(current);
    println!(
        "written before the removal: {}",
        writer.join().expect("the thread does not panic")
    );
    assert_empty(&fs);
}
