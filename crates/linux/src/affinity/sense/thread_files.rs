//! The files of a thread in /proc, parsed without touching the heap.

use super::disks::Bytes;
use std::str;

/// Fields of `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::affinity) struct Stat<'a> {
    pub(in crate::affinity) name: &'a str,
    /// Parent of the thread's process.
    pub(in crate::affinity) parent: u32,
    /// Session of the thread's process; 0 for none, and when the process ends just now.
    pub(in crate::affinity) session: u32,
    pub(in crate::affinity) flags: u64,
    /// In user and kernel mode together, in clock ticks.
    pub(in crate::affinity) run_ticks: u64,
    /// In clock ticks since boot.
    pub(in crate::affinity) started: u64,
    pub(in crate::affinity) cpu: u32,
}

impl Stat<'_> {
    /// `include/linux/sched.h`: a thread of the kernel, or one whose mask the kernel lets nobody set (io_uring's workers).
    const KERNEL_THREAD: u64 = 0x0020_0000;
    const NO_SET_AFFINITY: u64 = 0x0400_0000;

    /// Whether its CPUs are the kernel's business alone.
    pub(in crate::affinity) fn is_the_kernels(&self) -> bool {
        self.flags & (Self::KERNEL_THREAD | Self::NO_SET_AFFINITY) != 0
    }
}

/// Fields as proc(5) numbers them. The name may hold spaces and parentheses; the last `)` is its end.
pub(in crate::affinity) fn stat(bytes: &[u8]) -> Option<Stat<'_>> {
    const FIRST_AFTER_NAME: usize = 3;
    const PARENT: usize = 4;
    const SESSION: usize = 6;
    const FLAGS: usize = 9;
    const UTIME: usize = 14;
    const STIME: usize = 15;
    const START: usize = 22;
    const PROCESSOR: usize = 39;
    let name_start = bytes.iter().position(|byte| *byte == b'(')? + 1;
    let name_end = bytes.iter().rposition(|byte| *byte == b')')?;
    let name = valid(bytes.get(name_start..name_end)?);
    let mut fields = str::from_utf8(&bytes[name_end + 1..]).ok()?.split_ascii_whitespace();
    let mut next = FIRST_AFTER_NAME;
    let mut field = |number: usize| {
        let found = fields.nth(number - next)?;
        next = number + 1;
        // A process that ends has the session -1.
        if number == SESSION && found == "-1" {
            return Some(0);
        }
        found.parse::<u64>().ok()
    };
    Some(Stat {
        name,
        parent: field(PARENT)?.try_into().ok()?,
        session: field(SESSION)?.try_into().ok()?,
        flags: field(FLAGS)?,
        run_ticks: field(UTIME)?.saturating_add(field(STIME)?),
        started: field(START)?,
        cpu: field(PROCESSOR)?.try_into().ok()?,
    })
}

/// Names are cut at 15 bytes, perhaps in the middle of a character.
pub(super) fn valid(name: &[u8]) -> &str {
    name.utf8_chunks().next().map_or("", |chunk| chunk.valid())
}

/// Nanoseconds on a CPU, of `schedstat`.
pub(super) fn run_ns(bytes: &[u8]) -> Option<u64> {
    str::from_utf8(bytes)
        .ok()?
        .split_ascii_whitespace()
        .next()?
        .parse()
        .ok()
}

/// Bytes read from and written to disks, of `io`.
pub(super) fn disk_bytes(bytes: &[u8]) -> Option<Bytes> {
    let text = str::from_utf8(bytes).ok()?;
    let field = |name| -> Option<u64> { value(text, name)?.parse().ok() };
    Some(Bytes {
        read: field("read_bytes")?,
        written: field("write_bytes")?,
    })
}

/// The mask as a list, of `status`.
pub(super) fn allowed_list(bytes: &[u8]) -> Option<&str> {
    status_value(bytes, "Cpus_allowed_list")
}

/// The mask in words, of `status`; CPUs that do not run are in it too.
pub(in crate::affinity) fn allowed_mask(bytes: &[u8]) -> Option<&str> {
    status_value(bytes, "Cpus_allowed")
}

/// The name in the first line of `status` may be anything that is no new line.
fn status_value<'a>(bytes: &'a [u8], name: &str) -> Option<&'a str> {
    let first_line_end = bytes.iter().position(|byte| *byte == b'\n')?;
    value(str::from_utf8(&bytes[first_line_end + 1..]).ok()?, name)
}

/// Returns the value behind `name:` at the start of a line.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let values = text
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    values.map(str::trim).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "77 (a) b (c 1 2) S 1 77 77 0 -1 4194560 2 0 1 0 30 12 0 0 20 0 9 0 4711 \
                        5000 6 18446744073709551615 1 1 0 0 0 0 0 4096 17642 0 0 0 -1 5 0 0 0 0 0 1 1 1 1 1 1 1 0\n";

    #[test]
    fn stat_with_a_nasty_name() {
        let expected = Stat {
            name: "a) b (c 1 2",
            parent: 1,
            session: 77,
            flags: 4_194_560,
            run_ticks: 42,
            started: 4711,
            cpu: 5,
        };
        assert_eq!(stat(STAT.as_bytes()), Some(expected));
        assert!(!expected.is_the_kernels());
        for flags in ["2097152", "67108864", "69238880"] {
            assert!(
                stat(STAT.replace("4194560", flags).as_bytes())
                    .unwrap()
                    .is_the_kernels()
            );
        }
        for text in ["", "1 (x) S 0", "1 x S 0", "1 )x( S 1", &STAT[..90]] {
            assert_eq!(stat(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_name_that_is_cut_in_a_character() {
        let mut bytes = STAT.as_bytes().to_vec();
        bytes.splice(4..15, b"k\xc3\xa4\xc3".iter().copied());
        assert_eq!(stat(&bytes).unwrap().name, "k\u{e4}");
    }

    #[test]
    fn the_other_files() {
        assert_eq!(run_ns(b"123456789 42 7\n"), Some(123_456_789));
        assert_eq!(run_ns(b"\n"), None);
        let io =
            "rchar: 9\nwchar: 9\nsyscr: 9\nsyscw: 9\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 1\n";
        let (read, written) = (4096, 8192);
        assert_eq!(disk_bytes(io.as_bytes()), Some(Bytes { read, written }));
        assert_eq!(disk_bytes(b"rchar: 9\n"), None);
        let status = b"Name:\tCpus_allowed_list:\t9\nState:\tS\nCpus_allowed:\tff\nCpus_allowed_list:\t0-3,7\nMems_allowed:\t1\n";
        assert_eq!(allowed_list(status), Some("0-3,7"));
        assert_eq!(allowed_mask(status), Some("ff"));
        assert_eq!(allowed_list(b"Name:\tCpus_allowed_list:\t9\n"), None);
        assert_eq!(allowed_list(b""), None);
    }

    #[test]
    fn those_of_this_thread() {
        let read = |file: &str| std::fs::read(format!("/proc/thread-self/{file}")).unwrap();
        let status = read("status");
        let allowed = crate::topology::sysfs::parse_list(allowed_list(&status).unwrap()).unwrap();
        let own = crate::cpu::allowed_cpus().unwrap();
        assert!(own.iter().all(|cpu| allowed.contains(&cpu.0)), "{own:?} {allowed:?}");
        assert!(own.iter().any(|cpu| cpu.0 == stat(&read("stat")).unwrap().cpu));
        assert!(disk_bytes(&read("io")).is_some());
    }
}
