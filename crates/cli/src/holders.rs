//! Who keeps a mount busy: processes with a file, directory, program or mapping there.

use crate::mountinfo::Located;
use std::fs;
use std::path::Path;

/// More are summed up.
const NAMED_MAX: usize = 5;

/// The processes that hold something on the mount, as `name (pid)`.
pub(crate) fn of(located: &Located) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let own = std::process::id();
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let mut holders: Vec<u32> = pids.filter(|pid| *pid != own && holds(*pid, located)).collect();
    holders.sort_unstable();
    let more = holders.len().saturating_sub(NAMED_MAX);
    let mut named: Vec<String> = holders.into_iter().take(NAMED_MAX).map(named).collect();
    if more > 0 {
        named.push(format!("{more} more"));
    }
    named
}

fn holds(pid: u32, located: &Located) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    let below = |path: &Path| fs::read_link(path).is_ok_and(|target| target.starts_with(&located.path));
    let entries = |name: &str| {
        fs::read_dir(process.join(name))
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
    };
    ["cwd", "root", "exe"].iter().any(|name| below(&process.join(name)))
        || entries("fd").any(|entry| below(&entry.path()))
        || entries("map_files").any(|entry| below(&entry.path()))
}

fn named(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{} ({pid})", name.trim_end())
}
