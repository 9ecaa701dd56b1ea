//! `leno-bench azure`: replays a trace of Azure Functions through the same serverless layer without
//! a mesh, with Leno, and with an Envoy before each instance. The figure is how much longer each
//! invocation takes than its work (S0, figures 1, 3, 4 and 5).
//!
//! Read in this order: `workload` (the invocations; `trace` and `generated` give their rates),
//! `scenario` (the contenders; `layer`, `sidecar` and `function` are their processes), `replay`
//! (the load), `watch` (processor time, memory, configuration), `figures`.

pub(crate) mod cycles;
mod figures;
pub(crate) mod function;
mod generated;
pub(crate) mod layer;
mod replay;
mod scaledown;
mod scenario;
pub(crate) mod sidecar;
mod store;
mod trace;
mod watch;
mod workload;

use crate::arguments::{Output, ProgramPaths};
use crate::load;
use crate::machine;
use crate::rig::Rig;
use anyhow::{Context, ensure};
use figures::{KINDS, SHARES, ScenarioResult, quantile, slowdowns};
use function::Work;
use replay::ReplayResult;
use scenario::{Functions, Running, Scenario};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};
use watch::{OwnProcesses, Sampling, ScenarioUsage, Subject};
use workload::{Invocation, Replay, Workload};

/// Between two scenarios, for what ended to be gone.
const PAUSE: Duration = Duration::from_secs(1);
/// Between the beginnings of two scenarios that are measured side by side: they get no invocation
/// at the same time, and no minute begins for two of them at once.
const STAGGER: Duration = Duration::from_secs(7);
/// Knative's stable window, which is compressed as the arrivals are; and the least that there can
/// be.
const WINDOW: Duration = Duration::from_secs(60);
const SHORTEST_WINDOW: Duration = Duration::from_secs(1);
/// Connections that are open before anything is sent.
const CONNECTIONS: usize = 64;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    programs: ProgramPaths,
    /// Folder with a trace in the Azure/InVitro format; without it, a workload is generated.
    #[arg(long, value_name = "FOLDER")]
    trace: Option<PathBuf>,
    /// So many functions: drawn at random from a trace (without this: all of it), or generated
    /// (without this: 200).
    #[arg(long, value_name = "NUMBER")]
    functions: Option<usize>,
    /// Minutes of the workload (30; quick: 2).
    #[arg(long, value_name = "NUMBER")]
    minutes: Option<usize>,
    /// The minute of the day to begin with, as the trace names it; without it, its first.
    #[arg(long, value_name = "MINUTE", requires = "trace")]
    first_minute: Option<u32>,
    /// Replay the arrivals so many times faster (1; quick: 5).
    #[arg(long, value_name = "FACTOR")]
    compress: Option<f64>,
    /// Multiply execution times by this; none gets shorter than 1 ms (1; quick: 0.01).
    #[arg(long, value_name = "FACTOR")]
    duration_scale: Option<f64>,
    /// What functions do while they work.
    #[arg(long, value_enum, default_value_t = Work::Sleep)]
    work: Work,
    /// Rotate each function's arrivals within a minute by a random time; without it all active
    /// functions fire at a minute's start.
    #[arg(long)]
    shift: bool,
    /// Requests that an instance handles at a time; 0: no limit.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    concurrency: u32,
    /// Measure a scenario again, so many times at most, if others used more than 10 % of a core
    /// meanwhile (1; quick: 0).
    #[arg(long, value_name = "NUMBER")]
    retakes: Option<usize>,
    /// Instances of one function at most; 0: no limit (32; quick: 4).
    #[arg(long, value_name = "NUMBER")]
    most_instances: Option<u32>,
    /// The scenarios to measure, in this order.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "none,leno,wasm,microvm,envoy")]
    scenarios: Vec<Scenario>,
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Measure all scenarios at the same time, each 7 s behind the one before; Envoys alone, for
    /// they need the whole machine.
    #[arg(long)]
    side_by_side: bool,
    /// Keep each scenario in this folder when it is measured, and take from there those that were
    /// measured before.
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Where to write each invocation of each scenario, as comma-separated values.
    #[arg(long, value_name = "FILE")]
    invocations: Option<PathBuf>,
}

/// The replayed workload, as the report describes it.
struct Experiment {
    workload: Workload,
    replay: Replay,
    minutes: usize,
    invocations: Vec<Invocation>,
    functions: Functions,
    side_by_side: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let experiment = Experiment::of(arguments)?;
    let machine = machine::describe();
    println!("machine: {machine}\nmeasured on {}\n{}", experiment.workload.source, experiment.demand());
    let rig = Rig::set_up(arguments.programs.find()?)?;
    let conditions = experiment.conditions(&rig);
    let retakes = arguments.retakes.unwrap_or(usize::from(!arguments.output.quick));
    let mut possible = arguments.scenarios.clone();
    possible.retain(|scenario| match scenario.missing(&rig) {
        Some(reason) => {
            println!("not measured: {}; {reason}", scenario.name());
            false
        }
        None => true,
    });
    let mut measured = Vec::new();
    for group in groups(&possible, experiment.side_by_side) {
        measured.extend(match &arguments.keep {
            Some(folder) => kept_or_measured(folder, &rig, group, &experiment, retakes, &conditions)?,
            None => undisturbed(&rig, group, &experiment, retakes)?,
        });
    }
    let report = figures::report(&measured, &experiment.invocations);
    for one in &measured {
        for (label, _) in SHARES {
            let name = format!("slowdown_{label}_{}", one.scenario.name());
            if let Some(ratio) = report.figure(&name) {
                let disturbed = if measured.iter().any(ScenarioResult::is_disturbed) { "; disturbed" } else { "" };
                println!("{name}: {ratio} ({}{disturbed})", experiment.workload.source);
            }
        }
    }
    if let Some(path) = &arguments.invocations {
        write_invocations(&measured, &experiment.invocations, path)?;
    }
    match &arguments.output.json {
        Some(path) => {
            let details = details(&measured, &experiment.invocations, conditions);
            report.write_with(machine, details, path)
        }
        None => Ok(()),
    }
}

impl Experiment {
    fn of(arguments: &Arguments) -> anyhow::Result<Self> {
        let quick = arguments.output.quick;
        let minutes = arguments.minutes.unwrap_or(if quick { 2 } else { 30 });
        let replay = Replay {
            compress: arguments.compress.unwrap_or(if quick { 5.0 } else { 1.0 }),
            duration_scale: arguments.duration_scale.unwrap_or(if quick { 0.01 } else { 1.0 }),
            shift: arguments.shift,
            seed: arguments.seed,
        };
        for (name, factor) in [("--compress", replay.compress), ("--duration-scale", replay.duration_scale)] {
            ensure!(factor.is_finite() && factor > 0.0, "{name} must be more than 0");
        }
        ensure!(minutes > 0, "--minutes must be at least 1");
        ensure!(arguments.functions != Some(0), "--functions must be at least 1");
        let workload = match &arguments.trace {
            Some(folder) => {
                let Arguments { functions, first_minute, seed, .. } = *arguments;
                trace::load(folder, &trace::Part { functions, first_minute, minutes, seed })?
            }
            None => generated::workload(arguments.functions.unwrap_or(200), minutes, arguments.seed)?,
        };
        let invocations = workload.invocations(&replay);
        ensure!(!invocations.is_empty(), "nothing is invoked in these minutes");
        // One more function than in the workload, for the requests before the measurement.
        let count = workload.functions.len() + 1;
        let window = (WINDOW.div_f64(replay.compress)).max(SHORTEST_WINDOW);
        let functions = Functions {
            count,
            concurrency: arguments.concurrency,
            window,
            most_instances: arguments.most_instances.unwrap_or(if quick { 4 } else { 32 }),
            work: arguments.work,
        };
        Ok(Self { workload, replay, minutes, invocations, functions, side_by_side: arguments.side_by_side })
    }

    /// How much there is to do, in words.
    fn demand(&self) -> String {
        let busy = self.busy();
        let most = busy.iter().copied().fold(0.0, f64::max);
        format!(
            "{} invocations in {:.0} s; {:.2} at a time on average, {most:.2} of them of one function",
            self.invocations.len(),
            self.minutes as f64 * 60.0 / self.replay.compress,
            busy.iter().sum::<f64>()
        )
    }

    fn busy(&self) -> Vec<f64> {
        workload::concurrency(&self.invocations, self.workload.functions.len(), &self.replay, self.minutes)
    }

    fn conditions(&self, rig: &Rig) -> Value {
        let Replay { compress, duration_scale, shift, seed } = self.replay;
        json!({
            "measured_on": self.workload.source,
            "functions": self.workload.functions.len(),
            "invocations": self.invocations.len(),
            "minutes": self.minutes,
            "compress": compress,
            "duration_scale": duration_scale,
            "shift": shift,
            "seed": seed,
            "side_by_side": self.side_by_side,
            "work": self.functions.work,
            "concurrency": self.functions.concurrency,
            "most_instances": self.functions.most_instances,
            "window_s": self.functions.window.as_secs_f64(),
            "busy_instances_mean": self.busy().iter().sum::<f64>(),
            "envoy": rig.programs.envoy_version(),
            "leno": rig.programs.leno.display().to_string(),
            "cores": {"proxies and functions": rig.cores.proxy, "load and sinks": rig.cores.load},
        })
    }
}

/// Scenarios that are measured at the same time, in order.
fn groups(scenarios: &[Scenario], side_by_side: bool) -> impl Iterator<Item = &[Scenario]> {
    scenarios.chunk_by(move |one, next| side_by_side && ![one, next].contains(&&Scenario::Envoy))
}

/// Those of a group were measured together, or are measured now.
fn kept_or_measured(
    folder: &Path,
    rig: &Rig,
    group: &[Scenario],
    experiment: &Experiment,
    retakes: usize,
    conditions: &Value,
) -> anyhow::Result<Vec<ScenarioResult>> {
    let kept: Vec<Option<ScenarioResult>> =
        group.iter().map(|scenario| store::load(folder, *scenario, conditions)).collect::<anyhow::Result<_>>()?;
    if let Some(kept) = kept.into_iter().collect::<Option<Vec<_>>>() {
        for one in &kept {
            println!("{}: measured before", one.scenario.title());
            say(one, &experiment.invocations);
        }
        return Ok(kept);
    }
    let measured = undisturbed(rig, group, experiment, retakes)?;
    measured.iter().try_for_each(|one| store::save(folder, conditions, one))?;
    Ok(measured)
}

/// The first try that others leave alone; the one that they disturbed least, if they leave none.
fn undisturbed(
    rig: &Rig,
    group: &[Scenario],
    experiment: &Experiment,
    retakes: usize,
) -> anyhow::Result<Vec<ScenarioResult>> {
    let others = |all: &[ScenarioResult]| all.iter().map(|one| one.watched.others_percent).fold(0.0, f64::max);
    let mut best: Option<Vec<ScenarioResult>> = None;
    for _ in 0..=retakes {
        let all = measure(rig, group, experiment)?;
        all.iter().for_each(|one| say(one, &experiment.invocations));
        if best.as_ref().is_none_or(|best| others(&all) < others(best)) {
            best = Some(all);
        }
        if best.as_ref().is_some_and(|best| !best.iter().any(ScenarioResult::is_disturbed)) {
            break;
        }
    }
    best.context("nothing was measured")
}

fn measure(rig: &Rig, group: &[Scenario], experiment: &Experiment) -> anyhow::Result<Vec<ScenarioResult>> {
    std::thread::sleep(PAUSE);
    let start = |scenario: &Scenario| {
        let begin = Instant::now();
        let running = Running::start(rig, *scenario, experiment.functions).with_context(|| scenario.name())?;
        Ok((running, begin.elapsed().as_secs_f64()))
    };
    let started: Vec<(Running, f64)> = group.iter().map(start).collect::<anyhow::Result<_>>()?;
    let ours = OwnProcesses::default();
    std::thread::scope(|scope| {
        let each = started.iter().zip(0..).map(|((running, start_s), place)| {
            let options = ReplayOptions {
                work: experiment.functions.work,
                connections: CONNECTIONS,
                sampling: Sampling::EverySecond,
                ours: ours.clone(),
            };
            scope.spawn(move || {
                std::thread::sleep(STAGGER * place);
                let (replayed, watched) =
                    replay(running, &experiment.invocations, options).with_context(|| running.scenario.name())?;
                Ok(ScenarioResult { scenario: running.scenario, replayed, watched, start_s: *start_s })
            })
        });
        let each: Vec<_> = each.collect();
        let join = |one: ScopedJoinHandle<'_, _>| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        each.into_iter().map(join).collect()
    })
}

/// How invocations are sent, and watched.
struct ReplayOptions {
    work: Work,
    /// Open before anything is sent.
    connections: usize,
    sampling: Sampling,
    ours: OwnProcesses,
}

/// Sends the invocations, and watches meanwhile.
fn replay(
    running: &Running,
    invocations: &[Invocation],
    options: ReplayOptions,
) -> anyhow::Result<(ReplayResult, ScenarioUsage)> {
    let ReplayOptions { work, connections, sampling, ours } = options;
    let subject = Subject {
        root: running.pid()?,
        sidecars: running.has_sidecars(),
        admin: running.admin,
        folder: running.folder.clone(),
        sampling,
        ours,
    };
    let (tls, request) = (running.tls.as_ref(), &running.request);
    let target = replay::Target { address: running.address, tls, request, work, connections };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut watching = None;
        let begun = || watching = Some(scope.spawn(|| watch::watch(&subject, &stop)));
        let replayed = replay::replay(&target, invocations, begun);
        stop.store(true, Ordering::Relaxed);
        let watched = watching.and_then(|watching| watching.join().ok());
        replayed.map(|replayed| (replayed, watched.unwrap_or_default()))
    })
}

fn say(one: &ScenarioResult, invocations: &[Invocation]) {
    let good = one.good(invocations);
    let all = slowdowns(&good, |_| true);
    let at = |share| quantile(&all, share).unwrap_or(f64::NAN);
    println!(
        "{}: slowdown p50 {:.3}, p95 {:.3}, p99 {:.3}; {} cold starts, {} failed; {:.1} s of CPU; others {:.1} % of a core",
        one.scenario.title(),
        at(0.50),
        at(0.95),
        at(0.99),
        one.cold_starts().len(),
        one.failed(),
        one.watched.mesh_s,
        one.watched.others_percent,
    );
    if let Some(failure) = one.first_failure() {
        println!("  the first failure: {failure}");
    }
    if let Some(error) = &one.watched.error {
        println!("  not watched to the end: {error}");
    }
}

fn details(measured: &[ScenarioResult], invocations: &[Invocation], conditions: Value) -> Value {
    let one = |one: &ScenarioResult| {
        let good = one.good(invocations);
        let mut curves = serde_json::Map::new();
        for (kind, which) in KINDS {
            let sorted = slowdowns(&good, which);
            let points: Vec<f64> = load::SHARES.iter().filter_map(|share| quantile(&sorted, *share)).collect();
            curves.insert(format!("slowdown{kind}"), json!(points));
        }
        json!({
            "scenario": one.scenario.name(),
            "curves": curves,
            "cold_starts_at_s": one.cold_starts(),
            "first_failure": one.first_failure(),
            "watched": one.watched,
        })
    };
    let scenarios: Vec<Value> = measured.iter().map(one).collect();
    json!({"conditions": conditions, "shares": load::SHARES.to_vec(), "scenarios": scenarios})
}

fn write_invocations(measured: &[ScenarioResult], invocations: &[Invocation], path: &Path) -> anyhow::Result<()> {
    let mut writer = csv::Writer::from_path(path).with_context(|| format!("{} cannot be written", path.display()))?;
    writer.write_record([
        "scenario",
        "function",
        "due_us",
        "late_us",
        "work_us",
        "latency_us",
        "status",
        "instance_requests",
    ])?;
    for one in measured {
        for (done, invocation) in one.replayed.all.iter().zip(invocations) {
            writer.write_record([
                one.scenario.name(),
                &invocation.function.to_string(),
                &invocation.at.as_micros().to_string(),
                &done.late.as_micros().to_string(),
                &invocation.work.as_micros().to_string(),
                &done.latency.as_micros().to_string(),
                &done.status.map(|status| status.to_string()).unwrap_or_default(),
                &done.life.map(|life| life.count.to_string()).unwrap_or_default(),
            ])?;
        }
    }
    Ok(writer.flush()?)
}
