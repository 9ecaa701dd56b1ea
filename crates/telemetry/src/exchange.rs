//! The content of a record: one exchange.

use super::inputs::Inputs;
use super::names::workload;
use super::record_encoding;
use super::request_line::{self, RequestLine};
use super::stats::RevisionLabel;
use http::header::HeaderName;
use leno_http::peer::{Peer, TrafficDirection};
use leno_namespaces::Namespace;
use leno_policy::engine::EngineKind;
use leno_policy::outcome::PolicyKind;
use leno_policy::spec::{Algorithm, KeyId, ProgramSpec, Protocol};
use leno_policy::trace::TracePlan;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The recorded facts of one exchange. `S` is the type of words that are the same for many: static,
/// unless the record was kept and read again.
#[derive(Debug, Serialize, Deserialize)]
pub struct ExchangeRecord<S = &'static str> {
    /// Shared by all hops of a request. First, because kept records are searched by it.
    pub request_id: Box<str>,
    /// Direction of the request on this hop.
    pub direction: TrafficDirection,
    /// The peer that sent the request.
    #[serde(with = "record_encoding::peer")]
    pub peer: Peer,
    /// Protocol as policies see it.
    pub protocol: Protocol,
    /// The scheme that the client used: `http` or `https`.
    #[serde(skip, default)]
    pub scheme: &'static str,
    /// Method and authority as sent, and the path as judged, before edits: normalised, or as it
    /// came.
    pub request_line: RequestLine,
    /// The route that the request followed; `None`: none.
    pub route: Option<Box<RouteRecord>>,
    /// The fault that a policy injected; `None`: none.
    pub fault: Option<Box<FaultRecord>>,
    /// The callee: `namespace/name`.
    #[serde(with = "record_encoding::shared_option")]
    pub target: Option<Arc<str>>,
    /// The callee's revision that got the request.
    #[serde(with = "record_encoding::revision")]
    pub revision: Option<Arc<RevisionLabel>>,
    /// Wall clock at the start. All other times are monotonic.
    pub started_at: SystemTime,
    /// When the head was there.
    #[serde(with = "record_encoding::moment")]
    pub started: Instant,
    /// When each stage was reached, indexed by [`Stage`].
    #[serde(with = "record_encoding::moments")]
    pub stages: [Option<Instant>; 4],
    /// When the last handle to the record was dropped.
    #[serde(with = "record_encoding::moment")]
    pub ended: Instant,
    /// Set once a sandbox has run for a verdict.
    pub judged: Option<JudgementRecord<S>>,
    /// Other inputs of the verdict; `None`: the function is on another node, which judges.
    pub inputs: Option<Box<Inputs>>,
    /// Signatures that counted, or that were refused.
    pub signatures: Vec<SignatureCheck<S>>,
    /// Counters of rate limits that were taken from.
    pub rate_limit_checks: Vec<RateLimitCheck>,
    /// Calls to external authorizers, in order.
    pub authorizers: Vec<AuthorizerCheck>,
    /// Runs of extensions, in order.
    pub extensions: Vec<Observation<S>>,
    /// Names of request headers that were edited.
    pub request_edits: Vec<EditedHeader<S>>,
    /// Names of response headers that were edited.
    pub response_edits: Vec<EditedHeader<S>>,
    /// This hop's span, if tracing is on.
    pub trace: Option<TracePlan>,
    /// The program whose access log section applies; `None`: the exchange was not judged, and is
    /// logged.
    #[serde(skip)]
    pub program: Option<Arc<ProgramSpec>>,
    /// The namespace of the function that judged; `None`: it was not judged.
    #[serde(skip)]
    pub namespace: Option<Arc<Namespace>>,
    /// Values of the request headers that the configuration logs.
    #[serde(skip)]
    pub logged_headers: Vec<(HeaderName, Box<str>)>,
    /// Attempts to get a response, in order.
    pub attempts: Vec<Try<S>>,
    /// The node that the last attempt went to; `None`: this one.
    #[serde(with = "record_encoding::shared_option")]
    pub node: Option<Arc<str>>,
    /// Status of the response; 0: there was none.
    pub status: u16,
    /// Status of a gRPC call, once it is known.
    pub grpc_status: Option<u8>,
    /// Envoy's response flag.
    pub flag: Option<S>,
    /// Why there was no complete response, in words.
    pub failure: Option<Box<str>>,
    /// Bytes of the body from the client.
    pub bytes_in: u64,
    /// Bytes of the body to the client.
    pub bytes_out: u64,
    /// The exchange became a WebSocket.
    pub upgraded: bool,
}

/// A stage of an exchange. The record keeps the time of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The target is known.
    Routed,
    /// The verdict is known.
    Judged,
    /// The request was handed to the upstream for the first time.
    Upstream,
    /// The response's head has arrived.
    Head,
}

/// The route that a request followed. Request line and verdict are of different heads if the route
/// rewrote the host or the path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RouteRecord {
    /// The route: `namespace/name`.
    #[serde(with = "record_encoding::shared")]
    pub name: Arc<str>,
    /// The rule's name, or else its index.
    #[serde(with = "record_encoding::shared")]
    pub rule: Arc<str>,
    /// The match that the request met, in words.
    #[serde(with = "record_encoding::shared")]
    pub matched: Arc<str>,
    /// The back end, in words; `None`: the rule answered, or has none.
    #[serde(with = "record_encoding::shared_option")]
    pub backend: Option<Arc<str>>,
    /// The rewritten host, with its port; `None`: it stays.
    pub authority: Option<Box<str>>,
    /// The rewritten path, without query; `None`: it stays.
    pub path: Option<Box<str>>,
    /// The request is a copy for another back end.
    pub is_copy: bool,
}

impl RouteRecord {
    /// A route that has not chosen a back end yet.
    pub fn new(name: Arc<str>, rule: Arc<str>, matched: Arc<str>) -> Self {
        Self { name, rule, matched, backend: None, authority: None, path: None, is_copy: false }
    }

    /// `namespace/name/rule`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.name, self.rule)
    }
}

/// A fault that a policy injected into a permitted request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FaultRecord {
    /// `<policy>/faults/<name>`.
    #[serde(with = "record_encoding::shared")]
    pub name: Arc<str>,
    /// When the fault ends.
    pub until: SystemTime,
    /// How long the request waited; zero: it did not.
    pub delay: Duration,
    /// Too many requests were delayed already, so this one was not.
    pub is_undelayed: bool,
    /// The fault answered in place of the back end.
    pub is_aborted: bool,
}

/// The verdict and how it was reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JudgementRecord<S = &'static str> {
    /// The function whose program judged: `namespace/name`.
    #[serde(with = "record_encoding::shared")]
    pub function: Arc<str>,
    /// Engine of the run; `None`: the program is not loaded.
    pub engine: Option<EngineKind>,
    /// The decision was remembered from an equal request.
    pub remembered: bool,
    /// Number of sandbox runs for the request.
    pub runs: u8,
    /// Time in the sandbox.
    pub run_time: Duration,
    /// From the first look at the head to the verdict.
    pub time: Duration,
    /// The verdict that the judge reached.
    pub verdict: RecordedVerdict<S>,
    /// The verdict if audited policies were enforced; `None`: the same.
    pub audit: Option<RecordedVerdict<S>>,
    /// The token's principal: `<iss>/<sub>`.
    pub principal: Option<Box<str>>,
    /// Whether the path was normalised, or a token taken out of the query.
    pub path_changed: bool,
    /// Whether each reading of the path was judged, as it is forwarded as it came.
    pub as_received: bool,
}

/// A verdict as it is recorded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum RecordedVerdict<S = &'static str> {
    /// Allowed and forwarded.
    Allow {
        /// The rule that decided.
        rule: Box<str>,
    },
    /// Refused by a policy.
    Deny {
        /// Which of the nine policies.
        policy: PolicyKind,
        /// The rule that decided, or the one that came nearest.
        rule: Box<str>,
        /// No rule decided.
        default: bool,
        /// The clause that decided or missed, in words.
        clause: Box<str>,
    },
    /// An extension answered.
    Extension {
        /// The extension: `<policy>/extensions/<name>`.
        rule: Box<str>,
        /// The cause, in the extension's words.
        clause: Box<str>,
    },
    /// Refused, because there is no reliable verdict.
    Fault {
        /// Label for metrics.
        fault: S,
        /// The fault, in words.
        reason: Box<str>,
    },
}

impl<S> RecordedVerdict<S> {
    fn bound(&mut self) {
        match self {
            Self::Allow { rule } => request_line::cut(rule),
            Self::Deny { rule, clause, .. } | Self::Extension { rule, clause } => {
                request_line::cut(rule);
                request_line::cut(clause);
            }
            Self::Fault { reason, .. } => request_line::cut(reason),
        }
    }

    /// `allow`, `deny` or `error`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Allow { .. } => "allow",
            Self::Deny { .. } | Self::Extension { .. } => "deny",
            Self::Fault { .. } => "error",
        }
    }

    /// The rule that decided, or came nearest, and why.
    pub fn rule_and_clause(&self) -> (&str, &str) {
        match self {
            Self::Allow { rule } => (rule, ""),
            Self::Deny { rule, clause, .. } | Self::Extension { rule, clause } => (rule, clause),
            Self::Fault { reason, .. } => ("", reason),
        }
    }
}

impl From<leno_policy::outcome::Verdict> for RecordedVerdict {
    fn from(verdict: leno_policy::outcome::Verdict) -> Self {
        use leno_policy::outcome::{Denial, Verdict};
        match verdict {
            Verdict::Allow { rule } => Self::Allow { rule: rule.into() },
            Verdict::Deny(Denial { policy, rule, default, clause, .. }) => {
                Self::Deny { policy, rule: rule.into(), default, clause: clause.into() }
            }
        }
    }
}

/// One signature check.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SignatureCheck<S = &'static str> {
    /// ID of the key.
    pub key: KeyId,
    /// Algorithm of the signature.
    pub algorithm: Algorithm,
    /// The signature is known from an earlier request, so it was not checked again.
    pub remembered: bool,
    /// Why the signature was refused; `None`: it is good.
    pub error: Option<S>,
}

impl SignatureCheck {
    /// `good`, `remembered`, or why the signature was refused.
    pub fn result(&self) -> &'static str {
        result(self.remembered, self.error)
    }
}

impl SignatureCheck<Box<str>> {
    /// The same, of a record that was kept.
    pub fn result(&self) -> &str {
        result(self.remembered, self.error.as_deref())
    }
}

fn result(remembered: bool, error: Option<&str>) -> &str {
    if remembered { "remembered" } else { error.unwrap_or("good") }
}

/// A counter of a rate limit that was taken from, or that refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RateLimitCheck {
    /// Name of the rate limit.
    pub limit: Box<str>,
    /// Requests that are left; `None`: the counter refused.
    pub remaining: Option<u32>,
    /// The rate limit has no room for more counters, so this counter counts other keys too.
    pub shared: bool,
}

/// The result of a call to an external authorizer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuthorizerCheck {
    /// The authorizer: `<policy>/externalAuthorization/<name>`.
    pub name: Box<str>,
    /// `allowed`, or why it did not.
    pub result: Box<str>,
    /// The answer is known from an earlier request, so there was no call.
    pub remembered: bool,
    /// Until the answer was there.
    pub time: Duration,
}

/// A header that a program edited. Its value is not recorded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EditedHeader<S = &'static str> {
    /// The edit: `set`, `append` or `remove`.
    pub how: S,
    /// Name of the header.
    #[serde(with = "record_encoding::name")]
    pub name: HeaderName,
}

/// One attempt to get a response.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Try<S = &'static str> {
    /// The endpoint; `None`: not even an endpoint was found.
    pub endpoint: Option<SocketAddr>,
    /// How it ended.
    pub result: AttemptResult<S>,
    /// When it ended.
    #[serde(with = "record_encoding::moment")]
    pub ended: Instant,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttemptResult<S = &'static str> {
    /// With a response of this status.
    Status(u16),
    /// Without a response. Holds Envoy's response flag.
    Failed(S),
}

impl ExchangeRecord {
    /// Cuts texts of policies and peers to the limits of a record.
    pub(super) fn bound(&mut self) {
        if let Some(judged) = &mut self.judged {
            judged.verdict.bound();
            judged.audit.iter_mut().for_each(RecordedVerdict::bound);
            judged.principal.iter_mut().for_each(request_line::cut);
        }
        self.failure.iter_mut().for_each(request_line::cut);
        if let Some(route) = &mut self.route {
            route.authority.iter_mut().chain(&mut route.path).for_each(request_line::cut);
        }
        request_line::cut_list(&mut self.signatures);
        request_line::cut_list(&mut self.rate_limit_checks);
        request_line::cut_list(&mut self.authorizers);
        self.authorizers.iter_mut().for_each(|check| request_line::cut(&mut check.result));
        request_line::cut_list(&mut self.extensions);
        request_line::cut_list(&mut self.request_edits);
        request_line::cut_list(&mut self.response_edits);
        for run in &mut self.extensions {
            if let ExtensionOutcome::Failed { reason, .. } = &mut run.ended {
                request_line::cut(reason);
            }
        }
    }
}

impl<S> ExchangeRecord<S> {
    /// Name of the revision that got the request; `None`: none did, or revisions are not numbered.
    pub fn revision_name(&self) -> Option<&Arc<str>> {
        self.revision.as_ref().filter(|revision| revision.number > 0).map(|revision| &revision.name)
    }

    /// Time from the start to a stage.
    pub fn until(&self, stage: Stage) -> Option<Duration> {
        self.stages[stage as usize].map(|instant| instant.saturating_duration_since(self.started))
    }

    /// Time from the start to the end.
    pub fn duration(&self) -> Duration {
        self.ended.saturating_duration_since(self.started)
    }

    /// Time from handing the request to the upstream to the response's head.
    pub fn upstream_time(&self) -> Option<Duration> {
        let (sent, head) = (self.stages[Stage::Upstream as usize]?, self.stages[Stage::Head as usize]?);
        Some(head.saturating_duration_since(sent))
    }

    /// Host, with port if given, and path as judged: those that the route wrote, or else as sent.
    pub fn judged_place(&self) -> (&str, &str) {
        let route = self.route.as_deref();
        let authority = route.and_then(|route| route.authority.as_deref());
        let path = route.and_then(|route| route.path.as_deref());
        (authority.unwrap_or(self.request_line.authority()), path.unwrap_or(self.request_line.path()))
    }

    /// `allow` or `deny`; `error` if there is no verdict, or none that could be relied on.
    pub fn verdict(&self) -> &'static str {
        self.judged.as_ref().map_or("error", |judged| judged.verdict.word())
    }

    /// Namespace and name of the caller, if it is a function of the mesh.
    pub fn source(&self) -> Option<(&str, &str)> {
        workload(self.peer.identity.as_deref()?)
    }
}

/// One run of an extension.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Observation<S = &'static str> {
    /// The extension: `<policy>/extensions/<name>`.
    #[serde(with = "record_encoding::shared")]
    pub name: Arc<str>,
    /// The phase: `request` or `response`.
    pub phase: S,
    /// How it ended.
    pub ended: ExtensionOutcome<S>,
    /// Time of the run, with the start of its instance.
    pub time: Duration,
}

/// How a run ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ExtensionOutcome<S = &'static str> {
    /// The exchange went on.
    Continued,
    /// The extension answered with this status.
    Answered(u16),
    /// The run failed. The exchange was refused, or went on if `open` is true.
    Failed {
        /// Label for metrics.
        label: S,
        /// The fault, in words.
        reason: Box<str>,
        /// The exchange went on in spite of the failure.
        open: bool,
    },
}

impl ExtensionOutcome {
    /// Labels for metrics: the result of the run, and the failed part.
    pub fn labels(&self) -> (&'static str, &'static str) {
        match self {
            Self::Continued => ("continued", ""),
            Self::Answered(_) => ("answered", ""),
            Self::Failed { label, open: true, .. } => ("passed_over", label),
            Self::Failed { label, open: false, .. } => ("refused", label),
        }
    }
}

impl<S> fmt::Display for ExtensionOutcome<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Continued => formatter.write_str("continued"),
            Self::Answered(status) => write!(formatter, "answered with {status}"),
            Self::Failed { reason, open: true, .. } => write!(formatter, "failed and was passed over: {reason}"),
            Self::Failed { reason, open: false, .. } => write!(formatter, "failed: {reason}"),
        }
    }
}
