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

mod mounting;

use crate::accesses::Accessed;
use crate::device::Device;
use crate::error::Error;
use crate::host::Host;
use crate::mount::{self, Busy, Detached, Place};
use crate::options::{Chosen, ChosenData, Data, Options, Transport};
use crate::statistics::{Counters, Statistics};
use crate::tasks::TaskCounts;
use homenode_engine::fs::Fs;
use homenode_engine::{Clock, Memory, NodeId};
use mounting::{Mounting, Served, not_rings};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use std::{fs, io, thread};

/// In this time a thread has read from its device that the filesystem is unmounted, on a busy machine too.
const NOTICE_TIMEOUT: Duration = Duration::from_millis(500);

/// A mounted filesystem. Dropping it while it is served takes it down as [`Server::stop`] does.
#[derive(Debug)]
pub struct Server {
    place: Place,
    /// The directory that the place has to be.
    directory: Option<(u64, u64)>,
    /// Until it is attached.
    detached: Mutex<Option<Detached>>,
    device: u64,
    /// Kept open by the threads, and by [`State::device`].
    connection: Weak<Device>,
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
    /// Open as long as the server is there, so that backing files can be given back after the threads have ended: the kernel keeps them while
    /// anybody holds anything of the mount. `None` once a thread has failed, as the connection is to end with the threads then.
    device: Option<Arc<Device>>,
}

impl State {
    fn fail(&mut self, source: io::Error) {
        self.device = None;
        self.error.get_or_insert(Error::Serve { source });
    }
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
        let failed = |source| Error::Mount {
            dir: dir.to_owned(),
            source,
        };
        let place = Place::open(dir, options).map_err(failed)?;
        let mounting = Mounting {
            fs,
            host,
            place: &place,
            options,
        };
        let served = match mounting.mount(options.transport) {
            // The kernel had been told already that requests go through rings: a new mount, without.
            // And they take more threads than there are slots for on machines of very many CPUs.
            Err(error @ (Error::Rings(_) | Error::Slots { .. })) if options.transport == Transport::Auto => Served {
                chosen: not_rings(&error),
                ..mounting.mount(Transport::Classic)?
            },
            served => served?,
        };
        let detached = served.detached;
        let server = Self {
            device: detached.device().map_err(failed)?,
            place,
            directory: options.directory,
            detached: Mutex::default(),
            connection: served.device,
            chosen: served.chosen,
            data: served.data,
            counters: served.counters,
            running: served.running,
        };
        server.set_read_ahead(options.read_ahead_bytes);
        if server.data.data == Data::Kernel {
            silence_sync(&detached.path());
        }
        *server.detached() = Some(detached);
        if !options.attached_later {
            server.attach(None)?;
        }
        Ok(server)
    }

    /// Attaches a mount that was to be [attached later](Options::attached_later); `beneath` a dead mount with this device number, so that nobody sees
    /// the directory between the two.
    ///
    /// # Errors
    /// [`Error::Mount`]: EINVAL when there is no such dead mount, or the kernel attaches beneath none (before Linux 6.5); it is as it was then.
    pub fn attach(&self, beneath: Option<u64>) -> Result<(), Error> {
        let mut detached = self.detached();
        if let Some(mount) = &*detached {
            mount.attach(&self.place, self.directory, beneath)?;
        }
        *detached = None;
        Ok(())
    }

    fn detached(&self) -> MutexGuard<'_, Option<Detached>> {
        self.detached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it was mounted: absolute, without symbolic links.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.place.dir()
    }

    /// How requests travel, and why so.
    #[must_use]
    pub fn transport(&self) -> &Chosen {
        &self.chosen
    }

    /// Returns the storage of regular files' bytes, and why it was chosen.
    #[must_use]
    pub fn data(&self) -> &ChosenData {
        &self.data
    }

    /// Counts of everything served so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics::sum(self.counters.iter().map(Arc::as_ref))
    }

    /// Device number of the mount, as stat(2) tells it.
    #[must_use]
    pub fn device(&self) -> u64 {
        self.device
    }

    /// Takes the bytes that calling threads have moved since the last call, by home; `nodes` are those of the pool, in its order. What is
    /// told is counted from the first call on, as long as somebody asks again and again.
    #[must_use]
    pub fn take_tasks(&self, nodes: &[NodeId]) -> TaskCounts {
        let mut counts = TaskCounts::default();
        for one in &self.counters {
            one.tasks.take(nodes, &mut counts);
        }
        counts
    }

    /// Takes the reads and writes since the last call, in the order of their times. They are kept from the first call on, as long as
    /// somebody asks again and again, until a call `ends` it.
    #[must_use]
    pub fn take_accesses(&self, ends: bool) -> Accessed {
        let mut all = Accessed::default();
        for one in &self.counters {
            one.accesses.take(ends, &mut all);
        }
        all.accesses.sort_by_key(|access| access.at_ns);
        all
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
        let (has_ended, error) = (state.threads == 0, state.error.take());
        drop(state);
        if has_ended && !self.is_mounted() {
            self.place.leave();
        }
        error.map_or(Ok(()), Err)
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
        // One that no path leads to ends with this.
        drop(self.detached().take());
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
    pub fn ends_within(&self, timeout: Duration) -> bool {
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
        if !self.place.has(self.device).unwrap_or(true) {
            return false;
        }
        // Once ours has gone, another server may get its number, and mount on the same directory. That one lives.
        self.is_connected() || !self.is_on_top() || self.place.is_dead()
    }

    /// Whether the connection is there. It ends with the filesystem; threads that are still at work on a request end later.
    fn is_connected(&self) -> bool {
        self.connection.upgrade().is_some_and(|device| !device.has_ended())
    }

    fn is_on_top(&self) -> bool {
        self.place.device().is_ok_and(|top| top == self.device)
    }

    fn take_down(&self, busy: Busy) -> Result<(), Error> {
        let refuse = |errno| {
            Err(Error::Unmount {
                dir: self.dir().to_owned(),
                source: io::Error::from_raw_os_error(errno),
            })
        };
        if !self.is_mounted() {
            return refuse(libc::EINVAL);
        }
        // Unmounting would hit what lies on top of ours.
        if !self.is_on_top() {
            return refuse(libc::EBUSY);
        }
        mount::unmount(&self.place, busy)
    }

    /// Aborts the connection of a mount that has no name any more, through the kernel's control filesystem.
    fn abort(&self) -> io::Result<()> {
        // Its number may be another one's.
        if !self.is_connected() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        fs::write(
            format!("/sys/fs/fuse/connections/{}/abort", libc::minor(self.device)),
            "1",
        )
    }

    /// The kernel caps what INIT asks for at its default of 128 KiB; root may set more. Only speed depends on it.
    fn set_read_ahead(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let path = format!(
            "/sys/class/bdi/{}:{}/read_ahead_kb",
            libc::major(self.device),
            libc::minor(self.device)
        );
        if let Err(error) = fs::write(&path, (bytes / 1024).to_string()) {
            tracing::debug!(%error, path, "the kernel's read-ahead stays at its default");
        }
    }
}

/// Has the kernel learn that fsync, of files and of directories, asks for nothing: the server's answer to the first one counts
/// for all, also after the server's death.
fn silence_sync(root: &Path) {
    let sync = || {
        fs::File::open(root)?.sync_all()?;
        let unnamed = fs::OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_TMPFILE)
            .open(root)?;
        unnamed.sync_all()
    };
    if let Err(error) = sync() {
        tracing::warn!(%error, "fsync will ask the server once");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::error!(%error, "the filesystem stays mounted");
        }
    }
}

impl Running {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // The state is two plain values: a thread that panicked left them whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a thread off when it ends, however it does.
struct Ending(Arc<Running>);

impl Drop for Ending {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.threads -= 1;
        if thread::panicking() {
            let source = io::Error::other("it panicked");
            state.fail(source);
        }
        drop(state);
        self.0.ended.notify_all();
    }
}
