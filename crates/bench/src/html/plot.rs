//! Plots as SVG.

use crate::statistics::Figure;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

/// SVG from this module, which the template does not escape.
pub(crate) struct Svg(pub(super) String);

/// A bar with whiskers.
pub(crate) struct Bar {
    pub label: String,
    pub figure: Figure,
}

/// A line through points whose first coordinates ascend.
pub(crate) struct Line {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const WIDTH: u32 = 860;
const HEIGHT: u32 = 360;
/// The height of a bar.
const ROW: u32 = 22;
/// Lines end here; their legend begins.
const LEGEND: i32 = 650;
/// The backend writes a size of 15 as 12 pixels.
const FONT: (&str, u32) = ("sans-serif", 15);
const TITLE: (&str, u32) = ("sans-serif", 18);

const GREY: RGBColor = RGBColor(119, 119, 119);
const BLUE: RGBColor = RGBColor(76, 114, 176);
const GREEN: RGBColor = RGBColor(85, 168, 104);
const RED: RGBColor = RGBColor(196, 78, 82);
const COLOURS: [RGBColor; 10] = [
    GREY,
    BLUE,
    GREEN,
    RGBColor(129, 114, 179),
    RED,
    RGBColor(221, 132, 82),
    RGBColor(147, 120, 96),
    RGBColor(140, 86, 75),
    RGBColor(100, 181, 205),
    RGBColor(34, 34, 34),
];

/// Envoy warm, Leno cool, the upstream itself grey.
fn colour(label: &str) -> RGBColor {
    match label {
        label if label.starts_with("envoy") => RED,
        label if label.contains("microvm") => GREEN,
        label if label.starts_with("leno") => BLUE,
        _ => GREY,
    }
}

/// Horizontal bars from zero, with whiskers from the least to the most.
pub(crate) fn bars(title: &str, bars: &[Bar]) -> anyhow::Result<Svg> {
    draw(title, ROW * (bars.len() as u32 + 2), |area| {
        // What is written beside the longest bar needs room.
        let end = end(bars.iter().map(|bar| bar.figure.most)) * 1.15;
        let rows = bars.len() as i32;
        // The axis counts tenths of a row; plotters puts labels at chosen points of whole numbers only.
        let axis = (10 * rows..0).with_key_points((0..rows).map(|row| 10 * row + 5).collect());
        let mut chart = ChartBuilder::on(area)
            .set_label_area_size(LabelAreaPosition::Left, 190)
            .build_cartesian_2d(0.0..end, axis)?;
        let label = |tenth: &i32| bars[*tenth as usize / 10].label.clone();
        chart.configure_mesh().disable_mesh().disable_x_axis().label_style(FONT).y_label_formatter(&label).draw()?;
        let beside = FONT.into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
        for (Bar { label, figure }, top) in bars.iter().zip((0..).step_by(10)) {
            let Figure { median, least, most, disturbed, .. } = *figure;
            let (corners, middle) = ([(0.0, top + 1), (median, top + 9)], top + 5);
            let text = short(median) + if disturbed { " *" } else { "" };
            chart.draw_series([Rectangle::new(corners, colour(label).filled())])?;
            chart.draw_series([ErrorBar::new_horizontal(middle, least, median, most, BLACK, 6)])?;
            chart.draw_series([EmptyElement::at((most, middle)) + Text::new(text, (8, 0), beside.clone())])?;
        }
        Ok(())
    })
}

/// Cumulative distributions: values and the shares of all that do not exceed them.
pub(crate) fn distribution(title: &str, lines: &[Line]) -> anyhow::Result<Svg> {
    // A logarithmic axis has no zero.
    let positive = |line: &Line| {
        let points = line.points.iter().copied().filter(|(value, _)| *value > 0.0).collect();
        Line { label: line.label.clone(), points }
    };
    let lines: Vec<Line> = lines.iter().map(positive).collect();
    let values = || lines.iter().flat_map(|line| &line.points).map(|(value, _)| *value);
    let most = end(values());
    let least = values().fold(most, f64::min);
    // Equal values need an axis too.
    let range = if least < most { least..most } else { least / 2.0..most * 2.0 };
    let ticks = ticks(&range);
    plot_lines(title, range.log_scale().with_key_points(ticks), 0.0..1.0, short, &lines)
}

/// Values over seconds, from zero.
pub(crate) fn over_time(title: &str, lines: &[Line]) -> anyhow::Result<Svg> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let (seconds, most) = (end(points().map(|(at, _)| *at)), end(points().map(|(_, value)| *value)));
    plot_lines(title, 0.0..seconds, 0.0..most, |at| short(at) + " s", lines)
}

fn plot_lines<X, Y>(title: &str, x: X, y: Y, x_label: fn(f64) -> String, lines: &[Line]) -> anyhow::Result<Svg>
where
    X: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
    Y: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
{
    draw(title, HEIGHT, |area| {
        let (area, legend) = area.split_horizontally(LEGEND);
        let mut chart = ChartBuilder::on(&area)
            .margin_right(20)
            .margin_top(8)
            .set_label_area_size(LabelAreaPosition::Left, 56)
            .set_label_area_size(LabelAreaPosition::Bottom, 32)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .label_style(FONT)
            .x_label_formatter(&|value| x_label(*value))
            .y_label_formatter(&|value| short(*value))
            .draw()?;
        let beside = FONT.into_text_style(&legend).pos(Pos::new(HPos::Left, VPos::Center));
        for (index, line) in lines.iter().enumerate() {
            let opacity = if index < COLOURS.len() { 1.0 } else { 0.5 };
            let style = COLOURS[index % COLOURS.len()].mix(opacity).stroke_width(2);
            chart.draw_series(LineSeries::new(line.points.iter().copied(), style))?;
            let y = 16 * (index as i32 + 1);
            legend.draw(&PathElement::new([(0, y), (18, y)], style))?;
            legend.draw_text(&line.label, &beside, (24, y))?;
        }
        Ok(())
    })
}

fn draw(title: &str, height: u32, plot: impl FnOnce(&Area) -> anyhow::Result<()>) -> anyhow::Result<Svg> {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    plot(&root.titled(title, TITLE)?)?;
    root.present()?;
    drop(root);
    Ok(Svg(svg))
}

/// Where an axis ends: at the largest value, at one if there is none.
fn end(values: impl Iterator<Item = f64>) -> f64 {
    let most = values.fold(0.0, f64::max);
    if most > 0.0 { most } else { 1.0 }
}

/// Round values: 1, 2, 5, or only 1 of each decade where there are many; the ends where there is only one. Plotters knows only powers of
/// ten.
fn ticks(range: &Range<f64>) -> Vec<f64> {
    const MANY: i32 = 4;
    let decades = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let steps: &[f64] = if decades.end() - decades.start() > MANY { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all = decades.flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
    let within: Vec<f64> = all.filter(|tick| (range.start..=range.end).contains(tick)).collect();
    if within.len() < 2 { vec![range.start, range.end] } else { within }
}

/// A value in few characters.
fn short(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        tiny if tiny < 0.1 => format!("{tiny:.3}"),
        small if small < 10.0 => format!("{small:.2}"),
        middle if middle < 100.0 => format!("{middle:.1}"),
        large if large < 1e6 => format!("{large:.0}"),
        huge => format!("{huge:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(label: &str, points: &[(f64, f64)]) -> Line {
        Line { label: label.to_owned(), points: points.to_vec() }
    }

    #[test]
    fn plots_of_nothing_have_axes() {
        let Svg(bars) = bars("t", &[]).unwrap();
        assert!(bars.starts_with("<svg ") && bars.ends_with("</svg>\n"), "{bars}");
        for Svg(svg) in [distribution("t", &[]), over_time("t", &[line("x", &[])])].map(Result::unwrap) {
            assert!(svg.ends_with("</svg>\n") && svg.matches("\n1.00").count() == 2, "both axes: {svg}");
        }
    }

    #[test]
    fn bars_have_escaped_labels_values_and_the_mark_of_disturbance() {
        let figure = Figure { median: 2.0, least: 1.0, most: 3.0, count: 3, disturbed: true };
        let Svg(svg) = bars("a < b", &[Bar { label: "leno & co".into(), figure }]).unwrap();
        for part in ["a &lt; b", "leno &amp; co", "2.00 *", "fill=\"#4C72B0\""] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
    }

    #[test]
    fn lines_go_from_axis_to_axis() {
        let [Svg(over_time), Svg(distribution)] = [
            over_time("t", &[line("x < y", &[(0.0, 0.0), (10.0, 2.0)])]).unwrap(),
            distribution("t", &[line("x < y", &[(0.0, 0.0), (1.0, 0.0), (10.0, 0.5), (100.0, 1.0)])]).unwrap(),
        ];
        assert!(over_time.contains("points=\"56,"), "{over_time}");
        assert!(over_time.contains("x &lt; y") && distribution.contains("x &lt; y"));
        assert!(distribution.contains("points=\"56,"), "{distribution}");
    }

    #[test]
    fn equal_values_have_a_plot() {
        let Svg(svg) = distribution("t", &[line("x", &[(3.0, 0.0), (3.0, 1.0)])]).unwrap();
        assert!(svg.contains("points=\"342,"), "in the middle: {svg}");
    }

    #[test]
    fn logarithmic_axes_have_round_ticks() {
        assert_eq!(ticks(&(40.0..1000.0)), [50.0, 100.0, 200.0, 500.0, 1000.0]);
        assert_eq!(ticks(&(0.5..2e6)), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6]);
        assert_eq!(ticks(&(1.1..2.2)), [1.1, 2.2]);
    }
}
