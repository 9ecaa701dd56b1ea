//! `leno-bench start`: a node with ten functions, each with all nine policies but mutual TLS with
//! clients: from the start of its process to its first answer, and its memory at rest. Beside it,
//! one Envoy with the same policies.

use crate::arguments::{Output, ProgramPaths};
use crate::coldstart::{await_answer, request};
use crate::contenders::{EnvoyPlace, envoy_file, listeners, mesh, new_folder};
use crate::cpu::Memory;
use crate::machine;
use crate::material::HOST;
use crate::policies::Policies;
use crate::proxy_under_test::Proxy;
use crate::proxy_under_test::leno::host_of;
use crate::report::Report;
use crate::rig::Rig;
use crate::statistics::Figure;
use crate::trial;
use anyhow::Context;
use leno_testkit::free_addresses;
use leno_testkit::process::tree;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A handshake would be the client's time too.
const POLICIES: Policies = Policies { mtls: false, ..Policies::NINE };

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    programs: ProgramPaths,
    /// Number of functions.
    #[arg(long, default_value_t = 10, value_name = "N")]
    functions: usize,
    /// Engines of the sidecars, instead of wasm and, where it works, microvm.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    engines: Vec<String>,
}

/// One start.
struct Start {
    first_answer: Duration,
    memory: Memory,
    /// With the jailer, and the jails that wait for a program.
    tree: Memory,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let machine = machine::describe();
    let rig = Rig::set_up(arguments.programs.find()?)?;
    println!("machine: {machine}");
    let quick = arguments.output.quick;
    let (repeats, pause) = if quick { (5, Duration::from_secs(2)) } else { (21, Duration::from_secs(4)) };
    let mut engines = arguments.engines.clone();
    if engines.is_empty() {
        let microvm = fs::exists("/dev/kvm").unwrap_or(false).then_some("microvm");
        engines = ["wasm"].into_iter().chain(microvm).map(str::to_owned).collect();
    }
    let mut subjects: Vec<(String, Vec<Start>)> = engines.into_iter().map(|engine| (engine, Vec::new())).collect();
    let mut envoys = Vec::new();
    for repeat in 0..repeats {
        for (engine, starts) in &mut subjects {
            starts.push(leno(&rig, engine, arguments.functions, repeat, pause)?);
        }
        if rig.programs.envoy.is_some() {
            envoys.push(envoy(&rig, repeat, pause)?);
        }
    }
    if envoys.is_empty() {
        println!("there is no Envoy: its part is missing");
    } else {
        subjects.push(("envoy".to_owned(), envoys));
    }
    let mut report = Report::default();
    for (name, starts) in &subjects {
        tell(name, starts, &mut report);
    }
    let details = json!({"conditions": trial::conditions(&rig), "functions": arguments.functions});
    arguments.output.write(report, machine, details)
}

fn tell(name: &str, starts: &[Start], report: &mut Report) {
    let mib = |kib: u64| kib as f64 / 1024.0;
    let figures = |start: &Start| {
        [
            ("ms", start.first_answer.as_secs_f64() * 1000.0),
            ("rss_mib", mib(start.memory.rss)),
            ("pss_mib", mib(start.memory.pss)),
            ("anonymous_mib", mib(start.memory.anonymous)),
            ("tree_pss_mib", mib(start.tree.pss)),
            ("tree_anonymous_mib", mib(start.tree.anonymous)),
        ]
    };
    let mut values: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (unit, value) in starts.iter().flat_map(figures) {
        values.entry(unit).or_default().push(value);
    }
    for (unit, values) in values {
        if let Some(figure) = Figure::of(values, false) {
            println!("start_{name}_{unit}: {:.1} ({:.1} to {:.1})", figure.median, figure.least, figure.most);
            report.add_figure(&format!("start_{name}_{unit}"), figure);
        }
    }
}

fn leno(rig: &Rig, engine: &str, functions: usize, repeat: usize, pause: Duration) -> anyhow::Result<Start> {
    let folder = new_folder(rig, &format!("start-{engine}-{repeat}"))?;
    let listeners = listeners()?;
    let documents = mesh(rig, &folder, engine, POLICIES, listeners).documents_of_many(functions);
    fs::write(folder.join("mesh.yaml"), documents.concat())?;
    let request = request(rig, &host_of(0))?;
    let begin = Instant::now();
    let proxy = Proxy::spawn_leno(&rig.programs.leno, rig.cores, &folder)?;
    measure(&proxy, begin, listeners.gateway, &request, pause)
}

fn envoy(rig: &Rig, repeat: usize, pause: Duration) -> anyhow::Result<Start> {
    let program = rig.programs.envoy.as_ref().context("there is no Envoy")?;
    let [listen] = free_addresses();
    let place = EnvoyPlace::inbound(listen, rig.upstream);
    let configurations = [envoy_file(rig, &format!("start-envoy-{repeat}"), POLICIES, place)?];
    let request = request(rig, HOST)?;
    let begin = Instant::now();
    let proxy = Proxy::envoys(program, rig.cores, &configurations)?;
    measure(&proxy, begin, listen, &request, pause)
}

/// Waits for the first answer, and then for the end of the work of a start.
fn measure(
    proxy: &Proxy,
    begin: Instant,
    address: SocketAddr,
    request: &[u8],
    pause: Duration,
) -> anyhow::Result<Start> {
    let first_answer = await_answer(address, request, begin)?;
    sleep(pause);
    let pids = proxy.pids();
    let tree: Vec<u32> = pids.iter().flat_map(|pid| tree(*pid)).collect();
    Ok(Start { first_answer, memory: Memory::of(&pids)?, tree: Memory::of(&tree)? })
}
