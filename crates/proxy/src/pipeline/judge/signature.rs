//! The signature of a request's token: known from an earlier request, or verified.
//!
//! The runtime verifies signatures outside of the sandbox, a hundred times faster. It remembers
//! them by token and key.

use super::Evaluation;
use crate::state::decisions::Signer;
use crate::state::tokens::VerifiedToken;
use leno_http::edits::{self, BadOutput};
use leno_policy::outcome::{MAX_KEYS, SignatureWant};
use leno_policy::spec::KeyId;
use leno_policy::token::{self, MAX_TOKEN, RequestToken};
use leno_telemetry::exchange::SignatureCheck;

/// The signature of a request's only token.
pub(super) struct TokenSignature<'a> {
    /// `None`: there is no token, or the program will refuse it whatever key signed it.
    token: Option<&'a str>,
    /// `None`: it is not verified.
    signer: Option<Signer>,
}

impl<'a> TokenSignature<'a> {
    /// Looks up the only token among those that were found in the head.
    pub(super) fn look_up(evaluation: &Evaluation<'_>, located: &[RequestToken<'a>]) -> Self {
        let token = only(located);
        let signer = token.and_then(|token| known(evaluation, token));
        evaluation.note_signature(signer);
        Self { token, signer }
    }

    /// The key that signed the token, for the program's input.
    pub(super) fn key(&self) -> Option<KeyId> {
        self.signer.map(|(key, _)| key)
    }

    /// What signed the token; `None`: nothing is known to have.
    pub(super) fn made_by(&self) -> Option<Signer> {
        self.signer
    }

    /// Whether there is a token that no key is known to have signed.
    pub(super) fn is_unverified(&self) -> bool {
        self.token.is_some() && self.signer.is_none()
    }

    /// Verifies the signature with the keys that the program names. The inner error returns what the
    /// program wanted: the signature is wrong.
    pub(super) fn verify(
        &mut self,
        evaluation: &Evaluation<'_>,
        want: SignatureWant,
    ) -> Result<Result<(), SignatureWant>, BadOutput> {
        let token = self.token.ok_or(BadOutput::NoToken)?;
        edits::at_most("keys", want.keys.len(), MAX_KEYS)?;
        let made = |key: &&KeyId| {
            let result = evaluation.input.entry.keys.verify(token, **key, want.algorithm);
            evaluation.record.note(|observed| {
                let error = result.err().map(|error| error.label());
                let check = SignatureCheck { key: **key, algorithm: want.algorithm, remembered: false, error };
                observed.signatures.push(check);
            });
            result.is_ok()
        };
        let Some(key) = want.keys.iter().find(made).copied() else { return Ok(Err(want)) };
        let known = VerifiedToken { key, algorithm: want.algorithm };
        let hash = evaluation.hasher.hash(token.as_bytes());
        evaluation.state.tokens.remember(hash, known);
        evaluation.signatures.remember(hash, known);
        self.signer = Some((key, want.algorithm));
        Ok(Ok(()))
    }
}

impl Evaluation<'_> {
    /// Records a signature that is known from an earlier request.
    pub(super) fn note_signature(&self, signer: Option<Signer>) {
        if let Some((key, algorithm)) = signer {
            self.record.note(|observed| {
                observed.signatures.push(SignatureCheck { key, algorithm, remembered: true, error: None });
            });
        }
    }
}

/// The request's only token. A token that the program would refuse in any case is not looked up.
pub(super) fn only<'a>(located: &[RequestToken<'a>]) -> Option<&'a str> {
    let found = located.first().filter(|found| found.token.len() <= MAX_TOKEN)?;
    token::contradicting(located).is_none().then_some(found.token)
}

fn known(evaluation: &Evaluation<'_>, token: &str) -> Option<Signer> {
    let hash = evaluation.hasher.hash(token.as_bytes());
    let own = evaluation.state.tokens.look_up(hash);
    own.or_else(|| learn_from_others(evaluation, hash)).map(|known| (known.key, known.algorithm))
}

/// Looks up a token that is new to this function in the memory of all functions on this node. Its
/// entry is used only if this function has the key that signed the token.
fn learn_from_others(evaluation: &Evaluation<'_>, hash: u128) -> Option<VerifiedToken> {
    let known = evaluation.signatures.look_up(hash)?;
    if !evaluation.input.entry.keys.contains(known.key) {
        return None;
    }
    evaluation.state.tokens.remember(hash, known);
    Some(known)
}
