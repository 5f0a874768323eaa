//! A pool as a mounted filesystem, for processes that do not use the library.
//!
//! The kernel keeps names, missing names, attributes and pages of a mounted pool, and is told of no change that it did not
//! make: while a pool is mounted it must be changed through the mount only.

use crate::keeper::{self, LOOK_PATIENCE};
use crate::machine::Machine;
use crate::mover::{self, Files, MoverMode, MoverStatus, Watch};
use crate::periodic::Periodic;
use crate::pool::{EngineFs, Inner, Pool};
use crate::status::Flow;
use crate::tasks::{Ledger, Places, PoolTasks, Reach, divide, now_ms};
use crate::{CpuId, Error, NodeId, Status};
use homenode_engine::BLOCK_BYTES;
use homenode_engine::backing::BackingStore;
use homenode_engine::fs::{Ino, Inode};
use homenode_fuse::{Accessed, Chosen, ChosenData, Data, Host, Options as MountOptions, Server, Statistics, Transport};
use homenode_linux::process::start_ticks;
use homenode_linux::reach::{Filesystem, Reached};
use homenode_linux::tmpfs::store::TmpfsStore;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Counts of the threads that use a mount.
#[derive(Default)]
struct Tasks {
    ledger: Mutex<Ledger>,
    /// Counts of BPF programs that are not in the ledger yet.
    reach: Mutex<Reach>,
    /// The last question.
    asked: Mutex<Option<Instant>>,
}

/// A mounted pool, served by threads of this process. Dropping it takes the mount away, even from under open files: they
/// get errors then.
///
/// A write to the mount whose memory never comes (userfaultfd, a mapping of a stopped FUSE server's file) may hold a thread that makes
/// room real beyond the end of the file, as fallocate promised. Dropping the mount leaves such a thread alone after a second: the
/// pool's memory, and the end of this process, wait for that write.
pub struct Mount {
    /// Ends before the threads do, which may wait for the mount's users.
    server: Server,
    _keepers: Option<[Periodic; 4]>,
    mover: OnceLock<(Arc<Mutex<Watch>>, Periodic)>,
    tasks: Arc<Tasks>,
    directory: PathBuf,
    /// The mount keeps the pool, with its populating threads.
    pool: Arc<Inner>,
}

impl Pool {
    /// Mounts the pool on `directory` with the default options, for every user of the machine. The kernel must allow it:
    /// root only.
    ///
    /// From then on change the pool through the mount only: the kernel caches names, attributes and bytes, and what the
    /// library creates, removes, renames or writes beside it the mount may not see, or see half of, for as long as it lasts.
    /// Reading through the library is fine, as are members, drains and [`File::move_to`](crate::File::move_to), which change
    /// where bytes lie and nothing that the kernel keeps. A store through a shared mapping reaches the pool only with
    /// msync(2), fsync(2), or when the kernel writes it back.
    ///
    /// # Errors
    /// When /dev/fuse cannot be opened or the kernel refuses the mount.
    pub fn mount(&self, directory: impl AsRef<Path>) -> Result<Mount, Error> {
        self.mount_with(directory, &MountOptions::default())
    }

    /// Mounts as [`Pool::mount`] does, with a choice of how it is served.
    ///
    /// # Errors
    /// As [`Pool::mount`]; and when the transport asked for cannot be had.
    pub fn mount_with(&self, directory: impl AsRef<Path>, options: &MountOptions) -> Result<Mount, Error> {
        let host = ThisMachine(self.inner.machine.clone());
        let directory = directory.as_ref();
        let mut options = options.clone();
        options.read_only |= self.is_read_only();
        let server = Server::mount(Arc::clone(&self.inner.fs), Arc::new(host), directory, &options)?;
        self.inner.limit_metadata();
        let is_kernel = server.data().data == Data::Kernel;
        let keepers = is_kernel
            .then(|| keeper::start(&self.inner.fs, &self.inner.machine))
            .transpose()?;
        Ok(Mount {
            server,
            _keepers: keepers,
            mover: OnceLock::new(),
            tasks: Arc::default(),
            directory: directory.to_owned(),
            pool: Arc::clone(&self.inner),
        })
    }
}

impl Mount {
    /// Attaches a mount that was to be attached later; `beneath` a dead mount with this device number, so that nobody sees the directory between the two.
    ///
    /// # Errors
    /// EINVAL when there is no such dead mount, or the kernel attaches beneath none (before Linux 6.5); it is as it was then.
    pub fn attach(&self, beneath: Option<u64>) -> Result<(), Error> {
        Ok(self.server.attach(beneath)?)
    }

    /// Where it was mounted.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// How requests travel, and why so.
    #[must_use]
    pub fn transport(&self) -> &Chosen {
        self.server.transport()
    }

    /// Returns the storage of regular files' bytes, and why it was chosen.
    #[must_use]
    pub fn data(&self) -> &ChosenData {
        self.server.data()
    }

    /// Returns the mount's device number, as stat(2) tells it.
    #[must_use]
    pub fn device(&self) -> u64 {
        self.server.device()
    }

    /// Watches from now on which nodes reach which files, and moves files to them if `mode` says so. Does nothing on a machine of one node, or where the kernel does not hold the files' bytes; a second call does
    /// nothing either.
    ///
    /// # Errors
    /// When there is no thread for it. That nothing can be counted is told by [`Mount::mover`].
    pub fn watch(&self, mode: MoverMode) -> Result<(), Error> {
        match mode {
            MoverMode::Off | MoverMode::Unknown => Ok(()),
            _ => self.begin_watch(mode),
        }
    }

    fn begin_watch(&self, mode: MoverMode) -> Result<(), Error> {
        let has_nodes = self.pool.machine.with_memory().count() > 1;
        if !has_nodes || self.data().data != Data::Kernel || self.mover.get().is_some() {
            return Ok(());
        }
        let watch = Arc::new(Mutex::new(Watch::begin(mode, Filesystem::Mount, self.device())));
        let (fs, watched, tasks) = (Arc::clone(&self.pool.fs), Arc::clone(&watch), Arc::clone(&self.tasks));
        let thread = Periodic::start("mover", move || {
            let start = Instant::now();
            let files = OfMount::new(&fs, true, &tasks);
            // Here and not while a question is answered: programs take long to load.
            match tasks.is_asked() {
                true => watched.lock().count_on(),
                false => watched.lock().rest(),
            }
            mover::look(&watched, &files);
            MOVER_PERIOD.max(start.elapsed() * MOVER_REST)
        })?;
        // A second call that came meanwhile has begun the same.
        let _ = self.mover.set((watch, thread.left_after(LOOK_PATIENCE)));
        Ok(())
    }

    /// Counts and decisions of the mover; `None` while it is off.
    #[must_use]
    pub fn mover(&self) -> Option<MoverStatus> {
        let status = self.mover.get().map(|(watch, _)| watch.lock().status().clone());
        status.filter(|status| status.mode != MoverMode::Off)
    }

    /// Percent of the bytes read and written that were on the node of the CPU, in tenths; 100 on a machine of one node, `None` while nothing tells it, and where that is not seen: the
    /// CPUs of callers by the classic transport, and files of the kernel without the mover. `status` is that of the pool.
    #[must_use]
    pub fn local_percent(&self, status: &Status) -> Option<f64> {
        if self.pool.machine.has_one_node() {
            return Some(100.0);
        }
        Flow::local_percent(&self.flows(status)?)
    }

    /// Bytes read and written since the mount, by node of the CPUs and home of the bytes; `None` where that is not seen: the CPUs of callers by the
    /// classic transport, and files of the kernel without the mover. `status` is that of the pool.
    #[must_use]
    pub fn flows(&self, status: &Status) -> Option<Vec<Flow>> {
        let is_classic = self.transport().transport == Transport::Classic;
        let of_kernel = match self.data().data {
            Data::Kernel => Some(self.mover().filter(|mover| mover.not_seen.is_none())?.located),
            _ => None,
        };
        if of_kernel.is_none() && is_classic && !self.pool.machine.has_one_node() {
            return None;
        }
        let accesses = status.accesses.iter().filter(|_| !is_classic || of_kernel.is_none());
        let accesses: Vec<Flow> = accesses.map(Flow::from).collect();
        Some(Flow::sum(accesses.iter().chain(of_kernel.iter().flatten())))
    }

    /// Bytes that threads move with the pool, by home, and where their busy files lie: those of the library, and of callers of the mount since
    /// each was seen first. Nothing is counted before the first call, so two calls about a second apart tell what goes on. On a machine of one
    /// node only threads of the library are told.
    #[must_use]
    pub fn tasks(&self) -> PoolTasks {
        let own = self.pool.tasks();
        let nodes: Vec<NodeId> = self.pool.machine.with_memory().map(|node| node.id).collect();
        if nodes.len() < 2 {
            return own;
        }
        let fs = &self.pool.fs;
        if !fs.pool().counts_by_place() {
            let what = format!("bytes that threads move with the pool at {}", self.directory.display());
            let why = "it is in files, whose pages the kernel places";
            return PoolTasks {
                unseen: vec![(what, why.to_owned())],
                ..own
            };
        }
        *self.tasks.asked.lock() = Some(Instant::now());
        let mut unseen = Vec::new();
        let place = self.directory.display();
        let is_kernel = self.data().data == Data::Kernel;
        if is_kernel {
            if let Some(why) = self.count_reach() {
                unseen.push((
                    format!("bytes that threads move with files of the pool at {place}"),
                    why,
                ));
            }
        } else {
            let why = "its server sees only misses of the page cache, and O_DIRECT";
            unseen.push((
                format!("reads that the page cache of the pool at {place} serves"),
                why.to_owned(),
            ));
        }
        let mut ledger = self.tasks.ledger.lock();
        // Users of files of the kernel are known up to the last look, if anything looks.
        let mut reach = self.tasks.reach.lock();
        let is_looked = is_kernel && self.mover.get().is_some();
        let counted_ms = if is_looked { reach.counted_ms() } else { now_ms() };
        if counted_ms > ledger.counted_ms() {
            let mut counts = self.server.take_tasks(fs.pool().nodes());
            let (threads, lost_bytes) = reach.take();
            counts.threads.extend(threads);
            ledger.note(counted_ms, counts.threads, counts.lost_bytes + lost_bytes, start_ticks);
        }
        drop(reach);
        let files = Busy {
            of: &OfMount::new(fs, is_kernel, &self.tasks),
        };
        let mut told = ledger.tell(own, &files, &nodes);
        told.unseen.append(&mut unseen);
        told
    }

    /// Takes the reads and writes of the mount's callers since the last call. They are kept while somebody asks again and again, until a
    /// call `ends` it; what the kernel serves by itself (files of the kernel, its page cache) is not among them.
    #[must_use]
    pub fn take_accesses(&self, ends: bool) -> Accessed {
        self.server.take_accesses(ends)
    }

    /// Has users of files of the kernel counted soon; tells why they cannot be, if that is known.
    fn count_reach(&self) -> Option<String> {
        if let Err(error) = self.begin_watch(MoverMode::Off) {
            return Some(error.to_string());
        }
        let (watch, _) = self.mover.get()?;
        // It is locked while it begins to count.
        watch.try_lock()?.status().not_seen.clone()
    }

    /// Waits until it is unmounted, by whomever.
    ///
    /// # Errors
    /// When the kernel broke off.
    pub fn wait(&self) -> Result<(), Error> {
        Ok(self.server.wait()?)
    }

    /// Waits until no thread serves it any more, at most `timeout`; whether it came to that.
    #[must_use]
    pub fn ends_within(&self, timeout: Duration) -> bool {
        self.server.ends_within(timeout)
    }

    /// Unmounts. `lazy` takes the name away also when files are open there; they are served until they are closed, or this
    /// process ends.
    ///
    /// # Errors
    /// EBUSY when it is in use and `lazy` is not given.
    pub fn unmount(&self, lazy: bool) -> Result<(), Error> {
        Ok(self.server.unmount(lazy)?)
    }

    /// Takes the mount away from under its users: their calls fail from then on.
    ///
    /// # Errors
    /// When the kernel neither unmounts nor aborts it.
    pub fn stop(&self) -> Result<(), Error> {
        Ok(self.server.stop()?)
    }

    /// Opens of the pool's files that are not closed yet, those of the library included.
    #[must_use]
    pub fn open_files(&self) -> u64 {
        self.pool.fs.open_count()
    }

    /// Counts of the kernel's requests so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.server.statistics()
    }
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

/// Time between two looks of the mover.
const MOVER_PERIOD: Duration = Duration::from_secs(1);
/// Rest after a long look, as a multiple of its time.
const MOVER_REST: u32 = 10;

/// Time after the last question for which users of files are counted while the mover is off.
const ASKED: Duration = Duration::from_secs(60);

impl Tasks {
    fn is_asked(&self) -> bool {
        self.asked.lock().is_some_and(|asked| asked.elapsed() < ASKED)
    }
}

/// Files of a mounted pool.
struct OfMount<'a> {
    fs: &'a EngineFs,
    is_kernel: bool,
    tasks: &'a Tasks,
    /// Files that were looked at already.
    seen: RefCell<Places>,
}

impl<'a> OfMount<'a> {
    fn new(fs: &'a EngineFs, is_kernel: bool, tasks: &'a Tasks) -> Self {
        Self {
            fs,
            is_kernel,
            tasks,
            seen: RefCell::default(),
        }
    }

    fn lies(&self, file: u64, inode: &Inode) -> Vec<(NodeId, u64)> {
        let mut seen = self.seen.borrow_mut();
        seen.entry(file).or_insert_with(|| self.fs.map(inode)).clone()
    }
}

/// Files of a mounted pool, for a question that is to be answered soon. Files of the kernel are reported where they lay a moment ago;
/// files on disks do not move.
struct Busy<'a> {
    of: &'a OfMount<'a>,
}

impl Files for Busy<'_> {
    fn map(&self, file: u64) -> Option<Vec<(NodeId, u64)>> {
        let OfMount {
            fs, is_kernel, tasks, ..
        } = self.of;
        if *is_kernel {
            let inode = fs.inode(Ino(file))?;
            return tasks.reach.lock().place(file).filter(|_| fs.is_local(&inode));
        }
        if fs.pool().memory().has_cache() {
            return None;
        }
        self.of.map(file)
    }

    fn move_to(&self, file: u64, node: NodeId) -> Result<u64, String> {
        self.of.move_to(file, node)
    }

    fn room(&self, node: NodeId) -> u64 {
        self.of.room(node)
    }
}

impl Files for OfMount<'_> {
    fn map(&self, file: u64) -> Option<Vec<(NodeId, u64)>> {
        let inode = self.fs.inode(Ino(file))?;
        self.fs.is_local(&inode).then(|| self.lies(file, &inode))
    }

    fn move_to(&self, file: u64, node: NodeId) -> Result<u64, String> {
        let inode = self.fs.inode(Ino(file)).ok_or("it is gone")?;
        let moved = self.fs.move_to(&inode, node, &mut |_, _| {});
        moved.map_err(|error| error.to_string())
    }

    fn room(&self, node: NodeId) -> u64 {
        let room = self.fs.pool().room_on(node) * BLOCK_BYTES as u64;
        // Blocks of members are memory already, or become it ahead of those who take them.
        match self.is_kernel {
            true => room.min(homenode_linux::memory::free_bytes(node).unwrap_or(0)),
            false => room,
        }
    }

    fn note_written(&self, written: &BTreeMap<NodeId, u64>) {
        self.fs.note_written(written);
    }

    fn note_reached(&self, reached: &[Reached]) -> Vec<Flow> {
        let counted_ms = now_ms();
        let bytes = |entry: &Reached| entry.read_bytes + entry.written_bytes;
        let map = |file| {
            let inode = self.fs.inode(Ino(file));
            inode.map(|inode| self.lies(file, &inode)).unwrap_or_default()
        };
        let asked = if self.tasks.is_asked() { reached } else { &[] };
        let of_threads = asked.iter().map(|entry| (entry.thread, entry.file, bytes(entry)));
        let divided = divide(of_threads, map);
        self.tasks.reach.lock().note(counted_ms, divided);
        let of_nodes = reached.iter();
        let of_nodes = of_nodes.map(|entry| (u32::from(entry.node.0), entry.file, bytes(entry)));
        let (of_nodes, _) = divide(of_nodes, map);
        let flows = of_nodes.iter().flat_map(|count| {
            let from = NodeId(u16::try_from(count.thread).expect("it is a node's number: see above"));
            count.homes.iter().map(move |(home, bytes)| Flow {
                from,
                home: *home,
                bytes: *bytes,
                operations: 0,
            })
        });
        Flow::sum(flows.collect::<Vec<_>>().iter())
    }
}

/// The machine that the server asks.
struct ThisMachine(Machine);

impl Host for ThisMachine {
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
        let node = self.0.engine.cpu_nodes.get(cpu.0 as usize);
        homenode_linux::cpu::pin_to_node_cpus(node.map_or(&[], |node| self.0.cpus_of(*node)))
    }

    fn thread_cpu(&self, tid: u32) -> Option<CpuId> {
        homenode_linux::cpu::thread_cpu(tid)
    }

    fn backing_store(&self, bytes: u64, files_max: u64, noatime: bool) -> io::Result<Arc<dyn BackingStore>> {
        Ok(Arc::new(TmpfsStore::new(bytes, files_max, noatime)?))
    }
}
