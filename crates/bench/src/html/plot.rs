//! Plots as SVG.

use super::axes::{Axes, Logarithmic, WIDTH, open, short};
use super::escape;
use crate::statistics::Figure;
use std::fmt::Write;

/// A bar with whiskers.
pub struct Bar {
    pub label: String,
    pub figure: Figure,
}

/// A cumulative distribution: value and share, ascending.
pub struct Curve {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

/// For labels at the left.
const LEFT: f64 = 190.0;
const ROW: f64 = 22.0;
/// Envoy warm, Leno cool, the upstream itself grey.
fn colour(label: &str) -> &'static str {
    match label {
        label if label.starts_with("envoy") => "#c44e52",
        label if label.contains("microvm") => "#55a868",
        label if label.starts_with("leno") => "#4c72b0",
        _ => "#777777",
    }
}

/// Horizontal bars from zero.
pub fn bars(title: &str, bars: &[Bar]) -> String {
    let most = bars.iter().map(|bar| bar.figure.most).fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - LEFT - 90.0) / most;
    let height = ROW * (bars.len() as f64 + 1.5);
    let mut svg = open(title, height);
    for (index, Bar { label, figure }) in bars.iter().enumerate() {
        let y = ROW * (index as f64 + 1.4);
        let (middle, width) = (y + ROW / 2.0 - 3.0, figure.median * scale);
        let (least, most) = (LEFT + figure.least * scale, LEFT + figure.most * scale);
        let mark = if figure.disturbed { " *" } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            "<text x='{:.0}' y='{:.0}' text-anchor='end'>{}</text>\
             <rect x='{LEFT}' y='{y:.1}' width='{width:.1}' height='{:.0}' fill='{}'/>\
             <path d='M{least:.1} {middle:.1}H{most:.1}' stroke='#111' stroke-width='1.5'/>\
             <text x='{:.0}' y='{:.0}'>{}{mark}</text>",
            LEFT - 8.0,
            middle + 4.0,
            escape(label),
            ROW - 6.0,
            colour(label),
            most.max(LEFT + width) + 6.0,
            middle + 4.0,
            short(figure.median),
        );
    }
    svg + "</svg>"
}

/// Curves over a logarithmic axis.
pub fn distribution(title: &str, curves: &[Curve]) -> String {
    const HEIGHT: f64 = 380.0;
    // The first per cent and the very last value say more about the machine than about who is measured.
    let shown = |curve: &Curve| -> Vec<(f64, f64)> {
        curve.points.iter().copied().filter(|(value, share)| *value > 0.0 && (0.01..=0.999).contains(share)).collect()
    };
    let mut axes = Axes::new(title, HEIGHT);
    let Some(scale) = Logarithmic::around(curves.iter().flat_map(shown).map(|(value, _)| value)) else {
        return axes.close();
    };
    for share in [0.0, 0.25, 0.5, 0.75, 0.9, 0.99] {
        axes.across(share, &share.to_string());
    }
    for tick in scale.ticks() {
        axes.down(scale.share(tick), &short(tick));
    }
    for (index, curve) in curves.iter().enumerate() {
        axes.line(index, &curve.label, shown(curve).into_iter().map(|(value, share)| (scale.share(value), share)));
    }
    axes.close()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_of_nothing_and_of_something_are_closed_and_escaped() {
        assert!(bars("none", &[]).ends_with("</svg>"));
        assert!(distribution("none", &[]).ends_with("</svg>"));
        let figure = Figure { median: 2.0, least: 1.0, most: 3.0, count: 3, disturbed: true };
        let plot = bars("a < b", &[Bar { label: "leno & co".into(), figure }]);
        assert!(plot.contains("a &lt; b") && plot.contains("leno &amp; co") && plot.contains("2.00 *"), "{plot}");
        let curve = Curve { label: "x".into(), points: vec![(50.0, 0.1), (100.0, 0.5), (400.0, 0.9)] };
        assert!(distribution("d", &[curve]).contains("<polyline points='56.0,"));
    }
}
