//! The scenarios: the other tenant's actions while the modest one is measured.

use super::tenants::Tenants;
use crate::contenders::Running;
use crate::hostile;
use crate::load::{Outcome, Pace, Plan};
use crate::slow_registry::Pulls;
use anyhow::{Context, anyhow, ensure};
use std::time::Duration;

/// The other tenant's connections.
const CONNECTIONS: usize = 64;
const LARGE_BODY: usize = 1 << 20;

/// The other tenant's actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scenario {
    /// Nothing.
    Idle,
    /// Nothing, on a node that has joined a control plane of another process.
    IdleWithControl,
    /// Dry runs and refused changes, sent to that control plane.
    DryRunBomb,
    Requests,
    LargeBodies,
    /// Its sidecars have 50 us, which a micro-VM does not always keep.
    Deadlines,
    /// An extension that loops until its deadline, with every request.
    Runaway,
    /// Requests that are refused. The access log has a line for each.
    Refusals,
    /// An instance that writes a megabyte to its log for each request.
    LogFlood,
    /// An upstream with thousands of interim responses (103) before each answer.
    InterimFlood,
    /// An instance that opens connections to the outbound listener and holds them.
    ConnectionHoarder,
    /// Functions whose images come from registries that answer with a byte now and then.
    SlowRegistry,
    /// Requests straight to its upstream: the effect of load and upstreams on each other, without
    /// the node.
    Elsewhere,
}

/// Counts of the other tenant's actions during one run, by the end of a figure's name.
pub(super) type Actions = Vec<(&'static str, f64)>;

impl Scenario {
    /// In the order of the measurement. Pulls are given up for a while after
    /// [`Self::SlowRegistry`], so that no scenario of the node follows it.
    pub(super) const ALL: [Self; 13] = [
        Self::Idle,
        Self::IdleWithControl,
        Self::DryRunBomb,
        Self::Requests,
        Self::LargeBodies,
        Self::Deadlines,
        Self::Runaway,
        Self::Refusals,
        Self::LogFlood,
        Self::InterimFlood,
        Self::ConnectionHoarder,
        Self::SlowRegistry,
        Self::Elsewhere,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::IdleWithControl => "idle_with_control",
            Self::DryRunBomb => "dry_run_bomb",
            Self::Requests => "requests",
            Self::LargeBodies => "large_bodies",
            Self::Deadlines => "deadlines",
            Self::Runaway => "runaway",
            Self::Refusals => "refusals",
            Self::LogFlood => "log_flood",
            Self::InterimFlood => "interim_flood",
            Self::ConnectionHoarder => "connection_hoarder",
            Self::SlowRegistry => "slow_registry",
            Self::Elsewhere => "elsewhere",
        }
    }

    /// A scenario by its name.
    pub(super) fn named(name: &str) -> anyhow::Result<Self> {
        Self::ALL.into_iter().find(|scenario| scenario.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            anyhow!("there is no scenario `{name}`; the scenarios are: {names}")
        })
    }

    /// These scenarios and those that they are compared with, in order; all of them if none is
    /// given.
    pub(super) fn selected(only: &[Self]) -> Vec<Self> {
        let is_wanted = |scenario: &Self| {
            only.is_empty() || only.iter().any(|wanted| wanted == scenario || wanted.baseline() == *scenario)
        };
        Self::ALL.into_iter().filter(is_wanted).collect()
    }

    /// The scenario that this one is compared with.
    pub(super) fn baseline(self) -> Self {
        if self.has_control() { Self::IdleWithControl } else { Self::Idle }
    }

    /// Whether the control plane is another process than the node.
    pub(super) fn has_control(self) -> bool {
        matches!(self, Self::IdleWithControl | Self::DryRunBomb)
    }

    /// Whether the bars hold for it.
    pub(super) fn has_bars(self) -> bool {
        !matches!(self, Self::Idle | Self::IdleWithControl | Self::Elsewhere)
    }

    /// The tenant that is measured.
    pub(super) fn modest(self, tenants: &Tenants) -> anyhow::Result<&Running> {
        match (&tenants.with_control, self.has_control()) {
            (Some(with_control), true) => Ok(&with_control.modest),
            (None, true) => anyhow::bail!("{} needs a control plane, which was not started", self.name()),
            (_, false) => Ok(&tenants.modest),
        }
    }

    /// The other tenant's load.
    pub(super) fn plan(self, tenants: &Tenants, length: Duration) -> Option<Plan> {
        let plan = match self {
            Self::Idle | Self::IdleWithControl => return None,
            Self::DryRunBomb => &tenants.with_control.as_ref()?.dry_runs,
            Self::Elsewhere => &tenants.elsewhere,
            Self::Requests | Self::LargeBodies | Self::Refusals => &tenants.noisy,
            Self::Deadlines => &tenants.hurried,
            Self::Runaway => &tenants.runaway,
            Self::LogFlood => &tenants.output,
            Self::InterimFlood => &tenants.interim,
            Self::ConnectionHoarder => &tenants.hoarder,
            Self::SlowRegistry => &tenants.pulled,
        };
        let connections = match self {
            Self::LargeBodies => CONNECTIONS / 4,
            Self::LogFlood | Self::InterimFlood | Self::ConnectionHoarder => CONNECTIONS / 8,
            Self::SlowRegistry => tenants.pulled.request.authorities.len(),
            Self::DryRunBomb => CONNECTIONS / 2,
            _ => CONNECTIONS,
        };
        let mut plan = Plan {
            pace: Pace::Closed,
            connections,
            // Connections are made, and the node gets used to it, before anything is measured.
            warm_up_ms: 500,
            measured_ms: length.as_millis() as u64,
            ..plan.clone()
        };
        if self == Self::LargeBodies {
            plan.request.method = "POST".into();
            plan.request.body = LARGE_BODY;
        }
        if self == Self::Refusals {
            plan.request.authorizations.clear();
        }
        Some(plan)
    }

    /// Prepares the other tenant's means, before its load begins.
    pub(super) fn begin(self, tenants: &Tenants) -> anyhow::Result<Means> {
        if self == Self::SlowRegistry {
            let answer = tenants.registry.borrow_mut().tell("hold")?;
            ensure!(answer == "holding", "the registry says `{answer}`");
        }
        Ok(Means { taken: self.taken(tenants) })
    }

    /// Bytes or connections that the instance of this scenario has taken so far.
    fn taken(self, tenants: &Tenants) -> u64 {
        let [output, hoard] = &tenants.tallies;
        match self {
            Self::LogFlood => hostile::taken(output),
            Self::ConnectionHoarder => hostile::taken(hoard),
            _ => 0,
        }
    }

    /// The other tenant's actions since [`Self::begin`].
    pub(super) fn end(self, tenants: &Tenants, before: &Means, outcome: &Outcome) -> anyhow::Result<Actions> {
        let answers = |statuses: &[u16]| outcome.answered_with(statuses) as f64;
        let taken = || self.taken(tenants).saturating_sub(before.taken) as f64;
        Ok(match self {
            Self::Idle | Self::IdleWithControl => Vec::new(),
            Self::Elsewhere | Self::Requests | Self::LargeBodies => vec![("served", answers(&[200]))],
            Self::Deadlines | Self::Runaway => vec![("judged", outcome.answered() as f64)],
            Self::Refusals => vec![("denied", answers(&[401]))],
            Self::LogFlood => vec![("log_bytes", taken())],
            // 503: the node did not forward the request.
            Self::InterimFlood => vec![("upstream_asked", outcome.answered() as f64 - answers(&[503]))],
            Self::ConnectionHoarder => vec![("connections_opened", taken())],
            Self::SlowRegistry => {
                let told = tenants.registry.borrow_mut().tell("release")?;
                let Pulls { manifests_held, layers_held } = serde_json::from_str(&told).context("the registry")?;
                vec![("manifests_held", manifests_held), ("layers_held", layers_held)]
            }
            // 429 and 413: the change was not looked at.
            Self::DryRunBomb => {
                let checked = answers(&[200, 403, 422, 503]);
                vec![("changes_answered", outcome.answered() as f64), ("changes_checked", checked)]
            }
        })
    }
}

/// The state of the other tenant's means before a run.
pub(super) struct Means {
    taken: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selected_scenarios_come_with_what_they_are_compared_with() {
        let selected = |names: &[&str]| {
            let only: Vec<_> = names.iter().map(|name| Scenario::named(name).unwrap()).collect();
            Scenario::selected(&only).into_iter().map(Scenario::name).collect::<Vec<_>>()
        };
        assert_eq!(selected(&["slow_registry"]), ["idle", "slow_registry"]);
        assert_eq!(selected(&["dry_run_bomb"]), ["idle_with_control", "dry_run_bomb"]);
        assert_eq!(
            selected(&["requests", "dry_run_bomb", "requests"]),
            ["idle", "idle_with_control", "dry_run_bomb", "requests"]
        );
        assert_eq!(selected(&[]).len(), Scenario::ALL.len());
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = Scenario::named("slow-registry").unwrap_err();
        assert!(
            error.to_string().contains("`slow-registry`")
                && error.to_string().contains("interim_flood, connection_hoarder, slow_registry")
        );
    }
}
