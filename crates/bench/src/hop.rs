//! `leno-bench hop`: the cost of a proxy for each request, Envoy and Leno side by side before the
//! same upstream.

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
use crate::trial::{self, Contender, FRESH, HTTP1, HTTP2, Lengths, RARE, SPARSE, Traffic, Trial};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// The aims: at most these values.
const BARS: [(&str, f64); 14] = [
    ("cpu_wasm_vs_envoy_best", 0.35),
    ("cpu_wasm_vs_envoy_nine", 0.15),
    ("cpu_microvm_vs_envoy_nine", 0.30),
    ("cpu_none_vs_envoy_none", 0.45),
    ("cpu_pair_wasm_mtls_vs_envoy_pair_best", 0.35),
    ("cpu_none_vs_envoy_none_http2", 0.60),
    ("cpu_none_h2c_vs_envoy_none_h2c_http2", 0.60),
    ("cpu_wasm_vs_envoy_best_http2", 0.40),
    ("cpu_microvm_vs_envoy_best_http2", 0.70),
    ("added_p50_wasm_vs_envoy_nine", 0.25),
    ("added_p50_microvm_vs_envoy_nine", 0.33),
    ("cpu_wasm_vs_envoy_nine_sparse", 0.25),
    ("added_p50_wasm_vs_envoy_nine_sparse", 0.35),
    ("p99_wasm_vs_envoy_nine", 0.50),
];

/// Functions that sparse traffic is spread over.
const MANY: usize = 50;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub programs: ProgramPaths,
    /// Only contenders whose names contain one of these words (comma-separated); `direct` always
    /// runs.
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
            report.add(&format!("idle_rss_mib_{}", contender.name()), memory.rss as f64 / 1024.0);
        }
    }
    let trials = Trials(run_interleaved(&rig, &contenders, &schedule(quick, arguments.repeats))?);
    let names: Vec<&str> = contenders.iter().map(|contender| contender.name()).collect();
    for (traffic, pace, suffix) in [(HTTP1, Pace::Closed, ""), (SPARSE, Pace::Open(SPARSE.rate), "_sparse")] {
        for contender in contenders.iter().filter(|contender| concerns(traffic, contender)) {
            if let Some(calls) = syscalls::count(&rig, contender, traffic, pace) {
                report.add(&format!("syscalls_{}{suffix}", contender.name()), calls.all);
                report.add(&format!("timers_{}{suffix}", contender.name()), calls.timers);
            }
        }
    }
    print_table(&trials, &names);
    add_figures(&mut report, &trials, &names);
    add_ratios(&mut report, &trials);
    let mut details = json!({"conditions": trial::conditions(&rig), "quick": quick});
    details["trials"] = serde_json::to_value(&trials.0)?;
    if let Some(path) = &arguments.markdown {
        std::fs::write(path, markdown(&trials))?;
    }
    match &arguments.output.json {
        Some(path) => report.write_with(machine, details, path),
        None => Ok(()),
    }
}

/// The rows of the README's table.
fn markdown(trials: &Trials) -> String {
    // Sparse traffic has a separate contender: a node with many functions.
    let rows = [
        ("Envoy, no policies", "envoy_none", "envoy_none"),
        ("Leno, no policies", "leno_none", "leno_none"),
        ("Envoy, rules and a limit", "envoy_rules", ""),
        ("Leno, rules and a limit, wasm", "leno_rules_wasm", ""),
        ("Leno, rules and a limit, micro-VM", "leno_rules_microvm", ""),
        ("Leno, rules and a limit, micro-VM, each judged", "leno_rules_microvm_each", ""),
        ("Envoy, all nine, tuned", "envoy_best", "envoy_best"),
        ("Envoy, all nine", "envoy_nine", "envoy_nine"),
        ("Leno, all nine, wasm", "leno_nine_wasm", "leno_many_wasm"),
        ("Leno, all nine, micro-VM", "leno_nine_microvm", "leno_many_microvm"),
        ("Leno, all nine, wasm, each judged", "leno_nine_wasm_each", ""),
        ("Leno, all nine, micro-VM, each judged", "leno_nine_microvm_each", ""),
        ("Envoy, two sidecars, mTLS between them, tuned", "envoy_pair_best", ""),
        ("Envoy, two sidecars, mTLS between them", "envoy_pair", ""),
        ("Leno, two hops, mTLS between them, wasm", "leno_pair_wasm_mtls", ""),
        ("Leno, two hops on a node, wasm", "leno_pair_wasm", ""),
    ];
    let mut table = String::from(
        "| | CPU, HTTP/1.1 | CPU, HTTP/2 | CPU, 1,000/s | p50, 1,000/s | p99, 1,000/s | CPU, 20/s | p50, 20/s | memory |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for (title, name, sparse) in rows {
        let of = |name, traffic: Traffic, pace, value: fn(&Trial) -> f64| {
            let figure = trials.figure((name, traffic.name, pace), value)?;
            Some(format!("{:.0}{}", figure.median, if figure.disturbed { "*" } else { "" }))
        };
        let cells = [
            of(name, HTTP1, "closed", |trial| trial.cpu_us),
            of(name, HTTP2, "closed", |trial| trial.cpu_us),
            of(name, HTTP1, "open", |trial| trial.cpu_us),
            of(name, HTTP1, "open", |trial| trial.p50_us),
            of(name, HTTP1, "open", |trial| trial.p99_us),
            of(sparse, SPARSE, "open", |trial| trial.cpu_us),
            of(sparse, SPARSE, "open", |trial| trial.p50_us),
            of(name, HTTP1, "closed", |trial| trial.rss_kib as f64 / 1024.0),
        ];
        if cells.iter().any(Option::is_some) {
            let cells = cells.map(|cell| cell.unwrap_or_default()).join(" | ");
            table.push_str(&format!("| {title} | {cells} |\n"));
        }
    }
    table
}

/// Starts all contenders at once. Those without a turn do nothing, and all are warm.
fn start(rig: &Rig, only: &[String], quick: bool) -> anyhow::Result<Vec<Running>> {
    let wanted = |name: &str| only.is_empty() || only.iter().any(|word| name.contains(word.as_str()));
    let mut contenders = vec![Running::direct(rig)?];
    let rs256 = Policies { jwt: Some(Algorithm::Rs256), ..Policies::NINE };
    if rig.programs.envoy.is_some() {
        let mut envoys = vec![("envoy_none", Policies::NONE), ("envoy_rules", Policies::RULES)];
        envoys.extend(
            envoy_tunings().into_iter().filter(|(name, _)| !quick || matches!(*name, "envoy_nine" | "envoy_best")),
        );
        if !quick {
            envoys.push(("envoy_nine_rs256", rs256));
        }
        for (name, policies) in envoys.into_iter().filter(|(name, _)| wanted(name)) {
            contenders.push(Running::envoy(rig, name, policies)?);
        }
        for (name, policies) in [("envoy_pair", Policies::NINE), ("envoy_pair_best", Policies::BEST)] {
            if wanted(name) {
                contenders.push(Running::envoy_pair(rig, name, policies)?);
            }
        }
        if wanted("envoy_none_h2c") {
            contenders.push(Running::envoy_http2(rig, "envoy_none_h2c", Policies::NONE)?);
        }
    } else {
        println!("there is no Envoy: its figures and all ratios are missing");
    }
    let mut lenos = vec![
        ("leno_none", "wasm", Policies::NONE),
        ("leno_rules_wasm", "wasm", Policies::RULES),
        ("leno_rules_microvm", "microvm", Policies::RULES),
        ("leno_rules_microvm_each", "microvm", Policies::RULES.each()),
        ("leno_nine_wasm", "wasm", Policies::NINE),
        ("leno_nine_wasm_each", "wasm", Policies::NINE.each()),
        ("leno_nine_microvm", "microvm", Policies::NINE),
        ("leno_nine_microvm_each", "microvm", Policies::NINE.each()),
    ];
    if !quick {
        lenos.push(("leno_nine_wasm_rs256", "wasm", rs256));
    }
    let has_kvm = std::fs::exists("/dev/kvm").unwrap_or(false);
    let is_possible = |name: &str, engine| {
        let possible = has_kvm || engine != "microvm";
        if !possible {
            println!("not measured: {name}; there is no /dev/kvm");
        }
        possible
    };
    for (name, engine, policies) in lenos.into_iter().filter(|(name, ..)| wanted(name)) {
        if is_possible(name, engine) {
            contenders.push(Running::leno(rig, name, engine, policies)?);
        }
    }
    for (name, engine) in [("leno_many_wasm", "wasm"), ("leno_many_microvm", "microvm")] {
        if wanted(name) && is_possible(name, engine) {
            contenders.push(Running::leno_with_many(rig, name, engine, Policies::NINE, MANY)?);
        }
    }
    if wanted("leno_none_h2c") {
        contenders.push(Running::leno_http2(rig, "leno_none_h2c", "wasm", Policies::NONE)?);
    }
    // `leno up` does not offer these: no isolation, and the inbound listener with an identity for
    // the load.
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

/// Whether a contender is measured with this traffic. Sparse traffic shows the same for most of
/// them.
fn concerns(traffic: Traffic, contender: &Running) -> bool {
    let name = contender.name();
    let is_many = name.starts_with("leno_many_");
    match traffic {
        SPARSE => is_many || ["direct", "envoy_none", "envoy_best", "envoy_nine", "leno_none"].contains(&name),
        RARE => ["direct", "envoy_best", "envoy_nine", "leno_nine_wasm", "leno_nine_microvm"].contains(&name),
        HTTP2 => !is_many && contender.accepts(HTTP2),
        _ => !is_many && !name.ends_with("_h2c") && contender.accepts(traffic),
    }
}

impl Series {
    fn paces(&self) -> Vec<Pace> {
        let is_sparse = [SPARSE, RARE].contains(&self.traffic);
        let closed = (!is_sparse).then_some(Pace::Closed);
        closed.into_iter().chain([Pace::Open(self.traffic.rate)]).collect()
    }
}

fn schedule(quick: bool, repeats: Option<usize>) -> Vec<Series> {
    let ms = Duration::from_millis;
    let (lengths, sparse, counts) = match quick {
        true => (
            Lengths { warm_up: ms(200), closed: ms(800), open: ms(1000), retakes: 0 },
            Lengths { warm_up: ms(2500), closed: ms(0), open: ms(5000), retakes: 0 },
            [3, 1, 1, 1, 0],
        ),
        false => (
            Lengths { warm_up: ms(500), closed: ms(2000), open: ms(3000), retakes: 1 },
            // Until every function had one request.
            Lengths { warm_up: ms(3000), closed: ms(0), open: ms(10_000), retakes: 0 },
            [5, 3, 2, 3, 2],
        ),
    };
    let all = [(HTTP1, lengths), (HTTP2, lengths), (FRESH, lengths), (SPARSE, sparse), (RARE, sparse)];
    let all = all.into_iter().zip(counts).filter(|(_, count)| *count > 0);
    all.map(|((traffic, lengths), count)| Series { traffic, repeats: repeats.unwrap_or(count), lengths }).collect()
}

/// In each repeat each contender is measured once with each traffic, each repeat beginning with
/// another one.
fn run_interleaved(rig: &Rig, contenders: &[Running], all: &[Series]) -> anyhow::Result<Vec<Trial>> {
    let mut trials = Vec::new();
    for series in all {
        for repeat in 0..series.repeats {
            for pace in series.paces() {
                for index in 0..contenders.len() {
                    let contender = &contenders[(index + repeat) % contenders.len()];
                    if concerns(series.traffic, contender) {
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

/// Every kind, in the order measured.
const TRAFFIC: [Traffic; 5] = [HTTP1, HTTP2, FRESH, SPARSE, RARE];

fn print_table(trials: &Trials, names: &[&str]) {
    println!(
        "{:<8} {:<22} {:>14} {:>10} {:>12} {:>10} {:>10}",
        "traffic", "who", "CPU us closed", "req/s", "CPU us open", "p50 us", "p99 us"
    );
    for traffic in TRAFFIC.map(|traffic| traffic.name) {
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
        for traffic in TRAFFIC.map(|traffic| traffic.name) {
            for pace in ["closed", "open"] {
                for (what, value) in values {
                    if let Some(figure) = trials.figure((name, traffic, pace), value) {
                        report.add_figure(&format!("{what}_{name}_{traffic}_{pace}"), figure);
                    }
                }
            }
        }
        if let Some(figure) = trials.figure((name, HTTP1.name, "closed"), |trial| trial.rss_kib as f64 / 1024.0) {
            report.add_figure(&format!("loaded_rss_mib_{name}"), figure);
        }
    }
}

/// The figures that issue and README go by. CPU: closed loop; latency: open loop; HTTP/1.1 with
/// kept connections.
fn add_ratios(report: &mut Report, trials: &Trials) {
    let cpu = [
        ("cpu_wasm_vs_envoy_nine", "leno_nine_wasm", "envoy_nine"),
        ("cpu_microvm_vs_envoy_nine", "leno_nine_microvm", "envoy_nine"),
        ("cpu_wasm_vs_envoy_best", "leno_nine_wasm", "envoy_best"),
        ("cpu_microvm_vs_envoy_best", "leno_nine_microvm", "envoy_best"),
        ("cpu_wasm_each_vs_envoy_best", "leno_nine_wasm_each", "envoy_best"),
        ("cpu_microvm_each_vs_envoy_best", "leno_nine_microvm_each", "envoy_best"),
        ("cpu_rules_wasm_vs_envoy_rules", "leno_rules_wasm", "envoy_rules"),
        ("cpu_rules_microvm_vs_envoy_rules", "leno_rules_microvm", "envoy_rules"),
        ("cpu_rules_microvm_each_vs_envoy_rules", "leno_rules_microvm_each", "envoy_rules"),
        ("cpu_none_vs_envoy_none", "leno_none", "envoy_none"),
        ("cpu_inbound_wasm_vs_envoy_nine", "leno_inbound_wasm", "envoy_nine"),
        ("cpu_pair_wasm_vs_envoy_pair", "leno_pair_wasm", "envoy_pair"),
        ("cpu_pair_wasm_mtls_vs_envoy_pair", "leno_pair_wasm_mtls", "envoy_pair"),
        ("cpu_pair_wasm_vs_envoy_pair_best", "leno_pair_wasm", "envoy_pair_best"),
        ("cpu_pair_wasm_mtls_vs_envoy_pair_best", "leno_pair_wasm_mtls", "envoy_pair_best"),
        ("cpu_none_h2c_vs_envoy_none_h2c", "leno_none_h2c", "envoy_none_h2c"),
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
    let few = [("wasm", "leno_nine_wasm"), ("microvm", "leno_nine_microvm")];
    let many = [("wasm", "leno_many_wasm"), ("microvm", "leno_many_microvm")];
    for (traffic, suffix, contenders) in [(HTTP1, "", few), (SPARSE, "_sparse", many), (RARE, "_rare", few)] {
        for ((name, ours), theirs) in
            contenders.into_iter().flat_map(|ours| [(ours, "envoy_best"), (ours, "envoy_nine")])
        {
            let open = |contender| (contender, traffic.name, "open");
            let figure = |what| format!("{what}_{name}_vs_{theirs}{suffix}");
            let added = trials.combined([open(ours), open(theirs), open("direct")], |[ours, theirs, direct]| {
                (ours.p50_us - direct.p50_us) / (theirs.p50_us - direct.p50_us)
            });
            add_ratio(report, &figure("added_p50"), added);
            let both = [open(ours), open(theirs)];
            if traffic == HTTP1 {
                add_ratio(report, &figure("p99"), trials.combined(both, |[ours, theirs]| ours.p99_us / theirs.p99_us));
            } else {
                add_ratio(report, &figure("cpu"), trials.combined(both, |[ours, theirs]| ours.cpu_us / theirs.cpu_us));
            }
        }
    }
}

fn add_ratio(report: &mut Report, name: &str, ratio: Option<Figure>) {
    let Some(figure) = ratio else { return };
    let mark = if figure.disturbed { " (every run was disturbed)" } else { "" };
    let bar = BARS.iter().find(|(barred, _)| *barred == name).map_or_else(String::new, |(_, bar)| {
        let verdict = if figure.median <= *bar { "reached" } else { "missed" };
        format!("; aim {bar:.2}: {verdict}")
    });
    println!(
        "{name}: {:.3}  ({:.3} to {:.3}, {} repeats){mark}{bar}",
        figure.median, figure.least, figure.most, figure.count
    );
    report.add_figure(name, figure);
}
