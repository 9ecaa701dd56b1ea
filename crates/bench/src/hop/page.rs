//! The report as a page.

use crate::html::Page;
use crate::html::plot::{self, Bar, Line};
use crate::load::SHARES;
use crate::report::Report;
use crate::statistics::{Selection, Trials};
use crate::trial::{FRESH, HTTP1, HTTP2, RARE, SPARSE, Trial};
use serde_json::Value;

pub(super) fn page(
    trials: &Trials,
    names: &[&str],
    report: &Report,
    machine: &Value,
    conditions: &Value,
) -> anyhow::Result<Page> {
    let mut page = Page::new("Envoy and Leno, one hop and two");
    page.note("Proxy on one core with one worker thread; load, upstream and sinks on the other. Medians of interleaved repeats, \
               whiskers from the least to the most. CPU is user and system time of the proxy's processes for each request.");
    page.heading("Ratios (lower is better)");
    let mut rows = vec![["figure", "measured", "bar", ""].map(str::to_owned).to_vec()];
    for (name, bar) in super::BARS {
        if let Some(value) = report.figure(name) {
            let verdict = if value <= bar { "reached" } else { "missed" };
            rows.push(vec![name.to_owned(), format!("{value:.3}"), format!("{bar:.2}"), verdict.to_owned()]);
        }
    }
    page.table(rows);
    for (traffic, title) in [
        (HTTP1, "HTTP/1.1, connections kept"),
        (HTTP2, "HTTP/2"),
        (FRESH, "HTTP/1.1, a new connection for each request"),
        (SPARSE, "HTTP/1.1, 20 requests a second (Leno: over 50 functions)"),
        (RARE, "HTTP/1.1, one request a second"),
    ] {
        let bars = |pace, value| bars(trials, names, (traffic.name, pace), value);
        let (closed, open) = (bars("closed", |trial| trial.cpu_us), bars("open", |trial| trial.cpu_us));
        if closed.is_empty() && open.is_empty() {
            continue;
        }
        page.heading(title);
        if !closed.is_empty() {
            page.plot(plot::bars("CPU per request, closed loop (us)", &closed)?);
            let rates = bars("closed", |trial| trial.requests_per_second);
            page.plot(plot::bars("Requests per second, closed loop", &rates)?);
        }
        page.plot(plot::bars("CPU per request, open loop (us)", &open)?);
        let lines: Vec<Line> = names.iter().filter_map(|name| latency(trials, (name, traffic.name, "open"))).collect();
        page.plot(plot::distribution("Latency from the scheduled send, open loop (us)", &lines)?);
    }
    page.heading("Memory under load");
    let memory = bars(trials, names, (HTTP1.name, "closed"), |trial| trial.rss_kib as f64 / 1024.0);
    page.plot(plot::bars("RSS, as of a proxy alone (MiB)", &memory)?);
    page.conditions(machine, conditions);
    Ok(page)
}

fn bars(trials: &Trials, names: &[&str], (traffic, pace): (&str, &str), value: fn(&Trial) -> f64) -> Vec<Bar> {
    let bar = |name: &&str| {
        let figure = trials.figure((name, traffic, pace), value)?;
        (figure.most > 0.0).then(|| Bar { label: (*name).to_owned(), figure })
    };
    names.iter().filter_map(bar).collect()
}

/// At each share the median of the trials. The first per cent and the very last value say more about the machine than about who is measured.
fn latency(trials: &Trials, which: Selection<'_>) -> Option<Line> {
    let shown = SHARES.iter().enumerate().filter(|(_, share)| (0.01..=0.999).contains(*share));
    let at = |(index, share): (usize, &f64)| {
        let value = |trial: &Trial| trial.latency_us.get(index).copied().unwrap_or(f64::NAN);
        Some((trials.figure(which, value)?.median, *share))
    };
    Some(Line { label: which.0.to_owned(), points: shown.map(at).collect::<Option<_>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_what_was_measured_and_nothing_else() {
        let latency_us: Vec<f64> = SHARES.iter().map(|share| 50.0 / (1.001 - share)).collect();
        let closed = Trial { cpu_us: 12.0, others_percent: 99.0, ..Trial::made_up("leno <none>") };
        let open = Trial { pace: "open", latency_us, ..Trial::made_up("leno <none>") };
        let mut report = Report::default();
        report.add("cpu_wasm_vs_envoy_nine", 0.3);
        let page = page(&Trials(vec![closed, open]), &["leno <none>"], &report, &Value::Null, &Value::Null).unwrap();
        let html = page.render().unwrap();
        for part in ["<td>cpu_wasm_vs_envoy_nine</td><td>0.300</td><td>0.15</td><td>missed</td>", "\n12.0 *\n"] {
            assert!(html.contains(part), "{part}: {html}");
        }
        assert_eq!(html.matches("leno &lt;none&gt;").count(), 5, "three bars, a line, and memory: {html}");
        assert!(!html.contains("leno <none>") && !html.contains("<h2>HTTP&#x2f;2</h2>"), "{html}");
    }
}
