//! Carries out a program's decision: validates it, takes from the counters, edits the head.

use super::extend::{self, ResponseExtensions};
use super::request_snapshot::RequestSnapshot;
use super::{Evaluation, JudgeError, Judgement};
use crate::state::extension::Extension;
use crate::state::function::FunctionEntry;
use crate::state::health::{RequestGuard, TargetHealth};
use crate::state::limits::{Demand, Grant, LimitRefusal};

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName};
use http::uri::PathAndQuery;
use http::{StatusCode, Uri, request};
use leno_http::edits;
use leno_http::edits::{BadOutput, Edit};
use leno_http::peer::TrafficDirection;
use leno_policy::input::TraceContext;
use leno_policy::outcome::{Decision, Denial, HeaderEdit, MAX_TAKES, Plan, PolicyKind, Take, TracePlan, Verdict};
use leno_policy::path::Readings;
use leno_policy::quota;
use leno_policy::spec::Target;
use leno_sandbox::{Fault, RunError};
use leno_telemetry::exchange::{EditedHeader, RateLimitCheck, RecordedVerdict};
use leno_telemetry::record::Record;
use leno_telemetry::request_line;
use std::cell::RefCell;
use std::sync::Arc;

/// A request that may be forwarded. Only the judge can make one.
#[derive(Debug)]
pub struct PermittedRequest {
    pub(super) head: Box<request::Parts>,
    pub(super) permit: Permit,
    asked: RequestSnapshot,
    until_ms: Option<u64>,
}

impl PermittedRequest {
    /// Whether external authorizers must be asked first.
    pub fn has_asks(&self) -> bool {
        !self.permit.asks.is_empty()
    }

    /// Takes the authorizers to ask: indices of the function's authorizers.
    pub(crate) fn take_asks(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.permit.asks)
    }

    /// The head as it would be forwarded.
    pub(crate) fn head(&self) -> &request::Parts {
        &self.head
    }

    /// The function whose program judged.
    pub(crate) fn entry(&self) -> &Arc<FunctionEntry> {
        &self.permit.entry
    }

    /// The head with each other reading of its path, if the path is forwarded as it came.
    /// Extensions and authorizers have to allow each reading.
    pub(crate) fn other_heads(&self) -> Result<Vec<request::Parts>, BadOutput> {
        if !self.permit.terms().as_received {
            return Ok(Vec::new());
        }
        // The program has permitted no path without readings.
        let sent = self.head.uri.path();
        let readings = Readings::as_received(sent).map_err(|_| BadOutput::Path)?;
        let query = self.head.uri.query().map(|query| ["?", query].concat()).unwrap_or_default();
        let with_path = |path: &str| {
            let mut head = request::Parts::clone(&self.head);
            let mut parts = std::mem::take(&mut head.uri).into_parts();
            let path = PathAndQuery::try_from([path, query.as_str()].concat()).map_err(|_| BadOutput::Path)?;
            parts.path_and_query = Some(path);
            head.uri = Uri::from_parts(parts).map_err(|_| BadOutput::Path)?;
            Ok(head)
        };
        readings.iter().filter(|path| *path != sent).map(with_path).collect()
    }

    /// The context of this hop's span.
    pub(crate) fn trace(&self) -> Option<TraceContext> {
        self.permit.trace.as_ref().map(|trace| trace.context)
    }

    /// Edits the head.
    pub(crate) fn edit(&mut self, edits: Vec<Edit>, record: &Record) {
        record.note(|observed| observed.request_edits.extend(edits.iter().map(edited)));
        edits::apply(edits, &mut self.head.headers);
    }

    /// Whether the function has extensions in this direction.
    pub fn has_extensions(&self) -> bool {
        !self.extensions().is_empty()
    }

    /// How many of its extensions see the response.
    pub fn response_extensions(&self) -> u32 {
        let kept = self.extensions().iter().filter(|extension| extension.response).count();
        u32::try_from(kept).unwrap_or(u32::MAX)
    }

    fn extensions(&self) -> &[Extension] {
        extend::extensions(&self.permit.entry, self.permit.direction)
    }

    /// The edited head, and the decision on the exchange.
    pub fn into_parts(self) -> (Box<request::Parts>, Permit) {
        (self.head, self.permit)
    }

    /// Takes the request as the program saw it.
    pub(crate) fn take_asked(&mut self) -> RequestSnapshot {
        std::mem::take(&mut self.asked)
    }

    /// Until when the verdict holds, in Unix milliseconds; `None`: until something changes.
    pub(crate) fn until_ms(&self) -> Option<u64> {
        self.until_ms
    }
}

/// The decision on a permitted exchange. It holds until the exchange ends.
#[derive(Debug)]
pub struct Permit {
    /// This hop's span; `None`: tracing is off.
    pub trace: Option<TracePlan>,
    /// The function whose program judged.
    pub entry: Arc<FunctionEntry>,
    /// Where the request came in.
    pub direction: TrafficDirection,
    /// Load of the target, and health of its endpoints.
    pub target: Arc<TargetHealth>,
    /// Index into the program's targets. It is checked when the permit is made.
    terms: usize,
    /// The authorizers to ask: indices of the function's authorizers. They are checked when the
    /// permit is made.
    asks: Vec<u16>,
    response_edits: RefCell<Vec<Edit>>,
    /// The extensions' state for the response.
    pub(super) response_extensions: RefCell<ResponseExtensions>,
    /// Counts the request as in flight until the permit is dropped.
    _in_flight: Option<RequestGuard>,
}

impl Permit {
    /// Time limit, retries and circuit breaker of this exchange.
    pub fn terms(&self) -> &Target {
        &super::program(&self.entry, self.direction).spec.targets[self.terms]
    }

    /// Applies the response edits decided with the request, then those of the response's own run.
    pub(super) fn edit_response(&self, more: Vec<Edit>, headers: &mut HeaderMap, record: &Record) {
        for edits in [self.response_edits.take(), more] {
            record.note(|observed| observed.response_edits.extend(edits.iter().map(edited)));
            edits::apply(edits, headers);
        }
    }
}

/// A refusal, or an extension's own response, as the client sees it. The reason is in the record
/// only.
#[derive(Debug)]
pub struct Refusal {
    /// 4xx or 5xx. An extension's own response may also be 2xx or 3xx.
    pub status: StatusCode,
    /// Header fields of the response.
    pub headers: HeaderMap,
    /// An extension's own response: its body, and the status of a gRPC call.
    pub own: Option<Box<(Bytes, Option<u8>)>>,
}

impl Evaluation<'_> {
    /// Applies the program's decision, be it to allow or to deny.
    pub(super) async fn carry_out(
        &mut self,
        decision: Decision,
        head: Box<request::Parts>,
        now_ms: u64,
    ) -> Result<Judgement, JudgeError> {
        self.note_plan(decision.plan.trace.as_ref(), &head)?;
        self.runs.principal = decision.principal.map(String::into_boxed_str);
        self.runs.audit = decision.audit.map(RecordedVerdict::from);
        let until_ms = decision.until_ms;
        match decision.verdict {
            Verdict::Deny(denial) => self.deny(denial, decision.response_edits, &decision.takes, now_ms).await,
            Verdict::Allow { rule } => {
                let takes = decision.takes;
                let edited = ValidEdits {
                    path: decision
                        .path
                        .filter(|path| head.uri.path_and_query().is_none_or(|sent| sent != path.as_str())),
                    request: edits::check(decision.request_edits)?,
                    response: edits::check(decision.response_edits)?,
                };
                self.permit((rule, until_ms), takes, edited, decision.plan, head, now_ms).await
            }
        }
    }

    /// Permits the request if the current counters still allow it: takes an in-flight slot and from
    /// every counter, or nothing.
    async fn permit(
        &mut self,
        (rule, until_ms): (String, Option<u64>),
        takes: Vec<Take>,
        edited: ValidEdits,
        plan: Plan,
        mut head: Box<request::Parts>,
        now_ms: u64,
    ) -> Result<Judgement, JudgeError> {
        let Some((state, index)) = self.target.zip(plan.target) else { return Err(JudgeError::NoTarget) };
        let target = state.health.clone();
        let (terms, targets) = (usize::from(index), &self.program.spec.targets);
        let breaker = match targets.get(terms) {
            Some(terms) if *terms.function == *state.name => {
                self.runs.as_received = terms.as_received;
                terms.breaker.as_ref()
            }
            _ => return Err(BadOutput::Index { what: "target", index: terms, count: targets.len() }.into()),
        };
        let authorizers = self.input.entry.authorizers.len();
        edits::at_most("questions", plan.asks.len(), authorizers)?;
        if let Some(index) = plan.asks.iter().map(|index| usize::from(*index)).find(|index| *index >= authorizers) {
            return Err(BadOutput::Index { what: "authorizer", index, count: authorizers }.into());
        }
        let asked = RequestSnapshot::copy(&head);
        if let Some(path) = edited.path {
            replace_path(&mut head, path)?;
            self.runs.path_changed = true;
        }
        let in_flight = match self.input.direction {
            // The caller's sidecar holds the slot.
            TrafficDirection::Inbound => None,
            TrafficDirection::Gateway | TrafficDirection::Outbound => {
                let guard = target.acquire_request(breaker.map(|breaker| breaker.max_requests));
                if let (None, Some(breaker)) = (&guard, breaker) {
                    return self.refuse(overflow(breaker), Vec::new()).map(Judgement::Denied);
                }
                guard
            }
        };
        if let Some((denial, edits)) = self.take(&takes, now_ms).await? {
            drop(in_flight);
            return self.refuse(denial, edits).map(Judgement::Denied);
        }
        self.record.note(|observed| observed.request_edits = edited.request.iter().map(self::edited).collect());
        edits::apply(edited.request, &mut head.headers);
        self.runs.verdict = Some(RecordedVerdict::Allow { rule: rule.into() });
        let permit = Permit {
            trace: plan.trace,
            terms,
            asks: plan.asks,
            entry: self.input.entry.clone(),
            direction: self.input.direction,
            target,
            response_edits: edited.response.into(),
            response_extensions: RefCell::default(),
            _in_flight: in_flight,
        };
        Ok(Judgement::Permitted(PermittedRequest { head, permit, asked, until_ms }))
    }

    /// Refuses the request, and counts it against the limits that count failures. If such a limit
    /// is exhausted, its own denial takes the place of this one.
    pub(super) async fn deny(
        &mut self,
        denial: Denial,
        response_edits: Vec<HeaderEdit>,
        failure: &[Take],
        now_ms: u64,
    ) -> Result<Judgement, JudgeError> {
        let (denial, edits) = self.take(failure, now_ms).await?.unwrap_or((denial, response_edits));
        self.refuse(denial, edits).map(Judgement::Denied)
    }

    /// Takes from all counters, or from none. Returns the denial if one is exhausted. Waits only if
    /// a store keeps the counters and this node holds too small a part of one.
    async fn take(&mut self, takes: &[Take], now_ms: u64) -> Result<Option<(Denial, Vec<HeaderEdit>)>, JudgeError> {
        if takes.is_empty() {
            return Ok(None);
        }
        edits::at_most("takes", takes.len(), MAX_TAKES)?;
        let limits = &self.program.spec.rate_limits;
        let demand = |take: &'_ Take| {
            let index = usize::from(take.limit);
            let limit = limits.get(index).ok_or(BadOutput::Index { what: "rate limit", index, count: limits.len() })?;
            Ok((limit, take.cost))
        };
        let mut demands = takes
            .iter()
            .map(|take| demand(take).map(|(limit, cost)| Demand { limit, key: &take.key, cost }))
            .collect::<Result<Vec<_>, BadOutput>>()?;
        let taken = loop {
            match self.state.limits.take_or_wait(&demands, now_ms).await {
                // An audited limit refuses no request.
                Err(refused) if demands.get(refused.index).is_some_and(|demand| demand.limit.audit) => {
                    let limit = demands.remove(refused.index).limit;
                    self.runs.audit.get_or_insert_with(|| Verdict::Deny(denial(&limit.name, &refused)).into());
                }
                taken => break taken,
            }
        };
        match taken {
            Ok(granted) => {
                self.record.note(|observed| {
                    let checks = demands.iter().zip(granted).map(|(demand, Grant { taken, shared })| RateLimitCheck {
                        limit: demand.limit.name.as_str().into(),
                        remaining: Some(taken.remaining),
                        shared,
                    });
                    observed.rate_limit_checks = checks.collect();
                });
                Ok(None)
            }
            Err(refused) => {
                let LimitRefusal { index, taken, shared, .. } = refused;
                let name = demands.get(index).map_or("", |demand| demand.limit.name.as_str());
                self.record.note(|observed| {
                    observed.rate_limit_checks.push(RateLimitCheck { limit: name.into(), remaining: None, shared });
                });
                // Another request used up the limit after the program's run, or the limit counts
                // failures, or the program could not know.
                Ok(Some((denial(name, &refused), quota::limit_headers(&taken).into())))
            }
        }
    }

    /// Turns a denial into the client's response and the record's verdict.
    pub(super) fn refuse(&mut self, denial: Denial, response_edits: Vec<HeaderEdit>) -> Result<Refusal, JudgeError> {
        let status = edits::check_status(denial.status)?;
        let mut headers = HeaderMap::new();
        for (name, value) in edits::check_fields(denial.headers)? {
            headers.append(name, value);
        }
        let response_edits = edits::check(response_edits)?;
        self.record.note(|observed| {
            observed.response_edits.extend(response_edits.iter().map(edited));
            observed.flag = flag(denial.policy);
        });
        edits::apply(response_edits, &mut headers);
        let mut targets = self.program.spec.targets.iter().filter(|target| target.as_received);
        self.runs.as_received = self.target.is_some_and(|state| targets.any(|target| *target.function == *state.name));
        self.runs.verdict = Some(RecordedVerdict::Deny {
            policy: denial.policy,
            rule: denial.rule.into(),
            default: denial.default,
            clause: denial.clause.into(),
        });
        Ok(Refusal { status, headers, own: None })
    }

    /// Refuses the request, because there is no verdict to rely on.
    pub(super) fn give_up(&mut self, error: JudgeError) -> Refusal {
        let (status, recorded) = describe(&error);
        self.runs.verdict = Some(recorded);
        Refusal { status, headers: HeaderMap::new(), own: None }
    }

    /// Records what to trace and to log. This also holds for denied requests.
    pub(super) fn note_plan(&self, trace: Option<&TracePlan>, head: &request::Parts) -> Result<(), JudgeError> {
        if let Some(trace) = trace
            && (trace.context.trace_id == 0 || trace.context.span_id == 0)
        {
            return Err(BadOutput::TraceContext.into());
        }
        let logged = &self.program.spec.access_log.request_headers;
        let named = logged.iter().filter_map(|name| HeaderName::try_from(name.as_str()).ok());
        let values = request_line::values(
            named.flat_map(|name| head.headers.get_all(&name).iter().map(move |value| (name.clone(), value))),
        );
        self.record.note(|observed| {
            observed.trace = trace.cloned();
            observed.logged_headers = values;
        });
        Ok(())
    }
}

/// A decision's edits, validated.
struct ValidEdits {
    path: Option<String>,
    request: Vec<Edit>,
    response: Vec<Edit>,
}

/// The refusal if the response's run fails. The response is not passed on.
pub(super) fn fault(error: &JudgeError, record: &Record) -> Refusal {
    let (status, recorded) = describe(error);
    record.note(|observed| {
        if let Some(judged) = &mut observed.judged {
            judged.verdict = recorded;
        }
    });
    Refusal { status, headers: HeaderMap::new(), own: None }
}

pub(super) fn describe(error: &JudgeError) -> (StatusCode, RecordedVerdict) {
    let (status, fault) = match error {
        JudgeError::NotLoaded(_) => (StatusCode::SERVICE_UNAVAILABLE, "not_loaded"),
        JudgeError::Run(RunError::Fault(fault)) => (StatusCode::INTERNAL_SERVER_ERROR, fault_name(fault)),
        JudgeError::Run(RunError::Engine(_)) => (StatusCode::SERVICE_UNAVAILABLE, "no_sandbox"),
        JudgeError::Run(RunError::InputTooLarge) => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "input_too_large"),
        JudgeError::Run(RunError::Malformed(_)) | JudgeError::BadOutput(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "bad_output")
        }
        JudgeError::Unreadable(_) => (StatusCode::INTERNAL_SERVER_ERROR, "unreadable"),
        JudgeError::Undecided => (StatusCode::INTERNAL_SERVER_ERROR, "undecided"),
        JudgeError::NoTarget => (StatusCode::INTERNAL_SERVER_ERROR, "no_target"),
    };
    (status, RecordedVerdict::Fault { fault, reason: error.to_string().into() })
}

fn fault_name(fault: &Fault) -> &'static str {
    match fault {
        Fault::Deadline => "deadline",
        Fault::Instruction { .. } => "instruction",
        Fault::Memory { .. } => "memory",
        Fault::StackOverflow => "stack_overflow",
        Fault::OutOfMemory => "out_of_memory",
        Fault::Arithmetic { .. } => "arithmetic",
        Fault::Panicked(_) => "panicked",
        Fault::Refused(_) => "refused",
        Fault::BadLength { .. } => "bad_length",
        Fault::InputTooLong { .. } => "input_too_large",
        Fault::Escape(_) => "escape",
        Fault::Trap(_) => "trap",
        Fault::Host(_) => "host",
    }
}

/// Replaces the path. An HTTP/2 request keeps its scheme and authority.
fn replace_path(head: &mut request::Parts, path: String) -> Result<(), BadOutput> {
    let mut parts = std::mem::take(&mut head.uri).into_parts();
    parts.path_and_query = Some(edits::check_path(path)?);
    head.uri = Uri::from_parts(parts).map_err(|_| BadOutput::Path)?;
    Ok(())
}

/// The refusal of a counter.
fn denial(limit: &str, refused: &LimitRefusal) -> Denial {
    let mut denial = quota::exhausted(limit, &refused.taken);
    if let Some(reason) = refused.uncounted {
        denial.clause = reason.to_owned();
    }
    denial
}

/// The denial by a circuit breaker, if another request took the last in-flight slot.
fn overflow(breaker: &leno_policy::spec::Breaker) -> Denial {
    Denial {
        status: 503,
        policy: PolicyKind::CircuitBreaker,
        rule: breaker.name.clone(),
        default: false,
        clause: format!("maxRequests: {} requests are in flight", breaker.max_requests),
        headers: Vec::new(),
    }
}

/// Envoy's response flag for a denial.
pub(super) fn flag(policy: PolicyKind) -> Option<&'static str> {
    match policy {
        PolicyKind::RateLimit => Some("RL"),
        PolicyKind::CircuitBreaker => Some("UO"),
        PolicyKind::Authentication | PolicyKind::ExternalAuthorization | PolicyKind::MutualTls => Some("UAEX"),
        _ => None,
    }
}

pub(super) fn edited(edit: &Edit) -> EditedHeader {
    let (how, name) = match edit {
        Edit::Set(name, _) => ("set", name),
        Edit::Append(name, _) => ("append", name),
        Edit::Remove(name) => ("remove", name),
    };
    EditedHeader { how, name: name.clone() }
}
