//! Lists of numbers, of which each is in one list or in none: what LRU and ARC are made of.

/// No number.
const NONE: u32 = u32::MAX;

/// `N` lists of numbers below a bound, each from the one that was added first to the one that was added last.
#[derive(Debug)]
pub(super) struct Lists<const N: usize> {
    /// List and neighbours of each number, indexed by the number.
    members: Vec<Member>,
    ends: [[u32; 2]; N],
    lengths: [usize; N],
}

#[derive(Clone, Copy, Debug)]
struct Member {
    list: u8,
    before: u32,
    after: u32,
}

const NOWHERE: Member = Member {
    list: u8::MAX,
    before: NONE,
    after: NONE,
};

impl<const N: usize> Lists<N> {
    /// Empty lists of numbers below `bound`.
    pub(super) fn new(bound: usize) -> Self {
        Self {
            members: vec![NOWHERE; bound],
            ends: [[NONE; 2]; N],
            lengths: [0; N],
        }
    }

    pub(super) fn len(&self, list: usize) -> usize {
        self.lengths[list]
    }

    pub(super) fn list_of(&self, number: u32) -> Option<usize> {
        let list = self.members[number as usize].list;
        (list != NOWHERE.list).then_some(usize::from(list))
    }

    /// Moves a number to the end of a list, from where it was.
    pub(super) fn push(&mut self, list: usize, number: u32) {
        self.remove(number);
        let before = std::mem::replace(&mut self.ends[list][1], number);
        let index = u8::try_from(list).expect("there are few lists");
        self.members[number as usize] = Member {
            list: index,
            before,
            after: NONE,
        };
        match before {
            NONE => self.ends[list][0] = number,
            before => self.members[before as usize].after = number,
        }
        self.lengths[list] += 1;
    }

    /// Takes out the number that was added first.
    pub(super) fn pop(&mut self, list: usize) -> Option<u32> {
        let first = self.ends[list][0];
        (first != NONE).then(|| {
            self.remove(first);
            first
        })
    }

    fn remove(&mut self, number: u32) {
        let Some(list) = self.list_of(number) else { return };
        let Member { before, after, .. } = std::mem::replace(&mut self.members[number as usize], NOWHERE);
        match before {
            NONE => self.ends[list][0] = after,
            before => self.members[before as usize].after = after,
        }
        match after {
            NONE => self.ends[list][1] = before,
            after => self.members[after as usize].before = before,
        }
        self.lengths[list] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::Lists;

    #[test]
    fn lists_are_first_in_first_out_and_pass_numbers_on() {
        let mut lists = Lists::<2>::new(5);
        for number in 0..5 {
            lists.push(0, number);
        }
        lists.push(0, 0);
        lists.push(1, 2);
        lists.push(1, 4);
        assert_eq!((lists.len(0), lists.len(1)), (3, 2));
        assert_eq!((lists.list_of(0), lists.list_of(2)), (Some(0), Some(1)));
        let mut popped = |list| std::iter::from_fn(|| lists.pop(list)).collect::<Vec<_>>();
        assert_eq!((popped(0), popped(1)), (vec![1, 3, 0], vec![2, 4]));
        assert_eq!(lists.list_of(0), None);
    }
}
