//! A store of backing files that is the slow model itself, with a kernel that writes to them unasked.
//!
//! A file that is discarded keeps its blocks until the kernel has let go of it, as a file without a name does.

use crate::file_model::model::{File, Model};
use homenode_engine::NodeId;
use homenode_engine::backing::{BackingFile, BackingStatus, BackingStore, Registration};
use homenode_engine::fs::{Error, Placement, Result, Whence, fallocate_mode};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

#[derive(Clone, Debug, Default)]
pub(crate) struct TestStore(Arc<Mutex<Kernel>>);

#[derive(Default)]
struct Kernel {
    model: Model,
    files: Vec<State>,
}

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
    placement: Option<Placement>,
    has_writers: bool,
    is_discarded: bool,
    registrations: u32,
}

impl TestStore {
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

    /// Sets whether a process has the file open or mapped for writing.
    pub(crate) fn set_writers(&self, file: usize, has_writers: bool) {
        self.0.lock().files[file].has_writers = has_writers;
    }

    pub(crate) fn placement(&self, file: usize) -> Option<Placement> {
        self.0.lock().files[file].placement
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
        (connection == self.connection).then_some(i32::try_from(self.file + 1).expect("few files"))
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
        self.0.lock().model.used()
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

    fn set_size(&self, bytes: u64) -> Result<()> {
        self.with(|kernel, number| {
            kernel.model.files[number].truncate(bytes);
            Ok(())
        })
    }

    fn allocate(&self, offset: u64, bytes: u64, keeps_size: bool) -> Result<()> {
        let mode = if keeps_size { fallocate_mode::KEEP_SIZE } else { 0 };
        self.with(|kernel, number| kernel.model.fallocate(number, mode, offset, bytes))
    }

    fn punch(&self, offset: u64, bytes: u64) -> Result<()> {
        let mode = fallocate_mode::KEEP_SIZE | fallocate_mode::PUNCH_HOLE;
        self.with(|kernel, number| kernel.model.fallocate(number, mode, offset, bytes))
    }

    fn seek(&self, offset: u64, whence: Whence) -> Result<u64> {
        self.with(|kernel, number| kernel.model.files[number].seek(offset, whence))
    }

    fn set_times(&self, atime_ns: Option<i64>, mtime_ns: Option<i64>) -> Result<()> {
        self.with(|kernel, number| {
            let times = &mut kernel.files[number].times;
            atime_ns.map(|ns| times.insert("atime", ns));
            mtime_ns.map(|ns| times.insert("mtime", ns));
            Ok(())
        })
    }

    fn map(&self) -> Result<Vec<(NodeId, u64)>> {
        let blocks = self.status()?.blocks;
        Ok((blocks > 0)
            .then_some((NodeId(0), blocks * crate::support::BLOCK))
            .into_iter()
            .collect())
    }

    fn place(&self, placement: Option<Placement>) -> Result<()> {
        self.with(|kernel, number| {
            kernel.files[number].placement = placement;
            Ok(())
        })
    }

    fn move_to(&self, _: NodeId, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        let bytes = self.status()?.size;
        progress(bytes, bytes);
        Ok(0)
    }

    fn has_writers(&self) -> Result<bool> {
        Ok(self.store.0.lock().files[self.number].has_writers)
    }

    fn descriptor(&self) -> Result<OwnedFd> {
        Ok(std::fs::File::open("/dev/null").expect("every machine has it").into())
    }

    fn discard(&self) {
        let mut kernel = self.store.0.lock();
        kernel.files[self.number].is_discarded = true;
        kernel.model.files[self.number] = File::default();
    }
}
