//! Policy 4: how often. The arithmetic of counters is here and nowhere else: programs decide by it, and the runtime's ledger,
//! which has the last word, commits by it.

use crate::authorization::{Asked, operation_matches};
use crate::input::{QuotaState, RequestInput};
use crate::outcome::{Denial, HeaderEdit, PolicyKind, Take, Wants};
use crate::program::Stop;
use crate::spec::{ClaimPath, KeyPart, ProgramSpec, QuotaAlgorithm};
use alloc::borrow::Cow;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Write;

/// What became of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The counter afterwards; unchanged but for the passing of time when not allowed.
    pub state: QuotaState,
    /// Whether there was room.
    pub allowed: bool,
    /// Requests that are left.
    pub remaining: u32,
    /// Requests that a fresh counter has.
    pub limit: u32,
    /// Until there would be room, if there was none.
    pub retry_after_ms: u64,
    /// Until the counter is fresh again.
    pub reset_ms: u64,
}

/// Takes `cost` requests from a counter at `now_ms`. A clock that goes backwards refills nothing. A cost of 0 only looks.
pub fn take(algorithm: &QuotaAlgorithm, state: QuotaState, now_ms: u64, cost: u32) -> Taken {
    match *algorithm {
        QuotaAlgorithm::TokenBucket { requests, period_ms, burst } => {
            token_bucket(requests, period_ms, burst, state, now_ms, cost)
        }
        QuotaAlgorithm::FixedWindow { requests, period_ms } => fixed_window(requests, period_ms, state, now_ms, cost),
    }
}

/// A full bucket has nothing used. Thousandths of a token; what a refill leaves over stays in `at_ms`.
fn token_bucket(requests: u32, period_ms: u64, burst: u32, state: QuotaState, now_ms: u64, cost: u32) -> Taken {
    let (rate, period) = (u128::from(requests).max(1) * 1000, u128::from(period_ms.max(1)));
    let capacity = u128::from(burst) * 1000;
    let elapsed = u128::from(now_ms.saturating_sub(state.at_ms));
    let refill = elapsed * rate / period;
    let before = u128::from(state.used).min(capacity);
    let (used, at_ms) = if refill >= before {
        (0, now_ms.max(state.at_ms))
    } else {
        // Only the time that whole thousandths took is used up.
        let spent = (refill * period).div_ceil(rate);
        (before - refill, state.at_ms.saturating_add(u64::try_from(spent).unwrap_or(u64::MAX)))
    };
    let wanted = used + u128::from(cost) * 1000;
    let allowed = wanted <= capacity;
    let after = if allowed { wanted } else { used };
    let time_for = |thousandths: u128| u64::try_from((thousandths * period).div_ceil(rate)).unwrap_or(u64::MAX);
    Taken {
        state: QuotaState { used: u64::try_from(after).unwrap_or(u64::MAX), at_ms },
        allowed,
        remaining: u32::try_from((capacity - after) / 1000).unwrap_or(u32::MAX),
        limit: burst,
        retry_after_ms: if allowed { 0 } else { time_for(wanted.saturating_sub(capacity)).max(1) },
        reset_ms: time_for(after),
    }
}

fn fixed_window(requests: u32, period_ms: u64, state: QuotaState, now_ms: u64, cost: u32) -> Taken {
    let period = period_ms.max(1);
    let window = now_ms - now_ms % period;
    let (used, at_ms) = if window > state.at_ms { (0, window) } else { (state.used, state.at_ms) };
    let wanted = used.saturating_add(u64::from(cost));
    let allowed = wanted <= u64::from(requests);
    let after = if allowed { wanted } else { used };
    let reset_ms = at_ms.saturating_add(period).saturating_sub(now_ms);
    Taken {
        state: QuotaState { used: after, at_ms },
        allowed,
        remaining: u32::try_from(u64::from(requests).saturating_sub(after)).unwrap_or(u32::MAX),
        limit: requests,
        retry_after_ms: if allowed { 0 } else { reset_ms.max(1) },
        reset_ms,
    }
}

/// What a counter's key is made of; the runtime fills it in to foresee keys.
pub struct Subject<'a> {
    /// SPIFFE ID of the peer.
    pub identity: Option<&'a str>,
    /// Address of the peer.
    pub address: core::net::IpAddr,
    /// As sent.
    pub method: &'a str,
    /// Normalised, without query.
    pub path: &'a str,
    /// The first value of a header, by its lower-case name.
    pub header: &'a dyn Fn(&str) -> Option<&'a [u8]>,
    /// The text of a claim of the verified token.
    pub claim: &'a dyn Fn(&ClaimPath) -> Option<Cow<'a, str>>,
}

/// Renders a key. Injective: each part carries its length, and an absent part differs from an empty one.
pub fn render_key(parts: &[KeyPart], subject: &Subject<'_>) -> String {
    let mut key = String::new();
    for part in parts {
        let value: Option<Cow<'_, str>> = match part {
            KeyPart::Identity => subject.identity.map(Cow::Borrowed),
            KeyPart::Claim(path) => (subject.claim)(path),
            KeyPart::Header(name) => (subject.header)(name).map(String::from_utf8_lossy),
            KeyPart::Path => Some(Cow::Borrowed(subject.path)),
            KeyPart::Method => Some(Cow::Borrowed(subject.method)),
            KeyPart::Address => Some(Cow::Owned(subject.address.to_canonical().to_string())),
        };
        match value {
            // Writing to a String does not fail.
            Some(value) => drop(write!(key, "{}:{value};", value.len())),
            None => key.push_str("-;"),
        }
    }
    key
}

/// Judges all limits that count this request. On success `takes` says what to take, and `edits` what to tell the client.
pub(crate) fn judge(
    spec: &ProgramSpec,
    input: &RequestInput<'_>,
    asked: &Asked<'_>,
    takes: &mut Vec<Take>,
    edits: &mut Vec<HeaderEdit>,
) -> Result<(), Stop> {
    if spec.rate_limits.is_empty() {
        return Ok(());
    }
    let header = |name: &str| asked.headers.iter().find(|header| header.name == name).map(|header| header.value);
    let claim = |path: &ClaimPath| asked.claims.and_then(|claims| claims.text(path));
    let subject = Subject {
        identity: asked.peer.identity,
        address: asked.peer.address,
        method: asked.method,
        path: asked.path,
        header: &header,
        claim: &claim,
    };
    let mut wants = Vec::new();
    let mut tightest: Option<Taken> = None;
    let mut refused: Option<(Taken, &str)> = None;
    for (index, limit) in (0u16..).zip(&spec.rate_limits) {
        if limit.only.as_ref().is_some_and(|only| !operation_matches(only, asked)) {
            continue;
        }
        let key = render_key(&limit.key, &subject);
        let Some(entry) = input.quotas.iter().find(|entry| entry.limit == index && entry.key == key) else {
            wants.push((index, key));
            continue;
        };
        let taken = take(&limit.algorithm, entry.state, input.now_ms, 1);
        if tightest.is_none_or(|other| taken.remaining < other.remaining) {
            tightest = Some(taken);
        }
        if !taken.allowed && refused.is_none_or(|(other, _)| taken.retry_after_ms > other.retry_after_ms) {
            refused = Some((taken, &limit.name));
        }
        takes.push(Take { limit: index, key, cost: 1 });
    }
    if !wants.is_empty() {
        return Err(Stop::Wants(Wants { signature: None, quotas: wants }));
    }
    if let Some(taken) = refused.map(|(taken, _)| taken).or(tightest) {
        edits.extend(limit_headers(&taken));
    }
    match refused {
        Some((taken, name)) => Err(exhausted(name, &taken).into()),
        None => Ok(()),
    }
}

/// `RateLimit-*` fields of draft-ietf-httpapi-ratelimit-headers-03; the reset is in seconds, rounded up.
pub fn limit_headers(taken: &Taken) -> [HeaderEdit; 3] {
    let set = |name: &str, value: String| HeaderEdit::Set(name.to_string(), value);
    [
        set("ratelimit-limit", taken.limit.to_string()),
        set("ratelimit-remaining", taken.remaining.to_string()),
        set("ratelimit-reset", taken.reset_ms.div_ceil(1000).to_string()),
    ]
}

/// The refusal of a counter that has no room; the ledger uses it too.
pub fn exhausted(name: &str, taken: &Taken) -> Denial {
    Denial {
        status: 429,
        policy: PolicyKind::RateLimit,
        rule: name.to_string(),
        default: false,
        clause: alloc::format!("all {} requests are used", taken.limit),
        headers: vec![("retry-after".to_string(), taken.retry_after_ms.div_ceil(1000).max(1).to_string())],
    }
}
