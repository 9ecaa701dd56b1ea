//! `leno-bench functions`: the time that the mesh adds to the start of an instance, the starts a
//! second of a burst, the instances that a flood of denied requests starts, and the requests that
//! fail while functions are scaled down.

use super::ReplayOptions;
use super::figures::quantile;
use super::function::Work;
use super::replay::Completion;
use super::scaledown;
use super::scenario::{Functions, Running, Scenario};
use super::watch::{OwnProcesses, Sampling};
use super::workload::Invocation;
use crate::arguments::Plain;
use crate::load::{Pace, Plan, Protocol, Request};
use crate::machine;
use crate::proxy_under_test::leno::host_of;
use crate::report::Report;
use crate::rig::Rig;
use crate::statistics::Figure;
use crate::trial::TOLERATED_PERCENT;
use anyhow::{Context, ensure};
use leno_testkit::process::children;
use serde_json::{Value, json};
use std::time::Duration;

/// The work of each request.
const WORK: Duration = Duration::from_millis(1);
/// Between cold starts that are to have the machine for themselves.
const START_INTERVAL: Duration = Duration::from_millis(100);
/// Bursts of a round: each is over in less than a second.
const BURSTS: usize = 3;
/// Before each measurement, for what ended to be gone.
const PAUSE: Duration = Duration::from_secs(3);
/// Denied requests a second.
const FLOOD: f64 = 1000.0;

/// How much is done.
struct Settings {
    functions: Functions,
    rounds: usize,
    /// How often a disturbed measurement is repeated.
    retakes: usize,
    flood: Duration,
    scaledown: scaledown::Settings,
}

/// The scenarios that are compared, and the suffix of each one's figures.
const MESHES: [(Scenario, &str); 2] = [(Scenario::Wasm, ""), (Scenario::Microvm, "_microvm")];

fn suffix(scenario: Scenario) -> &'static str {
    MESHES.iter().find(|(mesh, _)| *mesh == scenario).map_or("", |(_, suffix)| suffix)
}

pub(crate) fn run(arguments: &Plain) -> anyhow::Result<()> {
    let machine = machine::describe();
    let rig = Rig::set_up(arguments.programs.find()?)?;
    println!("machine: {machine}");
    let (count, rounds, retakes, flood) = if arguments.output.quick { (100, 1, 0, 5) } else { (200, 5, 2, 30) };
    let functions = Functions {
        count: count + 1,
        concurrency: 1,
        window: Duration::from_secs(60),
        most_instances: 1,
        work: Work::Sleep,
    };
    let scaledown = match arguments.output.quick {
        true => scaledown::Settings { functions: 5, bursts: 4 },
        false => scaledown::Settings { functions: 10, bursts: 20 },
    };
    let settings = Settings { functions, rounds, retakes, flood: Duration::from_secs(flood), scaledown };
    let mut report = Report::default();
    let mut starts = vec![Starts::of(Scenario::None)];
    starts
        .extend(MESHES.into_iter().filter(|(mesh, _)| mesh.missing(&rig).is_none()).map(|(mesh, _)| Starts::of(mesh)));
    for round in 0..rounds {
        interleaved(&mut starts, round, |one| one.start_apart(&rig, &settings))?;
        for burst in 0..BURSTS {
            interleaved(&mut starts, round + burst, |one| one.start_at_once(&rig, &settings))?;
        }
    }
    compare(&starts, &mut report);
    for one in &starts[1..] {
        flood_with_denied(&rig, one.scenario, &settings, &mut report)?;
        scaledown::measure(&rig, one.scenario, settings.scaledown, suffix(one.scenario), &mut report)
            .with_context(|| one.scenario.name())?;
    }
    for (name, value) in report.all() {
        println!("{name}: {value}");
    }
    let conditions = conditions(&rig, &settings);
    match &arguments.output.json {
        Some(path) => {
            let starts: Vec<Value> = starts.iter().map(Starts::details).collect();
            report.write_with(machine, json!({"conditions": conditions, "starts": starts}), path)
        }
        None => Ok(()),
    }
}

/// Each time another one is the first.
fn interleaved(
    starts: &mut [Starts],
    first: usize,
    mut measure: impl FnMut(&mut Starts) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for index in 0..starts.len() {
        let which = (index + first) % starts.len();
        let one = &mut starts[which];
        measure(one).with_context(|| one.scenario.name())?;
    }
    Ok(())
}

/// Cold starts of one scenario.
struct Starts {
    scenario: Scenario,
    /// Milliseconds from when a request was due to its answer, each with the machine for itself.
    apart_ms: Vec<f64>,
    /// All of them due at once, in the order of the bursts, which all scenarios had in turns.
    bursts: Vec<Burst>,
    failed: usize,
    /// Parts of rounds that others disturbed.
    disturbed: usize,
}

struct Burst {
    /// Starts.
    a_second: f64,
    disturbed: bool,
}

impl Starts {
    fn of(scenario: Scenario) -> Self {
        Self { scenario, apart_ms: Vec::new(), bursts: Vec::new(), failed: 0, disturbed: 0 }
    }

    fn start_apart(&mut self, rig: &Rig, settings: &Settings) -> anyhow::Result<()> {
        let (apart, _) = self.start_undisturbed(rig, settings, START_INTERVAL)?;
        self.apart_ms
            .extend(apart.iter().filter(|done| done.is_good()).map(|done| done.latency.as_secs_f64() * 1000.0));
        Ok(())
    }

    fn start_at_once(&mut self, rig: &Rig, settings: &Settings) -> anyhow::Result<()> {
        let (burst, disturbed) = self.start_undisturbed(rig, settings, Duration::ZERO)?;
        let last = burst.iter().map(|done| done.latency).max().unwrap_or_default();
        self.bursts.push(Burst { a_second: burst.len() as f64 / last.as_secs_f64(), disturbed });
        Ok(())
    }

    /// The first try that others leave alone; the last one, if they leave none. And whether it was
    /// disturbed.
    fn start_undisturbed(
        &mut self,
        rig: &Rig,
        settings: &Settings,
        apart: Duration,
    ) -> anyhow::Result<(Vec<Completion>, bool)> {
        let mut tries = 0;
        loop {
            std::thread::sleep(PAUSE);
            let (all, others) = self.start(rig, settings, apart)?;
            let disturbed = others > TOLERATED_PERCENT;
            if disturbed && tries < settings.retakes {
                tries += 1;
                continue;
            }
            if disturbed {
                println!("{}: disturbed; others used {others:.0} % of a core", self.scenario.name());
            }
            self.disturbed += usize::from(disturbed);
            self.failed += all.iter().filter(|done| !done.is_good()).count();
            return Ok((all, disturbed));
        }
    }

    /// One request to each function, none of which has an instance; and what others used meanwhile,
    /// in per cent of a core.
    fn start(&self, rig: &Rig, settings: &Settings, apart: Duration) -> anyhow::Result<(Vec<Completion>, f64)> {
        let running = Running::start(rig, self.scenario, settings.functions)?;
        let due = |function: usize| Invocation { function, at: apart * function as u32, work: WORK };
        let invocations: Vec<Invocation> = (0..settings.functions.count - 1).map(due).collect();
        // Starts are measured, not connections of clients.
        let connections = invocations.len();
        let options = ReplayOptions {
            work: settings.functions.work,
            connections,
            sampling: Sampling::AtTheEnd,
            ours: OwnProcesses::default(),
        };
        let (replayed, watched) = super::replay(&running, &invocations, options)?;
        Ok((replayed.all, watched.others_percent))
    }

    fn sorted_ms(&self) -> Vec<f64> {
        let mut sorted = self.apart_ms.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// The middle of the bursts.
    fn rate(&self) -> Option<Figure> {
        Figure::of(
            self.bursts.iter().map(|burst| burst.a_second).collect(),
            self.bursts.iter().all(|burst| burst.disturbed),
        )
    }

    /// Each burst's rate divided by that of `none` in the same turn. Only undisturbed pairs count,
    /// if there are any.
    fn rate_ratio(&self, none: &Self) -> Option<Figure> {
        let is_disturbed = |(own, none): &(&Burst, &Burst)| own.disturbed || none.disturbed;
        let pairs: Vec<_> = self.bursts.iter().zip(&none.bursts).collect();
        let disturbed = pairs.iter().all(is_disturbed);
        let kept = pairs.into_iter().filter(|pair| disturbed || !is_disturbed(pair));
        Figure::of(kept.map(|(own, none)| own.a_second / none.a_second).collect(), disturbed)
    }

    fn details(&self) -> Value {
        json!({"scenario": self.scenario.name(), "apart_ms": self.sorted_ms(), "a_second": self.bursts.iter().map(|burst| burst.a_second).collect::<Vec<_>>()})
    }
}

/// The first of them is without a mesh.
fn compare(starts: &[Starts], report: &mut Report) {
    let [none, meshes @ ..] = starts else { return };
    for one in meshes {
        let suffix = suffix(one.scenario);
        for (label, share) in [("p50", 0.50), ("p99", 0.99)] {
            if let Some((own, none)) = quantile(&one.sorted_ms(), share).zip(quantile(&none.sorted_ms(), share)) {
                report.add(&format!("coldstart_added_{label}_ms{suffix}"), own - none);
            }
        }
        if let Some(ratio) = one.rate_ratio(none) {
            report.add_figure(&format!("coldstart_rate_ratio{suffix}"), ratio);
        }
    }
    for one in starts {
        let name = one.scenario.name();
        for (label, share) in [("p50", 0.50), ("p99", 0.99)] {
            if let Some(own) = quantile(&one.sorted_ms(), share) {
                report.add(&format!("{name}_coldstart_{label}_ms"), own);
            }
        }
        if let Some(rate) = one.rate() {
            report.add_figure(&format!("{name}_coldstarts_a_second"), rate);
        }
        report.add(&format!("{name}_coldstarts_failed"), one.failed as f64);
        report.add(&format!("{name}_coldstarts_disturbed"), one.disturbed as f64);
    }
}

/// Requests without a token to a function that has no instance.
fn flood_with_denied(rig: &Rig, scenario: Scenario, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let running = Running::start(rig, scenario, settings.functions)?;
    let root = running.pid()?;
    let before = children(root);
    let request = Request { authorities: vec![host_of(0)], authorizations: Vec::new(), ..running.request.clone() };
    let plan = Plan {
        address: running.address,
        protocol: Protocol::Http1,
        tls: running.tls.clone(),
        pace: Pace::Open(FLOOD),
        connections: 16,
        streams: 1,
        warm_up_ms: 500,
        measured_ms: settings.flood.as_millis() as u64,
        request,
    };
    let observed = rig.observe(&plan, &[root])?;
    let statuses = &observed.outcome.statuses;
    ensure!(statuses.keys().eq([&401]), "the flood was answered with {statuses:?} instead of 401");
    let started = children(root).into_iter().filter(|instance| !before.contains(instance)).count();
    let suffix = suffix(scenario);
    report.add(&format!("denied_flood_instances{suffix}"), started as f64);
    let cores = observed.usage.cpu.as_secs_f64() / observed.outcome.seconds;
    report.add(&format!("denied_flood_cores{suffix}"), cores);
    report
        .add(&format!("denied_flood_a_second{suffix}"), observed.outcome.answered() as f64 / observed.outcome.seconds);
    report.add(&format!("denied_flood_memory_mib{suffix}"), observed.memory.pss as f64 / 1024.0);
    Ok(())
}

fn conditions(rig: &Rig, settings: &Settings) -> Value {
    json!({
        "functions": settings.functions.count - 1,
        "rounds": settings.rounds,
        "flood_s": settings.flood.as_secs(),
        "scaledown": {"functions": settings.scaledown.functions, "bursts": settings.scaledown.bursts},
        "leno": rig.programs.leno.display().to_string(),
        "cores": {"proxies and functions": rig.cores.proxy, "load and sinks": rig.cores.load},
    })
}
