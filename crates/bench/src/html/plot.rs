//! Plots as SVG.

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

const WIDTH: f64 = 860.0;
/// For labels at the left.
const LEFT: f64 = 190.0;
const ROW: f64 = 22.0;
const COLOURS: [&str; 10] =
    ["#777777", "#c44e52", "#dd8452", "#937860", "#8c564b", "#4c72b0", "#55a868", "#8172b3", "#64b5cd", "#222222"];

/// Envoy warm, Leno cool, the upstream itself grey.
fn colour(label: &str) -> &'static str {
    match label {
        label if label.starts_with("envoy") => COLOURS[1],
        label if label.contains("microvm") => COLOURS[6],
        label if label.starts_with("leno") => COLOURS[5],
        _ => COLOURS[0],
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
    const TOP: f64 = 34.0;
    const BOTTOM: f64 = 340.0;
    const START: f64 = 50.0;
    const END: f64 = 640.0;
    // The first per cent and the very last value say more about the machine than about who is measured.
    let shown = |curve: &&Curve| -> Vec<(f64, f64)> {
        curve.points.iter().copied().filter(|(value, share)| *value > 0.0 && (0.01..=0.999).contains(share)).collect()
    };
    let all: Vec<f64> = curves.iter().flat_map(|curve| shown(&curve)).map(|(value, _)| value).collect();
    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
    let most = all.iter().copied().fold(0.0, f64::max);
    let mut svg = open(title, HEIGHT);
    if all.is_empty() || least >= most {
        return svg + "</svg>";
    }
    let x = |value: f64| START + (value / least).ln() / (most / least).ln() * (END - START);
    let y = |share: f64| BOTTOM - share * (BOTTOM - TOP);
    for share in [0.0, 0.25, 0.5, 0.75, 0.9, 0.99] {
        let at = y(share);
        let _ = write!(
            svg,
            "<path d='M{START} {at:.1}H{END}' stroke='#ddd'/><text x='{:.0}' y='{:.0}' text-anchor='end'>{share}</text>",
            START - 6.0,
            at + 4.0
        );
    }
    let ticks = [50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5];
    for tick in ticks.into_iter().filter(|tick| (least..=most).contains(tick)) {
        let at = x(tick);
        let _ = write!(
            svg,
            "<path d='M{at:.1} {TOP}V{BOTTOM}' stroke='#eee'/><text x='{at:.0}' y='{:.0}' text-anchor='middle'>{}</text>",
            BOTTOM + 16.0,
            short(tick)
        );
    }
    for (index, curve) in curves.iter().enumerate() {
        let points: Vec<String> =
            shown(&curve).iter().map(|(value, share)| format!("{:.1},{:.1}", x(*value), y(*share))).collect();
        let colour = COLOURS[index % COLOURS.len()];
        let dashes = if index >= COLOURS.len() { " stroke-dasharray='5 3'" } else { "" };
        let label = TOP + 16.0 * index as f64;
        let _ = write!(
            svg,
            "<polyline points='{}' fill='none' stroke='{colour}' stroke-width='1.8'{dashes}/>\
             <path d='M{:.0} {label:.0}h18' stroke='{colour}' stroke-width='3'{dashes}/><text x='{:.0}' y='{:.0}'>{}</text>",
            points.join(" "),
            END + 14.0,
            END + 38.0,
            label + 4.0,
            escape(&curve.label),
        );
    }
    svg + "</svg>"
}

fn open(title: &str, height: f64) -> String {
    format!(
        "<svg viewBox='0 0 {WIDTH} {height:.0}' width='{WIDTH}' height='{height:.0}' role='img'>\
         <text x='0' y='15' font-weight='bold'>{}</text>",
        escape(title)
    )
}

fn short(value: f64) -> String {
    match value {
        small if small < 10.0 => format!("{small:.2}"),
        middle if middle < 100.0 => format!("{middle:.1}"),
        large => format!("{large:.0}"),
    }
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
        assert!(distribution("d", &[curve]).contains("<polyline points='50.0,"));
    }
}
