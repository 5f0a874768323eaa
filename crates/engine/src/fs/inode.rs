//! An inode: what every type has, and the kinds of bodies.

use super::attr::{DIRECTORY, REGULAR, SYMLINK, TYPE_MASK};
use super::block_file::BlockFile;
use super::directory::Directory;
use super::kernel_file::KernelFile;
use super::metadata::ROOT;
use super::open::Opens;
use super::placement::Policy;
use super::{Error, Ino, Result};
use crate::log::Attributes;
use homenode_shared::Asker;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering, fence};

/// An inode. Lives while it is linked, open or pinned.
#[derive(Debug)]
pub struct Inode {
    pub(super) ino: Ino,
    pub(super) rdev: u32,
    /// Mode, owner and policy change under the lock of `state`, in one place (`commit`); they are read without.
    pub(super) mode: AtomicU32,
    pub(super) uid: AtomicU32,
    pub(super) policy: Policy,
    /// Thread that attributes may be on their way to, which keeps them: 0 for none, [`MANY`] for more than one.
    pub(super) told: AtomicU32,
    pub(super) atime_ns: AtomicI64,
    pub(super) mtime_ns: AtomicI64,
    pub(super) ctime_ns: AtomicI64,
    pub(super) btime_ns: i64,
    pub(super) state: Mutex<State>,
    pub(super) body: Body,
}

const _: () = assert!(
    size_of::<Inode>() <= 352,
    "an empty file takes at most 512 bytes with its place in the table and the directory"
);

/// More than one thread, or one that is not known.
const MANY: u32 = u32::MAX;

/// Extended attributes by name.
pub(super) type Xattrs = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// The part of an inode that its lock guards.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) gid: u32,
    /// Bytes that its owner's account is charged with for it, its names and its extended attributes.
    pub(super) charged: u64,
    pub(super) xattrs: Option<Box<Xattrs>>,
    pub(super) links: u32,
    /// Lookups the kernel remembers.
    pub(super) pins: u64,
    pub(super) opens: Opens,
    /// Other reasons to keep it.
    pub(super) kept: u32,
    /// Nothing keeps it; its blocks are going or gone.
    pub(super) evicted: bool,
}

impl State {
    /// Lives without a name.
    pub(super) fn is_unlinked(&self) -> bool {
        self.links == 0 && self.is_held()
    }

    fn is_held(&self) -> bool {
        self.pins > 0 || self.kept > 0 || self.opens.all > 0
    }

    /// Whether nothing keeps it when so many pins and opens are taken back.
    pub(super) fn goes_without(&self, pins: u64, opens: u32) -> bool {
        self.links == 0 && self.kept == 0 && self.pins <= pins && self.opens.all <= opens && !self.evicted
    }

    /// Marks `inode`, whose state this is, as evicted if nothing keeps it. Gives its owner, and the bytes he was charged with.
    pub(super) fn evict(&mut self, inode: &Inode) -> Option<(u32, u64)> {
        let evict = self.links == 0 && !self.is_held() && !self.evicted;
        self.evicted |= evict;
        evict.then(|| (inode.uid(), std::mem::take(&mut self.charged)))
    }

    /// The value of an extended attribute that is stored.
    pub(super) fn xattr(&self, name: &[u8]) -> Option<&[u8]> {
        self.xattrs.as_ref()?.get(name).map(|value| &**value)
    }
}

/// Part of an inode that depends on its type. `super::file` carries operations on bytes over to the kinds that have some.
#[derive(Debug)]
pub(super) enum Body {
    File(BlockFile),
    /// Boxed: it is larger than all others, which would take as much.
    Kernel(Box<KernelFile>),
    /// A block device whose bytes are the pool's: its size is set by `super::volume` alone.
    Volume(BlockFile),
    Directory(Box<Directory>),
    Symlink(Box<[u8]>),
    /// Devices, fifos and sockets: the kernel does the rest.
    Special,
}

/// Rights to write that users other than the owner have. An access list's mask is the group's.
const OTHERS_WRITE: u32 = 0o022;

impl Inode {
    /// An inode without a name, an owner and permissions: they come with the first change.
    pub(super) fn new(ino: Ino, kind: u32, rdev: u32, body: Body, now_ns: i64) -> Self {
        Self {
            ino,
            rdev,
            mode: AtomicU32::new(kind),
            uid: AtomicU32::new(0),
            policy: Policy::default(),
            told: 0.into(),
            atime_ns: AtomicI64::new(now_ns),
            mtime_ns: AtomicI64::new(now_ns),
            ctime_ns: AtomicI64::new(now_ns),
            btime_ns: now_ns,
            state: Mutex::default(),
            body,
        }
    }

    /// Notes that attributes which are read from now on are told to a thread, which keeps them; 0 is one that is not known.
    pub fn note_told(&self, thread: u32) {
        let thread = if thread == 0 { MANY } else { thread };
        let told = self.told.load(Ordering::Relaxed);
        if told != thread && told != MANY {
            let none = self
                .told
                .compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed);
            none.unwrap_or_else(|_| self.told.swap(MANY, Ordering::Relaxed));
        }
        // Either the attributes that are read next are the new ones, or who changes them finds the note.
        fence(Ordering::SeqCst);
    }

    /// Whether attributes may be on their way to another thread than this, which would keep an earlier state. After a change of them. Who changes them
    /// has got the answers to its own questions.
    pub fn take_told(&self, thread: u32) -> bool {
        fence(Ordering::SeqCst);
        let told = self.told.load(Ordering::Relaxed);
        told != 0 && told != thread && self.told.swap(0, Ordering::Relaxed) != 0
    }

    /// Its number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Full st_mode.
    #[must_use]
    pub fn mode(&self) -> u32 {
        // Relaxed, here and for times: each stands alone.
        self.mode.load(Ordering::Relaxed)
    }

    /// The user who owns it.
    #[inline]
    pub fn uid(&self) -> u32 {
        // Relaxed: as the mode.
        self.uid.load(Ordering::Relaxed)
    }

    /// The relation of `user` to the inode. A user who is not known, as when stores to a mapping are written back, is its owner; but anybody where root is and others
    /// may write. Volumes are reached by root alone.
    pub(super) fn asker(&self, user: Option<u32>) -> Asker {
        match (user, self.uid()) {
            _ if self.is_volume() => Asker::Root,
            (Some(ROOT), _) => Asker::Root,
            (Some(user), owner) if user != owner => Asker::Other,
            (None, ROOT) if self.mode() & OTHERS_WRITE != 0 => Asker::Other,
            _ => Asker::Owner,
        }
    }

    /// Whether its blocks are a count of what was promised and not written, which may take long.
    #[must_use]
    pub fn has_promises(&self) -> bool {
        self.kernel_file().is_some_and(|file| !file.is_promised_nothing())
    }

    /// Its attributes, with its state locked.
    pub(super) fn attributes(&self, state: &State) -> Attributes {
        Attributes {
            mode: self.mode(),
            uid: self.uid(),
            gid: state.gid,
            rdev: self.rdev,
            placement: self.policy.load(),
        }
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.mode() & TYPE_MASK == DIRECTORY
    }

    /// Whether it is a symbolic link.
    #[must_use]
    pub fn is_symlink(&self) -> bool {
        self.mode() & TYPE_MASK == SYMLINK
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.mode() & TYPE_MASK == REGULAR
    }

    /// Whether it is a volume.
    pub(super) fn is_volume(&self) -> bool {
        matches!(self.body, Body::Volume(_))
    }

    pub(super) fn directory(&self) -> Result<&Directory> {
        match &self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Error::NotDirectory),
        }
    }

    #[inline]
    pub(super) fn touch_modified(&self, now_ns: i64) {
        // The line is written once per tick of the clock, not once per write.
        if self.mtime_ns.load(Ordering::Relaxed) != now_ns || self.ctime_ns.load(Ordering::Relaxed) != now_ns {
            self.mtime_ns.store(now_ns, Ordering::Relaxed);
            self.ctime_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    pub(super) fn touch_changed(&self, now_ns: i64) {
        self.ctime_ns.store(self.stamp(now_ns), Ordering::Relaxed);
    }

    /// A time for a change at `now_ns`, by which it shows as one: the kernel's stamps of a backing file may be finer than its clock, and so
    /// later.
    pub(super) fn stamp(&self, now_ns: i64) -> i64 {
        self.kernel_file().map_or(now_ns, |file| file.stamp(now_ns))
    }

    /// Whether a read may move the access time ([`Inode::move_access_time`]). Whether a day has passed is looked at only when `is_turn`: asking the
    /// clock costs more than a small copy.
    #[inline(always)]
    pub(super) fn is_access_due(&self, is_turn: bool) -> bool {
        is_turn || self.is_accessed_before_changed()
    }

    #[inline(always)]
    fn is_accessed_before_changed(&self) -> bool {
        let atime = self.atime_ns.load(Ordering::Relaxed);
        atime <= self.mtime_ns.load(Ordering::Relaxed) || atime <= self.ctime_ns.load(Ordering::Relaxed)
    }

    /// Moves the access time like `relatime`: if it is not newer than the last change, or a day old.
    pub(super) fn move_access_time(&self, now_ns: i64) {
        const DAY_NS: i64 = 24 * 60 * 60 * 1_000_000_000;
        let atime = self.atime_ns.load(Ordering::Relaxed);
        if self.is_accessed_before_changed() && atime != now_ns || now_ns.saturating_sub(atime) >= DAY_NS {
            self.atime_ns.store(now_ns, Ordering::Relaxed);
        }
    }
}
