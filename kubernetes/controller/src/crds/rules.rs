//! Rules between fields, in CEL, beside the types that they are about.
//!
//! The API server refuses at once what breaks one of them. Leno refuses all of it too, in its
//! status: a test compares both.

use serde_json::{Value, json};

/// A rule: the definition, the expression, and the message.
type Rule = (&'static str, &'static str, &'static str);

const RULES: &[Rule] = &[
    (
        "ExternalSpec",
        "(has(self.hosts) && size(self.hosts) > 0) || (has(self.addresses) && size(self.addresses) > 0)",
        "expected `hosts`, `addresses` or both",
    ),
    ("ExternalSpec", "size(self.ports) > 0", "expected at least one port"),
    ("Extension", "has(self.path) != has(self.url)", "expected one of `path` and `url`"),
    ("Extension", "!has(self.url) || has(self.sha256)", "`url` needs `sha256`"),
    ("Extension", "!(has(self.ca) && has(self.caFile))", "keep one of `ca` and `caFile`"),
    ("Fault", "has(self.delay) || has(self.abort)", "expected `delay`, `abort` or both"),
    ("FaultAbort", "has(self.status) != has(self.grpc)", "expected either `status` or `grpc`"),
    ("Jwks", "!(has(self.url) && has(self.file))", "keep one of `inline`, `file` and `url`"),
    ("Jwks", "!(has(self.ca) && has(self.caFile))", "keep one of `ca` and `caFile`"),
    (
        "PolicySpec",
        "has(self.selector) || !has(self.selectorExpressions) || size(self.selectorExpressions) == 0",
        "`selectorExpressions` need a `selector`: add `selector: {}`",
    ),
    ("PolicySpec", "has(self.selector) || !has(self.namespaces)", "`namespaces` need a `selector`: add `selector: {}`"),
    (
        "PolicySpec",
        "has(self.selector) || (has(self.functions) && size(self.functions) > 0) || has(self.faults)",
        "the policy is for no function: add `functions: [name]`, or `selector: {}`",
    ),
    (
        "TrustedProxies",
        "!(has(self.addresses) && size(self.addresses) > 0 && has(self.hops))",
        "keep one of `addresses` and `hops`",
    ),
];

/// The rules of a definition.
pub(crate) fn of(definition: &str) -> Vec<Value> {
    let rules = RULES.iter().filter(|(name, ..)| *name == definition);
    rules.map(|(_, rule, message)| json!({"rule": rule, "message": message})).collect()
}
