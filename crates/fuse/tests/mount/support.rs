//! A pool of plain memory on a machine of two made-up nodes, mounted on a directory of its own.

use homenode_engine::backing::BackingStore;
use homenode_engine::fs::{Fs, NewInode};
use homenode_engine::log::{LogOptions, MemberRecord, PoolName};
use homenode_engine::pool::{Ahead, Machine, MemberKind};
use homenode_engine::{BLOCK_BYTES, Block, Clock, CpuId, MemberId, Memory, MemoryError, NodeId, Starved};
use homenode_fuse::wire::Opcode;
use homenode_fuse::{Data, Host, Options, Server, Transport};
use homenode_linux::tmpfs::store::TmpfsStore;
use rustix::fs::XattrFlags;
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A write of these bytes panics in the memory, as a bug in the engine might.
pub(crate) const PANIC: &[u8] = b"panic in the middle of a write";

const MEMBER_BLOCKS: u32 = 8192;
const MEMBER_BYTES: usize = MEMBER_BLOCKS as usize * BLOCK_BYTES;

/// Memory of two members, a piece for each.
pub(crate) struct TestMemory {
    members: Vec<RwLock<Vec<u8>>>,
    /// Where it becomes durable, in a durable pool.
    disk: Option<Disk>,
    /// Whether loads of [`LONG_BYTES`] and more take [`LONG_LOAD`].
    pub(crate) is_slow: AtomicBool,
    inline_bytes_max: usize,
}

/// Bytes of loads that a slow memory takes its time for.
const LONG_BYTES: usize = 128 << 10;
/// Time of such a load.
pub(crate) const LONG_LOAD: Duration = Duration::from_millis(50);

/// Longest that a disk is stuck, so that a test in which everybody waits for it fails, and does not hang.
const STUCK_MAX: Duration = Duration::from_secs(20);

/// A disk that does what the test says.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    state: Mutex<DiskState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct DiskState {
    /// Requests of so many bytes and more wait.
    pub(crate) stuck_from: Option<usize>,
    /// Errands that wait.
    pub(crate) waiting: usize,
    /// Requests fail from now on.
    pub(crate) fails: bool,
    /// Requests that were carried out.
    pub(crate) done: usize,
}

impl Disk {
    pub(crate) fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has requests of `bytes` bytes and more wait.
    pub(crate) fn stick(&self, bytes: usize) {
        self.state().stuck_from = Some(bytes);
    }

    /// Carries out what waits and what comes.
    pub(crate) fn release(&self) {
        self.state().stuck_from = None;
        self.changed.notify_all();
    }

    fn persist(&self, bytes: usize) -> Result<(), MemoryError> {
        let mut state = self.state();
        state.waiting += 1;
        let is_stuck = |state: &mut DiskState| state.stuck_from.is_some_and(|least| bytes >= least);
        let waited = self.changed.wait_timeout_while(state, STUCK_MAX, is_stuck);
        (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state.done += 1;
        if state.fails { Err(MemoryError) } else { Ok(()) }
    }
}

impl TestMemory {
    fn new(disk: Option<Disk>) -> Self {
        let members = (0..2).map(|_| RwLock::new(vec![0xDB; MEMBER_BYTES])).collect();
        let is_slow = AtomicBool::new(false);
        Self {
            members,
            disk,
            is_slow,
            inline_bytes_max: 0,
        }
    }

    pub(crate) fn disk(&self) -> &Disk {
        self.disk.as_ref().expect("the pool is durable")
    }

    fn of(&self, block: Block) -> &RwLock<Vec<u8>> {
        &self.members[usize::from(block.member().0)]
    }

    fn at(block: Block, offset: usize) -> usize {
        usize::try_from(block.index()).expect("a small pool") * BLOCK_BYTES + offset
    }
}

impl Memory for TestMemory {
    fn load(&self, from: Block, offset: usize, to: &mut [u8]) -> Result<(), MemoryError> {
        if to.len() >= LONG_BYTES && self.is_slow.load(Ordering::Relaxed) {
            std::thread::sleep(LONG_LOAD);
        }
        let bytes = self.of(from).read().unwrap_or_else(PoisonError::into_inner);
        let start = Self::at(from, offset);
        to.copy_from_slice(&bytes[start..start + to.len()]);
        Ok(())
    }

    fn store(&self, to: Block, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        assert!(!from.starts_with(PANIC), "planned panic");
        let mut bytes = self.of(to).write().unwrap_or_else(PoisonError::into_inner);
        let start = Self::at(to, offset);
        bytes[start..start + from.len()].copy_from_slice(from);
        Ok(())
    }

    fn zero(&self, at: Block, offset: usize, bytes: usize) -> Result<(), MemoryError> {
        let start = Self::at(at, offset);
        self.of(at).write().unwrap_or_else(PoisonError::into_inner)[start..start + bytes].fill(0);
        Ok(())
    }

    fn copy(&self, from: Block, to: Block, blocks: u64) -> Result<(), MemoryError> {
        let mut bytes = vec![0; usize::try_from(blocks).expect("a small pool") * BLOCK_BYTES];
        self.load(from, 0, &mut bytes)?;
        self.store(to, 0, &bytes)?;
        Ok(())
    }

    fn populate(&self, _: MemberId, _: u64, _: u64) -> Result<(), Starved> {
        Ok(())
    }

    fn persist(&self, _: Block, _: usize, bytes: usize) -> Result<(), MemoryError> {
        self.disk().persist(bytes)
    }

    fn persist_all(&self, _: MemberId) -> Result<(), MemoryError> {
        self.disk().persist(MEMBER_BYTES)
    }

    fn inline_bytes_max(&self) -> usize {
        self.inline_bytes_max
    }

    fn depopulate(&self, _: MemberId) -> bool {
        true
    }
}

pub(crate) struct TestClock;

impl Clock for TestClock {
    fn now_ns(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        i64::try_from(since.as_nanos()).expect("before 2262")
    }
}

pub(crate) struct TestHost;

impl Host for TestHost {
    fn current_cpu(&self) -> CpuId {
        homenode_linux::cpu::current_cpu()
    }

    fn possible_cpus(&self) -> usize {
        homenode_linux::cpu::possible_cpus()
    }

    fn pin_to_cpu(&self, cpu: CpuId) -> io::Result<()> {
        homenode_linux::cpu::pin_to_cpu(cpu)
    }

    fn pin_near_cpu(&self, cpu: CpuId) -> io::Result<()> {
        // The two made-up nodes take turns; any CPU will do.
        self.pin_to_cpu(cpu)
    }

    fn thread_cpu(&self, tid: u32) -> Option<CpuId> {
        homenode_linux::cpu::thread_cpu(tid)
    }

    fn backing_store(&self, bytes: u64, files_max: u64, noatime: bool) -> io::Result<Arc<dyn BackingStore>> {
        Ok(Arc::new(TmpfsStore::new(bytes, files_max, noatime)?))
    }
}

pub(crate) type TestFs = Fs<TestMemory, TestClock>;

const ROOT: NewInode = NewInode::of_root(0o755);

fn machine() -> Machine {
    Machine {
        // Even CPUs are on node 0, odd ones on node 1.
        cpu_nodes: (0..1024).map(|cpu| NodeId(cpu % 2)).collect(),
        nodes: vec![NodeId(0), NodeId(1)],
        latency: vec![vec![10, 20], vec![20, 10]],
        files_max: 1 << 20,
    }
}

/// A durable filesystem on two members of 32 MiB, whose log has all the room that it should have.
pub(crate) fn durable_filesystem() -> Arc<TestFs> {
    durable_of(MemberKind::File)
}

/// [`durable_filesystem`] on persistent memory.
pub(crate) fn persistent_filesystem() -> Arc<TestFs> {
    durable_of(MemberKind::Pmem)
}

fn durable_of(kind: MemberKind) -> Arc<TestFs> {
    let log = LogOptions {
        uuid: 1,
        name: PoolName::default(),
        nonce: 2,
        witness: 3,
        history: 4,
        segment_blocks: 64,
        slack_bytes: 16 << 20,
        metadata_bytes_max: u64::MAX,
    };
    let member = |node: u16| {
        let record = MemberRecord {
            id: MemberId(node),
            kind,
            blocks: MEMBER_BLOCKS.into(),
        };
        (record, NodeId(node))
    };
    let mut memory = TestMemory::new(Some(Disk::default()));
    if kind == MemberKind::File {
        memory.inline_bytes_max = 32 << 10;
    }
    let fs = Fs::format(&machine(), memory, TestClock, ROOT, log, &[member(0), member(1)]).expect("it fits");
    fs.tend_log(&fs.slots().claim().expect("slots are free"))
        .expect("the disk works");
    Arc::new(fs)
}

/// A filesystem with a member of 32 MiB on each of two nodes.
pub(crate) fn filesystem() -> Arc<TestFs> {
    let machine = machine();
    let fs = Fs::new(&machine, TestMemory::new(None), TestClock, ROOT);
    for node in machine.nodes {
        let member = fs
            .pool()
            .add(MemberKind::Dram, node, MEMBER_BLOCKS.into())
            .expect("two members fit");
        while fs.pool().populate_ahead(member, MEMBER_BLOCKS.into()) == Ahead::More {}
    }
    Arc::new(fs)
}

/// A mounted filesystem; taken down when dropped.
pub(crate) struct Mounted {
    pub(crate) fs: Arc<TestFs>,
    pub(crate) server: Server,
    pub(crate) dir: PathBuf,
}

impl Mounted {
    /// Requests of one operation that the kernel has sent.
    pub(crate) fn asked(&self, opcode: Opcode) -> u64 {
        let requests = self.server.statistics().requests;
        requests
            .iter()
            .find(|(of, _)| *of == opcode)
            .map_or(0, |(_, count)| *count)
    }

    /// Mounts a new filesystem, or says why it cannot.
    pub(crate) fn new() -> Option<Self> {
        Self::with(&options())
    }

    pub(crate) fn with(options: &Options) -> Option<Self> {
        Self::of(filesystem, options)
    }

    /// Mounts a filesystem that `make` makes.
    pub(crate) fn of(make: fn() -> Arc<TestFs>, options: &Options) -> Option<Self> {
        if skipped() {
            return None;
        }
        let (fs, dir) = (make(), new_dir());
        let server = Server::mount(Arc::clone(&fs), Arc::new(TestHost), &dir, options).expect("mounted");
        let asked = options.transport;
        assert!(asked == Transport::Auto || server.transport().transport == asked);
        Some(Self { fs, server, dir })
    }

    /// Whether files of the kernel hold the bytes.
    pub(crate) fn is_kernel(&self) -> bool {
        self.server.data().data == Data::Kernel
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Unmounts, waits for the threads, and checks the filesystem's books.
    pub(crate) fn finish(self) {
        let statistics = self.server.statistics();
        // Another test may be starting a process, which has copies of this one's descriptors until it executes.
        let patience = Instant::now() + Duration::from_secs(5);
        while let Err(error) = self.server.unmount(false) {
            assert!(
                error.errno() == Some(libc::EBUSY) && Instant::now() < patience,
                "no file is open: {error}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        self.server.wait().expect("threads end without an error");
        assert_eq!(statistics.panics, 0, "{statistics:?}");
        self.fs.check_invariants();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The server may be down already; either way the directory shall go.
        let _ = self.server.stop();
        let _ = fs::remove_dir(&self.dir);
    }
}

/// The default ones, with the transport of `HOMENODE_TEST_TRANSPORT` and the data of `HOMENODE_TEST_DATA` where those are set.
pub(crate) fn options() -> Options {
    let transport = std::env::var("HOMENODE_TEST_TRANSPORT").ok();
    let transport = transport.map(|name| name.parse().expect("HOMENODE_TEST_TRANSPORT is a transport"));
    let mut options = Options::default();
    options.transport = transport.unwrap_or_default();
    let data = std::env::var("HOMENODE_TEST_DATA").ok();
    options.data = data.map_or(Data::Pool, |name| {
        name.parse().expect("HOMENODE_TEST_DATA is what holds bytes")
    });
    options
}

/// Whether nothing can be mounted here; says so.
pub(crate) fn skipped() -> bool {
    let reason = if !rustix::process::geteuid().is_root() {
        "mounting needs root"
    } else if !Path::new("/dev/fuse").exists() {
        "there is no /dev/fuse"
    } else {
        return false;
    };
    skip(reason);
    true
}

/// Prints that a test is skipped, past the test harness's capture, which holds what macros print.
pub(crate) fn skip(why: impl std::fmt::Display) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(io::stderr(), "SKIPPED: {why} ({test})");
}

/// Waits up to ten seconds for what the kernel does on its own time.
pub(crate) fn eventually(what: &str, check: impl Fn() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < Duration::from_secs(10), "never came true: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until the clock that stamps files has moved on: it stands still while a virtual CPU is kept from running.
pub(crate) fn tick() {
    let now = || clock_gettime(ClockId::RealtimeCoarse);
    let before = now();
    eventually("the clock moves on", || now() > before);
}

/// A new directory that every user may pass through.
pub(crate) fn new_dir() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("homenode-fuse-{}-{number}", std::process::id()));
    fs::create_dir(&dir).expect("a directory to mount on");
    dir
}

/// Runs a shell script as user and group nobody, with an argument; whether it succeeded.
pub(crate) fn as_nobody(script: &str, path: &Path) -> bool {
    use std::os::unix::process::CommandExt;
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", script, "sh"]).arg(path).uid(65534).gid(65534);
    command.status().expect("a shell").success()
}

pub(crate) fn set_xattr(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())?)
}

pub(crate) fn xattr(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let mut value = vec![0; 1 << 16];
    let bytes = rustix::fs::lgetxattr(path, name, &mut value[..])?;
    value.truncate(bytes);
    Ok(value)
}

pub(crate) fn xattr_names(path: &Path) -> io::Result<Vec<u8>> {
    let mut names = vec![0; 1 << 16];
    let bytes = rustix::fs::llistxattr(path, &mut names[..])?;
    names.truncate(bytes);
    Ok(names)
}
