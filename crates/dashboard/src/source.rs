//! The process that answers questions about the mesh: a node at its admin address, or a control plane
//! through its API.

use crate::filter::FlowQuery;
use crate::mesh::Mesh;
use crate::status;
use async_trait::async_trait;
use axum::body::Bytes;
use axum::http::{Method, StatusCode};
use leno_telemetry::flows::{Flow, Flows};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Instant;

/// Earlier lines of each instance.
const TAIL: u32 = 200;

/// Whose paths a source has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// A node's (docs/admin.md).
    Node,
    /// A control plane's (docs/reference/openapi.json).
    ControlPlane,
}

/// A node or a control plane, with the credentials to ask it.
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// Whose paths it has.
    fn kind(&self) -> SourceKind;

    /// Its address, for messages.
    fn name(&self) -> String;

    /// Sends a request, and returns the status and the whole body. An error says why there is no
    /// answer.
    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<(StatusCode, Bytes), String>;

    /// Whose share of sessions and streams its pages take.
    fn tenant(&self) -> String {
        String::new()
    }

    /// The rights that decide on its answers. Pages of sources with the same rights share answers;
    /// `None`: only pages with the same credentials do.
    fn rights_of_answers(&self) -> Option<String> {
        None
    }

    /// Whether its credentials are still valid, as far as this process knows.
    fn is_valid(&self) -> bool {
        true
    }
}

/// Why a source did not answer a question.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// There is no answer.
    #[error("{0}")]
    Unreachable(String),
    /// It refuses.
    #[error("{}", reason(refusal))]
    Refused {
        /// The status of its answer.
        status: StatusCode,
        /// The answer: `error` is the reason.
        refusal: Value,
    },
    /// The answer has another form than this release expects.
    #[error("{0}: is the other end of another release?")]
    Unexpected(String),
}

/// Rows of a listing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rows {
    /// The rows.
    pub rows: Vec<Value>,
    /// Nodes that did not answer, and why; and how many rows are left out.
    #[serde(default)]
    pub missing: Vec<String>,
    /// Rows that are left out.
    #[serde(default, skip_serializing)]
    missed: u64,
    /// Where the next answer begins; empty: there are no more rows.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub after: String,
}

/// A control plane's answer about flows. It may have thousands a second, so it becomes no [`Value`].
#[derive(Deserialize)]
struct FlowPage {
    rows: Vec<Flow>,
    #[serde(default)]
    missing: Vec<String>,
    #[serde(default)]
    missed: u64,
    /// Where the next answer begins.
    after: String,
}

impl Failure {
    /// A refusal that a source would give.
    pub(crate) fn refused(status: StatusCode, error: &str) -> Self {
        Self::Refused { status, refusal: json!({ "error": error }) }
    }
}

fn reason(refusal: &Value) -> &str {
    refusal["error"].as_str().unwrap_or("it gives no reason")
}

impl dyn Source {
    async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: Bytes) -> Result<T, Failure> {
        let (status, answer) = self.exchange(method, path, body).await.map_err(Failure::Unreachable)?;
        if status.is_success() {
            return serde_json::from_slice(&answer)
                .map_err(|error| Failure::Unexpected(format!("the answer of {} to {path}: {error}", self.name())));
        }
        let refusal = serde_json::from_slice(&answer).ok().filter(|refusal: &Value| refusal["error"].is_string());
        let in_words = || json!({ "error": String::from_utf8_lossy(&answer).trim_end() });
        Err(Failure::Refused { status, refusal: refusal.unwrap_or_else(in_words) })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    fn path(&self, path: &str) -> String {
        match self.kind() {
            SourceKind::Node => format!("/{path}"),
            SourceKind::ControlPlane => format!("/v1/{path}"),
        }
    }

    /// The rows of a listing, as `leno get` names it.
    pub async fn rows(&self, listing: &str) -> Result<Rows, Failure> {
        if self.kind() == SourceKind::ControlPlane {
            match listing {
                "nodes" | "jobs" | "identities" => {
                    let mut status: Value = self.get("/v1/status").await?;
                    let rows = status::rows(listing, &mut status).unwrap_or_default();
                    return Ok(Rows { rows, ..Rows::default() });
                }
                "externals" => {
                    let mut page = self.page(&self.path("functions")).await?;
                    page.rows.retain(|row| row["external"] == true);
                    page.rows.iter_mut().for_each(|row| row["external"] = row["function"].clone());
                    return Ok(page);
                }
                "changes" => return self.page("/v1/history").await,
                _ => {}
            }
        }
        self.page(&self.path(listing)).await.map_err(|failure| self.without(listing, failure))
    }

    /// The changes before those of an earlier answer, whose [`Rows::after`] this is.
    pub async fn earlier_changes(&self, after: &str) -> Result<Rows, Failure> {
        match self.kind() {
            SourceKind::ControlPlane => self.page(&format!("/v1/history?after={after}")).await,
            // A node answers with all.
            SourceKind::Node => Ok(Rows::default()),
        }
    }

    /// Names the part that a source of another release lacks: it refuses the path.
    fn without(&self, part: &str, failure: Failure) -> Failure {
        match failure {
            Failure::Refused { status: StatusCode::NOT_FOUND, .. } => {
                Failure::refused(StatusCode::NOT_FOUND, &format!("{} has no {part}", self.name()))
            }
            failure => failure,
        }
    }

    /// An array of rows, or an object with one.
    async fn page(&self, path: &str) -> Result<Rows, Failure> {
        let mut page: Rows = match self.get(path).await? {
            Value::Array(rows) => Rows { rows, ..Rows::default() },
            page => read(page, path)?,
        };
        if page.missed > 0 {
            page.missing.push(format!("{} rows of {path} are left out", page.missed));
        }
        Ok(page)
    }

    /// One look at functions, counts and refusals.
    pub async fn look(&self) -> Result<Mesh, Failure> {
        let at = Instant::now();
        let (functions, edges, refused) =
            tokio::try_join!(self.rows("functions"), self.rows("edges"), self.rows("destinations"))?;
        let mut missing: Vec<String> =
            [&functions, &edges, &refused].iter().flat_map(|page| &page.missing).cloned().collect();
        missing.sort();
        missing.dedup();
        let mut functions = functions.rows;
        if self.kind() == SourceKind::Node {
            let externals = self.rows("externals").await?.rows;
            functions.extend(externals.iter().map(|row| json!({ "function": row["external"], "external": true })));
        }
        Ok(Mesh {
            at,
            functions: read(Value::Array(functions), "the rows of functions")?,
            edges: read(Value::Array(edges.rows), "the rows of edges")?,
            refusals: read(Value::Array(refused.rows), "the rows of destinations")?,
            missing,
        })
    }

    /// The hops of a recent request; none: no node that answered remembers it.
    pub async fn explain(&self, request_id: &str) -> Result<Rows, Failure> {
        match self.kind() {
            SourceKind::ControlPlane => self.page(&format!("/v1/requests/{request_id}")).await,
            SourceKind::Node => match self.page(&format!("/explain/{request_id}")).await {
                Err(Failure::Refused { status: StatusCode::NOT_FOUND, .. }) => Ok(Rows::default()),
                answer => answer,
            },
        }
    }

    /// Flows, and nodes that did not answer. Without an earlier answer: of all that nodes keep.
    pub async fn flows(&self, query: &FlowQuery<'_>) -> Result<(Flows, Vec<String>), Failure> {
        match self.kind() {
            SourceKind::Node => {
                let after = query.after.map(|after| format!("?{after}")).unwrap_or_default();
                let mut answer = self.get(&format!("/flows{after}")).await?;
                query.select(&mut answer);
                Ok((answer, Vec::new()))
            }
            SourceKind::ControlPlane => {
                let FlowPage { rows: flows, missing, missed, after: next } = self.get(&query.path()).await?;
                Ok((Flows { flows, missed, next }, missing))
            }
        }
    }

    /// A page of the output of a function's or job's instances, since an earlier one. Without one:
    /// their last lines.
    pub async fn logs(&self, function: &str, after: Option<&str>) -> Result<Value, Failure> {
        let from = after.map_or_else(|| format!("tail={TAIL}"), |after| format!("after={after}"));
        self.get(&self.path(&format!("logs/{function}?{from}"))).await
    }

    /// The policies in force of a function, rule by rule.
    pub async fn policies(&self, function: &str) -> Result<Value, Failure> {
        let path = match self.kind() {
            SourceKind::Node => format!("/policies/{function}"),
            SourceKind::ControlPlane => format!("/v1/functions/{function}/policies"),
        };
        self.get(&path).await.map_err(|failure| self.without("policies in force", failure))
    }

    /// The stored document of a function, and those of policies of its namespace that name it or all
    /// functions, as one text.
    pub async fn documents(&self, namespace: &str, name: &str) -> Result<String, Failure> {
        if self.kind() == SourceKind::Node {
            return Err(Failure::refused(StatusCode::NOT_FOUND, "a node has no documents, only what they mean"));
        }
        let function = format!("/v1/documents/Function/{namespace}/{name}");
        let policies = format!("/v1/documents?kind=Policy&namespace={namespace}");
        let (function, policies): (Value, Value) = tokio::try_join!(self.get(&function), self.get(&policies))?;
        let is_word = |byte: char| byte.is_ascii_alphanumeric() || "-.*".contains(byte);
        let names = |text: &str| text.split(|byte| !is_word(byte)).any(|word| word == name || word == "*");
        let policies =
            policies["documents"].as_array().into_iter().flatten().filter_map(|policy| policy["text"].as_str());
        let texts: Vec<&str> =
            function["text"].as_str().into_iter().chain(policies.filter(|text| names(text))).collect();
        Ok(texts.iter().map(|text| text.trim_end().trim_start_matches("---\n")).collect::<Vec<_>>().join("\n---\n"))
    }

    /// The answer to a dry run of a change, with recorded requests that it would decide differently.
    pub async fn replay(&self, documents: &str) -> Result<Value, Failure> {
        if self.kind() == SourceKind::Node {
            let reason = "only a control plane tries changes on recorded requests: `leno apply --dry-run`";
            return Err(Failure::refused(StatusCode::NOT_FOUND, reason));
        }
        let change = json!({
            "apply": [{ "name": "the page", "text": documents }],
            "dryRun": true,
            "replay": true,
        });
        self.ask(Method::POST, "/v1/changes", change.to_string().into()).await
    }

    /// Role and namespaces of the credentials: `{"role": …, "namespaces": …}`; `null`: all namespaces.
    /// A node shows everything.
    pub async fn rights(&self) -> Result<Value, Failure> {
        match self.kind() {
            SourceKind::Node => Ok(json!({ "role": "admin", "namespaces": null })),
            SourceKind::ControlPlane => {
                let mut rights: Value = self.get("/v1/self").await?;
                if rights["namespaces"].as_array().is_some_and(Vec::is_empty) {
                    rights["namespaces"] = Value::Null;
                }
                Ok(rights)
            }
        }
    }
}

fn read<T: DeserializeOwned>(value: Value, what: &str) -> Result<T, Failure> {
    serde_json::from_value(value).map_err(|error| Failure::Unexpected(format!("{what}: {error}")))
}
