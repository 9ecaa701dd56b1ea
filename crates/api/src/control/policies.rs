//! The policies of one function: its definition, and the hits of its rules on all nodes.

use super::error::ApiError;
use super::service::Service;
use super::tokens::Caller;
use super::types::{Refusal, Role};
use super::views::{ViewPage, rejections, rows_of};
use crate::policies::{FunctionPolicies, callers_of};
use axum::Json;
use axum::extract::{Path, State};
use leno_model::FunctionId;
use leno_telemetry::metrics::RuleHits;
use leno_wire::{View, ViewQuery};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Service {
    /// The policies that the control plane has published. Nodes add the hits.
    async fn policies(&self, caller: &Caller, id: &FunctionId) -> Result<FunctionPolicies, ApiError> {
        caller.needs(Role::Reader)?;
        if !caller.may_know(id) {
            return Err(ApiError::Forbidden(format!("the namespace {} is not for this token", id.namespace)));
        }
        let leading = self.leading()?;
        let definitions = leading.definitions();
        let config = definitions.as_ref().and_then(|definitions| definitions.configs.get(id));
        let config = config.ok_or_else(|| ApiError::NotFound(format!("function, job or External {id}")))?;
        let namespaces = BTreeSet::from([id.namespace.clone()]);
        let query = ViewQuery { namespaces, ..View::Rules.query(id.to_string()) };
        let control = &leading.control;
        let page: ViewPage = rows_of(control, control.nodes_of(id), &query).await;
        let mut missing = page.missing;
        if page.missed > 0 {
            missing.push(format!("the hits of {} rules are left out", page.missed));
        }
        let status = self.statuses.of(control).await;
        let rejected = rejections(&status).filter(|(_, rejected, _)| *rejected == id);
        missing.extend(rejected.map(|(node, _, reason)| {
            format!("node {node}: it rejects these policies, and judges by earlier ones: {reason}")
        }));
        let hits: Vec<RuleHits> = serde_json::from_value(Value::Array(page.rows)).unwrap_or_else(|error| {
            missing.push(format!("a node answers with other rows than hits: {error}"));
            Vec::new()
        });
        let callers = definitions.iter().flat_map(|definitions| definitions.configs.values());
        let (known, hidden): (Vec<_>, Vec<_>) = callers_of(id, callers).partition(|id| caller.may_know(id));
        Ok(FunctionPolicies {
            callers: known.into_iter().map(ToString::to_string).collect(),
            hidden_callers: hidden.len(),
            missing,
            ..FunctionPolicies::of(config, &hits)
        })
    }
}

/// The policies of a function, job or External document in the order of evaluation, rule by rule, with the requests that each rule decided since its nodes started.
#[utoipa::path(
    get, path = "/v1/functions/{namespace}/{name}/policies",
    params(
        ("namespace" = String, Path, description = "Its namespace."),
        ("name" = String, Path, description = "Its name."),
    ),
    responses(
        (status = 200, description = "As published. `missing` names the nodes whose counts are missing, or that judge by earlier policies.", body = FunctionPolicies),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 403, description = "The token does not allow it.", body = Refusal),
        (status = 404, description = "There is none of that name.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn policies(
    caller: Caller,
    State(service): State<Arc<Service>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Json<FunctionPolicies>, ApiError> {
    let id = FunctionId::new(&namespace, &name).map_err(|error| ApiError::Bad(error.to_string()))?;
    service.policies(&caller, &id).await.map(Json)
}
