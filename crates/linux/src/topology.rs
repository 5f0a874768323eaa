//! Senses the machine: nodes, CPUs, caches, latencies, devices.
//!
//! hwloc knows the hardware (of this machine, of a recorded one in an XML file, or of an invented one); sysfs knows what
//! the kernel made of it, which wins where both speak: which node a CPU counts to, which CPUs may ever come, which queues
//! a device has.
//! Cost: some ten milliseconds for the machine we run on; read once at the start.

pub(crate) mod copy;
mod hwloc;
mod latency;
pub(crate) mod live;
#[cfg(test)]
pub(crate) mod made;
pub(crate) mod nodes;
pub(crate) mod paths;
mod source;
pub(crate) mod sysfs;

use homenode_policy::topology::{Topology, TopologyError};
use hwlocality::errors::RawHwlocError;
pub(crate) use hwlocality::topology::Topology as Hardware;
use hwlocality::topology::builder::TopologyBuilder;
pub use source::Source;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use sysfs::Tree;
pub use sysfs::parse_list;

/// Reads the topology of `source`.
///
/// # Errors
/// What could not be read, and what to do about it.
pub fn read(source: &Source) -> Result<Topology, Error> {
    let live = Tree::new(Path::new("/"));
    below(&load(source)?, source, (*source == Source::Live).then_some(&live))
}

/// The topology of the hardware that hwloc has read from `source`, corrected by what the kernel's `tree` tells.
pub(crate) fn below(machine: &Hardware, source: &Source, tree: Option<&Tree>) -> Result<Topology, Error> {
    let mut parts = hwloc::parts(machine);
    if let Some(tree) = tree {
        live::amend(&mut parts, tree);
    }
    Topology::new(parts).map_err(|problem| Error::Inconsistent {
        source: problem,
        origin: source.clone(),
    })
}

/// Loads hwloc's view of `source`.
pub(crate) fn load(source: &Source) -> Result<Hardware, Error> {
    let builder = TopologyBuilder::new();
    let builder = match source {
        Source::Live => builder,
        Source::Xml(path) => {
            let read = |source| Error::ReadFile {
                path: path.clone(),
                source,
            };
            let bytes = fs::read(path).map_err(read)?;
            let text = String::from_utf8(bytes).map_err(|_| Error::NotXml { path: path.clone() })?;
            // hwloc stops at a NUL and prints to stderr what its parser thinks of other kinds of files.
            if !text.contains("<topology") || text.contains('\0') {
                return Err(Error::NotXml { path: path.clone() });
            }
            builder
                .from_xml(&text)
                .map_err(|_| Error::NotXml { path: path.clone() })?
        }
        Source::Synthetic(description) => {
            let refused = || Error::NotSynthetic {
                description: description.clone(),
            };
            if !source::counts_fit(description) {
                return Err(Error::TooLarge {
                    description: description.clone(),
                });
            }
            builder.from_synthetic(description).map_err(|_| refused())?
        }
    };
    let failed = |problem: RawHwlocError| match source {
        Source::Live => Error::Load {
            source: problem.errno.map_or(io::ErrorKind::Other.into(), |errno| {
                io::Error::from_raw_os_error(errno.0)
            }),
        },
        Source::Xml(path) => Error::NotXml { path: path.clone() },
        Source::Synthetic(description) => Error::NotSynthetic {
            description: description.clone(),
        },
    };
    hwloc::load(builder).map_err(failed)
}

/// A topology could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text names no source.
    #[error(
        "\"{text}\" is no topology: give `live`, an XML file made with `lstopo --disallowed FILE.xml`, or a description such as \"node:4 core:8 pu:1\""
    )]
    UnknownSource {
        /// The text that was given.
        text: String,
    },
    /// The file cannot be read.
    #[error("cannot read topology file {path}: {source}", path = path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// The error of reading the file.
        source: io::Error,
    },
    /// The file is something else.
    #[error("{path} is no topology in hwloc's XML format: make one with `lstopo --disallowed FILE.xml`", path = path.display())]
    NotXml {
        /// The file.
        path: PathBuf,
    },
    /// The description does not parse.
    #[error(
        "hwloc does not understand the description \"{description}\": from the outside in, such as \"pack:2 node:2 core:4 pu:2\", ending in pu"
    )]
    NotSynthetic {
        /// The description.
        description: String,
    },
    /// The description is of an absurdly large machine.
    #[error(
        "\"{description}\" has more than {} CPUs: make it smaller",
        homenode_policy::topology::CPUS_MAX
    )]
    TooLarge {
        /// The description.
        description: String,
    },
    /// hwloc cannot read this machine.
    #[error("hwloc cannot read the topology of this machine: {source}: is /sys mounted?")]
    Load {
        /// The error from hwloc.
        source: io::Error,
    },
    /// The topology contradicts itself.
    #[error("the topology of {origin} is inconsistent: {source}")]
    Inconsistent {
        /// Where it is from.
        origin: Source,
        /// The contradiction.
        source: TopologyError,
    },
}
