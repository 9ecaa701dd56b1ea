//! The report as one page with plots, that needs nothing else.

pub mod axes;
mod plot;

use crate::load::SHARES;
use crate::report::Report;
use crate::statistics::{Trials, Which};
use anyhow::Context;
use plot::{Bar, Curve};
use serde_json::Value;
use std::path::Path;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b}\
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.5rem}table{border-collapse:collapse;margin:1rem 0}\
td,th{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:right}td:first-child,th:first-child{text-align:left}\
.no{color:#a33}.yes{color:#286b28}small,.note{color:#555}svg{max-width:100%;height:auto}svg text{font:12px system-ui,sans-serif}";

/// A page in the making.
pub struct Page(String);

impl Page {
    pub fn new(title: &str) -> Self {
        let title = escape(title);
        Self(format!(
            "<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>\n"
        ))
    }

    pub fn heading(&mut self, text: &str) {
        self.add(&format!("<h2>{}</h2>", escape(text)));
    }

    pub fn note(&mut self, text: &str) {
        self.add(&format!("<p class=note>{}</p>", escape(text)));
    }

    /// The first row is the head.
    pub fn table(&mut self, rows: &[Vec<String>]) {
        self.add("<table>");
        for (index, row) in rows.iter().enumerate() {
            let tag = if index == 0 { "th" } else { "td" };
            let cells: String = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
            self.add(&format!("<tr>{cells}</tr>"));
        }
        self.add("</table>");
    }

    pub fn json(&mut self, summary: &str, value: &Value) {
        let text = escape(&format!("{value:#}"));
        self.add(&format!("<details><summary>{}</summary><pre>{text}</pre></details>", escape(summary)));
    }

    /// HTML as it is.
    pub fn add(&mut self, html: &str) {
        self.0.push_str(html);
        self.0.push('\n');
    }

    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        std::fs::write(path, &self.0).with_context(|| format!("{} cannot be written", path.display()))
    }
}

/// The page of `leno-bench hop`.
pub fn hop(
    trials: &Trials,
    names: &[&str],
    (report, limits): (&Report, &[(&str, f64)]),
    machine: &Value,
    conditions: &Value,
) -> Page {
    let mut page = Page::new("Envoy and Leno, one hop and two");
    page.note("Proxy on one core with one worker thread; load, upstream and sinks on the other. Medians of interleaved repeats, \
               whiskers from the least to the most. CPU is user and system time of the proxy's processes for each request.");
    page.heading("Ratios (lower is better)");
    let mut rows = vec![["figure", "measured", "bar", ""].map(str::to_owned).to_vec()];
    for &(name, bar) in limits {
        if let Some(value) = report.figure(name) {
            let verdict = if value <= bar { "reached" } else { "missed" };
            rows.push(vec![name.to_owned(), format!("{value:.3}"), format!("{bar:.2}"), verdict.to_owned()]);
        }
    }
    page.table(&rows);
    for (way, title) in [
        ("http1", "HTTP/1.1, connections kept"),
        ("http2", "HTTP/2"),
        ("fresh", "HTTP/1.1, a new connection for each request"),
    ] {
        if names.iter().all(|name| trials.figure((name, way, "closed"), |trial| trial.cpu_us).is_none()) {
            continue;
        }
        page.heading(title);
        page.add(&plot::bars(
            "CPU per request, closed loop (us)",
            &bars(trials, names, way, "closed", |trial| trial.cpu_us),
        ));
        page.add(&plot::bars(
            "Requests per second, closed loop",
            &bars(trials, names, way, "closed", |trial| trial.requests_per_second),
        ));
        page.add(&plot::bars(
            "CPU per request, open loop (us)",
            &bars(trials, names, way, "open", |trial| trial.cpu_us),
        ));
        let curves: Vec<Curve> = names.iter().filter_map(|name| curve(trials, (name, way, "open"))).collect();
        page.add(&plot::distribution("Latency from the scheduled send, open loop (us)", &curves));
    }
    page.heading("Memory under load");
    let memory = |trial: &crate::trial::Trial| trial.pss_kib as f64 / 1024.0;
    page.add(&plot::bars("PSS (MiB)", &bars(trials, names, "http1", "closed", memory)));
    self::conditions(page, machine, conditions)
}

/// The end of every page.
pub fn conditions(mut page: Page, machine: &Value, conditions: &Value) -> Page {
    page.heading("Conditions");
    page.json("machine", machine);
    page.json("conditions", conditions);
    page
}

fn bars(trials: &Trials, names: &[&str], way: &str, pace: &str, value: fn(&crate::trial::Trial) -> f64) -> Vec<Bar> {
    let bar = |name: &&str| {
        let figure = trials.figure((name, way, pace), value)?;
        (figure.most > 0.0).then(|| Bar { label: (*name).to_owned(), figure })
    };
    names.iter().filter_map(bar).collect()
}

/// At each share the median of the trials.
fn curve(trials: &Trials, which: Which<'_>) -> Option<Curve> {
    let at = |index: usize| {
        let value = |trial: &crate::trial::Trial| trial.latency_us.get(index).copied().unwrap_or(f64::NAN);
        Some((trials.figure(which, value)?.median, SHARES[index]))
    };
    let points = (0..SHARES.len()).map(at).collect::<Option<Vec<_>>>()?;
    Some(Curve { label: which.0.to_owned(), points })
}

/// Text as HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
