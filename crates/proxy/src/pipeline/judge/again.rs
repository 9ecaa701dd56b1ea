//! Judges an open request again: whether it would still be permitted. This has no other effect: it
//! takes from no counter, and plans, edits and records nothing.

use super::prefetch::digest;
use super::request_snapshot::RequestSnapshot;
use super::{Judge, JudgeError, MAX_RUNS, outcome, program};
use crate::state::function::{FunctionEntry, LoadedProgram};
use http::StatusCode;
use leno_http::body::ClosedBy;
use leno_http::edits::{self, BadOutput};
use leno_http::peer::{Peer, TrafficDirection};
use leno_policy::input::{self, Input, QuotaEntry, QuotaState, RequestInput, TargetLoad};
use leno_policy::outcome::{Denial, MAX_KEYS, MAX_TAKES, Outcome, Output, PolicyKind, SignatureWant, Verdict};
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
    pub scheme: &'static str,
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
        let mut verified = self.known_signer(entry, program, request.asked);
        let mut counters: Vec<(u16, String)> = Vec::new();
        let random = std::array::from_fn(|_| self.random.next());
        for _ in 0..MAX_RUNS {
            let input = Input::Request(RequestInput {
                now_ms,
                random,
                peer: input::Peer { identity: request.peer.identity.as_deref(), address: request.peer.address.ip() },
                target: request.target,
                port: request.port,
                protocol: request.protocol,
                scheme: request.scheme,
                method: request.asked.method(),
                authority: request.asked.authority(),
                path: request.asked.path(),
                headers: request.asked.headers(),
                verified,
                quotas: counters.iter().map(|(limit, key)| unused(*limit, key)).collect(),
                load: TargetLoad::default(),
                parent: None,
            });
            match self.run(entry.class.into(), program, &input, record)?.0 {
                Output::Request(Outcome::Decided(decision)) => {
                    return Ok(match decision.verdict {
                        Verdict::Allow { .. } => Ok(decision.until_ms),
                        // The request has taken from the limit before, and takes nothing more.
                        Verdict::Deny(Denial {
                            policy: PolicyKind::RateLimit | PolicyKind::CircuitBreaker, ..
                        }) => Ok(decision.until_ms),
                        Verdict::Deny(denial) => Err(Box::new(denial)),
                    });
                }
                Output::Request(Outcome::Wants(wants)) => {
                    if let Some(want) = wants.signature {
                        match self.signer(entry, program, request.asked, &want)? {
                            Some(key) => verified = Some(key),
                            None => return Ok(Err(Box::new(want.denial))),
                        }
                    }
                    counters.extend(wants.quotas);
                    edits::at_most("counters", counters.len(), MAX_TAKES)?;
                }
                Output::Unreadable(reason) => return Err(JudgeError::Unreadable(reason)),
                Output::Response(_) => return Err(BadOutput::WrongKind.into()),
            }
        }
        Err(JudgeError::Undecided)
    }

    /// The key that signed the request's token, if an earlier request has established it.
    fn known_signer(&self, entry: &FunctionEntry, program: &LoadedProgram, asked: &RequestSnapshot) -> Option<KeyId> {
        let headers = asked.headers();
        let located = token::locate(&program.needs.tokens, &headers, asked.path());
        let digest = digest(located.first()?.token);
        let known = self.function(&entry.config.id).tokens.look_up(&digest).map(|known| known.key);
        known.or_else(|| self.policy_state.tokens.signatures.look_up(&digest).map(|known| known.key))
    }

    /// The key that made the request's token.
    fn signer(
        &self,
        entry: &FunctionEntry,
        program: &LoadedProgram,
        asked: &RequestSnapshot,
        want: &SignatureWant,
    ) -> Result<Option<KeyId>, JudgeError> {
        edits::at_most("keys", want.keys.len(), MAX_KEYS)?;
        let headers = asked.headers();
        let located = token::locate(&program.needs.tokens, &headers, asked.path());
        let token = located.first().ok_or(BadOutput::NoToken)?.token;
        Ok(want.keys.iter().find(|key| entry.keys.verify(token, **key, want.algorithm).is_ok()).copied())
    }
}

/// A counter from which nothing was taken.
fn unused(limit: u16, key: &str) -> QuotaEntry<'_> {
    QuotaEntry { limit, key, state: QuotaState::default() }
}
