//! The runner every bench uses: contestants take turns, round after round, in one process.
//!
//! A noisy machine drifts over seconds; contestants that alternate within milliseconds drift together. Who starts
//! rotates from round to round, and every second round goes backwards, so that nobody always inherits the caches of the same predecessor. The first round
//! warms up and is dropped.

use crate::error::Error;
use crate::interrupt;

/// The values one contestant showed in one case, a value per round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

impl From<f64> for Samples {
    /// Samples of a single round.
    fn from(value: f64) -> Self {
        Self(vec![value])
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl Samples {
    /// Adds the value of one round.
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// How many rounds count.
    pub(crate) fn runs(&self) -> usize {
        self.0.len()
    }

    /// The middle value.
    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Each value changed so.
    pub(crate) fn map(&self, change: impl FnMut(f64) -> f64) -> Self {
        Self(self.0.iter().copied().map(change).collect())
    }

    /// This contestant's value over that of `other`, round by round: the two ran one after the other.
    pub(crate) fn over(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(one, other)| one / other).collect())
    }

    /// The least and the greatest value.
    pub(crate) fn range(&self) -> [f64; 2] {
        [self.quantile(0.0), self.quantile(1.0)]
    }

    /// The quartiles.
    pub(crate) fn middle(&self) -> [f64; 2] {
        [self.quantile(0.25), self.quantile(0.75)]
    }

    /// Interquartile range over median, (p75 - p25) / median.
    pub(crate) fn spread(&self) -> f64 {
        let [low, high] = self.middle();
        (high - low) / self.median()
    }

    /// Linear interpolation between the two nearest ranks.
    fn quantile(&self, quantile: f64) -> f64 {
        assert!(!self.0.is_empty(), "a case that ran has at least one round");
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = quantile * (sorted.len() - 1) as f64;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the rank is not negative and below the number of rounds"
        )]
        let below = rank.floor() as usize;
        let above = (below + 1).min(sorted.len() - 1);
        sorted[below] + (sorted[above] - sorted[below]) * rank.fract()
    }
}

/// Runs `pass(round, contestant)` of one case, as [`interleave`] does. Gives the samples by contestant.
pub(crate) fn take_turns(
    contestants: usize,
    rounds: usize,
    mut pass: impl FnMut(u64, usize) -> Result<f64, Error>,
) -> Result<Vec<Samples>, Error> {
    let mut samples = interleave(1, contestants, rounds, |round, _, contestant| {
        pass(round as u64, contestant)
    })?;
    Ok(samples.remove(0))
}

/// Runs `pass(round, case, contestant)` for each in turn. Gives the samples by case, then by contestant.
///
/// Within a round the cases follow each other in order, so a later case may rest on what an earlier one left behind.
///
/// # Errors
/// Errors of `pass`, and [`Error::Interrupted`].
pub(crate) fn interleave(
    cases: usize,
    contestants: usize,
    rounds: usize,
    mut pass: impl FnMut(usize, usize, usize) -> Result<f64, Error>,
) -> Result<Vec<Vec<Samples>>, Error> {
    let mut samples = vec![vec![Samples::default(); contestants]; cases];
    for round in 0..=rounds {
        for (case, samples) in samples.iter_mut().enumerate() {
            for turn in 0..contestants {
                interrupt::check()?;
                let step = if round % 2 == 0 { turn } else { contestants - turn };
                let contestant = (round + step) % contestants;
                let value = pass(round, case, contestant)?;
                if round > 0 {
                    samples[contestant].push(value);
                }
            }
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contestant_runs_in_every_round_and_the_first_round_is_dropped() {
        let mut log = Vec::new();
        let samples = interleave(2, 3, 2, |round, case, contestant| {
            log.push((round, case, contestant));
            Ok(round as f64)
        })
        .expect("every pass succeeds");
        assert_eq!(log.len(), 18);
        assert_eq!(&log[..4], &[(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0)]);
        let second: Vec<usize> = log[6..9].iter().map(|(_, _, contestant)| *contestant).collect();
        assert_eq!(
            second,
            [1, 0, 2],
            "the second round starts with the second contestant, and goes backwards"
        );
        assert!(samples.iter().flatten().all(|samples| samples.0 == [1.0, 2.0]));
    }

    #[test]
    fn ratios_are_computed_within_rounds() {
        let (one, other) = (Samples(vec![10.0, 30.0, 20.0]), Samples(vec![5.0, 10.0, 20.0]));
        assert_eq!(one.over(&other).range(), [1.0, 3.0]);
    }

    #[test]
    fn median_and_spread_of_known_values() {
        let samples = Samples(vec![4.0, 1.0, 2.0, 3.0, 100.0]);
        assert!((samples.median() - 3.0).abs() < 1e-9);
        assert!((samples.spread() - 2.0 / 3.0).abs() < 1e-9);
        let even = Samples(vec![1.0, 2.0]);
        assert!((even.median() - 1.5).abs() < 1e-9);
    }
}
