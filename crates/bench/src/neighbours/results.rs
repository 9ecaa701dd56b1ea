//! Figures, and the table of the scenarios.

use super::scenario::{Actions, Scenario};
use super::{MODEST, Neighbour};
use crate::load::Outcome;
use crate::report::Report;
use crate::statistics::{Figure, Selection, Trials};
use std::collections::BTreeMap;

/// Largest p99 beside a neighbour, as a multiple of the p99 of an idle node.
const MOST_RATIO: f64 = 2.0;

/// The effect of one scenario on the modest tenant.
struct Row {
    scenario: Scenario,
    p50: Figure,
    p99: Figure,
    /// The p99 against that of the idle node in the same repeat.
    ratio: Figure,
    /// Requests of the modest tenant that were not answered with 200.
    refused: u64,
}

impl Row {
    /// `None`: it was not measured.
    fn of(scenario: Scenario, trials: &Trials) -> Option<Self> {
        let which = selection(scenario);
        let ratio = trials.combined([which, selection(scenario.baseline())], |[it, idle]| it.p99_us / idle.p99_us);
        let its = trials.0.iter().filter(|trial| trial.contender == scenario.name());
        Some(Self {
            scenario,
            p50: trials.figure(which, |trial| trial.p50_us)?,
            p99: trials.figure(which, |trial| trial.p99_us)?,
            ratio: ratio?,
            refused: its.map(|trial| trial.failed).sum(),
        })
    }

    fn misses(&self) -> bool {
        self.scenario.has_bars() && (self.ratio.median > MOST_RATIO || self.refused > 0)
    }

    fn print(&self, rate: f64, statuses: &BTreeMap<u16, u64>) {
        let Self { scenario, p50, p99, ratio, refused } = self;
        println!(
            "{}: p50 {:.0} us, p99 {:.0} us, {:.2} times the p99 of an idle node ({:.2} to {:.2}), {refused} refused; the neighbour: {rate:.0} answers a second, {statuses:?}",
            scenario.name(),
            p50.median,
            p99.median,
            ratio.median,
            ratio.least,
            ratio.most,
        );
        if self.misses() {
            println!(
                "{}: MISSED: {:.2} times the p99 of an idle node (at most {MOST_RATIO}), {refused} requests of the other tenant refused (none)",
                scenario.name(),
                ratio.median
            );
        }
    }
}

fn selection(scenario: Scenario) -> Selection<'static> {
    (scenario.name(), MODEST.name, "open")
}

/// The responses to a neighbour's load: how many a second, and by status. A request that its
/// sidecar loses by the deadline gets 500; by an extension's deadline, 503.
fn got<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> (f64, BTreeMap<u16, u64>) {
    let (mut seconds, mut statuses) = (0.0, BTreeMap::new());
    for outcome in outcomes {
        seconds += outcome.seconds;
        for (status, count) in &outcome.statuses {
            *statuses.entry(*status).or_default() += count;
        }
    }
    (if seconds > 0.0 { statuses.values().sum::<u64>() as f64 / seconds } else { 0.0 }, statuses)
}

/// Medians of the counts of each run.
fn actions(of: &[&Actions]) -> Vec<(&'static str, Figure)> {
    let Some(first) = of.first() else { return Vec::new() };
    let values = |at: usize| of.iter().filter_map(|actions| Some(actions.get(at)?.1)).collect();
    first.iter().enumerate().filter_map(|(at, (name, _))| Some((*name, Figure::of(values(at), false)?))).collect()
}

pub(super) fn tell(trials: &Trials, neighbours: &[Neighbour], report: &mut Report) {
    let mut worst: Option<Figure> = None;
    for row in Scenario::ALL.into_iter().filter_map(|scenario| Row::of(scenario, trials)) {
        let its: Vec<&Neighbour> = neighbours.iter().filter(|neighbour| neighbour.scenario == row.scenario).collect();
        add(&row, &its, report);
        if row.scenario.has_bars() && worst.is_none_or(|worst| row.ratio.median > worst.median) {
            worst = Some(row.ratio);
        }
    }
    if let Some(worst) = worst {
        println!("neighbour_p99_ratio (the worst): {:.2}", worst.median);
        report.add_figure("neighbour_p99_ratio", worst);
    }
}

/// Prints a scenario and adds its figures.
fn add(row: &Row, its: &[&Neighbour], report: &mut Report) {
    let name = row.scenario.name();
    let (rate, statuses) = got(its.iter().map(|neighbour| &neighbour.outcome));
    let all: u64 = statuses.values().sum();
    let lost = statuses.get(&500).into_iter().chain(statuses.get(&503)).sum::<u64>() as f64 / all.max(1) as f64;
    row.print(rate, &statuses);
    report.add_figure(&format!("neighbour_{name}_p50_us"), row.p50);
    report.add_figure(&format!("neighbour_{name}_p99_us"), row.p99);
    report.add(&format!("neighbour_{name}_refused"), row.refused as f64);
    if row.scenario != row.scenario.baseline() {
        report.add_figure(&format!("neighbour_p99_ratio_{name}"), row.ratio);
        report.add(&format!("neighbour_{name}_per_second"), rate);
        report.add(&format!("neighbour_{name}_lost_share"), lost);
    }
    for (action, figure) in actions(&its.iter().map(|neighbour| &neighbour.actions).collect::<Vec<_>>()) {
        println!("{name}: {action} {:.1} in a run ({:.1} to {:.1})", figure.median, figure.least, figure.most);
        report.add_figure(&format!("neighbour_{name}_{action}"), figure);
    }
}
