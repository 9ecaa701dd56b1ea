//! Remembers a program's decisions.
//!
//! A program is a pure function of its input, so equal inputs get equal decisions. The key of an entry
//! is the keyed hash of the whole input without the time. The program says for which time its decision
//! holds. Each loaded program has its own memory: a change of the configuration forgets all of it.

use super::recent::Recent;
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, StatusCode};
use leno_http::edits::Edit;
use leno_policy::outcome::{Denial, Take, Window};
use leno_policy::spec::{Algorithm, KeyId};
use leno_telemetry::exchange::RecordedVerdict;
use std::sync::{Arc, OnceLock};

/// Longer decisions are not remembered. So the decisions of one program take at most half a
/// mebibyte.
const MAX_BYTES: usize = 1024;
/// Entries of one generation of a shard: a program has at most 512.
const GENERATION: usize = 32;

/// A key, and the algorithm by which it signed.
pub(crate) type Signer = (KeyId, Algorithm);

/// A program's decision, validated. It does not depend on state, so it may be remembered.
#[derive(Debug)]
pub(crate) struct ValidDecision {
    pub verdict: ValidVerdict,
    /// Counters to take from.
    pub takes: Vec<Take>,
    pub principal: Option<Box<str>>,
    /// The verdict if audited policies were in force, where it differs.
    pub audit: Option<RecordedVerdict>,
    /// The time during which the program gives this decision.
    pub window: Window,
    /// What signed the request's token, if it has one and the decision rests on that.
    pub signature: Option<Signer>,
}

#[derive(Debug)]
pub(crate) enum ValidVerdict {
    Allow {
        rule: Box<str>,
        /// Path and query to forward, if they differ from the sent ones.
        path: Option<PathAndQuery>,
        edits: Vec<Edit>,
        /// Index into the program's targets.
        target: usize,
        /// Indices of the function's authorizers.
        asks: Vec<u16>,
    },
    Deny(ValidDenial),
}

/// A validated denial.
#[derive(Clone, Debug)]
pub(crate) struct ValidDenial {
    pub status: StatusCode,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub denial: Denial,
}

/// The decisions that a program has made recently.
#[derive(Debug, Default)]
pub(crate) struct Decisions(OnceLock<Box<Recent<Arc<ValidDecision>, GENERATION>>>);

impl Decisions {
    /// The decision on an equal input, if it holds at this time.
    pub(crate) fn look_up(&self, key: u128, now_ms: u64) -> Option<Arc<ValidDecision>> {
        self.0.get()?.look_up(key).filter(|decision| decision.window.contains(now_ms))
    }

    /// Remembers a decision, unless it is long.
    pub(crate) fn remember(&self, key: u128, decision: Arc<ValidDecision>) {
        if decision.bytes() <= MAX_BYTES {
            self.0.get_or_init(Box::default).insert(key, decision);
        }
    }
}

impl ValidDecision {
    /// Its size on the heap, roughly.
    fn bytes(&self) -> usize {
        let takes = self.takes.iter().map(|take| size_of::<Take>() + take.key.len()).sum::<usize>();
        let audit = self.audit.as_ref().map_or(0, |audit| {
            let (rule, clause) = audit.rule_and_clause();
            rule.len() + clause.len()
        });
        let verdict = match &self.verdict {
            ValidVerdict::Allow { rule, path, edits, asks, .. } => {
                let edits = edits.iter().map(|edit| size_of::<Edit>() + edit.size()).sum::<usize>();
                rule.len() + path.as_ref().map_or(0, |path| path.as_str().len()) + edits + 2 * asks.len()
            }
            ValidVerdict::Deny(ValidDenial { headers, denial, .. }) => {
                let fields = headers.iter().map(|(name, value)| size_of_val(name) + size_of_val(value) + value.len());
                denial.rule.len() + denial.clause.len() + fields.sum::<usize>()
            }
        };
        size_of::<Self>() + takes + audit + verdict + self.principal.as_deref().map_or(0, str::len)
    }
}
