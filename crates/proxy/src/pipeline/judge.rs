//! Asks a function's program about a request, and carries out its decision. Only this module
//! touches the sandbox.
//!
//! A program is a pure function. This module collects its input: the request's head, the identities
//! that the runtime established, and the counters that the program declared. The program runs in a
//! fresh sandbox. If it needs more (a verified signature, another counter), it says so, and a fresh
//! sandbox runs again with that added. The output is untrusted until it is validated.
//!
//! The judge fails closed. A program that did not load, a fault, a missed deadline, an invalid
//! output, a counter that cannot be kept: each of these refuses the request, and the record says
//! why.

mod again;
mod extend;
mod outcome;
mod prefetch;
pub mod replay;
mod request_snapshot;
mod runaway;
mod shown;
mod verdict;

pub(crate) use again::{OpenRequest, Withdrawn};
pub use outcome::{Permit, PermittedRequest, Refusal};
pub(crate) use request_snapshot::RequestSnapshot;
pub(crate) use verdict::{add_time, audit, overrule};

use crate::state::function::{FunctionEntry, LoadedProgram};
use crate::state::in_flight::InFlight;
use crate::state::policy_state::{FunctionState, PolicyState};
use crate::state::tokens::{Signatures, VerifiedToken};
use http::{request, response};
use leno_http::edits::BadOutput;
use leno_http::peer::{Peer, TrafficDirection};
use leno_model::FunctionId;
use leno_policy::engine::EngineKind;
use leno_policy::input::{Input, RequestInput, ResponseInput, TargetLoad};
use leno_policy::outcome::{
    Decision, HeaderEdit, MAX_KEYS, MAX_TAKES, Outcome, Output, PolicyKind, SignatureWant, TracePlan, Verdict, Wants,
};
use leno_policy::spec::{KeyId, Protocol};
use leno_policy::token::{self, RequestToken};
use leno_runtime::random::Random;
use leno_sandbox::{Fault, Pool, RunError};
use leno_telemetry::exchange::{JudgementRecord, RateLimitCheck, RecordedVerdict, SignatureCheck, Stage};
use leno_telemetry::inputs::Inputs;
use leno_telemetry::record::Record;
use prefetch::{Counter, PrefetchedInputs};
use request_snapshot::header_fields;
use runaway::{Account, DeadlineBudgets};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of runs for one request. One is enough for a known token and known counters; a
/// token never seen before takes two.
const MAX_RUNS: u8 = 4;
/// Maximum number of functions whose policy state a worker caches.
const MAX_CACHED_FUNCTIONS: usize = 8192;

/// One worker's judge: runs programs and extensions, and applies their decisions.
pub struct Judge {
    policy_state: Arc<PolicyState>,
    random: Rc<Random>,
    pool: RefCell<Pool>,
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

/// How the runs of a program ended.
enum ProgramOutcome {
    Decided(Box<Decision>),
    /// A signature that the program wanted verified is wrong. The program supplies the span.
    BadSignature(Box<SignatureWant>, Option<TracePlan>),
}

impl Judge {
    /// Creates the judge of one worker.
    pub fn new(policy_state: Arc<PolicyState>, random: Rc<Random>) -> Self {
        Self {
            policy_state,
            random,
            pool: RefCell::new(Pool::new()),
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
        let signatures = &self.policy_state.tokens.signatures;
        let mut evaluation =
            Evaluation { input, program, state: &state, signatures, target, record, runs: Runs::default() };
        let judgement = match evaluation.decide(self, &head, now_ms) {
            Ok(ProgramOutcome::Decided(decision)) => {
                self.watch_for_unknown_keys(input.entry, &decision);
                evaluation.carry_out(*decision, head, now_ms).await
            }
            Ok(ProgramOutcome::BadSignature(want, trace)) => match evaluation.note_plan(trace.as_ref(), &head) {
                Ok(()) => evaluation.deny(want.denial, Vec::new(), &want.failure, now_ms).await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        let judgement = judgement.unwrap_or_else(|error| {
            self.log.judge_error(&input.entry.name, &error);
            Judgement::Denied(evaluation.give_up(error))
        });
        evaluation.conclude(started);
        judgement
    }

    /// Edits a response: as decided with the request, then as the program says if it sees
    /// responses, then as the extensions say that see responses. On error, the refusal takes the
    /// response's place.
    pub fn response(&self, permit: &Permit, head: &mut response::Parts, record: &Record) -> Result<(), Refusal> {
        let program = program(&permit.entry, permit.direction);
        let edits =
            if program.needs.response { self.respond(&permit.entry, program, head, record) } else { Ok(Vec::new()) };
        let edits = edits.and_then(|edits| Ok(leno_http::edits::check(edits)?));
        match edits {
            Ok(edits) => {
                permit.edit_response(edits, &mut head.headers, record);
                extend::respond(self, &permit.entry, permit.direction, permit.response_extensions.take(), head, record)
            }
            Err(error) => {
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

    fn respond(
        &self,
        entry: &FunctionEntry,
        program: &LoadedProgram,
        head: &response::Parts,
        record: &Record,
    ) -> Result<Vec<HeaderEdit>, JudgeError> {
        let headers = header_fields(&head.headers);
        let input = Input::Response(ResponseInput { status: head.status.as_u16(), headers });
        let (output, time) = self.run(entry.class.into(), program, &input, record)?;
        record.note(|observed| {
            if let Some(judged) = &mut observed.judged {
                judged.run_time += time;
            }
        });
        match output {
            Output::Response(edits) => Ok(edits),
            Output::Unreadable(reason) => Err(JudgeError::Unreadable(reason)),
            Output::Request(_) => Err(BadOutput::WrongKind.into()),
        }
    }

    /// Runs a program once, in a fresh sandbox.
    fn run(
        &self,
        account: Account,
        program: &LoadedProgram,
        input: &Input<'_>,
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
        leno_policy::input::Peer { identity: identity.as_deref(), address: address.ip() }
    }
}

/// One request while it is judged.
struct Evaluation<'a> {
    input: JudgeInput<'a>,
    program: &'a LoadedProgram,
    state: &'a FunctionState,
    signatures: &'a Signatures,
    target: Option<&'a FunctionState>,
    record: &'a Record,
    runs: Runs,
}

/// The record's facts about the runs and how they ended.
#[derive(Default)]
struct Runs {
    count: u8,
    time: Duration,
    verdict: Option<RecordedVerdict>,
    audit: Option<RecordedVerdict>,
    principal: Option<Box<str>>,
    path_changed: bool,
    as_received: bool,
}

impl Evaluation<'_> {
    /// Runs the program until it has decided.
    fn decide(&mut self, judge: &Judge, head: &request::Parts, now_ms: u64) -> Result<ProgramOutcome, JudgeError> {
        let path = request_snapshot::path(head);
        let headers = header_fields(&head.headers);
        let sources = &self.program.needs.tokens;
        let located = if sources.is_empty() { Vec::new() } else { token::locate(sources, &headers, path) };
        self.keep_inputs(head, path, &located);
        let mut prefetched = PrefetchedInputs::new(self, &head.method, path, &headers, &located);
        let mut headers = Some(headers);
        let (peer, target) = (self.input.peer(), self.target.map_or("", |state| &state.name));
        let random = std::array::from_fn(|_| judge.random.next());
        while self.runs.count < MAX_RUNS {
            let is_unverified = prefetched.token.is_some() && prefetched.verified().is_none();
            let account = Account { class: self.input.entry.class, is_unverified };
            let program_input = Input::Request(RequestInput {
                now_ms,
                random,
                peer,
                target,
                port: self.input.port,
                protocol: self.input.protocol,
                scheme: self.input.scheme,
                method: head.method.as_str(),
                authority: leno_http::head::authority(head),
                path,
                headers: headers.take().unwrap_or_else(|| header_fields(&head.headers)),
                verified: prefetched.verified(),
                quotas: prefetched.quotas(),
                load: self.load(),
                parent: self.input.parent.and_then(InFlight::parent),
            });
            let (output, time) = judge.run(account, self.program, &program_input, self.record)?;
            self.runs.count += 1;
            self.runs.time += time;
            match output {
                Output::Request(Outcome::Decided(decision)) => {
                    prefetched.learn(self, &decision.facts);
                    self.note_shared(&prefetched, &decision.verdict);
                    return Ok(ProgramOutcome::Decided(Box::new(decision)));
                }
                Output::Request(Outcome::Wants(mut wants)) => {
                    let trace = wants.trace.take();
                    if let Some(want) = self.supply(&mut prefetched, wants)? {
                        return Ok(ProgramOutcome::BadSignature(Box::new(want), trace));
                    }
                }
                Output::Unreadable(reason) => return Err(JudgeError::Unreadable(reason)),
                Output::Response(_) => return Err(BadOutput::WrongKind.into()),
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

    /// Supplies the signatures and counters that the program wants. Returns the want for a
    /// signature if the signature is wrong.
    fn supply(&self, prefetched: &mut PrefetchedInputs<'_>, wants: Wants) -> Result<Option<SignatureWant>, JudgeError> {
        if let Some(want) = wants.signature {
            let Some(token) = &mut prefetched.token else { return Err(BadOutput::NoToken.into()) };
            leno_http::edits::at_most("keys", want.keys.len(), MAX_KEYS)?;
            let verify = |key: &&KeyId| {
                let result = self.input.entry.keys.verify(token.token, **key, want.algorithm);
                self.record.note(|observed| {
                    let error = result.err().map(|error| error.label());
                    let check = SignatureCheck { key: **key, algorithm: want.algorithm, remembered: false, error };
                    observed.signatures.push(check);
                });
                result.is_ok()
            };
            let Some(key) = want.keys.iter().find(verify).copied() else { return Ok(Some(want)) };
            token.verified = Some(key);
            self.state.tokens.remember(token.digest, VerifiedToken { key, algorithm: want.algorithm, claims: None });
            self.signatures.remember(token.digest, key, want.algorithm);
        }
        leno_http::edits::at_most("counters", wants.quotas.len(), MAX_TAKES)?;
        for (limit, key) in wants.quotas {
            let limits = &self.program.spec.rate_limits;
            let Some(spec) = limits.get(usize::from(limit)) else {
                let index = usize::from(limit);
                return Err(BadOutput::Index { what: "rate limit", index, count: limits.len() }.into());
            };
            let held = self.state.limits.read(&spec.name, &key);
            prefetched.counters.push(Counter { limit, key, held });
        }
        Ok(None)
    }

    /// Records that a shared counter refused the request. The program cannot know that the counter
    /// is shared.
    fn note_shared(&self, prefetched: &PrefetchedInputs<'_>, verdict: &Verdict) {
        let Verdict::Deny(denial) = verdict else { return };
        if denial.policy != PolicyKind::RateLimit {
            return;
        }
        let limits = &self.program.spec.rate_limits;
        let mut shared = prefetched.counters.iter().filter(|counter| counter.held.shared);
        if shared.any(|counter| limits.get(usize::from(counter.limit)).is_some_and(|limit| limit.name == denial.rule)) {
            let check = RateLimitCheck { limit: denial.rule.as_str().into(), remaining: None, shared: true };
            self.record.note(|observed| observed.rate_limit_checks.push(check));
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
