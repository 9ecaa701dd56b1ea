//! Plots as SVG: lines over time, and distributions over a logarithmic axis that may span many decades.

use crate::html::axes::{Axes, Logarithmic, short};

/// A line through points whose first coordinates ascend.
pub struct Line {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

const HEIGHT: f64 = 330.0;
/// Points that are drawn of a distribution.
const DRAWN: usize = 400;

/// Sorted values as a cumulative distribution.
pub fn distribution(title: &str, curves: &[(String, Vec<f64>)]) -> String {
    let mut axes = Axes::new(title, HEIGHT);
    let Some(scale) = Logarithmic::around(curves.iter().flat_map(|(_, sorted)| sorted).copied()) else {
        return axes.close();
    };
    for share in [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99] {
        axes.across(share, &share.to_string());
    }
    for tick in scale.ticks() {
        axes.down(scale.share(tick), &short(tick));
    }
    for (index, (label, sorted)) in curves.iter().enumerate() {
        // There is no place for zero.
        let sorted: Vec<f64> = sorted.iter().copied().filter(|value| *value > 0.0).collect();
        let step = (sorted.len() as f64 / DRAWN as f64).max(1.0);
        let count = (sorted.len() as f64 / step) as usize;
        let at = |drawn: usize| ((drawn as f64 * step) as usize).min(sorted.len() - 1);
        let indexes = (0..count).map(at).chain(sorted.len().checked_sub(1));
        let points = indexes.map(|at| (scale.share(sorted[at]), (at + 1) as f64 / sorted.len() as f64));
        axes.line(index, label, points);
    }
    axes.close()
}

/// Values over seconds, from zero.
pub fn over_time(title: &str, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let last = points().map(|(at, _)| *at).fold(0.0, f64::max);
    let most = points().map(|(_, value)| *value).fold(0.0, f64::max);
    let mut axes = Axes::new(title, HEIGHT);
    if last <= 0.0 || most <= 0.0 {
        return axes.close();
    }
    for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
        axes.across(part, &short(most * part));
        axes.down(part, &format!("{:.0} s", last * part));
    }
    for (index, line) in lines.iter().enumerate() {
        axes.line(index, &line.label, line.points.iter().map(|(at, value)| (at / last, value / most)));
    }
    axes.close()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_of_nothing_and_of_something_are_closed_and_escaped() {
        assert!(distribution("none", &[]).ends_with("</svg>"));
        assert!(distribution("none", &[("a".into(), Vec::new())]).ends_with("</svg>"));
        assert!(over_time("none", &[]).ends_with("</svg>"));
        let plot = distribution("a < b", &[("leno & co".into(), vec![1.0, 2.0, 300.0]), ("none".into(), vec![])]);
        assert!(plot.contains("a &lt; b") && plot.contains("leno &amp; co") && plot.ends_with("</svg>"), "{plot}");
        let line = Line { label: "x".into(), points: vec![(0.0, 0.0), (10.0, 2.0)] };
        assert!(over_time("t", &[line]).contains("<polyline points='56.0,290.0 640.0,34.0'"));
    }

    #[test]
    fn long_distributions_are_thinned() {
        let sorted: Vec<f64> = (1..=100_000).map(f64::from).collect();
        assert!(distribution("d", &[("x".into(), sorted)]).len() < 20_000);
    }
}
