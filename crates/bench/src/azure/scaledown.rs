//! Whether scaling down costs a request: functions under constant load get a burst again and again,
//! for which instances are started that are taken away while the load goes on.

use super::function::Work;
use super::scenario::{Functions, Running, Scenario};
use super::watch::{OwnProcesses, Sampling};
use super::workload::Invocation;
use super::{CONNECTIONS, ReplayOptions};
use crate::metrics;
use crate::report::Report;
use crate::rig::Rig;
use anyhow::Context;
use std::time::Duration;

/// The stable window; the panic window is a tenth of it.
const WINDOW: Duration = Duration::from_secs(1);
/// Between two bursts of a function: both windows pass, and the instances are gone again.
const PERIOD: Duration = Duration::from_secs(3);
/// Requests of a burst, each of which wants an instance for itself.
const BURST: u32 = 4;
const BURST_WORK: Duration = Duration::from_millis(300);
/// The constant load of a function: an eighth of an instance.
const STEADY_INTERVAL: Duration = Duration::from_millis(40);
const WORK: Duration = Duration::from_millis(5);

/// How much is done.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    pub functions: usize,
    /// Bursts of each function, and so many times it is scaled down again.
    pub bursts: u32,
}

impl Settings {
    pub(super) fn cycles(self) -> usize {
        self.functions * self.bursts as usize
    }

    /// Bursts of different functions are spread over the period.
    fn invocations(self) -> Vec<Invocation> {
        let length = PERIOD * (self.bursts + 1);
        let mut all = Vec::new();
        for function in 0..self.functions {
            let shift = |time: Duration| time * function as u32 / self.functions as u32;
            let (steady, offset) = ((length.as_millis() / STEADY_INTERVAL.as_millis()) as u32, shift(STEADY_INTERVAL));
            all.extend((0..steady).map(|step| Invocation {
                function,
                at: STEADY_INTERVAL * step + offset,
                work: WORK,
            }));
            for burst in 0..self.bursts {
                let one = Invocation { function, at: PERIOD * burst + shift(PERIOD), work: BURST_WORK };
                all.extend(std::iter::repeat_n(one, BURST as usize));
            }
        }
        all.sort_by_key(|invocation| invocation.at);
        all
    }
}

/// Adds `scaledown_failures`, and what shows that there was something to fail. The names end with
/// `suffix`.
pub(super) fn measure(
    rig: &Rig,
    scenario: Scenario,
    settings: Settings,
    suffix: &str,
    report: &mut Report,
) -> anyhow::Result<()> {
    let functions = Functions {
        count: settings.functions + 1,
        concurrency: 1,
        window: WINDOW,
        most_instances: BURST,
        work: Work::Sleep,
    };
    let running = Running::start(rig, scenario, functions)?;
    let invocations = settings.invocations();
    let options = ReplayOptions {
        work: functions.work,
        connections: CONNECTIONS,
        sampling: Sampling::EverySecond,
        ours: OwnProcesses::default(),
    };
    let (replayed, watched) = super::replay(&running, &invocations, options)?;
    let admin = running.admin.context("only a mesh says how often it scales")?;
    let text = metrics::get(admin).context("the node says nothing of itself")?;
    let downs = metrics::sum(&text, "leno_autoscaler_decisions_total", "direction=\"down\"").unwrap_or(0);
    let cycles = settings.cycles();
    if downs < cycles as u64 {
        // Requests wait where the machine does not keep up with the load; then nothing is scaled
        // down, and nothing is shown.
        println!("{}: not measured; it scaled down {downs} times instead of {cycles}", scenario.name());
        return Ok(());
    }
    let failed = replayed.all.iter().filter(|done| !done.is_good());
    if let Some(first) = failed.clone().next() {
        println!("{}: the first failure: {:?} {:?}", scenario.name(), first.status, first.error);
    }
    report.add(&format!("scaledown_failures{suffix}"), failed.count() as f64);
    report.add(&format!("scaledown_cycles{suffix}"), cycles as f64);
    report.add(&format!("scaledown_decisions{suffix}"), downs as f64);
    report.add(&format!("scaledown_instances_ended{suffix}"), watched.ended as f64);
    report.add(&format!("scaledown_requests{suffix}"), invocations.len() as f64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_its_load_and_its_bursts() {
        let settings = Settings { functions: 2, bursts: 3 };
        let all = settings.invocations();
        assert!(all.is_sorted_by_key(|invocation| invocation.at));
        for function in 0..2 {
            let own = || all.iter().filter(|invocation| invocation.function == function);
            assert_eq!(own().filter(|invocation| invocation.work == BURST_WORK).count(), 12);
            assert_eq!(own().filter(|invocation| invocation.work == WORK).count(), 300);
        }
        assert_eq!(settings.cycles(), 6);
    }
}
