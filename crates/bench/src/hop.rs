//! `leno-bench hop`: what a proxy costs a request, Envoy and Leno side by side before the same upstream.

mod page;

use crate::arguments::{Output, ProgramPaths};
use crate::contenders::{Running, envoy_tunings};
use crate::cpu::Memory;
use crate::load::Pace;
use crate::machine;
use crate::policies::{Algorithm, Policies};
use crate::report::Report;
use crate::rig::Rig;
use crate::statistics::{Figure, Trials};
use crate::syscalls;
use crate::trial::{self, Contender, FRESH, HTTP1, HTTP2, Lengths, Traffic, Trial};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// What is aimed at: at most this much.
const BARS: [(&str, f64); 8] = [
    ("cpu_wasm_vs_envoy_nine", 0.20),
    ("cpu_microvm_vs_envoy_nine", 0.38),
    ("cpu_wasm_vs_envoy_best", 0.50),
    ("cpu_none_vs_envoy_none", 0.55),
    ("cpu_pair_wasm_vs_envoy_pair", 0.20),
    ("added_p50_wasm_vs_envoy_nine", 0.27),
    ("added_p50_microvm_vs_envoy_nine", 0.35),
    ("p99_wasm_vs_envoy_nine", 0.50),
];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub programs: ProgramPaths,
    /// Only contenders whose names contain one of these words (comma-separated); `direct` always runs.
    #[arg(long, value_delimiter = ',', value_name = "WORDS")]
    only: Vec<String>,
    /// Where to write a short table in Markdown, as in the README.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Repeats, instead of the usual number.
    #[arg(long, value_name = "N")]
    repeats: Option<usize>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let machine = machine::describe();
    let rig = Rig::set_up(arguments.programs.find()?)?;
    println!("machine: {machine}\nenvoy: {}", rig.programs.envoy_version().as_deref().unwrap_or("none"));
    let quick = arguments.output.quick;
    let contenders = start(&rig, &arguments.only, quick)?;
    let mut report = Report::default();
    for contender in &contenders {
        if let Ok(memory) = Memory::of(&contender.pids()) {
            report.add(&format!("idle_pss_mib_{}", contender.name()), memory.pss as f64 / 1024.0);
        }
    }
    let trials = Trials(run_interleaved(&rig, &contenders, &schedule(quick, arguments.repeats))?);
    let names: Vec<&str> = contenders.iter().map(|contender| contender.name()).collect();
    for contender in contenders.iter().filter(|contender| contender.accepts(HTTP1)) {
        if let Some(calls) = syscalls::count(&rig, contender) {
            report.add(&format!("syscalls_{}", contender.name()), calls);
        }
    }
    print_table(&trials, &names);
    add_figures(&mut report, &trials, &names);
    add_ratios(&mut report, &trials);
    let mut details = json!({"conditions": trial::conditions(&rig), "quick": quick});
    details["trials"] = serde_json::to_value(&trials.0)?;
    if let Some(path) = &arguments.output.html {
        page::page(&trials, &names, &report, &machine, &details["conditions"])?.write(path)?;
    }
    if let Some(path) = &arguments.markdown {
        std::fs::write(path, markdown(&trials))?;
    }
    match &arguments.output.json {
        Some(path) => report.write_with(machine, details, path),
        None => Ok(()),
    }
}

/// The few rows that say most.
fn markdown(trials: &Trials) -> String {
    let rows = [
        ("Envoy, no policies", "envoy_none"),
        ("Leno, no policies", "leno_none"),
        ("Envoy, all nine", "envoy_nine"),
        ("Envoy, all nine, JWT cache and local rate limit", "envoy_best"),
        ("Leno, all nine, wasm", "leno_nine_wasm"),
        ("Leno, all nine, micro-VM", "leno_nine_microvm"),
        ("Envoy, two sidecars", "envoy_pair"),
        ("Leno, two hops on a node, wasm", "leno_pair_wasm"),
    ];
    let mut table = String::from(
        "| | CPU a request, saturated | CPU a request, 1,000/s | p50, 1,000/s | p99, 1,000/s | memory |\n|---|---|---|---|---|---|\n",
    );
    for (title, name) in rows {
        let of =
            |pace, value: fn(&Trial) -> f64| trials.figure((name, HTTP1.name, pace), value).map(|figure| figure.median);
        let row = (|| {
            let (closed, open) = (of("closed", |trial| trial.cpu_us)?, of("open", |trial| trial.cpu_us)?);
            let (p50, p99) = (of("open", |trial| trial.p50_us)?, of("open", |trial| trial.p99_us)?);
            let memory = of("closed", |trial| trial.pss_kib as f64 / 1024.0)?;
            Some(format!("| {title} | {closed:.0} us | {open:.0} us | {p50:.0} us | {p99:.0} us | {memory:.0} MiB |\n"))
        })();
        table.push_str(&row.unwrap_or_default());
    }
    table
}

/// Everybody at once: those who are not asked do nothing, and nobody is measured cold.
fn start(rig: &Rig, only: &[String], quick: bool) -> anyhow::Result<Vec<Running>> {
    let wanted = |name: &str| only.is_empty() || only.iter().any(|word| name.contains(word.as_str()));
    let mut contenders = vec![Running::direct(rig)?];
    let rs256 = Policies { jwt: Some(Algorithm::Rs256), ..Policies::NINE };
    if rig.programs.envoy.is_some() {
        let mut envoys = vec![("envoy_none", Policies::NONE)];
        envoys.extend(
            envoy_tunings().into_iter().filter(|(name, _)| !quick || matches!(*name, "envoy_nine" | "envoy_best")),
        );
        if !quick {
            envoys.push(("envoy_nine_rs256", rs256));
        }
        for (name, policies) in envoys.into_iter().filter(|(name, _)| wanted(name)) {
            contenders.push(Running::envoy(rig, name, policies)?);
        }
        if wanted("envoy_pair") {
            contenders.push(Running::envoy_pair(rig, "envoy_pair", Policies::NINE)?);
        }
    } else {
        println!("there is no Envoy: its figures and all ratios are missing");
    }
    let mut lenos = vec![
        ("leno_none", "wasm", Policies::NONE),
        ("leno_nine_wasm", "wasm", Policies::NINE),
        ("leno_nine_microvm", "microvm", Policies::NINE),
    ];
    if !quick {
        lenos.push(("leno_none_microvm", "microvm", Policies::NONE));
        lenos.push(("leno_nine_wasm_rs256", "wasm", rs256));
    }
    let has_kvm = std::fs::exists("/dev/kvm").unwrap_or(false);
    for (name, engine, policies) in lenos.into_iter().filter(|(name, ..)| wanted(name)) {
        match has_kvm || engine != "microvm" {
            true => contenders.push(Running::leno(rig, name, engine, policies)?),
            false => println!("not measured: {name}; there is no /dev/kvm"),
        }
    }
    // What `leno up` cannot be asked for: no isolation, and the inbound listener with an identity for the load.
    for (name, engine) in [("leno_node_wasm", "wasm"), ("leno_inline", "inline")] {
        if wanted(name) && !quick {
            contenders.push(Running::node(rig, name, engine, Policies::NINE)?);
        }
    }
    if wanted("leno_inbound_wasm") {
        contenders.push(Running::node_inbound(rig, "leno_inbound_wasm", "wasm", Policies::NINE)?);
    }
    for (name, tls) in [("leno_pair_wasm", false), ("leno_pair_wasm_mtls", true)] {
        if wanted(name) {
            contenders.push(Running::leno_pair(rig, name, "wasm", Policies::NINE, tls)?);
        }
    }
    Ok(contenders)
}

/// How often a kind of traffic is measured, and how long each time.
struct Series {
    traffic: Traffic,
    repeats: usize,
    lengths: Lengths,
}

fn schedule(quick: bool, repeats: Option<usize>) -> Vec<Series> {
    let ms = Duration::from_millis;
    let (lengths, counts) = match quick {
        true => (Lengths { warm_up: ms(200), closed: ms(800), open: ms(1000), retakes: 0 }, [3, 1, 1]),
        false => (Lengths { warm_up: ms(500), closed: ms(2500), open: ms(4000), retakes: 2 }, [7, 4, 3]),
    };
    let all = [HTTP1, HTTP2, FRESH].into_iter().zip(counts);
    all.map(|(traffic, count)| Series { traffic, repeats: repeats.unwrap_or(count), lengths }).collect()
}

/// In each repeat everybody is measured once with each traffic, each repeat beginning with somebody else.
fn run_interleaved(rig: &Rig, contenders: &[Running], all: &[Series]) -> anyhow::Result<Vec<Trial>> {
    let mut trials = Vec::new();
    for series in all {
        for repeat in 0..series.repeats {
            for pace in [Pace::Closed, Pace::Open(series.traffic.rate)] {
                for index in 0..contenders.len() {
                    let contender = &contenders[(index + repeat) % contenders.len()];
                    if contender.accepts(series.traffic) {
                        let trial = trial::run(rig, contender, series.traffic, pace, repeat, series.lengths)?;
                        eprintln!(
                            "{} {} {} #{}: {:.1} us CPU, {:.0}/s, p50 {:.0} us, p99 {:.0} us, core {:.0} %, others {:.0} %",
                            trial.traffic,
                            trial.pace,
                            trial.contender,
                            repeat,
                            trial.cpu_us,
                            trial.requests_per_second,
                            trial.p50_us,
                            trial.p99_us,
                            trial.proxy_core_percent,
                            trial.others_percent
                        );
                        trials.push(trial);
                    }
                }
            }
        }
    }
    Ok(trials)
}

fn print_table(trials: &Trials, names: &[&str]) {
    println!(
        "{:<8} {:<22} {:>14} {:>10} {:>12} {:>10} {:>10}",
        "traffic", "who", "CPU us closed", "req/s", "CPU us open", "p50 us", "p99 us"
    );
    for traffic in [HTTP1.name, HTTP2.name, FRESH.name] {
        for name in names {
            let of = |pace, value: fn(&Trial) -> f64| trials.figure((name, traffic, pace), value);
            let text = |figure: Option<Figure>| match figure {
                Some(figure) => format!("{:.1}{}", figure.median, if figure.disturbed { "*" } else { "" }),
                None => "-".to_owned(),
            };
            let (closed, open) = (of("closed", |trial| trial.cpu_us), of("open", |trial| trial.cpu_us));
            if closed.is_none() && open.is_none() {
                continue;
            }
            println!(
                "{traffic:<8} {name:<22} {:>14} {:>10} {:>12} {:>10} {:>10}",
                text(closed),
                text(of("closed", |trial| trial.requests_per_second)),
                text(open),
                text(of("open", |trial| trial.p50_us)),
                text(of("open", |trial| trial.p99_us)),
            );
        }
    }
    println!("(* every run was disturbed by other work)");
}

fn add_figures(report: &mut Report, trials: &Trials, names: &[&str]) {
    type Value = fn(&Trial) -> f64;
    let values: [(&str, Value); 6] = [
        ("cpu_us", |trial| trial.cpu_us),
        ("rps", |trial| trial.requests_per_second),
        ("p50_us", |trial| trial.p50_us),
        ("p90_us", |trial| trial.p90_us),
        ("p99_us", |trial| trial.p99_us),
        ("switches", |trial| trial.voluntary_switches + trial.involuntary_switches),
    ];
    for name in names {
        for traffic in [HTTP1.name, HTTP2.name, FRESH.name] {
            for pace in ["closed", "open"] {
                for (what, value) in values {
                    if let Some(figure) = trials.figure((name, traffic, pace), value) {
                        report.add_figure(&format!("{what}_{name}_{traffic}_{pace}"), figure);
                    }
                }
            }
        }
        if let Some(figure) = trials.figure((name, HTTP1.name, "closed"), |trial| trial.pss_kib as f64 / 1024.0) {
            report.add_figure(&format!("loaded_pss_mib_{name}"), figure);
        }
    }
}

/// The figures that issue and README go by. CPU: closed loop; latency: open loop; HTTP/1.1 with kept connections.
fn add_ratios(report: &mut Report, trials: &Trials) {
    let cpu = [
        ("cpu_wasm_vs_envoy_nine", "leno_nine_wasm", "envoy_nine"),
        ("cpu_microvm_vs_envoy_nine", "leno_nine_microvm", "envoy_nine"),
        ("cpu_wasm_vs_envoy_best", "leno_nine_wasm", "envoy_best"),
        ("cpu_microvm_vs_envoy_best", "leno_nine_microvm", "envoy_best"),
        ("cpu_none_vs_envoy_none", "leno_none", "envoy_none"),
        ("cpu_inbound_wasm_vs_envoy_nine", "leno_inbound_wasm", "envoy_nine"),
        ("cpu_pair_wasm_vs_envoy_pair", "leno_pair_wasm", "envoy_pair"),
        ("cpu_pair_wasm_mtls_vs_envoy_pair", "leno_pair_wasm_mtls", "envoy_pair"),
    ];
    println!();
    for (name, ours, theirs) in cpu {
        for (suffix, traffic, pace) in [
            ("", "http1", "closed"),
            ("_open", "http1", "open"),
            ("_http2", "http2", "closed"),
            ("_fresh", "fresh", "closed"),
        ] {
            let ratio = trials.combined([(ours, traffic, pace), (theirs, traffic, pace)], |[ours, theirs]| {
                ours.cpu_us / theirs.cpu_us
            });
            add_ratio(report, &format!("{name}{suffix}"), ratio);
        }
    }
    let latency = [("wasm", "leno_nine_wasm"), ("microvm", "leno_nine_microvm")];
    for (name, ours) in latency {
        let open = |contender| (contender, "http1", "open");
        let three = [open(ours), open("envoy_nine"), open("direct")];
        let added = trials
            .combined(three, |[ours, theirs, direct]| (ours.p50_us - direct.p50_us) / (theirs.p50_us - direct.p50_us));
        add_ratio(report, &format!("added_p50_{name}_vs_envoy_nine"), added);
        let p99 = trials.combined([open(ours), open("envoy_nine")], |[ours, theirs]| ours.p99_us / theirs.p99_us);
        add_ratio(report, &format!("p99_{name}_vs_envoy_nine"), p99);
    }
}

fn add_ratio(report: &mut Report, name: &str, ratio: Option<Figure>) {
    let Some(figure) = ratio else { return };
    let mark = if figure.disturbed { " (every run was disturbed)" } else { "" };
    println!(
        "{name}: {:.3}  ({:.3} to {:.3}, {} repeats){mark}",
        figure.median, figure.least, figure.most, figure.count
    );
    report.add_figure(name, figure);
}
