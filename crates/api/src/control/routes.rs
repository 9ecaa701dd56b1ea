//! The paths of the API. Their comments are its description at `/openapi.json`.

mod administration;

use super::admission::{Admission, CHANGES_PATH, JsonBody, admitted};
use super::alerts;
use super::audit;
use super::error::ApiError;
use super::expiry;
use super::flows;
use super::forward;
use super::gateways;
use super::history;
use super::policies;
use super::service::Service;
use super::tokens::Caller;
use super::types::{
    AuditEntry, ChangeAnswer, ChangeRequest, Documents, NamespaceStatus, OwnToken, Refusal, RerunAnswer, Role,
    SecretStatus, StoredDocument,
};
use super::unread;
use super::views;
use crate::jobs;
use crate::log_page::{LogPage, LogQuery};
use crate::rollouts::{RolloutAnswer, RolloutRequest};
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use leno_model::FunctionId;
use leno_telemetry::exposition::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::task::block_in_place;
use tokio::time::timeout;
use utoipa::{IntoParams, OpenApi};

/// Registries may be asked what tags mean, and nodes need none of this.
const LONGEST: Duration = Duration::from_secs(60);
/// Entries of the audit log, unless the client says how many.
const AUDIT: usize = 100;
const MAX_AUDIT: usize = 1000;

/// All paths.
pub(super) fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route(CHANGES_PATH, post(change))
        .route("/v1/documents", get(documents))
        .route("/v1/documents/{kind}/{namespace}/{name}", get(document))
        .route("/v1/status", get(status))
        .route("/v1/self", get(own_token))
        .route("/v1/namespaces", get(namespaces))
        .route("/v1/secrets", get(secrets))
        .route("/v1/functions", get(views::functions))
        .route("/v1/revisions", get(views::revisions))
        .route("/v1/functions/{namespace}/{name}/rollout", post(rollout))
        .route("/v1/functions/{namespace}/{name}/policies", get(policies::policies))
        .route("/v1/instances", get(views::instances))
        .route("/v1/events", get(views::events))
        .route("/v1/flows", get(flows::flows))
        .route("/v1/edges", get(views::edges))
        .route("/v1/rules", get(views::rules))
        .route("/v1/destinations", get(views::destinations))
        .route("/v1/limits", get(views::limits))
        .route("/v1/gateways", get(gateways::gateways))
        .route("/v1/routes", get(gateways::routes))
        .route("/v1/alerts", get(alerts::alerts))
        .route("/v1/requests/{id}", get(views::explain))
        .route("/v1/logs/{namespace}/{name}", get(logs))
        .route("/v1/jobs/{namespace}/{name}/rerun", post(rerun_job))
        .route("/v1/audit", get(audit_log))
        .route("/v1/history", get(history::history))
        .route("/v1/tokens", get(administration::tokens).post(administration::create_token))
        .route("/v1/tokens/{id}", delete(administration::revoke_token))
        .route("/v1/join-tokens", post(administration::create_join_token))
        .route("/v1/nodes/{name}", delete(administration::revoke_node))
        .route("/v1/nodes/{name}/cordon", post(administration::cordon_node))
        .route("/v1/authority", get(administration::authority))
        .route("/v1/authority/rotation", post(administration::rotate))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(described))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .fallback(|| async { ApiError::NotFound("such path; see /openapi.json".to_owned()) })
        .layer(from_fn_with_state(service.clone(), forward::answer))
        .layer(from_fn_with_state(Admission::new(service.clone()), admitted))
        .layer(from_fn(unread::read_rest))
        .layer(from_fn(bounded))
        .with_state(service)
}

/// The description of the API.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "The API of leno control",
        description = "Documents, tokens and the audit log of a mesh. Each request bears a token: `Authorization: Bearer …`."
    ),
    paths(
        change,
        documents,
        document,
        status,
        own_token,
        namespaces,
        secrets,
        views::functions,
        views::revisions,
        rollout,
        policies::policies,
        views::instances,
        views::events,
        flows::flows,
        views::edges,
        views::rules,
        views::destinations,
        views::limits,
        gateways::gateways,
        gateways::routes,
        alerts::alerts,
        views::explain,
        logs,
        rerun_job,
        audit_log,
        history::history,
        administration::tokens,
        administration::create_token,
        administration::revoke_token,
        administration::create_join_token,
        administration::revoke_node,
        administration::cordon_node,
        administration::authority,
        administration::rotate,
        metrics,
        ready
    ),
    components(schemas(crate::changes::ChangeRecord))
)]
struct Description;

/// The description of the API, in OpenAPI.
pub(super) fn description() -> utoipa::openapi::OpenApi {
    Description::openapi()
}

async fn described() -> Response {
    static TEXT: LazyLock<String> = LazyLock::new(|| serde_json::to_string(&description()).unwrap_or_default());
    ([("content-type", "application/json")], TEXT.as_str()).into_response()
}

async fn bounded(request: Request, next: Next) -> Response {
    match timeout(LONGEST, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::Unavailable(format!("no answer within {LONGEST:?}")).into_response(),
    }
}

/// Applies and deletes documents: all of it, or nothing.
#[utoipa::path(
    post, path = "/v1/changes", request_body = ChangeRequest,
    responses(
        (status = 200, description = "It is in force, or would be.", body = ChangeAnswer),
        (status = 400, description = "The request makes no sense.", body = Refusal),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 403, description = "The token does not allow it.", body = Refusal),
        (status = 404, description = "A document to be deleted is not there.", body = Refusal),
        (status = 409, description = "A document has another version than expected.", body = Refusal),
        (status = 413, description = "It is too much at once.", body = Refusal),
        (status = 421, description = "Another control plane takes changes; `leader` is its address.", body = Refusal),
        (status = 422, description = "The documents are wrong.", body = Refusal),
        (status = 429, description = "Too many requests of the token wait; `retry-after` says when to try again.", body = Refusal),
        (status = 503, description = "The store, or a registry, does not answer.", body = Refusal),
    )
)]
async fn change(
    caller: Caller,
    State(service): State<Arc<Service>>,
    JsonBody(request): JsonBody<ChangeRequest>,
) -> Result<Json<ChangeAnswer>, ApiError> {
    // A client that goes away leaves no half of a change behind: nothing is awaited while it is
    // stored and put into force.
    service.leading()?.change(&service, &caller, request).await.map(Json)
}

/// Promotes a revision of a function, pauses or resumes its rollouts, or takes the last change back. Where that is a change of `traffic`, the stored document is changed.
#[utoipa::path(
    post, path = "/v1/functions/{namespace}/{name}/rollout", request_body = RolloutRequest,
    params(
        ("namespace" = String, Path, description = "Namespace of the function."),
        ("name" = String, Path, description = "Name of the function."),
    ),
    responses(
        (status = 200, description = "It is in force, or would be.", body = RolloutAnswer),
        (status = 400, description = "The request makes no sense.", body = Refusal),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 403, description = "The token does not allow it.", body = Refusal),
        (status = 404, description = "There is no such function.", body = Refusal),
        (status = 409, description = "There is nothing to change, or the document has another version than expected.", body = Refusal),
        (status = 421, description = "Another control plane takes changes; `leader` is its address.", body = Refusal),
        (status = 422, description = "The changed document is wrong.", body = Refusal),
        (status = 503, description = "The store, or a registry, does not answer.", body = Refusal),
    )
)]
async fn rollout(
    caller: Caller,
    State(service): State<Arc<Service>>,
    Path((namespace, name)): Path<(String, String)>,
    JsonBody(request): JsonBody<RolloutRequest>,
) -> Result<Json<RolloutAnswer>, ApiError> {
    let id = FunctionId::new(&namespace, &name).map_err(|error| ApiError::Bad(error.to_string()))?;
    service.leading()?.roll_out(&service, &caller, &id, &request).await.map(Json)
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Only documents of this kind.
    #[serde(default)]
    kind: String,
    /// Only documents of this namespace.
    #[serde(default)]
    namespace: String,
    /// Only documents of this name.
    #[serde(default)]
    name: String,
}

/// Stored documents.
#[utoipa::path(
    get, path = "/v1/documents", params(Filter),
    responses(
        (status = 200, description = "Those that the token may read.", body = Documents),
        (status = 401, description = "There is no valid token.", body = Refusal),
    )
)]
async fn documents(
    caller: Caller,
    State(service): State<Arc<Service>>,
    filter: Result<Query<Filter>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Documents>, ApiError> {
    let Query(Filter { kind, namespace, name }) = filter.map_err(|rejection| ApiError::Bad(rejection.body_text()))?;
    Ok(Json(service.documents(&caller, &kind, &namespace, &name)))
}

/// One stored document. The namespace of documents of the whole mesh is `-`.
#[utoipa::path(
    get, path = "/v1/documents/{kind}/{namespace}/{name}",
    params(
        ("kind" = String, Path, description = "Such as `Function`."),
        ("namespace" = String, Path, description = "`-`: of the whole mesh."),
        ("name" = String, Path, description = "Name of the document."),
    ),
    responses(
        (status = 200, description = "The document.", body = StoredDocument),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 404, description = "There is none that the token may read.", body = Refusal),
    )
)]
async fn document(
    caller: Caller,
    State(service): State<Arc<Service>>,
    Path((kind, namespace, name)): Path<(String, String, String)>,
) -> Result<Json<StoredDocument>, ApiError> {
    let wanted = if namespace == "-" { "" } else { &namespace };
    let found = service.documents(&caller, &kind, wanted, &name).documents;
    let found = found.into_iter().find(|stored| stored.document.namespace == wanted);
    found.map(Json).ok_or_else(|| ApiError::NotFound(format!("{kind} {namespace}/{name}")))
}

/// Functions, nodes, jobs and certificates, as they are now.
#[utoipa::path(
    get, path = "/v1/status",
    responses(
        (status = 200, description = "`functions`, `nodes`, `jobs` and `identities`, as far as the token may read them.", body = Value),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
async fn status(caller: Caller, State(service): State<Arc<Service>>) -> Result<Json<Value>, ApiError> {
    let control = service.leading()?.control.clone();
    let mut status = service.statuses.of(&control).await;
    if !caller.is_everywhere() {
        status.functions.retain(|function| caller.namespaces.contains(&function.function.namespace));
        status.jobs.retain(|job| caller.namespaces.contains(&job.job.namespace));
        // Nodes and their certificates are of the whole mesh.
        status.nodes.clear();
        status.identities.clear();
    }
    let jobs: Value = status.jobs.iter().map(jobs::status).collect();
    let mut status = json!(status);
    status["jobs"] = jobs;
    Ok(Json(status))
}

/// Role and namespaces of the token that the request bears.
#[utoipa::path(
    get, path = "/v1/self",
    responses(
        (status = 200, description = "The token.", body = OwnToken),
        (status = 401, description = "There is no valid token.", body = Refusal),
    )
)]
async fn own_token(caller: Caller) -> Json<OwnToken> {
    Json(OwnToken { role: caller.role, namespaces: caller.namespaces })
}

/// Namespaces with documents or a quota, and the use that each makes of its quota.
#[utoipa::path(
    get, path = "/v1/namespaces",
    responses(
        (status = 200, description = "Those that the token may read.", body = Vec<NamespaceStatus>),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
async fn namespaces(
    caller: Caller,
    State(service): State<Arc<Service>>,
) -> Result<Json<Vec<NamespaceStatus>>, ApiError> {
    let leading = service.leading()?;
    let mut namespaces = leading.namespaces(&service.statuses.of(&leading.control).await);
    namespaces.retain(|status| caller.is_everywhere() || caller.namespaces.contains(&status.namespace));
    Ok(Json(namespaces))
}

/// Stored secrets: their keys, sizes, when they changed, and who names them. No request returns values.
#[utoipa::path(
    get, path = "/v1/secrets",
    responses(
        (status = 200, description = "Those that the token may read.", body = Vec<SecretStatus>),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
async fn secrets(caller: Caller, State(service): State<Arc<Service>>) -> Result<Json<Vec<SecretStatus>>, ApiError> {
    service.secrets(&caller).map(Json)
}

/// What instances of a function or a job wrote to standard output and standard error. Nodes keep the latest 64 KiB of each instance that runs, and of
/// the one that ended last. To follow, ask again with `after` of the answer, and without `tail`.
#[utoipa::path(
    get, path = "/v1/logs/{namespace}/{name}",
    params(
        ("namespace" = String, Path, description = "Namespace of the function."),
        ("name" = String, Path, description = "Name of the function."),
        LogQuery,
    ),
    responses(
        (status = 200, description = "A page of lines.", body = LogPage),
        (status = 400, description = "The request makes no sense.", body = Refusal),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 403, description = "The token is not for this namespace.", body = Refusal),
        (status = 404, description = "There is no such function or job.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
async fn logs(
    caller: Caller,
    State(service): State<Arc<Service>>,
    Path((namespace, name)): Path<(String, String)>,
    query: Result<Query<LogQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<LogPage>, ApiError> {
    let Query(query) = query.map_err(|rejection| ApiError::Bad(rejection.body_text()))?;
    let id = FunctionId::new(&namespace, &name).map_err(|error| ApiError::Bad(error.to_string()))?;
    service.logs(&caller, &id, &query).await.map(Json)
}

/// Runs an ended job once more.
#[utoipa::path(
    post, path = "/v1/jobs/{namespace}/{name}/rerun",
    params(
        ("namespace" = String, Path, description = "Namespace of the job."),
        ("name" = String, Path, description = "Name of the job."),
    ),
    responses(
        (status = 200, description = "The run is stored, and begins.", body = RerunAnswer),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 403, description = "The token does not allow it.", body = Refusal),
        (status = 404, description = "There is no such job.", body = Refusal),
        (status = 409, description = "Its last run has not ended.", body = Refusal),
        (status = 421, description = "Another control plane takes changes; `leader` is its address.", body = Refusal),
        (status = 503, description = "The store does not answer.", body = Refusal),
    )
)]
async fn rerun_job(
    caller: Caller,
    State(service): State<Arc<Service>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Json<RerunAnswer>, ApiError> {
    let id = FunctionId::new(&namespace, &name).map_err(|error| ApiError::Bad(error.to_string()))?;
    block_in_place(|| service.rerun_job(&caller, &id)).map(Json)
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Last {
    /// Number of entries, at most 1000; without it 100.
    limit: Option<usize>,
}

/// Who changed what, latest first. For tokens of admins of the whole mesh.
#[utoipa::path(
    get, path = "/v1/audit", params(Last),
    responses(
        (status = 200, description = "The last entries.", body = Vec<AuditEntry>),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 403, description = "The token does not allow it.", body = Refusal),
    )
)]
async fn audit_log(
    caller: Caller,
    State(service): State<Arc<Service>>,
    last: Result<Query<Last>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Vec<AuditEntry>>, ApiError> {
    caller.needs(Role::Admin)?;
    if !caller.is_everywhere() {
        return Err(ApiError::Forbidden("the audit log is of the whole mesh, and the token is not".to_owned()));
    }
    let Query(Last { limit }) = last.map_err(|rejection| ApiError::Bad(rejection.body_text()))?;
    let limit = limit.unwrap_or(AUDIT).min(MAX_AUDIT);
    Ok(Json(block_in_place(|| audit::list(&*service.backend, limit))?))
}

/// When certificates of the control plane expire, and how far a replacement of the authority is, for Prometheus. For tokens of the whole mesh.
#[utoipa::path(
    get, path = "/metrics",
    responses(
        (status = 200, description = "In the text format of OpenMetrics.", body = String),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 403, description = "The token does not allow it.", body = Refusal),
    )
)]
async fn metrics(caller: Caller, State(service): State<Arc<Service>>) -> Result<Response, ApiError> {
    caller.needs(Role::Reader)?;
    if !caller.is_everywhere() {
        return Err(ApiError::Forbidden("metrics are of the whole mesh, and the token is not".to_owned()));
    }
    Ok(([("content-type", CONTENT_TYPE)], expiry::metrics(&service)).into_response())
}

/// Whether this control plane leads and its stored documents are in force, or follows a leader that it knows. Takes no token.
#[utoipa::path(
    get, path = "/readyz",
    responses(
        (status = 200, description = "`leads`, and what expires soon; or `follows` and whom."),
        (status = 503, description = "Neither, or the stored documents are not in force."),
    )
)]
async fn ready(State(service): State<Arc<Service>>) -> (StatusCode, String) {
    let state = service.state();
    match (&state.leading, &state.leader) {
        (Some(_), _) if !state.not_in_force.is_empty() => {
            (StatusCode::SERVICE_UNAVAILABLE, "leads; the stored documents are not in force\n".to_owned())
        }
        (Some(_), _) => {
            drop(state);
            let warnings = expiry::warnings(&service).into_iter().map(|warning| format!("{warning}\n"));
            (StatusCode::OK, std::iter::once("leads\n".to_owned()).chain(warnings).collect())
        }
        (None, Some(leader)) if state.read => (StatusCode::OK, format!("follows {}\n", leader.url)),
        (None, _) => (StatusCode::SERVICE_UNAVAILABLE, "nobody leads\n".to_owned()),
    }
}
