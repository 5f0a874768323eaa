//! A mounted filesystem and the threads that serve it.
//!
//! Threads of the classic transport: one for each CPU the process may use, not pinned. All of them wait on the one queue of
//! the device, and the kernel wakes whichever has slept longest, wherever the request came from. A pinned thread would as a rule sit on
//! another CPU, often on another node, than the caller; an unpinned one is moved by the scheduler, which prefers a CPU near
//! the one that wakes it, and can use any idle one when that is busy. Where bytes are *placed* does not depend on it: the
//! asking node is the caller's. The threads of rings are pinned: see `uring`.
//!
//! Ending: unmounting makes every read of the device say so, and the threads return. A process that dies takes its
//! descriptors along; what stays is a mount point that answers ENOTCONN until it is unmounted.

use crate::call::Service;
use crate::device::Device;
use crate::error::{Error, RingError};
use crate::host::Host;
use crate::mount::{self, Busy};
use crate::negotiate::{Offer, TRANSFER_BYTES_MAX, Terms};
use crate::options::{Chosen, ChosenData, Data, Options, Transport};
use crate::passthrough::Connection;
use crate::prepared::{FILES_MAX, Prepared};
use crate::responder::Responder;
use crate::statistics::{Counters, Statistics};
use crate::uring::{self, PAYLOAD_BYTES_MIN, Queue, Rings};
use crate::worker::Worker;
use homenode_engine::fs::Fs;
use homenode_engine::{BLOCK_BYTES, Clock, CpuId, Memory, NodeId};
use std::collections::BTreeSet;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

/// In this time a thread has read from its device that the filesystem is unmounted, on a busy machine too.
const NOTICE_TIMEOUT: Duration = Duration::from_millis(500);

/// Descriptors that the rest of a process wants beside files of the kernel: connections of commands, what steering reads.
const OTHER_DESCRIPTORS: usize = 16;

/// Pause between two tries to get what another mount has.
const CLAIM_PAUSE: Duration = Duration::from_millis(1);

/// A mounted filesystem. Dropping it while it is served takes it down as [`Server::stop`] does.
#[derive(Debug)]
pub struct Server {
    dir: PathBuf,
    /// Device number of the mount.
    device: Option<u64>,
    chosen: Chosen,
    data: ChosenData,
    counters: Vec<Arc<Counters>>,
    running: Arc<Running>,
}

/// The threads still serving.
#[derive(Debug, Default)]
struct Running {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    threads: usize,
    /// Error of the first thread that ended in one.
    error: Option<Error>,
}

impl Server {
    /// Mounts `fs` on the directory `dir` and serves it. When this returns, the mount works.
    ///
    /// # Errors
    /// Any [`Error`] but [`Error::Unmount`]; nothing is left mounted then.
    pub fn mount<M: Memory, C: Clock, H: Host>(
        fs: Arc<Fs<M, C>>,
        host: Arc<H>,
        dir: &Path,
        options: &Options,
    ) -> Result<Self, Error> {
        let dir = fs::canonicalize(dir).map_err(|source| Error::Mount {
            dir: dir.to_owned(),
            source,
        })?;
        let mounting = Mounting {
            fs,
            host,
            dir: &dir,
            options,
        };
        let (running, counters, chosen, data) = match mounting.mount(options.transport) {
            // The kernel had been told already that requests go through rings: a new mount, without.
            Err(Error::Rings(error)) if options.transport == Transport::Auto => {
                let (running, counters, _, data) = mounting.mount(Transport::Classic)?;
                (running, counters, not_rings(&error), data)
            }
            mounted => mounted?,
        };
        let device = mount::device_of(&dir).ok();
        let server = Self {
            dir,
            device,
            chosen,
            data,
            counters,
            running,
        };
        server.set_read_ahead(options.read_ahead_bytes);
        if server.data.data == Data::Kernel {
            server.silence_sync();
        }
        Ok(server)
    }

    /// Where it is mounted: absolute, without symbolic links.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// How requests travel, and why so.
    #[must_use]
    pub fn transport(&self) -> &Chosen {
        &self.chosen
    }

    /// What holds the bytes of regular files, and why.
    #[must_use]
    pub fn data(&self) -> &ChosenData {
        &self.data
    }

    /// Counts of everything served so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics::sum(self.counters.iter().map(Arc::as_ref))
    }

    /// Waits until no thread serves any more: the filesystem is unmounted, by whomever.
    ///
    /// # Errors
    /// [`Error::Serve`] as soon as a thread ends because the device failed (told once). The mount should be [stopped](Self::stop)
    /// then: others may serve on, but who depends on that thread, as the callers on a ring's CPU do, waits for ever.
    pub fn wait(&self) -> Result<(), Error> {
        let mut state = self.running.lock();
        while state.threads > 0 && state.error.is_none() {
            state = self.running.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.error.take().map_or(Ok(()), Err)
    }

    /// Unmounts. The threads end when nothing of the filesystem is open any more: at once, unless `lazy` left open files.
    ///
    /// # Errors
    /// [`Error::Unmount`]: EBUSY when something is open and `lazy` is not given, or something else is mounted on top;
    /// EINVAL when it is mounted no more.
    pub fn unmount(&self, lazy: bool) -> Result<(), Error> {
        self.take_down(if lazy { Busy::Detach } else { Busy::Refuse })
    }

    /// Takes the filesystem down, whoever uses it: their calls fail with ECONNABORTED. The threads end at once. What is
    /// left of a mount whose threads have ended (its connection was aborted, or the device failed) goes too.
    ///
    /// # Errors
    /// [`Error::Unmount`] when something else is mounted on top, or it is mounted no more but still open; and its
    /// connection cannot be aborted.
    pub fn stop(&self) -> Result<(), Error> {
        if !self.is_served() {
            return if self.is_mounted() {
                self.take_down(Busy::Abort)
            } else {
                Ok(())
            };
        }
        self.take_down(Busy::Abort)
            .or_else(|error| self.abort().map_err(|_| error))
            // Unmounted a moment ago, by whomever: the threads have not noticed yet.
            .or_else(|error| {
                if self.ends_within(NOTICE_TIMEOUT) {
                    Ok(())
                } else {
                    Err(error)
                }
            })
    }

    /// Waits until no thread serves any more, at most `timeout`. Whether it came to that.
    fn ends_within(&self, timeout: Duration) -> bool {
        let serving = |state: &mut State| state.threads > 0;
        let waited = self
            .running
            .ended
            .wait_timeout_while(self.running.lock(), timeout, serving);
        let waited = waited.unwrap_or_else(PoisonError::into_inner);
        !waited.1.timed_out()
    }

    fn is_served(&self) -> bool {
        self.running.lock().threads > 0
    }

    /// Whether it is in the mount table, whatever lies on top of it.
    fn is_mounted(&self) -> bool {
        // What cannot be looked up is found out by unmounting.
        let Some(device) = self.device else { return true };
        if !mount::is_listed(&self.dir, device).unwrap_or(true) {
            return false;
        }
        // Once ours has gone, another server may get its number, and mount on the same directory. That one lives.
        self.is_served() || self.top() != Some(device) || mount::is_dead(&self.dir)
    }

    /// Device number of what a path finds on the directory.
    fn top(&self) -> Option<u64> {
        mount::device_of(&self.dir).ok()
    }

    fn take_down(&self, busy: Busy) -> Result<(), Error> {
        let refuse = |errno| {
            Err(Error::Unmount {
                dir: self.dir.clone(),
                source: io::Error::from_raw_os_error(errno),
            })
        };
        if !self.is_mounted() {
            return refuse(libc::EINVAL);
        }
        // Unmounting would hit what lies on top of ours.
        if let (Some(top), Some(ours)) = (self.top(), self.device)
            && top != ours
        {
            return refuse(libc::EBUSY);
        }
        mount::unmount(&self.dir, busy)
    }

    /// Aborts the connection of a mount that has no name any more, through the kernel's control filesystem.
    fn abort(&self) -> io::Result<()> {
        let device = self.device.ok_or(io::ErrorKind::NotFound)?;
        fs::write(format!("/sys/fs/fuse/connections/{}/abort", libc::minor(device)), "1")
    }

    /// Has the kernel learn that fsync, of files and of directories, asks for nothing: the server's answer to the first one counts
    /// for all, also after the server's death.
    fn silence_sync(&self) {
        let sync = || {
            fs::File::open(&self.dir)?.sync_all()?;
            let unnamed = fs::OpenOptions::new()
                .write(true)
                .custom_flags(libc::O_TMPFILE)
                .open(&self.dir)?;
            unnamed.sync_all()
        };
        if let Err(error) = sync() {
            tracing::warn!(%error, "fsync will ask the server once");
        }
    }

    /// The kernel caps what INIT asks for at its default of 128 KiB; root may set more. Only speed depends on it.
    fn set_read_ahead(&self, bytes: usize) {
        let Some(device) = self.device.filter(|_| bytes > 0) else {
            return;
        };
        let path = format!(
            "/sys/class/bdi/{}:{}/read_ahead_kb",
            libc::major(device),
            libc::minor(device)
        );
        if let Err(error) = fs::write(&path, (bytes / 1024).to_string()) {
            tracing::debug!(%error, path, "the kernel's read-ahead stays at its default");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::error!(%error, "the filesystem stays mounted");
        }
    }
}

/// A mount that is taken down again unless it is kept.
struct Mounted {
    dir: Option<PathBuf>,
}

impl Mounted {
    fn keep(mut self) {
        self.dir = None;
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(dir) = self.dir.take()
            && let Err(error) = mount::unmount(&dir, Busy::Abort)
        {
            tracing::error!(%error, "a half-made mount stays behind");
        }
    }
}

impl Running {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // The state is two plain values: a thread that panicked left them whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A mount being made.
struct Mounting<'a, M: Memory, C: Clock, H> {
    fs: Arc<Fs<M, C>>,
    host: Arc<H>,
    dir: &'a Path,
    options: &'a Options,
}

/// Sees that the process may open `count` files more, so that none of a user's calls fails for want of one.
fn need_descriptors(count: usize) -> Result<(), Error> {
    let files: io::Result<Vec<fs::File>> = (0..count).map(|_| fs::File::open("/dev/null")).collect();
    files.map(drop).map_err(|source| Error::Passthrough {
        reason: format!(
            "the server wants to open {count} files more: {source}; raise the limit of open files \
             (ulimit -n, LimitNOFILE= of a unit), or use --data pool"
        ),
    })
}

/// The threads of a mount, what they count, how requests travel, and what holds the bytes.
type Served = (Arc<Running>, Vec<Arc<Counters>>, Chosen, ChosenData);

impl<M: Memory, C: Clock, H: Host> Mounting<'_, M, C, H> {
    /// Mounts and starts the threads of a transport.
    fn mount(&self, transport: Transport) -> Result<Served, Error> {
        let first = Device::open().map_err(|source| Error::OpenDevice { source })?;
        mount::mount(&first, self.options, self.dir)?;
        let mounted = Mounted {
            dir: Some(self.dir.to_owned()),
        };
        let offer = Offer::receive(&first)?;
        let data = self.choose_data(&offer)?;
        let (rings, chosen) = self.choose(transport, &offer, data.data)?;
        let terms = Terms {
            options: self.options,
            transfer_bytes: rings
                .as_ref()
                .map_or(TRANSFER_BYTES_MAX, |rings| rings.shape.payload_bytes),
            rings: rings.is_some(),
            passthrough: data.data == Data::Kernel,
        };
        let agreed = offer.accept(&first, &terms)?;
        // Beside rings only FORGET and INTERRUPT come through the device.
        let threads = if rings.is_some() {
            1
        } else {
            self.options.thread_count()
        };
        let (fs, host) = (Arc::clone(&self.fs), Arc::clone(&self.host));
        let device = Arc::new(first);
        let claim = agreed.passthrough.then(|| self.claim_passing()).transpose()?;
        let (prepared, preparers) = Prepared::new(self.cpus());
        let passthrough = claim.map(|claim| Connection::new(&device, claim, prepared));
        let service = Arc::new(Service::new(fs, host, agreed, passthrough, threads));
        let running = Arc::new(Running::default());
        let mut counters = Vec::new();
        let is_beside_rings = rings.is_some();
        if let Some(rings) = rings {
            let queues = rings.queues(&service, &device, self.options)?;
            counters.extend(queues.iter().map(|queue| Arc::clone(&queue.responder.counters)));
            start_queues(&*self.host, queues, &running)?;
        }
        let workers = workers(&service, device, threads, is_beside_rings)?;
        counters.extend(workers.iter().map(|worker| Arc::clone(&worker.responder.counters)));
        for (number, worker) in workers.into_iter().enumerate() {
            start(format!("fuse-{number}"), number, &running, move || worker.run())?;
        }
        if agreed.passthrough {
            // A thread that works on a backing file has it open.
            need_descriptors(counters.len() + preparers.len() + OTHER_DESCRIPTORS)?;
            for (number, preparer) in preparers.into_iter().enumerate() {
                let (weak, host) = (Arc::downgrade(&service), Arc::clone(&self.host));
                start(preparer.name(), number, &running, move || {
                    preparer.run(&weak, &*host);
                    Ok(())
                })?;
            }
        }
        mounted.keep();
        Ok((running, counters, chosen, data))
    }

    /// What holds the bytes of regular files, and why; makes the store of backing files if they do.
    fn choose_data(&self, offer: &Offer) -> Result<ChosenData, Error> {
        let chosen = |data, reason: &str| ChosenData {
            data,
            reason: reason.to_owned(),
        };
        let wanted = self.options.data;
        let has_store = self.fs.pool().store().is_some();
        let why_not = if wanted == Data::Pool {
            if has_store {
                let reason =
                    "files of this pool are the kernel's, and what holds a file's bytes never changes".to_owned();
                return Err(Error::Passthrough { reason });
            }
            return Ok(chosen(wanted, "it was asked for"));
        } else if !offer.has_passthrough() {
            "this kernel cannot pass reads and writes through: Linux 6.9 and newer can (CONFIG_FUSE_PASSTHROUGH)"
                .to_owned()
        } else if has_store {
            return Ok(chosen(Data::Kernel, CHOSEN_KERNEL));
        } else if self.fs.has_pool_files() {
            "the pool has files already, and what holds a file's bytes never changes".to_owned()
        } else {
            match self.make_store() {
                Ok(()) if wanted == Data::Kernel => return Ok(chosen(wanted, "it was asked for")),
                Ok(()) => {
                    return Ok(chosen(Data::Kernel, CHOSEN_KERNEL));
                }
                Err(error) => format!("the kernel refused a private tmpfs: {error}"),
            }
        };
        if wanted == Data::Kernel {
            Err(Error::Passthrough { reason: why_not })
        } else {
            Ok(chosen(Data::Pool, &why_not))
        }
    }

    /// The right to register backing files. Threads of a mount that was just taken down keep it for a moment.
    fn claim_passing(&self) -> Result<Arc<()>, Error> {
        let start = Instant::now();
        loop {
            if let Some(claim) = self.fs.claim_passing() {
                return Ok(claim);
            }
            if start.elapsed() > NOTICE_TIMEOUT {
                let reason = "the pool is mounted already, or a file of an earlier mount is still open".to_owned();
                return Err(Error::Passthrough { reason });
            }
            thread::sleep(CLAIM_PAUSE);
        }
    }

    /// CPUs of the machine with their nodes.
    fn cpus(&self) -> impl Iterator<Item = (CpuId, NodeId)> + '_ {
        let cpus = 0..u32::try_from(self.host.possible_cpus()).unwrap_or(u32::MAX);
        cpus.map(|cpu| (CpuId(cpu), self.fs.pool().cpu_node(CpuId(cpu))))
    }

    /// Lends the pool's room to a new store of backing files.
    fn make_store(&self) -> io::Result<()> {
        // A block: the pool lends what it has.
        let nodes: BTreeSet<NodeId> = self.cpus().map(|(_, node)| node).collect();
        let files_max = self.fs.files_max().saturating_add((nodes.len() * FILES_MAX) as u64);
        let store = self.host.backing_store(BLOCK_BYTES as u64, files_max)?;
        self.fs.pool().lend_to(store);
        Ok(())
    }

    /// Which transport it will be, and why; makes the rings if they are it.
    fn choose(&self, transport: Transport, offer: &Offer, data: Data) -> Result<(Option<Rings>, Chosen), Error> {
        let chosen = |transport, reason: &str| Chosen {
            transport,
            reason: reason.to_owned(),
        };
        if transport == Transport::Classic {
            return Ok((None, chosen(transport, "it was asked for")));
        }
        let rings = if offer.has_rings() {
            // Where the kernel moves bytes itself, requests carry names: rather many at a time than large ones.
            let payload_bytes_max = match data {
                Data::Kernel => PAYLOAD_BYTES_MIN,
                _ => TRANSFER_BYTES_MAX,
            };
            uring::prepare(self.fs.pool(), &*self.host, self.options, payload_bytes_max)
        } else {
            Err(uring::why_not_offered())
        };
        match rings {
            Ok(rings) if transport == Transport::Uring => Ok((Some(rings), chosen(transport, "it was asked for"))),
            Ok(rings) => Ok((
                Some(rings),
                chosen(Transport::Uring, "the kernel offers it, and it is the faster one"),
            )),
            Err(error) if transport == Transport::Auto => Ok((None, not_rings(&error))),
            Err(error) => Err(Error::Rings(error)),
        }
    }
}

/// The classic transport, because there are no rings.
fn not_rings(error: &RingError) -> Chosen {
    Chosen {
        transport: Transport::Classic,
        reason: error.to_string(),
    }
}

/// Why files of the kernel hold the bytes where nobody asked for anything.
const CHOSEN_KERNEL: &str = "the kernel offers to move the bytes itself, and it is the faster way";

/// Everything the threads that read the device need, made before the first one starts, so that failures are the caller's.
fn workers<M: Memory, C: Clock, H: Host>(
    service: &Arc<Service<M, C, H>>,
    first: Arc<Device>,
    count: usize,
    is_beside_rings: bool,
) -> Result<Vec<Worker<M, C, H>>, Error> {
    let clone = |_| {
        first
            .duplicate()
            .map(Arc::new)
            .map_err(|source| Error::Clone { source })
    };
    let mut devices = (1..count).map(clone).collect::<Result<Vec<_>, _>>()?;
    devices.push(first);
    let worker = |(thread, device)| {
        let slot = service.fs.slots().claim().ok_or(Error::Slots { thread })?;
        let responder = Responder {
            service: Arc::clone(service),
            slot,
            counters: Arc::default(),
        };
        Ok(Worker {
            device,
            responder,
            is_beside_rings,
        })
    };
    devices.into_iter().enumerate().map(worker).collect()
}

/// Starts the threads of all queues and waits until the kernel has their rings.
fn start_queues<M: Memory, C: Clock, H: Host>(
    host: &H,
    queues: Vec<Queue<M, C, H>>,
    running: &Arc<Running>,
) -> Result<(), Error> {
    let count = queues.len();
    let (registered, results) = mpsc::channel();
    for mut queue in queues {
        let registered = registered.clone();
        let cpu = queue.cpu();
        let number = cpu.0 as usize;
        let serve = move || {
            if queue.responder.service.passthrough.is_some() {
                uring::wait_for_turn();
            }
            let result = queue.register();
            let failed = result.is_err();
            // Nobody listens when another queue has failed before: the mount is being taken down.
            let _ = registered.send(result.map_err(|source| RingError::Register { cpu, source }));
            drop(registered);
            if failed { Ok(()) } else { queue.run() }
        };
        uring::on_cpu(host, cpu, || {
            start(format!("fuse-ring-{number}"), number, running, serve)
        })
        .unwrap_or_else(|source| Err(Error::Spawn { thread: number, source }))?;
    }
    drop(registered);
    let mut registered = 0;
    for result in results {
        result.map_err(Error::Rings)?;
        registered += 1;
    }
    if registered == count {
        Ok(())
    } else {
        let source = io::Error::other("a ring's thread panicked");
        Err(Error::Serve { source })
    }
}

/// Starts a thread that serves. What it owns is dropped before it is counted off: when nobody serves any more, the
/// connection has ended.
fn start(
    name: String,
    number: usize,
    running: &Arc<Running>,
    serve: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> Result<(), Error> {
    running.lock().threads += 1;
    let ending = Ending(Arc::clone(running));
    let run = move || {
        if let Err(source) = serve() {
            tracing::error!(error = %source, thread = number, "a server thread ends");
            ending.0.lock().error.get_or_insert(Error::Serve { source });
        }
        drop(ending);
    };
    let spawned = thread::Builder::new().name(name).spawn(run);
    spawned
        .map(|_| ())
        .map_err(|source| Error::Spawn { thread: number, source })
}

/// Counts a thread off when it ends, however it does.
struct Ending(Arc<Running>);

impl Drop for Ending {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.threads -= 1;
        if thread::panicking() {
            let source = io::Error::other("it panicked");
            state.error.get_or_insert(Error::Serve { source });
        }
        drop(state);
        self.0.ended.notify_all();
    }
}
