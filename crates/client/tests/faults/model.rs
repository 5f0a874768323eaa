//! Calls of a program, system calls of others beside them, and the bytes that both leave in a file.

use crate::support::punch;
use std::fs::{self, File, FileTimes, Permissions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

pub(super) const FILE_BYTES: usize = 10_000;
/// Bytes of the largest file of a run.
pub(super) const ROOM_BYTES: usize = 96 << 10;

/// The program's knowledge of its file before the call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing; it learns with this call.
    New,
    /// All of it: what can be a copy is one.
    Known,
    /// Knowledge from before a cut.
    Cut,
    /// Knowledge from before a second cut, in the tick of the first one and of the last write.
    CutTwice,
}

/// The call.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) state: State,
    pub(super) is_write: bool,
    pub(super) at: usize,
    pub(super) bytes: usize,
}

/// Another process's system call.
#[derive(Clone, Debug)]
pub(super) enum Other {
    SetSize(usize),
    Empty,
    Punch(Range<usize>),
    Write(Range<usize>),
    Rename,
    Remove,
    SetMode,
    SetTime,
    Look,
}

pub(super) const CALLS: [Call; 9] = [
    call("short read", State::Known, false, 9_000, 100),
    call("long read", State::Known, false, 6_500, 3_000),
    call("short write", State::Known, true, 9_000, 100),
    call("long write", State::Known, true, 6_500, 3_000),
    call("growth", State::Known, true, 10_000, 300),
    call("first read", State::New, false, 9_000, 100),
    call("read after a cut", State::Cut, false, 8_450, 100),
    call("write after a cut", State::Cut, true, 9_000, 100),
    call("write after cuts", State::CutTwice, true, 9_000, 100),
];

const fn call(name: &'static str, state: State, is_write: bool, at: usize, bytes: usize) -> Call {
    Call {
        name,
        state,
        is_write,
        at,
        bytes,
    }
}

/// Returns system calls that take bytes, or tell of them. A call finds out about them in the end.
pub(super) fn felt() -> Vec<Vec<Other>> {
    vec![
        vec![Other::SetSize(8_500)],
        vec![Other::SetSize(9_050), Other::SetSize(12_000)],
        vec![Other::SetSize(4_000)],
        vec![Other::SetSize(4_000), Other::Write(3_990..11_000)],
        vec![Other::Empty],
        vec![Other::Punch(8_990..9_110)],
        vec![Other::Punch(4_096..8_192)],
        vec![Other::Look],
        vec![Other::SetMode],
        vec![Other::SetTime],
    ]
}

/// Returns the other system calls.
pub(super) fn unfelt() -> Vec<Vec<Other>> {
    vec![
        vec![Other::Write(70_000..70_100)],
        vec![Other::Rename],
        vec![Other::Remove],
    ]
}

/// Returns system calls in the middle of a copy, before the rest of it is stopped.
pub(super) fn first_others() -> Vec<Other> {
    vec![Other::Look, Other::SetMode]
}

/// A byte of the file as it is at first, as the call writes it, as others do, and as the program does after the call.
pub(super) fn byte(at: usize, first: u8) -> u8 {
    first + u8::try_from(at % 23).unwrap()
}
pub(super) const BEFORE: u8 = b'a';
pub(super) const CALLED: u8 = b'A';
pub(super) const OTHERS: u8 = 200;
pub(super) const FOLLOWING: u8 = 150;

pub(super) fn fill(place: Range<usize>, first: u8) -> Vec<u8> {
    place.map(|at| byte(at, first)).collect()
}

/// The file as it is at first.
pub(super) fn first_content() -> Vec<u8> {
    static CONTENT: OnceLock<Vec<u8>> = OnceLock::new();
    CONTENT.get_or_init(|| fill(0..FILE_BYTES, BEFORE)).clone()
}

pub(super) fn put(content: &mut Vec<u8>, place: Range<usize>, first: u8) {
    content.resize(content.len().max(place.end), 0);
    content[place.clone()].copy_from_slice(&fill(place, first));
}

impl Call {
    /// The file's size when the call begins.
    pub(super) fn file_bytes(&self) -> usize {
        match self.state {
            State::New | State::Known => FILE_BYTES,
            State::Cut | State::CutTwice => 8_500,
        }
    }

    /// Returns true if the call is a copy when nothing comes in between.
    pub(super) fn is_copy(&self) -> bool {
        self.state == State::Known && self.at + self.bytes <= FILE_BYTES
    }

    pub(super) fn place(&self) -> Range<usize> {
        self.at..self.at + self.bytes
    }

    /// Changes the content; gives what the call returns, and for a read what it reads.
    pub(super) fn apply(&self, content: &mut Vec<u8>) -> (usize, Vec<u8>) {
        if self.is_write {
            put(content, self.place(), CALLED);
            return (self.bytes, Vec::new());
        }
        let end = content.len().min(self.at + self.bytes);
        let read = content.get(self.at..end).unwrap_or(&[]);
        (read.len(), read.to_vec())
    }
}

impl Other {
    pub(super) fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::SetSize(size) => content.resize(*size, 0),
            Self::Empty => content.clear(),
            Self::Punch(place) => {
                let end = content.len().min(place.end);
                if place.start < end {
                    content[place.start..end].fill(0);
                }
            }
            Self::Write(place) => put(content, place.clone(), OTHERS),
            _ => {}
        }
    }

    pub(super) fn carry_out(&self, path: &Path, file: &File) {
        match self {
            Self::SetSize(size) => file.set_len(*size as u64).unwrap(),
            Self::Empty => drop(File::create(path).unwrap()),
            Self::Punch(place) => punch(file, place.start, place.len()),
            Self::Write(place) => file
                .write_all_at(&fill(place.clone(), OTHERS), place.start as u64)
                .unwrap(),
            Self::Rename => {
                let other = path.with_extension("other");
                fs::write(&other, "other").unwrap();
                fs::rename(other, path).unwrap();
            }
            Self::Remove => fs::remove_file(path).unwrap(),
            Self::SetMode => file.set_permissions(Permissions::from_mode(0o6777)).unwrap(),
            Self::SetTime => file.set_times(FileTimes::new().set_modified(past())).unwrap(),
            Self::Look => _ = file.metadata().unwrap(),
        }
    }
}

fn past() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)
}

pub(super) fn content(file: &File) -> Vec<u8> {
    let mut all = vec![0; ROOM_BYTES];
    let read = file.read_at(&mut all, 0).unwrap();
    all.truncate(read);
    all
}

/// The file as it was seen after a system call of the other process.
pub(super) struct Snapshot {
    after: Other,
    content: Vec<u8>,
    modified: SystemTime,
}

impl Snapshot {
    pub(super) fn new(after: &Other, file: &File) -> Self {
        Self {
            after: after.clone(),
            modified: file.metadata().unwrap().modified().unwrap(),
            content: content(file),
        }
    }

    pub(super) fn is_changed(&self, content: &[u8]) -> bool {
        self.content != content
    }
}

/// Looks at what has come to be since snapshots were taken: bytes that have changed are younger than the last look at them, and a write after a chmod(2) has taken
/// set-uid away.
pub(super) fn check_attributes(snapshots: &[Snapshot], file: &File, content: &[u8], what: &str) {
    let status = file.metadata().unwrap();
    if let Some(last) = snapshots.last().filter(|last| last.is_changed(content)) {
        assert!(
            status.modified().unwrap() > last.modified,
            "{what}: other bytes, old time"
        );
    }
    let mut modes = snapshots
        .iter()
        .filter(|snapshot| matches!(snapshot.after, Other::SetMode));
    if let Some(last) = modes.next_back() {
        let mode = status.mode() & 0o7777;
        assert!(
            mode == 0o777 || mode == 0o6777 && !last.is_changed(content),
            "{what}: mode {mode:o}"
        );
    }
}
