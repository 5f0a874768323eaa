//! The machines of this directory, for tests that go over all of them: README.md tells what a file of facts says.

use std::fs;
use std::path::{Path, PathBuf};

/// What is known of a machine without reading its XML file.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) xml: PathBuf,
    /// `slit`, `hmat` or `assumed`.
    pub(crate) latency: String,
    /// Ascending.
    pub(crate) nodes: Vec<Node>,
    pub(crate) online: Vec<u32>,
    pub(crate) present: Vec<u32>,
    pub(crate) possible: Vec<u32>,
    pub(crate) devices: Vec<Device>,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: u16,
    pub(crate) kib: u64,
    /// Those that are online.
    pub(crate) cpus: Vec<u32>,
    /// None where nobody measured.
    pub(crate) distances: Option<Vec<u32>>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) home: Option<u16>,
}

/// Every machine of this directory, by name.
///
/// Panics when there is an XML file without facts, facts without an XML file, or facts that are none: so that none is left
/// out of the tests.
pub(crate) fn machines() -> Vec<Machine> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/topologies");
    let with = |extension: &str| {
        let entries = fs::read_dir(&directory).expect("the directory of recorded machines");
        let paths = entries.map(|entry| entry.expect("it can be listed").path());
        let mut paths: Vec<PathBuf> = paths
            .filter(|path| path.extension().is_some_and(|other| other == extension))
            .collect();
        paths.sort();
        paths
    };
    let (machines, facts) = (with("xml"), with("txt"));
    for path in machines.iter().chain(&facts) {
        let other = path.with_extension(if machines.contains(path) { "txt" } else { "xml" });
        assert!(
            other.exists(),
            "{} is there without {}: tests/topologies/README.md tells how a machine is added",
            path.display(),
            other.display()
        );
    }
    assert!(!machines.is_empty(), "there are recorded machines");
    machines.iter().map(|xml| machine(xml)).collect()
}

fn machine(xml: &Path) -> Machine {
    let path = xml.with_extension("txt");
    let text = fs::read_to_string(&path).expect("facts can be read");
    let origin = ["# Recorded ", "# Synthetic: "];
    assert!(
        origin.iter().any(|start| text.starts_with(start)),
        "{}: the first line tells where the machine comes from, as {origin:?}",
        path.display()
    );
    let mut machine = Machine {
        name: xml.file_stem().expect("it has a name").to_string_lossy().into_owned(),
        xml: xml.to_path_buf(),
        latency: String::new(),
        nodes: Vec::new(),
        online: Vec::new(),
        present: Vec::new(),
        possible: Vec::new(),
        devices: Vec::new(),
    };
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let understood = fact(&mut machine, &words);
        assert!(understood.is_some(), "{}: what is \"{line}\"?", path.display());
    }
    machine.devices.sort();
    machine
}

/// Takes in one line. None when it is no fact.
fn fact(machine: &mut Machine, words: &[&str]) -> Option<()> {
    match *words {
        ["latency", source] => machine.latency = source.to_owned(),
        ["node", id, "kib", kib, "cpus", cpus, "distances", ref distances @ ..] => machine.nodes.push(Node {
            id: id.parse().ok()?,
            kib: kib.parse().ok()?,
            cpus: list(cpus)?,
            distances: match distances {
                ["-"] => None,
                numbers => Some(numbers.iter().map(|word| word.parse().ok()).collect::<Option<_>>()?),
            },
        }),
        ["cpus", "online", online, "present", present, "possible", possible] => {
            machine.online = list(online)?;
            machine.present = list(present)?;
            machine.possible = list(possible)?;
        }
        ["device", name, kind, "home", home] => machine.devices.push(Device {
            name: name.to_owned(),
            kind: kind.to_owned(),
            home: match home {
                "none" => None,
                node => Some(node.parse().ok()?),
            },
        }),
        _ => return None,
    }
    Some(())
}

/// `0-3,8`, or `none`.
fn list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.split(',').filter(|part| *part != "none") {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(numbers)
}
