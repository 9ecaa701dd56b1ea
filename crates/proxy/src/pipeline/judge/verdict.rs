//! Validates the decision of an extension's module, and records the verdicts that follow a
//! program's. A module's output is as untrusted as a program's, and the same rules apply.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use leno_http::edits;
use leno_http::edits::{BadOutput, Edit};
use leno_policy::outcome::RawEdit;
use leno_sandbox::extension::{Failure, Local, Outcome};
use leno_telemetry::exchange::{RecordedVerdict, Stage};
use leno_telemetry::record::Record;
use std::time::Instant;

/// A module's decision, validated.
#[derive(Debug)]
pub(crate) enum ModuleDecision {
    /// The exchange goes on with these edits.
    Continue(Vec<Edit>),
    /// The module answers the request itself.
    Answer(Box<Answer>),
}

/// A module's own response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub grpc_status: Option<u8>,
    /// The reason, in the module's words.
    pub details: Box<str>,
}

/// A run without a result to rely on: a label for metrics, and the reason in words.
pub(crate) type RunFailure = (&'static str, String);

/// Validates the outcome of a run.
pub(crate) fn validate(outcome: Result<Outcome, Failure>) -> Result<ModuleDecision, RunFailure> {
    let bad = |error: BadOutput| bad_output(&error);
    match outcome {
        Ok(Outcome::Continue(changes)) => Ok(ModuleDecision::Continue(edits::check_changes(&changes).map_err(bad)?)),
        Ok(Outcome::Local(local)) => Ok(ModuleDecision::Answer(Box::new(answer(*local).map_err(bad)?))),
        Err(failure) => Err((failure.label(), failure.to_string())),
    }
}

/// The failure of a run with invalid output.
pub(crate) fn bad_output(error: &BadOutput) -> RunFailure {
    ("bad_output", format!("its output is invalid: {error}"))
}

fn answer(local: Local) -> Result<Answer, BadOutput> {
    let Local { status, fields, body, grpc_status, details } = local;
    let status = u16::try_from(status).unwrap_or(u16::MAX);
    let code = StatusCode::from_u16(status).ok().filter(|_| (200..=599).contains(&status));
    let mut headers = HeaderMap::new();
    let appended: Vec<_> = fields.iter().map(|(name, value)| RawEdit::Append(name.into(), value.into())).collect();
    edits::apply(edits::check_changes(&appended)?, &mut headers);
    Ok(Answer {
        status: code.ok_or(BadOutput::Status(status))?,
        headers,
        body: body.into(),
        // gRPC's status codes are 0 to 16.
        grpc_status: u8::try_from(grpc_status).ok().filter(|status| *status <= 16),
        details: details.into(),
    })
}

/// Replaces the program's verdict in the record.
pub(crate) fn overrule(record: &Record, recorded: RecordedVerdict) {
    record.note(|observed| {
        if let RecordedVerdict::Deny { policy, .. } = &recorded {
            observed.flag = super::outcome::flag(*policy);
        }
        if let Some(judged) = &mut observed.judged {
            judged.verdict = recorded;
        }
    });
}

/// Records a refusal by an audited policy, which does not take effect. Only the first one is kept.
pub(crate) fn audit(record: &Record, recorded: RecordedVerdict) {
    record.note(|observed| {
        if let Some(judged) = &mut observed.judged {
            judged.audit.get_or_insert(recorded);
        }
    });
}

/// Adds the time since `started` to the duration of the judgement.
pub(crate) fn add_time(record: &Record, started: Instant) {
    let ended = Instant::now();
    record.note(|observed| {
        observed.stages[Stage::Judged as usize] = Some(ended);
        if let Some(judged) = &mut observed.judged {
            judged.time += ended.saturating_duration_since(started);
        }
    });
}
