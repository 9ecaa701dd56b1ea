//! From invocations to figures.

use super::function::Life;
use super::replay::{Completion, ReplayResult};
use super::scenario::Scenario;
use super::watch::ScenarioUsage;
use super::workload::Invocation;
use crate::report::Report;
use crate::statistics::Figure;
use crate::trial::TOLERATED_PERCENT;
use serde::{Deserialize, Serialize};

/// The quantiles of slowdowns.
pub(super) const SHARES: [(&str, f64); 4] = [("p50", 0.50), ("p90", 0.90), ("p95", 0.95), ("p99", 0.99)];

/// One scenario, measured.
#[derive(Serialize, Deserialize)]
pub(super) struct ScenarioResult {
    pub scenario: Scenario,
    pub replayed: ReplayResult,
    pub watched: ScenarioUsage,
    /// From nothing to policies that hold, in seconds.
    pub start_s: f64,
}

/// One good invocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Good {
    /// Latency by requested execution time.
    pub slowdown: f64,
    /// It was due before its instance listened.
    pub cold: bool,
}

impl ScenarioResult {
    /// All that were answered as they should be.
    pub(super) fn good(&self, invocations: &[Invocation]) -> Vec<Good> {
        let pairs = self.replayed.all.iter().zip(invocations).filter(|(done, _)| done.is_good());
        pairs
            .map(|(done, invocation)| Good {
                slowdown: slowdown(done, invocation),
                cold: self.is_cold(done, invocation),
            })
            .collect()
    }

    fn is_cold(&self, done: &Completion, invocation: &Invocation) -> bool {
        let due = self.replayed.epoch + invocation.at.as_micros() as u64;
        done.life.is_some_and(|life| life.listening > due)
    }

    /// Instances' first requests: seconds from the beginning to when their programs began,
    /// ascending.
    pub(super) fn cold_starts(&self) -> Vec<f64> {
        let firsts = self.replayed.all.iter().filter_map(|done| done.life).filter(|life| life.count == 1);
        let mut at: Vec<f64> = firsts
            .map(|life| (life.started as f64 - self.replayed.epoch as f64) / 1e6)
            .filter(|at| *at >= 0.0)
            .collect();
        at.sort_by(f64::total_cmp);
        at
    }

    pub(super) fn failed(&self) -> usize {
        self.replayed.all.iter().filter(|done| !done.is_good()).count()
    }

    /// Milliseconds of each stage of each cold start, sorted: from the due time until the program
    /// begins, until it listens, until it has the request, its work beyond the requested time, and
    /// until the answer is there.
    pub(super) fn stages(&self, invocations: &[Invocation]) -> [Vec<f64>; 5] {
        sorted_ms(self.timelines(invocations).filter(|timeline| timeline.cold && timeline.life.count == 1).map(
            |timeline| {
                let Timeline { due, life, work, end, .. } = timeline;
                let [started, listening, received, finished] =
                    [life.started, life.listening, life.received, life.finished].map(|at| at as f64);
                [started - due, listening - started, received - listening, finished - received - work, end - finished]
            },
        ))
    }

    /// The same for warm invocations: milliseconds until the instance had the request, of work
    /// beyond the requested time, and until the response.
    pub(super) fn warm_stages(&self, invocations: &[Invocation]) -> [Vec<f64>; 3] {
        sorted_ms(self.timelines(invocations).filter(|timeline| timeline.good && !timeline.cold).map(|timeline| {
            let Timeline { due, life, work, end, .. } = timeline;
            let [received, finished] = [life.received, life.finished].map(|at| at as f64);
            [received - due, finished - received - work, end - finished]
        }))
    }

    /// The timelines of all invocations that an instance reported.
    fn timelines(&self, invocations: &[Invocation]) -> impl Iterator<Item = Timeline> {
        self.replayed.all.iter().zip(invocations).filter_map(|(done, invocation)| {
            let due = (self.replayed.epoch + invocation.at.as_micros() as u64) as f64;
            Some(Timeline {
                life: done.life?,
                good: done.is_good(),
                cold: self.is_cold(done, invocation),
                due,
                work: invocation.work.as_micros() as f64,
                end: due + done.latency.as_micros() as f64,
            })
        })
    }

    /// Others used too much of the machine meanwhile.
    pub(super) fn is_disturbed(&self) -> bool {
        self.watched.others_percent > TOLERATED_PERCENT
    }

    /// The first thing that went wrong, in words.
    pub(super) fn first_failure(&self) -> Option<String> {
        let done = self.replayed.all.iter().find(|done| !done.is_good())?;
        Some(match (&done.error, done.status) {
            (Some(error), _) => error.clone(),
            (None, Some(status)) => format!("status {status}"),
            (None, None) => "no answer".to_owned(),
        })
    }
}

/// What there is to know of an invocation, in microseconds.
struct Timeline {
    life: Life,
    good: bool,
    cold: bool,
    due: f64,
    work: f64,
    end: f64,
}

/// Each of the times of all of them, from microseconds.
fn sorted_ms<const STAGES: usize>(all: impl Iterator<Item = [f64; STAGES]>) -> [Vec<f64>; STAGES] {
    let mut stages = std::array::from_fn(|_| Vec::new());
    for times in all {
        for (stage, time) in stages.iter_mut().zip(times) {
            stage.push(time / 1000.0);
        }
    }
    stages.iter_mut().for_each(|stage| stage.sort_by(f64::total_cmp));
    stages
}

fn slowdown(done: &Completion, invocation: &Invocation) -> f64 {
    done.latency.as_secs_f64() / invocation.work.as_secs_f64()
}

/// Of sorted values, the one that `share` of them do not exceed; `None` of nothing.
pub(super) fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let index = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(index).copied()
}

/// Sorted slowdowns of those that `which` lets through.
pub(super) fn slowdowns(good: &[Good], which: impl Fn(&Good) -> bool) -> Vec<f64> {
    let mut found: Vec<f64> = good.iter().filter(|good| which(good)).map(|good| good.slowdown).collect();
    found.sort_by(f64::total_cmp);
    found
}

/// The kinds of invocations with separate figures: all, warm, cold.
pub(super) type Kind = (&'static str, fn(&Good) -> bool);
pub(super) const KINDS: [Kind; 3] = [("", |_| true), ("_warm", |good| !good.cold), ("_cold", |good| good.cold)];

/// All figures. A ratio compares the same quantile of two distributions: of a scenario and of no
/// mesh.
pub(super) fn report(measured: &[ScenarioResult], invocations: &[Invocation]) -> Report {
    let mut report = Report::default();
    let baseline = measured.iter().find(|measured| measured.scenario == Scenario::None);
    let baseline = baseline.map(|none| (none, none.good(invocations)));
    for one in measured {
        let name = one.scenario.name();
        let good = one.good(invocations);
        let disturbed = one.is_disturbed() || baseline.as_ref().is_some_and(|(none, _)| none.is_disturbed());
        for (kind, which) in KINDS {
            let own = slowdowns(&good, which);
            let Some((_, none)) = baseline.as_ref().filter(|_| one.scenario != Scenario::None) else { continue };
            let none = slowdowns(none, which);
            for (label, share) in SHARES {
                if let Some((own, none)) = quantile(&own, share).zip(quantile(&none, share)) {
                    let figure = Figure::of(vec![own / none], disturbed);
                    figure
                        .into_iter()
                        .for_each(|ratio| report.add_figure(&format!("slowdown_{label}_{name}{kind}"), ratio));
                }
            }
        }
        if let Some((none, _)) = baseline.as_ref().filter(|_| one.scenario != Scenario::None) {
            paired(&mut report, none, one, invocations);
        }
        report.add(&format!("failed_{name}"), one.failed() as f64);
    }
    for one in measured {
        absolute(&mut report, one, invocations);
    }
    report
}

/// The same invocation in two scenarios.
fn paired(report: &mut Report, none: &ScenarioResult, one: &ScenarioResult, invocations: &[Invocation]) {
    let pairs = none.replayed.all.iter().zip(&one.replayed.all).zip(invocations);
    let both_warm = pairs.filter(|((none_done, done), invocation)| {
        let good = none_done.is_good() && done.is_good();
        good && !none.is_cold(none_done, invocation) && !one.is_cold(done, invocation)
    });
    let mut added: Vec<f64> = both_warm
        .map(|((none_done, done), _)| (done.latency.as_secs_f64() - none_done.latency.as_secs_f64()) * 1000.0)
        .collect();
    added.sort_by(f64::total_cmp);
    for (label, share) in [("p50", 0.5), ("p99", 0.99)] {
        if let Some(added) = quantile(&added, share) {
            report.add(&format!("added_warm_{label}_ms_{}", one.scenario.name()), added);
        }
    }
}

fn absolute(report: &mut Report, one: &ScenarioResult, invocations: &[Invocation]) {
    let name = one.scenario.name();
    let good = one.good(invocations);
    for (kind, which) in KINDS {
        let own = slowdowns(&good, which);
        report.add(&format!("{name}_invocations{kind}"), own.len() as f64);
        for (label, share) in SHARES {
            if let Some(own) = quantile(&own, share) {
                report.add(&format!("{name}_slowdown_{label}{kind}"), own);
            }
        }
    }
    report.add(&format!("{name}_cold_starts"), one.cold_starts().len() as f64);
    report.add(&format!("{name}_start_s"), one.start_s);
    report.add(&format!("{name}_mesh_cpu_s"), one.watched.mesh_s);
    report.add(&format!("{name}_functions_cpu_s"), one.watched.functions_s);
    let memory = one.watched.snapshots.iter().filter_map(|snapshot| snapshot.memory_mib).fold(0.0, f64::max);
    report.add(&format!("{name}_mesh_memory_mib_most"), memory);
    let instances = one.watched.snapshots.iter().map(|snapshot| snapshot.instances).max().unwrap_or(0);
    report.add(&format!("{name}_instances_most"), instances as f64);
    report.add(&format!("{name}_instances_ended"), one.watched.ended as f64);
    if let Some(last) = one.watched.snapshots.iter().rev().find_map(|snapshot| snapshot.configuration) {
        report.add(&format!("{name}_configuration_bytes"), last.bytes as f64);
        report.add(&format!("{name}_configuration_messages"), last.messages as f64);
        report.add(&format!("{name}_configuration_reports"), last.reports as f64);
    }
    let mut late: Vec<f64> = one.replayed.all.iter().map(|done| done.late.as_secs_f64() * 1000.0).collect();
    late.sort_by(f64::total_cmp);
    if let Some(late) = quantile(&late, 0.99) {
        report.add(&format!("{name}_load_late_p99_ms"), late);
    }
    for (stage, times) in ["begin", "listen", "request", "work", "answer"].iter().zip(one.stages(invocations)) {
        if let Some(median) = quantile(&times, 0.5) {
            report.add(&format!("{name}_cold_{stage}_p50_ms"), median);
        }
    }
    for (stage, times) in ["request", "work", "answer"].iter().zip(one.warm_stages(invocations)) {
        if let Some(median) = quantile(&times, 0.5) {
            report.add(&format!("{name}_warm_{stage}_p50_ms"), median);
        }
    }
    report.add(&format!("{name}_others_percent"), one.watched.others_percent);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Due at 1 s, with 10 ms of work.
    const INVOCATION: Invocation =
        Invocation { function: 0, at: Duration::from_secs(1), work: Duration::from_millis(10) };
    const EPOCH: u64 = 1_000_000_000;
    const DUE: u64 = EPOCH + 1_000_000;

    fn measured(scenario: Scenario, all: Vec<Completion>) -> ScenarioResult {
        let replayed = ReplayResult { epoch: EPOCH, all };
        ScenarioResult { scenario, replayed, watched: ScenarioUsage::default(), start_s: 0.0 }
    }

    fn done(latency_ms: u64, life: Option<Life>) -> Completion {
        let status = Some(if life.is_some() { 200 } else { 503 });
        Completion { late: Duration::ZERO, latency: Duration::from_millis(latency_ms), status, life, error: None }
    }

    fn warm(latency_ms: u64) -> Completion {
        let life = Life { count: 2, started: 0, listening: 1, received: DUE + 1, finished: DUE + 10_001 };
        done(latency_ms, Some(life))
    }

    fn cold(latency_ms: u64) -> Completion {
        let life = Life {
            count: 1,
            started: DUE + 1_000,
            listening: DUE + 3_000,
            received: DUE + 6_000,
            finished: DUE + 20_000,
        };
        done(latency_ms, Some(life))
    }

    #[test]
    fn ratios_are_of_quantiles_and_failures_count_apart() {
        let invocations = [INVOCATION; 4];
        let none = measured(Scenario::None, vec![warm(11), warm(12), cold(20), warm(10)]);
        let wasm = measured(Scenario::Wasm, vec![warm(22), cold(40), done(5, None), warm(20)]);
        let report = report(&[none, wasm], &invocations);
        let figure = |name: &str| report.figure(name);
        assert_eq!(figure("failed_none"), Some(0.0));
        assert_eq!(figure("failed_wasm"), Some(1.0));
        // Of 10, 11, 12, 20 and of 20, 22, 40: the middle is 11 and 22.
        assert_eq!(figure("slowdown_p50_wasm"), Some(2.0));
        assert_eq!(figure("slowdown_p99_wasm"), Some(2.0));
        assert_eq!(figure("slowdown_p50_wasm_cold"), Some(2.0));
        assert_eq!(figure("slowdown_p50_none"), None);
        assert_eq!(figure("none_slowdown_p50"), Some(1.1));
        assert_eq!(figure("wasm_invocations_warm"), Some(2.0));
        assert_eq!(figure("added_warm_p50_ms_wasm"), Some(10.0));
        assert_eq!(figure("wasm_cold_starts"), Some(1.0));
    }

    #[test]
    fn a_cold_start_falls_into_stages() {
        let measured = measured(Scenario::None, vec![cold(21), warm(10)]);
        let stages = measured.stages(&[INVOCATION; 2]);
        assert_eq!(stages.map(|stage| stage[0]), [1.0, 2.0, 3.0, 4.0, 1.0]);
        assert_eq!(measured.cold_starts(), [1.001]);
        // From 1 us after it was due to 10 ms later, of 10 ms that it took in all.
        let warm = measured.warm_stages(&[INVOCATION; 2]).map(|stage| stage[0]);
        assert_eq!(warm, [0.001, 0.0, -0.001]);
    }

    #[test]
    fn quantiles_of_little_are_what_there_is() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[3.0], 0.0), Some(3.0));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), Some(2.0));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 1.0), Some(4.0));
    }
}
