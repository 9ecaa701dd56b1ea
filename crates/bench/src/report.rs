//! Figures by name, in the order in which they were measured.

use crate::statistics::Figure;
use anyhow::Context;
use serde_json::{Map, Value, json};
use std::path::Path;

/// The figures of a subcommand.
#[derive(Default)]
pub(crate) struct Report {
    figures: Map<String, Value>,
    spreads: Map<String, Value>,
}

impl Report {
    /// Adds a figure, rounded to what means something.
    pub(crate) fn add(&mut self, name: &str, value: f64) {
        self.figures.insert(name.to_owned(), json!(rounded(value)));
    }

    /// Adds a median, and its spread beside the figures.
    pub(crate) fn add_figure(&mut self, name: &str, figure: Figure) {
        self.add(name, figure.median);
        let Figure { least, most, count, disturbed, .. } = figure;
        let spread = json!({"least": rounded(least), "most": rounded(most), "count": count, "disturbed": disturbed});
        self.spreads.insert(name.to_owned(), spread);
    }

    /// Prints a figure and adds it.
    pub(crate) fn show(&mut self, name: &str, value: f64) {
        println!("{name}: {value:.2}");
        self.add(name, value);
    }

    /// Prints the median of values and adds it, with its spread. Without values, there is none.
    pub(crate) fn show_median(&mut self, name: &str, values: Vec<f64>) {
        if let Some(figure) = Figure::of(values, false) {
            println!("{name}: {:.2} ({:.2} to {:.2})", figure.median, figure.least, figure.most);
            self.add_figure(name, figure);
        }
    }

    /// A figure that was added.
    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        self.figures.get(name)?.as_f64()
    }

    /// All of them, in their order.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, f64)> {
        self.figures.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_f64()?)))
    }

    /// Writes the figures and the machine they were measured on.
    pub(crate) fn write(self, machine: Value, path: &Path) -> anyhow::Result<()> {
        self.write_with(machine, Value::Null, path)
    }

    /// The same, with all that lies behind the figures.
    pub(crate) fn write_with(self, machine: Value, details: Value, path: &Path) -> anyhow::Result<()> {
        let mut whole = json!({"figures": self.figures, "machine": machine});
        if !self.spreads.is_empty() {
            whole["spreads"] = Value::Object(self.spreads);
        }
        if !details.is_null() {
            whole["details"] = details;
        }
        let text = serde_json::to_string_pretty(&whole)? + "\n";
        std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
    }
}

/// Three digits behind the point for ratios, two for tens, none for hundreds and more.
fn rounded(value: f64) -> f64 {
    let scale = match value.abs() {
        small if small < 10.0 => 1000.0,
        middle if middle < 100.0 => 100.0,
        _ => 1.0,
    };
    (value * scale).round() / scale
}
