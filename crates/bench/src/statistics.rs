//! From many trials to a figure: the undisturbed ones, their median, their spread; ratios between
//! trials of the same repeat.

use crate::trial::Trial;
use serde::Serialize;

/// The middle of some values, and the ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Figure {
    pub median: f64,
    pub least: f64,
    pub most: f64,
    /// How many there were.
    pub count: usize,
    /// All of them came from disturbed runs; there were no others.
    pub disturbed: bool,
}

impl Figure {
    /// `None` of nothing.
    pub(crate) fn of(mut values: Vec<f64>, disturbed: bool) -> Option<Self> {
        values.retain(|value| value.is_finite());
        values.sort_unstable_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) };
        Some(Self { median, least, most, count: values.len(), disturbed })
    }
}

/// All trials of a measurement.
#[derive(Default)]
pub(crate) struct Trials(pub Vec<Trial>);

/// Which trials: contender, traffic, pace.
pub(crate) type Selection<'a> = (&'a str, &'a str, &'a str);

impl Trials {
    fn of<'a>(&'a self, (contender, traffic, pace): Selection<'a>) -> impl Iterator<Item = &'a Trial> {
        self.0
            .iter()
            .filter(move |trial| trial.contender == contender && trial.traffic == traffic && trial.pace == pace)
    }

    /// Of the undisturbed trials; of all, if there are no others.
    pub(crate) fn figure(&self, which: Selection<'_>, value: impl Fn(&Trial) -> f64) -> Option<Figure> {
        let disturbed = self.of(which).all(Trial::is_disturbed);
        let kept = self.of(which).filter(|trial| disturbed || !trial.is_disturbed());
        Figure::of(kept.map(value).collect(), disturbed)
    }

    /// `combine` of trials of the same repeat, one for each of `which`; of repeats in which none of
    /// them is disturbed, if there are such.
    pub(crate) fn combined<const COUNT: usize>(
        &self,
        which: [Selection<'_>; COUNT],
        combine: impl Fn([&Trial; COUNT]) -> f64,
    ) -> Option<Figure> {
        let repeats = self.0.iter().map(|trial| trial.repeat + 1).max()?;
        let of_repeat = |repeat: usize| -> Option<[&Trial; COUNT]> {
            let found = which.map(|which| self.of(which).find(|trial| trial.repeat == repeat));
            let found: Vec<&Trial> = found.into_iter().collect::<Option<_>>()?;
            found.try_into().ok()
        };
        let together: Vec<_> = (0..repeats).filter_map(of_repeat).collect();
        let is_disturbed = |trials: &[&Trial; COUNT]| trials.iter().any(|trial| trial.is_disturbed());
        let disturbed = together.iter().all(is_disturbed);
        let kept = together.into_iter().filter(|trials| disturbed || !is_disturbed(trials));
        Figure::of(kept.map(combine).collect(), disturbed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(contender: &str, repeat: usize, cpu_us: f64, others_percent: f64) -> Trial {
        Trial { repeat, cpu_us, others_percent, ..Trial::made_up(contender) }
    }

    const A: Selection<'static> = ("a", "http1", "closed");
    const B: Selection<'static> = ("b", "http1", "closed");

    #[test]
    fn disturbed_trials_count_only_where_there_are_no_others() {
        let trials = Trials(vec![
            trial("a", 0, 10.0, 0.0),
            trial("a", 1, 99.0, 50.0),
            trial("a", 2, 12.0, 9.9),
            trial("b", 0, 5.0, 11.0),
        ]);
        let a = trials.figure(A, |trial| trial.cpu_us).unwrap();
        assert_eq!(a, Figure { median: 11.0, least: 10.0, most: 12.0, count: 2, disturbed: false });
        let b = trials.figure(B, |trial| trial.cpu_us).unwrap();
        assert_eq!(b, Figure { median: 5.0, least: 5.0, most: 5.0, count: 1, disturbed: true });
        assert_eq!(trials.figure(("c", "http1", "closed"), |trial| trial.cpu_us), None);
    }

    #[test]
    fn ratios_are_of_one_repeat() {
        let trials = Trials(vec![
            trial("a", 0, 10.0, 0.0),
            trial("b", 0, 20.0, 0.0),
            trial("a", 1, 30.0, 0.0),
            trial("b", 1, 40.0, 0.0),
            trial("a", 2, 1.0, 80.0),
            trial("b", 2, 1.0, 0.0),
            trial("b", 3, 1.0, 0.0),
        ]);
        let ratio = trials.combined([A, B], |[a, b]| a.cpu_us / b.cpu_us).unwrap();
        assert_eq!((ratio.median, ratio.least, ratio.most, ratio.count, ratio.disturbed), (0.625, 0.5, 0.75, 2, false));
    }
}
