//! State that the tests look at, as the kernel writes it: masks of the load's threads, settings of queues and interrupts.

use homenode_linux::affinity::act::{Kernel, Live};
use homenode_policy::affinity::{QueueKind, Target, ThreadId};
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

/// The card that is moved, and the other end of its cable.
const CARD: &str = "hn0";
const OTHER: &str = "hn1";
const QUEUES: u32 = 4;
/// Beyond the card: packets to it go through the card's queues, and end at the other one.
pub(crate) const BEYOND: &str = "10.77.0.2";

/// How the machine was in the beginning.
pub(crate) struct Machine {
    session: u32,
    mask: String,
    /// The thread that its program has pinned.
    pinned: ThreadId,
    files: BTreeMap<String, String>,
}

impl Machine {
    pub(crate) fn look(session: u32) -> Self {
        let threads = threads(session);
        let main = threads.iter().find(|id| id.thread == session).unwrap();
        let pinned = threads.iter().find(|id| name(**id).as_deref() == Some("pinned"));
        Self {
            session,
            mask: mask(*main).unwrap(),
            pinned: *pinned.unwrap(),
            files: files(),
        }
    }

    /// Every thread that is there now is as the load began; but the one that its program has pinned.
    pub(crate) fn assert_same(&self, seed: u64) {
        assert_eq!(files(), self.files, "seed {seed}");
        // By its number: a list of threads of which others end meanwhile can lack some.
        assert_eq!(mask(self.pinned).as_deref(), Some("1"), "seed {seed}");
        for id in threads(self.session) {
            let Some(mask) = mask(id) else { continue };
            if id != self.pinned {
                assert_eq!(mask, self.mask, "seed {seed}: {id:?} {:?}", name(id));
            }
        }
    }
}

/// Two cards that are joined, with several queues each.
pub(crate) fn make_cards() {
    let queues = QUEUES.to_string();
    let size = ["numtxqueues", &queues, "numrxqueues", &queues];
    let words = [
        &["link", "add", CARD],
        &size[..],
        &["type", "veth", "peer", "name", OTHER],
        &size[..],
    ];
    ip(&words.concat());
    for card in ["lo", CARD, OTHER] {
        ip(&["link", "set", card, "up"]);
    }
    ip(&["address", "add", "10.77.0.1/24", "dev", CARD]);
    let other = fs::read_to_string(format!("/sys/class/net/{OTHER}/address")).unwrap();
    ip(&["neighbour", "add", BEYOND, "lladdr", other.trim(), "dev", CARD]);
}

pub(crate) fn ip(words: &[&str]) {
    let status = Command::new("ip").args(words).status().unwrap();
    assert!(status.success(), "ip {}: {status}", words.join(" "));
}

/// XPS and RPS of all queues, and the affinity of every interrupt, by file.
fn files() -> BTreeMap<String, String> {
    let mut paths = Vec::new();
    for entry in fs::read_dir("/proc/irq").unwrap().flatten() {
        paths.push(format!(
            "/proc/irq/{}/smp_affinity",
            entry.file_name().to_str().unwrap()
        ));
    }
    let mut texts = texts(paths);
    texts.extend(queue_files());
    texts
}

/// XPS and RPS of all queues, by file.
fn queue_files() -> BTreeMap<String, String> {
    let mut paths = Vec::new();
    for card in [CARD, OTHER] {
        for index in 0..QUEUES {
            paths.push(format!("/sys/class/net/{card}/queues/tx-{index}/xps_cpus"));
            paths.push(format!("/sys/class/net/{card}/queues/rx-{index}/rps_cpus"));
        }
    }
    texts(paths)
}

fn texts(paths: Vec<String>) -> BTreeMap<String, String> {
    let text = |path: String| Some((fs::read_to_string(&path).ok()?, path));
    let texts = paths.into_iter().filter_map(text);
    texts.map(|(text, path)| (path, text)).collect()
}

/// Returns the threads of all processes of a session.
pub(crate) fn threads(session: u32) -> Vec<ThreadId> {
    let kernel = Live::new();
    let of_it = |id: &ThreadId| {
        kernel
            .process(id.process)
            .is_ok_and(|process| process.session == session)
    };
    kernel.threads().unwrap().into_iter().filter(of_it).collect()
}

pub(crate) fn queues() -> Vec<Target> {
    let kinds = [QueueKind::Receive, QueueKind::Transmit];
    let all = (0..QUEUES).flat_map(|index| kinds.map(|kind| Target::of_queue(CARD, kind, index)));
    all.flatten().collect()
}

/// Returns a thread's mask as `status` has it; `None` when the thread has ended.
fn mask(id: ThreadId) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{}/task/{}/status", id.process, id.thread)).ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:"))?;
    Some(mask.trim().to_owned())
}

pub(crate) fn name(id: ThreadId) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{}/task/{}/comm", id.process, id.thread)).ok()?;
    Some(name.trim().to_owned())
}
