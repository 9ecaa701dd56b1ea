//! Policy 4: rate limits. A program names the counters that count a request. The runtime keeps the
//! counters, and decides by the arithmetic of this module.

use crate::authorization::{self, RuleInput, source_matches};
use crate::outcome::{Denial, HeaderEdit, MAX_OUTPUT, MAX_TAKES, PolicyKind, Take};
use crate::path::Readings;
use crate::spec::{ClaimPath, Counts, KeyPart, ProgramSpec, QuotaAlgorithm, RateLimit};
use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};
use serde::{Deserialize, Serialize};

/// A counter. A fresh one ([`QuotaState::default`]) is a full bucket or an unused window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaState {
    /// Token bucket: missing tokens, in thousandths. Fixed window: requests used.
    pub used: u64,
    /// Token bucket: time at which `used` was right. Fixed window: start of the window. Unix
    /// milliseconds.
    pub at_ms: u64,
}

/// The result of taking from a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeResult {
    /// The counter afterwards; if not allowed, only the passing of time has changed it.
    pub state: QuotaState,
    /// Whether the counter had enough left.
    pub allowed: bool,
    /// Requests that are left.
    pub remaining: u32,
    /// Requests that a fresh counter has.
    pub limit: u32,
    /// Time until the counter has enough left; 0 if it has.
    pub retry_after_ms: u64,
    /// Time until the counter is fresh again.
    pub reset_ms: u64,
}

/// Takes `cost` requests from a counter at `now_ms`. A cost of 0 only reads the counter.
///
/// If the clock steps back a little, nothing is refilled until it has caught up. A counter whose
/// time is further ahead than a full refill takes is treated as fresh: it was written by a wrong
/// clock, and must not block until that time comes.
pub fn take(algorithm: &QuotaAlgorithm, state: QuotaState, now_ms: u64, cost: u32) -> TakeResult {
    match *algorithm {
        QuotaAlgorithm::TokenBucket { requests, period_ms, burst } => {
            token_bucket(requests, period_ms, burst, state, now_ms, cost)
        }
        QuotaAlgorithm::FixedWindow { requests, period_ms } => fixed_window(requests, period_ms, state, now_ms, cost),
    }
}

/// The whole of a limit, in parts. It can be divided among any number of nodes up to 16 without a
/// remainder.
pub const PARTS: u32 = 720_720;

/// The limit that a node with so many [`PARTS`] counts by. Everything is rounded down, so shares
/// that add up to [`PARTS`] never admit more than the limit does. A share of less than one request
/// admits nothing.
pub fn share(algorithm: &QuotaAlgorithm, parts: u32) -> QuotaAlgorithm {
    if parts >= PARTS {
        return *algorithm;
    }
    let (held, all) = (u128::from(parts), u128::from(PARTS));
    let requests_of = |requests: u32| u32::try_from(u128::from(requests) * held / all).unwrap_or(requests);
    match *algorithm {
        QuotaAlgorithm::TokenBucket { requests, period_ms, burst } => {
            // A longer period instead of fewer requests: it is exact to a millisecond, however small the rate is.
            let period = (u128::from(period_ms.max(1)) * all).div_ceil(held.max(1));
            let period_ms = if parts == 0 { period_ms } else { u64::try_from(period).unwrap_or(u64::MAX) };
            QuotaAlgorithm::TokenBucket { requests, period_ms, burst: requests_of(burst) }
        }
        QuotaAlgorithm::FixedWindow { requests, period_ms } => {
            QuotaAlgorithm::FixedWindow { requests: requests_of(requests), period_ms }
        }
    }
}

/// A full bucket has nothing used. Counted in thousandths of a request; a refill's remainder stays
/// in `at_ms`.
fn token_bucket(requests: u32, period_ms: u64, burst: u32, state: QuotaState, now_ms: u64, cost: u32) -> TakeResult {
    let (rate, period) = (u128::from(requests).max(1) * 1000, u128::from(period_ms.max(1)));
    let capacity = u128::from(burst) * 1000;
    let time_for = |thousandths: u128| u64::try_from((thousandths * period).div_ceil(rate)).unwrap_or(u64::MAX);
    let refill = |from_ms: u64| u128::from(now_ms.saturating_sub(from_ms)) * rate / period;
    let from_the_future = state.at_ms.saturating_sub(now_ms) > time_for(capacity);
    let used = u128::from(state.used).min(capacity);
    let (before, since_ms) =
        if from_the_future || refill(state.at_ms) >= used { (0, now_ms) } else { (used, state.at_ms) };
    // Only the time of whole thousandths is used up.
    let refilled = refill(since_ms);
    let (used, at_ms) = (before - refilled.min(before), since_ms.saturating_add(time_for(refilled)));
    let wanted = used + u128::from(cost) * 1000;
    let allowed = wanted <= capacity;
    let after = if allowed { wanted } else { used };
    let until =
        |start_ms: u64, thousandths: u128| start_ms.saturating_add(time_for(thousandths)).saturating_sub(now_ms);
    let missing = (before + u128::from(cost) * 1000).saturating_sub(capacity);
    TakeResult {
        state: QuotaState { used: u64::try_from(after).unwrap_or(u64::MAX), at_ms },
        allowed,
        remaining: u32::try_from((capacity - after) / 1000).unwrap_or(u32::MAX),
        limit: burst,
        retry_after_ms: if allowed { 0 } else { until(since_ms, missing).max(1) },
        reset_ms: until(at_ms, after),
    }
}

fn fixed_window(requests: u32, period_ms: u64, state: QuotaState, now_ms: u64, cost: u32) -> TakeResult {
    let period = period_ms.max(1);
    let window = now_ms - now_ms % period;
    let fresh = window > state.at_ms || state.at_ms - window > period;
    let (used, at_ms) = if fresh { (0, window) } else { (state.used, state.at_ms) };
    let wanted = used.saturating_add(u64::from(cost));
    let allowed = wanted <= u64::from(requests);
    let after = if allowed { wanted } else { used };
    let reset_ms = at_ms.saturating_add(period).saturating_sub(now_ms);
    TakeResult {
        state: QuotaState { used: after, at_ms },
        allowed,
        remaining: u32::try_from(u64::from(requests).saturating_sub(after)).unwrap_or(u32::MAX),
        limit: requests,
        retry_after_ms: if allowed { 0 } else { reset_ms.max(1) },
        reset_ms,
    }
}

/// The parts of a counter's key.
pub struct Subject<'a> {
    /// SPIFFE ID of the peer.
    pub identity: Option<&'a str>,
    /// Address of the peer.
    pub address: Option<IpAddr>,
    /// As sent.
    pub method: &'a str,
    /// Normalised, without query.
    pub path: &'a str,
    /// The first value of a header, by its lower-case name.
    pub header: &'a dyn Fn(&str) -> Option<&'a [u8]>,
    /// The text of a claim of the verified token.
    pub claim: &'a dyn Fn(&ClaimPath) -> Option<Cow<'a, str>>,
}

/// Renders a key. Injective as long as parts are at most [`MAX_PART`] long: each carries its
/// length, an absent part differs from an empty one, and bytes that are not text differ from text.
/// Longer parts share a counter: a client must not fill memory with them.
pub fn render_key(parts: &[KeyPart], subject: &Subject<'_>) -> String {
    let mut key = String::with_capacity(64 * parts.len());
    for part in parts {
        match part {
            KeyPart::Identity => push_text(&mut key, subject.identity),
            KeyPart::Claim(path) => push_text(&mut key, (subject.claim)(path).as_deref()),
            KeyPart::Header(name) => push_bytes(&mut key, (subject.header)(name)),
            KeyPart::Path => push_text(&mut key, Some(subject.path)),
            KeyPart::Method => push_text(&mut key, Some(subject.method)),
            KeyPart::Address => {
                let network = subject.address.map(|address| client_network(address).to_string());
                push_text(&mut key, network.as_deref());
            }
        }
    }
    key
}

/// The values in a key that [`render_key`] has made; `None`: the request lacked the part, or it was
/// too long to be kept.
pub fn key_values(key: &str) -> impl Iterator<Item = Option<&str>> {
    let mut rest = key;
    core::iter::from_fn(move || {
        if let Some(after) = rest.strip_prefix("-;").or_else(|| rest.strip_prefix("+;")) {
            rest = after;
            return Some(None);
        }
        let (length, after) = rest.strip_prefix('x').unwrap_or(rest).split_once(':')?;
        let value = after.get(..length.parse().ok()?)?;
        rest = after.get(value.len()..)?.strip_prefix(';')?;
        Some(Some(value))
    })
}

/// A client, by its address. A client that has one IPv6 address has its whole /64, so the /64 is
/// one client. An IPv4-mapped address is the IPv4 address.
pub fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// Longest part of a key that is distinguished from others, in bytes.
pub const MAX_PART: usize = 1024;

fn push_bytes(key: &mut String, value: Option<&[u8]>) {
    match value.map(core::str::from_utf8) {
        None => push_text(key, None),
        Some(Ok(text)) => push_text(key, Some(text)),
        Some(Err(_)) => {
            key.push('x');
            let digits = value.unwrap_or_default().iter().take(MAX_PART).map(|byte| format!("{byte:02x}"));
            push_text(key, Some(&digits.collect::<String>()));
        }
    }
}

fn push_text(key: &mut String, value: Option<&str>) {
    match value {
        None => key.push_str("-;"),
        Some(text) if text.len() > MAX_PART => key.push_str("+;"),
        Some(text) => {
            key.push_str(&text.len().to_string());
            key.push(':');
            key.push_str(text);
            key.push(';');
        }
    }
}

/// The counters from which a request takes that nothing else refuses.
pub(crate) fn takes(spec: &ProgramSpec, asked: &RuleInput<'_>) -> Vec<Take> {
    takes_of(spec, asked, Counts::Requests)
}

/// The counters from which a request takes that authentication refuses.
pub(crate) fn failure(spec: &ProgramSpec, asked: &RuleInput<'_>) -> Vec<Take> {
    takes_of(spec, asked, Counts::AuthenticationFailures)
}

fn takes_of(spec: &ProgramSpec, asked: &RuleInput<'_>, what: Counts) -> Vec<Take> {
    counted(spec, asked, what).map(|(limit, _, key)| Take { limit, key, cost: 1 }).collect()
}

/// The limits that count this request, with their keys. A limit for certain paths counts a path if
/// any of its readings is one of them.
fn counted<'a>(
    spec: &'a ProgramSpec,
    asked: &'a RuleInput<'a>,
    what: Counts,
) -> impl Iterator<Item = (u16, &'a RateLimit, String)> {
    let limits = (0u16..).zip(&spec.rate_limits);
    let counts = move |(_, limit): &(u16, &RateLimit)| {
        limit.counts == what
            && is_of(limit, asked)
            && limit.only.as_ref().is_none_or(|only| authorization::may_match(only, asked))
    };
    limits.filter(counts).flat_map(move |(index, limit)| {
        counted_paths(limit, asked).map(move |path| (index, limit, key(&limit.key, asked, path)))
    })
}

/// The paths under which a limit counts a request. A path with several readings takes from the
/// counters of all of them except the forwarded path, if that has no other text among its readings.
/// So a client cannot get a fresh counter by another spelling, whichever reading a server sees.
fn counted_paths<'a>(limit: &RateLimit, asked: &'a RuleInput<'a>) -> impl Iterator<Item = &'a str> {
    let others = match asked.other_paths {
        _ if let [decoded, ..] = asked.decoded_paths => core::slice::from_ref(decoded),
        [first, _, ..] if !limit.key.contains(&KeyPart::Path) => core::slice::from_ref(first),
        others => others,
    };
    let own = others.is_empty().then_some(asked.path);
    // Paths that are too long for a key share one counter.
    let first_of_long = others.iter().position(|path| path.len() > MAX_PART);
    let counted = others.iter().enumerate();
    let counted = counted.filter(move |(index, path)| path.len() <= MAX_PART || first_of_long == Some(*index));
    counted.map(|(_, path)| path.as_str()).chain(own)
}

/// Whether a request with these readings of its path stays below the number of counters that one
/// request may take from.
pub(crate) fn can_count(spec: &ProgramSpec, readings: &Readings<'_>) -> bool {
    let limits = spec.rate_limits.iter().filter(|limit| limit.key.contains(&KeyPart::Path)).count();
    let bytes = limits * readings.others.iter().map(String::len).sum::<usize>();
    readings.others.len() < 2 || (limits * readings.others.len() <= MAX_TAKES / 2 && bytes <= MAX_OUTPUT / 2)
}

/// Whether the limit is for this caller.
fn is_of(limit: &RateLimit, asked: &RuleInput<'_>) -> bool {
    (limit.from.is_empty() || limit.from.iter().any(|source| source_matches(source, asked)))
        && !limit.except.iter().any(|source| source_matches(source, asked))
}

fn key(parts: &[KeyPart], asked: &RuleInput<'_>, path: &str) -> String {
    let subject = Subject {
        identity: asked.peer.identity,
        address: asked.peer.address,
        method: asked.method,
        path,
        header: &|name| asked.fields.first(name),
        claim: &|path| asked.claims.and_then(|claims| claims.text(path)).map(Cow::Borrowed),
    };
    render_key(parts, &subject)
}

/// Of several counters that a request took from, the one that has least left.
pub fn tightest(taken: impl Iterator<Item = TakeResult>) -> Option<TakeResult> {
    taken.min_by_key(|taken| taken.remaining)
}

/// `RateLimit-*` fields of draft-ietf-httpapi-ratelimit-headers-03; the reset is in seconds, rounded up.
pub fn limit_headers(taken: &TakeResult) -> [HeaderEdit; 3] {
    let set = |name: &str, value: String| HeaderEdit::Set(name.to_string(), value);
    [
        set("ratelimit-limit", taken.limit.to_string()),
        set("ratelimit-remaining", taken.remaining.to_string()),
        set("ratelimit-reset", taken.reset_ms.div_ceil(1000).to_string()),
    ]
}

/// The refusal by an exhausted counter; the runtime's counters use it too.
pub fn exhausted(name: &str, taken: &TakeResult) -> Denial {
    let clause = match taken.limit {
        0 => "this node has no share of the limit".to_string(),
        limit => format!("all {limit} requests are used"),
    };
    Denial {
        status: 429,
        policy: PolicyKind::RateLimit,
        rule: name.to_string(),
        default: false,
        clause,
        headers: vec![("retry-after".to_string(), taken.retry_after_ms.div_ceil(1000).max(1).to_string())],
    }
}

#[cfg(test)]
mod tests;
