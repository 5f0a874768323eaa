//! Calls that are stopped at each of their instructions, while others cut, replace and change the file.
//!
//! A program makes one call on a file; it is stopped somewhere in the library, and meanwhile system calls of this process come to their end. Afterwards bytes, size,
//! result, mode and times must be what some order of these system calls and one call of the program leaves; and what the program does next
//! on the same descriptor must be right as well.

use super::board::Board;
use super::model::{
    BEFORE, CALLED, CALLS, Call, FILE_BYTES, FOLLOWING, OTHERS, Other, ROOM_BYTES, Snapshot, State, byte,
    check_attributes, content, felt, fill, first_content, first_others, put, unfelt,
};
use super::trace::{Place, Traced};
use crate::support::{Mounted, Program, seed};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes that a file grows by at its end.
const GROWTH_BYTES: usize = 20_000;
/// Bytes that the program writes at the file's end, before and behind it.
const LAST_BYTES: usize = 10;
/// Runs in which a call may come by another way than it was seen to go.
const TRIES: usize = 5;
/// Stops at places where more can go wrong, for each other one.
const LIKELY: usize = 5;
/// Fewest stops, however long they take, and their time beyond those, when not all are to be made.
const STOPS_MIN: usize = 200;
const DURATION: Duration = Duration::from_secs(3);

/// The board of `stopped.c`: numbers of the file, of what is done, of reads before it, and of writes; then an offset, bytes and a result for the call, and for what follows: an early
/// write, the reads, and a last write. Behind them a buffer for each.
const FILE: usize = 0;
const IS_WRITE: usize = 1;
const USES: usize = 2;
const ROUNDS: usize = 3;
const CALL: usize = 4;
const CALL_NUMBERS: usize = 3;
const EARLY: usize = 1;
const READ: usize = 2;
const READS: usize = 4;
const LAST: usize = READ + READS;
const BUFFERS: usize = 4096;
const BOARD_BYTES: usize = BUFFERS + (LAST + 1) * ROOM_BYTES;

/// The program in the hands of the test.
struct Bench {
    mounted: Mounted,
    board: Board,
    _program: Program,
    traced: Traced,
    /// Number of the file, which is there until a run has taken its name away.
    number: u64,
    file: Option<File>,
    runs: u64,
}

/// A run of the program: the call on its file.
struct Run<'a> {
    bench: &'a mut Bench,
    call: &'a Call,
    path: PathBuf,
    file: File,
    others: Vec<Other>,
    snapshots: Vec<Snapshot>,
}

impl Bench {
    fn new(mounted: Mounted) -> Self {
        let board = Board::new(&mounted, BOARD_BYTES);
        let mut command = Command::new(mounted.build("stopped"));
        let kept = mounted.path("file.kept");
        fs::write(&kept, "kept").unwrap();
        fs::set_permissions(&kept, Permissions::from_mode(0o666)).unwrap();
        command.arg(Board::path(&mounted)).arg(mounted.path("file"));
        // Writes of root leave set-uid.
        let mut program = Program::of(command.uid(65534).gid(65534), true);
        assert_eq!(program.answer(), "up");
        let traced = Traced::begin(program.child.id());
        program.tell("");
        traced.wait_for_stop();
        Self {
            mounted,
            board,
            _program: program,
            traced,
            number: 0,
            file: None,
            runs: 0,
        }
    }

    fn set(&self, nth: usize, value: usize) {
        self.board.number(nth).store(value as u64, Ordering::SeqCst);
    }

    /// Puts a call on the board: the first is that which is looked at.
    fn set_call(&self, nth: usize, place: &Range<usize>) {
        self.set(CALL + nth * CALL_NUMBERS, place.start);
        self.set(CALL + nth * CALL_NUMBERS + 1, place.len());
        self.buffer(nth, place.len()).fill(0xEE);
    }

    fn result(&self, nth: usize) -> usize {
        let result = self.board.number(CALL + nth * CALL_NUMBERS + 2).load(Ordering::SeqCst);
        usize::try_from(result).unwrap_or(usize::MAX)
    }

    fn buffer(&self, nth: usize, bytes: usize) -> &mut [u8] {
        self.board.bytes(BUFFERS + nth * ROOM_BYTES, bytes.min(ROOM_BYTES))
    }

    /// The file as it is to be before a run.
    fn restore(&mut self) -> (PathBuf, File) {
        self.number += u64::from(self.file.is_none());
        let path = self.mounted.path(&format!("file.{}", self.number));
        let file = self.file.take().unwrap_or_else(|| {
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
            file.unwrap()
        });
        file.write_all_at(&first_content(), 0).unwrap();
        let status = file.metadata().unwrap();
        if status.len() != FILE_BYTES as u64 {
            file.set_len(FILE_BYTES as u64).unwrap();
        }
        if status.mode() & 0o7777 != 0o666 {
            file.set_permissions(Permissions::from_mode(0o666)).unwrap();
        }
        (path, file)
    }

    /// Has the program come to a call on its file.
    fn begin<'a>(&'a mut self, call: &'a Call) -> Run<'a> {
        self.runs += 1;
        let (path, file) = self.restore();
        self.board.number(FILE).store(self.number, Ordering::SeqCst);
        self.set(IS_WRITE, usize::from(call.is_write));
        // The 32nd use is that with which the program learns.
        self.set(USES, if call.state == State::New { 31 } else { 33 });
        self.set_call(0, &call.place());
        if call.is_write {
            self.buffer(0, call.bytes).copy_from_slice(&fill(call.place(), CALLED));
        }
        let rounds = if call.state == State::CutTwice { 2 } else { 0 };
        self.set(ROUNDS, rounds);
        self.traced.to_stop();
        for round in 1..=rounds {
            let above = if round < rounds { 1_000 } else { 0 };
            file.set_len((call.file_bytes() + above) as u64).unwrap();
            self.traced.to_stop();
        }
        if call.state == State::Cut {
            file.set_len(call.file_bytes() as u64).unwrap();
        }
        Run {
            bench: self,
            call,
            path,
            file,
            others: Vec::new(),
            snapshots: Vec::new(),
        }
    }

    /// Places of a call, after some system calls of others at one of them.
    fn places(&mut self, call: &Call, first: Option<(&Place, &Other)>) -> Vec<Place> {
        // Functions of the C library are looked up when they are called first.
        let stop = {
            let run = self.begin(call);
            let stop = run.bench.traced.to_stop();
            run.finish();
            stop
        };
        // Places that are come to again and again work on answers of the server.
        let visits = if call.is_copy() { 2 } else { 1 };
        let trace = || {
            let mut run = self.begin(call);
            let places = run.come_to(first).then(|| run.bench.traced.places_until(stop, visits));
            run.finish();
            places
        };
        // The server may look at a file at any time.
        let is_copy = call.is_copy() && first.is_none();
        let traces = std::iter::repeat_with(trace).take(TRIES).flatten();
        let mut traces = traces.filter(|places| !is_copy || places.iter().any(|place| place.is_amid));
        traces.next().expect("undisturbed, it comes to each place")
    }

    /// Stops a call at a place, after another has done something at another place, if that is given. False if it has not come there.
    fn stop_at(&mut self, stop: &Stop) -> bool {
        let mut run = self.begin(stop.call);
        let first = stop.first.as_ref().map(|(place, other)| (place, other));
        let is_there = run.come_to(first) && run.bench.traced.to_place(&stop.place);
        if is_there {
            run.carry_out(&stop.others);
            run.bench.traced.to_stop();
        }
        run.finish();
        is_there
    }
}

impl Run<'_> {
    /// Goes on to a place where others do something, if one is given. False if the call has ended before.
    fn come_to(&mut self, first: Option<(&Place, &Other)>) -> bool {
        let Some((place, other)) = first else { return true };
        let is_there = self.bench.traced.to_place(place);
        if is_there {
            self.carry_out(std::slice::from_ref(other));
        }
        is_there
    }

    fn carry_out(&mut self, others: &[Other]) {
        for other in others {
            other.carry_out(&self.path, &self.file);
            self.others.push(other.clone());
            if matches!(other, Other::SetMode | Other::SetTime | Other::Look) {
                self.snapshots.push(Snapshot::new(other, &self.file));
            }
        }
    }

    /// Looks at what the call has left, after it has ended, and at what the program does next.
    fn finish(self) {
        let what = format!("{} beside {:?}", self.call.name, self.others);
        let left = content(&self.file);
        let returned = self.bench.result(0);
        let read = match self.call.is_write {
            true => Vec::new(),
            false => self.bench.buffer(0, returned).to_vec(),
        };
        let is_allowed = |nth: usize| {
            let mut content = first_content();
            content.truncate(self.call.file_bytes());
            let (before, after) = self.others.split_at(nth);
            before.iter().for_each(|other| other.apply(&mut content));
            let result = self.call.apply(&mut content);
            after.iter().for_each(|other| other.apply(&mut content));
            (&result, &content) == (&(returned, read.clone()), &left)
        };
        assert!(
            (0..=self.others.len()).any(is_allowed),
            "{what}: no order of these gives {returned}, {} bytes and {}; read {}",
            left.len(),
            shown(&left),
            shown(&read)
        );
        // Not in each run: who looks has the early write give the file a new time.
        if self.bench.runs.is_multiple_of(2) {
            check_attributes(&self.snapshots, &self.file, &left, &what);
        }
        let size = left.len();
        for (nth, place) in reads(size).iter().enumerate() {
            self.bench.set_call(READ + nth, place);
        }
        let writes = [(EARLY, early(size)), (LAST, self.last(size))];
        for (nth, place) in writes {
            self.bench.set_call(nth, &place);
            let from = fill(place, FOLLOWING);
            self.bench.buffer(nth, from.len()).copy_from_slice(&from);
        }
        self.bench.traced.to_stop();
        self.check_following(left, &what);
    }

    /// Place of the last write: at the end, if that does not give the file a time and a mode which the early write should have given it.
    fn last(&self, size: usize) -> Range<usize> {
        match self.snapshots.is_empty() {
            true => size.saturating_sub(LAST_BYTES)..size + LAST_BYTES,
            false => 0..0,
        }
    }

    /// Checks the reads and writes of the program after the call, and the bytes behind the file's end.
    fn check_following(self, mut content: Vec<u8>, what: &str) {
        let size = content.len();
        let writes = [(EARLY, early(size)), (LAST, self.last(size))];
        put(&mut content, writes[0].1.clone(), FOLLOWING);
        for (nth, place) in reads(size).into_iter().enumerate() {
            let read = self.bench.result(READ + nth);
            let expected = content.get(place.start..size.min(place.end)).unwrap_or(&[]);
            let found = self.bench.buffer(READ + nth, read);
            assert!(
                found == expected,
                "{what}: read {nth} afterwards gives {read} bytes, {}",
                shown(found)
            );
        }
        put(&mut content, writes[1].1.clone(), FOLLOWING);
        for (nth, place) in writes {
            assert_eq!(self.bench.result(nth), place.len(), "{what}: write {nth} afterwards");
        }
        check_attributes(&self.snapshots, &self.file, &content, what);
        // Bytes that were left behind the end would be seen.
        content.resize(content.len() + GROWTH_BYTES, 0);
        self.file.set_len(content.len() as u64).unwrap();
        let found = self::content(&self.file);
        assert!(found == content, "{what}: after a write and growth {}", shown(&found));
        match self
            .others
            .iter()
            .rfind(|other| matches!(other, Other::Rename | Other::Remove))
        {
            Some(Other::Rename) => {
                assert_eq!(fs::read(&self.path).unwrap(), b"other", "{what}");
                fs::remove_file(&self.path).unwrap();
            }
            Some(_) => assert!(!self.path.exists(), "{what}"),
            None => self.bench.file = Some(self.file),
        }
    }
}

/// Bytes in short: runs of the same kind.
fn shown(content: &[u8]) -> String {
    let kind = |(at, found): (usize, &u8)| match *found {
        0 => '0',
        found => [(BEFORE, 'b'), (CALLED, 'c'), (OTHERS, 'o'), (FOLLOWING, 'f')]
            .iter()
            .find(|(first, _)| found == byte(at, *first))
            .map_or('?', |(_, kind)| *kind),
    };
    let mut text = String::new();
    let kinds: Vec<_> = content.iter().enumerate().map(kind).collect();
    for run in kinds.chunk_by(|one, other| one == other) {
        text.push_str(&format!("{}{} ", run.len(), run[0]));
    }
    text
}

/// Reads that follow the call: all of the file and its end, first perhaps as system calls, then perhaps as copies.
fn reads(size: usize) -> [Range<usize>; READS] {
    let start = size.saturating_sub(100);
    [0..size.max(1), start..size + 1, start..size + 1, start..size + 100]
}

/// Place of the write that follows at once: below the end, where it may be a copy.
fn early(size: usize) -> Range<usize> {
    size.min(40)..size.min(60)
}

/// A stop of a call.
struct Stop {
    call: &'static Call,
    first: Option<(Place, Other)>,
    place: Place,
    others: Vec<Other>,
}

/// All stops of a call, after something else was done at one place, if that is given. In any order, but most of the first are where more can go wrong.
fn stops_of(
    bench: &mut Bench,
    call: &'static Call,
    first: Option<(Place, Other)>,
    random: &mut fastrand::Rng,
) -> Vec<Stop> {
    let places = bench.places(call, first.as_ref().map(|(place, other)| (place, other)));
    let stop = |place: &Place, others: Vec<Other>| Stop {
        call,
        first: first.clone(),
        place: *place,
        others,
    };
    let at = |place: &Place| felt().into_iter().map(|others| stop(place, others)).collect::<Vec<_>>();
    let (late, early): (Vec<Place>, Vec<_>) = places.iter().partition(|place| place.is_late);
    let mut likely: Vec<_> = late.iter().flat_map(at).collect();
    let mut rest: Vec<_> = early.iter().flat_map(at).collect();
    rest.extend(
        places
            .iter()
            .flat_map(|place| unfelt().into_iter().map(move |others| (place, others)))
            .map(|(place, others)| stop(place, others)),
    );
    random.shuffle(&mut likely);
    random.shuffle(&mut rest);
    let (mut likely, mut rest) = (likely.into_iter(), rest.into_iter());
    let mut stops = Vec::new();
    while likely.len() + rest.len() > 0 {
        stops.extend(likely.by_ref().take(LIKELY));
        stops.extend(rest.next());
    }
    stops
}

/// All stops of all calls, of each in turn.
fn stops(bench: &mut Bench, random: &mut fastrand::Rng) -> Vec<Stop> {
    let mut all = Vec::new();
    for call in &CALLS {
        let stops = stops_of(bench, call, None, random);
        // In the middle of the copy.
        let middle = stops.iter().find(|stop| stop.place.is_amid).map(|stop| stop.place);
        all.push(stops.into_iter());
        if !call.is_copy() || !call.is_write {
            continue;
        }
        let middle = middle.expect("a copy has a middle");
        for other in first_others() {
            all.push(stops_of(bench, call, Some((middle, other)), random).into_iter());
        }
    }
    let mut stops = Vec::new();
    while all.iter().any(|rest| rest.len() > 0) {
        stops.extend(all.iter_mut().filter_map(Iterator::next));
    }
    stops
}

#[test]
fn calls_stopped_at_any_instruction_stay_atomic() {
    let Some(mounted) = Mounted::new() else { return };
    let mut random = fastrand::Rng::with_seed(seed("steps"));
    let mut bench = Bench::new(mounted);
    let stops = stops(&mut bench, &mut random);
    let is_all = std::env::var("HOMENODE_TEST_STEPS").is_ok_and(|value| value == "all");
    let (start, mut made, mut missed) = (Instant::now(), 0, 0);
    for stop in &stops {
        if !is_all && start.elapsed() > DURATION && made >= STOPS_MIN {
            break;
        }
        let is_made = (0..TRIES).any(|_| bench.stop_at(stop));
        made += usize::from(is_made);
        missed += usize::from(!is_made);
    }
    let _ = writeln!(
        std::io::stderr(),
        "steps: {made} of {} stops, {} runs",
        stops.len(),
        bench.runs
    );
    assert!(missed * 20 <= made, "{made} stops, {missed} were not come to");
}
