//! `leno-bench dashboard`: the processor time that open pages take of a control plane. Control plane,
//! gateway and two nodes are real processes; the gateway gets requests at a fixed rate. The pages are
//! streams as the page opens them, of the view with the most events.

use crate::arguments::Output;
use crate::cpu::Usage;
use crate::load::{Outcome, Pace, Plan, Protocol, Request};
use crate::machine;
use crate::report::Report;
use crate::rig::{start_load, wait_for};
use anyhow::{Context, ensure};
use leno_testkit::browser::{Browser, control_with_page, events};
use leno_testkit::cluster::{Node, documents};
use leno_testkit::control::{Control, text};
use leno_testkit::process::terminate;
use leno_testkit::{Process, eventually, mesh};
use serde_json::json;
use std::io::BufRead;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The topics of the page at its view of requests.
const TOPICS: &str = "topics=alerts,flows,graph:60";
/// The load may lack so much of its rate, in per cent.
const TOLERATED: f64 = 2.0;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    output: Output,
    /// Requests a second. Each is recorded twice: by the gateway and by the callee's sidecar.
    #[arg(long, value_name = "NUMBER", default_value_t = 500.0)]
    rate: f64,
    /// Open pages.
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    pages: usize,
}

/// The control plane under load.
struct Sample {
    /// Per cent of a core.
    cpu: f64,
    /// Flows that the pages got a second, and those that they counted as missed.
    flows: [f64; 2],
    outcome: Outcome,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let machine = machine::describe();
    println!("machine: {machine}");
    let Arguments { output, rate, pages } = arguments;
    let echo = mesh::echo();
    let made_by = "`cargo build --profile dist -p leno --example echo` makes it";
    ensure!(echo.is_file(), "there is no {}: {made_by}", echo.display());
    let control = control_with_page();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let _nodes = ["one", "two"].map(|name| Node::join(&control, name, &[]));
    control.apply(&documents());
    eventually("an answer", || gateway.get("/").filter(|answer| answer.status == 200));
    let measured = Duration::from_secs(if output.quick { 20 } else { 60 });
    let mut report = Report::default();
    for (name, tokens) in [("without_pages", 0), ("pages_of_one_token", 1), ("pages_of_several_tokens", *pages)] {
        let streams = open(&control, tokens, if tokens == 0 { 0 } else { *pages })?;
        let sample = sample(&control, gateway.gateway, *rate, measured, &streams)?;
        let Sample { cpu, flows: [shown, missed], outcome } = sample;
        println!("{name}: {cpu:.2} % of a core; {shown:.0} flows a second on pages, {missed:.0} counted as missed");
        let reached = outcome.answered_with(&[200]) as f64 / outcome.seconds;
        ensure!(
            reached >= rate * (1.0 - TOLERATED / 100.0),
            "{name}: only {reached:.0} requests a second: {outcome:?}"
        );
        report.add(&format!("control_cpu_percent_{name}"), cpu);
        report.add(&format!("flows_per_second_{name}"), shown);
    }
    let conditions = json!({"requests_per_second": rate, "pages": pages, "seconds": measured.as_secs()});
    output.write(report, machine, json!({ "conditions": conditions }))
}

/// Opens pages, of so many tokens in turn, and waits until each has events.
fn open(control: &Control, tokens: usize, pages: usize) -> anyhow::Result<Vec<Process>> {
    let tokens: Vec<String> =
        (0..tokens).map(|_| text(&control.leno(&["token", "create", "--role", "reader"])).trim().to_owned()).collect();
    let mut streams = Vec::new();
    for token in tokens.iter().cycle().take(pages) {
        let browser = Browser::of(control);
        let answer = browser.sign_in(token);
        ensure!(answer.status == 204, "a page cannot sign in: {answer:?}");
        let mut stream = browser.stream(TOPICS);
        stream.wait_until("the first flows", |stream| !events(stream, "flows").is_empty());
        streams.push(stream);
    }
    Ok(streams)
}

fn sample(
    control: &Control,
    gateway: SocketAddr,
    rate: f64,
    measured: Duration,
    streams: &[Process],
) -> anyhow::Result<Sample> {
    let request = Request {
        method: "GET".to_owned(),
        target: "/".to_owned(),
        authorities: vec![gateway.to_string()],
        headers: Vec::new(),
        authorizations: Vec::new(),
        body: 0,
        contents: Vec::new(),
    };
    let plan = Plan {
        address: gateway,
        protocol: Protocol::Http1,
        tls: None,
        pace: Pace::Open(rate),
        connections: 16,
        streams: 1,
        warm_up_ms: 5000,
        measured_ms: measured.as_millis().try_into()?,
        request,
    };
    let (mut child, mut output) = start_load(&plan)?;
    let mut watch = || {
        wait_for(&mut output, "begin")?;
        let (begin, used, before) = (Instant::now(), Usage::of(&[control.pid()])?, counts(streams));
        wait_for(&mut output, "end")?;
        let used = Usage::of(&[control.pid()])? - used;
        let seconds = begin.elapsed().as_secs_f64();
        let after = counts(streams);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let outcome = serde_json::from_str(&line).context("the load said nothing of its outcome")?;
        let flows = [0, 1].map(|index| (after[index] - before[index]) as f64 / seconds);
        Ok(Sample { cpu: used.cpu.as_secs_f64() / seconds * 100.0, flows, outcome })
    };
    let sample = watch();
    terminate(&mut child);
    sample
}

/// Flows that pages got, and that they missed.
fn counts(streams: &[Process]) -> [u64; 2] {
    let batches = streams.iter().flat_map(|stream| events(stream, "flows"));
    batches.fold([0, 0], |[shown, missed], batch| {
        let flows = batch["flows"].as_array().map_or(0, Vec::len) as u64;
        [shown + flows, missed + batch["missed"].as_u64().unwrap_or_default()]
    })
}
