//! Asks a function's program about a request, and carries out its decision. Only this module
//! touches the sandbox.
//!
//! A program is a pure function. This module collects its input: the parts of the head that the
//! program declares, and the identities that the runtime established. The program runs in a fresh
//! sandbox. If it needs a verified signature, it says so, and a fresh sandbox runs again with that
//! added. The output is untrusted until it is validated. Then this module adds what depends on
//! state: counters of rate limits, the circuit breaker, the span.
//!
//! A program that is asked the same again gives the same answer, so a decision may be remembered
//! (`state/decisions.rs`) instead of made again.
//!
//! The judge fails closed. A program that did not load, a fault, a missed deadline, an invalid
//! output, a counter that cannot be kept: each of these refuses the request, and the record says
//! why.

mod again;
mod decision;
mod extend;
mod limits;
mod outcome;
pub mod replay;
mod request_snapshot;
mod runaway;
mod shown;
mod signature;
mod verdict;

pub(crate) use again::{OpenRequest, Withdrawn};
pub use outcome::{Permit, PermittedRequest, Refusal};
pub(crate) use request_snapshot::RequestSnapshot;
pub(crate) use verdict::{add_time, audit, overrule};

use crate::state::decisions::ValidDecision;
use crate::state::function::{FunctionEntry, LoadedProgram};
use crate::state::in_flight::InFlight;
use crate::state::policy_state::{FunctionState, PolicyState};
use crate::state::recent::KeyedHasher;
use crate::state::tokens::VerifiedTokens;
use http::{request, response};
use leno_http::edits::{BadOutput, Edit};
use leno_http::peer::{Peer, TrafficDirection};
use leno_model::FunctionId;
use leno_policy::abi;
use leno_policy::breaker::TargetLoad;
use leno_policy::engine::EngineKind;
use leno_policy::input::{MAX_INPUT, RequestInput};
use leno_policy::outcome::{Decision, Output, PolicyKind, Verdict};
use leno_policy::sidecar;
use leno_policy::spec::Protocol;
use leno_policy::token::{self, RequestToken};
use leno_policy::trace::TracePlan;
use leno_runtime::random::Random;
use leno_sandbox::{Fault, Pool, RunError};
use leno_telemetry::exchange::{JudgementRecord, RecordedVerdict, Stage};
use leno_telemetry::inputs::Inputs;
use leno_telemetry::record::Record;
use request_snapshot::given_fields;
use runaway::{Account, DeadlineBudgets};
use signature::TokenSignature;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of runs for one request. One is enough for a known token; a token never seen
/// before takes two.
const MAX_RUNS: u8 = 2;
/// Maximum number of functions whose policy state a worker caches.
const MAX_CACHED_FUNCTIONS: usize = 8192;

/// One worker's judge: runs programs and extensions, and applies their decisions.
pub struct Judge {
    policy_state: Arc<PolicyState>,
    random: Rc<Random>,
    pool: RefCell<Pool>,
    /// For encoded inputs.
    buffer: RefCell<Vec<u8>>,
    state_cache: RefCell<StateCache>,
    log: RateLimitedLog,
    /// Functions whose programs or extensions keep missing their deadlines.
    deadline_budgets: DeadlineBudgets,
}

/// A worker's cache of functions' policy state. Each worker counts its handles itself, so workers
/// do not contend for a cache line.
#[derive(Default)]
struct StateCache {
    generation: u64,
    functions: HashMap<FunctionId, Rc<FunctionState>>,
}

/// The facts that the runtime knows about a request besides its head.
#[derive(Clone, Copy, Debug)]
pub struct JudgeInput<'a> {
    /// The function whose program judges.
    pub entry: &'a Arc<FunctionEntry>,
    /// Where the request came in. The caller's program judges outbound requests, the callee's
    /// program all others.
    pub direction: TrafficDirection,
    /// The sender of the request, as the runtime established it.
    pub peer: &'a Peer,
    /// The callee. `None`: the request names no function that the caller may call.
    pub target: Option<&'a FunctionId>,
    /// The detected application protocol.
    pub protocol: Protocol,
    /// The scheme that the client used: `http` or `https`.
    pub scheme: &'static str,
    /// The port that the caller asked for; at the gateway, the listener's port.
    pub port: u16,
    /// The parent request: the only one that the calling instance is handling now. `None`: it
    /// handles none, or several.
    pub parent: Option<&'a InFlight>,
    /// Number of the target's endpoints that are known.
    pub endpoints: u32,
    /// No body follows the head.
    pub bodiless: bool,
}

/// The judge's verdict on a request.
#[derive(Debug)]
pub enum Judgement {
    /// The request may be forwarded.
    Permitted(PermittedRequest),
    /// The request is refused, or an extension has answered it.
    Denied(Refusal),
}

impl Judgement {
    /// The permitted request, or its refusal.
    pub(crate) fn permitted(self) -> Result<PermittedRequest, Refusal> {
        match self {
            Self::Permitted(permitted) => Ok(permitted),
            Self::Denied(refusal) => Err(refusal),
        }
    }
}

/// Why there is no verdict to rely on.
#[derive(Debug, thiserror::Error)]
enum JudgeError {
    #[error("the program is not loaded: {0}")]
    NotLoaded(String),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("the program's output is invalid: {0}")]
    BadOutput(#[from] BadOutput),
    #[error("the program could not read its input: {0}")]
    Unreadable(String),
    #[error("the program did not decide within {MAX_RUNS} runs")]
    Undecided,
    #[error("the program permitted a request that is for nobody")]
    NoTarget,
}

impl Judge {
    /// Creates the judge of one worker.
    pub fn new(policy_state: Arc<PolicyState>, random: Rc<Random>) -> Self {
        Self {
            policy_state,
            random,
            pool: RefCell::new(Pool::new()),
            buffer: RefCell::default(),
            state_cache: RefCell::default(),
            log: RateLimitedLog::default(),
            deadline_budgets: DeadlineBudgets::default(),
        }
    }

    /// Erases the remains of the last run from its sandbox. Called while the worker is idle, so
    /// that no request has to wait for it.
    pub fn tidy(&self) {
        self.pool.borrow_mut().tidy();
    }

    /// Judges a request by the function's program: takes its head, and returns the edited head or a
    /// refusal. The function's extensions are asked separately ([`Judge::extend`]). It waits only
    /// for a store that keeps the counters of rate limits.
    pub async fn request(&self, input: JudgeInput<'_>, head: Box<request::Parts>, record: &Record) -> Judgement {
        let (started, now_ms) = (Instant::now(), record.started().1);
        let program = program(input.entry, input.direction);
        let state = self.function(&input.entry.config.id);
        let target = input
            .target
            .map(|target| if *target == input.entry.config.id { state.clone() } else { self.function(target) });
        let target = target.as_deref();
        let tokens = &self.policy_state.tokens;
        let mut evaluation = Evaluation {
            input,
            program,
            state: &state,
            signatures: &tokens.signatures,
            hasher: &tokens.hasher,
            target,
            record,
            span: None,
            span_edits: Vec::new(),
            runs: Runs::default(),
        };
        let random = std::array::from_fn(|_| self.random.next());
        let decided = evaluation.note_span(random, &head).and_then(|()| evaluation.decide(self, &head, now_ms));
        let judgement = match decided {
            Ok(decision) => evaluation.carry_out(&decision, head, now_ms).await,
            Err(error) => Err(error),
        };
        let judgement = judgement.unwrap_or_else(|error| {
            self.log.judge_error(&input.entry.name, &error);
            Judgement::Denied(evaluation.give_up(error))
        });
        evaluation.conclude(started);
        judgement
    }

    /// Edits a response: as decided with the request, then as the configuration says for its status,
    /// then as the extensions say that see responses. On error, the refusal takes the response's
    /// place.
    pub fn response(&self, permit: &Permit, head: &mut response::Parts, record: &Record) -> Result<(), Refusal> {
        let program = program(&permit.entry, permit.direction);
        let edits = sidecar::response_edits(&program.spec.sidecar, head.status.as_u16());
        match leno_http::edits::check(edits) {
            Ok(edits) => {
                permit.edit_response(edits, &mut head.headers, record);
                extend::respond(self, &permit.entry, permit.direction, permit.response_extensions.take(), head, record)
            }
            Err(error) => {
                let error = error.into();
                self.log.judge_error(&permit.entry.name, &error);
                Err(outcome::fault(&error, record))
            }
        }
    }

    /// Reports a token that matches no key. Its issuer may have a new key, or the issuer's keys may
    /// not have arrived yet.
    fn watch_for_unknown_keys(&self, entry: &FunctionEntry, decision: &Decision) {
        if let Verdict::Deny(denial) = &decision.verdict
            && denial.policy == PolicyKind::Authentication
            && !entry.config.jwks.is_empty()
            && [leno_policy::UNKNOWN_KEY, leno_policy::KEYS_PENDING].iter().any(|clause| denial.clause.contains(clause))
        {
            self.policy_state.tokens.key_sets.report(&entry.config.id);
        }
    }

    /// Runs a program once, in a fresh sandbox.
    fn run(
        &self,
        account: Account,
        program: &LoadedProgram,
        input: &RequestInput<'_>,
        record: &Record,
    ) -> Result<(Output, Duration), JudgeError> {
        let image = program.image.as_ref().map_err(|error| JudgeError::NotLoaded(error.to_string()))?;
        let started = Instant::now();
        let deadline = self.deadline_budgets.deadline(account, program.deadline, started);
        let output = self.pool.borrow_mut().run(image, input, deadline);
        let ended = Instant::now();
        let time = ended.saturating_duration_since(started);
        if let Err(RunError::Fault(Fault::Deadline)) = &output {
            self.deadline_budgets.charge(account, deadline, time, ended);
        }
        record.metrics().sandbox_run(image.kind(), time);
        Ok((output?, time))
    }

    /// The key of the memory's entry for this input: equal inputs have equal keys, whatever the time.
    fn memory_key(&self, input: &RequestInput<'_>) -> Result<u128, JudgeError> {
        let mut buffer = self.buffer.borrow_mut();
        let encoded = loop {
            match postcard::to_slice(input, &mut buffer).map(|encoded| encoded.len()) {
                Ok(length) => break &mut buffer[..length],
                Err(postcard::Error::SerializeBufferFull) if buffer.len() < MAX_INPUT => {
                    let longer = (2 * buffer.len()).clamp(1024, MAX_INPUT);
                    buffer.resize(longer, 0);
                }
                Err(_) => return Err(RunError::InputTooLarge.into()),
            }
        };
        let key = self.policy_state.tokens.hasher.hash(abi::without_time(encoded));
        // It may hold a token.
        encoded.fill(0);
        Ok(key)
    }

    /// A function's policy state, cached by this worker.
    fn function(&self, function: &FunctionId) -> Rc<FunctionState> {
        let mut state_cache = self.state_cache.borrow_mut();
        let generation = self.policy_state.generation();
        if state_cache.generation != generation || state_cache.functions.len() >= MAX_CACHED_FUNCTIONS {
            state_cache.functions.clear();
            state_cache.generation = generation;
        }
        if let Some(state) = state_cache.functions.get(function) {
            return state.clone();
        }
        let state = Rc::new(self.policy_state.function(function));
        state_cache.functions.insert(function.clone(), state.clone());
        state
    }
}

/// Logs faults, at a limited rate because requests can cause them.
#[derive(Default)]
struct RateLimitedLog {
    last: Cell<Option<Instant>>,
    withheld: Cell<u64>,
}

impl RateLimitedLog {
    const LOG_INTERVAL: Duration = Duration::from_secs(1);

    fn judge_error(&self, function: &str, error: &JudgeError) {
        if let Some(withheld) = self.next_permit() {
            tracing::warn!(function, withheld, "a request is refused because there is no verdict to rely on: {error}");
        }
    }

    fn extension_failure(&self, function: &str, extension: &str, reason: &str) {
        if let Some(withheld) = self.next_permit() {
            tracing::warn!(function, extension, withheld, "an extension failed: {reason}");
        }
    }

    /// `Some`: another message may be logged now. The number says how many were withheld since the
    /// last one.
    fn next_permit(&self) -> Option<u64> {
        let now = Instant::now();
        if self.last.get().is_some_and(|last| now.saturating_duration_since(last) < Self::LOG_INTERVAL) {
            self.withheld.set(self.withheld.get() + 1);
            return None;
        }
        self.last.set(Some(now));
        Some(self.withheld.take())
    }
}

/// The function's program for this direction.
fn program(entry: &FunctionEntry, direction: TrafficDirection) -> &LoadedProgram {
    match direction {
        TrafficDirection::Outbound => &entry.outbound,
        TrafficDirection::Gateway | TrafficDirection::Inbound => &entry.inbound,
    }
}

impl<'a> JudgeInput<'a> {
    fn peer(&self) -> leno_policy::input::Peer<'a> {
        let Peer { identity, address } = self.peer;
        let address = program(self.entry, self.direction).needs.address.then(|| address.ip());
        leno_policy::input::Peer { identity: identity.as_deref(), address }
    }
}

/// One request while it is judged.
struct Evaluation<'a> {
    input: JudgeInput<'a>,
    program: &'a LoadedProgram,
    state: &'a FunctionState,
    signatures: &'a VerifiedTokens,
    hasher: &'a KeyedHasher,
    target: Option<&'a FunctionState>,
    record: &'a Record,
    /// This hop's span; `None`: tracing is off.
    span: Option<TracePlan>,
    /// The edits that pass it on.
    span_edits: Vec<Edit>,
    runs: Runs,
}

/// The record's facts about the runs and how they ended.
#[derive(Default)]
struct Runs {
    count: u8,
    /// The decision is a remembered one.
    remembered: bool,
    time: Duration,
    verdict: Option<RecordedVerdict>,
    audit: Option<RecordedVerdict>,
    principal: Option<Box<str>>,
    path_changed: bool,
    as_received: bool,
}

impl Evaluation<'_> {
    /// The program's decision: a remembered one on the same input, or that of a run.
    fn decide(&mut self, judge: &Judge, head: &request::Parts, now_ms: u64) -> Result<Arc<ValidDecision>, JudgeError> {
        let program = self.program;
        let path = request_snapshot::path(head);
        let headers = given_fields(&program.needs, &head.headers);
        let sources = &program.needs.tokens;
        let located = if sources.is_empty() { Vec::new() } else { token::locate(sources, &headers, path) };
        self.keep_inputs(head, path, &located);
        let input = RequestInput {
            now_ms,
            peer: self.input.peer(),
            target: self.target.map_or("", |state| &state.name),
            port: self.input.port,
            protocol: self.input.protocol,
            method: head.method.as_str(),
            authority: leno_http::head::authority(head),
            path,
            headers,
            verified: None,
        };
        let key = program.remembers.then(|| judge.memory_key(&input)).transpose()?;
        if let Some(decision) = key.and_then(|key| program.decisions.look_up(key, now_ms)) {
            self.runs.remembered = true;
            self.note_signature(decision.signature);
            return Ok(decision);
        }
        let decision = Arc::new(self.run(judge, input, &located)?);
        // The key covers the token, not whether it is verified: that is a fact only if it is.
        if let Some(key) = key.filter(|_| located.is_empty() || decision.signature.is_some()) {
            program.decisions.remember(key, decision.clone());
        }
        Ok(decision)
    }

    /// Runs the program until it has decided.
    fn run(
        &mut self,
        judge: &Judge,
        mut input: RequestInput<'_>,
        located: &[RequestToken<'_>],
    ) -> Result<ValidDecision, JudgeError> {
        let mut signature = TokenSignature::look_up(self, located);
        while self.runs.count < MAX_RUNS {
            input.verified = signature.key();
            let account = Account { class: self.input.entry.class, is_unverified: signature.is_unverified() };
            let (output, time) = judge.run(account, self.program, &input, self.record)?;
            self.runs.count += 1;
            self.runs.time += time;
            match output {
                Output::Decided(decision) => {
                    judge.watch_for_unknown_keys(self.input.entry, &decision);
                    return self.validate(decision, signature.made_by());
                }
                Output::Unverified(want) => {
                    if let Err(want) = signature.verify(self, want)? {
                        return Ok(self.wrong_signature(want)?);
                    }
                }
                Output::Unreadable(reason) => return Err(JudgeError::Unreadable(reason)),
            }
        }
        Err(JudgeError::Undecided)
    }

    /// Records the inputs of the verdict, unless another node judges.
    fn keep_inputs(&self, head: &request::Parts, path: &str, located: &[RequestToken<'_>]) {
        if !self.input.entry.remote {
            let inputs = Inputs::new(&self.program.keeps, self.input.port, path, &head.headers, located);
            self.record.note(|observed| observed.inputs = Some(inputs));
        }
    }

    /// The load of the target. For an inbound request this is only the number of endpoints, because
    /// the caller's sidecar counts the request.
    fn load(&self) -> TargetLoad {
        match (self.input.direction, self.target) {
            (TrafficDirection::Inbound, _) | (_, None) => {
                TargetLoad { healthy: self.input.endpoints, ..TargetLoad::default() }
            }
            (_, Some(state)) => state.health.load(self.input.endpoints, self.record.started().0),
        }
    }

    /// Records the judgement.
    fn conclude(self, started: Instant) {
        let ended = Instant::now();
        let engine: Option<EngineKind> = self.program.image.as_ref().ok().map(|image| image.kind());
        self.record.note(|observed| {
            observed.stages[Stage::Judged as usize] = Some(ended);
            observed.program = Some(self.program.spec.clone());
            observed.judged = self.runs.verdict.map(|verdict| JudgementRecord {
                function: self.input.entry.name.clone(),
                engine,
                remembered: self.runs.remembered,
                runs: self.runs.count,
                run_time: self.runs.time,
                time: ended.saturating_duration_since(started),
                verdict,
                audit: self.runs.audit,
                principal: self.runs.principal,
                path_changed: self.runs.path_changed,
                as_received: self.runs.as_received,
            });
        });
    }
}

#[cfg(test)]
mod tests;
