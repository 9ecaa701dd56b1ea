//! What plots of lines have in common: a frame, its grid, a logarithmic scale, and lines with their legend.

use super::escape;
use std::fmt::Write;

pub const WIDTH: f64 = 860.0;
const TOP: f64 = 34.0;
const START: f64 = 56.0;
const END: f64 = 640.0;
/// Below the plot, for the labels of its axis.
const MARGIN: f64 = 40.0;
const COLOURS: [&str; 10] =
    ["#777777", "#4c72b0", "#55a868", "#8172b3", "#c44e52", "#dd8452", "#937860", "#8c564b", "#64b5cd", "#222222"];

/// A plot in the making. Its coordinates go from 0 to 1, from the left and from below.
pub struct Axes {
    svg: String,
    bottom: f64,
}

impl Axes {
    pub fn new(title: &str, height: f64) -> Self {
        Self { svg: open(title, height), bottom: height - MARGIN }
    }

    fn x(share: f64) -> f64 {
        START + share * (END - START)
    }

    fn y(&self, share: f64) -> f64 {
        self.bottom - share * (self.bottom - TOP)
    }

    // Writing to a string cannot fail.

    /// A line from left to right.
    pub fn across(&mut self, share: f64, label: &str) {
        let (y, x) = (self.y(share), START - 6.0);
        let _ = write!(
            self.svg,
            "<path d='M{START} {y:.1}H{END}' stroke='#ddd'/><text x='{x:.0}' y='{:.0}' text-anchor='end'>{label}</text>",
            y + 4.0
        );
    }

    /// A line from the top down.
    pub fn down(&mut self, share: f64, label: &str) {
        let (x, bottom) = (Self::x(share), self.bottom);
        let _ = write!(
            self.svg,
            "<path d='M{x:.1} {TOP}V{bottom}' stroke='#eee'/><text x='{x:.0}' y='{:.0}' text-anchor='middle'>{label}</text>",
            bottom + 16.0
        );
    }

    /// The line of this number, and what it is called.
    pub fn line(&mut self, index: usize, label: &str, points: impl Iterator<Item = (f64, f64)>) {
        let points: Vec<String> = points.map(|(x, y)| format!("{:.1},{:.1}", Self::x(x), self.y(y))).collect();
        let (colour, row) = (COLOURS[index % COLOURS.len()], TOP + 16.0 * index as f64);
        let dashes = if index >= COLOURS.len() { " stroke-dasharray='5 3'" } else { "" };
        let _ = write!(
            self.svg,
            "<polyline points='{}' fill='none' stroke='{colour}' stroke-width='1.7'{dashes}/>\
             <path d='M{:.0} {row:.0}h18' stroke='{colour}' stroke-width='3'{dashes}/><text x='{:.0}' y='{:.0}'>{}</text>",
            points.join(" "),
            END + 14.0,
            END + 38.0,
            row + 4.0,
            escape(label)
        );
    }

    pub fn close(self) -> String {
        self.svg + "</svg>"
    }
}

/// A logarithmic scale from one value to another.
#[derive(Clone, Copy)]
pub struct Logarithmic {
    least: f64,
    most: f64,
}

impl Logarithmic {
    /// Around these values; `None`: there are not two different ones above zero.
    pub fn around(values: impl Iterator<Item = f64>) -> Option<Self> {
        let positive = values.filter(|value| *value > 0.0);
        let (least, most) =
            positive.fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), value| (least.min(value), most.max(value)));
        (least < most).then_some(Self { least, most })
    }

    /// Where a value is, from 0 to 1.
    pub fn share(self, value: f64) -> f64 {
        (value / self.least).ln() / (self.most / self.least).ln()
    }

    /// Round values within: 1, 2, 5, or only 1 of each decade where there are many.
    pub fn ticks(self) -> Vec<f64> {
        const MANY: i32 = 4;
        let decades = self.least.log10().floor() as i32..=self.most.log10().ceil() as i32;
        let steps: &[f64] = if decades.end() - decades.start() > MANY { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all = decades.flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
        all.filter(|tick| (self.least..=self.most).contains(tick)).collect()
    }
}

pub fn open(title: &str, height: f64) -> String {
    format!(
        "<svg viewBox='0 0 {WIDTH} {height:.0}' width='{WIDTH}' height='{height:.0}' role='img'>\
         <text x='0' y='15' font-weight='bold'>{}</text>",
        escape(title)
    )
}

/// A value in few characters.
pub fn short(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        tiny if tiny < 0.1 => format!("{tiny:.3}"),
        small if small < 10.0 => format!("{small:.2}"),
        middle if middle < 100.0 => format!("{middle:.1}"),
        large if large < 1e6 => format!("{large:.0}"),
        huge => format!("{huge:.0e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithmic_scale_has_round_ticks_within() {
        let scale = Logarithmic::around([0.0, 40.0, 1000.0].into_iter()).unwrap();
        assert_eq!((scale.share(40.0), scale.share(1000.0)), (0.0, 1.0));
        assert_eq!(scale.ticks(), [50.0, 100.0, 200.0, 500.0, 1000.0]);
        let wide = Logarithmic::around([0.5, 2e6].into_iter()).unwrap();
        assert_eq!(wide.ticks(), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6]);
        assert!(Logarithmic::around([3.0, 3.0].into_iter()).is_none());
        assert!(Logarithmic::around(std::iter::empty()).is_none());
    }
}
