//! `leno-bench chains`: a shop of ten functions (`examples/boutique`), whose pages take up to 13
//! calls each. The calls take five ways: the memory of a chain and HTTP/1.1, both through one node
//! with the same policies; the memory of a chain without paths in these policies, so that the
//! kernel judges; HTTP/1.1 and gRPC from process to process, without a mesh.
//!
//! Node and functions share one core, and the load has another. The figure is requests for each
//! second of processor time of node and functions. Ratios are of runs of the same repeat.

mod contender;
mod load;
mod network;

use crate::affinity::Cores;
use crate::cpu::{AllProcesses, Usage};
use crate::machine;
use crate::metrics;
use crate::proxy_under_test::Programs;
use crate::report::Report;
use crate::statistics::Figure;
use crate::trial::TOLERATED_PERCENT;
use anyhow::Context;
use contender::{Kind, Running};
use load::LoadResult;
use network::Network;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Requests at a time.
const CONNECTIONS: usize = 16;
/// Of the body that one function sends to the next, where a single hop is measured.
const HOP_BYTES: usize = 100;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where to write the figures.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Few and short repeats: for a look, not for a figure.
    #[arg(long)]
    quick: bool,
    /// Leno's program; without it, the one beside this program.
    #[arg(long, value_name = "PROGRAM")]
    leno: Option<PathBuf>,
    /// The program with the shop's functions; without it, the one beside this program.
    #[arg(long, value_name = "PROGRAM")]
    boutique: Option<PathBuf>,
    /// The contenders.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Kind::ALL)]
    only: Vec<Kind>,
}

/// How much is done.
struct Settings {
    repeats: usize,
    warm_up: Duration,
    measured: Duration,
    hops: usize,
    idle: Duration,
}

/// The results of one run.
#[derive(Serialize)]
struct Run {
    who: &'static str,
    repeat: usize,
    requests: usize,
    requests_per_second: f64,
    /// For each second that a core spent on node and functions.
    requests_per_core_second: f64,
    p50_us: f64,
    p99_us: f64,
    /// For each request, of node and functions.
    voluntary_switches: f64,
    involuntary_switches: f64,
    /// For each request, on the whole machine: with the load's.
    interrupts: f64,
    receptions: f64,
    segments: f64,
    /// A call from one function to another and its answer, one after the other.
    hop_p50_us: f64,
    hop_p99_us: f64,
    /// Of one core, by processes that have nothing to do with it.
    others_percent: f64,
    /// For each request, as the node counts them: bytes of bodies that it copied from the client
    /// and to it, that it copied otherwise, and that it handed over in shared memory.
    copied_at_edges: Option<f64>,
    copied_inside: Option<f64>,
    handed_over: Option<f64>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let ms = Duration::from_millis;
    let settings = match arguments.quick {
        true => Settings { repeats: 3, warm_up: ms(500), measured: ms(2500), hops: 2000, idle: ms(3000) },
        false => Settings { repeats: 9, warm_up: ms(1000), measured: ms(8000), hops: 10_000, idle: ms(20_000) },
    };
    let machine = machine::describe();
    println!("machine: {machine}");
    let cores = Cores::take()?;
    let folder = tempfile::Builder::new().prefix("leno-bench-").tempdir()?;
    let programs = contender::Programs {
        leno: Programs::find_leno(arguments.leno.as_deref())?,
        boutique: contender::find_boutique(arguments.boutique.as_deref())?,
    };
    let start = |kind: &Kind| Running::start(&programs, cores, folder.path(), *kind).with_context(|| kind.name());
    let running: Vec<Running> = arguments.only.iter().map(start).collect::<anyhow::Result<_>>()?;
    let mut runs = Vec::new();
    for repeat in 0..settings.repeats {
        for index in 0..running.len() {
            // Each repeat begins with another one.
            let one = measure(&running[(index + repeat) % running.len()], repeat, &settings)?;
            eprintln!(
                "{} #{repeat}: {:.0}/s, {:.0} a core-second, p50 {:.0} us, p99 {:.0} us, hop {:.1} us, others {:.0} %",
                one.who,
                one.requests_per_second,
                one.requests_per_core_second,
                one.p50_us,
                one.p99_us,
                one.hop_p50_us,
                one.others_percent
            );
            runs.push(one);
        }
    }
    let mut report = Report::default();
    figures(&runs, &mut report);
    for (kind, name) in [(Kind::Chain, "idle_cores"), (Kind::Direct, "direct_idle_cores")] {
        for one in running.iter().filter(|one| one.kind == kind) {
            report.add(name, idle(one, settings.idle)?);
        }
    }
    let audit = audit(&running, &runs, &mut report)?;
    for (name, value) in report.all() {
        println!("{name}: {value}");
    }
    let conditions = json!({
        "requests_at_a_time": CONNECTIONS,
        "mix_of_23": {"product": 13, "add to cart": 3, "view cart": 3, "set currency": 2, "home": 1, "checkout": 1},
        "cores": {"node and functions": cores.proxy, "load": cores.load},
        "engine": contender::ENGINE,
        "hop_bytes": HOP_BYTES,
        "quick": arguments.quick,
        "disturbed": format!("unrelated processes used more than {TOLERATED_PERCENT} % of one core"),
    });
    let details = json!({"conditions": conditions, "audit": audit, "runs": runs});
    match &arguments.json {
        Some(path) => report.write_with(machine, details, path),
        None => Ok(()),
    }
}

fn measure(running: &Running, repeat: usize, settings: &Settings) -> anyhow::Result<Run> {
    let counters = || Counters::of(running);
    let (before, pids) = (counters(), running.pids());
    let network = Network::of(&pids)?;
    let LoadResult { answered, all, seconds, usage, others, latencies } =
        load::run(running, &pids, settings.warm_up, settings.measured)?;
    let network = Network::of(&pids)?.since(&network);
    let since = counters().zip(before).map(|(now, before)| now.since(before));
    let per_request = |total: f64| total / answered as f64;
    let of_all = |count: u64| count as f64 / all.requests as f64;
    // Whatever else is copied was copied between functions.
    let at_edges = all.sent + all.received;
    let hop = running.hops(settings.hops, HOP_BYTES)?;
    let cpu = usage.cpu.as_secs_f64();
    Ok(Run {
        who: running.kind.name(),
        repeat,
        requests: answered,
        requests_per_second: answered as f64 / seconds,
        requests_per_core_second: answered as f64 / cpu,
        p50_us: latencies.micros(0.5),
        p99_us: latencies.micros(0.99),
        voluntary_switches: per_request(usage.voluntary as f64),
        involuntary_switches: per_request(usage.involuntary as f64),
        interrupts: of_all(network.interrupts),
        receptions: of_all(network.receptions),
        segments: of_all(network.segments),
        hop_p50_us: hop.p50_us,
        hop_p99_us: hop.p99_us,
        others_percent: others.as_secs_f64() / seconds * 100.0,
        copied_at_edges: since.map(|_| of_all(at_edges)),
        copied_inside: since.map(|since| of_all(since.copied) - of_all(at_edges)),
        handed_over: since.map(|since| of_all(since.handed_over)),
    })
}

/// The node's counters of the shop's chain, in bytes of bodies.
#[derive(Clone, Copy)]
struct Counters {
    /// Into memory of the chain, or out of it.
    copied: u64,
    /// Shown where they are.
    handed_over: u64,
}

impl Counters {
    /// `None`: there is no chain.
    fn of(running: &Running) -> Option<Self> {
        let text = running.metrics()?;
        let sum = |name| metrics::sum(&text, name, contender::CHAIN);
        let [copied_in, copied_out, handed_over] = contender::COUNTERS.map(sum);
        Some(Self { copied: copied_in? + copied_out?, handed_over: handed_over? })
    }

    fn since(self, before: Self) -> Self {
        Self { copied: self.copied - before.copied, handed_over: self.handed_over - before.handed_over }
    }
}

/// The figure of one contender.
fn of(runs: &[Run], kind: Kind, value: impl Fn(&Run) -> f64) -> Option<Figure> {
    let own = || runs.iter().filter(|run| run.who == kind.name());
    let disturbed = own().all(Run::is_disturbed);
    Figure::of(own().filter(|run| disturbed || !run.is_disturbed()).map(value).collect(), disturbed)
}

/// The ratio of two contenders, in each repeat.
fn ratio(runs: &[Run], ours: Kind, theirs: Kind, value: impl Fn(&Run) -> f64) -> Option<Figure> {
    let find = |kind: Kind, repeat| runs.iter().find(|run| run.who == kind.name() && run.repeat == repeat);
    let repeats = runs.iter().map(|run| run.repeat + 1).max()?;
    let pairs: Vec<_> = (0..repeats).filter_map(|repeat| find(ours, repeat).zip(find(theirs, repeat))).collect();
    let is_disturbed = |(one, other): &(&Run, &Run)| one.is_disturbed() || other.is_disturbed();
    let disturbed = pairs.iter().all(is_disturbed);
    let kept = pairs.into_iter().filter(|pair| disturbed || !is_disturbed(pair));
    Figure::of(kept.map(|(ours, theirs)| value(ours) / value(theirs)).collect(), disturbed)
}

impl Run {
    fn is_disturbed(&self) -> bool {
        self.others_percent > TOLERATED_PERCENT
    }
}

fn figures(runs: &[Run], report: &mut Report) {
    let mut add = |name: &str, figure: Option<Figure>| {
        if let Some(figure) = figure {
            report.add_figure(name, figure);
        }
    };
    let per_core = |run: &Run| run.requests_per_core_second;
    for (name, theirs) in [
        ("boutique_per_core_vs_http", Kind::Http),
        ("boutique_per_core_vs_plain", Kind::Plain),
        ("boutique_per_core_vs_grpc", Kind::Grpc),
    ] {
        add(name, ratio(runs, Kind::Chain, theirs, per_core));
    }
    for (name, theirs) in [
        ("direct_per_core_vs_http", Kind::Http),
        ("direct_per_core_vs_plain", Kind::Plain),
        ("direct_per_core_vs_grpc", Kind::Grpc),
    ] {
        add(name, ratio(runs, Kind::Direct, theirs, per_core));
    }
    for (ours, p99, hop) in
        [(Kind::Chain, "boutique_p99_vs_http", "hop_us_p50"), (Kind::Direct, "direct_p99_vs_http", "direct_hop_us_p50")]
    {
        add(p99, ratio(runs, ours, Kind::Http, |run| run.p99_us));
        add(hop, of(runs, ours, |run| run.hop_p50_us));
    }
    for (name, theirs) in [("http_per_core_vs_plain", Kind::Plain), ("http_per_core_vs_grpc", Kind::Grpc)] {
        add(name, ratio(runs, Kind::Http, theirs, per_core));
    }
    type Value = fn(&Run) -> f64;
    let values: [(&str, Value); 6] = [
        ("rps", |run| run.requests_per_second),
        ("per_core_second", |run| run.requests_per_core_second),
        ("p50_us", |run| run.p50_us),
        ("p99_us", |run| run.p99_us),
        ("hop_p50_us", |run| run.hop_p50_us),
        ("hop_p99_us", |run| run.hop_p99_us),
    ];
    for kind in Kind::ALL {
        for (what, value) in values {
            add(&format!("{what}_{}", kind.name()), of(runs, kind, value));
        }
    }
}

/// The cores that node and functions use without requests.
fn idle(running: &Running, time: Duration) -> anyhow::Result<f64> {
    let pids = running.pids();
    // The work of the last request ends meanwhile.
    std::thread::sleep(Duration::from_secs(1));
    let (begin, before) = (Instant::now(), Usage::of(&pids)?);
    std::thread::sleep(time);
    let used = Usage::of(&pids)? - before;
    Ok(used.cpu.as_secs_f64() / begin.elapsed().as_secs_f64())
}

/// The overhead of a request, in the terms of SPRIGHT's authors.
///
/// The kernel counts switches, interrupts and segments. It does not count copies between processes:
/// each message over a socket is copied into the kernel and out of it, once for each socket on its
/// way. The node counts the copies of a chain, to which those at the two ends that speak HTTP with
/// the client are added. System calls are not counted.
fn audit(running: &[Running], runs: &[Run], report: &mut Report) -> anyhow::Result<Value> {
    // The mix is the same for all. Functions without a mesh count their calls.
    let plain = running.iter().find(|one| one.kind == Kind::Plain);
    let calls = plain.map(Running::calls_per_request).transpose()?;
    let mut rows = serde_json::Map::new();
    for one in running {
        let mut counted = |name: &str, value: fn(&Run) -> f64| {
            let figure = of(runs, one.kind, value);
            if let Some(figure) = figure {
                report.add_figure(&format!("{name}_{}", one.kind.name()), figure);
            }
            figure.map(|figure| figure.median)
        };
        let switches = counted("switches", |run| run.voluntary_switches + run.involuntary_switches);
        let interrupts = counted("interrupts", |run| run.interrupts);
        let receptions = counted("receptions", |run| run.receptions);
        let segments = counted("segments", |run| run.segments);
        let sockets = one.kind.sockets();
        rows.insert(
            one.kind.name().into(),
            json!({
                "calls_between_functions": calls,
                "switches": switches,
                "interrupts": interrupts,
                "receptions": receptions,
                "segments": segments,
                "protocol_passes": segments.map(|segments| 2.0 * segments),
                "copies_at_the_edge": 2 * 2 * one.kind.sockets_at_the_edge(),
                "copies_inside": calls.map(|calls| calls * f64::from(2 * 2 * sockets)),
                "system_calls": Value::Null,
            }),
        );
    }
    let inside = |value: fn(&Run) -> Option<f64>| of(runs, Kind::Chain, |run| value(run).unwrap_or(f64::NAN));
    for (name, value) in [
        ("copies_inside", inside(|run| run.copied_inside)),
        ("bytes_copied_at_edges", inside(|run| run.copied_at_edges)),
        ("bytes_handed_over", inside(|run| run.handed_over)),
    ] {
        if let Some(figure) = value {
            report.add_figure(name, figure);
        }
    }
    Ok(Value::Object(rows))
}
