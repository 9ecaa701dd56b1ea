//! The report as one page with plots, that needs nothing else.

pub(crate) mod plot;

use anyhow::Context;
use minijinja::{Environment, Value};
use serde_json::Value as Json;
use std::path::Path;

/// The name ends with `.html`, so that minijinja escapes what is filled in.
const NAME: &str = "page.html";
const TEMPLATE: &str = include_str!("../templates/page.html");

pub(crate) struct Page {
    title: String,
    parts: Vec<Value>,
}

impl Page {
    pub(crate) fn new(title: &str) -> Self {
        Self { title: title.to_owned(), parts: Vec::new() }
    }

    fn add(&mut self, kind: &str, content: impl Into<Value>) {
        self.parts.push(Value::from_pairs([(kind, content)]));
    }

    pub(crate) fn heading(&mut self, text: &str) {
        self.add("heading", text);
    }

    pub(crate) fn note(&mut self, text: &str) {
        self.add("note", text);
    }

    /// The first row is the head.
    pub(crate) fn table(&mut self, rows: Vec<Vec<String>>) {
        self.add("table", rows);
    }

    pub(crate) fn plot(&mut self, plot: plot::Svg) {
        self.add("plot", Value::from_safe_string(plot.0));
    }

    /// The end of every page.
    pub(crate) fn conditions(&mut self, machine: &Json, conditions: &Json) {
        self.heading("Conditions");
        for (summary, value) in [("machine", machine), ("conditions", conditions)] {
            self.add("details", Value::from_pairs([("summary", summary), ("text", &format!("{value:#}"))]));
        }
    }

    pub(crate) fn render(&self) -> anyhow::Result<String> {
        let values = Value::from_pairs([("title", Value::from(&self.title)), ("parts", Value::from(&self.parts))]);
        Environment::new().render_named_str(NAME, TEMPLATE, values).context("the page cannot be rendered")
    }

    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        std::fs::write(path, self.render()?).with_context(|| format!("{} cannot be written", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_plots_are_not() {
        let mut page = Page::new("<title>");
        page.heading("<heading>");
        page.note("<note>");
        page.table(vec![vec!["<head>".into()], vec!["<cell>".into()]]);
        page.plot(plot::bars("<plot>", &[]).unwrap());
        page.conditions(&"<machine>".into(), &"<conditions>".into());
        let html = page.render().unwrap();
        for text in ["title", "heading", "note", "head", "cell", "plot", "machine", "conditions"] {
            assert!(html.contains(&format!("&lt;{text}&gt;")), "{text}: {html}");
        }
        assert!(html.contains("<th>&lt;head&gt;</th>") && html.contains("<td>&lt;cell&gt;</td>"), "{html}");
        assert!(html.contains("<svg ") && html.contains("</svg>"), "{html}");
    }
}
