//! A filesystem over every node's memory, inside your process: bytes lie on the node of the CPU that first wrote them.
//!
//! ```no_run
//! use homenode::{Pool, PoolOptions};
//! let pool = Pool::create(&PoolOptions::new().size_per_node("256M".parse()?))?;
//! let file = pool.create_file("hello")?;
//! file.write_all_at(b"near", 0)?;
//! println!("{:?}", file.map());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Pool`] is private to its process, unless it is [mounted](Pool::mount); then it must be changed through the mount only.
//! Calls are plain and synchronous: a read or a write is a copy by the calling thread. Where blocks are placed already it
//! takes no lock, allocates nothing and makes no system call (the CPU's number is an instruction, RDPID, or the C library's to
//! know). A first write takes blocks from what is set aside for its CPU, under a lock of that CPU's, and once for 2 MiB, more often
//! where little is left, from the pool, under locks that all share; it may then wait for the kernel to clear pages. [`File::copy_from`] allocates a buffer.
//!
//! Threads: any number may use a pool, its files and clones of them. Each claims one of the pool's slots on first use and
//! gives it back when it ends; where there are more threads than slots, the rest share one and wait for each other. Do not
//! call the library from a signal handler, nor after fork(2) in the child.
#![forbid(unsafe_code)]

mod asking;
pub mod blk;
mod durable;
mod error;
mod file;
mod keeper;
mod machine;
mod metadata;
mod mount;
pub mod mover;
mod namespace;
mod open;
mod options;
mod path;
mod periodic;
mod pool;
mod populate;
mod read_dir;
mod size;
mod status;
pub mod tasks;
mod volume;

pub use durable::{Checked, Found, Membership, NewFile, check, check_cache, find_members, member_of, repair};
pub use error::{Error, PathProblem};
pub use file::{Allocate, File};
pub use homenode_engine::cache::{CacheStatus, SliceStatus};
pub use homenode_engine::fs::{
    Advice, BodyKind, Error as FsError, Mended, Operation as BodyOperation, Placement, ReadAt, Remedy, StatFs,
    UnknownPlacement, VOLUME_BYTES_MAX, VolumeError, VolumeStatus,
};
pub use homenode_engine::log::{Damage, NotAName, PoolName};
pub use homenode_engine::pool::{Access, MemberKind, PoolError, Spill};
pub use homenode_engine::{BLOCK_BYTES, CpuId, MemberId, NodeId};
pub use homenode_fuse::{
    Accessed, Chosen as ChosenTransport, ChosenData, Data, Error as MountError, Kind as RequestKind,
    Options as MountOptions, Statistics as MountStatistics, Times as RequestTimes, Transport, UnknownTransport,
};
pub use homenode_linux::memory::Error as MemoryError;
pub use homenode_linux::memory::{Health, Lent};
pub use homenode_linux::topology::Error as TopologyError;
pub use homenode_linux::ublk::Error as ExportError;
pub use homenode_mapped::Attached;
pub use metadata::{FileType, Metadata};
pub use mount::Mount;
pub use open::OpenOptions;
pub use options::{MEMBER_BYTES_MIN, Owner, PoolOptions};
pub use pool::Pool;
pub use read_dir::{DirEntry, ReadDir};
pub use size::{Size, SizeError};
pub use status::{Flow, MemberState, MemberStatus, NodeStatus, Status, UserBytes};
pub use volume::{
    Claim, Export, LastingExport, Volume, VolumeDriver, VolumeQueue, clear_dead_exports, lasting_exports,
};
