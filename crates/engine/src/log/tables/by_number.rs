//! Values by inode number, in the order in which the log first names them.
//!
//! Numbers are handed out in sequence, so most find their value through a plain array. The array has at most [`NEAR`] words a value: numbers that
//! are far apart, or that somebody made up, have a map. Cost: four bytes a number, and two cache lines a search.

use crate::fs::Ino;
use std::collections::HashMap;

/// Values of a chunk: some 64 KiB of nodes. The heap uses a chunk again when its values are gone, and copies none while there are more.
const CHUNK: usize = 512;
/// Words of the array for each value.
const NEAR: usize = 4;
/// Words of the array beyond that.
const NEAR_MIN: usize = 1024;

/// Values by inode number. A value's place stays.
#[derive(Clone, Debug)]
pub(super) struct ByNumber<T> {
    /// Chunks by place; all but the last one are full.
    chunks: Vec<Vec<(Ino, T)>>,
    places: Places,
}

/// Where the value of each number is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    /// Places by number, counted from 1; 0: it is not there.
    near: Vec<u32>,
    /// Places of other numbers, counted from 0.
    far: HashMap<Ino, u32>,
}

impl<T> Default for ByNumber<T> {
    fn default() -> Self {
        let (chunks, places) = (Vec::new(), Places::default());
        Self { chunks, places }
    }
}

impl<T: Default> ByNumber<T> {
    /// The place of the value of `ino`; that of an empty one when there was none.
    #[inline]
    pub(super) fn place_or_insert(&mut self, ino: Ino) -> usize {
        if let Some(place) = self.places.find(ino) {
            return place;
        }
        let place = self.len();
        self.places.insert(ino, place);
        if place.is_multiple_of(CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.chunks[place / CHUNK].push((ino, T::default()));
        place
    }

    /// The value of `ino`; an empty one when there was none.
    #[inline]
    pub(super) fn get_or_insert(&mut self, ino: Ino) -> &mut T {
        let place = self.place_or_insert(ino);
        self.at_mut(place)
    }
}

impl<T> ByNumber<T> {
    pub(super) fn len(&self) -> usize {
        let last = self.chunks.last().map_or(0, Vec::len);
        self.chunks.len().saturating_sub(1) * CHUNK + last
    }

    /// Where the value of `ino` is: its place in the order of [`ByNumber::iter`].
    #[inline]
    pub(super) fn place(&self, ino: Ino) -> Option<usize> {
        self.places.find(ino)
    }

    /// The value at a place, with its number.
    #[inline]
    pub(super) fn at(&self, place: usize) -> &(Ino, T) {
        &self.chunks[place / CHUNK][place % CHUNK]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, ino: Ino) -> Option<&mut T> {
        let place = self.place(ino)?;
        Some(self.at_mut(place))
    }

    /// The value at a place.
    #[inline]
    pub(super) fn at_mut(&mut self, place: usize) -> &mut T {
        &mut self.chunks[place / CHUNK][place % CHUNK].1
    }

    /// All of them, each with its number.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(Ino, T)> {
        self.chunks.iter().flatten()
    }

    pub(super) fn into_parts(self) -> (Places, impl Iterator<Item = (Ino, T)>) {
        (self.places, self.chunks.into_iter().flatten())
    }
}

impl Places {
    /// The place of a number's value.
    #[inline]
    pub(crate) fn find(&self, ino: Ino) -> Option<usize> {
        let near = usize::try_from(ino.0).ok().and_then(|number| self.near.get(number));
        match near {
            Some(word) if *word > 0 => Some(*word as usize - 1),
            _ => self.far.get(&ino).map(|place| *place as usize),
        }
    }

    /// A number has the next place, behind those of all others.
    fn insert(&mut self, ino: Ino, place: usize) {
        let word = u32::try_from(place + 1).expect("2^32 values do not fit into memory");
        match usize::try_from(ino.0) {
            Ok(number) if number < NEAR * place + NEAR_MIN => {
                if self.near.len() <= number {
                    self.near.resize(number + 1, 0);
                }
                self.near[number] = word;
            }
            _ => drop(self.far.insert(ino, word - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn dense_and_sparse_numbers_agree_with_a_map(
            numbers in prop::collection::vec(prop_oneof![0..40_u64, 0..3000_u64, 0..1_u64 << 62], 0..2000),
        ) {
            let (mut values, mut model) = (ByNumber::<u64>::default(), BTreeMap::<Ino, u64>::new());
            for number in numbers {
                *values.get_or_insert(Ino(number)) += 1;
                *model.entry(Ino(number)).or_default() += 1;
                let next = Ino(number + 1);
                let found = values.place(next).map(|place| &values.at(place).1);
                prop_assert_eq!(found, model.get(&next));
            }
            let mut all: Vec<_> = values.iter().copied().collect();
            prop_assert_eq!(all.len(), values.len());
            all.sort_unstable();
            prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn sparse_numbers_take_no_array() {
        let mut values = ByNumber::<u8>::default();
        for number in 0..10_000 {
            values.get_or_insert(Ino(number << 40));
        }
        assert!(values.places.near.len() <= NEAR * 10_000 + NEAR_MIN);
    }
}
