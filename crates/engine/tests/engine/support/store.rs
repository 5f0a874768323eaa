//! A store of backing files that is the slow model itself, with a kernel that writes to them unasked.
//!
//! A file that is discarded keeps its blocks until the kernel has let go of it, as a file without a name does.

use crate::file_model::model::{File, Model};
use crate::support::BLOCK;
use homenode_engine::NodeId;
use homenode_engine::backing::{BackingFile, BackingStatus, BackingStore, Registration};
use homenode_engine::fs::{Error, Placement, Result, Whence, fallocate_mode};
use homenode_shared::Words;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time at which the kernel changes a file by allocating.
pub(crate) const ALLOCATED_NS: i64 = 77;

const PAUSE: Duration = Duration::from_millis(1);
/// Longest wait for a thread that is to wait.
const HELD_PATIENCE: Duration = Duration::from_secs(10);

/// The kernel, and the nodes that have memory.
#[derive(Clone, Debug)]
pub(crate) struct TestStore(Arc<Mutex<Kernel>>, Vec<NodeId>);

#[derive(Default)]
struct Kernel {
    model: Model,
    files: Vec<State>,
    /// Nodes that take no page that is moved.
    full_nodes: Vec<NodeId>,
    /// Writers put pages back that are moved.
    puts_back: bool,
    has_leaving: bool,
    /// Blocks in use besides those of the files here.
    taken_besides: u64,
    refuses_allocating: bool,
    /// Allocating waits for a writer.
    holds_allocating: bool,
    /// Whether threads that set a size wait.
    holds_cutting: bool,
    /// Blocks of ranges from which on asking for their holes waits.
    holds_asking: Option<u64>,
    waiting: usize,
    /// Error of all that frees, allocates or asks for holes.
    failure: Option<Error>,
    /// Ranges of which the holes were asked for.
    asked: usize,
    /// Blocks of the ranges of each question.
    questions: Vec<u64>,
    /// Searches for the next block.
    searches: usize,
}

/// Placement of a file, and the nodes that it was told.
pub(crate) type Wish = (Placement, Option<Vec<NodeId>>);

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    times: BTreeMap<&'static str, i64>,
    placement: Option<Wish>,
    /// Node on which all of it lies.
    node: u16,
    collapsed: Vec<Range<u64>>,
    has_writers: bool,
    is_discarded: bool,
    registrations: u32,
}

impl TestStore {
    pub(crate) fn on_nodes(nodes: u16) -> Self {
        Self(Arc::default(), (0..nodes).map(NodeId).collect())
    }

    /// Ranges of which the holes were asked for, since this was asked last.
    pub(crate) fn asked(&self) -> usize {
        std::mem::take(&mut self.0.lock().asked)
    }

    /// Blocks of ranges of which the holes were asked for, since this was asked last.
    pub(crate) fn asked_blocks(&self) -> u64 {
        self.questions().iter().sum()
    }

    /// Blocks of each question for holes, since this was asked last.
    pub(crate) fn questions(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().questions)
    }

    /// Searches for the next block that is taken.
    pub(crate) fn searches(&self) -> usize {
        self.0.lock().searches
    }

    /// Writes as a program does whose writes are passed through.
    pub(crate) fn write_unasked(&self, file: usize, offset: u64, data: &[u8], now_ns: i64) -> Result<usize> {
        let mut kernel = self.0.lock();
        let times = &mut kernel.files[file].times;
        times.insert("mtime", now_ns);
        times.insert("ctime", now_ns);
        kernel.model.write(file, offset, data)
    }

    /// Blocks that the files may take.
    pub(crate) fn limit(&self) -> u64 {
        self.0.lock().model.capacity
    }

    /// Sets whether blocks of discarded files are in use still.
    pub(crate) fn set_leaving(&self, has_leaving: bool) {
        self.0.lock().has_leaving = has_leaving;
    }

    /// Sets how many blocks are in use besides those of the files here.
    pub(crate) fn take_besides(&self, blocks: u64) {
        self.0.lock().taken_besides = blocks;
    }

    /// Sets whether there is no room when a range is to be allocated.
    pub(crate) fn refuse_allocating(&self, refuses: bool) {
        self.0.lock().refuses_allocating = refuses;
    }

    /// Sets whether allocating waits, as for a writer of the file whose memory does not come.
    pub(crate) fn hold_allocating(&self, holds: bool) {
        self.0.lock().holds_allocating = holds;
    }

    /// Sets whether threads wait that set a size.
    pub(crate) fn hold_cutting(&self, holds: bool) {
        self.0.lock().holds_cutting = holds;
    }

    /// Sets from how many blocks on a thread waits that asks for holes of so many.
    pub(crate) fn hold_asking(&self, blocks: Option<u64>) {
        self.0.lock().holds_asking = blocks;
    }

    /// Waits until a thread waits as those two say. Lets it go on and panics if there is none for [`HELD_PATIENCE`].
    pub(crate) fn wait_for_held(&self) {
        let start = Instant::now();
        while self.0.lock().waiting == 0 {
            if start.elapsed() >= HELD_PATIENCE {
                self.hold_allocating(false);
                self.hold_asking(None);
                self.hold_cutting(false);
                panic!("no thread waits");
            }
            thread::sleep(PAUSE);
        }
    }

    fn wait_while(&self, is_held: impl Fn(&Kernel) -> bool) {
        let mut kernel = self.0.lock();
        while is_held(&kernel) {
            kernel.waiting += 1;
            MutexGuard::unlocked(&mut kernel, || thread::sleep(PAUSE));
            kernel.waiting -= 1;
        }
    }

    /// Sets the error of all that frees, allocates or asks for holes.
    pub(crate) fn fail(&self, failure: Option<Error>) {
        self.0.lock().failure = failure;
    }

    /// Sets whether a process has the file open or mapped for writing.
    pub(crate) fn set_writers(&self, file: usize, has_writers: bool) {
        self.0.lock().files[file].has_writers = has_writers;
    }

    pub(crate) fn placement(&self, file: usize) -> Option<Wish> {
        self.0.lock().files[file].placement.clone()
    }

    /// Ranges of a file that were to be put in huge pages since the last call.
    pub(crate) fn collapsed(&self, file: usize) -> Vec<Range<u64>> {
        std::mem::take(&mut self.0.lock().files[file].collapsed)
    }

    /// Puts all of a file on a node, as writers there do.
    pub(crate) fn put_on(&self, file: usize, node: u16) {
        self.0.lock().files[file].node = node;
    }

    /// Sets whether what is moved off a node is there again at once.
    pub(crate) fn set_putting_back(&self, puts_back: bool) {
        self.0.lock().puts_back = puts_back;
    }

    pub(crate) fn set_full(&self, nodes: &[NodeId]) {
        self.0.lock().full_nodes = nodes.to_vec();
    }

    /// Whether the engine has given the file up, and registrations of it that are not dropped.
    pub(crate) fn state(&self, file: usize) -> (bool, u32) {
        let kernel = self.0.lock();
        (kernel.files[file].is_discarded, kernel.files[file].registrations)
    }

    /// A registration of a file, by its number.
    pub(crate) fn register(&self, file: usize, connection: u64) -> Box<dyn Registration> {
        self.0.lock().files[file].registrations += 1;
        let store = self.clone();
        Box::new(TestRegistration {
            store,
            file,
            connection,
        })
    }
}

#[derive(Debug)]
struct TestRegistration {
    store: TestStore,
    file: usize,
    connection: u64,
}

impl Registration for TestRegistration {
    fn id_on(&self, connection: u64) -> Option<i32> {
        (connection == self.connection).then_some(i32::try_from(self.file + 1).expect("the number is small"))
    }
}

impl Drop for TestRegistration {
    fn drop(&mut self) {
        self.store.0.lock().files[self.file].registrations -= 1;
    }
}

impl BackingStore for TestStore {
    fn create(&self) -> Result<Box<dyn BackingFile>> {
        let mut kernel = self.0.lock();
        kernel.model.files.push(File::default());
        kernel.files.push(State::default());
        let number = kernel.files.len() - 1;
        Ok(Box::new(TestFile {
            store: self.clone(),
            number,
        }))
    }

    fn used_blocks(&self) -> u64 {
        let kernel = self.0.lock();
        kernel.model.used() + kernel.taken_besides
    }

    fn has_leaving(&self) -> bool {
        self.0.lock().has_leaving
    }

    fn nodes(&self) -> &[NodeId] {
        &self.1
    }

    fn resize(&self, blocks: u64) -> Result<()> {
        let mut kernel = self.0.lock();
        if kernel.model.used() > blocks {
            return Err(Error::NoSpace);
        }
        kernel.model.capacity = blocks;
        Ok(())
    }
}

#[derive(Debug)]
struct TestFile {
    store: TestStore,
    number: usize,
}

impl TestFile {
    fn with<T>(&self, operate: impl FnOnce(&mut Kernel, usize) -> Result<T>) -> Result<T> {
        let mut kernel = self.store.0.lock();
        assert!(
            !kernel.files[self.number].is_discarded,
            "an operation on a discarded file"
        );
        operate(&mut kernel, self.number)
    }

    fn unless_failing<T>(&self, operate: impl FnOnce(&mut Kernel, usize) -> Result<T>) -> Result<T> {
        self.with(|kernel, number| kernel.failure.map_or_else(|| operate(kernel, number), Err))
    }
}

impl BackingFile for TestFile {
    fn status(&self) -> Result<BackingStatus> {
        let kernel = self.store.0.lock();
        let (file, state) = (&kernel.model.files[self.number], &kernel.files[self.number]);
        let time = |name| state.times.get(name).copied().unwrap_or(0);
        Ok(BackingStatus {
            size: file.size,
            blocks: file.blocks(),
            atime_ns: time("atime"),
            mtime_ns: time("mtime"),
            ctime_ns: time("ctime"),
        })
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        self.with(|kernel, number| {
            let bytes = kernel.model.files[number].read(offset, to.len() as u64);
            to[..bytes.len()].copy_from_slice(&bytes);
            Ok(bytes.len())
        })
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<usize> {
        self.with(|kernel, number| kernel.model.write(number, offset, from))
    }

    fn append(&self, from: &[u8]) -> Result<(u64, usize)> {
        self.with(|kernel, number| {
            let offset = kernel.model.files[number].size;
            Ok((offset, kernel.model.write(number, offset, from)?))
        })
    }

    fn set_size(&self, bytes: u64) -> Result<()> {
        self.store.wait_while(|kernel| kernel.holds_cutting);
        self.unless_failing(|kernel, number| {
            kernel.model.files[number].truncate(bytes);
            Ok(())
        })
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        let mode = fallocate_mode::KEEP_SIZE;
        self.store.wait_while(|kernel| kernel.holds_allocating);
        self.unless_failing(|kernel, number| {
            if kernel.refuses_allocating {
                return Err(Error::NoSpace);
            }
            kernel.files[number].times.insert("mtime", ALLOCATED_NS);
            kernel.model.fallocate(number, mode, offset, bytes)
        })
    }

    fn fill(&self, offset: u64, bytes: u64) -> Result<()> {
        self.unless_failing(|kernel, number| {
            assert!(offset + bytes <= kernel.model.files[number].size.next_multiple_of(BLOCK));
            kernel.model.fallocate(number, fallocate_mode::KEEP_SIZE, offset, bytes)
        })
    }

    fn punch(&self, offset: u64, bytes: u64) -> Result<()> {
        let mode = fallocate_mode::KEEP_SIZE | fallocate_mode::PUNCH_HOLE;
        self.unless_failing(|kernel, number| kernel.model.fallocate(number, mode, offset, bytes))
    }

    fn holes(&self, ranges: &[Range<u64>]) -> Result<Vec<u64>> {
        let blocks = ranges.iter().map(|range| range.end - range.start).sum::<u64>();
        self.store
            .wait_while(|kernel| kernel.holds_asking.is_some_and(|most| blocks >= most));
        self.unless_failing(|kernel, number| {
            kernel.asked += ranges.len();
            kernel.questions.push(blocks);
            let file = &kernel.model.files[number];
            let holes = |range: &Range<u64>| range.end - range.start - file.blocks_within(range);
            Ok(ranges.iter().map(holes).collect())
        })
    }

    fn seek(&self, offset: u64, whence: Whence) -> Result<u64> {
        self.with(|kernel, number| kernel.model.files[number].seek(offset, whence))
    }

    fn next_taken(&self, from: u64, end: u64) -> Result<Option<u64>> {
        const PIECE: u64 = 2 << 20;
        self.with(|kernel, number| {
            kernel.searches += 1;
            let (file, blocks) = (&kernel.model.files[number], from / BLOCK..end.div_ceil(BLOCK));
            let first = [file.placed.range(blocks.clone()).next().map(|(block, _)| *block)];
            let first = first.into_iter().chain([file.reserved.range(blocks).next().copied()]);
            Ok(first
                .flatten()
                .min()
                .map(|block| (block * BLOCK / PIECE * PIECE).max(from)))
        })
    }

    fn set_times(&self, atime_ns: Option<i64>, mtime_ns: Option<i64>) -> Result<()> {
        self.with(|kernel, number| {
            let times = &mut kernel.files[number].times;
            atime_ns.map(|ns| times.insert("atime", ns));
            mtime_ns.map(|ns| times.insert("mtime", ns));
            Ok(())
        })
    }

    fn map_part(&self, from: u64, by_node: &mut BTreeMap<NodeId, u64>) -> Result<Option<u64>> {
        // In two parts.
        let half = self.status()?.blocks * BLOCK / 2;
        let node = self.store.0.lock().files[self.number].node;
        *by_node.entry(NodeId(node)).or_default() += half;
        Ok((from == 0).then_some(half.max(1)))
    }

    fn place(&self, placement: Placement, among: Option<&[NodeId]>) -> Result<()> {
        self.with(|kernel, number| {
            kernel.files[number].placement = Some((placement, among.map(Vec::from)));
            Ok(())
        })
    }

    fn move_pages(&self, from: Option<NodeId>, to: NodeId, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        let bytes = self.status()?.blocks * BLOCK;
        progress(bytes, bytes);
        self.with(|kernel, number| {
            if kernel.full_nodes.contains(&to) {
                return Err(Error::NoSpace);
            }
            let puts_back = kernel.puts_back;
            let node = &mut kernel.files[number].node;
            let moves = from.is_none_or(|from| from.0 == *node) && *node != to.0;
            if moves && !puts_back {
                *node = to.0;
            }
            Ok(if moves { bytes } else { 0 })
        })
    }

    fn collapse(&self, bytes: Range<u64>) -> Result<()> {
        self.with(|kernel, number| {
            kernel.files[number].collapsed.push(bytes);
            Ok(())
        })
    }

    fn has_writers(&self) -> Result<bool> {
        Ok(self.store.0.lock().files[self.number].has_writers)
    }

    fn descriptor(&self) -> Result<OwnedFd> {
        Ok(std::fs::File::open("/dev/null").expect("every machine has it").into())
    }

    fn words(&self, lines: u32) -> Result<Words> {
        // The model has no file that can be mapped.
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("homenode-engine-words-{}-{number}", std::process::id()));
        let mut options = fs::OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .expect("it is new");
        fs::remove_file(path).expect("it was made");
        file.set_len(u64::from(lines) * Words::LINE_BYTES as u64)
            .expect("the disk has room");
        Ok(Words::map(file.as_fd(), lines as usize, true).expect("it can be mapped"))
    }

    fn discard(&self) {
        let mut kernel = self.store.0.lock();
        kernel.files[self.number].is_discarded = true;
        kernel.model.files[self.number] = File::default();
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        self.discard();
    }
}
