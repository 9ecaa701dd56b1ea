//! The report as a page.

use super::figures::{KINDS, Measured, SHARES, STAGES, quantile, slowdowns};
use super::watch::{Configuration, Snapshot};
use super::workload::Invocation;
use crate::html::Page;
use crate::html::plot::{self, Line};
use crate::load;
use crate::report::Report;
use serde_json::Value;

/// Where the issue wants Leno with all nine policies, as ratios to no mesh.
const BARS: [(&str, f64); 3] = [("p50", 1.05), ("p95", 1.10), ("p99", 1.5)];

pub(super) fn page(
    measured: &[Measured],
    invocations: &[Invocation],
    report: &Report,
    machine: &Value,
    conditions: &Value,
) -> anyhow::Result<Page> {
    let mut page = Page::new("A trace of Azure Functions through the mesh");
    let source = conditions["measured_on"].as_str().unwrap_or_default();
    page.note(&format!(
        "Measured on {source}; arrivals {} times faster than in the workload, execution times multiplied by {}, functions {}. Slowdown is \
         the time from when an invocation was due to the end of its answer, divided by the execution time that it asked for.",
        conditions["compress"],
        conditions["duration_scale"],
        conditions["work"].as_str().unwrap_or_default(),
    ));
    if conditions["side_by_side"] == true {
        page.note("The scenarios were measured side by side, except Envoy's; what each core of the machine did is of all of them together.");
    }
    page.heading("Slowdown, as a ratio to no mesh");
    ratios(&mut page, measured, report);
    page.heading("Slowdown");
    table(&mut page, measured, report);
    for (kind, which) in KINDS {
        let line = |one: &Measured| {
            let sorted = slowdowns(&one.good(invocations), which);
            let points = load::SHARES.iter().filter_map(|share| Some((quantile(&sorted, *share)?, *share)));
            Line { label: one.scenario.title().to_owned(), points: points.collect() }
        };
        let lines: Vec<Line> = measured.iter().map(line).collect();
        let title = match kind {
            "" => "All invocations",
            "_warm" => "Warm: an instance listened when the invocation was due",
            _ => "Cold: it was due before its instance listened",
        };
        page.plot(plot::distribution(title, &lines)?);
    }
    page.heading("Cold starts");
    stages(&mut page, measured, invocations);
    page.heading("Processor and memory");
    page.note("The layer, its proxies and sidecars, without the functions. CPU of each core is the whole machine's.");
    let over = |title: &str, value: &dyn Fn(&Snapshot) -> Option<f64>| {
        let line = |one: &Measured| {
            let points = one.watched.snapshots.iter().filter_map(|snapshot| Some((snapshot.at, value(snapshot)?)));
            Line { label: one.scenario.title().to_owned(), points: points.collect() }
        };
        plot::over_time(title, &measured.iter().map(line).collect::<Vec<_>>())
    };
    page.plot(over("Cores used by proxies", &|snapshot| Some(snapshot.mesh))?);
    page.plot(over("PSS of proxies (MiB)", &|snapshot| snapshot.memory_mib)?);
    page.plot(over("Instances", &|snapshot| Some(snapshot.instances as f64))?);
    let cores =
        measured.iter().flat_map(|one| &one.watched.snapshots).map(|snapshot| snapshot.cores.len()).max().unwrap_or(0);
    for core in 0..cores {
        page.plot(over(&format!("Core {core} at work (part of it)"), &|snapshot| snapshot.cores.get(core).copied())?);
    }
    page.heading("Configuration");
    page.note(
        "Leno: what the control plane sent to the node, by its own count, without framing. Definitions of all functions go there before the first invocation. Envoy: the files that its instances were started with; there \
         is no control plane in that scenario.",
    );
    let configuration = |value: fn(&Configuration) -> u64| {
        move |snapshot: &Snapshot| snapshot.configuration.map(|configuration| value(&configuration) as f64)
    };
    page.plot(over("Messages since the start", &configuration(|configuration| configuration.messages))?);
    page.plot(over("Bytes since the start", &configuration(|configuration| configuration.bytes))?);
    let cold = |one: &Measured| {
        let points = one.cold_starts().into_iter().enumerate().map(|(index, at)| (at, (index + 1) as f64));
        Line { label: one.scenario.title().to_owned(), points: points.collect() }
    };
    page.plot(plot::over_time("Cold starts since the start", &measured.iter().map(cold).collect::<Vec<_>>())?);
    page.conditions(machine, conditions);
    Ok(page)
}

fn ratios(page: &mut Page, measured: &[Measured], report: &Report) {
    let mut rows = vec![["", "p50", "p90", "p95", "p99", "p99 warm", "p50 cold", "failed"].map(str::to_owned).to_vec()];
    for one in measured {
        let name = one.scenario.name();
        let cell = |figure: String| report.figure(&figure).map_or_else(|| "-".to_owned(), |value| value.to_string());
        let mut row = vec![one.scenario.title().to_owned()];
        row.extend(SHARES.map(|(label, _)| cell(format!("slowdown_{label}_{name}"))));
        row.push(cell(format!("slowdown_p99_{name}_warm")));
        row.push(cell(format!("slowdown_p50_{name}_cold")));
        row.push(one.failed().to_string());
        rows.push(row);
    }
    page.table(rows);
    let bars = BARS.map(|(label, bar)| format!("{label} at most {bar}"));
    page.note(&format!("Where Leno with all nine is to be: {}; no failures.", bars.join(", ")));
}

fn table(page: &mut Page, measured: &[Measured], report: &Report) {
    let head = ["", "p50", "p90", "p95", "p99", "warm", "cold", "CPU s", "most MiB", "others %"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in measured {
        let name = one.scenario.name();
        let cell = |figure: String| report.figure(&figure).map_or_else(|| "-".to_owned(), |value| value.to_string());
        let mut row = vec![one.scenario.title().to_owned()];
        row.extend(SHARES.map(|(label, _)| cell(format!("{name}_slowdown_{label}"))));
        let others = ["invocations_warm", "invocations_cold", "mesh_cpu_s", "mesh_memory_mib_most", "others_percent"];
        row.extend(others.map(|figure| cell(format!("{name}_{figure}"))));
        rows.push(row);
    }
    page.table(rows);
}

fn stages(page: &mut Page, measured: &[Measured], invocations: &[Invocation]) {
    page.note("Of each instance's first request, where it waited for the instance: median and 99th percentile of each stage, in ms.");
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(measured.iter().map(|one| one.scenario.title().to_owned()));
    let all: Vec<[Vec<f64>; 5]> = measured.iter().map(|one| one.stages(invocations)).collect();
    for (index, stage) in STAGES.iter().enumerate() {
        let mut row = vec![(*stage).to_owned()];
        row.extend(all.iter().map(|stages| {
            let at = |share| quantile(&stages[index], share);
            at(0.5).zip(at(0.99)).map_or_else(|| "-".to_owned(), |(p50, p99)| format!("{p50:.2} / {p99:.2}"))
        }));
        rows.push(row);
    }
    page.table(rows);
}
