//! The ring transport: FUSE over io_uring, a ring for each CPU.
//!
//! The kernel has a queue for each possible CPU and puts a request into the one of the CPU its caller runs on. Each queue
//! is served by one thread, pinned to that CPU, with a ring and buffers of its own on that CPU's node: a request crosses no
//! CPU, and answering one and taking the next is one system call (two while long ones are ready). FORGET and INTERRUPT still come through the device.
//!
//! The kernel uses the rings once every queue has an entry, those of offline CPUs too; until then callers wait. So all
//! that can fail is done before the kernel is told ([`prepare`]), but for the registration itself ([`Queue::run`]).

mod buffers;
mod command;
mod going;
mod parked;
mod queue;

use crate::aside::Aside;
use crate::call::Service;
use crate::device::Device;
use crate::error::RingError;
use crate::host::Host;
use crate::options::Options;
use crate::responder::Responder;
use buffers::Buffers;
use homenode_engine::pool::Pool;
use homenode_engine::{Clock, CpuId, Memory};
use io_uring::{IoUring, squeue};
use parked::Back;
use queue::Desk;
use std::sync::Arc;
use std::{fmt, fs, io, panic, thread};

pub(crate) use queue::Queue;

/// Most requests of one CPU under way: enough for read-ahead and asynchronous I/O; the rest waits in the kernel's queue.
const DEPTH_MAX: usize = 32;
/// With fewer, larger payloads are given up.
const DEPTH_WANTED: usize = 4;
/// Holds the largest extended attribute and its name.
pub(crate) const PAYLOAD_BYTES_MIN: usize = 128 << 10;

const PARAMETER_PATH: &str = "/sys/module/fuse/parameters/enable_uring";

/// How many requests each queue has under way, and how large they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) queues: usize,
    pub(crate) depth: usize,
    pub(crate) payload_bytes: usize,
}

impl Shape {
    /// For `queues` queues in a budget of `bytes`, with payloads of at most `payload_bytes_max`.
    fn fitting(queues: usize, bytes: u64, payload_bytes_max: usize) -> Result<Self, RingError> {
        let of_queue = usize::try_from(bytes).unwrap_or(usize::MAX) / queues;
        let mut payload_bytes = payload_bytes_max;
        while payload_bytes > PAYLOAD_BYTES_MIN && of_queue / payload_bytes < DEPTH_WANTED {
            payload_bytes /= 2;
        }
        let depth = (of_queue / payload_bytes).min(DEPTH_MAX);
        if depth == 0 {
            return Err(RingError::Buffers {
                bytes,
                queues,
                least_bytes: (queues * PAYLOAD_BYTES_MIN) as u64,
            });
        }
        Ok(Self {
            queues,
            depth,
            payload_bytes,
        })
    }
}

/// The rings of a mount, made but not in use.
#[derive(Debug)]
pub(crate) struct Rings {
    pub(crate) shape: Shape,
    rings: Vec<(Ring, Buffers)>,
}

/// A ring for commands of 128 bytes.
struct Ring(IoUring<squeue::Entry128>);

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ring").finish_non_exhaustive()
    }
}

/// Makes a ring and buffers for each possible CPU.
pub(crate) fn prepare<M: Memory, H: Host>(
    pool: &Pool<M>,
    host: &H,
    options: &Options,
    payload_bytes_max: usize,
) -> Result<Rings, RingError> {
    let queues = host.possible_cpus().max(1);
    let shape = Shape::fitting(queues, options.buffer_bytes, payload_bytes_max)?;
    let ring = |cpu| {
        let entries = u32::try_from((shape.depth + 1).next_power_of_two()).expect("at most twice DEPTH_MAX + 1");
        // Made here and enabled by the thread that uses it, which alone may submit. An error of one command does not keep
        // the rest of a batch back. The kernel works for the ring only when its thread waits, not by interrupting it.
        let ring = IoUring::builder()
            .setup_r_disabled()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_taskrun_flag()
            .build(entries)
            .map_err(|source| RingError::Make { cpu, source })?;
        let buffers = Buffers::new(shape.depth, shape.payload_bytes, pool.cpu_node(cpu));
        let buffers = buffers.map_err(|source| RingError::Map { cpu, source })?;
        Ok((Ring(ring), buffers))
    };
    let ring = |cpu| {
        let made = on_cpu(host, cpu, || ring(cpu));
        made.unwrap_or_else(|source| Err(RingError::Make { cpu, source }))
    };
    let rings = (0..queues).map(|cpu| ring(cpu_id(cpu))).collect::<Result<_, _>>()?;
    Ok(Rings { shape, rings })
}

/// Does `make` on the CPU, or near it if it is offline: what the kernel gives for it is then of the CPU's node, such as its
/// side of a ring, or the stacks of a thread that is started; and pages of the heap that are first used there.
///
/// # Errors
/// When there can be no thread more.
pub(crate) fn on_cpu<H: Host, R: Send>(host: &H, cpu: CpuId, make: impl FnOnce() -> R + Send) -> io::Result<R> {
    let there = || {
        if host.pin_to_cpu(cpu).is_err() {
            // If no CPU of the node may be used either, it is made wherever this thread is.
            let _ = host.pin_near_cpu(cpu);
        }
        make()
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, there)?;
        Ok(thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)))
    })
}

/// Sets SCHED_BATCH: when the calling thread is woken, it does not preempt the thread that runs. A caller waits for its answer at once, and
/// so makes way; the RELEASE of close(2), for which nobody waits, is answered together with the next request: two switches less.
pub(crate) fn wait_for_turn() {
    // SAFETY: takes a number; 0 names the calling thread.
    if unsafe { libc::sched_getscheduler(0) } != libc::SCHED_OTHER {
        return; // Who chose another policy for the server keeps it.
    }
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter is readable; 0 names the calling thread, and is the one priority of both policies.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameter) };
    if result != 0 {
        tracing::debug!(error = %io::Error::last_os_error(), "a ring's thread interrupts its callers");
    }
}

impl Rings {
    /// Makes the queue that each thread serves.
    pub(crate) fn queues<M: Memory, C: Clock, H: Host>(
        self,
        service: &Arc<Service<M, C, H>>,
        device: &Arc<Device>,
        options: &Options,
    ) -> Result<Vec<Queue<M, C, H>>, crate::Error> {
        let depth = self.shape.depth;
        let queue = |(cpu, (ring, buffers))| {
            let desk = || {
                Ok(Desk {
                    aside: Aside::new(),
                    back: Back::new(depth)?,
                    answered: Vec::with_capacity(depth),
                })
            };
            let failed = |source| crate::Error::Spawn { thread: cpu, source };
            let desk = service.fs.is_durable().then(desk).transpose().map_err(failed)?;
            let slot = service.fs.slots().claim().ok_or(crate::Error::Slots { thread: cpu })?;
            let cpu_id = cpu_id(cpu);
            let queue = || {
                let responder = Responder::new(service, slot);
                Queue::new(cpu_id, ring, buffers, Arc::clone(device), responder, options.spin, desk)
            };
            on_cpu(&*service.host, cpu_id, queue).map_err(failed)
        };
        self.rings.into_iter().enumerate().map(queue).collect()
    }
}

fn cpu_id(index: usize) -> CpuId {
    CpuId(u32::try_from(index).expect("Linux has at most 8192 CPUs"))
}

/// Why the kernel does not offer rings, and how to change that.
pub(crate) fn why_not_offered() -> RingError {
    match fs::read_to_string(PARAMETER_PATH) {
        Ok(value) if value.trim() == "N" => RingError::Off,
        // On, and not offered all the same: the kernel knows why.
        Ok(_) => RingError::NotOffered,
        Err(_) => RingError::Absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn shape(queues: usize, bytes: u64) -> Option<(usize, usize)> {
        let shape = Shape::fitting(queues, bytes, MIB).ok()?;
        assert!((queues * shape.depth * shape.payload_bytes) as u64 <= bytes);
        Some((shape.depth, shape.payload_bytes))
    }

    #[test]
    fn buffers_stay_within_the_budget() {
        let default = Options::default().buffer_bytes;
        assert_eq!(shape(2, default), Some((DEPTH_MAX, MIB)));
        assert_eq!(shape(64, default), Some((4, MIB)));
        assert_eq!(shape(256, default), Some((4, MIB / 4)));
        assert_eq!(shape(2048, default), Some((1, MIB / 8)));
        assert_eq!(shape(2, 256 << 10), Some((1, MIB / 8)));
        assert_eq!(shape(2, (256 << 10) - 1), None);
        assert_eq!(shape(4096, default), None);
    }
}
