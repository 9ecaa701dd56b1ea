//! Views of nodes, put together: instances, events, flows and explanations.

use super::error::ApiError;
use super::queries::{MAX_NODES, why_not};
use super::service::Service;
use super::tokens::Caller;
use super::types::{Refusal, Role};
use crate::{jobs, nodes, revisions};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use leno_control::{Control, FunctionStatus, JobStatus, RolloutEvent, Status};
use leno_model::FunctionId;
use leno_wire::{Answer, Question, Subject, View, ViewQuery};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use utoipa::{IntoParams, ToSchema};

/// Bytes of rows in one answer, from all nodes, and the least that a node may answer.
const PAGE: u32 = 4 << 20;
const LEAST: u32 = 32 << 10;
/// Timeout of a node's answer.
const LOOK_UP: Duration = Duration::from_secs(5);
/// A revision has failed if so many of its instances failed and none has been ready.
const FAILURES: u64 = 5;

/// Rows of nodes.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ViewPage {
    /// Each names its node: `node`, or `recorded_by` of a hop of a request.
    #[schema(value_type = Vec<Object>)]
    pub rows: Vec<Value>,
    /// Nodes that did not answer, and why.
    pub missing: Vec<String>,
    /// Rows that nodes have forgotten, or that the answer could not have.
    pub missed: u64,
    /// Of flows: where the next answer begins.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub after: String,
}

/// Which rows are asked for.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ViewFilter {
    /// Only rows of this node.
    #[serde(default)]
    pub node: Option<String>,
    /// Of flows: `after` of the answer before.
    #[serde(default)]
    pub after: String,
}

type Filter = Result<Query<ViewFilter>, QueryRejection>;

impl Service {
    /// Asks nodes for the rows of a view that the caller may read.
    pub(super) async fn view(
        &self,
        caller: &Caller,
        view: View,
        (filter, argument): (&ViewFilter, &str),
    ) -> Result<ViewPage, ApiError> {
        caller.needs(Role::Reader)?;
        let control = self.leading()?.control.clone();
        let before = positions(&filter.after);
        let mut nodes = control.nodes_with(&caller.namespaces);
        if let Some(node) = &filter.node {
            nodes.retain(|known| **known == **node);
            if nodes.is_empty() {
                return Err(ApiError::NotFound(format!("node {node} that the token may ask")));
            }
        }
        let namespaces = caller.namespaces.clone();
        let query = ViewQuery { view, argument: argument.to_owned(), namespaces, limit: 0 };
        Ok(rows_of(&control, nodes, &query, before).await)
    }

    /// Functions with their state, the reason of failures included.
    async fn functions(&self, caller: &Caller) -> Result<ViewPage, ApiError> {
        let mut page = self.view(caller, View::Functions, (&ViewFilter::default(), "")).await?;
        let control = self.leading()?.control.clone();
        let status = self.statuses.of(&control).await;
        let mut rejected: BTreeMap<String, String> = rejections(&status)
            .map(|(node, id, reason)| (id.to_string(), format!("node {node} rejects its configuration: {reason}")))
            .collect();
        let mut progress: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for row in std::mem::take(&mut page.rows) {
            progress.entry(row["function"].as_str().unwrap_or_default().to_owned()).or_default().push(row);
        }
        let functions = status.functions.iter().filter(|function| caller.may_know(&function.function));
        page.rows = functions
            .map(|function| {
                let name = function.function.to_string();
                row_of(function, progress.remove(&name).unwrap_or_default(), rejected.remove(&name))
            })
            .collect();
        Ok(page)
    }
}

/// Asks these nodes for rows of a view. Each answer of flows begins where the one `before` ended.
pub(super) async fn rows_of(
    control: &Control,
    mut nodes: Vec<Arc<str>>,
    query: &ViewQuery,
    before: BTreeMap<String, String>,
) -> ViewPage {
    let (mut page, mut after) = (ViewPage::default(), before.clone());
    for node in nodes.drain(nodes.len().min(MAX_NODES)..) {
        page.missing.push(format!("node {node}: at most {MAX_NODES} nodes are asked at once; name it with --node"));
    }
    let limit = (PAGE / u32::try_from(nodes.len().max(1)).unwrap_or(u32::MAX)).max(LEAST);
    let mut asking = JoinSet::new();
    for node in nodes {
        let argument = match query.view {
            View::Flows => before.get(&*node).cloned().unwrap_or_default(),
            _ => query.argument.clone(),
        };
        let question = Question::View(ViewQuery { argument, limit, ..query.clone() });
        let control = control.clone();
        asking.spawn(async move {
            let answer = control.ask(&node, &question, LOOK_UP).await;
            (node, answer)
        });
    }
    let name = if query.view == View::Explanation { "recorded_by" } else { "node" };
    while let Some(asked) = asking.join_next().await {
        let Ok((node, answer)) = asked else {
            page.missing.push("a node: the question to it failed in the control plane".to_owned());
            continue;
        };
        let rows = match answer {
            Ok(Answer::View(rows)) => rows,
            answer => {
                page.missing.push(format!("node {node}: {}", why_not(answer)));
                continue;
            }
        };
        page.missed += rows.missed;
        if query.view == View::Flows {
            after.insert(node.to_string(), rows.next);
        }
        for row in rows.rows {
            match serde_json::from_str(&row) {
                Ok(Value::Object(mut row)) => {
                    row.insert(name.to_owned(), Value::String(node.to_string()));
                    page.rows.push(Value::Object(row));
                }
                _ => page.missing.push(format!("node {node}: one of its rows is not JSON")),
            }
        }
    }
    page.missing.sort();
    let after: Vec<_> = after.iter().map(|(node, position)| format!("{node}:{position}")).collect();
    page.after = after.join(",");
    page
}

/// The nodes that reject configurations of functions, with the function and the reason.
pub(super) fn rejections(status: &Status) -> impl Iterator<Item = (&str, &FunctionId, &str)> {
    let all = status.nodes.iter().flat_map(|node| node.rejected.iter().map(move |version| (node, version)));
    all.filter_map(|(node, version)| match &version.subject {
        Subject::FunctionConfig(id) => Some((&*node.name, id, &*version.reason)),
        _ => None,
    })
}

/// The row of a function. Its state is that of its latest revision.
fn row_of(function: &FunctionStatus, progress: Vec<Value>, rejected: Option<String>) -> Value {
    let latest = function.revisions.last().map(|revision| revision.revision.as_str()).unwrap_or_default();
    let number = latest.rsplit_once('-').and_then(|(_, number)| number.parse::<u64>().ok()).unwrap_or_default();
    let of_latest: Vec<&Value> = progress.iter().filter(|row| row["revision"].as_u64() == Some(number)).collect();
    let sum = |rows: &[&Value], field: &str| rows.iter().filter_map(|row| row[field].as_u64()).sum::<u64>();
    let all: Vec<&Value> = progress.iter().collect();
    let ready = sum(&of_latest, "ready");
    let failure = of_latest.iter().find(|row| row["reason"].is_string());
    let told = failure.map(|row| {
        let (node, reason) = (row["node"].as_str().unwrap_or_default(), row["reason"].as_str().unwrap_or_default());
        format!("{reason} (node {node})")
    });
    let is_final = |row: &&Value| row["no_image"] == true || row["failing"].as_u64().unwrap_or_default() >= FAILURES;
    // A node that has just got the function does not want its instances yet.
    let least: u32 = function.nodes.iter().flat_map(|node| &node.bounds).map(|bounds| bounds.least).sum();
    let (state, reason) = match told {
        _ if rejected.is_some() => ("failed", rejected),
        _ if function.unplaced => ("unplaced", function.reason.clone()),
        told if ready > 0 => ("ready", told.or_else(|| function.reason.clone())),
        Some(reason) if failure.is_some_and(is_final) => ("failed", Some(reason)),
        Some(reason) => ("failing", Some(reason)),
        None if of_latest.is_empty() => ("starting", None),
        None if least > 0 || sum(&of_latest, "desired") > 0 || sum(&of_latest, "starting") > 0 => ("starting", None),
        None => ("idle", None),
    };
    json!({
        "function": function.function.to_string(),
        "state": state,
        "reason": reason,
        "ready": sum(&all, "ready"),
        "desired": sum(&all, "desired"),
        "waiting": sum(&all, "waiting"),
        "instances": function.instances,
        "revision": latest,
        "version": function.version,
        "nodes": function.nodes.iter().map(|node| &node.node).collect::<Vec<_>>(),
        "identity": function.identity.as_str(),
        "callees": function.callees.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "exposed": function.exposed,
        "external": function.external,
    })
}

/// Positions by node: `node:position,node:position`.
fn positions(after: &str) -> BTreeMap<String, String> {
    let position = |text: &str| text.split_once(':').map(|(node, position)| (node.to_owned(), position.to_owned()));
    after.split(',').filter_map(position).collect()
}

fn read(filter: Filter) -> Result<ViewFilter, ApiError> {
    filter.map(|Query(filter)| filter).map_err(|rejection| ApiError::Bad(rejection.body_text()))
}

/// Functions with their state (`ready`, `idle`, `starting`, `failing`, `failed`, `unplaced`) and the reason of failures, from their nodes.
#[utoipa::path(
    get, path = "/v1/functions",
    responses(
        (status = 200, description = "Those that the token may read.", body = ViewPage),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn functions(caller: Caller, State(service): State<Arc<Service>>) -> Result<Json<ViewPage>, ApiError> {
    service.functions(&caller).await.map(Json)
}

/// Instances of functions, on all nodes.
#[utoipa::path(
    get, path = "/v1/instances", params(ViewFilter),
    responses(
        (status = 200, description = "Those that the token may read.", body = ViewPage),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 404, description = "There is no such node.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn instances(
    caller: Caller,
    State(service): State<Arc<Service>>,
    filter: Filter,
) -> Result<Json<ViewPage>, ApiError> {
    service.view(&caller, View::Instances, (&read(filter)?, "")).await.map(Json)
}

/// Decisions of the autoscaler and on rollouts, failures of instances, and events of jobs, oldest first.
#[utoipa::path(
    get, path = "/v1/events", params(ViewFilter),
    responses(
        (status = 200, description = "Those that the token may read.", body = ViewPage),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 404, description = "There is no such node.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn events(
    caller: Caller,
    State(service): State<Arc<Service>>,
    filter: Filter,
) -> Result<Json<ViewPage>, ApiError> {
    let filter = read(filter)?;
    let mut page = service.view(&caller, View::Events, (&filter, "")).await?;
    if filter.node.is_none() {
        let control = service.leading()?.control.clone();
        let rollouts: Vec<RolloutEvent> = control.rollout_events();
        let rollouts = rollouts.iter().filter(|event| caller.may_know(&event.function));
        page.rows.extend(rollouts.map(revisions::event));
        let placements = control.placement_events().into_iter().filter(|event| caller.may_know(&event.function));
        page.rows.extend(placements.map(|event| nodes::placement_event(&event, caller.is_everywhere())));
        let mut jobs: Vec<JobStatus> = service.statuses.of(&control).await.jobs;
        jobs.retain(|job| caller.may_know(&job.job));
        page.rows.extend(jobs::events(&jobs));
    }
    let time = |row: &Value| row["time"].as_f64().unwrap_or_default();
    page.rows.sort_by(|one, other| time(one).total_cmp(&time(other)));
    Ok(Json(page))
}

/// The latest requests and connections, oldest first, each with its verdict. To follow, ask again with `after` of the answer.
#[utoipa::path(
    get, path = "/v1/flows", params(ViewFilter),
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
    filter: Filter,
) -> Result<Json<ViewPage>, ApiError> {
    let mut page = service.view(&caller, View::Flows, (&read(filter)?, "")).await?;
    sort_by_time(&mut page.rows);
    Ok(Json(page))
}

/// Exchanges by caller and callee, counted by each node since it started. A call between functions
/// has two rows: `outbound`, of the caller's sidecar, and `inbound`, of the callee's.
#[utoipa::path(
    get, path = "/v1/edges", params(ViewFilter),
    responses(
        (status = 200, description = "Those that sidecars of functions recorded that the token may read.", body = ViewPage),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 404, description = "There is no such node.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn edges(
    caller: Caller,
    State(service): State<Arc<Service>>,
    filter: Filter,
) -> Result<Json<ViewPage>, ApiError> {
    service.view(&caller, View::Edges, (&read(filter)?, "")).await.map(Json)
}

/// Rules that decided requests, counted by each node since it started.
#[utoipa::path(
    get, path = "/v1/rules", params(ViewFilter),
    responses(
        (status = 200, description = "Those of functions that the token may read.", body = ViewPage),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 404, description = "There is no such node.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn rules(
    caller: Caller,
    State(service): State<Arc<Service>>,
    filter: Filter,
) -> Result<Json<ViewPage>, ApiError> {
    service.view(&caller, View::Rules, (&read(filter)?, "")).await.map(Json)
}

/// Destinations that functions were refused, counted by each node since it started.
#[utoipa::path(
    get, path = "/v1/destinations", params(ViewFilter),
    responses(
        (status = 200, description = "Those of functions that the token may read.", body = ViewPage),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 404, description = "There is no such node.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn destinations(
    caller: Caller,
    State(service): State<Arc<Service>>,
    filter: Filter,
) -> Result<Json<ViewPage>, ApiError> {
    service.view(&caller, View::Destinations, (&read(filter)?, "")).await.map(Json)
}

/// Which use of limits is asked for.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitFilter {
    /// Only rows of this node.
    #[serde(default)]
    node: Option<String>,
    /// Only limits of this function: `namespace/name`.
    #[serde(default)]
    function: String,
}

/// The use of rate limits, queues and circuit breakers on each node, and ejected endpoints. Of a rate limit, the counters with the least left.
#[utoipa::path(
    get, path = "/v1/limits", params(LimitFilter),
    responses(
        (status = 200, description = "Those of functions that the token may read.", body = ViewPage),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 404, description = "There is no such node.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn limits(
    caller: Caller,
    State(service): State<Arc<Service>>,
    filter: Result<Query<LimitFilter>, QueryRejection>,
) -> Result<Json<ViewPage>, ApiError> {
    let Query(LimitFilter { node, function }) = filter.map_err(|rejection| ApiError::Bad(rejection.body_text()))?;
    if !function.is_empty() {
        function.parse::<FunctionId>().map_err(|error| ApiError::Bad(error.to_string()))?;
    }
    let filter = ViewFilter { node, after: String::new() };
    service.view(&caller, View::Limits, (&filter, &function)).await.map(Json)
}

/// The hops of a recent request, in the order in which they began, each with all stages of its decision.
#[utoipa::path(
    get, path = "/v1/requests/{id}",
    params(("id" = String, Path, description = "`x-request-id` of the response.")),
    responses(
        (status = 200, description = "The hops at functions that the token may read; none: no node that answered remembers it.", body = ViewPage),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn explain(
    caller: Caller,
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
) -> Result<Json<ViewPage>, ApiError> {
    let mut page = service.view(&caller, View::Explanation, (&ViewFilter::default(), &id)).await?;
    sort_by_time(&mut page.rows);
    Ok(Json(page))
}

/// Times in RFC 3339 of one length, which sort as texts.
fn sort_by_time(rows: &mut [Value]) {
    rows.sort_by(|one, other| one["time"].as_str().cmp(&other["time"].as_str()));
}
