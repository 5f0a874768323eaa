//! POSIX access control lists, as far as a filesystem must know them: the permission bits and the access list say the same,
//! and a directory's default list is inherited. (Checking access is the kernel's.)
//!
//! Format of the attributes (linux/posix_acl_xattr.h, little-endian): version 2 in 4 bytes, then per entry tag and
//! permissions in 2 bytes each and an id in 4.

use super::{Error, Result};

/// Name of the access list.
pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the list that new entries of a directory inherit.
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The id of entries that have none.
const NO_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acl(Vec<Entry>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

impl Acl {
    /// Parses and validates. An empty list (no entries) is `None`: the attribute is to be removed.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(Error::Invalid)?;
        if u32::from_le_bytes(*header) != VERSION {
            return Err(Error::NotSupported);
        }
        let (entries, odd) = rest.as_chunks::<ENTRY_BYTES>();
        if !odd.is_empty() {
            return Err(Error::Invalid);
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Self(entries.iter().map(Entry::from_bytes).collect());
        acl.is_valid().then_some(Some(acl)).ok_or(Error::Invalid)
    }

    pub(super) fn to_bytes(&self) -> Box<[u8]> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            bytes.extend(entry.tag.to_le_bytes());
            bytes.extend(entry.permissions.to_le_bytes());
            bytes.extend(entry.id.to_le_bytes());
        }
        bytes.into()
    }

    /// The permission bits that say the same for owner, group class and others.
    pub(super) fn mode(&self) -> u32 {
        let group = self.find(MASK).or(self.find(GROUP_OBJ));
        let bits = |entry: Option<&Entry>| u32::from(entry.map_or(0, |entry| entry.permissions));
        bits(self.find(USER_OBJ)) << 6 | bits(group) << 3 | bits(self.find(OTHER))
    }

    /// Whether permission bits alone can say it.
    pub(super) fn is_minimal(&self) -> bool {
        self.0
            .iter()
            .all(|entry| matches!(entry.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }

    /// Changes the permissions of an access list as chmod(2) does.
    pub(super) fn set_mode(&mut self, mode: u32) {
        let group_tag = if self.find(MASK).is_some() { MASK } else { GROUP_OBJ };
        for entry in &mut self.0 {
            match entry.tag {
                USER_OBJ => entry.permissions = bits_of(mode >> 6),
                OTHER => entry.permissions = bits_of(mode),
                tag if tag == group_tag => entry.permissions = bits_of(mode >> 3),
                _ => {}
            }
        }
    }

    /// The access list of something made with `mode` in a directory with this default list, and its permission bits: those
    /// that both grant.
    pub(super) fn inherit(&self, mode: u32) -> (Self, u32) {
        let mut acl = self.clone();
        let granted = self.mode() & mode & 0o777;
        acl.set_mode(granted);
        (acl, mode & !0o777 | granted)
    }

    fn find(&self, tag: u16) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.tag == tag)
    }

    /// posix_acl_valid: each kind in order, the three base entries once, a mask where there are named ones.
    fn is_valid(&self) -> bool {
        let count = |tag: u16| self.0.iter().filter(|entry| entry.tag == tag).count();
        let in_order = self.0.is_sorted_by_key(|entry| entry.tag);
        let named = count(USER) + count(GROUP);
        let known = [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER];
        in_order
            && self
                .0
                .iter()
                .all(|entry| known.contains(&entry.tag) && entry.permissions <= 7)
            && !self
                .0
                .iter()
                .any(|entry| matches!(entry.tag, USER | GROUP) && entry.id == NO_ID)
            && [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|tag| count(*tag) == 1)
            && count(MASK) <= 1
            && (named == 0 || count(MASK) == 1)
    }
}

impl Entry {
    fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let [t0, t1, p0, p1, id @ ..] = *bytes;
        let tag = u16::from_le_bytes([t0, t1]);
        let id = if matches!(tag, USER | GROUP) {
            u32::from_le_bytes(id)
        } else {
            NO_ID
        };
        Self {
            tag,
            permissions: u16::from_le_bytes([p0, p1]),
            id,
        }
    }
}

fn bits_of(mode: u32) -> u16 {
    u16::try_from(mode & 7).expect("mode & 7 fits 16 bits")
}
