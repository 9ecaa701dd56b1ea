//! Runs a function's extensions, after its program has allowed the request.

use super::outcome::{PermittedRequest, Refusal, edited};
use super::shown::{self, Context};
use super::verdict::{self, Answer, ModuleDecision, overrule};
use super::{Judge, JudgeInput, Judgement};
use crate::state::extension::{BudgetExhausted, Extension, Share};
use crate::state::function::FunctionEntry;
use http::{HeaderMap, StatusCode, response};
use leno_http::edits;
use leno_http::edits::BadOutput;
use leno_http::peer::TrafficDirection;
use leno_policy::spec::ProgramSpec;
use leno_runtime::schedule::Class;
use leno_sandbox::extension::{Failure, Outcome, Request, Run, RunInputs};
use leno_telemetry::exchange::{ExtensionOutcome, Observation, RecordedVerdict};
use leno_telemetry::record::Record;
use std::sync::Arc;
use std::time::Instant;

/// The state of a permitted request's extensions for its response: for each extension that sees
/// responses, its instance, or the input to start one.
#[derive(Default)]
pub(super) struct ResponseExtensions {
    pending: Vec<(usize, PendingRun)>,
    /// Reserves the instances that wait for the response, or start when it arrives.
    share: Option<Share>,
}

enum PendingRun {
    /// The extension saw the request. Its instance waits for the response.
    Running(Box<Run>),
    /// The extension sees the response only. Its instance has not started.
    Fresh(Box<Request>, RunInputs),
}

impl std::fmt::Debug for ResponseExtensions {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ResponseExtensions({})", self.pending.len())
    }
}

/// The function's extensions for this direction.
pub(super) fn extensions(entry: &FunctionEntry, direction: TrafficDirection) -> &[Extension] {
    match direction {
        TrafficDirection::Outbound => &entry.outbound_extensions,
        TrafficDirection::Gateway | TrafficDirection::Inbound => &entry.inbound_extensions,
    }
}

impl Judge {
    /// Shows a permitted request to the function's extensions, one after the other. `share`
    /// reserves the instances of those that also see its response.
    pub fn extend(
        &self,
        input: JudgeInput<'_>,
        mut permitted: PermittedRequest,
        share: Result<Option<Share>, BudgetExhausted>,
        record: &Record,
    ) -> Judgement {
        let started = Instant::now();
        let extended = match share {
            Ok(share) => {
                permitted.permit.response_extensions.get_mut().share = share;
                self.show(input, &mut permitted, record)
            }
            Err(exhausted) => Err(Box::new(self.crowded(input.entry, &exhausted))),
        };
        verdict::add_time(record, started);
        match extended {
            Ok(()) => Judgement::Permitted(permitted),
            Err(refused) => {
                let (recorded, refusal) = *refused;
                overrule(record, recorded);
                Judgement::Denied(refusal)
            }
        }
    }

    fn show(
        &self,
        input: JudgeInput<'_>,
        permitted: &mut PermittedRequest,
        record: &Record,
    ) -> Result<(), Box<(RecordedVerdict, Refusal)>> {
        let state = self.function(&input.entry.config.id);
        let context = Context {
            peer: input.peer,
            scheme: input.scheme,
            port: input.port,
            target: input.target.map_or_else(|| input.entry.name.clone(), |target| self.function(target).name.clone()),
            id: record.request_id(),
            bodiless: input.bodiless,
        };
        let given =
            || RunInputs { now_ms: record.started().1, random: self.random.next(), shared: state.shared_data.clone() };
        for (index, extension) in extensions(input.entry, input.direction).iter().enumerate() {
            if extension.request {
                self.show_others(&input, &context, permitted, extension, &given, record)?;
            }
            let shown = shown::request(&permitted.head, &context);
            if !extension.request {
                let fresh = PendingRun::Fresh(Box::new(shown), given());
                permitted.permit.response_extensions.get_mut().pending.push((index, fresh));
                continue;
            }
            let started = Instant::now();
            let mut running = None;
            let starting = Starting { judge: self, class: input.entry.class, now: started };
            let spec = &super::program(input.entry, input.direction).spec;
            let outcome = request_run(&starting, extension, shown, given(), &mut running)
                .and_then(|outcome| spares_claims(spec, outcome));
            match conclude(self, record, input.entry, extension, "request", outcome, started) {
                Conclusion::Continue(edits) => {
                    record.note(|observed| observed.request_edits.extend(edits.iter().map(edited)));
                    edits::apply(edits, &mut permitted.head.headers);
                    if let Some(run) = running {
                        permitted.permit.response_extensions.get_mut().pending.push((index, PendingRun::Running(run)));
                    }
                }
                Conclusion::Refuse(recorded, refusal) => return Err(Box::new((recorded, refusal))),
            }
        }
        Ok(())
    }

    /// Shows an extension the other readings of a path that is forwarded as it came. The extension
    /// has to permit each of them; its edits for them are discarded.
    fn show_others(
        &self,
        input: &JudgeInput<'_>,
        context: &Context<'_>,
        permitted: &PermittedRequest,
        extension: &Extension,
        given: &dyn Fn() -> RunInputs,
        record: &Record,
    ) -> Result<(), Box<(RecordedVerdict, Refusal)>> {
        let others = permitted.other_heads().map_err(|error| {
            let reason = error.to_string().into();
            Box::new((RecordedVerdict::Fault { fault: "bad_output", reason }, unavailable()))
        })?;
        for head in &others {
            let started = Instant::now();
            let starting = Starting { judge: self, class: input.entry.class, now: started };
            let outcome = request_run(&starting, extension, shown::request(head, context), given(), &mut None);
            if let Conclusion::Refuse(recorded, refusal) =
                conclude(self, record, input.entry, extension, "request", outcome, started)
            {
                return Err(Box::new((recorded, refusal)));
            }
        }
        Ok(())
    }

    fn crowded(&self, entry: &FunctionEntry, exhausted: &BudgetExhausted) -> (RecordedVerdict, Refusal) {
        let reason = exhausted.to_string();
        self.log.extension_failure(&entry.name, "any", &reason);
        (RecordedVerdict::Fault { fault: "extension", reason: reason.into() }, unavailable())
    }
}

/// Shows a response to the extensions that see responses, the last one first.
pub(super) fn respond(
    judge: &Judge,
    entry: &Arc<FunctionEntry>,
    direction: TrafficDirection,
    response_extensions: ResponseExtensions,
    head: &mut response::Parts,
    record: &Record,
) -> Result<(), Refusal> {
    let extensions = extensions(entry, direction);
    // Reserves the instances until the end of this function.
    let ResponseExtensions { pending, share: _share } = response_extensions;
    for (index, pending) in pending.into_iter().rev() {
        let Some(extension) = extensions.get(index) else { continue };
        let started = Instant::now();
        let starting = Starting { judge, class: entry.class, now: started };
        let outcome = response_run(&starting, extension, pending, head);
        match conclude(judge, record, entry, extension, "response", outcome, started) {
            Conclusion::Continue(edits) => {
                record.note(|observed| observed.response_edits.extend(edits.iter().map(edited)));
                edits::apply(edits, &mut head.headers);
            }
            Conclusion::Refuse(recorded, refusal) => {
                overrule(record, recorded);
                return Err(refusal);
            }
        }
    }
    Ok(())
}

/// Why a run has no outcome.
enum NoRun {
    NotLoaded(String),
    Failed(Failure),
    BadOutput(BadOutput),
}

impl From<Failure> for NoRun {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The context that starts an instance.
struct Starting<'a> {
    judge: &'a Judge,
    class: Class,
    now: Instant,
}

impl Starting<'_> {
    fn start(&self, extension: &Extension, given: RunInputs) -> Result<Run, NoRun> {
        let plugin = extension.plugin.as_ref().map_err(|error| NoRun::NotLoaded(error.to_string()))?;
        let deadline = self.judge.deadline_budgets.deadline(self.class, plugin.deadline(), self.now);
        Ok(Run::start(plugin, given, deadline)?)
    }
}

fn request_run(
    starting: &Starting<'_>,
    extension: &Extension,
    shown: Request,
    given: RunInputs,
    running: &mut Option<Box<Run>>,
) -> Result<Outcome, NoRun> {
    let mut run = starting.start(extension, given)?;
    let outcome = run.request(shown)?;
    if extension.response && matches!(outcome, Outcome::Continue(_)) {
        *running = Some(Box::new(run));
    } else {
        run.end()?;
    }
    Ok(outcome)
}

/// Refuses changes to the headers that verified claims are copied to: a module must not decide who
/// the user is.
fn spares_claims(spec: &ProgramSpec, outcome: Outcome) -> Result<Outcome, NoRun> {
    if let Outcome::Continue(changes) = &outcome {
        edits::check_claims(changes, &spec.authentication).map_err(NoRun::BadOutput)?;
    }
    Ok(outcome)
}

fn response_run(
    starting: &Starting<'_>,
    extension: &Extension,
    pending: PendingRun,
    head: &response::Parts,
) -> Result<Outcome, NoRun> {
    let mut run = match pending {
        PendingRun::Running(run) => run,
        PendingRun::Fresh(request, given) => {
            let mut run = Box::new(starting.start(extension, given)?);
            run.remember(*request);
            run
        }
    };
    let outcome = run.response(shown::response(head))?;
    run.end()?;
    Ok(outcome)
}

/// What happens to the exchange after a run.
enum Conclusion {
    Continue(Vec<edits::Edit>),
    Refuse(RecordedVerdict, Refusal),
}

/// Validates and records the outcome of a run.
fn conclude(
    judge: &Judge,
    record: &Record,
    entry: &FunctionEntry,
    extension: &Extension,
    phase: &'static str,
    outcome: Result<Outcome, NoRun>,
    started: Instant,
) -> Conclusion {
    // `fail_open` does not apply to a missing module, or to a node without a free instance: an
    // attacker who exhausts a node, or keeps a module away, must not be able to turn off a policy.
    let is_there = !matches!(outcome, Err(NoRun::NotLoaded(_) | NoRun::Failed(Failure::Crowded)));
    let decision = match outcome {
        Ok(outcome) => verdict::validate(Ok(outcome)),
        Err(NoRun::Failed(failure)) => verdict::validate(Err(failure)),
        Err(NoRun::BadOutput(error)) => Err(verdict::bad_output(&error)),
        Err(NoRun::NotLoaded(reason)) => Err(("not_loaded", format!("the module is not loaded: {reason}"))),
    };
    let (ended, concluded) = match decision {
        Ok(ModuleDecision::Continue(edits)) => (ExtensionOutcome::Continued, Conclusion::Continue(edits)),
        Ok(ModuleDecision::Answer(answer)) => {
            (ExtensionOutcome::Answered(answer.status.as_u16()), answered(extension, *answer))
        }
        Err((label, reason)) => {
            judge.log.extension_failure(&entry.name, &extension.name, &reason);
            let open = extension.fail_open && is_there;
            let ended = ExtensionOutcome::Failed { label, reason: reason.as_str().into(), open };
            let concluded = match open {
                true => Conclusion::Continue(Vec::new()),
                false => failed(extension, &reason),
            };
            (ended, concluded)
        }
    };
    let now = Instant::now();
    let time = now.saturating_duration_since(started);
    if matches!(ended, ExtensionOutcome::Failed { label: "deadline", .. })
        && let Ok(plugin) = &extension.plugin
    {
        let deadline = judge.deadline_budgets.deadline(entry.class, plugin.deadline(), started);
        judge.deadline_budgets.charge(entry.class, deadline, time, now);
    }
    let observation = Observation { name: extension.name.clone(), phase, ended, time };
    record.note(|observed| observed.extensions.push(observation));
    concluded
}

fn answered(extension: &Extension, answer: Answer) -> Conclusion {
    let recorded = RecordedVerdict::Extension { rule: extension.name.as_ref().into(), clause: answer.details.clone() };
    let Answer { status, headers, body, grpc_status, .. } = answer;
    Conclusion::Refuse(recorded, Refusal { status, headers, own: Some(Box::new((body, grpc_status))) })
}

fn failed(extension: &Extension, reason: &str) -> Conclusion {
    let reason = format!("{}: {reason}", extension.name).into();
    let recorded = RecordedVerdict::Fault { fault: "extension", reason };
    Conclusion::Refuse(recorded, unavailable())
}

fn unavailable() -> Refusal {
    Refusal { status: StatusCode::SERVICE_UNAVAILABLE, headers: HeaderMap::new(), own: None }
}
