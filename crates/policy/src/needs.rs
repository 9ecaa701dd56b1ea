//! Data that a program needs with each request, so that one run is enough.

use crate::spec::{ClaimPath, ConditionKey, KeyPart, Operation, PathMatch, ProgramSpec, TokenSource};
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Declared by the program, read by the runtime. All of it is only a forecast: a program that
/// misses data asks for it ([`crate::outcome::Wants`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Needs {
    /// Where tokens may be, over all issuers, each place once: the argument of [`crate::token::locate`].
    pub tokens: Vec<TokenSource>,
    /// The key of each rate limit, in order.
    pub quotas: Vec<Vec<KeyPart>>,
    /// The claims that occur in those keys, each once, in order.
    pub claims: Vec<ClaimPath>,
    /// Whether the response must be judged too.
    pub response: bool,
}

impl Needs {
    /// The needs of the program of this specification.
    pub fn of(spec: &ProgramSpec) -> Self {
        let mut needs = Self { response: !spec.sidecar.response_headers.is_empty(), ..Self::default() };
        for source in spec.authentication.iter().flat_map(|issuer| &issuer.sources) {
            if !needs.tokens.contains(source) {
                needs.tokens.push(source.clone());
            }
        }
        for limit in &spec.rate_limits {
            for part in &limit.key {
                if let KeyPart::Claim(path) = part
                    && !needs.claims.contains(path)
                {
                    needs.claims.push(path.clone());
                }
            }
            needs.quotas.push(limit.key.clone());
        }
        needs
    }
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
