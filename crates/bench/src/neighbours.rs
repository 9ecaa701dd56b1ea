//! `leno-bench neighbours`: one tenant at full blast, and what another's modest traffic on the same node feels of it.

use crate::arguments::Plain;
use crate::contenders::{Running, Tenants};
use crate::html::Page;
use crate::load::{Outcome, Pace, Plan};
use crate::machine;
use crate::report::Report;
use crate::rig::{Noise, Rig};
use crate::statistics::Trials;
use crate::trial::{self, HTTP1, Lengths, Traffic, Trial};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

/// The modest tenant.
const MODEST: Traffic = Traffic { name: "modest", connections: 4, rate: 200.0, ..HTTP1 };
/// The other one's connections.
const BLAST: usize = 64;
const LARGE_BODY: usize = 1 << 20;
/// Largest p99 beside a neighbour, as a multiple of the p99 of an idle node.
const MOST_RATIO: f64 = 2.0;
/// How much longer than the measurement the other one goes on.
const MARGIN: Duration = Duration::from_secs(1);

/// What the other tenant does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blast {
    Nothing,
    /// Requests straight to its upstream: what the load and the upstreams do to each other, without the node.
    Elsewhere,
    Requests,
    LargeBodies,
    /// Its sidecars have 50 us, which a micro-VM does not always keep.
    Deadlines,
    /// An extension of its own that loops until its deadline, with every request.
    Runaway,
    /// Requests that are refused, each of which the access log tells.
    Refusals,
    /// An instance that writes a megabyte to its log for each request.
    Output,
    /// An upstream with thousands of interim responses (103) before each answer.
    Interim,
    /// An instance that opens connections to the outbound listener and holds them.
    Hoarder,
}

impl Blast {
    const ALL: [Self; 10] = [
        Self::Nothing,
        Self::Elsewhere,
        Self::Requests,
        Self::LargeBodies,
        Self::Deadlines,
        Self::Runaway,
        Self::Refusals,
        Self::Output,
        Self::Interim,
        Self::Hoarder,
    ];
    /// Without those that the full form adds.
    const QUICK: usize = 6;

    /// Those that are measured.
    fn of(quick: bool) -> &'static [Self] {
        &Self::ALL[..if quick { Self::QUICK } else { Self::ALL.len() }]
    }

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "idle",
            Self::Elsewhere => "elsewhere",
            Self::Requests => "requests",
            Self::LargeBodies => "large_bodies",
            Self::Deadlines => "deadlines",
            Self::Runaway => "runaway",
            Self::Refusals => "refusals",
            Self::Output => "log_flood",
            Self::Interim => "interim_flood",
            Self::Hoarder => "connection_hoarder",
        }
    }

    /// Whether the node has to do with it.
    fn is_at_the_node(self) -> bool {
        !matches!(self, Self::Nothing | Self::Elsewhere)
    }

    fn plan(self, tenants: &Tenants, length: Duration) -> Option<Plan> {
        let plan = match self {
            Self::Nothing => return None,
            Self::Elsewhere => &tenants.elsewhere,
            Self::Requests | Self::LargeBodies | Self::Refusals => &tenants.blast,
            Self::Deadlines => &tenants.hurried,
            Self::Runaway => &tenants.runaway,
            Self::Output => &tenants.output,
            Self::Interim => &tenants.interim,
            Self::Hoarder => &tenants.hoarder,
        };
        let mut plan = Plan {
            pace: Pace::Closed,
            connections: BLAST,
            // Connections are made, and the node gets used to it, before anything is measured.
            warm_up_ms: 500,
            measured_ms: length.as_millis() as u64,
            ..plan.clone()
        };
        if self == Self::LargeBodies {
            plan.connections = BLAST / 4;
            plan.request.method = "POST".into();
            plan.request.body = LARGE_BODY;
        }
        if self == Self::Refusals {
            plan.request.authorizations.clear();
        }
        if matches!(self, Self::Output | Self::Interim | Self::Hoarder) {
            plan.connections = BLAST / 8;
        }
        Some(plan)
    }
}

pub(crate) fn run(arguments: &Plain) -> anyhow::Result<()> {
    let machine = machine::describe();
    let rig = Rig::set_up(arguments.programs.find()?)?;
    println!("machine: {machine}");
    let quick = arguments.output.quick;
    let (repeats, seconds, retakes) = if quick { (3, 6, 0) } else { (7, 20, 2) };
    rig.lower_priority_of_helpers()?;
    let tenants = Running::leno_tenants(&rig)?;
    let mut trials = Trials::default();
    let mut blasts = Vec::new();
    for repeat in 0..repeats {
        let measured = Blast::of(quick);
        for index in 0..measured.len() {
            let blast = measured[(index + repeat) % measured.len()];
            let (trial, outcome) = measure(&rig, &tenants, blast, repeat, (seconds, retakes))?;
            eprintln!(
                "{} #{repeat}: p50 {:.0} us, p99 {:.0} us, core {:.0} %{}",
                trial.contender,
                trial.p50_us,
                trial.p99_us,
                trial.proxy_core_percent,
                if trial.is_disturbed() { ", disturbed" } else { "" }
            );
            trials.0.push(trial);
            blasts.extend(outcome.map(|outcome| (blast, outcome)));
        }
    }
    let mut report = Report::default();
    let page = tell(&trials, &blasts, &mut report);
    let mut details = json!({"conditions": trial::conditions(&rig)});
    details["trials"] = serde_json::to_value(&trials.0)?;
    arguments.output.write(report, page, machine, details)
}

/// What the modest tenant felt, and what the other one got for its blast. Again, as often as may be, if it was disturbed.
fn measure(
    rig: &Rig,
    tenants: &Tenants,
    blast: Blast,
    repeat: usize,
    (seconds, retakes): (u64, usize),
) -> anyhow::Result<(Trial, Option<Outcome>)> {
    let (warm_up, open) = (Duration::from_secs(1), Duration::from_secs(seconds));
    let lengths = Lengths { warm_up, closed: Duration::ZERO, open, retakes: 0 };
    let once = || {
        let plan = blast.plan(tenants, warm_up + open + MARGIN);
        let noise = plan.map(|plan| rig.make_noise(&plan)).transpose()?;
        let mut trial = trial::run(rig, &tenants.modest, MODEST, Pace::Open(MODEST.rate), repeat, lengths)?;
        blast.name().clone_into(&mut trial.contender);
        anyhow::Ok((trial, noise.map(Noise::outcome).transpose()?))
    };
    let mut best = once()?;
    for _ in 0..retakes {
        if !best.0.is_disturbed() {
            break;
        }
        let again = once()?;
        if again.0.others_percent < best.0.others_percent {
            best = again;
        }
    }
    Ok(best)
}

/// What a blast got: answers a second, and how many of them were refused. What its policies lose by their deadline is answered with 500, or
/// 503 where it is an extension.
fn got<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> (f64, BTreeMap<u16, u64>) {
    let (mut seconds, mut statuses) = (0.0, BTreeMap::new());
    for outcome in outcomes {
        seconds += outcome.seconds;
        for (status, count) in &outcome.statuses {
            *statuses.entry(*status).or_default() += count;
        }
    }
    (statuses.values().sum::<u64>() as f64 / seconds, statuses)
}

fn tell(trials: &Trials, blasts: &[(Blast, Outcome)], report: &mut Report) -> Page {
    let mut page = Page::new("A neighbour at full blast");
    page.note("One Leno node, one worker. A tenant with 200 requests a second in open loop is measured; latencies in us from the scheduled \
               send. Another tenant's load and upstream get what nobody else wants of the load's core (SCHED_IDLE), so that what is measured \
               is the node; `elsewhere`, where they do without the node, shows what is left of them in the figures.");
    let columns = ["neighbour", "p50", "p99", "p99 against idle", "its answers a second", "of them 500 or 503"];
    let mut rows = vec![columns.map(str::to_owned).to_vec()];
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
        let (rate, statuses) = got(blasts.iter().filter(|(of, _)| *of == blast).map(|(_, outcome)| outcome));
        let all: u64 = statuses.values().sum();
        let lost = statuses.get(&500).into_iter().chain(statuses.get(&503)).sum::<u64>() as f64 / all.max(1) as f64;
        println!(
            "{}: p50 {:.0} us, p99 {:.0} us, {:.2} times the p99 of an idle node ({:.2} to {:.2}); the neighbour: {rate:.0} answers a second, {statuses:?}",
            blast.name(),
            p50.median,
            p99.median,
            ratio.median,
            ratio.least,
            ratio.most,
        );
        let of_blast = |trial: &&Trial| trial.contender == blast.name();
        let refused: u64 = trials.0.iter().filter(of_blast).map(|trial| trial.failed).sum();
        report.add(&format!("neighbour_{}_refused", blast.name()), refused as f64);
        if blast.is_at_the_node() && (ratio.median > MOST_RATIO || refused > 0) {
            println!(
                "{}: MISSED: {:.2} times the p99 of an idle node (at most {MOST_RATIO}), {refused} requests of the other tenant refused (none)",
                blast.name(),
                ratio.median
            );
        }
        if blast != Blast::Nothing {
            report.add_figure(&format!("neighbour_p99_ratio_{}", blast.name()), ratio);
            report.add(&format!("neighbour_{}_per_second", blast.name()), rate);
            report.add(&format!("neighbour_{}_lost_share", blast.name()), lost);
        }
        if blast.is_at_the_node() && worst.is_none_or(|worst| ratio.median > worst.median) {
            worst = Some(ratio);
        }
        rows.push(
            [
                blast.name().to_owned(),
                format!("{:.0}", p50.median),
                format!("{:.0}", p99.median),
                format!("{:.2}", ratio.median),
                format!("{rate:.0}"),
                format!("{:.1} %", lost * 100.0),
            ]
            .to_vec(),
        );
    }
    if let Some(worst) = worst {
        println!("neighbour_p99_ratio (the worst): {:.2}", worst.median);
        report.add_figure("neighbour_p99_ratio", worst);
    }
    page.table(rows);
    page
}
