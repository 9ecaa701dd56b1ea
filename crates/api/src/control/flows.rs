//! Flows of all nodes.

use super::error::ApiError;
use super::service::Service;
use super::tokens::Caller;
use super::types::Refusal;
use super::views::{Row, ViewPage};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use leno_dashboard::filter::FlowFilter;
use leno_telemetry::flows::Flow;
use leno_wire::{View, ViewQuery};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use utoipa::IntoParams;

/// Which flows are asked for: those that match all parameters.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct FlowParameters {
    /// Only flows of this node.
    node: Option<String>,
    /// `after` of the answer before.
    #[serde(default)]
    after: String,
    /// At most so many, the latest ones. `missed` counts the others.
    last: Option<u32>,
    /// A function at one end, caller or callee: `name`, or `namespace/name`.
    function: Option<String>,
    /// `allow`, `deny` or `error`.
    verdict: Option<String>,
    /// A path, or, with `*` at its end, a prefix of paths.
    path: Option<String>,
    /// The port in the request's host.
    port: Option<u16>,
    /// A part of the name of the rule that decided.
    rule: Option<String>,
    /// The kind: `gateway`, `outbound`, `inbound`, `connection`, `name` or `system-call`.
    kind: Option<String>,
}

impl Row for Flow {
    fn read(text: &str, _: &str, node: &str) -> Option<Self> {
        let flow: Self = serde_json::from_str(text).ok()?;
        Some(Self { node: node.to_owned(), ..flow })
    }
}

/// The latest requests and connections, oldest first, each with its verdict. To follow, ask again with `after` of the answer.
#[utoipa::path(
    get, path = "/v1/flows", params(FlowParameters),
    responses(
        (status = 200, description = "Those of functions that the token may read.", body = ViewPage),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 404, description = "There is no such node.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn flows(
    caller: Caller,
    State(service): State<Arc<Service>>,
    parameters: Result<Query<FlowParameters>, QueryRejection>,
) -> Result<Json<ViewPage<Flow>>, ApiError> {
    let Query(parameters) = parameters.map_err(|rejection| ApiError::Bad(rejection.body_text()))?;
    let FlowParameters { node, after, last, function, verdict, path, port, rule, kind } = parameters;
    let filter = FlowFilter { function, verdict, path, port, rule, kind };
    let query = ViewQuery { filter: json!(filter).to_string(), last, ..View::Flows.query(after) };
    let mut page: ViewPage<Flow> = service.view(&caller, node.as_deref(), query).await?;
    // Nodes of earlier releases answer with all.
    page.rows.retain(|flow| filter.matches(flow));
    // Times in RFC 3339 of one length, which sort as texts.
    page.rows.sort_by(|one, other| one.time.cmp(&other.time));
    let last = last.map_or(usize::MAX, |last| last as usize);
    let beyond = page.rows.len().saturating_sub(last);
    page.rows.drain(..beyond);
    page.missed += beyond as u64;
    Ok(Json(page))
}
