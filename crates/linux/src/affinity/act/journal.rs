//! The undo journal: what was changed and what it was before, so that every change can be taken back, also after a crash.
//!
//! ```text
//! homenode-affinity 1 BOOT NAMESPACES CRC
//! CRC {"target":…,"identity":…,"old":…,"to":…,…}
//! ```
//!
//! Each line is a record with its crc32c. A plan's records are made durable together before its first action. A cut-off last line was never acted on and
//! is dropped; if the file was cut later, the rest of the line is kept for the report. Other damage is refused, and the file left alone. For each
//! target the first old value counts, unless another program changed the target in between: then a new history begins.
//!
//! It is not in /run, which is cleared with a service's directories while masks stay in force. After a reboot there is
//! nothing to undo, and what a killed program wrote the kernel still has; the fsync is there so that a disk which cannot
//! take the lines says so before the first action, and not when it writes them back.
//!
//! A file that a pool was asked to move is in it too, with `"stays":true`: it is not moved back.
//!
//! A journal of another boot tells of nothing that is still in force. Cost: one write and one fsync a plan; the file is
//! written anew, without what has vanished, when it has twice the lines that were left then, and a thousand.

use super::book::{Book, Entries};
use super::error::Error;
use super::record::{self, Broken, Record};
use super::store::Store;
use homenode_policy::NodeId;
use homenode_policy::affinity::{FileId, Target};
use std::path::Path;

/// A journal is written anew when it has this many times the lines that it had afterwards last time,
const SURPLUS_FACTOR: usize = 2;
/// and so many more.
const SURPLUS_LINES: usize = 1024;

/// The file and what it says.
#[derive(Debug)]
pub(super) struct Journal<S> {
    store: S,
    header: String,
    book: Book,
    /// Lines of the file; none when it has to be written whole.
    lines: Option<usize>,
    /// Lines that it had when what has vanished was left out.
    kept: usize,
    /// There was one of another boot.
    pub(super) rebooted: bool,
    /// Text of the last line, if that line is cut.
    pub(super) cut: Option<String>,
}

/// Content of a file of this boot and these namespaces.
#[derive(Debug)]
struct Parsed {
    book: Book,
    lines: usize,
    cut: Option<String>,
}

/// Parses a file; `None` for a journal of another boot.
fn parse(bytes: &[u8], path: &Path, boot: &str, namespaces: &str) -> Result<Option<Parsed>, Error> {
    if record::boot(bytes).map_err(|broken| broken.at(path))? != boot {
        return Ok(None);
    }
    let read = record::read(bytes).map_err(|broken| broken.at(path))?;
    if read.namespaces != namespaces {
        return Err(Error::Elsewhere {
            path: path.to_path_buf(),
            there: read.namespaces,
            here: namespaces.to_owned(),
        });
    }
    let mut book = Book::default();
    for (line, record) in &read.records {
        book.read(record)
            .map_err(|problem| Broken::Line(*line, problem).at(path))?;
    }
    Ok(Some(Parsed {
        book,
        lines: read.records.len(),
        cut: read.cut,
    }))
}

impl<S: Store> Journal<S> {
    pub(super) fn open(mut store: S, boot: &str, namespaces: &str) -> Result<Self, Error> {
        let text = store.load()?;
        let mut journal = Self {
            header: record::header_text(boot, namespaces),
            book: Book::default(),
            lines: None,
            kept: 0,
            rebooted: false,
            cut: None,
            store,
        };
        let Some(text) = text else {
            return Ok(journal);
        };
        match parse(&text, journal.store.path(), boot, namespaces)? {
            Some(parsed) => {
                journal.book = parsed.book;
                journal.lines = parsed.cut.is_none().then_some(parsed.lines);
                journal.cut = parsed.cut;
            }
            None => {
                journal.store.remove()?;
                journal.rebooted = true;
            }
        }
        Ok(journal)
    }

    pub(super) fn entries(&self) -> &Entries {
        &self.book.entries
    }

    /// Files that were moved, with the nodes they were moved to.
    pub(super) fn files(&self) -> Vec<(FileId, NodeId)> {
        self.book.files.iter().map(|(file, moved)| (*file, moved.to)).collect()
    }

    /// Takes the files out of what is known; [`Journal::retain`] writes that.
    pub(super) fn take_files(&mut self) -> Vec<(FileId, NodeId)> {
        let files = self.files();
        self.book.files.clear();
        files
    }

    /// Whether it has nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.book.is_empty()
    }

    /// The targets, the latest change first.
    pub(super) fn latest_first(&self) -> Vec<Target> {
        self.book.latest_first()
    }

    /// Makes records durable. Whatever happens, the file has all of what it had.
    pub(super) fn append(&mut self, records: &[&Record]) -> Result<(), Error> {
        let text: String = records.iter().map(|record| record::line(record)).collect();
        // Should this fail, half a line may be there: the next one writes the file whole.
        let lines = match self.lines.take() {
            Some(lines) => {
                self.store.append(text.as_bytes())?;
                lines
            }
            None => {
                let (before, lines) = self.text();
                self.store.replace((before + &text).as_bytes())?;
                lines
            }
        };
        self.lines = Some(lines + records.len());
        for record in records {
            self.book.read(record).expect("records in the book were parsed before");
        }
        Ok(())
    }

    /// Whether the file has many more lines than it had when what has vanished was left out.
    pub(super) fn is_long(&self) -> bool {
        let enough = self.kept.saturating_mul(SURPLUS_FACTOR).saturating_add(SURPLUS_LINES);
        self.lines.is_some_and(|lines| lines > enough)
    }

    /// Forgets the targets that `keep` does not name, and writes the file anew; without anything to keep, there is none.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Target) -> bool) -> Result<(), Error> {
        self.book.entries.retain(|target, _| keep(target));
        self.lines = None;
        if self.book.is_empty() {
            return self.store.remove();
        }
        let (text, lines) = self.text();
        self.store.replace(text.as_bytes())?;
        (self.lines, self.kept) = (Some(lines), lines);
        Ok(())
    }

    /// The whole file, and how many records it has.
    fn text(&self) -> (String, usize) {
        let lines: Vec<String> = self.book.records().map(|record| record::line(&record)).collect();
        (record::header_line(&self.header) + &lines.concat(), lines.len())
    }
}
