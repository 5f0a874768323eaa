//! Recordings: all that sensing read in one period, in a directory, so that it can be decided elsewhere.
//!
//! ```text
//! DIR/meta           the version of this layout, and the machine's kernel
//! DIR/topology.xml   the hardware, as hwloc writes it
//! DIR/0, DIR/1       the files of the machine as they were when the period began, and when it ended
//! DIR/N/proc/bpf     what programs in the kernel had counted by then, or why they had not
//! DIR/N/proc/homenode/tasks   what servers of pools told by then
//! DIR/0.files, …     a line for each file: what it cannot carry itself
//! ```
//!
//! A recording is made while the machine is sensed, from the very bytes that were sensed: what is read from it is the
//! same snapshot. `meta` is written last: a recording that was cut short has none, or one without its last line. The lists end with a line of
//! their own, and have the sizes of the other files. A recording of another version is refused: what programs had counted has no mark of its own
//! that tells how long its entries are. A recording has names of processes and threads, and no command lines or environments. The files
//! that the doctor looks at are recorded with it, and the places of mounts of tmpfs.

use super::{Ask, Error, Sensed, Sensor};
use crate::doctor::{Before, Examined};
use crate::topology::copy::{Broken, Copy, Recorded};
use crate::topology::sysfs::Tree;
use crate::topology::{self, Source};
use hwlocality::topology::export::xml::XMLExportFlags;
use rustix::fs::{Mode, OFlags};
use rustix::process::geteuid;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

const NAME: &str = "homenode-recording ";
const VERSION: &str = "homenode-recording 6";
const META: &str = "meta";
/// The last line of `meta`.
const END: &str = "end";
const TOPOLOGY: &str = "topology.xml";

/// Records one period of the machine below `root`, whose hardware is `source`, into `directory`, which is made. If it is the machine we run
/// on, the servers of its pools are asked by `ask`.
///
/// # Errors
/// Reading or writing a file has failed: the files written until then stay. [`Error::Shared`] for a directory that is not this user's alone.
pub fn record(source: &Source, root: &Path, directory: &Path, period: Duration, ask: Ask) -> Result<Sensed, Error> {
    let (named, held) = (directory, own(directory)?);
    // By its descriptor: whoever owns the directory above may put another one, with links in it, in its place.
    let directory = &Path::new("/proc/self/fd").join(held.as_raw_fd().to_string());
    let cannot_write = |path: PathBuf| {
        let path = path
            .strip_prefix(directory)
            .map_or(path.clone(), |name| named.join(name));
        |source: io::Error| Error::Write { path, source }
    };
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.join(name);
        fs::write(&path, bytes).map_err(cannot_write(path))
    };
    if fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some()) {
        let directory = named.to_path_buf();
        return Err(Error::NotEmpty { directory });
    }
    let hardware = topology::load(source)?;
    let xml = hardware
        .export_xml(XMLExportFlags::empty())
        .map_err(|_| Error::Export)?;
    write(TOPOLOGY, xml.as_bytes())?;

    let mut sensor = Sensor::begin(Tree::copied(root, Copy::new(&directory.join("0"))), ask)?;
    let before = Before::read(&sensor.tree);
    thread::sleep(period);
    let end = Tree::copied(root, Copy::new(&directory.join("1")));
    let begin = std::mem::replace(&mut sensor.tree, end);
    let sensed = sense(&mut sensor, directory)?;
    // Read to be recorded.
    let _ = Examined::read(&sensor.tree, &before, sensed.clone());
    for (tree, name) in [(begin, "0.files"), (sensor.tree, "1.files")] {
        let copy = tree.into_copy().expect("both trees were made with a copy");
        copy.finish(&directory.join(name))
            .map_err(|(path, source)| cannot_write(path)(source))?;
    }
    let kernel = Tree::new(root).text("proc/sys/kernel/osrelease").unwrap_or_default();
    write(META, format!("{VERSION}\nkernel {kernel}\n{END}\n").as_bytes())?;
    Ok(sensed)
}

/// Opens a directory, which is made if it is missing, for its owner alone: it gets what /proc shows to the owner of a thread alone. Refuses one into which others may put links: root would write through them.
fn own(directory: &Path) -> Result<File, Error> {
    let mut new = fs::DirBuilder::new();
    let made = new.recursive(true).mode(0o700).create(directory);
    // The name itself may be a link that others put there, or something by now that is read without an end.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || Ok(File::from(rustix::fs::open(directory, flags, Mode::empty())?));
    let held = made.and_then(|()| open());
    let held = held.and_then(|held| Ok((held.metadata()?, held)));
    let path = directory.to_path_buf();
    match held {
        Ok((found, held)) if found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0 => Ok(held),
        Ok(_) => Err(Error::Shared { directory: path }),
        Err(source) => Err(Error::Write { path, source }),
    }
}

/// The period that was recorded into `directory`.
///
/// # Errors
/// The first file that is missing or damaged.
pub fn recorded(directory: &Path) -> Result<Sensed, Error> {
    let (mut sensor, _) = open(directory)?;
    sense(&mut sensor, directory)
}

/// Returns the period recorded into `directory`, with what the doctor looks at.
pub(crate) fn recorded_whole(directory: &Path) -> Result<Examined, Error> {
    let (mut sensor, before) = open(directory)?;
    let sensed = sense(&mut sensor, directory)?;
    Ok(Examined::read(&sensor.tree, &before, sensed))
}

/// A sensor that has seen the beginning of the period, and is to see its end.
fn open(directory: &Path) -> Result<(Sensor, Before), Error> {
    check(directory)?;
    let tree = |name: &str| {
        let (root, list) = (directory.join(name), directory.join(format!("{name}.files")));
        let recorded = Recorded::open(&root, &list).map_err(|problem| broken(directory, problem, &list))?;
        Ok::<_, Error>(Tree::recorded(&root, recorded))
    };
    let (begin, end) = (tree("0")?, tree("1")?);
    let before = Before::read(&begin);
    let mut sensor = Sensor::begin(begin, Box::new(Vec::new))?;
    sensor.tree = end;
    Ok((sensor, before))
}

/// Looks that the recording is whole, as far as `meta` tells.
fn check(directory: &Path) -> Result<(), Error> {
    match fs::metadata(directory) {
        Ok(found) if found.is_dir() => {}
        Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
            let path = directory.to_path_buf();
            return Err(Error::Denied { path, source });
        }
        found => {
            let (path, is_there) = (directory.to_path_buf(), found.is_ok());
            return Err(Error::NoRecording { path, is_there });
        }
    }
    let meta = directory.join(META);
    let text = fs::read_to_string(&meta).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::Unfinished {
            directory: directory.to_path_buf(),
        },
        _ => unread(directory, meta.clone(), error),
    })?;
    let lines: Vec<&str> = text.lines().collect();
    match lines.first() {
        Some(line) if *line == VERSION => {}
        Some(line)
            if line
                .strip_prefix(NAME)
                .is_some_and(|number| number.parse::<u32>().is_ok()) =>
        {
            return Err(Error::Version {
                directory: directory.to_path_buf(),
                found: (*line).to_owned(),
                expected: VERSION,
            });
        }
        _ => {
            let problem = format!("it does not begin with \"{VERSION}\"");
            return Err(damaged(directory, meta, problem));
        }
    }
    if lines.last() != Some(&END) || !text.ends_with('\n') {
        return Err(damaged(directory, meta, "it is cut short".to_owned()));
    }
    Ok(())
}

/// Both ways take the hardware from the file, so that they cannot differ.
fn sense(sensor: &mut Sensor, directory: &Path) -> Result<Sensed, Error> {
    let xml = directory.join(TOPOLOGY);
    let source = Source::Xml(xml.clone());
    let hardware = topology::load(&source).and_then(|hardware| topology::below(&hardware, &source, Some(&sensor.tree)));
    let topology = hardware.map_err(|error| {
        let problem = match error {
            topology::Error::Inconsistent { source, .. } => format!("it is inconsistent: {source}"),
            topology::Error::ReadFile { source, .. } => return broken(directory, Broken::List(source), &xml),
            _ => "hwloc cannot read it".to_owned(),
        };
        damaged(directory, xml, problem)
    })?;
    sensor.sense(&topology)
}

fn broken(directory: &Path, problem: Broken, list: &Path) -> Error {
    match problem {
        Broken::Missing(path) => missing(directory, path),
        Broken::List(error) if error.kind() == io::ErrorKind::NotFound => missing(directory, list.to_path_buf()),
        Broken::List(error) => unread(directory, list.to_path_buf(), error),
        Broken::Cut(path) => damaged(directory, path, "it is not as long as it was recorded".to_owned()),
    }
}

fn missing(directory: &Path, path: PathBuf) -> Error {
    let directory = directory.to_path_buf();
    Error::Incomplete { directory, path }
}

/// The error of a file that is there and cannot be read.
fn unread(directory: &Path, path: PathBuf, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::PermissionDenied => Error::Denied { path, source },
        _ => damaged(directory, path, source.to_string()),
    }
}

fn damaged(directory: &Path, path: PathBuf, problem: String) -> Error {
    let directory = directory.to_path_buf();
    Error::Damaged {
        directory,
        path,
        problem,
    }
}
