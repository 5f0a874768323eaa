//! Arithmetic of ascending ranges of file blocks.

use std::ops::Range;

/// Pieces in which a range is counted; those without holes are promised no more, so they are not looked at again.
const PIECES: u64 = 64;
/// Blocks of such a piece at least: 64 MiB.
const PIECE_BLOCKS_MIN: u64 = 16_384;

/// Blocks of each piece of a range, and how many there are.
pub(super) fn piece_count(range: &Range<u64>) -> (u64, u64) {
    let blocks = range.end - range.start;
    let each = blocks.div_ceil(PIECES).max(PIECE_BLOCKS_MIN);
    (each, blocks.div_ceil(each))
}

/// A range in pieces to count.
pub(super) fn pieces(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let (start, end) = (range.start, range.end);
    let (each, count) = piece_count(range);
    (0..count).map(move |number| start + number * each..end.min(start + (number + 1) * each))
}

/// Blocks of all ranges.
pub(super) fn sum(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Parts of `ranges` outside of `gone`, both ascending and each apart from each other.
pub(super) fn outside(ranges: &[Range<u64>], gone: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    let mut gone = gone.iter().filter(|gone| !gone.is_empty()).peekable();
    for range in ranges {
        let mut start = range.start;
        while let Some(hole) = gone.next_if(|hole| hole.end < range.end) {
            left.push(start..hole.start);
            start = start.max(hole.end);
        }
        // It may reach into the next range, too.
        let end = gone.peek().map_or(range.end, |hole| hole.start.min(range.end));
        left.push(start..end);
    }
    left.retain(|range| !range.is_empty());
    left
}

/// `ranges` and `new`, ascending and apart from each other.
pub(super) fn with(ranges: &[Range<u64>], new: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut all = [ranges, &new].concat();
    all.sort_by_key(|range| range.start);
    joined(all.into_iter())
}

/// Ascending ranges, those that meet as one.
pub(super) fn joined(ranges: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_taken_out_of_others() {
        let ranges = [0..100, 200..300];
        let reversed = Range { start: 1, end: 0 };
        for nothing in [50..50, reversed, 100..200, 300..400] {
            assert_eq!(outside(&ranges, &[nothing]), ranges);
        }
        for (gone, left) in [
            (vec![10..20, 50..250], vec![0..10, 20..50, 250..300]),
            (
                vec![0..10, 20..30, 90..210, 220..230, 290..400],
                vec![10..20, 30..90, 210..220, 230..290],
            ),
            (vec![0..100, 250..260], vec![200..250, 260..300]),
            (vec![0..200, 200..300], vec![]),
        ] {
            assert_eq!(outside(&ranges, &gone), left);
        }
    }

    #[test]
    fn ranges_merge_where_they_meet() {
        let ranges = with(&[10..20, 30..40], vec![20..25, 50..60]);
        assert_eq!(ranges, [10..25, 30..40, 50..60]);
        assert_eq!(with(&ranges, vec![0..35, 40..45]), [0..45, 50..60]);
    }

    #[test]
    fn pieces_make_up_the_range() {
        for range in [7..8, 0..PIECE_BLOCKS_MIN + 1, 3..3 + 1000 * PIECE_BLOCKS_MIN] {
            let all: Vec<_> = pieces(&range).collect();
            assert!(all.len() <= usize::try_from(PIECES).unwrap(), "{all:?}");
            assert_eq!(joined(all.into_iter()), [range]);
        }
    }
}
