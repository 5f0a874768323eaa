//! Words of files of the kernel, by which programs copy through mappings: a file of them for each user, and a line for each file that a user asks about.
//!
//! Invariants: a file with a line is cut with each of its lines odd; attributes are read for an answer after each of its lines was raised; a line goes
//! to another file only when no open keeps its file. Users' files of words are not in any directory, cannot be written or resized, and live until
//! another user needs the place of one without files. Choice: docs/decisions/020-words.md.

use super::acl::ACCESS;
use super::attr::REGULAR;
use super::kernel_file::KernelFile;
use super::unlinked::Standing;
use super::{Error, Fs, Ino, Inode, NewInode, Result, SetAttr};
use crate::{BLOCK_BYTES, Clock, Memory};
use homenode_shared::{LINES, Line, PIECE_BYTES, PIECE_WORDS, PIECES, Words};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// Name of an extended attribute that tells what a client needs to copy from and to a file near an offset in bytes, which follows. Not listed.
pub const WORDS_XATTR: &[u8] = b"user.homenode.words.";
/// Name, in the root, of a user's file of words; the user's number follows. Not listed.
pub const WORDS_NAME: &[u8] = b".homenode.words.";

/// Users with a file of words.
const USERS_MAX: usize = 32;
/// Longest wait for others who ask, and for bytes that go.
const CUT_PATIENCE: Duration = Duration::from_millis(1);
/// Bytes that an answer tells about.
const WINDOW_BYTES: u64 = PIECES * PIECE_BYTES;

/// The words of all users.
#[derive(Debug, Default)]
pub(super) struct AllWords(Mutex<BTreeMap<u32, Arc<UserWords>>>);

/// A user's words.
#[derive(Debug)]
struct UserWords {
    words: Words,
    /// The file that they lie in.
    ino: Ino,
    lines: Mutex<Lines>,
}

/// Lines that no file has.
#[derive(Debug, Default)]
struct Lines {
    given_back: Vec<u32>,
    never_used: u32,
}

/// A line of a user's words that belongs to a file. Dropping it gives the line back.
#[derive(Debug)]
struct FileLine {
    user: u32,
    words: Arc<UserWords>,
    number: u32,
}

/// The lines of a file, one for each user who has asked.
#[derive(Debug, Default)]
pub(super) struct FileLines {
    /// Held while bytes go, and while a line and its count are looked up.
    cutting: Mutex<()>,
    lines: RwLock<Vec<FileLine>>,
}

impl UserWords {
    fn take_line(self: &Arc<Self>, user: u32) -> Option<FileLine> {
        let mut lines = self.lines.lock();
        let number = lines.given_back.pop().or_else(|| {
            let next = lines.never_used;
            lines.never_used += u32::from(next < LINES);
            (next < LINES).then_some(next)
        })?;
        Some(FileLine {
            user,
            words: Arc::clone(self),
            number,
        })
    }
}

impl FileLine {
    fn line(&self) -> &Line {
        let line = self.words.words.line(self.number as usize);
        line.expect("number < LINES: `take_line` checks it")
    }
}

impl Drop for FileLine {
    fn drop(&mut self) {
        // Before another file can have it.
        self.line().pass_on();
        self.words.lines.lock().given_back.push(self.number);
    }
}

impl FileLines {
    /// Runs `cut`, which takes bytes of the file away, while clients see that bytes go.
    pub(super) fn cut<R>(&self, cut: impl FnOnce() -> R) -> R {
        let _alone = self.cutting.lock();
        let lines = self.lines.read();
        let _cuts: Vec<_> = lines.iter().map(|line| line.line().cut()).collect();
        cut()
    }

    /// Tells clients that attributes are read for an answer, or were set.
    pub(super) fn raise_asks(&self) {
        // Recursive: whoever cuts asks as well.
        self.lines
            .read_recursive()
            .iter()
            .for_each(|line| line.line().raise_asks());
    }

    /// Gives all lines back if the file is not open: whoever opens it again may have got one meanwhile.
    pub(super) fn clear_unless(&self, is_open: impl Fn() -> bool) {
        // While it is, nobody waits for bytes that go; who closes it last comes here again.
        if self.lines.read().is_empty() || is_open() {
            return;
        }
        let mut lines = self.lines.write();
        if !is_open() {
            // With its memory, which nobody counts.
            *lines = Vec::new();
        }
    }

    /// Takes all lines away, as a user may have lost the right to read the file. Users with that right get another line when they ask.
    pub(super) fn withdraw(&self) {
        self.clear_unless(|| false);
    }

    /// The number of a user's line and the cuts that it counts, at a moment when no bytes go; gives the file a line if it has none. What is found in the
    /// file afterwards may be told with that count: a cut meanwhile makes the line's another one. While bytes go, which may take long, there is none.
    fn line_of(&self, user: u32, words: &Arc<UserWords>) -> Result<(u32, u64)> {
        let _no_cut = self.cutting.try_lock_for(CUT_PATIENCE).ok_or(Error::NoSpace)?;
        let mut lines = self.lines.write();
        if !lines.iter().any(|line| line.user == user) {
            lines.push(words.take_line(user).ok_or(Error::NoSpace)?);
        }
        let line = lines.iter().find(|line| line.user == user).expect("added above");
        let seen = line.line().look();
        Ok((
            line.number,
            seen.expect("no bytes are cut while `cutting` is held").cuts,
        ))
    }
}

impl KernelFile {
    /// A bit for each of [`PIECES`] pieces around `offset`: set if the piece has data from end to end, as far as the file of `size` bytes goes. Lowest bit first.
    fn dense_pieces(&self, offset: u64, size: u64) -> Result<[u64; PIECE_WORDS]> {
        let blocks = |at: u64| at.div_ceil(BLOCK_BYTES as u64);
        let start = offset / WINDOW_BYTES * WINDOW_BYTES;
        let end = size.min(start.saturating_add(WINDOW_BYTES));
        let pieces: Vec<_> = (0..end.saturating_sub(start).div_ceil(PIECE_BYTES))
            .map(|nth| start + nth * PIECE_BYTES)
            .map(|at| blocks(at)..blocks(end.min(at + PIECE_BYTES)))
            .collect();
        let mut bits = [0; PIECE_WORDS];
        // The kernel counts all of them about as fast as one.
        let whole = blocks(start)..blocks(end.max(start));
        let is_whole = self.holes(&[whole])? == [0];
        let holes = if is_whole {
            vec![0; pieces.len()]
        } else {
            self.holes(&pieces)?
        };
        for (nth, _) in holes.iter().enumerate().filter(|(_, holes)| **holes == 0) {
            bits[nth / 64] |= 1 << (nth % 64);
        }
        Ok(bits)
    }
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// A user's file of words, which is made if there is none.
    ///
    /// # Errors
    /// [`Error::NotFound`] where files are not the kernel's, and when all users' files are given; those of making a file.
    pub fn words_file(&self, user: u32) -> Result<Arc<Inode>> {
        let words = self.words_of(user)?;
        self.table.find(words.ino).ok_or(Error::NotFound)
    }

    fn words_of(&self, user: u32) -> Result<Arc<UserWords>> {
        let mut all = self.words.0.lock();
        if let Some(words) = all.get(&user) {
            return Ok(Arc::clone(words));
        }
        if self.pool.store().is_none() {
            return Err(Error::NotFound);
        }
        if all.len() >= USERS_MAX {
            // A client that has mapped it learns from the next answer that there is another.
            // No file has a line, and nobody is about to take one, who would find the file cut.
            let mut unused = all.iter().filter(|(_, words)| Arc::strong_count(words) == 1);
            let unused = unused.next().map(|(user, _)| *user);
            let words = unused.and_then(|user| all.remove(&user)).ok_or(Error::NoSpace)?;
            if let Some(inode) = self.table.find(words.ino) {
                self.unkeep(&inode);
            }
        }
        let new = NewInode::of_root(REGULAR | 0o444);
        let inode = self.tmpfile(&self.root(), new)?;
        // Its pin would end with a mount.
        let kept = self.keep(&inode);
        self.unpin(&inode, 1);
        kept?;
        let made = self.hold_words(&inode, user);
        let words = made.inspect_err(|_| self.unkeep(&inode))?;
        // It is not one of those whose blocks are about to be free.
        self.unlinked.moved(Standing::Closed, Standing::Named);
        let words = Arc::new(UserWords {
            words,
            ino: inode.ino(),
            lines: Mutex::default(),
        });
        all.insert(user, Arc::clone(&words));
        Ok(words)
    }

    /// Makes a new file a user's file of words, whatever the root's default access list says.
    fn hold_words(&self, inode: &Inode, user: u32) -> Result<Words> {
        match self.remove_xattr(inode, ACCESS) {
            Ok(()) | Err(Error::NoAttribute) => {}
            Err(error) => return Err(error),
        }
        let set = SetAttr {
            mode: Some(0o444),
            ..SetAttr::default()
        };
        self.set_attr(inode, &set)?;
        inode.kernel_file().ok_or(Error::NotFound)?.hold_words(user, LINES)
    }

    /// The value of [`WORDS_XATTR`] for `user` around a byte of a file. Decimal numbers with blanks between: the user, the inode of the user's file of words, the line, its
    /// count of cuts, the file's size in bytes, and the first of 1,024 pieces of 64 KiB. Then sixteen hexadecimal numbers, whose bits, lowest first, are set for pieces
    /// that have data throughout.
    ///
    /// # Errors
    /// [`Error::NoAttribute`] for what is not a file of the kernel, or not open; [`Error::NoSpace`] when all lines are given.
    pub fn words_value(&self, inode: &Inode, user: u32, offset: u64) -> Result<Vec<u8>> {
        let file = inode.kernel_file().filter(|file| file.words_reader().is_none());
        let file = file.ok_or(Error::NoAttribute)?;
        let words = self.words_of(user)?;
        let value = file.lines().line_of(user, &words).and_then(|(number, cuts)| {
            let size = file.status().size;
            let first = offset / WINDOW_BYTES * PIECES;
            let mut value = format!("{user} {} {number} {cuts} {size} {first}", words.ino.0);
            for bits in file.dense_pieces(offset, size)? {
                write!(value, " {bits:x}").expect("writing to a string cannot fail");
            }
            Ok(value.into_bytes())
        });
        // A release that came before has given no line back, and one that comes now does.
        let is_open = || self.opens(inode).all > 0;
        file.lines().clear_unless(is_open);
        if is_open() { value } else { Err(Error::NoAttribute) }
    }
}

impl Inode {
    /// The user who alone, but for root, may open the inode, and only to read: it is the user's file of words.
    #[must_use]
    pub fn words_reader(&self) -> Option<u32> {
        self.kernel_file().and_then(KernelFile::words_reader)
    }
}
