//! Recordings: all that sensing read in one period, in a directory, so that it can be decided elsewhere.
//!
//! ```text
//! DIR/meta           the version of this layout, and the machine's kernel
//! DIR/topology.xml   the hardware, as hwloc writes it
//! DIR/0, DIR/1       the files of the machine as they were when the period began, and when it ended
//! DIR/N/proc/bpf     what programs in the kernel had counted by then, or why they had not
//! DIR/0.files, …     a line for each file: what it cannot carry itself
//! ```
//!
//! A recording is made while the machine is sensed, from the very bytes that were sensed: what is read from it is the
//! same snapshot. It has names of processes and threads, and no command lines or environments. What the doctor looks at
//! is recorded with it, among it the places of mounts of tmpfs.

use super::{Error, Sensed, Sensor};
use crate::doctor::{Before, Examined};
use crate::topology::copy::{Broken, Copy, Recorded};
use crate::topology::sysfs::Tree;
use crate::topology::{self, Source};
use hwlocality::topology::export::xml::XMLExportFlags;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

const VERSION: &str = "homenode-recording 1";

/// Records one period of the machine below `root`, whose hardware is `source`, into `directory`, which is made.
///
/// # Errors
/// What could not be read or written. What was written until then stays.
pub fn record(source: &Source, root: &Path, directory: &Path, period: Duration) -> Result<Sensed, Error> {
    if fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some()) {
        let directory = directory.to_path_buf();
        return Err(Error::NotEmpty { directory });
    }
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.join(name);
        fs::write(&path, bytes).map_err(|source| Error::Write { path, source })
    };
    fs::create_dir_all(directory).map_err(|source| Error::Write {
        path: directory.to_path_buf(),
        source,
    })?;
    let hardware = topology::load(source)?;
    let xml = hardware
        .export_xml(XMLExportFlags::empty())
        .map_err(|_| Error::Export)?;
    write("topology.xml", xml.as_bytes())?;
    let kernel = Tree::new(root).text("proc/sys/kernel/osrelease").unwrap_or_default();
    write("meta", format!("{VERSION}\nkernel {kernel}\n").as_bytes())?;

    let mut sensor = Sensor::begin(Tree::copied(root, Copy::new(&directory.join("0"))))?;
    let before = Before::read(&sensor.tree);
    thread::sleep(period);
    let end = Tree::copied(root, Copy::new(&directory.join("1")));
    let begin = std::mem::replace(&mut sensor.tree, end);
    let sensed = sense(&mut sensor, directory)?;
    // Read to be recorded.
    let _ = Examined::read(&sensor.tree, &before, sensed.clone());
    for (tree, name) in [(begin, "0.files"), (sensor.tree, "1.files")] {
        let copy = tree.into_copy().expect("both trees were made with one");
        copy.finish(&directory.join(name))
            .map_err(|(path, source)| Error::Write { path, source })?;
    }
    Ok(sensed)
}

/// The period that was recorded into `directory`.
///
/// # Errors
/// The first file that is missing or damaged.
pub fn recorded(directory: &Path) -> Result<Sensed, Error> {
    let (mut sensor, _) = open(directory)?;
    sense(&mut sensor, directory)
}

/// The same, with what the doctor looks at.
pub(crate) fn recorded_whole(directory: &Path) -> Result<Examined, Error> {
    let (mut sensor, before) = open(directory)?;
    let sensed = sense(&mut sensor, directory)?;
    Ok(Examined::read(&sensor.tree, &before, sensed))
}

/// A sensor that has seen the beginning of the period, and is to see its end.
fn open(directory: &Path) -> Result<(Sensor, Before), Error> {
    let meta = directory.join("meta");
    let text = fs::read_to_string(&meta).map_err(|error| broken(directory, Broken::List(error), &meta))?;
    if text.lines().next() != Some(VERSION) {
        return Err(Error::Damaged {
            directory: directory.to_path_buf(),
            path: meta,
            problem: format!("it does not begin with \"{VERSION}\""),
        });
    }
    let xml = directory.join("topology.xml");
    if !xml.exists() {
        return Err(broken(directory, Broken::Missing(xml.clone()), &xml));
    }
    let tree = |name: &str| {
        let (root, list) = (directory.join(name), directory.join(format!("{name}.files")));
        let recorded = Recorded::open(&root, &list).map_err(|problem| broken(directory, problem, &list))?;
        Ok::<_, Error>(Tree::recorded(&root, recorded))
    };
    let (begin, end) = (tree("0")?, tree("1")?);
    let before = Before::read(&begin);
    let mut sensor = Sensor::begin(begin)?;
    sensor.tree = end;
    Ok((sensor, before))
}

/// Both ways take the hardware from the file, so that they cannot differ.
fn sense(sensor: &mut Sensor, directory: &Path) -> Result<Sensed, Error> {
    let source = Source::Xml(directory.join("topology.xml"));
    let topology = topology::below(&topology::load(&source)?, &source, Some(&sensor.tree))?;
    sensor.sense(&topology)
}

fn broken(directory: &Path, problem: Broken, list: &Path) -> Error {
    let directory = directory.to_path_buf();
    let damaged = |path: PathBuf, problem: String| Error::Damaged {
        directory: directory.clone(),
        path,
        problem,
    };
    match problem {
        Broken::Missing(path) => Error::Incomplete { directory, path },
        Broken::List(error) if error.kind() == io::ErrorKind::NotFound => Error::Incomplete {
            directory,
            path: list.to_path_buf(),
        },
        Broken::List(error) => damaged(list.to_path_buf(), error.to_string()),
        Broken::Changed(path) => damaged(path, "its length is not the one it was recorded with".to_owned()),
    }
}
