//! A program that does all kinds of calls on a file, in turns with one that has the library and one that does not: each byte is compared.

use crate::support::calls::{PUNCH, allocate, copy, digest, open, pread, pwrite, readv, say, with_mapping, writev};
use crate::support::{Mounted, Program, seed};
use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;

const SEED: &str = "HOMENODE_TEST_EXERCISE";
/// Largest size of the file, and of one call.
const FILE_BYTES: usize = 400_000;
const CALL_BYTES: usize = 40_000;
/// Calls of a run, and of a time in which nothing is cut, and one in which much is.
const CALLS: usize = 25_000;
const PHASE: usize = 1000;

/// Calls on the file by one of the programs: by itself, or by telling it to another.
enum Caller<'a> {
    Own(&'a mut File, &'a Path),
    Other(&'a mut Program),
}

impl Caller<'_> {
    fn number(&mut self, own: impl FnOnce(i32) -> isize, other: &str) -> isize {
        match self {
            Self::Own(file, _) => own(file.as_raw_fd()),
            Self::Other(program) => program.ask(other).parse().unwrap(),
        }
    }

    fn text(&mut self, own: impl FnOnce(i32) -> String, other: &str) -> String {
        match self {
            Self::Own(file, _) => own(file.as_raw_fd()),
            Self::Other(program) => program.ask(other),
        }
    }

    fn read(&mut self, place: &Range<usize>, by_parts: bool) -> String {
        let (at, bytes) = (place.start, place.len());
        let own = |fd| match by_parts {
            true => digest(&readv(fd, bytes, at)),
            false => digest(&pread(fd, bytes, at).unwrap()),
        };
        self.text(own, &format!("read {at} {bytes}"))
    }

    fn write(&mut self, place: &Range<usize>, value: u8, by_parts: bool) {
        let (at, bytes) = (place.start, vec![value; place.len()]);
        let own = |fd| match by_parts {
            true => writev(fd, &bytes, at),
            false => pwrite(fd, &bytes, at).unwrap() as isize,
        };
        let written = self.number(own, &format!("write {at} {} {value}", bytes.len()));
        assert_eq!(written, bytes.len() as isize);
    }

    fn allocate(&mut self, name: &str, mode: i32, place: &Range<usize>) {
        let (at, bytes) = (place.start, place.len());
        let own = |fd| allocate(fd, mode, at, bytes) as isize;
        assert_eq!(self.number(own, &format!("{name} {at} {bytes}")), 0);
    }

    fn copy(&mut self, from: usize, place: &Range<usize>) -> usize {
        let (at, bytes) = (place.start, place.len());
        let copied = self.number(|fd| copy(fd, from, at, bytes), &format!("copy {from} {at} {bytes}"));
        usize::try_from(copied).unwrap()
    }

    fn truncate(&mut self, size: usize) {
        match self {
            Self::Own(file, _) => file.set_len(size as u64).unwrap(),
            Self::Other(program) => _ = program.ask(&format!("truncate {size}")),
        }
    }

    fn store(&mut self, place: &Range<usize>, value: u8) {
        let (at, bytes) = (place.start, place.len());
        match self {
            Self::Own(file, _) => with_mapping(file.as_raw_fd(), at, bytes, |memory| memory.fill(value)),
            Self::Other(program) => _ = program.ask(&format!("store {at} {bytes} {value}")),
        }
    }

    fn load(&mut self, place: &Range<usize>) -> String {
        let (at, bytes) = (place.start, place.len());
        let own = |fd| {
            let mut loaded = String::new();
            with_mapping(fd, at, bytes, |memory| loaded = digest(memory));
            loaded
        };
        self.text(own, &format!("load {at} {bytes}"))
    }

    fn size(&mut self) -> usize {
        match self {
            Self::Own(file, _) => usize::try_from(file.metadata().unwrap().len()).unwrap(),
            Self::Other(program) => program.ask("size").parse().unwrap(),
        }
    }

    fn reopen(&mut self) {
        match self {
            Self::Own(file, path) => **file = open(path),
            Self::Other(program) => _ = program.ask("reopen"),
        }
    }
}

/// Makes a call, and the same one on a model of the file's bytes.
fn call(caller: &mut Caller<'_>, model: &mut Vec<u8>, is_calm: bool, random: &mut fastrand::Rng) {
    let most = [100, 3000, CALL_BYTES][random.usize(..3)];
    let (at, bytes) = (random.usize(..FILE_BYTES), random.usize(1..=most));
    // Many end where the file does, or a byte beside that.
    let end = match random.u32(..4) {
        0 => (model.len() + random.usize(..3)).saturating_sub(1).max(at + 1),
        _ => at + bytes,
    };
    let place = at..end.min(FILE_BYTES).min(at + CALL_BYTES);
    let within = at.min(model.len())..place.end.min(model.len());
    let (value, by_parts) = (random.u8(1..), random.bool());
    let grow = |model: &mut Vec<u8>, end: usize| model.resize(model.len().max(end), 0);
    match random.u32(if is_calm { 5..100 } else { 0..100 }) {
        0..2 => {
            caller.truncate(at);
            model.resize(at, 0);
        }
        2..5 => {
            caller.allocate("punch", PUNCH, &place);
            model[within].fill(0);
        }
        5 => {
            caller.allocate("allocate", 0, &place);
            grow(model, place.end);
        }
        6 => caller.allocate("keep", libc::FALLOC_FL_KEEP_SIZE, &place),
        7..10 if !within.is_empty() => {
            caller.store(&within, value);
            model[within].fill(value);
        }
        10..13 if !within.is_empty() => assert_eq!(caller.load(&within), digest(&model[within])),
        13..16 => {
            let from = random.usize(..FILE_BYTES);
            // The kernel refuses ranges that overlap.
            if from.abs_diff(place.start) >= place.len() {
                let copied = caller.copy(from, &place);
                let source = model.get(from..model.len().min(from + copied)).unwrap_or(&[]).to_vec();
                let all = model.len().saturating_sub(from).min(place.len());
                assert!(source.len() == copied && (copied > 0) == (all > 0), "{copied} of {all}");
                if copied > 0 {
                    grow(model, place.start + copied);
                    model[place.start..place.start + copied].copy_from_slice(&source);
                }
            }
        }
        16..18 => assert_eq!(caller.size(), model.len()),
        18 => caller.reopen(),
        19..55 => {
            caller.write(&place, value, by_parts);
            grow(model, place.end);
            model[place].fill(value);
        }
        _ => {
            let there = model.get(within.clone()).unwrap_or(&[]);
            assert_eq!(caller.read(&place, by_parts), digest(there), "{place:?}");
        }
    }
}

/// The program.
pub(crate) fn part(path: &Path) {
    let mut random = fastrand::Rng::with_seed(std::env::var(SEED).unwrap().parse().unwrap());
    let mut calls = CALLS;
    if let Ok(seconds) = std::env::var("HOMENODE_TEST_SECONDS") {
        calls *= seconds.parse::<usize>().unwrap();
    }
    let mut file = open(path);
    let mut others = [
        Program::start("commands", path, false),
        Program::start_with("commands", path, false, |command| {
            command.env_remove("LD_PRELOAD");
        }),
    ];
    let mut model = vec![1; FILE_BYTES / 2];
    for nth in 0..calls {
        let mut caller = match random.usize(..40) {
            other @ 0..2 => Caller::Other(&mut others[other]),
            _ => Caller::Own(&mut file, path),
        };
        let is_calm = (nth / PHASE).is_multiple_of(2);
        let mut fork = random.fork();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            call(&mut caller, &mut model, is_calm, &mut fork);
        }));
        assert!(done.is_ok(), "call {nth} of {calls}");
    }
    let whole = 0..FILE_BYTES;
    let [with, without] = &mut others;
    for mut caller in [
        Caller::Own(&mut file, path),
        Caller::Other(with),
        Caller::Other(without),
    ] {
        assert_eq!(caller.read(&whole, false), digest(&model), "at the end");
    }
    let [with, without] = others;
    assert!(with.end().0 > 0);
    without.end();
    say("done");
}

#[test]
fn calls_of_all_kinds_by_programs_in_turn_are_those_of_a_model() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![1; FILE_BYTES / 2]).unwrap();
    let seed = seed("exercise");
    let mut program = Program::start_with("exercise", &path, true, |command| {
        command.env(SEED, seed.to_string());
    });
    assert_eq!(program.answer(), "done");
    let (copies, system_calls) = program.end();
    assert!(
        copies > CALLS as u64 / 8,
        "{copies} copies, {system_calls} system calls"
    );
}
