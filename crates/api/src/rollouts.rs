//! Promotion, pause and undo: requests and answers of control planes and of `leno up`.

use crate::control::types::ChangeAnswer;
use leno_config::document::TrafficTarget;
use leno_control::{RolloutAction, RolloutChange};
use leno_model::FunctionId;
use leno_model::revision::{self, Target};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A change of a function's rollouts, or of the shares of its revisions.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RolloutRequest {
    /// The change.
    pub action: Action,
    /// The revision that is to get all requests, for `promote`. Without it, the rollouts under way
    /// end with their new revisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Report the change without making it.
    #[serde(default)]
    pub dry_run: bool,
    /// The version that the function's document must still have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_version: Option<u64>,
}

/// The kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// All requests go to one revision, or to the new revisions of rollouts under way.
    Promote,
    /// Rollouts stay at their steps.
    Pause,
    /// Rollouts advance again.
    Resume,
    /// The last change of shares or of the content is taken back.
    Undo,
}

/// The change that the request made, or would make in a dry run.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct RolloutAnswer {
    /// Shares that rollouts have changed.
    pub steps: Vec<Step>,
    /// `spec.traffic` of the function's document, if that changes; empty: the field is removed. Of
    /// `leno up`, whose documents are files: the change to make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub traffic: Option<Vec<TrafficTarget>>,
    /// The change of the stored document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<ChangeAnswer>,
}

/// A changed share of a revision, in per cent: of its name's requests, or of the function's.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Step {
    /// The revision: `shop-00004 (stable)`.
    pub revision: String,
    /// Before.
    pub from: u8,
    /// Afterwards.
    pub to: u8,
}

impl RolloutRequest {
    /// The action; an error says why the request makes no sense.
    pub(crate) fn action(&self) -> Result<RolloutAction, &'static str> {
        match (self.action, &self.revision) {
            (Action::Promote, revision) => Ok(RolloutAction::Promote(revision.clone())),
            (_, Some(_)) => Err("`revision` is for `promote`"),
            (Action::Pause, None) => Ok(RolloutAction::Pause),
            (Action::Resume, None) => Ok(RolloutAction::Resume),
            (Action::Undo, None) => Ok(RolloutAction::Undo),
        }
    }

    /// The request in words, for the audit log.
    pub(crate) fn words(&self, id: &FunctionId) -> String {
        let action = format!("{:?}", self.action).to_lowercase();
        match &self.revision {
            Some(revision) => format!("rollout of Function {id}: {action} {revision}"),
            None => format!("rollout of Function {id}: {action}"),
        }
    }
}

impl RolloutAnswer {
    pub(crate) fn of(id: &FunctionId, change: RolloutChange) -> Self {
        match change {
            RolloutChange::Rollouts(steps) => {
                let step =
                    |step: leno_control::RolloutStep| Step { revision: step.revision, from: step.from, to: step.to };
                Self { steps: steps.into_iter().map(step).collect(), ..Self::default() }
            }
            RolloutChange::Traffic(targets) => {
                let traffic = targets.into_iter().map(|target| written(id, target)).collect();
                Self { traffic: Some(traffic), ..Self::default() }
            }
        }
    }
}

/// A target as a document has it.
fn written(id: &FunctionId, Target { revision: number, percent, tag, headers, name }: Target) -> TrafficTarget {
    let revision = name.or_else(|| (number > 0).then(|| revision::name(id, number)));
    let latest = revision.is_none().then_some(true);
    let reached = tag.is_some() || !headers.is_empty();
    let percent = Some(percent).filter(|percent| *percent > 0 || !reached);
    TrafficTarget { revision, latest, percent, tag, headers: headers.into_iter().collect() }
}
