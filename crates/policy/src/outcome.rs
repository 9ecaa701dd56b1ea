//! Output of a program: a verdict with the rule that decided, edits, counters to take from, and
//! plans. It is plain data: output of a sandbox is untrusted until the runtime has validated it.

use crate::input::TraceContext;
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
#[expect(clippy::large_enum_variant, reason = "one of them exists for each run, on the stack")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Output {
    /// Of a request run.
    Request(Outcome),
    /// Of a response run: edits to the response.
    Response(Vec<HeaderEdit>),
    /// The program could not read its input; the request is denied with this explanation.
    Unreadable(String),
}

/// Result of a request run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// The request is judged.
    Decided(Decision),
    /// The program needs more before it can decide; the runtime supplies it and runs a fresh sandbox again.
    Wants(Wants),
}

/// Data that the runtime should supply.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wants {
    /// A signature to verify. If it does not verify, the runtime denies with [`SignatureWant::denial`].
    pub signature: Option<SignatureWant>,
    /// Counters to read: (index into `rate_limits`, key).
    pub quotas: Vec<(u16, String)>,
    /// As [`Plan::trace`], should the runtime deny the request itself.
    pub trace: Option<TracePlan>,
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

/// A judged request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Allowed or denied, and by what.
    pub verdict: Verdict,
    /// Path and query to forward, if they differ from the sent ones.
    pub path: Option<String>,
    /// Edits to the forwarded request.
    pub request_edits: Vec<HeaderEdit>,
    /// Edits to the response that the client gets (rate-limit headers, …), also to a denial.
    pub response_edits: Vec<HeaderEdit>,
    /// Counters to take from; of a refused request, the counters of failures. The runtime's
    /// counters have the last word.
    pub takes: Vec<Take>,
    /// `<iss>/<sub>` of the verified token, for logs.
    pub principal: Option<String>,
    /// Values of the claims that [`crate::needs::Needs::claims`] lists, from the accepted token:
    /// lets the runtime foresee counter keys when it sees the same token again.
    pub facts: Vec<Option<String>>,
    /// The verdict if audited rules were in force, where it differs.
    pub audit: Option<Verdict>,
    /// When the accepted token expires, clock skew included, in Unix milliseconds: streams that are
    /// still open then are judged again. `None`: no token was accepted, or it does not expire.
    pub until_ms: Option<u64>,
    /// Actions for the runtime.
    pub plan: Plan,
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

/// Actions of the runtime for an allowed request (and, for tracing, a denied one). Settings that
/// are the same for every request (time limits, retries, breakers, logging) are in the program's
/// description, which the runtime has; the plan says which of them apply.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The target whose time limit, retries (policy 8) and circuit breaker (policy 9) apply: an
    /// index into [`crate::spec::ProgramSpec::targets`]. `None`: the request is refused.
    pub target: Option<u16>,
    /// Policy 5; `None`: tracing is off.
    pub trace: Option<TracePlan>,
    /// Authorizers to ask before the request is forwarded: indices into [`crate::spec::ProgramSpec::authorizers`], in order.
    pub asks: Vec<u16>,
}

/// The span of this exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TracePlan {
    /// This hop's span.
    pub context: TraceContext,
    /// Its parent, if any.
    pub parent_span: Option<u64>,
}

/// Why a run ends before the request is allowed.
pub(crate) enum Stop {
    Denied(Denial),
    Wants(Box<Wants>),
}

impl From<Denial> for Stop {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}
