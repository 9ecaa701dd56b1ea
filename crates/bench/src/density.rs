//! `leno-bench density`: the memory and processor time of a node with many functions, each with its
//! nine policies, and of one Envoy for each function.

use crate::arguments::{Output, ProgramPaths};
use crate::contenders::Running;
use crate::cpu::{Memory, Usage};
use crate::load::Pace;
use crate::machine;
use crate::policies::Policies;
use crate::report::Report;
use crate::rig::Rig;
use crate::trial::{self, Contender, HTTP1, Lengths, Traffic};
use serde_json::json;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Envoys that are really started.
const ENVOYS: usize = 10;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    programs: ProgramPaths,
    /// Numbers of functions, instead of the usual ones.
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    functions: Vec<usize>,
}

/// Idle, and with requests spread over all functions.
struct Node {
    functions: usize,
    start: Duration,
    idle: Memory,
    /// Per cent of a core.
    idle_cpu: f64,
    loaded_pss: u64,
    /// Microseconds for each request.
    cpu_us: f64,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let machine = machine::describe();
    let rig = Rig::set_up(arguments.programs.find()?)?;
    println!("machine: {machine}");
    let quick = arguments.output.quick;
    let counts = match (arguments.functions.is_empty(), quick) {
        (false, _) => arguments.functions.clone(),
        (true, true) => vec![1, 100, 1000],
        (true, false) => vec![1, 100, 1000, 10_000],
    };
    let pause = Duration::from_secs(if quick { 2 } else { 10 });
    let mut report = Report::default();
    let mut nodes = Vec::new();
    for count in counts {
        let node = node(&rig, count, pause)?;
        let mib = |kib: u64| kib as f64 / 1024.0;
        println!(
            "{count} functions: ready after {:.2} s; idle {:.1} MiB PSS ({:.1} RSS, {:.1} anonymous), {:.2} % of a core; under load {:.1} MiB, {:.1} us a request",
            node.start.as_secs_f64(),
            mib(node.idle.pss),
            mib(node.idle.rss),
            mib(node.idle.anonymous),
            node.idle_cpu,
            mib(node.loaded_pss),
            node.cpu_us
        );
        report.add(&format!("density_{count}_start_s"), node.start.as_secs_f64());
        report.add(&format!("density_{count}_idle_mib"), mib(node.idle.pss));
        report.add(&format!("density_{count}_idle_rss_mib"), mib(node.idle.rss));
        report.add(&format!("density_{count}_idle_anonymous_mib"), mib(node.idle.anonymous));
        report.add(&format!("density_{count}_idle_cpu_percent"), node.idle_cpu);
        // The figure that the bar is about: all there is, under load.
        report.add(&format!("density_{count}_mib"), mib(node.loaded_pss));
        report.add(&format!("density_{count}_cpu_us"), node.cpu_us);
        nodes.push(node);
    }
    if let [first, .., last] = &nodes[..] {
        let further = (last.functions - first.functions) as f64;
        report.add("density_per_function_kib", (last.loaded_pss as f64 - first.loaded_pss as f64) / further);
        report.add("density_per_function_idle_kib", (last.idle.pss as f64 - first.idle.pss as f64) / further);
    }
    if rig.programs.envoy.is_some() {
        envoys(&rig, pause, &mut report)?;
    }
    for name in [
        "density_per_function_kib",
        "density_per_function_idle_kib",
        "density_envoy_each_mib",
        "density_envoy_1000_mib_extrapolated",
    ] {
        if let Some(value) = report.figure(name) {
            println!("{name}: {value}");
        }
    }
    let details = json!({"conditions": trial::conditions(&rig), "envoys_started": ENVOYS});
    arguments.output.write(report, machine, details)
}

fn node(rig: &Rig, functions: usize, pause: Duration) -> anyhow::Result<Node> {
    let begin = Instant::now();
    let running = Running::leno_with_many(rig, &format!("node_{functions}"), "wasm", Policies::NINE, functions)?;
    let start = begin.elapsed();
    sleep(pause);
    let (idle, idle_cpu) = at_rest(&running.pids(), pause)?;
    // Each function gets several requests.
    let closed = Duration::from_millis(1000 + functions as u64 / 2);
    let lengths = Lengths { warm_up: Duration::from_millis(200), closed, open: Duration::ZERO, retakes: 1 };
    let traffic = Traffic { connections: 8, ..HTTP1 };
    let trial = trial::run(rig, &running, traffic, Pace::Closed, 0, lengths)?;
    Ok(Node { functions, start, idle, idle_cpu, loaded_pss: trial.pss_kib, cpu_us: trial.cpu_us })
}

/// Memory and per cent of a core of processes without requests.
fn at_rest(pids: &[u32], pause: Duration) -> anyhow::Result<(Memory, f64)> {
    let before = Usage::of(pids)?;
    sleep(pause);
    let used = Usage::of(pids)? - before;
    Ok((Memory::of(pids)?, used.cpu.as_secs_f64() / pause.as_secs_f64() * 100.0))
}

/// One Envoy for each function, as many as fit; the rest is extrapolated, and the names of the
/// figures show that.
fn envoys(rig: &Rig, pause: Duration, report: &mut Report) -> anyhow::Result<()> {
    let all = (0..ENVOYS)
        .map(|index| Running::envoy(rig, &format!("envoy_of_{index}"), Policies::NINE))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let pids: Vec<u32> = all.iter().flat_map(Contender::pids).collect();
    let (idle, cpu) = at_rest(&pids, pause)?;
    let each = idle.pss as f64 / 1024.0 / ENVOYS as f64;
    report.add("density_envoy_each_mib", each);
    report.add("density_envoy_each_rss_mib", idle.rss as f64 / 1024.0 / ENVOYS as f64);
    report.add("density_envoy_each_idle_cpu_percent", cpu / ENVOYS as f64);
    report.add("density_envoy_1000_mib_extrapolated", each * 1000.0);
    Ok(())
}
