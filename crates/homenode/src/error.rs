//! Errors at the library's surface. Every error names what was done and to what; Linux's number is kept.

use crate::{MemberId, NodeId, SizeError};
use homenode_engine::fs::{Error as FsError, VolumeError};
use homenode_engine::pool::PoolError;
use std::io;
use std::path::{Path, PathBuf};

/// An error of a pool, a path or a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on a path.
    #[error("cannot {operation} {}: {source}", path.display())]
    Path {
        /// Operation that failed: a verb with its object, such as "open" or "read the link".
        operation: &'static str,
        /// The path as the caller gave it.
        path: PathBuf,
        /// Why not.
        source: PathProblem,
    },
    /// An operation on an open file.
    #[error("cannot {operation} the open file (inode {inode}): {source}")]
    File {
        /// Operation that failed.
        operation: &'static str,
        /// The file's inode number.
        inode: u64,
        /// Why not.
        source: FsError,
    },
    /// A file opened without this access.
    #[error("cannot {operation} the open file (inode {inode}): it was not opened for that")]
    NotOpenedFor {
        /// Operation that the file was not opened for.
        operation: &'static str,
        /// The file's inode number.
        inode: u64,
    },
    /// An operation on a volume.
    #[error("cannot {operation} the volume {}: {source}", name.escape_debug())]
    Volume {
        /// Operation that failed.
        operation: &'static str,
        /// The volume's name.
        name: Box<str>,
        /// Why not.
        source: VolumeError,
    },
    /// A block device whose queues would leave too few places for other threads of the pool.
    #[error("cannot attach the volume {}: queues of the devices that are attached, one for each CPU, take most of the pool's places for threads: detach one, or use another pool", .0.escape_debug())]
    TooManyDevices(Box<str>),
    /// A volume cannot be made a block device of the kernel, or did not end well as one.
    #[error("cannot {operation} the volume {}: {source}", name.escape_debug())]
    Export {
        /// Operation that failed.
        operation: &'static str,
        /// The volume's name.
        name: Box<str>,
        /// Why not.
        source: Box<homenode_linux::ublk::Error>,
    },
    /// A volume's requests could not be recorded, or not all of them. The volume itself has not suffered.
    #[error("the trace of the volume {} is incomplete: {source}", name.escape_debug())]
    Trace {
        /// The volume's name.
        name: Box<str>,
        /// Error of writing the trace.
        source: io::Error,
    },
    /// A block device that a killed process left cannot be removed.
    #[error("cannot remove a block device that a killed server left: {0}")]
    Leftover(#[source] Box<homenode_linux::ublk::Error>),
    /// A time between two commits that cannot be.
    #[error("{} s between two commits: give 1 to 300 s", .0.as_secs_f64())]
    CommitPeriod(std::time::Duration),
    /// A time between two commits for a pool of memory.
    #[error("a pool of memory commits nothing: leave the time between two commits out")]
    CommitOfMemory,
    /// A size that does not parse.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The machine's nodes cannot be read.
    #[error(transparent)]
    Topology(#[from] homenode_linux::topology::Error),
    /// A node that this machine has not.
    #[error(
        "this machine has no {node} with memory that this process may take (cpuset), only {}",
        list(known)
    )]
    UnknownNode {
        /// The node asked for.
        node: NodeId,
        /// The nodes with memory.
        known: Vec<NodeId>,
    },
    /// A kernel whose pages are not the pool's blocks.
    #[error("this kernel's pages have {0} bytes: Homenode needs a kernel with pages of 4096 bytes")]
    PageSize(usize),
    /// A pool without any node.
    #[error("a pool needs at least one node with memory")]
    NoNodes,
    /// Less than a member can be.
    #[error(
        "a member of {wanted_bytes} B on {node} is too small: give at least {} MiB",
        crate::MEMBER_BYTES_MIN >> 20
    )]
    TooSmall {
        /// The node.
        node: NodeId,
        /// Size that the member would have.
        wanted_bytes: u64,
    },
    /// The memory of a member cannot be had.
    #[error(transparent)]
    Memory(#[from] homenode_linux::memory::Error),
    /// The pool has no member on that node.
    #[error("the pool has no member on {node}, only on {}", list(members_on))]
    NoMemberOn {
        /// The node asked for.
        node: NodeId,
        /// The nodes the pool has members on.
        members_on: Vec<NodeId>,
    },
    /// Two files of different pools.
    #[error("cannot copy to the open file (inode {inode}): the other file is in another pool")]
    OtherPool {
        /// The file written to.
        inode: u64,
    },
    /// No memory free for even the first blocks.
    #[error("{node} has no free memory for the first blocks of {member}: free some there, or use other nodes")]
    Starved {
        /// The node.
        node: NodeId,
        /// Its member.
        member: MemberId,
    },
    /// The pool refused to add, drain or remove a member.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A member's file of a durable pool.
    #[error(transparent)]
    MemberFile(#[from] homenode_linux::memory::MemberFileError),
    /// Room on the disks of files that are to be members.
    #[error(transparent)]
    Room(#[from] homenode_linux::memory::RoomError),
    /// Memory for a durable pool.
    #[error(
        "the pool is durable, and its members are files: `homenode pool add DIR PATH` adds one, memory of a node cannot be added"
    )]
    DurablePool,
    /// A file for a pool of memory.
    #[error(
        "the pool is a pool of memory: `homenode pool add DIR --node N --size SIZE` adds some, a file cannot be added"
    )]
    VolatilePool,
    /// A disk for a pool that has none.
    #[error(
        "{} cannot be added as a disk, because the pool has no cache for disks: add a file (without --direct), or create a new pool with a disk",
        .0.display()
    )]
    NoCache(PathBuf),
    /// The memory of a cache cannot be had.
    #[error("{node} has less than {} MiB of free memory for the cache: give a smaller --cache, or free memory", bytes >> 20)]
    CacheRoom {
        /// The node.
        node: NodeId,
        /// Bytes that it was to give.
        bytes: u64,
    },
    /// The memory of a disk's index in the cache cannot be had.
    #[error(
        "{} needs {} MiB of memory for its index in the cache, a thousandth of its size, and this process cannot have that: make the pool of a smaller disk or partition, or on a machine with more memory",
        path.display(),
        bytes >> 20
    )]
    IndexRoom {
        /// The disk.
        path: PathBuf,
        /// Bytes of the index.
        bytes: u64,
    },
    /// A cache is too small to be one, or larger than the memory.
    #[error(
        "a cache cannot have {bytes} B here: give --cache from {} MiB to the size of the memory, {} MiB",
        least_bytes >> 20,
        most_bytes >> 20
    )]
    CacheSize {
        /// Bytes that it was to have.
        bytes: u64,
        /// Fewest that it can have.
        least_bytes: u64,
        /// Memory of all nodes.
        most_bytes: u64,
    },
    /// A durable pool without members.
    #[error("a durable pool needs at least one file")]
    NoMembers,
    /// A file that is larger than the member in it.
    #[error("{} is larger than its member: set its size as it was, {bytes} B (`truncate -s {bytes}` of a file)", path.display())]
    GrownFile {
        /// The file.
        path: PathBuf,
        /// The size it had.
        bytes: u64,
    },
    /// A file that is smaller than it must be.
    #[error(
        "{} has {bytes} B and needs {least_bytes} B: give a larger one (`truncate -s` sets a file's size); bytes cut off a member are lost",
        path.display()
    )]
    SmallFile {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The size it needs.
        least_bytes: u64,
    },
    /// A file of another pool than the others.
    #[error("{} is a member of pool {uuid:032x}, and the others are of pool {pool:032x}", path.display())]
    OtherPoolsMember {
        /// The file.
        path: PathBuf,
        /// Its pool.
        uuid: u128,
        /// The others' pool.
        pool: u128,
    },
    /// Members that no file was given for.
    #[error("{} missing: give the files of all its members", are(.0))]
    MissingMembers(Vec<MemberId>),
    /// The pool's log lies on a member that is missing.
    #[error("the pool cannot be read without {0}, which is missing: its log lies on that member")]
    LogMissing(MemberId),
    /// A file that was given twice.
    #[error("{} was given twice", .0.display())]
    GivenTwice(PathBuf),
    /// Two files that are the same member.
    #[error("{} and {} are both {member} of the pool: leave the copy out", paths[0].display(), paths[1].display())]
    SameMember {
        /// The member.
        member: MemberId,
        /// The files.
        paths: [PathBuf; 2],
    },
    /// Members of two copies of a pool.
    #[error("{} and {} are members of two copies of the pool that were used apart: give all members of one of them", .0[0].display(), .0[1].display())]
    Apart([PathBuf; 2]),
    /// A file that is an earlier state of a member.
    #[error("{} holds an older state than the other members, such as a restored copy: give the file that the pool used last", .0.display())]
    OldMember(PathBuf),
    /// A durable pool cannot be made or opened.
    #[error(transparent)]
    Open(homenode_engine::fs::OpenError),
    /// Bytes that were written cannot be made durable.
    #[error("cannot make the pool durable: {0}")]
    Sync(#[source] FsError),
    /// There are no random numbers.
    #[error("cannot read /dev/urandom: {0}")]
    Random(#[source] io::Error),
    /// A member that may still hold data, or get more.
    #[error("{0} is still in use: drain it first")]
    NotDrained(MemberId),
    /// A thread of the pool could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The pool cannot be mounted, served or unmounted.
    #[error(transparent)]
    Mount(#[from] homenode_fuse::Error),
}

/// Why an operation on a path failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathProblem {
    /// Error of the filesystem.
    #[error(transparent)]
    Filesystem(#[from] FsError),
    /// More than 40 symbolic links on the way.
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    /// The root, `.` or `..`, which cannot be given another name.
    #[error("it is the root, `.` or `..`")]
    Root,
}

const EIO: i32 = 5;
const EBADF: i32 = 9;
const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EXDEV: i32 = 18;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const ENOSYS: i32 = 38;
const EROFS: i32 = 30;
const ELOOP: i32 = 40;

impl PathProblem {
    /// Linux's error number.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::Filesystem(error) => error.errno(),
            Self::SymlinkLoop => ELOOP,
            Self::Root => EBUSY,
        }
    }
}

impl Error {
    /// Linux's error number, the one a system call would have set.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Path { source, .. } => source.errno(),
            Self::File { source, .. } => source.errno(),
            Self::Volume { source, .. } => source.errno(),
            Self::Export { source, .. } | Self::Leftover(source) => source.errno(),
            Self::NotOpenedFor { .. } => EBADF,
            Self::UnknownNode { .. } | Self::NoMemberOn { .. } | Self::Topology(_) => ENODEV,
            Self::OtherPool { .. } => EXDEV,
            Self::PageSize(_) => ENOSYS,
            Self::Size(_) | Self::NoNodes | Self::TooSmall { .. } | Self::CacheSize { .. } => EINVAL,
            Self::Memory(_) | Self::Starved { .. } | Self::CacheRoom { .. } | Self::IndexRoom { .. } => ENOMEM,
            Self::NotDrained(_) | Self::TooManyDevices(_) => EBUSY,
            Self::DurablePool
            | Self::VolatilePool
            | Self::GrownFile { .. }
            | Self::CommitPeriod(_)
            | Self::CommitOfMemory
            | Self::MemberFile(_)
            | Self::NoCache(_)
            | Self::NoMembers
            | Self::SmallFile { .. }
            | Self::OtherPoolsMember { .. }
            | Self::GivenTwice(_)
            | Self::SameMember { .. }
            | Self::Apart(_)
            | Self::OldMember(_) => EINVAL,
            Self::MissingMembers(_) | Self::LogMissing(_) => ENODEV,
            Self::Open(_) | Self::Random(_) => EIO,
            Self::Sync(source) => source.errno(),
            Self::Pool(
                PoolError::NotEmpty(..)
                | PoolError::Last(_)
                | PoolError::Unowned(..)
                | PoolError::Pinned(..)
                | PoolError::Busy,
            ) => EBUSY,
            Self::Pool(
                PoolError::Io(_) | PoolError::Unsettled(_) | PoolError::Unread(..) | PoolError::Unwritable(_),
            ) => EIO,
            Self::Pool(PoolError::Log | PoolError::ReadOnly) => EROFS,
            Self::Pool(PoolError::NoSpace(_)) | Self::Room(_) => ENOSPC,
            Self::Pool(_) => EINVAL,
            Self::Thread(source) | Self::Trace { source, .. } => source.raw_os_error().unwrap_or(EINVAL),
            Self::Mount(source) => source.errno().unwrap_or(EINVAL),
        }
    }
}

impl Error {
    #[cold]
    pub(crate) fn path(operation: &'static str, path: &Path, source: PathProblem) -> Self {
        Self::Path {
            operation,
            path: path.to_owned(),
            source,
        }
    }
}

fn are(members: &[MemberId]) -> String {
    let all: Vec<_> = members.iter().map(ToString::to_string).collect();
    format!("{} {}", all.join(", "), if all.len() == 1 { "is" } else { "are" })
}

fn list(nodes: &[NodeId]) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        // The kind follows from Linux's number, the text stays ours.
        let kind = Self::from_raw_os_error(error.errno()).kind();
        Self::new(kind, error)
    }
}
