//! `leno-bench neighbours`: one tenant at full blast, and what another's modest traffic on the same node feels of it.

use crate::arguments::Plain;
use crate::contenders::Running;
use crate::html::{self, Page};
use crate::load::{Pace, Plan};
use crate::machine;
use crate::report::Report;
use crate::rig::{Noise, Rig};
use crate::statistics::Trials;
use crate::trial::{self, HTTP1, Lengths, Trial, Way};
use serde_json::json;
use std::time::Duration;

/// The modest tenant.
const MODEST: Way = Way { name: "modest", connections: 4, rate: 100.0, ..HTTP1 };
/// The other one's connections.
const BLAST: usize = 64;
const LARGE_BODY: usize = 1 << 20;

/// What the other tenant does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blast {
    Nothing,
    Requests,
    LargeBodies,
    /// Its sidecars have 50 us, which a micro-VM does not always keep.
    Deadlines,
}

impl Blast {
    const ALL: [Self; 4] = [Self::Nothing, Self::Requests, Self::LargeBodies, Self::Deadlines];

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "idle",
            Self::Requests => "requests",
            Self::LargeBodies => "large_bodies",
            Self::Deadlines => "deadlines",
        }
    }

    fn plan(self, mut plan: Plan, seconds: u64) -> Plan {
        plan.pace = Pace::Closed;
        plan.connections = BLAST;
        plan.warm_up_ms = 0;
        plan.measured_ms = seconds * 1000;
        if self == Self::LargeBodies {
            plan.connections = BLAST / 4;
            plan.request.method = "POST".into();
            plan.request.body = LARGE_BODY;
        }
        plan
    }
}

pub fn run(arguments: &Plain) -> anyhow::Result<()> {
    let machine = machine::describe();
    let rig = Rig::set_up(arguments.programs.find()?)?;
    println!("machine: {machine}");
    let quick = arguments.output.quick;
    let (repeats, seconds, retakes) = if quick { (3, 8, 0) } else { (7, 20, 2) };
    let tenants = Running::leno_tenants(&rig)?;
    let mut trials = Trials::default();
    for repeat in 0..repeats {
        for index in 0..Blast::ALL.len() {
            let blast = Blast::ALL[(index + repeat) % Blast::ALL.len()];
            let mut trial = measure(&rig, &tenants, blast, repeat, (seconds, retakes))?;
            blast.name().clone_into(&mut trial.contender);
            eprintln!(
                "{} #{repeat}: p50 {:.0} us, p99 {:.0} us, core {:.0} %",
                trial.contender, trial.p50_us, trial.p99_us, trial.proxy_core_percent
            );
            trials.0.push(trial);
        }
    }
    let mut report = Report::default();
    let page = tell(&trials, &mut report);
    let mut details = json!({"conditions": trial::conditions(&rig), "quick": quick});
    details["trials"] = serde_json::to_value(&trials.0)?;
    if let Some(path) = &arguments.output.html {
        html::conditions(page, &machine, &details["conditions"]).write(path)?;
    }
    match &arguments.output.json {
        Some(path) => report.write_with(machine, details, path),
        None => Ok(()),
    }
}

/// The modest tenant, the one at full blast, and the one whose sidecars have little time; on one node.
pub struct Tenants {
    pub modest: Running,
    pub blast: Plan,
    pub hurried: Plan,
    /// Of the latter two.
    pub _upstream: Noise,
}

fn measure(
    rig: &Rig,
    tenants: &Tenants,
    blast: Blast,
    repeat: usize,
    (seconds, retakes): (u64, usize),
) -> anyhow::Result<Trial> {
    let lengths = Lengths {
        warm_up: Duration::from_secs(1),
        closed: Duration::ZERO,
        open: Duration::from_secs(seconds),
        retakes,
    };
    let others = match blast {
        Blast::Nothing => None,
        Blast::Deadlines => Some(&tenants.hurried),
        Blast::Requests | Blast::LargeBodies => Some(&tenants.blast),
    };
    let noise = others
        .map(|plan| rig.make_noise(&blast.plan(plan.clone(), (seconds + 20) * (retakes as u64 + 2))))
        .transpose()?;
    let trial = trial::run(rig, &tenants.modest, MODEST, Pace::Open(MODEST.rate), repeat, lengths);
    drop(noise);
    trial
}

fn tell(trials: &Trials, report: &mut Report) -> Page {
    let mut page = Page::new("A neighbour at full blast");
    page.note("One Leno node, one worker. A tenant with 100 requests a second in open loop is measured; latencies in us from the scheduled \
               send. Another tenant's load has the lowest priority on the load's core, so that what is measured is the node.");
    let mut rows = vec![["neighbour", "p50", "p99", "p99 against idle"].map(str::to_owned).to_vec()];
    let mut worst: Option<crate::statistics::Figure> = None;
    for blast in Blast::ALL {
        let which = (blast.name(), MODEST.name, "open");
        let (Some(p50), Some(p99)) =
            (trials.figure(which, |trial| trial.p50_us), trials.figure(which, |trial| trial.p99_us))
        else {
            continue;
        };
        report.add_figure(&format!("neighbour_{}_p50_us", blast.name()), p50);
        report.add_figure(&format!("neighbour_{}_p99_us", blast.name()), p99);
        let against =
            trials.combined([which, ("idle", MODEST.name, "open")], |[blast, idle]| blast.p99_us / idle.p99_us);
        let Some(ratio) = against else { continue };
        println!(
            "{}: p50 {:.0} us, p99 {:.0} us, {:.2} times the p99 of an idle node",
            blast.name(),
            p50.median,
            p99.median,
            ratio.median
        );
        if blast != Blast::Nothing {
            report.add_figure(&format!("neighbour_p99_ratio_{}", blast.name()), ratio);
            if worst.is_none_or(|worst| ratio.median > worst.median) {
                worst = Some(ratio);
            }
        }
        rows.push(
            [
                blast.name().to_owned(),
                format!("{:.0}", p50.median),
                format!("{:.0}", p99.median),
                format!("{:.2}", ratio.median),
            ]
            .to_vec(),
        );
    }
    if let Some(worst) = worst {
        println!("neighbour_p99_ratio (the worst): {:.2}", worst.median);
        report.add_figure("neighbour_p99_ratio", worst);
    }
    page.table(&rows);
    page
}
