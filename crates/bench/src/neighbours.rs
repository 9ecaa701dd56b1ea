//! `leno-bench neighbours`: one tenant at full blast, and its effect on another tenant's modest
//! traffic on the same node.

mod bomb;
mod results;
mod scenario;
mod tenants;

use crate::arguments::{Output, ProgramPaths};
use crate::load::{Outcome, Pace};
use crate::machine;
use crate::report::Report;
use crate::rig::{Noise, Rig};
use crate::statistics::Trials;
use crate::trial::{self, Contender, HTTP1, Traffic, Trial};
use anyhow::ensure;
use rustix::process::geteuid;
use scenario::{Actions, Scenario};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tenants::Tenants;

/// The modest tenant.
const MODEST: Traffic = Traffic { name: "modest", connections: 4, rate: 200.0, ..HTTP1 };
const WARM_UP: Duration = Duration::from_secs(1);
/// How much longer than the measurement the other tenant goes on.
const MARGIN: Duration = Duration::from_secs(1);
/// The other tenant's warm-up, and the start of both loads.
const BEFORE: Duration = Duration::from_secs(1);
/// All runs of the full form together. Disturbed ones are done again only as long as that leaves
/// time for the others.
const LONGEST: Duration = Duration::from_secs(14 * 60);
/// How often a disturbed run is done again.
const RETAKES: usize = 2;
/// Lines of each log that an error has.
const LOG_LINES: usize = 8;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    programs: ProgramPaths,
    /// Only these scenarios, and the idle node that they are compared with. Without it: all of
    /// them.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = Scenario::named)]
    only: Vec<Scenario>,
}

/// The other tenant in one run.
struct Neighbour {
    scenario: Scenario,
    /// Of its load.
    outcome: Outcome,
    actions: Actions,
}

/// How long runs are, and how many.
#[derive(Clone, Copy)]
struct Form {
    repeats: usize,
    measured: Duration,
    retakes: usize,
}

impl Form {
    fn of(quick: bool) -> Self {
        match quick {
            true => Self { repeats: 3, measured: Duration::from_secs(3), retakes: 0 },
            false => Self { repeats: 5, measured: Duration::from_secs(8), retakes: RETAKES },
        }
    }

    /// From the beginning of a run to the beginning of the next.
    fn whole(self) -> Duration {
        BEFORE + WARM_UP + self.measured + MARGIN
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let machine = machine::describe();
    let scenarios = possible(&arguments.only)?;
    let rig = Rig::set_up(arguments.programs.find()?)?;
    println!("machine: {machine}");
    let form = Form::of(arguments.output.quick);
    rig.lower_priority_of_helpers()?;
    let tenants = Tenants::start(&rig, scenarios.iter().any(|scenario| scenario.has_control()))?;
    let (mut trials, mut neighbours, mut failures) = (Trials::default(), Vec::new(), Vec::new());
    let (begin, all) = (Instant::now(), form.repeats * scenarios.len());
    for run in 0..all {
        // Each repeat begins with another scenario.
        let repeat = run / scenarios.len();
        let scenario = scenarios[(run + repeat) % scenarios.len()];
        let has_time = || begin.elapsed() + form.whole() * (all - run) as u32 <= LONGEST;
        match measure(&rig, &tenants, scenario, repeat, form, has_time) {
            Ok((trial, neighbour)) => {
                tell(&trial);
                trials.0.push(trial);
                neighbours.extend(neighbour);
            }
            Err(error) => {
                eprintln!("{} #{repeat}: {error:#}", scenario.name());
                failures.push(scenario);
            }
        }
    }
    println!("{all} runs in {:.0} s", begin.elapsed().as_secs_f64());
    trials.0.retain(|trial| failures.iter().all(|failed| failed.name() != trial.contender));
    let mut report = Report::default();
    results::tell(&trials, &neighbours, &mut report);
    let mut details = json!({"conditions": trial::conditions(&rig)});
    details["trials"] = serde_json::to_value(&trials.0)?;
    arguments.output.write(report, machine, details)?;
    let failed: BTreeSet<&str> = failures.into_iter().map(Scenario::name).collect();
    ensure!(failed.is_empty(), "not measured, because a run failed: {failed:?}");
    Ok(())
}

fn tell(trial: &Trial) {
    eprintln!(
        "{} #{}: p50 {:.0} us, p99 {:.0} us, {} refused, core {:.0} %{}",
        trial.contender,
        trial.repeat,
        trial.p50_us,
        trial.p99_us,
        trial.failed,
        trial.proxy_core_percent,
        if trial.is_disturbed() { ", disturbed" } else { "" }
    );
}

/// The selected scenarios. Without root, no image is pulled.
fn possible(only: &[Scenario]) -> anyhow::Result<Vec<Scenario>> {
    let mut scenarios = Scenario::selected(only);
    if !geteuid().is_root() && scenarios.contains(&Scenario::SlowRegistry) {
        ensure!(
            !only.contains(&Scenario::SlowRegistry),
            "slow_registry needs a node that runs as root: only such a node pulls images"
        );
        println!("\n*** slow_registry is left out: only a node that runs as root pulls images ***\n");
        scenarios.retain(|scenario| *scenario != Scenario::SlowRegistry);
    }
    Ok(scenarios)
}

/// Measures the modest tenant, and counts the actions of the other one. Repeats a disturbed run as
/// often as allowed.
fn measure(
    rig: &Rig,
    tenants: &Tenants,
    scenario: Scenario,
    repeat: usize,
    form: Form,
    has_time: impl Fn() -> bool,
) -> anyhow::Result<(Trial, Option<Neighbour>)> {
    let mut best = once(rig, tenants, scenario, repeat, form)?;
    for _ in 0..form.retakes {
        // The run that was disturbed is not counted among those that are left.
        if !best.0.is_disturbed() || !has_time() {
            break;
        }
        let again = once(rig, tenants, scenario, repeat, form)?;
        if again.0.others_percent < best.0.others_percent {
            best = again;
        }
    }
    Ok(best)
}

fn once(
    rig: &Rig,
    tenants: &Tenants,
    scenario: Scenario,
    repeat: usize,
    form: Form,
) -> anyhow::Result<(Trial, Option<Neighbour>)> {
    let modest = scenario.modest(tenants)?;
    let before = scenario.begin(tenants)?;
    let plan = scenario.plan(tenants, WARM_UP + form.measured + MARGIN);
    let noise = plan.map(|plan| rig.make_noise(&plan)).transpose()?;
    let plan = crate::load::Plan {
        warm_up_ms: WARM_UP.as_millis() as u64,
        measured_ms: form.measured.as_millis() as u64,
        ..modest.plan(MODEST, Pace::Open(MODEST.rate))
    };
    let observed = rig.observe(&plan, &modest.pids())?;
    // Refused requests are a result here.
    let trial = Trial::with_failures(scenario.name(), MODEST, Pace::Open(MODEST.rate), repeat, observed)?;
    let Some(outcome) = noise.map(Noise::outcome).transpose()? else { return Ok((trial, None)) };
    let actions = scenario.end(tenants, &before, &outcome)?;
    ensure!(
        actions.iter().all(|(_, count)| *count > 0.0),
        "the other tenant did not do all of it, so nothing was measured: {actions:?}; its answers {:?}, first error {:?}\n{}",
        outcome.statuses,
        outcome.error,
        tenants.last_lines(LOG_LINES)
    );
    Ok((trial, Some(Neighbour { scenario, outcome, actions })))
}
