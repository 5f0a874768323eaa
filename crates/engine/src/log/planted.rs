//! Faults that a test plants in this thread's pools, to show that the crash harness finds each. Without the feature there are none.

/// A fault: a rule of the log that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// fsync does not make bytes durable.
    BytesNotPersisted,
    /// The record that settles bytes is written before they are durable.
    RecordBeforeBytes,
    /// fsync does not make the log durable.
    LogNotForced,
    /// Blocks are given out again as soon as they are freed.
    EarlyReuse,
    /// A group counts though its checksum is wrong.
    TornGroup,
    /// A snapshot takes the log's place before all that it shows is durable.
    EarlySnapshot,
    /// The superblock leads to a snapshot that is not durable.
    SuperblockFirst,
    /// Both copies of the superblock are written before one is durable.
    BothSuperblocks,
    /// A file's size counts before its bytes do.
    EarlySize,
    /// A file takes another's place before its bytes are durable.
    EarlyRename,
    /// Groups say that the one before them is durable, whether it is or not.
    ClaimedEarly,
    /// Files that groups need are settled once, whatever is appended meanwhile.
    NeedsMetOnce,
    /// Links are as they were when a file was made, not as its names say.
    LinksCopied,
    /// Changes that were given up come back when the pool is opened again.
    DroppedComeBack,
    /// Bytes of the log outlive newer ones that are durable where they lie.
    StaleBytes,
    /// Blocks move within a file, and a crash undoes it after bytes were overwritten.
    ShiftUndone,
    /// The pool's superblocks list a new member before its own superblocks are durable.
    ListedFirst,
    /// A member's superblocks are wiped before the pool's do not list it any more.
    WipedFirst,
    /// Frames are clean though the disk did not take them.
    FailedIsClean,
    /// Writes to a disk count as durable without a flush.
    NotFlushed,
    /// A dirty frame is given to another block.
    DirtyEvicted,
    /// A block of the log's end is left to another one before it was written.
    TailDropped,
    /// A sync does not wait for what others are writing.
    OthersNotAwaited,
    /// A sync settles less than what its bytes were told with.
    EndBeforeTaking,
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Planted>> = const { std::cell::Cell::new(None) };
}

/// Plants a fault, or none, in what this thread does from now on.
#[cfg(feature = "planted")]
pub fn plant(fault: Option<Planted>) {
    PLANTED.set(fault);
}

/// Whether a fault is planted.
#[inline(always)]
pub(crate) fn is_planted(fault: Planted) -> bool {
    #[cfg(feature = "planted")]
    return PLANTED.get() == Some(fault);
    #[cfg(not(feature = "planted"))]
    {
        let _ = fault;
        false
    }
}
