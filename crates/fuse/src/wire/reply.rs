//! Answers, written into a caller's buffer.
//!
//! A [`Reply`] collects the payload of one answer: fixed parts, bytes, directory entries. The header that the device wants
//! in front of it is written by whoever knows the number of the request.

use super::Field;
use super::output::{DirEntryHead, EntryOut};

/// The payload of one answer in a buffer of fixed size.
#[derive(Debug)]
pub struct Reply<'a> {
    bytes: &'a mut [u8],
    used: usize,
}

/// The bytes to be added do not fit into the reply buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reply buffer is full")]
pub struct Full;

/// Directory entries start at multiples of this.
const DIR_ENTRY_ALIGNMENT_BYTES: usize = 8;

impl<'a> Reply<'a> {
    /// An empty answer that may grow to the length of `bytes`.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, used: 0 }
    }

    /// Bytes written so far.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used
    }

    /// The answer may grow to at most `bytes` from here on, less if the buffer is shorter.
    #[must_use]
    pub fn limited(self, bytes: usize) -> Self {
        let length = self.bytes.len().min(self.used.saturating_add(bytes));
        let (bytes, _) = self.bytes.split_at_mut(length);
        Self { bytes, used: self.used }
    }

    /// The buffer behind what is written, to be filled in place; then say [`Self::advance`].
    pub fn free(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.used..).unwrap_or_default()
    }

    /// Takes the first `bytes` of [`Self::free`] as written.
    ///
    /// # Errors
    /// [`Full`] when there are fewer; nothing changes.
    pub fn advance(&mut self, bytes: usize) -> Result<(), Full> {
        let used = self
            .used
            .checked_add(bytes)
            .filter(|&used| used <= self.bytes.len())
            .ok_or(Full)?;
        self.used = used;
        Ok(())
    }

    /// Adds a fixed part.
    ///
    /// # Errors
    /// [`Full`]; nothing is added.
    pub fn put<F: Field>(&mut self, field: F) -> Result<(), Full> {
        field.put(&mut self.free()).ok_or(Full)?;
        self.advance(F::BYTES)
    }

    /// Adds bytes as they are.
    ///
    /// # Errors
    /// [`Full`]; nothing is added.
    pub fn put_bytes(&mut self, bytes: &[u8]) -> Result<(), Full> {
        self.free().get_mut(..bytes.len()).ok_or(Full)?.copy_from_slice(bytes);
        self.advance(bytes.len())
    }

    /// Bytes a directory entry with a name of that length takes, with its attributes or without.
    #[must_use]
    pub const fn dir_entry_bytes(name_bytes: usize, plus: bool) -> usize {
        let entry = if plus { EntryOut::BYTES } else { 0 };
        entry + (DirEntryHead::BYTES + name_bytes).next_multiple_of(DIR_ENTRY_ALIGNMENT_BYTES)
    }

    /// Adds an entry of READDIR.
    ///
    /// # Errors
    /// [`Full`]; nothing is added.
    pub fn put_dir_entry(&mut self, ino: u64, next: u64, mode: u32, name: &[u8]) -> Result<(), Full> {
        self.put_entry(None, ino, next, mode, name)
    }

    /// Adds an entry of READDIRPLUS. An `entry` with nodeid 0 gives the name only, and takes no lookup.
    ///
    /// # Errors
    /// [`Full`]; nothing is added.
    pub fn put_dir_entry_plus(&mut self, entry: EntryOut, next: u64, mode: u32, name: &[u8]) -> Result<(), Full> {
        self.put_entry(Some(entry), entry.attr.ino, next, mode, name)
    }

    fn put_entry(&mut self, plus: Option<EntryOut>, ino: u64, next: u64, mode: u32, name: &[u8]) -> Result<(), Full> {
        let bytes = Self::dir_entry_bytes(name.len(), plus.is_some());
        let mut to = self.free().get_mut(..bytes).ok_or(Full)?;
        if let Some(entry) = plus {
            entry.put(&mut to).ok_or(Full)?;
        }
        let namelen = u32::try_from(name.len()).map_err(|_| Full)?;
        DirEntryHead {
            ino,
            off: next,
            namelen,
            kind: file_type(mode),
        }
        .put(&mut to)
        .ok_or(Full)?;
        let (text, padding) = to.split_at_mut_checked(name.len()).ok_or(Full)?;
        text.copy_from_slice(name);
        padding.fill(0);
        self.advance(bytes)
    }
}

/// `d_type` of readdir(3) from a full st_mode.
const fn file_type(mode: u32) -> u32 {
    (mode & 0o17_0000) >> 12
}
