//! Runs a function's extensions, after its program has allowed the request.

use super::outcome::{Permitted, Refusal, edited};
use super::{Asked, Judge, Judgement};
use crate::edits::{self, BadOutput};
use crate::extension::{self, Answer, Context, Ended, Extension, Observation, Said};
use crate::ledger::FunctionState;
use crate::peer::Entrance;
use crate::record::{Record, Ruled};
use crate::schedule::Class;
use crate::snapshot::FunctionEntry;
use http::{HeaderMap, StatusCode, response};
use leno_policy::spec::ProgramSpec;
use leno_sandbox::extension::{Failure, Given, Outcome, Request, Run};
use std::sync::Arc;
use std::time::Instant;

/// What a permitted request's extensions left for its response: for each that sees responses, its instance or what one needs.
#[derive(Default)]
pub(super) struct Kept(Vec<(usize, Waiting)>);

enum Waiting {
    /// It saw the request.
    Running(Box<Run>),
    /// It sees the response only.
    Fresh(Box<Request>, Given),
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Kept({})", self.0.len())
    }
}

/// The caller's or the callee's.
fn extensions(entry: &FunctionEntry, entrance: Entrance) -> &[Extension] {
    match entrance {
        Entrance::Outbound => &entry.outbound_extensions,
        Entrance::Gateway | Entrance::Inbound => &entry.inbound_extensions,
    }
}

impl Judge {
    fn given(&self, state: &FunctionState, now_ms: u64) -> Given {
        Given { now_ms, random: self.random.next(), shared: state.shared.clone() }
    }
}

impl Asked<'_> {
    /// Shows a permitted request to the extensions, one after the other.
    pub(super) fn extend(&mut self, judge: &Judge, mut permitted: Permitted, now_ms: u64) -> Judgement {
        let extensions = extensions(self.ask.entry, self.ask.entrance);
        if extensions.is_empty() {
            return Judgement::Permitted(permitted);
        }
        let context = Context {
            peer: self.ask.peer,
            scheme: self.ask.scheme,
            port: self.ask.port,
            target: self.target.map_or_else(|| self.ask.entry.name.clone(), |target| target.name.clone()),
            id: self.record.request_id(),
            bodiless: self.ask.bodiless,
        };
        for (index, extension) in extensions.iter().enumerate() {
            let shown = extension::request(&permitted.head, &context);
            let given = judge.given(self.state, now_ms);
            if !extension.request {
                permitted.ruling.kept.get_mut().0.push((index, Waiting::Fresh(Box::new(shown), given)));
                continue;
            }
            let started = Instant::now();
            let mut running = None;
            let starting = Starting { judge, class: self.ask.entry.class, now: started };
            let outcome = request_run(&starting, extension, shown, given, &mut running)
                .and_then(|outcome| spares_claims(&self.program.spec, outcome));
            match conclude(judge, self.record, self.ask.entry, extension, "request", outcome, started) {
                Concluded::Continue(edits) => {
                    self.record.note(|observed| observed.request_edits.extend(edits.iter().map(edited)));
                    edits::apply(edits, &mut permitted.head.headers);
                    if let Some(run) = running {
                        permitted.ruling.kept.get_mut().0.push((index, Waiting::Running(run)));
                    }
                }
                Concluded::Refuse(ruled, refusal) => {
                    self.runs.verdict = Some(ruled);
                    return Judgement::Denied(refusal);
                }
            }
        }
        Judgement::Permitted(permitted)
    }
}

/// Shows a response to the extensions that want to see it, the last one first.
pub(super) fn respond(
    judge: &Judge,
    entry: &Arc<FunctionEntry>,
    entrance: Entrance,
    kept: Kept,
    head: &mut response::Parts,
    record: &Record,
) -> Result<(), Refusal> {
    let extensions = extensions(entry, entrance);
    for (index, waiting) in kept.0.into_iter().rev() {
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
                record.note(|observed| {
                    if let Some(judged) = &mut observed.judged {
                        judged.verdict = ruled;
                    }
                });
                return Err(refusal);
            }
        }
    }
    Ok(())
}

/// Why nothing came of a run.
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

/// Who the user is, a module does not decide.
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
    let outcome = run.response(extension::response(head))?;
    run.end()?;
    Ok(outcome)
}

/// What becomes of the exchange.
enum Concluded {
    Continue(Vec<edits::Edit>),
    Refuse(Ruled, Refusal),
}

/// Checks what a run said, and writes it down.
fn conclude(
    judge: &Judge,
    record: &Record,
    entry: &FunctionEntry,
    extension: &Extension,
    phase: &'static str,
    outcome: Result<Outcome, NoRun>,
    started: Instant,
) -> Concluded {
    let said = match outcome {
        Ok(outcome) => extension::said(Ok(outcome)),
        Err(NoRun::Failed(failure)) => extension::said(Err(failure)),
        Err(NoRun::BadOutput(error)) => Err(extension::bad_output(&error)),
        Err(NoRun::NotLoaded(reason)) => Err(("not_loaded", format!("the module is not loaded: {reason}"))),
    };
    let (ended, concluded) = match said {
        Ok(Said::Continue(edits)) => (Ended::Continued, Concluded::Continue(edits)),
        Ok(Said::Answer(answer)) => (Ended::Answered(answer.status.as_u16()), answered(extension, *answer)),
        Err((label, reason)) => {
            judge.complaints.about_extension(&entry.name, &extension.name, &reason);
            let ended = Ended::Failed { label, reason: reason.as_str().into(), open: extension.fail_open };
            let concluded = match extension.fail_open {
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
    Concluded::Refuse(ruled, Refusal { status: StatusCode::SERVICE_UNAVAILABLE, headers: HeaderMap::new(), own: None })
}
