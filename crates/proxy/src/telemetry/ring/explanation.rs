//! A record, told stage by stage. Plain data for the admin endpoint and the command line.

use crate::runtime::clock::rfc3339;
use crate::telemetry::names::{EXTENSIONS, algorithm_name, direction_name, policy_name, protocol_name};
use crate::telemetry::observed::{AttemptResult, EditedHeader, Observed, Ruled, Stage};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One hop of one request. Times are microseconds since its start. Holds no token, no query, and no header value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// Shared by all hops of the request.
    pub request_id: String,
    /// `gateway`, `outbound` or `inbound`.
    pub hop: String,
    /// When it began (RFC 3339, UTC).
    pub time: String,
    /// What was asked.
    pub asked: Asked,
    /// Who asked, as the runtime established it.
    pub peer: Peer,
    /// `namespace/name` of the function that it was routed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The revision of it that got the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// What was decided. `None`: it did not come to that; see `failure`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judgement: Option<Judgement>,
    /// Signatures that were checked, or known from earlier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<Signature>,
    /// Counters that were taken from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<Quota>,
    /// Runs of extensions, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<ExtensionRun>,
    /// Request headers that policies edited, in order: `set x-user`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub request_edits: Vec<String>,
    /// Response headers that policies edited.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub response_edits: Vec<String>,
    /// This hop's span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    /// Tries to get a response, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// What the client got.
    pub response: Response,
    /// When which stage was reached.
    pub stages: Stages,
}

/// What was asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// Method.
    pub method: String,
    /// Host, and port if given.
    pub authority: String,
    /// As sent, without query.
    pub path: String,
    /// `http1`, `http2`, `grpc` or `websocket`.
    pub protocol: String,
}

/// Who asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// SPIFFE ID; `None`: from outside the mesh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Address of the socket's other end.
    pub address: String,
}

/// What was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// The function whose program judged.
    pub function: String,
    /// `allow`, `deny` or `error`.
    pub verdict: String,
    /// Which of the nine policies refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The rule that decided, or, if `default`, the one that came nearest.
    pub rule: String,
    /// No rule decided: nothing allowed it.
    pub default: bool,
    /// The clause that decided or missed, or what went wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub clause: String,
    /// `<iss>/<sub>` of the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// `microvm`, `wasm` or `inline`; `None`: the program is not loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Fresh sandboxes that it took.
    pub runs: u8,
    /// Time in them.
    pub sandbox_us: f64,
    /// Time for the whole judgement.
    pub judge_us: f64,
    /// The path was normalised.
    pub path_changed: bool,
}

/// One signature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Signature {
    /// The key's id, in hexadecimal.
    pub key: String,
    /// As in RFC 7518.
    pub algorithm: String,
    /// `good`, `remembered`, or why it is not.
    pub result: String,
}

/// One counter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quota {
    /// Name of the rate limit.
    pub limit: String,
    /// What is left in requests; `None`: it refused.
    pub remaining: Option<u32>,
    /// The limit has no room for more counters: this one counts other keys too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

/// One run of an extension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExtensionRun {
    /// `<policy>/extensions/<name>`.
    pub name: String,
    /// `request` or `response`.
    pub phase: String,
    /// What came of it, in words.
    pub result: String,
    /// Time that it took.
    pub run_us: f64,
}

/// A span's ids (W3C Trace Context).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// 32 hexadecimal digits.
    pub trace_id: String,
    /// 16 hexadecimal digits.
    pub span_id: String,
    /// 16 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_span_id: Option<String>,
    /// Whether it is exported.
    pub sampled: bool,
}

/// One try.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Where it went; `None`: no endpoint was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// A status, or Envoy's response flag.
    pub result: String,
    /// When it ended.
    pub at_us: f64,
}

/// What the client got.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// 0: nothing.
    pub status: u16,
    /// Of a gRPC call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_status: Option<u8>,
    /// Envoy's response flag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flag: Option<String>,
    /// Why there was no whole response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Body bytes from the client.
    pub bytes_in: u64,
    /// Body bytes to the client.
    pub bytes_out: u64,
    /// It became a WebSocket.
    pub upgraded: bool,
}

/// When which stage was reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stages {
    /// The target was known.
    pub routed_us: Option<f64>,
    /// The verdict was there.
    pub judged_us: Option<f64>,
    /// The request was handed to the upstream.
    pub upstream_us: Option<f64>,
    /// The response's head was there.
    pub head_us: Option<f64>,
    /// All was over.
    pub end_us: f64,
}

impl Explanation {
    /// Tells a record.
    pub fn new(observed: &Observed) -> Self {
        let stage = |stage| observed.until(stage).map(micros);
        Self {
            request_id: observed.request_id.to_string(),
            hop: direction_name(observed.direction).to_owned(),
            time: rfc3339(observed.started_at).to_string(),
            asked: Asked {
                method: observed.asked.method().to_owned(),
                authority: observed.asked.authority().to_owned(),
                path: observed.asked.path().to_owned(),
                protocol: protocol_name(observed.protocol).to_owned(),
            },
            peer: Peer {
                identity: observed.peer.identity.as_deref().map(str::to_owned),
                address: observed.peer.address.to_string(),
            },
            target: observed.target.as_deref().map(str::to_owned),
            revision: observed.revision_name().map(|name| name.to_string()),
            judgement: judgement(observed),
            signatures: signatures(observed),
            quotas: observed
                .takes
                .iter()
                .map(|take| Quota { limit: take.limit.to_string(), remaining: take.remaining, shared: take.shared })
                .collect(),
            extensions: extensions(observed),
            request_edits: edits(&observed.request_edits),
            response_edits: edits(&observed.response_edits),
            trace: trace(observed),
            attempts: attempts(observed),
            response: Response {
                status: observed.status,
                grpc_status: observed.grpc_status,
                flag: observed.flag.map(str::to_owned),
                failure: observed.failure.as_deref().map(str::to_owned),
                bytes_in: observed.bytes_in,
                bytes_out: observed.bytes_out,
                upgraded: observed.upgraded,
            },
            stages: Stages {
                routed_us: stage(Stage::Routed),
                judged_us: stage(Stage::Judged),
                upstream_us: stage(Stage::Upstream),
                head_us: stage(Stage::Head),
                end_us: micros(observed.duration()),
            },
        }
    }
}

fn judgement(observed: &Observed) -> Option<Judgement> {
    let judged = observed.judged.as_ref()?;
    let (policy, rule, default, clause) = match &judged.verdict {
        Ruled::Allow { rule } => (None, &**rule, false, ""),
        Ruled::Deny { policy, rule, default, clause } => (Some(policy_name(*policy)), &**rule, *default, &**clause),
        Ruled::Extension { rule, clause } => (Some(EXTENSIONS), &**rule, false, &**clause),
        Ruled::Fault { reason, .. } => (None, "", false, &**reason),
    };
    Some(Judgement {
        function: judged.function.to_string(),
        verdict: observed.verdict().to_owned(),
        policy: policy.map(str::to_owned),
        rule: rule.to_owned(),
        default,
        clause: clause.to_owned(),
        principal: judged.principal.as_deref().map(str::to_owned),
        engine: judged.engine.map(|engine| engine.to_string()),
        runs: judged.runs,
        sandbox_us: micros(judged.run_time),
        judge_us: micros(judged.time),
        path_changed: judged.path_changed,
    })
}

fn signatures(observed: &Observed) -> Vec<Signature> {
    let tell = |check: &crate::telemetry::observed::SignatureCheck| Signature {
        key: check.key.to_string(),
        algorithm: algorithm_name(check.algorithm).to_owned(),
        result: check.result().to_owned(),
    };
    observed.signatures.iter().map(tell).collect()
}

fn extensions(observed: &Observed) -> Vec<ExtensionRun> {
    let tell = |run: &crate::telemetry::observed::Observation| ExtensionRun {
        name: run.name.to_string(),
        phase: run.phase.to_owned(),
        result: run.ended.to_string(),
        run_us: micros(run.time),
    };
    observed.extensions.iter().map(tell).collect()
}

fn edits(edits: &[EditedHeader]) -> Vec<String> {
    edits.iter().map(|edit| format!("{} {}", edit.how, edit.name)).collect()
}

fn trace(observed: &Observed) -> Option<Trace> {
    let plan = observed.trace.as_ref()?;
    Some(Trace {
        trace_id: format!("{:032x}", plan.context.trace_id),
        span_id: format!("{:016x}", plan.context.span_id),
        parent_span_id: plan.parent_span.map(|parent| format!("{parent:016x}")),
        sampled: plan.context.sampled,
    })
}

fn attempts(observed: &Observed) -> Vec<Attempt> {
    let tell = |attempt: &crate::telemetry::observed::Try| Attempt {
        endpoint: attempt.endpoint.map(|endpoint| endpoint.to_string()),
        result: match attempt.result {
            AttemptResult::Status(status) => status.to_string(),
            AttemptResult::Failed(flag) => flag.to_owned(),
        },
        at_us: micros(attempt.ended.saturating_duration_since(observed.started)),
    };
    observed.attempts.iter().map(tell).collect()
}

/// To a tenth of a microsecond.
fn micros(time: Duration) -> f64 {
    (time.as_nanos() / 100) as f64 / 10.0
}
