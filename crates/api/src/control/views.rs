//! Views of nodes, put together: instances, events, counts and explanations.

use super::error::ApiError;
use super::queries::{MAX_NODES, why_not};
use super::service::Service;
use super::tokens::Caller;
use super::types::{Refusal, Role};
use crate::shares::{FunctionShares, RevisionProgress};
use crate::{jobs, nodes, revisions};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use leno_control::{Control, FunctionStatus, JobStatus, RevisionStatus, RolloutEvent, Status};
use leno_model::{FunctionId, revision};
use leno_wire::{Answer, Question, Subject, View, ViewQuery};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
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

/// Rows of nodes.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ViewPage<T = Value> {
    /// Each names its node: `node`, or `recorded_by` of a hop of a request.
    #[schema(value_type = Vec<Object>)]
    pub rows: Vec<T>,
    /// Nodes that did not answer, and why.
    pub missing: Vec<String>,
    /// Rows that nodes have forgotten, or that the answer could not have.
    pub missed: u64,
    /// Of flows and changes: where the next answer begins; empty: there are no more.
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
}

/// A row of a node's view.
pub(super) trait Row: Sized {
    /// Reads a row, and names its node in this field.
    fn read(text: &str, field: &str, node: &str) -> Option<Self>;
}

impl Row for Value {
    fn read(text: &str, field: &str, node: &str) -> Option<Self> {
        let mut row: Map<String, Self> = serde_json::from_str(text).ok()?;
        row.insert(field.to_owned(), Self::String(node.to_owned()));
        Some(Self::Object(row))
    }
}

type Filter = Result<Query<ViewFilter>, QueryRejection>;

impl Service {
    /// Asks nodes, or one of them, for the rows of a view that the caller may read.
    pub(super) async fn view<T: Row>(
        &self,
        caller: &Caller,
        node: Option<&str>,
        query: ViewQuery,
    ) -> Result<ViewPage<T>, ApiError> {
        caller.needs(Role::Reader)?;
        let control = self.leading()?.control.clone();
        let mut nodes = control.nodes_with(&caller.namespaces);
        if let Some(node) = node {
            nodes.retain(|known| **known == *node);
            if nodes.is_empty() {
                return Err(ApiError::NotFound(format!("node {node} that the token may ask")));
            }
        }
        let query = ViewQuery { namespaces: caller.namespaces.clone(), ..query };
        Ok(rows_of(&control, nodes, &query).await)
    }

    /// The instances of revisions on all nodes. Those of a later release may be of another form.
    async fn progress(&self, caller: &Caller) -> Result<(ViewPage, Vec<RevisionProgress>), ApiError> {
        let mut page: ViewPage = self.view(caller, None, View::Functions.query("")).await?;
        let rows = std::mem::take(&mut page.rows);
        let all = rows.len();
        let progress: Vec<_> = rows.into_iter().filter_map(|row| serde_json::from_value(row).ok()).collect();
        page.missed += (all - progress.len()) as u64;
        Ok((page, progress))
    }

    /// Revisions with their shares, and the reason of failures.
    async fn revisions(&self, caller: &Caller) -> Result<ViewPage, ApiError> {
        let (mut page, progress) = self.progress(caller).await?;
        let control = self.leading()?.control.clone();
        let status = self.statuses.of(&control).await;
        let functions = status.functions.iter().filter(|function| caller.may_know(&function.function));
        page.rows = revisions::rows(functions, &progress, (&control, None));
        Ok(page)
    }

    /// Functions with their state, the reason of failures included.
    async fn functions(&self, caller: &Caller) -> Result<ViewPage, ApiError> {
        let (mut page, progress) = self.progress(caller).await?;
        let control = self.leading()?.control.clone();
        let status = self.statuses.of(&control).await;
        let mut rejected: BTreeMap<String, String> = rejections(&status)
            .map(|(node, id, reason)| (id.to_string(), format!("node {node} rejects its configuration: {reason}")))
            .collect();
        let mut of_functions: BTreeMap<String, Vec<RevisionProgress>> = BTreeMap::new();
        for row in progress {
            of_functions.entry(row.function.clone()).or_default().push(row);
        }
        let functions = status.functions.iter().filter(|function| caller.may_know(&function.function));
        page.rows = functions
            .map(|function| {
                let name = function.function.to_string();
                row_of(function, &of_functions.remove(&name).unwrap_or_default(), rejected.remove(&name))
            })
            .collect();
        Ok(page)
    }
}

/// Asks these nodes for rows of a view. The argument of flows is `after` of the answer before.
pub(super) async fn rows_of<T: Row>(control: &Control, mut nodes: Vec<Arc<str>>, query: &ViewQuery) -> ViewPage<T> {
    let before = if query.view == View::Flows { positions(&query.argument) } else { BTreeMap::new() };
    let mut after = before.clone();
    let mut page = ViewPage { rows: Vec::new(), missing: Vec::new(), missed: 0, after: String::new() };
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
        let read = rows.rows.iter().filter_map(|row| T::read(row, name, &node));
        let before = page.rows.len();
        page.rows.extend(read);
        let unread = before + rows.rows.len() - page.rows.len();
        if unread > 0 {
            page.missing.push(format!("node {node}: {unread} of its rows have another form than this release expects"));
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
fn row_of(function: &FunctionStatus, progress: &[RevisionProgress], rejected: Option<String>) -> Value {
    let id = &function.function;
    let number_of = |row: &RevisionStatus| revision::number(id, &row.revision).unwrap_or_default();
    let latest = function.revisions.last().map(|revision| revision.revision.as_str()).unwrap_or_default();
    let number = revision::number(id, latest).unwrap_or_default();
    let of_latest: Vec<_> = progress.iter().filter(|row| row.revision == number).collect();
    let sum = |count: fn(&RevisionProgress) -> u64| progress.iter().map(count).sum::<u64>();
    let has = |count: fn(&RevisionProgress) -> u64| of_latest.iter().any(|row| count(row) > 0);
    let failure = of_latest.iter().find_map(|row| Some((row.is_final(), row.reason.as_ref()?, &row.node)));
    let percents = function.revisions.iter().map(|row| (number_of(row), row.percent));
    let shares = FunctionShares::new(id, percents, progress);
    let declared = |number| {
        let of = |row: &&RevisionStatus| number_of(row) == number;
        function.revisions.iter().find(of)?.declared.as_deref()
    };
    let problem = shares.problem(number);
    let problem = problem.filter(|problem| !problem.former.is_empty());
    let told = match problem {
        Some(problem) => Some(format!("{latest} {problem}")),
        None => failure.map(|(_, reason, node)| format!("{reason} (node {node})")),
    };
    // A node that has just got the function does not want its instances yet.
    let least: u32 = function.nodes.iter().flat_map(|node| &node.bounds).map(|bounds| bounds.least).sum();
    let (state, reason) = match told {
        _ if rejected.is_some() => ("failed", rejected),
        _ if function.unplaced => ("unplaced", function.reason.clone()),
        told if has(RevisionProgress::own) => ("ready", told.or_else(|| function.reason.clone())),
        Some(reason) if failure.is_some_and(|(is_final, ..)| is_final) => ("failed", Some(reason)),
        Some(reason) => ("failing", Some(reason)),
        None if of_latest.is_empty() => ("starting", None),
        None if least > 0 || has(|row| row.desired) || has(|row| row.starting) => ("starting", None),
        None => ("idle", None),
    };
    json!({
        "function": function.function.to_string(),
        "state": state,
        "reason": reason,
        "ready": sum(|row| row.ready),
        "desired": sum(|row| row.desired),
        "waiting": sum(|row| row.waiting),
        "instances": function.instances,
        "revision": latest,
        "version": function.version,
        "nodes": function.nodes.iter().map(|node| &node.node).collect::<Vec<_>>(),
        "identity": function.identity.as_str(),
        "callees": function.callees.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "exposed": function.exposed,
        "chain": function.chain.as_ref().map(nodes::chain_of),
        "shares": shares.list(declared),
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

/// Revisions of functions, oldest first: the percentage of requests that each is to get, the one that its instances serve (`served`), and why it does not serve its own (`problem`).
#[utoipa::path(
    get, path = "/v1/revisions",
    responses(
        (status = 200, description = "Those that the token may read.", body = ViewPage),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn revisions(caller: Caller, State(service): State<Arc<Service>>) -> Result<Json<ViewPage>, ApiError> {
    service.revisions(&caller).await.map(Json)
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
    service.view(&caller, read(filter)?.node.as_deref(), View::Instances.query("")).await.map(Json)
}

/// Decisions of the autoscaler and on rollouts, failures of instances, events of jobs and of nodes, oldest first. Those of nodes (`nodeJoined`, `nodeAway`, `nodeBack`, `nodeRemoved`) are for tokens of the whole mesh.
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
    let mut page: ViewPage = service.view(&caller, filter.node.as_deref(), View::Events.query("")).await?;
    if filter.node.is_none() {
        let control = service.leading()?.control.clone();
        let rollouts: Vec<RolloutEvent> = control.rollout_events();
        let rollouts = rollouts.iter().filter(|event| caller.may_know(&event.function));
        page.rows.extend(rollouts.map(revisions::event));
        let placements = control.placement_events().into_iter().filter(|event| caller.may_know(&event.function));
        page.rows.extend(placements.map(|event| nodes::placement_event(&event, caller.is_everywhere())));
        if caller.is_everywhere() {
            page.rows.extend(control.node_events().iter().map(nodes::node_event));
        }
        let mut jobs: Vec<JobStatus> = service.statuses.of(&control).await.jobs;
        jobs.retain(|job| caller.may_know(&job.job));
        page.rows.extend(jobs::events(&jobs));
    }
    let time = |row: &Value| row["time"].as_f64().unwrap_or_default();
    page.rows.sort_by(|one, other| time(one).total_cmp(&time(other)));
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
    service.view(&caller, read(filter)?.node.as_deref(), View::Edges.query("")).await.map(Json)
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
    service.view(&caller, read(filter)?.node.as_deref(), View::Rules.query("")).await.map(Json)
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
    service.view(&caller, read(filter)?.node.as_deref(), View::Destinations.query("")).await.map(Json)
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
    service.view(&caller, node.as_deref(), View::Limits.query(function)).await.map(Json)
}

/// The hops of a recent request, in the order in which they began, each with all stages of its decision.
#[utoipa::path(
    get, path = "/v1/requests/{id}",
    params(("id" = String, Path, description = "`x-request-id` of the response, or the ID of a trace.")),
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
    let mut page: ViewPage = service.view(&caller, None, View::Explanation.query(id)).await?;
    // Times in RFC 3339 of one length, which sort as texts.
    page.rows.sort_by(|one, other| one["time"].as_str().cmp(&other["time"].as_str()));
    Ok(Json(page))
}
