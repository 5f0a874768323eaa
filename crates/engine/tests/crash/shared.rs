//! Threads that write and punch blocks of the same files, sync them, and have other files take each other's names; and crashes at many points. Each block
//! has one writer.
//!
//! After a crash each part of a block is as it was at some time behind the last sync that its writer was told of.

use crate::full::file;
use crate::sim::{DISK, Disk, Event, Kind, SimMemory};
use crate::workload::{SimFs, asking, format, open};
use homenode_engine::fs::{Asking, Inode, RenameMode, fallocate_mode as mode};
use parking_lot::Mutex;
use std::sync::Arc;

const BLOCK: usize = 4096;
const THREADS: usize = 3;
/// Blocks of each file, shared by the threads in turn.
const BLOCKS: usize = 9;
const FILES: [&str; 2] = ["a", "b"];
const STEPS: usize = 24;
/// Points of a run at which it crashes.
const POINTS: usize = 24;

type Numbers = [[usize; BLOCKS]; FILES.len()];

/// Steps of a thread that made something durable, each with the newest change of every block that it knows to be so.
type Told = Vec<(usize, Numbers)>;

struct Stage {
    fs: SimFs,
    memory: SimMemory,
    files: [Arc<Inode>; FILES.len()],
    /// Bytes of each block after each change, those that are about to be as well.
    changes: [[Mutex<Vec<u8>>; BLOCKS]; FILES.len()],
}

impl Stage {
    fn new(kind: Kind) -> Self {
        let (fs, memory) = format(kind, 1);
        let files = FILES.map(|name| fs.create(&fs.root(), name.as_bytes(), file()).expect("there is room"));
        let slot = fs.slots().claim().expect("the first slot is free");
        for name in (0..THREADS).flat_map(names) {
            fs.create(&fs.root(), name.as_bytes(), file()).expect("there is room");
        }
        fs.sync_all(&slot).expect("the disk works");
        drop(slot);
        let changes: [[Mutex<Vec<u8>>; BLOCKS]; FILES.len()] = Default::default();
        changes.iter().flatten().for_each(|of| of.lock().push(0));
        Self {
            fs,
            memory,
            files,
            changes,
        }
    }

    /// Work of a thread. Returns what it was told, by step.
    fn work(&self, thread: usize, random: &mut fastrand::Rng) -> Told {
        let slot = self.fs.slots().claim().expect("a slot is free");
        let (mut own, mut told) = (Numbers::default(), Told::new());
        for step in 0..STEPS {
            let of = random.usize(..FILES.len());
            match random.u8(..12) {
                choice @ 0..7 => {
                    let block = random.usize(..BLOCKS / THREADS) * THREADS + thread;
                    let (at, inode) = ((block * BLOCK) as u64, &self.files[of]);
                    own[of][block] += 1;
                    let byte = if choice == 0 {
                        0
                    } else {
                        u8::try_from(own[of][block]).expect("there are few steps")
                    };
                    self.changes[of][block].lock().push(byte);
                    if choice == 0 {
                        let punch = mode::PUNCH_HOLE | mode::KEEP_SIZE;
                        let punched = self.fs.fallocate(&asking(&slot), inode, punch, at, BLOCK as u64);
                        punched.expect("it frees");
                    } else {
                        assert_eq!(
                            self.fs.write(&asking(&slot), inode, at, &[byte; BLOCK], false),
                            Ok(BLOCK)
                        );
                    }
                }
                7..9 => {
                    self.fs.sync(&slot, &self.files[of]).expect("the disk works");
                    self.tell(thread, step, &mut told, &own, of..of + 1);
                }
                9 => {
                    self.fs.sync_all(&slot).expect("the disk works");
                    self.tell(thread, step, &mut told, &own, 0..FILES.len());
                }
                _ => self.replace(thread, &asking(&slot), random),
            }
        }
        told
    }

    /// A file of the thread's own is written and takes another's name; a new one comes in its place.
    fn replace(&self, thread: usize, asking: &Asking<'_>, random: &mut fastrand::Rng) {
        let (root, names) = (self.fs.root(), names(thread));
        let from = random.usize(..names.len());
        let (name, other) = (names[from].as_bytes(), names[1 - from].as_bytes());
        let inode = self.fs.lookup(&root, name).expect("it is there");
        assert_eq!(self.fs.write(asking, &inode, 0, &[1; BLOCK], false), Ok(BLOCK));
        let renamed = self.fs.rename(&root, name, &root, other, RenameMode::Replace);
        renamed.expect("both are there");
        self.fs.create(&root, name, file()).expect("there is room");
    }

    /// Notes that what the thread has written to some files is durable.
    fn tell(&self, thread: usize, step: usize, told: &mut Told, own: &Numbers, files: std::ops::Range<usize>) {
        let mut all = told.last().map_or_else(Numbers::default, |(_, numbers)| *numbers);
        all[files.clone()].copy_from_slice(&own[files]);
        told.push((step, all));
        self.memory.mark(Event::End(thread, step));
    }
}

/// Names of files of a thread's own.
fn names(thread: usize) -> [String; 2] {
    ["x", "y"].map(|name| format!("{name}{thread}"))
}

/// A run, and crashes in it; the first violation.
fn run(kind: Kind, random: &mut fastrand::Rng, each: &(impl Fn() + Sync)) -> Result<(), String> {
    let stage = Stage::new(kind);
    let before = stage.memory.take_events();
    let mut disk = Disk::new(kind, vec![0; stage.memory.bytes().len()]);
    before.iter().for_each(|event| disk.play(event));
    stage.memory.pause_often(random.u8(8..120));
    let seeds: [u64; THREADS] = std::array::from_fn(|_| random.u64(..));
    let (stage, told) = std::thread::scope(|scope| {
        let stage = &stage;
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    each();
                    stage.work(thread, &mut fastrand::Rng::with_seed(seeds[thread]))
                })
            })
            .collect();
        let told: Vec<Told> = workers
            .into_iter()
            .map(|worker| worker.join().expect("the engine does not panic"))
            .collect();
        (stage, told)
    });
    stage.memory.pause_often(0);
    let events = stage.memory.take_events();
    let mut least = Numbers::default();
    let mut points: Vec<usize> = (0..POINTS).map(|_| random.usize(..=events.len())).collect();
    points.push(events.len());
    for (at, event) in events.iter().map(Some).chain([None]).enumerate() {
        for _ in points.iter().filter(|point| **point == at) {
            let survives = random.u8(..3);
            let state = disk.after_crash(|_, stores| match survives {
                0 => 0,
                1 => stores,
                _ => random.usize(..=stores),
            });
            look(kind, state, &least, stage).map_err(|why| format!("event {at} of {}: {why}", events.len()))?;
        }
        match event {
            Some(Event::End(thread, step)) => {
                let (_, numbers) = told[*thread].iter().find(|(of, _)| of == step).expect("it was told");
                for (least, number) in least.iter_mut().flatten().zip(numbers.iter().flatten()) {
                    *least = (*least).max(*number);
                }
            }
            Some(event) => disk.play(event),
            None => {}
        }
    }
    Ok(())
}

/// Looks at a state after a crash.
fn look(kind: Kind, state: Vec<u8>, least: &Numbers, stage: &Stage) -> Result<(), String> {
    let (fs, _) = open(kind, state, 9).map_err(|error| format!("the log is damaged: {error}"))?;
    let slot = fs.slots().claim().expect("the first slot is free");
    for (of, name) in FILES.iter().enumerate() {
        let inode = fs
            .lookup(&fs.root(), name.as_bytes())
            .map_err(|error| format!("{name}: {error}"))?;
        for block in 0..BLOCKS {
            let mut bytes = [0; BLOCK];
            let read = fs.read(&asking(&slot), &inode, (block * BLOCK) as u64, &mut bytes);
            let read = read.map_err(|error| format!("{name}, block {block}: {error}"))?;
            // Beyond the end nothing was told.
            let bytes = if read < BLOCK { [0; BLOCK] } else { bytes };
            let changes = stage.changes[of][block].lock();
            let may_be = &changes[least[of][block]..];
            for part in bytes.chunks(8) {
                if !part.iter().all(|byte| *byte == part[0]) || !may_be.contains(&part[0]) {
                    return Err(format!(
                        "{name}, block {block}: it may have {may_be:?}, and has {part:?}"
                    ));
                }
            }
        }
    }
    Ok(())
}

fn search(runs: usize, each: impl Fn() + Sync) -> Result<(), String> {
    let seed = crate::seed();
    for nth in 0..runs {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_add(nth as u64));
        let kind = [Kind::File, DISK, Kind::Pmem][nth % 3];
        run(kind, &mut random, &each)
            .map_err(|why| format!("{kind:?}, HOMENODE_CRASH_SEED={seed}, run {nth}: {why}"))?;
    }
    Ok(())
}

#[test]
fn blocks_of_files_that_threads_share_survive_every_crash() {
    let runs = usize::try_from(crate::states()).expect("it is small") / (8 * POINTS);
    search(runs, || ()).unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn planted_faults_in_shared_files_are_found() {
    use homenode_engine::log::planted::{Planted, plant};
    for fault in [
        Planted::EndBeforeTaking,
        Planted::BytesNotPersisted,
        Planted::LogNotForced,
    ] {
        assert!(search(3000, || plant(Some(fault))).is_err(), "{fault:?} is not found");
    }
}
