//! tuned: its active profile, and those that this includes.

use super::{Conflict, Sets, settings};
use crate::topology::sysfs::Tree;
use homenode_policy::doctor::Helper;
use std::collections::BTreeSet;

/// Lines of a profile that give threads or interrupts CPUs.
const TUNED_KEYS: [&str; 4] = ["isolated_cores", "default_irq_smp_affinity", "banned_cpus", "affinity"];
/// Profiles include others; no deeper than this.
const PROFILES_MAX: usize = 16;

pub(super) fn tuned(tree: &Tree, process: u32) -> Option<Conflict> {
    let active = tree.text("etc/tuned/active_profile")?;
    let mut profiles: Vec<String> = active.split_ascii_whitespace().map(str::to_owned).collect();
    let mut keys = BTreeSet::new();
    let mut next = 0;
    while next < profiles.len().min(PROFILES_MAX) {
        let directories = [
            "etc/tuned",
            "etc/tuned/profiles",
            "usr/lib/tuned",
            "usr/lib/tuned/profiles",
        ];
        let texts = directories
            .iter()
            .find_map(|directory| tree.text(format!("{directory}/{}/tuned.conf", profiles[next])));
        for (key, value) in settings(&texts.unwrap_or_default()) {
            if key == "include" {
                let included = value.split([',', ' ']).filter(|name| !name.is_empty());
                profiles.extend(included.map(str::to_owned));
            } else if TUNED_KEYS.contains(&key) {
                keys.insert(key.to_owned());
            }
        }
        next += 1;
    }
    (!keys.is_empty()).then(|| Conflict {
        who: Helper::Tuned,
        what: format!(
            "tuned (process {process}) has the profile {active}, which sets {}",
            Vec::from_iter(keys).join(", ")
        ),
        effect: "threads whose mask it has narrowed are left alone; interrupts may be moved, until it starts again"
            .to_owned(),
        remedy:
            "choose a profile that isolates no CPUs (tuned-adm profile …), or say off for the processes it cares for"
                .to_owned(),
        sets: Sets::Nothing,
    })
}
