//! The programs themselves: loading, attaching, and emptying their maps.

use super::drain::drain;
use crate::topology::sysfs::Tree;
use libbpf_rs::{Iter, Link, MapCore, MapFlags, Object, ObjectBuilder};
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

/// Counts with BPF programs of their own: one part may be refused where others are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Threads,
    Sockets,
    Disks,
    /// Files of a FUSE mount.
    Mount,
    /// Files of a tmpfs.
    Tmpfs,
}

/// Aligned as the loader wants it.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

static THREADS: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/threads.bpf.o")));
static SOCKETS: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/sockets.bpf.o")));
static DISKS: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/disks.bpf.o")));
static FILES: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/files.bpf.o")));

impl Part {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Sockets => "sockets",
            Self::Disks => "disks",
            Self::Mount => "mount",
            Self::Tmpfs => "tmpfs",
        }
    }

    fn object(self) -> &'static [u8] {
        match self {
            Self::Threads => &THREADS.0,
            Self::Sockets => &SOCKETS.0,
            Self::Disks => &DISKS.0,
            Self::Mount | Self::Tmpfs => &FILES.0,
        }
    }

    /// Returns the number that the part's programs need of the machine: mask words, network namespace or page bytes. Programs of files need
    /// a device instead.
    pub(super) fn constant(self, tree: &Tree) -> u32 {
        match self {
            Self::Threads => mask_words(tree),
            Self::Sockets => network_namespace(),
            Self::Disks => u32::try_from(rustix::param::page_size()).expect("a page is smaller than 4 GiB"),
            Self::Mount | Self::Tmpfs => 0,
        }
    }

    /// Programs that count alike, the best ones first: which of them a kernel takes depends on its version (tracepoints of
    /// sockets came with 6.3, a function of tmpfs alone that writes with 6.6), and on whether it has IPv6.
    fn alternatives(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Threads => &[&["each_thread"]],
            Self::Sockets => &[
                &["at_receive", "at_send"],
                &[
                    "after_receive",
                    "after_receive_v6",
                    "after_send",
                    "after_send_v6",
                    "after_send_page",
                ],
                &["after_receive", "after_send", "after_send_page"],
            ],
            Self::Disks => &[&["at_request", "at_dirty"], &["at_request"]],
            Self::Mount => &[&["after_mount_read", "after_mount_write"]],
            Self::Tmpfs => &[
                &["after_tmpfs_read", "after_tmpfs_write"],
                &["after_tmpfs_read", "after_generic_write"],
            ],
        }
    }
}

/// Programs that count. They go when this does.
#[derive(Debug)]
pub(crate) struct Programs {
    /// Before the object: they are detached first.
    links: Vec<Link>,
    object: Object,
    part: Part,
    missed_before: u64,
}

impl Programs {
    pub(crate) fn load(part: Part, constant: u32) -> Result<Self, String> {
        // The loader would tell the terminal of each attempt.
        libbpf_rs::set_print(None);
        let mut why = String::new();
        for programs in part.alternatives() {
            match Self::attach(part, programs, constant) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => why = format!("the kernel does not take the BPF programs that count them: {error:#}"),
            }
        }
        Err(why)
    }

    fn attach(part: Part, programs: &[&str], constant: u32) -> Result<Self, libbpf_rs::Error> {
        let is_chosen = |name: &OsStr| programs.iter().any(|program| name == *program);
        let mut object = ObjectBuilder::default().open_memory(part.object())?;
        for mut program in object.progs_mut() {
            let chosen = is_chosen(program.name());
            program.set_autoload(chosen);
        }
        for mut map in object.maps_mut() {
            if map.name().to_string_lossy().ends_with(".rodata") {
                map.set_initial_value(&constant.to_le_bytes())?;
            }
        }
        let object = object.load()?;
        let chosen = object.progs_mut().filter(|program| is_chosen(program.name()));
        let links = chosen.map(|program| program.attach()).collect::<Result<_, _>>()?;
        Ok(Self {
            links,
            object,
            part,
            missed_before: 0,
        })
    }

    /// Appends the counts to `bytes`, as a file of a recording has them. Threads are counted since they began, sockets and
    /// disks since the last call.
    pub(crate) fn read(&mut self, bytes: &mut Vec<u8>) -> Result<(), String> {
        let read = match self.part {
            Part::Threads => self.read_threads(bytes),
            Part::Sockets | Part::Disks | Part::Mount | Part::Tmpfs => self.empty(bytes),
        };
        read.map_err(|error| format!("the counts of BPF programs cannot be read: {error}"))
    }

    fn read_threads(&self, bytes: &mut Vec<u8>) -> Result<(), Box<dyn std::error::Error>> {
        for link in &self.links {
            Iter::new(link)?.read_to_end(bytes)?;
        }
        Ok(())
    }

    /// First what found no room, then every count with its key; the next begins from nothing.
    fn empty(&mut self, bytes: &mut Vec<u8>) -> Result<(), Box<dyn std::error::Error>> {
        let missed = self.object.maps().find(|map| map.name() == "missed");
        let missed = missed
            .ok_or("a map of theirs is missing")?
            .lookup(&[0; 4], MapFlags::ANY)?;
        let missed = u64::from_le_bytes(missed.unwrap_or_default().try_into().unwrap_or_default());
        bytes.extend((missed - self.missed_before).to_le_bytes());
        for counts in self.object.maps().filter(|map| map.map_type().is_hash_map()) {
            drain(&counts, bytes)?;
        }
        self.missed_before = missed;
        Ok(())
    }
}

/// The number of ours: only its cards are seen. 0 is none's.
fn network_namespace() -> u32 {
    let inode = fs::metadata("/proc/self/ns/net").map(|it| it.ino());
    inode.ok().and_then(|inode| u32::try_from(inode).ok()).unwrap_or(0)
}

/// Words of a mask that has all CPUs that there may ever be.
fn mask_words(tree: &Tree) -> u32 {
    let possible = tree.list("sys/devices/system/cpu/possible").unwrap_or_default();
    possible.iter().max().map_or(1, |highest| highest / u64::BITS + 1)
}

/// Why no program can be loaded, as far as that can be told without trying.
pub(crate) fn refusal() -> Option<String> {
    /// `include/linux/proc_ns.h`: the namespaces that the kernel began with.
    const INITIAL: [(&str, &str); 2] = [("pid", "pid:[4026531836]"), ("time", "time:[4026531834]")];
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let outside = |(kind, initial): &(&str, &str)| {
        fs::read_link(format!("/proc/self/ns/{kind}")).is_ok_and(|link| link.as_os_str() != *initial)
    };
    if cfg!(target_endian = "big") {
        return Some("BPF programs count them, and there are none for big-endian processors".to_owned());
    }
    if !may_load(&text("/proc/thread-self/status")) {
        let why = "BPF programs count them, and only root may load some";
        return Some(format!("{why}, or who has CAP_BPF and CAP_PERFMON"));
    }
    if INITIAL.iter().any(outside) {
        let why = "BPF programs count them, by numbers that threads do not have inside of a container";
        return Some(format!("{why}; run it outside"));
    }
    if !fs::exists("/sys/kernel/btf/vmlinux").unwrap_or(false) {
        let why = "BPF programs count them, and this kernel does not tell its structures";
        return Some(format!("{why} (CONFIG_DEBUG_INFO_BTF)"));
    }
    if text("/sys/kernel/security/lockdown").contains("[confidentiality]") {
        let why = "BPF programs count them, and lockdown=confidentiality lets none read";
        return Some(why.to_owned());
    }
    None
}

/// Whether a process with this status has the rights that loading takes: CAP_SYS_ADMIN, or CAP_BPF and CAP_PERFMON.
fn may_load(status: &str) -> bool {
    const SYS_ADMIN: u64 = 1 << 21;
    const PERFMON_AND_BPF: u64 = 1 << 38 | 1 << 39;
    let mut lines = status.lines().filter_map(|line| line.strip_prefix("CapEff:"));
    let effective = lines.next().and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    effective.is_some_and(|mask| mask & SYS_ADMIN != 0 || mask & PERFMON_AND_BPF == PERFMON_AND_BPF)
}

#[cfg(test)]
mod tests;
