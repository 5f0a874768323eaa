//! The files of a thread in /proc that name their values, parsed without touching the heap.

use super::disks::Bytes;
use std::str;

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
    use crate::process::Stat;

    #[test]
    fn fields_after_odd_process_names_are_parsed() {
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
    fn files_of_this_thread_are_read() {
        let read = |file: &str| std::fs::read(format!("/proc/thread-self/{file}")).unwrap();
        let status = read("status");
        let allowed = crate::topology::sysfs::parse_list(allowed_list(&status).unwrap()).unwrap();
        let own = crate::cpu::allowed_cpus().unwrap();
        assert!(own.iter().all(|cpu| allowed.contains(&cpu.0)), "{own:?} {allowed:?}");
        assert!(own.iter().any(|cpu| cpu.0 == Stat::parse(&read("stat")).unwrap().cpu));
        assert!(disk_bytes(&read("io")).is_some());
    }
}
