use super::*;
use crate::sync::beside;
use loom::cell::UnsafeCell;

/// The request of each tag, which only who has the tag may touch.
type Requests = Arc<Vec<UnsafeCell<u32>>>;

fn world(tags: u16, cores: usize) -> (Arc<TagSpace>, Requests) {
    let requests = (0..tags).map(|_| UnsafeCell::new(0)).collect();
    (TagSpace::new(tags, cores, 0), Arc::new(requests))
}

/// Takes up to `count` tags at once, uses their requests, and puts them back.
fn use_tags(tags: &mut Tags, requests: &Requests, count: usize) -> usize {
    let taken: Vec<u16> = (0..count).map_while(|_| tags.take()).collect();
    for tag in &taken {
        // SAFETY: loom checks that nobody else touches the request meanwhile: that is the test.
        requests[usize::from(*tag)].with_mut(|at| unsafe { *at += 1 });
    }
    taken.iter().for_each(|tag| tags.put(*tag));
    taken.len()
}

/// Two cores borrow the common tags and give them back; each has its share at all times.
#[test]
fn two_cores_borrow_and_give_back() {
    loom::model(|| {
        let (space, requests) = world(4, 2);
        let (mut first, mut second) = (space.share(), space.share());
        let other = beside(Arc::clone(&requests), move |requests| {
            for _ in 0..2 {
                assert!(use_tags(&mut second, &requests, 3) >= 1);
                second.rest();
            }
        });
        for _ in 0..2 {
            assert!(use_tags(&mut first, &requests, 3) >= 1);
            first.rest();
        }
        other.join().expect("the thread does not panic");
        drop(first);
        space.check_invariants();
    });
}

/// A core leaves and another takes its share, while a third borrows.
#[test]
fn a_share_changes_hands() {
    loom::model(|| {
        let (space, requests) = world(4, 2);
        let mut first = space.share();
        let other = beside((Arc::clone(&space), Arc::clone(&requests)), move |(space, requests)| {
            for _ in 0..2 {
                let mut second = space.share();
                assert!(use_tags(&mut second, &requests, 2) >= 1);
            }
        });
        assert!(use_tags(&mut first, &requests, 2) >= 1);
        drop(first);
        other.join().expect("the thread does not panic");
        space.check_invariants();
    });
}
