//! The machine in words: what a reader of the numbers has to know about where they come from.

use super::outcome::Machine;
use homenode_policy::topology::Topology;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Whether root may have rings; absent where the kernel has none.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Describes this machine and this run.
pub(super) fn describe(topology: &Topology, fio: String, rsync: String) -> Machine {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let huge_pages = Path::new("/sys/kernel/mm/transparent_hugepage");
    Machine {
        date: date(),
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
fn date() -> String {
    let date = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output();
    let text = date.ok().filter(|date| date.status.success()).map(|date| date.stdout);
    text.map_or_else(unknown, |text| String::from_utf8_lossy(&text).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_choices() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU: fast\nflags\t\t: fpu hypervisor\n";
        assert_eq!(cpuinfo_field(cpuinfo, "model name"), Some("Some CPU: fast"));
        assert_eq!(cpuinfo_field(cpuinfo, "model"), None);
        assert_eq!(selected(Some("always [madvise] never".to_owned())), "madvise");
        assert_eq!(selected(None), "unknown");
    }
}
