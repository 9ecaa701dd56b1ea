//! Compares the recorded verdict with the candidate's.

use super::{DecodedRecord, ReplayError};
use leno_policy::KEYS_PENDING;
use leno_policy::outcome::{self, Decision, Denial, PolicyKind, SignatureWant};
use leno_policy::spec::{KeyId, ProgramSpec};
use leno_telemetry::exchange::RecordedVerdict;
use leno_telemetry::names::{EXTENSIONS, policy_name};

/// A verdict in the words of the access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it allowed the request.
    pub allowed: bool,
    /// The policy that refused.
    pub policy: Option<String>,
    /// The rule that decided, or came nearest.
    pub rule: String,
    /// The clause that decided or missed.
    pub clause: String,
}

/// Two verdicts on one request.
pub(super) struct Comparison {
    pub change: Change,
    pub before: Verdict,
    pub after: Verdict,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    None,
    Denied,
    Allowed,
}

impl Comparison {
    fn new(before: Verdict, after: Verdict) -> Self {
        let change = match (before.allowed, after.allowed) {
            (true, false) => Change::Denied,
            (false, true) => Change::Allowed,
            _ => Change::None,
        };
        Self { change, before, after }
    }
}

/// Compares a decision with the recorded verdict. Fails if the outcome does not depend on the
/// program alone.
pub(super) fn compare(
    recorded: &DecodedRecord,
    decision: &Decision,
    spec: &ProgramSpec,
) -> Result<Comparison, ReplayError> {
    let rule = match &decision.verdict {
        outcome::Verdict::Deny(denial) => return compare_denial(recorded, denial.clone()),
        outcome::Verdict::Allow { rule } => rule,
    };
    let before = before(recorded)?;
    if !before.allowed && !is_replayed(recorded) {
        let policy = before.policy.unwrap_or_default();
        return Err(ReplayError::NotReplayed(policy));
    }
    let asked = |name: &str| {
        let answered = |result: &str| result == "allowed";
        recorded.authorizers.iter().any(|check| *check.name == *name && answered(&check.result))
    };
    let asks = decision.asks.iter().filter_map(|&index| spec.authorizers.get(usize::from(index)));
    if let Some(authorizer) = asks.into_iter().find(|one| !one.audit && !asked(&one.name)) {
        return Err(ReplayError::Authorizer(authorizer.name.clone()));
    }
    Ok(Comparison::new(before, Verdict { allowed: true, policy: None, rule: rule.clone(), clause: String::new() }))
}

/// Compares a refusal with the recorded verdict.
pub(super) fn compare_denial(recorded: &DecodedRecord, denial: Denial) -> Result<Comparison, ReplayError> {
    if denial.policy == PolicyKind::Authentication && denial.clause.contains(KEYS_PENDING) {
        return Err(ReplayError::KeysPending);
    }
    let Denial { policy, rule, clause, .. } = denial;
    let after = Verdict { allowed: false, policy: Some(policy_name(policy).to_owned()), rule, clause };
    Ok(Comparison::new(before(recorded)?, after))
}

/// The recorded verdict.
fn before(recorded: &DecodedRecord) -> Result<Verdict, ReplayError> {
    let judged = recorded.judged.as_ref().ok_or(ReplayError::NotJudged)?;
    let (rule, clause) = judged.verdict.rule_and_clause();
    let (allowed, policy) = match &judged.verdict {
        RecordedVerdict::Allow { .. } => (true, None),
        RecordedVerdict::Deny { policy, .. } => (false, Some(policy_name(*policy))),
        RecordedVerdict::Extension { .. } => (false, Some(EXTENSIONS)),
        RecordedVerdict::Fault { .. } => return Err(ReplayError::NoVerdict),
    };
    Ok(Verdict { allowed, policy: policy.map(str::to_owned), rule: rule.to_owned(), clause: clause.to_owned() })
}

/// Whether the policy that refused the request is one that a replay judges by.
fn is_replayed(recorded: &DecodedRecord) -> bool {
    let verdict = recorded.judged.as_ref().map(|judged| &judged.verdict);
    matches!(
        verdict,
        Some(RecordedVerdict::Deny {
            policy: PolicyKind::Authentication
                | PolicyKind::Sidecar
                | PolicyKind::Authorization
                | PolicyKind::MutualTls,
            ..
        })
    )
}

/// The key that signed the request's token.
pub(super) fn verified(recorded: &DecodedRecord) -> Option<KeyId> {
    recorded.signatures.iter().find(|check| check.error.is_none()).map(|check| check.key)
}

/// The refusal of a token that none of the wanted keys has signed; `None`: the record does not show
/// it.
pub(super) fn wrong_signature(recorded: &DecodedRecord, want: SignatureWant) -> Option<Denial> {
    let failed = |key: &KeyId| recorded.signatures.iter().any(|check| check.key == *key && check.error.is_some());
    // A token that one key has signed was signed by no other key.
    let is_wrong = verified(recorded).is_some() || want.keys.iter().all(failed);
    is_wrong.then_some(want.denial)
}
