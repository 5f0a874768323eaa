//! Many programs at work on the same files, as copies and as system calls, while others cut, replace and remove the files.
//!
//! Each word of eight bytes that is written tells its file, place, writer, and how often that place was written. A place belongs to one writer, which notes on the
//! board what it is about to write and what it has written. So a reader knows which words it may find: nothing foreign, nothing older than what
//! was there before, nothing newer than what was begun; and zeros only where bytes may have gone since.

use super::board::Board;
use crate::support::calls::{errno, say};
use crate::support::{Mounted, Program, punch, seed};
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// Files that stay, of which the first half is never cut.
const LASTING: usize = 3;
/// Names whose files come and go.
const PASSING: usize = 3;
/// Bytes that are written at once, by place in the file, again and again.
const SIZES: [usize; 8] = [8, 64, 200, 1000, 2048, 4096, 9000, 16_384];
const REGIONS: usize = 64;
const READ_BYTES_MAX: usize = 40_000;
/// Programs, some of them with the library, and threads of each.
const CLIENTS: u64 = 8;
const PLAIN: u64 = 2;
const THREADS: u64 = 2;

/// Files that can be made in a run: each has numbers of its own on the board.
const FILES: usize = 1 << 14;
/// Numbers on the board: whether all are to end, then those of each file.
const FILE_NUMBERS: usize = 2 + 3 * REGIONS;
const BOARD_BYTES: usize = (1 + FILE_NUMBERS * FILES) * 8;

/// Number of a region that was written while a cut was under way, or never.
const NO_CUTS: u64 = (1 << 40) - 1;

/// Writes are counted by 24 bits.
fn stamp(file: u64, word: usize, writer: u64, count: u64) -> u64 {
    (file & 0xFFFF) << 48 | (word as u64) << 32 | (writer + 1) << 24 | count
}

/// Bytes of a region.
fn region(nth: usize) -> Range<usize> {
    const ALL: [usize; REGIONS + 1] = {
        let (mut all, mut nth) = ([0; REGIONS + 1], 0);
        while nth < REGIONS {
            all[nth + 1] = all[nth] + SIZES[nth % SIZES.len()];
            nth += 1;
        }
        all
    };
    ALL[nth]..ALL[nth + 1]
}

/// Regions that a range of bytes has parts of.
fn regions(bytes: &Range<usize>) -> Range<usize> {
    let first = (0..REGIONS).find(|nth| region(*nth).end > bytes.start);
    let behind = (0..REGIONS).find(|nth| region(*nth).start >= bytes.end);
    first.unwrap_or(REGIONS)..behind.unwrap_or(REGIONS)
}

/// The writer of a region.
fn writer(nth: usize) -> u64 {
    (nth + nth / SIZES.len()) as u64 % ((CLIENTS + PLAIN) * THREADS)
}

fn file_bytes() -> usize {
    region(REGIONS - 1).end
}

/// Returns the number of bytes at the beginning of a lasting file that are never cut.
fn kept_bytes() -> usize {
    region(REGIONS / 2).start
}

fn lasting(directory: &Path, nth: usize) -> PathBuf {
    directory.join(format!("lasting.{nth}"))
}

fn passing(directory: &Path, nth: usize) -> PathBuf {
    directory.join(format!("passing.{nth}"))
}

/// An open file, and its numbers on the board.
struct Stamped<'a> {
    file: File,
    number: u64,
    /// Which of the files on the board it is.
    row: usize,
    board: &'a Board,
    /// Bytes from which on it may be cut.
    kept_bytes: usize,
}

impl<'a> Stamped<'a> {
    fn new(file: File, board: &'a Board) -> Self {
        let number = file.metadata().unwrap().ino();
        let mut lasting = (0..LASTING).map(|nth| board.number(lasting_number(nth)).load(Ordering::SeqCst));
        let kept_bytes = if lasting.any(|lasting| lasting == number) {
            kept_bytes()
        } else {
            0
        };
        Self {
            file,
            number,
            row: usize::try_from(number).unwrap() % FILES,
            board,
            kept_bytes,
        }
    }

    /// `None` if the name has no file now.
    fn open(path: &Path, board: &'a Board) -> Option<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        file.ok().map(|file| Self::new(file, board))
    }

    fn on_board(&self, nth: usize) -> &AtomicU64 {
        self.board.number(1 + FILE_NUMBERS * self.row + nth)
    }

    fn cuts_begun(&self) -> &AtomicU64 {
        self.on_board(0)
    }

    fn cuts_done(&self) -> &AtomicU64 {
        self.on_board(1)
    }

    /// Count of the last write that was begun.
    fn begun(&self, region: usize) -> &AtomicU64 {
        self.on_board(2 + region)
    }

    /// Count of the last write that was done, and below it the number of cuts when it began.
    fn done(&self, region: usize) -> &AtomicU64 {
        self.on_board(2 + REGIONS + region)
    }

    /// Count of the last write of which bytes have gone, or were seen to be gone: what was written until then is there no more.
    fn gone(&self, region: usize) -> &AtomicU64 {
        self.on_board(2 + 2 * REGIONS + region)
    }

    /// Runs `cut`, which takes the bytes of a range away, and perhaps others.
    fn cut(&self, range: Range<usize>, cut: impl FnOnce(&File)) {
        let is_whole = |nth: &usize| range.contains(&region(*nth).start) && region(*nth).end <= range.end;
        let done = |nth| (nth, self.done(nth).load(Ordering::SeqCst) >> 40);
        let gone: Vec<_> = (0..REGIONS).filter(is_whole).map(done).collect();
        self.cuts_begun().fetch_add(1, Ordering::SeqCst);
        cut(&self.file);
        for (nth, count) in gone {
            self.gone(nth).fetch_max(count, Ordering::SeqCst);
        }
        self.cuts_done().fetch_add(1, Ordering::SeqCst);
    }

    /// Writes a region that belongs to this thread alone.
    fn write(&self, nth: usize, random: &mut fastrand::Rng, buffer: &mut Vec<u64>) {
        let (place, count) = (region(nth), self.begun(nth).load(Ordering::SeqCst) + 1);
        assert!(count < 1 << 24, "the counts of {FILES} files last for a run");
        let first = stamp(self.number, place.start / 8, writer(nth), count);
        buffer.clear();
        buffer.extend((0..place.len() as u64 / 8).map(|word| first + (word << 32)));
        let done = self.cuts_done().load(Ordering::SeqCst);
        let is_calm = self.cuts_begun().load(Ordering::SeqCst) == done;
        self.begun(nth).store(count, Ordering::SeqCst);
        let (fd, at) = (self.file.as_raw_fd(), i64::try_from(place.start).unwrap());
        let written = if random.u32(..3) == 0 {
            let vector = halves(buffer.as_ptr().cast_mut().cast(), place.len());
            unsafe { libc::pwritev64(fd, vector.as_ptr(), 2, at) }
        } else {
            unsafe { libc::pwrite64(fd, buffer.as_ptr().cast(), place.len(), at) }
        };
        assert_eq!(written, place.len() as isize, "{}", errno());
        let cuts = if is_calm { done } else { NO_CUTS };
        self.done(nth).store(count << 40 | cuts, Ordering::SeqCst);
    }

    /// Reads a range of bytes, which begins with a word, and looks at what comes.
    fn read(&self, place: &Range<usize>, random: &mut fastrand::Rng, buffer: &mut Vec<u64>) {
        let (all, bytes) = (regions(place), place.len());
        let numbers = |nth| [self.done(nth), self.gone(nth)].map(|number| number.load(Ordering::SeqCst));
        let before: Vec<_> = all.clone().map(numbers).collect();
        buffer.clear();
        buffer.resize(bytes.div_ceil(8), u64::MAX);
        let (fd, at) = (self.file.as_raw_fd(), i64::try_from(place.start).unwrap());
        let read = if random.u32(..3) == 0 {
            let vector = halves(buffer.as_mut_ptr().cast(), bytes);
            unsafe { libc::preadv64(fd, vector.as_ptr(), 2, at) }
        } else {
            unsafe { libc::pread64(fd, buffer.as_mut_ptr().cast(), bytes, at) }
        };
        let read = usize::try_from(read).unwrap_or_else(|_| panic!("{}", errno()));
        // A write that was read above had begun before the loads below.
        fence(Ordering::SeqCst);
        let cuts = self.cuts_begun().load(Ordering::SeqCst);
        for (nth, [done, gone]) in all.zip(before) {
            let part = region(nth);
            let seen = Seen {
                counts: (done >> 40).max(gone + 1)..self.begun(nth).load(Ordering::SeqCst) + 1,
                may_be_zero: done == 0 || part.start >= self.kept_bytes && done & NO_CUTS != cuts,
                end: place.start + read,
            };
            let mut is_gone = place.start <= part.start && part.end <= place.end;
            for word in part.start.max(place.start) / 8..part.end.min(place.end) / 8 {
                let found = u64::from_le(buffer[word - place.start / 8]);
                self.check(nth, word, found, &seen);
                is_gone &= found == 0 || word * 8 >= seen.end;
            }
            // Nobody has written meanwhile, and nothing of the last write was there: it does not come back.
            if is_gone && done >> 40 == seen.counts.end - 1 {
                self.gone(nth).fetch_max(done >> 40, Ordering::SeqCst);
            }
        }
    }

    fn check(&self, nth: usize, word: usize, found: u64, seen: &Seen) {
        let first = stamp(self.number, word, writer(nth), seen.counts.start);
        let last = stamp(self.number, word, writer(nth), seen.counts.end - 1);
        let is_cut = seen.may_be_zero;
        if word * 8 + 8 <= seen.end && ((first..=last).contains(&found) || found == 0 && is_cut) {
            return;
        }
        // Parts of a word: of two writes, or of a write and a cut.
        let is_good = found.to_le_bytes().iter().enumerate().all(|(byte, found)| {
            if word * 8 + byte >= seen.end || *found == 0 && is_cut {
                return is_cut;
            }
            let is_count = byte < 3 && seen.counts.end > seen.counts.start + 1;
            is_count || *found == first.to_le_bytes()[byte] && !seen.counts.is_empty()
        });
        assert!(
            is_good,
            "word {word} of file {} is {found:016x}, not one of {first:016x} to {last:016x}, region {nth}, zero {is_cut}, {} bytes",
            self.number, seen.end
        );
    }
}

/// A buffer in two pieces.
fn halves(buffer: *mut u8, bytes: usize) -> [libc::iovec; 2] {
    let cuts = [0, bytes / 3, bytes];
    std::array::from_fn(|nth| libc::iovec {
        iov_base: buffer.wrapping_add(cuts[nth]).cast(),
        iov_len: cuts[nth + 1] - cuts[nth],
    })
}

/// Stamps that a reader may find in a region.
struct Seen {
    counts: Range<u64>,
    may_be_zero: bool,
    /// The end of what was read: what lies behind is as zero.
    end: usize,
}

/// Number on the board of the number of a lasting file: in the place of a file that there is not.
fn lasting_number(nth: usize) -> usize {
    1 + nth
}

fn ends(board: &Board) -> &AtomicU64 {
    board.number(0)
}

/// Part of each program: writes its regions, reads all, and opens files anew now and then.
pub(crate) fn part(directory: &Path) {
    let mut words = std::env::var("HOMENODE_TEST_STAMPS").unwrap();
    let seed: u64 = words.split_off(words.find(' ').unwrap() + 1).parse().unwrap();
    let number: u64 = words.trim().parse().unwrap();
    let board = Board::of_test();
    let shared: Vec<_> = (0..LASTING)
        .map(|nth| Stamped::open(&lasting(directory, nth), &board).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (board, shared) = (&board, &shared);
            let random = fastrand::Rng::with_seed(seed + thread);
            scope.spawn(move || work(directory, board, shared, number * THREADS + thread, random));
        }
    });
    say("done");
}

fn work(directory: &Path, board: &Board, shared: &[Stamped<'_>], own: u64, mut random: fastrand::Rng) {
    let regions: Vec<_> = (0..REGIONS).filter(|nth| writer(*nth) == own).collect();
    let mut buffer = Vec::new();
    let (mut private, mut opened) = (Vec::new(), 0);
    while ends(board).load(Ordering::Relaxed) == 0 {
        if opened == 0 {
            private = (0..PASSING)
                .map(|nth| passing(directory, nth))
                .chain([lasting(directory, random.usize(..LASTING))])
                .filter_map(|path| Stamped::open(&path, board))
                .collect();
            opened = random.u32(1..4000);
        }
        opened -= 1;
        let files = if random.u32(..3) > 0 || private.is_empty() {
            shared
        } else {
            &private
        };
        let file = &files[random.usize(..files.len())];
        match random.u32(..100) {
            0 => drop(file.file.metadata().unwrap()),
            1..45 => {
                let nth = regions[random.usize(..regions.len())];
                file.write(nth, &mut random, &mut buffer);
                if random.u32(..4) == 0 {
                    file.read(&region(nth), &mut random, &mut buffer);
                }
            }
            _ => {
                let most = [64, 64, 600, 600, 600, 5000, 5000, READ_BYTES_MAX][random.usize(..8)];
                let (at, bytes) = (random.usize(..file_bytes() / 8) * 8, random.usize(8..=most));
                file.read(&(at..file_bytes().min(at + bytes)), &mut random, &mut buffer);
            }
        }
    }
}

/// Takes bytes from the second halves of lasting files.
fn cut_lasting(directory: &Path, board: &Board, mut random: fastrand::Rng) {
    let files: Vec<_> = (0..LASTING)
        .map(|nth| Stamped::open(&lasting(directory, nth), board).unwrap())
        .collect();
    while ends(board).load(Ordering::Relaxed) == 0 {
        let file = &files[random.usize(..LASTING)];
        // Some at once, then none for some time.
        for _ in 0..random.u32(1..4) {
            // Small regions, behind the end in its page, are where most can be lost.
            let start = region(random.usize(REGIONS / 2..REGIONS)).start;
            let size = [start, random.usize(kept_bytes()..file_bytes())][random.usize(..2)];
            let at = random.usize(kept_bytes()..file_bytes());
            match random.u32(..3) {
                0 => file.cut(size..file_bytes(), |file| file.set_len(size as u64).unwrap()),
                1 => {
                    let bytes = size - kept_bytes() + 1;
                    file.cut(at..at + bytes, |file| punch(file, at, bytes));
                }
                // Bytes behind the old end are zero.
                _ => file.file.set_len(file_bytes() as u64).unwrap(),
            }
        }
        std::thread::sleep(Duration::from_millis(random.u64(1..30)));
    }
}

/// Puts other files in the place of passing ones, and cuts some.
fn replace_passing(directory: &Path, board: &Board, duration: Duration, mut random: fastrand::Rng) {
    let pause = duration.div_f64(FILES as f64 / 2.0).max(Duration::from_millis(3));
    while ends(board).load(Ordering::Relaxed) == 0 {
        let path = passing(directory, random.usize(..PASSING));
        let new = directory.join("new");
        match random.u32(..4) {
            0 => {
                File::create_new(&new).unwrap();
                fs::rename(&new, &path).unwrap();
            }
            1 => {
                fs::remove_file(&path).unwrap();
                std::thread::sleep(Duration::from_millis(random.u64(..3)));
                let made = Stamped::new(File::create_new(&path).unwrap(), board);
                assert!(made.number < FILES as u64, "the number is out of the file's range");
            }
            2 => {
                let file = Stamped::open(&path, board).unwrap();
                let size = random.usize(..file_bytes());
                file.cut(size..file_bytes(), |file| file.set_len(size as u64).unwrap());
            }
            _ => {
                let file = Stamped::open(&path, board).unwrap();
                file.cut(0..file_bytes(), |_| drop(File::create(&path).unwrap()));
            }
        }
        std::thread::sleep(pause.mul_f64(2.0 * random.f64()));
    }
}

fn start(mounted: &Mounted, number: u64, random: &mut fastrand::Rng) -> Program {
    let stamps = format!("{number} {}", random.u32(..));
    Program::start_with("stamps", mounted.directory.path(), number < CLIENTS, |command| {
        Board::tell(mounted, command);
        command.env("HOMENODE_TEST_STAMPS", stamps);
    })
}

#[test]
fn reads_return_no_foreign_stale_or_lost_word() {
    let Some(mounted) = Mounted::new() else { return };
    let mut random = fastrand::Rng::with_seed(seed("stamps"));
    let seconds = std::env::var("HOMENODE_TEST_SECONDS").map_or(3, |seconds| seconds.parse().unwrap());
    let duration = Duration::from_secs(seconds);
    let (directory, board) = (mounted.directory.path(), Board::new(&mounted, BOARD_BYTES));
    for nth in 0..LASTING {
        let file = File::create_new(lasting(directory, nth)).unwrap();
        file.set_len(file_bytes() as u64).unwrap();
        let number = file.metadata().unwrap().ino();
        board.number(lasting_number(nth)).store(number, Ordering::SeqCst);
    }
    (0..PASSING).for_each(|nth| drop(File::create_new(passing(directory, nth)).unwrap()));
    let mut programs: Vec<_> = (0..CLIENTS + PLAIN)
        .map(|number| start(&mounted, number, &mut random))
        .collect();
    std::thread::scope(|scope| {
        let (first, second) = (random.fork(), random.fork());
        let board = &board;
        scope.spawn(move || cut_lasting(directory, board, first));
        scope.spawn(move || replace_passing(directory, board, duration, second));
        // Programs that end in the middle are followed by others.
        let end = Instant::now() + duration;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(random.u64(300..700)));
            drop(programs.remove(0));
            programs.insert(0, start(&mounted, 0, &mut random));
        }
        ends(board).store(1, Ordering::SeqCst);
    });
    let mut copies = 0;
    for (number, mut program) in programs.into_iter().enumerate() {
        assert_eq!(program.answer(), "done");
        let (fast, _) = program.end();
        // The first has begun not long ago.
        assert!(
            number == 0 || (fast > 0) == ((number as u64) < CLIENTS),
            "program {number}: {fast} copies"
        );
        copies += fast;
    }
    assert!(copies > 1000, "{copies} copies");
    let paths = (0..LASTING).map(|nth| lasting(directory, nth));
    for path in paths.chain((0..PASSING).map(|nth| passing(directory, nth))) {
        let file = Stamped::open(&path, &board).unwrap();
        let mut buffer = Vec::new();
        file.read(&(0..file_bytes()), &mut random, &mut buffer);
    }
}
