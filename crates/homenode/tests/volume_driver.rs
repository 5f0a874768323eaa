//! A volume under the block layer.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use homenode::blk::conformance::{Data, check};
use homenode::blk::{Arena, Core, Device, Durability, Errno, Options, Outcome, Request};
use homenode::{NodeId, Placement, Pool, PoolOptions, Volume, VolumeDriver, VolumeQueue};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Files, cached, pool};

const MIB: u64 = 1 << 20;
const EBUSY: i32 = 16;

fn attach(volume: &Volume, buffers: &Arc<Arena>) -> VolumeDriver {
    volume.attach(Arc::clone(buffers), &[Some(NodeId(0))]).unwrap()
}

fn core(driver: &VolumeDriver) -> Core<VolumeQueue> {
    let device = Device::new(driver, &[NodeId(0)], |_, _| 1, Options::default()).unwrap();
    device.join(0).unwrap()
}

/// Nothing of it takes longer than the call.
fn carry_out(core: &mut Core<VolumeQueue>, request: Request) -> Outcome {
    core.submit(request).unwrap();
    let mut outcome = None;
    for now in 0..1000 {
        core.run(now, |completion| outcome = Some(completion.outcome));
        if let Some(outcome) = outcome {
            return outcome;
        }
    }
    panic!("{request:?} hangs");
}

#[test]
fn the_volume_driver_conforms() {
    let pool = pool(64);
    let buffers = Arena::new(32 * MIB, None).unwrap();
    for size in [64 * MIB, homenode::VOLUME_BYTES_MAX] {
        let volume = pool.create_volume("v", size, Placement::Local).unwrap();
        let mut now = 0;
        let settle = || {
            now += 1000;
            now
        };
        check(&attach(&volume, &buffers), &*buffers, Data::Kept, settle).unwrap();
        volume.remove().unwrap();
    }
    assert_eq!(pool.status().used_bytes, 0);
}

#[test]
fn an_attached_volume_cannot_be_resized_or_removed() {
    let pool = pool(4);
    let buffers = Arena::new(MIB, None).unwrap();
    let volume = pool.create_volume("v", MIB, Placement::Local).unwrap();
    let driver = attach(&volume, &buffers);
    let core = core(&driver);
    drop(driver);
    // Its queue is there still.
    let errors = [
        volume.attach(Arc::clone(&buffers), &[None]).map(drop).unwrap_err(),
        volume.resize(2 * MIB).unwrap_err(),
        volume.resize_discarding(4096).unwrap_err(),
        volume.clone().remove().unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.errno(), EBUSY);
        assert!(error.to_string().contains("volume v: it is attached"), "{error}");
    }
    assert!(volume.status().attached);
    drop(core);
    assert!(!volume.status().attached);
    volume.resize(2 * MIB).unwrap();
    assert_eq!(core_bytes(&attach(&volume, &buffers)), 2 * MIB);
    volume.remove().unwrap();
}

fn core_bytes(driver: &VolumeDriver) -> u64 {
    core(driver).device().limits().device_bytes
}

#[test]
fn a_full_pool_fails_one_writer_and_a_bad_buffer_one_request() {
    let pool = pool(4);
    let buffers = Arena::new(8 * MIB, None).unwrap();
    let volumes = ["greedy", "modest"].map(|name| pool.create_volume(name, 64 * MIB, Placement::Local).unwrap());
    let [mut greedy, mut modest] = volumes.each_ref().map(|volume| core(&attach(volume, &buffers)));
    let block = vec![7; 4096];
    buffers.write(0, &block);
    assert_eq!(carry_out(&mut modest, Request::write(MIB, 4096, 0)), Ok(4096));
    let all = u32::try_from(8 * MIB).unwrap();
    assert_eq!(carry_out(&mut greedy, Request::write(0, all, 0)), Err(Errno::NO_SPACE));
    assert_eq!(pool.status().free_bytes, 0);
    assert_eq!(carry_out(&mut modest, Request::write(MIB, 4096, 0)), Ok(4096));
    assert_eq!(
        carry_out(&mut modest, Request::write(2 * MIB, 512, 0)),
        Err(Errno::NO_SPACE)
    );
    assert_eq!(carry_out(&mut modest, Request::read(MIB, 4096, 4096)), Ok(4096));
    let mut back = vec![0; 4096];
    buffers.read(4096, &mut back);
    assert_eq!(back, block);
    for buffer in [8 * MIB - 4095, 8 * MIB, u64::MAX] {
        assert_eq!(carry_out(&mut modest, Request::read(MIB, 4096, buffer)), Err(Errno(14)));
    }
    // What one gives up the other one gets.
    assert_eq!(carry_out(&mut greedy, Request::discard(0, all)), Ok(all));
    assert_eq!(carry_out(&mut modest, Request::write(2 * MIB, 512, 0)), Ok(512));
    assert_eq!(carry_out(&mut modest, Request::write_zeroes(MIB, 4096)), Ok(4096));
    volumes[1].read_at(&mut back, MIB).unwrap();
    assert_eq!(back, [0; 4096]);
    assert_eq!(volumes[1].status().used_bytes, 8192);
}

/// Bytes at the start of the volume as they are after a power cut: in a copy of the member's file only what was made durable counts.
fn after_power_cut(member: &Path, bytes: usize) -> Vec<u8> {
    let copy = member.with_extension("copy");
    std::fs::copy(member, &copy).unwrap();
    let pool = Pool::open_on(std::slice::from_ref(&copy), &PoolOptions::new()).unwrap();
    let mut found = vec![0; bytes];
    pool.volume("v").unwrap().read_at(&mut found, 0).unwrap();
    drop(pool);
    std::fs::remove_file(copy).unwrap();
    found
}

/// Writes of a block at the start of a volume of a durable pool; the bytes that a power cut leaves after each way to make them durable.
#[test]
fn flushed_and_forced_writes_survive_a_power_cut() {
    for place in [std::env::temp_dir(), "/dev/shm".into()] {
        let files = Files::under(&place, "flush");
        let member = files.member("a", 64 * MIB);
        let pool = Pool::create_on(std::slice::from_ref(&member), &PoolOptions::new()).unwrap();
        let buffers = Arena::new(MIB, None).unwrap();
        let volume = pool.create_volume("v", 8 * MIB, Placement::Local).unwrap();
        let mut core = core(&attach(&volume, &buffers));
        assert!(core.device().limits().has_cache, "the kernel is to send flushes");
        // A first write, an overwrite, and one that is too large for the log.
        for (fill, bytes) in [(1, 4096), (2, 4096), (3, 256 << 10)] {
            for forced in [false, true] {
                let fill = fill + 10 * u8::from(forced);
                buffers.write(0, &vec![fill; bytes]);
                let write = Request::write(0, u32::try_from(bytes).unwrap(), 0);
                if forced {
                    let write = write.durability(Durability::Forced);
                    assert_eq!(carry_out(&mut core, write), Ok(write.bytes));
                } else {
                    assert_eq!(carry_out(&mut core, write), Ok(write.bytes));
                    assert_eq!(carry_out(&mut core, Request::flush()), Ok(0));
                }
                let found = after_power_cut(&member, bytes);
                assert!(found.iter().all(|byte| *byte == fill), "{fill} of {bytes} bytes");
            }
        }
        let discard = Request::discard(0, 8192);
        assert_eq!(carry_out(&mut core, discard), Ok(8192));
        assert_eq!(carry_out(&mut core, Request::write_zeroes(8192, 4096)), Ok(4096));
        assert_eq!(carry_out(&mut core, Request::flush()), Ok(0));
        let found = after_power_cut(&member, 16 << 10);
        assert!(found[..12 << 10].iter().all(|byte| *byte == 0));
        assert!(found[12 << 10..].iter().all(|byte| *byte == 13));
    }
}

/// A member for a pool with much less memory than data. Beside the target: /tmp may be a tmpfs, which has no page cache to be passed.
fn beside(name: &str) -> (Files, PathBuf) {
    let files = Files::under(Path::new(env!("CARGO_MANIFEST_DIR")), name);
    let member = files.member("a", 160 * MIB);
    (files, member)
}

#[test]
fn the_volume_driver_conforms_with_few_frames() {
    let (_files, member) = beside("contract");
    let pool = Pool::create_on(std::slice::from_ref(&member), &cached()).unwrap();
    let buffers = Arena::new(32 * MIB, None).unwrap();
    let volume = pool.create_volume("v", 64 * MIB, Placement::Local).unwrap();
    let start = Instant::now();
    let settle = || {
        std::thread::sleep(Duration::from_micros(20));
        u64::try_from(start.elapsed().as_nanos()).unwrap()
    };
    check(&attach(&volume, &buffers), &*buffers, Data::Kept, settle).unwrap();
    let fetched: u64 = pool.cache().slices.iter().map(|slice| slice.fetched_bytes).sum();
    assert!(fetched > 0, "no block was ever evicted");
}

fn fill_of(offset: u64) -> u8 {
    (offset / 4096 % 251).to_le_bytes()[0]
}

/// Reads that miss are under way side by side, and one that hits overtakes them; whoever waits for them may sleep.
#[test]
fn cache_misses_do_not_block_other_requests() {
    const COUNT: u64 = 8;
    const VOLUME: u64 = 64 * MIB;
    let (_files, member) = beside("misses");
    let members = std::slice::from_ref(&member);
    let pool = Pool::create_on(members, &cached()).unwrap();
    let volume = pool.create_volume("v", VOLUME, Placement::Local).unwrap();
    for at in (0..VOLUME).step_by(4096) {
        volume.write_all_at(&[fill_of(at); 4096], at).unwrap();
    }
    drop(volume);
    pool.put_away().unwrap();
    drop(pool);
    let pool = Pool::open_on(members, &cached()).unwrap();
    let buffers = Arena::new(MIB, None).unwrap();
    let mut core = core(&attach(&pool.volume("v").unwrap(), &buffers));
    let start = Instant::now();
    let now = || u64::try_from(start.elapsed().as_nanos()).unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    let mut overtaken = 0;
    for _ in 0..200 {
        // A block that is there, by the time it is read again.
        let hit = Request::read(0, 4096, COUNT * 4096).user(COUNT);
        let mut finished = Vec::new();
        core.submit(hit).unwrap();
        while core.pending() > 0 {
            core.run(now(), |_| {});
        }
        let offsets: Vec<u64> = (0..COUNT).map(|_| random.u64(1..VOLUME / 4096) * 4096).collect();
        for (nth, offset) in (0..).zip(&offsets) {
            core.submit(Request::read(*offset, 4096, nth * 4096).user(nth)).unwrap();
        }
        core.submit(hit).unwrap();
        while core.pending() > 0 {
            core.run(now(), |completion| {
                assert_eq!(completion.outcome, Ok(4096));
                finished.push(completion.user);
            });
            if core.pending() > 0 {
                assert!(
                    core.bell().is_some(),
                    "whoever waits for {} may not sleep",
                    core.pending()
                );
                std::thread::sleep(Duration::from_micros(20));
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{} hang", core.pending());
        }
        let hit_at = finished.iter().position(|user| *user == COUNT).unwrap();
        overtaken += finished.len() - 1 - hit_at;
        for (nth, offset) in (0..).zip(&offsets) {
            let mut block = vec![0; 4096];
            buffers.read(nth * 4096, &mut block);
            assert!(block.iter().all(|byte| *byte == fill_of(*offset)), "block at {offset}");
        }
    }
    // 0 if a read that misses holds the others up; a disk that is done at once changes nothing about it, as the end of a read is looked for later.
    assert!(
        overtaken > 1400,
        "only {overtaken} of 1600 reads were overtaken by one that came later"
    );
}
