//! One record per exchange: what was asked, what was decided and by which rule, what came back, and how long each stage took.
//!
//! Denied or allowed, answered or broken off: every exchange has one, and when its last handle is dropped it is told once to the
//! metrics, the access log, the trace, and the ring that `leno explain` reads.

use crate::access_log;
use crate::failure::Failure;
use crate::metrics;
use crate::peer::{Entrance, Peer};
use crate::ring;
use crate::span;
use crate::telemetry::Telemetry;
use http::header::{HeaderName, HeaderValue};
use http::{Method, Uri, request};
use leno_policy::outcome::{LogPlan, PolicyKind, TracePlan};
use leno_policy::spec::{Algorithm, KeyId, Protocol};
use leno_sandbox::EngineKind;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// A handle to one exchange's record. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct Record(Rc<Open>);

#[derive(Debug)]
struct Open {
    recorder: Rc<Recorder>,
    observed: RefCell<Option<Observed>>,
}

/// Where one worker's records go. It owns its shard of each, so that workers do not wait for each other.
#[derive(Debug)]
pub struct Recorder {
    metrics: Arc<metrics::Shard>,
    ring: Arc<ring::Shard>,
    log: Option<access_log::Lines>,
    spans: Option<span::Sender>,
}

impl Recorder {
    /// For one worker.
    pub fn new(telemetry: &Telemetry) -> Rc<Self> {
        Rc::new(Self {
            metrics: telemetry.metrics.shard(),
            ring: telemetry.ring.shard(),
            log: telemetry.log.as_ref().map(access_log::AccessLog::lines),
            spans: telemetry.spans.as_ref().map(span::Spans::sender),
        })
    }

    /// This worker's metrics.
    pub fn metrics(&self) -> &metrics::Shard {
        &self.metrics
    }

    fn tell(&self, observed: Observed) {
        self.metrics.observe(&observed);
        if let Some(lines) = &self.log {
            lines.write(&observed);
        }
        if let Some(spans) = &self.spans {
            spans.send(&observed);
        }
        self.ring.push(observed);
    }
}

/// A point on an exchange's way, noted with the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The target is known.
    Routed,
    /// The verdict is there.
    Judged,
    /// The request was handed to the upstream for the first time.
    Upstream,
    /// The response's head is there.
    Head,
}

/// Everything that is known of one exchange.
#[derive(Debug)]
pub struct Observed {
    /// Shared by all hops of a request.
    pub request_id: Box<str>,
    /// Where it came in.
    pub entrance: Entrance,
    /// From whom.
    pub peer: Peer,
    /// As policies see it.
    pub protocol: Protocol,
    /// As sent.
    pub method: Method,
    /// As sent, before edits.
    pub uri: Uri,
    /// As sent; HTTP/1.1's authority.
    pub host: Option<HeaderValue>,
    /// `namespace/name`.
    pub target: Option<Arc<str>>,
    /// Wall clock at the start; all else is monotonic.
    pub started_at: SystemTime,
    /// When the head was there.
    pub started: Instant,
    /// Indexed by [`Stage`].
    pub stages: [Option<Instant>; 4],
    /// When the last handle was dropped.
    pub ended: Instant,
    /// Set once the sandbox was asked.
    pub judged: Option<Judged>,
    /// Signatures that counted, or were found wanting.
    pub signatures: Vec<SignatureCheck>,
    /// Counters that were taken from.
    pub takes: Vec<QuotaTake>,
    /// Names of request headers that were edited.
    pub request_edits: Vec<EditedHeader>,
    /// Names of response headers that were edited.
    pub response_edits: Vec<EditedHeader>,
    /// This hop's span, if tracing is on.
    pub trace: Option<TracePlan>,
    /// Whether and what to log; `None`: it was not judged, and is logged.
    pub log: Option<LogPlan>,
    /// Values of the request headers that are configured to be logged.
    pub logged_headers: Vec<(HeaderName, HeaderValue)>,
    /// Tries, in order.
    pub attempts: Vec<Try>,
    /// Of the response; 0: there was none.
    pub status: u16,
    /// Of a gRPC call, once known.
    pub grpc_status: Option<u8>,
    /// Envoy's response flag.
    pub flag: Option<&'static str>,
    /// Why there was no whole response, in words.
    pub failure: Option<Box<str>>,
    /// Body bytes from the client.
    pub bytes_in: u64,
    /// Body bytes to the client.
    pub bytes_out: u64,
    /// It became a WebSocket.
    pub upgraded: bool,
}

/// What the judge found.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The function whose program this was: `namespace/name`.
    pub function: Arc<str>,
    /// Isolation of the run.
    pub engine: Option<EngineKind>,
    /// Request runs.
    pub runs: u8,
    /// Time in the sandbox, request and response runs together.
    pub run_time: Duration,
    /// From the first look at the head to the verdict.
    pub time: Duration,
    /// The verdict.
    pub verdict: Ruled,
    /// `<iss>/<sub>` of the token.
    pub principal: Option<Box<str>>,
    /// The path was normalised.
    pub path_changed: bool,
}

/// A verdict, as it is logged.
#[derive(Clone, Debug)]
pub enum Ruled {
    /// Forwarded.
    Allow {
        /// The rule that decided.
        rule: Box<str>,
    },
    /// Refused by a policy.
    Deny {
        /// Which of the nine.
        policy: PolicyKind,
        /// The rule that decided, or the nearest.
        rule: Box<str>,
        /// No rule decided.
        default: bool,
        /// In words.
        clause: Box<str>,
    },
    /// There is no verdict that could be relied on; refused.
    Fault {
        /// A label for metrics.
        fault: &'static str,
        /// In words.
        reason: Box<str>,
    },
}

/// One signature check.
#[derive(Clone, Copy, Debug)]
pub struct SignatureCheck {
    /// The key.
    pub key: KeyId,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Known from an earlier request; no check was needed.
    pub remembered: bool,
    /// `None`: good.
    pub error: Option<&'static str>,
}

impl SignatureCheck {
    /// `good`, `remembered`, or what was wrong.
    pub fn result(&self) -> &'static str {
        if self.remembered { "remembered" } else { self.error.unwrap_or("good") }
    }
}

/// One counter that was taken from, or refused.
#[derive(Clone, Debug)]
pub struct QuotaTake {
    /// Name of the rate limit.
    pub limit: Box<str>,
    /// What is left in requests; `None`: it refused.
    pub remaining: Option<u32>,
}

/// A header that a program edited; its value is nobody's business.
#[derive(Clone, Debug)]
pub struct EditedHeader {
    /// `set`, `append` or `remove`.
    pub how: &'static str,
    /// Which.
    pub name: HeaderName,
}

/// One try to get a response.
#[derive(Clone, Copy, Debug)]
pub struct Try {
    /// Where it went; `None`: not even an endpoint was found.
    pub endpoint: Option<SocketAddr>,
    /// How it ended.
    pub result: AttemptResult,
    /// When it ended.
    pub ended: Instant,
}

/// How a try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// With a response.
    Status(u16),
    /// Without; Envoy's response flag.
    Failed(&'static str),
}

impl Record {
    /// Opens a record, with the clock read for both the record and the judge.
    pub fn new(
        recorder: &Rc<Recorder>,
        entrance: Entrance,
        peer: &Peer,
        protocol: Protocol,
        head: &request::Parts,
        request_id: &str,
    ) -> Self {
        let started = Instant::now();
        let host = if head.uri.authority().is_none() { head.headers.get(http::header::HOST).cloned() } else { None };
        let observed = Observed {
            request_id: request_id.into(),
            entrance,
            peer: peer.clone(),
            protocol,
            method: head.method.clone(),
            uri: head.uri.clone(),
            host,
            target: None,
            started_at: SystemTime::now(),
            started,
            stages: [None; 4],
            ended: started,
            judged: None,
            signatures: Vec::new(),
            takes: Vec::new(),
            request_edits: Vec::new(),
            response_edits: Vec::new(),
            trace: None,
            log: None,
            logged_headers: Vec::new(),
            attempts: Vec::new(),
            status: 0,
            grpc_status: None,
            flag: None,
            failure: None,
            bytes_in: 0,
            bytes_out: 0,
            upgraded: false,
        };
        Self(Rc::new(Open { recorder: recorder.clone(), observed: RefCell::new(Some(observed)) }))
    }

    /// Notes that a stage is reached, the first time it is.
    pub fn stage(&self, stage: Stage) {
        self.note(|observed| {
            observed.stages[stage as usize].get_or_insert_with(Instant::now);
        });
    }

    /// The function that this is for: `namespace/name`.
    pub fn routed(&self, target: &Arc<str>) {
        self.note(|observed| observed.target = Some(target.clone()));
    }

    /// Status of the response, the proxy's own included.
    pub fn status(&self, status: u16) {
        self.note(|observed| observed.status = status);
    }

    /// Status of the gRPC call.
    pub fn grpc_status(&self, status: u8) {
        self.note(|observed| observed.grpc_status = Some(status));
    }

    /// More of the request's body came.
    pub fn request_bytes(&self, bytes: u64) {
        self.note(|observed| observed.bytes_in += bytes);
    }

    /// More of the response's body went.
    pub fn response_bytes(&self, bytes: u64) {
        self.note(|observed| observed.bytes_out += bytes);
    }

    /// The exchange failed, or broke off; the first cause counts.
    pub fn failure(&self, failure: &Failure) {
        self.note(|observed| {
            if observed.failure.is_none() {
                observed.flag = Some(failure.flag());
                observed.failure = Some(failure.to_string().into());
            }
        });
    }

    /// A try is over, the first included.
    pub fn attempt(&self, endpoint: Option<SocketAddr>, result: AttemptResult) {
        let attempt = Try { endpoint, result, ended: Instant::now() };
        self.note(|observed| observed.attempts.push(attempt));
    }

    /// It became a WebSocket.
    pub fn upgraded(&self) {
        self.note(|observed| observed.upgraded = true);
    }

    /// The id that all hops of this request share.
    pub fn request_id(&self) -> Box<str> {
        self.note(|observed| observed.request_id.clone()).unwrap_or_default()
    }

    /// When it began: monotonic, and in milliseconds since the Unix epoch.
    pub fn started(&self) -> (Instant, u64) {
        let times = self.note(|observed| (observed.started, unix_ms(observed.started_at)));
        times.unwrap_or_else(|| (Instant::now(), unix_ms(SystemTime::now())))
    }

    /// This worker's metrics.
    pub fn metrics(&self) -> &metrics::Shard {
        self.0.recorder.metrics()
    }

    /// What is known so far; the record will not be told.
    #[cfg(test)]
    pub(crate) fn take(&self) -> Observed {
        self.0.observed.borrow_mut().take().unwrap()
    }

    /// Lets the judge add what it knows. `None`: the record is being told already (only possible from within its own drop).
    pub(crate) fn note<R>(&self, note: impl FnOnce(&mut Observed) -> R) -> Option<R> {
        self.0.observed.borrow_mut().as_mut().map(note)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(mut observed) = self.observed.get_mut().take() {
            observed.ended = Instant::now();
            if observed.status == 0 && observed.flag.is_none() {
                // Nobody answered and nobody failed: the exchange's future was dropped, because its connection was.
                observed.flag = Some("DC");
            }
            self.recorder.tell(observed);
        }
    }
}

impl Observed {
    /// From the start to a stage.
    pub fn until(&self, stage: Stage) -> Option<Duration> {
        self.stages[stage as usize].map(|instant| instant.saturating_duration_since(self.started))
    }

    /// From the start to the end.
    pub fn duration(&self) -> Duration {
        self.ended.saturating_duration_since(self.started)
    }

    /// From the hand-over to the upstream to the response's head.
    pub fn upstream_time(&self) -> Option<Duration> {
        let (sent, head) = (self.stages[Stage::Upstream as usize]?, self.stages[Stage::Head as usize]?);
        Some(head.saturating_duration_since(sent))
    }

    /// `allow`, `deny`, or `error`: there is no verdict, or none that could be relied on.
    pub fn verdict(&self) -> &'static str {
        match self.judged.as_ref().map(|judged| &judged.verdict) {
            Some(Ruled::Allow { .. }) => "allow",
            Some(Ruled::Deny { .. }) => "deny",
            Some(Ruled::Fault { .. }) | None => "error",
        }
    }

    /// Host (and port) that was asked for.
    pub fn authority(&self) -> &str {
        match (self.uri.authority(), &self.host) {
            (Some(authority), _) => authority.as_str(),
            (None, Some(host)) => host.to_str().unwrap_or(""),
            (None, None) => "",
        }
    }

    /// `ns/name` of the caller, if it is one of the mesh.
    pub fn source(&self) -> Option<(&str, &str)> {
        workload(self.peer.identity.as_deref()?)
    }
}

/// Namespace and name in `spiffe://td/ns/<namespace>/sa/<name>`.
pub fn workload(identity: &str) -> Option<(&str, &str)> {
    let path = identity.strip_prefix("spiffe://")?.split_once('/')?.1;
    let (namespace, name) = path.strip_prefix("ns/")?.split_once("/sa/")?;
    (!namespace.contains('/') && !name.contains('/')).then_some((namespace, name))
}

/// A policy's name in logs and metrics.
pub fn policy_name(policy: PolicyKind) -> &'static str {
    match policy {
        PolicyKind::Authentication => "authentication",
        PolicyKind::Sidecar => "sidecar",
        PolicyKind::Authorization => "authorization",
        PolicyKind::RateLimit => "rateLimits",
        PolicyKind::Tracing => "tracing",
        PolicyKind::AccessLog => "accessLog",
        PolicyKind::MutualTls => "mutualTls",
        PolicyKind::Retry => "retry",
        PolicyKind::CircuitBreaker => "circuitBreaker",
    }
}

/// Milliseconds since the Unix epoch; 0 before it.
pub fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// How entrances are called in logs and spans.
pub fn entrance_name(entrance: Entrance) -> &'static str {
    match entrance {
        Entrance::Gateway => "gateway",
        Entrance::Outbound => "outbound",
        Entrance::Inbound => "inbound",
    }
}

/// How protocols are called in logs and spans.
pub fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http1 => "http1",
        Protocol::Http2 => "http2",
        Protocol::Grpc => "grpc",
        Protocol::WebSocket => "websocket",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Explanation;
    use http::Request;

    fn record(telemetry: &Telemetry) -> Record {
        let (head, ()) = Request::get("/a?secret").header("host", "shop.example").body(()).unwrap().into_parts();
        let peer = Peer { identity: None, address: ([192, 0, 2, 1], 4711).into() };
        Record::new(&Recorder::new(telemetry), Entrance::Gateway, &peer, Protocol::Http1, &head, "req-1")
    }

    fn told(telemetry: &Telemetry) -> Vec<Explanation> {
        telemetry.ring.explain("req-1")
    }

    #[test]
    fn is_told_once_when_the_last_handle_is_dropped() {
        let telemetry = Telemetry::quiet("td.example");
        let record = record(&telemetry);
        let body = record.clone();
        record.status(200);
        drop(record);
        assert!(told(&telemetry).is_empty(), "the body still holds it");
        body.response_bytes(5);
        body.response_bytes(7);
        drop(body);
        let [told] = &told(&telemetry)[..] else { panic!("not told once") };
        assert_eq!((told.response.status, told.response.bytes_out), (200, 12));
        assert_eq!(told.asked.authority, "shop.example");
    }

    #[test]
    fn an_exchange_that_nobody_answers_was_left_by_its_client() {
        let telemetry = Telemetry::quiet("td.example");
        drop(record(&telemetry));
        assert_eq!(told(&telemetry)[0].response.flag.as_deref(), Some("DC"));
    }

    #[test]
    fn the_first_cause_and_the_first_time_of_a_stage_count() {
        let telemetry = Telemetry::quiet("td.example");
        let record = record(&telemetry);
        record.failure(&Failure::NoRoute);
        record.failure(&Failure::ClientGone);
        record.stage(Stage::Routed);
        let routed = record.note(|observed| observed.stages[0]);
        record.stage(Stage::Routed);
        assert_eq!(record.note(|observed| observed.stages[0]), routed);
        drop(record);
        let told = told(&telemetry).remove(0);
        assert_eq!(told.response.flag.as_deref(), Some("NR"));
        assert!(told.judgement.is_none() && told.response.failure.is_some());
    }

    #[test]
    fn what_is_dropped_while_unwinding_is_told_too() {
        let telemetry = Telemetry::quiet("td.example");
        let record = record(&telemetry);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _record = record;
            panic!("in the middle of an exchange");
        }));
        assert!(result.is_err());
        assert_eq!(told(&telemetry).len(), 1);
    }

    #[test]
    fn workloads_are_read_from_spiffe_ids() {
        assert_eq!(workload("spiffe://td.example/ns/shop/sa/orders"), Some(("shop", "orders")));
        for other in ["", "spiffe://td.example", "spiffe://td.example/shop/orders", "https://td.example/ns/a/sa/b"] {
            assert_eq!(workload(other), None, "{other}");
        }
        assert_eq!(workload("spiffe://td.example/ns/a/b/sa/c"), None);
    }
}
