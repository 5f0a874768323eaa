//! The model of time behind `scaling`: each access at a price. It says nothing of queues at a node's memory, which slow down
//! those who all work on one node: on a real machine the difference is larger.

use super::lab::Counts;

/// Time of an access that hits a CPU's cache, of eight bytes as the guest's kernel copies.
const HIT_NS: f64 = 1.0;
/// Time to fetch a cache line from the memory of the CPU's own node.
const LOCAL_NS: f64 = 90.0;

/// When the last node is through with its accesses, where remote memory is `delay_ns` farther than local.
pub(super) fn ns(by_node: &[Counts], delay_ns: f64) -> f64 {
    let ns = |counts: &Counts| {
        counts.raw.total() * HIT_NS + counts.missed.total() * LOCAL_NS + counts.missed.remote * delay_ns
    };
    by_node.iter().map(ns).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::super::lab::Homes;
    use super::*;

    #[test]
    fn modelled_time_charges_each_access() {
        let homes = |local, remote| Homes { local, remote };
        let counts = Counts {
            raw: homes(700.0, 300.0),
            missed: homes(10.0, 5.0),
            direct_missed: homes(99.0, 99.0),
        };
        assert!((ns(&[Counts::default(), counts], 100.0) - (1000.0 + 15.0 * 90.0 + 500.0)).abs() < 1e-9);
    }
}
