//! One scenario, run once: contender, traffic, results, and whether other work disturbed it.

use crate::load::{Outcome, Pace, Plan, Protocol};
use crate::rig::{Observation, Rig};
use anyhow::ensure;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

/// Others' CPU time, in per cent of one core, from which on a run counts as disturbed. Fixed here,
/// before anything is measured.
pub(crate) const TOLERATED_PERCENT: f64 = 10.0;

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Traffic {
    /// As in the names of figures.
    pub name: &'static str,
    #[serde(skip)]
    pub protocol: Protocol,
    pub connections: usize,
    pub streams: usize,
    /// Requests a second in open loop.
    pub rate: f64,
}

pub(crate) const HTTP1: Traffic =
    Traffic { name: "http1", protocol: Protocol::Http1, connections: 16, streams: 1, rate: 1000.0 };
pub(crate) const HTTP2: Traffic =
    Traffic { name: "http2", protocol: Protocol::Http2, connections: 2, streams: 8, rate: 1000.0 };
/// Handshakes are dear: what every contender can serve is less.
pub(crate) const FRESH: Traffic =
    Traffic { name: "fresh", protocol: Protocol::Fresh, connections: 8, streams: 1, rate: 200.0 };

/// Serverless traffic: a request now and then, each to another function.
pub(crate) const SPARSE: Traffic =
    Traffic { name: "sparse", protocol: Protocol::Http1, connections: 4, streams: 1, rate: 20.0 };
/// One function that gets few requests.
pub(crate) const RARE: Traffic =
    Traffic { name: "rare", protocol: Protocol::Http1, connections: 1, streams: 1, rate: 1.0 };

/// How long a run lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths {
    pub warm_up: Duration,
    pub closed: Duration,
    pub open: Duration,
    /// How often a disturbed run is done again.
    pub retakes: usize,
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Trial {
    pub contender: String,
    #[serde(rename = "way")]
    pub traffic: &'static str,
    /// `closed` or `open`.
    pub pace: &'static str,
    pub repeat: usize,
    pub requests: u64,
    pub requests_per_second: f64,
    /// User and system time of the proxy for each request.
    pub cpu_us: f64,
    pub user_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    /// Each per cent, see [`crate::load::SHARES`].
    pub latency_us: Vec<f64>,
    /// Of the proxy, for each request.
    pub voluntary_switches: f64,
    pub involuntary_switches: f64,
    /// Share of its core that the proxy used.
    pub proxy_core_percent: f64,
    pub rss_kib: u64,
    pub pss_kib: u64,
    /// Not answered with 200, or not at all.
    pub failed: u64,
    /// Share of one core that unrelated processes used meanwhile.
    pub others_percent: f64,
    /// Runs that this one took the place of, because they were disturbed more or failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overwritten: Vec<Value>,
}

impl Trial {
    /// The rule by which runs are discarded.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.others_percent > TOLERATED_PERCENT
    }

    /// An error if more than a few requests failed, since the run then measured something else.
    pub(crate) fn new(
        contender: &str,
        traffic: Traffic,
        pace: Pace,
        repeat: usize,
        observed: Observation,
    ) -> anyhow::Result<Self> {
        let (answered, failed) = (observed.outcome.answered(), observed.outcome.failed());
        ensure!(
            failed * 1000 <= answered,
            "{contender} {}: {failed} of {answered} requests failed; statuses {:?}, first error {:?}",
            traffic.name,
            observed.outcome.statuses,
            observed.outcome.error
        );
        Self::with_failures(contender, traffic, pace, repeat, observed)
    }

    /// However many failed. An error only if nothing was answered.
    pub(crate) fn with_failures(
        contender: &str,
        traffic: Traffic,
        pace: Pace,
        repeat: usize,
        observed: Observation,
    ) -> anyhow::Result<Self> {
        let Observation { outcome, usage, memory, others } = observed;
        let answered = outcome.answered();
        ensure!(answered > 0, "{contender} {}: no answer; first error {:?}", traffic.name, outcome.error);
        let each = |total: Duration| total.as_secs_f64() * 1e6 / answered as f64;
        let latency = |share| outcome.latency(share).unwrap_or(f64::NAN);
        Ok(Self {
            contender: contender.to_owned(),
            traffic: traffic.name,
            pace: if pace == Pace::Closed { "closed" } else { "open" },
            repeat,
            requests: answered,
            requests_per_second: answered as f64 / outcome.seconds,
            cpu_us: each(usage.cpu),
            user_us: each(usage.user),
            p50_us: latency(0.5),
            p90_us: latency(0.9),
            p99_us: latency(0.99),
            voluntary_switches: usage.voluntary as f64 / answered as f64,
            involuntary_switches: usage.involuntary as f64 / answered as f64,
            proxy_core_percent: usage.cpu.as_secs_f64() / outcome.seconds * 100.0,
            rss_kib: memory.rss,
            pss_kib: memory.pss,
            failed: outcome.failed(),
            others_percent: others.as_secs_f64() / outcome.seconds * 100.0,
            latency_us: outcome.latency_us,
            overwritten: Vec::new(),
        })
    }
}

#[cfg(test)]
impl Trial {
    pub(crate) fn made_up(contender: &str) -> Self {
        Self {
            contender: contender.to_owned(),
            traffic: HTTP1.name,
            pace: "closed",
            repeat: 0,
            requests: 1,
            requests_per_second: 1.0,
            cpu_us: 1.0,
            user_us: 1.0,
            p50_us: 1.0,
            p90_us: 1.0,
            p99_us: 1.0,
            latency_us: Vec::new(),
            voluntary_switches: 0.0,
            involuntary_switches: 0.0,
            proxy_core_percent: 0.0,
            rss_kib: 1,
            pss_kib: 1,
            failed: 0,
            others_percent: 0.0,
            overwritten: Vec::new(),
        }
    }
}

/// A contender that accepts requests.
pub(crate) trait Contender {
    fn name(&self) -> &str;
    fn pids(&self) -> Vec<u32>;
    /// What to send as this traffic, at this pace; its lengths are filled in later.
    fn plan(&self, traffic: Traffic, pace: Pace) -> Plan;
    /// Traffic that it can serve.
    fn default_traffic(&self) -> Traffic {
        HTTP1
    }
}

/// One run; again, as often as `lengths` allow, if it was disturbed or if nothing came of it. Then
/// the least disturbed one counts.
pub(crate) fn run(
    rig: &Rig,
    contender: &dyn Contender,
    traffic: Traffic,
    pace: Pace,
    repeat: usize,
    lengths: Lengths,
) -> anyhow::Result<Trial> {
    let measured = if pace == Pace::Closed { lengths.closed } else { lengths.open };
    let plan = Plan {
        warm_up_ms: lengths.warm_up.as_millis() as u64,
        measured_ms: measured.as_millis() as u64,
        ..contender.plan(traffic, pace)
    };
    let once = || {
        let observed = rig.observe(&plan, &contender.pids())?;
        Trial::new(contender.name(), traffic, pace, repeat, observed)
    };
    let mut best = once();
    let mut overwritten = Vec::new();
    // A failed run is repeated in any case: a machine that stood still for a whole run did not
    // measure the contender.
    for left in (0..=lengths.retakes).rev() {
        if best.as_ref().is_ok_and(|trial| left == 0 || !trial.is_disturbed()) {
            break;
        }
        let again = once();
        let better = match (&best, &again) {
            (Ok(best), Ok(again)) => again.others_percent < best.others_percent,
            (Err(_), _) => true,
            (Ok(_), Err(_)) => false,
        };
        let other = if better { std::mem::replace(&mut best, again) } else { again };
        overwritten.push(match other {
            Ok(trial) => serde_json::to_value(trial)?,
            Err(error) => json!({"failed": format!("{error:#}")}),
        });
    }
    best.map(|trial| Trial { overwritten, ..trial })
}

/// Sends a few requests, to see whether a contender works as intended.
pub(crate) fn probe(rig: &Rig, contender: &dyn Contender, change: impl FnOnce(&mut Plan)) -> anyhow::Result<Outcome> {
    let traffic = Traffic { connections: 1, streams: 1, ..contender.default_traffic() };
    let mut plan = Plan { warm_up_ms: 0, measured_ms: 100, ..contender.plan(traffic, Pace::Closed) };
    change(&mut plan);
    Ok(rig.observe(&plan, &contender.pids())?.outcome)
}

/// The conditions of all runs, for the report.
pub(crate) fn conditions(rig: &Rig) -> Value {
    json!({
        "envoy": rig.programs.envoy_version(),
        "leno": rig.programs.leno.display().to_string(),
        "cores": {"proxy": rig.cores.proxy, "load, upstream, sinks": rig.cores.load},
        "ways": [HTTP1, HTTP2, FRESH, SPARSE, RARE],
        "discarded": format!("runs during which unrelated processes used more than {TOLERATED_PERCENT} % of one core"),
    })
}
