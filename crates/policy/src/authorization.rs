//! Policy 3: who may ask for what. Deny rules before allow rules; what nothing allows is denied, and the denial names the rule
//! that came nearest and the clause that it missed.
//!
//! A condition on something that is absent (no identity, no token, no such header): positive values do not match,
//! negative values do not either, so `notValues` alone holds. That is Istio's reading. A deny rule should
//! therefore name what it denies positively.

use crate::claims::Claims;
use crate::input::{Header, Peer};
use crate::matching::{self, holds};
use crate::outcome::{Denial, PolicyKind};
use crate::spec::{
    Action, AuthorizationRule, Cidr, Condition, ConditionKey, Matches, Operation, PathMatch, Segment, Source,
    StringMatch,
};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// What rules look at, made ready once per request.
pub struct Asked<'a> {
    /// Who opened the connection.
    pub peer: Peer<'a>,
    /// The namespace of the peer's SPIFFE ID.
    pub namespace: Option<&'a str>,
    /// `<iss>/<sub>` of the verified token.
    pub principal: Option<&'a str>,
    /// Its claims.
    pub claims: Option<&'a Claims<'a>>,
    /// As sent.
    pub method: &'a str,
    /// Lower case, without port and trailing dot.
    pub host: &'a str,
    /// Destination port.
    pub port: u16,
    /// Normalised.
    pub path: &'a str,
    /// Header fields.
    pub headers: &'a [Header<'a>],
}

/// Inbound: the name of the rule that allows, or the denial.
pub fn judge<'r>(rules: &'r [AuthorizationRule], asked: &Asked<'_>) -> Result<&'r str, Denial> {
    refuse_denied(rules, asked)?;
    let mut nearest: Option<(u32, &AuthorizationRule)> = None;
    for rule in allowing(rules) {
        let Some(held) = misses(rule, asked) else { return Ok(&rule.name) };
        if nearest.is_none_or(|(best, _)| held > best) {
            nearest = Some((held, rule));
        }
    }
    Err(match nearest {
        Some((_, rule)) => denial(&rule.name, true, missed_clause(rule, asked)),
        None => denial("", true, "no rule allows anything".to_string()),
    })
}

/// Outbound: the callees are the allow-list; deny rules refuse, and allow rules, if there are any, must match.
pub fn narrow<'r>(rules: &'r [AuthorizationRule], asked: &Asked<'_>) -> Result<Option<&'r str>, Denial> {
    if allowing(rules).next().is_some() {
        return judge(rules, asked).map(Some);
    }
    refuse_denied(rules, asked).map(|()| None)
}

fn allowing(rules: &[AuthorizationRule]) -> impl Iterator<Item = &AuthorizationRule> {
    rules.iter().filter(|rule| rule.action == Action::Allow)
}

fn refuse_denied(rules: &[AuthorizationRule], asked: &Asked<'_>) -> Result<(), Denial> {
    match rules.iter().find(|rule| rule.action == Action::Deny && misses(rule, asked).is_none()) {
        Some(rule) => {
            let clause = format!("the deny rule matches {} {}", shown(asked.method), shown(asked.path));
            Err(denial(&rule.name, false, clause))
        }
        None => Ok(()),
    }
}

fn denial(rule: &str, default: bool, clause: String) -> Denial {
    Denial {
        status: 403,
        policy: PolicyKind::Authorization,
        rule: rule.to_string(),
        default,
        clause,
        headers: Vec::new(),
    }
}

/// `None` when the rule matches; otherwise how many of its fields hold, the more the nearer. Of alternatives the best counts.
fn misses(rule: &AuthorizationRule, asked: &Asked<'_>) -> Option<u32> {
    let (from, from_held) = best(rule.from.iter().map(|source| source_clauses(source, asked)));
    let (to, to_held) = best(rule.to.iter().map(|operation| operation_clauses(operation, asked)));
    let when_held = rule.when.iter().filter(|condition| condition_holds(condition, asked)).count();
    if from && to && when_held == rule.when.len() {
        return None;
    }
    Some(from_held + to_held + u32::try_from(when_held).unwrap_or(u32::MAX))
}

/// Whether one alternative holds wholly (or there is none), and how many fields of the best one hold.
fn best<const N: usize>(alternatives: impl Iterator<Item = [Clause; N]>) -> (bool, u32) {
    let mut result = None;
    for clauses in alternatives {
        let held: u32 = clauses.iter().map(|clause| u32::from(*clause == Clause::Holds)).sum();
        let whole = !clauses.contains(&Clause::Misses);
        if whole {
            return (true, held);
        }
        if result.is_none_or(|best| held > best) {
            result = Some(held);
        }
    }
    result.map_or((true, 0), |held| (false, held))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Clause {
    Unset,
    Holds,
    Misses,
}

fn clause<T>(matches: &Matches<T>, holds: bool) -> Clause {
    match (matches.is_empty(), holds) {
        (true, _) => Clause::Unset,
        (false, true) => Clause::Holds,
        (false, false) => Clause::Misses,
    }
}

fn source_clauses(source: &Source, asked: &Asked<'_>) -> [Clause; 4] {
    let text =
        |matches: &Matches<StringMatch>, value: Option<&str>| clause(matches, holds(matches, value, matching::text));
    [
        text(&source.identities, asked.peer.identity),
        text(&source.namespaces, asked.namespace),
        text(&source.request_principals, asked.principal),
        clause(&source.addresses, holds(&source.addresses, Some(asked.peer.address), matching::cidr)),
    ]
}

/// Whether an operation matches; rate limits use it too.
pub fn operation_matches(operation: &Operation, asked: &Asked<'_>) -> bool {
    !operation_clauses(operation, asked).contains(&Clause::Misses)
}

fn operation_clauses(operation: &Operation, asked: &Asked<'_>) -> [Clause; 4] {
    [
        clause(&operation.methods, holds(&operation.methods, Some(asked.method), matching::text)),
        clause(&operation.hosts, holds(&operation.hosts, Some(asked.host), matching::host)),
        clause(&operation.ports, holds(&operation.ports, Some(asked.port), |port, value| *port == value)),
        clause(&operation.paths, holds(&operation.paths, Some(asked.path), matching::path)),
    ]
}

fn condition_holds(condition: &Condition, asked: &Asked<'_>) -> bool {
    let any = |list: &[StringMatch]| {
        let meets = |value: &str| list.iter().any(|matcher| matching::text(matcher, value));
        match &condition.key {
            ConditionKey::Header(name) => asked
                .headers
                .iter()
                .filter(|header| header.name == name)
                // A value that is not text is compared as something that no configured text equals.
                .any(|header| meets(core::str::from_utf8(header.value).unwrap_or("\u{fffd}"))),
            ConditionKey::Claim(path) => asked.claims.is_some_and(|claims| claims.any(path, meets)),
            ConditionKey::Audience => asked.claims.is_some_and(|claims| claims.audience().any(meets)),
        }
    };
    (condition.values.any.is_empty() || any(&condition.values.any)) && !any(&condition.values.none)
}

/// The first field that the rule misses, in words: names and configured values, and of the request only method, host and path.
fn missed_clause(rule: &AuthorizationRule, asked: &Asked<'_>) -> String {
    let nearest = |held: u32, best: &mut Option<(u32, usize)>, index: usize| {
        if best.is_none_or(|(most, _)| held > most) {
            *best = Some((held, index));
        }
    };
    let held = |clauses: &[Clause]| clauses.iter().map(|clause| u32::from(*clause == Clause::Holds)).sum();
    let mut source = None;
    for (index, alternative) in rule.from.iter().enumerate() {
        let clauses = source_clauses(alternative, asked);
        if !clauses.contains(&Clause::Misses) {
            source = None;
            break;
        }
        nearest(held(&clauses), &mut source, index);
    }
    if let Some((_, index)) = source {
        return source_words(&rule.from[index], asked);
    }
    let mut operation = None;
    for (index, alternative) in rule.to.iter().enumerate() {
        let clauses = operation_clauses(alternative, asked);
        if !clauses.contains(&Clause::Misses) {
            operation = None;
            break;
        }
        nearest(held(&clauses), &mut operation, index);
    }
    if let Some((_, index)) = operation {
        return operation_words(&rule.to[index], asked);
    }
    rule.when.iter().find(|condition| !condition_holds(condition, asked)).map_or_else(String::new, condition_words)
}

fn source_words(source: &Source, asked: &Asked<'_>) -> String {
    let clauses = source_clauses(source, asked);
    match clauses.iter().position(|clause| *clause == Clause::Misses) {
        Some(0) => {
            let who = asked.peer.identity.map_or_else(|| "the peer has no identity".to_string(), shown);
            field("from.identities", &who, &source.identities, text_words)
        }
        Some(1) => {
            let who = asked.namespace.map_or_else(|| "the peer has no namespace".to_string(), shown);
            field("from.namespaces", &who, &source.namespaces, text_words)
        }
        Some(2) => {
            let who =
                if asked.principal.is_some() { "the token's principal" } else { "the request has no verified token" };
            field("from.requestPrincipals", who, &source.request_principals, text_words)
        }
        _ => field("from.addresses", &asked.peer.address.to_string(), &source.addresses, cidr_words),
    }
}

fn operation_words(operation: &Operation, asked: &Asked<'_>) -> String {
    let clauses = operation_clauses(operation, asked);
    match clauses.iter().position(|clause| *clause == Clause::Misses) {
        Some(0) => field("to.methods", &shown(asked.method), &operation.methods, text_words),
        Some(1) => field("to.hosts", &shown(asked.host), &operation.hosts, text_words),
        Some(2) => field("to.ports", &asked.port.to_string(), &operation.ports, u16::to_string),
        _ => field("to.paths", &shown(asked.path), &operation.paths, path_words),
    }
}

fn condition_words(condition: &Condition) -> String {
    let name = match &condition.key {
        ConditionKey::Header(name) => format!("when.header `{name}`"),
        ConditionKey::Claim(path) => format!("when.claim `{}`", path.join(".")),
        ConditionKey::Audience => "when.audience".to_string(),
    };
    field(&name, "its value", &condition.values, text_words)
}

/// `to.paths: "/x" matches none of ["/orders/*"]`
fn field<T>(name: &str, value: &str, matches: &Matches<T>, words: impl Fn(&T) -> String) -> String {
    let list = |items: &[T]| items.iter().take(8).map(&words).collect::<Vec<_>>().join(", ");
    match (matches.any.is_empty(), matches.none.is_empty()) {
        (false, true) => format!("{name}: {value} matches none of [{}]", list(&matches.any)),
        (true, false) => format!("{name}: {value} is excluded by [{}]", list(&matches.none)),
        _ => format!(
            "{name}: {value} matches none of [{}] or is excluded by [{}]",
            list(&matches.any),
            list(&matches.none)
        ),
    }
}

fn text_words(matcher: &StringMatch) -> String {
    match matcher {
        StringMatch::Exact(text) => format!("\"{text}\""),
        StringMatch::Prefix(text) => format!("\"{text}*\""),
        StringMatch::Suffix(text) => format!("\"*{text}\""),
        StringMatch::Present => "\"*\"".to_string(),
    }
}

fn path_words(matcher: &PathMatch) -> String {
    match matcher {
        PathMatch::Text(matcher) => text_words(matcher),
        PathMatch::Template(segments) => {
            let parts: Vec<&str> = segments
                .iter()
                .map(|segment| match segment {
                    Segment::Literal(text) => text.as_str(),
                    Segment::One => "{*}",
                    Segment::Rest => "{**}",
                })
                .collect();
            format!("\"/{}\"", parts.join("/"))
        }
    }
}

fn cidr_words(block: &Cidr) -> String {
    format!("{}/{}", block.address, block.prefix)
}

/// A value of the request, quoted, escaped and cut.
fn shown(value: &str) -> String {
    const MOST: usize = 120;
    let mut text = String::from("\"");
    for (count, character) in value.chars().enumerate() {
        if count == MOST {
            text.push('…');
            break;
        }
        text.extend(character.escape_debug());
    }
    text.push('"');
    text
}
