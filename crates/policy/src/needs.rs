//! The parts of a request that a program looks at. It is given nothing else.

use crate::reserved;
use crate::spec::{ConditionKey, HeaderRule, KeyPart, Operation, PathMatch, ProgramSpec, TokenSource};
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// The header fields by which a preflight is recognised.
pub(crate) const PREFLIGHT: [&str; 4] = ["origin", "access-control-request-method", "authorization", "cookie"];

/// Declared by the program, read by the runtime.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    /// Where tokens may be, over all issuers, each place once: the argument of [`crate::token::locate`].
    pub tokens: Vec<TokenSource>,
    /// Whether the address of the peer is given.
    pub address: bool,
    /// The header fields (lower case) that are given.
    fields: Vec<String>,
    /// The lengths of their names, one bit each: most fields of a request have none of them.
    lengths: u128,
}

impl Needs {
    /// The needs of the program of this specification.
    pub fn of(spec: &ProgramSpec) -> Self {
        let mut needs = Self::default();
        for source in spec.authentication.iter().flat_map(|issuer| &issuer.sources) {
            if !needs.tokens.contains(source) {
                needs.tokens.push(source.clone());
            }
        }
        let limits = || spec.rate_limits.iter();
        let rules = spec.authorization.iter().flat_map(|rule| &rule.from);
        let sources = rules.chain(limits().flat_map(|limit| limit.from.iter().chain(&limit.except)));
        let keys = || limits().flat_map(|limit| &limit.key);
        needs.address = sources.into_iter().any(|source| !source.addresses.is_empty())
            || keys().any(|part| *part == KeyPart::Address);

        for condition in spec.authorization.iter().flat_map(|rule| &rule.when) {
            if let ConditionKey::Header(name) = &condition.key {
                needs.give(name);
            }
        }
        for part in keys() {
            if let KeyPart::Header(name) = part {
                needs.give(name);
            }
        }
        for source in needs.tokens.clone() {
            match source {
                TokenSource::Header { name, .. } => needs.give(&name),
                TokenSource::Cookie(_) => needs.give("cookie"),
                TokenSource::Query(_) => {}
            }
        }
        for issuer in &spec.authentication {
            if issuer.preflight {
                PREFLIGHT.iter().for_each(|name| needs.give(name));
            }
            issuer.claims_to_headers.iter().for_each(|(_, name)| needs.give(name));
        }
        spec.authorizers.iter().flat_map(|authorizer| &authorizer.headers).for_each(|name| needs.give(name));
        for rule in &spec.sidecar.request_headers {
            match rule {
                HeaderRule::Set(name, _) | HeaderRule::Remove(name) => needs.give(name),
                HeaderRule::Append(..) => {}
            }
        }
        needs
    }

    fn give(&mut self, name: &str) {
        if !self.fields.iter().any(|field| field == name) {
            self.lengths |= bit(name);
            self.fields.push(name.to_string());
        }
    }

    /// Whether the program is given the header fields of this name (lower case): it declares the
    /// name, or one that a function may take for it.
    pub fn gives(&self, name: &str) -> bool {
        self.lengths & bit(name) != 0
            && self.fields.iter().any(|field| reserved::is_same(field.as_bytes(), name.as_bytes()))
    }
}

/// The bit of [`Needs::lengths`] for a name of this length.
fn bit(name: &str) -> u128 {
    1 << name.len().min(127)
}

/// The parts of a request head, besides request line, peer and token, that a verdict may depend on.
/// Counters of rate limits are not included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Header fields (lower case) whose values rules look at, each once.
    pub headers: Vec<String>,
    /// Whether rules look at the query.
    pub query: bool,
}

impl Reads {
    /// The parts that the rules and authorizers of this specification look at.
    pub fn of(spec: &ProgramSpec) -> Self {
        let mut reads = Self::default();
        for condition in spec.authorization.iter().flat_map(|rule| &rule.when) {
            match &condition.key {
                ConditionKey::Header(name) if !reads.headers.contains(name) => reads.headers.push(name.clone()),
                ConditionKey::Query(_) => reads.query = true,
                ConditionKey::Header(_) | ConditionKey::Claim(_) | ConditionKey::Audience => {}
            }
        }
        let authorizers = spec.authorizers.iter().flat_map(|authorizer| &authorizer.only);
        let operations = spec.authorization.iter().flat_map(|rule| &rule.to).chain(authorizers);
        reads.query |= operations.into_iter().any(reads_query);
        reads
    }
}

fn reads_query(operation: &Operation) -> bool {
    let paths = operation.paths.any.iter().chain(&operation.paths.none);
    paths.into_iter().any(|path| matches!(path, PathMatch::WithQuery(_)))
}

#[cfg(test)]
mod tests;
