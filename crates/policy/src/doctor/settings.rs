//! Settings of the kernel that cost.

use super::{Case, Facts, Finding, Problem, finding};
use alloc::vec::Vec;

/// A fault takes about a microsecond: fewer a second are less than a hundredth of a CPU.
const HINT_FAULTS_PER_S_MIN: u64 = 10_000;
/// Balancing earns its faults when at least this share of them moves a page.
const MIGRATED_PERCENT_MIN: u64 = 5;

pub(super) fn find(case: &Case<'_>, findings: &mut Vec<Finding>) {
    if let Some(balancing) = case.facts.balancing.filter(|balancing| balancing.on) {
        let faults_per_s = case.per_second(balancing.hint_faults);
        let migrated_per_s = case.per_second(balancing.migrated_pages);
        let earned = migrated_per_s.saturating_mul(100) >= faults_per_s.saturating_mul(MIGRATED_PERCENT_MIN);
        if faults_per_s >= HINT_FAULTS_PER_S_MIN && !earned {
            findings.push(finding(Problem::IdleBalancing {
                faults_per_s,
                migrated_per_s,
            }));
        }
    }
    if let Some(reclaim) = case.facts.zone_reclaim.filter(|reclaim| reclaim.mode != 0) {
        findings.push(finding(Problem::ZoneReclaim {
            mode: reclaim.mode,
            reclaims: reclaim.reclaims,
        }));
    }
}

/// On machines of any shape.
pub(super) fn find_of_pools(facts: &Facts, findings: &mut Vec<Finding>) {
    if facts.fuse_rings == Some(false) {
        findings.push(finding(Problem::NoRings));
    }
    if facts.huge_tmpfs_denied == Some(true) {
        findings.push(finding(Problem::NoHugePages));
    }
}
