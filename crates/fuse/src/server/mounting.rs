//! A mount being made: what holds the bytes, how requests travel, and the threads.

use super::{Ending, NOTICE_TIMEOUT, Running};
use crate::aside::{Aside, Errand, Lane, Way};
use crate::call::Service;
use crate::device::Device;
use crate::error::{Error, RingError};
use crate::host::Host;
use crate::mount::{Detached, Place};
use crate::negotiate::{Offer, TRANSFER_BYTES_MAX, Terms};
use crate::options::{Chosen, ChosenData, Data, Options, Transport};
use crate::passthrough::Connection;
use crate::prepared::{FILES_MAX, Prepared};
use crate::responder::Responder;
use crate::statistics::Counters;
use crate::uring::{self, PAYLOAD_BYTES_MIN, Queue, Rings};
use crate::worker::{Asked, Worker};
use homenode_engine::fs::Fs;
use homenode_engine::{BLOCK_BYTES, Clock, CpuId, Memory, NodeId};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

/// Descriptors that the rest of a process wants beside files of the kernel: connections of commands, what steering reads.
const OTHER_DESCRIPTORS: usize = 16;

/// Pause between two tries to get what another mount has.
const CLAIM_PAUSE: Duration = Duration::from_millis(1);

/// A mount being made.
pub(super) struct Mounting<'a, M: Memory, C: Clock, H> {
    pub(super) fs: Arc<Fs<M, C>>,
    pub(super) host: Arc<H>,
    pub(super) place: &'a Place,
    pub(super) options: &'a Options,
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

/// Threads of each lane that waits for frames, by the classic transport.
const WAITERS: usize = 8;

/// A mount that is served and has no place yet.
pub(super) struct Served {
    pub(super) detached: Detached,
    pub(super) running: Arc<Running>,
    /// Kept open by the threads.
    pub(super) device: Weak<Device>,
    pub(super) counters: Vec<Arc<Counters>>,
    pub(super) chosen: Chosen,
    pub(super) data: ChosenData,
}

impl<M: Memory, C: Clock, H: Host> Mounting<'_, M, C, H> {
    /// Mounts and starts the threads of a transport.
    pub(super) fn mount(&self, transport: Transport) -> Result<Served, Error> {
        let first = Device::open().map_err(|source| Error::OpenDevice { source })?;
        let detached = Detached::new(&first, self.options).map_err(|error| self.place.failed(error))?;
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
        // The kernel leaves access times to us: its flags only show in the mount table.
        fs.keep_access_times(self.options.noatime, self.options.nodiratime);
        let device = Arc::new(first);
        let weak_device = Arc::downgrade(&device);
        let claim = agreed.passthrough.then(|| self.claim_passing()).transpose()?;
        let (prepared, preparers) = Prepared::new(self.cpus());
        let passthrough = claim.map(|claim| Connection::new(&device, claim, prepared));
        let service = Arc::new(Service::new(
            fs,
            host,
            agreed,
            (Weak::clone(&weak_device), passthrough),
            threads,
        ));
        let running = Arc::new(Running::default());
        running.lock().device = Some(Arc::clone(&device));
        let mut counters = Vec::new();
        let is_beside_rings = rings.is_some();
        if let Some(rings) = rings {
            let queues = rings.queues(&service, &device, self.options)?;
            counters.extend(queues.iter().map(|queue| Arc::clone(&queue.responder.counters)));
            for queue in &queues {
                let cpu = queue.cpu();
                let number = cpu.0 as usize;
                let lanes: Vec<_> = queue.lanes().cloned().collect();
                let start = || start_lanes(&service, &lanes, number, &running);
                let started = uring::on_cpu(&*self.host, cpu, start);
                counters.extend(started.unwrap_or_else(|source| Err(not_started(number, source)))?);
            }
            start_queues(&*self.host, queues, &running)?;
        }
        let aside = (!is_beside_rings).then(Aside::new).map(Arc::new);
        if let Some(aside) = &aside {
            // Nothing of a pool of memory waits for disks; but some of it takes long.
            let lanes = &aside.lanes()[if self.fs.is_durable() { 0 } else { Way::Long as usize }..];
            counters.extend(start_lanes(&service, lanes, 0, &running)?);
            // The readers of the device wait for disks too, all but one: what that one sends aside would come last.
            let others = if self.fs.reads_disks() { 1..WAITERS } else { 0..0 };
            for number in others {
                counters.extend(start_lanes(&service, &lanes[1..], number, &running)?);
            }
        }
        let workers = workers(&service, device, threads, is_beside_rings, aside.as_ref())?;
        drop(aside);
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
        Ok(Served {
            detached,
            running,
            device: weak_device,
            counters,
            chosen,
            data,
        })
    }

    /// Chooses the storage of regular files' bytes, and tells why. Makes the store of backing files if these are chosen.
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
                    "files of this pool are the kernel's, and the storage of a file's bytes never changes".to_owned();
                return Err(Error::Passthrough { reason });
            }
            return Ok(chosen(wanted, "it was asked for"));
        } else if self.fs.is_durable() {
            "the pool is durable: its own blocks keep the bytes".to_owned()
        } else if !offer.has_passthrough() {
            "this kernel cannot pass reads and writes through: Linux 6.9 and newer can (CONFIG_FUSE_PASSTHROUGH)"
                .to_owned()
        } else if has_store {
            return Ok(chosen(Data::Kernel, CHOSEN_KERNEL));
        } else if !is_in_first_user_namespace() {
            "the kernel passes reads and writes through for root of the machine alone, and this process is in a user namespace".to_owned()
        } else if self.fs.has_pool_files() {
            "the pool has files already, and the storage of a file's bytes never changes".to_owned()
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
        let store = self
            .host
            .backing_store(BLOCK_BYTES as u64, files_max, self.options.noatime)?;
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
pub(super) fn not_rings(error: &dyn std::error::Error) -> Chosen {
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
    aside: Option<&Arc<Aside<Asked>>>,
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
        let responder = Responder::new(service, slot);
        Ok(Worker {
            device,
            responder,
            is_beside_rings,
            aside: aside.cloned(),
        })
    };
    devices.into_iter().enumerate().map(worker).collect()
}

/// Starts threads that carry out what waits for the disk; returns what they count.
fn start_lanes<E: Errand, M: Memory, C: Clock, H: Host>(
    service: &Arc<Service<M, C, H>>,
    lanes: &[Arc<Lane<E>>],
    number: usize,
    running: &Arc<Running>,
) -> Result<Vec<Arc<Counters>>, Error> {
    let start_one = |lane: &Arc<Lane<E>>| {
        let slot = service.fs.slots().claim().ok_or(Error::Slots { thread: number })?;
        let responder = Responder::new(service, slot);
        let (lane, counters) = (Arc::clone(lane), Arc::clone(&responder.counters));
        start(format!("fuse-{}-{number}", lane.name), number, running, move || {
            lane.serve(&responder);
            Ok(())
        })?;
        Ok(counters)
    };
    lanes.iter().map(start_one).collect()
}

fn not_started(thread: usize, source: io::Error) -> Error {
    Error::Spawn { thread, source }
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
        .unwrap_or_else(|source| Err(not_started(number, source)))?;
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

/// Whether this process is in the machine's first user namespace, in which each user has its own number. True where that cannot be told.
fn is_in_first_user_namespace() -> bool {
    const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];
    fs::read_to_string("/proc/self/uid_map").map_or(true, |map| map.split_ascii_whitespace().eq(ALL_USERS))
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
            ending.0.lock().fail(source);
        }
        drop(ending);
    };
    let spawned = thread::Builder::new().name(name).spawn(run);
    spawned.map(|_| ()).map_err(|source| not_started(number, source))
}
