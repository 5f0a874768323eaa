//! A device at work: its threads, and how it ends.

use super::bell::{self, Bell, Ear, RingAtEnd};
use super::control::{Control, failed};
use super::error::Error;
use super::queue::{Parts, Queue, stay};
use super::{Added, Origin, device_of, disk_path, file_path, record};
use crate::driver::Arena;
use crate::process::serve_writes;
use homenode_engine::CpuId;
use homenode_engine::blk::trace::Recorder;
use homenode_engine::blk::{Device, DriverQueue};
use parking_lot::Mutex;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time that the kernel, or the manager of /dev, gets to make the device's files.
const FILE_TIMEOUT: Duration = Duration::from_secs(5);
const FILE_PAUSE: Duration = Duration::from_millis(10);
/// Most devices that lie on a disk.
const UPON_MAX: usize = 1024;
/// Time between two looks whether a disk has ended.
const END_PAUSE: Duration = Duration::from_millis(10);
/// Time for the program that ends a disk to tell its result once the disk has ended.
const RESULT_TIMEOUT: Duration = Duration::from_secs(10);

/// A program, and its first argument: see [`end_by`].
static ENDER: OnceLock<(&str, &str)> = OnceLock::new();

/// Parts that a device is served with.
#[derive(Debug)]
pub struct Setup<Q> {
    /// A core, and a hardware queue that this core owns, for each queue of [`Added::queue_cpus`].
    pub device: Arc<Device<Q>>,
    /// From [`Added::buffers`].
    pub buffers: Arc<Arena>,
    /// CPUs, by queue, on which the queue's thread is to be while all CPUs of the queue are offline.
    pub near: Vec<Vec<CpuId>>,
    /// Recorders of each queue's requests, by queue.
    pub recorders: Vec<Option<Recorder>>,
}

/// A block device that threads of this process serve. Dropping it ends the device, also under its users: they get errors.
#[derive(Debug)]
pub struct Server {
    control: Control,
    device: u32,
    tenure: Tenure,
    disk: PathBuf,
    bell: Arc<Bell>,
    threads: Vec<JoinHandle<Result<(), Error>>>,
    is_lasting: bool,
    /// Its users are to go on waiting if this is dropped now.
    waits: bool,
    /// It was started: the kernel may keep something of it. Of one that is only being taken up the kernel would write to nobody.
    has_disk: bool,
    is_over: bool,
}

/// Time for which a device has its number. The driver gives a number to another device once it is free, of this process too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tenure {
    device: u32,
    mark: u64,
    nth: u64,
}

/// The last tenure of each number in this process.
static LAST: Mutex<BTreeMap<u32, u64>> = Mutex::new(BTreeMap::new());

impl Tenure {
    /// Begins with what gives the number, before which nobody sees that it is given.
    pub(super) fn begin(mark: u64, give: impl FnOnce() -> Result<u32, Error>) -> Result<Self, Error> {
        let mut last = LAST.lock();
        let device = give()?;
        let nth = last.entry(device).or_default();
        *nth += 1;
        let nth = *nth;
        Ok(Self { device, mark, nth })
    }

    /// Whether no later device of this process has had the number.
    fn is_last(&self) -> bool {
        LAST.lock().get(&self.device) == Some(&self.nth)
    }

    /// Whether the device that has the number and the mark now is the one that this began with.
    fn is_of(&self, device: u32, mark: u64) -> bool {
        (device, mark) == (self.device, self.mark) && self.is_last()
    }
}

/// State that all threads share.
struct Shared<Q> {
    layer: Arc<Device<Q>>,
    buffers: Arc<Arena>,
    near: Vec<Vec<CpuId>>,
    added: DeviceShape,
    /// The device's file. The driver ends the device when the last thread lets go of it.
    file: File,
    ear: Ear,
    began: Instant,
}

struct DeviceShape {
    device: u32,
    depth: u16,
    io_bytes: u32,
    queue_bytes: u64,
    queue_cpus: Vec<Vec<CpuId>>,
}

impl Added {
    /// Starts the threads, and then the device.
    ///
    /// # Errors
    /// [`Error`]; nothing is left behind.
    ///
    /// # Panics
    /// When the parts of the setup do not belong to this device.
    pub fn start<Q: DriverQueue + 'static>(mut self, setup: Setup<Q>) -> Result<Server, Error> {
        let queues = self.queue_cpus.len();
        assert!(
            setup.near.len() == queues && setup.recorders.len() == queues,
            "each queue has a home and a recorder"
        );
        check_map(&setup.device, queues);
        if self.taken_up.is_none() {
            self.set_limits(setup.device.limits())?;
        }
        let (bell, ear) = bell::new().map_err(|source| Error::Open {
            path: file_path(self.info.device),
            source,
        })?;
        let file = match (self.file.take(), &mut self.taken_up) {
            (Some(file), _) => file,
            // After the buffers, which may find no memory: older drivers allow no second try.
            (None, taken_up) => {
                let control = self.control.as_ref().expect("the server is started once");
                taken_up.as_mut().expect("a new device has a file").begin(control)?
            }
        };
        let shared = Arc::new(Shared {
            layer: setup.device,
            buffers: setup.buffers,
            near: setup.near,
            added: DeviceShape {
                device: self.info.device,
                depth: self.info.depth,
                io_bytes: self.info.io_bytes_max,
                queue_bytes: self.queue_bytes(),
                queue_cpus: std::mem::take(&mut self.queue_cpus),
            },
            file,
            ear,
            began: Instant::now(),
        });
        let can_repeat = self.taken_up.as_ref().map(|taken_up| taken_up.can_repeat);
        let mut server = Server {
            device: self.info.device,
            tenure: self.tenure,
            disk: disk_path(self.info.device),
            control: self.control.take().expect("the server is started once"),
            bell: Arc::new(bell),
            threads: Vec::with_capacity(queues),
            is_lasting: self.origin.is_some(),
            waits: can_repeat == Some(true),
            has_disk: false,
            is_over: false,
        };
        // Dropped, the server takes all of it away again, or leaves it as it was.
        server.begin(shared, setup.recorders)?;
        let note = || match &self.origin {
            Some(origin) => record::put(server.device, self.info.mark, origin),
            None => Ok(()),
        };
        // Nobody is to try again before an older driver has ended the recovery.
        if can_repeat != Some(false) {
            note()?;
        }
        match can_repeat {
            None => server.control.start(server.device)?,
            Some(_) => server.control.end_recovery(server.device)?,
        }
        (server.waits, server.has_disk) = (false, true);
        if can_repeat.is_none() {
            wait_for(&server.disk, || fs::metadata(&server.disk))?;
        }
        if can_repeat == Some(false)
            && let Err(error) = note()
        {
            // The device is served.
            tracing::warn!(%error, "the next server will not know the volume of {}", server.disk.display());
        }
        Ok(server)
    }
}

impl Server {
    /// Starts a thread for each queue; waits until all have offered their tags.
    fn begin<Q: DriverQueue + 'static>(
        &mut self,
        shared: Arc<Shared<Q>>,
        recorders: Vec<Option<Recorder>>,
    ) -> Result<(), Error> {
        let (ready, all_ready) = mpsc::channel();
        for (index, recorder) in recorders.into_iter().enumerate() {
            let (shared, bell, ready) = (Arc::clone(&shared), Arc::clone(&self.bell), ready.clone());
            let run = move || {
                let _ring = RingAtEnd(&bell);
                shared.serve(index, recorder, &ready)
            };
            let thread = thread::Builder::new().name(format!("ublk{}q{index}", self.device));
            let thread = thread.spawn(run).map_err(|source| Error::Queue {
                queue: index,
                device: self.disk.clone(),
                source,
            })?;
            self.threads.push(thread);
        }
        drop((ready, shared));
        if all_ready.iter().take(self.threads.len()).count() == self.threads.len() {
            return Ok(());
        }
        self.bell.ring();
        Err(self.join().expect_err("one of them has ended"))
    }

    /// The device that it serves: `/dev/ublkbN`.
    #[must_use]
    pub fn disk(&self) -> &Path {
        &self.disk
    }

    /// Notes `origin` of a lasting device, in place of what was noted before.
    ///
    /// # Errors
    /// [`Error::Record`].
    pub fn note(&self, origin: &Origin) -> Result<(), Error> {
        match self.is_lasting {
            true => record::put(self.device, self.tenure.mark, origin),
            false => Ok(()),
        }
    }

    /// Whether it is served no more, though nobody has stopped it here: somebody else has, or a thread met an error.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Ends the device: what waits is done, what comes later fails. All of it is gone then but its number, which stays taken as long
    /// as somebody has the device open.
    ///
    /// # Errors
    /// The first [`Error`] on the way, or what ended the threads before; the device has ended all the same, if the kernel lets it.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        self.is_over = true;
        let stopped = match self.has_ended() || !self.has_disk {
            true => Ok(()),
            false => self.end_disk(),
        };
        self.bell.ring();
        let joined = self.join();
        // Where somebody else has deleted it, its number may be another device's.
        let deleted = match self.control.info(self.device) {
            Ok(info) if self.tenure.is_of(info.device, info.mark) => self.control.delete(self.device),
            Ok(_) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            Err(error) => Err(failed("describe", self.device)(error)),
        };
        if self.is_lasting && deleted.is_ok() && self.tenure.is_last() {
            record::remove(self.device, self.tenure.mark);
        }
        joined.and(stopped).and(deleted)
    }

    /// Has the kernel write what it keeps of the disk, and of a filesystem on it, and end the disk. A queue that ends meanwhile tells its error itself.
    fn end_disk(&self) -> Result<(), Error> {
        let child = ENDER.get().and_then(|(program, verb)| {
            let mut command = Command::new(program);
            command
                .arg(verb)
                .arg(&self.disk)
                .arg(std::process::id().to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::null());
            // Signals to this process's group are not for it.
            command.process_group(0).spawn().ok()
        });
        let flushed = match child {
            Some(child) => wait_until(child, || self.has_ended()),
            // The kernel writes it when other disks are stopped; what it writes to a lasting one fails then.
            None if self.is_lasting => flush_disk(&self.disk),
            None => Ok(()),
        };
        let flushed = flushed.map_err(failed("write what the kernel keeps of", self.device));
        // There was no such program, or it has failed.
        let stopped = match self.has_ended() {
            true => Ok(()),
            false => self.control.stop(self.device),
        };
        flushed.and(stopped)
    }

    fn join(&mut self) -> Result<(), Error> {
        let threads = self.threads.drain(..).enumerate();
        let ended = threads.map(|(queue, thread)| {
            let device = self.disk.clone();
            thread.join().unwrap_or(Err(Error::Panicked { queue, device }))
        });
        // All of them have ended before one is looked at. Those that another one has ended do not know why.
        let mut errors: Vec<Error> = ended.collect::<Vec<_>>().into_iter().filter_map(Result::err).collect();
        errors.sort_by_key(|error| error.errno() == libc::ECANCELED);
        errors.into_iter().next().map_or(Ok(()), Err)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.waits {
            self.bell.ring();
            let _ = self.join();
        } else if !self.is_over {
            // Who wants to know it calls `stop`.
            let _ = self.end();
        }
    }
}

impl<Q: DriverQueue> Shared<Q> {
    /// Serves a queue on the calling thread, until the queue ends.
    fn serve(&self, index: usize, recorder: Option<Recorder>, ready: &mpsc::Sender<()>) -> Result<(), Error> {
        let failed = |source| Error::Queue {
            queue: index,
            device: disk_path(self.added.device),
            source,
        };
        let (cpus, near) = (&self.added.queue_cpus[index], &self.near[index]);
        // First, so that whatever is made from here on is of their node.
        stay(cpus, near);
        serve_writes();
        let mut core = self.layer.join(index).map_err(io::Error::other).map_err(failed)?;
        core.record(recorder);
        let parts = Parts {
            index: u16::try_from(index).expect("there are as many queues as the driver has"),
            depth: self.added.depth,
            io_bytes: self.added.io_bytes,
            first_buffer: self.added.queue_bytes * index as u64,
            device: &self.file,
            buffers: &self.buffers,
            core,
            bell: &self.ear,
            cpus,
            near,
            began: self.began,
        };
        let mut queue = Queue::new(parts).map_err(failed)?;
        // Nobody waits for it when another queue has failed.
        let _ = ready.send(());
        queue.serve().map_err(failed)
    }
}

/// Lets `program`, with `verb`, a disk's path and this process's number as arguments, call [`end_disk`] where a device ends. A thread of this process that
/// waits for the kernel to write waits for other threads of this process: killed then, the process would keep all of its files open for ever.
/// Where no such program can be started, this process ends the disk by itself. Only the first call counts.
pub fn end_by(program: &'static str, verb: &'static str) {
    let _ = ENDER.set((program, verb));
}

/// Has the kernel write what it keeps of a disk, and of a filesystem on it, and end the disk, unless it has ended, or is another server's by now. This
/// process ends with `server`, its parent: a disk whose server was killed is the next server's.
///
/// Where the driver refuses that, the server ends the disk, and tells the error.
///
/// # Errors
/// The errno of a write.
pub fn end_disk(disk: &Path, server: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let is_orphan = || getppid().is_none_or(|parent| parent.as_raw_nonzero().get().cast_unsigned() != server);
    if is_orphan() {
        return Ok(());
    }
    let flushed = flush_disk(disk);
    if !disk.exists() {
        return flushed;
    }
    let device = device_of(disk).ok_or(io::Error::from_raw_os_error(libc::EINVAL))?;
    if let Ok(control) = Control::open()
        && let Ok(info) = control.info(device)
        && u32::try_from(info.server) == Ok(server)
    {
        let _ = control.stop(device);
    }
    flushed
}

/// Has the kernel write what it keeps of a disk, if that is there, and of all that lies on it: partitions, devices that use it (LVM, dm-crypt, md), and filesystems.
///
/// # Errors
/// The errno of a write, or of opening a device: the others are written all the same.
fn flush_disk(disk: &Path) -> io::Result<()> {
    let mut all = Vec::new();
    if let Some(name) = disk.file_name() {
        list_upon(Path::new("/sys/class/block"), name, &mut all);
    }
    let upon = all.iter().map(|name| flush_alone(&Path::new("/dev").join(name)));
    upon.chain(std::iter::once_with(|| flush_alone(disk)))
        .fold(Ok(()), io::Result::and)
}

/// Lists the names of block devices that lie on one, uppermost first.
fn list_upon(class: &Path, name: &OsStr, all: &mut Vec<OsString>) {
    let names = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).collect::<Vec<_>>()
    };
    let own = class.join(name);
    let parts = names(&own)
        .into_iter()
        .filter(|part| own.join(part).join("partition").exists());
    // A write to one that was suspended waits until that goes on.
    let is_suspended =
        |upon: &OsString| fs::read(class.join(upon).join("dm/suspended")).is_ok_and(|told| told.starts_with(b"1"));
    for upon in parts.chain(names(&own.join("holders"))) {
        if !all.contains(&upon) && all.len() < UPON_MAX && !is_suspended(&upon) {
            list_upon(class, &upon, all);
            all.push(upon);
        }
    }
}

/// [`flush_disk`] of one device.
fn flush_alone(disk: &Path) -> io::Result<()> {
    /// `BLKFLSBUF` of linux/fs.h.
    const FLUSH_BUFFERS: libc::Ioctl = 0x1261;
    let disk = match File::open(disk) {
        Ok(disk) => disk,
        // It has ended, or has no name here.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENXIO | libc::ENODEV)) => return Ok(()),
        Err(error) => return Err(error),
    };
    // SAFETY: takes a number and no memory.
    unsafe { libc::ioctl(disk.as_raw_fd(), FLUSH_BUFFERS, 0) };
    disk.sync_all()
}

/// Waits until a program ends, and a while longer than until `is_over`. Its exit code is an errno.
fn wait_until(mut child: Child, is_over: impl Fn() -> bool) -> io::Result<()> {
    let mut over = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return match status.code() {
                Some(0) => Ok(()),
                Some(errno) => Err(io::Error::from_raw_os_error(errno)),
                None => Err(io::Error::other(format!("the program that does it ended: {status}"))),
            };
        }
        if is_over() && over.get_or_insert_with(Instant::now).elapsed() > RESULT_TIMEOUT {
            break;
        }
        thread::sleep(END_PAUSE);
    }
    // It may wait for the end of the device, whose number another one may have afterwards.
    child.kill()?;
    let reap = move || drop(child.wait());
    thread::Builder::new().name("ender".to_owned()).spawn(reap).map(drop)
}

/// Opens a disk for this use alone: as long as the file is there nobody mounts it. `None` when somebody has it so, by a
/// mount for example. Whoever has merely opened it is not in the way. Waits for no server.
///
/// # Errors
/// The error of opening it.
pub fn claim(disk: &Path) -> io::Result<Option<File>> {
    let mut options = File::options();
    match options.read(true).custom_flags(libc::O_EXCL).open(disk) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Each core has a hardware queue of its own: else its thread would sleep while another one's requests wait for it.
fn check_map<Q: DriverQueue>(device: &Device<Q>, queues: usize) {
    let mut map = device.map();
    map.sort_unstable();
    assert!(
        map.into_iter().eq(0..queues),
        "each queue has a core, and a hardware queue for it alone"
    );
}

/// Calls `look` until it finds the file, for at most [`FILE_TIMEOUT`].
pub(super) fn wait_for<T>(path: &Path, look: impl Fn() -> io::Result<T>) -> Result<T, Error> {
    let start = Instant::now();
    loop {
        match look() {
            Ok(found) => return Ok(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound && start.elapsed() < FILE_TIMEOUT => {
                thread::sleep(FILE_PAUSE);
            }
            Err(source) => {
                let path = path.to_owned();
                return Err(Error::Open { path, source });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_lie_on_a_disk_are_listed_uppermost_first() {
        let class = tempfile::tempdir().unwrap();
        let disk = class.path().join("ublkb0");
        for directory in ["ublkb0p1/holders/dm-0", "ublkb0p2/holders/dm-1", "queue", "holders/md0"] {
            fs::create_dir_all(disk.join(directory)).unwrap();
        }
        for (name, suspended) in [("dm-0", "0\n"), ("dm-1", "1\n")] {
            let dm = class.path().join(name).join("dm");
            fs::create_dir_all(&dm).unwrap();
            fs::write(dm.join("suspended"), suspended).unwrap();
        }
        for part in ["ublkb0p1", "ublkb0p2"] {
            fs::write(disk.join(part).join("partition"), "1").unwrap();
            std::os::unix::fs::symlink(disk.join(part), class.path().join(part)).unwrap();
        }
        let mut all = Vec::new();
        list_upon(class.path(), "ublkb0".as_ref(), &mut all);
        let place = |name: &str| all.iter().position(|one| one == name).unwrap();
        assert!(place("dm-0") < place("ublkb0p1"));
        assert_eq!((all.len(), place("md0")), (4, 3));
        place("ublkb0p2");
    }

    #[test]
    fn a_number_that_is_taken_again_is_another_devices() {
        // No driver gives so many.
        const DEVICE: u32 = u32::MAX;
        let begin = || Tenure::begin(7, || Ok(DEVICE)).unwrap();
        let first = begin();
        assert!(first.is_of(DEVICE, 7) && !first.is_of(DEVICE, 8) && !first.is_of(1, 7));
        let second = begin();
        assert!(!first.is_of(DEVICE, 7) && second.is_of(DEVICE, 7));
        assert!(!first.is_last());
    }

    #[test]
    fn a_flush_by_a_program_ends_with_the_program_or_with_the_device() {
        let run = |script: &str, is_over: bool| {
            let child = Command::new("sh").args(["-c", script]).spawn();
            wait_until(child.unwrap(), || is_over)
        };
        run("exit 0", false).unwrap();
        let failed = run("exit 5", false).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::EIO));
        let killed = run("kill -KILL $$", false).unwrap_err();
        assert!(killed.to_string().contains("signal: 9"), "{killed}");
        let start = Instant::now();
        run("sleep 60", true).unwrap();
        assert!(start.elapsed() < Duration::from_secs(30), "it was waited for");
    }

    #[test]
    fn a_disk_that_is_gone_needs_no_flush() {
        let file = tempfile::NamedTempFile::new().unwrap();
        flush_disk(file.path()).unwrap();
        flush_disk(Path::new("/dev/ublkb4294967295")).unwrap();
        assert!(flush_disk(Path::new("/dev/null/disk")).is_err());
    }
}
