//! A record, stage by stage, as plain data for the admin endpoint and the command line.

use crate::exchange::{
    AttemptResult, AuthorizerCheck, EditedHeader, ExchangeRecord, FaultRecord, Observation, RecordedVerdict,
    RouteRecord, SignatureCheck, Stage, Try,
};
use crate::names::{EXTENSIONS, algorithm_name, direction_name, policy_name, protocol_name};
use leno_policy::path::Readings;
use leno_runtime::clock::rfc3339;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A record as the ring gives it back.
type StoredRecord = ExchangeRecord<Box<str>>;

/// One hop of one request. Times are microseconds since the hop's start. It holds no token, no
/// query and no header value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The node that has recorded it; empty: the node that answers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub recorded_by: String,
    /// Shared by all hops of the request.
    pub request_id: String,
    /// Direction of the request on this hop: `gateway`, `outbound` or `inbound`.
    pub hop: String,
    /// When the hop began (RFC 3339, UTC).
    pub time: String,
    /// The request.
    pub asked: ExplainedRequest,
    /// The peer that sent it, as the runtime established it.
    pub peer: Peer,
    /// The route that the request followed; `None`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<FollowedRoute>,
    /// The fault that a policy injected; `None`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<InjectedFault>,
    /// The callee: `namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The callee's revision that got the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The verdict; `None`: the request was not judged, see `response.failure`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judgement: Option<JudgementRecord>,
    /// Signatures that were checked, or known from an earlier request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<Signature>,
    /// Counters of rate limits that were taken from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<Quota>,
    /// Calls to external authorizers, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorizers: Vec<Authorizer>,
    /// Runs of extensions, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<ExtensionRun>,
    /// Request headers that policies edited, in order, such as `set x-user`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub request_edits: Vec<String>,
    /// Response headers that policies edited, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub response_edits: Vec<String>,
    /// This hop's span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    /// Attempts to get a response, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// The other node that the last attempt went to; `None`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Attempts of the callee's instance that were refused before there was a request, while it
    /// handled this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<RefusedAttempt>,
    /// The response that the client got.
    pub response: Response,
    /// When each stage was reached.
    pub stages: Stages,
}

/// The request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainedRequest {
    /// Method, as sent.
    pub method: String,
    /// Host, and port if given, as sent.
    pub authority: String,
    /// Path as judged, before edits, without query.
    pub path: String,
    /// Protocol as policies see it: `http1`, `http2`, `grpc` or `websocket`.
    pub protocol: String,
}

/// The route that a request followed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FollowedRoute {
    /// The route: `namespace/name`.
    pub name: String,
    /// The rule's name, or else its index.
    pub rule: String,
    /// The match that the request met, in words.
    pub matched: String,
    /// The back end: `namespace/name`, with the port of an External or the revision; `None`: the
    /// rule answered, or has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// The rewritten host, with its port; `None`: it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// The rewritten path, without query; `None`: it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The request is a copy, whose response was discarded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub copy: bool,
}

/// A fault that a policy injected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InjectedFault {
    /// `<policy>/faults/<name>`.
    pub name: String,
    /// When the fault ends (RFC 3339, UTC).
    pub until: String,
    /// How long the request waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_us: Option<f64>,
    /// Too many requests were delayed already, so this one was not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undelayed: bool,
    /// The fault answered in place of the back end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub aborted: bool,
}

/// The peer that sent the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// SPIFFE ID; `None`: the peer is outside the mesh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Address of the peer, or of the client that a trusted proxy names to the gateway.
    pub address: String,
}

/// The verdict, and how it was reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JudgementRecord {
    /// The function whose program judged: `namespace/name`.
    pub function: String,
    /// `allow`, `deny` or `error`.
    pub verdict: String,
    /// The policy that refused: one of the nine, or `extensions`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The rule that decided. If `default` is true, the rule that came nearest.
    pub rule: String,
    /// No rule decided: nothing allowed the request.
    pub default: bool,
    /// The clause that decided or missed, or the fault.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub clause: String,
    /// The verdict if audited policies were enforced, where it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<Audit>,
    /// The token's principal: `<iss>/<sub>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Engine of the sandbox: `microvm`, `wasm` or `inline`; `None`: the program is not loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// The decision was remembered from an equal request: the same caller, method, host, path, token
    /// and header fields that the policies look at. No sandbox ran.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remembered: bool,
    /// Fresh sandboxes that the judgement of the request took.
    pub runs: u8,
    /// Time in sandboxes.
    pub sandbox_us: f64,
    /// Time of the whole judgement.
    pub judge_us: f64,
    /// Whether the path was normalised.
    pub path_changed: bool,
    /// Whether the path is forwarded as it came, if it is allowed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub as_received: bool,
    /// If it is: its readings, each of which was judged. Empty: it has one only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readings: Vec<String>,
}

/// A verdict that was not carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    /// `allow` or `deny`.
    pub verdict: String,
    /// The rule that would have decided, or that came nearest.
    pub rule: String,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub clause: String,
}

/// One signature check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Signature {
    /// ID of the key, in hexadecimal.
    pub key: String,
    /// Algorithm, as in RFC 7518 and RFC 8037.
    pub algorithm: String,
    /// `good`, `remembered`, or why the signature was refused.
    pub result: String,
}

/// A counter of a rate limit that was taken from, or that refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quota {
    /// Name of the rate limit.
    pub limit: String,
    /// Requests that are left; `None`: the counter refused.
    pub remaining: Option<u32>,
    /// The rate limit has no room for more counters, so this counter counts other keys too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

/// A call to an external authorizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Authorizer {
    /// The authorizer: `<policy>/externalAuthorization/<name>`.
    pub name: String,
    /// `allowed`, or why it did not.
    pub result: String,
    /// The answer is known from an earlier request.
    pub remembered: bool,
    /// Microseconds until the answer was there.
    pub asked_us: f64,
}

/// One run of an extension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExtensionRun {
    /// The extension: `<policy>/extensions/<name>`.
    pub name: String,
    /// The phase: `request` or `response`.
    pub phase: String,
    /// How the run ended, in words.
    pub result: String,
    /// Time of the run, with the start of its instance.
    pub run_us: f64,
}

/// IDs of a span (W3C Trace Context).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// Trace ID: 32 hexadecimal digits.
    pub trace_id: String,
    /// Span ID: 16 hexadecimal digits.
    pub span_id: String,
    /// ID of the parent span: 16 hexadecimal digits; `None`: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_span_id: Option<String>,
    /// Whether the span is exported.
    pub sampled: bool,
}

/// One attempt to get a response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// The endpoint; `None`: none was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// HTTP status, or Envoy's response flag if there was no response.
    pub result: String,
    /// When it ended.
    pub at_us: f64,
}

/// A look-up, connection or system call of an instance that was refused while it handled the
/// request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RefusedAttempt {
    /// `name`, `connection` or `system-call`.
    pub kind: String,
    /// `look-up`, `connect`, or the name of the system call.
    pub what: String,
    /// The name, the address, or the program.
    pub host: String,
    /// The function at the address, `namespace/name`, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The rule that decided; empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// The cause of the refusal.
    pub reason: String,
    /// The setting that would allow it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fix: String,
    /// When, the first time.
    pub at_us: f64,
    /// How many times.
    pub count: u32,
    /// Number of requests that the instance was handling. 1: the attempt belongs to this one.
    pub among: u32,
}

/// The response that the client got.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// HTTP status; 0: there was no response.
    pub status: u16,
    /// Status of a gRPC call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_status: Option<u8>,
    /// Envoy's response flag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flag: Option<String>,
    /// Why there was no complete response, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Bytes of the body from the client.
    pub bytes_in: u64,
    /// Bytes of the body to the client.
    pub bytes_out: u64,
    /// Whether the exchange became a WebSocket.
    pub upgraded: bool,
}

/// When each stage was reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stages {
    /// The callee was known.
    pub routed_us: Option<f64>,
    /// The verdict was known.
    pub judged_us: Option<f64>,
    /// The request was handed to the upstream.
    pub upstream_us: Option<f64>,
    /// The response's head had arrived.
    pub head_us: Option<f64>,
    /// The exchange was over.
    pub end_us: f64,
}

impl Explanation {
    /// The namespace of the function whose sidecar has recorded it; `None`: a gateway did, and it led
    /// to no function.
    pub fn namespace(&self) -> Option<&str> {
        let source = self.peer.identity.as_deref().unwrap_or_default();
        crate::names::recorded_for(&self.hop, self.target.as_deref(), source)
    }

    /// Makes an explanation of a record.
    pub fn new(observed: &StoredRecord) -> Self {
        let stage = |stage| observed.until(stage).map(micros);
        Self {
            recorded_by: String::new(),
            request_id: observed.request_id.to_string(),
            hop: direction_name(observed.direction).to_owned(),
            time: rfc3339(observed.started_at).to_string(),
            asked: ExplainedRequest {
                method: observed.request_line.method().to_owned(),
                authority: observed.request_line.authority().to_owned(),
                path: observed.request_line.path().to_owned(),
                protocol: protocol_name(observed.protocol).to_owned(),
            },
            peer: Peer {
                identity: observed.peer.identity.as_deref().map(str::to_owned),
                address: observed.peer.address.to_string(),
            },
            route: observed.route.as_deref().map(route),
            fault: observed.fault.as_deref().map(fault),
            target: observed.target.as_deref().map(str::to_owned),
            revision: observed.revision_name().map(|name| name.to_string()),
            judgement: judgement(observed),
            signatures: signatures(observed),
            quotas: observed
                .rate_limit_checks
                .iter()
                .map(|check| Quota { limit: check.limit.to_string(), remaining: check.remaining, shared: check.shared })
                .collect(),
            authorizers: observed.authorizers.iter().map(authorizer).collect(),
            extensions: extensions(observed),
            request_edits: edits(&observed.request_edits),
            response_edits: edits(&observed.response_edits),
            trace: trace(observed),
            attempts: attempts(observed),
            node: observed.node.as_deref().map(str::to_owned),
            refusals: Vec::new(),
            response: Response {
                status: observed.status,
                grpc_status: observed.grpc_status,
                flag: observed.flag.as_deref().map(str::to_owned),
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

fn route(route: &RouteRecord) -> FollowedRoute {
    FollowedRoute {
        name: route.name.to_string(),
        rule: route.rule.to_string(),
        matched: route.matched.to_string(),
        backend: route.backend.as_deref().map(str::to_owned),
        authority: route.authority.as_deref().map(str::to_owned),
        path: route.path.as_deref().map(str::to_owned),
        copy: route.is_copy,
    }
}

fn fault(fault: &FaultRecord) -> InjectedFault {
    InjectedFault {
        name: fault.name.to_string(),
        until: rfc3339(fault.until).to_string(),
        delay_us: (!fault.delay.is_zero()).then(|| micros(fault.delay)),
        undelayed: fault.is_undelayed,
        aborted: fault.is_aborted,
    }
}

fn judgement(observed: &StoredRecord) -> Option<JudgementRecord> {
    let judged = observed.judged.as_ref()?;
    let (policy, rule, default, clause) = match &judged.verdict {
        RecordedVerdict::Allow { rule } => (None, &**rule, false, ""),
        RecordedVerdict::Deny { policy, rule, default, clause } => {
            (Some(policy_name(*policy)), &**rule, *default, &**clause)
        }
        RecordedVerdict::Extension { rule, clause } => (Some(EXTENSIONS), &**rule, false, &**clause),
        RecordedVerdict::Fault { reason, .. } => (None, "", false, &**reason),
    };
    Some(JudgementRecord {
        function: judged.function.to_string(),
        verdict: observed.verdict().to_owned(),
        policy: policy.map(str::to_owned),
        rule: rule.to_owned(),
        default,
        clause: clause.to_owned(),
        audit: judged.audit.as_ref().map(|audit| {
            let (rule, clause) = audit.rule_and_clause();
            Audit { verdict: audit.word().to_owned(), rule: rule.to_owned(), clause: clause.to_owned() }
        }),
        principal: judged.principal.as_deref().map(str::to_owned),
        engine: judged.engine.map(|engine| engine.to_string()),
        remembered: judged.remembered,
        runs: judged.runs,
        sandbox_us: micros(judged.run_time),
        judge_us: micros(judged.time),
        path_changed: judged.path_changed,
        as_received: judged.as_received,
        readings: if judged.as_received { readings(observed.judged_place().1) } else { Vec::new() },
    })
}

/// The readings of a path that was kept whole, if it has another one than itself.
fn readings(path: &str) -> Vec<String> {
    let Ok(readings) = Readings::as_received(path) else { return Vec::new() };
    let is_plain = readings.others.is_empty() && readings.path == path;
    if is_plain { Vec::new() } else { readings.iter().map(str::to_owned).collect() }
}

fn signatures(observed: &StoredRecord) -> Vec<Signature> {
    let explain = |check: &SignatureCheck<Box<str>>| Signature {
        key: check.key.to_string(),
        algorithm: algorithm_name(check.algorithm).to_owned(),
        result: check.result().to_owned(),
    };
    observed.signatures.iter().map(explain).collect()
}

fn authorizer(check: &AuthorizerCheck) -> Authorizer {
    Authorizer {
        name: check.name.to_string(),
        result: check.result.to_string(),
        remembered: check.remembered,
        asked_us: micros(check.time),
    }
}

fn extensions(observed: &StoredRecord) -> Vec<ExtensionRun> {
    let explain = |run: &Observation<Box<str>>| ExtensionRun {
        name: run.name.to_string(),
        phase: run.phase.to_string(),
        result: run.ended.to_string(),
        run_us: micros(run.time),
    };
    observed.extensions.iter().map(explain).collect()
}

fn edits(edits: &[EditedHeader<Box<str>>]) -> Vec<String> {
    edits.iter().map(|edit| format!("{} {}", edit.how, edit.name)).collect()
}

fn trace(observed: &StoredRecord) -> Option<Trace> {
    let plan = observed.trace.as_ref()?;
    Some(Trace {
        trace_id: format!("{:032x}", plan.context.trace_id),
        span_id: format!("{:016x}", plan.context.span_id),
        parent_span_id: plan.parent_span.map(|parent| format!("{parent:016x}")),
        sampled: plan.context.sampled,
    })
}

fn attempts(observed: &StoredRecord) -> Vec<Attempt> {
    let explain = |attempt: &Try<Box<str>>| Attempt {
        endpoint: attempt.endpoint.map(|endpoint| endpoint.to_string()),
        result: match &attempt.result {
            AttemptResult::Status(status) => status.to_string(),
            AttemptResult::Failed(flag) => flag.to_string(),
        },
        at_us: micros(attempt.ended.saturating_duration_since(observed.started)),
    };
    observed.attempts.iter().map(explain).collect()
}

/// Microseconds, to a tenth.
fn micros(time: Duration) -> f64 {
    (time.as_nanos() / 100) as f64 / 10.0
}
