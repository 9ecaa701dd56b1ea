//! Policy 3: which callers may make which requests. Deny rules come before allow rules. A request
//! that no rule allows is denied; the denial names the rule that came nearest and the clause that
//! it missed.
//!
//! A condition on an absent value (no identity, no token, no such header): positive values do not
//! match, negative values do not match either, so `notValues` alone holds. That is Istio's reading.
//! It is the safe one for the usual rules. An allow rule that wants a caller requires one. A deny
//! rule for all but some callers (`notIdentities`) also denies a caller without an identity. Only
//! an allow rule that consists of negations admits callers without identity and token.
//!
//! A path may have several readings ([`crate::path::Readings`]): some servers take a path with
//! parameters (`/admin;x/1`) for the path without them, others do not. Such a request is allowed
//! only if it is under each reading: no deny rule matches any of them, and some rule allows each.
//! Parameters of the query may have several readings too ([`crate::query`]).

use crate::claims::Claims;
use crate::fields::Fields;
use crate::input::Peer;
use crate::matching::{self, Clause, compare, decide};
use crate::outcome::{Denial, PolicyKind};
use crate::query::Query;
use crate::spec::{
    Action, AuthorizationRule, Cidr, Condition, ConditionKey, LabelMatch, Matches, Operation, Source, StringMatch,
};
use crate::words;
use alloc::format;
use alloc::string::{String, ToString};

/// Values that rules look at, prepared once per request. A connection without requests has an empty
/// method, host and path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleInput<'a> {
    /// Who opened the connection.
    pub peer: Peer<'a>,
    /// The namespace of the peer's SPIFFE ID.
    pub namespace: Option<&'a str>,
    /// Issuer and subject of the verified token.
    pub principal: Option<(&'a str, &'a str)>,
    /// Its claims.
    pub claims: Option<&'a Claims<'a>>,
    /// As sent.
    pub method: &'a str,
    /// As [`crate::host::of_authority`] gives it.
    pub host: &'a str,
    /// Destination port.
    pub port: u16,
    /// As it is forwarded: normalised, or as received.
    pub path: &'a str,
    /// Other readings of the path.
    pub other_paths: &'a [String],
    /// Readings that only deny rules, limits and authorizers look at
    /// ([`crate::path::Readings::decoded`]).
    pub decoded_paths: &'a [String],
    /// The query as sent, without the `?`; `None`: there was none.
    pub sent_query: Option<&'a str>,
    /// Header fields.
    pub fields: &'a Fields<'a>,
    /// The query's parameters; `None`: no rule looks at them, or there is no request.
    pub query: Option<&'a Query<'a>>,
}

/// Rules, with or without those that are audited.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'r> {
    rules: &'r [AuthorizationRule],
    audited: bool,
}

impl<'r> Rules<'r> {
    /// The rules that are in force.
    pub(crate) fn in_force(rules: &'r [AuthorizationRule]) -> Self {
        Self { rules, audited: false }
    }

    /// All rules, as if nothing were audited.
    pub(crate) fn all(rules: &'r [AuthorizationRule]) -> Self {
        Self { rules, audited: true }
    }

    fn iter(self) -> impl Iterator<Item = &'r AuthorizationRule> {
        self.rules.iter().filter(move |rule| self.audited || !rule.audit)
    }
}

/// Whether a rule looks at the query.
pub(crate) fn reads_query(rules: &[AuthorizationRule]) -> bool {
    rules.iter().flat_map(|rule| &rule.when).any(|condition| matches!(condition.key, ConditionKey::Query(_)))
}

/// Inbound: the name of the rule that allows, or the denial.
pub(crate) fn judge<'r>(rules: Rules<'r>, asked: &RuleInput<'_>) -> Result<&'r str, Denial> {
    for path in asked.decoded_paths {
        refuse_denied(rules, &RuleInput { path, ..*asked })?;
    }
    for path in asked.other_paths {
        judge_reading(rules, &RuleInput { path, ..*asked })?;
    }
    judge_reading(rules, asked)
}

/// Outbound: the callees are the allow-list; deny rules refuse, and allow rules, if there are any, must match.
pub(crate) fn narrow<'r>(rules: Rules<'r>, asked: &RuleInput<'_>) -> Result<Option<&'r str>, Denial> {
    if allowing(rules).next().is_some() {
        return judge(rules, asked).map(Some);
    }
    for path in asked.decoded_paths.iter().chain(asked.other_paths) {
        refuse_denied(rules, &RuleInput { path, ..*asked })?;
    }
    refuse_denied(rules, asked).map(|()| None)
}

/// Whether these rules give every request the same verdict: there are none, or the first of them
/// allows everything and none denies.
pub(crate) fn is_constant(rules: &[AuthorizationRule]) -> bool {
    let allows_everything = |rule: &AuthorizationRule| {
        let is_unconditional = rule.from.is_empty() && rule.to.is_empty() && rule.when.is_empty();
        rule.action == Action::Allow && is_unconditional
    };
    rules.first().is_none_or(allows_everything) && rules.iter().all(|rule| rule.action == Action::Allow && !rule.audit)
}

fn judge_reading<'r>(rules: Rules<'r>, asked: &RuleInput<'_>) -> Result<&'r str, Denial> {
    refuse_denied(rules, asked)?;
    match allowing(rules).find(|rule| matches(rule, asked)) {
        Some(rule) => Ok(&rule.name),
        None => Err(no_rule_allows(rules, asked)),
    }
}

fn allowing(rules: Rules<'_>) -> impl Iterator<Item = &AuthorizationRule> {
    rules.iter().filter(|rule| rule.action == Action::Allow)
}

fn refuse_denied(rules: Rules<'_>, asked: &RuleInput<'_>) -> Result<(), Denial> {
    match rules.iter().find(|rule| rule.action == Action::Deny && matches(rule, asked)) {
        Some(rule) => {
            let clause = match present(asked.method) {
                Some(method) => format!("the deny rule matches {} {}", words::shown(method), words::shown(asked.path)),
                None => format!("the deny rule matches connections to port {}", asked.port),
            };
            Err(denial(&rule.name, false, clause))
        }
        None => Ok(()),
    }
}

fn matches(rule: &AuthorizationRule, asked: &RuleInput<'_>) -> bool {
    (rule.from.is_empty() || rule.from.iter().any(|source| source_matches(source, asked)))
        && (rule.to.is_empty() || rule.to.iter().any(|operation| operation_matches(operation, asked)))
        && rule.when.iter().all(|condition| !condition_clause(rule.action, condition, asked).fails())
}

/// Whether a source matches; rate limits use it too.
pub(crate) fn source_matches(source: &Source, asked: &RuleInput<'_>) -> bool {
    SOURCE_FIELDS.iter().all(|field| !field(source, asked).fails())
}

/// Whether an operation matches; rate limits use it too.
pub(crate) fn operation_matches(operation: &Operation, asked: &RuleInput<'_>) -> bool {
    OPERATION_FIELDS.iter().all(|field| !field(operation, asked).fails())
}

/// Whether one of these operations (all requests, if there are none) may be the requested one. If a
/// path has several readings, one match is enough: a client cannot avoid an authorizer by the
/// spelling of a path.
pub(crate) fn may_be_one_of(operations: &[Operation], asked: &RuleInput<'_>) -> bool {
    operations.is_empty() || operations.iter().any(|operation| may_match(operation, asked))
}

/// Whether an operation matches under any reading of the path.
pub(crate) fn may_match(operation: &Operation, asked: &RuleInput<'_>) -> bool {
    let as_other = |path: &String| operation_matches(operation, &RuleInput { path, ..*asked });
    operation_matches(operation, asked) || asked.other_paths.iter().chain(asked.decoded_paths).any(as_other)
}

type Field<T> = fn(&T, &RuleInput<'_>) -> Clause;

const SOURCE_FIELDS: [Field<Source>; 5] = [
    |source, asked| compare(&source.identities, asked.peer.identity, matching::text),
    |source, asked| compare(&source.namespaces, asked.namespace, matching::text),
    |source, asked| compare(&source.request_principals, asked.principal, matching::principal),
    |source, asked| compare(&source.addresses, asked.peer.address, Cidr::contains),
    |source, asked| source.labels.as_ref().map_or(Clause::Unset, |labelled| labels_clause(labelled, asked)),
];

const OPERATION_FIELDS: [Field<Operation>; 4] = [
    |operation, asked| compare(&operation.methods, present(asked.method), matching::text),
    |operation, asked| compare(&operation.hosts, present(asked.host), matching::text),
    |operation, asked| compare(&operation.ports, Some(asked.port), |port, asked| *port == asked),
    |operation, asked| {
        let path = present(asked.path);
        compare(&operation.paths, path, |matcher, path| matching::path(matcher, path, asked.sent_query))
    },
];

fn labels_clause(LabelMatch { identities, .. }: &LabelMatch, asked: &RuleInput<'_>) -> Clause {
    let carries = |identity| identities.binary_search_by(|other| other.as_str().cmp(identity)).is_ok();
    if asked.peer.identity.is_some_and(carries) { Clause::Holds } else { Clause::Missed }
}

fn present(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

fn condition_clause(action: Action, condition: &Condition, asked: &RuleInput<'_>) -> Clause {
    let meets = |list: &[StringMatch], value: &str| list.iter().any(|matcher| matching::text(matcher, value));
    let values = &condition.values;
    match &condition.key {
        ConditionKey::Header(name) => decide(values, |list| {
            asked.fields.values(name).any(|value| list.iter().any(|matcher| matching::bytes(matcher, value)))
        }),
        ConditionKey::Query(name) => match asked.query {
            Some(query) => query.clause(action, name, values),
            None => decide(values, |_| false),
        },
        ConditionKey::Claim(path) => {
            decide(values, |list| asked.claims.is_some_and(|claims| claims.any(path, |value| meets(list, value))))
        }
        ConditionKey::Audience => {
            decide(values, |list| asked.claims.is_some_and(|claims| claims.audience().any(|value| meets(list, value))))
        }
    }
}

/// The denial of a request that no rule allows. It names the rule for the requested operation. If
/// there is none, or several, it names the rule of which most fields hold.
fn no_rule_allows(rules: Rules<'_>, asked: &RuleInput<'_>) -> Denial {
    let mut nearest: Option<((bool, u32), &AuthorizationRule, String)> = None;
    for rule in allowing(rules) {
        let (nearness, clause) = how_near(rule, asked);
        if nearest.as_ref().is_none_or(|(most, ..)| nearness > *most) {
            nearest = Some((nearness, rule, clause));
        }
    }
    match nearest {
        Some((_, rule, clause)) => denial(&rule.name, true, clause),
        None => denial("", true, "no rule allows anything".to_string()),
    }
}

fn denial(rule: &str, default: bool, clause: String) -> Denial {
    Denial {
        status: 403,
        policy: PolicyKind::Authorization,
        rule: rule.to_string(),
        default,
        clause,
        headers: alloc::vec::Vec::new(),
    }
}

/// Whether a rule is for the requested operation, how many of its fields hold (of alternatives, the
/// best counts), and the first field that does not hold, in words.
fn how_near(rule: &AuthorizationRule, asked: &RuleInput<'_>) -> ((bool, u32), String) {
    let from = best(&rule.from, &SOURCE_FIELDS, asked);
    let to = best(&rule.to, &OPERATION_FIELDS, asked);
    let about_it = to.failed.is_none() && to.held > 0;
    let mut held = from.held + to.held;
    let mut failed = None;
    for condition in &rule.when {
        match condition_clause(rule.action, condition, asked) {
            Clause::Unset => {}
            Clause::Holds => held += 1,
            clause => failed = failed.or(Some((condition, clause))),
        }
    }
    let clause = if let Some((source, field, clause)) = from.failed {
        source_words(source, field, clause, asked)
    } else if let Some((operation, field, clause)) = to.failed {
        operation_words(operation, field, clause, asked)
    } else {
        failed.map_or_else(String::new, |(condition, clause)| condition_words(condition, clause))
    };
    ((about_it, held), clause)
}

/// The best of several alternatives.
struct Best<'r, T> {
    /// How many of its fields hold.
    held: u32,
    /// The alternative, its first field that does not hold, and why; `None`: all of them hold, or
    /// there are no alternatives.
    failed: Option<(&'r T, usize, Clause)>,
}

fn best<'r, T>(alternatives: &'r [T], fields: &[Field<T>], asked: &RuleInput<'_>) -> Best<'r, T> {
    let mut best: Option<Best<'r, T>> = None;
    for alternative in alternatives {
        let mut this = Best { held: 0, failed: None };
        for (index, field) in fields.iter().enumerate() {
            match field(alternative, asked) {
                Clause::Unset => {}
                Clause::Holds => this.held += 1,
                clause => this.failed = this.failed.or(Some((alternative, index, clause))),
            }
        }
        let nearer = |other: &Best<'_, T>| (this.failed.is_none(), this.held) > (other.failed.is_none(), other.held);
        if best.as_ref().is_none_or(nearer) {
            best = Some(this);
        }
    }
    best.unwrap_or(Best { held: 0, failed: None })
}

fn source_words(source: &Source, field: usize, clause: Clause, asked: &RuleInput<'_>) -> String {
    match field {
        0 => {
            let who = asked.peer.identity.map(words::shown).ok_or("the peer has no identity");
            missed("from.identities", who, &source.identities, clause, words::text)
        }
        1 => {
            let who = asked.namespace.map(words::shown).ok_or("the peer has no namespace");
            missed("from.namespaces", who, &source.namespaces, clause, words::text)
        }
        2 => {
            let who = asked
                .principal
                .map(|_| "the token's".to_string())
                .ok_or("the request has no verified token with a subject");
            missed("from.requestPrincipals", who, &source.request_principals, clause, words::principal)
        }
        3 => {
            let who = asked.peer.address.map(|address| address.to_string()).ok_or("the peer has no address");
            missed("from.addresses", who, &source.addresses, clause, words::cidr)
        }
        _ => {
            let selector = source.labels.as_ref().map_or("", |labelled| labelled.selector.as_str());
            match asked.peer.identity.map(words::shown) {
                Some(who) => format!("from.labels: {who} is not among the functions with {selector}"),
                None => format!("from.labels: the peer has no identity; expected a function with {selector}"),
            }
        }
    }
}

fn operation_words(operation: &Operation, field: usize, clause: Clause, asked: &RuleInput<'_>) -> String {
    let sent = |text| present(text).map(words::shown).ok_or("it was not sent");
    match field {
        0 => missed("to.methods", sent(asked.method), &operation.methods, clause, words::text),
        1 => missed("to.hosts", sent(asked.host), &operation.hosts, clause, words::text),
        2 => missed("to.ports", Ok(asked.port.to_string()), &operation.ports, clause, u16::to_string),
        _ => missed("to.paths", sent(asked.path), &operation.paths, clause, words::path),
    }
}

fn condition_words(condition: &Condition, clause: Clause) -> String {
    let name = match &condition.key {
        ConditionKey::Header(name) => format!("when.header `{name}`"),
        ConditionKey::Query(name) => format!("when.query `{name}`"),
        ConditionKey::Claim(path) => format!("when.claim `{}`", path.join(".")),
        ConditionKey::Audience => "when.audience".to_string(),
    };
    missed(&name, Ok("its value".to_string()), &condition.values, clause, words::text)
}

/// `to.paths: "/x" matches none of ["/orders/*"]`. `value`: the request's value, or why it has
/// none.
fn missed<T>(
    field: &str,
    value: Result<String, &str>,
    matches: &Matches<T>,
    clause: Clause,
    one: impl Fn(&T) -> String,
) -> String {
    match (value, clause) {
        (Ok(value), Clause::Excluded) => format!("{field}: {value} is excluded by {}", words::list(&matches.none, one)),
        (Ok(value), _) => format!("{field}: {value} matches none of {}", words::list(&matches.any, one)),
        (Err(absent), _) => format!("{field}: {absent}; expected one of {}", words::list(&matches.any, one)),
    }
}

#[cfg(test)]
mod tests;
