//! Yardsticks: caches whose hit ratios are known. Each returns the hits of a trace.

use super::lists::Lists;
use super::trace::Trace;

/// Evicts the block that was used least recently.
pub(super) fn lru(trace: &Trace, frames: usize) -> u64 {
    let mut cached = Lists::<1>::new(trace.ids.len());
    let mut hits = 0;
    for block in &trace.requests {
        if cached.list_of(*block).is_some() {
            hits += 1;
        } else if cached.len(0) == frames {
            cached.pop(0);
        }
        cached.push(0, *block);
    }
    hits
}

/// Blocks used once lately, used more than once, and those evicted from each.
const T1: usize = 0;
const T2: usize = 1;
const B1: usize = 2;
const B2: usize = 3;

/// ARC, as in figure 4 of Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache".
pub(super) fn arc(trace: &Trace, frames: usize) -> u64 {
    let mut lists = Lists::<4>::new(trace.ids.len());
    // What T1 is to have.
    let mut target = 0;
    let mut hits = 0;
    for block in &trace.requests {
        let list = lists.list_of(*block);
        match list {
            Some(T1 | T2) => hits += 1,
            Some(B1) => {
                target = frames.min(target + (lists.len(B2) / lists.len(B1)).max(1));
                replace(&mut lists, target, false);
            }
            Some(_) => {
                target = target.saturating_sub((lists.len(B1) / lists.len(B2)).max(1));
                replace(&mut lists, target, true);
            }
            None if lists.len(T1) + lists.len(B1) == frames => {
                if lists.len(B1) == 0 {
                    lists.pop(T1);
                } else {
                    lists.pop(B1);
                    replace(&mut lists, target, false);
                }
            }
            None => {
                let known: usize = (0..4).map(|list| lists.len(list)).sum();
                if known == 2 * frames {
                    lists.pop(B2);
                }
                if known >= frames {
                    replace(&mut lists, target, false);
                }
            }
        }
        lists.push(if list.is_none() { T1 } else { T2 }, *block);
        debug_assert!(lists.len(T1) + lists.len(T2) <= frames && lists.len(T1) + lists.len(B1) <= frames);
    }
    hits
}

fn replace(lists: &mut Lists<4>, target: usize, is_in_b2: bool) {
    let once = lists.len(T1);
    let (from, to) = if once > 0 && (once > target || (is_in_b2 && once == target)) {
        (T1, B1)
    } else {
        (T2, B2)
    };
    if let Some(victim) = lists.pop(from) {
        lists.push(to, victim);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lru_hits_a_loop_that_fits_and_misses_a_longer_loop() {
        let rounds = |blocks: u64| Trace::new("loop", (0..10).flat_map(|_| 0..blocks).collect());
        assert_eq!(lru(&rounds(8), 8), 72);
        assert_eq!(lru(&rounds(9), 8), 0);
    }

    #[test]
    fn arc_keeps_reused_blocks_during_a_scan() {
        let mut ids = vec![];
        for round in 0..100 {
            ids.extend((0..5).chain(0..5));
            ids.extend(1000 + round * 20..1000 + (round + 1) * 20);
        }
        let trace = Trace::new("scan", ids);
        assert_eq!(arc(&trace, 10), 100 * 10 - 5, "all but the first use of each of five");
        assert_eq!(lru(&trace, 10), 100 * 5);
    }
}
