//! Carries out a program's decision: takes from the counters, checks the circuit breaker, edits the
//! head.

use super::decision;
use super::extend::{self, ResponseExtensions};
use super::request_snapshot::{RequestSnapshot, header_fields};
use super::{Evaluation, JudgeError, Judgement};
use crate::state::decisions::{ValidDecision, ValidDenial, ValidVerdict};
use crate::state::extension::Extension;
use crate::state::function::FunctionEntry;
use crate::state::health::{RequestGuard, TargetHealth};
use crate::state::in_flight::InFlight;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName};
use http::uri::PathAndQuery;
use http::{StatusCode, Uri, request};
use leno_http::edits;
use leno_http::edits::{BadOutput, Edit};
use leno_http::peer::TrafficDirection;
use leno_policy::breaker;
use leno_policy::outcome::{Denial, PolicyKind};
use leno_policy::path::Readings;
use leno_policy::spec::Target;
use leno_policy::trace::{self, TraceContext, TracePlan};
use leno_sandbox::{Fault, RunError};
use leno_telemetry::exchange::{EditedHeader, RecordedVerdict};
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
    /// The decision on the exchange.
    pub(crate) fn permit(&self) -> &Permit {
        &self.permit
    }

    /// Whether external authorizers must be asked first.
    pub fn has_asks(&self) -> bool {
        !self.permit.asks.is_empty()
    }

    /// Takes the authorizers to ask: indices of the function's authorizers.
    pub(crate) fn take_asks(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.permit.asks).into_vec()
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

    /// Replaces the terms of the exchange by those of its route, unless these are `None`.
    pub(crate) fn follow(&mut self, terms: impl FnOnce(&Target) -> Option<Target>) {
        self.permit.own_terms = terms(self.permit.terms()).map(Box::new);
    }

    /// Replaces the time limit of the exchange; 0: it has none.
    pub(crate) fn limit(&mut self, timeout_ms: u64) {
        self.follow(|of_policies| Some(Target { timeout_ms, ..of_policies.clone() }));
    }

    /// Whether the exchange has no time limit.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.permit.terms().timeout_ms == 0
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
    /// The terms of the exchange's route in their place; `None`: it has none.
    own_terms: Option<Box<Target>>,
    /// The authorizers to ask: indices of the function's authorizers. They are checked when the
    /// permit is made.
    asks: Box<[u16]>,
    response_edits: RefCell<Vec<Edit>>,
    /// The extensions' state for the response.
    pub(super) response_extensions: RefCell<ResponseExtensions>,
    /// Counts the request as in flight until the permit is dropped.
    _in_flight: Option<RequestGuard>,
}

impl Permit {
    /// Time limit, retries and circuit breaker of this exchange.
    pub fn terms(&self) -> &Target {
        match &self.own_terms {
            Some(terms) => terms,
            None => &super::program(&self.entry, self.direction).spec.targets[self.terms],
        }
    }

    /// Applies the response edits decided with the request, then those that depend on its status.
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
        decided: &ValidDecision,
        head: Box<request::Parts>,
        now_ms: u64,
    ) -> Result<Judgement, JudgeError> {
        self.runs.principal.clone_from(&decided.principal);
        self.runs.audit.clone_from(&decided.audit);
        match &decided.verdict {
            ValidVerdict::Allow { .. } => self.permit(decided, head, now_ms).await,
            // It counts against the limits that count failures. If such a limit is exhausted, its own
            // denial takes the place of this one.
            ValidVerdict::Deny(refused) => Ok(Judgement::Denied(match self.take(&decided.takes, now_ms).await? {
                Err((exhausted, fields)) => self.refuse(&exhausted, fields),
                Ok(_) => self.refuse(refused, Vec::new()),
            })),
        }
    }

    /// Permits the request if counters and circuit breaker allow it: takes an in-flight slot and from
    /// every counter, or nothing.
    async fn permit(
        &mut self,
        decided: &ValidDecision,
        mut head: Box<request::Parts>,
        now_ms: u64,
    ) -> Result<Judgement, JudgeError> {
        let (ValidVerdict::Allow { rule, path, edits: changes, target: terms, asks }, Some(state)) =
            (&decided.verdict, self.target)
        else {
            return Err(JudgeError::NoTarget);
        };
        let program = self.program;
        let Some(target) = program.spec.targets.get(*terms) else { return Err(JudgeError::NoTarget) };
        self.runs.as_received = target.as_received;
        let in_flight = match self.admit(target, &state.health) {
            Ok(in_flight) => in_flight,
            Err(denial) => {
                // An exhausted limit is the better reason: the client learns when to try again.
                let (refused, fields) = match self.exhausted(&decided.takes, now_ms)? {
                    Some(exhausted) => exhausted,
                    None => (decision::refused(denial)?, Vec::new()),
                };
                return Ok(Judgement::Denied(self.refuse(&refused, fields)));
            }
        };
        let response_edits = match self.take(&decided.takes, now_ms).await? {
            Ok(fields) => fields,
            Err((exhausted, fields)) => return Ok(Judgement::Denied(self.refuse(&exhausted, fields))),
        };
        let asked = RequestSnapshot::copy(&head);
        if let Some(path) = path
            && head.uri.path_and_query() != Some(path)
        {
            replace_path(&mut head, path.clone())?;
            self.runs.path_changed = true;
        }
        let mut request_edits = std::mem::take(&mut self.span_edits);
        request_edits.extend_from_slice(changes);
        self.record.note(|observed| observed.request_edits = request_edits.iter().map(self::edited).collect());
        edits::apply(request_edits, &mut head.headers);
        self.runs.verdict = Some(RecordedVerdict::Allow { rule: rule.clone() });
        let permit = Permit {
            trace: self.span,
            terms: *terms,
            own_terms: None,
            asks: asks.as_slice().into(),
            entry: self.input.entry.clone(),
            direction: self.input.direction,
            target: state.health.clone(),
            response_edits: response_edits.into(),
            response_extensions: RefCell::default(),
            _in_flight: in_flight,
        };
        let until_ms = decided.window.end_ms();
        Ok(Judgement::Permitted(PermittedRequest { head, permit, asked, until_ms }))
    }

    /// Takes an in-flight slot of the target, if its circuit breaker allows it. The caller's sidecar
    /// holds the slot, so an inbound request needs none.
    fn admit(&self, target: &Target, health: &Arc<TargetHealth>) -> Result<Option<RequestGuard>, Denial> {
        if target.breaker.is_some() {
            breaker::check(target, self.load())?;
        }
        match (self.input.direction, &target.breaker) {
            (TrafficDirection::Inbound, _) => Ok(None),
            (_, None) => Ok(health.acquire_request(None)),
            (_, Some(breaker)) => {
                let guard = health.acquire_request(Some(breaker.max_requests));
                // Another request took the last slot.
                guard.map(Some).ok_or_else(|| breaker::full(breaker))
            }
        }
    }

    /// Turns a denial into the client's response and the record's verdict.
    fn refuse(&mut self, refused: &ValidDenial, response_edits: Vec<Edit>) -> Refusal {
        let ValidDenial { status, headers: fields, denial } = refused;
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value.clone());
        }
        self.record.note(|observed| {
            observed.response_edits.extend(response_edits.iter().map(edited));
            observed.flag = flag(denial.policy);
        });
        edits::apply(response_edits, &mut headers);
        let mut targets = self.program.spec.targets.iter().filter(|target| target.as_received);
        self.runs.as_received = self.target.is_some_and(|state| targets.any(|target| *target.function == *state.name));
        self.runs.verdict = Some(RecordedVerdict::Deny {
            policy: denial.policy,
            rule: denial.rule.as_str().into(),
            default: denial.default,
            clause: denial.clause.as_str().into(),
        });
        Refusal { status: *status, headers, own: None }
    }

    /// Refuses the request, because there is no verdict to rely on.
    pub(super) fn give_up(&mut self, error: JudgeError) -> Refusal {
        let (status, recorded) = describe(&error);
        self.runs.verdict = Some(recorded);
        Refusal { status, headers: HeaderMap::new(), own: None }
    }

    /// Makes the span, and records it and what to log. This also holds for denied requests.
    pub(super) fn note_span(&mut self, random: [u64; 4], head: &request::Parts) -> Result<(), JudgeError> {
        let parent = self.input.parent.and_then(InFlight::parent);
        let planned = trace::plan(&self.program.spec.tracing, || header_fields(&head.headers), random, parent);
        if let Some((span, changes)) = planned {
            (self.span, self.span_edits) = (Some(span), edits::check(changes)?);
        }
        let logged = &self.program.spec.access_log.request_headers;
        let named = logged.iter().filter_map(|name| HeaderName::try_from(name.as_str()).ok());
        let values = request_line::values(
            named.flat_map(|name| head.headers.get_all(&name).iter().map(move |value| (name.clone(), value))),
        );
        self.record.note(|observed| {
            observed.trace = self.span;
            observed.logged_headers = values;
        });
        Ok(())
    }
}

/// The refusal if a response cannot be edited. The response is not passed on.
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
fn replace_path(head: &mut request::Parts, path: PathAndQuery) -> Result<(), BadOutput> {
    let mut parts = std::mem::take(&mut head.uri).into_parts();
    parts.path_and_query = Some(path);
    head.uri = Uri::from_parts(parts).map_err(|_| BadOutput::Path)?;
    Ok(())
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
