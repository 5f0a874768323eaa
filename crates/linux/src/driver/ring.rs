//! A ring of io_uring, with its files and buffers.
//!
//! Invariants: the thread that submits first is the only one that can, but for a shared ring; a pushed entry stays until the kernel takes it;
//! when [`Ring::close`] is back the kernel has ended all requests it had, whichever thread calls that.

use super::{Arena, RingError};
use crate::cpu::{allowed_cpus, near_cpus};
use crate::topology::sysfs::parse_list;
use homenode_engine::CpuId;
use io_uring::types::Fixed;
use io_uring::{Builder, IoUring, squeue};
use std::fs::{self, File};
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::{fmt, ptr};

/// The file, among those registered.
pub(super) const FILE: Fixed = Fixed(0);
/// The file as it was opened once more.
pub(super) const OWN_FILE: Fixed = Fixed(1);
/// CPUs whose timer stops while one thread has them to itself (`nohz_full=` of the kernel).
const TICKLESS: &str = "/sys/devices/system/cpu/nohz_full";
/// The kernel takes no larger buffers.
pub(super) const CHUNK_BYTES: usize = 1 << 30;

pub(super) struct Ring {
    ring: IoUring,
    /// The other end is registered with the ring and nowhere else, so this one ends when the kernel has let go of the ring,
    /// which it does when all requests have ended.
    end: PipeReader,
    is_enabled: bool,
    is_polled: bool,
    /// Whether the kernel's helpers of the thread were told where to run.
    has_near_workers: bool,
    /// Whether the arena is registered.
    pub(super) has_buffers: bool,
    /// Pushed, and not taken out.
    pub(super) in_flight: usize,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("in_flight", &self.in_flight)
            .finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring for `depth` requests at a time to [`FILE`] and [`OWN_FILE`].
    pub(super) fn new(depth: u16, files: [&File; 2], buffers: &Arena, is_polled: bool) -> Result<Self, RingError> {
        // Made here and enabled by the thread that uses it.
        let ring = single_issuer(depth.into(), |builder| {
            builder.setup_r_disabled();
            if is_polled {
                builder.setup_iopoll();
            }
        })?;
        let chunks = chunks(buffers);
        // SAFETY: the arena's bytes, which stay mapped while the arena lives; the queue has it for longer than the ring.
        let registered = unsafe { ring.submitter().register_buffers(&chunks) };
        Ok(Self {
            is_polled,
            // A user who may lock less memory has slower requests.
            has_buffers: registered.is_ok(),
            ..Self::holding(ring, Some(files), false)?
        })
    }

    /// A ring for about `depth` requests at a time to any files, which threads share who do not use it at the same time. Its descriptor
    /// is readable while there are results.
    pub(super) fn shared(depth: u16) -> Result<Self, RingError> {
        Self::shared_as(depth, has_tickless(fs::read_to_string(TICKLESS).ok().as_deref()))
    }

    fn shared_as(depth: u16, interrupts: bool) -> Result<Self, RingError> {
        let ring = make_shared(u32::from(depth).next_power_of_two(), interrupts);
        Self::holding(ring.map_err(|source| RingError::Make { source })?, None, true)
    }

    /// A ring with `files` as [`FILE`] and [`OWN_FILE`].
    fn holding(ring: IoUring, files: Option<[&File; 2]>, is_enabled: bool) -> Result<Self, RingError> {
        let failed = |source| RingError::Files { source };
        let (end, held) = io::pipe().map_err(failed)?;
        let [file, own] = files.map_or([-1, -1], |files| files.map(AsRawFd::as_raw_fd));
        ring.submitter()
            .register_files(&[file, own, held.as_raw_fd()])
            .map_err(failed)?;
        Ok(Self {
            ring,
            end,
            is_enabled,
            is_polled: false,
            has_near_workers: false,
            has_buffers: false,
            in_flight: 0,
        })
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// [`Ring::enter`] that waits until there are so many results, or a signal comes.
    ///
    /// # Errors
    /// See [`Ring::enter`].
    pub(super) fn wait(&mut self, results: usize) -> io::Result<()> {
        self.submit(results)
    }

    /// Whether the kernel has taken all that was pushed.
    pub(super) fn is_clear(&mut self) -> bool {
        self.ring.submission().is_empty()
    }

    /// Puts one request behind the others; whether there was room.
    ///
    /// # Safety
    /// The memory that it names stays valid: that of its data until it has come out, that of its vectors until
    /// [`Ring::is_clear`].
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the caller promises the same.
        let pushed = unsafe { self.ring.submission().push(entry) };
        self.in_flight += usize::from(pushed.is_ok());
        pushed.is_ok()
    }

    /// Gives the kernel what was pushed, and lets it work for the ring. What it does not take for now stays.
    ///
    /// # Errors
    /// It will never take any: another thread began with the ring, for example.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        self.submit(0)
    }

    fn submit(&mut self, wait_for: usize) -> io::Result<()> {
        if !self.is_enabled {
            self.ring.submitter().register_enable_rings()?;
            self.is_enabled = true;
        }
        let submitted = match wait_for {
            0 => self.ring.submit(),
            _ => self.ring.submit_and_wait(wait_for),
        };
        match submitted {
            Err(error) if !is_passing(&error) => Err(error),
            Ok(submitted) if submitted > 0 && !self.has_near_workers => {
                self.has_near_workers = true;
                keep_workers(&self.ring, &near_and_allowed());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether results wait for the thread that submitted, as far as the kernel tells.
    pub(super) fn waits_for_its_thread(&mut self) -> bool {
        self.ring.submission().taskrun()
    }

    /// Takes out the results: what each was pushed with, and what became of it. A system call only if there are none
    /// and the kernel has something to do.
    ///
    /// # Errors
    /// See [`Ring::enter`].
    pub(super) fn take(&mut self, mut finished: impl FnMut(u64, i32)) -> io::Result<()> {
        if self.in_flight == 0 {
            return Ok(());
        }
        if self.ring.completion().is_empty() {
            let queue = self.ring.submission();
            if self.is_polled || queue.taskrun() || queue.cq_overflow() || !queue.is_empty() {
                drop(queue);
                self.enter()?;
            }
        }
        for entry in self.ring.completion() {
            self.in_flight -= 1;
            finished(entry.user_data(), entry.result());
        }
        Ok(())
    }

    /// Cancels what the kernel has, and waits until it has ended: its memory is not touched any more, and nothing holds the file.
    pub(super) fn close(self) {
        let Self {
            ring,
            mut end,
            in_flight,
            ..
        } = self;
        // Of a ring that is closed the kernel lets go in the background, some time later; of files that are unregistered at once.
        let is_over = in_flight == 0 && ring.submitter().unregister_files().is_ok();
        drop(ring);
        if !is_over {
            // Nothing is ever written to it: this ends with the pipe. An interruption is tried again by `read_exact`.
            let _ = end.read_exact(&mut [0]);
        }
    }
}

/// CPUs of the thread's node that it may run on: the kernel takes no others.
fn near_and_allowed() -> Vec<CpuId> {
    let allowed = allowed_cpus().unwrap_or_default();
    let near = near_cpus().unwrap_or_default();
    near.into_iter().filter(|cpu| allowed.contains(cpu)).collect()
}

/// Keeps the kernel's threads that carry out what blocks for this thread (io-wq) on `cpus`, those of its node: they copy from and to memory of that
/// node. Where that is not possible, or not known, they run anywhere. To be called by a thread that has submitted: the kernel has something to note it in then.
fn keep_workers(ring: &IoUring, cpus: &[CpuId]) {
    // SAFETY: a set of bits, of which none is set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // The kernel takes longer ones, but the interface has room for so many.
    let in_set = |cpu: &usize| *cpu < libc::CPU_SETSIZE.cast_unsigned() as usize;
    for cpu in cpus.iter().map(|cpu| cpu.0 as usize).filter(in_set) {
        // SAFETY: it is within the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    if !cpus.is_empty()
        && let Err(error) = ring.submitter().register_iowq_aff(&set)
    {
        tracing::debug!(%error, "the kernel's helpers of a ring run on any node");
    }
}

/// Whether a result says that the kernel has not carried the request out: it could make no helper of the thread, or was interrupted. To be told apart
/// from what a disk answers.
pub(super) fn is_refusal(result: i32) -> bool {
    matches!(-result, libc::ECANCELED | libc::EAGAIN | libc::EINTR | libc::ENOMEM)
}

/// Whether the kernel may take it the next time.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ENOMEM)
    )
}

/// Makes a ring to which one thread alone submits. The kernel works for it only when that thread asks, and an error of one request does
/// not keep the rest of a batch back.
pub(crate) fn single_issuer(entries: u32, configure: impl FnOnce(&mut Builder)) -> Result<IoUring, RingError> {
    let mut builder = IoUring::builder();
    builder
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all();
    configure(&mut builder);
    let made = builder.build(entries.next_power_of_two());
    made.map_err(|source| RingError::Make { source })
}

/// The kernel works for it in any call of the thread that submitted; others' polls of the ring see that, unlike with deferred work. A thread that makes
/// no call does so at the next tick of its CPU's timer, or at once where the kernel `interrupts` it.
fn make_shared(entries: u32, interrupts: bool) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_submit_all();
    if !interrupts {
        builder.setup_coop_taskrun().setup_taskrun_flag();
    }
    builder.build(entries)
}

/// Whether a machine with this list has CPUs whose timer stops: a thread there that makes no call would keep others' results for ever.
fn has_tickless(list: Option<&str>) -> bool {
    // Without such CPUs the kernel writes "(null)".
    list.and_then(parse_list).is_some_and(|cpus| !cpus.is_empty())
}

/// The arena in pieces that the kernel takes.
fn chunks(buffers: &Arena) -> Vec<libc::iovec> {
    let all = usize::try_from(buffers.bytes()).expect("mapped memory fits a usize");
    let chunk = |start: usize| {
        let bytes = CHUNK_BYTES.min(all - start);
        let base = buffers.range(start as u64, bytes).unwrap_or(ptr::null_mut());
        libc::iovec {
            iov_base: base.cast(),
            iov_len: bytes,
        }
    };
    (0..all).step_by(CHUNK_BYTES).map(chunk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::current_cpu;
    use crate::process::own_thread;
    use io_uring::{opcode, types::Fd};
    use std::io::Write;

    /// CPUs that the kernel's helpers of thread `of` may run on.
    fn workers(of: u32) -> Vec<String> {
        let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
        let worker = |task: fs::DirEntry| {
            let status = fs::read_to_string(task.path().join("status")).ok()?;
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let is_worker = field("Name:")? == format!("iou-wrk-{of}");
            field("Cpus_allowed_list:").filter(|_| is_worker).map(str::to_owned)
        };
        tasks.filter_map(worker).collect()
    }

    /// Reads a pipe in a helper; returns where that may run.
    fn read_by_worker(ring: &mut Ring) -> Vec<String> {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut byte = [0_u8];
        let read = opcode::Read::new(Fd(reader.as_raw_fd()), byte.as_mut_ptr(), 1);
        let entry = read.build().flags(squeue::Flags::ASYNC);
        // SAFETY: the byte is there until the result is taken.
        assert!(unsafe { ring.push(&entry) });
        ring.enter().unwrap();
        let mut found = Vec::new();
        for _ in 0..1000 {
            found = workers(own_thread());
            if !found.is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        writer.write_all(&[1]).unwrap();
        while ring.in_flight > 0 {
            ring.wait(1).unwrap();
            ring.take(|_, result| assert_eq!(result, 1)).unwrap();
        }
        found
    }

    #[test]
    fn a_shared_ring_interrupts_its_threads_where_a_timer_may_stop() {
        for (list, expected) in [
            (None, false),
            (Some("(null)\n"), false),
            (Some("\n"), false),
            (Some("1-3,5\n"), true),
        ] {
            assert_eq!(has_tickless(list), expected, "{list:?}");
        }
        // A thread of its own: the kernel's helpers belong to it.
        std::thread::spawn(|| read_by_worker(&mut Ring::shared_as(4, true).unwrap()))
            .join()
            .unwrap();
    }

    #[test]
    fn kernel_workers_of_a_ring_stay_near_its_thread() {
        // A thread of its own: they belong to it.
        std::thread::spawn(|| {
            let mut ring = Ring::shared(4).unwrap();
            let near = read_by_worker(&mut ring);
            assert!(!near.is_empty(), "the kernel started no worker");
            let cpus = near_cpus().unwrap();
            assert!(cpus.contains(&current_cpu()));
        })
        .join()
        .unwrap();
        std::thread::spawn(|| {
            let only = *allowed_cpus().unwrap().last().unwrap();
            let mut ring = Ring::shared(4).unwrap();
            // The kernel notes it with a thread that has submitted.
            // SAFETY: it names no memory.
            assert!(unsafe { ring.push(&opcode::Nop::new().build()) });
            ring.enter().unwrap();
            ring.take(|_, _| {}).unwrap();
            keep_workers(&ring.ring, &[only]);
            let near = read_by_worker(&mut ring);
            assert!(
                !near.is_empty() && near.iter().all(|cpus| *cpus == only.0.to_string()),
                "{near:?}"
            );
        })
        .join()
        .unwrap();
    }
}
