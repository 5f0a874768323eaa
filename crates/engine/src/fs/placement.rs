//! Where an inode's blocks go: its policy, and draining a member.

use super::members::undrained;
use super::{Asking, Error, Fs, Inode};

use crate::log::Effect;
use crate::pool::PoolError;
use crate::{BLOCK_BYTES, Clock, MemberId, Memory, NodeId};
use homenode_shared::RUN_BLOCKS;
use std::cell::Cell;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Placement policy of an inode, in one word so that a write can look at it without a lock.
#[derive(Debug, Default)]
pub(super) struct Policy(AtomicU32);

/// Where new blocks of an inode go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// On the asking node.
    #[default]
    Local,
    /// On every member in turn, 2 MiB of the file at a time.
    Interleave,
    /// On that node.
    Node(NodeId),
}

impl Policy {
    pub(super) fn load(&self) -> Option<Placement> {
        Placement::from_word(self.0.load(Ordering::Relaxed)).expect("only words of placements are stored in this field")
    }

    pub(super) fn store(&self, placement: Option<Placement>) {
        self.0.store(Placement::to_word(placement), Ordering::Relaxed);
    }
}

impl Placement {
    const UNSET: u32 = 0;
    const LOCAL: u32 = 1;
    const INTERLEAVE: u32 = 2;
    const NODES: u32 = 3;

    /// The word that stands for a placement, or for none; in memory and in the log.
    pub(crate) fn to_word(placement: Option<Self>) -> u32 {
        match placement {
            None => Self::UNSET,
            Some(Self::Local) => Self::LOCAL,
            Some(Self::Interleave) => Self::INTERLEAVE,
            Some(Self::Node(node)) => Self::NODES + u32::from(node.0),
        }
    }

    /// The placement of a word.
    ///
    /// # Errors
    /// The word, when it stands for nothing.
    pub(crate) fn from_word(word: u32) -> std::result::Result<Option<Self>, u32> {
        Ok(match word {
            Self::UNSET => None,
            Self::LOCAL => Some(Self::Local),
            Self::INTERLEAVE => Some(Self::Interleave),
            node => Some(Self::Node(NodeId(u16::try_from(node - Self::NODES).map_err(|_| word)?))),
        })
    }
}

/// `local`, `interleave` or `node:N`, as in `user.homenode.policy`.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Interleave => f.write_str("interleave"),
            Self::Node(node) => write!(f, "node:{}", node.0),
        }
    }
}

/// Text that is no placement policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no policy: write local, interleave or node:N")]
pub struct UnknownPlacement(String);

impl FromStr for Placement {
    type Err = UnknownPlacement;

    fn from_str(text: &str) -> std::result::Result<Self, UnknownPlacement> {
        let unknown = || UnknownPlacement(text.to_owned());
        match text {
            "local" => Ok(Self::Local),
            "interleave" => Ok(Self::Interleave),
            _ => {
                let number = text.strip_prefix("node:").ok_or_else(unknown)?;
                number
                    .parse()
                    .map(|node| Self::Node(NodeId(node)))
                    .map_err(|_| unknown())
            }
        }
    }
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Which node's members a first write at `file_block` asks for.
    pub(super) fn node_for(&self, inode: &Inode, file_block: u64, asking: &Asking<'_>) -> NodeId {
        match inode.policy.load() {
            None | Some(Placement::Local) => (asking.node)(),
            Some(Placement::Node(node)) => node,
            // The inode's number staggers small files.
            Some(Placement::Interleave) => self.pool.nth_home(file_block / RUN_BLOCKS + inode.ino.0),
        }
    }

    /// Whether pages of the inode go to the nodes that write them: neither to a given one, nor to all in turns.
    pub fn is_local(&self, inode: &Inode) -> bool {
        inode.policy.load().unwrap_or_default() == Placement::Local
    }

    /// Moves everything off `member`, which takes no new blocks from then on; gives the bytes of files moved. `progress` hears bytes
    /// moved, and all to move. In a durable pool what was moved is so after a crash as well, and the member is in service again when the pool
    /// is opened anew.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`] when the other members have no room, [`PoolError::Unowned`] when no file has what is left,
    /// [`PoolError::Unread`] when blocks cannot be read, behind moving all others; [`PoolError::Pinned`] when the kernel does not move pages of files,
    /// [`PoolError::Unsettled`] when blocks of another member cannot be written, [`PoolError::Log`] when the log cannot be; the member is
    /// in service again then, with what is left on it.
    pub fn drain(&self, member: MemberId, progress: &mut dyn FnMut(u64, u64)) -> std::result::Result<u64, PoolError> {
        let (mut moved, mut idle_passes, mut least) = (0, 0, u64::MAX);
        // What waits to be free needs no room elsewhere. What cannot be written where it lies is moved.
        match self.move_log(member) {
            Ok(()) | Err(PoolError::Io(_)) => {}
            Err(error) => return Err(error),
        }
        loop {
            let left = self.pool.start_drain(member)?;
            if left == 0 {
                moved = self.drain_kernel_files(member, moved, progress).inspect_err(|_| {
                    self.pool.cancel_drain(member);
                    self.steer_files(true);
                })?;
                // Room that was taken back for the move, and is not needed.
                self.pool.lend_all();
                return Ok(moved);
            }
            if idle_passes == IDLE_PASSES_MAX {
                self.pool.cancel_drain(member);
                return Err(PoolError::Unowned(member, left));
            }
            let before = moved;
            let mut unread = None;
            moved = self.drain_files(member, moved, left, progress, &mut unread)?;
            self.move_log(member).map_err(|error| {
                self.pool.cancel_drain(member);
                match error {
                    PoolError::Io(_) if self.check_writable().is_err() => PoolError::Log,
                    // Nothing that is on the member: that was moved, or is counted as unread.
                    PoolError::Io(_) => PoolError::Unsettled(member),
                    error => error,
                }
            })?;
            if let Some((blocks, ino)) = unread {
                self.pool.cancel_drain(member);
                return Err(PoolError::Unread(member, blocks, ino));
            }
            // An eviction under way gives blocks back by and by.
            if moved == before && left >= least {
                idle_passes += 1;
                match idle_passes {
                    ..=IDLE_PASSES_YIELDING => std::thread::yield_now(),
                    _ => std::thread::sleep(IDLE_PAUSE),
                }
            } else {
                idle_passes = 0;
            }
            least = left.min(least);
        }
    }

    /// Moves what each file has on `member` now. Blocks that cannot be read stay: `unread` is how many, and the number of the first file that has some.
    fn drain_files(
        &self,
        member: MemberId,
        mut moved: u64,
        left: u64,
        progress: &mut dyn FnMut(u64, u64),
        unread: &mut Option<(u64, u64)>,
    ) -> std::result::Result<u64, PoolError> {
        let node = self.pool.home(member);
        self.table.try_for_each(|inode| {
            let Some(file) = inode.blocks() else { return Ok(()) };
            let unread_here = Cell::new(0);
            let relocate = || {
                let mut unread = 0;
                let moved = self.relocate(
                    inode,
                    file,
                    &mut |_, _| {},
                    &mut |block| block.member() == member,
                    &mut |want| self.pool.take_near(node, want).ok_or(Error::NoSpace),
                    Some(&mut unread),
                );
                unread_here.set(unread);
                moved
            };
            let result = if self.is_durable() {
                let slot = self.slots.claim().ok_or(Error::Busy);
                slot.and_then(|slot| self.with_freed((&slot, true), Effect::Adds, 0, relocate))
            } else {
                relocate()
            };
            match result {
                Ok(bytes) => moved += bytes,
                Err(error) => {
                    self.pool.cancel_drain(member);
                    return Err(undrained(member, error));
                }
            }
            if unread_here.get() > 0 {
                unread.get_or_insert((0, inode.ino.0)).0 += unread_here.get();
            }
            progress(moved, moved.max(left * BLOCK_BYTES as u64));
            Ok(())
        })?;
        Ok(moved)
    }
}

/// Passes over all files that find nothing to move, after which a drain gives up.
///
/// A writer that took blocks before the drain is inside a file's gate, and the pass waits for it there. So only an eviction,
/// whose file is in no table any more, and a collapse that gives its old map back can hold blocks over a pass. They need the processor
/// and nothing else: the first passes offer theirs, the others leave two seconds in all, as the thread may be of little weight. Passes count only
/// while nothing is given back.
const IDLE_PASSES_MAX: u32 = 500;
const IDLE_PASSES_YIELDING: u32 = 100;
const IDLE_PAUSE: Duration = Duration::from_millis(5);

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::fs::NewInode;
    use crate::log::{LogOptions, MemberRecord, PoolName};
    use crate::pool::{Machine, MemberKind};
    use crate::{Block, CpuId, MemoryError, Starved};

    pub(crate) struct NoBytes;

    impl Memory for NoBytes {
        fn load(&self, _from: Block, _offset: usize, _to: &mut [u8]) -> std::result::Result<(), MemoryError> {
            Ok(())
        }
        fn store(&self, _to: Block, _offset: usize, _from: &[u8]) -> std::result::Result<(), MemoryError> {
            Ok(())
        }
        fn zero(&self, _at: Block, _offset: usize, _bytes: usize) -> std::result::Result<(), MemoryError> {
            Ok(())
        }
        fn copy(&self, _from: Block, _to: Block, _blocks: u64) -> std::result::Result<(), MemoryError> {
            Ok(())
        }
        fn populate(&self, _member: MemberId, _first: u64, _blocks: u64) -> std::result::Result<(), Starved> {
            Ok(())
        }
    }

    pub(crate) struct NoTime;

    impl Clock for NoTime {
        fn now_ns(&self) -> i64 {
            0
        }
    }

    /// A machine of this node alone.
    pub(crate) fn machine(node: NodeId) -> Machine {
        Machine {
            cpu_nodes: vec![node],
            nodes: vec![node],
            latency: vec![vec![10]],
            files_max: 10,
        }
    }

    pub(crate) const ROOT: NewInode = NewInode::of_root(0o755);

    /// A new durable pool of one member on that machine.
    pub(crate) fn durable_pool(segment_blocks: u32) -> Fs<NoBytes, NoTime> {
        let options = LogOptions {
            uuid: 1,
            name: PoolName::default(),
            nonce: 1,
            witness: 1,
            history: 1,
            segment_blocks,
            metadata_bytes_max: u64::MAX,
            slack_bytes: 1 << 20,
        };
        let member = MemberRecord {
            id: MemberId(0),
            kind: MemberKind::File,
            blocks: 4096,
        };
        let node = NodeId(0);
        Fs::format(&machine(node), NoBytes, NoTime, ROOT, options, &[(member, node)]).expect("it has room")
    }

    /// A filesystem without members on such a machine.
    fn filesystem(node: NodeId) -> Fs<NoBytes, NoTime> {
        Fs::new(&machine(node), NoBytes, NoTime, ROOT)
    }

    #[test]
    fn without_members_in_service_blocks_are_requested_on_an_existing_node() {
        let fs = filesystem(NodeId(3));
        let slot = fs.slots().claim().expect("slots are free");
        let asking = Asking {
            slot: &slot,
            cpu: CpuId(0),
            node: &|| NodeId(3),
            user: None,
            waits: true,
        };
        let root = fs.root();
        root.policy.store(Some(Placement::Interleave));
        assert_eq!(fs.node_for(&root, 5, &asking), NodeId(3));
    }

    #[test]
    fn a_drain_fails_if_the_remaining_blocks_belong_to_no_file() {
        let fs = filesystem(NodeId(0));
        let member = fs
            .pool
            .add(MemberKind::Dram, NodeId(0), 2048)
            .expect("the pool may have a member");
        fs.pool
            .add(MemberKind::Dram, NodeId(0), 2048)
            .expect("the pool may have two members");
        let taken = fs
            .pool
            .take(CpuId(0), NodeId(0), 3, 0, false)
            .expect("the pool has room");
        let member = if taken.first().member() == member {
            member
        } else {
            taken.first().member()
        };
        assert_eq!(fs.drain(member, &mut |_, _| {}), Err(PoolError::Unowned(member, 3)));
        drop(taken);
        assert_eq!(fs.drain(member, &mut |_, _| {}), Ok(0));
        fs.check_invariants();
    }
}
