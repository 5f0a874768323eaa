//! The machine in words: what a reader of the numbers has to know about where they come from.

use super::outcome::Machine;
use homenode_policy::topology::Topology;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Whether root may have rings; absent where the kernel has none.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Describes this machine and this run.
pub(super) fn describe(topology: &Topology, fio: String, rsync: String) -> Machine {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let huge_pages = Path::new("/sys/kernel/mm/transparent_hugepage");
    Machine {
        date: utc(SystemTime::now()),
        command_line: command_line(),
        homenode: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: line("/proc/sys/kernel/osrelease").unwrap_or_else(unknown),
        cpu_model: cpuinfo_field(&cpuinfo, "model name").map_or_else(unknown, str::to_owned),
        virtual_machine: cpuinfo_field(&cpuinfo, "flags")
            .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
        cpus: topology.cpus().iter().filter(|cpu| cpu.online).count(),
        nodes: topology.nodes().len(),
        memory_bytes: topology.nodes().iter().map(|node| node.memory_bytes).sum(),
        transparent_huge_pages: selected(line(huge_pages.join("enabled"))),
        shmem_huge_pages: selected(line(huge_pages.join("shmem_enabled"))),
        enable_uring: line(ENABLE_URING)
            .unwrap_or_else(|| "not there (the kernel has no FUSE over io_uring)".to_owned()),
        fio,
        rsync,
    }
}

/// How to get the ring on this machine.
pub(super) fn way_to_the_ring() -> String {
    match line(ENABLE_URING).as_deref() {
        None => "FUSE over io_uring needs Linux 6.14 or newer, built with CONFIG_FUSE_IO_URING".to_owned(),
        Some("Y") => format!("{ENABLE_URING} is Y already"),
        Some(_) => format!("to allow it, as root: echo Y > {ENABLE_URING}, then run the demo again"),
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn line(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// `madvise` of `always [madvise] never`.
fn selected(choices: Option<String>) -> String {
    let choices = choices.unwrap_or_else(unknown);
    let word = choices
        .split_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    word.map_or(choices.clone(), str::to_owned)
}

fn cpuinfo_field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    let line = cpuinfo
        .lines()
        .find(|line| line.split(':').next().is_some_and(|field| field.trim() == name))?;
    Some(line.split_once(':')?.1.trim())
}

fn command_line() -> String {
    let words: Vec<String> = std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    words.join(" ")
}

/// `2025-11-20 19:01 UTC`.
fn utc(time: SystemTime) -> String {
    const SECONDS_PER_DAY: u64 = 86_400;
    // A clock before 1970 is not set.
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / SECONDS_PER_DAY);
    let minutes = seconds % SECONDS_PER_DAY / 60;
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar. Years are counted from March, so that
/// the leap day is a year's last.
fn civil(days: u64) -> (u64, u64, u64) {
    const DAYS_PER_ERA: u64 = 146_097;
    let days = days + 719_468;
    let (era, of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        // As `date -u -d @SECONDS` tells.
        assert_eq!(at(0), "1970-01-01 00:00 UTC");
        assert_eq!(at(951_782_340), "2000-02-28 23:59 UTC");
        assert_eq!(at(951_868_799), "2000-02-29 23:59 UTC");
        assert_eq!(at(951_868_800), "2000-03-01 00:00 UTC");
        assert_eq!(at(1_735_689_599), "2024-12-31 23:59 UTC");
        assert_eq!(at(4_107_542_400), "2100-03-01 00:00 UTC");
    }

    #[test]
    fn fields_and_choices() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU: fast\nflags\t\t: fpu hypervisor\n";
        assert_eq!(cpuinfo_field(cpuinfo, "model name"), Some("Some CPU: fast"));
        assert_eq!(cpuinfo_field(cpuinfo, "model"), None);
        assert_eq!(selected(Some("always [madvise] never".to_owned())), "madvise");
        assert_eq!(selected(None), "unknown");
    }
}
