//! The journal's text: its first line, and a line for each change.

use super::error::Error;
use homenode_policy::affinity::{FileId, Target, ThreadId};
use serde::{Deserialize, Serialize};
use std::path::Path;

const MAGIC: &str = "homenode-affinity";
const VERSION: &str = "1";

/// Change, as it is written down before it is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) target: Key,
    pub(super) identity: String,
    /// Value to restore, byte for byte.
    pub(super) old: String,
    /// A thread's old mask had all CPUs of its cpuset.
    pub(super) whole: bool,
    /// A thread's session.
    pub(super) session: u32,
    pub(super) to: Vec<u32>,
    /// When it was written, in clock ticks since boot.
    pub(super) at: u64,
    /// A thread got its old mask back: nothing is in force any more, but for threads that inherited its mask before.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) back: bool,
    /// It is not taken back: a file stays where it was moved to.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) stays: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// A target or a file as it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Key {
    Thread { process: u32, thread: u32, started: u64 },
    Interrupt { number: u32 },
    Transmit { device: String, index: u32 },
    Receive { device: String, index: u32 },
    File { major: u32, minor: u32, inode: u64 },
}

/// Object of a record.
pub(super) enum Place {
    Target(Target),
    File(FileId),
}

/// The first line without its checksum.
pub(super) fn header_text(boot: &str, namespaces: &str) -> String {
    format!("{MAGIC} {VERSION} {boot} {namespaces}")
}

/// The first line.
pub(super) fn header_line(header: &str) -> String {
    format!("{header} {:08x}\n", crc32c::crc32c(header.as_bytes()))
}

/// Content of a journal's file.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) namespaces: String,
    /// With the numbers of their lines.
    pub(super) records: Vec<(usize, Record)>,
    /// Text of the last line, if that line is cut.
    pub(super) cut: Option<String>,
}

/// Why a file cannot be used.
#[derive(Debug)]
pub(super) enum Broken {
    Empty,
    Foreign(String),
    Line(usize, String),
}

impl Broken {
    pub(super) fn at(self, path: &Path) -> Error {
        let path = path.to_path_buf();
        match self {
            Self::Empty => Error::Empty { path },
            Self::Foreign(problem) => Error::Foreign { path, problem },
            Self::Line(line, problem) => Error::Damaged { path, line, problem },
        }
    }
}

/// The boot that a file is of, whatever its records say.
pub(super) fn boot(bytes: &[u8]) -> Result<String, Broken> {
    if bytes.is_empty() {
        return Err(Broken::Empty);
    }
    if !bytes.starts_with(MAGIC.as_bytes()) {
        return Err(Broken::Foreign(format!("it does not begin with \"{MAGIC}\"")));
    }
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(header(&String::from_utf8_lossy(line))?.0)
}

/// A file of which [`boot`] could tell the boot.
pub(super) fn read(bytes: &[u8]) -> Result<Read, Broken> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        // The last character has not all of its bytes: cut, as the line is.
        Err(error) if error.error_len().is_none() => &String::from_utf8_lossy(bytes),
        Err(error) => {
            let before = &bytes[..error.valid_up_to()];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            return Err(Broken::Line(line, "it has bytes that are no text".to_owned()));
        }
    };
    let mut lines = text.split('\n');
    let (_, namespaces) = header(lines.next().unwrap_or_default())?;
    let mut lines: Vec<&str> = lines.collect();
    // What follows the last new line: nothing, unless it was cut. A file that was written whole has a new line after its
    // header.
    let Some(tail) = lines.pop() else {
        return Err(Broken::Line(1, "it is cut".to_owned()));
    };
    // A whole record and one byte: not cut, but its new line has become another byte.
    if without_last(tail).is_some_and(|cut| record(cut).is_ok()) {
        return Err(Broken::Line(
            lines.len() + 2,
            "it does not end with a new line".to_owned(),
        ));
    }
    let numbered = (2..).zip(lines);
    let parsed = numbered.map(|(number, line)| match record(line) {
        Ok(record) => Ok((number, record)),
        Err(problem) => Err(Broken::Line(number, problem)),
    });
    Ok(Read {
        namespaces,
        records: parsed.collect::<Result<_, _>>()?,
        cut: (!tail.is_empty()).then(|| tail.to_owned()),
    })
}

fn without_last(text: &str) -> Option<&str> {
    let (last, _) = text.char_indices().next_back()?;
    Some(&text[..last])
}

fn header(line: &str) -> Result<(String, String), Broken> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        [MAGIC, VERSION, boot, namespaces, crc] => {
            let length = line.len() - crc.len() - 1;
            match crc == format!("{:08x}", crc32c::crc32c(&line.as_bytes()[..length])) {
                true => Ok((boot.to_owned(), namespaces.to_owned())),
                false => Err(Broken::Line(1, "its checksum is wrong".to_owned())),
            }
        }
        [MAGIC, version, ..] if version != VERSION => Err(Broken::Foreign(format!("its version is {version:?}"))),
        _ => Err(Broken::Line(1, "it is cut".to_owned())),
    }
}

pub(super) fn line(record: &Record) -> String {
    let text = serde_json::to_string(record).expect("numbers and strings always serialize to JSON");
    format!("{:08x} {text}\n", crc32c::crc32c(text.as_bytes()))
}

fn record(line: &str) -> Result<Record, String> {
    let (crc, text) = line.split_once(' ').ok_or("it is cut")?;
    if crc != format!("{:08x}", crc32c::crc32c(text.as_bytes())) {
        return Err("its checksum is wrong".to_owned());
    }
    serde_json::from_str(text).map_err(|error| error.to_string())
}

impl From<&Target> for Key {
    fn from(target: &Target) -> Self {
        match target.clone() {
            Target::Thread(id) => Self::Thread {
                process: id.process,
                thread: id.thread,
                started: id.started,
            },
            Target::Interrupt(number) => Self::Interrupt { number },
            Target::Transmit { device, index } => Self::Transmit { device, index },
            Target::Receive { device, index } => Self::Receive { device, index },
        }
    }
}

impl From<FileId> for Key {
    fn from(file: FileId) -> Self {
        let ((major, minor), inode) = (file.pool, file.inode);
        Self::File { major, minor, inode }
    }
}

impl Record {
    /// Returns the object.
    pub(super) fn place(&self) -> Place {
        Place::Target(match self.target.clone() {
            Key::Thread {
                process,
                thread,
                started,
            } => Target::Thread(ThreadId {
                process,
                thread,
                started,
            }),
            Key::Interrupt { number } => Target::Interrupt(number),
            Key::Transmit { device, index } => Target::Transmit { device, index },
            Key::Receive { device, index } => Target::Receive { device, index },
            Key::File { major, minor, inode } => {
                let pool = (major, minor);
                return Place::File(FileId { pool, inode });
            }
        })
    }
}
