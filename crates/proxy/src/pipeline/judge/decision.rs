//! Validates a program's decision.

use super::{Evaluation, JudgeError};
use crate::state::decisions::{Signer, ValidDecision, ValidDenial, ValidVerdict};
use leno_http::edits::{self, BadOutput};
use leno_policy::outcome::{Decision, Denial, MAX_TAKES, SignatureWant, Take, Verdict, Window};
use leno_telemetry::exchange::RecordedVerdict;

/// Validates a denial.
pub(super) fn refused(mut denial: Denial) -> Result<ValidDenial, BadOutput> {
    let status = edits::check_status(denial.status)?;
    let headers = edits::check_fields(std::mem::take(&mut denial.headers))?;
    Ok(ValidDenial { status, headers, denial })
}

impl Evaluation<'_> {
    /// Validates a decision on this request. `signature` is what signed its token.
    pub(super) fn validate(&self, decision: Decision, signature: Option<Signer>) -> Result<ValidDecision, JudgeError> {
        let Decision { verdict, path, request_edits, takes, principal, audit, window, target, asks } = decision;
        check_takes(&takes, self)?;
        let verdict = match verdict {
            Verdict::Deny(denial) => ValidVerdict::Deny(refused(denial)?),
            Verdict::Allow { rule } => ValidVerdict::Allow {
                rule: rule.into(),
                path: path.map(edits::check_path).transpose()?,
                edits: edits::check(request_edits)?,
                target: check_target(target, self)?,
                asks: check_asks(asks, self)?,
            },
        };
        let (principal, audit) = (principal.map(String::into_boxed_str), audit.map(RecordedVerdict::from));
        Ok(ValidDecision { verdict, takes, principal, audit, window, signature })
    }

    /// The decision on a token whose signature is wrong.
    pub(super) fn wrong_signature(&self, want: SignatureWant) -> Result<ValidDecision, BadOutput> {
        check_takes(&want.failure, self)?;
        Ok(ValidDecision {
            verdict: ValidVerdict::Deny(refused(want.denial)?),
            takes: want.failure,
            principal: None,
            audit: None,
            window: Window::ALWAYS,
            signature: None,
        })
    }
}

fn check_takes(takes: &[Take], evaluation: &Evaluation<'_>) -> Result<(), BadOutput> {
    edits::at_most("takes", takes.len(), MAX_TAKES)?;
    let count = evaluation.program.spec.rate_limits.len();
    let index = takes.iter().map(|take| usize::from(take.limit)).find(|index| *index >= count);
    index.map_or(Ok(()), |index| Err(BadOutput::Index { what: "rate limit", index, count }))
}

/// The target has to be the one to which the request was routed.
fn check_target(target: Option<u16>, evaluation: &Evaluation<'_>) -> Result<usize, JudgeError> {
    let Some((state, index)) = evaluation.target.zip(target) else { return Err(JudgeError::NoTarget) };
    let (index, targets) = (usize::from(index), &evaluation.program.spec.targets);
    match targets.get(index) {
        Some(target) if *target.function == *state.name => Ok(index),
        _ => Err(BadOutput::Index { what: "target", index, count: targets.len() }.into()),
    }
}

fn check_asks(asks: Vec<u16>, evaluation: &Evaluation<'_>) -> Result<Vec<u16>, BadOutput> {
    let count = evaluation.input.entry.authorizers.len();
    edits::at_most("questions", asks.len(), count)?;
    match asks.iter().map(|index| usize::from(*index)).find(|index| *index >= count) {
        Some(index) => Err(BadOutput::Index { what: "authorizer", index, count }),
        None => Ok(asks),
    }
}
