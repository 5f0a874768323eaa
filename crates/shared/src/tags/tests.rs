use super::*;

fn take_all(tags: &mut Tags) -> Vec<u16> {
    std::iter::from_fn(|| tags.take()).collect()
}

#[test]
fn a_guest_has_a_tag_where_there_are_as_many_as_cores() {
    let space = TagSpace::new(4, 4, 1);
    assert!(space.share().take().is_some());
}

#[test]
fn one_core_has_all_tags() {
    let space = TagSpace::new(100, 1, 0);
    let mut tags = space.share();
    assert!(space.share().take().is_none());
    let taken = take_all(&mut tags);
    assert!(taken.iter().copied().eq(0..100));
    taken.into_iter().for_each(|tag| tags.put(tag));
    drop(tags);
    space.check_invariants();
}

#[test]
fn a_guest_uses_only_common_tags_and_returns_them() {
    let space = TagSpace::new(32, 1, 1);
    let mut core = space.share();
    let mut guest = space.share();
    assert_eq!(take_all(&mut guest).len(), 16);
    let taken = take_all(&mut core);
    assert_eq!(taken.len(), 16);
    taken.into_iter().for_each(|tag| core.put(tag));
    drop(guest);
    // The guest left with its tags in use: they are lost, and nobody's share is.
    assert_eq!(take_all(&mut core).len(), 16);
    let mut guest = space.share();
    assert!(guest.take().is_none());
}

#[test]
fn a_core_takes_common_tags_and_never_anothers_share() {
    let space = TagSpace::new(1000, 4, 0);
    let mut first = space.share();
    let mut second = space.share();
    let taken = take_all(&mut first);
    assert_eq!(taken.len(), 625);
    let shares = take_all(&mut second);
    assert_eq!(shares.len(), 125);
    taken.into_iter().for_each(|tag| first.put(tag));
    assert_eq!(
        first.own.stack.len(),
        125 + 5,
        "tags above a group return a group at a time"
    );
    let more = take_all(&mut second);
    first.rest();
    let rest = take_all(&mut second);
    assert_eq!((more.len(), rest.len()), (495, 5));
    shares.iter().chain(&more).chain(&rest).for_each(|tag| second.put(*tag));
    drop((first, second));
    space.check_invariants();
}

#[test]
fn a_busy_core_keeps_a_group_and_idles_without() {
    let space = TagSpace::new(256, 2, 0);
    let mut tags = space.share();
    let taken: Vec<u16> = (0..65).filter_map(|_| tags.take()).collect();
    assert_eq!(taken.len(), 65);
    taken.into_iter().for_each(|tag| tags.put(tag));
    assert_eq!(tags.own.stack.len(), 96);
    tags.rest();
    assert_eq!(tags.own.stack.len(), 64);
}

#[test]
fn shares_add_up_for_every_number_of_tags_and_cores() {
    for count in [0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 64, 100, 128, 1023, 4096, u16::MAX] {
        for cores in [0, 1, 2, 3, 5, 16, 33, 128] {
            let space = TagSpace::new(count, cores, 0);
            space.check_invariants();
            let mut all: Vec<Tags> = (0..cores).map(|_| space.share()).collect();
            assert_eq!(all.len(), cores);
            let capacity: Vec<usize> = all.iter().map(|tags| tags.own.stack.capacity()).collect();
            let taken: Vec<Vec<u16>> = all.iter_mut().map(take_all).collect();
            let total: usize = taken.iter().map(Vec::len).sum();
            assert_eq!(total, if cores == 0 { 0 } else { usize::from(count) });
            assert!(taken.iter().all(|own| own.len() >= space.share));
            assert!(cores > usize::from(count) || taken.iter().all(|own| !own.is_empty()));
            for (tags, own) in all.iter_mut().zip(taken) {
                own.into_iter().for_each(|tag| tags.put(tag));
            }
            assert!(
                all.iter().map(|tags| tags.own.stack.capacity()).eq(capacity),
                "nothing is allocated"
            );
            drop(all);
            space.check_invariants();
        }
    }
}

#[test]
#[should_panic(expected = "put twice")]
#[cfg(debug_assertions)]
fn putting_twice_is_a_bug() {
    let space = TagSpace::new(8, 1, 0);
    let mut tags = space.share();
    let tag = tags.take().expect("one of eight tags is free");
    tags.put(tag);
    tags.put(tag);
}
