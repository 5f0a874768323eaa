//! The undo journal: what was changed and what it was before, so that every change can be taken back, also after a crash.
//!
//! ```text
//! homenode-affinity 1 BOOT NAMESPACES CRC
//! CRC {"target":…,"identity":…,"old":…,"to":…,…}
//! ```
//!
//! A line a record, each with the crc32c of its text. Records of a plan are appended and made durable in one go before the
//! first of its actions. A last line that is cut was never acted upon, and is dropped; anything else that is not as it was
//! written is refused, and the file left alone. Of a target the old value that was recorded first counts, unless somebody
//! else has changed it in between: the record then has another one, and a new history begins.
//!
//! A journal of another boot tells of nothing that is still in force. Cost: one write and one fsync a plan; the file is
//! written anew, without what has vanished, when it has many times the lines it needs.

use super::error::Error;
use super::mask::{Mask, is_what_became_of};
use super::store::Store;
use homenode_policy::CpuId;
use homenode_policy::affinity::{Target, ThreadId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const MAGIC: &str = "homenode-affinity";
const VERSION: &str = "1";

/// A journal is written anew when it has this many times the lines it needs,
const SURPLUS_FACTOR: usize = 4;
/// and not when it is small anyway.
const SURPLUS_LINES: usize = 1024;

/// One change, as it is written down before it is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) target: Key,
    pub(super) identity: String,
    /// What it is to have again, byte for byte.
    pub(super) old: String,
    /// A thread's old mask had all CPUs of its cpuset.
    pub(super) whole: bool,
    /// A thread's session.
    pub(super) session: u32,
    pub(super) to: Vec<u32>,
    /// When it was written, in clock ticks since boot.
    pub(super) at: u64,
}

/// A target as it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Key {
    Thread { process: u32, thread: u32, started: u64 },
    Interrupt { number: u32 },
    Transmit { device: String, index: u32 },
    Receive { device: String, index: u32 },
}

/// What is known of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) identity: String,
    pub(super) old: Mask,
    pub(super) whole: bool,
    pub(super) session: u32,
    /// The CPUs that were set, the last ones last, each with when they were first.
    pub(super) set: Vec<(Vec<CpuId>, u64)>,
    /// Of the first record: later changes are taken back first.
    order: usize,
}

/// All targets.
pub(super) type Entries = BTreeMap<Target, Entry>;

/// The file and what it says.
#[derive(Debug)]
pub(super) struct Journal<S> {
    store: S,
    header: String,
    entries: Entries,
    /// Lines of the file; none when it has to be written whole.
    lines: Option<usize>,
    next_order: usize,
    /// There was one of another boot.
    pub(super) rebooted: bool,
}

impl Entry {
    /// Whether CPUs that something has are ones that were set, for a target that can have `room`.
    pub(super) fn has_set(&self, now: &[CpuId], room: &[CpuId]) -> bool {
        self.set.iter().any(|(set, _)| is_what_became_of(set, now, room))
    }

    /// The CPUs that were set last.
    pub(super) fn last(&self) -> &[CpuId] {
        self.set.last().map_or(&[], |(set, _)| set)
    }
}

impl<S: Store> Journal<S> {
    pub(super) fn open(mut store: S, boot: &str, namespaces: &str) -> Result<Self, Error> {
        let text = store.load()?;
        let mut journal = Self {
            header: format!("{MAGIC} {VERSION} {boot} {namespaces}"),
            entries: Entries::new(),
            lines: None,
            next_order: 0,
            rebooted: false,
            store,
        };
        let Some(text) = text else {
            return Ok(journal);
        };
        let path = journal.store.path().to_path_buf();
        let read = read(&text).map_err(|broken| broken.at(&path))?;
        if read.boot != boot {
            journal.store.remove()?;
            journal.rebooted = true;
            return Ok(journal);
        }
        if read.namespaces != namespaces {
            return Err(Error::Elsewhere {
                path,
                there: read.namespaces,
                here: namespaces.to_owned(),
            });
        }
        for (line, record) in &read.records {
            let old = Mask::parse(record.old.clone());
            let old = old.map_err(|error| Broken::Line(*line, error.to_string()).at(&path))?;
            journal.note(record, old);
        }
        journal.lines = (!read.is_torn).then_some(read.records.len());
        Ok(journal)
    }

    pub(super) fn entries(&self) -> &Entries {
        &self.entries
    }

    /// The targets, the latest change first.
    pub(super) fn latest_first(&self) -> Vec<Target> {
        let mut targets: Vec<&Target> = self.entries.keys().collect();
        targets.sort_by_key(|target| std::cmp::Reverse(self.entries[target].order));
        targets.into_iter().cloned().collect()
    }

    /// Makes records durable. Whatever happens, the file has all of what it had.
    pub(super) fn append(&mut self, records: &[(Record, Mask)]) -> Result<(), Error> {
        match self.lines {
            Some(lines) => {
                let text: String = records.iter().map(|(record, _)| line(record)).collect();
                // Should this fail, half a line may be there: the next one writes the file whole.
                self.lines = None;
                self.store.append(text.as_bytes())?;
                self.lines = Some(lines + records.len());
                records.iter().for_each(|(record, old)| self.note(record, old.clone()));
            }
            None => {
                let mut all = self.text();
                all.extend(records.iter().map(|(record, _)| line(record)));
                self.store.replace(all.as_bytes())?;
                records.iter().for_each(|(record, old)| self.note(record, old.clone()));
                self.lines = Some(all.lines().count() - 1);
            }
        }
        Ok(())
    }

    /// Whether the file has many more lines than it needs.
    pub(super) fn is_long(&self) -> bool {
        let needed = self.entries.len().saturating_mul(SURPLUS_FACTOR);
        self.lines.is_some_and(|lines| lines > needed.max(SURPLUS_LINES))
    }

    /// Forgets what `keep` does not name, and writes the file anew; without anything to keep, there is none.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Target) -> bool) -> Result<(), Error> {
        self.entries.retain(|target, _| keep(target));
        self.lines = None;
        if self.entries.is_empty() {
            return self.store.remove();
        }
        let text = self.text();
        self.store.replace(text.as_bytes())?;
        self.lines = Some(text.lines().count() - 1);
        Ok(())
    }

    /// The whole file.
    fn text(&self) -> String {
        let mut text = format!("{} {:08x}\n", self.header, crc32c::crc32c(self.header.as_bytes()));
        let mut targets = self.latest_first();
        targets.reverse();
        for target in &targets {
            let entry = &self.entries[target];
            let records = entry.set.iter().map(|(set, at)| Record {
                target: Key::from(target),
                identity: entry.identity.clone(),
                old: entry.old.text().to_owned(),
                whole: entry.whole,
                session: entry.session,
                to: set.iter().map(|cpu| cpu.0).collect(),
                at: *at,
            });
            text.extend(records.map(|record| line(&record)));
        }
        text
    }

    fn note(&mut self, record: &Record, old: Mask) {
        let target = Target::from(&record.target);
        let to: Vec<CpuId> = record.to.iter().copied().map(CpuId).collect();
        let same = |entry: &&mut Entry| entry.identity == record.identity && entry.old == old;
        if let Some(entry) = self.entries.get_mut(&target).filter(same) {
            let known = entry.set.iter().position(|(set, _)| *set == to);
            let at = known.map_or(record.at, |index| entry.set.remove(index).1);
            entry.set.push((to, at));
            return;
        }
        let entry = Entry {
            identity: record.identity.clone(),
            old,
            whole: record.whole,
            session: record.session,
            set: vec![(to, record.at)],
            order: self.next_order,
        };
        self.next_order += 1;
        self.entries.insert(target, entry);
    }
}

/// What a file says.
#[derive(Debug)]
struct Read {
    boot: String,
    namespaces: String,
    /// With the numbers of their lines.
    records: Vec<(usize, Record)>,
    /// Its last line is cut.
    is_torn: bool,
}

/// Why a file cannot be used.
#[derive(Debug)]
enum Broken {
    Foreign(String),
    Line(usize, String),
}

impl Broken {
    fn at(self, path: &std::path::Path) -> Error {
        let path = path.to_path_buf();
        match self {
            Self::Foreign(problem) => Error::Foreign { path, problem },
            Self::Line(line, problem) => Error::Damaged { path, line, problem },
        }
    }
}

fn read(bytes: &[u8]) -> Result<Read, Broken> {
    let begins = bytes.starts_with(MAGIC.as_bytes());
    if !begins {
        return Err(Broken::Foreign(format!("it does not begin with \"{MAGIC}\"")));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        Broken::Line(line, "it has bytes that are no text".to_owned())
    })?;
    let mut lines = text.split('\n');
    let (boot, namespaces) = header(lines.next().unwrap_or_default())?;
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
        boot,
        namespaces,
        records: parsed.collect::<Result<_, _>>()?,
        is_torn: !tail.is_empty(),
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

fn line(record: &Record) -> String {
    let text = serde_json::to_string(record).expect("numbers and strings");
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

impl From<&Key> for Target {
    fn from(key: &Key) -> Self {
        match key.clone() {
            Key::Thread {
                process,
                thread,
                started,
            } => Self::Thread(ThreadId {
                process,
                thread,
                started,
            }),
            Key::Interrupt { number } => Self::Interrupt(number),
            Key::Transmit { device, index } => Self::Transmit { device, index },
            Key::Receive { device, index } => Self::Receive { device, index },
        }
    }
}
