//! Names of a directory as the log tells them: a list, sorted when playing ends.
//!
//! Putting a name so costs a hash and a copy. Searching each in a tree first would cost several cache lines, and whether it was there matters
//! little: what it led to before gets the time of that change in the end. Names that are gone are taken out when they are the larger part.

use crate::fs::{Ino, LAST_OF_HASH, check_name, first_key};
use std::cmp::Ordering;

/// Fewest names that are gone before the list is sorted for their sake.
const GONE_MIN: usize = 64;
/// Target of a name that is gone. No inode has that number.
const NOTHING: Ino = Ino(u64::MAX);

/// Names of a directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    all: Vec<Name>,
    gone: usize,
    /// There was a name that no directory can have.
    has_odd: bool,
}

/// A name and what it leads to.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    /// Key among a directory's entries; as long as they are not sorted, the first one of the name's hash.
    pub(crate) key: u64,
    pub(crate) name: Box<[u8]>,
    pub(crate) ino: Ino,
    sequence: u64,
    time_ns: i64,
}

/// Target of a name before a change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Met {
    pub(super) ino: Ino,
    /// Sequence number and time of the change.
    pub(super) sequence: u64,
    pub(super) time_ns: i64,
}

impl Names {
    pub(super) fn put(&mut self, name: &[u8], ino: Ino, sequence: u64, time_ns: i64) {
        // Here the bytes are at hand.
        self.has_odd |= check_name(name).is_err();
        self.all.push(Name {
            key: first_key(name),
            name: name.into(),
            ino,
            sequence,
            time_ns,
        });
    }

    /// Takes a name out. Shows what names led to that are no more, perhaps later.
    pub(super) fn remove(&mut self, name: &[u8], sequence: u64, time_ns: i64, met: &mut dyn FnMut(Met)) {
        self.put(name, NOTHING, sequence, time_ns);
        self.gone += 2;
        if self.gone > self.all.len() / 2 + GONE_MIN {
            self.sort(met);
        }
    }

    /// All of them; each once, and in the order of their keys, when they are sorted.
    pub(crate) fn as_slice(&self) -> &[Name] {
        &self.all
    }

    pub(crate) fn into_sorted(self) -> Vec<Name> {
        self.all
    }

    /// Leaves the last one of each name, in the order of hashes. Shows what others led to.
    pub(super) fn sort(&mut self, met: &mut dyn FnMut(Met)) {
        self.gone = 0;
        // Stable: the last one of a name stays the last.
        self.all.sort_by(Name::order);
        self.all.dedup_by(|later, kept| {
            let is_same = kept.order(later) == Ordering::Equal;
            if is_same {
                if kept.ino != NOTHING {
                    met(Met {
                        ino: kept.ino,
                        sequence: later.sequence,
                        time_ns: later.time_ns,
                    });
                }
                std::mem::swap(kept, later);
            }
            is_same
        });
        self.all.retain(|name| name.ino != NOTHING);
    }

    /// Sorts, and gives each its own key. Shows names that no directory can have, and takes out those for which there is no key.
    pub(super) fn finish(&mut self, met: &mut dyn FnMut(Met), refused: &mut dyn FnMut(&[u8])) {
        self.sort(met);
        if self.has_odd {
            let odd = self.all.iter().filter(|name| check_name(&name.name).is_err());
            odd.for_each(|name| refused(&name.name));
        }
        let mut end = 0;
        self.all.retain_mut(|name| {
            let key = name.key.max(end);
            if key - name.key > LAST_OF_HASH {
                refused(&name.name);
                return false;
            }
            name.key = key;
            end = key + 1;
            true
        });
    }
}

impl Name {
    fn order(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key).then_with(|| self.name.cmp(&other.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn names_agree_with_a_map_and_replaced_entries_are_shown(
            changes in prop::collection::vec((0..40_u8, proptest::option::weighted(0.5, 0..9_u64)), 0..600),
        ) {
            let (mut names, mut met) = (Names::default(), Vec::new());
            let (mut model, mut model_met) = (BTreeMap::new(), Vec::new());
            for (sequence, (name, ino)) in (1..).zip(changes) {
                let before = match ino {
                    Some(ino) => {
                        names.put(&[b'A' + name], Ino(ino), sequence, 7);
                        model.insert(name, ino)
                    }
                    None => {
                        names.remove(&[b'A' + name], sequence, 7, &mut |one| met.push(sequence_of(one)));
                        model.remove(&name)
                    }
                };
                model_met.extend(before.map(|before| (sequence, before)));
            }
            names.finish(&mut |one| met.push(sequence_of(one)), &mut |_| unreachable!("the test's names collide less often"));
            met.sort_unstable();
            prop_assert_eq!(met, model_met);
            prop_assert!(names.as_slice().is_sorted_by(|a, b| a.key < b.key));
            let found: BTreeMap<u8, u64> = names.into_sorted().iter().map(|name| (name.name[0] - b'A', name.ino.0)).collect();
            prop_assert_eq!(found, model);
        }
    }

    fn sequence_of(met: Met) -> (u64, u64) {
        (met.sequence, met.ino.0)
    }

    #[test]
    fn colliding_names_get_consecutive_keys_until_none_is_left() {
        let mut names = Names::default();
        for name in 0..300_u16 {
            names.put(name.to_string().as_bytes(), Ino(2), 1, 0);
        }
        names.all.iter_mut().for_each(|name| name.key = 1 << 61);
        let mut refused = 0;
        names.finish(&mut |_| {}, &mut |_| refused += 1);
        let keys: Vec<u64> = names.as_slice().iter().map(|name| name.key - (1 << 61)).collect();
        assert_eq!((refused, keys), (300 - 256, (0..256).collect()));
    }

    #[test]
    fn a_removed_name_takes_no_memory() {
        let mut names = Names::default();
        for sequence in 0..100_000 {
            names.put(b"name", Ino(2), sequence, 0);
            names.remove(b"name", sequence, 0, &mut |_| {});
        }
        assert!(names.all.capacity() < 1000);
    }
}
