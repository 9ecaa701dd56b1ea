//! What a record holds.

use super::asked::{self, Asked};
use super::names::workload;
use super::stats::RevisionLabel;
use crate::http::peer::{Peer, TrafficDirection};
use http::header::HeaderName;
use leno_policy::outcome::{PolicyKind, TracePlan};
use leno_policy::spec::{Algorithm, KeyId, ProgramSpec, Protocol};
use leno_sandbox::EngineKind;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Everything that is known of one exchange.
#[derive(Debug)]
pub struct Observed {
    /// Shared by all hops of a request.
    pub request_id: Box<str>,
    /// Where it came in.
    pub direction: TrafficDirection,
    /// From whom.
    pub peer: Peer,
    /// As policies see it.
    pub protocol: Protocol,
    /// Method, authority and path, as sent, before edits; its path as it is judged.
    pub asked: Asked,
    /// `namespace/name`.
    pub target: Option<Arc<str>>,
    /// The revision that got it.
    pub revision: Option<Arc<RevisionLabel>>,
    /// Wall clock at the start; all else is monotonic.
    pub started_at: SystemTime,
    /// When the head was there.
    pub started: Instant,
    /// Indexed by [`Stage`].
    pub stages: [Option<Instant>; 4],
    /// When the last handle was dropped.
    pub ended: Instant,
    /// Set once the sandbox was asked.
    pub judged: Option<Judged>,
    /// Signatures that counted, or were found wanting.
    pub signatures: Vec<SignatureCheck>,
    /// Counters that were taken from.
    pub takes: Vec<QuotaTake>,
    /// Runs of extensions, in order.
    pub extensions: Vec<Observation>,
    /// Names of request headers that were edited.
    pub request_edits: Vec<EditedHeader>,
    /// Names of response headers that were edited.
    pub response_edits: Vec<EditedHeader>,
    /// This hop's span, if tracing is on.
    pub trace: Option<TracePlan>,
    /// The program whose access log section holds; `None`: it was not judged, and is logged.
    pub program: Option<Arc<ProgramSpec>>,
    /// Values of the request headers that are configured to be logged.
    pub logged_headers: Vec<(HeaderName, Box<str>)>,
    /// Tries, in order.
    pub attempts: Vec<Try>,
    /// Of the response; 0: there was none.
    pub status: u16,
    /// Of a gRPC call, once known.
    pub grpc_status: Option<u8>,
    /// Envoy's response flag.
    pub flag: Option<&'static str>,
    /// Why there was no whole response, in words.
    pub failure: Option<Box<str>>,
    /// Body bytes from the client.
    pub bytes_in: u64,
    /// Body bytes to the client.
    pub bytes_out: u64,
    /// It became a WebSocket.
    pub upgraded: bool,
}

/// A point on an exchange's way, noted with the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The target is known.
    Routed,
    /// The verdict is there.
    Judged,
    /// The request was handed to the upstream for the first time.
    Upstream,
    /// The response's head is there.
    Head,
}

/// What the judge found.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The function whose program this was: `namespace/name`.
    pub function: Arc<str>,
    /// Isolation of the run.
    pub engine: Option<EngineKind>,
    /// Request runs.
    pub runs: u8,
    /// Time in the sandbox, request and response runs together.
    pub run_time: Duration,
    /// From the first look at the head to the verdict.
    pub time: Duration,
    /// The verdict.
    pub verdict: Ruled,
    /// `<iss>/<sub>` of the token.
    pub principal: Option<Box<str>>,
    /// The path was normalised.
    pub path_changed: bool,
}

/// A verdict, as it is logged.
#[derive(Clone, Debug)]
pub enum Ruled {
    /// Forwarded.
    Allow {
        /// The rule that decided.
        rule: Box<str>,
    },
    /// Refused by a policy.
    Deny {
        /// Which of the nine.
        policy: PolicyKind,
        /// The rule that decided, or the nearest.
        rule: Box<str>,
        /// No rule decided.
        default: bool,
        /// In words.
        clause: Box<str>,
    },
    /// Answered by an extension.
    Extension {
        /// Which: `<policy>/extensions/<name>`.
        rule: Box<str>,
        /// Why, in its own words.
        clause: Box<str>,
    },
    /// There is no verdict that could be relied on; refused.
    Fault {
        /// A label for metrics.
        fault: &'static str,
        /// In words.
        reason: Box<str>,
    },
}

/// One signature check.
#[derive(Clone, Copy, Debug)]
pub struct SignatureCheck {
    /// The key.
    pub key: KeyId,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Known from an earlier request; no check was needed.
    pub remembered: bool,
    /// `None`: good.
    pub error: Option<&'static str>,
}

impl SignatureCheck {
    /// `good`, `remembered`, or what was wrong.
    pub fn result(&self) -> &'static str {
        if self.remembered { "remembered" } else { self.error.unwrap_or("good") }
    }
}

/// One counter that was taken from, or refused.
#[derive(Clone, Debug)]
pub struct QuotaTake {
    /// Name of the rate limit.
    pub limit: Box<str>,
    /// What is left in requests; `None`: it refused.
    pub remaining: Option<u32>,
    /// The limit has no room for more counters: this one counts other keys too.
    pub shared: bool,
}

/// A header that a program edited; its value is nobody's business.
#[derive(Clone, Debug)]
pub struct EditedHeader {
    /// `set`, `append` or `remove`.
    pub how: &'static str,
    /// Which.
    pub name: HeaderName,
}

/// One try to get a response.
#[derive(Clone, Copy, Debug)]
pub struct Try {
    /// Where it went; `None`: not even an endpoint was found.
    pub endpoint: Option<SocketAddr>,
    /// How it ended.
    pub result: AttemptResult,
    /// When it ended.
    pub ended: Instant,
}

/// How a try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// With a response.
    Status(u16),
    /// Without; Envoy's response flag.
    Failed(&'static str),
}

impl Observed {
    /// Cuts what policies and peers said to the bounds of a record.
    pub(super) fn bound(&mut self) {
        if let Some(judged) = &mut self.judged {
            match &mut judged.verdict {
                Ruled::Allow { rule } => asked::cut(rule),
                Ruled::Deny { rule, clause, .. } | Ruled::Extension { rule, clause } => {
                    asked::cut(rule);
                    asked::cut(clause);
                }
                Ruled::Fault { reason, .. } => asked::cut(reason),
            }
            judged.principal.iter_mut().for_each(asked::cut);
        }
        self.failure.iter_mut().for_each(asked::cut);
        asked::cut_list(&mut self.signatures);
        asked::cut_list(&mut self.takes);
        asked::cut_list(&mut self.extensions);
        asked::cut_list(&mut self.request_edits);
        asked::cut_list(&mut self.response_edits);
        for run in &mut self.extensions {
            if let Ended::Failed { reason, .. } = &mut run.ended {
                asked::cut(reason);
            }
        }
    }

    /// Name of the revision that got it; `None`: none did, or nobody numbers them.
    pub fn revision_name(&self) -> Option<&Arc<str>> {
        self.revision.as_ref().filter(|revision| revision.number > 0).map(|revision| &revision.name)
    }

    /// From the start to a stage.
    pub fn until(&self, stage: Stage) -> Option<Duration> {
        self.stages[stage as usize].map(|instant| instant.saturating_duration_since(self.started))
    }

    /// From the start to the end.
    pub fn duration(&self) -> Duration {
        self.ended.saturating_duration_since(self.started)
    }

    /// From the hand-over to the upstream to the response's head.
    pub fn upstream_time(&self) -> Option<Duration> {
        let (sent, head) = (self.stages[Stage::Upstream as usize]?, self.stages[Stage::Head as usize]?);
        Some(head.saturating_duration_since(sent))
    }

    /// `allow`, `deny`, or `error`: there is no verdict, or none that could be relied on.
    pub fn verdict(&self) -> &'static str {
        match self.judged.as_ref().map(|judged| &judged.verdict) {
            Some(Ruled::Allow { .. }) => "allow",
            Some(Ruled::Deny { .. } | Ruled::Extension { .. }) => "deny",
            Some(Ruled::Fault { .. }) | None => "error",
        }
    }

    /// `ns/name` of the caller, if it is one of the mesh.
    pub fn source(&self) -> Option<(&str, &str)> {
        workload(self.peer.identity.as_deref()?)
    }
}

/// One run, as it is recorded.
#[derive(Clone, Debug)]
pub struct Observation {
    /// `<policy>/extensions/<name>`.
    pub name: Arc<str>,
    /// `request` or `response`.
    pub phase: &'static str,
    /// How it ended.
    pub ended: Ended,
    /// What it took, the start of the instance included.
    pub time: Duration,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub enum Ended {
    /// The exchange goes on.
    Continued,
    /// The module answered by itself.
    Answered(u16),
    /// It failed, and the exchange was refused, or went on all the same.
    Failed {
        /// For metrics.
        label: &'static str,
        /// In words.
        reason: Box<str>,
        /// It went on.
        open: bool,
    },
}

impl Ended {
    /// For metrics: how it ended, and what failed.
    pub fn labels(&self) -> (&'static str, &'static str) {
        match self {
            Self::Continued => ("continued", ""),
            Self::Answered(_) => ("answered", ""),
            Self::Failed { label, open: true, .. } => ("passed_over", label),
            Self::Failed { label, open: false, .. } => ("refused", label),
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Continued => formatter.write_str("continued"),
            Self::Answered(status) => write!(formatter, "answered with {status}"),
            Self::Failed { reason, open: true, .. } => write!(formatter, "failed and was passed over: {reason}"),
            Self::Failed { reason, open: false, .. } => write!(formatter, "failed: {reason}"),
        }
    }
}
