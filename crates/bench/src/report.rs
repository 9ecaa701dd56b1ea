//! Figures by name, in the order in which they were measured.

use anyhow::Context;
use serde_json::{Map, Value, json};
use std::path::Path;

/// What a subcommand found out.
#[derive(Default)]
pub struct Report(Map<String, Value>);

impl Report {
    /// Adds a figure, rounded to what means something.
    pub fn add(&mut self, name: &str, value: f64) {
        let rounded = if value.abs() < 100.0 { (value * 100.0).round() / 100.0 } else { value.round() };
        self.0.insert(name.to_owned(), json!(rounded));
    }

    /// Writes the figures and the machine they were measured on.
    pub fn write(self, machine: Value, path: &Path) -> anyhow::Result<()> {
        let whole = json!({"figures": self.0, "machine": machine});
        let text = serde_json::to_string_pretty(&whole)? + "\n";
        std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
    }
}
