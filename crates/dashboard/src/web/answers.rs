//! The answers of the mesh, as JSON.

use super::error::WebError;
use super::sessions::Session;
use super::{Dashboard, SignIn};
use crate::source::{Failure, Rows, SourceKind};
use crate::viewer::WINDOWS;
use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::header::{CONTENT_TYPE, SET_COOKIE};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use leno_telemetry::names;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Listings that pages may ask for.
const LISTINGS: [&str; 13] = [
    "functions",
    "instances",
    "revisions",
    "nodes",
    "events",
    "changes",
    "alerts",
    "jobs",
    "externals",
    "chains",
    "identities",
    "limits",
    "namespaces",
];
/// Largest bodies, in bytes: documents of a replay, and a token.
const DOCUMENTS: usize = 1 << 20;
const TOKEN: usize = 4 << 10;
/// Timeout of a body.
const BODY: Duration = Duration::from_secs(20);
/// Longest ID of a request.
const LONGEST_ID: usize = 256;

type Answer = Result<Json<Value>, WebError>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenBody {
    token: String,
}

/// Begins a session with a token of a control plane's API.
pub(super) async fn sign_in(
    State(dashboard): State<Arc<Dashboard>>,
    body: Body,
) -> Result<(StatusCode, [(HeaderName, String); 1]), WebError> {
    let SignIn::Token(source_of) = &dashboard.options.sign_in else { return Err(dashboard.signed_out()) };
    let TokenBody { token } = read(body, TOKEN).await?;
    let source = source_of(&token).ok_or_else(|| dashboard.signed_out())?;
    let cookie = dashboard.sessions.begin(&token, source)?;
    Ok((StatusCode::NO_CONTENT, [(SET_COOKIE, cookie)]))
}

/// Ends the session.
pub(super) async fn sign_out(
    State(dashboard): State<Arc<Dashboard>>,
    session: Session,
) -> (StatusCode, [(HeaderName, String); 1]) {
    (StatusCode::NO_CONTENT, [(SET_COOKIE, dashboard.sessions.end(&session))])
}

/// The process that answers, and the rights of the session.
pub(super) async fn mesh(State(dashboard): State<Arc<Dashboard>>, session: Session) -> Answer {
    let source = &session.viewer.source;
    let rights = source.rights().await?;
    let mode = match source.kind() {
        SourceKind::ControlPlane => "control",
        // Only a node with the control plane in its process lists nodes.
        SourceKind::Node if session.viewer.rows("nodes").await.is_ok() => "up",
        SourceKind::Node => "node",
    };
    Ok(Json(json!({
        "mode": mode,
        "name": source.name(),
        "release": env!("CARGO_PKG_VERSION"),
        "namespaces": rights["namespaces"],
        "role": rights["role"],
        "sign_out": matches!(dashboard.options.sign_in, SignIn::Token(_)),
        "features": { "replay": source.kind() == SourceKind::ControlPlane, "changes": true },
    })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GraphQuery {
    #[serde(default)]
    window: u64,
}

/// The graph of calls.
pub(super) async fn graph(
    session: Session,
    query: Result<Query<GraphQuery>, QueryRejection>,
) -> Result<Response, WebError> {
    let Query(GraphQuery { window }) = query.map_err(|rejection| WebError::Bad(rejection.body_text()))?;
    let graph = session.viewer.graph(checked_window(window)?).await?;
    Ok(([(CONTENT_TYPE, "application/json")], graph.to_string()).into_response())
}

/// One of the windows that the server computes.
pub(super) fn checked_window(window: u64) -> Result<u64, WebError> {
    let is_known = WINDOWS.contains(&window);
    is_known.then_some(window).ok_or_else(|| WebError::Bad(format!("a window is one of {WINDOWS:?} seconds")))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListingQuery {
    /// Of changes: only those before the answer that had this `after`.
    #[serde(default)]
    after: String,
}

/// Rows of a listing.
pub(super) async fn listing(
    session: Session,
    Path(name): Path<String>,
    query: Result<Query<ListingQuery>, QueryRejection>,
) -> Result<Json<Rows>, WebError> {
    let Query(ListingQuery { after }) = query.map_err(|rejection| WebError::Bad(rejection.body_text()))?;
    if name == "changes" && !after.is_empty() {
        if after.len() > LONGEST_ID || !after.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(WebError::Bad("`after` is that of an earlier answer".to_owned()));
        }
        return Ok(Json(session.viewer.source.earlier_changes(&after).await?));
    }
    let known = LISTINGS.into_iter().find(|known| *known == name);
    let known = known.ok_or_else(|| WebError::NotFound("there is no such listing".to_owned()))?;
    Ok(Json(session.viewer.rows(known).await?))
}

/// Everything that the source knows about one function.
pub(super) async fn function(session: Session, Path((namespace, name)): Path<(String, String)>) -> Answer {
    let function = checked_function(&namespace, &name)?;
    let viewer = &*session.viewer;
    let is_named = |row: &Value| row["function"] == *function;
    let (functions, instances, revisions, events, identities, limits, policies, documents) = tokio::join!(
        viewer.rows("functions"),
        viewer.rows("instances"),
        viewer.rows("revisions"),
        viewer.rows("events"),
        viewer.rows("identities"),
        viewer.rows("limits"),
        viewer.source.policies(&function),
        viewer.source.documents(&namespace, &name),
    );
    let mut functions = functions?;
    let row = functions.rows.iter().find(|row| is_named(row)).cloned();
    let row = row.ok_or_else(|| WebError::NotFound(format!("there is no function {function}")))?;
    let mut missing = std::mem::take(&mut functions.missing);
    let mut rows = |name: &str, answer: Result<Rows, Failure>, is_wanted: &dyn Fn(&Value) -> bool| match answer {
        Ok(mut answer) => {
            answer.rows.retain(is_wanted);
            missing.append(&mut answer.missing);
            Value::Array(answer.rows)
        }
        Err(failure) => {
            missing.push(format!("{name}: {failure}"));
            Value::Null
        }
    };
    let is_identity = |row: &Value| row["identity"].as_str().and_then(names::workload) == Some((&namespace, &name));
    let mut certificates = rows("certificate", identities, &is_identity);
    let certificate = certificates.get_mut(0).map(Value::take);
    let mut answer = json!({
        "function": row,
        "instances": rows("instances", instances, &is_named),
        "revisions": rows("revisions", revisions, &is_named),
        "events": rows("events", events, &is_named),
        "limits": rows("limits", limits, &is_named),
        "certificate": certificate,
    });
    for (name, part) in [("policies", policies), ("document", documents.map(Value::from))] {
        answer[name] = part.unwrap_or_else(|failure| {
            missing.push(format!("{name}: {failure}"));
            Value::Null
        });
    }
    missing.sort();
    missing.dedup();
    answer["missing"] = missing.into();
    Ok(Json(answer))
}

/// `namespace/name`, of plain characters.
pub(super) fn checked_function(namespace: &str, name: &str) -> Result<String, WebError> {
    let is_plain = |part: &str| {
        (1..=253).contains(&part.len())
            && !part.starts_with('.')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
    };
    if !is_plain(namespace) || !is_plain(name) {
        return Err(WebError::Bad("a function is named by its namespace and its name: demo/shop".to_owned()));
    }
    Ok(format!("{namespace}/{name}"))
}

/// The hops of a recent request, each with all stages of its decision.
pub(super) async fn request(session: Session, Path(id): Path<String>) -> Result<Json<Rows>, WebError> {
    let is_plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if id.len() > LONGEST_ID || id.starts_with('.') || !is_plain {
        return Err(WebError::Bad("this is no ID of a request: letters, digits, `-`, `_` and `.` only".to_owned()));
    }
    let rows = session.viewer.source.explain(&id).await?;
    if rows.rows.is_empty() {
        let reason = "no node that answered remembers this request: each keeps the most recent ones only";
        return Err(WebError::NotFound(reason.to_owned()));
    }
    Ok(Json(rows))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplayBody {
    documents: String,
}

/// The recorded requests that these documents would decide differently.
pub(super) async fn replay(session: Session, body: Body) -> Answer {
    let ReplayBody { documents } = read(body, DOCUMENTS).await?;
    Ok(Json(session.viewer.source.replay(&documents).await?))
}

/// A JSON body of at most so many bytes.
async fn read<T: DeserializeOwned>(body: Body, largest: usize) -> Result<T, WebError> {
    let bytes = timeout(BODY, to_bytes(body, largest)).await;
    let bytes = bytes.map_err(|_| WebError::Bad(format!("the request was not sent within {BODY:?}")))?;
    let bytes = bytes.map_err(|_| WebError::TooLarge(largest))?;
    serde_json::from_slice(&bytes).map_err(|error| WebError::Bad(format!("the request: {error}")))
}
