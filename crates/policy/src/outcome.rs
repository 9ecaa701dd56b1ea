//! Output of a program: a verdict with the rule that decided, edits, counters to take from, and
//! plans. It is plain data: output of a sandbox is untrusted until the runtime has validated it.

use crate::spec::{Algorithm, KeyId};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Largest encoded output, in bytes.
pub const MAX_OUTPUT: usize = 32 * 1024;

/// Most counters that one request takes from.
pub const MAX_TAKES: usize = 64;
/// Longest name of a rule, in bytes.
pub const MAX_RULE: usize = 1024;
/// Longest clause, in bytes.
pub const MAX_CLAUSE: usize = 4096;
/// Longest principal, in bytes; a longer one is cut.
pub const MAX_PRINCIPAL: usize = 1024;

/// One run's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Output {
    /// The request is judged.
    Decided(Decision),
    /// The program can decide only on a verified token. The runtime verifies the signature and runs
    /// a fresh sandbox again; if the signature is wrong, it denies with [`SignatureWant::denial`].
    Unverified(SignatureWant),
    /// The program could not read its input; the request is denied with this explanation.
    Unreadable(String),
}

/// Most keys that may have made a token: the runtime tries so many, one after the other.
pub const MAX_KEYS: usize = 8;

/// The keys with which to verify the signature of the request's one token. The program chooses them
/// from its own keys only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SignatureWant {
    /// Candidate keys: at least one, at most [`MAX_KEYS`].
    pub keys: Vec<KeyId>,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The denial to use when none of the keys verifies the signature.
    pub denial: Denial,
    /// The limits that count failures, from which such a denial takes. An exhausted one refuses.
    pub failure: Vec<Take>,
}

/// A judged request. The runtime adds what depends on state: it takes from counters, checks the
/// circuit breaker of the target, and makes the span.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Allowed or denied, and by what.
    pub verdict: Verdict,
    /// Path and query to forward, if they differ from the sent ones.
    pub path: Option<String>,
    /// Edits to the forwarded request.
    pub request_edits: Vec<HeaderEdit>,
    /// Counters to take from; of a refused request, the counters of failures. If one of them is
    /// exhausted, the request is refused.
    pub takes: Vec<Take>,
    /// `<iss>/<sub>` of the verified token, for logs.
    pub principal: Option<String>,
    /// The verdict if audited rules were in force, where it differs.
    pub audit: Option<Verdict>,
    /// The time during which the same request gets the same decision. Open streams are judged again
    /// when it is over.
    pub window: Window,
    /// The target whose time limit, retries (policy 8) and circuit breaker (policy 9) apply: an
    /// index into [`crate::spec::ProgramSpec::targets`]. `None`: the request is refused.
    pub target: Option<u16>,
    /// Authorizers to ask before the request is forwarded: indices into [`crate::spec::ProgramSpec::authorizers`], in order.
    pub asks: Vec<u16>,
}

/// A span of time, in Unix milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Its first millisecond.
    pub from_ms: u64,
    /// The first millisecond after it; [`u64::MAX`]: it does not end.
    pub until_ms: u64,
}

impl Window {
    /// All times.
    pub const ALWAYS: Self = Self { from_ms: 0, until_ms: u64::MAX };

    /// Whether `now_ms` is at `boundary_ms` or after it. The window ends at the boundary, or begins
    /// there.
    pub(crate) fn is_past(&mut self, boundary_ms: u64, now_ms: u64) -> bool {
        let past = now_ms >= boundary_ms;
        match past {
            true => self.from_ms = self.from_ms.max(boundary_ms),
            false => self.until_ms = self.until_ms.min(boundary_ms),
        }
        past
    }

    /// Whether `now_ms` is in the window.
    pub fn contains(&self, now_ms: u64) -> bool {
        (self.from_ms..self.until_ms).contains(&now_ms)
    }

    /// Its end; `None`: it does not end.
    pub fn end_ms(&self) -> Option<u64> {
        (self.until_ms != u64::MAX).then_some(self.until_ms)
    }
}

/// The verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Verdict {
    /// Forward it. `rule` decided.
    Allow {
        /// Name of the rule that decided.
        rule: String,
    },
    /// Refuse it.
    Deny(Denial),
}

/// The policy that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum PolicyKind {
    Authentication,
    Sidecar,
    Authorization,
    RateLimit,
    ExternalAuthorization,
    Tracing,
    AccessLog,
    MutualTls,
    Retry,
    CircuitBreaker,
}

/// A refusal that explains itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Denial {
    /// HTTP status for the client. (gRPC clients get the matching `grpc-status`.)
    pub status: u16,
    /// Which policy refused.
    pub policy: PolicyKind,
    /// The rule that decided, or, when nothing allowed the request, the rule that came nearest.
    /// Empty: there is no rule at all.
    pub rule: String,
    /// True: no rule decided, and `rule` is the nearest miss.
    pub default: bool,
    /// The clause that decided or missed, in words: `to.paths: "/admin" matches none of "/orders/*"`. For logs and
    /// `leno explain`, never for the client. Holds no header or claim value, only names and configured values.
    pub clause: String,
    /// Header fields for the refusal (`www-authenticate`, `retry-after`).
    pub headers: Vec<(String, String)>,
}

/// One header edit. Applied in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum HeaderEdit {
    /// Replace all values with this one.
    Set(String, String),
    /// Add a value.
    Append(String, String),
    /// Remove all values.
    Remove(String),
}

/// A header edit of an extension or an authorizer, in bytes. Neither name nor value is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawEdit {
    /// Replace all values with this one.
    Set(Box<[u8]>, Box<[u8]>),
    /// Add a value.
    Append(Box<[u8]>, Box<[u8]>),
    /// Remove all values.
    Remove(Box<[u8]>),
}

/// One counter to take from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Take {
    /// Index into `rate_limits`.
    pub limit: u16,
    /// The counter's key.
    pub key: String,
    /// Requests to count.
    pub cost: u32,
}

/// Why a run ends before the request is allowed.
pub(crate) enum Stop {
    Denied(Denial),
    Unverified(Box<SignatureWant>),
}

impl From<Denial> for Stop {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}
