//! The conditions of rules and limits in words, as explanations quote them: one clause for each
//! section of a document. All clauses of a rule have to hold.

use crate::spec::{AuthorizationRule, ConditionKey, KeyPart, Matches, Operation, RateLimit, Source, StringMatch};
use crate::words;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

impl AuthorizationRule {
    /// `from: identities ["spiffe://…/cart"], or namespaces ["shop"]`, `to: methods ["GET"]`,
    /// `when: claim role ["admin"]`. None: it matches every request.
    pub fn clauses(&self) -> Vec<String> {
        let conditions = self.when.iter().map(|condition| {
            let key = match &condition.key {
                ConditionKey::Header(name) => format!("when: header {name}"),
                ConditionKey::Query(name) => format!("when: query {name}"),
                ConditionKey::Claim(path) => format!("when: claim {}", path.join(".")),
                ConditionKey::Audience => "when: audience".to_string(),
            };
            matched(&key, &condition.values, words::text).unwrap_or(key)
        });
        let sections = [sources("from", &self.from), operations("to", &self.to)];
        sections.into_iter().flatten().chain(conditions).collect()
    }
}

impl RateLimit {
    /// The requests that it counts, and which of them share a counter. None: all share one.
    pub fn clauses(&self) -> Vec<String> {
        let only = self.only.as_ref().and_then(|only| operations("to", core::slice::from_ref(only)));
        let sections = [sources("from", &self.from), sources("except from", &self.except), only];
        let key = (!self.key.is_empty()).then(|| {
            let parts: Vec<String> = self.key.iter().map(part).collect();
            format!("for each: {}", parts.join(", "))
        });
        sections.into_iter().flatten().chain(key).collect()
    }
}

/// A match of a text, as it is written in documents.
pub fn text(matcher: &StringMatch) -> String {
    words::text(matcher)
}

/// The requests that one of these matches; `None`: all.
pub fn operations(section: &str, operations: &[Operation]) -> Option<String> {
    alternatives(section, operations, |operation| {
        [
            matched("methods", &operation.methods, words::text),
            matched("hosts", &operation.hosts, words::text),
            matched("ports", &operation.ports, u16::to_string),
            matched("paths", &operation.paths, words::path),
        ]
        .into_iter()
        .flatten()
        .collect()
    })
}

fn sources(section: &str, sources: &[Source]) -> Option<String> {
    alternatives(section, sources, |source| {
        [
            matched("identities", &source.identities, words::text),
            source.labels.as_ref().map(|labels| format!("functions with {}", labels.selector)),
            matched("namespaces", &source.namespaces, words::text),
            matched("requestPrincipals", &source.request_principals, words::principal),
            matched("addresses", &source.addresses, words::cidr),
        ]
        .into_iter()
        .flatten()
        .collect()
    })
}

fn alternatives<T>(section: &str, all: &[T], fields: impl Fn(&T) -> Vec<String>) -> Option<String> {
    let each: Vec<String> = all.iter().map(|one| fields(one).join(" and ")).collect();
    // An alternative without fields matches everything.
    let is_narrow = !each.is_empty() && each.iter().all(|one| !one.is_empty());
    is_narrow.then(|| format!("{section}: {}", each.join(", or ")))
}

/// `methods ["GET"] and not ["HEAD"]`; `None`: the field holds always.
fn matched<T>(name: &str, matches: &Matches<T>, one: impl Fn(&T) -> String) -> Option<String> {
    let (any, none) = (words::list(&matches.any, &one), words::list(&matches.none, &one));
    match (matches.any.is_empty(), matches.none.is_empty()) {
        (true, true) => None,
        (false, true) => Some(format!("{name} {any}")),
        (true, false) => Some(format!("{name} not {none}")),
        (false, false) => Some(format!("{name} {any} and not {none}")),
    }
}

fn part(part: &KeyPart) -> String {
    match part {
        KeyPart::Identity => "identity".to_string(),
        KeyPart::Claim(path) => format!("claim {}", path.join(".")),
        KeyPart::Header(name) => format!("header {name}"),
        KeyPart::Path => "path".to_string(),
        KeyPart::Method => "method".to_string(),
        KeyPart::Address => "address".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use crate::spec::{
        Action, AuthorizationRule, Condition, ConditionKey, Counts, KeyPart, Matches, Operation, QuotaAlgorithm,
        RateLimit, Source, StringMatch,
    };
    use alloc::string::ToString;
    use alloc::vec;
    use alloc::vec::Vec;

    fn exact(values: &[&str]) -> Matches<StringMatch> {
        let any = values.iter().map(|value| StringMatch::Exact(value.to_string())).collect();
        Matches { any, none: Vec::new() }
    }

    #[test]
    fn a_rule_is_told_by_its_sections() {
        let get = Operation {
            methods: exact(&["GET"]),
            ports: Matches { any: vec![80], none: vec![] },
            ..Operation::default()
        };
        let from = [exact(&["spiffe://a/ns/b/sa/c"]), Matches { any: vec![], none: vec![StringMatch::Present] }];
        let mut rule = AuthorizationRule {
            name: "p/authorization/r".to_string(),
            action: Action::Allow,
            from: from.into_iter().map(|identities| Source { identities, ..Source::default() }).collect(),
            to: vec![get.clone()],
            when: vec![Condition {
                key: ConditionKey::Claim(vec!["a".to_string(), "b".to_string()]),
                values: exact(&["x"]),
            }],
            audit: false,
        };
        let clauses = [
            "from: identities [\"spiffe://a/ns/b/sa/c\"], or identities not [\"*\"]",
            "to: methods [\"GET\"] and ports [80]",
            "when: claim a.b [\"x\"]",
        ];
        assert_eq!(rule.clauses(), clauses);
        rule.from.push(Source::default());
        assert_eq!(rule.clauses(), clauses[1..], "one alternative matches every caller");

        let limit = RateLimit {
            name: "p/rateLimits/l".to_string(),
            counts: Counts::Requests,
            only: Some(get),
            from: Vec::new(),
            except: Vec::new(),
            audit: false,
            key: vec![KeyPart::Address, KeyPart::Header("x-key".to_string())],
            algorithm: QuotaAlgorithm::FixedWindow { requests: 1, period_ms: 1000 },
        };
        assert_eq!(limit.clauses(), [clauses[1], "for each: address, header x-key"]);
    }
}
