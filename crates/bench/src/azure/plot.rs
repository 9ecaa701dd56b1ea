//! Plots as SVG: lines over time, and distributions over a logarithmic axis that may span many decades.

use crate::html::escape;
use std::fmt::Write;

/// A line through points whose first coordinates ascend.
pub struct Line {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 330.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 290.0;
const START: f64 = 56.0;
const END: f64 = 640.0;
const COLOURS: [&str; 6] = ["#777777", "#4c72b0", "#55a868", "#8172b3", "#c44e52", "#dd8452"];
/// Points that are drawn of a distribution.
const DRAWN: usize = 400;

/// Sorted values as a cumulative distribution.
pub fn distribution(title: &str, curves: &[(String, Vec<f64>)]) -> String {
    let positive = |sorted: &[f64]| sorted.iter().copied().filter(|value| *value > 0.0).collect::<Vec<_>>();
    let all: Vec<(&String, Vec<f64>)> = curves.iter().map(|(label, sorted)| (label, positive(sorted))).collect();
    let least = all.iter().filter_map(|(_, sorted)| sorted.first()).copied().fold(f64::INFINITY, f64::min);
    let most = all.iter().filter_map(|(_, sorted)| sorted.last()).copied().fold(0.0, f64::max);
    let mut svg = open(title);
    if least >= most {
        return svg + "</svg>";
    }
    let (least, most) = (least.log10().floor(), most.log10().ceil());
    let x = |value: f64| START + (value.log10() - least) / (most - least) * (END - START);
    let y = |share: f64| BOTTOM - share * (BOTTOM - TOP);
    for share in [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99] {
        across(&mut svg, y(share), &share.to_string());
    }
    for decade in least as i32..=most as i32 {
        down(&mut svg, x(10f64.powi(decade)), &short(10f64.powi(decade)));
    }
    for (index, (label, sorted)) in all.into_iter().enumerate() {
        let step = (sorted.len() as f64 / DRAWN as f64).max(1.0);
        let count = (sorted.len() as f64 / step) as usize;
        let at = |drawn: usize| ((drawn as f64 * step) as usize).min(sorted.len() - 1);
        let indexes = (0..count).map(at).chain(sorted.len().checked_sub(1));
        let points = indexes.map(|at| (x(sorted[at]), y((at + 1) as f64 / sorted.len() as f64)));
        polyline(&mut svg, index, label, points);
    }
    svg + "</svg>"
}

/// Values over seconds, from zero.
pub fn over_time(title: &str, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let last = points().map(|(at, _)| *at).fold(0.0, f64::max);
    let most = points().map(|(_, value)| *value).fold(0.0, f64::max);
    let mut svg = open(title);
    if last <= 0.0 || most <= 0.0 {
        return svg + "</svg>";
    }
    let x = |at: f64| START + at / last * (END - START);
    let y = |value: f64| BOTTOM - value / most * (BOTTOM - TOP);
    for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
        across(&mut svg, y(most * part), &short(most * part));
        down(&mut svg, x(last * part), &format!("{:.0} s", last * part));
    }
    for (index, line) in lines.iter().enumerate() {
        polyline(&mut svg, index, &line.label, line.points.iter().map(|(at, value)| (x(*at), y(*value))));
    }
    svg + "</svg>"
}

fn open(title: &str) -> String {
    format!(
        "<svg viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}' role='img'>\
         <text x='0' y='15' font-weight='bold'>{}</text>",
        escape(title)
    )
}

// Writing to a string cannot fail.

fn across(svg: &mut String, y: f64, label: &str) {
    let _ = write!(
        svg,
        "<path d='M{START} {y:.1}H{END}' stroke='#ddd'/><text x='{:.0}' y='{:.0}' text-anchor='end'>{label}</text>",
        START - 6.0,
        y + 4.0
    );
}

fn down(svg: &mut String, x: f64, label: &str) {
    let _ = write!(
        svg,
        "<path d='M{x:.1} {TOP}V{BOTTOM}' stroke='#eee'/><text x='{x:.0}' y='{:.0}' text-anchor='middle'>{label}</text>",
        BOTTOM + 16.0
    );
}

fn polyline(svg: &mut String, index: usize, label: &str, points: impl Iterator<Item = (f64, f64)>) {
    let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let (colour, row) = (COLOURS[index % COLOURS.len()], TOP + 16.0 * index as f64);
    let _ = write!(
        svg,
        "<polyline points='{}' fill='none' stroke='{colour}' stroke-width='1.6'/>\
         <path d='M{:.0} {row:.0}h18' stroke='{colour}' stroke-width='3'/><text x='{:.0}' y='{:.0}'>{}</text>",
        points.join(" "),
        END + 14.0,
        END + 38.0,
        row + 4.0,
        escape(label)
    );
}

fn short(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        small if small < 0.1 => format!("{small:.3}"),
        small if small < 10.0 => format!("{small:.2}"),
        large if large < 1e5 => format!("{large:.0}"),
        huge => format!("{huge:.0e}"),
    }
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
