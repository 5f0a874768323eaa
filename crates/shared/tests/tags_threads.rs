//! Threads that take, put and give back tags at once: no tag is in two hands, and none is lost.

mod random;

use fastrand::Rng;
use homenode_shared::TagSpace;
use std::sync::atomic::{AtomicBool, Ordering};

const TAGS: u16 = 100;
const THREADS: usize = 4;
const ROUNDS: u64 = if cfg!(miri) { 50 } else { 300_000 };

#[test]
fn no_tag_is_held_twice() {
    let seed = random::seed();
    let space = TagSpace::new(TAGS, THREADS, 0);
    let in_use: Vec<AtomicBool> = (0..TAGS).map(|_| AtomicBool::new(false)).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (space, in_use) = (&space, &in_use);
            scope.spawn(move || {
                let mut random = Rng::with_seed(seed ^ thread as u64);
                let mut tags = space.share();
                let mut taken = Vec::new();
                for _ in 0..ROUNDS {
                    match random.u64(..50) {
                        0 => tags.rest(),
                        1..25 if !taken.is_empty() => {
                            let at = random.usize(..taken.len());
                            let tag: u16 = taken.swap_remove(at);
                            assert!(in_use[usize::from(tag)].swap(false, Ordering::Relaxed));
                            tags.put(tag);
                        }
                        _ => match tags.take() {
                            Some(tag) => {
                                let before = in_use[usize::from(tag)].swap(true, Ordering::Relaxed);
                                assert!(!before, "tag {tag} is in two hands");
                                taken.push(tag);
                            }
                            None => assert!(taken.len() >= usize::from(TAGS) / 2 / THREADS),
                        },
                    }
                }
                for tag in taken {
                    in_use[usize::from(tag)].store(false, Ordering::Relaxed);
                    tags.put(tag);
                }
            });
        }
    });
    space.check_invariants();
}
