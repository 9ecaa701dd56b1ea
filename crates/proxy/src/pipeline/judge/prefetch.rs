//! Prefetches the token and counters that a program will probably want, so that one run is usually
//! enough.
//!
//! The forecast may be wrong: a program asks for missing inputs, and ignores superfluous ones.

use super::Evaluation;
use crate::state::limits::CounterState;
use crate::state::tokens::ClaimValues;
use crate::state::tokens::{Digest, VerifiedSignature, VerifiedToken};
use http::Method;
use leno_policy::input::{Header, QuotaEntry};
use leno_policy::quota::Subject;
use leno_policy::spec::{ClaimPath, Counts, KeyId, KeyPart, RateLimit};
use leno_policy::token::{self, MAX_TOKEN, RequestToken};
use leno_policy::{path, quota};
use leno_telemetry::exchange::SignatureCheck;
use std::borrow::Cow;

/// Maximum number of bytes of claims that are remembered of one token. If a token has more, the
/// program asks for its counters with each request.
const MAX_CLAIM_BYTES: usize = 1024;

/// The request's token and counters, as far as they are known.
pub(super) struct PrefetchedInputs<'a> {
    /// The request's only token. `None`: there is none, or the program will refuse it whatever key
    /// signed it.
    pub token: Option<Token<'a>>,
    /// Counters to hand to the program.
    pub counters: Vec<Counter>,
}

/// The token that was found in the head.
pub(super) struct Token<'a> {
    pub token: &'a str,
    /// SHA-256 of the token.
    pub digest: Digest,
    /// The key that the signature was verified with; `None`: not verified yet.
    pub verified: Option<KeyId>,
}

/// A counter and its state when it was read.
pub(super) struct Counter {
    /// Index of the rate limit in the program's specification.
    pub limit: u16,
    pub key: String,
    pub held: CounterState,
}

impl<'a> PrefetchedInputs<'a> {
    /// Looks up the tokens and counters that the program declared.
    pub(super) fn new(
        evaluation: &Evaluation<'_>,
        method: &Method,
        path: &'a str,
        headers: &[Header<'a>],
        located: &[RequestToken<'a>],
    ) -> Self {
        let needs = &evaluation.program.needs;
        let mut claims = None;
        let token = only(located).map(|token| look_up(evaluation, token, &mut claims));
        let counters = if needs.quotas.is_empty() {
            Vec::new()
        } else {
            read_counters(evaluation, method, path, headers, claims.as_ref())
        };
        Self { token, counters }
    }

    /// The verified key, for the program's input.
    pub(super) fn verified(&self) -> Option<KeyId> {
        self.token.as_ref()?.verified
    }

    /// The counters, for the program's input.
    pub(super) fn quotas(&self) -> Vec<QuotaEntry<'_>> {
        let entries = self.counters.iter();
        entries.map(|Counter { limit, key, held }| QuotaEntry { limit: *limit, key, state: held.state }).collect()
    }

    /// Remembers the claims of an accepted token for later requests.
    pub(super) fn learn(&self, evaluation: &Evaluation<'_>, claims: &[Option<String>]) {
        let bytes: usize = claims.iter().flatten().map(String::len).sum();
        if claims.is_empty() || claims.len() != evaluation.program.needs.claims.len() || bytes > MAX_CLAIM_BYTES {
            return;
        }
        if let Some(token) = self.token.as_ref().filter(|token| token.verified.is_some())
            && evaluation.state.tokens.add_claims(&token.digest, claims)
        {
            evaluation.signatures.add_claims(&token.digest, &evaluation.program.needs.claims, claims);
        }
    }
}

/// The request's only token. A token that the program would refuse in any case is not hashed.
fn only<'a>(located: &[RequestToken<'a>]) -> Option<&'a str> {
    let found = located.first().filter(|found| found.token.len() <= MAX_TOKEN)?;
    token::contradicting(located).is_none().then_some(found.token)
}

/// SHA-256 of a token.
pub(super) fn digest(token: &str) -> Digest {
    let mut digest = [0; 32];
    digest.copy_from_slice(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, token.as_bytes()).as_ref());
    digest
}

fn look_up<'a>(evaluation: &Evaluation<'_>, token: &'a str, claims: &mut Option<ClaimValues>) -> Token<'a> {
    let digest = digest(token);
    let Some(known) = evaluation.state.tokens.look_up(&digest).or_else(|| learn_from_others(evaluation, &digest))
    else {
        return Token { token, digest, verified: None };
    };
    evaluation.record.note(|observed| {
        let check = SignatureCheck { key: known.key, algorithm: known.algorithm, remembered: true, error: None };
        observed.signatures.push(check);
    });
    if claims.is_none() {
        *claims = known.claims;
    }
    Token { token, digest, verified: Some(known.key) }
}

/// Looks up a token that is new to this function in the cache of all functions on this node. Its
/// entry is used only if this function has the key that signed the token.
fn learn_from_others(evaluation: &Evaluation<'_>, digest: &Digest) -> Option<VerifiedToken> {
    let VerifiedSignature { key, algorithm, claims } = evaluation.signatures.look_up(digest)?;
    if !evaluation.input.entry.keys.contains(key) {
        return None;
    }
    let claims = claims.filter(|(paths, _)| **paths == *evaluation.program.needs.claims).map(|(_, values)| values);
    let known = VerifiedToken { key, algorithm, claims };
    evaluation.state.tokens.remember(*digest, known.clone());
    Some(known)
}

/// Reads the counters that would count the request if every limit applied to it.
fn read_counters(
    evaluation: &Evaluation<'_>,
    method: &Method,
    path: &str,
    headers: &[Header<'_>],
    claims: Option<&ClaimValues>,
) -> Vec<Counter> {
    let needs = &evaluation.program.needs;
    let uses_path = needs.quotas.iter().flatten().any(|part| *part == KeyPart::Path);
    let path = if uses_path { path::normalise(path::split(path).0) } else { Ok(Cow::Borrowed("")) };
    // An ambiguous path will be refused anyway.
    let Ok(path) = path else { return Vec::new() };
    let header = |name: &str| headers.iter().find(|header| header.name == name).map(|header| header.value);
    let claim = |path: &ClaimPath| {
        let index = needs.claims.iter().position(|claim| claim == path)?;
        claims?.get(index)?.as_deref().map(Cow::Borrowed)
    };
    let peer = evaluation.input.peer();
    let subject = Subject {
        identity: peer.identity,
        address: peer.address,
        method: method.as_str(),
        path: &path,
        header: &header,
        claim: &claim,
    };
    let limits = evaluation.program.spec.rate_limits.iter().zip(&needs.quotas);
    let read = |(index, (limit, parts)): (u16, (&RateLimit, &Vec<KeyPart>))| {
        let key = quota::render_key(parts, &subject);
        let held = evaluation.state.limits.read(&limit.name, &key);
        Counter { limit: index, key, held }
    };
    let counts_it = |(_, (limit, _)): &(u16, (&RateLimit, &Vec<KeyPart>))| {
        limit.counts == Counts::Requests && quota::may_be_of(limit, peer)
    };
    (0..).zip(limits).filter(counts_it).map(read).collect()
}
