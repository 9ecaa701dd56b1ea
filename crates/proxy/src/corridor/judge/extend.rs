//! Runs a function's extensions, after its program has allowed the request.

use super::outcome::{Permitted, Refusal, edited};
use super::shown::{self, Context};
use super::verdict::{self, Answer, Said};
use super::{Judge, JudgeInput, Judgement};
use crate::http::edits;
use crate::http::edits::BadOutput;
use crate::http::peer::TrafficDirection;
use crate::runtime::schedule::Class;
use crate::state::extension::{Exhausted, Extension, Share};
use crate::state::function::FunctionEntry;
use crate::telemetry::observed::{Ended, Observation, Ruled, Stage};
use crate::telemetry::record::Record;
use http::{HeaderMap, StatusCode, response};
use leno_policy::spec::ProgramSpec;
use leno_sandbox::extension::{Failure, Given, Outcome, Request, Run};
use std::sync::Arc;
use std::time::Instant;

/// What a permitted request's extensions keep for its response: for each one that sees responses, its instance, or what it takes to start
/// one.
#[derive(Default)]
pub(super) struct Kept {
    waiting: Vec<(usize, Waiting)>,
    /// Reserves the instances that wait for the response, or start when it arrives.
    share: Option<Share>,
}

enum Waiting {
    /// The extension saw the request. Its instance waits for the response.
    Running(Box<Run>),
    /// The extension sees the response only. Its instance has not started.
    Fresh(Box<Request>, Given),
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Kept({})", self.waiting.len())
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
    /// Shows a permitted request to the function's extensions, one after the other. `share` reserves the instances of those that also see
    /// its response.
    pub fn extend(
        &self,
        ask: JudgeInput<'_>,
        mut permitted: Permitted,
        share: Result<Option<Share>, Exhausted>,
        record: &Record,
    ) -> Judgement {
        let started = Instant::now();
        let extended = match share {
            Ok(share) => {
                permitted.ruling.kept.get_mut().share = share;
                self.show(ask, &mut permitted, record)
            }
            Err(exhausted) => Err(Box::new(self.crowded(ask.entry, &exhausted))),
        };
        let ended = Instant::now();
        record.note(|observed| {
            observed.stages[Stage::Judged as usize] = Some(ended);
            if let Some(judged) = &mut observed.judged {
                judged.time += ended.saturating_duration_since(started);
            }
        });
        match extended {
            Ok(()) => Judgement::Permitted(permitted),
            Err(refused) => {
                let (ruled, refusal) = *refused;
                overrule(record, ruled);
                Judgement::Denied(refusal)
            }
        }
    }

    fn show(
        &self,
        ask: JudgeInput<'_>,
        permitted: &mut Permitted,
        record: &Record,
    ) -> Result<(), Box<(Ruled, Refusal)>> {
        let state = self.function(&ask.entry.slice.id);
        let context = Context {
            peer: ask.peer,
            scheme: ask.scheme,
            port: ask.port,
            target: ask.target.map_or_else(|| ask.entry.name.clone(), |target| self.function(target).name.clone()),
            id: record.request_id(),
            bodiless: ask.bodiless,
        };
        let given = || Given { now_ms: record.started().1, random: self.random.next(), shared: state.shared.clone() };
        for (index, extension) in extensions(ask.entry, ask.direction).iter().enumerate() {
            let shown = shown::request(&permitted.head, &context);
            if !extension.request {
                let fresh = Waiting::Fresh(Box::new(shown), given());
                permitted.ruling.kept.get_mut().waiting.push((index, fresh));
                continue;
            }
            let started = Instant::now();
            let mut running = None;
            let starting = Starting { judge: self, class: ask.entry.class, now: started };
            let spec = &super::program(ask.entry, ask.direction).spec;
            let outcome = request_run(&starting, extension, shown, given(), &mut running)
                .and_then(|outcome| spares_claims(spec, outcome));
            match conclude(self, record, ask.entry, extension, "request", outcome, started) {
                Concluded::Continue(edits) => {
                    record.note(|observed| observed.request_edits.extend(edits.iter().map(edited)));
                    edits::apply(edits, &mut permitted.head.headers);
                    if let Some(run) = running {
                        permitted.ruling.kept.get_mut().waiting.push((index, Waiting::Running(run)));
                    }
                }
                Concluded::Refuse(ruled, refusal) => return Err(Box::new((ruled, refusal))),
            }
        }
        Ok(())
    }

    fn crowded(&self, entry: &FunctionEntry, exhausted: &Exhausted) -> (Ruled, Refusal) {
        let reason = exhausted.to_string();
        self.complaints.about_extension(&entry.name, "any", &reason);
        (Ruled::Fault { fault: "extension", reason: reason.into() }, unavailable())
    }
}

/// Replaces the program's verdict in the record.
fn overrule(record: &Record, ruled: Ruled) {
    record.note(|observed| {
        if let Some(judged) = &mut observed.judged {
            judged.verdict = ruled;
        }
    });
}

/// Shows a response to the extensions that see responses, the last one first.
pub(super) fn respond(
    judge: &Judge,
    entry: &Arc<FunctionEntry>,
    direction: TrafficDirection,
    kept: Kept,
    head: &mut response::Parts,
    record: &Record,
) -> Result<(), Refusal> {
    let extensions = extensions(entry, direction);
    // Reserves the instances until the end of this function.
    let Kept { waiting, share: _share } = kept;
    for (index, waiting) in waiting.into_iter().rev() {
        let Some(extension) = extensions.get(index) else { continue };
        let started = Instant::now();
        let starting = Starting { judge, class: entry.class, now: started };
        let outcome = response_run(&starting, extension, waiting, head);
        match conclude(judge, record, entry, extension, "response", outcome, started) {
            Concluded::Continue(edits) => {
                record.note(|observed| observed.response_edits.extend(edits.iter().map(edited)));
                edits::apply(edits, &mut head.headers);
            }
            Concluded::Refuse(ruled, refusal) => {
                overrule(record, ruled);
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

/// What it takes to start an instance.
struct Starting<'a> {
    judge: &'a Judge,
    class: Class,
    now: Instant,
}

impl Starting<'_> {
    fn start(&self, extension: &Extension, given: Given) -> Result<Run, NoRun> {
        let plugin = extension.plugin.as_ref().map_err(|reason| NoRun::NotLoaded(reason.clone()))?;
        let deadline = self.judge.runaways.deadline(self.class, plugin.deadline(), self.now);
        Ok(Run::start(plugin, given, deadline)?)
    }
}

fn request_run(
    starting: &Starting<'_>,
    extension: &Extension,
    shown: Request,
    given: Given,
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

/// Refuses changes to the headers that verified claims are copied to: a module must not decide who the user is.
fn spares_claims(spec: &ProgramSpec, outcome: Outcome) -> Result<Outcome, NoRun> {
    if let Outcome::Continue(changes) = &outcome {
        edits::check_claims(changes, &spec.authentication).map_err(NoRun::BadOutput)?;
    }
    Ok(outcome)
}

fn response_run(
    starting: &Starting<'_>,
    extension: &Extension,
    waiting: Waiting,
    head: &response::Parts,
) -> Result<Outcome, NoRun> {
    let mut run = match waiting {
        Waiting::Running(run) => run,
        Waiting::Fresh(request, given) => {
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
enum Concluded {
    Continue(Vec<edits::Edit>),
    Refuse(Ruled, Refusal),
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
) -> Concluded {
    // `fail_open` does not apply to a missing module, or to a node without a free instance: whoever exhausts a node, or keeps a module
    // away, must not be able to turn off a policy.
    let is_there = !matches!(outcome, Err(NoRun::NotLoaded(_) | NoRun::Failed(Failure::Crowded)));
    let said = match outcome {
        Ok(outcome) => verdict::said(Ok(outcome)),
        Err(NoRun::Failed(failure)) => verdict::said(Err(failure)),
        Err(NoRun::BadOutput(error)) => Err(verdict::bad_output(&error)),
        Err(NoRun::NotLoaded(reason)) => Err(("not_loaded", format!("the module is not loaded: {reason}"))),
    };
    let (ended, concluded) = match said {
        Ok(Said::Continue(edits)) => (Ended::Continued, Concluded::Continue(edits)),
        Ok(Said::Answer(answer)) => (Ended::Answered(answer.status.as_u16()), answered(extension, *answer)),
        Err((label, reason)) => {
            judge.complaints.about_extension(&entry.name, &extension.name, &reason);
            let open = extension.fail_open && is_there;
            let ended = Ended::Failed { label, reason: reason.as_str().into(), open };
            let concluded = match open {
                true => Concluded::Continue(Vec::new()),
                false => failed(extension, &reason),
            };
            (ended, concluded)
        }
    };
    let now = Instant::now();
    let time = now.saturating_duration_since(started);
    if matches!(ended, Ended::Failed { label: "deadline", .. }) {
        judge.runaways.lost(entry.class, time, now);
    }
    let observation = Observation { name: extension.name.clone(), phase, ended, time };
    record.note(|observed| observed.extensions.push(observation));
    concluded
}

fn answered(extension: &Extension, answer: Answer) -> Concluded {
    let ruled = Ruled::Extension { rule: extension.name.as_ref().into(), clause: answer.details.clone() };
    let Answer { status, headers, body, grpc_status, .. } = answer;
    Concluded::Refuse(ruled, Refusal { status, headers, own: Some(Box::new((body, grpc_status))) })
}

fn failed(extension: &Extension, reason: &str) -> Concluded {
    let reason = format!("{}: {reason}", extension.name).into();
    let ruled = Ruled::Fault { fault: "extension", reason };
    Concluded::Refuse(ruled, unavailable())
}

fn unavailable() -> Refusal {
    Refusal { status: StatusCode::SERVICE_UNAVAILABLE, headers: HeaderMap::new(), own: None }
}
