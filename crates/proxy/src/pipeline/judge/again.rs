//! Judges an open request again: whether it would still be permitted. This has no other effect: it
//! takes from no counter, and plans, edits and records nothing.

use super::request_snapshot::RequestSnapshot;
use super::{Judge, JudgeError, MAX_RUNS, outcome, program, signature};
use crate::state::function::FunctionEntry;
use http::StatusCode;
use leno_http::body::ClosedBy;
use leno_http::edits::{self, BadOutput};
use leno_http::peer::{Peer, TrafficDirection};
use leno_policy::input::{self, RequestInput};
use leno_policy::outcome::{Denial, MAX_KEYS, Output, PolicyKind, Verdict};
use leno_policy::spec::{KeyId, Protocol};
use leno_policy::token;
use leno_telemetry::exchange::RecordedVerdict;
use leno_telemetry::record::Record;

/// The facts that are known about an open request.
pub(crate) struct OpenRequest<'a> {
    pub direction: TrafficDirection,
    pub peer: &'a Peer,
    /// The callee: `namespace/name`.
    pub target: &'a str,
    pub protocol: Protocol,
    pub port: u16,
    pub asked: &'a RequestSnapshot,
}

/// Why an open request is closed.
#[derive(Debug)]
pub(crate) struct Withdrawn {
    /// The status that a new request like this would get.
    pub status: StatusCode,
    pub verdict: RecordedVerdict,
    pub by: ClosedBy,
}

impl Withdrawn {
    /// The request is closed for a reason that no program knows, and for which the client is not to
    /// blame.
    pub(crate) fn new(status: StatusCode, policy: PolicyKind, clause: &str) -> Self {
        let verdict = RecordedVerdict::Deny { policy, rule: "".into(), default: false, clause: clause.into() };
        Self { status, verdict, by: ClosedBy::Circumstances }
    }

    /// The certificate or credential that proved the caller or a sidecar is not valid any more.
    pub(crate) fn unproven(clause: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, PolicyKind::MutualTls, clause)
    }

    fn denied(denial: Denial) -> Self {
        let status = edits::check_status(denial.status).unwrap_or(StatusCode::FORBIDDEN);
        Self { status, verdict: Verdict::Deny(denial).into(), by: ClosedBy::Policy }
    }
}

impl Judge {
    /// Asks the function's program again about an open request. Returns until when the verdict
    /// holds, in Unix milliseconds; `None`: until something changes. A program without a verdict to
    /// rely on permits nothing.
    pub(crate) fn again(
        &self,
        entry: &FunctionEntry,
        request: &OpenRequest<'_>,
        now_ms: u64,
        record: &Record,
    ) -> Result<Option<u64>, Withdrawn> {
        match self.reconsider(entry, request, now_ms, record) {
            Ok(Ok(until)) => Ok(until),
            Ok(Err(denial)) => Err(Withdrawn::denied(*denial)),
            Err(error) => {
                self.log.judge_error(&entry.name, &error);
                let (status, verdict) = outcome::describe(&error);
                Err(Withdrawn { status, verdict, by: ClosedBy::Circumstances })
            }
        }
    }

    fn reconsider(
        &self,
        entry: &FunctionEntry,
        request: &OpenRequest<'_>,
        now_ms: u64,
        record: &Record,
    ) -> Result<Result<Option<u64>, Box<Denial>>, JudgeError> {
        let program = program(entry, request.direction);
        let headers: Vec<_> = request.asked.headers().filter(|header| program.needs.gives(header.name)).collect();
        let located = token::locate(&program.needs.tokens, &headers, request.asked.path());
        let token = signature::only(&located);
        let address = program.needs.address.then(|| request.peer.address.ip());
        let mut input = RequestInput {
            now_ms,
            peer: input::Peer { identity: request.peer.identity.as_deref(), address },
            target: request.target,
            port: request.port,
            protocol: request.protocol,
            method: request.asked.method(),
            authority: request.asked.authority(),
            path: request.asked.path(),
            headers,
            verified: token.and_then(|token| self.known_signer(entry, token)),
        };
        for _ in 0..MAX_RUNS {
            match self.run(entry.class.into(), program, &input, record)?.0 {
                Output::Decided(decision) => {
                    return Ok(match decision.verdict {
                        Verdict::Allow { .. } => Ok(decision.window.end_ms()),
                        Verdict::Deny(denial) => Err(Box::new(denial)),
                    });
                }
                Output::Unverified(want) => {
                    let token = token.ok_or(BadOutput::NoToken)?;
                    edits::at_most("keys", want.keys.len(), MAX_KEYS)?;
                    let made = |key: &&KeyId| entry.keys.verify(token, **key, want.algorithm).is_ok();
                    match want.keys.iter().find(made) {
                        Some(key) => input.verified = Some(*key),
                        None => return Ok(Err(Box::new(want.denial))),
                    }
                }
                Output::Unreadable(reason) => return Err(JudgeError::Unreadable(reason)),
            }
        }
        Err(JudgeError::Undecided)
    }

    /// The key that signed a token, if an earlier request has established it.
    fn known_signer(&self, entry: &FunctionEntry, token: &str) -> Option<KeyId> {
        let tokens = &self.policy_state.tokens;
        let hash = tokens.hasher.hash(token.as_bytes());
        let known = self.function(&entry.config.id).tokens.look_up(hash);
        known.or_else(|| tokens.signatures.look_up(hash)).map(|known| known.key)
    }
}
